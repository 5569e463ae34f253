"""Workloads from the command line: listed, described, measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.workloads.packages import outside

from joulelab.run import workload_registry

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Fail

JOULELAB = [sys.executable, "-m", "joulelab"]
SHORT = ["--set", "seconds=0.2", "--set", "processes=1", "--set", "size=32"]
LIMIT_S = 300


def told(call: Call, *words: str) -> Any:
    return json.loads(call("workload", *words, "--json").stdout)


def test_ls_lists_every_workload(call: Call) -> None:
    rows = {row["name"]: row for row in told(call, "ls")}
    assert list(rows) == workload_registry.list_workloads()
    assert rows["burn"]["study"] == "BNL 2024"
    assert "smoke" in rows["burn"]["presets"]
    assert rows["burn"]["needs"] is None
    text = call("workload", "ls").output
    assert "burn" in text
    assert "installed" in text


def test_what_is_missing_or_broken_is_listed_with_what_to_do(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from joulelab.workloads import require\nSUMMARY = 's'\nPARAMETERS = {}\n"
    outside(tmp_path, monkeypatch, source + "def command(p):\n    require('it', 'torch')\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    text = call("workload", "ls").output
    assert "their-own" in text
    assert "-> pip install 'joulelab[torch]'" in text
    assert told(call, "info", "their-own")["command"] is None
    (tmp_path / "theirs.py").write_text("1 / 0")
    monkeypatch.delitem(sys.modules, "theirs")
    (row,) = (row for row in told(call, "ls") if row["name"] == "their-own")
    assert "ZeroDivisionError" in row["needs"]["why"]


def test_info_describes_the_workload_and_what_would_be_run(call: Call) -> None:
    found = told(call, "info", "burn", "--preset", "smoke-node", "--set", "tasks=3", "--set", "host=no")
    assert found["parameters"]["seconds"] == {"default": "10", "meaning": "how long to burn"}
    assert found["presets"]["smoke-node"]["tasks"] == "2"
    assert (found["settings"]["tasks"], found["settings"]["seconds"]) == ("3", "3")
    assert found["command"][1:4] == ["-m", "joulelab.workloads.burn", "seconds=3"]
    text = call("workload", "info", "burn", "--preset", "smoke-node", "--set", "host=no").output
    for part in ("BNL 2024", "smoke-node seconds=3", "-> /"):
        assert part in text


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["brun"], ("'brun'", "'burn'")),
        (["burn", "--preset", "smok"], ("burn", "'smok'", "'smoke'")),
        (["burn", "--set", "secnds=1"], ("burn", "'secnds'", "'seconds'")),
        (["burn", "--set", "seconds=0"], ("seconds", "'0'")),
        (["burn", "--set", "seconds=1", "--set", "seconds=2"], ("seconds",)),
    ],
)
def test_what_is_wrong_is_told_with_the_nearest(
    words: list[str], names: tuple[str, ...], fail: Fail, tmp_path: Path
) -> None:
    for verb, code in (("info", 2), ("run", 125)):  # that of `run` could be taken for the workload's
        failure = fail("workload", verb, *words, code=code)
        assert failure.kind == "config"
        assert all(name in failure.stderr for name in names)
    assert not list(tmp_path.iterdir())


def test_own_failures_of_run_are_125(fail: Fail) -> None:
    failure = fail("workload", "run", "burn", "--no-such-option", code=125)
    assert (failure.kind, failure.next) == ("usage", "joulelab workload run --help")


@pytest.mark.system
def test_what_is_not_installed_is_told_before_anything_is_started(
    fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for preset, named in (("smoke", "pip install 'joulelab[torch]'"), ("smoke-node", "stress-ng")):
        failure = fail("workload", "run", "burn", "--preset", preset, code=125)
        assert failure.kind == "missing-dependency"
        assert named in failure.stderr
    assert not list(tmp_path.iterdir())


def test_print_only_prints(call: Call, runs: Path) -> None:
    assert "joulelab.workloads.burn seconds=0.2" in call("workload", "run", "burn", *SHORT, "--print").stdout
    assert told(call, "run", "burn", *SHORT, "--print")["command"][3] == "seconds=0.2"
    assert not runs.exists()


def measure(runs: Path, *words: str) -> list[dict[str, Any]]:
    """Run joulelab in a process of its own; return what is known of the runs it made."""
    environ = dict(os.environ)
    environ["JOULELAB_RUNS"] = str(runs)
    done = subprocess.run([*JOULELAB, *words], env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([*JOULELAB, "ls", "--json"], env=environ, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


@pytest.mark.system
def test_run_measures_it_as_run_does(runs: Path) -> None:
    (row,) = measure(runs, "workload", "run", "burn", *SHORT, "--preset", "smoke", "--set", "backend=numpy",
                     "--label", "preset=mine", "-q")  # fmt: skip
    assert (row["name"], row["exit_code"], row["facts"]["size"]) == ("burn", 0, 32)
    meta = json.loads((Path(row["folder"]) / "run.json").read_text())
    assert meta["labels"] == {"workload": "burn", "preset": "mine"}


@pytest.mark.system
def test_inside_of_a_run_it_is_a_part_of_it(runs: Path) -> None:
    (row,) = measure(runs, "run", "-q", "--name", "outer", "--", *JOULELAB, "workload", "run", "burn", *SHORT)
    assert (row["name"], row["facts"]["workload"]) == ("outer", "burn")


def test_split_writes_a_folder_whole_or_not_at_all_and_names_the_next_command(
    call: Call, fail: Fail, tmp_path: Path
) -> None:
    raw, made = tmp_path / "raw", tmp_path / "new" / "made"
    for part in ("train", "test"):
        (raw / part).mkdir(parents=True)
        rows = [(f"{part}-{k}.png", ("negative", "positive")[k % 2]) for k in range(6)]
        (raw / f"{part}.txt").write_text("".join(f"{name} {name} {label} of-{part}\n" for name, label in rows))
        for name, _ in rows:
            (raw / part / name).touch()
    shown = call("workload", "split", "xrays", raw, made).output
    assert f"-> joulelab workload run vgg19bn-xray --set data={made}" in shown.replace("\n", "")
    assert {file.name for file in made.iterdir()} == {"imgs", "train.csv", "valid.csv", "test.csv"}
    assert fail("workload", "split", "xrays", raw, made, code=1).where == str(made)
    assert fail("workload", "split", "load", raw, tmp_path / "other").where == str(raw)
    assert not (tmp_path / "other").exists()
