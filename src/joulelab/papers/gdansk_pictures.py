"""Draw the figures of the Gdansk paper from a study: metrics against the cap, training times against GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.report.charts.chart_model import UNSHARED_NOTE, ChartCurve, CurveChart
from joulelab.report.charts.print_painter import FORMATS
from joulelab.report.charts.print_pictures import write_curve_charts
from joulelab.report.charts.study_charts import make_metric_charts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.cell_metrics import StudySummary

TWIN = "In virtual time, on the twin of the paper's node."


def pictures_of(
    summary: StudySummary, folder: Path, *, all_gpus: int, caps: Sequence[int], formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write what the paper shows as its figures 2 to 7; return the files. Raises MissingDependency."""
    panels = {panel.name: panel for panel in make_metric_charts(summary)}
    key = f"gpus={all_gpus}"
    wanted = [
        _titled(_counted(panels.get("energy-gain")), "2-energy-decrease", "Energy saved by the cap"),
        _titled(_plain(_of(panels.get("time-loss"), key)), "3-time-increase", f"Time lost by the cap, {all_gpus} GPUs"),
        _titled(_of(panels.get("edp"), key), "4-edp", f"Energy-delay product, {all_gpus} GPUs"),
        _eds(panels.get("eds-1.5"), panels.get("eds-2"), key, all_gpus),
        _titled(
            _of(panels.get("gain-minus-loss"), key), "6-difference", f"Energy saved minus time lost, {all_gpus} GPUs"
        ),
        _times(summary, caps),
    ]
    return write_curve_charts(
        [panel for panel in wanted if panel is not None and panel.curves], folder, formats=formats
    )


def _titled(panel: CurveChart | None, name: str, title: str) -> CurveChart | None:
    return None if panel is None else replace(panel, name=name, title=title, note=f"{panel.note} {TWIN}".strip())


def _counted(panel: CurveChart | None) -> CurveChart | None:
    """Return a panel whose lines are named by their number of GPUs alone."""
    if panel is None:
        return None
    counts = [
        next((w.removeprefix("gpus=") for w in c.label.split() if w.startswith("gpus=")), "") for c in panel.curves
    ]
    named = [f"{count} GPU{'' if count == '1' else 's'}" for count in counts]
    return replace(panel, curves=tuple(replace(c, label=n) for c, n in zip(panel.curves, named, strict=True)))


def _of(panel: CurveChart | None, key: str) -> CurveChart | None:
    """Return a panel with the line of so many GPUs only."""
    if panel is None:
        return None
    return replace(panel, curves=tuple(replace(c, label="") for c in panel.curves if key in c.label.split()))


def _plain(panel: CurveChart | None) -> CurveChart | None:
    """Return a panel without a best: no cap makes a training faster, so which one is fastest is chance."""
    if panel is None:
        return None
    curves = tuple(replace(c, best=None, tied=()) for c in panel.curves)
    return replace(panel, curves=curves, bars=UNSHARED_NOTE)


def _eds(first: CurveChart | None, second: CurveChart | None, key: str, gpus: int) -> CurveChart | None:
    one, two = _of(first, key), _of(second, key)
    if one is None or two is None:
        return None
    named = ((one, "k = 1.5"), (two, "k = 2"))
    curves = tuple(replace(curve, label=label) for panel, label in named for curve in panel.curves)
    both = replace(two, curves=curves, y_label="gain by EDS(k), %")
    return _titled(both, "5-eds", f"Gain by EDS, {gpus} GPUs")


def _times(summary: StudySummary, caps: Sequence[int]) -> CurveChart:
    """Return training times against the number of GPUs at some caps."""
    curves = []
    for cap in caps:
        cells = [c for c in summary.cells if c.knobs.get("cap") == cap and c.time is not None]
        points = sorted((float(c.knobs["gpus"]), c.time) for c in cells if c.time is not None)
        bars = [time.expanded for _, time in points]
        curves.append(
            ChartCurve(
                f"cap {cap} W",
                tuple(count for count, _ in points),
                tuple(time.value for _, time in points),
                tuple(b for b in bars if b is not None) if None not in bars else None,
            )
        )
    note = f"Bars: expanded uncertainty, k = 2. {TWIN}"
    made = tuple(c for c in curves if c.x)
    return CurveChart("7-training-times", "Training time", "GPUs", "training time, s", made, note)
