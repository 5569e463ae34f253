"""Follow the energy of a live run up to now, for the title of the terminal and for limits of energy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.report.watch.watched_files import MarkFollower
from joulelab.report.watch.watched_run import RunWatch
from joulelab.run.energy_limit import EnergyReading

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.core.quantity import Quantity
    from joulelab.report.watch.watched_run import WatchView

LONGEST_S = 60.0  # time over which one power is integrated; after a longer pause the next energy is waited for
ENERGY_SHARE = 0.005  # of one core, for the energies; between two of them, power is integrated
EVERY_S = 1.0


class EnergySoFar:
    """Add the power since the last known energy to it: energies are computed less often than power is read."""

    def __init__(self) -> None:
        self._known_s = self._reached_s = self._later_j = 0.0

    def add_view(self, view: WatchView, elapsed_s: float) -> Quantity | None:
        """Return the energy up to now: the last known one and the power since then; None if a part is not known."""
        if view.energy_s != self._known_s:
            self._known_s = self._reached_s = view.energy_s
            self._later_j = 0.0
        # Readings that came after those of the power may be in the energy: it is then ahead for a moment.
        since_s = max(elapsed_s - self._reached_s, 0.0)
        self._reached_s += since_s
        if not since_s <= LONGEST_S:
            self._later_j = math.nan
        self._later_j += view.now_w * since_s
        if view.energy is None or not view.energy.value > 0 or math.isnan(self._later_j):
            return None
        return view.energy * (1 + self._later_j / view.energy.value)


class WatchedEnergy:
    """Give a limit its readings: energy up to now of all hosts, and recent phases of the first host."""

    def __init__(self, run: Path, folder: Path, start_ns: int, phases: Sequence[str]) -> None:
        """Take the run, the folder of its first host, the start of the workload, and names of phases."""
        self._watched = RunWatch(run, EVERY_S, share=ENERGY_SHARE, with_phases=False)
        self._marks = MarkFollower(folder) if phases else None
        self._names, self._start_ns = set(phases), start_ns
        self._so_far = EnergySoFar()

    def read(self) -> EnergyReading:
        """Return the energy up to now. Raises OSError, StoreError."""
        view = self._watched.read()
        elapsed_s = view.elapsed_s or 0.0
        energy = self._so_far.add_view(view, elapsed_s) if view.rows else None
        if not self._watched.is_current(view.counted):
            energy = None  # only readings end a job
        return EnergyReading(
            elapsed_s,
            None if energy is None else energy.value,
            view.now_w,
            self._list_spans(),
            view.counted,
        )

    def close(self) -> None:
        """Release the run."""
        self._watched.close()

    def _list_spans(self) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {}
        if self._marks is None:
            return found
        self._marks.read()
        for phase in self._marks.list_phases(monotonic_ns()):
            if phase.name in self._names and phase.steps is None:
                end_s = math.inf if phase.open_end else (phase.end_ns - self._start_ns) / NS
                found.setdefault(phase.name, []).append(((phase.start_ns - self._start_ns) / NS, end_s))
        return found
