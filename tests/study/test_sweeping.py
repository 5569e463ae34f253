"""Sweep with real processes: two at once, killed, told to end, failed, gone on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.study.bench import claims, environment, finish, is_alive, start, sweep, wait_for

from joulelab.study import remains
from joulelab.study.slots import State, look

if TYPE_CHECKING:
    from subprocess import Popen

COMMON = ("--meter", "host", "--no-figures", "--name", "s")
# Fails where another is at work, and leaves a line.
ALONE = "mkdir busy || exit 9; sleep 0.2; rmdir busy; echo {n} >> log"
# Waits for a word, and leaves a line.
PATIENT = "while [ ! -e go ]; do sleep 0.05; done; echo {n} >> log"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


def lines(folder: Path) -> list[str]:
    return sorted((folder / "log").read_text().split())


def names(folder: Path) -> list[str]:
    """Return the slots of the study, those set aside among them."""
    return sorted(path.name for path in (folder / "joulelab-studies" / "s").glob("cells/*/[rw]*"))


def at_work(folder: Path, *not_pids: int) -> dict[str, object]:
    """Wait until a slot's workload runs; return its claim and the workload's processes."""
    study = folder / "joulelab-studies" / "s"

    def look_for() -> dict[str, object] | None:
        for claim in claims(study):
            if claim["pid"] not in not_pids and is_alive(claim["pid"]):
                found = remains.processes(claim["slot"])
                if found:
                    return {**claim, "workload": found}
        return None

    found: dict[str, object] = wait_for(look_for)
    return found


def test_two_sweeps_of_one_study_share_the_work(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*COMMON, "--set", "n=1,2", "--repeat", "2", "--", "sh", "-c", ALONE)
    both = [start(tmp_path, environ, *words) for _ in range(2)]
    for process in both:
        finish(process)
    assert lines(tmp_path) == ["1", "1", "2", "2"]
    assert names(tmp_path) == ["r01", "r01", "r02", "r02"]
    assert len(list(tmp_path.glob("joulelab-studies/s/cells/*/r0*/*/end.json"))) == 4
    out, err = sweep(tmp_path, environ, *words)  # nothing is left to do: only the table
    assert "[" not in err
    assert "loss" in out
    sweep(tmp_path, environ, *COMMON, "--set", "n=1,2,3", "--repeat", "1", "--", "sh", "-c", ALONE)
    assert lines(tmp_path) == ["1", "1", "2", "2", "3"]


def test_a_driver_that_is_killed_leaves_its_slot_to_the_next(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*COMMON, "--set", "n=1,2", "--repeat", "1", "--warmup", "1", "--", "sh", "-c", PATIENT)
    killed = start(tmp_path, environ, *words)
    first = at_work(tmp_path)
    killed.kill()
    killed.communicate(timeout=30)
    # Its warm-up goes on; the next has a warm-up of its own, and takes its turn after it.
    again = start(tmp_path, environ, *words)
    study = tmp_path / "joulelab-studies" / "s"
    assert look(Path(str(first["slot"]))).state is State.LIVE
    (tmp_path / "go").touch()
    _, err = finish(again)
    assert names(tmp_path) == ["r01", "r01", "w01", "w02"]
    assert len(lines(tmp_path)) == 4
    assert "warm-up done" in err
    assert json.loads((study / "study.json").read_text())["warmup"] == 1


def told_to_end(process: Popen[str], number: int) -> str:
    process.send_signal(number)
    _, err = finish(process, 128 + number)
    assert "type the same again to go on" in err
    return err


def test_what_is_cut_off_is_kept_and_run_again(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*COMMON, "--set", "n=1", "--repeat", "1", "--", "sh", "-c", PATIENT)
    driver = start(tmp_path, environ, *words)
    slot = at_work(tmp_path)
    told_to_end(driver, signal.SIGTERM)
    assert not any(is_alive(pid) for pid in (slot["pid"], *slot["workload"]))  # type: ignore[misc]
    assert names(tmp_path) == ["r01.interrupted-1"]

    driver = start(tmp_path, environ, *words)
    slot = at_work(tmp_path)
    os.kill(int(str(slot["pid"])), signal.SIGKILL)
    second = at_work(tmp_path, int(str(slot["pid"])))  # the driver tries again by itself
    assert not any(is_alive(pid) for pid in slot["workload"])  # type: ignore[attr-defined]
    assert names(tmp_path) == ["r01", "r01.interrupted-1", "r01.interrupted-2"]

    driver.kill()
    os.kill(int(str(second["pid"])), signal.SIGKILL)  # and now both
    driver.communicate(timeout=30)
    (tmp_path / "go").touch()
    _, err = sweep(tmp_path, environ, *words)
    assert "set aside" in err
    assert names(tmp_path) == ["r01", *(f"r01.interrupted-{n}" for n in (1, 2, 3))]
    assert len(lines(tmp_path)) in (1, 2)  # the last workload, an orphan, may have seen the word


def test_a_stubborn_workload_is_killed(tmp_path: Path, environ: dict[str, str]) -> None:
    stubborn = "trap '' TERM INT; echo $$ > pid; while :; do sleep 0.1; done"
    driver = start(tmp_path, environ, *COMMON, "--repeat", "1", "--", "sh", "-c", stubborn)
    slot = at_work(tmp_path)
    wait_for((tmp_path / "pid").exists)
    while driver.poll() is None:  # told again, it hurries
        driver.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, err = finish(driver, 130)
    assert "0 of 1 slots are done" in err
    assert not any(is_alive(pid) for pid in (slot["pid"], *slot["workload"]))  # type: ignore[misc]


def test_failures_are_kept_told_and_run_again_on_request(tmp_path: Path, environ: dict[str, str]) -> None:
    script = "echo oh no >&2; sleep 60 & if [ {n} = 2 ]; then exit 3; fi; if [ {n} = 3 ]; then sleep 30; fi"
    words = (*COMMON, "--set", "n=1,2,3", "--repeat", "1", "--timeout", "1s")
    _, err = sweep(tmp_path, environ, *words, "--", "sh", "-c", script, code=1)
    assert "n 2 (r01): failed (exit code 3)" in err
    assert "n 3 (r01): failed (it took longer than 1.0 s)" in err
    assert "1 processes outlived the command" in err
    assert "2 of 3 slots failed; type the same with --retry" in err
    assert {p.read_text() for p in tmp_path.glob("joulelab-studies/s/cells/*/r01/err.txt")} == {"oh no\n"}
    rows = (tmp_path / "joulelab-studies" / "s" / "slots.csv").read_text().splitlines()
    assert len(rows) == 4
    _, err = sweep(tmp_path, environ, *words, "--", "sh", "-c", script, code=1)
    assert err.count("failed before") == 2
    assert names(tmp_path) == ["r01"] * 3
    words = (*COMMON, "--set", "n=2", "--repeat", "1", "--retry")
    sweep(tmp_path, environ, *words, "--", "sh", "-c", script, code=1)
    assert names(tmp_path) == ["r01", "r01", "r01", "r01.failed-1"]


def test_a_command_that_cannot_be_started_stops_the_sweep(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*COMMON, "--set", "n=1:100:1", "--", "./no-such-command", "{n}")
    _, err = sweep(tmp_path, environ, *words, code=1)
    assert "no such command" in err
    assert err.count("set aside") == 1
    assert names(tmp_path) == ["r01.refused-1"]
