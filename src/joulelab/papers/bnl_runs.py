"""Read what the runs of the BNL study gave: duration, median, maximum and energy of the node, mean load of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.analyse import find_span
from joulelab.analysis.readings import Readings, describe_power, find_usual_step
from joulelab.core.scope import find_family
from joulelab.store.run_reader import open_run
from joulelab.study.results import load_trial
from joulelab.study.slots import State, list_claimed_slots, read_slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from joulelab.core.quantity import Quantity
    from joulelab.core.spec import Spec
    from joulelab.store.run_reader import Run
    from joulelab.store.series import SampleSeries
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.results import SlotTrial
    from joulelab.study.slots import Slot

    Floats = npt.NDArray[np.float64]

NODE, OUTLET, GPU = "node.ac", "outlet", "gpu"
POWER, LOAD = "power_w", "load"
KWH = 3.6e6
HOUR_S = 3600.0
# In the order of the paper; of those with one batch it is not part of the name.
NAMES = ("resnet-512", "resnet-4096", "llava", "burn", "burn-gpus")


@dataclass(frozen=True, slots=True)
class Ran:
    """Hold one run: time (s), median and maximum power (W) as sampled, energy (J), mean load of the GPUs (0 to 1).

    What nobody measured is None.
    """

    name: str
    batch: int | None
    time_s: float
    median_w: float | None
    max_w: float | None
    energy: Quantity | None
    load: float | None

    @property
    def mean_w(self) -> float | None:
        """Return the mean power (W)."""
        return None if self.energy is None or not self.time_s else self.energy.value / self.time_s


@dataclass(frozen=True, slots=True)
class Course:
    """Hold a run over time, from its start (h): power of the node (kW), and mean load of its GPUs (%)."""

    power_h: Floats
    power_kw: Floats
    load_h: Floats
    load_pct: Floats


def name_of(cell: PlannedCell) -> str:
    """Return what a cell is called here: its workload, and its batch where there are several."""
    batch = cell.get_knob_values().get("batch")
    named = f"{cell.workload.name}-{batch:g}" if isinstance(batch, float | int) else cell.workload.name
    return named if named in NAMES else cell.workload.name


def done(study: Study) -> dict[str, tuple[PlannedCell, Slot]]:
    """Return cell and slot of each run that has ended, by name; of several repeats the first."""
    found: dict[str, tuple[PlannedCell, Slot]] = {}
    for key, cell in study.cells().items():
        slots = [
            read_slot(folder)
            for folder in list_claimed_slots(study.folder / "cells" / key)
            if folder.name.startswith("r")
        ]
        over = next((slot for slot in slots if slot.state is State.DONE and slot.run is not None), None)
        if over is not None:
            found[name_of(cell)] = (cell, over)
    return {name: found[name] for name in NAMES if name in found}


def ran(study: Study) -> dict[str, Ran]:
    """Work out every run that has ended, by name: energy and time as any slot's, power as it was sampled."""
    found = {}
    for name, (cell, slot) in done(study).items():
        if slot.run is not None:
            with open_run(slot.run) as run:
                found[name] = _ran(name, cell, load_trial(slot), run)
    return found


def _ran(name: str, cell: PlannedCell, trial: SlotTrial, run: Run) -> Ran:
    span = find_span(run, list(run.events()))
    a, b = span.start_ns, span.end_ns
    powers, loads = _powers(run), [values[(t >= a) & (t < b)] for t, values in _loads(run)]
    statistics = None
    if powers:
        t, watts = _summed(powers)
        readings = Readings.from_rows(t, t, watts)
        step_s = find_usual_step(np.diff(t) * 1e-9)
        statistics = describe_power(readings, a, b, window_s=None, step_s=step_s)
    batch = cell.get_knob_values().get("batch")
    known = [np.nanmean(each) for each in loads if np.isfinite(each).any()]
    return Ran(
        name,
        int(batch) if isinstance(batch, float | int) else None,
        trial.time_s,
        None if statistics is None else statistics.median,
        None if statistics is None else statistics.maximum,
        trial.energy(NODE),
        float(np.mean(known)) if known else None,
    )


def course(study: Study, name: str) -> Course | None:
    """Return a run over time as its meters saw it; None where it has not ended, or nobody measured the node."""
    _, slot = done(study).get(name, (None, None))
    if slot is None or slot.run is None:
        return None
    with open_run(slot.run) as run:
        span, powers, loads = find_span(run, list(run.events())), _powers(run), _loads(run)
    if not powers:
        return None
    t, watts = _summed(powers)
    at, load = _summed(loads) if loads else (np.empty(0, np.int64), np.empty(0))

    def hours(t_ns: npt.NDArray[np.int64]) -> Floats:
        return np.asarray((t_ns - span.start_ns) * 1e-9 / HOUR_S)

    inside = (t >= span.start_ns) & (t < span.end_ns)
    within = (at >= span.start_ns) & (at < span.end_ns)
    share = 100 * load[within] / max(len(loads), 1)
    return Course(hours(t[inside]), watts[inside] / 1000, hours(at[within]), share)


def _powers(run: Run) -> list[tuple[npt.NDArray[np.int64], Floats]]:
    """Return the power (W) of the node, or of each of its cords."""
    found = list(_channels(run, POWER, (NODE,)))
    return found or list(_channels(run, POWER, (OUTLET,)))


def _loads(run: Run) -> list[tuple[npt.NDArray[np.int64], Floats]]:
    """Return the load (0 to 1) of each GPU."""
    return list(_channels(run, LOAD, (GPU,)))


def _channels(run: Run, channel: str, kinds: Sequence[str]) -> Iterable[tuple[npt.NDArray[np.int64], Floats]]:
    for table in run.tables():
        for stream in table.streams:
            if find_family(stream.scope) in kinds and _has(stream.channels, channel):
                series: SampleSeries = run.series(table, stream.name, channels=[channel])
                yield series.t0_ns, series.values[channel]


def _has(channels: Iterable[Spec], name: str) -> bool:
    return any(spec.name == name for spec in channels)


def _summed(parts: Sequence[tuple[npt.NDArray[np.int64], Floats]]) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the sum of series that were read one after another in each round, at the times of the first."""
    t, first = parts[0]
    total = first.copy()
    for at, values in parts[1:]:
        total += np.interp(t, at, values)
    return t, total
