"""Find how fast power moves: the largest steps between readings, up and down, of one node and of many in one job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.power import GAP_STEPS
from joulelab.plan.rack.blocks import side_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.measured_runs import HostTrace

ROUNDING = 1e-6  # of the highest power: smaller changes are of numbers, not of power
LEAST_STEP = 0.5  # of the usual distance: readings closer than that tell no steeper ramp


@dataclass(frozen=True, slots=True)
class Step:
    """Hold a change of power (W, below 0 for a fall) over some seconds, and when it was."""

    watts: float
    over_s: float
    run: str
    host: str
    at_s: float
    at_utc_s: float

    @property
    def ramp_w_per_s(self) -> float:
        """Return how steep it is; power may have moved faster between two readings."""
        return self.watts / self.over_s

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        names = self.__dataclass_fields__
        return {name: getattr(self, name) for name in names} | {"ramp_w_per_s": self.ramp_w_per_s}


@dataclass(frozen=True, slots=True)
class Steps:
    """Hold the largest rise and fall between readings and the steepest ramp, of so many nodes together.

    None where power never rose or fell, or there were no two readings in a row. `steepest` differs from the larger of
    the two where readings were not all as far apart. `synchronous`: nodes are taken to move together.
    """

    nodes: int
    rise: Step | None
    fall: Step | None
    steepest: Step | None
    synchronous: bool = False
    simulated: bool = False

    @property
    def said(self) -> str:
        """Return how it was found, for people."""
        seen = self.rise or self.fall
        if seen is None:
            return "power did not move"
        how = f"{self.nodes} nodes moving together" if self.synchronous else f"{self.nodes} node(s), as read"
        return f"{how}, between readings {seen.over_s:.3g} s apart; faster ramps inside of that are not seen"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        found: dict[str, Any] = {"nodes": self.nodes, "synchronous": self.synchronous, "simulated": self.simulated}
        for name in ("rise", "fall", "steepest"):
            step = getattr(self, name)
            found[name] = None if step is None else step.to_json()
        return found | {"said": self.said}


def steps_of(draws: Sequence[HostTrace]) -> Steps:
    """Return the largest steps of one node between its readings, over all hosts and runs; none is seen across a gap.

    Raises ConfigError where there is no draw, or sides differ.
    """
    side_of(draws)
    found = [s for d in draws for s in _largest(d, *_readings(d))]
    return _steps(found, 1, simulated=any(d.twin for d in draws))


def steps_of_sum(draws: Sequence[HostTrace]) -> Steps:
    """Return the largest steps of the sum of the hosts of one run, as they were read side by side."""
    side_of(draws)
    first = max(draws, key=lambda d: d.raw_s)
    at_s, _ = _readings(first)
    total = np.sum([_held(d, at_s) for d in draws], axis=0)
    return _steps(_largest(first, at_s, total), len(draws), simulated=bool(first.twin))


def synchronous(steps: Steps, nodes: int) -> Steps:
    """Return the steps of so many nodes that move together: what is to be planned for in one job."""

    def times(step: Step | None) -> Step | None:
        return None if step is None else replace(step, watts=step.watts * nodes / steps.nodes)

    return Steps(nodes, times(steps.rise), times(steps.fall), times(steps.steepest), True, steps.simulated)  # noqa: FBT003


def sum_of(draws: Sequence[HostTrace]) -> tuple[HostTrace, Floats]:
    """Return the sum (W) of hosts of one run on the coarsest of their steps, NaN where one is missing.

    The draw whose steps these are comes with it.
    """
    coarsest = max(draws, key=lambda d: d.step_s)
    size = coarsest.high_w.size
    total = np.zeros(size)
    for d in draws:
        total += _on(d, size, coarsest.step_s)
    return coarsest, total


def _on(draw: HostTrace, size: int, step_s: float) -> Floats:
    """Return the highest reading of a host in each of so many longer steps."""
    if draw.high_w.size == size:
        return draw.high_w
    found = np.full(size, np.nan)
    place = np.minimum(((np.arange(draw.high_w.size) + 0.5) * draw.step_s / step_s).astype(np.int64), size - 1)
    np.fmax.at(found, place, draw.high_w)
    return found


def _readings(draw: HostTrace) -> tuple[Floats, Floats]:
    """Return when (s) a host was read and what it drew (W); the highest in each step where no reading was kept."""
    if draw.read_s.size:
        return draw.read_s, draw.read_w
    middle_s: Floats = np.float64(draw.step_s) * (np.arange(draw.high_w.size, dtype=np.float64) + 0.5)
    return middle_s, draw.high_w


def _held(draw: HostTrace, at_s: Floats) -> Floats:
    """Return the reading of a host that is nearest to each time, NaN where none is near."""
    own_s, watts = _readings(draw)
    after = np.clip(np.searchsorted(own_s, at_s), 1, max(own_s.size - 1, 1))
    before = after - 1
    after = np.minimum(after, own_s.size - 1)
    place = np.where(at_s - own_s[before] <= own_s[after] - at_s, before, after)
    far = np.abs(own_s[place] - at_s) > GAP_STEPS * max(draw.raw_s, draw.step_s)
    return np.where(far, np.nan, watts[place])


def _largest(draw: HostTrace, at_s: Floats, watts: Floats) -> list[Step]:
    """Return the largest rise, the largest fall and the steepest ramp between two readings that follow each other."""
    change, over_s = np.diff(watts), np.diff(at_s)
    usual_s = max(draw.raw_s, float(np.median(over_s)) if over_s.size else 0.0)
    change = np.where(over_s > GAP_STEPS * usual_s, np.nan, change)
    if not np.isfinite(change).any():
        return []
    change = np.where(np.abs(change) < ROUNDING * np.nanmax(np.abs(watts)), 0.0, change)
    over_s = np.maximum(over_s, LEAST_STEP * usual_s)
    steepest = np.abs(change) / over_s
    found = []
    for place in (int(np.nanargmax(change)), int(np.nanargmin(change)), int(np.nanargmax(steepest))):
        middle_s = float(at_s[place] + at_s[place + 1]) / 2
        step = Step(
            float(change[place]), float(over_s[place]), draw.run, draw.host, middle_s, draw.start_utc_s + middle_s
        )  # fmt: skip
        found.append(step)
    return found


def _steps(found: Sequence[Step], nodes: int, *, simulated: bool) -> Steps:
    rises, falls = [s for s in found if s.watts > 0], [s for s in found if s.watts < 0]
    return Steps(
        nodes,
        rise=max(rises, key=lambda s: s.watts, default=None),
        fall=min(falls, key=lambda s: s.watts, default=None),
        steepest=max([*rises, *falls], key=lambda s: abs(s.ramp_w_per_s), default=None),
        simulated=simulated,
    )
