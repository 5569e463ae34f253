"""Work out what a run that was tuned used less, or more, than it would have under the reference for the same work."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.errors import JoulelabError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.study.tuning.window import COMMON, energy_of, read_scopes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.study.tuning.online import Online
    from joulelab.study.tuning.tuned import Row
    from joulelab.study.tuning.worklog import WorkLog

STEP_NS = NS  # how finely a drift is followed
LATER = 0.01  # a change after the choice by less is none
LEAST_S = 2.0  # a rest of the run that is shorter tells nothing of itself

Stretches = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Used:
    """Hold a part of a run: work, energy (J) and time (s) that it took."""

    work: float
    energy: Quantity
    seconds: float


def saved_in(
    online: Online, run: Path, scopes: Sequence[str], rows: Mapping[float, Row], notes: list[str]
) -> tuple[Quantity | None, Quantity | None]:
    """Return what was saved (J) and lost (s) since the first window; what has to be known of it is added to the notes.

    What the workload changed by itself would have changed under the reference too. Until the last window under the
    reference such windows tell it, after the choice how the choice itself went on.
    """
    log, state, base = online.log, online.state, rows.get(online.grid.reference)
    best = rows.get(state.choice.cap) if state.choice is not None else None
    if log is None or base is None or best is None or log.known_ns <= state.windows[0].from_ns:
        return None, None
    start, end = state.windows[0].from_ns, log.known_ns
    middle = min(max(state.chosen_ns + round(online.settle_s * NS), start), end)
    tuning, rest = log.stretches(start, middle), log.stretches(middle, end) if middle < end else []
    try:
        found = read_scopes(run, start, end)
    except JoulelabError:
        return None, None
    used = [_used(log, found, part, scopes) for part in (tuning, rest) if part]
    if any(part is None for part in used) or not tuning:
        return None, None
    parts = [part for part in used if part is not None]
    later = _later(online, best, parts[1]) if rest else None
    if later is not None:
        notes.append(
            f"after the choice the workload changed by itself: {(later[0] - 1) * 100:+.1f} % time and "
            f"{(later[1] - 1) * 100:+.1f} % energy for the same work"
        )
    would = [_reference(online, base, tuning)]
    if rest:
        # Where the choice did not change any more, neither would the reference since it was seen last.
        stays = _reference(online, base, rest, latest_ns=state.windows[-1].from_ns)
        would.append(stays if later is None else _as_the_choice(base, best, parts[1]))
    energy = add_quantities(e for e, _ in would) - add_quantities(part.energy for part in parts)
    time = Quantity(sum(part.seconds for part in parts)) - add_quantities(t for _, t in would)
    return energy, time


def _used(log: WorkLog, found: Sequence[ScopeChannels], stretches: Stretches, scopes: Sequence[str]) -> _Used | None:
    energy = energy_of(found, stretches, scopes)
    work = sum(log.done(a, b) for a, b in stretches)
    if energy is None or work <= 0:
        return None
    return _Used(work, energy.without("unseen", "in-step"), sum(b - a for a, b in stretches) / NS)


def _reference(
    online: Online, base: Row, stretches: Stretches, latest_ns: int | None = None
) -> tuple[Quantity, Quantity]:
    """Return energy and time that the work in some stretches would have taken under the reference, drift and all."""
    log = online.log
    assert log is not None
    if online.state.drift is None:
        work = sum(log.done(a, b) for a, b in stretches)
        return base.energy * work, base.time * work
    drift = online.drifted()
    works, unsure = [0.0, 0.0], [0.0, 0.0]  # in units of the beginning: by time, by energy
    for a, b in stretches:
        for t0, t1 in itertools.pairwise([*range(a, b, STEP_NS), b]):
            middle, work = (t0 + t1) // 2 if latest_ns is None else latest_ns, log.done(t0, t1)
            for k, (ratio, u) in enumerate(zip(drift.at(middle), drift.u_at(middle), strict=True)):
                works[k] += work * ratio
                # When it happened is one question for all of them, so that this adds up.
                unsure[k] += work * ratio * u
    time, energy = base.time * works[0], base.energy * works[1]
    source = f"drift:{stretches[0][0]}"
    return (
        replace(energy, terms={**energy.terms, source: base.energy.value * unsure[1]}),
        replace(time, terms={**time.terms, source: base.time.value * unsure[0]}),
    )


def _later(online: Online, best: Row, rest: _Used) -> tuple[float, float] | None:
    """Return how time and energy per work changed after the choice; None where they did not, or nobody can tell."""
    if rest.seconds < LEAST_S:
        return None
    state = online.state
    last = online.drifted().at(state.windows[-1].from_ns) if state.drift is not None else (1.0, 1.0)
    time = rest.seconds / rest.work / (best.time.value * last[0])
    energy = rest.energy.value / rest.work / (best.energy.value * last[1])
    u_time = best.time.u / best.time.value
    u_energy = math.hypot(
        best.energy.without(*COMMON).u / best.energy.value, rest.energy.without(*COMMON).u / rest.energy.value
    )
    same = abs(time - 1) <= max(LATER, 2 * u_time) and abs(energy - 1) <= max(LATER, 2 * u_energy)
    return None if same else (time, energy)


def _as_the_choice(base: Row, best: Row, rest: _Used) -> tuple[Quantity, Quantity]:
    """Return what the reference would have taken where it would have changed as the choice did."""
    energy, time = base.energy / best.energy, base.time / best.time
    return rest.energy * energy, time * rest.seconds
