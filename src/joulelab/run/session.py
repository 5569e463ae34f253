"""Record this process itself: one run at a time, shared by all `measure()` blocks that are open at once.

The recorder is started before everything else is loaded, so that both load at the same time.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.marks import read_local_rank
from joulelab.run import marking
from joulelab.run.child_process import start_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.run.child_process import ChildProcess
    from joulelab.run.run_options import RunOptions

_log = logging.getLogger("joulelab")


class MeasureSession:
    """Own a run of this process: from the first `measure()` to the end of the last one."""

    def __init__(self, options: RunOptions, recorder: ChildProcess | None) -> None:
        """Start to record; a failure is logged once, and the session records nothing."""
        from joulelab.control.leftovers import restore_at_start
        from joulelab.run.recording import RunRecording

        self.open_blocks = 1
        self._environ_before: dict[str, str | None] = {}
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        restore_at_start(os.environ, _log.warning)
        self.recording = RunRecording(options, [sys.executable, *sys.argv], os.environ)
        try:
            self.recording.start(recorder)
            self.recording.wait_ready(self._wait)
            self.recording.record_idle(self._wait, lambda: False)
            self.recording.wait_edge(self._wait)
        except BaseException:
            self.recording.close({"outcome": "interrupted"})
            os.close(self._bell)
            raise
        for problem in self.recording.problems:
            _log.warning("this is not measured: %s", problem)
        self._export_run()
        self._thread = threading.Thread(target=self._serve, name="joulelab", daemon=True)
        self._thread.start()
        self.start_ns = monotonic_ns()
        self.recording.note_workload(os.getpid(), self.start_ns)

    def close(self, end_ns: int, error: BaseException | None) -> None:
        """End the run: the recorder takes its last readings, the folder is closed."""
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        recording, code = self.recording, get_exit_code(error)
        try:
            self._restore_environ()
            recording.event("workload-end", end_ns=end_ns, outcome="exit", exit_code=code, signal=None)
            recording.finish(self._wait, recording.options.tail_s)
        finally:
            message = None if error is None else f"{type(error).__name__}: {error}"
            times = {"start_ns": self.start_ns, "end_ns": end_ns}
            recording.close({"outcome": "exit", "exit_code": code, **times, "message": message})
            os.close(self._bell)

    def _wait(self, condition: Callable[[], bool], until_ns: int) -> bool:
        while not condition():
            left = min(until_ns, self.recording.due_ns) - monotonic_ns()
            if until_ns <= monotonic_ns():
                return False
            select.select(self.recording.fds, (), (), max(left, 0) / NS)
            self.recording.serve()
        return True

    def _serve(self) -> None:
        """Keep the recorder alive, in a thread of its own, until the session is closed."""
        while True:
            left = min(self.recording.due_ns - monotonic_ns(), 60 * NS)
            ready, _, _ = select.select([self._bell, *self.recording.fds], (), (), max(left, 0) / NS)
            if self._bell in ready:
                return
            self.recording.serve()

    def _export_run(self) -> None:
        """Set the variables by which this process and its children find the run."""
        recording = self.recording
        if recording.run is None:
            return
        for name, value in recording.environment().items():
            self._environ_before[name] = os.environ.get(name)
            os.environ[name] = value
        marking.attach_writer(recording.folder / "marks", read_local_rank(os.environ))

    def _restore_environ(self) -> None:
        for name, value in self._environ_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._environ_before:
            marking.detach_writer()


def get_exit_code(error: BaseException | None) -> int:
    """Return the exit code of a program that ends by an error (None: without one), as Python and shells have it."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return 130
    return int(error is not None and not isinstance(error, GeneratorExit))


class _SessionSlot:
    """Hold the session of one process; a forked child finds another pid here and begins anew."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.session: MeasureSession | None = None
        self.at_exit: weakref.finalize[Any, Any] | None = None


_slot: _SessionSlot | None = None


def _get_slot() -> _SessionSlot:
    global _slot
    slot = _slot
    if slot is None or slot.pid != os.getpid():
        slot = _slot = _SessionSlot()
    return slot


def is_recording_itself() -> bool:
    """Return whether this process records itself by `measure()`."""
    return _get_slot().session is not None


def join_session(make_options: Callable[[], RunOptions], *, warm: bool) -> tuple[MeasureSession | None, bool]:
    """Return the session of this process and whether it was started by this call.

    With `warm`, the recorder loads the usual meters while the options are made. There is no session inside a run that
    another process records, and on ranks other than the first of a node. Raises the ConfigError of `make_options`; any
    other failure is logged, and there is no session.
    """
    slot = _get_slot()
    with slot.lock:
        if slot.session is not None:
            slot.session.open_blocks += 1
            return slot.session, False
        if marking.writer() is not None or read_local_rank(os.environ):
            return None, False
        recorder: ChildProcess | None = None
        options: RunOptions | None = None
        try:
            recorder = _start_recorder(warm=warm)
            options = make_options()
            slot.session = MeasureSession(options, recorder)
        except BaseException as error:
            if recorder is not None:
                recorder.kill()
                recorder.close()
            is_refused = options is None and isinstance(error, ConfigError)
            if is_refused or not isinstance(error, Exception):
                raise
            _log.warning("this is not measured: %s", error)  # the block runs, measured or not
            return None, False
        slot.at_exit = weakref.finalize(slot.session, _close_at_exit, os.getpid())
        return slot.session, True


def _start_recorder(*, warm: bool) -> ChildProcess | None:
    """Start the recorder in a process group of its own; None where that fails: the recording tries it again.

    A Jupyter kernel that is asked to end first ends every process of its group, and waits until they are gone.
    """
    try:
        return start_recorder(os.environ, own_group=True, warm=warm)
    except OSError:
        return None


def _close_at_exit(pid: int) -> None:
    """Close a run whose block was never left, as when a notebook's kernel ends; not the run of a parent."""
    slot = _get_slot()
    if slot.session is not None and pid == os.getpid():
        slot.session.open_blocks = 1
        leave_session(slot.session, monotonic_ns(), getattr(sys, "last_value", None))


def leave_session(session: MeasureSession, end_ns: int, error: BaseException | None) -> bool:
    """Leave a session; return whether that closed it."""
    slot = _get_slot()
    with slot.lock:
        if slot.session is not session:
            return False  # a forked child left its parent's block
        session.open_blocks -= 1
        if session.open_blocks:
            return False
        slot.session = None
        if slot.at_exit is not None:
            slot.at_exit.detach()
        try:
            session.close(end_ns, error)
        except Exception as problem:  # noqa: BLE001
            _log.warning("the recording did not end well: %s", problem)
        return True
