"""Test by what cells are named in every form of a report, what pairs say of themselves, and what captions tell."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.analysis import horeka
from tests.analysis.studies import by_cap, cell, noted, trial

from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.result import Check
from joulelab.report.messages import word_notes
from joulelab.report.paper_tables import (
    describe_paper,
    lay_out_paper,
    list_pair_tables,
    list_paper_tables,
    write_paper_document,
)
from joulelab.report.study_csv import write_cells_csv, write_pairs_csv, write_scaling_csv, write_statistics_csv
from joulelab.report.study_tables import lay_out_study, write_study_document
from joulelab.report.tables import Table, clean_text
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from joulelab.analysis.study_cells import Cell

GOALS = [Goal.parse(g) for g in ("energy", "edp")]
HASH, OTHER = "0c95c0d9537b", "71d20e4ab6f0"


def _forms(summary: StudySummary) -> dict[str, str]:
    """Return the report in every form in which people read it."""
    blocks = [*lay_out_paper(summary, width=100, every=True), *lay_out_study(summary)]
    tables = json.dumps([r["texts"] for t in describe_paper(summary)["tables"] for r in t["rows"]])
    return {
        "text": write_blocks(blocks, 100),
        "markdown": write_paper_document(summary, "markdown", every=True) + write_study_document(summary, "markdown"),
        "latex": write_paper_document(summary, "latex", every=True) + write_study_document(summary, "latex"),
        "json": tables,
    }


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _runs(energy: float = 5e3) -> list[float]:
    return [energy, energy * 1.01, energy * 0.99]


def test_a_study_of_one_cell_names_it_by_no_hash() -> None:
    one = summarise_cells([cell(HASH, [trial(e, 60.0) for e in _runs()])], goals=GOALS)
    for form, text in _forms(one).items():
        assert HASH not in text, form
        assert "all runs" in text, form
    text = _forms(one)["text"]
    assert re.search(r"^all runs +3 ", text, re.MULTILINE)
    assert "compared with" not in text.partition("note")[0]
    assert "Best" not in text  # there is nothing to choose from
    assert HASH in write_cells_csv(one)  # by which other files find it


def test_workloads_without_knobs_are_named_by_themselves() -> None:
    cells = [cell(key, [trial(e, 60.0) for e in _runs(m)], workload=w) for key, w, m in _two()]
    two = summarise_cells(cells, goals=GOALS)
    for form, text in _forms(two).items():
        assert HASH not in text, form
        assert OTHER not in text, form
    text = _forms(two)["text"]
    for workload in ("lstm", "vgg"):
        assert f"Results of {workload}" in text
        assert f"\nworkload={workload}\n" in text
    assert [row.labels for t in list_paper_tables(two) for row in t.rows] == [("all runs",), ("all runs",)]


def _two() -> list[tuple[str, str, float]]:
    return [(HASH, "lstm", 5e3), (OTHER, "vgg", 9e3)]


def test_a_workload_without_knobs_beside_one_with_them() -> None:
    cells = [cell(HASH, [trial(e, 60.0) for e in _runs()], workload="burn")]
    cells += [cell(f"{OTHER}{b}", [trial(e / b, 60.0) for e in _runs()], workload="vgg", batch=b) for b in (1, 2)]
    for form, text in _forms(summarise_cells(cells, goals=GOALS)).items():
        assert HASH not in text, form
        assert OTHER not in text, form
        assert "all runs" in text, form


def test_notes_name_the_only_cell_in_words() -> None:
    values = (100.0, 100.5, 99.5, 100.2, 99.9, 180.0)
    short = Check("too-short", "warning", "gpu:0")
    runs = [replace(trial(v, 60.0), doubts=(short,) if v > 150 else ()) for v in values]
    found = summarise_cells([cell(HASH, runs)], goals=GOALS)
    assert HASH not in " ".join(word_notes(found.notes))
    assert noted(found)["odd-runs"] == {"cells": 1, "runs": 1, "chance": pytest.approx(50)}
    assert noted(found)["warnings"] == {"warned": 1, "runs": 6}
    assert any("(repeat 6)" in note for note in word_notes(found.notes))


def _names(table: Table) -> list[str]:
    return [clean_text(str(row.cells[0])) for row in table.rows]


def test_cells_that_no_knob_tells_apart_have_their_keys() -> None:
    alike = summarise_cells([cell(k, [trial(e, 60.0) for e in _runs()]) for k in ("a1", "b2")], goals=GOALS)
    assert [row.labels for row in list_paper_tables(alike)[0].rows] == [("a1",), ("b2",)]
    assert re.search(r"· .* a1$", _forms(alike)["text"], re.MULTILINE)


def test_a_knob_that_only_one_of_a_pair_has_is_said_to_lack() -> None:
    cells = [cell(HASH, [trial(e, 60.0) for e in _runs()]), cell(OTHER, [trial(e, 50.0) for e in _runs()], batch=2)]
    names = _names(list_pair_tables(summarise_cells(cells))[0])
    assert names in (["batch=2 : without batch"], ["without batch : batch=2"])


def _phases(*, predict: float | None = None) -> list[Cell]:
    """Return two node types of a workload whose training reports samples, and whose prediction may."""

    def made(phase: str, node: str, work: float | None) -> Cell:
        done = {} if work is None else {"samples": work}
        runs = [replace(trial(e, 60.0), work=done) for e in _runs()]
        return cell(f"{phase}-{node}", runs, workload="prog", phase=phase, node=node)

    other = cell("other", [trial(1e3, 60.0)], workload="other", phase="train", node="gpu")
    return [
        made("train", "gpu", 10.0),
        made("train", "cpu", 20.0),
        made("predict", "gpu", predict),
        made("predict", "cpu", None if predict is None else 3 * predict),
        other,
    ]


def test_titles_of_pairs_say_the_phase_where_rows_do_not() -> None:
    titles = [table.title for table in list_pair_tables(summarise_cells(_phases()))]
    assert titles == [
        "prog, train: energy per sample",
        "prog, train: time per sample",
        "prog, predict: energy",
        "prog, predict: time",
    ]
    both = list_pair_tables(summarise_cells(_phases(predict=4.0)))
    assert [table.title for table in both] == ["prog: energy per sample", "prog: time per sample"]
    assert _names(both[0]) == ["train cpu : gpu", "predict cpu : gpu"]
    one = [replace(c, knobs={**c.knobs, "workload": "prog"}) for c in _phases()[:2]]
    assert list_pair_tables(summarise_cells(one))[0].title == "prog, train: energy per sample"
    bare = [replace(c, knobs={"phase": "train", "node": c.knobs["node"]}) for c in _phases()[:2]]
    assert list_pair_tables(summarise_cells(bare))[0].title == "train: energy per sample"


def test_captions_above_phases_speak_of_phases() -> None:
    first, other = (table.caption for table in list_paper_tables(summarise_cells(_phases())))
    assert "train per sample" in first
    assert " per " not in other
    every = list_paper_tables(summarise_cells(_phases(predict=4.0)))[0].caption
    assert "per sample" in every
    assert "train" not in every
    mixed = [cell(f"{m}{c:g}", [replace(trial(5e3, 60.0), work={m: c})], cap=c, model=m) for m, c in _models()]
    assert "per image, token" in list_paper_tables(summarise_cells(mixed))[0].caption


def _models() -> list[tuple[str, float]]:
    return [(model, cap) for model in ("images", "tokens") for cap in (200.0, 260.0)]


@pytest.mark.parametrize(("share", "text"), [(0.8, "160 %"), (0.01, "2 %"), (0.0042, "0.84 %"), (0.4975, "100 %")])
def test_the_meters_accuracy_is_told_as_people_read_it(share: float, text: str) -> None:
    (table,) = list_paper_tables(summarise_cells(by_cap({260.0: [(5e3, 60.0)] * 2}, gain=share)))
    assert f" {text} (k = 2)" in table.caption


def test_pairs_in_csv_say_unit_work_workload_and_phase() -> None:
    rows = _rows(write_pairs_csv(summarise_cells(_phases())))
    told = {(r["phase"], r["figure"]): (r["workload"], r["unit"], r["per"]) for r in rows}
    assert told == {
        ("train", "energy"): ("prog", "J/sample", "samples"),
        ("train", "power"): ("prog", "W", ""),
        ("train", "time"): ("prog", "s/sample", "samples"),
        ("predict", "energy"): ("prog", "J", ""),
        ("predict", "power"): ("prog", "W", ""),
        ("predict", "time"): ("prog", "s", ""),
    }
    assert rows[0]["cell_knobs"] == "workload=prog phase=train node=cpu"
    assert rows[0]["against_knobs"] == "workload=prog phase=train node=gpu"
    plain = summarise_cells(_phases()).to_json()["pairs"]
    assert {(p["unit"], p["per"]) for p in plain if p["cell"].startswith("train")} == {
        ("J/sample", "samples"),
        ("s/sample", "samples"),
        ("W", None),
    }


def test_more_repeats_than_are_counted_are_no_number() -> None:
    summary = summarise_cells(horeka.cells(), reference={"node": "gpu"})
    rows = _rows(write_pairs_csv(summary))
    above = [r for r in rows if r["more_repeats_above_100"] == "1"]
    assert above
    assert all(r["more_repeats"] == "" for r in above)
    assert all(int(r["more_repeats"]) <= 100 for r in rows if r["more_repeats"])
    assert any(p["more_than_100"] and p["more_repeats"] is None for p in summary.to_json()["pairs"])


def test_the_column_of_a_clock_says_its_unit() -> None:
    cells = [cell(f"{c:g}", [trial(5e3, 60.0)], clock=c, gpus=g) for c in (1.2e9, 1.4e9) for g in (1,)]
    cells += [cell(f"{c:g}b", [trial(9e3, 40.0)], clock=c, gpus=2) for c in (1.2e9, 1.4e9)]
    summary = summarise_cells(cells)
    for text in (write_cells_csv(summary), write_statistics_csv(summary), write_scaling_csv(summary)):
        row = _rows(text)[0]
        assert row["knob_clock_hz"] == "1200000000.0"
        assert "knob_clock" not in row
