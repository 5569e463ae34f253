"""Test tables as papers print them, and the tables of pairs: what they say, and that nothing is cut off."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.analysis import horeka
from tests.analysis.studies import by_cap, cell, sweep, trial

from joulelab.analysis.cell_comparison import RepeatSample
from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.result import Check
from joulelab.analysis.study_cells import Cell, Trial
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report.paper_tables import (
    describe_paper,
    format_clock,
    lay_out_paper,
    list_pair_notes,
    list_pair_tables,
    list_paper_tables,
    write_paper_document,
)
from joulelab.report.study_csv import write_cells_csv, write_pairs_csv, write_statistics_csv
from joulelab.report.study_tables import lay_out_study
from joulelab.report.tables import clean_text
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from joulelab.report.paper_tables import Spread


@pytest.fixture(scope="module")
def published() -> StudySummary:
    return summarise_cells(horeka.cells(), reference={"node": "gpu"})


def _printed(summary: StudySummary, width: int = 100, *, every: bool = False, spread: Spread = "deviation") -> str:
    return write_blocks(lay_out_paper(summary, width=width, every=every, spread=spread), width)


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("width", [80, 100])
def test_the_printed_tables_fit_and_lose_nothing(published: StudySummary, width: int) -> None:
    text = _printed(published, width, every=True)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    flat = " ".join(text.split())
    for part in ("109,500 ± 1,100", "1-22:39:43", "Results of health", "86.4 (78.5 to 94.2)"):
        assert part in flat, part
    assert re.search(r"train +gpu +681 ± 7 +666 ± 10 +00:17:02", text)
    assert text.count("681 ± 7") == 1


def test_a_narrow_terminal_gets_more_tables_with_all_that_tells_rows_apart(published: StudySummary) -> None:
    text = _printed(published, 45)
    assert re.search(r"train gpu +681 ± 7", text)
    assert re.search(r"train gpu +00:17:02", text) or re.search(r"train gpu .* 00:17:02", text)


def test_a_pair_table_has_ratio_p_verdict_and_more_repeats(published: StudySummary) -> None:
    text = _printed(published, 120, every=True)
    assert re.search(
        r"train cpu-mix : gpu +7\.13 \(7\.04 to 7\.23\) +< 0\.001 +more +4\.18 \(4\.12 to 4\.23\) MJ", text
    )
    assert re.search(r"train cpu-only : cpu-mix +1\.00 \(0\.\d+ to 1\.\d+\) +1\.000 +not significant +> 100", text)
    assert "energy: mean power" in text
    usual = _printed(published)
    assert "cpu-only : cpu-mix" not in usual
    assert "mean power" not in usual


def test_the_interval_may_stand_behind_the_plus_minus(published: StudySummary) -> None:
    table = list_paper_tables(published, spread="interval")[0]
    assert table.rows[0].figures[0] == "681 ± 8"  # 2.776 x 6.7 / sqrt(5)


def test_a_column_says_how_many_repeats_where_they_differ() -> None:
    (table,) = list_paper_tables(summarise_cells([cell("a", [trial(e, 60.0) for e in (5000.0, 5100.0)], batch=1)]))
    assert table.rows[0].labels == ("1",)
    two = summarise_cells(by_cap({260.0: [(5e3, 60.0)], 200.0: [(4e3, 70.0)] * 2}, gain=0.01, offset=0.005))
    (table,) = list_paper_tables(two)
    assert [row.figures[0] for row in table.rows] == ["5,000", "4,000 ± 0"]
    (table,) = list_paper_tables(summarise_cells(by_cap({260.0: [(5e3, 60.0)] * 3, 200.0: [(4e3, 70.0)] * 2})))
    assert table.heads[0] == "n"
    assert [row.figures[0] for row in table.rows] == ["3", "2"]


def test_small_figures_have_the_digits_they_need() -> None:
    (table,) = list_paper_tables(summarise_cells(by_cap({260.0: [(0.512, 0.3), (0.518, 0.31)], 200.0: [(41.0, 3.0)]})))
    assert table.heads == ("Consumption [J]", "Mean power [W]", "Runtime [s]")
    assert table.rows[0].figures == ("0.515 ± 0.004", "1.69 ± 0.03", "0.305 ± 0.007")
    assert table.rows[1].figures[0] == "41.00"
    (table,) = list_paper_tables(summarise_cells(by_cap({260.0: [(2e4, 90.0), (2.0001e4, 90.0)]})))
    assert table.rows[0].figures[0] == "20.0005 ± 0.0007"
    (table,) = list_paper_tables(
        summarise_cells(by_cap({260.0: [(0.512, 1.0), (0.518, 1.0)], 200.0: [(0.41, 1.0), (0.42, 1.0)]}))
    )
    assert table.heads[:2] == ("Consumption [mJ]", "Mean power [mW]")
    assert table.rows[0].figures[0] == "515 ± 4"
    (table,) = list_paper_tables(summarise_cells([cell("z", [trial(0.0, 30.0)] * 2)]))
    assert table.heads == ("Consumption [J]", "Mean power [W]", "Runtime")
    assert table.rows[0].figures[0] == "0 ± 0"


def test_each_figure_has_the_digits_of_its_own_deviation() -> None:
    watts = {"a": (2991.8, 35.0), "b": (3507.3, 466.8), "c": (2942.3, 15.8), "d": (3908.85, 0.2), "e": (3909.0, 0.0002)}
    cells = [Cell(k, {"node": k}, moments={"power": RepeatSample(3, w, d)}) for k, (w, d) in watts.items()]
    cells.append(Cell("f", {"node": "f"}, moments={"power": RepeatSample(3, 0.0123, 0.5)}))
    (table,) = list_paper_tables(summarise_cells(cells))
    texts = [row.figures[0] for row in table.rows]
    assert texts[:2] == ["2,990 ± 40", "3,500 ± 500"]
    assert texts[3:] == ["3,908.8 ± 0.2", "3,909.00 ± 0.01", "0.0 ± 0.5"]
    latex = write_paper_document(summarise_cells(cells), "latex")
    assert r"$3{,}909.00 \pm 0.01$" in latex


def test_the_caption_says_per_what_cells_are_compared() -> None:
    def made(name: str, work: float) -> Cell:
        runs = [replace(trial(9e3 + k, 30.0), work={"samples": work}) for k in range(2)]
        return cell(f"{name}{work:g}", runs, workload=name, batch=work)

    found = summarise_cells([made("a", 10.0), made("a", 20.0), made("b", 30.0), made("b", 30.0003)])
    assert [line.per for line in found.lines] == ["samples", None]
    assert ["per sample" in table.caption for table in list_paper_tables(found)] == [True, False]


def test_marks_of_estimates_caps_that_failed_and_odd_repeats() -> None:
    values = (100.0, 100.5, 99.5, 100.2, 99.9, 180.0)
    odd = cell("o", [trial(v * 1e3, 100.0) for v in values], cap=1.0)
    guess = Cell("e", {"cap": 2.0}, (Trial(Quantity(9e4), 50.0, estimate=True),))
    loose = Cell("u", {"cap": 3.0}, (Trial(Quantity(9e4), 50.0, uncapped=(Check("cap.vanished", "failed"),)),))
    (table,) = list_paper_tables(summarise_cells([odd, guess, loose]))
    texts = {row.cell: row.figures[0] for row in table.rows}
    assert texts["o"].endswith(" †")
    assert texts["e"] == "~90.00"
    assert texts["u"] == "90.00!"
    assert all(f"{mark} " in table.caption for mark in "†~!")
    latex = write_paper_document(summarise_cells([odd, guess, loose]), "latex")
    assert r"$^\dagger$" in latex
    assert "±" not in latex


def test_what_is_missing_is_a_dash_and_empty_cells_have_no_row() -> None:
    cells = [cell("a", [trial(None, 30.0)], node="x"), cell("b", [trial(5e3, 30.0)], node="y"), cell("c", [], node="z")]
    (table,) = list_paper_tables(summarise_cells(cells))
    assert [row.figures for row in table.rows] == [("-", "-", "00:00:30"), ("5,000", "166.7", "00:00:30")]
    assert list_paper_tables(summarise_cells([cell("c", [])])) == []
    assert not _printed(summarise_cells([cell("c", [])])).strip()
    untimed = summarise_cells([Cell("m", {}, moments={"energy": RepeatSample(5, 5e3, 10.0)})])
    assert list_paper_tables(untimed)[0].heads == ("Consumption [J]",)
    assert re.search(r"^ *all runs +5,000 ± 10$", _printed(untimed), re.MULTILINE)
    assert "5 repeats" in list_paper_tables(untimed)[0].caption
    unmetered = summarise_cells(
        [cell("a", [trial(None, 30.0)], node="x"), cell("b", [trial(None, 30.0)] * 2, node="y")]
    )
    assert list_paper_tables(unmetered)[0].heads == ("n", "Runtime")  # nothing else tells that one is a single run
    mixed = summarise_cells([cell("a", [trial(5e3, 30.0)] * 2, node="x"), cell("b", [trial(5e3, 30.0)], batch=2)])
    assert [row.labels for row in list_paper_tables(mixed)[0].rows] == [("x", "-"), ("-", "2")]


def test_idle_devices_have_a_column_in_every_table() -> None:
    def runs(energy: float, idle: float) -> tuple[Trial, ...]:
        q = Quantity(idle, {"gain:m": 0.01 * idle})
        return tuple(
            Trial(Quantity(energy + k), 100.0, idle_energy=q, used=("cpu",), idle=("gpu:0", "gpu:1")) for k in (0, 9)
        )

    summary = summarise_cells(
        [Cell("g", {"node": "gpu"}, runs(5e4, 0.0)), Cell("m", {"node": "mix"}, runs(9e4, 2.2e4))]
    )
    (table,) = list_paper_tables(summary)
    assert table.heads[-1] == "Idle devices [kJ]"
    assert [row.figures[-1] for row in table.rows] == ["0", "22.00"]
    text = write_blocks(lay_out_study(summary), 100)
    assert "idle devices, kJ" in text
    assert "22.0 ± 0.4" in text
    assert _rows(write_cells_csv(summary))[1]["idle_energy_j"] == "22000.0"
    assert _rows(write_statistics_csv(summary))[1]["idle_energy_j"] == "22000.0"
    small = summarise_cells([Cell("m", {"node": "mix"}, runs(900.0, 220.0))])
    assert list_paper_tables(small)[0].heads[-1] == "Idle devices [J]"
    some = summarise_cells([Cell("m", {"node": "mix"}, runs(9e4, 2.2e4)), cell("g", [trial(5e4, 100.0)], node="gpu")])
    assert [row.figures[-1] for row in list_paper_tables(some)[0].rows] == ["22.00", "-"]


def test_csv_has_every_figure_in_full(published: StudySummary) -> None:
    rows = _rows(write_statistics_csv(published))
    assert len(rows) == 14
    first = rows[0]
    assert (first["energy_n"], first["energy_j_mean"], first["energy_j_deviation"]) == ("5", "680700.0", "6700.0")
    assert float(first["energy_j_low"]) == pytest.approx(680700 - 2.776445 * 6700 / 5**0.5, abs=0.1)
    assert first["power_meter_expanded"] == ""
    pairs = _rows(write_pairs_csv(published))
    assert len(pairs) == len(published.pairs)
    assert {row["verdict"] for row in pairs} == {"more", "less", "no significant difference"}
    assert float(pairs[0]["ratio_low"]) < float(pairs[0]["ratio"]) < float(pairs[0]["ratio_high"])


def test_json_has_the_tables_and_what_they_are_made_of(published: StudySummary) -> None:
    data = json.loads(json.dumps(describe_paper(published, scope="node.ac"), allow_nan=False))
    assert data["tables"][0]["columns"] == ["phase", "node", "Consumption [kJ]", "Mean power [W]", "Runtime"]
    assert data["tables"][0]["rows"][0]["texts"] == ["train", "gpu", "681 ± 7", "666 ± 10", "00:17:02"]
    assert data["statistics"]["energy-train-gpu"]["energy"]["n"] == 5
    assert data["pairs"][0]["p_corrected"] < 1e-6
    assert (data["spread"], data["scope"]) == ("deviation", "node.ac")


def test_pairs_of_lines_of_caps_name_the_line_and_a_reference_elsewhere() -> None:
    summary = summarise_cells(sweep(gpus=(1, 8), caps=(180, 260), n=3), reference={"cap": 260.0, "gpus": 8})
    text = _printed(summary, 120)
    assert re.search(r"gpus=8 180 W : 260 W", text)
    assert re.search(r"180 W gpus=1 : 260 W gpus=8", text)


def _names(summary: StudySummary) -> list[str]:
    return [clean_text(str(row.cells[0])) for row in list_pair_tables(summary)[0].rows]


def test_names_of_pairs_leave_out_what_rows_share_and_what_a_node_does_not_have() -> None:
    def made(node: str, batch: int, **more: float) -> Cell:
        runs = [trial(e, 60.0, gain=1.0) for e in (5e3, 5.1e3, 5.2e3)]
        return cell(f"{node}{batch}{more}", runs, node=node, batch=batch, epochs=30, **more)

    cells = [made(node, b, **cap) for b in (1, 2) for node, cap in (("all", {"cap": 200.0}), ("all", {"cap": 300.0}))]
    cells += [made("mix", b) for b in (1, 2)]
    summary = summarise_cells(cells, reference={"node": "all"})
    expected = ["all batch=1 200 W : 300 W", "all batch=2 200 W : 300 W", "batch=1 mix : all", "batch=2 mix : all"]
    assert _names(summary) == expected
    for width in (60, 80, 90, 100, 200):
        text = _printed(summary, width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert (len(re.findall(r"^ .* p +verdict", text, re.MULTILINE)) == 2) == (width > 60)
        assert ("difference\n" in text) == (width >= 100)
    assert re.search(r"^all batch=1 200 W : 300 W +1\.00 ", _printed(summary, 72), re.MULTILINE)
    alone = [cell(k, [trial(e, 1.0)] * 2) for k, e in (("a", 1.0), ("b", 2.0))]
    assert _names(summarise_cells(alone)) == ["b : a"]
    capped = [cell("c", [trial(1.0, 1.0)] * 2, cap=9.0), cell("n", [trial(1.0, 1.0)] * 2)]
    assert _names(summarise_cells(capped)) == ["9 W : no cap"]
    batches = [cell(f"{b}", [trial(1.0, 1.0)] * 2, batch=b) for b in (1, 2)]
    assert _names(summarise_cells(batches)) == ["batch=2 : 1"]


def test_figures_that_are_not_resolved_are_in_words_and_in_full_in_csv() -> None:
    wild = [
        cell("a", [trial(9.0, 1.0), trial(9.1, 1.0)], node="a"),
        cell("b", [trial(1.0, 1.0), trial(9.0, 1.0)], node="b"),
    ]
    table = list_pair_tables(summarise_cells(wild))[0]
    assert (table.rows[0].cells[1], table.rows[0].cells[-1]) == (fmt.NOT_RESOLVED, fmt.NOT_RESOLVED)
    papers = [list_paper_tables(summarise_cells(wild), spread=spread)[0] for spread in ("interval", "deviation")]
    assert [paper.rows[1].figures[0] for paper in papers] == [fmt.NOT_RESOLVED, "5 ± 6"]
    assert _rows(write_pairs_csv(summarise_cells(wild)))[0]["ratio_low"] == "0.0"
    assert summarise_cells(wild).to_json()["pairs"][0]["ratio_interval"][0] == 0.0


def test_pairs_per_unit_of_work_one_run_and_meters_that_do_not_agree_say_so() -> None:
    def made(node: str, energy: float, n: int, meter: str) -> Cell:
        runs = [trial(energy * (1 + k / 500), 50.0, meter=meter, gain=0.05 * energy) for k in range(n)]
        return cell(node, [replace(t, work={"samples": 10.0 + 5 * (node == "b")}) for t in runs], node=node)

    made_of = [made("a", 1e3, 3, "x"), made("b", 1.51e3, 3, "y"), made("c", 1.5e3, 1, "x")]
    found = summarise_cells(made_of)
    text = _printed(found, 120, every=True)
    assert "energy per sample" in text
    assert "mean power\n" in text
    assert re.search(r"not significant +meters", text)
    assert "more*" in text
    assert any(pair.by_meters for pair in found.pairs)
    assert any(pair.assumed for pair in found.pairs)
    assert len(list_pair_notes(found)) == 3
    single = _printed(summarise_cells([cell("a", [trial(1.0, 1.0)], node="a"), cell("b", [trial(0.0, 1.0)], node="b")]))
    assert "not known" in single
    reversed_ = _printed(
        summarise_cells([cell("b", [trial(0.0, 1.0)], node="b"), cell("a", [trial(1.0, 1.0)], node="a")])
    )
    assert re.search(r"a : b +- +- +not known", reversed_)


def test_markdown_escapes_and_has_notes(published: StudySummary) -> None:
    text = write_paper_document(published, "markdown", spread="interval", every=True)
    assert "**Results of energy**" in text
    assert all(note in text for note in list_pair_notes(published))
    assert text.count("\n| :---") == 2 + 6


@pytest.mark.parametrize(("seconds", "text"), [(59.6, "00:01:00"), (86399.0, "23:59:59"), (86400.0, "1-00:00:00")])
def test_clock(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text
