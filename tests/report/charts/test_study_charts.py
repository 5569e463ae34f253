"""Panels and maps of studies as SVG: what lies where, what is marked, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from tests.analysis.studies import by_cap, cell, sweep, trial

from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.report import format as fmt
from joulelab.report.charts.chart_model import ChartCurve, CurveChart, HeatMap, HeatTile
from joulelab.report.charts.study_charts import (
    MOST_PLANES,
    convert_to_bars,
    group_cells,
    make_heat_maps,
    make_metric_charts,
    make_pareto_chart,
    make_scaling_charts,
    shorten_labels,
    zoom_front,
)
from joulelab.report.charts.svg_painter import paint_svg

if TYPE_CHECKING:
    from joulelab.report.html import Html

HOSTILE = '<script>alert(1)</script>\u202e&"'


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    return summarise_cells(sweep(), goals=[Goal("energy"), Goal("edp")])


def _read(made: Html) -> ET.Element:
    return ET.fromstring(str(made))


def _texts(image: ET.Element) -> list[str]:
    return [e.text or "" for e in image.iter("text")]


def _by_class(image: ET.Element, word: str) -> list[ET.Element]:
    return [e for e in image.iter() if word in (e.get("class") or "").split()]


def _points(image: ET.Element) -> list[ET.Element]:
    """Return what tells a figure when it is pointed at, but tiles."""
    return [e for e in image.iter() if e.tag in ("circle", "polygon") and e.find("title") is not None]


def test_points_lie_where_their_values_are() -> None:
    curve = ChartCurve("a", (100.0, 200.0, 300.0), (3.0, 1.0, 2.0), (0.5, 0.1, 0.2), best=1, tied=(2,), reference=0)
    image = _read(paint_svg(CurveChart("energy", "Energy", "power cap, W", "energy, J", (curve,), "a note")))
    circles = _points(image)
    x, y = ([float(c.get(k) or 0) for c in circles] for k in ("cx", "cy"))
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    assert (y[2] - y[0]) * 2 == pytest.approx(y[1] - y[0], abs=0.3)  # 3, 1, 2: larger is higher
    said = [c.findtext("title") for c in circles]
    assert said[0] == "a, power cap, W 100.0: energy, J 3.0 ± 0.5"
    star = _by_class(image, "mark-best")
    assert len(star) == 2  # one in the legend
    at = re.match(r"M([\d.]+) ", star[0].get("d") or "")
    assert at is not None
    assert float(at[1]) == pytest.approx(x[1], abs=0.2)
    assert len(_by_class(image, "mark-tied")) == len(_by_class(image, "mark-reference")) == 2
    # The bars: from 2.5 to 3.5 is as long as the whole from 1 to 2.
    uprights = [e for e in _by_class(image, "line0") if e.tag == "line" and e.get("x1") == e.get("x2")]
    lengths = [abs(float(e.get("y1") or 0) - float(e.get("y2") or 0)) for e in uprights]
    assert max(lengths) == pytest.approx(abs(y[1] - y[2]), abs=0.3)
    assert image.findtext("desc", "").endswith("a: 1.000 to 3.000, best at 200.0. a note")


def test_every_curve_is_told_apart_by_shape_and_dash_too() -> None:
    curves = tuple(ChartCurve(f"c{k}", (1.0, 2.0), (k, k + 1.0), None) for k in range(8))
    image = _read(paint_svg(CurveChart("energy", "", "x", "y", curves, "")))
    paths = [e for e in image.iter("path") if "line" in (e.get("class") or "")]
    looks = {(e.get("class"), e.get("stroke-dasharray")) for e in paths}
    assert len(looks) == 8
    assert all(f"c{k}" in _texts(image) for k in range(8))
    assert len({e.tag for e in image.iter() if "fill1" in (e.get("class") or "")} & {"polygon"}) == 1


@pytest.mark.parametrize(("bar", "shifts"), [(0.001, False), (1.0, True)])
def test_long_bars_at_one_place_stand_apart(bar: float, shifts: bool) -> None:
    curves = tuple(ChartCurve(f"c{k}", (1.0, 2.0), (1.0, 2.0), (bar, bar)) for k in range(2))
    image = _read(paint_svg(CurveChart("energy", "", "x", "y", curves, "")))
    places = {
        e.get("x1") for e in image.iter("line") if "line" in (e.get("class") or "") and e.get("x1") == e.get("x2")
    }
    assert len(places) == (4 if shifts else 2)


def test_no_text_of_others_does_anything() -> None:
    curve = ChartCurve(HOSTILE, (0.0, 1.0), (1.0, 2.0), None, names=(HOSTILE, "b"), front=(0, 1))
    panel = CurveChart("pareto", HOSTILE, HOSTILE, HOSTILE, (curve,), HOSTILE, ticks=(HOSTILE, "x"), is_joined=False)
    tile = HeatTile(HOSTILE, HOSTILE, 0.5, "best")
    heat = HeatMap("energy", HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), (HOSTILE,), ((tile,),), HOSTILE, HOSTILE)
    for made in (paint_svg(panel), paint_svg(heat)):
        image = _read(made)
        assert not [e for e in image.iter() if e.tag not in SHAPES]
        assert "\u202e" not in made


SHAPES = ("svg", "title", "desc", "text", "line", "rect", "path", "circle", "polygon")


def test_a_study_draws_all_its_panels(summary: StudySummary) -> None:
    panels = [*make_metric_charts(summary), *make_scaling_charts(summary)]
    assert len(panels) == 12
    for panel in panels:
        image = _read(paint_svg(panel))
        assert len(_points(image)) == sum(len(c.x) for c in panel.curves)
        assert image.get("role") == "img"
        assert image.findtext("title")
    speed = next(p for p in panels if p.name == "speed-up")
    assert "ideal" in _texts(_read(paint_svg(speed)))


def test_names_at_the_front_do_not_cover_each_other_and_its_ends_have_theirs(summary: StudySummary) -> None:
    panel = make_pareto_chart(summary)
    assert panel is not None
    near = zoom_front(panel)
    assert near is not None
    assert [c.label for c in near.curves] == [c.label for c in panel.curves]  # so that colours stay
    image = _read(paint_svg(near))
    front = sorted((c.x[i], c.names[i]) for c in near.curves for i in c.front)
    assert front[0][1] in _texts(image)
    assert front[-1][1] in _texts(image)
    boxes = []
    for e in image.iter("text"):
        if (e.text or "") in [name for _, name in front]:
            wide, x = len(e.text or "") * 6.4, float(e.get("x") or 0)
            left = x if e.get("text-anchor") == "start" else x - wide
            boxes.append((left, left + wide, float(e.get("y") or 0)))
    for k, a in enumerate(boxes):
        assert not any(a[0] < b[1] and b[0] < a[1] and abs(a[2] - b[2]) < 11 for b in boxes[:k])


def test_a_front_that_is_most_of_the_picture_is_not_drawn_twice() -> None:
    panel = make_pareto_chart(summarise_cells(by_cap({100: [(10, 5)] * 3, 200: [(20, 3)] * 3, 300: [(30, 1)] * 3})))
    assert panel is not None
    assert zoom_front(panel) is None
    assert zoom_front(replace(panel, curves=tuple(replace(c, front=()) for c in panel.curves))) is None


def test_the_map_has_the_figures_of_the_summary(summary: StudySummary) -> None:
    energy, time, edp = make_heat_maps(summary)
    assert (energy.x_label, energy.y_label) == ("power cap", "GPUs")
    assert energy.columns == ("100 W", "140 W", "180 W", "220 W", "260 W")
    assert energy.rows == ("1", "2", "4", "8")
    assert energy.title == "Energy, kJ"
    assert (time.name, edp.name) == ("time", "edp")
    own = summary.cell("g4c180").compared
    assert own is not None
    assert own.energy is not None
    assert own.energy.expanded is not None
    tile = energy.tiles[2][2]
    assert tile is not None
    assert tile.text == fmt.format_number(own.energy.value / 1e3, 3)
    assert fmt.format_interval(own.energy.value / 1e3, own.energy.expanded / 1e3) in tile.tooltip
    shares = [t.share for row in energy.tiles for t in row if t is not None]
    assert (min(shares), max(shares)) == (0.0, 1.0)
    best = summary.best_for(Goal("energy"))
    assert best is not None
    marked = [t.tooltip for row in energy.tiles for t in row if t is not None and t.mark == "best"]
    assert len(marked) == 1
    assert f"gpus={best.cell[1]}" in marked[0]


def test_the_map_is_drawn_with_a_tile_per_cell_and_gaps_where_none_ran(summary: StudySummary) -> None:
    energy = make_heat_maps(summary)[0]
    holed = replace(energy, tiles=((None, *energy.tiles[0][1:]), *energy.tiles[1:]))
    image = _read(paint_svg(holed))
    assert len(_by_class(image, "empty-tile")) == 1
    assert len([e for e in _by_class(image, "heat") if e.find("title") is not None]) == 19
    assert {e.get("class") for e in _by_class(image, "heat")} >= {"heat heat0", "heat heat9"}
    # The first row is the lowest, as on an axis.
    rows = {e.text: float(e.get("y") or 0) for e in image.iter("text") if e.text in ("1", "8")}
    assert rows["1"] > rows["8"]


def test_maps_need_two_knobs_that_all_cells_have() -> None:
    assert make_heat_maps(summarise_cells(sweep(gpus=(1,)))) == []
    mixed = [cell("a", [trial(1, 1)], node="cpu"), cell("b", [trial(1, 1)], node="gpu", gpus=1)]
    mixed.append(cell("c", [trial(1, 1)], node="gpu", gpus=2))
    assert make_heat_maps(summarise_cells(mixed)) == []


def test_other_knobs_have_maps_of_their_own_up_to_a_number() -> None:
    places = [(a, b, c) for a in range(4) for b in range(3) for c in range(2)]
    cells = [cell(f"{a}{b}{c}", [trial(1 + a + b + c, 1)] * 2, p=a, q=b, r=c) for a, b, c in places]
    heats = make_heat_maps(summarise_cells(cells))
    assert [h.title for h in heats[::3]] == ["Energy, J: r=0", "Energy, J: r=1"]
    assert {(h.x_label, h.y_label, len(h.columns), len(h.rows)) for h in heats} == {("p", "q", 4, 3)}
    assert "more sets" not in heats[0].note
    many = [
        cell(f"{a}{b}{c}{d}", [trial(1 + a + b + c + d, 1)] * 2, p=a, q=b, r=c, s=d)
        for a, b, c in [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
        for d in range(3)
    ]
    maps = make_heat_maps(summarise_cells(many))
    assert len(maps) == 3 * MOST_PLANES
    assert "3 more sets of the other knobs have no map here." in maps[0].note


def test_cells_that_no_number_orders_are_bars(summary: StudySummary) -> None:
    cells = [cell(f"k{k}", [trial(10 + k, 2)] * 2, node=f"n{k}", mode=f"m{k}") for k in range(3)]
    named = summarise_cells(cells, goals=[Goal("energy")])
    panel = make_metric_charts(named)[0]
    bars = convert_to_bars(panel)
    names = ["node=n0 mode=m0 (reference)", "node=n1 mode=m1", "node=n2 mode=m2"]
    assert [bar.label for bar in bars.bars] == names
    assert bars.list_marks() == {"best": "best"}
    assert "best" in _texts(_read(paint_svg(bars)))
    assert [bar.value for bar in bars.bars] == [10, 11, 12]
    assert bars.bars[0].mark == "best"
    assert group_cells(summary)[0][0] == ""


def test_what_the_heading_says_is_left_out_of_names() -> None:
    cells = [replace(c, knobs={"phase": "epoch", **c.knobs}) for c in sweep(gpus=(1, 2))]
    groups = group_cells(summarise_cells(cells))
    assert [name for name, _ in groups] == ["phase=epoch"]
    panel = shorten_labels(make_metric_charts(groups[0][1])[0], "phase=epoch")
    assert [c.label for c in panel.curves] == ["gpus=1", "gpus=2"]
