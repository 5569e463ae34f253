"""Whatever stands in a study file: it is read, or refused in words with a line; nothing else is raised."""

from __future__ import annotations

import copy
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import describe_keys
from joulelab.run.config.toml_writing import format_toml
from joulelab.study.study_file import NodeKeys, StudyKeys, WorkloadKeys, read_study

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RIGHT = tomllib.loads(r"""
name = "x"
repeats = 5
seed = 7
goals = ["energy", "eds:1.5"]
reference = { node = "gpu", batch = 256, phase = "train", workload = "train" }
idle = "10s"
cool = "45C"
meters = ["nvml"]
estimate = true
rated_cpu = 225
knobs.cap = { values = "200:400:100", when = { node = "gpu", batch = [256] } }
knobs.batch = [256, 512]
knobs.seconds = [1, 2]
skip = [{ node = ["cpu"], batch = 512 }, { workload = "burn", seconds = 2 }]
[workloads.train]
command = "python train.py --batch {batch} {epochs}"
phases = ["train", "predict"]
nodes = ["gpu", "cpu"]
work = 'samples: (\d+)'
knobs = { epochs = [{ values = 3, when = { node = "cpu" } }, { values = [30] }] }
timeout = "2h"
[workloads.burn]
reference = "burn"
parameters = { size = 64, processes = "{gpus}" }
knobs = { gpus = [2] }
nodes = "gpu"
[nodes.gpu]
partition = "accelerated"
gpus = 4
time = "1-02:03:04"
options = ["--mem=0"]
[nodes.cpu]
executor = "local"
uses = "cpu"
environment = { OMP_NUM_THREADS = 76 }
""")
WORDS = (
    "gpu",
    "cpu",
    "local",
    "slurm",
    "train",
    "burn",
    "10s",
    "2h",
    "100:200:50",
    "60%",
    "run {batch}",
    "{x}",
    "0",
    "",
)
PLAIN = st.sampled_from(WORDS) | st.integers(-2, 600) | st.booleans() | st.floats(allow_nan=True) | st.text(max_size=5)
KEYS = [key for kind in (StudyKeys, WorkloadKeys, NodeKeys) for key in describe_keys(kind)]
NAMES = st.sampled_from([*KEYS, "train", "gpu", "batch", "cap", "when", "values", "x y"])
ANY = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(NAMES, PLAIN | st.lists(PLAIN, max_size=2), max_size=3)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*at, key)
        yield from places(item, (*at, key))


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a file that was right before some of its values were replaced, added or left out."""
    content = copy.deepcopy(RIGHT)
    for _ in range(draw(st.integers(0, 3))):
        *way, last = draw(st.sampled_from(list(places(content))))
        holder: Any = content
        for key in way:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "add", "leave out"]))
        if how == "leave out":
            del holder[last]
        elif how == "add" and isinstance(holder, dict):
            holder[draw(NAMES)] = draw(ANY)
        else:
            holder[last] = draw(ANY)
    return content


@pytest.mark.system  # pure, and slow
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(files())
def test_any_file_is_read_or_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    check(tmp_path / "any.toml", content)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@settings(max_examples=800, suppress_health_check=list(HealthCheck), deadline=None)
@given(files())
def test_many_files_are_read_or_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    check(tmp_path / "any.toml", content)


def check(file: Path, content: dict[str, Any]) -> None:
    file.write_text(
        "".join(f"{key} = {format_toml(value)}\n" for key, value in content.items()), encoding="utf-8", newline=""
    )
    told = ""
    try:
        assert read_study(file).plan.cells
    except ConfigError as error:
        told = str(error)
    event("refused" if told else "read")
    assert all(line.startswith(f"{file}:") for line in told.splitlines())
