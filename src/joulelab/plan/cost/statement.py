"""Gather what a statement of energy and carbon in a paper has to say; report/plan words it.

A statement is of one site: energy and what was measured, the facility's overhead, the intensity and where it is from,
the carbon, what rated power x time would have said, what is not in it, and the SCI (ISO/IEC 21031): (E x I + M) per R.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.plan.cost.energy import summed
from joulelab.plan.cost.scaling import RUNS
from joulelab.plan.cost.work import Planned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.cost.entries import Books, Entry
    from joulelab.plan.cost.sites import Site
    from joulelab.plan.rates.rate import Label

SIDES = ("parts", "unknown", "dc", "ac")  # the first of them that any job has is said of all
SCOPES = {
    "ac": "whole nodes, at the wall",
    "dc": "whole nodes, behind their power supplies",
    "parts": "the measured parts of nodes only",
    "unknown": "on which side of the power supplies is not known",
}


@dataclass(frozen=True, slots=True)
class Sci:
    """Hold the SCI: g of CO2e per unit of work; `embodied` tells whether M, the making of the nodes, is in it."""

    value: Quantity
    unit: str
    embodied: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """Hold the figures of a statement: kWh, g or money, s; `excluded` is what is not in them, in words.

    `nodes` are the numbers of nodes of the jobs, ascending, each once; None where nobody tells one of them. `even`
    tells that energy is spread evenly over the time, `covers` what was accounted, `varies` whether the rate changes.

    `ratio` is how many times the energy rated power x time says; `rated_of` is whose rated power. `since_s` and
    `until_s` (s since 1970) are the time that the intensity is of, `resolution_s` how often it changes.
    """

    site: Site
    label: Label
    scope: str
    scopes: tuple[str, ...]
    meters: tuple[str, ...]
    names: tuple[str, ...]
    jobs: int
    planned: bool
    duration_s: float
    nodes: tuple[int, ...] | None
    covers: tuple[str, ...]
    even: bool
    energy_kwh: Quantity
    site_kwh: Quantity
    amount: Quantity
    share: Quantity | None
    mean_rate: float
    rate_known: bool
    since_s: float
    until_s: float
    varies: bool
    changes: int
    rated_kwh: float | None
    ratio: Quantity | None
    rated_of: str
    twins: tuple[str, ...]
    excluded: tuple[str, ...]
    sci: Sci | None


def statements_of(books: Books) -> list[Statement]:
    """Return a statement for each site, of all jobs together. Raises ConfigError for work on several kinds of nodes."""
    return [_statement([e for e in books.entries if e.site.name == site]) for site in books.sites]


def _statement(entries: Sequence[Entry]) -> Statement:
    first = entries[0]
    planned = [e for e in entries if isinstance(e.job.profile, Planned)]
    if len(planned) > 1 or 0 < len(planned) < len(entries):
        what = "a statement is of runs, or of one planned work"
        raise ConfigError(what, why=f"{len(entries)} jobs are named", next="name fewer")
    side = next(side for side in SIDES if side in {e.job.side for e in entries})
    energy = summed([(e.job.runs[0], e.account.energy_kwh) for e in entries])
    amount = summed([(e.job.runs[0], e.account.amount) for e in entries])
    shares = [e.share.amount for e in entries if e.share is not None]
    share = add_quantities(shares) if len(shares) == len(entries) else None
    rated, ratio, of = _rated(entries, energy)
    return Statement(
        first.site, first.account.label, SCOPES[side], tuple(dict.fromkeys(s for e in entries for s in e.job.scopes)),
        tuple(dict.fromkeys(m for e in entries for m in e.job.meters)),
        tuple(dict.fromkeys(e.job.name for e in entries)), len(entries), bool(planned),
        sum(e.job.profile.duration_s for e in entries), _nodes(entries),
        tuple(dict.fromkeys(e.job.covers for e in entries if e.job.covers)), any(e.job.even for e in entries), energy,
        summed([(e.job.runs[0], e.account.site_kwh) for e in entries]), amount, share,
        sum(e.account.mean_rate * e.account.energy_kwh.value for e in entries) / energy.value if energy.value else 0.0,
        all(e.account.rate_known for e in entries), min(e.account.start_utc_s for e in entries),
        max(e.account.start_utc_s + e.job.profile.duration_s for e in entries),
        any(e.varies for e in entries), max(len(e.account.slots) for e in entries), rated, ratio, of,
        tuple(dict.fromkeys(t for e in entries for t in e.job.twins)),
        tuple(_excluded(entries, side, share)), _sci(entries, amount, share),
    )  # fmt: skip


def _nodes(entries: Sequence[Entry]) -> tuple[int, ...] | None:
    counts = [e.job.nodes for e in entries]
    known = {count for count in counts if count is not None}
    return None if None in counts else tuple(sorted(known))


def _rated(entries: Sequence[Entry], energy: Quantity) -> tuple[float | None, Quantity | None, str]:
    """Return what rated power x time says (kWh), how many times what was measured that is, and whose power it is.

    The ratio is of the same devices: where only the GPUs' power is known, it is to what these used.
    """
    plates = [e.job.profile.nameplate for e in entries]
    known = [plate for plate in plates if plate is not None]
    if len(known) < len(plates) or not known:
        return None, None, ""
    kwh = sum(e.account.rated_kwh or 0.0 for e in entries)
    of = " + ".join(dict.fromkeys(plate.of for plate in known))
    if of == "node" and energy.value > 0:
        return kwh, Quantity(kwh) / energy, of
    return kwh, known[0].ratio if len(known) == 1 else None, of


def _excluded(entries: Sequence[Entry], side: str, share: Quantity | None) -> list[str]:
    first = entries[0]
    found: list[str] = []
    if side == "dc":
        found.append("losses of the power supplies")
    if side == "unknown":
        found.append("losses of the power supplies, where the accounting is behind them")
    if side == "parts":
        found.append("the parts of the nodes that were not measured")
    if first.site.pue is None:
        found.append("cooling and distribution losses of the facility (no PUE)")
    if share is None:
        found.append("making and disposal of the hardware")
    elif first.account.label.kind != "price":
        found.append("hardware other than the nodes (network, storage, building), and its disposal")
    if first.site.moved_kwh is None:
        found.append("moving of data, storage and network")
    found.append("runs other than those named (development, failed runs, tuning)")
    return found


def _sci(entries: Sequence[Entry], amount: Quantity, share: Quantity | None) -> Sci | None:
    """Return the SCI per unit of the work that all jobs report, else per run; none for money or several workloads."""
    if entries[0].account.label.kind == "price" or len({e.job.workload for e in entries}) > 1:
        return None
    done = [e.job.done for e in entries]
    common = [kind for kind in done[0] if all(kind in one for one in done)]
    if not common:
        return None
    unit = next((kind for kind in common if kind != RUNS), common[0])
    whole = amount + (share or Quantity(0.0))
    return Sci(whole * (1 / sum(one[unit] for one in done)), unit, share is not None)
