"""Make the charts of a run from its result: which values, in which unit, with which words. Pure.

Nothing is worked out here but sums that the result is made of; figures are written by `report.format`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import FAMILIES, find_family
from joulelab.report import format as fmt
from joulelab.report.agreement import list_agreement_rows
from joulelab.report.charts.model import Bar, Bars, Histogram, Part, Stack, Stacked
from joulelab.report.run_rows import list_energy_rows, list_phase_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import PowerDistribution
    from joulelab.analysis.result import GroupResult, Result

# Families keep their colours in every chart of a page, as the rest does.
COLOUR = {"gpu": 0, "cpu": 1, "dram": 2, "supply loss": 3, "psys": 4, "node.dc": 4, "node.ac": 5, "rack": 6, "rest": 7}
HOLDING = ("psys", "node.dc", "node.ac", "rack", "job")
MOST_NODES = 64
MOST_EPOCHS = 400
MOST_BUDGETS = 24
LEAST_BARS = 2
LEAST_SHARE = 0.002  # of the square of an uncertainty, that can be seen


def parts_of(result: Result) -> dict[tuple[str, str], Quantity]:
    """Return what everything measured is made of, by host and part: families, rest, losses of supplies (J).

    The parts add up to the energy of `measured`: a node's rest is what its meter says beyond them.
    """
    whole = result.group("measured")
    found: dict[tuple[str, str], list[Quantity]] = {}
    if whole is None:
        return {}
    energy = {(s.host, s.scope): s.energy for s in result.scopes}
    for host, scope in zip(whole.hosts, whole.scopes, strict=True):
        for name, q in _inside(result, host, scope, energy):
            found.setdefault((host, name), []).append(q)
    ordered = sorted(found, key=lambda key: (key[0], _place(key[1])))
    return {key: add_quantities(found[key]) for key in ordered}


def _inside(
    result: Result, host: str, scope: str, energy: dict[tuple[str, str], Quantity]
) -> list[tuple[str, Quantity]]:
    """Return the parts of one scope that is summed: of a node its devices, its rest and what its supply lost."""
    node, parts = scope, []
    loss = _of_host(result, "supply loss", host)
    if scope == "node.ac" and loss is not None and _of_host(result, "rest of node.dc", host) is not None:
        node, parts = "node.dc", [("supply loss", loss.energy)]
    rest = _of_host(result, f"rest of {node}", host)
    if rest is None:
        return [(find_family(scope), energy[host, scope])]
    inner = [(find_family(s), energy[h, s]) for h, s in zip(rest.hosts, rest.scopes, strict=True)]
    return [*inner, ("rest", rest.energy), *parts]


def _of_host(result: Result, name: str, host: str) -> GroupResult | None:
    return next((g for g in result.groups if g.name == name and set(g.hosts) == {host}), None)


def _place(name: str) -> int:
    order = (*FAMILIES, "rest", "supply loss")
    return order.index(name) if name in order else len(order)


def stack_of(result: Result) -> Stack | None:
    """Return energy by part, stacked to the whole; one bar for each node. None where there is nothing to stack."""
    parts = parts_of(result)
    if len(parts) < LEAST_BARS:
        return None
    hosts = list(dict.fromkeys(host for host, _ in parts))[:MOST_NODES]
    keys = sorted(dict.fromkeys(name for _, name in parts), key=_place)
    whole = {host: add_quantities(q for (h, _), q in parts.items() if h == host) for host in hosts}
    factor, unit = fmt.choose_scale([q.value for q in whole.values()], "J")
    rows = tuple(
        Stacked(
            host,
            tuple(
                Part(keys.index(name), q.value / factor, f"{_written(q, factor)} {unit}, {_share(q, whole[host])}")
                for (h, name), q in parts.items()
                if h == host
            ),
            f"{_written(whole[host], factor)} {unit}",
            _reach(whole[host], factor),
        )
        for host in hosts
    )
    about = "; ".join(f"{row.label}: " + ", ".join(f"{keys[p.key]} {p.text}" for p in row.parts) for row in rows[:8])
    colours = tuple(COLOUR.get(name, 4) for name in keys)
    return Stack("Energy by scope", about, f"energy, {unit}", rows, tuple(keys), colours)


def _share(q: Quantity, whole: Quantity) -> str:
    return fmt.format_percent(q.value / whole.value, signed=False) if whole.value > 0 else fmt.NOTHING


def scopes_of(result: Result) -> Bars | None:
    """Return the energy of every scope of the table, those of one family in one colour; None for a single one."""
    rows = [r for r in list_energy_rows(result) if not r.total]
    devices = [r for r in rows if _family(r.label) not in HOLDING]
    rows = devices or rows  # what holds devices would make them look small; the stack has it
    if len(rows) < LEAST_BARS:
        return None
    factor, unit = fmt.choose_scale([r.energy.value for r in rows], "J")
    bars = tuple(
        Bar(
            r.label,
            r.energy.value / factor,
            _reach(r.energy, factor),
            ("~" if r.estimate else "") + f"{_written(r.energy, factor)} {unit}",
            COLOUR.get(_family(r.label), 4),
        )
        for r in rows
    )
    return Bars("Energy of each scope", _told(bars), f"energy, {unit}", bars)


def _family(label: str) -> str:
    return find_family(label.rpartition("/")[2])


def epochs_of(result: Result) -> Bars | None:
    """Return the energy of the phases of the name that came most often, one after the other: epochs, or time alone.

    None where no phase came twice, or more often than a picture shows.
    """
    rows = list_phase_rows(result, every=True)
    names: dict[tuple[str, str], list[int]] = {}
    for k, p in enumerate(result.phases):
        if p.n is not None and p.last is None:
            names.setdefault((p.host, p.name), []).append(k)
    often = max(names.values(), key=len, default=[])
    if not LEAST_BARS <= len(often) <= MOST_EPOCHS:
        return None
    energies = [rows[k].energy for k in often]
    title = f"Each {fmt.shorten_middle(result.phases[often[0]].name, 24)}"
    labels = [str(result.phases[k].n) for k in often]
    if all(q is not None for q in energies):
        factor, unit = fmt.choose_scale([q.value for q in energies if q], "J")
        values = [(q.value / factor, _reach(q, factor), f"{_written(q, factor)} {unit}") for q in energies if q]
        return _upright(f"{title}: energy", f"energy, {unit}", labels, values)
    lengths = [rows[k].duration_s for k in often]
    return _upright(f"{title}: time", "time, s", labels, [(s, None, fmt.format_duration(s)) for s in lengths])


def _upright(title: str, axis: str, labels: Sequence[str], values: Sequence[tuple[float, float | None, str]]) -> Bars:
    bars = tuple(Bar(label, *each) for label, each in zip(labels, values, strict=True))
    return Bars(title, _told(bars), axis, bars, upright=True)


def rated_of(result: Result) -> Bars | None:
    """Return what runtime times rated power says beside what the same devices used; None where either is unknown."""
    told = result.rated
    if told.ratio is None or told.measured is None:
        return None
    used = told.measured
    factor, unit = fmt.choose_scale([used.value, told.energy_j], "J")
    bars = (
        Bar(
            f"measured ({told.families})",
            used.value / factor,
            _reach(used, factor),
            f"{_written(used, factor)} {unit}",
            0,
        ),
        Bar(
            "runtime x rated", told.energy_j / factor, None, f"{fmt.format_number(told.energy_j / factor, 3)} {unit}", 5
        ),
    )
    return Bars("Measured, and by rated power", _told(bars), f"energy, {unit}", bars)


def meters_of(result: Result) -> Bars | None:
    """Return meters of one scope against the one believed: by how many percent they are off, with intervals."""
    rows, scope = [], ""
    for r in list_agreement_rows(result):
        scope = r.scope or scope
        if r.off is None:
            continue
        both = r.off.expanded
        said = fmt.format_change(r.off.value, both)
        mark = 5 if r.verdict == "differ" else 0
        rows.append(Bar(f"{scope}: {r.meter}", 100 * r.off.value, None if both is None else 100 * both, said, mark))
    if not rows:
        return None
    title = "How far other meters are off"
    return Bars(title, _told(rows), "off the meter that is believed, %", tuple(rows), dots=True, level=0.0)


def budget_of(result: Result) -> Stack | None:
    """Return what makes up the interval of each sum: how large it is, and shares of its square by kind of source.

    Parts of different sources add in quadrature, so that only their squares can be stacked. None without intervals.
    """
    whole = result.group("measured")
    same = {whole.scopes} if whole else set()  # a node that is everything measured is told once
    groups = [g for g in result.groups if g.name == "measured" or g.name.startswith("rest ") or g.scopes not in same]
    groups.sort(key=lambda g: g.name != "measured")
    counted = [(g.name, g.energy.without("unseen")) for g in groups]  # a bound is no part of the interval
    known = [(name, q) for name, q in counted if q.known and q.value != 0 and q.u > 0]
    rows = list(dict(reversed(known)).items())[::-1][:MOST_BUDGETS]
    if not rows:
        return None
    sizes: dict[str, float] = {}
    for _, q in rows:
        for kind, u in q.budget().items():
            sizes[kind] = max(sizes.get(kind, 0.0), (u / q.u) ** 2)
    kinds = sorted((kind for kind in sizes if sizes[kind] > LEAST_SHARE), key=lambda kind: -sizes[kind])
    bars = tuple(Stacked(label, _variances(q, kinds), _percent(q)) for label, q in rows)
    about = "; ".join(f"{row.label} {row.text}: " + ", ".join(p.text for p in row.parts[:3]) for row in bars[:6])
    label = "share of the square of the uncertainty, %"
    return Stack("What makes up the uncertainty", about, label, bars, tuple(kinds))


def _variances(q: Quantity, kinds: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts of an interval in the order of the kinds, which is that of all bars."""
    spent = q.budget()
    return tuple(
        Part(k, 100 * (spent[kind] / q.u) ** 2, f"{kind} ± {fmt.format_number(200 * spent[kind] / abs(q.value), 2)} %")
        for k, kind in enumerate(kinds)
        if spent.get(kind, 0.0) > 0
    )


def _percent(q: Quantity) -> str:
    return f"± {fmt.format_number(200 * q.u / abs(q.value), 3)} %"


def histogram_of(d: PowerDistribution, title: str) -> Histogram:
    """Return the distribution of a power over time, with its median, 95th percentile and maximum."""
    factor, unit = fmt.choose_scale([d.maximum], "W")
    marks = (("median", d.median), ("95 %", d.p95), ("max", d.maximum))
    named = tuple(
        (f"{name} {fmt.format_watts(value)}", value / factor) for name, value in marks if math.isfinite(value)
    )
    edges = tuple(e / factor for e in d.edges)
    about = f"{title}: {', '.join(name for name, _ in named)}"
    return Histogram(title, about, f"{title}, {unit}", edges, tuple(100 * s for s in d.shares), named)


def _written(q: Quantity, factor: float) -> str:
    return fmt.format_interval(q.value / factor, _reach(q, factor))


def _reach(q: Quantity, factor: float) -> float | None:
    return None if q.expanded is None else q.expanded / factor


def _told(bars: Sequence[Bar], most: int = 24) -> str:
    more = f"; and {len(bars) - most} more" if len(bars) > most else ""
    return "; ".join(f"{b.label} {b.text}" for b in bars[:most]) + more
