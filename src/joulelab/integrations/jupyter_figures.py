"""Read from a run, finished or not, what a notebook shows: a measured cell, or all cells and the time between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from joulelab.analysis.analyse import analyse_phase
from joulelab.analysis.channels import load_channels
from joulelab.analysis.slow_meters import sum_channels
from joulelab.core.clock import monotonic_ns
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.integrations.picture import PowerPicture
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

MOST_STRETCHES = 140
# Phases whose energy is worked out each for itself, so that a day's notebook is shown as fast as an hour's.
MOST_PARTS = 160
EARLIER = "earlier cells"


@dataclass(frozen=True, slots=True)
class NotebookPart:
    """Hold a part of a notebook: time (s), energy (J; None: no meter), and whether it still goes on."""

    name: str
    duration_s: float
    energy: Quantity | None
    title: str = ""
    is_open: bool = False

    @property
    def mean_w(self) -> float | None:
        """Return the mean power in W."""
        return None if self.energy is None or self.duration_s <= 0 else self.energy.value / self.duration_s


@dataclass(frozen=True, slots=True)
class NotebookFigures:
    """Hold all of a notebook up to now: its parts in order, those between cells as one, and the whole, their sum.

    The whole is surer than its parts: what a meter misses of one it may have seen with the next.
    """

    run: Path
    parts: tuple[NotebookPart, ...]
    between: NotebookPart
    whole: NotebookPart
    curve: PowerPicture | None
    result: Result | None = None

    @property
    def idle_share(self) -> tuple[float, float] | None:
        """Return which share of energy and of time lies between cells; None where that cannot be told."""
        whole = self.whole
        apart = all(part.name != EARLIER for part in self.parts)
        if not apart or self.between.energy is None or whole.energy is None or whole.energy.value <= 0:
            return None
        return self.between.energy.value / whole.energy.value, self.between.duration_s / whole.duration_s


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """Hold a measured cell: everything that was found of it, with the phases in it, and its power over time."""

    name: str
    run: Path | None
    duration_s: float
    result: Result | None
    curve: PowerPicture | None


def join_parts(name: str, parts: tuple[NotebookPart, ...]) -> NotebookPart:
    """Return several parts as one."""
    energies = [part.energy for part in parts if part.energy is not None]
    whole = len(energies) == len(parts)  # a sum that leaves some out would look like the sum of all
    return NotebookPart(name, sum(part.duration_s for part in parts), add_quantities(energies) if whole else None)


def read_cell(m: Measurement) -> MeasuredCell:
    """Return what a measurement that has ended found; waits for its last readings, for little more than a second."""
    result, curve = m.result, None
    if m.run is not None and result is not None:
        with open_run(m.run) as run:
            curve = read_power(run, result)
        result = _drop_outer_phases(result)
    return MeasuredCell(m.name or "this cell", m.run, m.duration_s, result, curve)


def _drop_outer_phases(result: Result) -> Result:
    """Return a result with the phases in it, without those that hold all of it: its own, and the cell's."""
    inner = [p for p in result.phases if p.start_s > 0 or p.duration_s < result.duration_s]
    least = min((p.depth for p in inner), default=0)

    def raised(phases: Iterable[PhaseResult]) -> tuple[PhaseResult, ...]:
        return tuple(replace(p, depth=max(p.depth - least, 0)) for p in phases)

    return replace(result, phases=raised(inner), stretches=raised(result.stretches))


def read_notebook(run: Path, name: str, since_ns: int, until_ns: int | None) -> NotebookFigures | None:
    """Return all cells that are marked by a notebook's name, None where there are none; up to now unless told."""
    end_ns = until_ns or monotonic_ns()
    wait_until_covered(run, end_ns)
    with open_run(run) as opened:
        marked = _NotebookMarks(opened, name, since_ns)
        if not marked.lines:
            return None
        result = analyse_phase(cast("Run", marked), int(marked.lines[0]["t"]), end_ns)
        curve = read_power(opened, result)
    parts = [
        NotebookPart(p.name, p.duration_s, p.energy.get("measured"), marked.titles.get(p.name, ""), p.open_end)
        for p in result.phases
    ]
    between = join_parts(BETWEEN_CELLS, tuple(p for p in parts if p.name == BETWEEN_CELLS))
    whole = NotebookPart("total", result.duration_s, result.energy)
    return NotebookFigures(run, tuple(p for p in parts if p.name != BETWEEN_CELLS), between, whole, curve, result)


class _NotebookMarks:
    """Stand for a run that has no phases but a notebook's own: those inside would cost time for nothing."""

    def __init__(self, run: Run, name: str, since_ns: int) -> None:
        self._run = run
        self._told: list[Mapping[str, Any]] = []
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
                self._told.append(line)
        self.titles = {str(b["name"]): str(b["labels"].get("title", "")) for b in begun.values()}
        self.lines = self._few(list(begun.values())) + list(ended.values())

    @staticmethod
    def _few(begun: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Make one of the first phases where there are too many; where another begins it has ended."""
        first = begun[: max(len(begun) - MOST_PARTS, 0)]
        if not first:
            return begun
        last = begun[len(first)]
        one = {**first[0], "id": "earlier", "name": EARLIER, "labels": {}}
        return [one, {**last, "mark": "end", "id": "earlier"}, *begun[len(first) :]]

    def marks(self) -> list[Mapping[str, Any]]:
        """Return the marks of the notebook's own phases, and the facts that were told."""
        return self.lines + self._told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def read_power(run: Run, result: Result) -> PowerPicture | None:
    """Return the power of everything measured over the time of a result, None where it was read too seldom."""
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
    """Return the channels whose power together is that of some scopes; a sum of cords has those of its cords."""
    loaded = load_channels(run)
    known = {(s.host, s.scope): s.best for s in loaded}
    found: list[EnergyChannel] = []
    for key in zip(hosts, scopes, strict=True):
        cords = [s.best for s in loaded if (s.host, s.best.stream.sums) == key]
        found += [known[key]] if key in known else cords
    return found
