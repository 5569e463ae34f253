"""Compute energy, money and carbon of jobs at sites: one entry for each job at each site, sums, and notes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import J_PER_KWH, Quantity
from joulelab.plan.cost.job_energy import RunEnergy, account_energy, add_amounts
from joulelab.plan.cost.sites import PURPOSES, BreakEven, find_break_even, find_site_rates, share_purchase
from joulelab.plan.cost.work import PlannedWork
from joulelab.plan.rates.find_rate import GIVEN, compare_labels, is_varying
from joulelab.plan.rates.tariff import Tariff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.plan.cost.job_energy import RateAmount
    from joulelab.plan.cost.sites import PlanSite, PurchaseShare, Purpose
    from joulelab.plan.plan_tables import NodeKind
    from joulelab.plan.rates.rate import Rate
    from joulelab.site.footprint import Site

SIDES = ("parts", "dc", "unknown")  # sides of the power supplies that leave something out
SIDE_WORDS = {"ac": "whole nodes at the wall", "dc": "behind the power supplies", "parts": "only parts of the nodes"}


@dataclass(frozen=True, slots=True)
class CostJob:
    """Hold a run or planned work, and its kind of node if it is known."""

    profile: RunEnergy | PlannedWork
    kind: NodeKind | None = None

    @property
    def planned(self) -> PlannedWork | None:
        """Return the planned work, None for a run."""
        return self.profile if isinstance(self.profile, PlannedWork) else None

    @property
    def name(self) -> str:
        """Return its name; planned work is named with its kind of node."""
        return f"{self.profile.name} on {self.kind.name}" if self.planned and self.kind else self.profile.name

    @property
    def node_hours(self) -> Quantity | None:
        """Return its hours of nodes, None if the number of nodes is unknown."""
        nodes = self.profile.nodes
        return None if nodes is None else self.profile.time * (nodes / 3600.0)


@dataclass(frozen=True, slots=True)
class CostEntry:
    """Hold a job at a site: energy without and with overhead, amounts and purchase shares by purpose.

    `charges` of the tariff (per month or year) are in no sum. `varying` are the purposes whose rate changes over time.
    """

    job: CostJob
    site: PlanSite
    start_s: float
    energy_kwh: Quantity
    site_kwh: Quantity
    amounts: Mapping[Purpose, RateAmount]
    shares: Mapping[Purpose, PurchaseShare]
    charges: Mapping[str, float]
    varying: tuple[Purpose, ...] = ()

    @property
    def name(self) -> str:
        """Return job and site."""
        return f"{self.job.name} at {self.site.name}"

    def get_total(self, purpose: Purpose) -> Quantity:
        """Return energy and purchase together: money, or g of CO2e."""
        share = self.shares.get(purpose)
        return self.amounts[purpose].amount + (share.amount if share else Quantity(0.0))


@dataclass(frozen=True, slots=True)
class CostSum:
    """Hold the sum of all jobs at a site."""

    site: str
    energy_kwh: Quantity
    site_kwh: Quantity
    totals: Mapping[Purpose, Quantity]


@dataclass(frozen=True, slots=True)
class CostBooks:
    """Hold the answer of `plan cost`; `purposes` are those with rates.

    `sums` has one entry per site; it is empty if kinds of nodes are compared for the same work. `is_configured` tells
    that rates or PUE come from [site] of joulelab.toml.
    """

    entries: tuple[CostEntry, ...]
    purposes: tuple[Purpose, ...]
    sums: tuple[CostSum, ...]
    evens: tuple[BreakEven, ...]
    notes: tuple[Note, ...]
    is_configured: bool = False
    start: str = ""
    units: Mapping[Purpose, str] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """Return the names of the sites."""
        return list(dict.fromkeys(entry.site.name for entry in self.entries))

    @property
    def twins(self) -> list[str]:
        """Return the twins of all jobs."""
        return list(dict.fromkeys(twin for entry in self.entries for twin in entry.job.profile.twins))

    @property
    def planned(self) -> list[PlannedWork]:
        """Return the planned work of all jobs, each once."""
        found = {id(e.job): e.job.planned for e in self.entries if e.job.planned is not None}
        return [work for work in found.values() if work is not None]


def make_books(
    jobs: Sequence[CostJob],
    sites: Sequence[PlanSite],
    *,
    start: tuple[float, str] | None = None,
    rates: Mapping[Purpose, Sequence[Rate]] | None = None,
    configured: Site | None = None,
) -> CostBooks:
    """Account for jobs at sites; `start` (s since 1970, and its words) moves them to another time.

    `configured` is the [site] of joulelab.toml if it is used.

    Raises ConfigError if rates or jobs may not be in one table, or rates are not known when a job runs.
    """
    if not jobs:
        raise ConfigError("no run and no work is given", next="name runs, or add [[work]] to the plan file")
    _check_alike(jobs)
    rates = find_site_rates(sites) if rates is None else rates
    at_s = None if start is None else start[0]
    entries = [
        _make_entry(job, site, {purpose: found[k] for purpose, found in rates.items()}, at_s)
        for job in jobs
        for k, site in enumerate(sites)
    ]
    works = [job.planned.name for job in jobs if job.planned]
    purposes = tuple(purpose for purpose in PURPOSES if purpose in rates)
    sums: tuple[CostSum, ...] = ()
    if len(works) == len(set(works)) and not (works and len(works) < len(jobs)):
        sums = tuple(_add_entries([e for e in entries if e.site is site], purposes) for site in sites)
    evens = tuple(even for site in sites for even in _find_evens([e for e in entries if e.site is site], purposes))
    notes = [*_list_site_notes(jobs, configured), *_list_notes(entries, purposes)]
    notes += [Note("cost.moved", texts={"start": start[1]})] if start and not works else []
    units = {purpose: found[0].label.money for purpose, found in rates.items()}
    unique = {(n.code, tuple(n.texts.values()), tuple(n.numbers.values())): n for n in notes}
    words = "" if start is None else start[1]
    return CostBooks(
        tuple(entries), purposes, sums, evens, tuple(unique.values()), configured is not None, words, units
    )


def _check_alike(jobs: Sequence[CostJob]) -> None:
    """Refuse figures that may not be added or compared: simulated with measured ones, or of other parts of nodes.

    A cluster's figures, whose side of the power supplies is unknown, have a note instead.
    """
    origins = {"simulated" if job.profile.twins else "measured": job.name for job in jobs}
    if len(origins) > 1:
        why = f"{origins['measured']} was measured, {origins['simulated']} is simulated"
        raise ConfigError("measured and simulated figures are not mixed", why=why, next="name one or the other")
    sides = {job.profile.side: job.name for job in jobs if job.profile.side in SIDE_WORDS}
    if len(sides) > 1:
        why = ", ".join(f"{name}: {SIDE_WORDS[side]}" for side, name in sides.items())
        then = "name runs that were measured alike, or ask for each alone"
        raise ConfigError("figures of different parts of nodes are not mixed", why=why, next=then)


def _make_entry(job: CostJob, site: PlanSite, rates: Mapping[Purpose, Rate], at_s: float | None) -> CostEntry:
    varying = tuple(purpose for purpose, rate in rates.items() if is_varying(rate))
    if job.planned and at_s is None and varying:
        why = f"{rates[varying[0]].label.name} changes over time"
        raise ConfigError(f"{job.name}: its start is not known", why=why, next="add --at 2026-11-17T08:00Z")
    pue = site.overhead
    whole = job.profile.whole
    amounts = {purpose: account_energy(job.profile, rate, pue=pue, at_s=at_s) for purpose, rate in rates.items()}
    shares = {p: s for p in rates if (s := share_purchase(job.kind, p, job.node_hours)) is not None}
    tariff, charges = rates.get("cost"), {}
    if isinstance(tariff, Tariff) and tariff.demand is not None and job.profile.highest_w is not None:
        charges[f"demand per {tariff.demand.per}"] = (
            tariff.demand.price_per_kw * job.profile.highest_w * pue.value / 1e3
        )
    if isinstance(tariff, Tariff) and tariff.fee is not None:
        charges[f"fee per {tariff.fee.per}"] = tariff.fee.price
    start = job.profile.start_utc_s if at_s is None else at_s
    entry = CostEntry(
        job, site, start, whole * (1 / J_PER_KWH), whole * pue * (1 / J_PER_KWH), amounts, shares, charges, varying
    )
    figures = [entry.site_kwh, *(entry.get_total(purpose) for purpose in rates)]
    rated = sum(amount.rated or 0.0 for amount in amounts.values())
    if not all(math.isfinite(q.value + q.u) for q in figures) or not math.isfinite(rated):
        raise ConfigError(f"{job.name}: the figures are too large", next="correct energy, price, PUE or rated power")
    return entry


def _add_entries(entries: Sequence[CostEntry], purposes: Sequence[Purpose]) -> CostSum:
    def add(quantities: Iterator[Quantity]) -> Quantity:
        return add_amounts([(entry.job.profile.runs[0], q) for entry, q in zip(entries, quantities, strict=True)])

    totals = {purpose: add(entry.get_total(purpose) for entry in entries) for purpose in purposes}
    energy, site = add(entry.energy_kwh for entry in entries), add(entry.site_kwh for entry in entries)
    return CostSum(entries[0].site.name, energy, site, totals)


def _find_evens(entries: Sequence[CostEntry], purposes: Sequence[Purpose]) -> Iterator[BreakEven]:
    """Yield the rates at which kinds of nodes are equal for the same planned work, if their purchase is known."""
    for purpose in purposes:
        options: dict[str, list[tuple[str, Quantity, Quantity]]] = {}
        for entry in entries:
            if entry.job.planned and entry.job.kind and purpose in entry.shares:
                option = (entry.job.kind.name, entry.site_kwh, entry.shares[purpose].amount)
                options.setdefault(entry.job.planned.name, []).append(option)
        for same in options.values():
            for k, a in enumerate(same):
                yield from (find_break_even(purpose, entries[0].site.name, a, b) for b in same[k + 1 :] if a[0] != b[0])


def _list_site_notes(jobs: Sequence[CostJob], configured: Site | None) -> Iterator[Note]:
    """Yield a note on runs that recorded another site than the one that is used."""

    def list_figures(site: Site) -> tuple[object, ...]:
        return site.g_per_kwh, site.price, site.currency, site.pue

    sites = {job.name: job.profile.measured.result.site for job in jobs if isinstance(job.profile, RunEnergy)}
    here = None if configured is None else list_figures(configured)
    names = tuple(name for name, site in sites.items() if here and site and list_figures(site) != here)
    if names:
        yield Note("cost.other-site", texts={"runs": names})


def _list_missing_rates(purposes: Sequence[Purpose]) -> Iterator[Note]:
    if not purposes:
        yield Note("cost.no-rates")
    elif "cost" not in purposes:
        yield Note("cost.no-price")
    elif "carbon" not in purposes:
        yield Note("cost.no-intensity")


def _list_notes(entries: Sequence[CostEntry], purposes: Sequence[Purpose]) -> Iterator[Note]:
    """Yield the notes on all entries, the most important first."""
    jobs = list({id(entry.job): entry.job for entry in entries}.values())
    sites = list({entry.site.name: entry.site for entry in entries}.values())
    sides = {job.profile.side for job in jobs}
    yield from (Note(f"cost.side-{side}") for side in SIDES if side in sides)
    steps = [step for job in jobs if job.planned for step in job.planned.steps if step.worth == "assumed"]
    for step in steps:
        yield Note("cost.assumed-step", texts={"axis": step.axis, "since": step.since, "until": step.until})
    yield from _list_missing_rates(purposes)
    if any(not entry.energy_kwh.known for entry in entries):
        yield Note("cost.accuracy-unknown")
    for job in jobs:
        yield from job.planned.notes if job.planned else ()
    without = tuple(site.name for site in sites if site.pue is None)
    if without:
        yield Note("cost.no-pue", texts={"sites": without} if len(sites) > 1 else {})
    for purpose in purposes:
        yield from compare_labels({e.site.name: e.amounts[purpose].label for e in entries}.values())
    labels = list({label.name: label for e in entries for a in e.amounts.values() for label in [a.label]}.values())
    stated = [label for label in labels if label.kind != "price" and label.source != GIVEN]
    unsure = tuple(label.name for label in stated if label.u_rel is None)
    if unsure:
        yield Note("cost.rate-unsure", texts={"rates": unsure})
    yield from _list_time_notes(entries, jobs)
    for entry in entries:
        charges = tuple(f"{name} {a:.2f} {entry.amounts['cost'].label.money}" for name, a in entry.charges.items())
        if charges:
            yield Note("cost.charges", texts={"job": entry.job.name, "charges": charges})
    if any(label.kind == "average" for label in labels):
        yield Note("cost.average")
    yield from (Note("rates.remark", texts={"remark": f"{x.name}: {n}"}) for x in labels for n in x.notes)


def _list_time_notes(entries: Sequence[CostEntry], jobs: Sequence[CostJob]) -> Iterator[Note]:
    has_slots = any(len(amount.slots) > 1 for entry in entries for amount in entry.amounts.values())
    if has_slots and any(job.profile.is_total_only for job in jobs):
        yield Note("cost.spread-evenly")
    if has_slots and any(job.planned for job in jobs):
        yield Note("cost.flat-power")
    covers = tuple(dict.fromkeys(job.profile.covers for job in jobs if job.profile.covers))
    if covers:
        yield Note("cost.accounted", texts={"covers": covers})
    if any(job.profile.nodes is None for job in jobs):
        yield Note("cost.nodes-unknown")
    if any(job.profile.nameplate is None and job.profile.nodes is not None for job in jobs):
        yield Note("cost.no-nameplate")
    if any(e.shares and e.job.kind is not None and e.job.kind.use is None for e in entries):
        yield Note("cost.full-use")
