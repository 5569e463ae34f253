"""Measure the load during a run: of the host, of the workload's processes, and of each GPU over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.readings import LONGEST_HOLD, Readings, find_usual_step
from joulelab.analysis.result import GpuLoad
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.readings import Floats, Ints
    from joulelab.store.run_reader import Run

LOAD_CHANNEL = "load"
FEWEST_LOADS = 3  # readings of a GPU's load needed to know its maximum, or to call the GPU unused
FEWEST_FOR_MEAN = 10  # readings of a GPU's load needed to know its mean: three in a short run are off by 15 %
MOST_LOAD = 1.001  # share of one; a reading above it is no load: DCGM's mark for "no value" is about 2e9 %
LEAST_COVERED = 0.5  # share of a time span that readings of a load must cover for its mean to be known


def measure_host_load(run: Run, a: int, b: int) -> dict[str, float]:
    """Return the load of host and workload over [a, b]: mean and maximum of each channel, or the rise of a counter."""
    load: dict[str, float] = {}
    for table in run.tables():
        for stream in (s for s in table.streams if s.scope in ("host", "workload")):
            series = run.series(table, stream.name)
            for spec in stream.channels:
                readings = Readings.from_rows(series.t0_ns, series.t1_ns, series.values[spec.name])
                first, last = np.searchsorted(readings.t0_ns, (a, b)) - (1, 0)
                values = readings.value[max(first, 0) : last + 1]
                if first < 0 and spec.kind == "counter" and stream.scope == "workload":
                    values = np.append(0.0, values)  # its processes began at zero
                if values.size > 1 and spec.kind == "counter":
                    load[f"{stream.scope}.{spec.name}"] = float(np.maximum(np.diff(values), 0.0).sum())
                elif values.size and spec.kind != "counter":
                    load[f"{stream.scope}.{spec.name}.mean"] = float(values.mean())
                    load[f"{stream.scope}.{spec.name}.max"] = float(values.max())
    return load


def find_cpu_time(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the CPU time (s) of the workload by the kernel; the kernel's peak memory would include our fork."""
    ended = next((e for e in events if e.get("event") == "workload-end"), {})
    keys = ("user_s", "system_s")
    return {f"workload.{k}": float(ended[k]) for k in keys if k in ended}


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Hold the load of one GPU over time, as integrals up to each time: of the load (s), and of the covered time (s).

    A reading is the mean since the reading before it, as drivers report it. After a pause of more than LONGEST_HOLD
    usual steps it counts for one step: the rest of the pause is a gap, which is no part of the mean.
    """

    host: str
    scope: str
    readings: Readings
    edges_ns: Ints
    busy_s: Floats
    covered_s: Floats

    @classmethod
    def from_readings(cls, host: str, scope: str, readings: Readings) -> LoadCurve:
        """Integrate the readings of a load (shares of one); there are at least two."""
        ends = readings.t0_ns
        pause = np.diff(ends) * 1e-9
        step_s = find_usual_step(pause)
        hold = np.append(step_s, np.where(pause > LONGEST_HOLD * step_s, step_s, pause))
        begins = np.maximum(ends - np.rint(hold * 1e9).astype(np.int64), np.append(np.iinfo(np.int64).min, ends[:-1]))
        edges = np.column_stack((begins, ends)).ravel()
        busy, covered = (np.zeros(edges.size) for _ in range(2))
        busy[1::2], covered[1::2] = readings.value * hold, hold
        return cls(host, scope, readings, edges, np.cumsum(busy), np.cumsum(covered))

    def compute_mean(self, a: int, b: int) -> float | None:
        """Return the mean load over the covered part of [a, b], None if they are too few or cover too little of it."""
        seen = self.readings.between(a, b)
        if b <= a or seen.stop - seen.start < FEWEST_FOR_MEAN:
            return None
        covered, busy = (
            float(np.diff(np.interp((a, b), self.edges_ns, of))[0]) for of in (self.covered_s, self.busy_s)
        )
        return busy / covered if covered >= LEAST_COVERED * (b - a) * 1e-9 else None

    def find_maximum(self, a: int, b: int) -> float | None:
        """Return the highest load read in [a, b], None if there are too few readings."""
        seen = self.readings.value[self.readings.between(a, b)]
        return float(seen.max()) if seen.size >= FEWEST_LOADS else None


def load_gpu_curves(run: Run) -> list[LoadCurve]:
    """Read the load of each GPU of each host; of several meters of a GPU, the one with the most readings counts."""
    found: dict[tuple[str, str], LoadCurve] = {}
    for table in run.tables():
        for stream in table.streams:
            if find_family(stream.scope) != "gpu" or LOAD_CHANNEL not in [c.name for c in stream.channels]:
                continue
            series = run.series(table, stream.name, channels=[LOAD_CHANNEL])
            load = series.values[LOAD_CHANNEL]
            possible = np.where((load >= 0) & (load <= MOST_LOAD), load, np.nan)
            readings = Readings.from_rows(series.t0_ns, series.t1_ns, possible)
            known = found.get((table.host, stream.scope))
            if len(readings) >= FEWEST_LOADS and (known is None or len(known.readings) < len(readings)):
                found[table.host, stream.scope] = LoadCurve.from_readings(table.host, stream.scope, readings)
    return list(found.values())


class GpuLoads:
    """Compute the mean load of GPUs over a run and its phases; `first_host` is the host whose scopes are plain."""

    def __init__(self, curves: Sequence[LoadCurve], a: int, b: int, first_host: str) -> None:
        self._curves = curves
        self._first_host = first_host
        peaks = {(c.host, c.scope): c.find_maximum(a, b) for c in curves}
        self.busiest = {
            c.scope: peak for c in curves if c.host == first_host and (peak := peaks[c.host, c.scope]) is not None
        }
        self.loads = tuple(
            GpuLoad(c.host, c.scope, mean, peak)
            for c in curves
            if "/" not in c.scope  # parts of a GPU are part of its load
            and (mean := c.compute_mean(a, b)) is not None
            and (peak := peaks[c.host, c.scope]) is not None
        )
        self._used = {(load.host, load.scope) for load in self.loads if load.is_used}

    def compute_means(self, a: int, b: int) -> dict[str, float]:
        """Return the mean load over [a, b] of each GPU that the run used, by scope (`gpu:0`, `gpu:0@other-host`)."""
        means = {
            c.scope if c.host == self._first_host else f"{c.scope}@{c.host}": c.compute_mean(a, b)
            for c in self._curves
            if (c.host, c.scope) in self._used
        }
        return {scope: mean for scope, mean in means.items() if mean is not None}
