"""Draw any chart by what it is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report.charts.model import Bars, Stack
from joulelab.report.charts.svg import WIDTH
from joulelab.report.charts.svg_bars import draw_bars, draw_histogram, draw_stack

if TYPE_CHECKING:
    from joulelab.report.charts.model import Chart
    from joulelab.report.html import Html


def draw(chart: Chart, width: float = WIDTH) -> Html:
    """Return a chart as SVG, so many pixels wide."""
    if isinstance(chart, Bars):
        return draw_bars(chart, width)
    return draw_stack(chart, width) if isinstance(chart, Stack) else draw_histogram(chart, width)
