"""Test which cells are named best, within a limit, on the front, and what cannot be told apart from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.analysis.studies import by_cap, cell, noted, sweep, trial

from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.result import Check

GOALS = [Goal.parse(g) for g in ("energy", "time", "edp", "ed2p", "eds:1.5", "gain-loss", "energy@slowdown=5%")]


def test_the_best_cell_and_those_that_cannot_be_told_apart_from_it() -> None:
    points = {
        260.0: [(100.0, 10.0), (101.0, 10.1), (99.0, 9.9)],
        220.0: [(80.5, 10.2), (81.5, 10.3), (79.5, 10.1)],
        200.0: [(80.0, 10.4), (81.0, 10.5), (79.0, 10.3)],
        150.0: [(95.0, 14.0), (95.5, 14.1), (94.5, 13.9)],
    }
    found = summarise_cells(by_cap(points, gain=0.05), goals=GOALS)
    energy = found.best_for(Goal("energy"))
    assert energy is not None
    assert (energy.cell, energy.tied, energy.line) == ("c200", ("c220",), "")
    assert energy.score.value == pytest.approx(80.0)
    # The gain error is in the energy itself, not in what is saved.
    assert energy.score.expanded is not None
    assert energy.score.expanded > 8
    assert energy.improvement is not None
    assert energy.improvement.value == pytest.approx(0.2)
    assert energy.improvement.without("repeats").u < 1e-12
    time = found.best_for(Goal("time"))
    assert time is not None
    assert (time.cell, time.tied) == ("c260", ())  # 2 % apart: told apart by eight degrees of freedom
    assert time.improvement is not None
    assert time.improvement.value == 0.0


def test_a_slowdown_limit_is_kept_surely_possibly_or_not() -> None:
    points = {
        260.0: [(100.0, 10.0)] * 3,
        200.0: [(90.0, 10.1), (90.0, 10.12), (90.0, 10.08)],
        180.0: [(85.0, 10.45), (85.0, 10.65), (85.0, 10.3)],
        170.0: [(84.0, 10.52), (84.0, 10.72), (84.0, 10.35)],
        150.0: [(80.0, 13.0)] * 3,
    }
    best = summarise_cells(by_cap(points), goals=GOALS).best_for(Goal("energy", slowdown=0.05))
    assert best is not None
    assert best.cell == "c180"
    assert best.within == {"c260": "surely", "c200": "surely", "c180": "possibly", "c170": "possibly", "c150": "not"}
    assert best.tied == ("c170",)  # less energy, and perhaps within the limit


def test_unknown_accuracy_tells_nothing_apart_unless_repeated() -> None:
    def study(n: int) -> StudySummary:
        pairs = {260.0: 100.0, 200.0: 80.0}
        cells = [cell(f"c{c:g}", [trial(e, 10.0, known=False)] * n, cap=c) for c, e in pairs.items()]
        return summarise_cells(cells, goals=[Goal("energy")])

    once, twice = study(1).best_for(Goal("energy")), study(2).best_for(Goal("energy"))
    assert once is not None
    assert twice is not None
    assert (once.cell, once.tied) == ("c200", ("c260",))
    assert (twice.cell, twice.tied) == ("c200", ())
    assert "accuracy-unknown" in noted(study(2))
    assert study(2).fronts[0].cells == ("c200",)
    gain = study(2).cell("c200").gain
    assert gain is not None
    assert gain.expanded == 0.0


def test_all_lines_together_have_a_best_cell_against_the_fastest_reference() -> None:
    found = summarise_cells(sweep(gpus=(1, 8)), goals=GOALS)
    assert found.reference == "g8c260"
    for goal in GOALS:
        best = found.best_for(goal)
        assert best is not None
        assert best.line is None
        assert best.cell.startswith("g8")
        own = found.best_for(goal, "gpus=1")
        assert own is not None
        assert own.cell.startswith("g1")
    slow = found.best_for(Goal("energy", slowdown=0.05))
    assert slow is not None
    assert all(w == "not" for key, w in slow.within.items() if key.startswith("g1"))


def test_the_front_holds_what_no_cell_beats_in_time_and_energy() -> None:
    points = {
        260.0: [(100.0, 10.0), (100.2, 10.01), (99.8, 9.99)],
        250.0: [(100.1, 10.01), (100.3, 10.02), (99.9, 10.0)],
        200.0: [(80.0, 11.0)] * 3,
        180.0: [(79.0, 12.0)] * 3,
        150.0: [(95.0, 14.0)] * 3,
    }
    front = summarise_cells(by_cap(points)).front_for()
    assert front is not None
    assert front.cells == ("c260", "c200", "c180")
    assert front.unsure == ("c250",)


def test_cells_whose_caps_were_not_in_force_are_told_and_not_named_best() -> None:
    uncapped = Check("cap-not-enforced", "failed", "gpu:0", {"mean_w": 201.0, "cap_w": 100.0})
    cells = by_cap({260.0: [(100.0, 10.0)] * 2, 200.0: [(90.0, 10.0)] * 2, 100.0: [(50.0, 10.0)] * 2})
    doubted = (uncapped, *(Check("too-short", "warning", scope) for scope in ("gpu:0", "gpu:1")))
    bad = replace(cells[2].trials[0], doubts=doubted, uncapped=(uncapped,))
    cells[2] = replace(cells[2], trials=(bad, cells[2].trials[1]))
    found = summarise_cells(cells, goals=GOALS)
    assert {b.cell for b in found.best} <= {"c260", "c200"}
    assert not any("c100" in b.tied for b in found.best)
    front = found.front_for()
    assert front is not None
    assert "c100" not in front.cells + front.unsure
    assert noted(found)["not-capped"] == {"runs": 1, "cells": 1}
    assert noted(found)["warnings"] == {"warned": 1, "runs": 6}
    plain = found.to_json()["cells"][2]
    assert (plain["uncapped"], plain["doubts"]) == (1, {"cap not enforced": 1, "too short": 1})
    assert found.to_json()["cells"][0]["uncapped"] == 0
    against = summarise_cells(
        [replace(c, trials=(replace(c.trials[0], uncapped=(uncapped,)),) * 2) for c in cells], goals=GOALS
    )
    assert against.best == ()
    assert against.fronts == ()
    assert noted(against)["reference-not-capped"] == {"cells": 1}
    assert noted(against)["not-capped"] == {"runs": 6, "cells": 3}
    gaps = Check("gaps", "warning", "gpu:0")
    every = [replace(c, trials=tuple(replace(t, doubts=(gaps,)) for t in c.trials)) for c in cells]
    assert noted(summarise_cells(every))["warnings"] == {"warned": 6, "runs": 6}


def test_of_single_runs_no_spread_is_known_and_near_ones_are_not_told_apart() -> None:
    points = {260.0: [(100.0, 10.0)], 200.0: [(90.0, 10.2)], 180.0: [(80.0, 10.45)], 150.0: [(70.0, 13.0)]}
    found = summarise_cells(by_cap(points), goals=GOALS)
    near = found.cell("c200")
    for q in (near.time, near.gain, near.loss, near.edp, near.edp_gain, near.gain_minus_loss):
        assert q is not None
        assert q.expanded is None
    assert near.energy is not None
    assert near.energy.expanded == 0.0  # this run's energy, by its meter
    assert found.to_json()["cells"][1]["time"]["expanded"] is None
    itself = found.cell("c260").loss
    assert itself is not None
    assert itself.expanded == 0.0
    time = found.best_for(Goal("time"))
    assert time is not None
    assert (time.cell, set(time.tied)) == ("c260", {"c200", "c180"})
    limited = found.best_for(Goal("energy", slowdown=0.05))
    assert limited is not None
    assert limited.within == {"c260": "surely", "c200": "possibly", "c180": "possibly", "c150": "not"}
    assert noted(found)["one-run-each"] == {"cells": 4, "assumed_share": 0.05}
    far = summarise_cells(by_cap(points), goals=[Goal("energy", slowdown=0.2)]).best_for(Goal("energy", slowdown=0.2))
    assert far is not None
    assert far.within["c200"] == "surely"


@pytest.mark.parametrize("goal", ["energy", "edp", "ed2p", "eds:1.5", "gain-loss", "time", "energy@slowdown=900%"])
@pytest.mark.parametrize("spread", [0.05, 0.1, 0.2, 0.3])
def test_the_verdict_is_that_of_the_printed_gain(goal: str, spread: float) -> None:
    wanted = Goal.parse(goal)
    shares = (1 - spread, 1 + spread)
    points = {
        260.0: [(100.0 * s, 10.0 * s) for s in shares] * 2,
        100.0: [(60.0 * s, 7.0 * s) for s in shares] * 2,
    }
    best = summarise_cells(by_cap(points), goals=[wanted]).best_for(wanted)
    assert best is not None
    assert best.cell == "c100"
    assert best.improvement is not None
    assert best.improvement.expanded is not None
    assert (best.improvement.value > best.improvement.expanded) == (best.tied == ())
