"""Add up selected runs: energy, time, cost and CO2e, with intervals that do not promise too much."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.quantity import Quantity, add_quantities
from joulelab.dashboard.run_entries import METER_ERRORS
from joulelab.report import format as fmt
from joulelab.report.footprint_text import format_co2e, format_cost, word_site
from joulelab.report.run_summary import format_energy
from joulelab.site.footprint import compute_footprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.dashboard.run_entries import Entry
    from joulelab.site.footprint import Site

RULE = "errors of meters count as the same in all runs and add up; others as independent"


@dataclass(frozen=True, slots=True)
class SelectionSum:
    """Hold the sums of selected runs: energy (J), time (s), cost by currency, CO2e (kg), and what they leave out.

    `overlapping` are runs that measured one host at the same time: shared devices may be counted twice.
    """

    runs: int
    energy: Quantity | None
    time_s: float
    costs: dict[str, Quantity]
    co2e_kg: Quantity | None
    without: dict[str, int]
    simulated: int
    estimated: int
    overlapping: int
    live: int = 0
    sites: tuple[Site, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return plain data, and the lines that the dashboard shows."""
        return {
            "runs": self.runs,
            "energy_j": _describe(self.energy),
            "time_s": self.time_s,
            "cost": {currency: _describe(cost) for currency, cost in self.costs.items()},
            "co2e_kg": _describe(self.co2e_kg),
            "without": self.without,
            "simulated": self.simulated,
            "estimated": self.estimated,
            "overlapping": self.overlapping,
            "live": self.live,
            "lines": self.list_facts(),
        }

    def list_facts(self) -> list[tuple[str, str]]:
        """Return the sums as labelled lines."""
        facts = []
        if self.energy is not None:
            energy = format_energy(self.energy, estimate=self.estimated > 0)
            facts.append(("energy", energy + self._word_missing("energy")))
        facts.append(("time", fmt.format_duration(self.time_s) + self._word_missing("time")))
        mark = "~" if self.estimated else ""
        costs = [mark + format_cost(cost, currency, has_interval=True) for currency, cost in self.costs.items()]
        if costs:
            facts.append(("cost", " + ".join(costs) + self._word_missing("cost")))
        if self.co2e_kg is not None:
            basis = f" ({'; '.join(map(word_site, self.sites))})"
            mass = mark + format_co2e(self.co2e_kg, has_interval=True)
            facts.append(("CO2e", mass + basis + self._word_missing("co2e")))
        notes = [f"{self.simulated} of {self.runs} runs are simulated"] if self.simulated else []
        if self.live:
            notes.append(f"{self.live} of {self.runs} runs are still running: the sums are those so far")
        if self.overlapping:
            notes.append(f"{self.overlapping} runs overlap in time on one host: energy may be counted twice")
        if self.energy is not None and self.energy.expanded is not None and self.runs > 1:
            notes.append(RULE)
        return facts + [("note", note) for note in notes]

    def _word_missing(self, name: str) -> str:
        count = self.without[name]
        if not count:
            return ""
        return ", without 1 run that has none" if count == 1 else f", without {count} runs that have none"


def sum_entries(entries: Sequence[Entry]) -> SelectionSum:
    """Add up runs; equal sources of error add linearly, different ones in quadrature."""
    parts = {entry.id: _tag_energy(entry) for entry in entries}
    known = {key: energy for key, energy in parts.items() if energy is not None}
    footprints = [compute_footprint(known[e.id], e.site) for e in entries if e.id in known]
    costs: dict[str, list[Quantity]] = defaultdict(list)
    for footprint in footprints:
        if footprint.cost is not None and footprint.site is not None:
            costs[footprint.site.currency].append(footprint.cost)
    masses = [footprint.co2e_kg for footprint in footprints if footprint.co2e_kg is not None]
    times = [entry.duration_s for entry in entries if entry.duration_s is not None]
    counts = {"energy": len(known), "time": len(times), "cost": sum(map(len, costs.values())), "co2e": len(masses)}
    sites = [f.site for f in footprints if f.site is not None and f.co2e_kg is not None]
    return SelectionSum(
        runs=len(entries),
        energy=add_quantities(known.values()) if known else None,
        time_s=sum(times),
        costs={currency: add_quantities(amounts) for currency, amounts in costs.items()},
        co2e_kg=add_quantities(masses) if masses else None,
        without={name: len(entries) - count for name, count in counts.items()},
        simulated=sum(bool(entry.twin) for entry in entries),
        estimated=sum(entry.estimate for entry in entries),
        overlapping=_count_overlapping(entries),
        live=sum(entry.status == "live" for entry in entries),
        sites=tuple({word_site(site): site for site in sites}.values()),
    )


def _tag_energy(entry: Entry) -> Quantity | None:
    """Return the energy of a run whose errors are its own, except those of meters; none of a damaged run."""
    if entry.energy is None or entry.status == "broken":
        return None
    return entry.energy.tagged(entry.id, keep=METER_ERRORS)


def _count_overlapping(entries: Iterable[Entry]) -> int:
    """Count the measured runs that overlap another one on their host."""
    spans = defaultdict(list)
    for entry in entries:
        if not entry.twin and entry.duration_s is not None and entry.energy is not None:
            start = dt.datetime.fromisoformat(entry.start_utc)
            for host in entry.hosts:
                spans[host].append((start, start + dt.timedelta(seconds=entry.duration_s), entry.id))
    found = set()
    for runs in spans.values():
        latest: tuple[dt.datetime, str] | None = None
        for start, end, key in sorted(runs):
            if latest is not None and start < latest[0]:
                found |= {key, latest[1]}
            if latest is None or end > latest[0]:
                latest = (end, key)
    return len(found)


def _describe(quantity: Quantity | None) -> dict[str, float | None] | None:
    return None if quantity is None else {"value": quantity.value, "expanded": quantity.expanded}
