"""Record this very process: one run at a time, shared by all `measure()` blocks that are open at once."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from joulelab.control.leftovers import restore_at_start
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.marks import read_local_rank
from joulelab.run import marking
from joulelab.run.child_process import ChildProcess
from joulelab.run.recording import RunRecording

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.run.run_options import RunOptions

_log = logging.getLogger("joulelab")


class MeasureSession:
    """Own a run of this process: from the first `measure()` to the end of the last one."""

    def __init__(self, options: RunOptions) -> None:
        """Start to record; what fails is said once and the session records nothing."""
        self.open = 1
        self._restore: dict[str, str | None] = {}
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watch: threading.Thread | None = None
        restore_at_start(os.environ, _log.warning)
        self.recording = RunRecording(options, [sys.executable, *sys.argv], os.environ)
        try:
            self.recording.start(_spawn_recorder())
            self.recording.wait_ready(self._wait)
            self._idle(options.idle_s)
            self.recording.wait_edge(self._wait)
        except BaseException:
            self._drop()
            raise
        for problem in self.recording.problems:
            _log.warning("this is not measured: %s", problem)
        self._export()
        self._watch = threading.Thread(target=self._serve, name="joulelab", daemon=True)
        self._watch.start()
        self.start_ns = monotonic_ns()
        self.recording.workload(os.getpid(), self.start_ns)

    def close(self, end_ns: int, error: BaseException | None) -> None:
        """End the run: the recorder takes its last readings, the folder is closed."""
        os.eventfd_write(self._bell, 1)
        if self._watch is not None:
            self._watch.join()
        recording = self.recording
        try:
            self._unexport()
            recording.event("workload-end", end_ns=end_ns, outcome="exit", exit_code=get_exit_code(error), signal=None)
            recording.finish(self._wait, recording.options.tail_s)
        finally:
            if recording.recorder is not None:
                recording.recorder.kill()
            recording.close(
                {
                    "outcome": "exit",
                    "exit_code": get_exit_code(error),
                    "start_ns": self.start_ns,
                    "end_ns": end_ns,
                    "message": None if error is None else f"{type(error).__name__}: {error}",
                }
            )
            os.close(self._bell)

    def _drop(self) -> None:
        if self.recording.recorder is not None:
            self.recording.recorder.kill()
        self.recording.close({"outcome": "interrupted"})
        os.close(self._bell)

    def _idle(self, idle_s: float) -> None:
        if idle_s > 0:
            begin = monotonic_ns()
            self._wait(lambda: False, begin + round(idle_s * NS))
            self.recording.event("idle", **{"from": begin, "to": monotonic_ns()})

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

    def _export(self) -> None:
        """Let this process and those it starts find the run."""
        recording = self.recording
        if recording.run is None:
            return
        for name, value in recording.environment().items():
            self._restore[name] = os.environ.get(name)
            os.environ[name] = value
        marking.attach_writer(recording.folder / "marks", read_local_rank(os.environ))

    def _unexport(self) -> None:
        for name, value in self._restore.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._restore:
            marking.detach_writer()


def _spawn_recorder() -> ChildProcess | None:
    """Spawn the recorder in a process group of its own; None where that fails: the recording tries it again.

    A Jupyter kernel that is told to end first ends every process of its group, and waits until they are gone.
    """
    try:
        return ChildProcess(os.environ, own_group=True)
    except OSError:
        return None


def get_exit_code(error: BaseException | None) -> int:
    """Return the exit code of a program that ends by an error (None: in good order), as Python and shells have it."""
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


_here: _SessionSlot | None = None


def _get_slot() -> _SessionSlot:
    global _here
    here = _here
    if here is None or here.pid != os.getpid():
        here = _here = _SessionSlot()
    return here


def is_recording_itself() -> bool:
    """Return whether this very process records itself, by `measure()`."""
    return _get_slot().session is not None


def join_session(options: Callable[[], RunOptions]) -> tuple[MeasureSession | None, bool]:
    """Return the session of this process and whether it was started for this call.

    Inside a run that somebody else records, and on ranks other than the first of a node, there is none.
    """
    here = _get_slot()
    with here.lock:
        if here.session is not None:
            here.session.open += 1
            return here.session, False
        if marking.writer() is not None or read_local_rank(os.environ):
            return None, False
        try:
            here.session = MeasureSession(options())
        except Exception as error:  # noqa: BLE001 - the block runs, measured or not
            _log.warning("this is not measured: %s", error)
            return None, False
        here.at_exit = weakref.finalize(here.session, _close_at_exit, os.getpid())
        return here.session, True


def _close_at_exit(pid: int) -> None:
    """Close a run whose block was never left, as when a notebook's kernel ends; not that of a parent."""
    here = _get_slot()
    if here.session is not None and pid == os.getpid():
        here.session.open = 1
        leave_session(here.session, monotonic_ns(), getattr(sys, "last_value", None))


def leave_session(session: MeasureSession, end_ns: int, error: BaseException | None) -> bool:
    """Leave a session; return whether that closed it."""
    here = _get_slot()
    with here.lock:
        if here.session is not session:
            return False  # a forked child left its parent's block
        session.open -= 1
        if session.open:
            return False
        here.session = None
        if here.at_exit is not None:
            here.at_exit.detach()
        try:
            session.close(end_ns, error)
        except Exception as problem:  # noqa: BLE001
            _log.warning("the recording did not end well: %s", problem)
        return True
