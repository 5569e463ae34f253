"""Test per what kind of work cells are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.analysis.studies import noted, trial

from joulelab.analysis.cell_metrics import Cell, summarise_cells
from joulelab.analysis.goals import Goal

GOALS = [Goal.parse(g) for g in ("energy", "time", "edp", "ed2p", "eds:1.5", "gain-loss", "energy@slowdown=5%")]


def test_different_amounts_of_work_are_compared_per_unit() -> None:
    def made(key: str, cap: float, energy: float, time: float, tokens: float) -> Cell:
        return Cell(key, {"cap": cap}, tuple(replace(trial(energy, time), work={"tokens": tokens}) for _ in range(2)))

    cells = [made("a", 260.0, 100.0, 10.0, 1000.0), made("b", 200.0, 160.0, 21.0, 2000.0)]
    found = summarise_cells(cells, goals=GOALS)
    assert found.lines[0].per == "tokens"
    b = found.cell("b")
    assert b.energy is not None
    assert b.energy.value == 160.0
    assert b.gain is not None
    assert b.gain.value == pytest.approx(0.2)
    assert b.loss is not None
    assert b.loss.value == pytest.approx(0.05)
    assert b.edp is not None
    assert b.edp.value == pytest.approx(160 * 21 / 2000**2)
    assert "work.differs" in noted(found)
    alike = summarise_cells([cells[0], made("b", 200.0, 160.0, 21.0, 1000.9)])
    assert alike.lines[0].per is None
    assert not any(code.startswith("work.") for code in noted(alike))


def _batches() -> list[Cell]:
    """Return runs of equal steps and energy, and four times the samples; each also tells its epochs."""
    amounts = (("a", 16, 320.0, 1.0), ("b", 64, 1280.0, 1.1))
    return [
        Cell(key, {"batch": b}, (replace(trial(1.0, 1.0), work={"steps": 20.0, "samples": s, "epochs": e}),) * 2)
        for key, b, s, e in amounts
    ]


def test_runs_are_compared_per_the_work_that_is_named() -> None:
    named = summarise_cells(_batches(), goals=[Goal("energy")], per=["epochs"])
    assert named.lines[0].per == "epochs"
    assert "work.asked-for" in noted(named)
    second = summarise_cells(_batches(), per=["tokens", "samples"])
    assert second.lines[0].per == "samples"
    assert "work.lacking" in noted(second)
    gain = second.cell("b").gain
    assert gain is not None
    assert gain.value == pytest.approx(0.75)
    whole = summarise_cells(_batches(), per=["steps"])
    assert whole.lines[0].per is None
    assert "work.whole" in noted(whole)


def test_without_a_name_runs_are_compared_per_the_work_that_differs_most() -> None:
    found = summarise_cells(_batches(), goals=[Goal("energy")])
    assert found.lines[0].per == "samples"
    assert "work.differs" in noted(found)
    best = found.best_for(Goal("energy"))
    assert best is not None
    assert (best.cell, best.tied) == ("b", ())


def test_lines_of_different_work_are_compared_within_themselves_only() -> None:
    def made(model: str, cap: float, work: dict[str, float]) -> Cell:
        return Cell(f"{model}{cap:g}", {"cap": cap, "model": model}, (replace(trial(cap, 1.0), work=work),))

    cells = [
        made("vision", 260.0, {"images": 10.0}),
        made("vision", 200.0, {"images": 20.0}),
        made("text", 260.0, {"tokens": 99.0}),
        made("text", 200.0, {"tokens": 99.0}),
    ]
    found = summarise_cells(cells, goals=GOALS)
    assert [line.per for line in found.lines] == ["images", None]
    assert found.best_for(Goal("energy")) is None
    assert found.front_for() is None
    assert found.reference is None
    assert "work.kinds-differ" in noted(found)
    pinned = summarise_cells(cells, reference={"model": "vision"})
    assert [line.reference for line in pinned.lines] == ["vision260", None]
