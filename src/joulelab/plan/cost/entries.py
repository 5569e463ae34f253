"""Put jobs and sites together: one entry for each job at each site, with all that stands in its row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.analysis.marked_phases import COST_WORK, list_figure_kinds
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity
from joulelab.plan.cost.energy import RunProfile, account_of, side_of, summed
from joulelab.plan.cost.purchase import BreakEven, Option, break_even, share_of
from joulelab.plan.cost.scaling import RUNS
from joulelab.plan.cost.sites import MOST_PUE, fits, notes_of, rates_of
from joulelab.plan.cost.work import Planned
from joulelab.plan.measured_runs import find_node_count, list_outer_scopes, name_workload
from joulelab.plan.rates.constant import Constant
from joulelab.plan.rates.find import caveats
from joulelab.plan.rates.tariff import Tariff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.cost.energy import Account
    from joulelab.plan.cost.purchase import Share
    from joulelab.plan.cost.sites import Purpose, Site
    from joulelab.plan.cost.start import Start
    from joulelab.plan.plan_tables import NodeKind
    from joulelab.plan.rates.rate import Rate

HOURS = 3600.0
DEMAND = "demand"
SIDES = {
    "dc": "measured behind the supplies: their losses are not included",
    "parts": "only parts of the nodes were measured: the rest of them is not included",
    "unknown": "on which side of the supplies some was accounted is not known: losses may not be included",
}


@dataclass(frozen=True, slots=True)
class Job:
    """Hold what is accounted for: a run as it was, or planned work; and the kind of node it is on, where known."""

    profile: RunProfile | Planned
    kind: NodeKind | None = None

    @property
    def name(self) -> str:
        """Return what it is called: with its kind of node where the work is planned on several."""
        planned = isinstance(self.profile, Planned) and self.kind is not None
        return f"{self.profile.name} on {self.kind.name}" if planned and self.kind else self.profile.name

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the ids of the runs it comes from."""
        profile = self.profile
        return profile.runs if isinstance(profile, Planned) else (profile.measured.result.run,)

    @property
    def twins(self) -> tuple[str, ...]:
        """Return the twins that its figures come from: where there are any, they are simulated."""
        profile = self.profile
        if isinstance(profile, Planned):
            return profile.twins
        return (profile.measured.result.twin,) if profile.measured.result.twin else ()

    @property
    def workload(self) -> str:
        """Return what it does: the workload of a run, the name of planned work."""
        profile = self.profile
        return profile.name if isinstance(profile, Planned) else name_workload(profile.measured.result)

    @property
    def side(self) -> str:
        """Return where it was measured: at the wall (`ac`), behind the supplies (`dc`), in `parts`; or `unknown`."""
        return self.profile.side if isinstance(self.profile, Planned) else side_of(self.profile.measured)

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return what was measured of a run; nothing for planned work."""
        if isinstance(self.profile, Planned):
            return ()
        return tuple(dict.fromkeys(scope for draw in self.profile.measured.draws for scope in draw.scopes))

    @property
    def meters(self) -> tuple[str, ...]:
        """Return by which meters a run was measured, each with where its accuracy is known from."""
        if isinstance(self.profile, Planned):
            return ()
        outer = list_outer_scopes(self.profile.measured)
        read = [s.reading for s in self.profile.measured.result.scopes if (s.host, s.scope) in outer]
        return tuple(dict.fromkeys(f"{one.meter} (accuracy: {one.accuracy})" for one in read))

    @property
    def even(self) -> bool:
        """Return whether it is a run whose energy was only accounted for: it is taken as spread evenly."""
        return not isinstance(self.profile, Planned) and not self.profile.measured.resolved

    @property
    def covers(self) -> str:
        """Return what an accounting covers, in its own words; empty for what was measured."""
        told = None if isinstance(self.profile, Planned) else self.profile.measured.accounted
        return "" if told is None else told.covers

    @property
    def nodes(self) -> int | None:
        """Return on how many nodes it runs, None where nobody tells."""
        return self.profile.nodes if isinstance(self.profile, Planned) else find_node_count(self.profile.measured)

    @property
    def node_hours(self) -> Quantity | None:
        """Return the hours of nodes that it takes, None where nobody tells on how many it runs."""
        profile, nodes = self.profile, self.nodes
        time = profile.time if isinstance(profile, Planned) else Quantity(profile.duration_s)
        return None if nodes is None else time * (nodes / HOURS)

    @property
    def mean_w(self) -> float:
        """Return the mean power, of all its nodes together (W)."""
        seconds = self.profile.duration_s
        return self.profile.whole.value / seconds if seconds > 0 else 0.0

    @property
    def highest_w(self) -> float | None:
        """Return the highest reading, of all its nodes together (W); None where no power was read."""
        if isinstance(self.profile, Planned):
            return self.profile.highest_w
        return sum(draw.highest_w for draw in self.profile.measured.draws) if not self.even else None

    @property
    def done(self) -> dict[str, float]:
        """Return the work that it does, by kind, for figures per unit of it."""
        if isinstance(self.profile, Planned):
            return {self.profile.work.unit: self.profile.work.amount}
        work = self.profile.measured.result.work
        kinds = [kind for kind in list_figure_kinds(work) if kind not in COST_WORK and work[kind] > 0]
        return {kind: work[kind] for kind in kinds} | {RUNS: 1.0}


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold a job at a site: its account, and the share of its nodes' purchase where that is known.

    `charges` are what the tariff asks beside the kWh; they are in no sum. `moved_kwh` is its share of moving the data;
    `varies` tells whether the rate changes over time, be it at other times only.
    """

    job: Job
    site: Site
    account: Account
    share: Share | None
    notes: tuple[str, ...]
    charges: Mapping[str, float]
    moved_kwh: Quantity | None = None
    varies: bool = False

    @property
    def whole(self) -> Quantity:
        """Return energy and purchase together: money, or g of CO2e."""
        return self.account.amount + (self.share.amount if self.share else Quantity(0.0))

    def per(self, kind: str) -> Quantity:
        """Return the whole per unit of a kind of work."""
        return self.whole * (1 / self.job.done[kind])


@dataclass(frozen=True, slots=True)
class Books:
    """Hold the answer of `plan cost` and `plan carbon`: entries, jobs by sites, and what follows from them.

    `total` is that of all runs, by site, where there are several; planned work on several kinds of nodes is not added.
    """

    purpose: Purpose
    entries: tuple[Entry, ...]
    total: Mapping[str, Quantity]
    total_kwh: Quantity | None
    evens: tuple[BreakEven, ...]
    notes: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Return what amounts are in: g, or a currency."""
        return self.entries[0].account.label.unit.partition("/")[0]

    @property
    def sites(self) -> list[str]:
        """Return the names of the sites."""
        return list(dict.fromkeys(entry.site.name for entry in self.entries))

    @property
    def twins(self) -> list[str]:
        """Return the twins that any of it comes from."""
        return list(dict.fromkeys(twin for entry in self.entries for twin in entry.job.twins))

    def against(self, entry: Entry) -> tuple[Quantity, Quantity | None] | None:
        """Return how far an entry is from its job's at the first site: the difference, and the ratio.

        What both share cancels: it is the same job on the same meter. None for the first.
        """
        first = next(e for e in self.entries if e.job is entry.job)
        if first is entry:
            return None
        # Of what is paid for being used, a share says nothing.
        ratio = entry.whole / first.whole if first.whole.value > 0 and entry.whole.value >= 0 else None
        return entry.whole - first.whole, ratio


def books_of(
    jobs: Sequence[Job],
    sites: Sequence[Site],
    purpose: Purpose,
    *,
    start: Start | None = None,
    rates: Sequence[Rate] | None = None,
) -> Books:
    """Account for jobs at sites; `start` moves them to another time, `rates` are those of the sites where read before.

    Data is moved to a site once for all jobs, which share it equally; kinds of nodes are choices for the same work.
    Raises ConfigError where rates may not stand together, or are not known when a job runs, and for measured runs
    together with simulated ones.
    """
    if not jobs:
        raise ConfigError("there is nothing to account for", next="name runs, or give [[work]] in the plan")
    _check_real([job for job in jobs if not isinstance(job.profile, Planned)])
    rates = rates_of(sites, purpose) if rates is None else rates
    at_s = None if start is None else start.at_s
    movers = len({j.profile.name if isinstance(j.profile, Planned) else j.runs[0] for j in jobs})
    pairs = [(job, site, rate) for job in jobs for site, rate in zip(sites, rates, strict=True)]
    entries = [_entry(job, site, rate, purpose, at_s, movers) for job, site, rate in pairs]
    _check_finite(entries)
    runs = [e for e in entries if not isinstance(e.job.profile, Planned)]
    several = len({id(e.job) for e in runs}) > 1
    total = {site.name: summed([(e.job.runs[0], e.whole) for e in runs if e.site is site]) for site in sites if several}
    evens = tuple(even for site in sites for even in _evens([e for e in entries if e.site is site]))
    first = [(e.job.runs[0], e.account.energy_kwh) for e in runs if e.site is sites[0]]
    return Books(
        purpose, tuple(entries), total, summed(first) if several else None, evens, tuple(_notes(entries, start))
    )


def _check_real(runs: Sequence[Job]) -> None:
    """Refuse runs that were measured together with simulated ones: no sum of them is either. Raises ConfigError."""
    real, twin = ([job.name for job in runs if bool(job.twins) is twins] for twins in (False, True))
    if real and twin:
        why = f"{real[0]} was measured, {twin[0]} is simulated"
        raise ConfigError("measured and simulated runs are not added up", why=why, next="name one or the other")


def _check_finite(entries: Sequence[Entry]) -> None:
    """Refuse figures that are too large to reckon with, wherever they come from. Raises ConfigError."""
    for e in entries:
        whole, kwh = e.whole, e.account.site_kwh
        if not math.isfinite(whole.value + whole.u + kwh.value + kwh.u + (e.account.rated_amount or 0.0)):
            why = "energy, price, overhead or rated power is beyond all measure"
            raise ConfigError(f"{e.job.name}: the figures are too large to reckon with", why=why, next="correct them")


def _entry(job: Job, site: Site, rate: Rate, purpose: Purpose, at_s: float | None, movers: int) -> Entry:
    if isinstance(job.profile, Planned) and at_s is None and _varies(rate):
        why = f"{rate.label.name} changes over time"
        raise ConfigError(f"{job.name}: when it runs is not known", why=why, next="say it: --at 2026-11-17T08:00Z")
    moved = None if site.moved_kwh is None else site.moved_kwh * (1 / movers)
    account = account_of(job.profile, rate, pue=site.overhead, moved_kwh=moved, at_s=at_s)
    share = share_of(job.kind, purpose, job.node_hours)
    notes = notes_of(site, movers)
    if share is None and share_of(job.kind, purpose, Quantity(0.0)) is not None:
        notes.append(f"on how many nodes {job.name} ran is not known: what nodes cost or emitted is not included")
    notes += _fitting(job, site)
    charges = _charges(rate, job, site)
    unit = rate.label.unit.partition("/")[0]
    demand = [name for name in charges if name.startswith(DEMAND)]
    whose = dict.fromkeys(demand, f" for {job.name}")  # a fee is asked once, whatever runs
    notes += [f"not in it: {name}{whose.get(name, '')}, {amount:.2f} {unit}" for name, amount in charges.items()]
    if demand:
        notes.append("demand is as if the highest power of the work added to that of the site in full")
    elif isinstance(rate, Tariff) and rate.demand is not None:
        notes.append(f"not in it: demand per {rate.demand.per}; the highest power of {job.name} is not known")
    return Entry(job, site, account, share, tuple(notes), charges, moved, _varies(rate))


def _fitting(job: Job, site: Site) -> list[str]:
    """Say where a job does not fit into a site's budget, or where that cannot be told."""
    if site.budget_w is None:
        return []
    highest, budget = job.highest_w, f"{site.budget_w:,.0f} W"
    least = (job.mean_w if highest is None else highest) * site.overhead.value
    which = "on average" if highest is None else "at its highest"
    if not fits(site, least / site.overhead.value):
        return [f"{job.name} does not fit: {least:,.0f} W {which}, overhead included; {budget}"]
    if highest is not None:
        return []
    return [f"whether {job.name} fits into {budget} is not known: it is {least:,.0f} W on average, overhead included"]


def _varies(rate: Rate) -> bool:
    """Return whether it matters when work runs."""
    return not isinstance(rate, Constant) and not (isinstance(rate, Tariff) and not rate.rules)


def _charges(rate: Rate, job: Job, site: Site) -> dict[str, float]:
    """Return what a tariff asks beside the kWh, per month or year, as if the job's highest power added in full."""
    found: dict[str, float] = {}
    if isinstance(rate, Tariff) and rate.demand is not None and job.highest_w is not None:
        highest_kw = job.highest_w * site.overhead.value / 1e3
        found[f"{DEMAND} per {rate.demand.per}"] = rate.demand.amount * highest_kw
    if isinstance(rate, Tariff) and rate.fee is not None:
        found[f"fee per {rate.fee.per}"] = rate.fee.amount
    return found


def _evens(entries: Sequence[Entry]) -> list[BreakEven]:
    """Return where kinds of nodes are equal at a site, for the same planned work, purchase known."""
    found: list[BreakEven] = []
    options: dict[str, list[Option]] = {}
    for entry in entries:
        profile = entry.job.profile
        if isinstance(profile, Planned) and entry.share is not None and entry.job.kind is not None:
            option = Option(entry.job.kind.name, entry.account.site_kwh, entry.share.amount)
            options.setdefault(profile.name, []).append(option)
    for same in options.values():
        found += [
            break_even(a, b, entries[0].site.name)
            for k, a in enumerate(same)
            for b in same[k + 1 :]
            if a.name != b.name
        ]
    return found


def _notes(entries: Sequence[Entry], start: Start | None) -> list[str]:
    """Return what has to be said of all of it, each once."""
    unsure = dict.fromkeys(e.account.label.name for e in entries if not e.account.rate_known)
    said = [f"nobody states how sure these are: {', '.join(unsure)}; that is not in the intervals"] if unsure else []
    several = len({entry.site.name for entry in entries}) > 1
    labels = {entry.site.name: entry.account.label for entry in entries}.values()
    said += [*caveats(labels), *(note for label in labels for note in label.notes), *_measured_notes(entries)]
    simulated = dict.fromkeys(entry.job.name for entry in entries if entry.job.twins)
    if any(not entry.job.twins for entry in entries) and simulated:
        said.append(f"simulated: {', '.join(simulated)}; the others come from measured runs")
    if entries[0].account.label.kind == "average":
        said.append("average intensity: says what is attributed to the energy, not what one kWh less would avoid")
    for entry in entries:
        profile = entry.job.profile
        said += [f"{entry.site.name}: {note}" if several else note for note in entry.notes]
        said += [*(profile.notes if isinstance(profile, Planned) else ())]
        if isinstance(profile, Planned) and entry.account.slots[1:]:
            said.append("planned work is taken to draw a flat power")
        said += [entry.share.said] if entry.share is not None else []
    if start is not None:
        planned = isinstance(entries[0].job.profile, Planned)
        said.append(start.said if planned else f"moved: {start.said}, as if it drew the same power then")
    return list(dict.fromkeys(said))


def _measured_notes(entries: Sequence[Entry]) -> list[str]:
    """Return what has to be said of how energies and rated powers are known."""
    said = [SIDES[side] for side in SIDES if side in {entry.job.side for entry in entries}]
    covers = dict.fromkeys(entry.job.covers for entry in entries if entry.job.covers)
    said += [f"only accounted for, by the cluster: {text}" for text in covers]
    even = [entry for entry in entries if entry.job.even]
    if any(entry.account.slots[1:] for entry in even):
        said.append("when accounted energy was used is not known: it is taken as spread evenly over the time")
    if any(entry.job.nodes is None for entry in even):
        said.append("on how many nodes some ran is not known: no rated power x time, nothing per node")
    if any(entry.account.rated_kwh is None and entry.job.nodes is not None for entry in entries):
        said.append("no rated power is known of some: give rated_w in [nodes.NAME] or --rated")
    if any(entry.account.site_kwh.known is False for entry in entries):
        said.append("the meter's accuracy is unknown: no interval (± ?)")
    return said


def pue_of(text: str) -> Quantity:
    """Return a PUE as people write it: `1.3`, or `1.3±0.05` (k = 2, as everywhere). Raises ConfigError."""
    value, sign, width = text.replace("+-", "±").replace("+/-", "±").partition("±")
    try:
        pue, u = float(value), float(width) / 2 if sign else 0.0
    except ValueError:
        raise ConfigError(f"{text!r} is no PUE", next="write it as 1.3 or 1.3±0.05") from None
    if not 1 <= pue <= MOST_PUE or not 0 <= u < pue:
        raise ConfigError(f"{text!r} is no PUE", why=f"it is 1 to {MOST_PUE:g}", next="write it as 1.3 or 1.3±0.05")
    return Quantity(pue, {"pue:given": u}) if u else Quantity(pue) if pue != 1 else ONE
