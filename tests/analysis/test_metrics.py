"""Test what is told of a study: lines, references, the best cells, fronts, scaling, notes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tests.analysis.studies import by_cap, cell, sweep, trial

from joulelab.analysis.goal import Goal
from joulelab.analysis.lines import find_axis, knob_text, knob_value, level
from joulelab.analysis.metrics import Cell, Summary, Trial, summarise
from joulelab.analysis.study_notes import HALF
from joulelab.core.errors import ConfigError

GOALS = [Goal.parse(g) for g in ("energy", "time", "edp", "ed2p", "eds:1.5", "gain-loss", "energy@slowdown=5%")]


def _noted(summary: Summary, text: str) -> bool:
    return any(text in note for note in summary.notes)


def test_lines_are_cells_that_differ_by_the_cap_and_are_compared_with_the_highest() -> None:
    found = summarise(sweep(gpus=(2, 8), caps=(260, 100, 180)))
    assert [line.key for line in found.lines] == ["gpus=2", "gpus=8"]
    assert found.lines[1].cells == ("g8c100", "g8c180", "g8c260")
    assert [line.reference for line in found.lines] == ["g2c260", "g8c260"]
    assert found.reference == "g8c260"
    assert found.cell("g8c260").gain is not None
    assert repr(found.cell("g8c260").gain) == "0 ± 0"
    assert [c.key for c in found.of_line(found.lines[0])] == ["g2c100", "g2c180", "g2c260"]


def test_no_cap_at_all_is_above_every_cap() -> None:
    cells = [cell("a", [trial(1.0, 1.0)], cap=300.0), cell("b", [trial(2.0, 1.0)], cap=None)]
    assert summarise(cells).lines[0].reference == "b"


def test_without_caps_all_cells_are_one_line_compared_with_the_first() -> None:
    cells = [cell(f"b{b}", [trial(100.0 / b, 10.0)], batch=b, opt=o) for b, o in ((4, "x"), (2, "x"), (8, "y"))]
    found = summarise(cells)
    assert [(line.key, line.axis, line.cells, line.reference) for line in found.lines] == [
        ("", None, ("b4", "b2", "b8"), "b4")
    ]
    one = summarise([cell(f"b{b}", [trial(100.0 / b, 10.0)], batch=b) for b in (4, 2, 8)]).lines[0]
    assert (one.axis, one.cells, one.reference) == ("batch", ("b2", "b4", "b8"), "b4")


def test_another_reference_can_be_named_for_each_line_or_for_all() -> None:
    cells = sweep(gpus=(2, 8), caps=(100, 180, 260))
    each = summarise(cells, reference={"cap": 180})
    assert [line.reference for line in each.lines] == ["g2c180", "g8c180"]
    text = summarise(cells, reference={"cap": "180"})
    assert [line.reference for line in text.lines] == ["g2c180", "g8c180"]
    one = summarise(cells, reference={"gpus": 8})
    assert [line.reference for line in one.lines] == ["g8c260", "g8c260"]
    assert one.cell("g2c260").loss is not None
    assert one.cell("g2c260").loss.value > 1
    with pytest.raises(ConfigError, match="no cell has cap=170 W") as caught:
        summarise(cells, reference={"cap": 170.0})
    assert "there are cap 100 W, 180 W, 260 W; gpus 2, 8" in str(caught.value)


def test_a_line_that_lacks_the_reference_has_no_gains_and_says_so() -> None:
    cells = [c for c in sweep(gpus=(2, 8), caps=(100, 180, 260)) if c.key != "g2c180"]
    found = summarise(cells, goals=GOALS, reference={"cap": 180})
    assert [line.reference for line in found.lines] == [None, "g8c180"]
    assert found.cell("g2c100").gain is None
    assert _noted(found, "The reference has no run for gpus=2")
    assert found.best_for(Goal("edp"), "gpus=2") is not None
    assert found.best_for(Goal("gain-loss"), "gpus=2") is None
    assert found.best_for(Goal("energy", slowdown=0.05), "gpus=2") is None


def test_cells_that_were_not_run_are_kept_and_named() -> None:
    cells = [
        replace(c, trials=()) if c.key in ("g8c260", "g8c100") else c for c in sweep(gpus=(8,), caps=(100, 180, 260))
    ]
    found = summarise(cells, goals=[Goal("energy")])
    assert found.cell("g8c260").n == 0
    assert found.cell("g8c260").energy is None
    assert found.cell("g8c180").gain is None
    assert _noted(found, "2 of 3 cells have no run that succeeded: cap=100 W gpus=8; cap=260 W gpus=8.")
    assert _noted(found, "The reference has no run for gpus=8")
    nothing = summarise([replace(c, trials=()) for c in cells], goals=GOALS)
    assert nothing.notes == ("No run has succeeded yet.",)
    assert nothing.best == ()
    assert nothing.fronts == ()
    assert summarise([]).cells == ()


def test_many_missing_cells_are_counted() -> None:
    cells = [replace(c, trials=()) if c.knobs["cap"] < 200 else c for c in sweep(gpus=(8,), caps=range(100, 261, 20))]
    assert _noted(summarise(cells), "cap=160 W gpus=8 and 1 more.")


def test_the_best_cell_and_those_that_cannot_be_told_apart_from_it() -> None:
    points = {
        260.0: [(100.0, 10.0), (101.0, 10.1), (99.0, 9.9)],
        220.0: [(80.5, 10.2), (81.5, 10.3), (79.5, 10.1)],
        200.0: [(80.0, 10.4), (81.0, 10.5), (79.0, 10.3)],
        150.0: [(95.0, 14.0), (95.5, 14.1), (94.5, 13.9)],
    }
    found = summarise(by_cap(points, gain=0.05), goals=GOALS)
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
    best = summarise(by_cap(points), goals=GOALS).best_for(Goal("energy", slowdown=0.05))
    assert best is not None
    assert best.cell == "c180"
    assert best.within == {"c260": "surely", "c200": "surely", "c180": "possibly", "c170": "possibly", "c150": "not"}
    assert best.tied == ("c170",)  # less energy, and perhaps within the limit


def test_unknown_accuracy_tells_nothing_apart_unless_repeated() -> None:
    def study(n: int) -> Summary:
        pairs = {260.0: 100.0, 200.0: 80.0}
        cells = [cell(f"c{c:g}", [trial(e, 10.0, known=False)] * n, cap=c) for c, e in pairs.items()]
        return summarise(cells, goals=[Goal("energy")])

    once, twice = study(1).best_for(Goal("energy")), study(2).best_for(Goal("energy"))
    assert once is not None
    assert twice is not None
    assert (once.cell, once.tied) == ("c200", ("c260",))
    assert (twice.cell, twice.tied) == ("c200", ())
    assert _noted(study(2), "accuracy is unknown")
    assert study(2).fronts[0].cells == ("c200",)
    gain = study(2).cell("c200").gain
    assert gain is not None
    assert gain.expanded == 0.0


def test_all_lines_together_have_a_best_cell_against_the_fastest_reference() -> None:
    found = summarise(sweep(gpus=(1, 8)), goals=GOALS)
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
    front = summarise(by_cap(points)).front_for()
    assert front is not None
    assert front.cells == ("c260", "c200", "c180")
    assert front.unsure == ("c250",)


def test_scaling_tells_speed_up_efficiency_and_energy_at_each_cap() -> None:
    found = summarise(sweep(gpus=(8, 1, 2), caps=(180, 260)))
    assert [s.key for s in found.scaling] == ["cap=180 W", "cap=260 W"]
    points = found.scaling[1].points
    assert [p.gpus for p in points] == [1, 2, 8]
    assert points[0].speedup.value == 1.0
    assert points[0].speedup.u == pytest.approx(0.0, abs=1e-15)
    assert points[2].speedup.value == pytest.approx(4.95, rel=0.01)
    assert points[2].efficiency.value == pytest.approx(4.95 / 8, rel=0.01)
    assert points[2].speedup.u > 0
    assert points[2].energy_ratio is not None
    assert set(points[2].energy_ratio.budget()) >= {"repeats", "offset"}
    assert points[2].energy_ratio.value < 1


def test_cells_without_a_count_or_a_time_do_not_scale() -> None:
    cells = [
        cell("a", [trial(1.0, 0.0)], gpus=1),
        cell("b", [trial(1.0, 1.0)], gpus=2),
        cell("c", [trial(1.0, 1.0)], x=1),
    ]
    assert summarise(cells).scaling == ()
    assert summarise([cell("a", [trial(1.0, 1.0)], gpus=0), cell("b", [trial(1.0, 1.0)], gpus=2)]).scaling == ()


def test_different_amounts_of_work_are_compared_per_unit() -> None:
    def made(key: str, cap: float, energy: float, time: float, tokens: float) -> Cell:
        return Cell(key, {"cap": cap}, tuple(replace(trial(energy, time), work={"tokens": tokens}) for _ in range(2)))

    cells = [made("a", 260.0, 100.0, 10.0, 1000.0), made("b", 200.0, 160.0, 21.0, 2000.0)]
    found = summarise(cells, goals=GOALS)
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
    assert _noted(found, "per unit of tokens, EDP per unit squared")
    alike = summarise([cells[0], made("b", 200.0, 160.0, 21.0, 1000.9)])
    assert alike.lines[0].per is None
    assert not _noted(alike, "Amounts of work")


def _batches() -> list[Cell]:
    """Return runs of equal steps and energy, and four times the samples; each also tells its epochs."""
    amounts = (("a", 16, 320.0, 1.0), ("b", 64, 1280.0, 1.1))
    return [
        Cell(key, {"batch": b}, (replace(trial(1.0, 1.0), work={"steps": 20.0, "samples": s, "epochs": e}),) * 2)
        for key, b, s, e in amounts
    ]


def test_runs_are_compared_per_the_work_that_is_named() -> None:
    named = summarise(_batches(), goals=[Goal("energy")], per=["epochs"])
    assert named.lines[0].per == "epochs"
    assert _noted(named, "per unit of epochs, EDP per unit squared, as is asked for. --per steps compares otherwise.")
    second = summarise(_batches(), per=["tokens", "samples"])
    assert second.lines[0].per == "samples"
    assert _noted(second, "Not all runs report tokens: it is not compared by.")
    gain = second.cell("b").gain
    assert gain is not None
    assert gain.value == pytest.approx(0.75)
    whole = summarise(_batches(), per=["steps"])
    assert whole.lines[0].per is None
    assert _noted(whole, "steps is the same in all runs, as it is asked for: they are compared whole, although samples")


def test_without_a_name_runs_are_compared_per_the_work_that_differs_most() -> None:
    found = summarise(_batches(), goals=[Goal("energy")])
    assert found.lines[0].per == "samples"
    assert _noted(
        found, "per unit of samples, EDP per unit squared, which differ most. --per steps compares otherwise."
    )
    best = found.best_for(Goal("energy"))
    assert best is not None
    assert (best.cell, best.tied) == ("b", ())


def test_cells_whose_caps_were_not_in_force_are_told_and_not_named_best() -> None:
    said = "gpu:0: 201 W on average above the cap of 100 W"
    cells = by_cap({260.0: [(100.0, 10.0)] * 2, 200.0: [(90.0, 10.0)] * 2, 100.0: [(50.0, 10.0)] * 2})
    doubted = (f"cap not enforced: {said}", "too short: gpu:0", "too short: gpu:1")
    bad = replace(cells[2].trials[0], doubts=doubted, uncapped=(said,))
    cells[2] = replace(cells[2], trials=(bad, cells[2].trials[1]))
    found = summarise(cells, goals=GOALS)
    assert {b.cell for b in found.best} <= {"c260", "c200"}
    assert not any("c100" in b.tied for b in found.best)
    front = found.front_for()
    assert front is not None
    assert "c100" not in front.cells + front.unsure
    assert _noted(found, f"! The cap was not in force in 1 run of cap=100 W ({said})")
    assert _noted(found, "Runs doubt themselves: too short in 1 of 6 runs (cap=100 W). See doubts in slots.csv.")
    plain = found.to_json()["cells"][2]
    assert (plain["uncapped"], plain["doubts"]) == (1, {"cap not enforced": 1, "too short": 1})
    assert found.to_json()["cells"][0]["uncapped"] == 0
    against = summarise([replace(c, trials=(replace(c.trials[0], uncapped=(said,)),) * 2) for c in cells], goals=GOALS)
    assert against.best == ()
    assert against.fronts == ()
    assert _noted(against, "! cap=260 W is what others are compared with")
    assert _noted(against, "in 6 runs of cap=260 W; cap=200 W; cap=100 W")
    every = [replace(c, trials=tuple(replace(t, doubts=("gaps: x",)) for t in c.trials)) for c in cells]
    assert _noted(summarise(every), "gaps in 6 of 6 runs. See")


def test_of_single_runs_no_spread_is_known_and_near_ones_are_not_told_apart() -> None:
    points = {260.0: [(100.0, 10.0)], 200.0: [(90.0, 10.2)], 180.0: [(80.0, 10.45)], 150.0: [(70.0, 13.0)]}
    found = summarise(by_cap(points), goals=GOALS)
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
    assert _noted(found, "told apart as if it were ±5%; repeat them to know")
    far = summarise(by_cap(points), goals=[Goal("energy", slowdown=0.2)]).best_for(Goal("energy", slowdown=0.2))
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
    best = summarise(by_cap(points), goals=[wanted]).best_for(wanted)
    assert best is not None
    assert best.cell == "c100"
    assert best.improvement is not None
    assert best.improvement.expanded is not None
    assert (best.improvement.value > best.improvement.expanded) == (best.tied == ())


def test_a_run_without_a_cap_among_capped_ones_says_so() -> None:
    cells = [cell("a", [trial(1.0, 1.0)], cap=150.0, gpus=2), cell("b", [trial(2.0, 1.0)], gpus=2)]
    found = summarise(cells, goals=[Goal("energy")])
    assert [(line.key, line.axis, line.reference) for line in found.lines] == [("gpus=2", "cap", "b")]
    assert found.cell("b").knobs == {"cap": None, "gpus": 2}
    assert knob_text({"cap": None, "clock": None, "x": None}) == "no cap no locked clock x=None"
    assert knob_value("cpu_cap", None) == "no CPU cap"


def test_lines_of_different_work_are_compared_within_themselves_only() -> None:
    def made(model: str, cap: float, work: dict[str, float]) -> Cell:
        return Cell(f"{model}{cap:g}", {"cap": cap, "model": model}, (replace(trial(cap, 1.0), work=work),))

    cells = [
        made("vision", 260.0, {"images": 10.0}),
        made("vision", 200.0, {"images": 20.0}),
        made("text", 260.0, {"tokens": 99.0}),
        made("text", 200.0, {"tokens": 99.0}),
    ]
    found = summarise(cells, goals=GOALS)
    assert [line.per for line in found.lines] == ["images", None]
    assert found.best_for(Goal("energy")) is None
    assert found.front_for() is None
    assert found.reference is None
    assert _noted(found, "compared within their line only")
    pinned = summarise(cells, reference={"model": "vision"})
    assert [line.reference for line in pinned.lines] == ["vision260", None]


def test_notes_say_what_the_figures_do_not() -> None:
    def once(**terms: float) -> list[Cell]:
        return by_cap({260.0: [(100.0, 10.0)], 200.0: [(80.0, 10.0)]}, **terms)

    assert _noted(summarise(once()), "One run each")
    mixed = by_cap({260.0: [(100.0, 10.0)] * 2, 200.0: [(80.0, 10.0)]})
    assert _noted(summarise(mixed), "1 of 2 cells has one run only")
    assert not _noted(summarise(by_cap({260.0: [(100.0, 10.0)] * 2})), "one run")
    assert _noted(summarise(once()), "No work was reported")
    assert not _noted(summarise(sweep()), "work")
    assert _noted(summarise(once(unseen=0.1)), "in step with the sensors")
    assert not _noted(summarise(by_cap({260.0: [(100.0, 10.0)] * 3}, unseen=0.1)), "in step")
    assert HALF in summarise(once()).notes
    assert HALF not in summarise(once(), ks=(1.5,)).notes
    moved = [once()[0], replace(once()[1], trials=(trial(80.0, 10.0, meter="other"),))]
    assert _noted(summarise(moved), "Not all runs were measured by the same devices")
    assert not _noted(summarise(once()), "estimates")
    guessed = [replace(c, trials=tuple(replace(t, estimate=True) for t in c.trials)) for c in once()]
    assert _noted(summarise([once()[0], guessed[1]]), "~ 1 of 2 cells has energies that are estimates")
    assert _noted(summarise([*guessed, Cell("z", {"cap": 1.0})]), "~ All cells have energies that are estimates")


def test_without_a_meter_times_are_compared() -> None:
    cells = [cell(f"c{c:g}", [trial(None, t)] * 2, cap=c) for c, t in ((260.0, 10.0), (200.0, 11.0))]
    found = summarise(cells, goals=[*GOALS, Goal("eds", 1.0)])
    assert _noted(found, "No power meter was read")
    assert HALF not in found.notes
    assert found.cell("c200").loss is not None
    assert found.cell("c200").gain is None
    assert {b.goal.text for b in found.best} == {"time", "eds:1"}
    some = [replace(cells[0], trials=(trial(5.0, 10.0), trial(None, 10.0))), cells[1]]
    assert _noted(summarise(some), "3 of 4 runs have no energy")
    first = summarise(some).cell("c260")
    assert first.energy is not None
    assert first.energy.value == 5.0


def test_idle_share_and_deviations_are_carried() -> None:
    found = summarise(sweep(gpus=(2,), n=4)).cells[0]
    assert found.idle_energy_share is not None
    assert found.idle_energy_share.value == 0.75
    assert found.energy_deviation is not None
    assert found.time_deviation is not None
    assert 0 < found.time_deviation < 10
    single = summarise([Cell("a", {}, (Trial(None, 1.0),))]).cells[0]
    assert single.idle_energy_share is None
    assert single.time_deviation is None


def test_a_summary_is_plain_data() -> None:
    found = summarise(sweep(gpus=(2, 8)), goals=GOALS)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["schema"] == 1
    assert plain["goals"] == [g.text for g in GOALS]
    first = plain["cells"][0]
    assert first["n"] == 5
    assert first["knobs"] == {"cap": 100.0, "gpus": 2}
    assert set(first["eds_gain"]) == {"1.5", "2"}
    assert first["gain"]["expanded"] > 0
    assert first["trials"][0]["run"] == "run-2-100-0"
    assert plain["best"][0]["goal"] == "energy"
    assert plain["lines"][0]["reference"] == "g2c260"
    odd = summarise([cell("a", [trial(1.0, math.inf)], cap=1.0, on=True)]).to_json()
    assert odd["cells"][0]["trials"][0]["time_s"] is None


def test_every_k_that_a_goal_names_is_worked_out() -> None:
    found = summarise(sweep(gpus=(8,)), goals=[Goal("eds", 3.0)], ks=(2.0,))
    assert found.ks == (2.0, 3.0)
    assert set(found.cells[0].eds) == {2.0, 3.0}
    assert found.cell("g8c260").eds[3.0].value == 1.0
    with pytest.raises(KeyError):
        found.cell("nothing")


def test_knobs_are_written_with_their_units() -> None:
    assert knob_text({"cap": 170.0, "gpus": 8, "model": "x", "fast": True}) == "cap=170 W gpus=8 model=x fast=True"
    assert knob_value("clock", 1.2e9) == "1200 MHz"
    assert knob_value("cap", 0.65) == "65 %"
    assert knob_value("cpu_cap", 120) == "120 W"
    assert [level(v) for v in (3, "65%", "170 W", "1.2e9 Hz", None, "off")] == [3, 65, 170, 1.2e9, math.inf, math.inf]


def test_the_axis_is_the_cap_that_varies() -> None:
    assert find_axis([cell("a", [], cap=1.0, cpu_cap=1.0), cell("b", [], cap=1.0, cpu_cap=2.0)]) == "cpu_cap"
    assert find_axis([cell("a", [], cap=1.0, batch=1), cell("b", [], cap=1.0, batch=2)]) == "cap"
    assert find_axis([cell("a", [], batch=1)]) is None
