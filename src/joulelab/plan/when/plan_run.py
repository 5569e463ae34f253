"""Run a plan: wait for its start, pause and cap the job by the clock, measure it, and compare it with the plan.

The job is an ordinary run of `joulelab run`. `PlanFollower` works beside it: a keeper pauses the job and sets its caps,
and restores both however joulelab ends. `PlanComparison` is printed below the result of the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from joulelab.analysis.study_cells import Note
from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.process_identity import is_pending, is_stopped
from joulelab.plan.when.plan_comparison import StretchRecord, compare_with_plan
from joulelab.run.run_command import REFUSED_CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from joulelab.control.client import CapRequest, CapStatus
    from joulelab.control.pauses import JobPauses
    from joulelab.plan.rates.rate import Rate
    from joulelab.plan.when.plan_comparison import PlanComparison
    from joulelab.plan.when.when_plan import PlanStretch, WhenPlan
    from joulelab.run.recording import RunRecording
    from joulelab.run.run_caps import RunCaps
    from joulelab.run.run_command import RunOutcome

TICK_S = 0.2  # how often a pause is looked after
LONGEST_WAIT_S = 30.0  # of one sleep before the start: the clock may be set, and the machine may sleep
LEAD_S = 1.0  # the recorder and its meters need about this long before the job starts
JOIN_S = 30.0
# A job that gets one of these in a pause is continued, so that it can end.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def read_utc_s() -> float:
    """Return the time in s since 1970: a plan is followed by the clock on the wall."""
    return read_utc_ns() / NS


class JobControl(Protocol):
    """Define what the stretches of a plan do to a job."""

    def enter_stretch(self, stretch: PlanStretch) -> None:
        """Begin a stretch: pause the job, or run it at a cap."""

    def leave_plan(self) -> None:
        """Let the job go on without a cap after the last stretch."""

    def watch_job(self) -> None:
        """Look after a pause; called several times a second."""


def follow_plan(
    stretches: Sequence[PlanStretch], job: JobControl, *, now: Callable[[], float], wait: Callable[[float], bool]
) -> None:
    """Follow stretches by the clock until the job ends. Stretches that are over already are left out.

    `now` returns s since 1970; `wait` waits for some s and returns whether the job has ended.
    """
    for stretch in stretches:
        if now() >= stretch.end_s:
            continue
        while (early_s := stretch.start_s - now()) > 0:
            if wait(min(early_s, TICK_S)):
                return
        job.enter_stretch(stretch)
        while (left_s := stretch.end_s - now()) > 0:
            if wait(min(left_s, TICK_S)):
                return
            job.watch_job()
    job.leave_plan()
    while not wait(TICK_S):
        job.watch_job()


def list_stretches(plan: WhenPlan) -> list[PlanStretch]:
    """Return the stretches from the start of the job to its end."""
    return [one for one in plan.stretches if one.action in ("run", "pause") and one.start_s < plan.finish_s]


@dataclass(frozen=True, slots=True)
class PlanCaps:
    """Hold the GPUs that a plan caps, with the caps found before (W)."""

    found_w: Mapping[str, float] = field(default_factory=dict)

    def make_requests(self, cap_w: float | None) -> list[CapRequest]:
        """Return the requests for a cap (W) on each GPU; without a cap, for those found before."""
        from joulelab.control.client import CapRequest

        return [CapRequest(scope, found_w if cap_w is None else cap_w) for scope, found_w in self.found_w.items()]


def check_caps(plan: WhenPlan, status: CapStatus, scopes: Sequence[str]) -> PlanCaps:
    """Return the GPUs to cap. Raises ConfigError for a cap that one of them does not allow."""
    caps = sorted({one.cap_w for one in list_stretches(plan) if one.action == "run" and one.cap_w is not None})
    found: dict[str, float] = {}
    for device in (one for one in status.devices if one.scope in scopes and one.kind == "power"):
        for cap_w in caps:
            if not device.lowest <= cap_w <= device.highest:
                raise ConfigError(
                    f"the plan has a cap of {cap_w:g} W",
                    where=device.scope,
                    why=f"it takes {device.lowest:g} to {device.highest:g} W",
                    next="plan again with --cap for the caps that it takes",
                    code="config.plan-cap",
                )
        found[device.scope] = device.requested or device.default or device.highest
    return PlanCaps(found)


class PlanFollower:
    """Pause and cap a job while it runs. No failure here affects it: it runs on, and the comparison has a note."""

    def __init__(
        self, plan: WhenPlan, caps: PlanCaps, environ: Mapping[str, str], *, pauses_itself: bool = False
    ) -> None:
        """Take the plan, the GPUs, and whether the command pauses itself, by a checkpoint."""
        self.plan = plan
        self.records: list[StretchRecord] = []
        self.notes: list[Note] = []
        self._caps, self._environ = caps, environ
        self._pauses_itself = pauses_itself
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pauses: JobPauses | None = None
        first = find_stretch(plan, read_utc_s())
        self.first_cap_w = None if first is None else first.cap_w
        self._cap_w = self.first_cap_w

    def begin(self, recording: RunRecording, capping: RunCaps) -> None:
        """Begin to follow the plan; the job has just started."""
        self._recording, self._capping = recording, capping
        recording.event("plan", plan=self.plan.to_json())
        self._thread = threading.Thread(target=self._run, name="plan", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop; the job has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        from joulelab.control.pauses import JobPauses

        pid = self._recording.workload_pid or 0
        with JobPauses(self._environ, pid) as self._pauses:
            try:
                if not self._pauses_itself and any(one.action == "pause" for one in list_stretches(self.plan)):
                    self._pauses.prepare()
                follow_plan(list_stretches(self.plan), self, now=read_utc_s, wait=self._stop.wait)
            except Exception as error:  # noqa: BLE001 - the job runs on, by the plan or not
                self._note_problem("when.follow-failed", f"{type(error).__name__}: {error}")

    def enter_stretch(self, stretch: PlanStretch) -> None:
        """Pause the job, or set the cap and continue it."""
        self._add_record(stretch, stretch.action, stretch.cap_w if stretch.action == "run" else self._cap_w)
        if stretch.action == "pause":
            self._pause_job()
            return
        self._set_cap(stretch.cap_w)
        self._continue_job()

    def leave_plan(self) -> None:
        """Continue the job without a cap: it is late, and the plan is over."""
        self._add_record(None, "after", None)
        self._set_cap(None)
        self._continue_job()
        self.notes.append(Note("when.after-plan"))

    def watch_job(self) -> None:
        """Replace a keeper that died in a pause; end the pause if the job got a signal or was continued."""
        pauses = self._pauses
        if pauses is None or not pauses.is_paused:
            return
        try:
            for event in pauses.serve():
                self._recording.event(event.pop("event"), **event)
        except JoulelabError as error:
            self._note_problem("when.pause-failed", str(error))
            return
        pid = self._recording.workload_pid or 0
        number = next((n for n in ENDING_SIGNALS if is_pending(pid, n)), None)
        if number is not None or not is_stopped(pid):
            why = "it was continued from outside" if number is None else f"it got {signal.Signals(number).name}"
            self._continue_job()
            self._note_problem("when.pause-ended", why)

    def _pause_job(self) -> None:
        pauses = self._pauses
        if self._pauses_itself or pauses is None:
            self._recording.event("job-checkpoint")
            return
        if pauses.is_paused:
            return
        try:
            self._recording.event("job-paused", pids=pauses.pause())
        except JoulelabError as error:
            if error.code != "error.job-ended":
                self._note_problem("when.pause-failed", str(error))

    def _continue_job(self) -> None:
        if self._pauses is not None and self._pauses.is_paused:
            self._pauses.resume()
            self._recording.event("job-continued")

    def _set_cap(self, cap_w: float | None) -> None:
        if cap_w == self._cap_w or not self._caps.found_w:
            return
        try:
            self._capping.set(self._caps.make_requests(cap_w))
        except JoulelabError as error:
            self._note_problem("when.cap-failed", str(error))
            return
        self._cap_w = cap_w

    def _add_record(self, planned: PlanStretch | None, action: str, cap_w: float | None) -> None:
        record = StretchRecord(planned, action, cap_w, read_utc_s(), monotonic_ns())
        self.records.append(record)
        self._recording.event("plan-stretch", action=action, cap_w=cap_w, utc_s=record.start_s)

    def _note_problem(self, code: str, why: str) -> None:
        self.notes.append(Note(code, texts={"why": why}))
        self._recording.event("plan-problem", code=code, why=why)


def find_stretch(plan: WhenPlan, now_s: float) -> PlanStretch | None:
    """Return the stretch of a time (s since 1970), the first one before the start; None after the end."""
    return next((one for one in list_stretches(plan) if one.end_s > now_s), None)


def wait_for_start(
    begin_s: float,
    *,
    now: Callable[[], float] = read_utc_s,
    sleep: Callable[[float], None] = time.sleep,
    notify: Callable[[float], None],
) -> None:
    """Wait until shortly before the start (s since 1970); `notify` gets the time to wait, if there is any."""
    left_s = begin_s - LEAD_S - now()
    if left_s > 0:
        notify(left_s)
    while left_s > 0:
        sleep(min(left_s, LONGEST_WAIT_S))
        left_s = begin_s - LEAD_S - now()


class PlanReport:
    """Add the comparison with the plan to the result of a run."""

    needs: Sequence[str] = ("joulelab.plan.when.plan_comparison", "joulelab.study.tuning.windows")

    def __init__(self, follower: PlanFollower, also: Sequence[Rate] = ()) -> None:
        self._follower, self._also = follower, also

    def to_json(self, outcome: RunOutcome) -> dict[str, Any]:
        """Return the comparison as plain data."""
        compared = self._compare(outcome)
        return {} if compared is None else {"plan": compared.to_json()}

    def print(self, outcome: RunOutcome) -> None:
        """Print the comparison."""
        compared = self._compare(outcome)
        if compared is not None:
            from joulelab.cli.output import print_blocks
            from joulelab.plan.when.plan_comparison import lay_out_comparison

            print_blocks(lay_out_comparison(compared), file=sys.stderr)

    def _compare(self, outcome: RunOutcome) -> PlanComparison | None:
        follower = self._follower
        if outcome.result is None or outcome.run is None or not follower.records:
            return None
        return compare_with_plan(
            follower.plan, follower.records, outcome.run, outcome.result, follower.notes, self._also
        )


def run_plan(
    plan: WhenPlan,
    words: Sequence[str],
    *,
    runs: Path,
    name: str | None = None,
    which: str | None = None,
    checkpoint: str | None = None,
    also: Sequence[Rate] = (),
    as_json: bool = False,
) -> NoReturn:
    """Run a command by a plan, print the result of the run and the comparison, and exit as the command did.

    `which` names GPUs as `cap --gpu` does. `checkpoint` is a shell command that lets the job save its state and end;
    the job is started again after the pause. `also` are rates to count beside the plan's. Raises JoulelabError before
    anything is started.
    """
    from joulelab.cli.output import print_notice
    from joulelab.cli.run import run_and_exit
    from joulelab.control.leftovers import restore_at_start
    from joulelab.plan.when.plan_comparison import format_time
    from joulelab.report.format import format_rough_duration

    if plan.nodes != 1:
        raise ConfigError(
            f"the plan is for {plan.nodes} nodes",
            where="--run",
            why="--run starts the job on this node",
            next="submit it to Slurm (--submit), or plan for one node: --nodes 1",
            code="config.several-nodes",
        )
    if shutil.which(words[0]) is None:  # not after a night of waiting
        raise ConfigError(
            f"{words[0]} cannot be started",
            where="--run",
            why="no such command",
            next="correct its name or path",
            code="config.no-command",
        )
    restore_at_start(os.environ, print_notice)
    caps = _find_caps(plan, which)

    def notify(left_s: float) -> None:
        start = format_time(plan.begin_s, plan.label.time_zone)
        print_notice(f"the job starts at {start}, in {format_rough_duration(left_s)}; Ctrl-C gives up")

    wait_for_start(plan.begin_s, notify=notify)
    follower = PlanFollower(plan, caps, os.environ, pauses_itself=checkpoint is not None)
    # Held from the start, also without a cap: a change by another program is then noticed.
    requests = caps.make_requests(follower.first_cap_w)
    if checkpoint is not None:
        from joulelab.plan.when.checkpoint_job import make_checkpoint_command

        words = make_checkpoint_command(words, list_stretches(plan), checkpoint)
    usual: dict[str, Any] = dict.fromkeys(("period", "idle", "tail", "rated_cpu", "capture", "config"))
    usual |= {"labels": (), "meters": (), "without": (), "estimate": False, "output": None, "quiet": False}
    report = PlanReport(follower, also)
    run_and_exit(
        tuple(words), caps=requests, companion=follower, extra=report, as_json=as_json, runs=runs, name=name, **usual
    )


def _find_caps(plan: WhenPlan, which: str | None) -> PlanCaps:
    """Return the GPUs that the plan caps, none if it has no caps. Raises JoulelabError."""
    if all(one.cap_w is None for one in list_stretches(plan)):
        return PlanCaps()
    from joulelab.control.client import Caps
    from joulelab.run.run_caps import choose_gpus

    with Caps(os.environ) as caps:
        status = caps.status()
    return check_caps(plan, status, choose_gpus(status, os.environ, which))


def make_follow_command(plan: Path, runs: Path, words: Sequence[str]) -> list[str]:
    """Return the command that follows a saved plan: a job of Slurm begins with it."""
    start = [sys.executable, "-P", "-m", "joulelab.plan.when.plan_run"]
    return [*start, str(plan.absolute()), str(runs.absolute()), *words]


@click.command("follow", context_settings={"allow_interspersed_args": False})
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("runs", type=click.Path(path_type=Path))
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def follow_saved_plan(file: Path, runs: Path, words: tuple[str, ...]) -> None:
    """Follow a saved plan: PLAN.json RUNS CMD."""
    from joulelab.cli.output import print_notice
    from joulelab.plan.when.when_plan import WhenPlan
    from joulelab.store.documents import decode_json

    try:
        plan = WhenPlan.from_json(decode_json(file.read_bytes()), where=str(file))
        run_plan(plan, words, runs=runs)
    except (JoulelabError, OSError, ValueError) as error:
        print_notice(str(error))
        sys.exit(REFUSED_CODE)


if __name__ == "__main__":
    follow_saved_plan()
