"""Print the answer of `joulelab plan cost`: the total or the best choice first, one table, notes; and as data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.quantity import Quantity
from joulelab.core.text import name_one
from joulelab.plan.cost.job_energy import RUNS
from joulelab.plan.cost.work import GPU_HOURS, NODE_HOURS
from joulelab.plan.plan_output import describe_notes, lay_out_answer
from joulelab.plan.rates.find_rate import GIVEN
from joulelab.plan.rates.rate import format_time
from joulelab.report import format as fmt
from joulelab.report.footprint_text import name_publisher
from joulelab.report.run_tables import word_no_interval
from joulelab.report.tables import Column, TableRow, make_table
from joulelab.report.terminal import list_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.plan.cost.cost_books import CostBooks, CostEntry, CostSum
    from joulelab.plan.cost.sites import BreakEven, PlanSite, Purpose
    from joulelab.plan.cost.work import ScalingStep
    from joulelab.plan.rates.rate import Label
    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock

NAME_WIDTH, SITE_WIDTH = 24, 12
MOST_ROWS = 6  # jobs at sites in the table without --why
MOST_SENTENCES = 2  # of works for which the best kind of node is named
LEAST_PER_UNIT = 0.01  # smaller figures are per thousand or per million units
MANY_WORDS = ((1.0, ""), (1e3, "1,000 "), (1e6, "million "))
ENERGIES = ((1e6, 1e6, "GWh"), (1e4, 1e3, "MWh"), (0.1, 1.0, "kWh"), (0.0, 1e-3, "Wh"))  # from kWh, factor, unit
MASSES = ((1e6, "t"), (1e3, "kg"), (0.0, "g"))
UNIT_NAMES = {GPU_HOURS: "GPU-hours", NODE_HOURS: "node-hours"}
HEADS: dict[Purpose, str] = {"cost": "cost", "carbon": "carbon"}
PARTS: dict[Purpose, str] = {"cost": "of it\nnodes", "carbon": "of it\nmaking"}
QUIET = (
    *("cost.accuracy-unknown", "cost.average", "cost.no-nameplate", "cost.flat-power", "cost.accounted"),
    *("cost.full-use", "rates.remark"),
)
COVERAGE = "Intervals are expanded uncertainties (k = 2)."


def lay_out_books(books: CostBooks, title: str = "", *, is_explained: bool = False) -> list[TextBlock]:
    """Return the whole answer for a terminal."""
    sentences = [f"{title}: {sentence}" if title and not k else sentence for k, sentence in enumerate(_word(books))]
    if books.twins:
        sentences.append(f"These figures are simulated: {fmt.name_twins(books.twins).removeprefix('simulated: ')}.")
    reasons = [list_facts([*_list_reasons(books), ("note", COVERAGE)])]
    notes = [note for note in books.notes if is_explained or note.code not in QUIET]
    table = make_cost_table(books, None if is_explained else MOST_ROWS)
    unsure = [entry.job.profile.runs[0] for entry in books.entries if not entry.energy_kwh.known]
    table = replace(table, no_interval=word_no_interval(unsure[0]) if unsure else "")
    return lay_out_answer(sentences, [table], notes, is_explained=is_explained, reasons=reasons)


def scale_amounts(values: Iterable[float], unit: str) -> tuple[float, str]:
    """Return divisor and unit for amounts: g, kg or t of CO2e; money, or millions of it."""
    largest = max((abs(value) for value in values), default=0.0)
    if unit != "g":
        return (1e6, f"million {unit}") if largest >= 1e6 else (1.0, unit)
    return next((max(least, 1.0), name) for least, name in MASSES if largest >= least)


def scale_energies(kwh: Iterable[float]) -> tuple[float, str]:
    """Return divisor and unit for energies in kWh."""
    largest = max((abs(value) for value in kwh), default=0.0)
    return next((factor, name) for least, factor, name in ENERGIES if largest >= least)


def format_figure(q: Quantity, factor: float = 1.0) -> str:
    """Return a quantity with its interval; without one if it is exact or its accuracy is unknown (a note says so)."""
    if not q.known or not q.u:
        return fmt.format_number(q.value / factor)
    return fmt.format_scaled(q, factor, is_derived=True)


def format_energy(q: Quantity) -> str:
    """Return an energy in kWh with interval and unit: `12.4 ± 0.6 kWh`."""
    factor, unit = scale_energies([q.value])
    return fmt.mark_figure(format_figure(q, factor), unit)


def format_total(q: Quantity, unit: str) -> str:
    """Return an amount with interval and unit: `4.5 ± 0.2 kg CO2e`, `4.71 ± 0.24 EUR`."""
    factor, name = scale_amounts([q.value], unit)
    return fmt.mark_figure(format_figure(q, factor), f"{name}{' CO2e' if unit == 'g' else ''}")


def format_per_unit(q: Quantity, kind: str, unit: str) -> str:
    """Return an amount per unit of work; per thousand or million units if it is small, and always so for tokens."""
    choices = MANY_WORDS[2:] if kind == "tokens" else MANY_WORDS
    fitting = (one for one in choices if abs(q.value) * one[0] >= LEAST_PER_UNIT or not q.value)
    many, word = next(fitting, choices[-1])
    named = UNIT_NAMES.get(kind, kind)
    return f"{format_total(q * many, unit)} per {word}{named if word else name_one(named)}"


def name_label(label: Label) -> str:
    """Return the name of a rate with kind, zone, coverage, source and time of a forecast."""
    kind = "" if label.kind == "price" else " ".join(part for part in (label.kind, label.covers) if part)
    zone = label.zone if label.zone and label.zone not in label.name else ""
    source = "" if label.source in (label.name, GIVEN) else label.source
    inside = ", ".join(part for part in (kind, zone, source) if part)
    forecast = "" if label.issued_utc_s is None else f"; a forecast, issued {format_time(label.issued_utc_s)}"
    return f"{label.name}{f' ({inside})' if inside else ''}{forecast}"


def format_rate(entries: Sequence[CostEntry], purpose: Purpose) -> str:
    """Return the rate of some jobs in a few words: `0.32 EUR/kWh`, `Germany 2023, 381 g/kWh by Ember`."""
    amounts = [entry.amounts[purpose] for entry in entries]
    label = amounts[0].label
    if label.name.endswith(label.unit):
        return label.name
    whole = sum(entry.energy_kwh.value for entry in entries)
    weighted = sum(a.mean_rate * e.energy_kwh.value for a, e in zip(amounts, entries, strict=True))
    mean = weighted / whole if whole else amounts[0].mean_rate
    is_mean = any(len(a.slots) > 1 or not math.isclose(a.mean_rate, mean, rel_tol=1e-9) for a in amounts)
    figure = (
        f"{fmt.format_number(mean)} {label.unit} on average" if is_mean else f"{fmt.format_plain(mean, 5)} {label.unit}"
    )
    kind = "marginal, " if label.kind == "marginal" else ""
    has_source = label.kind != "price" and label.source not in ("", label.name, GIVEN)
    source = f" by {name_publisher(label.source)}" if has_source else ""
    return f"{fmt.shorten_middle(label.name, 30)}, {kind}{figure}{source}"


def format_pue(site: PlanSite) -> str:
    """Return the PUE of a site, with its interval if it has one."""
    return f"{site.pue:g}" if site.pue is not None and not site.pue_u else format_figure(site.overhead)


# ---- sentences


def _word(books: CostBooks) -> list[str]:
    """Return the first sentences: the total, or the best site or kind of node."""
    if len(books.sites) == 1 and books.sums:
        return [_word_total(books, books.sums[0]), *_word_per_unit(books)]
    if books.sums:
        best = _word_best(books, "", [(one.site, one.totals) for one in books.sums])
        return [best, *_word_intensities(books)]
    sentences = []
    works = list(dict.fromkeys(work.name for work in books.planned))
    for name in works[:MOST_SENTENCES]:
        same = [e for e in books.entries if e.job.planned and e.job.planned.name == name]
        several = len(books.sites) > 1
        names = [(e.name if several else e.job.name).removeprefix(f"{name} on ") for e in same]
        totals = [{p: e.get_total(p) for p in books.purposes} for e in same]
        if len(same) > 1:
            sentences.append(_word_best(books, name, list(zip(names, totals, strict=True))))
        else:
            figures = " and ".join(format_total(q, books.units[p]) for p, q in totals[0].items())
            sentences.append(f"{name} would use {format_energy(same[0].energy_kwh)}{': ' if figures else ''}{figures}.")
    evens = [even for even in books.evens if even.is_resolved]
    return sentences + [_word_even(even, books) for even in evens[: MOST_SENTENCES - len(sentences) + 1]]


def _word_total(books: CostBooks, total: CostSum) -> str:
    first = books.entries[0]
    count = len(books.entries)
    verb = "would use" if books.planned else "used"
    if count > 1:
        subject = f"{count} {'planned works' if books.planned else 'runs'}"
    elif first.job.planned:
        work, nodes = first.job.planned.work, first.job.planned.nodes
        unit = UNIT_NAMES.get(work.unit, work.unit)
        subject = f"{fmt.format_amount(work.amount)} {unit} on {nodes} node{'s' if nodes > 1 else ''}"
    else:
        subject = f"The run {fmt.shorten_middle(first.job.name, NAME_WIDTH)}"
    amounts = " and ".join(format_total(q, books.units[p]) for p, q in total.totals.items())
    only = " in parts of the nodes" if first.job.profile.side == "parts" else ""
    energy = f"{format_energy(total.energy_kwh)}{only}"
    if not total.totals:
        return f"{subject} {verb} {energy}."
    return f"{subject} {verb} {energy}: {amounts} ({_word_rates(books, first)})."


def _word_intensities(books: CostBooks) -> list[str]:
    """Return the carbon intensity of each of several sites in one sentence, with its source."""
    if "carbon" not in books.purposes:
        return []
    entries = {site: [entry for entry in books.entries if entry.site.name == site] for site in books.sites}
    rates = [f"{site}: {format_rate(some, 'carbon')}" for site, some in entries.items()]
    return [f"Carbon intensities: {'; '.join(rates)}."]


def _word_rates(books: CostBooks, entry: CostEntry) -> str:
    rates = [format_rate(books.entries, purpose) for purpose in books.purposes]
    pue = [f"PUE {format_pue(entry.site)}"] if entry.site.pue is not None else []
    configured = ["set by joulelab site"] if books.is_configured else []
    shares = ["share of the nodes included"] if any(e.shares for e in books.entries) else []
    start = [f"starting {books.start}"] if books.start and books.planned else []
    return "; ".join([*rates, *pue, *configured, *shares, *start])


def _word_per_unit(books: CostBooks) -> list[str]:
    """Return one sentence about money and carbon per unit of work, if all jobs did work of one kind."""
    done = [entry.job.profile.done for entry in books.entries]
    kinds = [k for k in done[0] if k not in (RUNS, NODE_HOURS) and all(k in one for one in done)]
    if not kinds or not books.purposes:
        return []
    amount = sum(one[kinds[0]] for one in done)
    totals = books.sums[0].totals
    return [f"That is {_join_per_unit(books, totals, kinds[0], amount)}."]


def _join_per_unit(books: CostBooks, totals: Mapping[Purpose, Quantity], kind: str, amount: float) -> str:
    """Return money and carbon per unit of work: `0.35 EUR and 0.41 kg CO2e per million tokens`."""
    texts = [format_per_unit(q * (1 / amount), kind, books.units[p]).partition(" per ") for p, q in totals.items()]
    alike = len({unit for _, _, unit in texts}) == 1
    return " and ".join(
        f"{q} per {unit}" if not alike or k == len(texts) - 1 else q for k, (q, _, unit) in enumerate(texts)
    )


def _word_best(books: CostBooks, work: str, choices: Sequence[tuple[str, Mapping[Purpose, Quantity]]]) -> str:
    """Return the choice with the lowest cost and that with the least carbon, each with the next one beside it.

    Choices without a significant difference from the best are named together.
    """
    found: dict[str, list[str]] = {}
    for purpose in books.purposes:
        (best, totals), (second, others), *_ = sorted(choices, key=lambda one: one[1][purpose].value)
        word = "lowest cost" if purpose == "cost" else "least carbon"
        differences = [(name, one[purpose] - totals[purpose]) for name, one in choices]
        equal = [name for name, q in differences if name == best or q.is_positive is False]
        beside = "no significant difference"
        if len(equal) > 1:
            best = " or ".join(equal) if len(equal) < max(len(choices), 3) else "any of them"
        else:
            ratio = others[purpose].value / totals[purpose].value if totals[purpose].value > 0 else None
            more = format_total(others[purpose], books.units[purpose]) if ratio is None else ""
            beside = f"{second}: {more or f'{fmt.format_number(ratio, 3)} times as much'}"
        found.setdefault(best, []).append(f"{word} {format_total(totals[purpose], books.units[purpose])} ({beside})")
    if not found:
        return f"{work or 'The jobs'}: no price and no carbon intensity is set to compare them."
    texts = [f"hoose {best}: {' and '.join(parts)}" for best, parts in found.items()]
    return f"For {work}, c{'; c'.join(texts)}." if work else f"C{'; c'.join(texts)}."


def _word_even(even: BreakEven, books: CostBooks) -> str:
    word, verb = ("price", "costs less") if even.purpose == "cost" else ("intensity", "emits less")
    at = f"At {even.site}, " if len(books.sites) > 1 else ""
    if not even.is_resolved:
        return f"{at}{even.a} and {even.b}: the {word} at which both are equal is too uncertain to state."
    if even.rate is None:
        other = even.b if even.ahead == even.a else even.a
        return f"{at}{even.ahead} {verb} than {other} at any {word}."
    unit = books.entries[0].amounts[even.purpose].label.unit
    return f"{at}{even.a} and {even.b} are equal at {format_figure(even.rate)} {unit}; above it {even.saver} {verb}."


# ---- table and reasons


def make_cost_table(books: CostBooks, most: int | None = None) -> Table:
    """Return the table: a row for each job at each site, `most` of them if there are more, and the sum of each site."""
    has_sums = bool(books.sums) and len(books.entries) > len(books.sites)
    sums = books.sums if has_sums else ()
    rows: list[CostEntry | CostSum] = [*books.entries, *sums]
    names = [fmt.shorten_middle(e.job.name, NAME_WIDTH) for e in books.entries]
    names += [f"all {len(books.entries) // len(books.sites)}" for _ in sums]
    sites = [fmt.shorten_end(s, SITE_WIDTH) for s in (*(e.site.name for e in books.entries), *(s.site for s in sums))]
    times = [fmt.format_duration(e.job.profile.duration_s) for e in books.entries] + ["" for _ in sums]
    factor, unit = scale_energies(row.energy_kwh.value for row in rows)
    columns: list[tuple[Column, list[Any]]] = [(Column("", align="left"), names)]
    columns += [(Column("site", align="left"), sites)] if len(books.sites) > 1 else []
    columns.append((Column("time", is_optional=True), times))
    columns.append((Column("energy", unit, factor=factor, signed=True), [row.energy_kwh for row in rows]))
    parts: list[tuple[Column, list[Any]]] = []
    for purpose in books.purposes:
        totals = [e.get_total(purpose) for e in books.entries] + [s.totals[purpose] for s in sums]
        factor, unit = scale_amounts((q.value for q in totals), books.units[purpose])
        columns.append((Column(HEADS[purpose], unit, factor=factor, signed=True), [*totals]))
        if any(purpose in e.shares for e in books.entries):
            shares = [e.shares[purpose].amount if purpose in e.shares else None for e in books.entries]
            head = Column(PARTS[purpose], unit, factor=factor, signed=True, bare=True, is_optional=True)
            parts.append((head, [*shares, *("" for _ in sums)]))
    columns += parts
    heads, cells = zip(*columns, strict=True)
    styles = ["" for _ in books.entries] + ["total" for _ in sums]
    filled = [TableRow(row, styles[k]) for k, row in enumerate(zip(*cells, strict=True))]
    left = 0 if most is None else len(books.entries) - most
    if most is not None and left > 1:
        filled[most : len(books.entries)] = [TableRow((f"and {left} more", *[""] * (len(heads) - 1)), "dim")]
    table = make_table(heads, filled)
    return replace(table, label_count=2 if len(books.sites) > 1 else 1)


def _list_reasons(books: CostBooks) -> Iterator[tuple[str, str]]:
    """Yield rates, scaling steps, figures per unit of work, nameplates and break-even rates."""
    several = len(books.sites) > 1
    for entry in {e.site.name: e for e in books.entries}.values():
        at = f"{entry.site.name}: " if several else ""
        for amount in entry.amounts.values():
            slots = f"; {len(amount.slots)} slots from {format_time(entry.start_s)}" if len(amount.slots) > 1 else ""
            figure = f": {fmt.format_number(amount.mean_rate)} {amount.label.unit}"
            is_figure = amount.label.name.endswith(amount.label.unit)
            yield "rate", f"{at}{name_label(amount.label)}{'' if is_figure else figure}{slots}"
        if entry.site.pue is not None:
            exact = "" if entry.site.pue_u else ", assumed exact"
            yield "PUE", f"{at}{format_pue(entry.site)}{exact}; {format_energy(entry.site_kwh)} at the site"
    for work in books.planned:
        time = format_figure(work.time * (1 / 3600))
        nodes, runs = (
            f"{n} {noun}{'s' if n > 1 else ''}" for n, noun in ((work.nodes, "node"), (len(work.runs), "run"))
        )
        yield "work", f"{work.name}: {time} h on {nodes}, from {runs}"
        yield from (("step", format_step(step)) for step in work.steps)
    for entry in books.entries:
        name = entry.name if several else entry.job.name
        kinds = [kind for kind in entry.job.profile.done if kind != NODE_HOURS]
        totals = {p: entry.get_total(p) for p in books.purposes}
        pers = [_join_per_unit(books, totals, kind, entry.job.profile.done[kind]) for kind in kinds if totals]
        yield from [("per", f"{name}: {'; '.join(pers)}")] if pers else []
        plate = entry.job.profile.nameplate
        if plate is not None:
            only = "" if plate.of == "node" else f" of {plate.of} only"
            amounts = [f"{format_total(Quantity(a.rated), a.label.money)}" for a in entry.amounts.values() if a.rated]
            ratio = plate.ratio
            times = "" if ratio is None else f", {format_figure(ratio)} times the energy of the same devices"
            figures = " and ".join([format_energy(Quantity(plate.kwh)), *amounts])
            yield "nameplate", f"{name}: rated power x time{only} is {figures}{times} ({plate.source})"
    yield from (("equal", _word_even(even, books)) for even in books.evens)


def format_step(step: ScalingStep) -> str:
    """Return one step of scaling with its factors and its worth."""
    factors = f"time x {format_figure(step.time)}, energy x {format_figure(step.energy)}"
    return (
        f"{step.axis} {step.since} to {step.until}: {factors}; {step.worth}{': ' if step.reason else ''}{step.reason}"
    )


# ---- data


def describe_books(books: CostBooks) -> dict[str, Any]:
    """Return the whole answer as plain data; carbon is in g of CO2e, money in `units`."""
    return {
        "purposes": list(books.purposes),
        "units": dict(books.units),
        "simulated": bool(books.twins),
        "twins": books.twins,
        "configured_site": books.is_configured,
        "entries": [_describe_entry(entry) for entry in books.entries],
        "total": {
            one.site: {"energy_kwh": one.energy_kwh.to_json(), "site_kwh": one.site_kwh.to_json()}
            | {purpose: q.to_json() for purpose, q in one.totals.items()}
            for one in books.sums
        },
        "equal": [
            {name: getattr(even, name) for name in ("purpose", "site", "a", "b", "saver", "ahead")}
            | {"rate": None if even.rate is None else even.rate.to_json()}
            for even in books.evens
        ],
        **describe_notes(books.notes),
    }


def _describe_entry(entry: CostEntry) -> dict[str, Any]:
    job, plate = entry.job, entry.job.profile.nameplate
    return {
        "name": job.name,
        "site": entry.site.name,
        "node": None if job.kind is None else job.kind.name,
        "runs": list(job.profile.runs),
        "twins": list(job.profile.twins),
        "simulated": bool(job.profile.twins),
        "measured_at": job.profile.side,
        "scopes": list(job.profile.scopes),
        "meters": list(job.profile.meters),
        "nodes": job.profile.nodes,
        "spread_evenly": job.profile.is_total_only,
        "accounted": job.profile.covers,
        "start_utc_s": entry.start_s,
        "duration_s": job.profile.duration_s,
        "energy_kwh": entry.energy_kwh.to_json(),
        "pue": None if entry.site.pue is None else entry.site.overhead.to_json(),
        "site_kwh": entry.site_kwh.to_json(),
        "charges": dict(entry.charges),
        "rated": None
        if plate is None
        else {
            "rated_w": plate.watts,
            "of": plate.of,
            "source": plate.source,
            "energy_kwh": plate.kwh,
            "ratio": None if plate.ratio is None else plate.ratio.to_json(),
        },
        "planned": _describe_planned(entry),
        **{purpose: _describe_amount(entry, purpose) for purpose in entry.amounts},
    }


def _describe_amount(entry: CostEntry, purpose: Purpose) -> dict[str, Any]:
    amount, share, hours = entry.amounts[purpose], entry.shares.get(purpose), entry.job.node_hours
    whole = entry.get_total(purpose)
    return {
        "unit": amount.label.money,
        "amount": amount.amount.to_json(),
        "purchase": None
        if share is None
        else {
            "amount": share.amount.to_json(),
            "per_node_hour": share.per_node_hour,
            "node_hours": share.node_hours.to_json(),
        },
        "whole": whole.to_json(),
        "per": {kind: (whole * (1 / done)).to_json() for kind, done in entry.job.profile.done.items()},
        "per_node_hour": None if hours is None or hours.value <= 0 else (whole / hours).to_json(),
        "rate": amount.label.to_json(),
        "mean_rate": amount.mean_rate,
        "rate_uncertainty_included": amount.is_rate_known,
        "rated_amount": amount.rated,
        "slots": [
            {"since_utc_s": s.since_s, "until_utc_s": s.until_s, "energy_j": s.energy.value, "rate": s.rate}
            for s in amount.slots
        ],
    }


def _describe_planned(entry: CostEntry) -> dict[str, Any] | None:
    planned = entry.job.planned
    if planned is None:
        return None
    steps = [
        {"axis": s.axis, "from": s.since, "to": s.until, "time": s.time.to_json(), "energy": s.energy.to_json()}
        | {"how": s.worth, "said": s.reason}
        for s in planned.steps
    ]
    figures = {"unit": planned.work.unit, "amount": planned.work.amount, "nodes": planned.nodes}
    return figures | {
        "time_s": planned.time.to_json(),
        "highest_w": planned.highest_w,
        "steps": steps,
        "how": planned.worth,
    }
