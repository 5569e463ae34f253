"""Run a command and record it; the command never notices, whatever happens to the recording."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import WorkloadError
from joulelab.core.process import is_stopped
from joulelab.recorder.signals import REPORTED
from joulelab.supervisor.closing import close_run, preload
from joulelab.supervisor.recording import Recording
from joulelab.supervisor.signals import REPORT_NS, Forwarder, Signal, SignalBox
from joulelab.supervisor.workload import Capture, Ending, poll_workload, start_workload, stop_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.supervisor.options import RunOptions
    from joulelab.supervisor.spawn import Spawned

STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# The heavy imports of the analysis are done while the workload runs, but not in a command's first moments.
PRELOAD_NS = NS


@dataclass(slots=True)
class Outcome:
    """Say how a command ended and what was recorded; `run` is None where nothing could be.

    `exit_code` and `signal` are the workload's own, or those of a shell where it did not start. `problems` are what
    went wrong with the measurement, in words.
    """

    kind: Literal["exit", "signal", "not-started", "interrupted"] = "not-started"
    exit_code: int | None = None
    signal: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    run: Path | None = None
    result: Result | None = None
    problems: list[str] = field(default_factory=list)
    error: WorkloadError | None = None


def run_command(
    argv: Sequence[str],
    options: RunOptions,
    environ: Mapping[str, str],
    *,
    say: Callable[[str], None],
    spawned: Spawned | None = None,
) -> Outcome:
    """Run a command and record it; `say` hears problems while it runs. Blocks signals meanwhile: main thread only.

    `spawned` is a recorder that was started early, to load while its caller does.
    """
    with SignalBox() as signals:
        recording = Recording(options, argv, environ)
        for problem in recording.problems:
            say(f"not recorded: {problem}")
        supervision = _Supervision(argv, environ, recording, signals, spawned)
        try:
            outcome = supervision.run()
        except Exception as error:
            # A fault of our own: whatever happens to the recording, the workload is waited for and its end returned.
            recording.problems.append(f"joulelab failed while recording: {type(error).__name__}: {error}")
            if not supervision.pid:
                raise
            outcome = supervision.rescue()
    outcome.run = recording.run
    outcome.result = close_run(recording, options, analyse=options.analyse and outcome.kind in ("exit", "signal"))
    outcome.problems = recording.problems
    return outcome


class _Supervision:
    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        recording: Recording,
        signals: SignalBox,
        spawned: Spawned | None,
    ) -> None:
        self.argv = argv
        self.spawned = spawned
        self.environ = environ
        self.recording = recording
        self.signals = signals
        self.forwarder = Forwarder(self._send)
        self.outcome = Outcome()
        self.pid = 0
        self.ending: Ending | None = None
        self.stopped_by = 0
        self._continue_ns: int | None = None
        self._preload_ns: int | None = None

    def run(self) -> Outcome:
        recording, options = self.recording, self.recording.options
        recording.start(self.spawned)
        recording.wait_ready(self.wait)
        if options.idle_s > 0 and not self.stopped_by:
            begin = monotonic_ns()
            self.wait(lambda: bool(self.stopped_by), begin + round(options.idle_s * NS))
            recording.event("idle", **{"from": begin, "to": monotonic_ns()})
        if not self.stopped_by:
            recording.wait_edge(self.wait)
        if self.stopped_by:
            self.outcome.kind, self.outcome.signal = "interrupted", self.stopped_by
        else:
            self._work(options)
        recording.finish(self.wait, options.tail_s if self.outcome.kind in ("exit", "signal") else 0.0)
        recording.close(self._end())
        return self.outcome

    def rescue(self) -> Outcome:
        """Wait for the workload, without recording."""
        while self.ending is None:
            self._turn(monotonic_ns() + NS, serve=False)
        self._note_end()
        if self.recording.recorder is not None:
            self.recording.recorder.kill()
        with contextlib.suppress(Exception):
            self.recording.close(self._end())
        return self.outcome

    def wait(self, condition: Callable[[], bool], until_ns: int) -> bool:
        """Serve signals and the recorder until a condition holds or a time is reached; return the condition."""
        while not condition():
            if monotonic_ns() >= until_ns:
                return False
            self._turn(until_ns)
        return True

    def _work(self, options: RunOptions) -> None:
        outcome, capture = self.outcome, None
        if options.capture is not None:
            try:
                capture = Capture(options.capture)
            except OSError as error:
                self.recording.problems.append(f"cannot capture to {options.capture}: {error.strerror}")
        environ = {**self.environ, **self.recording.environment()}
        outcome.start_ns = monotonic_ns()
        try:
            self.pid = start_workload(self.argv, environ, self.signals.original, capture.outputs if capture else None)
        except WorkloadError as error:
            outcome.exit_code, outcome.error = error.exit_code, error
            outcome.end_ns = monotonic_ns()
            return
        if capture:
            capture.start()
        self.recording.workload(self.pid, outcome.start_ns)
        self._preload_ns = outcome.start_ns + PRELOAD_NS if options.analyse and self.recording.run else None
        self.wait(lambda: self.ending is not None, 1 << 62)
        self._note_end()
        if capture and not capture.finish():
            self.recording.problems.append("a process outlived the command: its later output is not captured")

    def _note_end(self) -> None:
        outcome, ending = self.outcome, self.ending
        assert ending is not None
        if outcome.end_ns is None:
            outcome.end_ns = monotonic_ns()
        outcome.kind = "exit" if ending.signal is None else "signal"
        outcome.exit_code, outcome.signal = ending.exit_code, ending.signal
        used = {"user_s": ending.user_s, "system_s": ending.system_s, "peak_memory_b": ending.peak_memory_b}
        self.recording.event("workload-end", end_ns=outcome.end_ns, **used)

    def _end(self) -> dict[str, object]:
        o = self.outcome
        message = str(o.error) if o.error else None
        fields = {"outcome": o.kind, "exit_code": o.exit_code, "signal": o.signal, "message": message}
        return {**fields, "start_ns": o.start_ns, "end_ns": o.end_ns}

    def _turn(self, until_ns: int, *, serve: bool = True) -> None:
        """Sleep until something happens or a time is reached, then deal with it."""
        due = [until_ns, self.recording.due_ns, self.forwarder.due_ns, self._continue_ns, self._preload_ns]
        left = min(t for t in due if t is not None) - monotonic_ns()
        poll = select.poll()
        for fd in (self.signals.fd, *(self.recording.fds if serve else ())):
            poll.register(fd, select.POLLIN)
        poll.poll(max(0, min(-(-left // 1_000_000), 60_000)))
        arrived = self.signals.take()
        if self.pid and self.ending is None:
            self._look_at_workload()
        if serve:
            self.recording.serve()
        for each in arrived:
            self._handle(each)
        recorder = self.recording.recorder
        self.forwarder.decide(self.recording.reported, recorder.pid if recorder else None)
        self._continue()
        if self._preload_ns is not None and monotonic_ns() >= self._preload_ns:
            self._preload_ns = None
            more = self.recording.options.preload
            threading.Thread(target=preload, args=(more,), name="preload", daemon=True).start()

    def _look_at_workload(self) -> None:
        self.ending, stopped = poll_workload(self.pid)
        if self.ending is not None:
            self.outcome.end_ns = monotonic_ns()
            self._preload_ns = None
        elif stopped in STOPS and is_stopped(self.pid):
            stop_like(stopped)

    def _handle(self, arrived: Signal) -> None:
        number = arrived.number
        if number == signal.SIGCHLD:
            return
        if not self.pid:
            if number in REPORTED:
                self.stopped_by = number
            elif number == signal.SIGTSTP:
                stop_like(number)
        elif self.ending is not None:
            if number in REPORTED:
                self.recording.abandon_tail()
        elif number == signal.SIGCONT:
            # A shell continues the whole group; somebody else may have continued us alone.
            self._continue_ns = arrived.t_ns + REPORT_NS
        elif number != signal.SIGTSTP or not is_stopped(self.pid):
            recorder = self.recording.recorder
            self.forwarder.take(arrived, recorder=recorder.pid if recorder else None)

    def _continue(self) -> None:
        if self._continue_ns is not None and monotonic_ns() >= self._continue_ns:
            self._continue_ns = None
            if self.ending is None and is_stopped(self.pid):
                self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        # Not reaped yet, so the number is still the workload's.
        if self.pid and self.ending is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
