"""Submit plans to a Slurm that answers by rules, and to a real one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click
import pytest
from tests.cli.entry import JOULELAB
from tests.plan.when.run_plans import PAUSE, RUN, make_plan
from tests.rows import every_row
from tests.waiting import until

from joulelab.core.errors import ConfigError, StoreError
from joulelab.instruments.slurm.client import Answer
from joulelab.plan.when.plan_run import read_utc_s
from joulelab.plan.when.plan_submit import (
    PlannedJobs,
    SubmittedPlan,
    check_start_options,
    make_job_command,
    pause_from_outside,
    submit_plan,
)

NOW_S = 1000.0
ONE_CAP = ((RUN, 150.0, 60.0, 300.0),)
PAUSED = ((RUN, 150.0, 60.0, 300.0), (PAUSE, None, 30.0, 50.0), (RUN, 150.0, 60.0, 300.0))
TWO_CAPS = ((RUN, 150.0, 60.0, 300.0), (RUN, None, 60.0, 400.0))


class FakeSlurm:
    """Answer as Slurm does; `state` is that of the job, None for one that is forgotten."""

    def __init__(self, state: str | None = "RUNNING") -> None:
        self.state = state
        self.asked: list[tuple[str, ...]] = []
        self.jobs = PlannedJobs({}, run=self._answer)

    def _answer(self, words, timeout_s, keep=()):
        self.asked.append(tuple(words))
        if words[0] == "sbatch":
            return Answer(0, "12\n", "")
        if "show" in words:
            return Answer(0, f"JobId=12 JobState={self.state}\n", "") if self.state else Answer(1, "", "Invalid job id")
        return Answer(0, "", "")


def submit(slurm, folder, parts, **options):
    plan = make_plan(NOW_S + 3600, parts)
    return submit_plan(plan, ["train", "a b"], slurm.jobs, folder=folder, runs=folder, now=lambda: NOW_S, **options)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (ONE_CAP, ["joulelab", "cap", "150", "--runs"]),
        (((RUN, None, 60.0, 300.0),), ["joulelab", "run", "--runs"]),
        (TWO_CAPS, ["joulelab.plan.when.plan_run"]),
        (PAUSED, ["joulelab.plan.when.plan_run"]),
    ],
)
def test_the_job_is_a_run_a_capped_run_or_one_that_follows_the_plan(parts, expected, tmp_path):
    words = make_job_command(make_plan(NOW_S, parts), ["train", "a b"], tmp_path / "plan.json", tmp_path)
    assert words[3 : 3 + len(expected)] == expected
    assert words[-2:] == ["train", "a b"]


def test_a_job_begins_at_the_planned_start(tmp_path):
    slurm = FakeSlurm()
    submitted = submit(slurm, tmp_path, ONE_CAP, options=["--partition=gpu"])
    assert submitted == SubmittedPlan("12", NOW_S + 3600)
    ((*words, script),) = slurm.asked
    assert words == ["sbatch", "--parsable", "--begin=now+3600", "--partition=gpu"]
    assert shlex.split(Path(script).read_text().splitlines()[-1])[-2:] == ["train", "a b"]


def test_nodes_of_the_plan_are_asked_for_unless_the_options_do(tmp_path):
    slurm = FakeSlurm()
    plan = replace(make_plan(NOW_S, ((RUN, None, 60.0, 300.0),)), nodes=4)
    places = {"folder": tmp_path, "runs": tmp_path, "now": lambda: NOW_S}
    submit_plan(plan, ["train"], slurm.jobs, **places)
    submit_plan(plan, ["train"], slurm.jobs, options=["-N2"], **places)
    assert "--nodes=4" in slurm.asked[0]
    assert "--nodes=4" not in slurm.asked[1]


@pytest.mark.parametrize("parts", [ONE_CAP, ((RUN, None, 9.0, 1.0), (PAUSE, None, 9.0, 1.0), (RUN, None, 9.0, 1.0))])
def test_caps_and_pauses_of_several_nodes_are_refused(parts, tmp_path):
    plan = replace(make_plan(NOW_S, parts), nodes=4)
    slurm = FakeSlurm()
    with pytest.raises(ConfigError) as error:
        submit_plan(plan, ["train"], slurm.jobs, folder=tmp_path, runs=tmp_path, now=lambda: NOW_S)
    assert error.value.code == "config.several-nodes"
    assert slurm.asked == []


def test_a_folder_that_takes_no_files_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as error:
        submit(FakeSlurm(), tmp_path / "file", ONE_CAP)
    assert error.value.code == "store.not-writable"


def pause(slurm, folder, *, save="true", now_s=None):
    """Make the pause of a submitted plan from outside; return what became of it."""
    submitted = submit(slurm, folder, PAUSED, checkpoint=True)
    slurm.asked.clear()
    time, told = [NOW_S if now_s is None else now_s], []

    def sleep(seconds):
        time[0] += seconds

    pause_from_outside(
        submitted, slurm.jobs, save, os.environ, now=lambda: time[0], sleep=sleep,
        notify=lambda _, outcome, why: told.append((outcome, why)),
    )  # fmt: skip
    return told


@pytest.mark.system
def test_a_running_job_saves_its_state_and_is_requeued_for_the_end_of_the_pause(tmp_path):
    slurm = FakeSlurm()
    save = f"echo $JOULELAB_JOB_ID > {tmp_path}/saved"
    assert pause(slurm, tmp_path, save=save) == [("requeued", "")]
    assert (tmp_path / "saved").read_text() == "12\n"
    assert [words[1:] for words in slurm.asked[1:]] == [
        ("requeuehold", "12"),
        ("update", "JobId=12", "StartTime=now+30"),
        ("release", "12"),
    ]


@pytest.mark.system
def test_a_checkpoint_that_fails_lets_the_job_run(tmp_path):
    slurm = FakeSlurm()
    ((outcome, why),) = pause(slurm, tmp_path, save="exit 7")
    assert outcome == "missed"
    assert "7" in why
    assert len(slurm.asked) == 1


def test_a_job_that_waits_in_the_queue_is_postponed(tmp_path):
    slurm = FakeSlurm("PENDING")
    assert pause(slurm, tmp_path) == [("postponed", "")]
    assert slurm.asked[-1][1:] == ("update", "JobId=12", "StartTime=now+30")


def test_a_pause_that_is_over_is_missed(tmp_path):
    assert pause(FakeSlurm(), tmp_path, now_s=NOW_S + 7200)[0][0] == "missed"


def test_an_ended_or_forgotten_job_needs_no_pause(tmp_path):
    assert pause(FakeSlurm("COMPLETED"), tmp_path)[0][0] == "ended"
    assert pause(FakeSlurm(None), tmp_path)[0][0] == "ended"


@every_row(
    ("words", "given"),
    [
        (("train",), {}),
        ((), {"runs_job": True}),
        (("train",), {"runs_job": True, "submits_job": True}),
        ((), {"checkpoint": "true"}),
        (("train",), {"runs_job": True, "sbatch": "-N1"}),
        (("train",), {"submits_job": True, "which": "0"}),
    ],
)
def test_options_that_do_not_fit_together_are_refused(words, given):
    usual = {"runs_job": False, "submits_job": False, "checkpoint": None, "which": None, "sbatch": ""}
    with pytest.raises((click.UsageError, ConfigError)):
        check_start_options(words, usual | given)
    assert check_start_options(("train",), usual | {"runs_job": True})
    assert not check_start_options((), usual)


@pytest.fixture(scope="module")
def real_slurm():
    from tests.slurm.studies import bench

    with bench() as found:
        yield found


@pytest.mark.campaign  # needs real minutes to pass
def test_a_real_slurm_begins_a_job_on_time_and_requeues_it_for_a_pause(real_slurm):
    folder = Path(tempfile.mkdtemp(dir=real_slurm.folder))
    jobs = PlannedJobs(real_slurm.environ)
    options = ["--partition=cpu", f"--output={folder}/out.txt"]
    # The first start runs until it is requeued; the second ends at once.
    work = f"echo start >> {folder}/starts; [ $(wc -l < {folder}/starts) = 2 ] || sleep 600"
    begin_s = read_utc_s() + 4
    plan = make_plan(begin_s, ((RUN, None, 12.0, 1.0), (PAUSE, None, 5.0, 1.0), (RUN, None, 60.0, 1.0)))
    places = {"folder": folder, "runs": folder / "runs", "now": read_utc_s}
    submitted = submit_plan(plan, ["sh", "-c", work], jobs, options=options, checkpoint=True, **places)
    assert jobs.read_job(submitted.job)["JobState"] == "PENDING"
    until((folder / "starts").exists, "the job begins")
    assert read_utc_s() >= begin_s
    told = []
    # The pause is made at once, by a clock that stands at its start.
    early_s = plan.stretches[1].start_s - read_utc_s()
    pause_from_outside(
        submitted, jobs, f"touch {folder}/saved", real_slurm.environ, now=lambda: read_utc_s() + early_s,
        sleep=lambda _: None, notify=lambda _, outcome, why: told.append((outcome, why)),
    )  # fmt: skip
    assert told == [("requeued", "")]
    assert (folder / "saved").exists()
    until(lambda: jobs.read_state(submitted.job) == "COMPLETED", "the job is done")
    assert (folder / "starts").read_text() == "start\n" * 2


@pytest.mark.system
def test_a_plan_with_a_pause_is_followed_inside_a_job_of_a_real_slurm(real_slurm):
    folder = Path(tempfile.mkdtemp(dir=real_slurm.folder))
    jobs = PlannedJobs(real_slurm.environ)
    plan = make_plan(read_utc_s(), ((RUN, None, 2.0, 1.0), (PAUSE, None, 20.0, 1.0), (RUN, None, 600.0, 1.0)))
    options = ["--partition=cpu", f"--output={folder}/out.txt"]
    # It ends when it has seen that it was stopped for a while.
    watch = (
        "import time\nlast = time.monotonic()\nwhile (now := time.monotonic()) - last < 2: last = now; time.sleep(0.1)"
    )
    places = {"folder": folder, "runs": folder / "runs", "now": read_utc_s}
    submitted = submit_plan(plan, [sys.executable, "-c", watch], jobs, options=options, **places)
    until(lambda: jobs.read_state(submitted.job) in ("COMPLETED", "FAILED"), "the job is done")
    assert jobs.read_state(submitted.job) == "COMPLETED", (folder / "out.txt").read_text()
    assert "planned" in (folder / "out.txt").read_text()


@pytest.mark.system
def test_a_plan_is_submitted_from_the_command_line(real_slurm):
    pytest.importorskip("highspy")
    folder = Path(tempfile.mkdtemp(dir=real_slurm.folder))
    figures = ("--power", "500W", "--idle", "60W", "--duration", "5s", "--tariff", "0.3EUR")
    times = ("--slot", "5s", "--deadline", "60s", "--choose", "start")
    places = ("--plans", str(folder), "--runs", str(folder / "runs"))
    options = ("--sbatch", f"--partition=cpu --output={folder}/out.txt", "--submit")
    words = [*JOULELAB, "plan", "when", *figures, *times, *places, *options, "--", "touch", f"{folder}/ran"]
    done = subprocess.run(words, env=real_slurm.environ, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "is submitted" in done.stderr
    until((folder / "ran").exists, "the job runs")
