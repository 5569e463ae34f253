"""Disks that fail, wait and vanish, and wall clocks that jump: the workload does not notice, and a loss is stated.

Faults come from a library that is loaded before libc (fault_shim.c). `python -m tests.campaign --only faults` draws
more of them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from tests.campaign import square_meter
from tests.campaign.fault_trials import FaultRun, Rule, judge_fault
from tests.cli.capped import FOUND_W, CapBench
from tests.waiting import until

from joulelab.analysis.results_file import load_result
from joulelab.store.run_folder import list_runs, read_end, read_meta

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system
EIO, ENOSPC, EROFS = errno.EIO, errno.ENOSPC, errno.EROFS
# The rules of each case, and whether a run can be read afterwards.
CASES: dict[str, tuple[tuple[Rule, ...], bool]] = {
    "run.json cannot be renamed": ((Rule("rename", error=EIO),), False),
    "end.json cannot be renamed": ((Rule("rename", first=2, error=EIO),), True),
    "no journal can be created": ((Rule("open", first=3, error=EROFS),), True),
    "the disk fills up": ((Rule("write", first=6, error=ENOSPC),), True),
    "nothing can be synced": ((Rule("sync", error=EIO),), False),
    "syncs take long": ((Rule("sync", count=6, delay_ms=700),), True),
    "writes take long": ((Rule("write", first=4, count=2, delay_ms=1500),), True),
}


def test_failing_and_slow_disks(tmp_path: Path) -> None:
    trials = {name: FaultRun(tmp_path / str(k), rules) for k, (name, (rules, _)) in enumerate(CASES.items())}
    for trial in trials.values():
        trial.start()
    problems = {}
    for name, trial in trials.items():
        trial.end()
        problems[name] = judge_fault(trial)
        if bool(list_runs(trial.runs)) != CASES[name][1]:
            problems[name].append(f"runs: {list_runs(trial.runs)}; {trial.text}")
    assert {name: found for name, found in problems.items() if found} == {}


def test_a_run_folder_that_vanishes_is_stated(tmp_path: Path) -> None:
    trial = FaultRun(tmp_path / "run")
    trial.start()
    shutil.rmtree(trial.wait_for_samples())
    trial.end()
    assert judge_fault(trial) == []
    assert trial.result["problems"]
    assert trial.result.get("energy") is None


def test_steps_of_the_wall_clock_change_no_figure(tmp_path: Path) -> None:
    trial = FaultRun(tmp_path / "run", seconds=2.0)
    trial.start()
    run = trial.wait_for_samples()
    trial.step_clock(3 * 3600)
    until(lambda: '"by_ns":10' in read_events(run), "the first step in the events")
    trial.step_clock(-5 * 3600)
    trial.end()
    assert judge_fault(trial) == []
    result = load_result(run)
    steps_h = sorted(round(check.numbers["step_s"] / 3600) for check in result.checks if check.code == "clock-stepped")
    assert steps_h == [-8, 3]
    # All stored times are those of the clock at the start: a step does not reach them.
    begun = datetime.fromisoformat(result.start_utc)
    assert abs((begun - datetime.now(UTC)).total_seconds()) < 1800
    assert result.energy is not None
    true_j = square_meter.compute_true_energy_j(result.start_ns, result.end_ns)
    assert result.energy.value == pytest.approx(true_j, abs=result.energy.expanded)
    assert 2.0 <= result.duration_s < 600.0
    started, end = read_meta(run)["started"], read_end(run)
    assert end is not None
    moved_ns = (end["ended"]["utc_ns"] - started["utc_ns"]) - (end["ended"]["mono_ns"] - started["mono_ns"])
    assert round(moved_ns / 3600e9) == -5, "the clock pair at the end shows the step"


def read_events(run: Path) -> str:
    return "".join(path.read_text() for path in run.glob("*/events.*.jsonl"))


@pytest.mark.skipif(os.getuid() != 0, reason="a read-only mount needs root")
def test_a_state_folder_that_becomes_read_only_while_capped(tmp_path: Path) -> None:
    with CapBench(tmp_path) as bench:
        gate = tmp_path / "gate"
        wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\nraise SystemExit(3)"
        process = bench.start("cap", "170", "--", sys.executable, "-c", wait)
        bench.wait_caps(170.0, 170.0)
        mount_read_only(bench.state)
        try:
            gate.touch()
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 3
            bench.wait_caps(*[FOUND_W] * bench.gpus)
            assert len(bench.journals()) == bench.gpus
            assert "Read-only file system" in errors, errors
            refused = bench.call("cap", "170", "--json", "--", "true", code=125)
            assert json.loads(refused.stdout)["error"]["code"] in ("refused.state-not-writable", "refused.leftover-cap")
        finally:
            subprocess.run(["umount", bench.state], check=True)
        bench.call("ls")
        assert not bench.journals()
        assert bench.caps() == [FOUND_W] * bench.gpus


def mount_read_only(folder: Path) -> None:
    """Let nobody write below a folder any more, as a file system with errors does; skip where that is not allowed."""
    for words in (["--bind", str(folder), str(folder)], ["-o", "remount,ro,bind", str(folder)]):
        done = subprocess.run(["mount", *words], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
