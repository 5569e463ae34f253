"""List the pictures of a run, of several runs or of a study, and write them for print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.charts import study_charts
from joulelab.report.charts.chart_model import CurveChart
from joulelab.report.charts.print_painter import (
    FORMATS,
    STYLE,
    add_curve_legend,
    add_note,
    load_matplotlib,
    paint_curves,
    place_front_names,
    save_figure,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.report.charts.chart_model import Chart

POWER, OVERLAY, FRACTION = "power", "overlay", "fraction"
FIGURE_SIZE_IN, JOINT_SIZE_IN = (6.4, 4.4), (3.4, 3.6)  # of one chart, and of each of several in one file


@dataclass(frozen=True, slots=True)
class Picture:
    """Hold a chart and its kind: the name that `joulelab figure` knows it by."""

    kind: str
    chart: Chart

    @property
    def title(self) -> str:
        """Return the title, or the label of the axis if it has none."""
        if isinstance(self.chart, CurveChart):
            return self.chart.full_title or self.chart.y_label
        return self.chart.title


def list_run_pictures(result: Result, profile: PowerProfile | None) -> list[Picture]:
    """List the pictures of a run: power over time, then the charts of its page."""
    from joulelab.report.charts.power_chart import make_power_chart
    from joulelab.report.charts.run_charts import list_run_charts

    power = [] if profile is None else [(POWER, make_power_chart(profile, result))]
    return _number_kinds([*power, *list_run_charts(result, profile)])


def list_comparison_pictures(results: Sequence[Result], profiles: Sequence[PowerProfile | None]) -> list[Picture]:
    """List the pictures of several runs: power by time and by fraction of the runtime, then the charts of the page."""
    from joulelab.report.charts.power_chart import make_overlay_chart
    from joulelab.report.charts.run_charts import list_comparison_charts
    from joulelab.report.comparison import label_runs

    labels = label_runs(results)
    charts: list[tuple[str, Chart]] = []
    known = [(r, p, label) for r, p, label in zip(results, profiles, labels, strict=True) if p is not None]
    if known:
        shown, profiles_shown, names = zip(*known, strict=True)
        for kind in (OVERLAY, FRACTION):
            chart = make_overlay_chart(shown, profiles_shown, names, by_fraction=kind == FRACTION)
            charts.append((kind, chart))
    return _number_kinds([*charts, *list_comparison_charts(results, labels)])


def list_study_pictures(summary: StudySummary) -> list[Picture]:
    """List the pictures of a study: metrics, Pareto front, heat maps, scaling.

    With several workloads or phases, each kind of picture begins with the name of its group.
    """
    groups = study_charts.group_cells(summary)
    charts: list[tuple[str, Chart]] = []
    for name, group in groups:
        prefix = f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-" if len(groups) > 1 else ""
        curves = [(chart.name, chart) for chart in study_charts.make_metric_charts(group)]
        if (pareto := study_charts.make_pareto_chart(group)) is not None:
            curves.append(("pareto", pareto))
            if (near := study_charts.zoom_front(pareto)) is not None:
                curves.append(("pareto-near", near))
        charts += [(f"{prefix}{kind}", study_charts.shorten_labels(chart, name)) for kind, chart in curves]
    charts += [(f"map-{chart.name}", chart) for chart in study_charts.make_heat_maps(summary)]
    charts += [(f"scaling-{chart.name}", chart) for chart in _list_scaling_charts(summary)]
    return _number_kinds(charts)


def _list_scaling_charts(summary: StudySummary) -> list[CurveChart]:
    """List the charts of scaling; labels leave out the workload and phase if all cells have the same."""
    groups = study_charts.group_cells(summary)
    group = groups[0][0] if len(groups) == 1 else ""
    return [study_charts.shorten_labels(chart, group) for chart in study_charts.make_scaling_charts(summary)]


def _number_kinds(charts: Iterable[tuple[str, Chart]]) -> list[Picture]:
    """Make kinds unique: the second picture of a kind ends in -2."""
    pictures: list[Picture] = []
    counts: dict[str, int] = {}
    for kind, chart in charts:
        counts[kind] = counts.get(kind, 0) + 1
        pictures.append(Picture(kind if counts[kind] == 1 else f"{kind}-{counts[kind]}", chart))
    return pictures


def word_remark(results: Sequence[Result]) -> str:
    """Word the remark below pictures of simulated or damaged runs; empty for others."""
    twins = list(dict.fromkeys(r.twin for r in results if r.twin))
    damaged = [r.run for r in results if r.is_damaged]
    sentences = []
    if twins:
        simulated = fmt.name_twins(twins)
        sentences.append(f"{simulated[:1].upper()}{simulated[1:]}.")
    if damaged:
        sentences.append(f"Incomplete: files of run {', '.join(damaged)} are damaged or missing.")
    return " ".join(sentences)


def write_study_figures(
    summary: StudySummary, folder: Path, *, formats: Sequence[str] = FORMATS, remark: str = ""
) -> list[Path]:
    """Write every figure of a study into a folder, `remark` below each; return the files. Raises MissingDependency."""
    pareto, scaling = study_charts.make_pareto_chart(summary), _list_scaling_charts(summary)
    charts = [*study_charts.make_metric_charts(summary), *([pareto] if pareto else [])]
    files = write_curve_charts(charts, folder, formats=formats, remark=remark)
    if scaling:
        files += write_curve_charts(scaling, folder, formats=formats, remark=remark, together="scaling")
    return files


def write_curve_charts(
    charts: Sequence[CurveChart],
    folder: Path,
    *,
    formats: Sequence[str] = FORMATS,
    remark: str = "",
    together: str = "",
) -> list[Path]:
    """Write a file for each chart, named after it, or one file with all of them, named `together`; return the files.

    Raises MissingDependency.
    """
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with mpl.rc_context(STYLE):
        for name, group in [(together, charts)] if together else [(chart.name, [chart]) for chart in charts]:
            width, height = FIGURE_SIZE_IN if not together else (JOINT_SIZE_IN[0] * len(group), JOINT_SIZE_IN[1])
            figure = Figure(figsize=(width, height), layout="constrained")
            for axes, chart in zip(figure.subplots(1, len(group), squeeze=False)[0], group, strict=True):
                paint_curves(axes, chart)
            add_curve_legend(figure, group[0], "" if together else group[0].full_title)
            add_note(figure, f"{remark} {group[0].caption}".strip())
            place_front_names(figure, group)
            files += save_figure(figure, "", folder / name, formats)
    return files
