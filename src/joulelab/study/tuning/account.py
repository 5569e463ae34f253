"""Work out what tuning inside a run saved and cost, when the run has ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.study.tuning.saved import saved_in
from joulelab.study.tuning.tuned import Price, Row, Sample, Tuned, rows, why_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.study.tuning.online import Online
    from joulelab.study.tuning.search import Choice

UNSEEN = "what sensors that see a part of the time do not see is left out: it is alike under all caps"

SELDOM = "other meters are read too seldom to tell the energy of a window, so they are not compared"


def account(online: Online, run: Path | None, command: str) -> Tuned:
    """Return what tuning found, and over the whole run what it saved; `command` is how the workload is typed."""
    state, reference = online.state, online.grid.reference
    if online.log is not None:
        online.log.read()
    windows = online.corrected()
    samples = [Sample(w.cap, w.energy_per, w.time_per) for w in windows]
    samples += [Sample(w.cap, w.energy_per, w.time_per, held=False) for w in state.unheld]
    found = rows(online.goal, samples, reference, online.grid.shown)
    choice = state.choice or _so_far(online)
    by_cap = {row.cap: row for row in found}
    hidden = any(kind in w.energy.budget() for w in windows for kind in ("unseen", "in-step"))
    notes = [*state.notes, *([UNSEEN] if hidden else [])]
    if state.scopes and not state.everything:
        notes.append(SELDOM)
    saved, slower = (None, None)
    if state.choice is not None and state.scopes is not None and run is not None:
        saved, slower = saved_in(online, run, state.scopes, by_cap, notes)
    tied = () if choice is None else _tied(choice, by_cap, reference)
    return Tuned(
        goal=online.goal,
        mode="online",
        rows=found,
        reference=reference,
        unit=(online.log.kind if online.log is not None else None) or "",
        scopes=", ".join(state.scopes or ()),
        choice=None if choice is None else choice.cap,
        tied=tied,
        why=""
        if choice is None
        else why_of(online.goal, choice, tied, len({w.cap for w in windows}), online.grid.shown),
        complete=state.choice is not None,
        saved=saved,
        slower=slower,
        over="in this run",
        price=_price(online, by_cap, None if choice is None else by_cap.get(choice.cap)),
        notes=tuple(notes),
        problems=tuple(_problems(online)),
        folder="" if run is None else str(run),
        next=_next(online, choice, command),
    )


def _so_far(online: Online) -> Choice | None:
    """Return what would be chosen by the windows so far, None where they are of one cap or tuning failed."""
    if online.state.problem or not online.caps_work() or len({w.cap for w in online.state.windows}) < 2:
        return None
    return online.search().choice()


def _tied(choice: Choice, by_cap: Mapping[float, Row], reference: float) -> tuple[float, ...]:
    """Return what cannot be told apart from the choice; the reference also where the table does not tell them apart."""
    best = by_cap[choice.cap].score if choice.cap in by_cap else None
    near = best is not None and choice.cap != reference and abs(1 - best.value) <= (best.expanded or math.inf)
    return tuple(dict.fromkeys([*choice.tied, *([reference] if near else [])]))


def _next(online: Online, choice: Choice | None, command: str) -> str:
    if choice is None:
        return ""
    value = online.grid.values[choice.cap]
    return f"joulelab cap {value.text} -- {command}"


def _problems(online: Online) -> list[str]:
    state = online.state
    if state.problem:
        return [f"tuning failed: {state.problem}"]
    if state.choice is not None:
        return []
    if online.log is None or not online.log.known_ns:
        return [
            (
                "no work was reported, so there was nothing to tune by, and no cap was touched; "
                "call joulelab.work(samples=64) after each step (or `joulelab mark --work samples=64` from a shell)"
            )
        ]
    each = online.window_s + online.settle_s + 1
    left = max(online.trials - len(state.windows), 1) + 1
    return [
        (
            f"the command ended after {_windows(len(state.windows))}, before the search did; let it run about "
            f"{left * each:.0f} s longer, or take shorter windows (--window {_shorter(online.window_s)})"
        )
    ]


def _windows(count: int) -> str:
    return "1 window" if count == 1 else f"{count} windows"


def _shorter(seconds: float) -> str:
    return f"{max(seconds / 2, 0.5):g}s"


def _price(online: Online, by_cap: dict[float, Row], best: Row | None) -> Price:
    """Return what was spent until the choice, and how much of it caps that are worse than the choice cost."""
    state, log = online.state, online.log
    if log is None or not state.windows or best is None:
        return Price()
    end = state.chosen_ns or log.known_ns
    stays = [(cap, max(t, state.windows[0].from_ns)) for cap, t in state.stays if t < end]
    energy = time = more_j = more_s = 0.0
    for (cap, a), (_, b) in zip(stays, [*stays[1:], (0.0, end)], strict=True):
        row, work = by_cap.get(cap), log.done(a, b)
        if row is None:
            continue
        energy, time = energy + row.energy.value * work, time + (b - a) / NS
        more_j += max(row.energy.value - best.energy.value, 0.0) * work
        more_s += max(row.time.value - best.time.value, 0.0) * work
    return Price(len(state.windows), energy, time, more_j, more_s)
