"""Pages of two and of more runs: the figures of `compare`, what is different, and nothing that others wrote runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from tests.report.page.reading import Reader
from tests.report.synthetic import epochs, make_run

from joulelab.analysis.results_file import load_result
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report import run_tables
from joulelab.report.charts.power_chart import NO_COMMON_SCOPE
from joulelab.report.comparison import (
    ONE_RUN_EACH,
    RunComparison,
    compare_runs,
    compare_with_first,
    label_runs,
    list_differing_labels,
    make_figure_table,
    make_phase_pair_table,
    title_runs,
)
from joulelab.report.messages import COMPARISON, word_note
from joulelab.report.page.comparison_page import MOST_OVERLAID, make_comparison_report, open_comparison_report
from joulelab.report.page.document import write_offline_page
from joulelab.report.page.page_blocks import Paragraph
from joulelab.report.page.run_page import load_result_and_profile, open_run_report
from joulelab.report.tables import TableRow, format_cell
from joulelab.site.footprint import Site

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.report.page.document import Page

HOSTILE = "</script><img src=x onerror=alert(1)>\"'`|*\u202e\n## x"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    runs = tmp_path_factory.mktemp("both")
    a = make_run(runs, gpu_w=300.0, marks=epochs(3, 10.0), labels={"cap": "300", "who": "me"})
    b = make_run(runs, gpu_w=240.0, seconds=12.0, marks=epochs(2, 12.0), labels={"cap": "240", "who": "me"})
    return [a, b]


def _well_formed(page: Page) -> None:
    for section in page.sections:
        ET.fromstring(f"<div>{section.body}</div>")


@pytest.mark.system  # pure, and slow
def test_the_page_has_the_figures_of_the_comparison(both: list[Path]) -> None:
    page = open_comparison_report(both).make_page()
    _well_formed(page)
    read = Reader(write_offline_page(page))
    found = compare_runs(*(load_result(path) for path in both))
    for row in make_figure_table(found).rows:
        assert [cell for cell in read.row(str(row.cells[0])) if cell] == [cell for cell in row.cells if cell]
    assert f"{found.word_verdict()}." in " ".join(read.by_class["verdict"])
    ids = [section.id for section in page.sections]
    assert ids == ["verdict", "power", "figures", "phases", "estimate", "notes", "again"]
    assert word_note(ONE_RUN_EACH, COMPARISON) in page.sections[5].body


@pytest.mark.system  # pure, and slow
def test_both_profiles_are_drawn_over_each_other(both: list[Path]) -> None:
    page = open_comparison_report(both).make_page()
    data = page.data["profiles"]
    assert data["labels"] == ["A", "B"]
    assert [round(p["duration_s"]) for p in data["profiles"]] == [10, 12]
    json.dumps(page.data, allow_nan=False)
    power = page.sections[1].body
    assert 'data-mode="overlay"' in power
    assert 'data-source="profiles"' in power
    first = data["common"][0]
    assert first["label"].startswith("everything measured (")
    assert first["told"] in power  # what is said is said of what is drawn
    for one in data["common"]:
        assert all(i in {s["id"] for s in p["series"]} for i, p in zip(one["ids"], data["profiles"], strict=True))
        assert one["label"] in one["told"]
    results = [load_result(path) for path in both]
    group = next(one for one in data["common"] if one["ids"] == ["gpu", "gpu"])
    for result in results:
        watts = result.group("gpu").mean_w
        assert fmt.format_quantity(watts, "W") in group["told"]
    single = next(one for one in data["common"] if one["label"] == "gpu:0")
    watts = next(s for s in results[0].scopes if s.scope == "gpu:0").mean_w
    assert f"A: {fmt.format_quantity(watts, 'W')} for" in single["told"]


def test_runs_that_are_measured_at_no_scope_alike_are_said_to_be(runs: Path) -> None:
    pair = [make_run(runs, seconds=5.0, gpus=1, cpus=0), make_run(runs, seconds=5.0, gpus=0, cpus=1)]
    page = open_comparison_report(pair).make_page()
    assert page.data["profiles"]["common"] == []
    assert NO_COMMON_SCOPE in page.sections[1].body


def test_phases_stand_side_by_side_and_those_of_one_run_alone(both: list[Path]) -> None:
    found = compare_runs(*(load_result(path) for path in both))
    pairs = _phases(found)
    assert list(pairs) == ["train", "epoch 1", "epoch 2", "epoch 3"]
    assert pairs["epoch 3"].cells[2] is pairs["epoch 3"].cells[4] is pairs["epoch 3"].cells[5] is None
    assert pairs["epoch 1"].cells[1:3] == ("3.333 s", "6.000 s")
    assert pairs["epoch 1"].depth == 1
    value, _, wide = str(pairs["epoch 1"].cells[5]).removesuffix(" %").partition(" ± ")
    assert float(value) == pytest.approx(100 * (6 * (2 * 240 + 90)) / (10 / 3 * (2 * 300 + 90)) - 100, abs=float(wide))
    elsewhere = str(_phases(replace(found, same_devices=False))["epoch 1"].cells[5])
    assert float(elsewhere.removesuffix(" %").partition(" ± ")[2]) > 1.5 * float(wide)  # by the same meters: cancelled
    assert list(_phases(compare_runs(found.b, found.a)))[-1] == "epoch 3"


def _phases(found: RunComparison) -> dict[str, TableRow]:
    table = make_phase_pair_table(found)
    return {str(row.cells[0]): row for row in table.rows} if table else {}


@pytest.mark.system  # pure, and slow
def test_what_rated_power_would_have_said_is_told_of_each(both: list[Path]) -> None:
    results = [load_result(path) for path in both]
    estimate = next(s for s in open_comparison_report(both).make_page().sections if s.id == "estimate")
    text = re.sub("<[^>]+>", "", estimate.body)
    for result in results:
        assert result.rated.ratio is not None
        assert escape_unprintable(run_tables.describe_rated(result.rated)) in text.replace("&#x27;", "'")


@pytest.mark.system  # pure, and slow
def test_labels_that_differ_are_told_and_names_that_do_not_are_not_the_title(both: list[Path]) -> None:
    results = [load_result(path) for path in both]
    assert list_differing_labels(results) == ["cap=300", "cap=240"]
    named = [replace(r, name="same") for r in results]
    assert title_runs(named) == f"same: {both[0].name} and {both[1].name}"
    assert title_runs([named[0], replace(named[1], name="other")]) == "same and other"
    assert "cap=240" in write_offline_page(open_comparison_report(both).make_page())
    alike = [replace(r, labels={}) for r in results]
    report = make_comparison_report(alike, both, [None, None])
    assert ">labels<" not in report.make_page().sections[0].body


@pytest.mark.system  # pure, and slow
def test_nothing_that_others_wrote_does_anything(runs: Path) -> None:
    paths = [
        make_run(
            runs,
            name=HOSTILE,
            command=["x", HOSTILE],
            labels={"a": f"{HOSTILE}{k}"},
            marks=epochs(2, 10.0, name=HOSTILE),
        )
        for k in range(3)
    ]
    for chosen in (paths[:2], paths):
        report = open_comparison_report(chosen)
        text = write_offline_page(report.make_page())
        _well_formed(report.make_page())
        read = Reader(text)
        assert "img" not in read.tags
        assert not {name for name in read.attributes if name.startswith("on")}
        assert "style" not in read.attributes
        assert "\u202e" not in text
        assert "\n## x" not in report.write_markdown()
        rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(report.write_markdown())
        assert "img" not in Reader(rendered).tags


def test_runs_without_meters_have_a_page_too(runs: Path) -> None:
    a, b = make_run(runs, gpus=0, cpus=0), make_run(runs)
    report = open_comparison_report([a, b])
    _well_formed(report.make_page())
    assert compare_runs(load_result(a), load_result(b)).word_verdict() in report.write_markdown()
    assert re.search(r"\bA\.$", report.write_markdown(), re.MULTILINE)
    neither = open_comparison_report([a, make_run(runs, gpus=0, cpus=0)])
    assert neither.make_page().data == {}
    assert re.search(r"\bA, B\.$", neither.write_markdown(), re.MULTILINE)


def test_a_live_run_makes_a_live_page(runs: Path) -> None:
    a, b = make_run(runs), make_run(runs, state="live")
    assert open_comparison_report([a, b]).make_page().live
    assert open_run_report(b).live
    assert not open_comparison_report([a, make_run(runs)]).make_page().live
    assert not (b / "results.json").exists()


def test_runs_of_twins_say_so(both: list[Path]) -> None:
    a, b = (replace(load_result(path), twin="mine") for path in both)
    page = make_comparison_report([a, b], both, [None, None]).make_page()
    assert "simulated: twin mine, virtual time" in page.subtitle
    assert page.sections[0].body.count("simulated: twin mine") == 4  # two runs in both orders
    page = make_comparison_report([a, b, a], [*both, both[0]], [None] * 3).make_page()
    assert "simulated: twin mine, virtual time" in page.subtitle


@pytest.mark.system  # pure, and slow
def test_runs_are_links_where_they_have_pages(both: list[Path], runs: Path) -> None:
    more = [*both, make_run(runs)]
    for chosen in (both, more):
        linked = open_comparison_report(
            chosen, link=lambda path: f"/runs/{path.name}" if path != both[1] else None
        ).make_page()
        assert f'<a href="/runs/{both[0].name}">{both[0].name}</a>' in linked.sections[0].body
        assert f"/runs/{both[1].name}" not in linked.sections[0].body
        assert "<a " not in open_comparison_report(chosen).make_page().sections[0].body


@pytest.mark.system  # pure, and slow
def test_several_runs_stand_beside_each_other_against_the_first(runs: Path) -> None:
    paths = [make_run(runs, gpu_w=w) for w in (300.0, 270.0, 300.0)] + [make_run(runs, gpus=0, cpus=0)]
    report = open_comparison_report(paths)
    _well_formed(report.make_page())
    results = [load_result(path) for path in paths]
    found = compare_with_first(results)
    columns = {column.heading: [format_cell(cell, column) for cell in cells] for column, cells in found}
    against = compare_runs(results[0], results[1]).find_figure("energy")
    assert against is not None
    assert against.ratio is not None
    assert columns["energy against A"][1] == fmt.format_change(against.ratio.value - 1, against.ratio.expanded)
    assert columns["energy, kJ"][3] == columns["energy against A"][3] == fmt.NOTHING
    assert columns[""][2].startswith("at most 0.")
    rows = {row[0]: row for row in Reader(write_offline_page(report.make_page())).rows}
    assert columns["energy, kJ"][1] in rows["B"]
    text = report.write_markdown()
    assert re.search(r"\bD\.$", text, re.MULTILINE)
    assert text.count(f"joulelab report {' '.join(p.name for p in paths)}") == 1
    nothing = make_comparison_report([results[3]] * 3, [paths[3]] * 3, [None] * 3)
    assert nothing.make_page().data == {}


def test_sites_are_named_with_their_sources_and_long_commands_are_cut(both: list[Path]) -> None:
    results, profiles = zip(*map(load_result_and_profile, both), strict=True)
    sites = [
        Site(g_per_kwh=g, year=2023, source=name, price=0.3, currency="EUR") for g, name in ((400, "X"), (40, "Y"))
    ]
    long = [replace(run, command=["python", "x" * 600]) for run in results]

    def write_page(*given: Site) -> str:
        runs = [run.with_site(site) for run, site in zip(long, given, strict=True)]
        return make_comparison_report(runs, both, profiles).write_markdown()

    differing, same = write_page(*sites), write_page(sites[0], sites[0])
    assert [name for name in ("A: Cost and CO2e: ", "source: X", "B: Cost and CO2e: ") if name not in differing] == []
    assert "source: Y" in differing
    assert same.count("source: X") == 1
    assert "A: Cost" not in same
    assert "x" * 101 not in differing


def test_more_profiles_than_can_be_told_apart_are_not_drawn(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0)
    result, profile = load_result_and_profile(path)
    many = MOST_OVERLAID + 2
    report = make_comparison_report([result] * many, [path] * many, [profile] * many)
    assert len(report.make_page().data["profiles"]["profiles"]) == MOST_OVERLAID
    assert f" {MOST_OVERLAID} of {many} " in report.write_markdown()
    assert label_runs([result] * 28)[25:] == ("Z", "27", "28")


@pytest.mark.system  # pure, and slow
def test_what_makes_runs_doubtful_to_compare_stands_beside_the_first_figures(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name="a"), make_run(tmp_path, name="b"), make_run(tmp_path, gpus=0, name="c")]
    two, three = (open_comparison_report(paths).sections[0].blocks for paths in ((runs[0], runs[2]), runs))
    first, _, third = (load_result(path) for path in runs)
    for blocks, names in ((two[0].blocks, "AB"), (three, "AC")):  # type: ignore[union-attr]
        (doubt,) = compare_runs(first, third).list_doubts(*names)
        assert doubt.code == "points-differ"
        assert Paragraph(word_note(doubt, COMPARISON), "note warn") in blocks
    assert not [b for b in three if isinstance(b, Paragraph) and "A and B" in b.text]


def test_both_orders_of_two_runs_are_in_the_page(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, gpu_w=300.0, name="a"), make_run(tmp_path, gpu_w=250.0, name="b")
    page, other = (open_comparison_report(paths).make_page() for paths in ((a, b), (b, a)))
    orders = re.compile(r'<div class="order-ab">(.*)</div><div class="order-ba">(.*)</div>$', re.DOTALL)
    for section, swapped in zip(page.sections, other.sections, strict=True):
        first, second = orders.search(section.body).groups()  # type: ignore[union-attr]
        own, _ = orders.search(swapped.body).groups()  # type: ignore[union-attr]
        assert first != second or section.id == "notes"
        assert section.id == "power" or second == own
    assert page.data["profiles-swapped"] == {**other.data["profiles"], "profiles": "profiles"}
    assert f"A is a: python train.py ({a.name}); B is b: python train.py ({b.name})" in page.sections[0].body
