"""Print what jobs cost or emit: a row for each at each site, with what rated power x time says beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.plan.cost.scaling import GPU_HOURS, NODE_HOURS
from joulelab.plan.cost.work import Planned
from joulelab.plan.rates.steps import shown as time_shown
from joulelab.report import format as fmt
from joulelab.report.tables import Column, FilledColumn, Table, TableRow, make_table
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulelab.core.quantity import Quantity
    from joulelab.plan.cost.entries import Books, Entry
    from joulelab.plan.cost.purchase import BreakEven
    from joulelab.plan.cost.scaling import Step
    from joulelab.plan.rates.rate import Label

COVERAGE = "intervals are expanded uncertainties (k = 2)"
NAME_WIDTH, SITE_WIDTH = 20, 12
MOST_PER = 4  # entries whose figures per unit of work are told; JSON has all
TOLD = 1e-5  # share of a time below which nothing is told of it
LEAST = 0.01  # figures per unit below this are told per thousand or million units
ENERGIES = ((1e6, "GWh"), (1e4, "MWh"), (0.1, "kWh"), (1e-3, "Wh"))  # kWh from which on, and what they are in then
MASSES = ((1e6, "t"), (1e3, "kg"), (1.0, "g"))


def scale_of(values: Iterable[float], unit: str) -> tuple[float, str]:
    """Return what to divide amounts by, and the unit that says so: g, kg or t of CO2e; money, or millions of it."""
    largest = max((abs(value) for value in values), default=0.0)
    if unit != "g":
        return (1e6, f"million {unit}") if largest >= 1e6 else (1.0, unit)
    return next(((factor, name) for factor, name in MASSES if largest >= factor), MASSES[-1])


def energy_scale(kwh: Iterable[float]) -> tuple[float, str]:
    """Return what to divide energies in kWh by, and the unit that says so."""
    largest = max((abs(value) for value in kwh), default=0.0)
    unit = next((name for least, name in ENERGIES if largest >= least), ENERGIES[-1][1])
    return {"GWh": 1e6, "MWh": 1e3, "kWh": 1.0, "Wh": 1e-3}[unit], unit


def amount_text(amount: Quantity, unit: str) -> str:
    """Return an amount with its interval and unit: `1.52 ± 0.02 kg`."""
    factor, name = scale_of([amount.value], unit)
    return f"{cell(amount, factor)} {name}{' CO2e' if unit == 'g' else ''}"


def cell(q: Quantity | None, factor: float = 1.0) -> str:
    """Return a quantity with its interval, plain where it is exact, `-` where there is none."""
    if q is None:
        return fmt.NOTHING
    if q.known and not q.u:
        return fmt.format_number(q.value / factor)
    return fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor, signed=True)


def lay_out_books(books: Books, title: str = "") -> list[TextBlock]:
    """Return the whole answer, for a terminal."""
    blocks: list[TextBlock] = [TextLine(headline(books, title), "bold")]
    if books.twins:
        blocks.append(TextLine(fmt.name_twins(books.twins), "yellow"))
    return [*blocks, BLANK_LINE, _make_table(books), BLANK_LINE, list_facts(lines(books), styles=STATUS_STYLES)]


def headline(books: Books, title: str = "") -> str:
    """Return what it is, in a line."""
    label = books.entries[0].account.label
    what = "Cost of energy" if books.purpose == "cost" else f"Carbon by {label.kind} intensity"
    if any(entry.share for entry in books.entries):
        what += " and of buying nodes" if books.purpose == "cost" else " and of making nodes"
    return f"{title}: {what[0].lower()}{what[1:]}" if title else what


def _make_table(books: Books) -> Table:
    columns = [*_used(books), *_compared(books)]
    heads = ["", "site"] if len(books.sites) > 1 else [""]
    rows = []
    for k, entry in enumerate(books.entries):
        names = [fmt.shorten_middle(entry.job.name, NAME_WIDTH), fmt.shorten_end(entry.site.name, SITE_WIDTH)]
        rows.append(TableRow((*names[: len(heads)], *(cells[k] for _, cells in columns))))
    count = len(books.entries)
    for k, site in enumerate(books.total):
        names = [f"all {count // len(books.sites)}", fmt.shorten_end(site, SITE_WIDTH)]
        rows.append(TableRow((*names[: len(heads)], *(cells[count + k] for _, cells in columns)), "total"))
    table = make_table([*heads, *(column for column, _ in columns)], rows, left=range(len(heads)))
    return replace(table, label_count=len(heads))


def _used(books: Books) -> list[FilledColumn]:
    entries = books.entries
    factor, unit = scale_of([e.whole.value for e in entries], books.unit)
    blank = ("",) * len(books.total)
    plates = [e.job.profile.nameplate for e in entries]
    ratios = [None if plate is None else plate.ratio for plate in plates]
    rated = [e.account.rated_amount for e in entries]
    sums = blank if _shared(books) else tuple(cell(q, factor) for q in books.total.values())
    scale, hours = energy_scale([e.account.energy_kwh.value for e in entries])
    energies = (*(cell(e.account.energy_kwh, scale) for e in entries), *(cell(books.total_kwh, scale) for _ in blank))
    columns: list[FilledColumn] = [
        (Column("\ntime"), (*(fmt.format_duration(e.job.profile.duration_s) for e in entries), *blank)),
        (Column(f"energy,\n{hours}"), energies),
        (Column(f"{books.purpose},\n{unit}"), (*(cell(e.account.amount, factor) for e in entries), *sums)),
        (
            Column(f"rated x time,\n{unit}"),
            (*(fmt.NOTHING if r is None else fmt.format_number(r / factor, 3) for r in rated), *blank),
        ),
    ]
    if any(ratios):
        columns.append((Column("that is\ntimes"), (*(cell(r) for r in ratios), *blank)))
    return columns


def _shared(books: Books) -> bool:
    return any(entry.share for entry in books.entries)


def _compared(books: Books) -> list[FilledColumn]:
    entries = books.entries
    columns: list[FilledColumn] = []
    factor, unit = scale_of([e.whole.value for e in entries], books.unit)
    blank = ("",) * len(books.total)
    if _shared(books):
        word = "nodes" if books.purpose == "cost" else "making"
        shares = (fmt.NOTHING if e.share is None else cell(e.share.amount, factor) for e in entries)
        columns.append((Column(f"{word},\n{unit}"), (*shares, *blank)))
        sums = (cell(q, factor) for q in books.total.values())
        columns.append((Column(f"all,\n{unit}"), (*(cell(e.whole, factor) for e in entries), *sums)))
    if len(books.sites) > 1:
        against = [books.against(e) for e in entries]
        differences = (fmt.NOTHING if a is None else cell(a[0], factor) for a in against)
        first = fmt.shorten_end(books.sites[0], SITE_WIDTH)
        columns.append((Column(f"{unit} more\nthan {first}"), (*differences, *blank)))
        ratios = [None if a is None else a[1] for a in against]
        changes = (
            fmt.NOTHING if r is None else fmt.format_change(r.value - 1, r.expanded, is_forecast=True) for r in ratios
        )
        columns.append((Column(f"change from\n{first}"), (*changes, *blank)))
    return columns


def lines(books: Books) -> list[tuple[str, str]]:
    """Return what has to be said beside the table, each with its label."""
    found: list[tuple[str, str]] = []
    rates: dict[str, str] = {}
    for entry in books.entries:
        rates.setdefault(entry.site.name, rate_text(entry))
    found += [("rate", f"{site}: {text}" if len(rates) > 1 else text) for site, text in rates.items()]
    sites = {e.site.name: e.site for e in books.entries}
    pues = [f"{s.name}: {cell(s.overhead)}" if len(sites) > 1 else cell(s.overhead) for s in sites.values() if s.pue]
    found += [("PUE", ", ".join(pues))] if pues else []
    planned = {id(e.job): e for e in books.entries if isinstance(e.job.profile, Planned)}
    for entry in planned.values():
        found += _planned(entry)
    found += [("per", _per(entry, books)) for entry in books.entries[:MOST_PER]]
    found += [("equal", even_text(even, books)) for even in books.evens]
    plates = {p.of: p for e in books.entries if (p := e.job.profile.nameplate) is not None}
    for of, plate in plates.items():
        only = "" if of == "node" else f", {of} only"
        times = "; `times`: over what the same devices used" if plate.ratio is not None else ""
        found.append(("rated", f"rated power x time{only} ({plate.source}){times}"))
    found += [("note", note) for note in books.notes]
    return [*found, ("note", f"{COVERAGE}; amounts include PUE and moving data where given")]


def _planned(entry: Entry) -> list[tuple[str, str]]:
    profile = entry.job.profile
    assert isinstance(profile, Planned)
    work, runs = profile.work, len(profile.runs)
    unit = {GPU_HOURS: "GPU-hours", NODE_HOURS: "node-hours"}.get(work.unit, work.unit)
    nodes = f"{profile.nodes} node{'s' if profile.nodes > 1 else ''}"
    long = f"{fmt.format_duration(profile.time.value)}{_width(profile.time)}"
    text = f"{fmt.format_amount(work.amount)} {unit} on {nodes}: {long}, from {runs} run{'s' if runs > 1 else ''}"
    steps = profile.steps or ()
    said = text + ("" if steps else ", as measured" if not profile.twins else ", as simulated")
    return [("work", f"{entry.job.name}: {said}"), *(("scaled", step_text(step)) for step in steps)]


def _width(time: Quantity) -> str:
    """Return how far a time may be off; nothing where that is below what is told of the time itself."""
    if time.expanded is None:
        return " ± ?"
    return f" ± {fmt.format_duration(time.expanded)}" if time.expanded > TOLD * time.value else ""


def step_text(step: Step) -> str:
    """Return one step of scaling: its factors, and what they are worth."""
    factors = f"time x {cell(step.time)}, energy x {cell(step.energy)}"
    return f"{step.axis} {step.since} to {step.until}: {factors}; {step.how}{': ' if step.said else ''}{step.said}"


def rate_text(entry: Entry) -> str:
    """Return what a rate is, and its mean over a job where it changes."""
    account = entry.account
    text = label_text(account.label)
    if len(account.slots) > 1:
        unit = account.label.unit
        planned = isinstance(entry.job.profile, Planned)
        power = "at a flat power" if planned else "spread evenly" if entry.job.even else "by its own power"
        mean = f"{fmt.format_number(account.mean_rate)} {unit} on average over {entry.job.name}, {power}"
        return f"{text}; {mean}, {len(account.slots)} slots from {time_shown(account.start_utc_s)}"
    return (
        text
        if account.label.name.endswith(account.label.unit)
        else f"{text}; {fmt.format_number(account.mean_rate)} {account.label.unit}"
    )


def label_text(label: Label) -> str:
    """Return what a rate is: name, kind, zone, what it covers, source, and when it was forecast."""
    kind = (
        ""
        if label.kind == "price"
        else f"{label.kind}{', ' + label.covers if label.covers and label.covers not in label.name else ''}"
    )
    zone = label.zone if label.zone and label.zone not in label.name else ""
    told = ", ".join(part for part in (kind, zone, label.source) if part)
    forecast = "" if label.issued_utc_s is None else f"; a forecast, issued {time_shown(label.issued_utc_s)}"
    return f"{label.name}{f' ({told})' if told else ''}{forecast}"


def per_unit(q: Quantity, kind: str, unit: str) -> str:
    """Return an amount per unit of work, per thousand or million of them where it is small."""
    many, word = 1.0, ""
    for count, name in ((1.0, ""), (1e3, "1000 "), (1e6, "million ")):
        many, word = count, name
        if abs(q.value) * count >= LEAST or not q.value:
            break
    named = "GPU-hours" if kind == GPU_HOURS else kind
    return f"{amount_text(q * many, unit)} per {word}{named if word else named.removesuffix('s')}"


def _per(entry: Entry, books: Books) -> str:
    # Hours of planned work are hours as measured, not those that it takes: of nodes, only the latter are told.
    told = [per_unit(entry.per(kind), kind, books.unit) for kind in entry.job.done if kind != NODE_HOURS]
    hours = entry.job.node_hours
    if hours is not None and hours.value > 0:
        told.append(f"{amount_text(entry.whole / hours, books.unit)} per node-hour")
    name = f"{entry.job.name} at {entry.site.name}" if len(books.sites) > 1 else entry.job.name
    return f"{name}: {'; '.join(told)}"


def even_text(even: BreakEven, books: Books) -> str:
    """Return where two kinds of nodes are equal."""
    word, verb = ("price", "is cheaper") if books.purpose == "cost" else ("intensity", "emits less")
    at = f"{even.site}: " if len(books.sites) > 1 else ""
    if even.rate is None:
        other = even.b if even.ahead == even.a else even.a
        return f"{at}{even.ahead} {verb} than {other} at any {word} above 0"
    unit = books.entries[0].account.label.unit
    return f"{at}{even.a} and {even.b} are equal at {cell(even.rate)} {unit}; above it {even.saver} {verb}"
