"""Print prices and carbon intensities: what a rate is and holds, which ones there are, and what was fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.plan.rates.steps import shown
from joulelab.report import format as fmt
from joulelab.report.tables import Table, make_table
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def lay_out_look(look: Look, spec: str) -> list[TextBlock]:
    """Return everything that is said of a rate, for a terminal."""
    title = f"{fmt.shorten_middle(look.label.name, 60)}: {look.form}, {look.label.unit}"
    blocks: list[TextBlock] = [BLANK_LINE, TextLine(title, "bold")]
    if look.rules:
        rows = [(fmt.shorten_middle(name, 20), f"{price:.6g}", hours) for name, price, hours in look.rules]
        blocks += [BLANK_LINE, make_table(("rule", look.label.unit, "when"), rows, left=(0, 2))]
    facts = [*_label_facts(look.label), *_value_facts(look), *_warnings(look, spec)]
    return [*blocks, BLANK_LINE, list_facts(facts, styles=STATUS_STYLES, label_width=WIDTH)]


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


def make_annual_table(rows: Sequence[Row]) -> Table:
    """Return the zones of an annual table."""
    ordered = sorted(rows, key=lambda r: (r.zone, r.year, r.covers))
    cells = [(r.zone, str(r.year), f"{r.g_per_kwh:.6g}", r.covers, fmt.shorten_end(r.source, 40)) for r in ordered]
    return make_table(("table:ZONE", "year", "g/kWh", "covers", "source"), cells, left=(0, 3, 4))


def _make_kept_table(kept: Sequence[Kept]) -> Table:
    rows = []
    for one in kept:
        if one.problem or one.label is None:
            rows.append((one.name, "-", fmt.shorten_end(one.problem, 24), "-", "-"))
            continue
        length = fmt.format_duration(one.until_s - one.since_s)
        gaps = fmt.format_duration(one.unknown_s) if one.unknown_s else "-"
        rows.append((one.name, one.label.kind, shown(one.since_s)[:16], length, gaps))
    return make_table(("kept:NAME", "kind", "from", "length", "gaps"), rows, left=(0, 1, 2))


def _make_service_table(services: Sequence[Mapping[str, Any]]) -> Table:
    """Return the services, and whether their keys are there."""
    rows = []
    for one in services:
        key = "missing" if one["problem"] else "there"
        rows.append((f"{one['service']}:ZONE", fmt.shorten_end(one["title"], 30), one["kind"], key))
    return make_table(("service", "what", "kind", "key"), rows, left=(0, 1, 2, 3))


def lay_out_rates(rows: Sequence[Row], services: Sequence[Mapping[str, Any]], kept: Sequence[Kept]) -> list[TextBlock]:
    """Return all rates that have names, for a terminal."""
    nothing = [("kept", "nothing yet\n-> joulelab plan rates fetch em:DE --forecast")]
    more = "figures (380, 0.32EUR), files (prices.csv) and tariffs (tariff.toml) are rates too"
    return [
        BLANK_LINE,
        make_annual_table(rows),
        BLANK_LINE,
        _make_service_table(services),
        BLANK_LINE,
        _make_kept_table(kept) if kept else list_facts(nothing, label_width=WIDTH),
        list_facts([("note", more)], styles=STATUS_STYLES, label_width=WIDTH),
    ]
