"""One table for a whole study: knobs as columns, the best marked, few notes, 80 columns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.analysis.studies import by_cap, cell, sweep, trial

from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.study_cells import Note
from joulelab.report.matrix_tables import (
    CONVENTION,
    MOST_NOTES,
    MOST_ROWS,
    choose_rows,
    lay_out_matrix,
    make_matrix_table,
    make_plan_table,
    word_knob,
)
from joulelab.report.terminal import write_blocks

GOALS = [Goal.parse(text) for text in ("energy", "edp", "eds:1.5")]


@pytest.fixture(scope="module")
def matrix() -> StudySummary:
    return summarise_cells(sweep(caps=range(100, 280, 20), n=3), goals=GOALS)


def write_matrix(summary: StudySummary) -> str:
    return write_blocks(lay_out_matrix(summary, ["Not found in 1 slot: phase x"]), 80)


def test_knobs_are_columns_and_the_best_is_named(matrix: StudySummary) -> None:
    few = summarise_cells(sweep(caps=(100, 180, 260), gpus=(1, 8), n=3), goals=GOALS)
    table = make_matrix_table(few, choose_rows(few))
    assert [column.heading for column in table.columns[:3]] == ["cap, W", "gpus", "energy, kJ"]
    assert [row.cells[:2] for row in table.rows] == [
        ("100", "1"), ("180", "1"), ("260*", "1"), ("100", "8"), ("180", "8"), ("260*", "8"),
    ]  # fmt: skip
    named = {row.cells[:2]: str(row.cells[-1]).split() for row in table.rows}
    for line in few.lines:
        for best in (b for b in few.best if b.line == line.key):
            own = few.cell(best.cell).knobs
            mark = "*" if best.cell == line.reference else ""
            assert best.goal.text in named[f"{own['cap']:g}{mark}", str(own["gpus"])]
    assert {row.style for row in table.rows} == {"best", ""}


def test_a_precision_that_was_asked_for_and_missed_comes_first(matrix: StudySummary) -> None:
    numbers = {"missed": 2.0, "cells": 9.0, "share": 0.003, "repeats": 5.0, "fewest": 3, "most": 4}
    note = Note("precision-missed.maximum", numbers, {"names": ("cap 100 W", "cap 120 W")})
    asked = replace(matrix, notes=(*matrix.notes, note))
    text = " ".join(write_blocks(lay_out_matrix(asked, ["one", "two", "three"]), 80).split())
    assert "note 2 of 9 cells did not reach ± 0.30 % of the mean energy with 3 to 4 repeats, after the" in text


def test_a_long_matrix_shows_best_cells_and_references_and_fits_80_columns(matrix: StudySummary) -> None:
    rows = choose_rows(matrix)
    assert len(matrix.cells) > MOST_ROWS >= len(rows)
    assert {c.key for c in rows} == {b.cell for b in matrix.best} | {line.reference for line in matrix.lines}
    text = write_matrix(matrix)
    assert max(map(len, text.splitlines())) <= 80
    assert f"{len(matrix.cells) - len(rows)} more cells" in " ".join(text.split())
    assert " ".join(text.split()).count(CONVENTION) == 1
    assert text.splitlines()[2].startswith("best for energy")


def test_at_most_three_notes_are_shown_warnings_first(matrix: StudySummary) -> None:
    notes = (*matrix.notes, Note("eds-is-half"), Note("no-meter"), Note("no-results"), Note("not-capped"))
    text = write_matrix(replace(matrix, notes=notes))
    shown = [line for line in text.splitlines() if line.startswith("note ")]
    assert len(shown) == MOST_NOTES
    assert "Not found" in shown[0]
    assert "The cap was not in force" in shown[1]
    assert "EDS(2)" not in text


def test_cells_without_knobs_energy_or_comparison_have_a_table_too() -> None:
    alone = make_matrix_table(*_choose([cell("a", [trial(5.0, 2.0), trial(5.1, 2.0)])]))
    assert [column.heading for column in alone.columns] == ["cell", "energy, J", "time, s"]
    times = make_matrix_table(*_choose(by_cap({100.0: [(1.0, 2.0)], 200.0: [(1.0, 1.0)] * 2}), energy=False))
    assert [column.heading for column in times.columns][:3] == ["cap, W", "n", "time, s"]
    mixed = [cell("a", [trial(5.0, 2.0)] * 2, node="gpu", gpus=1), cell("b", [trial(6.0, 2.0)] * 2, node="cpu")]
    rows = make_matrix_table(*_choose(mixed)).rows
    assert [row.cells[:2] for row in rows] == [("gpu*", "1"), ("cpu", "-")]
    assert write_matrix(summarise_cells([])).count("note ") == 2


def _choose(cells: list, *, energy: bool = True) -> tuple[StudySummary, list]:  # type: ignore[type-arg]
    if not energy:
        cells = [replace(c, trials=tuple(replace(t, energy=None) for t in c.trials)) for c in cells]
    summary = summarise_cells(cells, goals=[Goal("energy")])
    return summary, choose_rows(summary)


def test_a_plan_names_values_and_counts_runs() -> None:
    assert word_knob("cap", [260.0, 100.0, 180.0, 100.0]) == "100 W, 180 W, 260 W"
    assert word_knob("batch", list(range(1, 10))) == "1 to 9 (9 values)"
    cells = [{"node": "gpu", "gpus": 1, "cap": 100.0}, {"node": "cpu", "cap": 100.0}]
    table = make_plan_table(cells, [{"done": 1, "to run": 2}, {"to run": 3}])
    assert [column.heading for column in table.columns] == ["node", "gpus", "done", "to run"]
    assert [row.cells for row in table.rows] == [("gpu", "1", 1, 2), ("cpu", "-", "", 3)]
