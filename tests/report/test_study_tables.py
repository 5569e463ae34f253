from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.analysis.studies import by_cap, cell, noted, sweep, trial

from joulelab.analysis.cell_metrics import Cell, StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.result import Check
from joulelab.analysis.study_cells import Note
from joulelab.report.messages import word_note, word_notes
from joulelab.report.study_csv import write_cells_csv, write_scaling_csv
from joulelab.report.study_tables import lay_out_study, write_study_document
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

GOALS = [Goal.parse(g) for g in ("energy", "time", "edp", "eds:2", "gain-loss", "energy@slowdown=5%")]


def _printed(summary: StudySummary, width: int = 80, *, every: bool = False) -> str:
    return write_blocks(lay_out_study(summary, every=every), width)


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    return summarise_cells(sweep(gpus=(1, 8)), goals=GOALS)


def test_the_table_fits_80_columns_and_says_everything(summary: StudySummary) -> None:
    text = _printed(summary)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    heads = ("energy, kJ", "per image, J", "2 x EDS(2)", "EDS(1.5)", "energy@slowdown=5%", "Pareto", "k = 2")
    assert all(head in text for head in heads)
    for gpus, idle in ((8, "0 %"), (1, "87.5 %")):
        (title,) = (line for line in text.splitlines() if line.startswith(f"gpus={gpus} ·"))
        assert idle in title
        assert title.endswith("cap=260 W")
    flat = " ".join(text.split())
    assert "eds-is-half" in noted(summary)
    assert all(note in flat for note in word_notes(summary.notes))
    assert re.search(r"^ *260\* +5 ", text, re.MULTILINE)


def test_the_figures_in_the_table_are_those_of_the_summary() -> None:
    text = _printed(summarise_cells(sweep(gpus=(8,)), goals=GOALS))
    row = re.search(r"gain, %.*?^ *180 +(-?[\d.]+) ± ([\d.]+)", text, re.MULTILINE | re.DOTALL)
    assert row is not None
    alone = summarise_cells(sweep(gpus=(8,))).cell("g8c180").gain
    assert alone is not None
    assert alone.expanded is not None
    assert float(row[1]) == pytest.approx(alone.value * 100, abs=0.05)
    assert float(row[2]) == pytest.approx(alone.expanded * 100, abs=0.05)


def test_a_narrow_terminal_gets_more_tables_and_loses_nothing(summary: StudySummary) -> None:
    text = _printed(summary, 50)
    assert "…" not in text
    assert all(len(line) <= 50 for line in text.splitlines() if "±" in line and "against" not in line)
    assert text.count("cap, W") > _printed(summary, 80).count("cap, W")


def test_scaling_is_shown_where_it_matters_or_everywhere(summary: StudySummary) -> None:
    assert "cap=140 W" not in _printed(summary).partition("Scaling")[2]
    assert "2 of 5 shown" in " ".join(_printed(summary).split())
    assert "cap=140 W" in _printed(summary, every=True).partition("Scaling")[2]
    assert "shown" not in _printed(summary, every=True)
    few = _printed(summarise_cells(sweep(gpus=(1, 2), caps=(100, 180, 260)), goals=GOALS)).partition("Scaling")[2]
    assert all(f"cap={cap} W 2" in few for cap in (100, 180, 260))
    assert "1 of 5 shown" in _printed(summarise_cells(sweep(gpus=(1, 2))))
    alone = summarise_cells([cell(f"g{g}", [trial(9.0 / g, 9.0 / g)], gpus=g) for g in (1, 2)], goals=GOALS)
    text = _printed(alone).partition("Scaling")[2]
    assert re.search(r"^ *2 +2\.000‡ +100‡ +0\.5000‡", text, re.MULTILINE)


def test_one_run_has_no_interval_for_time_and_says_so() -> None:
    found = summarise_cells(by_cap({260.0: [(1e5, 90.0)], 170.0: [(7.6e4, 98.0)]}, gain=0.01), goals=GOALS)
    text = _printed(found)
    assert noted(found)["one-run-each"]["cells"] == 2
    assert re.search(r"170 +1 +76\.0 ± 1\.5 +98\.00 +776 ± 16", text)
    assert "± 0" not in text.replace("± 0.", "")


def test_unknown_accuracy_prints_no_interval_but_ratios_from_repeats_do() -> None:
    pairs = {260.0: (100.0, 101.0, 99.0), 170.0: (76.0, 76.5, 75.5)}
    cells = [cell(f"c{c:g}", [trial(e, 10.0, known=False) for e in es], cap=c) for c, es in pairs.items()]
    text = _printed(summarise_cells(cells, goals=[Goal("energy")]))
    assert re.search(r"energy, J ‡.*^ *170 +3 +76\.00 ", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"170 +24\.0 ± \d", text)


def test_an_idle_share_that_varies_is_a_column() -> None:
    cells = [
        replace(c, trials=tuple(replace(t, idle_energy_share=k / 4) for t in c.trials))
        for k, c in enumerate(sweep(gpus=(8,)))
    ]
    text = _printed(summarise_cells(cells, goals=[Goal("ed2p")]))
    assert "idle GPUs'" in text
    assert "idle GPUs:" not in text  # the title
    assert "ED2P gain" in text


def test_a_cap_that_was_not_in_force_is_marked_everywhere() -> None:
    cells = by_cap({260.0: [(100.0, 10.0)] * 2, 200.0: [(90.0, 10.0)] * 2, 100.0: [(50.0, 10.0)] * 2})
    uncapped = Check("cap-not-enforced", "failed", "gpu:0", {"mean_w": 201.0, "cap_w": 100.0})
    bad = [replace(t, doubts=(uncapped,), uncapped=(uncapped,)) for t in cells[2].trials]
    found = summarise_cells([*cells[:2], replace(cells[2], trials=tuple(bad))], goals=[Goal("energy")])
    text = _printed(found)
    assert re.search(r"^ *100! +2 ", text, re.MULTILINE)
    assert re.search(r"^energy 200 W, gain", text, re.MULTILINE)
    assert noted(found)["not-capped"] == {"runs": 2, "cells": 1}
    assert "cap=100 W (gpu:0: used 201 W on average, more than its cap of 100 W)" in " ".join(text.split())
    rows = {row["cell"]: row for row in csv.DictReader(io.StringIO(write_cells_csv(found)))}
    assert [rows[k]["uncapped_runs"] for k in ("c260", "c200", "c100")] == ["0", "0", "2"]
    assert rows["c100"]["doubts"] == "cap not enforced (2)"
    pinned = _printed(
        summarise_cells(
            [cells[1], replace(cells[2], trials=tuple(bad))], goals=[Goal("time")], reference={"cap": 100.0}
        )
    )
    assert re.search(r"^ *100!\* +2 ", pinned, re.MULTILINE)
    assert "against 100 W!" in pinned


def test_runs_without_a_cap_are_named_so() -> None:
    cells = [cell("a", [trial(1.0, 1.0)] * 2, cap=150.0), cell("b", [trial(2.0, 1.0)] * 2)]
    text = _printed(summarise_cells(cells, goals=[Goal("energy")]))
    assert text.splitlines()[1].endswith("no cap")
    assert re.search(r"^ *cap, W +n", text, re.MULTILINE)
    assert re.search(r"^no cap\* +2", text, re.MULTILINE)
    assert "None" not in text


def test_per_what_is_compared_is_in_the_title_and_unknown_gains_have_no_stray_unit() -> None:
    cells = [Cell(f"c{b}", {"batch": b}, (replace(trial(1.0, 1.0), work={"samples": 9.0 * b}),)) for b in (16, 64)]
    text = _printed(summarise_cells(cells, goals=[Goal("energy")]))
    assert text.splitlines()[1].endswith("batch=16, per sample")
    assert re.search(r"^ *64 +75\.0‡", text, re.MULTILINE)


def test_scaling_is_a_csv_of_its_own(summary: StudySummary) -> None:
    rows = list(csv.DictReader(io.StringIO(write_scaling_csv(summary))))
    assert len(rows) == sum(len(s.points) for s in summary.scaling)
    point = summary.scaling[0].points[1]
    assert (rows[1]["cell"], rows[1]["knob_cap"], rows[1]["gpus"]) == (point.cell, "100.0", "8.0")
    assert float(rows[1]["speedup"]) == point.speedup.value
    assert float(rows[1]["speedup_expanded"]) == point.speedup.expanded
    assert rows[1]["compared_with"] == rows[0]["cell"]


def test_every_slowdown_goal_has_its_column_even_where_it_cannot_be_judged() -> None:
    limit = Goal("energy", slowdown=0.05)
    cells = [Cell("a", {"cap": 1.0}, (trial(None, 1.0),)), Cell("b", {"cap": 2.0})]
    rows = list(csv.DictReader(io.StringIO(write_cells_csv(summarise_cells(cells, goals=[limit])))))
    assert [row["within_energy@slowdown=5%"] for row in rows] == ["", ""]


def test_studies_of_other_knobs_without_energy_or_without_runs_are_printed() -> None:
    batches = [cell(f"b{b}", [trial(None, 10.0 / b)] * 2, batch=b, opt=o) for b, o in ((1, "a"), (2, "b"))]
    text = _printed(summarise_cells(batches, goals=[Goal("time"), Goal("energy")]))
    assert "batch=2 opt=b, gain +50" in text
    assert text.splitlines()[1].endswith("batch=1 opt=a")
    assert "gain, %" not in text
    assert "batch=4" in _printed(summarise_cells([cell("x", [trial(1.0, 1.0)], batch=b) for b in (4,)], goals=GOALS))
    nothing = summarise_cells([Cell("a", {"cap": 1.0}), Cell("b", {"cap": None})], goals=GOALS)
    assert list(noted(nothing)) == ["no-results"]
    assert word_notes(nothing.notes)[0] in _printed(nothing)
    assert "Best" not in _printed(nothing)
    pinned = [c for c in sweep(gpus=(2, 8), caps=(180, 260)) if c.key != "g2c180"]
    assert noted(summarise_cells(pinned, goals=GOALS, reference={"cap": 180.0}))["reference-missing"] == {"lines": 1}
    global_ = _printed(summarise_cells(sweep(gpus=(2, 8), caps=(180, 260)), goals=GOALS, reference={"gpus": 2}))
    assert "against cap=260 W gpus=2" in global_


def test_a_limit_that_may_be_broken_is_said() -> None:
    points = {260.0: [(100.0, 10.0)] * 2, 180.0: [(85.0, 10.4), (85.0, 10.5)]}
    found = summarise_cells(by_cap(points), goals=[Goal("energy", slowdown=0.05)])
    assert [best.within["c180"] for best in found.best] == ["possibly"]
    assert "slowdown may" in " ".join(_printed(found).split())


def test_figures_that_rest_on_an_estimate_are_marked() -> None:
    cells = [
        replace(c, trials=tuple(replace(t, estimate=c.key == "g1c180") for t in c.trials))
        for c in sweep(gpus=(1, 2), caps=(100, 180, 260))
    ]
    found = summarise_cells(cells, goals=[Goal("energy"), Goal("time")])
    text = _printed(found)
    first = text.partition("gpus=2")[0]
    energy = re.search(r"^ *180 +5 +~[\d.]+ ± [\d.]+ +[\d.]+ ± [\d.]+ +~[\d.]+ ± [\d.]+ +~[\d.]+", first, re.MULTILINE)
    assert energy is not None
    assert re.search(r"^ *180 +~[\d.]+ ± [\d.]+ +[\d.]+ ± [\d.]+ +~-?[\d.]+ ± ", first, re.MULTILINE)
    assert re.search(r"^ *100 +5 +\d", first, re.MULTILINE)
    assert re.search(r"^cap=180 W 2 .* ~0\.\d+ ± [\d.]+$", text, re.MULTILINE)
    assert re.search(r"^cap=180 W 1 .* 1\.000$", text, re.MULTILINE)
    assert text.count("~") == 1 + 3 + 4 + 1  # the note, three of energy, four of gains, a ratio
    assert noted(found)["estimates"]["estimated"] == 1
    pinned = summarise_cells(cells, goals=[Goal("energy"), Goal("time")], reference={"cap": 180.0})
    of_one = _printed(pinned).partition("gpus=2")[0]
    assert re.search(r"^energy 100 W, gain ~\+", of_one, re.MULTILINE)
    assert re.search(r"^time +260 W, gain \+", of_one, re.MULTILINE)
    assert re.search(r"^ *180\* +0 +0 +0", of_one, re.MULTILINE)


def test_markdown_tables_are_whole(summary: StudySummary) -> None:
    text = write_study_document(summary, "markdown")
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 5
    for table in tables:
        assert len({line.count("|") - line.count("\\|") for line in table}) == 1
        assert set(table[1]) <= set("|-: ")
    assert "best for edp" in text
    assert word_note(Note("eds-is-half")) in text
    assert "k = 2" in text
    plain = write_study_document(summarise_cells([cell("a_b", [trial(None, 1.0)], x="1|2")]), "markdown")
    assert "x=1\\|2" in plain


def test_latex_tables_are_balanced_and_escaped(summary: StudySummary) -> None:
    text = write_study_document(summary, "latex")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 5
    assert r"gain, \%" in text
    assert re.search(r"\$-?[\d.]+ \\pm [\d.]+\$", text)
    assert "±" not in text
    assert "k = 2" in text
    for row in re.findall(r"^.*&.*$", text, re.MULTILINE):
        assert row.endswith(r"\\")
    odd = write_study_document(
        summarise_cells([cell("x", [trial(1.0, 1.0, known=False)] * 2, name=r"a_b&c%$#{}~^\d")]), "latex"
    )
    assert r"a\_b\&c\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}d" in odd


@pytest.mark.system
def test_latex_compiles_where_it_is_installed(summary: StudySummary, tmp_path: Path) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("apt install texlive-latex-recommended")
    body = write_study_document(summary, "latex")
    document = f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n\\begin{{document}}\n{body}\\end{{document}}\n"
    (tmp_path / "t.tex").write_text(document)
    done = subprocess.run([program, "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]


def test_csv_has_a_row_per_cell_with_every_metric_and_its_uncertainty(summary: StudySummary) -> None:
    rows = list(csv.DictReader(io.StringIO(write_cells_csv(summary))))
    assert len(rows) == len(summary.cells)
    by_key = {row["cell"]: row for row in rows}
    row = by_key["g8c180"]
    found = summary.cell("g8c180")
    assert found.edp_gain is not None
    assert found.edp_gain.expanded is not None
    assert float(row["edp_gain"]) == found.edp_gain.value
    assert float(row["edp_gain_expanded"]) == found.edp_gain.expanded
    assert float(row["eds_2_gain"]) == pytest.approx(float(row["gain_minus_loss"]) / 2)
    assert (row["knob_cap"], row["knob_gpus"], row["n"], row["line"]) == ("180.0", "8", "5", "gpus=8")
    assert by_key["g8c260"]["reference"] == "1"
    assert float(row["j_per_images"]) > 0
    assert float(row["images_per_s"]) > 0
    assert row["within_energy@slowdown=5%"] in ("surely", "possibly", "not")
    metrics = [name for name in rows[0] if f"{name}_expanded" in rows[0]]
    assert len(metrics) >= 17
    for goal in GOALS:
        assert sum(goal.text in r["best_for"].split() for r in rows) == 2
    assert {r["pareto"] for r in rows} <= {"front", "perhaps", ""}


def test_cells_of_different_shape_make_one_csv() -> None:
    cells = [cell("a", [trial(None, 1.0)], cap=1.0), Cell("b", {"cap": 2.0, "x": "y"})]
    found = summarise_cells(cells, goals=GOALS)
    rows = list(csv.DictReader(io.StringIO(write_cells_csv(found))))
    assert rows[0]["energy_j"] == ""
    assert rows[0]["time_s_expanded"] == ""  # of one run nothing is known
    assert rows[1]["knob_x"] == "y"
    nothing = summarise_cells([Cell("b", {"cap": 2.0})])
    assert "b,2.0" in write_cells_csv(nothing)
