"""Compare meters that cover one scope, against what both may be off together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.analysis.result import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.result import Reading, ScopeResult
    from joulelab.core.quantity import Quantity

ALIKE = 0.005  # meters that differ by less agree, however sure they are of themselves


def comparisons(scopes: Iterable[ScopeResult]) -> tuple[Comparison, ...]:
    """Return each scope's other readings against the one that is believed."""
    return tuple(_compare(s, other) for s in scopes for other in s.others if not other.estimate)


def verdict(difference: Quantity, best: Quantity) -> str:
    """Return whether two energies agree, by what their difference may be off: `agree`, `differ` or `cannot tell`."""
    if not difference.known:
        return "cannot tell"
    return "differ" if abs(difference.value) > max(2 * difference.u, ALIKE * abs(best.value)) else "agree"


def with_evidence(scopes: Sequence[ScopeChannels], found: Iterable[Comparison]) -> list[ScopeChannels]:
    """Count what a sensor cannot see where another meter of its scope disagrees: evidence that it missed something."""
    differ = {(c.host, c.scope) for c in found if c.verdict == "differ" and "unseen" in c.best.energy.budget()}
    return [
        replace(s, channels=(replace(s.best, in_step=True), *s.channels[1:])) if (s.host, s.scope) in differ else s
        for s in scopes
    ]


def _compare(scope: ScopeResult, other: Reading) -> Comparison:
    best = scope.reading
    difference = other.energy - best.energy
    return Comparison(scope.host, scope.scope, best, other, difference, verdict(difference, best.energy))
