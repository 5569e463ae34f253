"""Test what is told of a study: lines, references, scaling, notes, plain data."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tests.analysis.studies import by_cap, cell, noted, sweep, trial

from joulelab.analysis.cell_lines import find_axis, format_knob, format_knobs, rank_value
from joulelab.analysis.cell_metrics import Cell, Trial, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.core.errors import ConfigError

GOALS = [Goal.parse(g) for g in ("energy", "time", "edp", "ed2p", "eds:1.5", "gain-loss", "energy@slowdown=5%")]


def test_lines_are_cells_that_differ_by_the_cap_and_are_compared_with_the_highest() -> None:
    found = summarise_cells(sweep(gpus=(2, 8), caps=(260, 100, 180)))
    assert [line.key for line in found.lines] == ["gpus=2", "gpus=8"]
    assert found.lines[1].cells == ("g8c100", "g8c180", "g8c260")
    assert [line.reference for line in found.lines] == ["g2c260", "g8c260"]
    assert found.reference == "g8c260"
    assert found.cell("g8c260").gain is not None
    assert repr(found.cell("g8c260").gain) == "0"
    assert [c.key for c in found.list_line_cells(found.lines[0])] == ["g2c100", "g2c180", "g2c260"]


def test_no_cap_at_all_is_above_every_cap() -> None:
    cells = [cell("a", [trial(1.0, 1.0)], cap=300.0), cell("b", [trial(2.0, 1.0)], cap=None)]
    assert summarise_cells(cells).lines[0].reference == "b"


def test_without_caps_all_cells_are_one_line_compared_with_the_first() -> None:
    cells = [cell(f"b{b}", [trial(100.0 / b, 10.0)], batch=b, opt=o) for b, o in ((4, "x"), (2, "x"), (8, "y"))]
    found = summarise_cells(cells)
    assert [(line.key, line.axis, line.cells, line.reference) for line in found.lines] == [
        ("", None, ("b4", "b2", "b8"), "b4")
    ]
    one = summarise_cells([cell(f"b{b}", [trial(100.0 / b, 10.0)], batch=b) for b in (4, 2, 8)]).lines[0]
    assert (one.axis, one.cells, one.reference) == ("batch", ("b2", "b4", "b8"), "b4")


def test_another_reference_can_be_named_for_each_line_or_for_all() -> None:
    cells = sweep(gpus=(2, 8), caps=(100, 180, 260))
    each = summarise_cells(cells, reference={"cap": 180})
    assert [line.reference for line in each.lines] == ["g2c180", "g8c180"]
    text = summarise_cells(cells, reference={"cap": "180"})
    assert [line.reference for line in text.lines] == ["g2c180", "g8c180"]
    one = summarise_cells(cells, reference={"gpus": 8})
    assert [line.reference for line in one.lines] == ["g8c260", "g8c260"]
    assert one.cell("g2c260").loss is not None
    assert one.cell("g2c260").loss.value > 1
    with pytest.raises(ConfigError) as caught:
        summarise_cells(cells, reference={"cap": 170.0})
    assert caught.value.code == "config.unknown-cell"


def test_a_line_that_lacks_the_reference_has_no_gains_and_says_so() -> None:
    cells = [c for c in sweep(gpus=(2, 8), caps=(100, 180, 260)) if c.key != "g2c180"]
    found = summarise_cells(cells, goals=GOALS, reference={"cap": 180})
    assert [line.reference for line in found.lines] == [None, "g8c180"]
    assert found.cell("g2c100").gain is None
    assert noted(found)["reference-missing"] == {"lines": 1}
    assert found.best_for(Goal("edp"), "gpus=2") is not None
    assert found.best_for(Goal("gain-loss"), "gpus=2") is None
    assert found.best_for(Goal("energy", slowdown=0.05), "gpus=2") is None


def test_cells_that_were_not_run_are_kept_and_named() -> None:
    cells = [
        replace(c, trials=()) if c.key in ("g8c260", "g8c100") else c for c in sweep(gpus=(8,), caps=(100, 180, 260))
    ]
    found = summarise_cells(cells, goals=[Goal("energy")])
    assert found.cell("g8c260").n == 0
    assert found.cell("g8c260").energy is None
    assert found.cell("g8c180").gain is None
    assert noted(found)["cells-missing"] == {"missing": 2, "cells": 3}
    assert noted(found)["reference-missing"] == {"lines": 1}
    nothing = summarise_cells([replace(c, trials=()) for c in cells], goals=GOALS)
    assert list(noted(nothing)) == ["no-results"]
    assert nothing.best == ()
    assert nothing.fronts == ()
    assert summarise_cells([]).cells == ()


def test_scaling_tells_speed_up_efficiency_and_energy_at_each_cap() -> None:
    found = summarise_cells(sweep(gpus=(8, 1, 2), caps=(180, 260)))
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
    assert summarise_cells(cells).scaling == ()
    assert summarise_cells([cell("a", [trial(1.0, 1.0)], gpus=0), cell("b", [trial(1.0, 1.0)], gpus=2)]).scaling == ()


def test_a_run_without_a_cap_among_capped_ones_says_so() -> None:
    cells = [cell("a", [trial(1.0, 1.0)], cap=150.0, gpus=2), cell("b", [trial(2.0, 1.0)], gpus=2)]
    found = summarise_cells(cells, goals=[Goal("energy")])
    assert [(line.key, line.axis, line.reference) for line in found.lines] == [("gpus=2", "cap", "b")]
    assert found.cell("b").knobs == {"cap": None, "gpus": 2}
    assert format_knobs({"cap": None, "clock": None, "x": None}) == "no cap no locked clock x=None"
    assert format_knob("cpu_cap", None) == "no CPU cap"


def test_notes_say_what_the_figures_do_not() -> None:
    def once(**terms: float) -> list[Cell]:
        return by_cap({260.0: [(100.0, 10.0)], 200.0: [(80.0, 10.0)]}, **terms)

    assert list(noted(summarise_cells(once()))) == ["one-run-each", "work.none", "eds-is-half"]
    mixed = by_cap({260.0: [(100.0, 10.0)] * 2, 200.0: [(80.0, 10.0)]})
    assert noted(summarise_cells(mixed))["one-run.unknown"] == {"single": 1, "cells": 2, "assumed_share": 0.05}
    assert not any("one-run" in code for code in noted(summarise_cells(by_cap({260.0: [(100.0, 10.0)] * 2}))))
    assert not any("work" in code for code in noted(summarise_cells(sweep())))
    assert noted(summarise_cells(once(unseen=0.1)))["unseen"] == {"repeats": 3}
    assert "unseen" not in noted(summarise_cells(by_cap({260.0: [(100.0, 10.0)] * 3}, unseen=0.1)))
    assert "eds-is-half" not in noted(summarise_cells(once(), ks=(1.5,)))
    moved = [once()[0], replace(once()[1], trials=(trial(80.0, 10.0, meter="other"),))]
    assert "meters-differ" in noted(summarise_cells(moved))
    guessed = [replace(c, trials=tuple(replace(t, estimate=True) for t in c.trials)) for c in once()]
    assert noted(summarise_cells([once()[0], guessed[1]]))["estimates"] == {"estimated": 1, "cells": 2}
    assert noted(summarise_cells([*guessed, Cell("z", {"cap": 1.0})]))["estimates"] == {"estimated": 2, "cells": 3}


def test_without_a_meter_times_are_compared() -> None:
    cells = [cell(f"c{c:g}", [trial(None, t)] * 2, cap=c) for c, t in ((260.0, 10.0), (200.0, 11.0))]
    found = summarise_cells(cells, goals=[*GOALS, Goal("eds", 1.0)])
    assert "no-meter" in noted(found)
    assert "eds-is-half" not in noted(found)
    assert found.cell("c200").loss is not None
    assert found.cell("c200").gain is None
    assert {b.goal.text for b in found.best} == {"time", "eds:1"}
    some = [replace(cells[0], trials=(trial(5.0, 10.0), trial(None, 10.0))), cells[1]]
    assert noted(summarise_cells(some))["energy-missing"] == {"missing": 3, "runs": 4}
    first = summarise_cells(some).cell("c260")
    assert first.energy is not None
    assert first.energy.value == 5.0


def test_idle_share_and_deviations_are_carried() -> None:
    found = summarise_cells(sweep(gpus=(2,), n=4)).cells[0]
    assert found.idle_energy_share is not None
    assert found.idle_energy_share.value == 0.75
    assert found.energy_deviation is not None
    assert found.time_deviation is not None
    assert 0 < found.time_deviation < 10
    single = summarise_cells([Cell("a", {}, (Trial(None, 1.0),))]).cells[0]
    assert single.idle_energy_share is None
    assert single.time_deviation is None


def test_a_summary_is_plain_data() -> None:
    found = summarise_cells(sweep(gpus=(2, 8)), goals=GOALS)
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
    odd = summarise_cells([cell("a", [trial(1.0, math.inf)], cap=1.0, on=True)]).to_json()
    assert odd["cells"][0]["trials"][0]["time_s"] is None


def test_every_k_that_a_goal_names_is_worked_out() -> None:
    found = summarise_cells(sweep(gpus=(8,)), goals=[Goal("eds", 3.0)], ks=(2.0,))
    assert found.ks == (2.0, 3.0)
    assert set(found.cells[0].eds) == {2.0, 3.0}
    assert found.cell("g8c260").eds[3.0].value == 1.0
    with pytest.raises(KeyError):
        found.cell("nothing")


def test_knobs_are_written_with_their_units() -> None:
    assert format_knobs({"cap": 170.0, "gpus": 8, "model": "x", "fast": True}) == "cap=170 W gpus=8 model=x fast=True"
    assert format_knob("clock", 1.2e9) == "1200 MHz"
    assert format_knob("cap", 0.65) == "65 %"
    assert format_knob("cpu_cap", 120) == "120 W"
    assert [rank_value(v) for v in (3, "65%", "170 W", "1.2e9 Hz", None, "off")] == [
        3,
        65,
        170,
        1.2e9,
        math.inf,
        math.inf,
    ]


def test_the_axis_is_the_cap_that_varies() -> None:
    assert find_axis([cell("a", [], cap=1.0, cpu_cap=1.0), cell("b", [], cap=1.0, cpu_cap=2.0)]) == "cpu_cap"
    assert find_axis([cell("a", [], cap=1.0, batch=1), cell("b", [], cap=1.0, batch=2)]) == "cap"
    assert find_axis([cell("a", [], batch=1)]) is None
