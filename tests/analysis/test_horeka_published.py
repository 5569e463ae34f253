"""Hold statistics, comparisons and tables to the published rows of the HoreKa study."""

from __future__ import annotations

from typing import Any

import pytest
from tests.analysis import horeka
from tests.analysis.horeka import JUPYTER, PHASES, PUBLISHED, ROWS, USES, key
from tests.analysis.studies import noted

from joulelab.analysis.cell_comparison import CellPair, compare_cells
from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.report.paper_tables import list_paper_tables, write_paper_document


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    return summarise_cells(horeka.cells(), goals=[Goal("energy"), Goal("time")], reference={"node": "gpu"})


def _pair(summary: StudySummary, use: str, phase: str, a: str, b: str, figure: str) -> CellPair:
    """Return the pair of two setups, turned round where the study has it the other way."""
    found = {(p.cell, p.against): p for p in summary.pairs if p.figure == figure}
    first, second = key(use, phase, a), key(use, phase, b)
    if (first, second) in found:
        return found[first, second]
    samples = {k: summary.statistics[k][figure] for k in (first, second)}
    (turned,) = compare_cells(samples, [(first, second)], figure)
    assert found[second, first].verdict == {"more": "less", "less": "more"}.get(turned.verdict, turned.verdict)
    return turned


@pytest.mark.parametrize("finding", PUBLISHED["finding"], ids=lambda f: str(f["what"]))
def test_a_finding_comes_back_with_its_interval_and_verdict(summary: StudySummary, finding: dict[str, Any]) -> None:
    pair = _pair(summary, *finding["row"])
    assert pair.ratio == pytest.approx(finding["ratio"], abs=finding["within"])
    assert pair.verdict == finding["verdict"]
    assert pair.ratio_interval is not None
    low, high = pair.ratio_interval
    assert low < pair.ratio < high
    assert (low <= 1 <= high) == (finding["verdict"] == "no significant difference")
    assert high - low < 0.4 * pair.ratio


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("phase", PHASES)
def test_cpu_mix_uses_the_most_energy_of_the_three_in_every_row(summary: StudySummary, use: str, phase: str) -> None:
    for other in ("gpu", "cpu-only"):
        assert _pair(summary, use, phase, "cpu-mix", other, "energy").verdict == "more"
    best = summary.best_for(Goal("energy"), f"workload={use} phase={phase}")
    assert best is not None
    assert best.cell == key(use, phase, "gpu")
    assert not {key(use, phase, other) for other in ("cpu-mix", "cpu-only")} & {*best.tied}


def test_where_the_text_differs_from_the_rows_its_figure_is_outside_of_the_interval_or_inside(
    summary: StudySummary,
) -> None:
    told = {f["text"]: _pair(summary, *f["row"]).ratio_interval for f in PUBLISHED["finding"] if "text" in f}
    inside = {text: bounds is not None and bounds[0] <= text <= bounds[1] for text, bounds in told.items()}
    # 194 and 6.3 are within what the printed deviations leave open, whichever way they were worked out.
    assert inside == {194: True, 6.3: True}


@pytest.mark.parametrize("use", USES)
def test_a_notebook_costs_about_what_the_batch_job_costs(summary: StudySummary, use: str) -> None:
    pair = _pair(summary, use, "train", JUPYTER, "gpu", "energy")
    assert pair.assumed
    assert pair.ratio == pytest.approx(1.03, abs=0.005)
    assert pair.ratio_interval is not None
    assert pair.ratio_interval[0] > 0.94
    assert pair.ratio_interval[1] < 1.11
    assert pair.verdict == "no significant difference"
    assert pair.more_repeats is not None or pair.more_than_100
    best = summary.best_for(Goal("energy"), f"workload={use} phase=train")
    assert best is not None
    assert best.tied == (key(use, "train", JUPYTER),)


def test_workloads_and_phases_are_lines_of_their_own_each_against_gpu(summary: StudySummary) -> None:
    assert [line.key for line in summary.lines] == [f"workload={u} phase={p}" for u in USES for p in PHASES]
    for line in summary.lines:
        assert line.axis == "node"
        assert [summary.cell(k).knobs["node"] for k in line.cells] == [s for p, s in ROWS if f"phase={p}" in line.key]
        assert line.reference == line.cells[0]
    assert summary.reference is None
    assert all(b.line is not None for b in summary.best)
    assert all(p.cell.rpartition("-")[0][:7] == p.against.rpartition("-")[0][:7] for p in summary.pairs)
    # Each with each: three cells, and four of a training, one of which has no mean power.
    assert len(summary.pairs) == 2 * (3 * 3 + 6 + 6 + 3)
    assert noted(summary) == {"no-runs-here": {"published": 14, "cells": 14}}


def test_gains_follow_from_the_moments(summary: StudySummary) -> None:
    mix = summary.cell(key("energy", "train", "cpu-mix"))
    assert mix.n == 5
    assert mix.gain is not None
    assert mix.gain.value == pytest.approx(1 - 4856.0 / 680.7)
    assert mix.gain.expanded is not None
    assert mix.loss is not None
    assert mix.loss.value == pytest.approx(7537 / 1022 - 1)


@pytest.mark.parametrize("meter", [0.02, 0.05])
def test_the_findings_hold_if_every_node_has_a_meter_of_its_own(meter: float) -> None:
    found = summarise_cells(horeka.cells(meter), reference={"node": "gpu"})
    verdicts = {f["what"]: _pair(found, *f["row"]).verdict for f in PUBLISHED["finding"]}
    assert verdicts == {f["what"]: f["verdict"] for f in PUBLISHED["finding"]}
    one = summarise_cells(horeka.cells(), reference={"node": "gpu"})
    row = ("energy", "train", "cpu-mix", "cpu-only", "energy")
    wide, narrow = (_pair(s, *row).ratio_interval for s in (found, one))
    assert wide is not None
    assert narrow is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("use", USES)
def test_the_table_of_a_use_case_is_in_the_paper_s_form(summary: StudySummary, use: str) -> None:
    table = {t.title: t for t in list_paper_tables(summary, scope="node.ac")}[f"Results of {use}"]
    assert table.labels == ("phase", "node")
    assert table.heads == ("Consumption [kJ]", "Mean power [W]", "Runtime")
    rows = {row.labels: list(row.figures) for row in table.rows}
    assert rows == {(phase, setup): horeka.printed(use, phase, setup) for phase, setup in ROWS}
    told = "Mean ± standard deviation of 5 repeats; one run where there is no ±. Energy of node.ac;"
    assert table.caption.startswith(told)


def test_the_tables_in_markdown_and_latex_have_the_paper_s_cells(summary: StudySummary) -> None:
    markdown, latex = write_paper_document(summary, "markdown"), write_paper_document(summary, "latex")
    assert "| train | gpu | 681 ± 7 | 666 ± 10 | 00:17:02 |" in markdown
    assert "|  | Jupyter | 701.9 | - | 00:17:26 |" in markdown
    assert r" & Jupyter & 783.6 & - & 00:16:06 \\" in latex
    assert "|  | cpu-mix | 109,500 ± 1,100 | 652 ± 7 | 1-22:39:43 |" in markdown
    assert r" & cpu-mix & $109{,}500 \pm 1{,}100$ & $652 \pm 7$ & 1-22:39:43 \\" in latex
    assert "\\midrule\npredict & gpu" in latex
    assert "7.13 (7.04 to 7.23)" in markdown
