"""Move a twin while it is served: follow this machine's load, go on with a script, or look after simulated jobs."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Self

import psutil

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError
from joulelab.twin import profile
from joulelab.twin.job_notes import LEAD_S, JobBoard
from joulelab.twin.truth import HORIZON_S, Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.twin.profile import Profile

PERIOD_S = 0.05


def read_machine_load() -> float:
    """Return the share of this machine's CPU time that was busy since the last call, 0 to 1."""
    return psutil.cpu_percent(interval=None) / 100


class Driver:
    """Run `step` every `period_s` (s) in a thread while the block lasts; `error` is the reason of an early stop."""

    def __init__(self, period_s: float) -> None:
        self.error: JoulelabError | None = None
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twin-driver", daemon=True)

    def step(self) -> float:
        """Extend the truth and return how long to wait (s)."""
        raise NotImplementedError

    def _run(self) -> None:
        wait_s = self._period_s
        while not self._stop.wait(wait_s):
            try:
                wait_s = self.step()
            except JoulelabError as error:
                self.error = error
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class LoadDriver(Driver):
    """Let every leaf follow a load (0 to 1), by default that of this machine's CPUs."""

    def __init__(
        self,
        truth: Truth,
        *,
        load: Callable[[], float] = read_machine_load,
        period_s: float = PERIOD_S,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        super().__init__(period_s)
        self._truth, self._now = truth, now
        self._load = load
        self._last = math.nan
        load()  # the first answer covers the time before

    def step(self) -> float:
        """Append one constant segment per leaf if the load has changed."""
        load = min(max(self._load(), 0.0), 1.0)
        if not abs(load - self._last) < 0.005:
            self._last = load
            t_ns = self._now() + round(LEAD_S * NS)
            for leaf in self._truth.leaves:
                watts = float(self._truth.node.draws_w(leaf, load, awake=float(load > 0)))
                self._truth.append(leaf, t_ns, watts, watts)
        # The fuller the file, the slower: it then never gets full.
        free = self._truth.get_free_share(self._truth.leaves[0])
        return math.ldexp(self._period_s, math.floor(-math.log2(max(free, 1e-6))))


class ScriptDriver(Driver):
    """Append the next stretch of profiles before the written one ends."""

    def __init__(
        self,
        truth: Truth,
        profiles: Mapping[str, Profile],
        *,
        written_s: float = HORIZON_S,
        chunk_s: float = HORIZON_S,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        super().__init__(0.0)
        self._truth, self._now = truth, now
        self._profiles = profiles
        self._until_s = written_s
        self._chunk_s = chunk_s

    @staticmethod
    def is_needed(profiles: Mapping[str, Profile], written_s: float = HORIZON_S) -> bool:
        """Return whether profiles go on after the written stretch."""
        return any(p.period_s is not None or p.at_s[-1] + p.shift_s > written_s for p in profiles.values())

    def step(self) -> float:
        """Append a stretch if less than half of one is left."""
        while self._until_s - self._truth.count_seconds(self._now()) < self._chunk_s / 2:
            more = profile.compile_segments(
                self._truth.node, self._profiles, self._truth.start_ns, self._until_s, self._until_s + self._chunk_s
            )
            for leaf, (t_ns, start_w, end_w) in more.items():
                self._truth.append(leaf, t_ns, start_w, end_w)
            self._until_s += self._chunk_s
        return self._chunk_s / 8


class JobDriver(Driver):
    """Let the GPUs of simulated jobs idle that ended without a word."""

    def __init__(self, truth: Truth, *, period_s: float = 5 * PERIOD_S) -> None:
        super().__init__(period_s)
        self._board = JobBoard(truth)

    def step(self) -> float:
        """Look for jobs that are gone."""
        self._board.sweep_notes()
        return self._period_s
