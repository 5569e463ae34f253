"""Draw the power of a site over time under each policy, against its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.plan.queue.simulation import trace_power
from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from joulelab.plan.queue.policy_comparison import Comparison

WIDTH_IN, PANEL_IN, NOTE_IN = 6.4, 1.15, 0.9
LONG_S = 3 * 86_400.0  # from this length on the axis is in days
IDLE_COLOUR, JOBS_COLOUR = "#bbbbbb", COLOURS[5]


def draw_queue(comparison: Comparison, kind: str) -> bytes:
    """Return a picture (`pdf`, `svg`, `png`) with a panel for each policy. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    site, stream, completed = comparison.site, comparison.stream, comparison.completed
    is_long = max(each.figures[0]["makespan_s"] for each in completed) > LONG_S
    scale, unit = (86_400.0, "days") if is_long else (3600.0, "h")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, PANEL_IN * len(completed) + NOTE_IN), layout="constrained")
        panels = figure.subplots(len(completed), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, each in zip(panels, completed, strict=True):
            trace = trace_power(each.starts, stream.jobs[0].submit_s, site)
            at = (trace.edges_s - trace.edges_s[0]) / scale
            power = trace.high_w if site.count == "highest" else trace.mean_w
            idle, used = (np.append(w, w[-1]) / 1e3 for w in ((site.nodes - trace.busy) * site.idle_w, power))
            axes.fill_between(at, 0, idle, step="post", color=IDLE_COLOUR, linewidth=0, label="unused nodes")
            axes.fill_between(at, idle, used, step="post", color=JOBS_COLOUR, linewidth=0, label="jobs")
            axes.axhline(site.budget_w / 1e3, color="#000000", linewidth=0.9, linestyle="--", label="budget")
            wait, energy = each.figures[0]["wait_s"], each.figures[0]["energy_j"] / 3600.0
            title = f"{each.policy.name}: {fmt.format_rough(energy, 'Wh')}, mean wait {fmt.format_duration(wait)}"
            axes.set_title(title, loc="left", fontsize=8.5, pad=2)
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
        panels[0].legend(fontsize=7, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.3), borderaxespad=0.0)
        panels[-1].set_xlabel(f"time since the first submission, {unit}")
        figure.supylabel("power of all nodes, kW", fontsize=9)
        texts = [f"{stream.source}, {site.nodes} nodes, in virtual time; power is the {site.count} power of each job."]
        texts += [fmt.name_twins(stream.twins).capitalize() + "."] if stream.twins else []
        texts += [stream.title] if stream.title else []
        add_note(figure, " ".join(texts))
        return render_figure(figure, kind)
