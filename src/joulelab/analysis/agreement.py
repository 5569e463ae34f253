"""Compare meters that cover one scope, against what both may be off together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.result import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulelab.analysis.result import Reading, ScopeResult

ALIKE = 0.005  # meters that differ by less agree, however sure they are of themselves


def comparisons(scopes: Iterable[ScopeResult]) -> tuple[Comparison, ...]:
    """Return each scope's other readings against the one that is believed."""
    return tuple(_compare(s, other) for s in scopes for other in s.others if not other.estimate)


def _compare(scope: ScopeResult, other: Reading) -> Comparison:
    best = scope.reading
    difference = other.energy - best.energy
    verdict = "agree"
    if not difference.known:
        verdict = "cannot tell"
    elif abs(difference.value) > max(2 * difference.u, ALIKE * abs(best.energy.value)):
        verdict = "differ"
    return Comparison(scope.host, scope.scope, best, other, difference, verdict)
