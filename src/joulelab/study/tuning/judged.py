"""Judge the caps that were tried in whole runs, by the statistics of studies: as a sweep of the same slots would."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.study_cells import Cell, compute_means, divide_energies, divide_times
from joulelab.study.tuning.tuned import NOT_ENFORCED, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.analysis.goals import Goal
    from joulelab.analysis.study_cells import CellMeans, Note
    from joulelab.study.tuning.grid import Grid
    from joulelab.study.tuning.search import Choice

# Notes of a summary that are of all its cells, of which some may not be shown.
OF_ALL_CELLS = ("one-run-each", "one-run.unknown", "one-run.pooled", "cells-missing", "reference-missing")


@dataclass(frozen=True, slots=True)
class Judged:
    """Hold the rows of the caps that were tried, per what they are compared, and what has to be known of them."""

    rows: tuple[Row, ...] = ()
    per: str | None = None
    notes: tuple[str | Note, ...] = ()
    like_best: tuple[float, ...] = ()  # the best cap by these figures, and those that cannot be told apart from it

    def row(self, cap: float | None) -> Row | None:
        """Return the row of a cap."""
        return next((r for r in self.rows if r.cap == cap), None)

    def tied(self, choice: Choice) -> tuple[float, ...]:
        """Return the caps that cannot be told apart from the choice: by the search, or by these figures."""
        like = self.like_best if choice.cap in self.like_best else ()
        return tuple(cap for cap in dict.fromkeys([*choice.tied, *like]) if cap != choice.cap)


def judge(cells: Sequence[Cell], goal: Goal, caps: Mapping[str, float], grid: Grid, per: Sequence[str] = ()) -> Judged:
    """Return what the runs of a study say of the caps (W, by key of the cell); `per` is the work that was asked for.

    Runs that were not capped are left out.
    """
    held = [Cell(c.key, c.knobs, tuple(t for t in c.trials if not t.uncapped)) for c in cells]
    there = {c.key for c in held if c.trials}
    reference = next((c for c in held if caps.get(c.key) == grid.reference), None)
    doubtful = [_doubtful(c, caps[c.key], grid) for c in cells if c.key in caps and c.trials and c.key not in there]
    if not there or reference is None:
        return Judged(tuple(doubtful))
    used = [c for c in held if c.key in there or c is reference]
    summary = summarise_cells(used, goals=[goal], reference=dict(reference.knobs), ks=(), per=per)
    line = next(line for line in summary.lines if reference.key in line.cells)
    compared = {key: own for key in line.cells if key in caps and (own := summary.cell(key).compared) is not None}
    base = compared.get(reference.key)
    rows = [_row(goal, summary, key, (own, base), caps[key], grid) for key, own in compared.items()]
    best = summary.best_for(goal, line.key)
    like = () if best is None else tuple(caps[key] for key in (best.cell, *best.tied) if key in caps)
    ordered = sorted([*rows, *doubtful], key=lambda row: -row.cap)
    notes = [
        replace(note, code="warnings.tuned") if note.code == "warnings" else note
        for note in summary.notes
        if note.code not in OF_ALL_CELLS
    ]
    return Judged(tuple(ordered), line.per, (*_single(rows), *notes), like)


def _row(
    goal: Goal, summary: StudySummary, key: str, of: tuple[CellMeans, CellMeans | None], cap: float, grid: Grid
) -> Row:
    cell, (own, base) = summary.cell(key), of
    assert own.energy is not None
    energy, time = (None, None) if base is None else (divide_energies(own, base), divide_times(own, base))
    score = goal.score(energy, time) if energy is not None and time is not None else None
    return Row(cap, grid.shown[cap], cell.n, own.energy, own.time, cell.gain, cell.loss, score)


def _doubtful(cell: Cell, cap: float, grid: Grid) -> Row:
    mean = compute_means(cell)
    assert mean is not None
    assert mean.energy is not None
    return Row(cap, grid.shown[cap], len(cell.trials), mean.energy, mean.time, doubt=NOT_ENFORCED)


def _single(rows: Sequence[Row]) -> list[str]:
    """Say of which caps shown nobody knows how much runs differ."""
    single = [row for row in rows if row.n == 1 and not row.time.known]
    if not single:
        return []
    if len(single) == len(rows):
        which, these = "one run each", "these intervals, which hold the meter only"
    else:
        which = f"one run of {', '.join(row.shown for row in single)}"
        these = "the intervals there"
    return [f"{which}: how much runs differ by themselves is not in {these}; more --trials tell"]
