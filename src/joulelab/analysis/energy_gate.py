"""Decide whether something needs significantly more energy than a baseline or a maximum, also while repeats come in.

The limit is the smallest rise that must not pass. The ratio of energy to baseline has Fieller's interval
(`cell_comparison`): repeats give the scatter, and errors of one meter cancel. The decision is

- `above` if the whole interval is above 1 and reaches 1 + limit: the energy has risen, perhaps by the limit or more;
- `not above` if the whole interval is below 1 + limit;
- `undecided` otherwise. Once half of the interval is narrower than half of the limit, this cannot happen.

To look after each repeat, and to stop at the first clear answer, gives chance several tries. So every look has its own
share of the 5 %: the last possible look half of it, the earlier looks the other half in equal parts. The probabilities
of an error at single looks add up to 5 % at most, however the looks depend on each other (Boole). The
price is an interval of the last look that is about a sixth wider than that of a single look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from joulelab.analysis.cell_comparison import INTERVAL_LEVEL, find_ratio
from joulelab.analysis.statistics import NO_SPREAD, t_quantile

if TYPE_CHECKING:
    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.core.quantity import Quantity

FEWEST_REPEATS = 3  # before the first look: two repeats say almost nothing about the scatter
LAST_SHARE = 0.5  # of the level, for the last possible look
GateDecision = Literal["above", "not above", "undecided"]
GateReason = Literal["", "repeats", "one-run-each", "meters", "accuracy", "not-resolved", "too-short", "scopes"]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Hold a decision, and the figure that led to it: the ratio to the baseline, or an energy (J), with its interval.

    The `reason` of an open decision: `repeats` or `one-run-each` (more repeats help), `meters` (their errors do not
    cancel, so repeats do not help), `accuracy` (that of a meter is unknown), `not-resolved` (the baseline may be zero),
    `too-short` and `scopes` are found by callers: no number of repeats resolves the energy; the two energies are not of
    the same parts of a machine.
    """

    decision: GateDecision
    reason: GateReason = ""
    figure: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def needs_repeats(self) -> bool:
        """Return whether further repeats may decide."""
        return self.decision == "undecided" and self.reason in ("repeats", "one-run-each", "not-resolved")


def find_look_level(repeats: int, at_most: int) -> float:
    """Return the level of the look after some repeats, of which there will be `at_most`; all levels add up to 5 %."""
    earlier = at_most - FEWEST_REPEATS
    if earlier <= 0:
        return INTERVAL_LEVEL
    if repeats >= at_most:
        return LAST_SHARE * INTERVAL_LEVEL
    return (1 - LAST_SHARE) * INTERVAL_LEVEL / earlier


def judge_rise(
    current: RepeatSample, baseline: RepeatSample, limit: float, level: float = INTERVAL_LEVEL
) -> GateVerdict:
    """Decide whether the energy is above the baseline, where a rise by `limit` (share of one) must not pass."""
    found = find_ratio(current, baseline, level)
    if found is None:
        if baseline.mean <= 0:
            return GateVerdict("undecided", "not-resolved")
        alone = current.n < 2 and baseline.n < 2
        return GateVerdict("undecided", "one-run-each" if alone else "accuracy")
    if found.interval is None:
        return GateVerdict("undecided", "not-resolved", found.ratio)
    decision = _place_interval(*found.interval, 1.0, 1.0 + limit)
    reason: GateReason = ""
    if decision == "undecided":
        reach = t_quantile(level, math.inf) * found.meters * found.ratio
        with_many = _place_interval(found.ratio - reach, found.ratio + reach, 1.0, 1.0 + limit)
        reason = "meters" if with_many == "undecided" and found.meters > 0 else "repeats"
    return GateVerdict(decision, reason, found.ratio, found.interval)


def judge_maximum(sample: RepeatSample, most_j: float, level: float = INTERVAL_LEVEL) -> GateVerdict:
    """Decide whether an energy (J) is above a maximum; errors of the meters count in full."""
    if sample.meter is None:
        return GateVerdict("undecided", "accuracy", sample.mean)
    if sample.deviation is None:
        return GateVerdict("undecided", "one-run-each", sample.mean)
    scatter = max(sample.deviation, NO_SPREAD * abs(sample.mean)) / math.sqrt(sample.n)
    lasting = sample.meter * abs(sample.mean)
    half = math.hypot(t_quantile(level, sample.n - 1) * scatter, lasting)
    interval = max(sample.mean - half, 0.0), sample.mean + half
    decision = _place_interval(*interval, most_j, most_j)
    reason: GateReason = ""
    if decision == "undecided":
        reason = "meters" if abs(sample.mean - most_j) <= lasting else "repeats"
    return GateVerdict(decision, reason, sample.mean, interval)


def judge_single(energy: Quantity, most_j: float) -> GateVerdict:
    """Decide by one run: it can be clearly below a maximum (J), but never above, as its scatter is unknown."""
    if energy.expanded is None:
        return GateVerdict("undecided", "accuracy", energy.value)
    interval = max(energy.value - energy.expanded, 0.0), energy.value + energy.expanded
    if interval[1] < most_j:
        return GateVerdict("not above", "", energy.value, interval)
    return GateVerdict("undecided", "one-run-each", energy.value, interval)


def _place_interval(low: float, high: float, base: float, most: float) -> GateDecision:
    """Place an interval: below `most`, or above `base`, or neither."""
    if high < most:
        return "not above"
    return "above" if low > base else "undecided"
