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
from joulelab.report import rated
from joulelab.report.comparison import ONE_RUN_EACH, compare_runs
from joulelab.report.comparison_rows import list_differing_labels, list_figure_rows, pair_phases, title_runs
from joulelab.report.page.blocks import Text
from joulelab.report.page.comparison import comparison_report
from joulelab.report.page.document import offline
from joulelab.report.page.make import looked_at, page_of_run, page_of_runs, report_of_runs
from joulelab.report.page.overlay import MOST, NOTHING
from joulelab.report.page.several import several_report
from joulelab.report.several_rows import label_runs, several_columns

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.report.page.parts import Page

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
    page = page_of_runs(both)
    _well_formed(page)
    read = Reader(offline(page))
    found = compare_runs(*(load_result(path) for path in both))
    for row in list_figure_rows(found):
        told = [cell for cell in (row.name.strip(), row.a, row.b, row.change, row.verdict) if cell]
        assert [cell for cell in read.row(row.name.strip()) if cell] == told
    assert f"{found.verdict()}." in " ".join(read.by_class["verdict"])
    ids = [section.id for section in page.sections]
    assert ids == ["verdict", "power", "figures", "phases", "estimate", "notes", "again"]
    assert ONE_RUN_EACH in page.sections[5].body


@pytest.mark.system  # pure, and slow
def test_both_profiles_are_drawn_over_each_other(both: list[Path]) -> None:
    page = page_of_runs(both)
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
        assert fmt.format_quantity(watts.value, watts.expanded, "W") in group["told"]
    single = next(one for one in data["common"] if one["label"] == "gpu:0")
    watts = next(s for s in results[0].scopes if s.scope == "gpu:0").mean_w
    assert f"A: {fmt.format_quantity(watts.value, watts.expanded, 'W')} for" in single["told"]


def test_runs_that_are_measured_at_no_scope_alike_are_said_to_be(runs: Path) -> None:
    pair = [make_run(runs, seconds=5.0, gpus=1, cpus=0), make_run(runs, seconds=5.0, gpus=0, cpus=1)]
    page = page_of_runs(pair)
    assert page.data["profiles"]["common"] == []
    assert NOTHING in page.sections[1].body


def test_phases_stand_side_by_side_and_those_of_one_run_alone(both: list[Path]) -> None:
    found = compare_runs(*(load_result(path) for path in both))
    pairs = {p.label: p for p in pair_phases(found)}
    assert list(pairs) == ["train", "epoch 1", "epoch 2", "epoch 3"]
    assert pairs["epoch 3"].time[1] == pairs["epoch 3"].energy[1] == pairs["epoch 3"].change == fmt.NOTHING
    assert pairs["epoch 1"].time == ("3.333 s", "6.000 s")
    assert pairs["epoch 1"].depth == 1
    value, _, wide = pairs["epoch 1"].change.removesuffix(" %").partition(" ± ")
    assert float(value) == pytest.approx(100 * (6 * (2 * 240 + 90)) / (10 / 3 * (2 * 300 + 90)) - 100, abs=float(wide))
    elsewhere = {p.label: p for p in pair_phases(replace(found, same_devices=False))}["epoch 1"].change
    assert float(elsewhere.removesuffix(" %").partition(" ± ")[2]) > 1.5 * float(wide)  # by the same meters: cancelled
    assert [p.label for p in pair_phases(compare_runs(found.b, found.a))][-1] == "epoch 3"


@pytest.mark.system  # pure, and slow
def test_what_rated_power_would_have_said_is_told_of_each(both: list[Path]) -> None:
    results = [load_result(path) for path in both]
    estimate = next(s for s in page_of_runs(both).sections if s.id == "estimate")
    text = re.sub("<[^>]+>", "", estimate.body)
    for result in results:
        assert result.rated.ratio is not None
        assert escape_unprintable(rated.describe_rated(result.rated)) in text.replace("&#x27;", "'")


@pytest.mark.system  # pure, and slow
def test_labels_that_differ_are_told_and_names_that_do_not_are_not_the_title(both: list[Path]) -> None:
    results = [load_result(path) for path in both]
    assert list_differing_labels(results) == ["cap=300", "cap=240"]
    named = [replace(r, name="same") for r in results]
    assert title_runs(named) == f"same: {both[0].name} and {both[1].name}"
    assert title_runs([named[0], replace(named[1], name="other")]) == "same and other"
    assert "cap=240" in offline(page_of_runs(both))
    alike = [replace(r, labels={}) for r in results]
    report = comparison_report(compare_runs(*alike), both, [None, None])
    assert ">labels<" not in report.page().sections[0].body


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
        report = report_of_runs(chosen)
        text = offline(report.page())
        _well_formed(report.page())
        read = Reader(text)
        assert "img" not in read.tags
        assert not {name for name in read.attributes if name.startswith("on")}
        assert "style" not in read.attributes
        assert "\u202e" not in text
        assert "\n## x" not in report.markdown()
        rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(report.markdown())
        assert "img" not in Reader(rendered).tags


def test_runs_without_meters_have_a_page_too(runs: Path) -> None:
    a, b = make_run(runs, gpus=0, cpus=0), make_run(runs)
    report = report_of_runs([a, b])
    _well_formed(report.page())
    assert compare_runs(load_result(a), load_result(b)).verdict() in report.markdown()
    assert re.search(r"\bA\.$", report.markdown(), re.MULTILINE)
    neither = report_of_runs([a, make_run(runs, gpus=0, cpus=0)])
    assert neither.data == {}
    assert re.search(r"\bA, B\.$", neither.markdown(), re.MULTILINE)


def test_a_live_run_makes_a_live_page(runs: Path) -> None:
    a, b = make_run(runs), make_run(runs, state="live")
    assert page_of_runs([a, b]).live
    assert page_of_run(b).live
    assert not page_of_runs([a, make_run(runs)]).live
    assert not (b / "results.json").exists()


def test_runs_of_twins_say_so(both: list[Path]) -> None:
    a, b = (replace(load_result(path), twin="mine") for path in both)
    page = comparison_report(compare_runs(a, b), both, [None, None]).page()
    assert "simulated: twin mine, virtual time" in page.subtitle
    assert page.sections[0].body.count("simulated: twin mine") == 2
    page = several_report([a, b, a], [*both, both[0]], [None] * 3).page()
    assert "simulated: twin mine, virtual time" in page.subtitle


@pytest.mark.system  # pure, and slow
def test_runs_are_links_where_they_have_pages(both: list[Path], runs: Path) -> None:
    more = [*both, make_run(runs)]
    for chosen in (both, more):
        linked = page_of_runs(chosen, link=lambda path: f"/runs/{path.name}" if path != both[1] else None)
        assert f'<a href="/runs/{both[0].name}">{both[0].name}</a>' in linked.sections[0].body
        assert f"/runs/{both[1].name}" not in linked.sections[0].body
        assert "<a " not in page_of_runs(chosen).sections[0].body


@pytest.mark.system  # pure, and slow
def test_several_runs_stand_beside_each_other_against_the_first(runs: Path) -> None:
    paths = [make_run(runs, gpu_w=w) for w in (300.0, 270.0, 300.0)] + [make_run(runs, gpus=0, cpus=0)]
    report = report_of_runs(paths)
    _well_formed(report.page())
    results = [load_result(path) for path in paths]
    columns = {c.head: c.cells for c in several_columns(results)}
    against = compare_runs(results[0], results[1]).line("energy")
    assert against is not None
    assert against.ratio is not None
    assert columns["energy against A"][1] == fmt.format_change(against.ratio.value - 1, against.ratio.expanded)
    assert columns["energy, kJ"][3] == columns["energy against A"][3] == fmt.NOTHING
    assert columns[""][2] == "no significant difference"
    rows = {row[0]: row for row in Reader(offline(report.page())).rows}
    assert columns["energy, kJ"][1] in rows["B"]
    text = report.markdown()
    assert re.search(r"\bD\.$", text, re.MULTILINE)
    assert text.count(f"joulelab report {' '.join(p.name for p in paths)}") == 1
    nothing = several_report([results[3]] * 3, [paths[3]] * 3, [None] * 3)
    assert nothing.data == {}


def test_more_profiles_than_can_be_told_apart_are_not_drawn(runs: Path) -> None:
    path = make_run(runs, gpus=1, cpus=0)
    result, profile = looked_at(path)
    many = MOST + 2
    report = several_report([result] * many, [path] * many, [profile] * many)
    assert len(report.data["profiles"]["profiles"]) == MOST
    assert f" {MOST} of {many} " in report.markdown()
    assert label_runs([result] * 28)[25:] == ("Z", "27", "28")


@pytest.mark.system  # pure, and slow
def test_what_makes_runs_doubtful_to_compare_stands_beside_the_first_figures(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name="a"), make_run(tmp_path, name="b"), make_run(tmp_path, gpus=0, name="c")]
    two, three = (report_of_runs(paths).parts[0].blocks for paths in ((runs[0], runs[2]), runs))
    first, _, third = (load_result(path) for path in runs)
    for blocks, names in ((two, "AB"), (three, "AC")):
        (doubt,) = compare_runs(first, third).doubts(*names)
        assert doubt.code == "points-differ"
        assert Text(doubt, "note warn") in blocks
    assert not [b for b in three if isinstance(b, Text) and "A and B" in b.said]
