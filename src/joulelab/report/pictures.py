"""Find the pictures of a run, of several runs and of a study, and write them for papers: what pages show, printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.charts import printed
from joulelab.report.figures import STYLE, annotate, draw_panel, plotting, rendered
from joulelab.report.page.blocks import Columns, Drawing, Fold
from joulelab.report.study.heat import heats_of
from joulelab.report.study_curves import Panel, panels_of, pareto_of, scaling_panels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.report.page.blocks import Block, Part

WIDTH_IN, HIGH_IN, PANEL_IN = 6.4, 4.4, 4.0
POWER, OVERLAY, FRACTION = "power", "overlay", "fraction"


@dataclass(frozen=True)
class Picture:
    """Hold a picture by its kind: what it shows, how high it is for a width (inches), and how it is drawn.

    `draw` puts it into a figure and returns the note below it.
    """

    kind: str
    title: str
    height_in: Callable[[float], float]
    draw: Callable[[Figure], str]


def pictures_of_run(result: Result, profile: PowerProfile | None, folder: Path) -> list[Picture]:
    """Return power over time, then what else the page of a run shows."""
    from joulelab.report.page.run import run_parts

    found = []
    if profile is not None:
        from joulelab.report.charts.printed_power import draw_power

        high = HIGH_IN + (0.6 if any(t.role == "load" for t in profile.traces) else 0.0)
        found.append(
            Picture(POWER, "Power over time", lambda _: high, lambda figure: draw_power(figure, profile, result))
        )
    return [*found, *pictures_in(run_parts(result, folder, profile))]


def pictures_of_runs(results: Sequence[Result], profiles: Sequence[PowerProfile | None]) -> list[Picture]:
    """Return the power of several runs over each other, by time and by fraction of runtime."""
    from joulelab.report.charts.printed_power import draw_overlay
    from joulelab.report.several_rows import label_runs

    labels = label_runs(results)
    there = [(p, r, label) for p, r, label in zip(profiles, results, labels, strict=True) if p is not None]
    if not there:
        return []

    def drawn(figure: Figure, *, fraction: bool) -> str:
        shown, of, named = zip(*there, strict=True)
        return draw_overlay(figure.subplots(), shown, of, named, fraction=fraction)

    return [
        Picture(OVERLAY, "Power over time", _panel, lambda figure: drawn(figure, fraction=False)),
        Picture(FRACTION, "Power over the fraction of runtime", _panel, lambda figure: drawn(figure, fraction=True)),
    ]


def pictures_of_study(summary: StudySummary) -> list[Picture]:
    """Return every metric against the knobs, the Pareto front, maps and scaling; apart for what has nothing in common.

    Their kinds are those of `study report`; where there are several workloads or phases, each after its own.
    """
    from joulelab.report.page.study_charts import groups_of, named_within, zoomed

    groups = groups_of(summary)
    found: list[tuple[str, printed.Chart | Panel]] = []
    for name, group in groups:
        before = f"{_slug(name)}-" if len(groups) > 1 else ""
        front = pareto_of(group)
        near = zoomed(front) if front else None
        panels = [(panel.name, panel) for panel in panels_of(group)]
        panels += [(kind, panel) for kind, panel in (("pareto", front), ("pareto-near", near)) if panel]
        found += [(f"{before}{kind}", named_within(panel, name)) for kind, panel in panels]
    found += [(f"map-{heat.name}", heat) for heat in heats_of(summary)]
    found += [(f"scaling-{panel.name}", panel) for panel in scaling_panels(summary)]
    return _numbered(found)


def pictures_in(parts: Iterable[Part]) -> list[Picture]:
    """Return the charts of a report, named after the part that they are in."""
    return _numbered([(part.id, chart) for part in parts for block in part.blocks for chart in _charts(block)])


def _numbered(charts: Sequence[tuple[str, printed.Chart | Panel]]) -> list[Picture]:
    """Return pictures whose kinds differ: the second of a name ends in -2."""
    found: list[Picture] = []
    seen: dict[str, int] = {}
    for kind, chart in charts:
        seen[kind] = seen.get(kind, 0) + 1
        found.append(_picture(kind if seen[kind] == 1 else f"{kind}-{seen[kind]}", chart))
    return found


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _charts(block: Block) -> Iterator[printed.Chart | Panel]:
    if isinstance(block, Drawing):
        yield block.chart
    elif isinstance(block, Columns | Fold):
        for inner in block.blocks:
            yield from _charts(inner)


def _picture(name: str, chart: printed.Chart | Panel) -> Picture:
    if isinstance(chart, Panel):
        panel = chart

        def lines(figure: Figure) -> str:
            draw_panel(figure.subplots(), panel)
            return panel.note

        return Picture(name, chart.title or chart.y_label, _panel, lines)
    other = chart
    return Picture(
        name,
        chart.title,
        lambda width: printed.height_of(other, width),
        lambda figure: printed.draw(figure.subplots(), other),
    )


def made(picture: Picture, formats: Sequence[str], *, width_in: float = WIDTH_IN, said: str = "") -> dict[str, bytes]:
    """Return a picture as a file of each format. `said` stands before its note. Raises MissingDependency."""
    mpl, Figure = plotting()  # noqa: N806 - a class
    sizes = {"font.size": 8, "axes.titlesize": 9} if width_in < 0.7 * WIDTH_IN else {"axes.titlesize": 10}
    with mpl.rc_context({**STYLE, **sizes}):
        figure = Figure(figsize=(width_in, picture.height_in(width_in)), layout="constrained")
        annotate(figure, f"{said} {picture.draw(figure)}".strip())
        return {kind: rendered(figure, kind) for kind in formats}


def _panel(width_in: float) -> float:
    """Return the height (inches) of what has one pair of axes and nothing that needs more."""
    return PANEL_IN * (0.8 if width_in < 0.7 * WIDTH_IN else 1.0)


def warn_of(results: Sequence[Result]) -> str:
    """Return the sentences that stand below a picture of simulated or damaged runs, empty for others."""
    names = list(dict.fromkeys(r.twin for r in results if r.twin))
    said = fmt.name_twins(names) if names else ""
    damaged = [r.run for r in results if r.is_damaged]
    lost = f"Incomplete: files of run {', '.join(damaged)} are damaged or missing." if damaged else ""
    return f"{said[:1].upper()}{said[1:]}{'.' if said else ''} {lost}".strip()
