"""Test how figures are judged, counted, shown and written; and how often the truth is covered."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.papers.prepared import figure, figures, told

from joulelab.core.quantity import Quantity
from joulelab.papers import comparison_tables, find, names, reproduction_text
from joulelab.papers import told as say
from joulelab.papers.covered import Covered, covered
from joulelab.papers.figure_judgement import NONE, POINTS, SHARE, STEP, Tolerance, count, marked, misses, printed
from joulelab.report.terminal import write_blocks


@pytest.mark.parametrize(
    ("published", "reproduced", "tolerance", "verdict"),
    [
        (100.0, 105.0, SHARE, "hit"),
        (100.0, 105.1, SHARE, "miss"),
        (100.0, 94.9, SHARE, "miss"),
        (-100.0, -104.0, SHARE, "hit"),
        (25.39, 23.4, POINTS, "hit"),
        (25.39, 23.3, POINTS, "miss"),
        (160, 170, STEP, "hit"),
        (160, 150.0, STEP, "hit"),
        (160, 180, STEP, "miss"),
        (4856.0, 4899.6, printed(43.6), "hit"),
        (4856.0, 4899.7, printed(43.6), "miss"),
        (100.0, None, SHARE, ""),
        (100.0, math.nan, SHARE, ""),
        ("much", 3.0, SHARE, ""),
        (None, 3.0, SHARE, ""),
    ],
)
def test_a_figure_is_within_its_tolerance_or_misses(
    published: float | str | None, reproduced: float | None, tolerance: Tolerance, verdict: str
) -> None:
    assert figure("x", published, reproduced, tolerance=tolerance).verdict == verdict


@given(st.floats(1e-3, 1e6), st.floats(-0.2, 0.2))
def test_deviations_are_in_the_figures_unit_and_relative(published: float, off: float) -> None:
    judged = figure("x", published, published * (1 + off))
    assert judged.deviation == pytest.approx(published * off, abs=1e-9 * published)
    assert judged.relative == pytest.approx(off, abs=1e-9)
    if abs(abs(off) - 0.05) > 1e-6:
        assert judged.verdict == ("hit" if abs(off) <= 0.05 else "miss")


def test_findings_hold_or_not_and_what_is_outside_is_not_judged() -> None:
    assert figure("x", "so it is", True, kind="finding", tolerance=NONE).verdict == "hit"
    assert figure("x", "so it is", False, kind="finding", tolerance=NONE).verdict == "miss"
    assert figure("x", "so it is", None, kind="finding", tolerance=NONE).verdict == ""
    assert figure("x", 1.0, 2.0, kind="outside").verdict == ""
    assert figure("x", 0.0, 1.0).relative is None


def test_what_a_twin_was_calibrated_on_is_no_prediction() -> None:
    before = figures()
    after = marked(before, {"p.median_w", "p.energy_kwh", "p.order"})
    assert [f.kind for f in after if f.id == "p.median_w"] == ["calibrated"]
    # An identity stays one: it would be counted neither way.
    assert [f.kind for f in after if f.id == "p.energy_kwh"] == ["identity"]
    assert [f.kind for f in after if f.id == "p.order"] == ["finding"]
    assert count(after, "predicted").total == count(before, "predicted").total - 1


def test_only_predictions_are_counted_and_one_without_a_result_is_no_hit() -> None:
    found = count(figures(), "predicted")
    assert (found.hits, found.misses, found.unjudged, found.total) == (3, 1, 1, 5)
    assert found.share == pytest.approx(0.6)
    assert math.isnan(count([], "predicted").share)
    assert [f.id for f in misses(figures())] == ["p.energy_kj", "p.grows"]
    assert say.counted(figures()).startswith("3 of 5 predictions (60.0 %) lie within the paper's own ±")
    assert say.counted(figures()).endswith("; 1 have no result")
    assert say.counted([]) == "no figure was predicted"


def test_the_tables_say_published_reproduced_deviation_and_tolerance_in_one_unit() -> None:
    table = comparison_tables.sections(figures())[1]
    median, energy, gain, cap, missing = (list(row.cells) for row in table.rows)
    assert [column.heading for column in table.columns] == [
        "figure",
        "published",
        "reproduced",
        "off by",
        "allowed",
        "",
    ]
    assert median == ["median power of the training", "4680 W", "4750 ± 48 W", "+1.5 %", "± 5 %", "hit"]
    assert energy[1:] == ["109 477.1 kJ", "111 000 kJ", "+1500 kJ", "± 1104.9 kJ", "MISS"]
    assert gain[1:] == ["25.39 %", "23.80 %", "-1.6 points", "± 2 points", "hit"]
    assert cap[1:] == ["160 W", "170 W", "+10 W", "± 10 W", "hit"]
    assert missing[1:] == ["85 s", "-", "-", "± 5 %", "-"]


def test_kinds_have_tables_of_their_own() -> None:
    titles = [table.title.partition(":")[0] for table in comparison_tables.sections(figures())]
    assert titles == ["Calibrated on", "Predicted", "Follows from the figures above", "Outside of a twin"]
    assert [c.heading for c in comparison_tables.sections(figures())[-1].columns] == [
        "figure",
        "published",
        "reproduced",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_has_everything_and_fits(width: int) -> None:
    printed_text = write_blocks(reproduction_text.lay_out_told(told(changes=["gpu.idle_w=30"])), width)
    assert max(len(line) for line in printed_text.splitlines()) <= width
    flat = " ".join(printed_text.split())
    for part in (
        "A study of caps",
        "one: 8 GPUs",
        "gpu.idle_w=30: it is not the calibrated twin any more",
        "680 runs of together 1 d 1 h, in virtual time: 42 s, seed 7",
        "Calibrated on",
        "yes cpu-mix uses most: 4.9 against 2.8 MJ",
        "NO savings grow",
        "MISS p.energy_kj: 111 000 kJ instead of 109 477.1 kJ (+1500 kJ, allowed ± 1104.9 kJ).",
        "The host sleeps less.",
        "MISS savings grow: does not hold. They shrink.",
        "3 of 5 predictions",
        "1 of 2 hold",
        "the true energy lies within the stated uncertainty in 679 of 680 runs (the widest is ± 1.2 %",
        "in at least 95 % of the runs of 67 of 68 cells, in 9 of 10 of the worst (train, cap 100 W)",
        "in 6100 of 6120",
        "assumed 2 numbers of the twin were chosen knowing what was published: cooling.fan_max_w, host; joulelab twin",
        "--show one tells where each is from",
        "The PDU costs 3 %.",
        "123 kWh",
        "p.quality_pct: needs the data",
        "here/figures.csv",
        "next -> joulelab ls",
    ):
        assert part in flat, part


def test_a_miss_without_a_reason_says_so() -> None:
    assert say.missed([figure("x", 1.0, 2.0)]) == ["x: 2 instead of 1 (+100 %, allowed ± 5 %). No reason is known."]


def test_what_was_there_already_and_what_is_left_is_said() -> None:
    assert say.ran(told(new=0)).endswith("; all were there already")
    assert say.ran(told(new=600)).endswith("; 80 were there already")
    assert say.ran(told(left=10, new=670)).startswith("670 of 680 runs of")
    assert dict(reproduction_text.summary(told(left=10)))["left"] == "10 of 680 runs have no result"
    assert say.coverage(Covered()) == "no run tells its true energy"


def test_markdown_and_latex_have_the_same_rows() -> None:
    markdown, latex = (
        reproduction_text.told_document(told(), "markdown"),
        reproduction_text.told_document(told(), "latex"),
    )
    knowing = "assumed: 2 numbers of the twin were chosen knowing what was published"
    for part in ("MISS", "4680 W", "+1.5 ", "Batches", "123 kWh", "savings grow", "679 of 680 runs", knowing):
        assert part in markdown, part
        assert part in latex, part
    assert r"$4750 \pm 48$ W" in latex
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 5


def test_csv_and_json_have_every_figure_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(comparison_tables.figures_csv([("p", figures()), ("q", figures()[:1])]))))
    assert [row["paper"] for row in rows] == ["p"] * 10 + ["q"]
    assert (rows[2]["allowed"], rows[2]["allowed_from"], rows[2]["verdict"]) == ("1104.9", "printed ±", "miss")
    assert float(rows[1]["expanded"]) == 48.0
    plain = json.loads(json.dumps(told().to_json(), allow_nan=False))
    assert [f["id"] for f in plain["figures"]] == [f.id for f in figures()]
    assert plain["counts"]["predicted"] == {"hits": 3, "misses": 1, "unjudged": 1}
    assert plain["assumed"] == ["cooling.fan_max_w", "host"]
    assert plain["covered"]["worst_cell"] == {"cell": "train, cap 100 W", "inside": 9, "slots": 10}
    assert plain["tables"][0]["records"] == [{"batch": 512}]
    assert comparison_tables.table_csv(told().tables[0]) == "batch\n512\n"


def test_the_truth_is_held_against_the_interval_of_what_is_judged() -> None:
    def energies(wall: float) -> dict[str, Quantity]:
        return {"node.ac": Quantity(wall, {"gain": 5.0}), "gpu:0": Quantity(100.0, {"gain": 1.0}), "x": Quantity(1.0)}

    true = {"node.ac": 1000.0, "gpu:0": 101.0}
    slots = [("a", energies(1010.0), true), ("b", energies(1011.0), true), ("c", {"x": Quantity(1.0)}, true)]
    found = covered(slots, "node.ac")
    assert (found.slots, found.inside, found.scopes, found.scopes_inside) == (2, 1, 4, 3)
    assert found.widest == pytest.approx(0.010)
    assert found.farthest == pytest.approx(0.011)
    assert (found.cells, found.cells_inside, found.worst) == (2, 1, ("b", 0, 1))
    by_gpu = covered([("a", energies(1011.0), true)], "gpu:0")
    assert (by_gpu.slots, by_gpu.inside) == (1, 1)
    # Nothing chosen: what is nearest to the wall.
    assert covered([("a", energies(1011.0), true)]).inside == 0
    unknown = {"node.ac": Quantity(1000.0, {}, known=False)}
    assert covered([("a", unknown, true)]).slots == 0


def test_a_short_job_that_is_missed_is_not_hidden_by_the_others() -> None:
    def slots(cell: str, inside: int, of: int) -> list[tuple[str, dict[str, Quantity], dict[str, float]]]:
        offs = [0.0] * inside + [20.0] * (of - inside)
        return [(cell, {"node.ac": Quantity(1000.0 + off, {"gain": 5.0})}, {"node.ac": 1000.0}) for off in offs]

    found = covered([*slots("long", 95, 100), *slots("short", 1, 5), *slots("other", 94, 100)])
    assert (found.slots, found.inside) == (205, 190)
    assert (found.cells, found.cells_inside, found.worst) == (3, 1, ("short", 1, 5))
    assert "in at least 95 % of the runs of 1 of 3 cells, in 1 of 5 of the worst (short)" in say.coverage(found)
    every = say.coverage(covered(slots("long", 3, 3)))
    assert every.endswith("; in at least 95 % of the runs of 1 of 1 cells")
    # One run each: cells are runs, which are counted already.
    assert "cells" not in say.coverage(covered([*slots("a", 1, 1), *slots("b", 0, 1)]))


@pytest.mark.parametrize(
    ("twins", "chosen", "said"),
    [
        (["one"], [], ""),
        (
            ["one"],
            ["host"],
            "1 number of the twin was chosen knowing what was published: host; joulelab twin --show one",
        ),
        (["a", "b"], ["a:x", "b:y"], "2 numbers of the twins were chosen knowing what was published: a:x, b:y; "),
        (["a", "b"], ["a:x"], "joulelab twin --show NODE tells where it is from"),
    ],
)
def test_what_was_chosen_knowing_is_told(twins: list[str], chosen: list[str], said: str) -> None:
    found = told(twins=dict.fromkeys(twins, ""), assumed=chosen)
    assert said in say.assumed(found)
    assert bool(say.assumed(found)) == ("assumed" in dict(reproduction_text.heading(found))) == bool(chosen)


def test_papers_are_found_by_their_module() -> None:
    from joulelab.core.errors import ConfigError

    assert set(names()) <= {"bnl", "horeka", "gdansk"}
    for name in names():
        assert find(name).name == name
    with pytest.raises(ConfigError, match="no paper 'gdanks'"):
        find("gdanks")
