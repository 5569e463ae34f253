"""Choose the best cell for a goal, and tell which cells cannot be told apart from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.analysis.study_cells import CellMeans, divide_energies, divide_times
from joulelab.core.quantity import ONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.analysis.goals import Goal, LimitVerdict
    from joulelab.core.quantity import Quantity


@dataclass(frozen=True, slots=True)
class BestCell:
    """Hold the best cell of a line for a goal (`line` None: of all lines) and those that cannot be told apart from it.

    `score` is what was made small: J, s, J s, J s², or 1 at the reference. `improvement` is its share saved against the
    reference (for gain-loss: the gain minus the loss). `within` says of each cell whether it keeps the slowdown limit.
    """

    goal: Goal
    line: str | None
    cell: str
    score: Quantity
    improvement: Quantity | None
    tied: tuple[str, ...]
    within: Mapping[str, LimitVerdict] = field(default_factory=dict)


def choose_best(
    goal: Goal, line: str | None, cells: Mapping[str, CellMeans], reference: CellMeans | None
) -> BestCell | None:
    """Return the best of the cells, None where none can be judged by the goal.

    Cells are told apart as they are `judged`; what is told of the best is as it was measured.
    """
    against = _all_against(goal, cells, reference)
    scores = _scores(goal, cells, against)
    judged, base = _judged(cells, reference)
    likely = _all_against(goal, judged, base)
    within: dict[str, LimitVerdict] = {}
    if goal.slowdown is not None:
        within = {key: goal.judge_slowdown(likely[key][1] - ONE) for key in scores}
    allowed = [key for key in scores if goal.slowdown is None or against[key][1].value - 1 <= goal.slowdown]
    if not allowed:
        return None
    best = min(allowed, key=lambda key: scores[key].value)
    possible = [key for key in scores if key != best and within.get(key) != "not"]
    sums = {key: goal.score(*ratios) for key, ratios in likely.items()} if goal.name in ("eds", "gain-loss") else {}
    tied = tuple(
        key
        for key in possible
        if not (sums[key] - sums[best] if sums else _saved(goal, judged[best], judged[key])).is_positive
    )
    improvement = ONE - goal.score(*against[best]) if best in against else None
    return BestCell(goal, line, best, scores[best], improvement, tied, within)


def _judged(
    cells: Mapping[str, CellMeans], reference: CellMeans | None
) -> tuple[dict[str, CellMeans], CellMeans | None]:
    """Return the cells and the reference as they are judged; the reference stays the same object among the cells."""
    judged = {key: m.assume_spread(key) for key, m in cells.items()}
    itself = next((key for key, m in cells.items() if m is reference), None)
    if itself is not None:
        return judged, judged[itself]
    return judged, None if reference is None else reference.assume_spread("reference")


def _all_against(
    goal: Goal, cells: Mapping[str, CellMeans], reference: CellMeans | None
) -> dict[str, tuple[Quantity, Quantity]]:
    """Return energy and time against the reference, of each cell that has what the goal needs."""
    return {key: ratios for key, m in cells.items() if (ratios := _ratios(goal, m, reference))}


def _scores(
    goal: Goal, cells: Mapping[str, CellMeans], against: Mapping[str, tuple[Quantity, Quantity]]
) -> dict[str, Quantity]:
    """Return what shall be small of each cell that can be judged."""
    if goal.needs_reference:
        return {key: goal.score(*ratios) for key, ratios in against.items()}
    return {key: goal.score(m.energy or ONE, m.time) for key, m in cells.items() if _ratios(goal, m, m)}


def _ratios(goal: Goal, cell: CellMeans, reference: CellMeans | None) -> tuple[Quantity, Quantity] | None:
    """Return energy and time against a reference; None where the goal needs what is not there."""
    if reference is None:
        return None
    energy = divide_energies(cell, reference) if goal.needs_energy else ONE
    time = divide_times(cell, reference)
    return None if energy is None or time is None else (energy, time)


def _saved(goal: Goal, best: CellMeans, cell: CellMeans) -> Quantity:
    """Return the share that the best saves against another cell: what is printed as its gain if that is the reference.

    Both could be judged by the goal, so each has what it needs.
    """
    ratios = _ratios(goal, best, cell)
    assert ratios is not None
    return ONE - goal.score(*ratios)
