"""Run a staircase with real processes, and store a calibration in a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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
