"""Count work that a meter recorded as counters: tokens and requests of a server, beside what processes report.

A counter of work is monotonic: at any time its value lies between the readings around that time. A fall is a restart of
its source: the increments before and after it are kept, those between the last reading and the restart are lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.readings import Readings
from joulelab.analysis.result import WorkChannel
from joulelab.core.quantity import Quantity, add_quantities, make_edge_terms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import PhaseResult
    from joulelab.store.run_reader import Run

WORK_QUANTITY = "work"  # of a counter's `Spec`


@dataclass(frozen=True)
class WorkCurve:
    """Hold one counter of work; `count` adds up its increments from the first reading on."""

    name: str
    unit: str
    host: str
    meter: str
    scope: str
    readings: Readings

    @property
    def source(self) -> str:
        """Return the name of its error terms."""
        return f"work:{self.host}/{self.meter}/{self.scope}/{self.name}"

    @property
    def count(self) -> Floats:
        """Return the work since the first reading, at each reading; after a restart it goes on from zero."""
        value = self.readings.value
        rises = np.diff(value)
        return np.concatenate([[0.0], np.cumsum(np.where(rises < 0, value[1:], rises))])

    def list_restarts(self, a_ns: int, b_ns: int) -> list[tuple[int, int]]:
        """Return the times (ns) between the readings around each restart that overlap [a, b]."""
        r = self.readings
        places = np.flatnonzero(np.diff(r.value) < 0)
        spans = [(int(r.t0_ns[k]), int(r.t1_ns[k + 1])) for k in places]
        return [(since, until) for since, until in spans if since < b_ns and until > a_ns]

    def measure_work(self, a_ns: int, b_ns: int) -> Quantity:
        """Return the work of [a, b] with the errors of its edges, and of restarts in it."""
        count = self.count
        edges = make_edge_terms(self.source, a_ns, b_ns, lambda t: self._find_count(t, count)[1])
        amount = self._find_count(b_ns, count)[0] - self._find_count(a_ns, count)[0]
        usual = count[-1] / max(float(self.readings.t0_ns[-1] - self.readings.t0_ns[0]), 1.0)
        lost = sum(usual * (until - since) for since, until in self.list_restarts(a_ns, b_ns))
        terms = edges | ({f"restart:{self.source}": lost / math.sqrt(3)} if lost else {})
        return Quantity(amount, {source: u for source, u in terms.items() if u})

    def _find_count(self, t_ns: int, count: Floats) -> tuple[float, float]:
        """Return the count at a time, by the readings around it, and its standard uncertainty."""
        t = self.readings.t0_ns
        after = int(np.searchsorted(t, t_ns, side="right"))
        if after == 0 or after == len(t):
            return float(count[0 if after == 0 else -1]), 0.0
        low, high = float(count[after - 1]), float(count[after])
        share = float(t_ns - t[after - 1]) / float(t[after] - t[after - 1])
        return low + share * (high - low), (high - low) / math.sqrt(12)


def load_work_curves(run: Run) -> list[WorkCurve]:
    """Read the counters of work of a run; those with fewer than two readings are left out."""
    found = []
    for table in run.tables():
        for stream in table.streams:
            specs = [c for c in stream.channels if c.kind == "counter" and c.quantity == WORK_QUANTITY]
            if not specs:
                continue
            series = run.series(table, stream.name, channels=[c.name for c in specs])
            for spec in specs:
                readings = Readings.from_rows(series.t0_ns, series.t1_ns, series.values[spec.name])
                if len(readings) >= 2:
                    found.append(WorkCurve(spec.name, spec.unit, table.host, table.meter, stream.scope, readings))
    return found


def measure_work_channels(
    curves: Sequence[WorkCurve], start_ns: int, end_ns: int, phases: Sequence[PhaseResult]
) -> tuple[WorkChannel, ...]:
    """Return the work of a run by channel, also by phase: those phases whose energy is known."""
    spans = {
        str(phase.number): (start_ns + round(phase.start_s * 1e9), start_ns + round(phase.end_s * 1e9))
        for phase in phases
        if phase.energy and phase.last is None
    }
    return tuple(
        WorkChannel(
            curve.name,
            curve.unit,
            curve.host,
            curve.meter,
            curve.scope,
            curve.measure_work(start_ns, end_ns),
            {number: curve.measure_work(*span) for number, span in spans.items()},
            restarts=len(curve.list_restarts(start_ns, end_ns)),
            lost_s=sum((until - since) * 1e-9 for since, until in curve.list_restarts(start_ns, end_ns)),
        )
        for curve in curves
    )


def add_counted_work(reported: Mapping[str, float], counted: Mapping[str, Quantity]) -> dict[str, float]:
    """Return the work that processes reported, with counted work of the kinds that no process reported."""
    return {kind: amount.value for kind, amount in counted.items() if amount.value > 0} | dict(reported)


def sum_work_channels(channels: Sequence[WorkChannel]) -> dict[str, Quantity]:
    """Return the work of all channels by kind."""
    kinds = dict.fromkeys(channel.name for channel in channels)
    return {kind: add_quantities(c.total for c in channels if c.name == kind) for kind in kinds}


def fill_phase_work(
    phases: Sequence[PhaseResult], channels: Sequence[WorkChannel], kinds: Sequence[str]
) -> tuple[PhaseResult, ...]:
    """Return the phases with the counted work of some kinds: those that no process reported in the run."""
    chosen = [channel for channel in channels if channel.name in kinds]
    if not chosen:
        return tuple(phases)
    filled = []
    for phase in phases:
        own: dict[str, Quantity] = {}
        for channel in chosen:
            if (amount := channel.phases.get(str(phase.number))) is not None and amount.value > 0:
                own[channel.name] = own[channel.name] + amount if channel.name in own else amount
        filled.append(replace(phase, work=add_counted_work(phase.work, own)) if own else phase)
    return tuple(filled)
