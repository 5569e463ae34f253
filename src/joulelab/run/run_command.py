"""Run a command and record it; the command never notices, whatever happens to the recording."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, WorkloadError
from joulelab.core.process import is_pending, is_stopped
from joulelab.run.closing import analyse_and_seal, preload_modules
from joulelab.run.recording import RunRecording
from joulelab.run.run_caps import RunCaps
from joulelab.run.signal_forwarding import ENDING_SIGNALS, REPORT_NS, ArrivedSignal, SignalBox, SignalForwarder
from joulelab.run.witness import Witness
from joulelab.run.workload_process import OutputCapture, WorkloadEnd, poll_workload, start_workload, stop_like_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.run.run_caps import Companion
    from joulelab.run.run_options import RunOptions
    from joulelab.run.spawn import Spawned

STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# The heavy imports of the analysis are done while the workload runs, but not in a command's first moments.
PRELOAD_NS = NS
# Meanwhile the interpreter's lock changes hands this often, so that the workload's end is noticed.
SWITCH_INTERVAL_S = 0.0005
CAPTURE_NS = 5_000_000
PAUSE_NS = NS
REFUSED_CODE = 125  # our own failure, as shells and `env` have it


@dataclass(slots=True)
class RunOutcome:
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
    error: JoulelabError | None = None


def run_command(
    argv: Sequence[str],
    options: RunOptions,
    environ: Mapping[str, str],
    *,
    say: Callable[[str], None],
    signals: SignalBox,
    spawned: Spawned | None = None,
    companion: Companion | None = None,
) -> RunOutcome:
    """Run a command and record it; `say` hears problems while it runs. Main thread only.

    `signals` is open, and best stays so until the caller leaves with the command's outcome: what arrives after the
    command's end then cannot replace it. `spawned` is a recorder that was started early, to load while its caller does.
    `companion` goes along with the workload. Where caps are refused, the command does not start.
    """
    recording = RunRecording(options, argv, environ)
    for problem in recording.problems:
        with contextlib.suppress(Exception):  # a message that cannot be printed stops nothing
            say(f"not recorded: {problem}")
    supervision = _Supervision(argv, environ, recording, signals, spawned, companion)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        outcome = supervision.run()
    except Exception as error:  # noqa: BLE001
        # A fault of our own: whatever happens to the recording, the workload is waited for and its end returned.
        recording.problems.append(f"joulelab failed while recording: {type(error).__name__}: {error}")
        outcome = supervision.rescue()
    finally:
        sys.setswitchinterval(interval_s)
        supervision.capping.release()
        supervision.witness.close()
    outcome.run = recording.run
    analyse = options.analyse and outcome.kind in ("exit", "signal")
    outcome.result = analyse_and_seal(recording, options, signals, analyse=analyse)
    outcome.problems = recording.problems
    return outcome


class _Supervision:
    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        recording: RunRecording,
        signals: SignalBox,
        spawned: Spawned | None,
        companion: Companion | None,
    ) -> None:
        self.argv = argv
        self.spawned = spawned
        self.companion = companion
        self.capping = RunCaps(recording.options.caps, environ, recording)
        self.environ = environ
        self.recording = recording
        self.signals = signals
        self.witness = Witness()
        self.forwarder = SignalForwarder(self._send, self._pends)
        self.outcome = RunOutcome()
        self.pid = 0
        self.ending: WorkloadEnd | None = None
        self.stopped_by = 0
        self.capture: OutputCapture | None = None
        self._hurry = False
        self._continue_ns: int | None = None
        self._preload_ns: int | None = None

    def run(self) -> RunOutcome:
        recording, options = self.recording, self.recording.options
        recording.start(self.spawned)
        recording.wait_ready(lambda met, until: self.wait(lambda: met() or bool(self.stopped_by), until))
        if options.idle_s > 0 and not self.stopped_by:
            begin = monotonic_ns()
            self.wait(lambda: bool(self.stopped_by), begin + round(options.idle_s * NS))
            recording.event("idle", **{"from": begin, "to": monotonic_ns()})
        capped = not self.stopped_by and self._cap()
        if capped:
            recording.wait_edge(self.wait)
        if self.stopped_by:
            self.outcome.kind, self.outcome.signal = "interrupted", self.stopped_by
        elif capped:
            self._work(options)
        self.capping.release()
        recording.finish(self.wait, options.tail_s if self.outcome.kind in ("exit", "signal") else 0.0)
        self._finish_capture()
        recording.close(self._end())
        return self.outcome

    def _cap(self) -> bool:
        """Set the caps that are asked for; a command whose caps are refused is not started."""
        try:
            self.capping.apply()
        except JoulelabError as error:
            self.outcome.exit_code, self.outcome.error = REFUSED_CODE, error
            return False
        return True

    def rescue(self) -> RunOutcome:
        """Start the workload if that has not been done, and wait for it, without recording."""
        if not self.pid and self.stopped_by:
            self.outcome.kind, self.outcome.signal = "interrupted", self.stopped_by
        elif not self.pid and self.outcome.error is None:
            self._start(None)
        while self.pid and self.ending is None:
            self._turn(monotonic_ns() + NS, serve=False)
        if self.ending is not None:
            self._note_end()
        with contextlib.suppress(Exception):
            if self.recording.recorder is not None:
                self.recording.recorder.kill()
            self._finish_capture(serve=False)
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
        if options.capture is not None:
            try:
                self.capture = OutputCapture(options.capture)
            except OSError as error:
                self.recording.problems.append(f"cannot capture to {options.capture}: {error.strerror}")
        if not self._start(self.capture):
            return
        assert self.outcome.start_ns is not None
        self.recording.workload(self.pid, self.outcome.start_ns)
        self._preload_ns = self.outcome.start_ns + PRELOAD_NS if options.analyse and self.recording.run else None
        if self.companion is not None:
            self.companion.begin(self.recording, self.capping)
        try:
            self.wait(lambda: self.ending is not None, 1 << 62)
            self._note_end()
        finally:
            if self.companion is not None:
                self.companion.end()

    def _start(self, capture: OutputCapture | None) -> bool:
        outcome = self.outcome
        environ = {**self.environ, **self.recording.environment()}
        self.witness.renew()
        outcome.start_ns = monotonic_ns()
        try:
            self.pid = start_workload(self.argv, environ, self.signals.original, capture.outputs if capture else None)
        except WorkloadError as error:
            outcome.kind, outcome.exit_code, outcome.error = "not-started", error.exit_code, error
            outcome.end_ns = monotonic_ns()
        if capture:
            capture.start()
        return bool(self.pid)

    def _finish_capture(self, *, serve: bool = True) -> None:
        capture = self.capture
        if capture is None:
            return
        while not capture.settled() and not self._hurry:
            self._turn(monotonic_ns() + CAPTURE_NS, serve=serve)
        if not capture.complete:
            why = "interrupted" if self._hurry else "a process outlived the command"
            self.recording.problems.append(f"{why}: its later output is not captured")

    def _note_end(self) -> None:
        outcome, ending = self.outcome, self.ending
        assert ending is not None
        assert outcome.start_ns is not None
        noticed = [t for t in (outcome.end_ns, self.recording.ended_ns) if t is not None and t >= outcome.start_ns]
        outcome.end_ns = min(noticed, default=monotonic_ns())
        outcome.kind = "exit" if ending.signal is None else "signal"
        outcome.exit_code, outcome.signal = ending.exit_code, ending.signal
        ended = {"outcome": outcome.kind, "exit_code": ending.exit_code, "signal": ending.signal}
        used = {"user_s": ending.user_s, "system_s": ending.system_s, "peak_memory_b": ending.peak_memory_b}
        self.recording.event("workload-end", end_ns=outcome.end_ns, **ended, **used)

    def _end(self) -> dict[str, object]:
        o = self.outcome
        message = str(o.error) if o.error else None
        fields = {"outcome": o.kind, "exit_code": o.exit_code, "signal": o.signal, "message": message}
        return {**fields, "start_ns": o.start_ns, "end_ns": o.end_ns}

    def _turn(self, until_ns: int, *, serve: bool = True) -> None:
        """Sleep until something happens or a time is reached, then deal with it."""
        due = [
            until_ns,
            self.recording.due_ns,
            self.capping.due_ns,
            self.forwarder.due_ns,
            self._continue_ns,
            self._preload_ns,
        ]
        left = min(t for t in due if t is not None) - monotonic_ns()
        poll = select.poll()
        for fd in (self.signals.fd, *((*self.recording.fds, *self.capping.fds) if serve else ())):
            poll.register(fd, select.POLLIN)
        began, wait_ms = monotonic_ns(), max(0, min(-(-left // 1_000_000), 60_000))
        poll.poll(wait_ms)
        arrived = self.signals.take()
        if self.pid and self.ending is None:
            self._look_at_workload()
        if serve:
            self.recording.serve()
            self.capping.serve()
        for each in arrived:
            self._handle(each)
        self.forwarder.decide(self.recording.reported)
        if self.forwarder.group and self.ending is None:
            self.forwarder.group = False
            self.witness.renew()
        self._continue()
        self._note_pause(began, wait_ms)
        self._preload()

    def _note_pause(self, began: int, wait_ms: int) -> None:
        """Tell that we slept much longer than we wanted: this process was stopped, or the machine was."""
        now = monotonic_ns()
        if now - began - wait_ms * 1_000_000 > PAUSE_NS:
            self.recording.event("supervisor-paused", **{"from": began, "to": now})

    def _preload(self) -> None:
        if self._preload_ns is not None and monotonic_ns() >= self._preload_ns:
            self._preload_ns = None
            more = self.recording.options.preload
            threading.Thread(target=preload_modules, args=(more,), name="preload", daemon=True).start()

    def _look_at_workload(self) -> None:
        self.ending, stopped = poll_workload(self.pid)
        if self.ending is not None:
            self.outcome.end_ns = monotonic_ns()
            self._preload_ns = None
        elif stopped in STOPS and is_stopped(self.pid):
            stop_like_workload(stopped)

    def _handle(self, arrived: ArrivedSignal) -> None:
        number = arrived.number
        if number == signal.SIGCHLD:
            return
        if not self.pid:
            if number in ENDING_SIGNALS:
                self.stopped_by = number
            elif number == signal.SIGTSTP:
                stop_like_workload(number)
        elif self.ending is not None:
            if number in ENDING_SIGNALS:
                self._hurry = True
                self.recording.abandon_tail()
        elif number == signal.SIGCONT:
            # A shell continues the whole group; somebody else may have continued us alone.
            self._continue_ns = arrived.t_ns + REPORT_NS
        elif number != signal.SIGTSTP or not is_stopped(self.pid):
            self.forwarder.take(arrived)

    def _pends(self, arrived: ArrivedSignal) -> bool:
        """Return whether others of the group got a signal: the recorder, or the witness where none was there yet."""
        recorder = self.recording.recorder
        if recorder is not None and is_pending(recorder.pid, arrived.number):
            return True
        return self.recording.lacked_recorder(arrived.t_ns) and self.witness.saw(arrived.number)

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
