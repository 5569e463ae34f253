"""Run plans on the twin as a person does: pauses, caps, checkpoints, signals, kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.cli.capped import FOUND_W, CapBench
from tests.plan.when.run_plans import PAUSE, RUN, make_plan
from tests.waiting import until

from joulelab.analysis.analyse import analyse_run
from joulelab.core.process_identity import is_stopped
from joulelab.plan.when.checkpoint_job import make_checkpoint_command
from joulelab.plan.when.plan_comparison import StretchRecord, compare_with_plan
from joulelab.plan.when.plan_run import make_follow_command, read_utc_s
from joulelab.plan.when.when_plan import WhenPlan
from joulelab.store.run_folder import list_runs
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.plan.when.run_plans import Part

    from joulelab.analysis.result import Result
    from joulelab.plan.when.plan_comparison import PlanComparison

pytestmark = pytest.mark.system
NEVER_S = 3600.0  # longer than a test lasts
JOB = (sys.executable, "-m", "joulelab.twin.job", "--gpus", "2", "--speed", "20")
# A job with a child; both print their pids.
FAMILY = "echo $$; sh -c 'echo $$; sleep 600' & wait"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CapBench]:
    with CapBench(tmp_path) as made:
        yield made


def start(
    bench: CapBench, parts: Sequence[Part], *words: str, since_s: float = 0.0, **more: Any
) -> subprocess.Popen[str]:
    """Start a command by a plan that began some s ago."""
    plan = bench.folder / "plan.json"
    plan.write_text(json.dumps(make_plan(read_utc_s() - since_s, parts).to_json()))
    command = make_follow_command(plan, bench.folder / "runs", words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=bench.environ, cwd=bench.folder, process_group=0, **pipes, **more)
    bench._started.append(process)
    return process


def find_events(bench: CapBench, *names: str) -> list[dict[str, Any]]:
    with contextlib.suppress(ValueError):  # there is no run yet, or its last line is not complete
        return [event for event in bench.events() if event["event"] in names]
    return []


def test_a_plan_with_a_cap_and_a_pause_is_followed_measured_and_compared(bench: CapBench) -> None:
    parts = ((RUN, 150.0, 8.0, 450.0), (PAUSE, 150.0, 4.0, 150.0), (RUN, None, NEVER_S, 700.0))
    process = start(bench, parts, *JOB, "--work", "400", since_s=-6.0)  # 20 s: it may begin before the plan
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.rstrip().rpartition("\n")[2].startswith("finished 400 steps")
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert not bench.journals()
    kinds = [event["event"] for event in find_events(bench, "job-paused", "job-continued", "plan-stretch")]
    assert kinds[-4:] == ["plan-stretch", "job-paused", "plan-stretch", "job-continued"]
    asked = [event["asked"] for event in find_events(bench, "cap-set")]
    assert asked[-2:] == [250.0, 250.0]  # without a cap: as found
    # The energy of the stretches adds up to that of the run; a pause draws less than a run.
    compared, result = compare_stored(bench)
    assert result.energy is not None
    assert compared.total.energy is not None
    assert compared.total.energy.value == pytest.approx(result.energy.value, rel=1e-6)
    assert compared.total.actual_s == pytest.approx(result.duration_s)
    by_action = {one.action: one for one in compared.stretches if one.actual_s > 1}
    paused, ran = by_action[PAUSE], by_action[RUN]
    assert paused.energy is not None
    assert ran.energy is not None
    assert paused.energy.value / paused.actual_s < 0.7 * ran.energy.value / ran.actual_s
    # Its cost is by the rate of its slot, 200 g/kWh; it begins a moment after the slot does.
    assert paused.costs[0] is not None
    assert paused.costs[0].value == pytest.approx(200 * paused.energy.value / 3.6e6, rel=0.1)
    assert "planned" in err


def compare_stored(bench: CapBench) -> tuple[PlanComparison, Result]:
    """Compare the one run of a bench with the plan in its events, by the stretches in its events."""
    (run,) = list_runs(bench.folder / "runs")
    (told,) = find_events(bench, "plan")
    plan = WhenPlan.from_json(told["plan"])
    with open_run(run) as opened:
        result = analyse_run(opened)
    records = [
        StretchRecord(
            next(one for one in plan.stretches if one.action == event["action"] and one.end_s > event["utc_s"]),
            event["action"], event["cap_w"], event["utc_s"], event["t"],
        )
        for event in find_events(bench, "plan-stretch")
    ]  # fmt: skip
    return compare_with_plan(plan, records, run, result), result


def test_a_plan_that_is_refused_starts_nothing(bench: CapBench) -> None:
    process = start(bench, ((RUN, 20.0, NEVER_S, 450.0),), "touch", "started")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 125
    assert "20 W" in err
    assert not (bench.folder / "started").exists()


@contextlib.contextmanager
def paused_family(bench: CapBench) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Give a plan under a cap whose pause has begun, and the pids of its job."""
    process = start(
        bench,
        ((RUN, 150.0, 1.0, 450.0), (PAUSE, 150.0, NEVER_S, 100.0), (RUN, None, NEVER_S, 450.0)),
        "sh",
        "-c",
        FAMILY,
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    until(lambda: all(is_stopped(pid) for pid in pids), "the job is paused")
    until(lambda: find_events(bench, "job-paused"))
    yield process, pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_in_a_pause_reaches_the_job_at_once(bench: CapBench, number: signal.Signals) -> None:
    with paused_family(bench) as (process, pids):
        process.send_signal(number)
        assert process.wait(120) == -number
        until(lambda: not any(is_stopped(pid) for pid in pids))
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert not bench.journals()


def test_a_killed_supervisor_leaves_a_job_that_runs_without_caps(bench: CapBench) -> None:
    with paused_family(bench) as (process, pids):
        assert bench.caps() == [150.0, 150.0]
        process.kill()
        until(lambda: not any(is_stopped(pid) for pid in pids), "the job runs")
        until(lambda: bench.caps() == [FOUND_W, FOUND_W] and not bench.journals(), "the caps are restored")
        assert all(psutil.pid_exists(pid) for pid in pids)


def test_a_job_that_is_continued_from_outside_runs_on(bench: CapBench) -> None:
    with paused_family(bench) as (_, pids):
        os.kill(pids[0], signal.SIGCONT)
        until(lambda: not any(is_stopped(pid) for pid in pids))
        (problem,) = until(lambda: find_events(bench, "plan-problem"))
        assert problem["code"] == "when.pause-ended"


# It counts its starts in a file, and ends at a checkpoint (USR1), or when it was started twice.
SAVING = """trap 'kill $!; exit 3' USR1
echo start >> starts
[ "$(wc -l < starts)" = 2 ] && exit 5
sleep 600 & wait"""


def test_a_job_with_a_checkpoint_ends_for_a_pause_and_is_started_again(bench: CapBench) -> None:
    parts = ((RUN, None, 3.0, 450.0), (PAUSE, None, 2.0, 100.0), (RUN, None, NEVER_S, 450.0))
    plan = make_plan(read_utc_s(), parts)
    save = "touch saved; kill -USR1 $JOULELAB_JOB_PID"
    words = make_checkpoint_command(["sh", "-c", SAVING], plan.stretches, save)
    began = read_utc_s()
    done = subprocess.run(words, cwd=bench.folder, timeout=120, check=False)
    assert done.returncode == 5
    assert (bench.folder / "saved").exists()
    assert (bench.folder / "starts").read_text() == "start\n" * 2
    assert read_utc_s() - began > 4.5  # not before the end of the pause


def test_a_checkpoint_that_fails_lets_the_job_run_on(bench: CapBench) -> None:
    plan = make_plan(read_utc_s(), ((PAUSE, None, NEVER_S, 100.0), (RUN, None, NEVER_S, 450.0)))
    words = make_checkpoint_command(["sh", "-c", "sleep 1; exit 4"], plan.stretches, "exit 9")
    done = subprocess.run(words, cwd=bench.folder, timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 4
    assert "ended with 9" in done.stderr


def test_a_signal_ends_a_job_between_its_checkpoint_and_its_next_start(bench: CapBench) -> None:
    plan = make_plan(read_utc_s() + 1, ((PAUSE, None, NEVER_S, 100.0), (RUN, None, NEVER_S, 450.0)))
    save = "kill -USR1 $JOULELAB_JOB_PID; touch saved"
    process = subprocess.Popen(make_checkpoint_command(["sh", "-c", SAVING], plan.stretches, save), cwd=bench.folder)
    until((bench.folder / "saved").exists)
    until(lambda: not psutil.Process(process.pid).children())
    process.terminate()
    assert process.wait(120) == -signal.SIGTERM
