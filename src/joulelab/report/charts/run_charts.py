"""Make the charts of one run, and of runs beside each other, from their results. Pure.

Only sums of figures of the result are computed here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.readings import make_distribution
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import FAMILIES, find_family
from joulelab.report import format as fmt
from joulelab.report.charts.chart_model import (
    EXPANDED_NOTE,
    FAMILY_COLOURS,
    BarChart,
    ChartBar,
    HistogramChart,
    StackChart,
    StackedBar,
    StackPart,
)
from joulelab.report.comparison import CO2E, COST, compare_runs, format_figure_change, format_figure_values
from joulelab.report.run_rows import list_energy_rows, list_phase_rows
from joulelab.report.run_tables import list_agreement_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.power_profile import PowerProfile, PowerTrace
    from joulelab.analysis.readings import PowerDistribution
    from joulelab.analysis.result import GroupResult, Result
    from joulelab.report.charts.chart_model import StaticChart
    from joulelab.report.comparison import RunComparison

OTHER_COLOUR, ALERT_COLOUR, GREY = 4, 5, 7
OUTER_FAMILIES = ("accel", "module", "psys", "node.dc", "node.ac", "rack", "job")
MOST_NODES, MOST_EPOCHS, MOST_BUDGETS, MOST_HISTOGRAMS, MOST_DESCRIBED = 64, 400, 24, 4, 24
LEAST_BARS = 2
LEAST_SHARE = 0.002  # of the square of an uncertainty: smaller parts cannot be seen
CHANGE_NOTE = (
    "Error bars: 95 % interval of the ratio (k = 2); errors that both meters share cancel. "
    "In colour: a significant difference."
)
BUDGET_NOTE = (
    "Parts add in quadrature, so a bar shows shares of the square. The text at its end is the expanded uncertainty "
    "(k = 2) in percent of the energy."
)


def list_run_charts(result: Result, profile: PowerProfile | None) -> list[tuple[str, StaticChart]]:
    """List the charts of a run except power over time, each with the section of the page that shows it."""
    charts: list[tuple[str, StaticChart | None]] = [
        ("energy", chart_energy_parts(result)),
        ("energy", chart_scopes(result)),
        ("phases", chart_epochs(result)),
        ("rated", chart_rated_power(result)),
        *(("distribution", chart) for chart in chart_distributions(result, profile)),
        ("meters", chart_meters(result)),
        ("uncertainty", chart_uncertainty(result)),
    ]
    return [(section, chart) for section, chart in charts if chart is not None]


def split_energy(result: Result) -> dict[tuple[str, str], Quantity]:
    """Split the energy of `measured` (J) by host and part: families, rest of the node, loss of its power supply.

    The parts add up to the whole: the rest of a node is its energy minus that of its devices.
    """
    whole = result.group("measured")
    if whole is None:
        return {}
    energy = {(s.host, s.scope): s.energy for s in result.scopes}
    parts: dict[tuple[str, str], list[Quantity]] = {}
    for host, scope in zip(whole.hosts, whole.scopes, strict=True):
        for name, q in _split_scope(result, host, scope, energy):
            parts.setdefault((host, name), []).append(q)
    return {key: add_quantities(parts[key]) for key in sorted(parts, key=lambda key: (key[0], _rank_part(key[1])))}


def _split_scope(
    result: Result, host: str, scope: str, energy: dict[tuple[str, str], Quantity]
) -> list[tuple[str, Quantity]]:
    """Split a node into its devices, its rest and the loss of its supply; other scopes stay whole."""
    groups: dict[str, GroupResult] = {}
    for group in result.groups:
        if set(group.hosts) == {host}:
            groups.setdefault(group.name, group)
    losses = []
    if scope == "node.ac" and {"supply loss", "rest of node.dc"} <= groups.keys():
        scope, losses = "node.dc", [("supply loss", groups["supply loss"].energy)]
    rest = groups.get(f"rest of {scope}")
    if rest is None:
        return [(find_family(scope), energy[host, scope])]
    inner = [(find_family(s), energy[h, s]) for h, s in zip(rest.hosts, rest.scopes, strict=True)]
    return [*inner, ("rest", rest.energy), *losses]


def _rank_part(name: str) -> int:
    order = (*FAMILIES, "rest", "supply loss")
    return order.index(name) if name in order else len(order)


def chart_energy_parts(result: Result) -> StackChart | None:
    """Chart the energy of each node, stacked by part; None if there is only one part."""
    parts = split_energy(result)
    if len(parts) < LEAST_BARS:
        return None
    hosts = list(dict.fromkeys(host for host, _ in parts))[:MOST_NODES]
    keys = sorted(dict.fromkeys(name for _, name in parts), key=_rank_part)
    sums = {host: add_quantities(q for (h, _), q in parts.items() if h == host) for host in hosts}
    factor, unit = fmt.choose_scale([q.value for q in sums.values()], "J")
    bars = []
    for host, whole in sums.items():
        pieces = []
        for (h, name), q in parts.items():
            if h == host:
                text = fmt.format_scaled(q, factor, unit, is_derived=name in ("rest", "supply loss"))
                if q.is_resolved and whole.value > 0:
                    text += f", {fmt.format_percent(q.value / whole.value, signed=False)}"
                pieces.append(StackPart(keys.index(name), q.value / factor, text))
        text = fmt.format_scaled(whole, factor, unit)
        bars.append(StackedBar(host, tuple(pieces), text, _scale_expanded(whole, factor)))
    description = "; ".join(f"{b.label}: " + ", ".join(f"{keys[p.key]} {p.text}" for p in b.parts) for b in bars[:8])
    note = "All measured energy by part."
    if any(bar.expanded for bar in bars):
        note += f" {EXPANDED_NOTE}"
    if any(part.value < 0 for bar in bars for part in bar.parts):
        note += " A part below 0 has no length: its meters disagree with the meter of the node."
    colours = tuple(FAMILY_COLOURS.get(name, OTHER_COLOUR) for name in keys)
    return StackChart("Energy by scope", description, f"energy, {unit}", tuple(bars), tuple(keys), colours, note)


def chart_scopes(result: Result) -> BarChart | None:
    """Chart the energy of the scopes of the energy table, one colour per family; None for a single scope."""
    rows = [row for row in list_energy_rows(result) if not row.total]
    families = {row.label: find_family(row.label.rpartition("/")[2]) for row in rows}
    # A node would make its devices look small; the stacked bars show it.
    rows = [row for row in rows if families[row.label] not in OUTER_FAMILIES] or rows
    if len(rows) < LEAST_BARS:
        return None
    factor, unit = fmt.choose_scale([row.energy.value for row in rows], "J")
    bars = []
    for row in rows:
        colour = FAMILY_COLOURS.get(families[row.label], OTHER_COLOUR)
        bars.append(_make_energy_bar(row.label, row.energy, (factor, unit), colour, is_estimate=row.estimate))
    return _make_bar_chart("Energy of each scope", f"energy, {unit}", bars)


def _make_energy_bar(
    label: str, q: Quantity, scale: tuple[float, str], colour: int, *, is_estimate: bool = False
) -> ChartBar:
    factor, unit = scale
    text = fmt.format_scaled(q, factor, unit, estimate=is_estimate)
    return ChartBar(label, q.value / factor, _scale_expanded(q, factor), text, colour)


def _make_bar_chart(title: str, label: str, bars: Sequence[ChartBar], note: str = "", **options: Any) -> BarChart:
    """Make a bar chart with its description, and a note on the error bars if it has any."""
    more = f"; and {len(bars) - MOST_DESCRIBED} more" if len(bars) > MOST_DESCRIBED else ""
    description = "; ".join(f"{bar.label}: {bar.text}" for bar in bars[:MOST_DESCRIBED]) + more
    if any(bar.expanded for bar in bars) and "k = 2" not in note:
        note = f"{note} {EXPANDED_NOTE}".strip()
    return BarChart(title, description, label, tuple(bars), note, **options)


def chart_epochs(result: Result) -> BarChart | None:
    """Chart the energy (or the time, without energy) of the phases that are repeated most often: the epochs.

    None if no phase is repeated, or if there are more repeats than a picture can show.
    """
    rows = list_phase_rows(result, every=True)
    repeats: dict[tuple[str, str], list[int]] = {}
    for k, p in enumerate(result.phases):
        if p.n is not None and p.last is None:
            repeats.setdefault((p.host, p.name), []).append(k)
    epochs = max(repeats.values(), key=len, default=[])
    if not LEAST_BARS <= len(epochs) <= MOST_EPOCHS:
        return None
    title = f"Each {fmt.shorten_middle(result.phases[epochs[0]].name, 24)}"
    energies = [q for k in epochs if (q := rows[k].energy) is not None]
    labels = [str(result.phases[k].n) for k in epochs]
    if len(energies) == len(epochs):
        scale = fmt.choose_scale([q.value for q in energies], "J")
        bars = [_make_energy_bar(label, q, scale, 0) for label, q in zip(labels, energies, strict=True)]
        return _make_bar_chart(f"{title}: energy", f"energy, {scale[1]}", bars, is_upright=True)
    times = [rows[k].duration_s for k in epochs]
    bars = [ChartBar(label, s, None, fmt.format_duration(s)) for label, s in zip(labels, times, strict=True)]
    return _make_bar_chart(f"{title}: time", "time, s", bars, is_upright=True)


def chart_rated_power(result: Result) -> BarChart | None:
    """Chart runtime times rated power beside the measured energy of the same devices; None if either is unknown."""
    rated = result.rated
    if rated.ratio is None or rated.measured is None:
        return None
    factor, unit = fmt.choose_scale([rated.measured.value, rated.energy_j], "J")
    estimate = f"{fmt.format_number(rated.energy_j / factor, 3)} {unit}"
    bars = (
        _make_energy_bar(f"measured ({rated.families})", rated.measured, (factor, unit), 0),
        ChartBar("runtime x rated", rated.energy_j / factor, None, estimate, ALERT_COLOUR),
    )
    return _make_bar_chart("Measured, and by rated power", f"energy, {unit}", bars, note=f"Of {rated.families}.")


def chart_meters(result: Result) -> BarChart | None:
    """Chart the difference of other meters of a scope from the meter that is used, in percent."""
    bars, scope = [], ""
    for row in list_agreement_rows(result):
        scope = row.scope or scope
        if row.off is not None:
            expanded = None if row.off.expanded is None else 100 * row.off.expanded
            text = fmt.format_change(row.off.value, row.off.expanded)
            colour = ALERT_COLOUR if row.verdict == "differ" else 0
            bars.append(ChartBar(f"{scope}: {row.meter}", 100 * row.off.value, expanded, text, colour))
    if not bars:
        return None
    label, note = "deviation from the meter that is used, %", "0 is the meter that is used for the figures."
    return _make_bar_chart("Deviation of other meters", label, bars, note=note, is_dotted=True, level=0.0)


def chart_uncertainty(result: Result) -> StackChart | None:
    """Chart the uncertainty of each sum as shares of its square by kind of source; None without intervals.

    Uncertainties add in quadrature, so only their squares can be stacked. A bound is not part of the interval.
    """
    whole = result.group("measured")
    same = {whole.scopes} if whole else set()  # a node that is everything measured is shown once
    groups = [g for g in result.groups if g.name == "measured" or g.name.startswith("rest ") or g.scopes not in same]
    groups.sort(key=lambda g: g.name != "measured")
    energies: dict[str, Quantity] = {}
    for group in groups:
        q = group.energy.without("unseen")
        if q.known and q.value != 0 and q.u > 0:
            energies.setdefault(group.name, q)
    known = list(energies.items())[:MOST_BUDGETS]
    if not known:
        return None
    largest: dict[str, float] = {}
    for _, q in known:
        for kind, u in q.budget().items():
            largest[kind] = max(largest.get(kind, 0.0), (u / q.u) ** 2)
    kinds = sorted((kind for kind in largest if largest[kind] > LEAST_SHARE), key=lambda kind: -largest[kind])
    bars = []
    for label, q in known:
        parts, budget = [], q.budget()
        for k, kind in enumerate(kinds):
            if (u := budget.get(kind, 0.0)) > 0:
                text = f"{kind} ± {fmt.format_number(200 * u / abs(q.value), 2)} %"
                parts.append(StackPart(k, 100 * (u / q.u) ** 2, text))
        bars.append(StackedBar(label, tuple(parts), f"± {fmt.format_number(200 * q.u / abs(q.value), 3)} %"))
    description = "; ".join(f"{b.label} {b.text}: " + ", ".join(p.text for p in b.parts[:3]) for b in bars[:6])
    label = "share of the square of the uncertainty, %"
    return StackChart("Sources of uncertainty", description, label, tuple(bars), tuple(kinds), note=BUDGET_NOTE)


def chart_distributions(result: Result, profile: PowerProfile | None) -> list[HistogramChart]:
    """Chart the distribution of power over time: of everything measured, GPUs, CPUs and the rest."""
    if profile is None:
        return []
    first = ("whole", "gpu", "cpu", "rest")
    traces = [t for t in profile.traces if t.role in ("whole", "stack")]
    traces.sort(key=lambda t: first.index(t.id) if t.id in first else len(first))
    edges, half = profile.grid.list_edges(), 0.5 * profile.grid.step_s
    start = int(np.searchsorted(edges, -half))  # the buckets of the workload
    end = max(int(np.searchsorted(edges, profile.duration_s - half)), start + 1)
    charts = []
    for trace in traces[:MOST_HISTOGRAMS]:
        finest = trace.levels[0]
        found = make_distribution(finest.mean[start:end], finest.high[start:end], profile.grid.step_s)
        if found is not None:
            title = f"Power of {trace.label}"
            charts.append(_chart_distribution(_use_result_statistics(result, trace, found), title))
    return charts


def _use_result_statistics(result: Result, trace: PowerTrace, found: PowerDistribution) -> PowerDistribution:
    """Take median and extremes from the result, as the tables do, if the trace is of a single scope."""
    if trace.id == "rest":
        statistics = [g.statistics for g in result.groups if g.name == trace.label]
    else:
        group = result.group("measured" if trace.role == "whole" else trace.id)
        members = set(zip(group.hosts, group.scopes, strict=True)) if group else set()
        statistics = [s.statistics for s in result.scopes if (s.host, s.scope) in members]
    if len(statistics) != 1 or statistics[0] is None:
        return found
    of = statistics[0]
    return replace(found, median=of.median, p95=of.p95, maximum=of.maximum)


def _chart_distribution(found: PowerDistribution, title: str) -> HistogramChart:
    factor, unit = fmt.choose_scale([found.maximum], "W")
    values = (("median", found.median), ("95 %", found.p95), ("max", found.maximum))
    marks = tuple((f"{name} {fmt.format_watts(v)}", v / factor) for name, v in values if math.isfinite(v))
    edges, shares = tuple(e / factor for e in found.edges), tuple(100 * s for s in found.shares)
    description = f"{title}: {', '.join(name for name, _ in marks)}"
    note = f"Share of the workload's time at each power, from means over {fmt.format_period(found.step_s)}."
    return HistogramChart(title, description, f"{title}, {unit}", edges, shares, marks, note)


def list_comparison_charts(results: Sequence[Result], labels: Sequence[str]) -> list[tuple[str, StaticChart]]:
    """List the charts of two or more runs, each with the section of the page that shows it."""
    if len(results) == 2:
        found = compare_runs(*results)
        charts = [("figures", chart_compared_energies(found, labels)), ("figures", chart_changes(found))]
    else:
        charts = [("energy", chart_run_energies(results, labels))]
    return [(section, chart) for section, chart in charts if chart is not None]


def chart_compared_energies(found: RunComparison, labels: Sequence[str]) -> BarChart | None:
    """Chart the energies of two runs, one below the other; None without energies."""
    lines = [line for line in found.lines if line.unit == "J" and not line.name.startswith("per ")]
    parts = [line for line in lines if line.name.startswith(" ")]
    if len(parts) == 1:  # it equals the whole
        lines.remove(parts[0])
    if not lines:
        return None
    factor, unit = fmt.choose_scale([q.value for line in lines for q in (line.a, line.b)], "J")
    bars = []
    for line in lines:
        rows = zip(labels, (line.a, line.b), format_figure_values(line), strict=True)
        for k, (label, q, text) in enumerate(rows):
            bars.append(ChartBar(f"{line.name.strip()} {label}", q.value / factor, _scale_expanded(q, factor), text, k))
    return _make_bar_chart("Energy of A and B", f"energy, {unit}", bars, keys=tuple(labels))


def chart_changes(found: RunComparison) -> BarChart | None:
    """Chart the relative changes between two runs with their intervals; None if there are none."""
    bars = []
    for line in found.lines:
        if line.ratio is not None and line.name not in (COST, CO2E):  # they change as the energy does
            expanded = None if line.ratio.expanded is None else line.ratio.expanded * 100
            colour = ALERT_COLOUR if line.is_different else GREY
            change = (line.ratio.value - 1) * 100
            bars.append(ChartBar(line.name.strip(), change, expanded, format_figure_change(line), colour))
    if not bars:
        return None
    title, label = "Change from A to B", "B / A - 1, %"
    return _make_bar_chart(title, label, bars, note=CHANGE_NOTE, is_dotted=True, level=0.0)


def chart_run_energies(results: Sequence[Result], labels: Sequence[str]) -> BarChart | None:
    """Chart the energies of several runs; None if none has an energy."""
    known = [(k, run.energy) for k, run in enumerate(results) if run.energy is not None]
    if not known:
        return None
    scale = fmt.choose_scale([q.value for _, q in known], "J")
    bars = [_make_energy_bar(labels[k], q, scale, k) for k, q in known]
    note = "The runs may cover different scopes."
    return _make_bar_chart("Energy of each run", f"energy, {scale[1]}", bars, note=note)


def _scale_expanded(q: Quantity, factor: float) -> float | None:
    return None if q.expanded is None else q.expanded / factor
