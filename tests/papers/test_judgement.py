"""Test how figures are judged, grouped, counted, shown and written; and how often the truth is covered."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.papers.prepared import make_figure, make_figures, make_reproduction
from tests.rows import every_row

from joulelab.core.quantity import Quantity
from joulelab.papers import reproduction_text as text
from joulelab.papers.judgement import (
    NO_TOLERANCE,
    SHARE,
    STEP,
    FigureEntry,
    Tolerance,
    count_kind,
    count_strictly,
    count_verdicts,
    group_figures,
    list_misses,
    make_gain_tolerance,
    make_printed_tolerance,
)
from joulelab.papers.paper import fill_words
from joulelab.papers.reproduction import TruthCoverage, count_coverage
from joulelab.report.study_csv import write_records
from joulelab.report.terminal import write_blocks


@every_row(
    ("published", "reproduced", "tolerance", "verdict"),
    [
        (100.0, 105.0, SHARE, "hit"),
        (100.0, 105.1, SHARE, "miss"),
        (100.0, 94.9, SHARE, "miss"),
        (-100.0, -104.0, SHARE, "hit"),
        (25.39, 23.4, make_gain_tolerance(25.39), "hit"),
        (25.39, 23.3, make_gain_tolerance(25.39), "miss"),
        (2.26, 3.9, make_gain_tolerance(2.26), "miss"),
        (160, 170, STEP, "hit"),
        (160, 150.0, STEP, "hit"),
        (160, 180, STEP, "miss"),
        (4856.0, 4899.6, make_printed_tolerance(43.6), "hit"),
        (4856.0, 4899.7, make_printed_tolerance(43.6), "miss"),
        (100.0, None, SHARE, ""),
        (100.0, math.nan, SHARE, ""),
        ("much", 3.0, SHARE, ""),
        (None, 3.0, SHARE, ""),
    ],
)
def test_a_figure_is_within_its_tolerance_or_misses(
    published: float | str | None, reproduced: float | None, tolerance: Tolerance, verdict: str
) -> None:
    assert make_figure("x", published, reproduced, tolerance=tolerance).verdict == verdict


@every_row(
    ("gain", "points"),
    [(25.39, 2.0), (15.03, 1.503), (11.5, 1.15), (2.26, 0.226), (3, 0.5), (0.1, 0.05), (-7.52, 0.752)],
)
def test_a_gain_may_be_off_by_a_tenth_of_it_or_its_rounding_and_by_two_points_at_most(
    gain: float, points: float
) -> None:
    assert make_gain_tolerance(gain).get_limit(gain) == pytest.approx(points)


@given(st.floats(1e-3, 1e6), st.floats(-0.2, 0.2))
def test_deviations_are_in_the_figures_unit_and_relative(published: float, off: float) -> None:
    judged = make_figure("x", published, published * (1 + off))
    assert judged.deviation == pytest.approx(published * off, abs=1e-9 * published)
    assert judged.relative == pytest.approx(off, abs=1e-9)
    if abs(abs(off) - 0.05) > 1e-6:
        assert judged.verdict == ("hit" if abs(off) <= 0.05 else "miss")


def test_findings_hold_or_not_and_what_is_outside_is_not_judged() -> None:
    for holds, verdict in ((True, "hit"), (False, "miss"), (None, "")):
        assert make_figure("x", "so it is", holds, kind="finding", tolerance=NO_TOLERANCE).verdict == verdict
    assert make_figure("x", 1.0, 2.0, kind="outside").verdict == ""
    assert make_figure("x", 0.0, 1.0).relative is None


def test_groups_follow_from_what_was_fitted_and_chosen() -> None:
    def entry(name: str, **more: tuple[str, ...]) -> FigureEntry:
        return FigureEntry(id=name, label=name, published=name, **more)  # type: ignore[arg-type]

    runs = [
        each
        for run in "abcd"
        for each in (
            entry(f"{run}.w", follows=(f"{run}.j", f"{run}.s")),
            entry(f"{run}.s"),
            entry(f"{run}.j", factors=(f"{run}.w", f"{run}.s")),
        )
    ]
    more = [
        entry("book.s", fixed_by=("a.s",)),
        entry("book.j", fixed_by=("a.w", "book.s")),
        entry("ratio", follows=("c.j",)),
    ]
    groups = group_figures([*runs, *more], {"a.w", "a.s", "b.s"}, {"d.w"})
    # Both factors were fitted: so was the energy, and what repeats the same work.
    assert [groups[name] for name in ("a.w", "a.s", "a.j", "book.s", "book.j")] == ["calibrated"] * 2 + [
        "determined"
    ] * 3
    # Nothing was: energy and time are two measurements, their quotient is none.
    assert [groups[name] for name in ("c.w", "c.s", "c.j", "ratio")] == ["derived", "measured", "measured", "derived"]
    # One factor was: the energy says the same as the other.
    assert [groups[name] for name in ("b.w", "b.s", "b.j")] == ["derived", "calibrated", "measured"]
    assert [groups[name] for name in ("d.w", "d.s", "d.j")] == ["chosen", "derived", "measured"]


def test_only_measured_figures_count_strictly_and_what_has_no_result_is_no_hit() -> None:
    strict, wide = count_strictly(make_figures()), count_kind(make_figures(), "predicted")
    assert (strict.hits, strict.misses, strict.unjudged, strict.total) == (2, 1, 1, 4)
    assert (wide.hits, wide.misses, wide.unjudged, wide.total) == (3, 1, 1, 5)
    assert wide.share == pytest.approx(0.6)
    assert math.isnan(count_verdicts([]).share)
    assert [f.id for f in list_misses(reversed(make_figures()))] == ["p.energy_kj", "p.grows", "p.factor"]
    assert text.word_strict_count(make_figures()).startswith("2 of 4 within tolerance (1 have no result): measured")
    assert text.word_wide_count(make_figures()).startswith("3 of 5 within tolerance (1 have no result): also those")
    assert text.word_uncounted(make_figures()).startswith("1 more miss is listed and in neither count")
    assert text.word_uncounted(make_figures()[:1]) == ""
    assert text.word_wide_count([]) == text.word_strict_count([]) == "no figure"


def test_the_tables_say_published_reproduced_deviation_and_tolerance_in_one_unit() -> None:
    measured, chosen, *_ = text.make_group_tables(make_figures())
    assert [c.heading for c in measured.columns] == ["figure", "published", "reproduced", "off by", "allowed", ""]
    median, energy, cap, missing = (list(row.cells) for row in measured.rows)
    assert median == ["median power of the training", "4,680 W", "4,750 ± 50 W", "+1.5 %", "± 5 %", "hit"]
    assert energy[1:] == ["109,477.1 kJ", "111,000 kJ", "+1,522.9 kJ", "± 1,104.9 kJ", "MISS"]
    assert list(chosen.rows[0].cells)[1:] == ["25.39 %", "23.80 %", "-1.6 points", "± 2 points", "hit"]
    assert cap[1:] == ["160 W", "170 W", "+10 W", "± 10 W", "hit"]
    assert missing[1:] == ["85 s", "-", "-", "± 5 %", "-"]


def test_groups_have_tables_of_their_own() -> None:
    tables = text.make_group_tables(make_figures())
    titles = [table.title.partition(":")[0].split()[0] for table in tables]
    assert titles == ["Counted", "Chosen", "Determined", "Calibrated", "Derived", "Outside"]
    assert [c.heading for c in tables[-1].columns] == ["figure", "published", "reproduced"]


ANSWERS = (
    "A study of caps",
    "2 of 4 within tolerance (1 have no result): measured in the paper, and not determined by a number of the twin",
    "3 of 5 within tolerance",
    "1 of 2 hold",
    "the true energy lies within the stated uncertainty in 679 of 680 runs (the widest is ± 1.2 %",
    "in at least 95 % of the runs of 67 of 68 cells, in 9 of 10 of the worst (train, cap 100 W)",
    "in 6100 of 6120",
    "MISS p.energy_kj: 111,000 kJ instead of 109,477.1 kJ (+1,522.9 kJ, allowed ± 1,104.9 kJ). The host sleeps less.",
    "MISS p.factor: 4.300 instead of 4 (+7.5 %, allowed ± 5 %, derived). It follows from other figures.",
    "MISS savings grow: does not hold. They shrink.",
    "Counted strictly",
    "one: 8 GPUs",
    "gpu.idle_w=30: it is not the calibrated twin any more",
    "assumed 2 numbers of the twin were chosen knowing published figures: cooling.fan_max_w, host; joulelab twin",
    "--show one shows the origin of each",
    "680 runs of together 1 d 1 h, in virtual time: 42 s, seed 7",
    "here/figures.csv",
    "-> joulelab ls",
)
REST = (
    "Calibrated on",
    "123 kWh",
    "yes cpu-mix uses most: 4.9 against 2.8 MJ",
    "NO savings grow",
    "The PDU costs 3 %.",
    "p.quality_pct: needs the data",
)


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_answers_first_and_fits_and_the_rest_is_behind_all(width: int) -> None:
    made = make_reproduction(changes=["gpu.idle_w=30"])
    short, whole = (write_blocks(text.lay_out_reproduction(made, is_whole=w), width) for w in (False, True))
    assert max(len(line) for line in (short + whole).splitlines()) <= width
    for printed, parts in ((short, ANSWERS), (whole, (*ANSWERS, *REST))):
        flat = " ".join(printed.split())
        assert [part for part in parts if part not in flat] == []
    flat = " ".join(short.split())
    assert [flat.index(part) for part in ANSWERS] == sorted(flat.index(part) for part in ANSWERS)
    assert [part for part in REST if part in flat] == []
    assert "--all" in short
    assert "--all" not in whole


def test_a_miss_without_a_reason_says_so() -> None:
    missed = make_figure("x", 1.0, 2.0, group="measured")
    assert text.word_misses([missed]) == ["x: 2 instead of 1 (+100 %, allowed ± 5 %). No reason is known."]
    assert text.word_misses([missed], is_changed=True)[0].endswith("The twin was changed.")
    assert [each.rpartition(". ")[2] for each in text.word_misses([missed.add_note("peaks")] * 2)] == [
        "Peaks.",
        "As above.",
    ]


def test_words_are_filled_in_and_parts_without_a_number_are_left_out() -> None:
    words = "[flat at {caps} W; ]off by {share:.1%}, 5 % [or {points:.0f} points]"
    assert fill_words(words, {"share": 0.016, "caps": "150"}) == "flat at 150 W; off by 1.6 %, 5 % "
    assert fill_words(words, {"share": 0.016, "points": 2.0}) == "off by 1.6 %, 5 % or 2 points"


def test_earlier_runs_and_missing_ones_are_worded() -> None:
    assert text.word_runs(make_reproduction(new=0)).endswith("; all were there already")
    assert text.word_runs(make_reproduction(new=600)).endswith("; 80 were there already")
    assert text.word_runs(make_reproduction(left=10, new=670)).startswith("670 of 680 runs of")
    assert dict(text.list_answers(make_reproduction(left=10)))["left"] == "10 of 680 runs have no result"
    assert text.word_coverage(TruthCoverage()) == "no run has a known true energy"


def test_markdown_and_latex_have_the_same_rows() -> None:
    markdown, latex = (text.write_document(make_reproduction(), form) for form in ("markdown", "latex"))
    knowing = "assumed: 2 numbers of the twin were chosen knowing published figures"
    for part in (
        "MISS",
        "4,680 W",
        "+1.5 ",
        "Batches",
        "123 kWh",
        "savings grow",
        "679 of 680 runs",
        knowing,
        "2 of 4 ",
    ):
        assert part in markdown, part
        assert part in latex, part
    assert r"$4{,}750 \pm 50$ W" in latex
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 7


def test_csv_and_json_have_every_figure_in_full() -> None:
    made = make_reproduction()
    rows = list(
        csv.DictReader(io.StringIO(text.write_figures_csv([made, make_reproduction(figures=make_figures()[:1])])))
    )
    assert [row["id"] for row in rows] == [f.id for f in make_figures()] + ["p.idle_w"]
    assert (rows[2]["allowed"], rows[2]["allowed_from"], rows[2]["verdict"]) == ("1104.9", "printed ±", "miss")
    assert (rows[2]["group"], rows[2]["strict"], rows[3]["group"]) == ("measured", "True", "chosen")
    assert float(rows[1]["expanded"]) == 48.0
    plain = json.loads(json.dumps(text.make_json(made), allow_nan=False))
    assert [f["id"] for f in plain["figures"]] == [f.id for f in make_figures()]
    assert plain["counts"]["predicted"] == {"hits": 3, "misses": 1, "unjudged": 1}
    assert plain["counts"]["strict"] == plain["groups"]["measured"] == {"hits": 2, "misses": 1, "unjudged": 1}
    assert plain["groups"]["derived"] == {"hits": 0, "misses": 1, "unjudged": 0}
    assert plain["assumed"] == ["cooling.fan_max_w", "host"]
    assert plain["covered"]["worst_cell"] == {"cell": "train, cap 100 W", "inside": 9, "slots": 10}
    assert plain["tables"][0]["records"] == [{"batch": 512}]
    assert write_records(made.tables[0].records) == "batch\n512\n"


def test_the_truth_is_held_against_the_interval_of_what_is_judged() -> None:
    def energies(wall: float) -> dict[str, Quantity]:
        return {"node.ac": Quantity(wall, {"gain": 5.0}), "gpu:0": Quantity(100.0, {"gain": 1.0}), "x": Quantity(1.0)}

    true = {"node.ac": 1000.0, "gpu:0": 101.0}
    slots = [("a", energies(1010.0), true), ("b", energies(1011.0), true), ("c", {"x": Quantity(1.0)}, true)]
    found = count_coverage(slots, "node.ac")
    assert (found.slots, found.inside, found.scopes, found.scopes_inside) == (2, 1, 4, 3)
    assert found.widest == pytest.approx(0.010)
    assert found.farthest == pytest.approx(0.011)
    assert (found.cells, found.cells_inside, found.worst) == (2, 1, ("b", 0, 1))
    by_gpu = count_coverage([("a", energies(1011.0), true)], "gpu:0")
    assert (by_gpu.slots, by_gpu.inside) == (1, 1)
    # Nothing chosen: what is nearest to the wall.
    assert count_coverage([("a", energies(1011.0), true)]).inside == 0
    unknown = {"node.ac": Quantity(1000.0, {}, known=False)}
    assert count_coverage([("a", unknown, true)]).slots == 0


def test_a_short_job_that_is_missed_is_not_hidden_by_the_others() -> None:
    def slots(cell: str, inside: int, of: int) -> list[tuple[str, dict[str, Quantity], dict[str, float]]]:
        offs = [0.0] * inside + [20.0] * (of - inside)
        return [(cell, {"node.ac": Quantity(1000.0 + off, {"gain": 5.0})}, {"node.ac": 1000.0}) for off in offs]

    found = count_coverage([*slots("long", 95, 100), *slots("short", 1, 5), *slots("other", 94, 100)])
    assert (found.slots, found.inside) == (205, 190)
    assert (found.cells, found.cells_inside, found.worst) == (3, 1, ("short", 1, 5))
    assert "in at least 95 % of the runs of 1 of 3 cells, in 1 of 5 of the worst (short)" in text.word_coverage(found)
    every = text.word_coverage(count_coverage(slots("long", 3, 3)))
    assert every.endswith("; in at least 95 % of the runs of 1 of 1 cells")
    # One run each: cells are runs, which are counted already.
    assert "cells" not in text.word_coverage(count_coverage([*slots("a", 1, 1), *slots("b", 0, 1)]))


@pytest.mark.parametrize(
    ("twins", "chosen", "said"),
    [
        (["one"], [], ""),
        (
            ["one"],
            ["host"],
            "1 number of the twin was chosen knowing published figures: host; joulelab twin --show one",
        ),
        (["a", "b"], ["a:x", "b:y"], "2 numbers of the twins were chosen knowing published figures: a:x, b:y; "),
        (["a", "b"], ["a:x"], "joulelab twin --show NODE shows its origin"),
    ],
)
def test_what_was_chosen_knowing_is_make_reproduction(twins: list[str], chosen: list[str], said: str) -> None:
    found = make_reproduction(twins=dict.fromkeys(twins, ""), assumed=chosen)
    assert said in text.word_assumptions(found)
    assert bool(text.word_assumptions(found)) == ("assumed" in dict(text.list_circumstances(found))) == bool(chosen)
