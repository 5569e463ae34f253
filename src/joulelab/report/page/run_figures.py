"""Make the sections of a run's page that have charts, each with the table that the terminal has. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.readings import make_distribution
from joulelab.report import format as fmt
from joulelab.report.agreement import list_agreement_rows, list_joining_facts, make_agreement_table
from joulelab.report.charts.of_run import (
    budget_of,
    epochs_of,
    histogram_of,
    meters_of,
    rated_of,
    scopes_of,
    stack_of,
)
from joulelab.report.page.blocks import Columns, Drawing, Fold, Lines, Table, Text
from joulelab.report.page.tables import Grid, Row, grid_of
from joulelab.report.rated import describe_rated as rated_text
from joulelab.report.run_rows import count_hidden_phases, list_energy_rows, list_phase_rows
from joulelab.report.run_tables import list_meter_facts, make_budget_table, make_energy_table, make_phase_table

if TYPE_CHECKING:
    from joulelab.analysis.power_profile import PowerProfile, PowerTrace
    from joulelab.analysis.readings import PowerDistribution
    from joulelab.analysis.result import PowerStatistics, Result
    from joulelab.report.page.blocks import Block

INTERVALS = "Intervals are expanded uncertainties (k = 2)."
MOST_HISTOGRAMS = 4
FEW_METERS = 12  # channels of one scope that need no folding
PARTS_OF_BUDGET = {
    "gain": "by which factor the meter may be off",
    "offset": "by which constant it may be off",
    "quantum": "the last digit of the meter",
    "edge": "what the readings around the start and the end leave open",
    "sampling": "what lies between readings",
    "unseen": "what a sensor that measures part of the time can miss at most: a bound, not in the interval",
    "in-step": "what such a sensor may have missed, where steps or another meter are evidence for it",
    "alias": "what a load in step with slow readings may have hidden",
    "gap": "what was used while nothing was read",
    "break": "what was used while a counter began anew",
    "missing": "what lies before the first and after the last reading",
    "clock": "how well the clocks of hosts are joined",
    "lag": "how well it is known by how much a meter is late",
    "guide": "how well a slow meter follows the fast ones that fill in between its readings",
}


def energies(result: Result) -> tuple[Block, ...]:
    """Return energy by scope with the rest: stacked, as bars, and as the terminal's table."""
    if not result.scopes:
        return ()
    blocks: list[Block] = []
    if (stack := stack_of(result)) is not None:
        note = f"What everything measured is made of. {INTERVALS}"
        if any(p.value < 0 for row in stack.rows for p in row.parts):
            note += " A part below 0 has no length: its meters disagree with what holds it."
        blocks.append(Drawing(stack, note))
    grid = grid_of(make_energy_table(list_energy_rows(result)))
    table = Table(grid, f"Energy, power and energy net of idle, by scope. {INTERVALS}")
    bars = scopes_of(result)
    blocks.append(table if bars is None else Columns((table, Drawing(bars, INTERVALS, wide=False))))
    blocks.append(Lines(tuple(list_meter_facts(result))))
    if joined := list_joining_facts(result):
        blocks.append(Lines(tuple(joined)))
    every = grid_of(make_energy_table(list_energy_rows(result, every=True)))
    if len(every.rows) > len(grid.rows):
        blocks.append(Fold(f"every scope ({len(every.rows)} rows)", (Table(every, "Every scope", hidden=True),)))
    return tuple(blocks)


def phases(result: Result) -> tuple[Block, ...]:
    """Return phases and epochs: energy of each epoch, and the terminal's table; every phase is folded away."""
    if not result.phases:
        return ()
    blocks: list[Block] = []
    if (chart := epochs_of(result)) is not None:
        blocks.append(Drawing(chart, INTERVALS if any(bar.expanded for bar in chart.rows) else ""))
    short = grid_of(make_phase_table(list_phase_rows(result)))
    blocks.append(Table(short, f"Phases. {INTERVALS}"))
    if more := count_hidden_phases(result):
        blocks.append(Text(f"and {more} more names, below", "muted"))
    whole = grid_of(make_phase_table(list_phase_rows(result, every=True), families=True))
    if len(whole.rows) > len(short.rows):
        title = f"every phase, by family of devices ({len(whole.rows)} rows)"
        blocks.append(Fold(title, (Table(whole, "Every phase", hidden=True),)))
    return tuple(blocks)


def rated(result: Result) -> tuple[Block, ...]:
    """Return what runtime times rated power would have said, and how wrong it is."""
    told = result.rated
    blocks: list[Block] = []
    if (chart := rated_of(result)) is not None:
        blocks.append(Drawing(chart, f"Of {told.families}. {INTERVALS}"))
    text = rated_text(told)
    blocks.append(Text(f"{text[:1].upper()}{text[1:]}."))
    if told.ratio is not None:
        blocks.append(
            Text("Runtime times rated power is what is often given for energy that nobody measured.", "muted")
        )
    alike: dict[tuple[float, str], list[str]] = {}
    for device in told.devices:
        alike.setdefault((device.watts, device.source), []).append(device.scope)
    rows = tuple(
        Row((fmt.join_scopes(list(dict.fromkeys(scopes))), str(len(scopes)), fmt.format_watts(watts), source))
        for (watts, source), scopes in alike.items()
    )
    if rows:
        blocks.append(Table(Grid(("scope", "count", "rated", "known from"), rows, frozenset({0, 3})), "Rated power"))
    return tuple(blocks) if result.scopes else ()


def distribution(result: Result, profile: PowerProfile | None) -> tuple[Block, ...]:
    """Return how long power was how high: histograms over time, and percentiles of the readings of each scope."""
    charts: list[Block] = []
    for title, trace in _traces(profile):
        assert profile is not None
        inside = slice(*_workload(profile))
        finest = trace.levels[0]
        found = make_distribution(finest.mean[inside], finest.high[inside], profile.grid.step_s)
        if found is not None:
            found = _of_result(result, trace, found)
            note = f"Bars are of means over {fmt.format_period(found.step_s)}."
            charts.append(Drawing(histogram_of(found, title), note, wide=False))
    blocks: list[Block] = [Columns(tuple(charts))] if len(charts) > 1 else charts
    grid, every = percentiles(result), percentiles(result, every=True)
    if grid.rows:
        blocks.append(Table(grid, "Percentiles of the readings, weighted by time"))
    if len(every.rows) > len(grid.rows):
        blocks.append(Fold(f"every scope ({len(every.rows)} rows)", (Table(every, "Every scope", hidden=True),)))
    return tuple(blocks)


def _traces(profile: PowerProfile | None) -> list[tuple[str, PowerTrace]]:
    if profile is None:
        return []
    first = ("whole", "gpu", "cpu", "rest")
    chosen = [t for t in profile.traces if t.role in ("whole", "stack")]
    ranked = sorted(chosen, key=lambda t: first.index(t.id) if t.id in first else len(first))
    return [(f"Power of {t.label}", t) for t in ranked[:MOST_HISTOGRAMS]]


def _workload(profile: PowerProfile) -> tuple[int, int]:
    """Return the buckets that the workload covers."""
    edges = profile.grid.list_edges()
    first = int(np.searchsorted(edges, -0.5 * profile.grid.step_s))
    return first, max(int(np.searchsorted(edges, profile.duration_s - 0.5 * profile.grid.step_s)), first + 1)


def _of_result(result: Result, trace: PowerTrace, found: PowerDistribution) -> PowerDistribution:
    """Return a distribution with the statistics that the tables have, where it is of one scope alone."""
    whole = result.group("measured")
    of = list(zip(whole.hosts, whole.scopes, strict=True)) if whole and trace.role == "whole" else []
    if trace.role == "stack":
        group = result.group(trace.id)
        of = list(zip(group.hosts, group.scopes, strict=True)) if group else []
    scopes = [s for s in result.scopes if (s.host, s.scope) in of]
    statistics = scopes[0].statistics if len(scopes) == 1 else None
    if trace.id == "rest":
        rests = [g for g in result.groups if trace.label == g.name]
        statistics = rests[0].statistics if len(rests) == 1 else None
    if statistics is None:
        return found
    return replace(found, median=statistics.median, p95=statistics.p95, maximum=statistics.maximum)


def percentiles(result: Result, *, every: bool = False) -> Grid:
    """Return lowest, percentiles and highest power (W) of the scopes that the energy table has, or of every one.

    The last column is what one reading is a mean over.
    """
    several = len({s.host for s in result.scopes}) > 1
    named = [(f"{s.host}/{s.scope}" if several else s.scope, s.statistics) for s in result.scopes]
    named += [(g.name, g.statistics) for g in result.groups]
    wanted = {r.label for r in list_energy_rows(result, every=every)}
    rows = [(label, found) for label, found in named if found is not None and label in wanted]
    factor, unit = fmt.choose_scale([found.maximum for _, found in rows], "W")
    heads = ("", f"min, {unit}", "5 %", "median", "95 %", "99 %", "max", "mean over")
    return Grid(heads, tuple(Row((label, *_percentiles(found, factor))) for label, found in rows))


def _percentiles(found: PowerStatistics, factor: float) -> tuple[str, ...]:
    powers = (found.minimum, found.p5, found.median, found.p95, found.p99, found.maximum)
    return (*(fmt.format_number(w / factor) for w in powers), _window(found.window_s))


def _window(seconds: float | None) -> str:
    return "not told" if seconds is None else "an instant" if seconds == 0 else fmt.format_period(seconds)


def meters(result: Result) -> tuple[Block, ...]:
    """Return meters that cover one scope beside each other, with the lag that was taken out of their readings."""
    every = list_agreement_rows(result, every=True)
    rows = list_agreement_rows(result) or (every if len(every) <= FEW_METERS else [])
    if not every:
        return ()
    blocks: list[Block] = []
    if (chart := meters_of(result)) is not None:
        blocks.append(Drawing(chart, "0 is the meter that is believed. " + INTERVALS))
    if rows:
        blocks.append(
            Table(grid_of(make_agreement_table(rows)), "Meters of one scope; the lag is taken out of their readings")
        )
    if len(every) > len(rows):
        whole = Table(grid_of(make_agreement_table(every)), "Every channel", hidden=True)
        blocks.append(Fold(f"every channel of every meter ({len(every)} rows)", (whole,)))
    if lags := _lags(result):
        blocks.append(Fold("lags of streams", (Table(lags, "Lags of streams", hidden=True),)))
    return tuple(blocks)


def _lags(result: Result) -> Grid | None:
    rows = tuple(
        Row(
            (
                f"{lag.meter} {lag.stream}",
                lag.against,
                f"{lag.total_s:+.2f} ± {2 * lag.u_s:.2f}",
                f"{lag.correlation:.2f}",
                "taken out" if lag.applied else "left",
                lag.why,
            )
        )
        for lag in result.lags
    )
    heads = ("stream", "against", "lag, s", "correlation", "", "why")
    return Grid(heads, rows, frozenset({0, 1, 4, 5})) if rows else None


def uncertainty(result: Result) -> tuple[Block, ...]:
    """Return the uncertainty budget as a picture, and as the terminal's table."""
    chart = budget_of(result)
    if chart is None:
        return (Text("No meter states how accurate it is, so there is no interval."),) if result.scopes else ()
    note = (
        "Parts add in quadrature, so a bar shows shares of the square. At its end: the interval (k = 2), of the energy."
    )
    told = tuple((kind, PARTS_OF_BUDGET[kind]) for kind in chart.keys if kind in PARTS_OF_BUDGET)
    grid = grid_of(make_budget_table(result))
    title = "Percent of the energy at k = 2, by what it comes from"
    return (Drawing(chart, note), Lines(told), Fold("as a table", (Table(grid, title),)))
