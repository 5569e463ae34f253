"""Take runs together: what their nodes drew and what fans took, each weighted by its time, and the highest of each run.

A node's highest power is raised by what the meter may be off, by what readings hide and by how nodes differ, as
`joulelab plan rack` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.plan.cooling.fans import CUBE, Seen
from joulelab.plan.measured_runs import require_power_over_time
from joulelab.plan.rack.extremes import maximum_of
from joulelab.plan.rack.guarantee import EFFICIENCIES
from joulelab.plan.rack.hidden import widened
from joulelab.plan.rack.spread import spread_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.cooling.supplies import Supplies
    from joulelab.plan.measured_runs import HostTrace, MeasuredRun

INSTEAD = "measure the node at the wall, or leave the runs out: give --node and --power"


@dataclass(frozen=True, slots=True)
class Highest:
    """Hold the highest power of a node in a run at the wall (W): as it was read, and what it may have been at most.

    `gain` tells whether the meter's accuracy is in that, `hidden` whether peaks between readings are.
    """

    read_w: float
    upper_w: float
    gain: bool = True
    hidden: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """Hold what a node draws (W): its mean at the wall, and mean and highest over time on `side`, one step as another.

    `highest` has one entry for each run, `weights` the seconds of nodes that each is of. `twin` names the twin that the
    runs are of, `rated_w` is the nameplate.
    """

    mean_w: Quantity
    course_w: Floats
    high_w: Floats
    highest: tuple[Highest, ...]
    weights: tuple[float, ...] = ()
    side: str = "ac"
    runs: tuple[str, ...] = ()
    twin: str = ""
    rated_w: float | None = None

    @property
    def read_w(self) -> float:
        """Return the highest power at the wall that was read in any run (W)."""
        return max(one.read_w for one in self.highest)

    @property
    def upper_w(self) -> float:
        """Return the highest power at the wall that there may have been in any run (W)."""
        return max(one.upper_w for one in self.highest)


def flat_load(watts: float) -> Load:
    """Return a node that always draws so much at the wall (W); nobody states how accurate that is."""
    return Load(Quantity(watts, known=False), np.array([watts]), np.array([watts]), (Highest(watts, watts),))


def load_of(measured: Sequence[MeasuredRun], supplies: Supplies) -> Load:
    """Return what the nodes of runs drew, each weighted by its time. Raises ConfigError where no whole node was."""
    what = "what a node draws"
    require_power_over_time(measured, what, INSTEAD)
    draws = [d for m in measured for d in m.draws]
    sides = {d.side for d in draws}
    if "parts" in sides:
        parts = next(d for d in draws if d.side == "parts")
        why = f"run {parts.run} has {', '.join(parts.scopes[:4])} only"
        raise ConfigError(f"{what} is not known", where=parts.host, why=why, next=INSTEAD)
    if len(sides) != 1:
        why = "some runs were measured at the wall, some behind the supplies"
        raise ConfigError(f"{what} is not known", why=why, next="name runs that were measured alike")
    side = sides.pop()
    weights = tuple(m.result.duration_s * len(m.draws) for m in measured)
    mean_w = add_quantities(m.energies([0.0, m.result.duration_s])[0] for m in measured) * (1 / sum(weights))
    return Load(
        supplies.mean_at_wall(mean_w) if side == "dc" else mean_w,
        np.concatenate([_even(d) for d in draws]),
        np.concatenate([d.high_w[np.isfinite(d.high_w)] for d in draws]),
        tuple(_highest(m.draws, draws, supplies) for m in measured),
        weights,
        side,
        tuple(dict.fromkeys(d.run for d in draws)),
        next((d.twin for d in draws if d.twin), ""),
        max((d.rated_w for d in draws if d.rated_w is not None), default=None),
    )


def _highest(own: Sequence[HostTrace], every: Sequence[HostTrace], supplies: Supplies) -> Highest:
    """Return the highest power of a run's nodes at the wall; finer runs among all tell what its readings hide."""
    peak, wider = maximum_of(own), widened(own, every)
    raised = peak.plan_w / peak.value_w * (wider.factor or 1.0) * (1 + spread_of(every).above)
    read_w, upper_w = peak.value_w, peak.value_w * raised
    if own[0].side == "dc":
        read_w, upper_w = (float(w) for w in supplies.at_wall(np.array([read_w, upper_w])))
        if supplies.assumed:  # the worst that is assumed, as for a rack
            upper_w *= supplies.efficiency / EFFICIENCIES[0]
    return Highest(read_w, upper_w, all(d.gain is not None for d in own), wider.factor is not None)


def pooled(seen: Sequence[Seen], weights: Sequence[float]) -> tuple[Seen, str]:
    """Return what runs saw of the cooling, weighted by their time, and what has to be said of that.

    Runs that saw no fans are taken as the others; speeds are of the unit that more of the time was read in.
    """
    shares = list(weights) if len(weights) == len(seen) else [1.0] * len(seen)
    pairs = list(zip(seen, shares, strict=True))
    powers = [(s.power_w, w) for s, w in pairs if s.power_w is not None]
    rpm = sum(w if s.is_rpm else -w for s, w in pairs if s.speed is not None) >= 0
    speeds = [(s.speed**CUBE, w) for s, w in pairs if s.speed is not None and s.is_rpm == rpm]
    inlets = [(s.inlet_c, w) for s, w in pairs if s.inlet_c is not None]
    found = Seen(
        add_quantities(q * (w / _sum(powers)) for q, w in powers) if powers else None,
        max((s.highest_w for s in seen if s.highest_w is not None), default=None),
        float(np.cbrt(_mean(speeds))) if speeds else None,
        max((s.highest_speed for s in seen if s.highest_speed is not None and s.is_rpm == rpm), default=None),
        bool(speeds) and rpm,
        _mean(inlets) if inlets else None,
    )
    count = len(powers) or len(speeds)
    some = bool(count) and count < len(seen)
    return found, f"fans were measured in {count} of {len(seen)} runs: the others are taken as these" if some else ""


def own_of(seen: Sequence[Seen], whole: Seen, runs: int) -> list[Seen]:
    """Return what each run saw of its fans, what all saw together where it saw nothing that can be used."""
    if len(seen) != runs:
        return [whole] * runs
    if whole.power_w is not None:
        # A run without a reading is taken at the mean: that takes no more off its highest power than fans drew.
        return [s if s.power_w is not None else replace(whole, highest_w=whole.power_w.value) for s in seen]
    fits = [s.highest_speed is not None and s.is_rpm == whole.is_rpm for s in seen]
    return [s if fit else replace(whole, highest_speed=whole.speed) for s, fit in zip(seen, fits, strict=True)]


def _sum(pairs: Sequence[tuple[object, float]]) -> float:
    return sum(weight for _, weight in pairs)


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(value * weight for value, weight in pairs) / _sum(pairs)


def _even(draw: HostTrace) -> Floats:
    """Return the means of a draw in steps of about a second, so that runs weigh by their time."""
    means = draw.mean_w[np.isfinite(draw.mean_w)]
    some = max(round(1.0 / draw.step_s), 1)
    if len(means) >= 2 * some > 2:
        means = means[: len(means) // some * some].reshape(-1, some).mean(axis=1)
    return np.repeat(means, max(round(draw.step_s), 1))
