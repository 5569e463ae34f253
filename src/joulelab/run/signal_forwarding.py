"""Take the signals of a supervised run, and decide which of them the workload still has to be told.

Signals of the terminal go to the whole process group, so the workload has them. A signal sent by a process may have
been sent to us alone or to the group (`kill -- -PGID`, timeout, Slurm): the recorder lives in the same group, and where
it saw the signal too, the workload has it as well. Where there is no recorder, a witness tells.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import monotonic_ns
from joulelab.recorder.signals import REPORTED, open_signals, read_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

# How long the recorder is given to report a signal, and how far apart one sender's two signals of one kind may be.
REPORT_NS = 50_000_000
SAME_NS = 40_000_000
# How long before us the recorder may see a signal to both: a busy machine keeps one of us waiting.
LATE_NS = 2_000_000_000
# What the terminal sends always goes to the whole group.
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
# What ends a process that does not handle it.
ENDING_SIGNALS = tuple(n for n in REPORTED if n != signal.SIGWINCH)
TAKEN_SIGNALS = (*REPORTED, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class ArrivedSignal:
    """Hold a signal that arrived: its number, whether the kernel sent it, the sender otherwise, and when."""

    number: int
    of_kernel: bool
    sender: int
    t_ns: int


class SignalBox:
    """Block signals and read them from a file descriptor instead; put the mask back at the end.

    Signals that were ignored when we started (nohup) stay so, for us as for the workload. Only SIGCHLD cannot: ignored,
    it takes the exit codes of children away. The workload then has it at its default too, as under most shells.
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
        """Take what is left and put the mask back: a signal that came too late for the workload is not for us."""
        self.take()
        os.close(self.fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.original)

    def take(self) -> list[ArrivedSignal]:
        """Return the signals that have arrived."""
        now = monotonic_ns()
        return [ArrivedSignal(*arrived, now) for arrived in read_signals(self.fd)]

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let one Ctrl-C cut the block short by KeyboardInterrupt; everything else stays blocked."""
        self.take()
        before = signal.getsignal(signal.SIGINT)
        if before == signal.SIG_IGN or signal.SIGINT in self.original:
            yield
            return
        signal.signal(signal.SIGINT, _interrupt_once)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            signal.signal(signal.SIGINT, before)


def _interrupt_once(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


class SignalForwarder:
    """Pass signals on to the workload, each once; `pends` tells of one that reached others of the group."""

    def __init__(
        self,
        send: Callable[[int], None],
        pends: Callable[[ArrivedSignal], bool],
        *,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._send, self._pends = send, pends
        self._now = now
        self._undecided: list[ArrivedSignal] = []
        self._counted: dict[tuple[int, int], int] = {}  # reports that a signal of ours was found to belong to
        # Whether a signal to the whole group came since this was last set to False.
        self.group = False

    @property
    def due_ns(self) -> int | None:
        """Return when the next decision is due."""
        return min((s.t_ns + REPORT_NS for s in self._undecided), default=None)

    def take(self, arrived: ArrivedSignal) -> None:
        """Pass a signal on, drop it, or wait whether others of the group have it too."""
        if arrived.of_kernel and arrived.number in TERMINAL_SIGNALS:
            self.group = True
        elif arrived.number in REPORTED:
            self._undecided.append(arrived)
        else:
            self._send(arrived.number)

    def decide(self, reported: Mapping[tuple[int, int], int]) -> None:
        """Decide what is due, by what the recorder reported ((number, sender): monotonic ns)."""
        now, undecided, self._undecided = self._now(), self._undecided, []
        for waiting in undecided:
            of = (waiting.number, waiting.sender)
            seen = reported.get(of, -1)
            if seen >= 0 and seen >= waiting.t_ns - (LATE_NS if seen > self._counted.get(of, -1) else SAME_NS):
                self._counted[of] = seen
                self.group = True
            elif now < waiting.t_ns + REPORT_NS:
                self._undecided.append(waiting)
            elif self._pends(waiting):
                # It reached the whole group; the recorder just had no time to say so, or there is none.
                self.group = True
            else:
                self._send(waiting.number)
