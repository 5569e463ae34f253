"""Run a command and record it: the path of `joulelab run -- CMD`, from top to bottom.

1. `cli/run.py`: start the recorder process, which loads while the rest is loaded, and read the options.
2. `prepare_run`: read the configuration and choose the meters.
3. `run_command`: create the run folder, then `_Supervisor.run`:
   send the recorder its plan, wait until the meters are open, record idle power, set the caps, wait until the counters
   have stepped, start the workload and wait for its end, restore the caps, take the last readings, close the run.
4. `_finish_run`: analyse the run, and seal it if it took 60 s or more and its journals have less than 64 MB.
5. `cli/run.py`: print the outcome, and exit as the command did.

The workload never notices: a failure of the recording is a problem in the outcome, and the workload runs on.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from joulelab.core.clock import NEVER_NS, NS, monotonic_ns
from joulelab.core.errors import JoulelabError, WorkloadError
from joulelab.core.process_identity import is_pending, is_stopped
from joulelab.run.config.config_files import list_config_files
from joulelab.run.recording import RunRecording
from joulelab.run.run_caps import RunCaps
from joulelab.run.run_options import get_host_name
from joulelab.run.signal_forwarding import (
    ENDING_SIGNALS,
    REPORT_NS,
    ArrivedSignal,
    GroupWitness,
    SignalBox,
    SignalForwarder,
)
from joulelab.run.workload_process import (
    OutputCapture,
    WorkloadEnd,
    poll_workload,
    start_workload,
    stop_like_workload,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.run.child_process import ChildProcess
    from joulelab.run.energy_limit import LimitGuard
    from joulelab.run.run_caps import Companion
    from joulelab.run.run_options import RunOptions

STOP_SIGNALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# The analysis is imported while the workload runs, but not in its first moments.
PRELOAD_NS = NS
# numpy loads its parts when they are first used: those that the analysis uses are named.
ANALYSIS_MODULES = (
    "numpy",
    "numpy.fft",
    "numpy.ma",
    "mmap",
    "duckdb",
    "joulelab.store.run_reader",
    "joulelab.store.seal",
    "joulelab.analysis.analyse",
)
# While modules are imported, the interpreter's lock changes hands this often, so that the workload's end is noticed.
SWITCH_INTERVAL_S = 0.0005
# After the workload's end: time between two looks at its captured output, whose last bytes arrive later.
CAPTURE_NS = 5_000_000
# A sleep that took this much longer than asked is stored as a pause: this process was stopped, or the machine was.
PAUSE_NS = NS
REFUSED_CODE = 125  # our own failure, as in shells and `env`


@dataclass(slots=True)
class RunOutcome:
    """Hold how a command ended and where it was recorded; `run` is None where nothing could be recorded.

    `exit_code` and `signal` are the workload's own, or what a shell returns for a command that cannot start. `problems`
    are sentences about failures of the measurement.
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

    @property
    def has_run(self) -> bool:
        """Return whether the workload ran."""
        return self.kind in ("exit", "signal")


class LiveDisplay(Protocol):
    """Define what shows a run on the terminal while its workload runs; nothing here may raise."""

    def begin(self, run: Path) -> None:
        """Begin, just after the start of the workload, and return at once."""

    def set_aside(self) -> contextlib.AbstractContextManager[None]:
        """Leave the terminal as it was found, in a block: this process is stopped in it."""

    def end(self) -> None:
        """End, just after the end of the workload."""


def prepare_run(
    options: RunOptions,
    environ: Mapping[str, str],
    *,
    times: Mapping[str, float | None],
    file: Path | None = None,
    wanted: Sequence[str] = (),
    without: Sequence[str] = (),
    warn: Callable[[str], None],
) -> RunOptions:
    """Return the options with the times and meters of the configuration; a wrong entry costs its meter only.

    `times` are those of the command line, which win; `file` is a configuration to read in addition; `wanted` and
    `without` are names of meters. Raises ConfigError for a name that no meter has.
    """
    try:
        files, warnings = list_config_files(environ, named=file)
        if not files and not wanted and not without:  # most runs have nothing to load
            for warning in warnings:
                warn(warning)
            return options.with_times(times)
        from joulelab.run.config.configuration import load_config

        config = load_config(environ, get_host_name(environ), named=file)
    except Exception as error:  # noqa: BLE001 - the command runs, configured or not
        warn(f"the configuration is not used ({type(error).__name__}: {error}); try joulelab doctor")
        return options.with_times(times)
    from joulelab.run.config.meter_choice import choose_meters, word_lost_meters

    choice = choose_meters(config, environ, wanted, without)
    for warning in (*word_lost_meters(choice.lost), *config.warnings, *choice.warnings):
        warn(warning)
    options = options.with_times(config.run).with_times(times)
    return options.with_meters(choice, file=file, wanted=wanted, without=without)


def run_command(
    argv: Sequence[str],
    options: RunOptions,
    environ: Mapping[str, str],
    *,
    warn: Callable[[str], None],
    signals: SignalBox,
    recorder: ChildProcess | None = None,
    companion: Companion | None = None,
    display: LiveDisplay | None = None,
    limit: LimitGuard | None = None,
) -> RunOutcome:
    """Run a command and record it. Main thread only.

    `signals` must be open; keep it open until the process exits, so that a late signal cannot change the exit code.
    `recorder` is a recorder process that was started early. `companion` works beside the workload, `display` shows it
    on the terminal, `limit` stops it at an energy. If caps are refused, the command does not start.
    """
    recording = RunRecording(options, argv, environ)
    for problem in recording.problems:
        with contextlib.suppress(Exception):  # a message that cannot be printed stops nothing
            warn(f"not recorded: {problem}")
    supervisor = _Supervisor(argv, environ, recording, signals, companion, display, limit)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        outcome = supervisor.run(recorder)
    except Exception as error:  # noqa: BLE001 - a defect of joulelab: the workload is waited for, its end returned
        recording.problems.append(f"joulelab failed while recording: {type(error).__name__}: {error}")
        outcome = supervisor.rescue()
    finally:
        sys.setswitchinterval(interval_s)
        supervisor.caps.release()
        supervisor.witness.close()
    outcome.run = recording.run
    outcome.problems = recording.problems
    outcome.result = _finish_run(outcome, options, signals)
    return outcome


class _Supervisor:
    """Run the workload while its signals, the recorder and the caps are served."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        recording: RunRecording,
        signals: SignalBox,
        companion: Companion | None,
        display: LiveDisplay | None,
        limit: LimitGuard | None = None,
    ) -> None:
        self.argv = argv
        self.environ = environ
        self.recording = recording
        self.signals = signals
        self.companion = companion
        self.display = display
        self.limit = limit
        self.caps = RunCaps(recording.options.caps, environ, recording, guarded=companion is not None)
        self.witness = GroupWitness()
        self.forwarder = SignalForwarder(self._send, self._has_group_signal)
        self.outcome = RunOutcome()
        self.pid = 0
        self.end: WorkloadEnd | None = None
        self.stopped_by = 0  # a signal that ended the run before the workload started
        self.capture: OutputCapture | None = None
        self._is_cut_short = False
        self._continue_ns = NEVER_NS
        self._preload_ns = NEVER_NS

    def run(self, recorder: ChildProcess | None) -> RunOutcome:
        """Record the workload from start to end."""
        self.recording.start(recorder)
        may_start = self._prepare_start()
        if self.stopped_by:
            self._note_interruption()
        elif may_start:
            self._run_workload()
        self.caps.release()
        self.recording.finish(self.wait, self.recording.options.tail_s if self.outcome.has_run else 0.0)
        self._finish_capture()
        self.recording.close(self._describe_end())
        return self.outcome

    def _prepare_start(self) -> bool:
        """Wait for the meters, record idle power and set the caps; return whether the workload may start."""
        self.recording.wait_ready(self._wait_unless_stopped)
        if self.stopped_by:
            return False
        self.recording.record_idle(self.wait, self._is_stopped)
        if self.stopped_by or not self._set_caps():
            return False
        self.recording.wait_edge(self.wait)
        return not self.stopped_by

    def rescue(self) -> RunOutcome:
        """Start the workload if it is not started yet, and wait for its end, without recording."""
        if not self.pid and self.stopped_by:
            self._note_interruption()
        elif not self.pid and self.outcome.error is None:
            self._start_workload(None)
        while self.pid and self.end is None:
            self._sleep_and_handle(monotonic_ns() + NS, serve=False)
        if self.end is not None:
            self._note_end()
        with contextlib.suppress(Exception):
            self._finish_capture(serve=False)
            self.recording.close(self._describe_end())
        return self.outcome

    def wait(self, condition: Callable[[], bool], until_ns: int) -> bool:
        """Serve signals and the recorder until a condition holds or a time is reached; return the condition."""
        while not condition():
            if monotonic_ns() >= until_ns:
                return False
            self._sleep_and_handle(until_ns)
        return True

    def _wait_unless_stopped(self, condition: Callable[[], bool], until_ns: int) -> bool:
        """Wait as `wait` does, but end at once if a signal ends the run before the workload starts."""
        return self.wait(lambda: condition() or self._is_stopped(), until_ns)

    def _is_stopped(self) -> bool:
        return bool(self.stopped_by)

    def _note_interruption(self) -> None:
        self.outcome.kind, self.outcome.signal = "interrupted", self.stopped_by

    def _set_caps(self) -> bool:
        """Set the caps; return False if they are refused."""
        try:
            self.caps.apply()
        except JoulelabError as error:
            self.outcome.exit_code, self.outcome.error = REFUSED_CODE, error
            return False
        return True

    def _run_workload(self) -> None:
        options = self.recording.options
        if options.capture is not None:
            try:
                self.capture = OutputCapture(options.capture)
            except OSError as error:
                self.recording.problems.append(f"cannot capture to {options.capture}: {error.strerror}")
        if self.limit is not None:
            self.limit.prepare(self.recording)
        if not self._start_workload(self.capture):
            if self.limit is not None:
                self.limit.end()
            return
        assert self.outcome.start_ns is not None
        self.recording.note_workload(self.pid, self.outcome.start_ns)
        if options.analyse and self.recording.run:
            self._preload_ns = self.outcome.start_ns + PRELOAD_NS
        self._begin_watchers(self.outcome.start_ns)
        try:
            self.wait(lambda: self.end is not None, NEVER_NS)
            self._note_end()
        finally:
            for watcher in (self.display, self.limit, self.companion):
                if watcher is not None:
                    watcher.end()

    def _begin_watchers(self, start_ns: int) -> None:
        """Begin what goes on beside the workload: its companion, its display and its limit."""
        if self.companion is not None:
            self.companion.begin(self.recording, self.caps)
        with contextlib.suppress(RuntimeError):  # no further thread can be started
            if self.display is not None and self.recording.run is not None:
                self.display.begin(self.recording.run)
            if self.limit is not None:
                self.limit.begin(start_ns, self.environ, self.signals.original)

    def _start_workload(self, capture: OutputCapture | None) -> bool:
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
        while not capture.is_settled() and not self._is_cut_short:
            self._sleep_and_handle(monotonic_ns() + CAPTURE_NS, serve=serve)
        if not capture.is_complete:
            why = "interrupted" if self._is_cut_short else "a process outlived the command"
            self.recording.problems.append(f"{why}: its later output is not captured")

    def _note_end(self) -> None:
        outcome, end = self.outcome, self.end
        assert end is not None
        assert outcome.start_ns is not None
        noticed = [t for t in (outcome.end_ns, self.recording.ended_ns) if t is not None and t >= outcome.start_ns]
        outcome.end_ns = min(noticed, default=monotonic_ns())
        outcome.kind = "exit" if end.signal is None else "signal"
        outcome.exit_code, outcome.signal = end.exit_code, end.signal
        ended = {"outcome": outcome.kind, "exit_code": end.exit_code, "signal": end.signal}
        used = {"user_s": end.user_s, "system_s": end.system_s, "peak_memory_b": end.peak_memory_b}
        self.recording.event("workload-end", end_ns=outcome.end_ns, **ended, **used)

    def _describe_end(self) -> dict[str, object]:
        o = self.outcome
        message = str(o.error) if o.error else None
        fields = {"outcome": o.kind, "exit_code": o.exit_code, "signal": o.signal, "message": message}
        return {**fields, "start_ns": o.start_ns, "end_ns": o.end_ns}

    def _sleep_and_handle(self, until_ns: int, *, serve: bool = True) -> None:
        """Sleep until something happens or a time is reached, then handle it; without `serve`, signals only."""
        began = monotonic_ns()
        wait_ms = self._sleep(began, until_ns, serve=serve)
        for arrived in self.signals.take():
            self._handle_signal(arrived)
        if self.pid and self.end is None:
            self._poll_workload()
        if serve:
            self.recording.serve()
            self.caps.serve()
            if self.limit is not None:
                self.limit.serve(self._send)
        self._forward_signals()
        if monotonic_ns() >= self._continue_ns:
            self._continue_ns = NEVER_NS
            if is_stopped(self.pid):
                self._send(signal.SIGCONT)
        self._note_pause(began, wait_ms)  # last: this process may have been stopped while it handled a signal
        if monotonic_ns() >= self._preload_ns:
            self._preload_ns = NEVER_NS
            modules = (*ANALYSIS_MODULES, *self.recording.options.preload)
            threading.Thread(target=preload_modules, args=(modules,), name="preload", daemon=True).start()

    def _sleep(self, now_ns: int, until_ns: int, *, serve: bool) -> int:
        """Sleep until a signal or message arrives or something is due; return the longest time asked for, in ms."""
        due_ns = min(
            until_ns,
            self.recording.due_ns,
            self.caps.due_ns,
            NEVER_NS if self.limit is None else self.limit.due_ns,
            self.forwarder.due_ns,
            self._continue_ns,
            self._preload_ns,
        )
        poll = select.poll()
        limit_fds = () if self.limit is None else self.limit.fds
        for fd in (self.signals.fd, *((*self.recording.fds, *self.caps.fds, *limit_fds) if serve else ())):
            poll.register(fd, select.POLLIN)
        wait_ms = max(0, min(-(-(due_ns - now_ns) // 1_000_000), 60_000))
        poll.poll(wait_ms)
        return wait_ms

    def _forward_signals(self) -> None:
        """Forward signals that did not reach the workload; the witness of one to the whole group is used up."""
        self.forwarder.decide(self.recording.reported)
        if self.forwarder.group and self.end is None:
            self.forwarder.group = False
            self.witness.renew()

    def _note_pause(self, began: int, wait_ms: int) -> None:
        now = monotonic_ns()
        if now - began - wait_ms * 1_000_000 > PAUSE_NS:
            self.recording.event("supervisor-paused", **{"from": began, "to": now})

    def _poll_workload(self) -> None:
        self.end, stopped = poll_workload(self.pid)
        if self.end is not None:
            self.outcome.end_ns = monotonic_ns()
            self._preload_ns = NEVER_NS
            self.signals.take()  # they were meant for the workload, such as the Ctrl-C that ended it
        elif stopped in STOP_SIGNALS and is_stopped(self.pid):
            with contextlib.nullcontext() if self.display is None else self.display.set_aside():
                stop_like_workload(stopped)

    def _handle_signal(self, arrived: ArrivedSignal) -> None:
        number = arrived.number
        if number == signal.SIGCHLD:
            return
        if not self.pid:
            if number in ENDING_SIGNALS:
                self.stopped_by = number
            elif number == signal.SIGTSTP:
                stop_like_workload(number)
        elif self.end is not None:
            if number in ENDING_SIGNALS:
                self._is_cut_short = True
                self.recording.cut_tail()
        elif number == signal.SIGCONT:
            # A shell continues the whole group; another process may have continued this one alone.
            self._continue_ns = arrived.t_ns + REPORT_NS
        elif number != signal.SIGTSTP or not is_stopped(self.pid):
            self.forwarder.take(arrived)

    def _has_group_signal(self, arrived: ArrivedSignal) -> bool:
        """Return whether another process of the group got a signal: the recorder, or the witness before it runs."""
        recorder = self.recording.recorder
        if recorder is not None and is_pending(recorder.pid, arrived.number):
            return True
        return self.recording.lacked_recorder(arrived.t_ns) and self.witness.has_signal(arrived.number)

    def _send(self, number: int) -> None:
        # Not reaped yet, so the number is still the workload's.
        if self.pid and self.end is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def preload_modules(names: Iterable[str]) -> None:
    """Import modules that will be needed, as far as they are installed.

    Its thread keeps its priority: a low one would hold the interpreter's lock for long on a busy machine.
    """
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _finish_run(outcome: RunOutcome, options: RunOptions, signals: SignalBox) -> Result | None:
    """Analyse a closed run. A failure is a problem of the outcome; the record stays readable as it is.

    The run is sealed here if it took 60 s or more (`seal_from_s`) and its journals have less than 64 MB (`seal_limit`),
    else when its readings are next needed: sealing takes a tenth of a second, more than the analysis of a short run.
    """
    run = outcome.run
    if run is None or not options.analyse or not outcome.has_run:
        return None
    result: Result | None = None
    try:
        with signals.interruptible():
            result = analyse_closed_run(run)
            size = sum(path.stat().st_size for path in run.glob("*/*.journal"))
            if result.duration_s >= options.seal_from_s and size < options.seal_limit:
                from joulelab.store.seal import seal_run

                seal_run(run)
    except KeyboardInterrupt:
        outcome.problems.append(f"interrupted; the record is complete: joulelab show {run.name}")
    except Exception as error:  # noqa: BLE001 - the workload's outcome is returned, whatever the analysis meets
        outcome.problems.append(f"{type(error).__name__}: {error}")
    return result


def analyse_closed_run(run: Path) -> Result:
    """Compute the result of a run."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.run_reader import open_run

    with open_run(run) as opened:
        return analyse_run(opened)
