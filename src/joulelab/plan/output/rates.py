"""Print prices and carbon intensities: what a rate is and holds, which ones there are, and what was fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from joulelab.plan.rates.steps import shown
from joulelab.report import format as fmt
from joulelab.report.console import STYLE, make_table, print_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from joulelab.plan.rates.annual import Row
    from joulelab.plan.rates.kept import Kept
    from joulelab.plan.rates.look import Look
    from joulelab.plan.rates.rate import Label

WIDTH = 11
MOST_GAPS = 12  # gaps that are listed; JSON has all of them
KINDS = {
    "average": "average: of all generation; what one kWh more causes may differ",
    "marginal": "marginal: what one kWh more causes; not to be added to averages",
    "price": "price",
}
ALL_WRONG = "? (nobody states it: it is in no interval)"


def print_look(console: Console, look: Look, spec: str) -> None:
    """Print everything that is said of a rate."""
    console.print()
    console.print(Text(f"{fmt.shorten_middle(look.label.name, 60)}: {look.form}, {look.label.unit}", style="bold"))
    if look.rules:
        table = make_table("rule", look.label.unit)
        table.add_column("when", header_style="bold")  # wrapped: all hours are told
        for name, price, hours in look.rules:
            table.add_row(fmt.shorten_middle(name, 20), f"{price:.6g}", hours)
        console.print()
        console.print(table)
    console.print()
    print_facts(console, [*_label_facts(look.label), *_value_facts(look)], styles=STYLE, label=WIDTH)
    print_facts(console, _warnings(look, spec), styles=STYLE, label=WIDTH)


def _label_facts(label: Label) -> Iterable[tuple[str, str]]:
    yield "kind", KINDS[label.kind]
    if label.kind != "price":
        yield "covers", {"": "? (nobody says)", "direct": "direct emissions", "lifecycle": "lifecycle"}[label.covers]
    yield from ((name, text) for name, text in (("zone", label.zone), ("source", label.source)) if text)
    if label.licence:
        yield "licence", label.licence
    if label.issued_utc_s is not None:
        yield "forecast", f"made {shown(label.issued_utc_s)}"
    if label.time_zone != "UTC":
        yield "time zone", label.time_zone
    unknown = "-" if label.kind == "price" else ALL_WRONG
    yield (
        "uncertainty",
        unknown if label.u_rel is None else f"± {fmt.format_percent(2 * label.u_rel, signed=False)} (k = 2)",
    )


def _value_facts(look: Look) -> Iterable[tuple[str, str]]:
    unit = look.label.unit
    if look.form == "constant" and look.mean is not None:
        yield "value", f"{look.mean:.6g} {unit}, at all times"
    elif look.low is not None and look.high is not None:
        mean = "" if look.mean is None else f", mean {fmt.format_number(look.mean)}"
        yield "values", f"{fmt.format_number(look.low)} to {fmt.format_number(look.high)}{mean} {unit}"
    if look.since_s is not None or look.until_s is not None:
        since = "any time" if look.since_s is None else shown(look.since_s)
        yield "known", f"{since} to {'any time' if look.until_s is None else shown(look.until_s)}"
    if look.label.resolution_s and look.count:
        yield "steps", f"{fmt.format_amount(look.count)} of {fmt.format_duration(look.label.resolution_s)}"


def _warnings(look: Look, spec: str) -> Iterable[tuple[str, str]]:
    for note in look.label.notes:
        yield "note", note
    if look.negative_s:
        yield "note", f"below 0 for {fmt.format_duration(look.negative_s)}: who uses energy then is paid for it"
    if not look.gaps:
        return
    unknown = fmt.format_duration(look.unknown_s)
    text = f"not known for {unknown} in {len(look.gaps)} gaps; a plan that needs them is refused"
    listed = [f"{shown(a)} to {shown(b)}" for a, b in look.gaps[:MOST_GAPS]]
    rest = len(look.gaps) - len(listed)
    more = [f"and {rest} more", f"-> joulelab plan rates check {spec} --json"] if rest else []
    yield "warning", "\n".join([text, *listed, *more])


def print_annual(console: Console, rows: Sequence[Row]) -> None:
    """Print the zones of an annual table."""
    table = make_table("table:ZONE", "year", "g/kWh", "covers", "source", left=(0, 3, 4))
    for row in sorted(rows, key=lambda r: (r.zone, r.year, r.covers)):
        source = fmt.shorten_end(row.source, 40)
        table.add_row(row.zone, str(row.year), f"{row.g_per_kwh:.6g}", row.covers, source)
    console.print(table)


def print_kept(console: Console, kept: Sequence[Kept]) -> None:
    """Print what was fetched and kept."""
    table = make_table("kept:NAME", "kind", "from", "length", "gaps", left=(0, 1, 2))
    for one in kept:
        if one.problem or one.label is None:
            table.add_row(one.name, "-", fmt.shorten_end(one.problem, 24), "-", "-")
            continue
        length = fmt.format_duration(one.until_s - one.since_s)
        gaps = fmt.format_duration(one.unknown_s) if one.unknown_s else "-"
        table.add_row(one.name, one.label.kind, shown(one.since_s)[:16], length, gaps)
    console.print(table)


def print_services(console: Console, services: Sequence[Mapping[str, Any]]) -> None:
    """Print the services, and whether they can be asked from here."""
    table = make_table("service", "what", "kind", "key", left=(0, 1, 2, 3))
    for one in services:
        key = "missing" if one["problem"] else "there"
        table.add_row(f"{one['service']}:ZONE", fmt.shorten_end(one["title"], 30), one["kind"], key)
    console.print(table)


def print_list(
    console: Console, rows: Sequence[Row], services: Sequence[Mapping[str, Any]], kept: Sequence[Kept]
) -> None:
    """Print all rates that have names."""
    console.print()
    print_annual(console, rows)
    console.print()
    print_services(console, services)
    console.print()
    if kept:
        print_kept(console, kept)
    else:
        print_facts(console, [("kept", "nothing yet\n-> joulelab plan rates fetch em:DE --forecast")], label=WIDTH)
    more = "figures (380, 0.32EUR), files (prices.csv) and tariffs (tariff.toml) are rates too"
    print_facts(console, [("note", more)], styles=STYLE, label=WIDTH)
