"""Repeat what the checks of runs say against the idle powers that plans take from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report.messages import word_check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.draws import Measured

DRIFTED = "idle drifted"  # the check of a run
MOST = 3  # runs that are named


def idle_doubts(measured: Sequence[Measured]) -> tuple[str, ...]:
    """Return what is wrong with the idle powers of some runs: of what their nodes' power is from, not of parts."""
    told = []
    for one in measured:
        outer = {scope for draw in one.draws if draw.idle_w is not None for scope in draw.scopes}
        drifts = (check for check in one.result.checks if check.name == DRIFTED and _is_of(check.scope, outer))
        doubts = [word_check(check).text for check in drifts]
        if doubts:
            told.append(f"{one.result.name or one.result.run}, {'; '.join(doubts)}")
    more = [f"and {len(told) - MOST} runs more"] if len(told) > MOST else []
    return (f"the idle power is doubted: {'; '.join([*told[:MOST], *more])}",) if told else ()


def _is_of(place: str, scopes: set[str]) -> bool:
    return any(place == scope or place.endswith(f"/{scope}") for scope in scopes)
