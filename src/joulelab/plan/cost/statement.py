"""Write a statement of energy, carbon and cost for a paper, in plain text and in LaTeX; one for each site.

It has the energy and its meters, the overhead of the building, rates and their sources, what is not included, and the
software carbon intensity (SCI, ISO/IEC 21031): (E x I + M) per R.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.plan.cost.cost_output import (
    format_energy,
    format_figure,
    format_per_unit,
    format_pue,
    format_total,
    name_label,
)
from joulelab.plan.cost.job_energy import RUNS, add_amounts
from joulelab.plan.rates.find_rate import GIVEN
from joulelab.plan.rates.rate import format_span
from joulelab.report import format as fmt
from joulelab.report.tables import LATEX_SPECIAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.plan.cost.cost_books import CostBooks, CostEntry
    from joulelab.plan.cost.sites import Purpose

MOST_METERS = 3
LATEX_SIGNS = {**LATEX_SPECIAL, "±": r"$\pm$", "€": r"\texteuro{}"}
SCOPES = {  # the first of them that any job has holds for all
    "parts": ("the measured parts of nodes only", "the parts of the nodes that were not measured"),
    "unknown": ("side of the power supplies unknown", "losses of the power supplies, if the accounting excludes them"),
    "dc": ("whole nodes, behind their power supplies", "losses of the power supplies"),
    "ac": ("whole nodes, at the wall", ""),
}


def make_statements(books: CostBooks) -> list[dict[str, Any]]:
    """Return the statement of each site: text, LaTeX and figures. Raises ConfigError for several planned works."""
    found = []
    for site in books.sites:
        entries = [e for e in books.entries if e.site.name == site]
        if any(e.job.planned for e in entries) and len(entries) > 1:
            why = f"{len(entries)} jobs are named"
            raise ConfigError("a statement is for runs, or for one planned work", why=why, next="name fewer")
        found.append(_make_statement(entries))
    return found


def write_latex(text: str) -> str:
    """Return a text for LaTeX, without packages except textcomp for the euro sign."""
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    return escaped.replace("CO2e", "CO$_2$e").replace(" x ", r" $\times$ ")


def _make_statement(entries: Sequence[CostEntry]) -> dict[str, Any]:
    first, purposes = entries[0], list(entries[0].amounts)
    side = next(side for side in SCOPES if side in {e.job.profile.side for e in entries})
    energy = add_amounts([(e.job.profile.runs[0], e.energy_kwh) for e in entries])
    amounts = {p: add_amounts([(e.job.profile.runs[0], e.amounts[p].amount) for e in entries]) for p in purposes}
    shares: dict[Purpose, Quantity] = {
        p: add_quantities(e.shares[p].amount for e in entries) for p in purposes if all(p in e.shares for e in entries)
    }
    excluded = [*_list_excluded(entries, side, shares)]
    sci = _find_sci(entries, amounts, shares)
    sentences = [
        _word_twins(entries), _word_energy(entries, energy, side), *_word_amounts(entries, amounts),
        _word_nameplate(entries, energy), *_word_shares(shares, first), _word_sci(entries, sci, shares),
        f"Not included: {'; '.join(excluded)}.", _word_intervals(entries, amounts),
    ]  # fmt: skip
    text = " ".join(sentence for sentence in sentences if sentence)
    nodes = [e.job.profile.nodes for e in entries]
    return {
        "site": first.site.name,
        "text": text,
        "latex": write_latex(text),
        "nodes": None if None in nodes else sorted({n for n in nodes if n is not None}),
        "energy_kwh": energy.to_json(),
        **{purpose: amount.to_json() for purpose, amount in amounts.items()},
        "purchase": {purpose: share.to_json() for purpose, share in shares.items()},
        "not_included": excluded,
        "simulated": any(e.job.profile.twins for e in entries),
        "sci": None
        if sci is None
        else {"g_per_unit": sci[0].to_json(), "unit": sci[1], "embodied_included": "carbon" in shares},
    }


def _word_twins(entries: Sequence[CostEntry]) -> str:
    twins = list(dict.fromkeys(t for e in entries for t in e.job.profile.twins))
    if not twins:
        return ""
    return f"These figures are simulated ({fmt.name_twins(twins).partition(': ')[2]}); nothing was measured."


def _word_energy(entries: Sequence[CostEntry], energy: Quantity, side: str) -> str:
    first, planned = entries[0].job, entries[0].job.planned
    subject = f"{len(entries)} runs" if len(entries) > 1 else f"The {'work' if planned else 'run'} {first.name}"
    nodes = [e.job.profile.nodes for e in entries]
    counts = sorted({n for n in nodes if n is not None})
    *others, last = counts or [0]
    listed = f"{', '.join(map(str, others))} and {last}" if others else f"{last}"
    where = "on an unknown number of nodes" if None in nodes else f"on {listed} node{'s' if last > 1 else ''}"
    scopes = fmt.join_scopes(list(dict.fromkeys(s for e in entries for s in e.job.profile.scopes)))
    covers = dict.fromkeys(e.job.profile.covers for e in entries if e.job.profile.covers)
    inside = "; ".join(part for part in (scopes, *covers) if part)
    meters = list(dict.fromkeys(m for e in entries for m in e.job.profile.meters))[:MOST_METERS]
    verb = "accounted" if any(e.job.profile.is_total_only for e in entries) else "measured"
    how = ["scaled from runs"] if planned else []
    by = [f"{verb} by {', '.join(meters)}"] if meters and not any(e.job.profile.twins for e in entries) else []
    duration = fmt.format_duration(sum(e.job.profile.duration_s for e in entries))
    scope = f"{SCOPES[side][0]} ({inside})" if inside else SCOPES[side][0]
    details = "; ".join([*how, scope, *by, f"{where}, {duration} in total"])
    used = f"{'would use' if planned else 'used'} {format_energy(energy)}"
    return f"{subject} {used} of electricity: {details}."


def _word_amounts(entries: Sequence[CostEntry], amounts: dict[Purpose, Quantity]) -> Iterator[str]:
    first = entries[0]
    if first.site.pue is not None:
        site = format_energy(add_amounts([(e.job.profile.runs[0], e.site_kwh) for e in entries]))
        yield f"With a power usage effectiveness of {format_pue(first.site)} it is {site} at the site."
    for purpose, amount in amounts.items():
        label = first.amounts[purpose].label
        weights = [(e.amounts[purpose].mean_rate, e.energy_kwh.value) for e in entries]
        whole = sum(kwh for _, kwh in weights)
        mean = sum(rate * kwh for rate, kwh in weights) / whole if whole else weights[0][0]
        varies = any(purpose in e.varying for e in entries)
        figure = fmt.format_number(mean) if varies else fmt.format_fact(mean)
        article = "an" if label.kind == "average" else "a"
        noun = "price" if purpose == "cost" else f"{label.kind} carbon intensity"
        unit = label.unit if purpose == "cost" else "g CO2e per kWh"
        verb = "costs" if purpose == "cost" else "corresponds to"
        total = format_total(amount, label.money)
        over = ""
        if varies:
            span = format_span(
                min(e.start_s for e in entries), max(e.start_s + e.job.profile.duration_s for e in entries)
            )
            slots = max(len(e.amounts[purpose].slots) for e in entries)
            power = (
                "flat power" if first.job.planned else "energy spread evenly" if first.job.profile.is_total_only else ""
            )
            over = f", from {span} ({f'{slots} slots' if slots > 1 else 'one slot'}{f', {power}' if power else ''})"
        source = "" if label.source == GIVEN else f"; source: {name_label(label)}"
        yield f"At {article} {noun} of {figure} {unit} this {verb} {total}{source}{over}."


def _word_nameplate(entries: Sequence[CostEntry], energy: Quantity) -> str:
    plates = [e.job.profile.nameplate for e in entries]
    known = [plate for plate in plates if plate is not None]
    if len(known) < len(plates):
        return "Rated power x time is not given: the rated power is unknown."
    kwh = sum(plate.kwh for plate in known)
    of = " + ".join(dict.fromkeys(plate.of for plate in known))
    ratio = Quantity(kwh) / energy if of == "node" and energy.value > 0 else known[0].ratio if len(known) == 1 else None
    only = "" if of == "node" else f" of the {of.replace('gpu', 'GPUs').replace('cpu', 'CPUs')} alone"
    times = "" if ratio is None else f", {format_figure(ratio)} times the energy of the same devices"
    return f"Rated power x time{only} would be {format_energy(Quantity(kwh))}{times}."


def _word_shares(shares: dict[Purpose, Quantity], first: CostEntry) -> Iterator[str]:
    for purpose, share in shares.items():
        total = format_total(share, first.amounts[purpose].label.money)
        what = "Buying" if purpose == "cost" else "Making"
        yield f"{what} the nodes adds {total}, by their hours of use over their lifetime."


def _find_sci(
    entries: Sequence[CostEntry], amounts: dict[Purpose, Quantity], shares: dict[Purpose, Quantity]
) -> tuple[Quantity, str] | None:
    """Return the SCI and its unit of work, None without carbon or for several workloads."""
    done = [e.job.profile.done for e in entries]
    common = [kind for kind in done[0] if all(kind in one for one in done)]
    if "carbon" not in amounts or len({e.job.profile.workload for e in entries}) > 1 or not common:
        return None
    unit = next((kind for kind in common if kind != RUNS), common[0])
    whole = amounts["carbon"] + shares.get("carbon", Quantity(0.0))
    return whole * (1 / sum(one[unit] for one in done)), unit


def _word_sci(entries: Sequence[CostEntry], sci: tuple[Quantity, str] | None, shares: dict[Purpose, Quantity]) -> str:
    if "carbon" not in entries[0].amounts:
        return ""
    if sci is None:
        return "No software carbon intensity (SCI) is given: the runs are of several workloads."
    made = "with the making of the nodes" if "carbon" in shares else "without the making of the nodes: M is unknown"
    figure = format_per_unit(sci[0], sci[1], "g")
    return f"The software carbon intensity (SCI, ISO/IEC 21031) is {figure}, {made}."


def _list_excluded(entries: Sequence[CostEntry], side: str, shares: dict[Purpose, Quantity]) -> Iterator[str]:
    if SCOPES[side][1]:
        yield SCOPES[side][1]
    if entries[0].site.pue is None:
        yield "cooling and distribution losses of the facility (no PUE)"
    if "carbon" in shares:
        yield "hardware other than the nodes (network, storage, building), and its disposal"
    else:
        yield "making and disposal of the hardware"
    yield "moving of data, storage and network"
    yield "runs other than those named (development, failed runs, tuning)"


def _word_intervals(entries: Sequence[CostEntry], amounts: dict[Purpose, Quantity]) -> str:
    known = all(q.known for q in amounts.values()) and all(e.energy_kwh.known for e in entries)
    first = "Intervals are expanded uncertainties (k = 2)"
    if not known:
        first = "No interval is given: the accuracy of a meter is unknown"
    unsure = "carbon" in amounts and not all(e.amounts["carbon"].is_rate_known for e in entries)
    return f"{first}{'; the uncertainty of the intensity is unknown and not included' if unsure else ''}."
