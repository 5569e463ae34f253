"""Read the figures that a notebook shows from its run: one measured cell, or all cells and the time between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from joulelab.analysis.analyse import analyse_phase
from joulelab.analysis.channels import load_channels
from joulelab.analysis.slow_meters import sum_channels
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.run.live import wait_until_covered
from joulelab.run.notebook import BETWEEN_CELLS
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from joulelab.analysis.channels import EnergyChannel
    from joulelab.analysis.result import PhaseResult, Result
    from joulelab.run.measure import Measurement
    from joulelab.store.run_reader import Run

MOST_STRETCHES = 140  # of power over time
MOST_PARTS = 160  # earlier phases become one, so that a day's notebook is shown as fast as an hour's
EARLIER = "earlier cells"
AROUND_S = 2.0


@dataclass(frozen=True, slots=True)
class PowerPicture:
    """Hold mean powers (W) over stretches of equal length (s), the first of which begins at `start_s`."""

    watts: tuple[float, ...]
    step_s: float
    start_s: float = 0.0

    @property
    def end_s(self) -> float:
        """Return the end of the last stretch in s."""
        return self.start_s + self.step_s * len(self.watts)

    @property
    def highest(self) -> float:
        """Return the largest power in W."""
        return max(self.watts)

    @property
    def mean(self) -> float:
        """Return the mean power in W."""
        return sum(self.watts) / len(self.watts)

    def coarsen(self, most: int) -> PowerPicture:
        """Return at most `most` stretches, each the mean of some of these."""
        every = -(-len(self.watts) // most)
        groups = [self.watts[k : k + every] for k in range(0, len(self.watts), every)]
        return PowerPicture(tuple(sum(g) / len(g) for g in groups), self.step_s * every, self.start_s)


@dataclass(frozen=True, slots=True)
class NotebookPart:
    """Hold a part of a notebook: time (s), energy (J; None: no meter), and whether it is still open."""

    name: str
    duration_s: float
    energy: Quantity | None
    title: str = ""
    is_open: bool = False

    @property
    def mean_w(self) -> Quantity | None:
        """Return the mean power in W, None if the energy is unknown or smaller than its interval."""
        is_known = self.energy is not None and self.energy.is_resolved and self.duration_s > 0
        return self.energy / self.duration_s if self.energy is not None and is_known else None


@dataclass(frozen=True, slots=True)
class NotebookFigures:
    """Hold a notebook up to now: its parts in order, the time between cells as one part, and the whole.

    The interval of the whole is narrower than the sum of its parts' intervals: inner edges cancel.
    """

    run: Path
    parts: tuple[NotebookPart, ...]
    between: NotebookPart
    power: PowerPicture | None
    result: Result

    @property
    def whole(self) -> NotebookPart:
        """Return the sum of all parts."""
        return NotebookPart("total", self.result.duration_s, self.result.energy)

    @property
    def idle_share(self) -> tuple[float, float] | None:
        """Return the shares of energy and of time between cells, None if they are unknown or not resolved."""
        whole, idle = self.whole, self.between.energy
        is_complete = all(part.name != EARLIER for part in self.parts)
        if not is_complete or idle is None or whole.energy is None or whole.energy.value <= 0:
            return None
        if not (idle.is_resolved and whole.energy.is_resolved):
            return None
        return idle.value / whole.energy.value, self.between.duration_s / whole.duration_s


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """Hold a measured cell: its result with the phases inside, and its power over time.

    `around_w` is the mean power from AROUND_S before the cell to its end, for a cell that is too short.
    """

    name: str
    run: Path | None
    duration_s: float
    result: Result | None
    power: PowerPicture | None
    around_w: float | None = None


def join_parts(name: str, parts: tuple[NotebookPart, ...]) -> NotebookPart:
    """Return several parts as one."""
    energies = [part.energy for part in parts if part.energy is not None]
    is_known = len(energies) == len(parts)  # a sum that lacks a part is no number
    return NotebookPart(name, sum(part.duration_s for part in parts), add_quantities(energies) if is_known else None)


def read_cell(m: Measurement) -> MeasuredCell:
    """Return the figures of a measurement that has ended; waits for its last readings, little more than a second."""
    result, power, around_w = m.result, None, None
    if m.run is not None and result is not None:
        with open_run(m.run) as run:
            power = read_power(run, result)
            if result.energy is not None and not result.energy.is_resolved:
                longer = read_power(run, replace(result, start_ns=result.start_ns - round(AROUND_S * NS)))
                around_w = None if longer is None else longer.mean
        result = _drop_outer_phases(result)
    return MeasuredCell(m.name or "this cell", m.run, m.duration_s, result, power, around_w)


def _drop_outer_phases(result: Result) -> Result:
    """Return a result without its outer phases: its own, and that of the cell."""
    inner = [p for p in result.phases if p.start_s > 0 or p.duration_s < result.duration_s]
    least = min((p.depth for p in inner), default=0)

    def raise_phases(phases: Iterable[PhaseResult]) -> tuple[PhaseResult, ...]:
        return tuple(replace(p, depth=max(p.depth - least, 0)) for p in phases)

    return replace(result, phases=raise_phases(inner), stretches=raise_phases(result.stretches))


def read_notebook(run: Path, name: str, since_ns: int, until_ns: int | None) -> NotebookFigures | None:
    """Return all cells of the notebook of this name up to a time (None: now); None without cells."""
    end_ns = until_ns or monotonic_ns()
    wait_until_covered(run, end_ns)
    with open_run(run) as opened:
        marked = _NotebookMarks(opened, name, since_ns)
        if not marked.lines:
            return None
        result = analyse_phase(cast("Run", marked), int(marked.lines[0]["t"]), end_ns)
        power = read_power(opened, result)
    parts = [
        NotebookPart(p.name, p.duration_s, p.energy.get("measured"), marked.titles.get(p.name, ""), p.open_end)
        for p in result.phases
    ]
    between = join_parts(BETWEEN_CELLS, tuple(p for p in parts if p.name == BETWEEN_CELLS))
    return NotebookFigures(run, tuple(p for p in parts if p.name != BETWEEN_CELLS), between, power, result)


class _NotebookMarks:
    """Replace a run by one with only the phases of a notebook: phases inside its cells would take time to analyse."""

    def __init__(self, run: Run, name: str, since_ns: int) -> None:
        self._run = run
        self._facts: list[Mapping[str, Any]] = []
        begun: dict[tuple[object, object], Mapping[str, Any]] = {}
        ended: dict[tuple[object, object], Mapping[str, Any]] = {}
        for line in sorted(run.marks(), key=lambda line: int(line.get("t", 0))):
            key = (line.get("host"), line.get("id"))
            ours = (line.get("labels") or {}).get("notebook") == name and int(line["t"]) >= since_ns
            if line.get("mark") == "begin" and ours:
                begun[key] = line
            elif line.get("mark") == "end" and key in begun:
                ended[key] = line
            elif line.get("mark") == "fact":
                self._facts.append(line)
        self.titles = {str(b["name"]): str(b["labels"].get("title", "")) for b in begun.values()}
        self.lines = self._join_first(list(begun.values())) + list(ended.values())

    @staticmethod
    def _join_first(begun: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Join the first phases into one if there are too many; it ends where the next phase begins."""
        first = begun[: max(len(begun) - MOST_PARTS, 0)]
        if not first:
            return begun
        last = begun[len(first)]
        one = {**first[0], "id": "earlier", "name": EARLIER, "labels": {}}
        return [one, {**last, "mark": "end", "id": "earlier"}, *begun[len(first) :]]

    def marks(self) -> list[Mapping[str, Any]]:
        """Return the marks of the notebook's own phases, and the reported facts."""
        return self.lines + self._facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def read_power(run: Run, result: Result) -> PowerPicture | None:
    """Return the power of everything measured over the time of a result, None where there are too few readings."""
    group = result.group("measured")
    if group is None:
        return None
    channels = _find_channels(run, group.hosts, group.scopes)
    if not channels:
        return None
    curve = sum_channels(channels, result.start_ns)
    first, last = max(float(curve.t[0]), 0.0), min(float(curve.t[-1]), result.duration_s)
    count = min(int((last - first) / max(curve.step_s, 1e-3)), MOST_STRETCHES)
    if count < 2:
        return None
    step = (last - first) / count
    watts = np.diff(curve.at(np.linspace(first, last, count + 1))) / step
    return PowerPicture(tuple(float(w) for w in watts), step, first)


def _find_channels(run: Run, hosts: tuple[str, ...], scopes: tuple[str, ...]) -> list[EnergyChannel]:
    """Return the channels that together measure some scopes; a sum of cords is measured by its cords."""
    loaded = load_channels(run)
    known = {(s.host, s.scope): s.best for s in loaded}
    found: list[EnergyChannel] = []
    for key in zip(hosts, scopes, strict=True):
        cords = [s.best for s in loaded if (s.host, s.best.stream.sums) == key]
        found += [known[key]] if key in known else cords
    return found
