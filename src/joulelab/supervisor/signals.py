"""Take the signals of a supervised run, and decide which of them the workload still has to be told.

Signals of the terminal go to the whole process group, so the workload has them. A signal sent by a process may have
been sent to us alone or to the group (`kill -- -PGID`, timeout, Slurm): the recorder lives in the same group, and where
it saw the signal too, the workload has it as well.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import monotonic_ns
from joulelab.core.process import is_pending
from joulelab.recorder.signals import REPORTED, open_signals, read_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# How long the recorder is given to report a signal, and how far apart one sender's two signals of one kind may be.
REPORT_NS = 20_000_000
SAME_NS = 100_000_000
# What the terminal sends always goes to the whole group.
OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
TAKEN = (*REPORTED, signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


@dataclass(frozen=True, slots=True)
class Signal:
    """Hold a signal that arrived: its number, whether the kernel sent it, the sender otherwise, and when."""

    number: int
    of_kernel: bool
    sender: int
    t_ns: int


class SignalBox:
    """Block signals and read them from a file descriptor instead; put the mask back at the end."""

    def __enter__(self) -> SignalBox:
        """Block the signals."""
        self.original = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        try:
            self.fd = open_signals(TAKEN)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.original)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take what is left and put the mask back: a signal that came too late for the workload is not for us."""
        self.take()
        os.close(self.fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.original)

    def take(self) -> list[Signal]:
        """Return the signals that have arrived."""
        now = monotonic_ns()
        return [Signal(*arrived, now) for arrived in read_signals(self.fd)]


class Forwarder:
    """Pass signals on to the workload, each once."""

    def __init__(self, send: Callable[[int], None], *, now: Callable[[], int] = monotonic_ns) -> None:
        self._send = send
        self._now = now
        self._undecided: list[Signal] = []

    @property
    def due_ns(self) -> int | None:
        """Return when the next decision is due."""
        return min((s.t_ns for s in self._undecided), default=None)

    def take(self, arrived: Signal, *, recorder: int | None) -> None:
        """Pass a signal on, drop it, or wait whether the recorder (its pid, None where there is none) has it too."""
        if arrived.of_kernel and arrived.number in OF_TERMINAL:
            return
        if arrived.number in REPORTED and recorder is not None:
            due = Signal(arrived.number, arrived.of_kernel, arrived.sender, arrived.t_ns + REPORT_NS)
            self._undecided.append(due)
        else:
            self._send(arrived.number)

    def decide(self, reported: Mapping[int, int], recorder: int | None) -> None:
        """Decide what is due, by what the recorder reported (number: monotonic ns)."""
        now, undecided, self._undecided = self._now(), self._undecided, []
        for waiting in undecided:
            seen = reported.get(waiting.number, -1)
            if seen >= 0 and seen >= waiting.t_ns - REPORT_NS - SAME_NS:
                continue
            if now < waiting.t_ns:
                self._undecided.append(waiting)
            elif recorder is None or not is_pending(recorder, waiting.number):
                # Pending there, it reached the whole group; the recorder just had no time to say so.
                self._send(waiting.number)
