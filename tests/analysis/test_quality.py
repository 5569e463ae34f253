"""Facts of the runs of a study: by what workloads are judged, and doubts where data differs."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.analysis.studies import by_cap, noted
from tests.codes import raises_code

from joulelab.analysis.cell_metrics import refuse_unreported_quality, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.marked_phases import format_quality, read_quality
from joulelab.analysis.study_cells import list_numbers, list_quality_figures, name_data
from joulelab.report.paper_tables import describe_paper, lay_out_paper, write_paper_document
from joulelab.report.study_csv import write_cells_csv, write_pairs_csv, write_statistics_csv
from joulelab.report.study_tables import lay_out_study, write_study_document
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.analysis.study_cells import Cell

F1 = Goal.parse("energy@f1>=0.9")
POINTS = {100.0: [(90.0, 12.0), (91.0, 12.1)], 200.0: [(100.0, 10.0), (101.0, 10.1)]}


def told(facts: Callable[[float, int], dict[str, Any]]) -> list[Cell]:
    return [
        replace(c, trials=tuple(replace(t, facts=facts(c.knobs["cap"], k)) for k, t in enumerate(c.trials)))
        for c in by_cap(POINTS)
    ]


@pytest.fixture(scope="module")
def judged() -> StudySummary:
    """Accuracies of 0.90 and 0.92 at 100 W, of 0.94 and 0.96 at 200 W, on other data each."""
    return summarise_cells(
        told(
            lambda cap, k: {
                "data": "cifar-10" if cap > 150 else "synthetic-memory",
                "quality": "accuracy, MAPE,name",
                "accuracy": 0.9 + 0.02 * k + (0.04 if cap > 150 else 0.0),
                "MAPE": 0.1,
                "name": "text",
            }
        )
    )


def _printed(summary: StudySummary) -> str:
    return write_blocks(lay_out_study(summary), 110)


def _printed_paper(summary: StudySummary) -> str:
    return write_blocks(lay_out_paper(summary, width=110), 110)


def test_quality_is_what_the_workload_says_it_is() -> None:
    facts = {"quality": "accuracy, loss,gone,text", "accuracy": 1, "loss": math.nan, "text": "a", "other": 3.0}
    found = read_quality(facts)
    assert list(found) == ["accuracy", "loss"]
    assert found["accuracy"] == 1.0
    assert math.isnan(found["loss"]), "shown as nan, not left out"
    assert format_quality(facts) == "accuracy 1, loss nan"
    assert read_quality({"quality": 0.9}) == {"quality": 0.9}
    assert read_quality({"quality": "a", "a": "0.910"}) == {"a": 0.91}
    assert read_quality({"accuracy": 0.9}) == {}


def test_a_figure_that_a_run_does_not_tell_has_no_mean() -> None:
    (cell, _) = told(lambda _, k: {"quality": "a" if k else "a, b", "a": k, "b": 2} | ({"data": "x"} if k else {}))
    assert list_quality_figures(cell.trials) == {"a": [0.0, 1.0]}
    assert list_quality_figures(()) == {}
    assert name_data(cell.trials) == "x"


def test_cells_have_means_of_their_quality(judged: StudySummary) -> None:
    low, high = judged.cells
    assert low.quality["accuracy"].value == pytest.approx(0.91)
    assert high.quality["accuracy"].value == pytest.approx(0.95)
    assert low.quality["accuracy"].expanded > 0.01
    assert (low.data, high.data) == ("synthetic-memory", "cifar-10")
    plain = judged.to_json()["cells"][0]
    assert plain["quality"]["accuracy"]["value"] == pytest.approx(0.91)
    assert plain["data"] == "synthetic-memory"
    assert plain["trials"][1]["facts"]["accuracy"] == 0.92


def test_reports_show_quality_beside_energy_and_doubt_other_data(judged: StudySummary) -> None:
    doubt = "did not use the same data (synthetic-memory: cap=100 W; cifar-10: cap=200 W)"
    text = _printed(judged)
    assert doubt in " ".join(text.split())
    assert "accuracy" in text
    assert re.search(r"0\.91\d* ± 0\.\d+ +0\.1000 +synthetic-memory", text)
    assert "cifar-10" in write_study_document(judged, "markdown")
    assert "synthetic-memory" in write_study_document(judged, "latex")
    rows = list(csv.DictReader(io.StringIO(write_cells_csv(judged))))
    assert [row["data"] for row in rows] == ["synthetic-memory", "cifar-10"]
    assert float(rows[1]["quality_accuracy"]) == pytest.approx(0.95)
    assert float(rows[1]["quality_accuracy_expanded"]) > 0


def test_papers_show_quality_and_data(judged: StudySummary) -> None:
    text = _printed_paper(judged)
    assert "Accuracy" in text
    assert "0.910 ± 0.014" in text
    assert "cifar-10" in text
    assert "Rows worked on different data" in text
    assert "0.910 ± 0.014" in write_paper_document(judged, "markdown")
    assert r"0.910 \pm 0.014" in write_paper_document(judged, "latex")
    assert describe_paper(judged)["tables"][0]["columns"][-3:] == ["Accuracy", "MAPE", "Data"]
    rows = list(csv.DictReader(io.StringIO(write_statistics_csv(judged))))
    assert float(rows[0]["quality_accuracy_mean"]) == pytest.approx(0.91)
    assert rows[0]["data"] == "synthetic-memory"


def test_data_that_is_the_same_is_said_once_and_not_doubted() -> None:
    same = summarise_cells(told(lambda *_: {"data": "cifar-10"}))
    assert "different-data" not in noted(same)
    assert "· data cifar-10" in _printed(same)
    assert "Data: cifar-10." in _printed_paper(same)
    nothing = summarise_cells(by_cap(POINTS))
    assert "data" not in write_cells_csv(nothing).splitlines()[0].split(",")
    assert "different-data" not in noted(nothing)


def test_repeats_of_one_cell_on_different_data_are_doubted() -> None:
    mixed = summarise_cells(told(lambda _, k: {"data": f"d{k}"}))
    assert noted(mixed)["different-data"] == {"data": 1}
    partly = summarise_cells(told(lambda cap, _: {"data": "x"} if cap > 150 else {}))
    assert noted(partly)["different-data"] == {"data": 2}


def test_a_quality_that_is_not_finite_is_shown_as_nan() -> None:
    lost = summarise_cells(told(lambda *_: {"quality": "accuracy", "accuracy": math.nan}))
    for show in (_printed, _printed_paper):
        text = show(lost)
        assert "ccuracy" in text
        assert "nan" in text


def test_pairs_doubt_other_data(judged: StudySummary) -> None:
    rows = list(csv.DictReader(io.StringIO(write_pairs_csv(judged))))
    assert {row["doubt"] for row in rows} <= {
        "different data: cifar-10, synthetic-memory",
        "different data: synthetic-memory, cifar-10",
    }
    same = summarise_cells(told(lambda *_: {"data": "cifar-10"}))
    assert {row["doubt"] for row in csv.DictReader(io.StringIO(write_pairs_csv(same)))} == {""}
    partly = summarise_cells(told(lambda cap, _: {"data": "x"} if cap > 150 else {}))
    assert any("(unknown)" in row["doubt"] for row in csv.DictReader(io.StringIO(write_pairs_csv(partly))))


def test_a_knob_named_data_does_not_give_two_columns_of_a_name() -> None:
    cells = [replace(c, knobs={"data": f"/d/{k}"}) for k, c in enumerate(told(lambda c, _: {"data": f"{c}"}))]
    for show in (_printed, _printed_paper):
        heads = [line.split() for line in show(summarise_cells(cells)).splitlines()]
        assert all(sum(word.lower() == "data" for word in line) < 2 for line in heads)
    assert "worked on" in _printed(summarise_cells(cells))


def test_what_was_only_judged_has_no_figure_of_the_whole_run() -> None:
    cells = [
        replace(c, trials=tuple(replace(t, work={"samples": 10.0, "validated": 4.0, "steps": 2.0}) for t in c.trials))
        for c in by_cap(POINTS)
    ]
    found = summarise_cells(cells)
    assert list(found.cells[0].per_work) == ["samples", "steps"]
    assert "validated" not in _printed(found)
    alone = [replace(c, trials=tuple(replace(t, work={"validated": 4.0}) for t in c.trials)) for c in by_cap(POINTS)]
    assert list(summarise_cells(alone).cells[0].per_work) == ["validated"], "in a phase of its own it is what was done"


def _limited(*texts: str) -> StudySummary:
    """Accuracies of 0.90 and 0.92 at 100 W, which needs less energy, of 0.97 and 0.97 at 200 W."""
    return summarise_cells(
        told(lambda cap, k: {"accuracy": 0.97 if cap > 150 else 0.9 + 0.02 * k, "loss": 0.1, "model": "m"}),
        goals=[Goal.parse(text) for text in texts],
    )


def test_a_cell_that_misses_the_quality_of_a_goal_is_marked_and_not_best() -> None:
    text = "energy@accuracy>=0.915"
    summary = _limited("energy", text)
    plain, limited = summary.best
    assert (summary.cell(plain.cell).knobs["cap"], summary.cell(limited.cell).knobs["cap"]) == (100.0, 200.0)
    assert noted(summary)["quality-missed"] == {"missed": 1, "cells": 2, "unsure": 1}
    printed = _printed(summary)
    assert re.search(r"0\.91 ± [\d.]+‡", printed)
    assert "0.97‡" not in printed
    assert "ddagger" in write_study_document(summary, "latex")
    rows = list(csv.DictReader(io.StringIO(write_cells_csv(summary))))
    assert [row[f"reached_{text}"] for row in rows] == ["possibly not", "surely"]
    refuse_unreported_quality(summary)


def test_a_best_cell_whose_interval_contains_the_limit_says_so() -> None:
    summary = _limited("energy@accuracy>=0.905")
    assert "the interval of its accuracy over 2 runs contains the limit" in " ".join(_printed(summary).split())
    alone = summarise_cells([replace(c, trials=c.trials[:1]) for c in told(lambda *_: {"f1": 1})], goals=[F1])
    assert "not known from one run" in _printed(alone)
    facts = told(lambda cap, _: {"f1": 1.0 if cap > 150 else 0.5})
    missed = summarise_cells([replace(c, trials=c.trials[:1]) for c in facts], goals=[F1])
    assert noted(missed)["quality-missed"] == {"missed": 1, "cells": 2}, "one run has no interval over repeats"


def test_goals_that_no_cell_reaches_and_qualities_that_no_run_reports() -> None:
    unreached = _limited("energy@accuracy>=0.99@slowdown=5%")
    assert noted(unreached)["quality-missed.all"] == {"missed": 2, "cells": 2, "unsure": 1}
    missing = _limited("energy@f1>=0.9")
    note = next(note for note in missing.notes if note.code == "quality-unreported")
    assert (note.texts["quality"], note.texts["names"]) == (("f1",), ("accuracy", "loss"))
    assert missing.best == ()
    with raises_code("config.goal-quality") as caught:
        refuse_unreported_quality(missing)
    assert "accuracy, loss" in caught.value.why
    with raises_code("config.goal-quality"):
        refuse_unreported_quality(summarise_cells(told(lambda *_: {"f1": True}), goals=[F1]))


def test_cells_within_the_quality_and_not_within_the_slowdown_are_not_best() -> None:
    facts = told(lambda cap, _: {"accuracy": 0.9 if cap > 150 else 1.0})
    summary = summarise_cells(facts, goals=[Goal.parse("energy@slowdown=5%@accuracy>=0.95")])
    assert summary.best == ()
    assert noted(summary)["quality-missed.all"] == {"missed": 1, "cells": 2}


def test_a_quality_that_a_repeat_does_not_report_is_unknown_and_not_missed() -> None:
    summary = summarise_cells(
        told(lambda cap, k: {"accuracy": 0.97} if cap > 150 or k else {"loss": 0.1}),
        goals=[Goal.parse("energy@accuracy>=0.9")],
    )
    assert summary.cell(summary.best[0].cell).knobs["cap"] == 200.0
    assert noted(summary)["quality-unknown"] == {"unknown": 1, "cells": 2}
    assert "quality-missed" not in noted(summary)
    assert re.search(r"100 .* \?\n", _printed(summary))
    nan = summarise_cells(
        told(lambda cap, _: {"accuracy": 0.97 if cap > 150 else math.nan}), goals=[Goal.parse("energy@accuracy>=0.9")]
    )
    assert "nan?" in _printed(nan)


def test_a_text_that_is_a_decimal_number_is_a_quality() -> None:
    texts = told(lambda cap, _: {"accuracy": "0.990" if cap > 150 else "0.910"})
    summary = summarise_cells(texts, goals=[Goal.parse("energy@accuracy>=0.95")])
    assert summary.cell(summary.best[0].cell).knobs["cap"] == 200.0
    assert noted(summary)["quality-missed"] == {"missed": 1, "cells": 2}
    odd = ("nan", "inf", "123e4567", "true", "2026-11-17", "0x1f", "1_000", "", "1.2.3", "٣")
    assert list_numbers({text: text for text in (*odd, "1e-3", " 3 ", "-.5")}) == {
        "1e-3": 1e-3,
        " 3 ": 3.0,
        "-.5": -0.5,
    }
