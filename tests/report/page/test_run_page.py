"""The page of a run: every kind of run has one, and nothing that others wrote does anything in it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from tests.report.page.reading import Reader
from tests.report.synthetic import START, UNKNOWN, epochs, make_run

from joulelab.analysis.power_profile import make_profile
from joulelab.analysis.result import Check
from joulelab.analysis.results_file import load_result
from joulelab.core.clock import NS
from joulelab.core.quantity import Quantity
from joulelab.report.charts.chart_model import BarChart, PowerChart
from joulelab.report.charts.run_charts import chart_energy_parts, chart_epochs, chart_uncertainty, split_energy
from joulelab.report.page.document import write_offline_page
from joulelab.report.page.page_blocks import (
    ChartBlock,
    CommandBlock,
    FactList,
    FigureCards,
    FoldedBlocks,
    Paragraph,
    PowerBlock,
    SideBySide,
    Subheading,
    TableBlock,
    write_blocks_html,
    write_blocks_markdown,
)
from joulelab.report.page.run_page import make_run_report
from joulelab.report.tables import TableRow, make_table
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.report.page.document import Page

HOSTILE = "</script><img src=x onerror=alert(1)>\"'`|*\u202e\n## x"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def paged(path: Path) -> tuple[Result, Page, str]:
    result = load_result(path)
    with open_run(path) as run:
        profile = make_profile(run)
    report = make_run_report(result, path, profile)
    return result, report.make_page(), report.write_markdown()


def ids(page: Page) -> list[str]:
    return [section.id for section in page.sections]


def body(page: Page, ident: str) -> str:
    return next(section.body for section in page.sections if section.id == ident)


def well_formed(page: Page) -> ET.Element:
    """Return all sections as XML: what a browser need not guess at."""
    return ET.fromstring(f"<main>{''.join(section.body for section in page.sections)}</main>")


@pytest.mark.system  # pure, and slow
def test_a_run_has_all_its_sections(runs: Path) -> None:
    gap = {"meter": "nvml", "stream": "gpu:0.power", "reason": "driver was busy"}
    events = [
        {"t": START + NS, "event": "gap", "from": START + NS, **gap},
        {"t": START + 2 * NS, "event": "gap-end", "to": START + 2 * NS, **gap},
    ]
    path = make_run(runs, gpus=8, cpus=2, idle=True, core=True, marks=epochs(5, 10.0), name="baseline", events=events)
    _, page, text = paged(path)
    assert (page.title, page.live) == ("baseline", False)
    assert page.subtitle.startswith(f"{path.name} · 2023-")
    expected = ["summary", "power", "energy", "phases", "rated", "distribution", "uncertainty", "checks", "gaps"]
    assert [i for i in ids(page) if i in expected] == expected
    assert ids(page)[-2:] == ["configuration", "recompute"]
    root = well_formed(page)
    charts = [node.find("title") for node in root.findall(".//div[@class='for-screen']/svg")]
    assert [c.text for c in charts if c is not None][:3] == [
        "Energy by scope",
        "Energy of each scope",
        "Each epoch: energy",
    ]
    assert "driver was busy" in body(page, "gaps")
    assert "+1.00" in body(page, "gaps")
    assert list(page.data) == ["power-data"]
    assert f"joulelab show {path} --json" in body(page, "recompute")
    assert 'data-source="power-data"' in body(page, "power")
    assert next(line for line in text.splitlines() if line.startswith("## ")) == "## Summary"
    assert "<svg" not in text


@pytest.mark.system  # pure, and slow
def test_every_region_that_scrolls_can_be_reached_and_is_named(runs: Path) -> None:
    _, page, _ = paged(make_run(runs, idle=True, marks=epochs(3, 10.0)))
    root = well_formed(page)
    regions = [node for node in root.iter("div") if node.attrib.get("class") == "scroll"]
    assert regions
    assert all(r.attrib["tabindex"] == "0" and r.attrib["role"] == "region" and r.attrib["aria-label"] for r in regions)
    for node in root.iter("table"):
        assert node.find("caption") is not None
        assert all(th.attrib["scope"] in ("col", "row") for th in node.iter("th"))
    assert "style" not in Reader(write_offline_page(page)).attributes


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("state", ["live", "killed", "closed"])
def test_runs_that_have_not_ended_well_have_a_page(runs: Path, state: str) -> None:
    _, page, text = paged(make_run(runs, state=state, gpus=1, cpus=0))
    well_formed(page)
    assert page.live is (state == "live")
    assert ("so far" in body(page, "summary")) is (state == "live")
    assert "energy" in ids(page)
    assert text.startswith("# ")


@pytest.mark.system  # pure, and slow
def test_a_run_without_meters_says_what_is_missing(runs: Path) -> None:
    missing = [
        {"meter": "rapl", "status": "denied", "what": "may not be read", "why": "root", "next": "joulelab doctor"}
    ]
    _, page, text = paged(make_run(runs, gpus=0, cpus=0, missing=missing, marks=epochs(3, 10.0)))
    well_formed(page)
    assert {"power", "energy", "rated", "uncertainty", "meters"}.isdisjoint(ids(page))
    assert not re.search(r"\d\s*[kM]?J\b", body(page, "summary") + text)
    assert "<code>joulelab doctor</code>" in body(page, "summary")
    assert "Each epoch: time" in body(page, "phases")
    assert page.data == {}


@pytest.mark.system  # pure, and slow
def test_unknown_accuracy_has_no_interval_and_no_budget(runs: Path) -> None:
    result, page, _ = paged(make_run(runs, accuracy=UNKNOWN))
    assert chart_uncertainty(result) is None
    assert "bar-interval" not in body(page, "energy")
    assert "no interval" in body(page, "energy")


def test_estimates_are_marked(runs: Path) -> None:
    _, page, _ = paged(make_run(runs, gpus=0, cpus=0, estimate=True))
    assert "~" in body(page, "summary")
    assert ", estimate)" in body(page, "summary")


def test_simulated_runs_say_so_first(runs: Path) -> None:
    path = make_run(runs)
    result = replace(load_result(path), twin="gdansk-rtx6000")
    page = make_run_report(result, path, None).make_page()
    assert body(page, "summary").startswith('<p class="note warn">Simulated: twin gdansk-rtx6000')
    assert "To measure again" not in body(page, "recompute")
    texts = {"channel": "power_w", "meter": "nvml"}
    check = Check("impossible-power.negative", "failed", "gpu:0", {"power_w": -9.0}, texts)
    summary = body(make_run_report(replace(result, checks=(check,)), path, None).make_page(), "summary")
    assert 0 < summary.find('class="note bad">impossible power: ') < summary.find('class="answer"')


@pytest.mark.system  # pure, and slow
def test_hostile_text_is_shown_and_does_nothing(runs: Path) -> None:
    marks = epochs(3, 10.0, name=HOSTILE)
    path = make_run(runs, name=HOSTILE, labels={HOSTILE: HOSTILE}, command=["sh", "-c", HOSTILE], marks=marks)
    result, _, _ = paged(path)
    check = Check(HOSTILE, "failed", HOSTILE, {}, {HOSTILE: HOSTILE})
    result = replace(
        result,
        facts={HOSTILE: HOSTILE},
        checks=(check,),
        missing=({"meter": HOSTILE, "status": "denied", "what": HOSTILE, "why": HOSTILE, "next": HOSTILE},),
    )
    with open_run(path) as run:
        report = make_run_report(result, path, make_profile(run))
    page = report.make_page()
    well_formed(page)
    reader = Reader(write_offline_page(page))
    assert "img" not in reader.tags
    assert not [name for name in reader.attributes if name.startswith("on")]
    assert "onerror=alert" in "".join(reader.by_class["layout"])
    assert "\u202e" not in write_offline_page(page)
    text = report.write_markdown()
    assert "\u202e" not in text
    assert not re.search(r"^## x", text, re.MULTILINE)
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"(`+).*?\1", "", re.sub(r"\\.", "", outside))
    assert "<" not in outside
    assert "img" not in Reader(MarkdownIt("commonmark", {"html": True}).enable("table").render(text)).tags


@pytest.mark.system  # pure, and slow
def test_many_nodes_are_folded_and_summed_by_node(runs: Path) -> None:
    path = make_run(runs, gpus=2, cpus=0)
    result = load_result(path)
    scopes = tuple(replace(s, host=f"node{k:02d}") for k in range(64) for s in result.scopes)
    whole = result.group("measured")
    assert whole is not None
    hosts = tuple(s.host for s in scopes)
    group = replace(whole, scopes=tuple(s.scope for s in scopes), hosts=hosts)
    many = replace(result, scopes=scopes, groups=(group,))
    chart = chart_energy_parts(many)
    assert chart is not None
    assert len(chart.bars) == 64
    assert len({row.label for row in chart.bars}) == 64
    assert len(split_energy(many)) == 64
    page = make_run_report(many, path, None).make_page()
    well_formed(page)
    assert "64: node00, node01" in body(page, "summary")
    assert "<details>" in body(page, "energy")


@pytest.mark.system  # pure, and slow
def test_steps_are_no_epochs_and_too_many_have_no_picture(runs: Path) -> None:
    result = load_result(make_run(runs, marks=epochs(3, 10.0)))
    assert chart_epochs(result) is not None
    one = next(p for p in result.phases if p.n == 1)
    assert chart_epochs(replace(result, phases=(one,))) is None
    assert chart_epochs(replace(result, phases=tuple(replace(p, last=9) for p in result.phases if p.n))) is None
    assert chart_epochs(replace(result, phases=tuple(replace(one, n=k, energy={}) for k in range(1000)))) is None


def test_a_folder_that_is_gone_is_told(runs: Path, tmp_path: Path) -> None:
    path = make_run(runs)
    page = make_run_report(load_result(path), tmp_path / "gone", None).make_page()
    assert "cannot be read" in body(page, "configuration")


def test_addresses_of_a_served_page(runs: Path) -> None:
    path = make_run(runs)
    with open_run(path) as run:
        profile = make_profile(run)
    page = make_run_report(load_result(path), path, profile, handle="last", raw="/raw?x", live="/live").make_page()
    assert 'data-raw="/raw?x"' in body(page, "power")
    assert 'data-live="/live"' in body(page, "power")
    assert "joulelab show last --json" in body(page, "recompute")


def test_tables_leave_out_empty_columns_and_fold_when_long() -> None:
    rows = [("x", "1", ""), TableRow(("", "2", ""), "total", depth=1, has_rule_below=True)]
    block = TableBlock(make_table(("", "a", ""), rows, title="A table"))
    made = write_blocks_html([block])
    assert ET.fromstring(made).find(".//tr[2]") is not None
    assert made.count("<td") == 4  # the first head, both figures, and a first cell that names nothing
    assert 'class="total apart"' in made
    assert "|   | a |" in write_blocks_markdown([block]).splitlines()
    assert "**2**" in write_blocks_markdown([block])
    long = make_table(("a",), [(str(k),) for k in range(99)], title="Long")
    assert write_blocks_html([TableBlock(long)]).startswith("<details><summary>Long (99")


def test_blocks_say_the_same_in_html_and_markdown(runs: Path) -> None:
    with open_run(make_run(runs)) as run:
        profile = make_profile(run)
    assert profile is not None
    blocks: list[Any] = [
        Paragraph("type `ls` now", "note"),
        FigureCards((("energy", "1 J", "all"), ("time", "2 s", ""))),
        FactList((("note", "a doubt\n-> joulelab doctor"), ("note", "another"))),
        SideBySide((Paragraph("left"), Paragraph("right"))),
        CommandBlock(("echo `x`", "echo ```y```")),
        FoldedBlocks("more", (Subheading("Inside"), Paragraph("of it"))),
        FoldedBlocks("seen only", (Subheading("Nowhere"), ChartBlock(BarChart("Bars", "", "J", ())))),
        PowerBlock(PowerChart("Power", "a picture", profile, "", (), (), ())),
    ]
    html, text = write_blocks_html(blocks), write_blocks_markdown(blocks)
    ET.fromstring(f"<main>{html}</main>")
    for word in ("type", "energy", "1 J", "a doubt", "joulelab doctor", "another", "left", "right", "more", "Inside"):
        assert word in html
        assert word in text
    assert html.count("<dt") == 1
    assert "<code>ls</code>" in html
    assert "`ls`" in text
    assert "````\necho" in text
    assert "a picture" in text
    assert "a picture" in html
    assert "seen only" not in text
    assert "Nowhere" not in text


def test_a_node_is_its_devices_its_rest_and_what_its_supply_lost(runs: Path) -> None:
    result = load_result(make_run(runs, gpus=2, cpus=0))
    gpus = result.scopes
    inside = sum(s.energy.value for s in gpus)
    dc, ac = (
        replace(gpus[0], scope=scope, parent=None, reading=replace(gpus[0].reading, energy=Quantity(inside + more)))
        for scope, more in (("node.dc", 1000.0), ("node.ac", 1400.0))
    )
    whole = result.group("measured")
    assert whole is not None
    one = replace(whole, scopes=("node.ac",), hosts=(ac.host,), energy=ac.energy)
    rests = [
        replace(whole, name=f"rest of {node.scope}", energy=Quantity(node.energy.value - inside)) for node in (dc, ac)
    ]
    loss = replace(whole, name="supply loss", scopes=("node.dc",), hosts=(dc.host,), energy=Quantity(400.0))
    node = replace(result, scopes=(*gpus, dc, ac), groups=(one, *rests, loss))
    parts = {name: q.value for (_, name), q in split_energy(node).items()}
    assert parts == pytest.approx({"gpu": inside, "rest": 1000.0, "supply loss": 400.0})
    assert list(parts) == ["gpu", "rest", "supply loss"]
    chart = chart_energy_parts(node)
    assert chart is not None
    assert sum(part.value for part in chart.bars[0].parts) == pytest.approx(ac.energy.value / 1000)
    alone = replace(node, scopes=(ac,), groups=(one,))
    assert chart_energy_parts(alone) is None
    assert list(split_energy(alone)) == [(ac.host, "node.ac")]
