"""Run each paper's preset for a step, and the command of every distinct cell of the studies, shrunken.

Each has to mark the phases that its program declares: twins are made of the same description.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.integrations.following import Marked, marked
from tests.workloads.inprocess import run_cells
from tests.workloads.shrinking import ALLOWED, SHRUNKEN, shrink_words

from joulelab.core.process_identity import RUN_VARIABLE
from joulelab.run import workload_registry
from joulelab.run.run_options import HOST_VARIABLE
from joulelab.study.program import list_marked_phases
from joulelab.study.study_file import read_study
from joulelab.workloads.training import launch

__all__ = ["marked"]

ROOT = Path(__file__).parents[2]
LIMIT_S = 600
NEEDS = {"llava15-13b": "transformers", "lstm-notebook": "nbclient", "vgg19bn-notebook": "nbclient"}


def list_presets() -> dict[str, list[str]]:
    """Return the words of each preset that stands for a paper."""
    return {
        f"{name}-{preset}": [name, f"preset={preset}"]
        for name in workload_registry.list_workloads()
        for preset in workload_registry.get_presets(workload_registry.find_workload(name))
        if preset.startswith("paper") or (name, preset) == ("burn", "node")
    }


def list_cells() -> dict[str, list[str]]:
    """Return the words of every distinct cell of the studies: caps, GPUs and nodes are no part of a command."""
    found: dict[tuple[str, ...], str] = {}
    for file in sorted((ROOT / "studies").glob("*.toml")):
        for cell in read_study(file).plan.cells:
            found.setdefault(tuple(cell.make_argv()), f"{file.stem}-{cell.workload.name}")
    return {f"{title}-{number}": list(words) for number, (words, title) in enumerate(found.items())}


CELLS = list_cells()
COMMANDS = {**list_presets(), **CELLS}
# One cell of each workload, in this process: of the LSTM the prediction; burn is measured by test_smoke.py.
CHOSEN = {words[0]: words for words in reversed(CELLS.values()) if words[0] != "burn"}
CHOSEN["lstm-load"] = next(words for words in CELLS.values() if "epochs=0" in words and words[0] == "lstm-load")
# Large models are trained by campaigns; tests of their own train a step of a small one.
LARGE = {"resnet152-cifar10", "vgg19bn-notebook", "xception-birds"}
SOME_CELLS = [pytest.param(name, marks=pytest.mark.campaign if name in LARGE else ()) for name in CHOSEN]


def list_expected(shrunken: list[str]) -> list[str]:
    """Return the phases that the program of a workload declares for these words, which have all its parameters."""
    return list_marked_phases(shrunken[0], workload_registry.read_pairs(shrunken[1:], where=shrunken[0]))


def list_marked(found: Marked) -> list[str]:
    """Return the names of the phases that a run has marked, each once, without the titles of a notebook's cells."""
    known = {"set-up", "exploration", "warm-up", "epoch", "validation", "predict", "write", "test", "save", "burn"}
    names = [re.sub(r" \d+$", "", title) for title in found.titles()]
    return list(dict.fromkeys(name for name in names if name in known))


def test_only_size_steps_samples_and_device_are_changed() -> None:
    for name, changes in SHRUNKEN.items():
        assert set(changes) <= ALLOWED & set(workload_registry.find_workload(name).PARAMETERS)
    assert {words[0] for words in COMMANDS.values()} == set(SHRUNKEN)


@pytest.mark.parametrize("name", ["lstm-notebook", "vgg19bn-notebook"])
def test_a_notebooks_preset_asks_for_what_its_study_asks_for(name: str) -> None:
    module = workload_registry.find_workload(name)

    def merge(words: list[str]) -> dict[str, str]:
        given = workload_registry.read_pairs(words[1:], where=name)
        return workload_registry.merge_parameters(name, module.PARAMETERS, given, workload_registry.get_presets(module))

    assert merge([name, "preset=paper"]) == merge(CHOSEN[name])


@pytest.mark.campaign
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_papers_command_runs(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(NEEDS.get(words[0], "torch"))
    shrunken, marks = shrink_words(words), tmp_path / "run" / "here" / "marks"
    marks.mkdir(parents=True)
    own = {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environ = {key: value for key, value in os.environ.items() if key != "JOULELAB_DATA"} | own
    workload_registry.prepare_workload(shrunken, environ)
    argv = workload_registry.make_reference_command(shrunken)
    environ |= {RUN_VARIABLE: str(tmp_path / "run"), HOST_VARIABLE: "here"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list_marked(Marked(marks)) == list_expected(shrunken)


@pytest.mark.no_cover
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # as many loading processes as in the papers
@pytest.mark.system
@pytest.mark.parametrize("name", SOME_CELLS)
def test_a_cell_of_each_workload_runs_in_this_process(
    name: str, marked: Marked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(NEEDS.get(name, "torch"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("JOULELAB_DATA", raising=False)
    module = workload_registry.find_workload(name)
    shrunken = shrink_words(CHOSEN[name], has_fewer_loaders=True)
    if hasattr(module, "FILE"):
        given = workload_registry.read_pairs(shrunken[1:], where=name)
        run_cells(module.FILE, {key: given[key] for key in module.SAME}, monkeypatch)
    else:
        assert launch.run_training(name, module.PARAMETERS, module.task, module.PRESETS, shrunken[1:]) == 0
    assert list_marked(marked) == list_expected(shrunken)
