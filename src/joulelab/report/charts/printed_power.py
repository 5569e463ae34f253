"""Draw power over time for papers: scopes stacked to the wall with load below, or several runs over each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.charts.printed import keys
from joulelab.report.figures import COLOURS, DASHES
from joulelab.report.page.profile import in_common, lines_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from joulelab.analysis.power_profile import PowerProfile, PowerTrace
    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import Result

MOST_POINTS = 1500  # more than a printed line can show
LINES = {"rated": ("#D55E00", "--"), "mean": ("#222222", ":"), "idle": ("#777777", "-.")}
MOST_NAMES = 12
LETTERS_PER_IN, LEAST_LETTERS = 12, 4  # of names of phases
BAND = "Grey: lowest and highest reading."


def draw_power(figure: Figure, profile: PowerProfile, result: Result) -> str:
    """Draw a run: the stack, what it is held against, phases, and load below; return the note."""
    loads = [t for t in profile.traces if t.role == "load"]
    if loads:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    else:
        axes = below = figure.subplots()
    level, unit_s, unit = _level(profile), *_time(profile.duration_s)
    edges = _edges(profile, level) / unit_s
    factor, watts = _stack(axes, profile, level, edges)
    _lines(axes, result, factor)
    _phases(axes, result, unit_s)
    axes.set_ylabel(f"power, {watts}")
    axes.set_ylim(bottom=0)
    for k, trace in enumerate(loads):
        below.stairs(trace.levels[level].mean, edges, color=COLOURS[k], label=trace.label, baseline=None)
    if loads:
        below.set_ylabel("load, %")
        below.set_ylim(0, 105)
    keys(figure)
    below.set_xlabel(f"time, {unit}")
    below.set_xlim(edges[0], edges[-1])
    step = _edges(profile, level)
    each = fmt.format_period(round(float(step[1] - step[0]), 6))
    return f"Each point is a mean over {each}. {BAND} Time 0: the workload's start."


def draw_overlay(
    axes: Axes, profiles: Sequence[PowerProfile], results: Sequence[Result], labels: Sequence[str], *, fraction: bool
) -> str:
    """Draw several runs over each other, by time or by fraction of runtime; return the note.

    Drawn is everything measured where that is the same scope, else the outermost that all have, else each for itself.
    """
    unit_s, unit = _time(max(p.duration_s for p in profiles))
    common = next(iter(in_common(profiles)), None)
    traces = common.traces if common else tuple(p.everything for p in profiles)
    wholes = [trace.levels[_level(p)] for trace, p in zip(traces, profiles, strict=True)]
    factor, watts = fmt.choose_scale([float(np.nanmax(b.high, initial=0.0)) for b in wholes], "W")
    for k, (profile, whole) in enumerate(zip(profiles, wholes, strict=True)):
        edges = _edges(profile, _level(profile))
        inside = (edges[1:] > 0) & (edges[:-1] < profile.duration_s) if fraction else np.ones(edges.size - 1, bool)
        first, last = np.flatnonzero(inside)[[0, -1]]
        x = edges[first : last + 2] / (profile.duration_s if fraction else unit_s)
        cut = slice(first, last + 1)
        colour, named = COLOURS[k % len(COLOURS)], escape_unprintable(results[k].name or results[k].run)
        axes.stairs(whole.high[cut] / factor, x, baseline=whole.low[cut] / factor, fill=True, color=colour, alpha=0.2)
        axes.stairs(
            whole.mean[cut] / factor, x, baseline=None, color=colour, linestyle=DASHES[k % len(DASHES)],
            label=fmt.shorten_end(f"{labels[k]}: {named}", 40),
        )  # fmt: skip
    axes.set_xlabel("fraction of runtime" if fraction else f"time, {unit}")
    axes.set_ylabel(f"power, {watts}")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, framealpha=0.8)
    of = common.label if common else "everything measured of each run, which is not the same scope"
    return f"{escape_unprintable(of[0].upper() + of[1:])}; shaded: lowest and highest reading."


def _stacked(profile: PowerProfile) -> list[PowerTrace]:
    return [t for t in profile.traces if t.role == "stack"]


def _stack(axes: Axes, profile: PowerProfile, level: int, edges: Floats) -> tuple[float, str]:
    whole = profile.everything.levels[level]
    factor, unit = fmt.choose_scale([float(np.nanmax(whole.high, initial=0.0))], "W")
    under = np.zeros(edges.size - 1)
    for k, trace in enumerate(_stacked(profile)):
        over = under + np.nan_to_num(trace.levels[level].mean) / factor
        axes.stairs(
            over, edges, baseline=under, fill=True, color=COLOURS[k % len(COLOURS)], alpha=0.75, label=trace.label
        )
        under = over
    axes.stairs(whole.high / factor, edges, baseline=whole.low / factor, fill=True, color="#000000", alpha=0.25)
    return factor, unit


def _lines(axes: Axes, result: Result, factor: float) -> None:
    for line in lines_of(result):
        colour, dash = LINES[line["kind"]]
        axes.axhline(line["w"] / factor, color=colour, linestyle=dash, linewidth=1.1, label=line["label"])


def _phases(axes: Axes, result: Result, unit_s: float) -> None:
    """Shade every other of the outer phases, and name them where there is room."""
    outer = [p for p in result.phases if p.depth == 0 and p.duration_s > 0]
    named = outer if len(outer) <= MOST_NAMES else []
    figure: Any = axes.figure
    letters = figure.get_figwidth() * LETTERS_PER_IN  # that fit side by side
    for k, phase in enumerate(outer):
        a, b = phase.start_s / unit_s, (phase.start_s + phase.duration_s) / unit_s
        axes.axvspan(a, b, color="#000000", alpha=0.08 if k % 2 else 0.03, linewidth=0, zorder=0)
    for phase in named:
        middle = (phase.start_s + phase.duration_s / 2) / unit_s
        room = int(letters * phase.duration_s / result.duration_s)
        if room >= LEAST_LETTERS:
            where: Any = axes.get_xaxis_transform()
            title = fmt.shorten_end(phase.title, room)
            axes.text(middle, 1.01, title, transform=where, ha="center", va="bottom", fontsize=7)


def _level(profile: PowerProfile) -> int:
    levels = profile.traces[0].levels
    return next((k for k, b in enumerate(levels) if b.mean.size <= MOST_POINTS), len(levels) - 1)


def _edges(profile: PowerProfile, level: int) -> Floats:
    from joulelab.analysis.profile_buckets import COARSER

    count = profile.traces[0].levels[level].mean.size
    edges: Floats = profile.grid.from_s + np.arange(count + 1) * profile.grid.step_s * COARSER**level
    return edges


def _time(duration_s: float) -> tuple[float, str]:
    return (1.0, "s") if duration_s < 300 else (60.0, "min") if duration_s < 3 * 3600 else (3600.0, "h")
