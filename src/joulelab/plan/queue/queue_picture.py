"""Draw the power of a site over time under each policy, against its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.plan.queue.policies import FIRST_COME
from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joulelab.plan.queue.outcome import Comparison, Outcome

WIDE_IN, HIGH_IN, NOTE_IN = 6.4, 1.15, 0.9
DAYS_S = 3 * 86_400.0  # from this length on the axis is in days
SAID = "the file of jobs says"
IDLE, JOBS, OVER = "#bbbbbb", COLOURS[5], COLOURS[1]


def draw_schedule(comparison: Comparison, kind: str) -> bytes:
    """Return a picture in a format (`pdf`, `svg`, `png`): a panel for each policy. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    shown = [each for each in comparison.outcomes if each.trace is not None]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_IN, HIGH_IN * len(shown) + NOTE_IN), layout="constrained")
        panels = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        longest = max(each.drawn[0]["makespan_s"] for each in shown)
        scale, unit = (86_400.0, "days") if longest > DAYS_S else (3600.0, "h")
        for axes, each in zip(panels, shown, strict=True):
            _panel(axes, each, comparison, scale)
        panels[0].legend(fontsize=7, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.3), borderaxespad=0.0)
        panels[-1].set_xlabel(f"time since the first submission, {unit}")
        figure.supylabel("power of all nodes, kW", fontsize=9)
        add_note(figure, _note(comparison))
        return render_figure(figure, kind)


def _panel(axes: Axes, outcome: Outcome, comparison: Comparison, scale: float) -> None:
    site, trace = comparison.site, outcome.trace
    assert trace is not None
    at = (trace.edges_s - trace.edges_s[0]) / scale
    power = trace.high_w if site.count == "highest" else trace.mean_w
    idle = (site.nodes - trace.busy) * site.rest_w
    levels = [np.append(level, level[-1]) / 1e3 for level in (idle, np.minimum(power, site.budget_w), power)]
    axes.fill_between(at, 0, levels[0], step="post", color=IDLE, linewidth=0, label="unused nodes")
    axes.fill_between(at, levels[0], levels[1], step="post", color=JOBS, linewidth=0, label="jobs")
    if outcome.drawn[0][f"over_{site.count}_w"] > 0 or outcome.policy == FIRST_COME:
        axes.fill_between(at, levels[1], levels[2], step="post", color=OVER, linewidth=0, label="over the budget")
    axes.axhline(site.budget_w / 1e3, color="#000000", linewidth=0.9, linestyle="--", label="budget")
    if site.margin:
        axes.axhline(site.limit_w / 1e3, color="#000000", linewidth=0.7, linestyle=":")
    wait, energy = outcome.drawn[0]["wait_s"], outcome.drawn[0]["energy_j"] / 3600.0
    said = f"{outcome.policy.name}: {fmt.format_rough(energy, 'Wh')}, mean wait {fmt.format_duration(wait)}"
    axes.set_title(said, loc="left", fontsize=8.5, pad=2)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)


def _note(comparison: Comparison) -> str:
    site, stream = comparison.site, comparison.stream
    by = "highest power of each job at once" if site.count == "highest" else "mean power of each job"
    refused = [each.policy.name for each in comparison.outcomes if each.refused]
    said = f"{stream.source}, {site.nodes} nodes, in virtual time; power is the {by}."
    said += "".join(f" {note[0].upper()}{note[1:]}" for note in stream.notes if note.startswith(SAID))
    if stream.twins:
        said += f" {fmt.name_twins(stream.twins).capitalize()}."
    return said + (f" Not shown, as some job could never start: {', '.join(refused)}." if refused else "")
