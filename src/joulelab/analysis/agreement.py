"""Compare meters that cover one scope, against what both may be off together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.analysis.result import MeterComparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.result import ChannelEnergy, ScopeResult
    from joulelab.core.quantity import Quantity

AGREE_SHARE = 0.005  # meters that differ by less agree, however sure they are of themselves
# A difference is evidence for a load in step with a sensor only if it is large: against the energy, and against the
# bound that it would bring into the interval. A difference of 1 % is no reason to print ± 77 %.
EVIDENT_SHARE, EVIDENT_BOUND_SHARE = 0.03, 0.05
SAMPLING = "sampling:"


def compare_meters(scopes: Iterable[ScopeResult]) -> tuple[MeterComparison, ...]:
    """Return each scope's other readings against the one that is believed."""
    return tuple(_compare(s, other) for s in scopes for other in s.others if not other.estimate)


def judge_difference(difference: Quantity, best: Quantity) -> str:
    """Return whether two energies agree, by what their difference may be off: `agree`, `differ` or `cannot tell`."""
    if not difference.known:
        return "cannot tell"
    return "differ" if abs(difference.value) > max(2 * difference.u, AGREE_SHARE * abs(best.value)) else "agree"


def mark_in_step(scopes: Sequence[ScopeChannels], found: Iterable[MeterComparison]) -> list[ScopeChannels]:
    """Count what a sensor cannot see where another meter of its scope disagrees: evidence that it missed something."""
    differ = {(c.host, c.scope) for c in found if _is_evidence(c)}
    return [
        replace(s, channels=(replace(s.best, in_step=True), *s.channels[1:])) if (s.host, s.scope) in differ else s
        for s in scopes
    ]


def _is_evidence(comparison: MeterComparison) -> bool:
    """Return whether a comparison points to a load in step with the sensor of the reading that is believed.

    Another channel of that sensor has the same bound and is no evidence: if both showed the same windows, they would
    agree, whatever lies between these.
    """
    best, difference = comparison.best.energy, abs(comparison.difference.value)
    if comparison.verdict != "differ" or best.bounds.keys() <= comparison.other.energy.bounds.keys():
        return False
    return difference > max(EVIDENT_SHARE * abs(best.value), EVIDENT_BOUND_SHARE * (best.bound or 0.0))


def _compare(scope: ScopeResult, other: ChannelEnergy) -> MeterComparison:
    best = scope.reading
    # A counter takes its sampling term from a power of the same sensor: it is as large, but not the same error.
    own = {f"{s}@other" if s.startswith(SAMPLING) else s: u for s, u in other.energy.terms.items()}
    difference = replace(other.energy, terms=own) - best.energy
    return MeterComparison(scope.host, scope.scope, best, other, difference, judge_difference(difference, best.energy))
