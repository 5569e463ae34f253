"""Print when to run a job: the recommendation, every way side by side, and the reasons."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.study_cells import Note
from joulelab.core.quantity import J_PER_KWH
from joulelab.plan.plan_output import SUBJECT, describe_notes, lay_out_answer
from joulelab.plan.rates.time_zones import find_time_zone
from joulelab.plan.when.when_program import GAP
from joulelab.plan.when.when_ways import SAME, choose_way, compute_saving, make_plan
from joulelab.report import format as fmt
from joulelab.report.messages import word_notes
from joulelab.report.tables import Column, Table, TableRow, make_table
from joulelab.report.terminal import BLANK_LINE, list_facts

if TYPE_CHECKING:
    from joulelab.core.quantity import Quantity
    from joulelab.plan.when.when_job import ShiftableJob
    from joulelab.plan.when.when_plan import PlanStretch
    from joulelab.plan.when.when_slots import Slots
    from joulelab.plan.when.when_ways import PlanTerms, Way
    from joulelab.report.terminal import TextBlock

TITLES = {
    "now": "now",
    "now-cap": "now, best cap",
    "start": "best start",
    "pauses": "pauses, node idles",
    "pauses-off": "pauses, node off",
    "caps": "caps by the slot",
}
MOST_PAUSES = 2  # that the first sentence lists
HOUR_S = 3_600.0  # within it seconds count
WEEK_S = 6 * 86_400.0  # within it a weekday is enough
RUN_NEXT = "the same command with --run -- COMMAND starts, pauses and caps the job"


@dataclass(frozen=True, slots=True)
class WhenAnswer:
    """Hold everything that was computed: the job, the slots, every way, and the chosen one."""

    job: ShiftableJob
    slots: Slots
    terms: PlanTerms
    ways: tuple[Way, ...]
    chosen: Way

    @property
    def now(self) -> Way:
        """Return the way that the others are compared with."""
        return self.ways[0]

    @property
    def unit(self) -> str:
        """Return the unit of costs: g, or a currency."""
        return self.slots.label.unit.partition("/")[0]

    def find_way(self, name: str) -> Way | None:
        """Return the way of a name, None if there is none."""
        return next((way for way in self.ways if way.name == name), None)


def lay_out_plan(answer: WhenAnswer, *, is_explained: bool, is_started: bool = False) -> list[TextBlock]:
    """Return the answer for a terminal; with `is_explained` all notes, the stretches and how it was computed.

    The command that runs the plan is left out if it `is_started`.
    """
    reasons: list[TextBlock] = [list_facts([("why", text) for text in word_notes(list_reasons(answer), SUBJECT)])]
    if is_explained:
        reasons = [make_stretch_table(answer), BLANK_LINE, *reasons]
    return lay_out_answer(
        [write_recommendation(answer)], [make_way_table(answer)], list_notes(answer), is_explained=is_explained,
        reasons=reasons, next_commands=[] if is_started else [RUN_NEXT],
    )  # fmt: skip


def describe_plan(answer: WhenAnswer) -> dict[str, Any]:
    """Return the answer for `--json`: the plan that `--run` follows, every way, and the notes."""
    plan = make_plan(answer.chosen, answer.now, answer.job, answer.slots, answer.terms)
    terms = answer.terms
    return {
        **plan.to_json(), "chosen": answer.chosen.name, "job_details": answer.job.to_json(),
        "ways": [way.to_json(answer.now) for way in answer.ways], "time_zone": answer.slots.label.time_zone,
        "simulated": bool(answer.job.twin), "pue_expanded": terms.pue.expanded, "node_waits": terms.node_waits,
        "restart": {"time_s": terms.restart.time_s, "energy_j": terms.restart.energy_j},
        "recommendation": write_recommendation(answer), **describe_notes([*list_notes(answer), *list_reasons(answer)]),
    }  # fmt: skip


def write_recommendation(answer: WhenAnswer) -> str:
    """Return the recommendation as one sentence: what to do, its cost beside running now, end and deadline."""
    way, now, job = answer.chosen, answer.now, answer.job
    simulated = " (simulated)" if job.twin else ""
    saving = compute_saving(way, now)
    times = f"finished {format_clock(way.end_s, answer)}, deadline {format_clock(answer.slots.deadline_s, answer)}"
    terms = f", rates of {answer.slots.label.name}"
    terms += f", PUE {_format_pue(answer)}" if answer.terms.pue.value != 1 else ""
    if way.name == "now":
        return f"Start now{simulated}: {format_cost(now.cost, answer)}{terms}, {times}. {_state_rule(answer)}"
    is_now = way.start_s - answer.slots.start_s < (1 if _is_brief(answer.slots) else 60)
    start = "now" if is_now else f"at {format_clock(way.start_s, answer)}"
    cost = f"{format_cost(way.cost, answer)} instead of {format_cost(now.cost, answer, is_bare=True)} now"
    word = "more" if saving is not None and saving.value < 0 else "less"
    share = "" if saving is None else f" ({fmt.format_percent(abs(saving.value), signed=False)} {word})"
    if saving is not None and not saving.is_resolved:
        share = " (the difference is within its uncertainty)"
    model = ", by a model of caps" if job.caps_source == "model" and "cap" in way.name else ""
    what = f"Start {start}{_describe_actions(way, answer)}{simulated}"
    return f"{what}: {cost}{share}{model}{terms}, {times}. {_state_rule(answer)}"


def _state_rule(answer: WhenAnswer) -> str:
    """Return why this way is the plan, and what would change it."""
    default = choose_way(answer.ways, answer.job)
    if answer.chosen.name != default.name:
        return f"You chose this way; by default: {name_way(default, answer)}, {format_cost(default.cost, answer)}."
    least = min(answer.ways, key=lambda way: way.cost.value)
    if default.cost.value <= least.cost.value + SAME * abs(least.cost.value):
        return f"No other way saves {100 * SAME:g} %."
    other = "a node that is off in pauses" if least.name == "pauses-off" else "measured caps"
    return f"It costs least with a node that stays with the job; {other} would change it."


def _describe_actions(way: Way, answer: WhenAnswer) -> str:
    """Return caps and pauses in words; --why lists them if they are many."""
    parts = []
    caps = sorted({one.cap_w for one in way.stretches if one.action == "run" and one.cap_w is not None})
    uncapped = any(one.cap_w is None for one in way.stretches if one.action == "run")
    if caps:
        values = f"{caps[0]:g} W" if len(caps) == 1 else f"{caps[0]:g} to {caps[-1]:g} W"
        several = len(caps) > 1 or uncapped
        parts.append(f"with caps of {values} by the slot (--why lists them)" if several else f"with a cap of {values}")
    if len(way.pauses) > MOST_PAUSES:
        total_s = sum(one.end_s - one.start_s for one in way.pauses)
        parts.append(f"with {len(way.pauses)} pauses of {fmt.format_duration(total_s)} together (--why lists them)")
    elif way.pauses:
        spans = [f"from {format_clock(p.start_s, answer)} to {format_clock(p.end_s, answer)}" for p in way.pauses]
        parts.append(f"pause {' and '.join(spans)}")
    return f" {' and '.join(parts)}" if parts and parts[0].startswith("with") else "".join(f" and {p}" for p in parts)


def make_way_table(answer: WhenAnswer) -> Table:
    """Return the table of all ways: start, end, pauses, cost, against running now, energy."""
    factor, unit = _choose_scale([way.cost.value for way in answer.ways], answer)
    kwh, energy_unit = fmt.choose_scale([way.energy.value / J_PER_KWH * 1e3 for way in answer.ways], "Wh")
    has_shares = all(compute_saving(way, answer.now) is not None for way in answer.ways)
    is_bare = not answer.job.is_accuracy_known
    rows = []
    for way in answer.ways:
        cells = (
            name_way(way, answer), format_clock(way.start_s, answer), format_clock(way.end_s, answer),
            str(len(way.pauses) or ""), way.cost, _format_difference(way, answer, factor, has_shares=has_shares),
            way.energy,
        )  # fmt: skip
        rows.append(TableRow(cells, "best" if way is answer.chosen else ""))
    columns = (
        Column("way", align="left"), Column("start"), Column("end"), Column("pauses"),
        Column("", unit, factor=factor, signed=True, bare=is_bare),
        Column("against now", "" if has_shares else unit),
        Column("energy", energy_unit, factor=kwh * J_PER_KWH / 1e3, bare=is_bare, is_optional=True),
    )  # fmt: skip
    return make_table(columns, rows)


def _format_difference(way: Way, answer: WhenAnswer, factor: float, *, has_shares: bool) -> str:
    """Return the cost against running now: as a share, as an amount if a cost is not above 0."""
    if way is answer.now:
        return ""
    if not has_shares:
        return fmt.format_number((way.cost.value - answer.now.cost.value) / factor, 3)
    saving = compute_saving(way, answer.now)
    assert saving is not None
    return fmt.format_percent(0.0) if abs(saving.value) < 5e-5 else fmt.format_change(-saving.value, saving.expanded)


def make_stretch_table(answer: WhenAnswer) -> Table:
    """Return the table of what to do when."""

    def name_action(one: PlanStretch) -> str:
        return f"{one.action}, cap {one.cap_w:g} W" if one.cap_w is not None else one.action

    factor, unit = _choose_scale([one.cost for one in answer.chosen.stretches], answer)
    rows = [
        (
            name_action(one), format_clock(one.start_s, answer), format_clock(one.end_s, answer),
            fmt.format_watts(one.power_w) if one.power_w else "", fmt.format_number(one.cost / factor, 3),
        )
        for one in answer.chosen.stretches
    ]  # fmt: skip
    return make_table(("action", "start", "end", "power", unit), rows)


def list_notes(answer: WhenAnswer) -> list[Note]:
    """Return what a reader has to know beside the table, the most important first."""
    job, label, terms = answer.job, answer.slots.label, answer.terms
    notes = [Note("when.simulated", texts={"twin": job.twin})] if job.twin else []
    gap = max(way.gap for way in answer.ways)
    if gap > 2 * GAP:
        notes.append(Note("when.gap", {"share": gap}))
    warnings = ("when.idle-above-work", "runs.idle-drifted", "when.idle-assumed")
    notes += [note for note in job.notes if note.code in warnings]
    off, caps, best_cap = (answer.find_way(name) for name in ("pauses-off", "caps", "now-cap"))
    if off is not None and answer.chosen is not off and job.full.power.value:
        cost = {"cost": format_cost(off.cost, answer)}
        notes.append(Note("when.off-pays", {"share": job.idle.value / job.full.power.value}, cost))
    if caps is not None and job.caps_source == "model" and caps.cost < 0.99 * answer.chosen.cost.value:
        notes.append(Note("when.caps-left-out", texts={"cost": format_cost(caps.cost, answer)}))
    lowest = min((mode.cap_w for mode in job.modes if mode.cap_w is not None), default=None)
    if best_cap is not None and best_cap.cap_w is not None and best_cap.cap_w == lowest:
        notes.append(Note("when.lowest-cap", {"cap_w": lowest}))
    notes.append(Note("when.node-waits" if terms.node_waits else "when.node-free"))
    notes += [Note(f"when.{label.kind}")] if label.kind != "price" else []
    notes += [Note("when.forecast")] if label.issued_utc_s is not None else []
    return [*notes, *(note for note in job.notes if note.code not in warnings)]


def list_reasons(answer: WhenAnswer) -> list[Note]:
    """Return how it was computed."""
    job, slots, pue = answer.job, answer.slots, answer.terms.pue
    figures = {
        "work_s": job.work_s, "power_w": job.full.power.value, "idle_w": job.idle.value, "nodes": job.nodes
    }  # fmt: skip
    label = slots.label
    texts = {"name": label.name, "deadline": format_clock(slots.deadline_s, answer), "zone": label.time_zone}
    notes = [
        Note("when.why-rule"), Note("when.why-job", figures, {"name": job.name, "source": job.idle_source}),
        Note("when.why-rate", {"slots": len(slots.values)}, texts),
        Note("when.why-solver", {"gap": max(way.gap for way in answer.ways)}), Note("when.intervals"),
    ]  # fmt: skip
    return notes if pue.value == 1 else [*notes, Note("when.pue", texts={"pue": _format_pue(answer)})]


def _format_pue(answer: WhenAnswer) -> str:
    pue = answer.terms.pue
    return fmt.format_interval(pue.value, pue.expanded) if pue.expanded else fmt.format_plain(pue.value)


def name_way(way: Way, answer: WhenAnswer) -> str:
    """Return the name of a way in tables, with its cap, and marked if the effect of caps is a model."""
    title = f"now, cap {way.cap_w:g} W" if way.cap_w is not None else TITLES[way.name]
    return f"{title} (model)" if answer.job.caps_source == "model" and "cap" in way.name else title


def format_clock(time_s: float, answer: WhenAnswer) -> str:
    """Return a time in the zone of the rate: `Thu 03:15`, with the date if the plan is longer than six days."""
    slots = answer.slots
    shown_s = time_s if _is_brief(slots) else round(time_s / 60) * 60
    local = dt.datetime.fromtimestamp(shown_s, find_time_zone(slots.label.time_zone))
    is_short = slots.deadline_s - slots.start_s <= WEEK_S
    clock = "%H:%M:%S" if _is_brief(slots) else "%H:%M"
    return local.strftime(f"%a {clock}" if is_short else f"%m-%d {clock}")


def _is_brief(slots: Slots) -> bool:
    return slots.deadline_s - slots.start_s <= HOUR_S


def format_cost(cost: Quantity, answer: WhenAnswer, *, is_bare: bool = False) -> str:
    """Return a cost with its unit, and its interval if it is known."""
    factor, unit = _choose_scale([cost.value], answer)
    if is_bare or not cost.expanded:
        return f"{fmt.format_number(cost.value / factor, 3)} {unit}"
    return fmt.format_scaled(cost, factor, unit, is_derived=True)


def _choose_scale(values: list[float], answer: WhenAnswer) -> tuple[float, str]:
    """Return factor and unit of costs: grams have prefixes, money has none."""
    if answer.unit != "g":
        return 1.0, answer.unit
    factor, unit = fmt.choose_scale(values, "g")
    return factor, f"{unit} CO2e"
