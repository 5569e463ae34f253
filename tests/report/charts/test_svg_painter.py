from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from tests.rows import every_row

from joulelab.report.charts.chart_model import (
    BarChart,
    ChartBar,
    ChartCurve,
    CurveChart,
    HeatMap,
    HeatTile,
    HistogramChart,
    StackChart,
    StackedBar,
    StackPart,
    get_lower_end,
)
from joulelab.report.charts.svg_painter import (
    LETTER,
    MARGIN,
    PHONE_WIDTH,
    ChartFrame,
    LegendKey,
    choose_step,
    draw_mark,
    draw_path,
    draw_text,
    format_pixel,
    make_axis,
    make_named_axis,
    paint_svg,
)

HOSTILE = "</script><img src=x onerror=alert(1)>\"'\u202e\n\x00&"


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter("text")]


def rects(svg: str, class_: str) -> list[dict[str, float]]:
    found = [node.attrib for node in ET.fromstring(svg).iter("rect") if class_ in node.attrib["class"].split()]
    return [{k: float(v) for k, v in a.items() if k != "class"} for a in found]


@every_row(("low", "high"), [(0.0, 1.0), (0.0, 5600.0), (-3.2, 81.0), (1e-9, 4e-9), (99.0, 99.4)])
def test_ticks_are_round_and_within_the_axis(low: float, high: float) -> None:
    axis = make_axis("x", [low, high])
    at = [value for value, _ in axis.ticks]
    assert 2 <= len(at) <= 8
    assert all(axis.low <= value <= axis.high for value in at)
    assert axis.low <= low
    assert axis.high >= high
    steps = {round((b - a) / choose_step(axis.high - axis.low, 6), 6) for a, b in pairwise(at)}
    assert steps == {1.0}
    assert len({said for _, said in axis.ticks}) == len(at)
    assert all(
        math.isclose(float(said.replace(",", "")), value, rel_tol=1e-6, abs_tol=1e-12) for value, said in axis.ticks
    )


def test_an_axis_from_zero_begins_there_and_one_value_is_enough() -> None:
    assert make_axis("x", [3.0, 9.0], from_zero=True).low == 0.0
    assert make_axis("x", [-3.0, -9.0], from_zero=True).high == 0.0
    assert make_axis("x", [0.0], from_zero=True).low == 0.0
    for values in ([], [5.0], [math.nan, math.inf]):
        axis = make_axis("x", values)
        assert axis.low < axis.high


def test_larger_values_lie_to_the_right_and_higher_within_the_frame() -> None:
    frame = ChartFrame(
        "t", "d", make_axis("time, s", [0, 10]), make_axis("power, W", [0, 1000], from_zero=True), keys=[LegendKey("a")]
    )
    assert frame.left <= frame.x(0) < frame.x(10) <= frame.right
    assert frame.top <= frame.y(1000) < frame.y(0) <= frame.bottom
    root = ET.fromstring(frame.draw())
    assert root.attrib["role"] == "img"
    assert [root[0].tag, root[0].text, root[1].tag, root[1].text] == ["title", "t", "desc", "d"]
    assert {"time, s", "power, W", "a"} <= set(texts(frame.draw()))


def test_many_names_are_turned_and_thinned_so_that_none_covers_another() -> None:
    few = ChartFrame("t", "d", make_named_axis("", ["a", "b"]), make_axis("y", [0, 1]))
    many = ChartFrame("t", "d", make_named_axis("", [f"a long name {k}" for k in range(400)]), make_axis("y", [0, 1]))
    assert not few.is_turned
    assert many.is_turned
    assert many.bottom < few.bottom
    assert len(many.axes[0].ticks) < 50
    assert "rotate(-35" in many.draw()


def test_legends_that_do_not_fit_in_one_line_take_several() -> None:
    keys = [LegendKey(f"something quite long {k}", k) for k in range(9)]
    frame = ChartFrame("t", "d", make_axis("x", [0, 1]), make_axis("y", [0, 1]), keys=keys)
    root = ET.fromstring(frame.draw())
    placed = [
        (float(node.attrib["x"]), float(node.attrib["y"])) for node in root.iter("text") if "long" in str(node.text)
    ]
    assert len({y for _, y in placed}) > 1
    assert max(x for x, _ in placed) < frame.width
    assert max(y for _, y in placed) < frame.top


def test_nothing_that_is_not_finite_gets_into_a_path() -> None:
    made = draw_path([(0, 0), (1, 1), (math.nan, 2), (3, 3), (4, math.inf)], "line0")
    assert ET.fromstring(made).attrib["d"] == "M0 0L1 1M3 3"
    assert format_pixel(math.nan) == "0"
    for shape in ("box", "line", "dot", "star", "ring", "square"):
        ET.fromstring(draw_mark(shape, 5, 5, 11))


def test_bars_are_as_long_as_their_values_with_whiskers() -> None:
    rows = (ChartBar("gpu:0", 30.0, 3.0, "30 ± 3 J"), ChartBar("gpu:1", 10.0, None, "10 ± ? J", 1, "best"))
    svg = paint_svg(BarChart("Energy", "about", "energy, J", rows))
    first, second = rects(svg, "fill0")[0], rects(svg, "fill1")[0]
    assert first["width"] / second["width"] == pytest.approx(3.0, rel=0.01)
    assert first["y"] < second["y"]
    assert {"gpu:0", "gpu:1", "30 ± 3 J", "10 ± ? J"} <= set(texts(svg))
    whiskers = [node for node in ET.fromstring(svg).iter("line") if node.attrib["class"] == "bar-interval"]
    assert len(whiskers) == 3  # a line and two ends; none where the accuracy is unknown
    half = (float(whiskers[0].attrib["x2"]) - float(whiskers[0].attrib["x1"])) / 2
    assert half / first["width"] == pytest.approx(0.1, rel=0.02)
    assert "mark-best" in svg


def test_whiskers_of_energies_end_at_zero_those_of_changes_do_not() -> None:
    row = ChartBar("a", 1.0, 3.0, "too short")
    assert [get_lower_end(1.0, 3.0), get_lower_end(-1.0, 3.0), get_lower_end(1.0, 3.0, signed=True)] == [
        0.0,
        -1.0,
        -2.0,
    ]
    assert [BarChart("t", "", "J", (row,), level=level).is_signed for level in (None, 2.0, 0.0)] == [False, False, True]
    assert "-2" not in paint_svg(BarChart("Energy", "about", "energy, J", (row,)))
    assert "-2" in paint_svg(BarChart("Gain", "about", "gain, %", (row,), level=0.0))


def test_upright_bars_and_dots() -> None:
    rows = tuple(ChartBar(str(k), float(k), 0.5, f"{k} J") for k in range(1, 5))
    svg = paint_svg(BarChart("Each epoch", "about", "energy, J", rows, is_upright=True, level=2.0, keys=("measured",)))
    heights = [r["height"] for r in rects(svg, "fill0") if "y" in r and r["width"] > 12]
    assert heights[3] / heights[0] == pytest.approx(4.0, rel=0.01)
    dots = paint_svg(
        BarChart(
            "Off",
            "about",
            "off, %",
            (ChartBar("a", -2.0, 1.0, "-2"), ChartBar("b", 3.0, None, "3")),
            is_dotted=True,
            level=0.0,
        )
    )
    at = [float(node.attrib["cx"]) for node in ET.fromstring(dots).iter("circle")]
    assert at[0] < at[1]


def test_a_stack_has_its_parts_end_to_end() -> None:
    parts = (StackPart(0, 50.0, "50 J"), StackPart(1, -4.0, "-4 J"), StackPart(2, 25.0, "25 J"))
    svg = paint_svg(
        StackChart(
            "Energy", "about", "energy, J", (StackedBar("node", parts, "71 J", 5.0),), ("gpu", "cpu", "rest"), (0, 1, 7)
        )
    )
    gpu, rest = rects(svg, "fill0")[0], rects(svg, "fill7")[0]
    assert gpu["width"] / rest["width"] == pytest.approx(2.0, rel=0.01)
    assert gpu["x"] + gpu["width"] == pytest.approx(rest["x"], abs=0.2)
    assert rects(svg, "fill1")[0]["width"] == 0
    assert {"gpu", "cpu", "rest", "71 J"} <= set(texts(svg))


def test_a_histogram_shows_its_shares_and_marks() -> None:
    chart = HistogramChart(
        "Power", "about", "power, W", (0.0, 100.0, 200.0, 300.0), (20.0, 0.0, 80.0), (("max 300 W", 300.0),)
    )
    bars = rects(paint_svg(chart, 520), "fill0")
    assert len(bars) == 2
    assert bars[1]["height"] / bars[0]["height"] == pytest.approx(4.0, rel=0.01)
    assert "max 300 W" in texts(paint_svg(chart))


def test_every_kind_of_chart_fits_a_telephone() -> None:
    name = "workload=resnet152-cifar10 batch=4096 phase=epoch"
    bars = tuple(ChartBar(f"{name} {k}", 10.0 * k, 1.0, f"{1000 * k:,} ± 12") for k in range(1, 4))
    curve = ChartCurve(name, (100.0, 260.0), (1.0, 2.0), (0.1, 0.1), best=0)
    tiles = tuple(tuple(HeatTile(f"{k}.{n}", "", 0.5) for k in range(17)) for n in range(4))
    caps = tuple(f"{100 + 10 * k} W" for k in range(17))
    charts = (
        BarChart("Energy", "about", "energy, kJ", bars),
        BarChart("Gain", "about", "gain, %", bars, is_dotted=True, level=0.0),
        StackChart("Parts", "about", "energy, kJ", (StackedBar(name, (StackPart(0, 5.0, ""),), "5 kJ"),), (name, "b")),
        HistogramChart("Power", "about", "power, W", (0.0, 1000.0, 2000.0), (20.0, 80.0), ((name, 300.0),)),
        CurveChart("energy", "Energy", "power cap, W", "energy, kJ", (curve, curve), ""),
        HeatMap("energy", "Energy", "power cap", "GPUs", caps, ("1", "2", "4", "8"), tiles, "183 kJ", "843 kJ"),
    )
    for chart in charts:
        image = ET.fromstring(paint_svg(chart, PHONE_WIDTH))
        assert float(image.attrib["width"]) <= PHONE_WIDTH, chart.title
        for node in image.iter("text"):
            if node.get("transform"):
                continue
            wide, x = len(node.text or "") * LETTER, float(node.attrib["x"])
            left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[node.attrib["text-anchor"]]
            assert left > -MARGIN, (chart.title, node.text)
            assert left + wide < PHONE_WIDTH + MARGIN, (chart.title, node.text)
    turned = texts(paint_svg(charts[-1], PHONE_WIDTH))
    assert len([text for text in turned if "." in text]) == 4 * 17
    assert set(caps) < set(turned)


def test_hostile_names_are_text_and_nothing_else() -> None:
    charts = [
        BarChart(HOSTILE, HOSTILE, HOSTILE, (ChartBar(HOSTILE, 1.0, 0.1, HOSTILE),), keys=(HOSTILE,)),
        BarChart(HOSTILE, HOSTILE, HOSTILE, (ChartBar(HOSTILE, 1.0, 0.1, HOSTILE),), is_upright=True),
        StackChart(
            HOSTILE, HOSTILE, HOSTILE, (StackedBar(HOSTILE, (StackPart(0, 1.0, HOSTILE),), HOSTILE),), (HOSTILE,)
        ),
        HistogramChart(HOSTILE, HOSTILE, HOSTILE, (0.0, 1.0), (100.0,), ((HOSTILE, 0.5),)),
    ]
    for svg in [*map(paint_svg, charts), draw_text(0, 0, HOSTILE)]:
        tags = {node.tag for node in ET.fromstring(svg).iter()}
        assert tags <= {"svg", "title", "desc", "line", "rect", "text", "path", "circle"}
        assert "\u202e" not in svg
        assert "\n" not in svg
        assert not any(name.startswith("on") for node in ET.fromstring(svg).iter() for name in node.attrib)
