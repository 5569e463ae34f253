"""The page of a study: its figures are those of its tables, every cell has its estimate, slots link to runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from tests.analysis.studies import cell, sweep, trial
from tests.report.page.reading import Reader
from tests.study.virtual_study import METERS, write

from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.result import RatedDevice
from joulelab.analysis.results_file import load_result, write_result
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report.charts.svg_painter import PHONE_WIDTH
from joulelab.report.page.document import write_offline_page
from joulelab.report.page.run_page import open_run_report
from joulelab.report.page.study_page import count_states, make_study_report, open_study_report, report_study
from joulelab.report.paper_tables import list_paper_tables
from joulelab.report.study_summary import describe_estimates, list_estimates, make_estimate_table, summarise_study
from joulelab.report.study_tables import describe_best, make_compared_table, make_measured_table
from joulelab.report.tables import format_cell
from joulelab.study.folder import Settings, Study, open_study
from joulelab.study.results import RatedTrial, Results, gather_results

if TYPE_CHECKING:
    from joulelab.report.page.document import Page
    from joulelab.report.page.page_blocks import Report

HOSTILE = "</script><img src=x onerror=alert(1)>\"'`|*\u202e"
GOALS = [Goal("energy"), Goal("edp")]


def _study(**more: Any) -> Study:
    data = {
        "name": "mine", "seed": 7, "created": {}, "command": ["python", "x.py", "{cap}"], "goals": ["energy", "edp"],
        "reference": {"cap": 260.0}, "work": [], "scope": None, "repeats": 5, "joulelab": "1",
        "settings": Settings(idle_s=5.0).to_json(), "knobs": {"cap": [{"text": "100"}, {"text": "260"}]},
    }  # fmt: skip
    return Study(Path("/nowhere/mine"), data | more)


def _row(key: str, **more: Any) -> dict[str, Any]:
    base = {"cell": key, "knob_cap": 100.0, "knob_gpus": 2, "slot": "r01", "state": "done", "why": "", "run": "run-1"}
    told = {"start_utc": "2026-11-16T10:00:00+00:00", "time_s": 60.0, "energy_j": 5e3, "energy_j_expanded": 50.0}
    return base | told | {"doubts": ""} | more


def _well_formed(page: Page) -> None:
    for section in page.sections:
        ET.fromstring(f"<div>{section.body}</div>")


def _part(report: Report, name: str) -> str:
    return next(section.body for section in report.make_page().sections if section.id == name)


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    return summarise_cells(sweep(gpus=(1, 8)), goals=GOALS)


@pytest.fixture(scope="module")
def report(summary: StudySummary) -> Report:
    results = Results(rows=[_row("g1c100")], notes=["a note of the slots"])
    trials = [RatedTrial(("gpu",), 1000.0, Quantity(5e4, {"gain:m": 500.0}), 100.0, "m")] * 3
    results.rated = {"g1c100": trials, "g8c260": [replace(t, watts=2000.0) for t in trials]}
    return make_study_report(_study(), results, summary)


def test_the_page_has_every_part_and_is_well_formed(report: Report) -> None:
    page = report.make_page()
    _well_formed(page)
    assert [s.id for s in page.sections] == [
        "best", "metrics", "front", "maps", "scaling", "paper", "cells", "estimate", "slots", "notes", "again",
    ]  # fmt: skip
    assert page.title == "Study mine"
    assert page.subtitle == "1 slot: 1 done"
    assert not page.live
    text = write_offline_page(page)
    assert len(re.findall("<svg", text)) >= 15
    # Every chart that is too wide for a telephone has a drawing for it, and none is in a part that scrolls.
    drawn = ET.fromstring("".join(["<div>", *(section.body for section in page.sections), "</div>"]))
    figures = [figure for figure in drawn.iter("figure") if figure.find(".//svg") is not None]
    assert figures
    for figure in figures:
        narrow = figure.find("div[@class='for-phone']/svg")
        picture = figure.find("svg") if narrow is None else narrow
        assert picture is not None
        assert float(picture.attrib["width"]) <= PHONE_WIDTH
    assert not any(region.find(".//svg") is not None for region in drawn.iter("div") if region.get("class") == "scroll")


def test_the_tables_are_those_of_the_terminal_and_the_papers(report: Report, summary: StudySummary) -> None:
    read = [row for row in Reader(write_offline_page(report.make_page())).rows if row]
    line = summary.lines[0]
    for table, skipped in ((make_measured_table(summary, line), 0), (make_compared_table(summary, line), 1)):
        assert table is not None
        for row in table.rows:
            cells = [format_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
            assert any(each[skipped : len(cells)] == cells[skipped:] for each in read), cells
    for table in list_paper_tables(summary, spread="expanded"):
        assert table.caption in re.sub("<[^>]+>", "", _part(report, "paper")).replace("&#x27;", "'")
        for row in table.rows:
            assert any(tuple(each[-len(row.figures) :]) == row.figures for each in read), row
    markdown = report.write_markdown()
    for best in summary.best:
        assert describe_best(summary, best) in re.sub(r"\\(.)", r"\1", markdown)


def test_every_cell_has_its_estimate_and_how_wrong_it_is(report: Report, summary: StudySummary) -> None:
    text = _part(report, "estimate")
    assert re.search(r"2\.00 ± 0\.04 to 4\.00 ± 0\.08 .*\b2 cells.*\b8 ", " ".join(text.split()))
    assert "2.00 ± 0.04 to 4.00" in _part(report, "best")  # it stands at the top too
    row = Reader(text).row("cap=260 W gpus=8")
    assert row[1:] == ["2,000", "200.0", "50.0 ± 1.0", "4.00 ± 0.08", "gpu"]
    assert "unknown" in describe_estimates([], summary).lower()
    assert "joulelab.toml" in describe_estimates([], summary)


def test_estimates_are_of_the_mean_and_of_the_same_devices(summary: StudySummary) -> None:
    used = [Quantity(40.0, {"gain:m": 0.4}), Quantity(60.0, {"gain:m": 0.6})]
    trials = [RatedTrial(("gpu",), 10.0, q, t, "m") for q, t in zip(used, (9.0, 11.0), strict=True)]
    other = RatedTrial(("gpu",), 20.0, Quantity(1.0), 1.0, "m")
    nothing = RatedTrial(("gpu",), 20.0, Quantity(0.0), 1.0, "m")
    results = Results(rated={"g1c100": [*trials, other], "g1c140": [nothing]})
    found = list_estimates(results, summary)
    assert [each.cell for each in found] == ["g1c100"]
    assert found[0].energy_j == pytest.approx(100.0)
    assert found[0].ratio.value == pytest.approx(2.0)
    assert found[0].ratio.expanded is not None
    assert found[0].ratio.expanded > 0.1  # two repeats that are far from each other
    assert fmt.NOT_RESOLVED in describe_estimates(found, summary)
    near = [replace(found[0], ratio=Quantity(2.0, {"x": 0.1}))]
    assert re.search(r"2\.0 ± 0\.2 times .* unknown for 9 more", describe_estimates(near, summary))
    assert [row.cells[0] for row in make_estimate_table(found, summary).rows] == ["cap=100 W gpus=1"]
    assert found[0].to_json()["rated_w"] == 10.0


def test_slots_link_to_their_runs_and_what_failed_says_why(summary: StudySummary) -> None:
    slots = [_row("g1c100"), _row("g1c140", state="failed", why="exit code 3", run="", energy_j=None, time_s=None)]
    slots.append(_row("g1c180", state="live", slot="r02", energy_j=None, energy_j_expanded=None, time_s=None))
    results = Results(rows=slots)
    asked = []

    def link(path: Path) -> str | None:
        asked.append(path)
        return "/run/1" if "g1c100" in str(path) else None

    report = make_study_report(_study(), results, summary, link=link)
    text = _part(report, "slots")
    assert '<a href="/run/1">run-1</a>' in text
    assert asked == [
        Path(f"/nowhere/mine/cells/{key}/{slot}/run-1") for key, slot in (("g1c100", "r01"), ("g1c180", "r02"))
    ]
    assert "exit code 3" in text
    assert "3 slots: 1 done, 1 failed, 1 running." in text
    assert report.live
    assert "<a " not in _part(make_study_report(_study(), results, summary), "slots")
    assert count_states([]) == "0 slots"


def test_a_study_that_has_not_run_yet_has_a_page() -> None:
    report = make_study_report(
        _study(), Results(), summarise_cells([cell("a", [], cap=100.0), cell("b", [], cap=200.0)])
    )
    _well_formed(report.make_page())
    assert describe_estimates([], summary) in re.sub(r"\\(.)", r"\1", report.write_markdown())


def test_workloads_have_pictures_of_their_own() -> None:
    cells = [cell(f"{w}{n}", [trial(e * k, k)] * 3, workload=w, node=n)
             for w, e in (("train", 1e6), ("predict", 10)) for k, n in enumerate(("a", "b", "c", "d"), 2)]  # fmt: skip
    cells.append(cell("alone", [trial(5, 1)], workload="once", node="a"))
    report = make_study_report(_study(reference={}), Results(), summarise_cells(cells, goals=GOALS))
    metrics = _part(report, "metrics")
    assert "workload=train" in metrics
    assert "workload=once" not in metrics
    assert metrics.count(">c</text>") >= 2  # its heading says the workload, its axis the knob
    _well_formed(report.make_page())


def test_nothing_that_others_wrote_does_anything() -> None:
    cells = [
        cell(f"{k}{n}", [trial(5.0 + k, 2.0)] * 2, **{HOSTILE: f"{HOSTILE}{k}", "b": f"{HOSTILE}{n}"})
        for k in range(2)
        for n in range(2)
    ]
    row = _row("00", why=HOSTILE, state="failed", doubts=HOSTILE, **{f"knob_{HOSTILE}": HOSTILE})
    results = Results(rows=[row], notes=[HOSTILE])
    results.rated = {"00": [RatedTrial((HOSTILE,), 10.0, Quantity(5.0), 2.0, HOSTILE)]}
    knobs = {HOSTILE: [{"text": HOSTILE}]}
    study = _study(name=HOSTILE, command=[HOSTILE], reference={}, file=HOSTILE, knobs=knobs)
    report = make_study_report(study, results, summarise_cells(cells, goals=GOALS))
    text = write_offline_page(report.make_page())
    _well_formed(report.make_page())
    read = Reader(text)
    assert "img" not in read.tags
    assert not {name for name in read.attributes if name.startswith("on")}
    assert "style" not in read.attributes
    assert "\u202e" not in text
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(report.write_markdown())
    assert "img" not in Reader(rendered).tags


@pytest.mark.system
def test_a_study_on_a_twin_says_so_and_its_estimates_come_from_its_runs(tmp_path: Path) -> None:
    from joulelab.twin.virtual import run_twin_study

    file = write(tmp_path, meters=METERS, repeats=2)
    run_twin_study(file, str(tmp_path / "node.toml"), tmp_path / "st")
    folder = tmp_path / "st"
    report = report_study(open_study(folder))
    _well_formed(report.make_page())
    assert "simulated: twin" in report.subtitle
    assert open_study_report(folder).title == report.title
    results, summary = summarise_study(open_study(folder))
    estimates = list_estimates(results, summary)
    assert len(estimates) == len(summary.cells) == 4
    for each in estimates:
        assert each.watts == 260.0 * summary.cell(each.cell).knobs["gpus"], "a GPU that nobody used is not estimated"
        assert each.families == ("gpu",)
        assert 1.05 < each.ratio.value < 3  # nothing runs at its rated power all the time
    text = describe_estimates(estimates, summary)
    assert text in re.sub(r"\\(.)", r"\1", report.write_markdown())
    # A single run says the same of itself.
    run = next(folder.glob(f"cells/{estimates[0].cell}/r01/2*"))
    page = write_offline_page(open_run_report(run).make_page())
    assert fmt.format_number(260.0) in page
    _check_scopes(folder, estimates[0].cell, estimates[0].watts)


def _check_scopes(folder: Path, key: str, gpus: float) -> None:
    """See that where one scope counts, the rated power is that scope's alone."""
    for run in folder.glob(f"cells/{key}/r*/2*"):
        rated = {"gpu:0": 260.0, "gpu:1": 260.0, "node.ac": 1500.0, "dram:0": 9.0}
        result = load_result(run)
        devices = tuple(RatedDevice(result.host, scope, watts, "") for scope, watts in rated.items())
        write_result(run, replace(result, rated=replace(result.rated, devices=devices, unknown=())))
    every = gather_results(open_study(folder)).rated[key][0]
    assert (every.families, every.watts) == (("gpu", "node.ac"), gpus + 1500.0)  # no energy of dram was measured
    alone = gather_results(open_study(folder), scope="gpu").rated[key][0]
    assert (alone.families, alone.watts) == (("gpu",), gpus)
    assert alone.used.value < every.used.value
