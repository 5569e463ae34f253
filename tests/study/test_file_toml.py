from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.study.folder import Plan, Settings
from joulelab.study.knobs import Knob, find_reference
from joulelab.study.matrix import Workload, make_cells
from joulelab.study.results import WorkPattern
from joulelab.study.study_file import read_study, write_sweep

if TYPE_CHECKING:
    from pathlib import Path

FREE = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=","), min_size=1).filter(str.strip)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.text(), max_size=3),
    values=st.lists(FREE, min_size=1, max_size=3),
    caps=st.sampled_from(["", "100:200:50", "60%:100%:20%", "99.5"]),
    clocks=st.sampled_from(["", "900:1980:120"]),
)
def test_a_sweep_reads_back_as_the_same_cells(
    tmp_path: Path, words: list[str], values: list[str], caps: str, clocks: str
) -> None:
    given_ = [("cap", caps), ("clock", clocks), ("batch", ",".join(values)), ("gpus", "1,2")]
    knobs = [Knob.parse(name, text) for name, text in given_ if text]
    # What stands in braces in the words would need a knob of its own.
    plain = [word.replace("{", "").replace("\0", "") for word in words]
    plan = Plan(make_cells(Workload(("train", *plain, "x={batch}", "{{batch}}")), knobs), repeats=2, goals=("energy",))
    file = tmp_path / "sweep.toml"
    file.write_text(write_sweep(plan, "a.sweep"), encoding="utf-8", newline="")
    study = read_study(file)
    assert [cell.knobs for cell in study.plan.cells] == [cell.knobs for cell in plan.cells]
    assert [cell.make_argv() for cell in study.plan.cells] == [cell.make_argv() for cell in plan.cells]
    assert (study.name, study.plan.repeats, study.plan.goals) == ("a.sweep", 2, ("energy",))


@pytest.mark.parametrize(
    "how",
    [
        Settings(),
        Settings(idle_s=10.0, cool_c=45.5, cool_limit_s=30.0, timeout_s=7200.0, period_s=0.001, meters=("a", "b")),
        Settings(idle_s=0.0, cool_s=0.25, without=("nvml",), estimate=True, rated_cpu_w=95.0),
    ],
)
def test_how_slots_are_run_reads_back(tmp_path: Path, how: Settings) -> None:
    knobs = [Knob.parse("cap", "60%:100%:20%"), Knob.parse("batch", "32,x")]
    plan = Plan(
        make_cells(Workload(("train", "{batch}")), knobs),
        repeats=4,
        warmup=1,
        settings=how,
        goals=("edp", "energy@slowdown=5%"),
        reference=find_reference({"cap": "100%", "batch": "32"}, knobs),
        work=(WorkPattern.parse(r"tokens: (\d+)", add=True).to_json(),),
        scope="gpu",
        per="tokens",
    )
    (tmp_path / "s.toml").write_text(write_sweep(plan, "s"), encoding="utf-8")
    read = read_study(tmp_path / "s.toml").plan
    for name in ("repeats", "warmup", "settings", "goals", "reference", "scope", "per"):
        assert getattr(read, name) == getattr(plan, name), name
    assert read.work == ({**plan.work[0], "workload": "s"},)


def test_the_text_is_one_that_people_would_write() -> None:
    knobs = [Knob.parse("cap", "100,200"), Knob.parse("rate", "0.1,fast")]
    plan = Plan(
        make_cells(Workload(("train", "--rate={rate}")), knobs), 3, goals=("energy",), settings=Settings(idle_s=10.0)
    )
    expected = """\
name = "train"
repeats = 3
goals = ["energy"]
idle = "10s"

[knobs]
cap = [100, 200]
rate = ["0.1", "fast"]

[workloads.train]
command = ["train", "--rate={rate}"]
"""
    assert write_sweep(plan, "train") == expected


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    knobs = [Knob.parse("cap", "100,200"), Knob.parse("gpus", "1,2")]
    found = make_cells(Workload(("train",)), knobs)
    with pytest.raises(ConfigError, match="only a sweep"):
        write_sweep(Plan(found[1:]), "s")
    with pytest.raises(ConfigError, match="only a sweep"):
        write_sweep(Plan(found, file=tmp_path), "s")
    with pytest.raises(ConfigError, match="no text"):
        write_sweep(Plan(make_cells(Workload(("train", "\udcff")), [])), "s")
    assert "[knobs]" not in write_sweep(Plan(make_cells(Workload(("train",)), [])), "s")
