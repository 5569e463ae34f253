"""Follow the stretches of a plan in virtual time, and compare a run with its plan."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.plan.when.run_plans import PAUSE, RUN, make_plan

from joulelab.control.protocol import CapDevice, CapRequest, CapStatus
from joulelab.core.errors import ConfigError
from joulelab.plan.rates.rate import Label
from joulelab.plan.when.plan_comparison import RateSeries
from joulelab.plan.when.plan_run import (
    check_caps,
    find_stretch,
    follow_plan,
    list_stretches,
    run_plan,
    wait_for_start,
)

PARTS = ((RUN, 150.0, 10.0, 300.0), (PAUSE, None, 20.0, 50.0), (RUN, None, 10.0, 500.0))


class VirtualJob:
    """Hold a job that ends at a time, and a log of what was done to it, by time."""

    def __init__(self, start_s: float, ends_s: float) -> None:
        self.now_s, self.ends_s = start_s, ends_s
        self.log: list[tuple[float, str]] = []

    def now(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        assert seconds > 0
        self.now_s = min(self.now_s + seconds, max(self.ends_s, self.now_s))
        return self.now_s >= self.ends_s

    def enter_stretch(self, stretch) -> None:
        self.log.append((round(self.now_s, 3), f"{stretch.action} {stretch.cap_w}"))

    def leave_plan(self) -> None:
        self.log.append((round(self.now_s, 3), "rest"))

    def watch_job(self) -> None:
        self.watched = True


def follow(plan, job):
    follow_plan(list_stretches(plan), job, now=job.now, wait=job.wait)
    return job.log


def test_a_job_is_capped_paused_and_continued_by_the_clock():
    job = VirtualJob(1000.0, 1040.0)
    assert follow(make_plan(1000.0, PARTS), job) == [
        (1000.0, "run 150.0"),
        (1010.0, "pause None"),
        (1030.0, "run None"),
    ]


def test_a_job_that_is_late_goes_on_after_the_plan():
    job = VirtualJob(1000.0, 1055.0)
    assert follow(make_plan(1000.0, PARTS), job)[-1] == (1040.0, "rest")
    assert job.now_s == 1055.0


def test_a_job_that_ends_before_a_pause_is_not_paused():
    assert follow(make_plan(1000.0, PARTS), VirtualJob(1000.0, 1006.0)) == [(1000.0, "run 150.0")]


@pytest.mark.parametrize(
    ("start_s", "first"), [(999.0, (1000.0, "run 150.0")), (1012.0, (1012.0, "pause None")), (1100.0, (1100.0, "rest"))]
)
def test_a_job_that_starts_early_or_late_follows_the_clock(start_s, first):
    assert follow(make_plan(1000.0, PARTS), VirtualJob(start_s, 1200.0))[0] == first


def test_a_clock_that_jumps_ahead_skips_the_stretches_in_between():
    job = VirtualJob(1000.0, 1100.0)
    plain, jumps = job.wait, iter([0.0] * 3 + [25.0] + [0.0] * 10_000)

    def wait(seconds):
        job.now_s += next(jumps)
        return plain(seconds)

    job.wait = wait
    assert [text for _, text in follow(make_plan(1000.0, PARTS), job)] == [
        "run 150.0",
        "pause None",
        "run None",
        "rest",
    ]
    # The pause was entered late, and ended on time.
    assert job.log[1][0] > 1024
    assert job.log[2][0] == 1030.0


def test_the_first_stretch_is_that_of_the_time():
    plan = make_plan(1000.0, PARTS)
    assert [find_stretch(plan, t).action for t in (900.0, 1005.0, 1015.0, 1035.0)] == [RUN, RUN, PAUSE, RUN]
    assert find_stretch(plan, 1041.0) is None


def test_the_wait_for_the_start_is_cut_into_short_sleeps():
    slept, told, times = [], [], [0.0]

    def sleep(seconds):
        slept.append(seconds)
        times[0] += seconds

    wait_for_start(100.0, now=lambda: times[0], sleep=sleep, notify=told.append)
    assert told == [99.0]
    assert times[0] == pytest.approx(99.0)
    assert max(slept) <= 30.0
    wait_for_start(50.0, now=lambda: times[0], sleep=sleep, notify=told.append)
    assert len(told) == 1


def device(scope, lowest=100.0, highest=300.0):
    return CapDevice(scope, f"GPU-{scope}", "RTX", "power", "W", lowest, highest, 260.0, 250.0, 250.0)


def test_caps_are_checked_before_anything_is_waited_for():
    plan, status = make_plan(0.0, PARTS), CapStatus([device("gpu:0"), device("gpu:1", 200.0)])
    caps = check_caps(plan, status, ["gpu:0"])
    assert caps.make_requests(None) == [CapRequest("gpu:0", 250.0)]
    assert caps.make_requests(150.0) == [CapRequest("gpu:0", 150.0)]
    with pytest.raises(ConfigError) as error:
        check_caps(plan, status, ["gpu:0", "gpu:1"])
    assert (error.value.code, error.value.where) == ("config.plan-cap", "gpu:1")


def test_a_plan_for_several_nodes_is_not_run_here(tmp_path):
    with pytest.raises(ConfigError) as error:
        run_plan(replace(make_plan(0.0, PARTS), nodes=4), ["true"], runs=tmp_path)
    assert error.value.code == "config.several-nodes"


def test_a_rate_is_averaged_over_a_span():
    series = RateSeries(Label("price", "EUR/kWh", "x"), (0.0, 10.0, 20.0), (0.1, 0.3))
    assert series.average(5.0, 10.0) == pytest.approx(0.1)
    assert series.average(5.0, 15.0) == pytest.approx(0.2)
    assert series.average(-0.5, -0.1) == 0.1  # the job starts a moment early
    assert math.isnan(series.average(15.0, 22.0))


SHOW_MASKS = """
import os, signal
import joulelab.cli.group
from joulelab.plan.when import plan_run, when_command, when_program
for task in os.listdir("/proc/self/task"):
    if int(task) != os.getpid():
        print(next(line.split()[1] for line in open(f"/proc/self/task/{task}/status") if line.startswith("SigBlk")))
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
print("end")
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_thread_takes_a_signal_that_is_for_the_job():
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}  # tests have one
    found = subprocess.run([sys.executable, "-c", SHOW_MASKS], capture_output=True, text=True, check=True, env=environ)
    *masks, end = found.stdout.split()
    assert end == "end"
    for mask in masks:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            assert int(mask, 16) >> (number - 1) & 1, number.name


def test_a_command_that_does_not_exist_is_refused_before_the_wait(tmp_path):
    with pytest.raises(ConfigError, match="no-such-command cannot be started"):
        run_plan(make_plan(4e9, PARTS), ["no-such-command"], runs=tmp_path)
