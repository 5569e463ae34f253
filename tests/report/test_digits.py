"""One style of figures: everything that people read about a few results is searched for figures that break the rule."""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.analysis.studies import sweep
from tests.plan.measured_runs import measured, node_run
from tests.report.synthetic import UNKNOWN, epochs, make_run

from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.power_profile import make_profile
from joulelab.analysis.results_file import load_result
from joulelab.cli.ls import _make_table
from joulelab.core.quantity import Quantity
from joulelab.plan.cost.cost_books import CostJob, make_books
from joulelab.plan.cost.cost_output import lay_out_books
from joulelab.plan.cost.job_energy import RunEnergy
from joulelab.plan.cost.sites import PlanSite
from joulelab.report.comparison import compare_runs, lay_out_comparison, write_comparison
from joulelab.report.footprint_text import format_cost
from joulelab.report.group_comparison import RunGroup, compare_groups, lay_out_groups, write_groups
from joulelab.report.matrix_tables import lay_out_matrix
from joulelab.report.page.run_page import make_run_report
from joulelab.report.paper_tables import lay_out_paper, write_paper_document
from joulelab.report.run_summary import lay_out_summary
from joulelab.report.run_tables import lay_out_run
from joulelab.report.study_tables import lay_out_study, write_study_document
from joulelab.report.tables import (
    Column,
    format_cell,
    make_table,
    write_html,
    write_latex,
    write_markdown,
    write_terminal,
)
from joulelab.report.terminal import write_blocks
from joulelab.site.footprint import Site
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.analysis.result import Result

NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
PAIR = re.compile(rf"(?<![\w.,])([-+~]*{NUMBER}) ± ({NUMBER})")
WRONG = {
    "an exponent": re.compile(r"(?<![\w.-])\d+(?:\.\d+)?e[+-]?\d{1,2}\b"),
    "blanks between thousands": re.compile(r"(?<![\w.,=:-])\d{1,3}[ \u2009\u202f]\d{3}(?![\d.]) [WJk]"),
    "thousands without a comma": re.compile(r"(?<![\w.,:/=-])\d{4,}(?:\.\d+)? (?:k?[WJ]\b|kWh|samples|tokens|EUR)"),
}
GOALS = [Goal.parse(text) for text in ("energy", "edp", "eds:1.5")]
SITE = Site("DE", "Germany", 381.0, 2023, "lifecycle", "Ember", price=0.3, currency="EUR", pue=1.2)


def list_violations(text: str) -> list[str]:
    """List the figures of a text that break the rule of digits."""
    found = [f"{what}: {match[0]}" for what, pattern in WRONG.items() for match in pattern.finditer(text)]
    for match in PAIR.finditer(text):
        value, width = (float(part.lstrip("~+-").replace(",", "")) for part in match.groups())
        if "e" in match[0] or not width:
            continue
        decimals = [len(part.partition(".")[2]) for part in match.groups()]
        digits = re.sub(r"\D", "", match[2]).lstrip("0")
        place = 10.0 ** (math.floor(math.log10(width) + 1e-9) - (digits[0] == "1"))
        is_round = all(round(each / place, 6).is_integer() for each in (value, width))
        is_short = not decimals[1] or len(digits) <= 1 + (digits[0] == "1")
        if decimals[0] != decimals[1] or not is_round or not is_short:
            found.append(f"other digits than its uncertainty: {match[0]}")
        if width > value:
            found.append(f"smaller than its uncertainty: {match[0]}")
    return found


def test_the_search_finds_every_kind_of_wrong_figure() -> None:
    wrong = ["4.83 ± 3.6 kJ", "0.190 ± 35 J", "5046.77 ± 3.6e+02 J", "5,046 ± 400 J", "680.7 ± 12.3 W", "0.80 ± 0.25 J"]
    wrong += ["1e+09 tokens", "12 300 W", "1234 W", "12345.6 kJ", "1.000 ± 0.040", "510 ± 36"]
    assert [text for text in wrong if not list_violations(text)] == []
    right = ["4.8 ± 0.4 kJ", "5,000 ± 400 J", "1.235 ± 0.012 kJ", "100 ± 10 J", "123 ± 10 W", "8.64 ± 0.03", "1,234 W"]
    right += ["450.000 ± 0.001 J", "15 ± 15", "~12.3 ± 1.0 %", "(± 33 %)", "run 20231114-221320-6e12", "1 000-2"]
    assert [(text, list_violations(text)) for text in right if list_violations(text)] == []


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    return dict(_write_results(tmp_path))


def _write_results(folder: Path) -> Iterator[tuple[str, str]]:
    """Write a few results as the terminal, LaTeX, Markdown and a page show them."""
    paths = [
        make_run(folder, gpus=4, gpu_w=1234.5, idle=True, marks=epochs(5, 10.0), name="first"),
        make_run(folder, gpu_w=263.0, seconds=12.0, marks=epochs(5, 12.0)),
        make_run(folder, gpu_w=300.0, accuracy=UNKNOWN),
        make_run(folder, gpus=1, seconds=0.3),
    ]
    results = [replace(load_result(path), site=SITE) for path in paths]
    for path, result in zip(paths, results, strict=True):
        yield f"summary of {path.name}", write_blocks(lay_out_summary(result, path, width=80, handle="last"), 80)
        yield f"tables of {path.name}", write_blocks(lay_out_run(result, path, width=100, handle="last"), 100)
        with open_run(path) as run:
            report = make_run_report(result, path, make_profile(run))
        yield f"page of {path.name}", re.sub(r"<[^>]*>", "  ", html.unescape(report.write_markdown()))
        energy = result.energy
        assert energy is not None
        yield f"Python, {path.name}", f"{energy} J, {energy / 1e9} GJ, {energy.kwh} kWh"
    found = compare_runs(*results[:2])
    yield "compare", write_blocks(lay_out_comparison(found, width=80), 80)
    yield "compare in LaTeX", _read_latex(write_comparison(found, "latex"))
    yield from _write_groups(results)
    yield from _write_study(summarise_cells(sweep(gpus=(1, 8), n=3), goals=GOALS))
    job = RunEnergy(measured(node_run(folder, 6000.0, seconds=20.0, work={"tokens": 4e9}, name="n")), None)
    books = make_books([CostJob(job, None)], [PlanSite("home", "380", "0.32EUR", 1.4, 0.03)])
    yield "plan cost", write_blocks(lay_out_books(books), 80)


def _write_groups(results: list[Result]) -> Iterator[tuple[str, str]]:
    groups = [RunGroup("A", "a", tuple(results[:2])), RunGroup("B", "b", (results[1], results[0]))]
    found = compare_groups(*groups)
    yield "groups", write_blocks(lay_out_groups(found, width=100), 100)
    yield "groups in LaTeX", _read_latex(write_groups(found, "latex"))


def _write_study(summary: StudySummary) -> Iterator[tuple[str, str]]:
    yield "study", write_blocks(lay_out_matrix(summary), 80)
    yield "study --all", write_blocks([*lay_out_study(summary, every=True), *lay_out_paper(summary, width=100)], 100)
    yield "study in LaTeX", _read_latex(write_study_document(summary, "latex"))
    yield "paper in LaTeX", _read_latex(write_paper_document(summary, "latex"))


def _read_latex(text: str) -> str:
    return text.replace("{,}", ",").replace(r" \pm ", " ± ").replace("$", "").replace(r"\textasciitilde{}", "~")


def test_no_figure_that_people_read_breaks_the_rule(texts: dict[str, str]) -> None:
    found = {name: list_violations(text) for name, text in texts.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    # The search read figures: each kind of text has some.
    assert [name for name, text in texts.items() if not re.search(r"\d", text)] == []
    assert sum(len(PAIR.findall(text)) for text in texts.values()) > 100


def test_cost_and_co2e_are_the_same_in_a_run_and_a_comparison(tmp_path: Path) -> None:
    a, b = (replace(load_result(make_run(tmp_path, gpu_w=watts)), site=SITE) for watts in (300.0, 263.0))
    found = compare_runs(a, b)
    for name, unit in (("cost", "EUR"), ("CO2e", "kg")):
        line = found.find_figure(name)
        assert line is not None
        assert line.unit == unit
        footprints = a.footprint, b.footprint
        amounts = [f.cost if name == "cost" else f.co2e_kg for f in footprints if f is not None]
        assert [line.a, line.b] == amounts
        energy = found.find_figure("energy")
        assert energy is not None
        assert line.ratio is not None
        assert energy.ratio is not None
        assert line.ratio.value == pytest.approx(energy.ratio.value)
        assert line.ratio.expanded == pytest.approx(energy.ratio.expanded)
    text = write_blocks(lay_out_comparison(found, width=80), 80)
    assert "0.3 EUR/kWh, PUE 1.2, Germany 2023, 381 g/kWh" in " ".join(text.split())
    groups = compare_groups(RunGroup("A", "a", (a, a)), RunGroup("B", "b", (b, b)))
    assert [f.name for f in groups.figures[:3]] == ["energy", "cost", "CO2e"]
    nowhere = compare_runs(replace(a, site=None), b)
    assert nowhere.find_figure("cost") is None
    assert "EUR" not in write_blocks(lay_out_comparison(nowhere, width=80), 80)


def test_python_prints_quantities_by_the_same_rule() -> None:
    assert str(Quantity(4830.0, {"a": 180.0})) == "4,800 ± 400"
    assert str(Quantity(0.19, {"a": 17.5})) == "not resolved (± 40)"


def test_a_table_says_once_that_uncertainties_are_unknown() -> None:
    rows = [
        (name, Quantity(value, known=False), Quantity(value, known=name == "b"))
        for name, value in (("a", 1.0), ("b", 2.0))
    ]
    made = make_table(("", Column("energy of the node", "kJ"), Column("mean", "W")), rows)
    table = replace(made, no_interval="the accuracy is unknown; details:\n-> joulelab show a")
    for written in (write_terminal(table), write_terminal(table, 16), write_markdown(table), str(write_html(table))):
        head, _, body = written.partition("1.000")
        assert "± ?" not in written
        assert head.count("‡") == 1, written  # no accuracy of the column is known: its heading has the mark
        assert body.count("‡") == 2, written  # the accuracy of one mean of two is known; then the explanation
        assert " ".join(written.split()).count("no interval: the") == 1, written
        assert "joulelab show a" in written
    latex = write_latex(table)
    assert (latex.count(r"$^\ddagger$"), latex.count("no interval: the accuracy is unknown")) == (3, 1)
    assert "\n-> joulelab show a" in write_terminal(table, 16)  # can be pasted
    known = make_table(("", "W"), [("a", Quantity(2.0, {"a": 0.1}))])
    assert "‡" not in write_terminal(known)


def test_lists_and_plans_name_the_reason_of_a_missing_interval_once(tmp_path: Path) -> None:
    rows = [
        {"run": name, "problem": None, "energy": {"value": 5e3, "expanded": wide}, "estimate": False, "outcome": "exit"}
        | {"exit_code": 0, "name": "", "command": ["c"], "start_utc": "", "duration_s": 1.0, "twin": ""}
        for name, wide in (("r1", None), ("r2", 400.0), ("r3", None))
    ]
    listed = write_terminal(_make_table(rows, 80), 80)
    jobs = [
        CostJob(RunEnergy(measured(node_run(tmp_path, 6e3, seconds=20.0, name=name, gain=gain)), None), None)
        for name, gain in (("a", None), ("b", None), ("c", 0.01))
    ]
    books = make_books(jobs, [PlanSite("home", "380", "0.32EUR", 1.4, 0.03)])
    planned = write_blocks(lay_out_books(books), 80)
    for text in (listed, planned):
        assert "± ?" not in text, text
        assert text.count("no interval") == 1, text
        assert "-> joulelab show " in text
        assert "unknown" in text.partition("no interval")[2]
    assert [line.count("‡") for line in listed.splitlines()] == [0, 0, 1, 0, 1, 1, 0, 0]
    assert "-> joulelab show r3 --all" in listed


def test_an_amount_has_the_same_digits_in_a_line_a_table_and_beside_its_interval() -> None:
    cost, mean = Quantity(0.00828, {"gain:a": 0.00025}), Column("mean", "W", bare=True)
    bare = Column("cost", "EUR", bare=True, is_amount=True)
    assert format_cost(cost, "EUR") == f"{format_cell(cost, bare)} EUR" == "0.0083 EUR"
    assert format_cost(cost, "EUR", has_interval=True) == "0.0083 ± 0.0005 EUR"
    assert format_cell(cost, mean) == "0.00828"  # a power keeps one digit more
