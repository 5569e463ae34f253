"""Print the answer of `joulelab plan queue`: the recommendation, a table of policies, notes; the same as JSON."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from joulelab.analysis.study_cells import Note
from joulelab.plan.plan_output import describe_notes, lay_out_answer
from joulelab.plan.queue.messages import MESSAGES
from joulelab.plan.queue.policy_comparison import LEAST_CHANGE
from joulelab.plan.queue.simulation import BACKFILL, ENERGY, FIRST_COME, FIT, NAMEPLATE
from joulelab.report import format as fmt
from joulelab.report.tables import Column, TableRow, make_table
from joulelab.report.terminal import BLANK_LINE, list_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.queue.policy_comparison import Comparison, Outcome
    from joulelab.report.tables import TableCell
    from joulelab.report.terminal import TextBlock

J_PER_WH = 3600.0
HOUR_S, MINUTE_S = 3600.0, 60.0
MOST_NAMED = 3  # workloads in the recommendation
SHORT_S = 2 * HOUR_S  # streams up to this makespan are shown in minutes
WAITS = ("wait_s", "wait_p95_s", "longest_wait_s")  # may be 0: changes are in s, not shares
RULE = (
    "the policy with the shortest mean time from submission to end. Differences within their interval or below 1 % "
    "count as none; then the policy with the least energy."
)
ASSUMPTIONS = (
    "A cap stays for the whole job. Nodes are free without delay, and no job fails. Unused nodes count with their idle "
    "power until the last job ends. The scheduler plans by the requested time, or by the run time if none is given."
)
DESCRIPTIONS = {
    FIRST_COME: "in order of submission, no caps; the first job waits for nodes and power",
    NAMEPLATE: "as backfill, each busy node counts with its nameplate",
    BACKFILL: "a later job starts first if it does not delay the first waiting one; no caps",
    FIT: "as backfill; while jobs wait for power, each starts under the cap with the least power times time",
    ENERGY: "as backfill; each job under the cap that adds the least energy",
}


def lay_out_queue(
    comparison: Comparison, responses: Mapping[str, CapResponse], notes: Sequence[Note], *, is_explained: bool
) -> list[TextBlock]:
    """Return the answer for a terminal; with `is_explained` all notes, times, caps and the rule."""
    scale, unit = _choose_time_unit(comparison)
    completed, base, best = comparison.completed, comparison.base, comparison.best
    energies = [o.get_figure("energy_j") for o in completed]
    factor, energy_unit = fmt.choose_scale([q.value / J_PER_WH for q in energies], "Wh")
    columns = [
        Column("policy", align="left"),
        Column("energy", energy_unit, factor=factor * J_PER_WH),
        Column("change", "%", is_share=True, signed=True),
        Column("submission\nto end", unit, factor=scale, signed=True),
        Column("mean\nwait", unit, factor=scale, signed=True),
        Column("longest\nwait", unit, factor=scale, digits=3),
    ]
    rows = [
        TableRow(
            (
                o.policy.name, energy, "" if o is base else o.get_change("energy_j", base, is_share=True),
                o.get_figure("turnaround_s"), o.get_figure("wait_s"), o.figures[0]["longest_wait_s"],
            ),
            style="best" if o is best else "",
        )
        for o, energy in zip(completed, energies, strict=True)
    ]  # fmt: skip
    every = list_queue_notes(comparison, responses, notes)
    reasons = _explain_queue(comparison, responses)
    table = make_table(columns, rows)
    return lay_out_answer([word_recommendation(comparison)], [table], every, is_explained=is_explained, reasons=reasons)


def _choose_time_unit(comparison: Comparison) -> tuple[float, str]:
    longest = max(o.figures[0]["makespan_s"] for o in comparison.completed)
    return (HOUR_S, "h") if longest > SHORT_S else (MINUTE_S, "min")


def word_recommendation(comparison: Comparison) -> str:
    """Return the recommendation, its gain over first come, first served, and what would change it."""
    best, base, site = comparison.best, comparison.base, comparison.site
    budget = fmt.format_rough(site.budget_w, "W")
    total = len(comparison.stream.jobs)
    jobs, end = ("the job", "ends") if total == 1 else (f"the {total} jobs", "end")
    caps: dict[str, set[float]] = {}
    for start in best.starts:
        if start.way.cap_w is not None:
            caps.setdefault(comparison.stream.jobs[start.job].workload or "the jobs", set()).add(start.way.cap_w)
    if caps:
        every = sorted(set().union(*caps.values()))
        names = f"{len(caps)} workloads" if len(caps) > MOST_NAMED else ", ".join(caps)
        span = f"{names} at {every[0]:g}{f' to {every[-1]:g}' if len(every) > 1 else ''} W"
        if len(every) > 1 and len(caps) <= MOST_NAMED and all(len(levels) == 1 for levels in caps.values()):
            span = " and ".join(f"{name} at {min(levels):g} W" for name, levels in caps.items())
        action = f"Cap the GPUs of {span} and backfill"
    elif best.policy == FIRST_COME:
        action = "Keep first come, first served without caps"
    else:
        action = "Backfill without caps"
    longest_s = best.figures[0]["longest_wait_s"]
    longest = f"no job waits longer than {fmt.format_duration(longest_s)}" if longest_s else "no job waits"
    blocked = next((o.blocked for o in comparison.outcomes if o.policy == FIRST_COME and o.blocked), None)
    if blocked is not None:
        gain = f"without caps, job {blocked.id} never starts under {budget}; with them all {total} jobs run"
    elif best is base:
        gain = f"no other policy lets {jobs} end earlier under {budget}"
    else:
        scale, unit = _choose_time_unit(comparison)
        earlier = -best.get_change("turnaround_s", base)
        wide = earlier.expanded
        shown = fmt.format_number(earlier.value / scale, 3)
        if wide:
            shown = fmt.format_interval(earlier.value / scale, wide / scale, signed=True)
        share = earlier.value / base.figures[0]["turnaround_s"]
        times = f"{end} {shown} {unit} earlier on average ({share * 100:.0f} %) than"
        if share < LEAST_CHANGE or earlier.value < (wide or 0.0):
            times = f"{end} neither earlier nor later on average (no significant difference) than"
        energy = _word_energy(best.get_change("energy_j", base, is_share=True))
        gain = f"{jobs} {times} first come, first served under {budget}, with {energy}"
    # Rounded up, as less would not be enough.
    step_w = 10.0 ** (math.floor(math.log10(comparison.enough_w)) - 2)
    enough = fmt.format_rough(math.ceil(comparison.enough_w / step_w - 1e-6) * step_w, "W")
    is_bound = comparison.enough_w > site.budget_w * (1 + 1e-9)
    change = (
        f"From {enough} on, no job waits for power and caps save no time."
        if is_bound
        else f"Power is not the limit: {enough} is enough without caps."
    )
    return f"{action}: {gain}; {longest}. {change}"


def _word_energy(change: Quantity) -> str:
    if change.expanded is not None and abs(change.value) <= max(change.expanded, 5e-4):
        return "the same energy" if not change.expanded else "no significant difference in energy"
    word = "less" if change.value < 0 else "more"
    shown = fmt.format_percent(abs(change.value), signed=False)
    if change.expanded:
        shown = fmt.format_change(abs(change.value), change.expanded).removeprefix("+")
    return f"{shown} {word} energy"


def list_queue_notes(comparison: Comparison, responses: Mapping[str, CapResponse], notes: Sequence[Note]) -> list[Note]:
    """Return all notes, the most important first."""
    site, stream, best = comparison.site, comparison.stream, comparison.best
    found = []
    simulated = [*stream.twins, *(name for name, r in responses.items() if r.source == "twin" and not stream.twins)]
    if simulated:
        found.append(Note("queue.simulated", texts={"twins": tuple(simulated)}))
    share, most_w = best.find_excess(site)
    if most_w > 0:
        margin = math.ceil(100 * (site.margin + most_w / site.budget_w))
        found.append(Note("queue.margin", {"share": share, "most_w": most_w, "margin": margin}))
    modelled = tuple(name or "jobs" for name, response in responses.items() if response.source == "model")
    if modelled:
        found.append(Note("queue.modelled-caps", texts={"workloads": modelled}))
    if not best.is_power_known:
        found.append(Note("queue.no-accuracy"))
    found += notes
    if stream.title:
        found.append(Note("queue.file-title", texts={"title": stream.title}))
    for each in comparison.outcomes:
        if each.blocked is not None:
            numbers = {"needed_w": each.blocked_w, "room_w": site.room_w}
            found.append(Note("queue.never-starts", numbers, {"policy": each.policy.name, "job": each.blocked.id}))
    return sorted(found, key=lambda note: note.code not in MESSAGES or MESSAGES[note.code][0] != "warning")


def _explain_queue(comparison: Comparison, responses: Mapping[str, CapResponse]) -> list[TextBlock]:
    scale, unit = _choose_time_unit(comparison)
    site, best = comparison.site, comparison.best
    peak = f"peak_{site.count}_w"
    names = ("makespan_s", "wait_p95_s", "slowdown")
    columns = [
        Column("policy", align="left"),
        Column("makespan", unit, factor=scale, signed=True),
        Column("wait p95", unit, factor=scale, signed=True),
        Column("slowdown", signed=True),
        Column("peak power", "kW", factor=1e3),
    ]
    rows: list[list[TableCell]] = [
        [o.policy.name, *map(o.get_figure, names), o.figures[0][peak]] for o in comparison.completed
    ]
    times = make_table(columns, rows)
    blocks: list[TextBlock] = [times]
    counts = Counter((comparison.stream.jobs[s.job].workload, s.way.cap_w or math.inf) for s in best.starts)
    if any(cap < math.inf for _, cap in counts):
        caps = [
            (name or "-", "none" if cap == math.inf else f"{cap:g}", n) for (name, cap), n in sorted(counts.items())
        ]
        blocks += [BLANK_LINE, make_table(["workload", "cap, W", "jobs"], caps)]
    how = "highest power, as if all were at it at once" if site.count == "highest" else "mean power"
    margin = f", {site.margin * 100:g} % of it kept free" if site.margin else ""
    budget = f"{fmt.format_watts(site.budget_w)} for {site.nodes} nodes{margin}; jobs count with their {how}"
    lines = [
        ("rule", RULE),
        ("jobs", comparison.stream.source),
        ("budget", f"{budget}; unused nodes draw {fmt.format_watts(site.idle_w)}"),
        ("assumed", ASSUMPTIONS),
    ]
    if comparison.draws:
        lines.append(
            ("draws", f"intervals (k = 2) are from {comparison.draws} Monte Carlo draws, seed {comparison.seed}")
        )
    lines += [("caps", f"{name or 'jobs'}: {r.basis}") for name, r in responses.items() if r.basis]
    lines += [(o.policy.name, DESCRIPTIONS[o.policy]) for o in comparison.completed]
    return [*blocks, BLANK_LINE, list_facts(lines)]


def encode_queue(comparison: Comparison, responses: Mapping[str, CapResponse], notes: Sequence[Note]) -> dict[str, Any]:
    """Return the whole answer as plain data; units are in the names."""
    site, stream = comparison.site, comparison.stream
    every = list_queue_notes(comparison, responses, notes)
    return {
        "recommendation": word_recommendation(comparison),
        "recommended": comparison.best.policy.name,
        "jobs": {"source": stream.source, "count": len(stream.jobs), "uncapped": comparison.uncapped},
        "simulated": bool(stream.twins) or any(r.source == "twin" for r in responses.values()),
        "twins": list(stream.twins),
        "site": {name: getattr(site, name) for name in site.__dataclass_fields__},
        "enough_w": comparison.enough_w,
        "draws": comparison.draws,
        "seed": comparison.seed,
        "responses": {
            name: {"source": r.source, "said": r.basis, "caps_w": list(r.caps_w)} for name, r in responses.items()
        },
        "compared_with": comparison.base.policy.name,
        "policies": [_encode_outcome(each, comparison) for each in comparison.outcomes],
        **describe_notes(every),
        "assumptions": ASSUMPTIONS,
    }


def _encode_outcome(outcome: Outcome, comparison: Comparison) -> dict[str, Any]:
    encoded: dict[str, Any] = {"name": outcome.policy.name, "said": DESCRIPTIONS[outcome.policy]}
    if outcome.blocked is not None:
        return encoded | {"refused": f"job {outcome.blocked.id} never starts", "needed_w": outcome.blocked_w}
    base, jobs = comparison.base, comparison.stream.jobs
    share, most_w = outcome.find_excess(comparison.site)
    changes = {
        name: _encode_quantity(outcome.get_change(name, base, is_share=name not in WAITS))
        for name in outcome.figures[0]
    }
    return encoded | {
        "figures": {name: _encode_quantity(outcome.get_figure(name)) for name in outcome.figures[0]},
        "changes_against": {base.policy.name: changes},
        "exceeded": {"share_of_draws": share, "most_w": most_w} if comparison.draws else None,
        "caps": [{"cap_w": cap, "jobs": count} for cap, count in outcome.caps.items()],
        "starts": [
            {
                "job": jobs[s.job].id, "submit_s": jobs[s.job].submit_s, "start_s": s.start_s, "end_s": s.end_s,
                "cap_w": s.way.cap_w, "nodes": s.way.nodes, "mean_w": s.way.mean_w, "highest_w": s.way.high_w,
            }
            for s in outcome.starts
        ],
    }  # fmt: skip


def _encode_quantity(q: Quantity) -> dict[str, Any]:
    return {"value": q.value, "expanded": q.expanded}
