"""Reference workloads: found by name, checked, and one of them run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.rows import every_row
from tests.workloads.books import LIMIT_S, book, code, write
from tests.workloads.packages import outside

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.run import workload_registry
from joulelab.workloads import burn

BURN = [sys.executable, "-m", "joulelab.workloads.burn"]


def test_only_reference_workloads_are_named() -> None:
    assert "burn" in workload_registry.list_workloads()
    assert not {"notebook", "cells", "burning", "training"} & set(workload_registry.list_workloads())


@every_row("name", ["brun", "notebook", "cells", "no/name", ""])
def test_an_unknown_name_is_told_with_the_valid_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no reference workload.*burn"):
        workload_registry.find_workload(name)


def test_the_words_of_a_study_become_a_command(tmp_path: Path) -> None:
    found = workload_registry.make_workload_command("reference", ["burn", "seconds=2", "size=64"], tmp_path, tmp_path)
    assert found[:6] == [*BURN, "seconds=2", "processes=0", "size=64"]
    assert found[6:] == [f"{key}={default}" for key, (default, _) in list(burn.PARAMETERS.items())[3:]]
    file = write(tmp_path / "a.ipynb", book(code("x = 1", "parameters")))
    out = tmp_path / "slot" / "executed.ipynb"
    out.parent.mkdir()
    found = workload_registry.make_workload_command("notebook", ["a.ipynb", "x=2", "--pause=1s"], tmp_path, out)
    assert found[1:] == [
        "-m",
        "joulelab.run.notebook",
        str(file),
        "--pause=1",
        f"--out={out}",
        "x=2",
    ]
    with pytest.raises(ConfigError, match="did you mean 'notebook'"):
        workload_registry.make_workload_command("notebok", ["a.ipynb"], tmp_path, tmp_path)


@every_row(
    ("words", "why"),
    [
        (["burn", "second=3"], "did you mean 'seconds'"),
        (["burn", "seconds"], "'seconds' is not a parameter"),
        (["burn", "preset=smok"], "there is no preset 'smok'; did you mean 'smoke'"),
        (["burn", "seconds=0"], "seconds is '0'; give a number from"),
        (["burn", "seconds=nan"], "seconds is 'nan'"),
        (["burn", "seconds=soon"], "seconds is 'soon'"),
        (["burn", "size=1.5"], "size is '1.5'; give a whole number from 2"),
        (["burn", "size=1"], "size is '1'"),
        ([], "no reference workload is named"),
    ],
)
def test_wrong_words_of_a_reference_workload_are_told(tmp_path: Path, words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        workload_registry.make_workload_command("reference", words, tmp_path, tmp_path)


def test_outside_packages_bring_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "SUMMARY = 's'\nPARAMETERS = {'n': ('1', 'number')}\ndef command(p):\n    return ['echo', p['n']]\n"
    outside(tmp_path, monkeypatch, source)
    assert workload_registry.list_workloads() == [
        *(n for n in workload_registry.list_workloads() if n != "their-own"),
        "their-own",
    ]
    assert workload_registry.make_workload_command("reference", ["their-own", "n=3"], tmp_path, tmp_path) == [
        "echo",
        "3",
    ]


def test_a_preset_stands_between_the_defaults_and_what_is_given() -> None:
    known = {"a": ("1", ""), "b": ("1", ""), "c": ("1", "")}
    presets = {"small": {"b": "2", "c": "2"}}
    given = {"preset": "small", "c": "3"}
    assert workload_registry.merge_parameters("w", known, given, presets) == {"a": "1", "b": "2", "c": "3"}
    assert workload_registry.merge_parameters("w", known, {"c": "3"}, presets) == {"a": "1", "b": "1", "c": "3"}
    assert workload_registry.merge_parameters("w", {"preset": ("1", "")}, {"preset": "x"}, presets) == {"preset": "x"}
    with pytest.raises(ConfigError, match="there is no preset 'x'; there is none"):
        workload_registry.merge_parameters("w", known, {"preset": "x"})


@pytest.mark.parametrize(
    ("source", "why"),
    [("1 / 0", "ZeroDivisionError"), ("PARAMETERS = {}\ncommand = 3\n", "has no command"), ("", "AttributeError")],
)
def test_a_broken_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str) -> None:
    outside(tmp_path, monkeypatch, source)
    with pytest.raises(ConfigError, match=why):
        workload_registry.find_workload("their-own")


def test_what_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(MissingDependency, match=r"ipykernel is not installed.*joulelab\[notebooks\]"):
        workload_registry.refuse_missing_library("a.ipynb", "ipykernel")
    with pytest.raises(MissingDependency, match=r"no_such is not installed\); pip install no_such"):
        workload_registry.require_libraries("w", "sys", "no_such")


@pytest.mark.system
def test_without_nbclient_a_notebook_says_what_to_install(tmp_path: Path) -> None:
    file = write(tmp_path / "a.ipynb", book(code("1")))
    # A Python in which only joulelab's own source is found.
    source = Path(workload_registry.__file__).parents[2]
    text = f"import sys; sys.path.insert(0, {str(source)!r}); sys.argv[1:] = [{str(file)!r}]\n"
    text += "import runpy; runpy.run_module('joulelab.run.notebook', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "nbclient is not installed" in done.stderr
    assert "pip install 'joulelab[notebooks]'" in done.stderr
