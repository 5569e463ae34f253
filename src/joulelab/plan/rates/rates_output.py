"""Describe a rate for `joulelab plan rates check`: as text, and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.study_cells import Note
from joulelab.plan.plan_output import lay_out_answer
from joulelab.plan.rates.rate import Constant, Steps, format_span, format_time
from joulelab.plan.rates.tariff import Tariff
from joulelab.report import format as fmt
from joulelab.report.tables import make_table

if TYPE_CHECKING:
    from joulelab.plan.rates.rate import Label, Rate
    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock

MOST_GAPS = 8  # in the table; JSON has all
NOUNS = {
    "average": "an average carbon intensity (of all generation)",
    "marginal": "a marginal carbon intensity (of one kWh more)",
    "price": "a price",
}


def describe_rate(rate: Rate) -> dict[str, Any]:
    """Return a rate as plain data: form, label, lowest, mean and highest value, span (s since 1970), gaps, rules."""
    data: dict[str, Any] = {"form": "service", "unit": rate.label.unit, "label": rate.label.to_json()}
    data |= dict.fromkeys(("low", "mean", "high", "since_utc_s", "until_utc_s", "demand", "fee"))
    data |= {"count": 0, "negative_s": 0.0, "gaps": [], "rules": []}
    if isinstance(rate, Constant):
        return data | {"form": "constant", "low": rate.value, "mean": rate.value, "high": rate.value}
    if isinstance(rate, Tariff):
        rules: list[dict[str, Any]] = [
            {"name": r.name, "price": r.price, "hours": r.format_hours()} for r in rate.rules
        ]
        if rate.base is not None:
            name, hours = ("otherwise", "all other hours") if rules else ("flat", "at all times")
            rules.append({"name": name, "price": rate.base, "hours": hours})
        prices = [rule["price"] for rule in rules]
        limits = {"since_utc_s": rate.since_s, "until_utc_s": rate.until_s}
        data |= {key: value for key, value in limits.items() if np.isfinite(value)}
        data |= {} if rate.demand is None else {"demand": {"amount": rate.demand.price_per_kw, "per": rate.demand.per}}
        data |= {} if rate.fee is None else {"fee": {"amount": rate.fee.price, "per": rate.fee.per}}
        return data | {"form": "tariff", "low": min(prices), "high": max(prices), "rules": rules}
    if isinstance(rate, Steps):
        known = ~np.isnan(rate.values)
        values, lengths = rate.values[known], np.diff(np.append(rate.start_s, rate.end_s))[known]
        if values.size:
            mean = float(np.average(values, weights=lengths))
            data |= {"low": float(values.min()), "mean": mean, "high": float(values.max())}
        gaps = [{"since_utc_s": a, "until_utc_s": b} for a, b in rate.gaps()]
        data |= {"form": "series", "count": int(values.size), "negative_s": float(lengths[values < 0].sum())}
        return data | {"since_utc_s": rate.since_s, "until_utc_s": rate.end_s, "gaps": gaps}
    return data


def lay_out_rate(rate: Rate) -> list[TextBlock]:
    """Return the description of a rate for a terminal."""
    data = describe_rate(rate)
    label = rate.label
    noun = "a forecast of " if label.issued_utc_s is not None else ""
    sentence = f"{fmt.shorten_middle(label.name, 60)} is {noun}{NOUNS[label.kind]}: {_word_values(data, label)}."
    return lay_out_answer([sentence], [_make_table(data, label)], _list_notes(data, label), is_explained=True)


def _word_values(data: dict[str, Any], label: Label) -> str:
    if data["form"] == "service":
        return "called when a plan needs it"
    if data["low"] is None:
        return "without any value"
    if data["low"] == data["high"]:
        return f"{fmt.format_plain(data['low'])} {label.unit} at all times"
    mean = "" if data["mean"] is None else f", mean {fmt.format_number(data['mean'])}"
    return f"{fmt.format_number(data['low'])} to {fmt.format_number(data['high'])} {label.unit}{mean}"


def _make_table(data: dict[str, Any], label: Label) -> Table:
    if data["rules"]:
        rows = [(fmt.shorten_middle(r["name"], 20), fmt.format_plain(r["price"]), r["hours"]) for r in data["rules"]]
        return make_table(("rule", label.unit, "when"), rows, left=(0, 2))
    since, until = data["since_utc_s"], data["until_utc_s"]
    step = "" if not label.resolution_s else f", steps of {fmt.format_duration(label.resolution_s)}"
    issued = "" if label.issued_utc_s is None else format_time(label.issued_utc_s)
    u = "" if label.u_rel is None else f"± {fmt.format_percent(2 * label.u_rel, signed=False)} (k = 2)"
    facts = {
        "covers": label.covers and f"{label.covers} emissions", "zone": label.zone, "source": label.source,
        "licence": label.licence, "span": "" if since is None else f"{format_span(since, until)}{step}",
        "issued": issued, "time zone": "" if label.time_zone == "UTC" else label.time_zone, "uncertainty": u,
    }  # fmt: skip
    gaps = [("gap", format_span(gap["since_utc_s"], gap["until_utc_s"])) for gap in data["gaps"][:MOST_GAPS]]
    if len(data["gaps"]) > MOST_GAPS:
        gaps.append(("", f"and {len(data['gaps']) - MOST_GAPS} more gaps: --json lists all"))
    heads = ("rate", fmt.shorten_middle(label.name, 60))
    return make_table(heads, [*((name, text) for name, text in facts.items() if text), *gaps], left=(0, 1))


def _list_notes(data: dict[str, Any], label: Label) -> list[Note]:
    notes = []
    if data["gaps"]:
        unknown_s = sum(gap["until_utc_s"] - gap["since_utc_s"] for gap in data["gaps"])
        notes.append(Note("rates.gaps", {"gaps": len(data["gaps"]), "unknown_s": unknown_s}))
    if data["negative_s"]:
        notes.append(Note("rates.negative", {"negative_s": data["negative_s"]}))
    if data["form"] == "service":
        notes.append(Note("rates.not-asked", texts={"name": label.name}))
    if data["form"] == "constant" and label.zone:
        notes.append(Note("rates.annual"))
    if label.kind != "price" and label.u_rel is None:
        notes.append(Note("rates.no-uncertainty"))
    amounts = {key: f"{fmt.format_plain(data[key]['amount'])} {label.money}" for key in ("demand", "fee") if data[key]}
    which = {"demand": " per kW of the highest power", "fee": ""}
    charges = [f"{amount}{which[key]} per {data[key]['per']}" for key, amount in amounts.items()]
    if charges:
        notes.append(Note("rates.charges", texts={"charges": tuple(charges)}))
    return [*notes, *(Note("rates.remark", texts={"remark": note}) for note in label.notes)]
