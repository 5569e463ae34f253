"""Print when to run a job: every way side by side, what to do, what has to be said of it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from joulelab.plan.when.baselines import gain, idling, saved, shown
from joulelab.plan.when.job import GIVEN_PLATE
from joulelab.plan.when.slots import J_PER_KWH, zone_of
from joulelab.plan.when.stretches import stretches_of
from joulelab.report import format as fmt
from joulelab.report.tables import Column, FilledColumn, join_columns
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.plan.rates.rate import Label
    from joulelab.plan.when.baselines import Way
    from joulelab.plan.when.kept_plan import Plan
    from joulelab.plan.when.stretches import Stretch

AVERAGE = (
    "average intensity: who shifts by it moves its own account; that the grid emits less is not proved by it (marginal "
    "intensity may even move the other way)"
)
MARGINAL = "marginal intensity: what one kWh more causes, as its source estimates it; it cannot be measured"
COVERAGE = "Intervals are expanded uncertainties (k = 2) of energy and speed; the rate's own error is not in them"
MOST_STRETCHES = 8
IDLE_SAID = {"measured": "as measured", "given": "as given", "assumed": "assumed"}
NOTHING_TO_GAIN = 0.002  # a gain below this is none
NO_SHARE = 5e-5  # a share that is shown as 0.00 %


def lay_out_plan(plan: Plan) -> list[TextBlock]:
    """Return everything that a plan says, for a terminal."""
    blocks: list[TextBlock] = [BLANK_LINE, TextLine(headline(plan), "bold")]
    styles = ["best" if way.name == plan.chosen else "" for way in plan.ways]
    for columns in (columns_of(plan), time_columns(plan)):
        blocks += [BLANK_LINE, join_columns(columns, styles=styles)]
    return [*blocks, BLANK_LINE, list_facts(lines(plan), styles=STATUS_STYLES)]


def headline(plan: Plan) -> str:
    """Return the answer in a sentence."""
    way, share = plan.way, gain(plan.way, plan.now)
    simulated = " (simulated)" if plan.job.twin else ""
    if way.name == "now" or (share is not None and share.value < NOTHING_TO_GAIN):
        return f"Run it now{simulated}: no other way costs less by {fmt.format_percent(NOTHING_TO_GAIN, signed=False)}."
    less, title, label = _less(plan, way, share), named(way, plan), plan.slots.label
    start = "now" if way.start_s - plan.slots.start_s < 60 else f"{clock(way.start_s, label)} {label.time_zone}"
    return f"{title[:1].upper()}{title[1:]}, from {start}{simulated}: {less} than run now."


def _less(plan: Plan, way: Way, share: Quantity | None) -> str:
    if share is None:
        amount = saved(way, plan.now, plan.job)
        return f"{money(amount.value, amount.expanded, plan.unit)} less"
    if not share.is_resolved:
        return f"less {'carbon' if plan.slots.label.kind != 'price' else 'money'} (how much is {fmt.NOT_RESOLVED})"
    text = fmt.format_percent(share.value) if share.expanded is None else fmt.format_change(share.value, share.expanded)
    return f"{text.removeprefix('+')} less {'carbon' if plan.slots.label.kind != 'price' else 'money'}"


def relative(plan: Plan) -> bool:
    """Return whether ways can be told as shares of running now: where no cost is below 0, and now is above it."""
    return plan.now.cost.value > 0 and all(way.cost.value >= 0 for way in plan.ways)


def columns_of(plan: Plan) -> list[FilledColumn]:
    """Return the table of all ways: energy, cost, against now, and what nameplates would say."""
    ways, label = plan.ways, plan.slots.label
    factor, unit = scale([way.cost.value for way in ways], plan.unit)
    kwh, energy_unit = fmt.choose_scale([way.energy.value / J_PER_KWH * 1e3 for way in ways], "Wh")
    kwh *= J_PER_KWH / 1e3
    columns: list[FilledColumn] = [
        (Column("way", align="left"), tuple(named(way, plan) for way in ways)),
        (Column(f"energy, {energy_unit}"), tuple(_cell(shown(way.energy, plan.job), kwh) for way in ways)),
        (Column(head(unit, label)), tuple(_cell(shown(way.cost, plan.job), factor) for way in ways)),
        (Column("against now" if relative(plan) else f"against now,\n{unit}"), _against(plan, factor)),
    ]
    if plan.job.rated_w is not None:
        rated = tuple(fmt.format_number(None if way.rated is None else way.rated / factor) for way in ways)
        columns.append((Column(_plate_head(plan, unit)), rated))
    return columns


def time_columns(plan: Plan) -> list[FilledColumn]:
    """Return the table of when each way runs, pauses and ends."""
    ways, label = plan.ways, plan.slots.label
    return [
        (Column("way", align="left"), tuple(named(way, plan) for way in ways)),
        (Column(f"start,\n{label.time_zone}"), tuple(clock(way.start_s, label) for way in ways)),
        (Column(f"end,\n{label.time_zone}"), tuple(clock(way.end_s, label) for way in ways)),
        (Column("runs for"), tuple(fmt.format_duration(float(way.running_s.sum())) for way in ways)),
        (Column("pauses"), tuple(str(way.restarts or "") for way in ways)),
    ]


def named(way: Way, plan: Plan) -> str:
    """Return what a way is called: with its cap, and marked where what caps do is a model."""
    title = way.title if way.cap_w is None else f"{way.title} ({way.cap_w:g} W)"
    return f"{title}, model" if plan.job.caps_from == "model" and "cap" in way.name else title


def _against(plan: Plan, factor: float) -> tuple[str, ...]:
    """Return what each way costs more or less than running now: as shares, in the unit of costs where there is none."""
    found = [""]
    for way in plan.ways[1:]:
        share = gain(way, plan.now)
        if share is None or not relative(plan):
            found.append(_cell(-saved(way, plan.now, plan.job), factor))
        else:
            found.append(
                _changed(-share.value) if share.expanded == 0 else fmt.format_change(-share.value, share.expanded)
            )
    return tuple(found)


def _changed(share: float) -> str:
    """Return a share as percent with its sign, except where it is shown as nothing."""
    return fmt.format_percent(share) if abs(share) >= NO_SHARE else fmt.format_percent(0.0, signed=False)


def _cell(q: Quantity, factor: float) -> str:
    if q.known and not q.terms:
        return fmt.format_number(q.value / factor)
    return fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor, signed=True)


def head(unit: str, label: Label) -> str:
    """Return the heading of costs: `kg CO2e`, `EUR`."""
    return unit if label.kind == "price" else f"{unit} CO2e"


def scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Return one scale for costs: grams have prefixes, money has none."""
    return fmt.choose_scale(values, unit) if unit == "g" else (1.0, unit)


def money(value: float, expanded: float | None, unit: str) -> str:
    """Return a cost with its interval and unit."""
    factor, name = scale([value], unit)
    return f"{fmt.format_interval(value / factor, None if expanded is None else expanded / factor, signed=True)} {name}"


def amount(value: float, unit: str) -> str:
    """Return a cost that has no interval of its own, with three digits."""
    factor, name = scale([value], unit)
    return f"{fmt.format_number(value / factor, 3)} {name}"


def clock(time_s: float, label: Label) -> str:
    """Return a time as the rate's zone has it: `Thu 19 03:15`."""
    return dt.datetime.fromtimestamp(time_s, zone_of(label.time_zone)).strftime("%a %d %H:%M")


def lines(plan: Plan) -> list[tuple[str, str]]:
    """Return what has to be said beside the table, each with its label."""
    job, label = plan.job, plan.slots.label
    idle = f"{fmt.format_watts(job.idle.value)} in pauses ({IDLE_SAID[job.idle_from]})"
    many = f" on {job.nodes} nodes" if job.nodes > 1 else ""
    found = [
        (
            "job",
            f"{job.name}: {fmt.format_duration(job.work_s)} at {fmt.format_watts(job.full.power.value)}{many}, {idle}",
        ),
        ("rate", rate_text(label)),
        ("times", f"in {label.time_zone}, until {clock(plan.slots.deadline_s, label)}, {len(plan.slots.values)} slots"),
        ("plan", stretches_text(plan)),
        ("pauses", pauses_text(plan)),
        ("plate", plate_text(plan)),
        ("forecast", scatter_text(plan)),
    ]
    if job.twin:
        found.append(("note", fmt.name_twins([job.twin])))
    notes = [*job.notes, _lowest(plan), _waits(plan), _pue(plan), _kind(label), COVERAGE]
    return [(name, text) for name, text in [*found, *(("note", note) for note in notes)] if text]


def rate_text(label: Label) -> str:
    """Return what a rate is: name, kind, zone, source, and whether it is a forecast."""
    kind = "price" if label.kind == "price" else f"{label.kind} carbon intensity"
    parts = [label.name, kind, label.covers, label.zone, f"by {label.source}" if label.source else ""]
    if label.issued_utc_s is not None:
        parts.append(f"forecast of {clock(label.issued_utc_s, label)}")
    return ", ".join(part for part in parts if part)


def stretches_text(plan: Plan) -> str:
    """Return what to do and when, the first of it where it is much."""
    found = stretches_of(plan.way, plan.job, plan.slots)
    told = [_stretch(one, plan.slots.label) for one in found[:MOST_STRETCHES]]
    more = len(found) - len(told)
    return "; ".join(told) + (f"; and {more} more (--json has all)" if more else "")


def _stretch(one: Stretch, label: Label) -> str:
    what = "pause" if one.does == "pause" else "run" if one.cap_w is None else f"{one.cap_w:.4g} W"
    return f"{what} {clock(one.since_s, label)} to {clock(one.until_s, label)}".replace(" ", "\N{NO-BREAK SPACE}")


def pauses_text(plan: Plan) -> str:
    """Return what an idle node costs in the pauses that would pay if it were off."""
    off = next((way for way in plan.ways if way.name == "pauses-off"), None)
    if off is None or not off.restarts or plan.now.cost.value <= 0:
        return ""
    idle = idling(off, plan.job, plan.slots, plan.terms)
    share = plan.job.idle.value / plan.job.full.power.value
    costs = f"cost {amount(abs(idle), plan.unit)} {'more' if idle >= 0 else 'less (the price is below 0)'}"
    told = (
        f"a node that idles draws {fmt.format_percent(share, signed=False)} of what it does at work: the pauses of "
        f"`{off.title}` would then {costs}"
    )
    if not relative(plan) or off.cost.value + idle < 0:
        return told
    with_idle, without = (cost / plan.now.cost.value - 1 for cost in (off.cost.value + idle, off.cost.value))
    return f"{told}, {_changed(with_idle)} against now instead of {_changed(without)}"


def plate_text(plan: Plan) -> str:
    """Return what nameplate x time would say of running now."""
    rated, job = plan.now.rated, plan.job
    if rated is None or job.rated_w is None:
        return "the nameplate is not known: give --rated, and what it would say stands beside"
    factor, unit = scale([rated], plan.unit)
    power, amount = fmt.format_watts(job.rated_w), fmt.format_number(rated / factor)
    said = f"{job.rated_by}: {power} x time says {amount} {unit} of running now"
    measured = plan.now.cost.value
    if job.rated_alike:
        return said + (f", {_changed(rated / measured - 1)}" if measured > 0 else "")
    if job.rated_by == GIVEN_PLATE:
        return f"{said}; the job is of parts of the nodes only, and no share is told"
    times = f", {_changed(job.rated_times - 1)} against what these used" if job.rated_times else ""
    return f"{said}{times}; the job is of more than these"


def _plate_head(plan: Plan, unit: str) -> str:
    """Return the heading of what rated powers say: of whole nodes or all that was measured, or of some parts."""
    whole = plan.job.rated_alike or plan.job.rated_by == GIVEN_PLATE
    return f"{'nameplate' if whole else 'rated parts'},\n{unit}"


def scatter_text(plan: Plan) -> str:
    """Return how the gain would have come out under the errors of earlier forecasts."""
    if plan.scatter is None:
        forecast = plan.slots.label.issued_utc_s is not None
        return "how far it may be off is not known: no earlier forecast is kept with what came" if forecast else ""
    gains = plan.scatter.gains
    told = (
        "if it is off as an earlier one was" if len(gains) == 1 else f"if it is off as {len(gains)} earlier ones were"
    )
    low, high = fmt.format_percent(min(gains), signed=False), fmt.format_percent(max(gains), signed=False)
    return f"{told}, the plan saves {low}" + ("" if len(gains) == 1 else f" to {high}")


def _lowest(plan: Plan) -> str:
    way = next((way for way in plan.ways if way.name == "now-cap"), None)
    lowest = min((mode.cap_w for mode in plan.job.modes if mode.cap_w is not None), default=None)
    if way is None or way.cap_w is None or way.cap_w != lowest:
        return ""
    return f"the best cap is the lowest that is known, {way.cap_w:g} W: a lower one may cost less"


def _waits(plan: Plan) -> str:
    if plan.terms.waits:
        return "the node idles from now until the job starts: that is counted, except where it is off in pauses"
    return "until the job starts its node is somebody else's or off: that is not counted (--waits counts it as idle)"


def _pue(plan: Plan) -> str:
    if plan.terms.pue == 1 and not plan.terms.pue_u:
        return ""
    off = f" ± {2 * plan.terms.pue_u:.2g}" if plan.terms.pue_u else ""
    return f"PUE of {plan.terms.pue:g}{off} is in the cost, not in the energy"


def _kind(label: Label) -> str:
    return {"average": AVERAGE, "marginal": MARGINAL}.get(label.kind, "")


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data, with what to do and what has to be said."""
    return {
        **plan.to_json(),
        "stretches": [one.to_json() for one in stretches_of(plan.way, plan.job, plan.slots)],
        "said": [f"{name}: {text}" for name, text in lines(plan)],
        "headline": headline(plan),
    }
