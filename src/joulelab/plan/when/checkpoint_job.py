"""Run a job that saves its state for a pause: the workload of `plan when --run --checkpoint CMD`.

At the start of a pause it runs the checkpoint command, which lets the job save its state and end; at the end of the
pause it starts the job again. It is a process between joulelab and the job, so it follows the clock even if joulelab
is killed, and nothing is ever stopped. It ends as the job ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import WorkloadError
from joulelab.run.workload_process import exit_like_workload, poll_workload, start_workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from joulelab.plan.when.when_plan import PlanStretch
    from joulelab.run.workload_process import WorkloadEnd

JOB_PID = "JOULELAB_JOB_PID"  # for the checkpoint command
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LONGEST_WAIT_S = 30.0
SAVING_S = 600.0  # a job that runs on for longer after its checkpoint is not paused

Pause = tuple[float, float]  # from when to when, in s since 1970


def make_checkpoint_command(words: Sequence[str], stretches: Sequence[PlanStretch], checkpoint: str) -> tuple[str, ...]:
    """Return the command that runs a job with a checkpoint for each pause of a plan."""
    pauses = [(one.start_s, one.end_s) for one in stretches if one.action == "pause"]
    settings = json.dumps({"pauses": pauses, "checkpoint": checkpoint})
    return (sys.executable, "-P", "-m", "joulelab.plan.when.checkpoint_job", settings, "--", *words)


class CheckpointJob:
    """Start a job, save its state at each pause, and start it again."""

    def __init__(self, words: Sequence[str], pauses: Sequence[Pause], checkpoint: str) -> None:
        self._words, self._pauses, self._checkpoint = words, list(pauses), checkpoint
        self._original = signal.pthread_sigmask(signal.SIG_BLOCK, [*FORWARDED, signal.SIGCHLD])
        self._pid = 0
        self._end: WorkloadEnd | None = None
        self._signal = 0  # that ended the wait in a pause

    def run(self) -> NoReturn:
        """Run the job to its end, and end as it did. Raises WorkloadError if it cannot be started."""
        pauses = [one for one in self._pauses if one[1] > read_utc_ns() / NS]
        self._start_job()
        for start_s, end_s in pauses:
            self._wait(start_s)
            if self._end is not None:
                break
            if not self._save_state(end_s):
                continue
            self._pid = 0
            self._wait(end_s)
            if self._signal:
                exit_like_workload(None, self._signal)
            self._start_job()
        self._wait(None)
        assert self._end is not None
        exit_like_workload(self._end.exit_code, self._end.signal)

    def _start_job(self) -> None:
        self._end = None
        self._pid = start_workload(self._words, os.environ, self._original)

    def _save_state(self, end_s: float) -> bool:
        """Run the checkpoint command and wait for the end of the job; return False if it runs on."""
        environ = {**os.environ, JOB_PID: str(self._pid)}
        shell = start_workload(["/bin/sh", "-c", self._checkpoint], environ, self._original, (2, 2))
        code = os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1])
        if code:
            _warn(f"the job is not paused: its checkpoint command ended with {code}")
            return False
        self._wait(min(read_utc_ns() / NS + SAVING_S, end_s))
        if self._end is None:
            _warn("the job is not paused: it did not end after its checkpoint")
        return self._end is not None

    def _wait(self, until_s: float | None) -> None:
        """Wait until a time (s since 1970), the end of the job, or in a pause a signal; forward signals to the job."""
        while self._end is None or not self._pid:
            left_s = LONGEST_WAIT_S if until_s is None else until_s - read_utc_ns() / NS
            if left_s <= 0:
                return
            arrived = signal.sigtimedwait([*FORWARDED, signal.SIGCHLD], min(left_s, LONGEST_WAIT_S))
            if arrived is not None and arrived.si_signo != signal.SIGCHLD:
                if not self._pid:
                    self._signal = arrived.si_signo
                    return
                if arrived.si_code <= 0:  # from a process to this one; the terminal reaches the job itself
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._pid, arrived.si_signo)
            if self._pid:
                self._end, _ = poll_workload(self._pid)


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"joulelab: {text}\n")
        sys.stderr.flush()


def main() -> None:
    """Run the job that the arguments name."""
    settings = json.loads(sys.argv[1])
    try:
        CheckpointJob(sys.argv[3:], [(a, b) for a, b in settings["pauses"]], settings["checkpoint"]).run()
    except WorkloadError as error:
        _warn(str(error))
        exit_like_workload(error.exit_code)


if __name__ == "__main__":
    main()
