"""Take the signals of a supervised run, and forward to the workload those that it did not get itself.

Signals of the terminal go to the whole process group, so the workload has them. A signal from a process may have been
sent to this process alone or to the group (`kill -- -PGID`, timeout, Slurm). The recorder is in the same group: if it
got the signal too, so did the workload. While there is no recorder, a witness process takes its place.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import NEVER_NS, monotonic_ns
from joulelab.core.process_identity import is_pending
from joulelab.recorder.signals import REPORTED, open_signals, read_signals
from joulelab.run.child_process import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

# Time for the recorder to report a signal; time between two signals of one sender that count as one.
REPORT_NS = 50_000_000
SAME_NS = 40_000_000
# On a busy machine the recorder may get a signal to both this much earlier than this process.
LATE_NS = 2_000_000_000
# The terminal sends these to the whole group.
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
# These end a process that does not handle them.
ENDING_SIGNALS = tuple(n for n in REPORTED if n != signal.SIGWINCH)
TAKEN_SIGNALS = (*REPORTED, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT)
WITNESS_MASK = (*REPORTED, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# It reads a pipe to which nothing is written, so it ends with this process.
WITNESS_COMMAND = ("/bin/sh", "-c", "read _", "joulelab-witness")


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Block signals in threads that the block starts; signals that arrive meanwhile are handled after it.

    numpy starts threads when it is imported. A thread keeps the mask of its start, and one that blocks nothing takes
    the signals of a later SignalBox, and the process dies by them. So numpy is imported in such a block.
    """
    original = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, original)


@dataclass(frozen=True, slots=True)
class ArrivedSignal:
    """Hold a signal that arrived: number, whether the kernel sent it, else the sender, and the time."""

    number: int
    of_kernel: bool
    sender: int
    t_ns: int


class SignalBox:
    """Block signals and read them from a file descriptor instead; restore the mask at the end.

    Signals that were ignored at the start (nohup) stay ignored, here and in the workload. Only SIGCHLD cannot: the
    exit codes of children would be lost. The workload then has its default, too, as under most shells.
    """

    def __enter__(self) -> SignalBox:
        """Block the signals."""
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        taken = [n for n in TAKEN_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
        self.original = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
        try:
            self.fd = open_signals(taken)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.original)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Discard the signals that are left, which were meant for the workload, and restore the mask."""
        self.take()
        os.close(self.fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.original)

    def take(self) -> list[ArrivedSignal]:
        """Return the signals that have arrived."""
        now = monotonic_ns()
        return [ArrivedSignal(*arrived, now) for arrived in read_signals(self.fd)]

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let one Ctrl-C end the block by KeyboardInterrupt; all other signals stay blocked.

        A Ctrl-C that arrived since the signals were last taken ends the block before it begins.
        """
        before = signal.getsignal(signal.SIGINT)
        has_interrupt = any(arrived.number == signal.SIGINT for arrived in self.take())
        if before == signal.SIG_IGN or signal.SIGINT in self.original:
            yield
            return
        if has_interrupt:
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, _interrupt_once)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            signal.signal(signal.SIGINT, before)


def _interrupt_once(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


class GroupWitness:
    """Own a process in our group that only collects signals: they stay pending in it."""

    def __init__(self) -> None:
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int:
        """Return the pid of the witness, 0 without one."""
        return 0 if self._process is None else self._process.pid

    def renew(self) -> None:
        """Start the witness, or replace it by a new one that has received no signal yet."""
        old, self._process = self._process, None
        with contextlib.suppress(OSError):
            self._process = ChildProcess(WITNESS_COMMAND, {}, setsigmask=WITNESS_MASK)
        _end_process(old)

    def has_signal(self, number: int) -> bool:
        """Return whether a signal was sent to the group since the last `renew()`; False without a witness."""
        return self._process is not None and is_pending(self._process.pid, number)

    def close(self) -> None:
        """End the witness."""
        _end_process(self._process)
        self._process = None


def _end_process(process: ChildProcess | None) -> None:
    if process is not None:
        process.kill()
        process.close()


class SignalForwarder:
    """Forward signals to the workload, each once.

    `has_group` returns whether a signal reached other processes of the group.
    """

    def __init__(
        self,
        send: Callable[[int], None],
        has_group: Callable[[ArrivedSignal], bool],
        *,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._send, self._has_group = send, has_group
        self._now = now
        self._undecided: list[ArrivedSignal] = []
        self._counted: dict[tuple[int, int], int] = {}  # reports that were matched with a signal
        self.group = False  # True after a signal to the whole group, until it is reset

    @property
    def due_ns(self) -> int:
        """Return when the next decision is due."""
        return min((s.t_ns + REPORT_NS for s in self._undecided), default=NEVER_NS)

    def take(self, arrived: ArrivedSignal) -> None:
        """Forward a signal, drop it, or wait to see whether other processes of the group received it, too."""
        if arrived.of_kernel and arrived.number in TERMINAL_SIGNALS:
            self.group = True
        elif arrived.number in REPORTED:
            self._undecided.append(arrived)
        else:
            self._send(arrived.number)

    def decide(self, reported: Mapping[tuple[int, int], int]) -> None:
        """Make the decisions that are due, from the reports of the recorder ((number, sender): monotonic ns)."""
        now, undecided, self._undecided = self._now(), self._undecided, []
        for waiting in undecided:
            of = (waiting.number, waiting.sender)
            seen = reported.get(of, -1)
            if seen >= 0 and seen >= waiting.t_ns - (LATE_NS if seen > self._counted.get(of, -1) else SAME_NS):
                self._counted[of] = seen
                self.group = True
            elif now < waiting.t_ns + REPORT_NS:
                self._undecided.append(waiting)
            elif self._has_group(waiting):
                # It reached the whole group; the recorder has not reported it yet, or there is none.
                self.group = True
            else:
                self._send(waiting.number)
