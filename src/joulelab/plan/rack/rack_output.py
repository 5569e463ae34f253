"""Write the plan of a rack: the recommendation in one sentence, the table of rules, notes, reasons, and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.study_cells import Note
from joulelab.core.quantity import Quantity
from joulelab.plan.plan_output import SUBJECT, lay_out_answer
from joulelab.plan.rack.cap_guarantee import EFFICIENCIES, PEAKS, CapGuarantee
from joulelab.plan.rack.limits import allow_node_power, find_usable_power
from joulelab.plan.rack.peaks import HOUR_S, PercentileRefusal
from joulelab.plan.rack.rack_plan import describe_refusal
from joulelab.report import format as fmt
from joulelab.report.messages import word_note
from joulelab.report.tables import Table, make_table
from joulelab.report.terminal import list_facts, write_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.rack.cap_guarantee import CapOption, RunCap
    from joulelab.plan.rack.peaks import Exceedance
    from joulelab.plan.rack.rack_plan import RackPlan, RuleRow
    from joulelab.report.terminal import TextBlock

MOST_LINES, WIDTH = 25, 80  # of an answer without --why
# Rows of rules, rows of caps, and notes of an answer without --why: the first that fits is shown.
BUDGETS = ((7, 2, 3), (7, 2, 2), (6, 2, 2), (6, 2, 1), (5, 1, 1), (4, 0, 1))
MOST_UNCERTAIN = 0.5  # an upper end above this is no information
UNKNOWN = "?"
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
SOURCES = {"guarantee": "guarantee", "measured": "measured", "twin": "simulated", "model": "model"}
LIMITS = {
    "supply": "the supply",
    "breakers": "the breakers",
    "feed lost": "the feeds that are left when one side fails",
    "phase": "the fullest phase",
    "cooling": "the cooling",
    "height": "the height of the rack",
    "outlets": "the outlets",
}
DECIDERS = {
    "meter": "use a more accurate meter",
    "peaks": "read the meter every 2 s",
    "nodes": "measure the same work on three nodes",
}


def lay_out_rack(plan: RackPlan, *, is_explained: bool) -> list[TextBlock]:
    """Return the answer as blocks; with `is_explained` (--why) all rows, notes and reasons."""
    facts = [(label, word_note(note, SUBJECT)) for label, note in list_reasons(plan)]
    reasons = [
        list_facts(("" if k and label == facts[k - 1][0] else label, text) for k, (label, text) in enumerate(facts))
    ]
    blocks: list[TextBlock] = []
    for rules, caps, count in [(None, None, None)] if is_explained else BUDGETS:
        tables = [] if _is_empty(plan) else [make_rule_table(plan, rules)]
        tables += [table for table in (make_cap_table(plan, caps),) if table is not None and table.rows]
        notes = list_notes(plan)[:count]
        blocks = lay_out_answer(list_sentences(plan), tables, notes, is_explained=is_explained, reasons=reasons)
        if len(write_blocks(blocks, WIDTH).splitlines()) <= MOST_LINES:
            break
    return blocks


def _is_empty(plan: RackPlan) -> bool:
    return not any(row.nodes for row in plan.rows)


# Sentences


def list_sentences(plan: RackPlan) -> list[str]:
    """Return the recommendation, and the sentences about the nodes now and the mix of jobs."""
    found = [_word_recommendation(plan) if plan.recommendation.nodes else _word_no_node(plan)]
    now, nodes = plan.rack.nodes_now, plan.recommendation.nodes
    if now is not None and nodes > now:
        found.append(f"There {_word_are(now)} now: {_word_count(nodes - now)} more {_word_fit(nodes - now)}.")
    elif now is not None:
        found.append(f"There {_word_are(now)} now: {'no more fit' if nodes == now else f'{now - nodes} too many'}.")
    if plan.mix is not None:
        found.append(_word_mix(plan))
    return found


def _word_recommendation(plan: RackPlan) -> str:
    best = plan.recommendation
    row = best.row
    cap = f" under {_word_run_cap(plan.run_cap)}" if plan.run_cap is not None and row.kind != "nameplate" else ""
    if best.is_upper:
        rule = f"at the upper end of the {row.rule} ({format_power(best.node_w)}{cap})"
    else:
        rule = f"by {'' if row.kind == 'caps' else 'the '}{row.rule} of {format_power(best.node_w)}{cap}"
        if row.upper_w is not None and row.upper_w > best.node_w:
            rule += f" (and at its upper end of {format_power(row.upper_w)})"
    required = f" ({_write_percent(plan.rack.margin)} required)" if plan.rack.margin else ""
    free = f"leaving {_write_percent(best.free)} of {format_power(plan.rack.capacity_w)} free{required}"
    plate = plan.find_row("nameplate")
    by_plate = ""
    if plate is not None and plate is not row:
        same = plate.nodes == best.nodes
        by_plate = f", and {'also ' if same else ''}{_word_count(plate.nodes or 0)} by nameplate"
    count = _word_count(best.nodes)
    noun = "node" if best.nodes == 1 else "nodes"
    return (
        f"Plan for {best.nodes} {noun}: {count} {_word_fit(best.nodes)} {rule}, {free}{by_plate}; {_word_next(plan)}."
    )


def _word_next(plan: RackPlan) -> str:
    """Return what would change the recommendation."""
    best = plan.recommendation
    another = "one more"
    if best.nodes < len(ORDINALS):
        another = f"{'an' if best.nodes == 7 else 'a'} {ORDINALS[best.nodes]}"  # an eighth
    cap = _word_option(plan)
    if best.by_reading is not None:
        more = f"to plan for {_word_count(best.by_reading)}, as the reading of {format_power(best.row.node_w)} allows"
        return f"{more}, {f'set {cap}, or ' if cap else ''}{DECIDERS[best.decider]}"
    if cap:
        return f"{another} would need {cap}"
    return f"{another} would exceed {LIMITS[best.binding]}"


def _word_option(plan: RackPlan) -> str:
    option = plan.recommendation.option
    if option is None:
        return ""
    cost = ""
    if option.slowdown is not None and plan.cost.response is not None:
        change = fmt.format_change(option.slowdown.value - 1, option.slowdown.expanded or 0.0, is_forecast=True)
        about = "about " if option.slowdown.expanded is None else ""
        than = "" if plan.cost.against_w is None else f" than at {plan.cost.against_w:g} W"
        source = {"model": ", by a model", "twin": ", simulated"}.get(plan.cost.response.source, "")
        cost = f" ({about}{change.lstrip('+')} slower{than}{source})"
    return f"a cap of {option.cap_w:g} W on each GPU{cost}"


def _word_no_node(plan: RackPlan) -> str:
    best = plan.recommendation
    allowed_w = allow_node_power(plan.limits, 1)
    has = f"allows {format_power(allowed_w)}" if allowed_w else "has no room for one"
    cap = _word_option(plan)
    upper = " at its upper end" if best.is_upper else ""
    the = "the " if best.row.kind == "maximum" else ""
    draws = f"one draws {format_power(best.node_w)} by {the}{best.row.rule}{upper}"
    text = f"No node fits: {draws}, and {LIMITS[best.binding]} {has}"
    return f"{text}; one would need {cap}." if cap else f"{text}."


def _word_mix(plan: RackPlan) -> str:
    mix = plan.mix
    assert mix is not None
    highest = f"up to {format_power(mix.maximum_w)} ({format_power(mix.upper_w)} with errors)"
    power = f"{highest} of {format_power(mix.allowed_w)}"
    verdict = (
        "fits" if mix.fits else "fits by the readings, but not with errors" if mix.fits_as_read else "does not fit"
    )
    over = "" if mix.fits_as_read else f", above it in {_write_share(mix.exceed)} % of the time"
    names = fmt.shorten_end(", ".join(mix.names), 40)
    return f"The mix ({names}) {verdict}: {power}{over}."


def _word_run_cap(cap: RunCap) -> str:
    value = f"{cap.value / 1e6:g} MHz" if cap.unit == "Hz" else f"{cap.value:g} {cap.unit}"
    return f"a cap of {value} on {cap.scope}"


def _word_count(count: int) -> str:
    return COUNTS[count] if count < len(COUNTS) else str(count)


def _word_fit(count: int) -> str:
    return "fits" if count == 1 else "fit"


def _word_are(count: int) -> str:
    return f"is {count}" if count == 1 else f"are {count}"


def format_power(watts: float | None) -> str:
    """Return a power with four digits, without zeros at the end: `8.48 kW`, `645 W`."""
    if watts is None or not math.isfinite(watts):
        return fmt.NOTHING
    factor, unit = (1.0, "W") if abs(watts) < 1000 else (1000.0, "kW")
    return f"{fmt.format_plain(watts / factor, 4)} {unit}"


def _write_percent(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:g} %"


def _write_share(over: Exceedance | None) -> str:
    """Return the share of time (%) above, or the most that it may be if it was never seen."""
    if over is None:
        return fmt.NOTHING
    if not over.share and over.high > MOST_UNCERTAIN:
        return UNKNOWN
    value = fmt.format_number(100 * (over.share or over.high), 2)
    return value if over.share else f"< {value}"


# Tables


def make_rule_table(plan: RackPlan, most: int | None) -> Table:
    """Make the table of rules; rules that are refused are in one row per kind."""
    rows: list[tuple[str, ...]] = []
    refused: dict[str, list[str]] = {}
    for row in plan.rows:
        if row.nodes is None:
            refused.setdefault(row.kind, []).append(row.rule)
            continue
        rows.append(_make_row(row.rule, row.node_w, row.nodes, row.binding, row.free, row.exceed))
        if row.kind == "maximum" and row.upper_w is not None and row.sure is not None:
            free = plan.rack.compute_free_share(row.sure, row.upper_w)
            rows.append(_make_row("  its upper end", row.upper_w, row.sure, "", free, None))
    rows = rows[:most]
    if "percentile" in refused:
        rows.append((", ".join(refused["percentile"]), "-", "-", "too few data", "", ""))
    has_overload = any(row.exceed and _write_share(row.exceed) != UNKNOWN for row in plan.rows)
    if not has_overload:
        rows = [(*row[:-1], "") for row in rows]
    above = "overload, %" if has_overload else ""
    heads = ("rule", "per node, kW", "nodes", "next limit", "free, %", above)
    return make_table(heads, rows, left=(0, 3), title="" if most else plan.title)


def _make_row(
    rule: str, watts: float | None, nodes: int, binding: str, free: float | None, exceed: Exceedance | None
) -> tuple[str, ...]:
    share = fmt.NOTHING if free is None else f"{round(100 * free, 1) + 0.0:.1f}"
    kilowatts = fmt.NOTHING if watts is None else fmt.format_number(watts / 1000)
    return rule, kilowatts, str(nodes), binding, share, "" if exceed is None else _write_share(exceed)


def make_cap_table(plan: RackPlan, most: int | None) -> Table | None:
    """Make the table of caps for more nodes; None if no cap is known."""
    source = "" if plan.cost.response is None else SOURCES[plan.cost.response.source]
    rows: list[tuple[str, ...]] = []
    for target in plan.targets:
        ways = [("guarantee", target.by_guarantee), (source, target.by_response if source else None)]
        cells = (str(target.nodes), fmt.format_number(target.allowed_w / 1000))
        for name, option in ways:
            if option is not None and target.has_room and (option.cap_w is not None or most is None):
                rows.append((*cells, name, *_write_option(option)))
                cells = ("", "")
    if not any(row[3] not in ("none", "refused") for row in rows):
        return None
    heads = ("for nodes", "each, kW", "cap by", "cap per GPU, W", "time, %", "energy, %")
    return make_table(heads, rows[:most], left=(2,))


def _write_option(option: CapOption) -> tuple[str, str, str]:
    if not option.is_needed:
        return "none", "0", "0"
    cap = "refused" if option.cap_w is None else f"{option.cap_w:g}"
    ratios = (option.slowdown, option.energy)
    changes = [r and fmt.format_change(r.value - 1, r.expanded, is_forecast=True).replace(" %", "") for r in ratios]
    return cap, changes[0] or "?", changes[1] or "?"


# Notes and reasons


def list_notes(plan: RackPlan) -> list[Note]:
    """List the notes, the most important first; three of them are in the answer without --why."""
    best, row, peak = plan.recommendation, plan.recommendation.row, plan.peak
    plate = plan.find_row("nameplate")
    maxima = [r.node_w or 0.0 for r in plan.rows if r.kind == "maximum" and r.nodes is not None]
    rated_w = math.inf if plate is None else plate.node_w or 0.0
    allowed_w = allow_node_power(plan.limits, 1)
    refused = [r for r in plan.rows if r.kind == "percentile" and r.refusal is not None]
    twins = ", ".join(f"twin {twin}" for twin in plan.twins)
    is_assumed = plan.efficiency is not None and plan.kind.efficiency is None
    if not best.nodes:
        return [Note("rack.no-node", {"allowed_w": allowed_w, "node_w": best.node_w})]
    found = [
        Note("rack.simulated", texts={"what": twins}) if twins else None,
        Note("rack.above-nameplate", {"node_w": max(maxima, default=0.0), "rated_w": rated_w})
        if max(maxima, default=0.0) > rated_w
        else None,
        Note("rack.runs-capped", texts={"cap": _word_run_cap(plan.run_cap)}) if plan.run_cap else None,
        next((r.refusal for r in plan.rows if r.refusal and r.refusal.code == "rack.cap-not-taken"), None),
        Note("rack.given-maximum", texts={"power": format_power(best.node_w)})
        if row.kind == "maximum" and not row.upper_w
        else None,
        Note("rack.feeds-assumed", texts={"names": " and ".join(assumed)})
        if (assumed := _list_assumed_feeds(plan))
        else None,
        _note_unknown_errors(row.lacks) if row.lacks and row.upper_w else None,
        Note("rack.efficiency-assumed", {"efficiency": plan.efficiency or 0.0}) if is_assumed else None,
        Note("rack.percentiles-refused", refused[0].refusal.numbers, {"names": _join_rules(refused)})
        if refused and refused[0].refusal
        else None,
        None if maxima else Note("rack.nameplate-only"),
        Note("rack.height-unknown") if plan.rack.height_u and not plan.kind.height_u else None,
        Note("rack.runs-unread", texts={"names": plan.unread}) if plan.unread else None,
        Note("rack.caps-unknown", texts={"why": word_note(plan.guarantee, SUBJECT)})
        if isinstance(plan.guarantee, Note) and plan.cost.response is None
        else None,
        Note("rack.other-work", {"runs": peak.runs, "observed_s": peak.hours * HOUR_S}) if peak else None,
        Note("rack.runs-left-out", {"runs": plan.left_out}) if plan.left_out else None,
    ]
    return [note for note in found if note is not None]


def _note_unknown_errors(names: tuple[str, ...]) -> Note:
    steps = ["read it every 2 s"] if PEAKS in names else []
    steps += ["state gain and reference of the meter"] if set(names) - {PEAKS} else []
    return Note("rack.errors-unknown", texts={"names": names, "advice": ", and ".join(steps).capitalize()})


def _list_assumed_feeds(plan: RackPlan) -> list[str]:
    """List the assumptions about feeds that may allow too many nodes."""
    rack = plan.rack
    is_uneven = rack.node_phases is None and any(feed.phases == 3 for feed in rack.feeds)
    factor = ["a power factor of 1"] if rack.feeds and rack.power_factor is None else []
    return factor + (["nodes on all three phases"] if is_uneven else [])


def _join_rules(rows: Sequence[RuleRow]) -> str:
    return " and ".join(row.rule for row in rows)


def list_reasons(plan: RackPlan) -> list[tuple[str, Note]]:
    """List the reasons of --why, each with its label: rules, limits, refusals, errors, jobs, caps."""
    best, rack = plan.recommendation, plan.rack
    found = [("rule", Note("rack.why-rule"))]
    for limit in plan.limits:
        size = {"watts": limit.watts} if limit.room is None else {"room": limit.room}
        factor = {"factor": f"{rack.power_factor:g}"} if rack.power_factor and "continuous" in limit.numbers else {}
        found.append((limit.name, Note("rack.limit", {**size, **limit.numbers}, factor)))
    if rack.feeds:
        load = [] if rack.continuous else ["a continuous load of 80 %"]
        names = ", ".join([*load, *_list_assumed_feeds(plan)])
        found.append(("feeds", Note("rack.why-feeds", texts={"names": names} if names else {})))
    numbers = {"nodes": best.nodes, "most_w": best.nodes * best.node_w, "usable_w": find_usable_power(plan.limits)}
    numbers |= {} if plan.mean_w is None else {"mean_w": best.nodes * plan.mean_w}
    plate = plan.find_row("nameplate")
    if rack.nodes_now and plate is not None:
        now_free = rack.compute_free_share(rack.nodes_now, plate.node_w or 0.0)
        numbers |= {"now": rack.nodes_now, "now_free": now_free}
    found.append(("draw", Note("rack.why-draw", numbers)))
    found += [(row.rule, row.refusal or _explain_row(row)) for row in plan.rows]
    found += _explain_errors(plan)
    for joint in plan.joint_peaks:
        about = {"hosts": joint.hosts, "ratio": joint.ratio}
        found.append(("jobs", Note("rack.why-together", about, {"run": joint.run})))
    found += [("jobs", note) for note in _explain_mix(plan)] or [("jobs", Note("rack.why-one-job"))]
    return [*found, *(("caps", note) for note in _explain_caps(plan))]


def _explain_row(row: RuleRow) -> Note:
    numbers = {"node_w": row.node_w, "nodes": row.nodes}
    if row.kind in ("maximum", "percentile"):
        numbers |= {"upper_w": row.upper_w, "sure": row.sure}
    if row.percentile is not None:
        one = row.percentile
        numbers |= {name: getattr(one, name) for name in ("value_w", "low_w", "high_w", "blocks", "block_s")}
        numbers |= {} if one.is_supported else {"needed_s": one.hours_needed * HOUR_S}
    if row.exceed is not None:
        numbers |= {"allowed_w": row.allowed_w, "share": row.exceed.share, "high": row.exceed.high}
    return Note("rack.why-row", {name: value for name, value in numbers.items() if value is not None})


def _explain_errors(plan: RackPlan) -> list[tuple[str, Note]]:
    peak, hidden, spread = plan.peak, plan.hidden, plan.spread
    if peak is None or hidden is None or spread is None:
        return []
    about = {"readings": peak.readings, "observed_s": peak.hours * HOUR_S, "raw_s": peak.raw_s}
    found = [Note("rack.why-readings", about)]
    for way in hidden.ways:
        texts = {"source": way.source} | ({} if way.high is None else {"factor": f"{way.high:.3f}"})
        if way.high is None:
            texts |= {"source": "unknown", "advice": "Measure once at 12 s or faster."}
        elif not way.is_bound:
            texts |= {"advice": "Moments can miss any peak: this is no bound."}
        found += [Note("rack.why-hidden", {"from_s": way.from_s}, texts)] if way.high != 1.0 else []
    found.append(Note("rack.why-unseen", {"to_s": min(way.to_s for way in hidden.ways)}))
    texts = {"source": spread.source}
    texts |= {} if spread.source == "measured" else {"advice": "Measure the same work on three nodes."}
    return [("errors", note) for note in (*found, Note("rack.why-spread", {"value": spread.value}, texts))]


def _explain_mix(plan: RackPlan) -> list[Note]:
    mix = plan.mix
    if mix is None:
        return []
    numbers = {name: getattr(mix, name) for name in ("mean_w", "maximum_w", "upper_w", "allowed_w", "draws")}
    numbers |= {"share": mix.exceed.share, "high": mix.exceed.high}
    found = [Note("rack.why-mix", numbers, {"names": ", ".join(mix.names), "seed": str(mix.seed)})]
    for p, one in mix.percentiles.items():
        if isinstance(one, PercentileRefusal):
            found.append(describe_refusal(one))
        else:
            interval = {"value_w": one.value_w, "low_w": one.low_w, "high_w": one.high_w}
            found.append(Note("rack.why-mix-percentile", interval, {"p": f"p{p:.10g}"}))
    return found


def _explain_caps(plan: RackPlan) -> list[Note]:
    options = [option for target in plan.targets for option in (target.by_guarantee, target.by_response) if option]
    found = [option.refusal for option in options if option.refusal and plan.cost.response]
    found += [plan.cost.refusal] if plan.cost.refusal else []
    found = [note for k, note in enumerate(found) if note not in found[:k]]
    if isinstance(plan.guarantee, CapGuarantee):
        shares = (plan.kind.efficiency,) if plan.kind.efficiency else EFFICIENCIES
        efficiency = f"{' to '.join(f'{100 * share:g}' for share in shares)} %"
        texts = {"source": f"{plan.guarantee.host_w:,.0f} W ({plan.guarantee.source})", "efficiency": efficiency}
        found.append(Note("rack.why-guarantee", texts=texts))
        found += [_note_unknown_errors(plan.guarantee.lacks)] if plan.guarantee.lacks else []
    response = plan.cost.response
    if response is not None:
        texts = {"source": "modelled" if response.source == "model" else SOURCES[response.source]}
        texts |= {"advice": "Measure three caps before you trust it."} if response.source == "model" else {}
        numbers = {"lowest_w": response.caps_w[0], "highest_w": response.caps_w[-1]}
        numbers |= {} if plan.cost.against_w is None else {"against_w": plan.cost.against_w}
        found.append(Note("rack.why-cost", numbers, texts))
    return found


# JSON


def write_json(plan: RackPlan) -> dict[str, Any]:
    """Return plain data; powers in W at the wall."""
    plain: dict[str, Any] = make_plain(plan)
    names = {"kind": "node", "run_cap": "runs_under_caps", "joint_peaks": "coincidence", "mean_w": "node_mean_w"}
    plain = {names.get(name, name): value for name, value in plain.items()}
    plain["recommendation"] |= {"rule": plan.recommendation.row.rule, "text": list_sentences(plan)[0]}
    plain["rack"] |= {"capacity_w": plan.rack.capacity_w}
    if plan.mix is not None:
        plain["mix"] |= {"fits": plan.mix.fits, "fits_as_read": plan.mix.fits_as_read}
    notes = {"notes": make_plain(list_notes(plan)), "reasons": make_plain([note for _, note in list_reasons(plan)])}
    return plain | {"simulated": bool(plan.twins)} | notes


def make_plain(value: Any) -> Any:
    """Return data classes as dictionaries, notes with their text, and infinite numbers as None."""
    if isinstance(value, Note):
        return {"code": value.code, **value.numbers, "text": word_note(value, SUBJECT)}
    if isinstance(value, Quantity):
        return value.to_json()
    if is_dataclass(value):
        return {one.name: make_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): make_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
