"""Run a staircase with real processes, and store a calibration in a run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rows import every_row
from tests.waiting import until

from joulelab.calibration.staircase import StaircasePlan
from joulelab.run.run_options import get_host_name
from joulelab.store.calibration_files import write_calibration
from joulelab.store.run_reader import open_run

pytestmark = pytest.mark.system


def run_staircase(tmp_path, words, steps=((0.0,), (0.5,), (0.0,))):
    plan = StaircasePlan(("gpu:2",), steps, 0.4, {}, words)
    argv = [sys.executable, "-m", "joulelab.calibration.staircase", plan.to_json()]
    runs = tmp_path / "runs"
    whole = [sys.executable, "-m", "joulelab", "run", "-q", "--meter", "host", "--runs", str(runs), "--", *argv]
    done = subprocess.run(whole, capture_output=True, text=True, check=False)
    return done, next(runs.iterdir())


def test_steps_are_phases_and_loads_end_with_their_step(tmp_path):
    environ = dict(os.environ)
    record = {"schema": 1, "id": "c1", "utc_s": 1.7e9, "host": "elsewhere", "reference": {"text": "x"}, "devices": []}
    write_calibration(environ, get_host_name(environ), record)
    pids = tmp_path / "pids"
    script = f"echo $$ $CUDA_VISIBLE_DEVICES {{gpu}} {{level}} >> {pids}; exec sleep 60"
    done, run = run_staircase(tmp_path, ("sh", "-c", script))
    assert done.returncode == 0, done.stderr
    pid, visible, number, level = pids.read_text().split()
    assert (visible, number, level) == ("2", "2", "0.5")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    with open_run(run) as opened:
        marks, events = opened.marks(), opened.events()
    begun = [mark for mark in marks if mark.get("mark") == "begin"]
    assert [(mark["name"], mark["n"]) for mark in begun] == [("calibrate", 0), ("calibrate", 1), ("calibrate", 2)]
    (stored,) = [event for event in events if event["event"] == "calibration"]
    lines = (run / get_host_name(environ) / "events.run.jsonl").read_text().splitlines()
    assert ["host" in line for line in map(json.loads, lines) if line["event"] == "calibration"] == [False]
    assert (stored["id"], stored["calibrated_on"], stored["host"]) == ("c1", "elsewhere", get_host_name(environ))


def test_a_load_that_fails_ends_the_staircase_with_its_reason(tmp_path):
    done, _ = run_staircase(tmp_path, ("sh", "-c", "echo no memory on gpu {gpu} >&2; exit 3"))
    assert done.returncode == 1
    assert "no memory on gpu 2" in done.stderr


def test_a_wrong_plan_is_refused():
    argv = [sys.executable, "-m", "joulelab.calibration.staircase", json.dumps({"steps": 1})]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no plan" in done.stderr


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def make_load(tmp_path):
    """Return the words of a load that writes its pid, and a function that waits for it."""
    path = tmp_path / "load.pid"
    script = f"echo $$ > {path}.new; mv {path}.new {path}; : {{level}}; exec sleep 300"
    return ("sh", "-c", script), lambda: int(until(lambda: path.exists() and path.read_text(), "the load starts"))


@every_row("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_the_staircase_and_its_loads(tmp_path, number):
    (folder := tmp_path / str(int(number))).mkdir()
    words, wait_load = make_load(folder)
    plan = StaircasePlan(("gpu:0",), ((1.0,),), 300.0, {}, words)
    argv = [sys.executable, "-m", "joulelab.calibration.staircase", plan.to_json()]
    with subprocess.Popen(argv) as process:
        load = wait_load()
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert not is_alive(load)


def test_the_staircase_and_its_loads_end_when_the_recording_process_is_killed(tmp_path):
    words, wait_load = make_load(tmp_path)
    plan = StaircasePlan(("gpu:0",), ((1.0,),), 300.0, {}, words)
    argv = [sys.executable, "-m", "joulelab.calibration.staircase", plan.to_json()]
    with subprocess.Popen(["sh", "-c", '"$@" & echo $!; wait', "sh", *argv], stdout=subprocess.PIPE) as parent:
        staircase = int(parent.stdout.readline())
        load = wait_load()
        parent.kill()
    until(lambda: not is_alive(staircase) and not is_alive(load), "both end")


@every_row("number, is_to_group", [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True)])
def test_a_signal_ends_a_calibration_with_a_message_and_leaves_nothing_behind(tmp_path, number, is_to_group):
    (folder := tmp_path / str(int(number))).mkdir()
    words, wait_load = make_load(folder)
    calibrate = ["calibrate", "--reference", "analyzer", "--step", "5s", "--seed", "3", "--runs", str(folder / "r")]
    inner = [sys.executable, "-m", "joulelab", *calibrate, "--repeat", "1", "--command", shlex.join(words)]
    # A group of its own: the twin gets no signal.
    inner = [
        sys.executable,
        "-c",
        f"import os; os.setpgid(0, 0); print(os.getpid(), flush=True); os.execv({inner[0]!r}, {inner!r})",
    ]
    twin = [sys.executable, "-m", "joulelab", "twin", "--gpus", "2", "--idle", "--serve", "analyzer", "--", *inner]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}  # numpy has threads of its own
    with subprocess.Popen(twin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        pid = int(next(line for line in process.stdout if line.strip().isdigit()))
        load = wait_load()
        (os.killpg if is_to_group else os.kill)(pid, number)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert "nothing is calibrated" in errors
    assert not is_alive(load)
    (run,) = (path for path in (folder / "r").iterdir() if path.is_dir())
    with open_run(run) as opened:
        assert opened.end["exit_code"] == 128 + number
