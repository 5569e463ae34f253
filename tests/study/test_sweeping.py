"""Sweep with real processes: two at once, killed, told to end, failed, gone on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.study.bench import claims, environment, finish, is_alive, start, sweep, wait_for

from joulelab.control.state import get_user_name
from joulelab.study import slot_processes
from joulelab.study.slots import State, hold_turn, read_slot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

pytestmark = pytest.mark.system

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
                found = slot_processes.list_processes(claim["slot"])
                if found:
                    return {**claim, "workload": found}
        return None

    found: dict[str, object] = wait_for(look_for)
    return found


@pytest.mark.no_cover
def test_two_sweeps_of_one_study_share_the_work(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*COMMON, "--set", "n=1,2", "--repeat", "2", "--", "sh", "-c", ALONE)
    both = [start(tmp_path, environ, *words) for _ in range(2)]
    for process in both:
        finish(process)
    assert lines(tmp_path) == ["1", "1", "2", "2"]
    assert names(tmp_path) == ["r01", "r01", "r02", "r02"]
    assert len(list(tmp_path.glob("joulelab-studies/s/cells/*/r0*/*/end.json"))) == 4
    out, err = sweep(tmp_path, environ, *COMMON, "--set", "n=1,2,3", "--repeat", "1", "--", "sh", "-c", ALONE)
    assert "3 cells" in out
    assert err.count("[") == 1  # only what is new is run
    assert lines(tmp_path) == ["1", "1", "2", "2", "3"]


@pytest.mark.no_cover
def test_a_driver_that_is_killed_leaves_its_slot_to_the_next(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*COMMON, "--set", "n=1,2", "--repeat", "1", "--warmup", "1", "--", "sh", "-c", PATIENT)
    killed = start(tmp_path, environ, *words)
    first = at_work(tmp_path)
    killed.kill()
    killed.communicate(timeout=120)
    # Its warm-up goes on; the next has a warm-up of its own, and takes its turn after it.
    again = start(tmp_path, environ, *words)
    study = tmp_path / "joulelab-studies" / "s"
    assert read_slot(Path(str(first["slot"]))).state is State.LIVE
    (tmp_path / "go").touch()
    _, err = finish(again)
    assert names(tmp_path) == ["r01", "r01", "w01", "w02"]
    assert len(lines(tmp_path)) == 4
    assert "warm-up done" in err
    assert json.loads((study / "study.json").read_text())["warmup"] == 1


def told_to_end(process: Popen[str], number: int) -> str:
    process.send_signal(number)
    _, err = finish(process, 128 + number)
    assert "type the same command to continue" in err
    return err


@pytest.mark.no_cover
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
    driver.communicate(timeout=120)
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
    while any(is_alive(pid) for pid in slot["workload"]):  # type: ignore[attr-defined]
        driver.send_signal(signal.SIGINT)  # told again, it hurries
        time.sleep(0.3)
    _, err = finish(driver, 130)
    assert "0 of 1 slots are done" in err
    assert not any(is_alive(pid) for pid in (slot["pid"], *slot["workload"]))  # type: ignore[misc]


def test_failures_are_kept_told_and_run_again_on_request(tmp_path: Path, environ: dict[str, str]) -> None:
    script = "echo oh no >&2; sleep 60 & if [ {n} = 2 ]; then exit 3; fi; if [ {n} = 3 ]; then exec env -i sleep 45; fi"
    words = (*COMMON, "--set", "n=1,2,3", "--repeat", "1", "--timeout", "4s")
    _, err = sweep(tmp_path, environ, *words, "--", "sh", "-c", script, code=1)
    assert "n 2 (r01): failed (exit code 3)" in err
    assert "n 3 (r01): failed (it took longer than 4.0 s)" in err
    assert "1 process outlived the command and was ended" in err
    assert "2 of 3 slots failed; add --retry" in err
    assert {p.read_text() for p in tmp_path.glob("joulelab-studies/s/cells/*/r01/err.txt")} == {"oh no\n"}
    rows = (tmp_path / "joulelab-studies" / "s" / "slots.csv").read_text().splitlines()
    assert len(rows) == 4
    _, err = sweep(tmp_path, environ, *words, "--", "sh", "-c", script, code=1)
    assert err.count("failed before") == 2
    assert names(tmp_path) == ["r01"] * 3
    words = (*COMMON, "--set", "n=2", "--repeat", "1", "--retry")
    sweep(tmp_path, environ, *words, "--", "sh", "-c", script, code=1)
    assert names(tmp_path) == ["r01", "r01", "r01", "r01.failed-1"]


def test_what_drops_its_environment_is_ended_as_well(tmp_path: Path, environ: dict[str, str]) -> None:
    left = "env -i setsid nohup sh -c 'sleep 71 & echo $! >> pids; echo $$ >> pids; wait' > /dev/null 2>&1 &"
    script = f"touch pids; {left} while [ $(wc -l < pids) != 2 ]; do sleep 0.05; done"
    _, err = sweep(tmp_path, environ, *COMMON, "--repeat", "1", "--", "sh", "-c", script)
    assert "2 processes outlived the command and were ended" in err
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)


def test_what_the_workload_left_and_what_ended_since_is_buried(tmp_path: Path, environ: dict[str, str]) -> None:
    script = """
import json, os, pathlib, subprocess, sys, time
from joulelab.store.run_folder import create_run
from joulelab.study import slot_processes
slot_processes.REAP_S = 0.05
folder = pathlib.Path(sys.argv[1])
run = create_run(folder, {"host": "h", "command": ["sh"]})
slot_processes.adopt_orphans()
workload = subprocess.Popen(["sh", "-c", "sleep 0.1 & exit 3"])
(run / "h" / "events.run.jsonl").write_text(json.dumps({"event": "workload", "pid": workload.pid}))
until = time.monotonic() + 120
while len(slot_processes.list_zombies()) < 2 and time.monotonic() < until:
    time.sleep(0.02)
print(len(slot_processes.list_zombies()))
with slot_processes.WorkloadGuard(folder):
    while len(slot_processes.list_zombies()) > 1 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)
print(slot_processes.list_zombies() == {workload.pid}, workload.wait())
"""
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environ, check=True, capture_output=True, text=True
    )
    assert said.stdout.split() == ["2", "True", "3"]


def test_who_waits_for_a_turn_is_told_for_whom(tmp_path: Path, environ: dict[str, str]) -> None:
    with hold_turn(environ, lambda _: False, command="other: cap 100 W (r07)"):
        driver = start(tmp_path, environ, *COMMON, "--set", "n=1", "--repeat", "1", "--", "true", "{n}")
        assert driver.stderr is not None
        line = driver.stderr.readline()
        while line and "waits" not in line:
            line = driver.stderr.readline()
        assert (
            f"waits for its turn (held by {get_user_name(os.geteuid())} (pid {os.getpid()}, `other: cap 100 W" in line
        )
    _, err = finish(driver)
    assert "waits" not in err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_output_that_fills_the_disk_stops_the_sweep_at_once(
    tmp_path: Path, environ: dict[str, str], small_disk: Path
) -> None:
    script = f"[ -e {tmp_path}/go ] || yes; : {{n}}"
    words = (*COMMON, "--set", "n=1,2", "--repeat", "1", "--", "sh", "-c", script)
    _, err = sweep(small_disk, {**environ, "TMPDIR": str(small_disk)}, *words, code=1)
    assert "No space left on device" in err
    assert "free some space, then type the same again" in err
    assert err.count("set aside") == 1
    assert "interrupted (exit code" not in err
    (aside,) = names(small_disk)
    assert f"{aside}: the run could not be closed" in err
    (tmp_path / "go").touch()
    for file in small_disk.glob("joulelab-studies/s/cells/*/*/*.txt"):
        file.unlink()
    sweep(small_disk, environ, *words)
    assert sorted(names(small_disk)) == ["r01", "r01", aside]


@pytest.mark.no_cover
def test_damaged_files_cost_no_more_than_their_slot(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*COMMON, "--set", "n=1,2", "--repeat", "1", "--", "sh", "-c", "echo {n} >> log")
    sweep(tmp_path, environ, *words)
    first, second = sorted(tmp_path.glob("joulelab-studies/s/cells/*"))
    (first / "cell.json").write_text('{"schema": 1, "kno')
    next(second.glob("r01/*/end.json")).write_text("")
    out, _ = sweep(tmp_path, environ, "--report", "--no-figures", "--name", "s")
    assert "n=" in out
    _, err = sweep(tmp_path, environ, *words)
    assert "set aside (r01.interrupted-1: its end.json is damaged)" in err
    assert len(lines(tmp_path)) == 3
    assert names(tmp_path) == ["r01", "r01", "r01.interrupted-1"]


def test_a_command_that_cannot_be_started_stops_the_sweep(tmp_path: Path, environ: dict[str, str]) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    words = (*COMMON, "--set", "n=1:100:1", "--", "./program", "{n}")
    _, err = sweep(tmp_path, environ, *words, code=1)
    assert "its interpreter is missing" in err
    assert err.count("set aside") == 1
    assert names(tmp_path) == ["r01.refused-1"]
