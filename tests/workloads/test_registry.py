"""Reference workloads: found by name, checked, and one of them run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.workloads.books import LIMIT_S, book, code, environment, is_gone, wait_for, write

import joulelab.workloads as workloads
from joulelab.core.errors import ConfigError, MissingDependency

BURN = [sys.executable, "-m", "joulelab.workloads.burn"]


def test_every_reference_workload_has_what_it_needs() -> None:
    assert "burn" in workloads.names()
    assert "notebook" not in workloads.names()
    for name in workloads.names():
        module = workloads.find(name)
        assert module.SUMMARY
        assert all(
            len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in module.PARAMETERS.values()
        )
        assert module.command({key: default for key, (default, _) in module.PARAMETERS.items()})


@pytest.mark.parametrize("name", ["brun", "notebook", "cells", "no/name", ""])
def test_an_unknown_name_is_told_with_the_valid_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no reference workload.*burn"):
        workloads.find(name)


def test_the_words_of_a_study_become_a_command(tmp_path: Path) -> None:
    found = workloads.argv("reference", ["burn", "seconds=2", "size=64"], tmp_path, tmp_path)
    assert found == [*BURN, "seconds=2", "processes=0", "size=64"]
    file = write(tmp_path / "a.ipynb", book(code("x = 1", "parameters")))
    out = tmp_path / "slot" / "executed.ipynb"
    out.parent.mkdir()
    found = workloads.argv("notebook", ["a.ipynb", "x=2", "--pause=1s"], tmp_path, out)
    assert found[1:] == [
        "-m",
        "joulelab.workloads.notebook",
        str(file),
        "--pause=1",
        f"--out={out}",
        "x=2",
    ]
    with pytest.raises(ConfigError, match="did you mean 'notebook'"):
        workloads.argv("notebok", ["a.ipynb"], tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["burn", "second=3"], "did you mean 'seconds'"),
        (["burn", "seconds"], "'seconds' is no parameter"),
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
        workloads.argv("reference", words, tmp_path, tmp_path)


def outside(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Install a package with a workload, as pip would."""
    (folder / "theirs.py").write_text(source)
    info = folder / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[joulelab.workloads]\ntheir-own = theirs\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


def test_outside_packages_bring_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "SUMMARY = 's'\nPARAMETERS = {'n': ('1', 'number')}\ndef command(p):\n    return ['echo', p['n']]\n"
    outside(tmp_path, monkeypatch, source)
    assert workloads.names() == [*(n for n in workloads.names() if n != "their-own"), "their-own"]
    assert workloads.argv("reference", ["their-own", "n=3"], tmp_path, tmp_path) == ["echo", "3"]


@pytest.mark.parametrize(
    ("source", "why"),
    [("1 / 0", "ZeroDivisionError"), ("PARAMETERS = {}\ncommand = 3\n", "has no command"), ("", "AttributeError")],
)
def test_a_broken_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str) -> None:
    outside(tmp_path, monkeypatch, source)
    with pytest.raises(ConfigError, match=why):
        workloads.find("their-own")


def test_what_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(MissingDependency, match=r"ipykernel is not installed.*joulelab\[notebooks\]"):
        workloads.missing("a.ipynb", "ipykernel")


def test_without_nbclient_a_notebook_says_what_to_install(tmp_path: Path) -> None:
    file = write(tmp_path / "a.ipynb", book(code("1")))
    # A Python in which only joulelab's own source is found.
    source = Path(workloads.__file__).parents[2]
    text = f"import sys; sys.path.insert(0, {str(source)!r}); sys.argv[1:] = [{str(file)!r}]\n"
    text += "import runpy; runpy.run_module('joulelab.workloads.notebook', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "nbclient is not installed" in done.stderr
    assert "pip install 'joulelab[notebooks]'" in done.stderr


def test_burning_counts_and_checks_its_products(tmp_path: Path) -> None:
    words = [*BURN, "seconds=0.3", "processes=2", "size=32"]
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(": ") for line in done.stdout.splitlines())
    assert int(told["products"]) >= 2
    assert told["wrong"] == "0"


def test_burning_with_wrong_words_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([*BURN, "size=0"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2
    assert "size is '0'" in done.stderr


def children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


def test_burning_ends_when_it_is_told_to(tmp_path: Path) -> None:
    burning = subprocess.Popen([*BURN, "seconds=600", "processes=2"], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: len(children(burning.pid)) == 2, "both processes")
    pids = children(burning.pid)
    burning.send_signal(signal.SIGTERM)
    out, _ = burning.communicate(timeout=LIMIT_S)
    assert burning.returncode == 128 + signal.SIGTERM
    assert out == ""
    assert all(is_gone(pid) for pid in pids)
