"""Make a series of what a service told: in order, each time once, and what is missing or contradicts itself a gap."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ReadFailed
from joulelab.plan.rates.steps import Steps, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.rates.rate import Label
    from joulelab.plan.rates.services.asking import Value, Wanted

MOST_NAMED = 3


def steps_of(values: Sequence[Value], label: Label, wanted: Wanted) -> Steps:
    """Return a series of values in any order. Raises ReadFailed where there are none, or they overlap in part."""
    title = label.source.partition(" (")[0]
    ordered = sorted(values, key=lambda value: (value.start_s, value.end_s))
    starts: list[float] = []
    known: list[float] = []
    doubted: list[float] = []
    end_s = -math.inf
    for value in ordered:
        amount = math.nan if value.value is None else value.value
        if starts and value.start_s == starts[-1] and value.end_s == end_s:
            known[-1] = _agreed(known[-1], amount, value.start_s, doubted)
            continue
        if value.start_s < end_s:
            raise ReadFailed("its values overlap", where=title, why=shown(value.start_s))
        if starts and value.start_s > end_s:
            starts.append(end_s)
            known.append(math.nan)
        starts.append(value.start_s)
        known.append(amount)
        end_s = value.end_s
    if not starts or all(math.isnan(one) for one in known):
        why = f"{wanted.zone}, {shown(wanted.since_s)} to {shown(wanted.until_s)}"
        raise ReadFailed("it has no values for what is asked", where=title, why=why, next="ask for another time")
    first, last = _ends(known)
    end_s = starts[last] if last < len(starts) else end_s
    named = _doubts(doubted)
    lengths = {round(value.end_s - value.start_s, 3) for value in ordered}
    step_s = lengths.pop() if len(lengths) == 1 else None
    label = replace(label, notes=(*label.notes, *named), resolution_s=step_s)
    return _checked(label, starts[first:last], known[first:last], end_s)


def _agreed(before: float, again: float, start_s: float, doubted: list[float]) -> float:
    """Return what two values for the same time say together: one that is there, none where they differ."""
    if math.isnan(again) or before == again or start_s in doubted[-1:]:
        return before
    if math.isnan(before):
        return again
    doubted.append(start_s)
    return math.nan


def estimated_s(values: Sequence[Value]) -> float | None:
    """Return how much time the service calls estimated, None where it says of none whether it is."""
    told = [value for value in values if value.estimated is not None]
    return sum(value.end_s - value.start_s for value in told if value.estimated) if told else None


def _ends(known: Sequence[float]) -> tuple[int, int]:
    """Return from where to where there are values: a series does not begin or end with what is not known yet."""
    there = np.flatnonzero(~np.isnan(known))
    return int(there[0]), int(there[-1]) + 1


def _doubts(doubted: Sequence[float]) -> tuple[str, ...]:
    if not doubted:
        return ()
    times = sorted(set(doubted))
    more = f" and {len(times) - MOST_NAMED} more" if len(times) > MOST_NAMED else ""
    named = ", ".join(shown(one) for one in times[:MOST_NAMED])
    return (f"told twice with different values, hence a gap: {named}{more}",)


def _checked(label: Label, starts: list[float], known: list[float], end_s: float) -> Steps:
    """Return the series; a negative intensity is the service's fault here, not the user's. Raises ReadFailed."""
    if label.kind != "price":
        for start_s, value in zip(starts, known, strict=True):
            if value < 0:
                why = f"{value:g} {label.unit} at {shown(start_s)}"
                raise ReadFailed("it tells a negative carbon intensity", where=label.source.partition(" (")[0], why=why)
    return Steps(label, np.array(starts), np.array(known), end_s)
