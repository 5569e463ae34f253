"""Show meters that cover one scope beside each other: how far apart, by how much late, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.scope import find_family
from joulelab.report import format as fmt
from joulelab.report.tables import Table, make_table, scale_column

if TYPE_CHECKING:
    from joulelab.analysis.result import ChannelEnergy, Lag, MeterComparison, Result, ScopeResult
    from joulelab.core.quantity import Quantity


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """Hold one meter of a scope; `off` is its difference from the one believed, as a share of that one's energy."""

    scope: str
    meter: str
    energy: Quantity
    off: Quantity | None
    verdict: str
    lag: str


def list_agreement_rows(result: Result, *, every: bool = False) -> list[AgreementRow]:
    """Return the scopes that several meters cover, the one believed first.

    Without `every` the best channel of each meter at the node and the rack, and elsewhere only what differs.
    """
    several = len({s.host for s in result.scopes if find_family(s.scope) != "job"}) > 1
    rows: list[AgreementRow] = []
    for s in result.scopes:
        others = [c for c in result.comparisons if (c.host, c.scope) == (s.host, s.scope) and c.over is None]
        if not every:
            others = _worth_showing(s, others, imported=result.outcome == "imported")
        if not others:
            continue
        scope = f"{s.host}/{s.scope}" if several else s.scope
        rows.append(AgreementRow(scope, _named(s.reading), s.energy, None, "best", _lag(result, s, s.reading)))
        for c in others:
            off = c.difference * (1 / s.energy.value) if s.energy.value > 0 else None
            rows.append(AgreementRow("", _named(c.other), c.other.energy, off, c.verdict, _lag(result, s, c.other)))
    return rows + [row for c in result.comparisons for row in _accounted(c)]


def _accounted(c: MeterComparison) -> list[AgreementRow]:
    """Return what a cluster accounted beside our own meters, over the stretch of time that it accounted."""
    if c.over is None:
        return []
    since, until = c.over
    off = c.difference * (1 / c.best.energy.value) if c.best.energy.value > 0 else None
    ours = AgreementRow(
        f"{c.scope}, {since:+.0f} to {until:+.0f} s", _named(c.best), c.best.energy, None, "ours", fmt.NOTHING
    )
    return [ours, AgreementRow("", _named(c.other), c.other.energy, off, c.verdict, fmt.NOTHING)]


def _worth_showing(scope: ScopeResult, others: list[MeterComparison], *, imported: bool) -> list[MeterComparison]:
    # Who imports two meters of one GPU wants to see them compared.
    wall = find_family(scope.scope) in ("node.ac", "node.dc", "rack") or imported
    best: dict[str, MeterComparison] = {}
    for c in others:  # the narrowest comes first
        if c.other.meter != scope.reading.meter and (wall or c.verdict == "differ"):
            best.setdefault(c.other.meter, c)
    return list(best.values())


def _named(reading: ChannelEnergy) -> str:
    return f"{reading.meter} {reading.channel}"


def _lag(result: Result, scope: ScopeResult, reading: ChannelEnergy) -> str:
    """Return the lag (s) that was taken out of a meter's readings, with its interval."""
    meters = reading.meter.split("+")
    lags = [g for g in result.lags if g.host == scope.host and g.meter in meters and _covers(scope, g)]
    moved = [g.total_s for g in lags if g.applied]
    if not moved:
        return fmt.NOTHING
    # Cords of one meter are read at once, so their lags are about the same.
    half = max((max(moved) - min(moved)) / 2, 2 * max(g.u_s for g in lags if g.applied))
    return f"{(max(moved) + min(moved)) / 2:+.2f} ± {half:.2f}"


def _covers(scope: ScopeResult, lag: Lag) -> bool:
    parts = ("outlet:", "psu:") if scope.scope == "node.ac" else ("psu.dc:",) if scope.scope == "node.dc" else ()
    return lag.scope == scope.scope or lag.scope.startswith(parts)


def make_agreement_table(rows: list[AgreementRow]) -> Table:
    """Return meters of one scope with their energies, differences and verdicts."""
    energy = scale_column("energy", "J", [r.energy for r in rows])
    columns = ("scope", "meter", energy, "off, %", "", "lag, s")
    cells = [(r.scope, r.meter, r.energy, _format_off(r.off), r.verdict, r.lag) for r in rows]
    return make_table(columns, cells, left=(0, 1, 4))


def _format_off(off: Quantity | None) -> str:
    if off is None:
        return fmt.NOTHING
    return f"{100 * off.value:+.1f}" + (f" ± {fmt.format_number(100 * off.expanded, 2)}" if off.known else "")


def list_joining_facts(result: Result) -> list[tuple[str, str]]:
    """Return what joining meters tells: how far rests can be off, and how efficient supplies were."""
    lines = []
    for group in (g for g in result.groups if g.name.startswith("rest ") and g.energy.known):
        bound = 2 * group.energy.with_bound().u
        if bound > 1.5 * 2 * group.energy.u:
            off = fmt.format_rough(bound, "J", 2)
            lines.append(
                ("rest", f"{group.name}: off by up to {off} if the load repeats in step with the sensors inside")
            )
    for name, q in result.ratios.items():
        both = q.expanded
        text = f"{100 * q.value:.1f}" + ("" if both is None else f" ± {100 * both:.1f}")
        lines.append(("supply", f"{name.replace('supply ', '')} {text} % (node.dc / node.ac)"))
    return lines
