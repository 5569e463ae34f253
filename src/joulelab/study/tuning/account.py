"""Work out what tuning inside a run saved and cost, when the run has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.terms import Quantity
from joulelab.core.clock import NS
from joulelab.core.errors import JoulelabError
from joulelab.study.tuning.tuned import Price, Row, Sample, Tuned, rows
from joulelab.study.tuning.window import energy_of

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.study.tuning.online import Online
    from joulelab.study.tuning.search import Choice

UNSEEN = "what sensors that see a part of the time do not see is left out: it is alike under all caps"


def account(online: Online, run: Path | None, command: str) -> Tuned:
    """Return what tuning found, and over the whole run what it saved; `command` is how the workload is typed."""
    state, reference = online.state, online.grid.reference
    if online.log is not None:
        online.log.read()
    windows = online.corrected()
    samples = [Sample(w.cap, w.energy_per, w.time_per) for w in windows]
    found = rows(online.goal, samples, reference, online.grid.shown)
    choice = state.choice or _so_far(online)
    by_cap = {row.cap: row for row in found}
    notes = [*state.notes, *([UNSEEN] if any("unseen" in w.energy.budget() for w in windows) else [])]
    saved, slower = _saved(online, run, by_cap.get(reference)) if state.choice is not None else (None, None)
    return Tuned(
        goal=online.goal,
        mode="online",
        rows=found,
        reference=reference,
        unit=(online.log.kind if online.log is not None else None) or "",
        choice=None if choice is None else choice.cap,
        tied=() if choice is None else tuple(choice.tied),
        why="" if choice is None else choice.why,
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
    """Return what would be chosen by the windows so far, None where they are of one cap."""
    return online.search().choice() if len({w.cap for w in online.state.windows}) > 1 else None


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
            f"the command ended after {len(state.windows)} windows, before the search did; let it run about "
            f"{left * each:.0f} s longer, or take shorter windows (--window {_shorter(online.window_s)})"
        )
    ]


def _shorter(seconds: float) -> str:
    return f"{max(seconds / 2, 0.5):g}s"


def _saved(online: Online, run: Path | None, reference: Row | None) -> tuple[Quantity | None, Quantity | None]:
    """Return what was saved (J) and lost (s) since the first window against the reference for the same work."""
    log, state = online.log, online.state
    if run is None or reference is None or log is None or state.scopes is None:
        return None, None
    start = state.windows[0].from_ns
    stretches = log.stretches(start, log.known_ns)
    work = sum(log.done(a, b) for a, b in stretches)
    try:
        used = energy_of(run, stretches, state.scopes) if work > 0 else None
    except JoulelabError:
        used = None
    seconds = sum(b - a for a, b in stretches) / NS
    saved = None if used is None else reference.energy.scaled(work) - used.without("unseen")
    return saved, Quantity(seconds) - reference.time.scaled(work)


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
