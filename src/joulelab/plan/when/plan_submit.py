"""Submit a plan to Slurm: the job begins at its start; caps and pauses follow inside the job, or from outside.

Without pauses, Slurm starts the job at its begin time, and this program ends. Pauses are made inside the job (its node
stays allocated and idles, as the plan counts it), or, with a checkpoint command, from outside: this program waits, and
requeues the job with the end of the pause as its begin time. The job is held only for that moment, so it starts again
even if this program is killed.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from joulelab.cli.group import RUNS_WORKLOAD
from joulelab.cli.output import print_notice
from joulelab.cli.parameters import UsageError
from joulelab.core.errors import ConfigError, JoulelabError, StoreError
from joulelab.plan.when.plan_comparison import format_time
from joulelab.plan.when.plan_run import list_stretches, make_follow_command, read_utc_s, run_plan
from joulelab.study.slurm.job_queue import FINAL, JobQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.plan.rates.rate import Rate
    from joulelab.plan.when.when_plan import PlanStretch, WhenPlan

JOB_ID = "JOULELAB_JOB_ID"  # for the checkpoint command
SCRIPT = """\
#!/bin/bash
# A job by a plan of `joulelab plan when --submit`.
exec {command}
"""
POLL_S = 20.0

PauseOutcome = Literal["requeued", "postponed", "missed", "ended"]
Command = TypeVar("Command", bound="Callable[..., Any]")


class PlannedJobs(JobQueue):
    """Submit, hold, release and requeue jobs. All methods raise ReadFailed, Unavailable or Denied."""

    def requeue_job(self, job: str, begin_s: int) -> None:
        """End a running job and let it begin again after some s; it is held only until that is known."""
        self._get_output("scontrol", "requeuehold", job)
        try:
            self.postpone_job(job, begin_s)
        finally:
            self._get_output("scontrol", "release", job)

    def postpone_job(self, job: str, begin_s: int) -> None:
        """Let a job that waits begin after some s from now."""
        self._get_output("scontrol", "update", f"JobId={job}", f"StartTime=now+{max(begin_s, 1)}")

    def read_state(self, job: str) -> str:
        """Return the state of a job as Slurm names it, empty if it has forgotten the job."""
        return self.read_job(job).get("JobState", "")


@dataclass(frozen=True, slots=True)
class SubmittedPlan:
    """Hold a submitted plan: the job's number, its begin time (s since 1970), and the pauses to make from outside."""

    job: str
    begin_s: float
    pauses: tuple[PlanStretch, ...] = ()


def make_job_command(plan: WhenPlan, words: Sequence[str], file: Path, runs: Path) -> list[str]:
    """Return the command of the job: a run, a run under its one cap, or a run that follows the plan in `file`."""
    joulelab = [sys.executable, "-P", "-m", "joulelab"]
    stretches = list_stretches(plan)
    caps = {one.cap_w for one in stretches if one.action == "run"}
    if len(caps) > 1 or any(one.action == "pause" for one in stretches):
        return make_follow_command(file, runs, words)
    (cap_w,) = caps
    start = [*joulelab, "run"] if cap_w is None else [*joulelab, "cap", f"{cap_w:g}"]
    return [*start, "--runs", str(runs.absolute()), "--", *words]


def submit_plan(
    plan: WhenPlan,
    words: Sequence[str],
    jobs: PlannedJobs,
    *,
    folder: Path,
    runs: Path,
    options: Sequence[str] = (),
    checkpoint: bool = False,
    now: Callable[[], float],
) -> SubmittedPlan:
    """Submit the job of a plan with further options of sbatch. Raises JoulelabError.

    The plan and the script are written to `folder`. With a `checkpoint`, pauses are left to `pause_from_outside`.
    """
    if plan.nodes != 1:
        if any(one.cap_w is not None or (one.action == "pause" and not checkpoint) for one in list_stretches(plan)):
            raise ConfigError(
                f"the plan caps or pauses a job of {plan.nodes} nodes", where="--submit",
                why="caps and pauses reach the first node of a job only",
                next="--choose start, or --checkpoint for its pauses", code="config.several-nodes",
            )  # fmt: skip
        if not any(one.startswith(("-N", "--nodes")) for one in options):
            options = [*options, f"--nodes={plan.nodes}"]
    followed = plan
    pauses = tuple(one for one in list_stretches(plan) if one.action == "pause" and checkpoint)
    if checkpoint:
        followed = replace(plan, stretches=tuple(one for one in plan.stretches if one.action != "pause"))
    stem = f"job-{round(plan.begin_s)}"
    file, script = folder / f"{stem}.json", folder / f"{stem}.sh"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(followed.to_json()))
        script.write_text(SCRIPT.format(command=shlex.join(make_job_command(followed, words, file, runs))))
    except OSError as error:
        what, code = "the plan cannot be saved", "store.not-writable"
        raise StoreError(what, where=str(folder), why=error.strerror, next="give another --plans", code=code) from error
    begin = f"--begin=now+{max(math.ceil(plan.begin_s - now()), 0)}"
    again = ("--requeue", "--open-mode=append") if pauses else ()
    job = jobs.submit_job([begin, *again, *options, str(script.absolute())], "--submit")
    return SubmittedPlan(job, plan.begin_s, pauses)


def pause_from_outside(
    submitted: SubmittedPlan,
    jobs: PlannedJobs,
    checkpoint: str,
    environ: Mapping[str, str],
    *,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    notify: Callable[[PlanStretch, PauseOutcome, str], None],
) -> None:
    """Wait for each pause, save the state of the job, and requeue it for the end of the pause. Raises nothing of Slurm.

    `notify` gets what became of each pause, and a reason. The job goes on if one fails.
    """
    for pause in submitted.pauses:
        while (left_s := pause.start_s - now()) > 0:
            sleep(min(left_s, POLL_S))
        try:
            outcome, why = _make_pause(submitted.job, pause, jobs, checkpoint, environ, now)
        except JoulelabError as error:
            outcome, why = "missed", str(error)
        notify(pause, outcome, why)
        if outcome == "ended":
            return


def _make_pause(
    job: str,
    pause: PlanStretch,
    jobs: PlannedJobs,
    checkpoint: str,
    environ: Mapping[str, str],
    now: Callable[[], float],
) -> tuple[PauseOutcome, str]:
    state = jobs.read_state(job)
    if not state or state in FINAL:
        return "ended", state
    if now() >= pause.end_s:
        return "missed", "its time is over"
    if state == "PENDING":
        jobs.postpone_job(job, math.ceil(pause.end_s - now()))
        return "postponed", ""
    done = subprocess.run(  # noqa: S602 - the user's own words
        checkpoint, shell=True, env={**environ, JOB_ID: job}, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        return "missed", f"its checkpoint command ended with {done.returncode}"
    jobs.requeue_job(job, math.ceil(pause.end_s - now()))
    return "requeued", ""


def add_start_options(function: Command) -> Command:
    """Add the options of `plan when` that start the job."""
    options = (
        click.option("--run", "runs_job", is_flag=True, help="Wait for the start, and run CMD by the plan, measured."),
        click.option("--submit", "submits_job", is_flag=True, help="Submit CMD to Slurm by the plan."),
        click.option(
            "--checkpoint", metavar="CMD", help="Save the job's state and end it for a pause; it is started again."
        ),
        click.option("--gpu", "which", metavar="0,1", help="GPUs to cap with --run.  [default: visible GPUs]"),
        click.option("--sbatch", metavar="OPTIONS", default="", help="Further options of sbatch, with --submit."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def check_start_options(words: Sequence[str], given: Mapping[str, Any]) -> bool:
    """Return whether a job is to be started. Raises UsageError for options that do not fit together."""
    runs, submits = given["runs_job"], given["submits_job"]
    starts = runs or submits
    if runs and submits:
        raise UsageError("exclusive", "--run and --submit exclude each other")
    if starts and not words:
        raise UsageError("no-command", "no command to run; write it at the end: `-- python train.py`")
    if words and not starts:
        raise UsageError("other-mode", "a command needs --run or --submit")
    for name, needed, fits, mode in (
        ("--checkpoint", given["checkpoint"], starts, "--run or --submit"), ("--gpu", given["which"], runs, "--run"),
        ("--sbatch", given["sbatch"], submits, "--submit"),
    ):  # fmt: skip
        if needed and not fits:
            raise UsageError("other-mode", f"{name} needs {mode}")
    return bool(starts)


def start_job(plan: WhenPlan, words: Sequence[str], given: Mapping[str, Any], *, also: Sequence[Rate] = ()) -> None:
    """Run the job of a plan and exit as it did, or submit it; `given` are the options of the command.

    `also` are rates to count beside that of the plan. Raises JoulelabError before anything is started.
    """
    if given["runs_job"]:
        click.get_current_context().meta[RUNS_WORKLOAD] = True  # a failure of joulelab ends with 125
        run_plan(
            plan, words, runs=given["runs"], which=given["which"], checkpoint=given["checkpoint"], also=also,
            as_json=given["as_json"],
        )  # fmt: skip
    jobs, checkpoint = PlannedJobs(os.environ), given["checkpoint"]
    submitted = submit_plan(
        plan, words, jobs, folder=given["plans"], runs=given["runs"], options=shlex.split(given["sbatch"]),
        checkpoint=checkpoint is not None, now=read_utc_s,
    )  # fmt: skip
    zone = plan.label.time_zone
    begin = format_time(submitted.begin_s, zone)
    print_notice(f"job {submitted.job} is submitted; it begins at {begin} at the earliest: squeue -j {submitted.job}")
    if not submitted.pauses:
        return
    print_notice("this program requeues the job for its pauses, so let it run until the last one")

    def notify(pause: PlanStretch, outcome: PauseOutcome, why: str) -> None:
        end = format_time(pause.end_s, zone)
        text = {
            "requeued": f"paused until {end}",
            "postponed": f"it has not begun yet; it begins at {end}",
            "missed": f"not paused: {why}",
            "ended": f"it has ended ({why or 'unknown'})",
        }[outcome]
        print_notice(f"job {submitted.job}: {text}")

    pause_from_outside(submitted, jobs, checkpoint, os.environ, now=read_utc_s, sleep=time.sleep, notify=notify)
