"""Print what policies make of a stream of jobs: energy, makespan, waiting, and how the power budget was kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.plan.queue.policies import BACKFILL, ENERGY, FIRST_COME, FIT, NAMEPLATE
from joulelab.report import format as fmt
from joulelab.report.tables import Column, FilledColumn, Table, join_columns, join_tables, make_table, measure_table
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.queue.outcome import Comparison, Outcome

J_PER_WH = 3600.0
HOUR_S = 3600.0
MINUTES_S = 2 * HOUR_S  # where nothing waits or runs longer, times are in minutes
NO_SHARE = 5e-5  # a share that is shown as 0.00 %
PLATE = "`by nameplate` is energy with jobs at the nameplates of their nodes, unused nodes as in `idle`"
BASES = (FIRST_COME, BACKFILL)
ASSUMED = (
    "how long each job takes is known beforehand; a cap stays as it was when the job started; nodes come and go "
    "without delay"
)


def lay_out_schedule(
    comparison: Comparison, responses: Mapping[str, CapResponse], notes: Sequence[str] = (), *, width: int
) -> list[TextBlock]:
    """Return headline, tables and facts, for a terminal."""
    blocks: list[TextBlock] = [BLANK_LINE, TextLine(headline(comparison), "bold")]
    for table in (_energies(comparison), *_times(comparison, width), *_accounts(comparison)):
        blocks += [BLANK_LINE, table]
    return [*blocks, BLANK_LINE, list_facts(lines(comparison, responses, notes), styles=STATUS_STYLES)]


def headline(comparison: Comparison) -> str:
    """Return what caps change under the budget, in a sentence."""
    site, base = comparison.site, comparison.base
    under = f"{len(comparison.stream.jobs)} jobs on {site.nodes} nodes under {fmt.format_watts(site.budget_w)}"
    best = [o for o in (comparison.outcome(FIT), comparison.outcome(ENERGY)) if o is not None]
    if not best:
        return f"{under}: some job never starts."
    if comparison.uncapped == len(comparison.stream.jobs):
        return f"{under}: of no job it is known what caps do."
    own = min(best, key=lambda o: o.drawn[0]["wait_s"])
    energy, wait = own.change("energy_j", base), own.figure("wait_s").value
    told = (
        ""
        if energy is None or not energy.is_resolved
        else f"{fmt.format_change(energy.value, energy.expanded)} energy, "
    )
    waited = f"{fmt.format_duration(wait)} of waiting instead of {fmt.format_duration(base.figure('wait_s').value)}"
    over, was = (fmt.format_duration(o.drawn[0][f"over_{site.count}_s"]) for o in (own, base))
    above = f"{over} above the budget instead of {was}"
    return f"{under}: {own.policy.name} against {base.policy.name}: {told}{waited}, {above}."


def _followed(comparison: Comparison) -> list[Outcome]:
    return [each for each in comparison.outcomes if not each.refused]


def _energies(comparison: Comparison) -> Table:
    rows, base = _followed(comparison), comparison.base
    factor, unit = fmt.choose_scale([o.drawn[0]["energy_j"] / J_PER_WH for o in rows], "Wh")
    made: list[tuple[str, ...]] = []
    for each in comparison.outcomes:
        if each.refused:
            made.append((each.policy.name, "never starts some job"))
            continue
        change = each.change("energy_j", base)
        cells = [_cell(each.figure(name), factor * J_PER_WH) for name in ("energy_j", "jobs_j", "idle_j")]
        rated = each.drawn[0].get("rated_j")
        changed = "" if change is None or each is base else _cell(change, 0.01)
        plate = fmt.NOTHING if rated is None else fmt.format_number(rated / J_PER_WH / factor)
        made.append((each.policy.name, cells[0], changed, *(text.partition(" ±")[0] for text in cells[1:]), plate))
    return make_table(("policy", f"energy, {unit}", "change, %", "jobs", "idle", "by nameplate"), made)


def _times(comparison: Comparison, width: int) -> list[Table]:
    """Return one table of times and the budget, or two where it would be too wide: nothing is cut off."""
    rows, count = _followed(comparison), comparison.site.count
    longest = max((o.drawn[0]["makespan_s"] for o in rows), default=0.0)
    scale, unit = (HOUR_S, "h") if longest > MINUTES_S else (60.0, "min")
    watts, kilo = fmt.choose_scale([max(o.drawn[0][f"over_{count}_w"], 1.0) for o in rows], "W")
    timed: list[FilledColumn] = [
        (Column(f"makespan, {unit}"), tuple(_cell(o.figure("makespan_s"), scale) for o in rows)),
        (Column(f"wait, {unit}"), tuple(_cell(o.figure("wait_s"), scale) for o in rows)),
        (Column("p95"), tuple(fmt.format_number(o.drawn[0]["wait_p95_s"] / scale, 3) for o in rows)),
        (Column("slowdown"), tuple(_cell(o.figure("slowdown"), 1.0) for o in rows)),
    ]
    kept: list[FilledColumn] = [
        (Column(f"over, {unit}"), tuple(fmt.format_number(o.drawn[0][f"over_{count}_s"] / scale, 3) for o in rows)),
        (Column(f"by, {kilo}"), tuple(fmt.format_number(o.drawn[0][f"over_{count}_w"] / watts, 3) for o in rows)),
    ]
    names: FilledColumn = (Column("policy", align="left"), tuple(row.policy.name for row in rows))
    first, second = join_columns([names, *timed]), join_columns([names, *kept])
    whole = join_tables(first, second)
    return [whole] if measure_table(whole) <= width else [first, second]


def _accounts(comparison: Comparison) -> list[Table]:
    """Return a table of money and carbon, where rates were given."""
    if not comparison.rates:
        return []
    rows, base = _followed(comparison), comparison.base
    heads, scales = [], {}
    for name, rate in comparison.rates.items():
        money = rate.label.kind == "price"
        unit = rate.label.unit.partition("/")[0] if money else "g"
        scales[name], shown = (1.0, unit) if money else fmt.choose_scale([o.drawn[0][name] for o in rows], unit)
        heads += [f"{'cost' if money else 'CO2e'}, {shown}", "change, %"]
    made = []
    for each in rows:
        cells: list[str] = []
        for name, scale in scales.items():
            change = each.change(name, base)
            cells += [_cell(each.figure(name), scale), "" if change is None or each is base else _cell(change, 0.01)]
        made.append((each.policy.name, *cells))
    return [make_table(("policy", *heads), made)]


def _cell(q: Quantity, factor: float) -> str:
    if q.known and not q.terms:
        return fmt.format_number(q.value / factor)
    return fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor, signed=True)


def lines(
    comparison: Comparison, responses: Mapping[str, CapResponse], notes: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return what has to be said beside the tables, each with its label."""
    site, stream = comparison.site, comparison.stream
    twins = list(stream.twins)
    if twins or any(r.source == "twin" for r in responses.values()):
        found = [("warning", fmt.name_twins(twins) if twins else "what caps do is simulated: from runs of twins")]
    else:
        found = []
    found += [("jobs", stream.source), ("budget", _budget(comparison))]
    found += [("over", text) for text in [_surely(comparison)] if text]
    found += [("caps", text) for text in map(_caps, _followed(comparison)) if text]
    found += [("caps", text) for text in _sources(responses)]
    found += [("rated", text) for text in [_price(comparison)] if text]
    found += [("refused", f"{o.policy.name}: {o.refused}") for o in comparison.outcomes if o.refused]
    found += [("rate", _rate(rate.label.to_json())) for rate in comparison.rates.values()]
    found += [("note", note) for note in notes]
    unused = (
        f"unused nodes idle at {fmt.format_watts(site.idle_w)}" if site.unused == "idle" else "unused nodes are off"
    )
    pue = f"; energies are with a PUE of {site.pue:g}" if site.pue != 1 else ""
    found.append(("note", f"{unused}, until the last job ends{pue}; {ASSUMED}"))
    if any("rated_j" in o.names for o in _followed(comparison)):
        found.append(("note", PLATE))
    drawn = f"intervals (k = 2) are of {comparison.draws} draws of what is not known" if comparison.draws else ""
    of = "wait is a mean; slowdown is waiting and running by running without a cap"
    by = f"{of}; changes are against {comparison.base.policy.name}"
    found.append(("note", f"{drawn + '; ' if drawn else ''}{by}"))
    return found


def _sources(responses: Mapping[str, CapResponse]) -> list[str]:
    """Return where it is known from what caps do, workloads of which the same is said together."""
    told: dict[str, list[str]] = {}
    for name, response in responses.items():
        word = {"twin": "simulated", "model": "not measured"}.get(response.source, "measured")
        told.setdefault(f"{word}; {response.said}" if response.said else word, []).append(name)
    return [f"of {', '.join(names)}: {text}" for text, names in told.items()]


def _budget(comparison: Comparison) -> str:
    site = comparison.site
    kept = f", {fmt.format_percent(site.margin, signed=False)} of it kept free" if site.margin else ""
    how = (
        "kept by the highest power of each job, as if all were at it at once"
        if site.count == "highest"
        else "kept by mean powers: peaks above them are not counted"
    )
    return f"{fmt.format_watts(site.budget_w)}{kept}; {how}"


def _surely(comparison: Comparison) -> str:
    """Return how surely the budget is kept, by the policies that keep it as all is believed."""
    site = comparison.site
    kept = [o for o in _followed(comparison) if o.drawn[0][f"over_{site.count}_w"] == 0]
    found = [(o, drawn) for o in kept if (drawn := o.exceeded(site.count)) is not None and drawn[0] > 0]
    if not found:
        return ""
    parts = [
        f"{o.policy.name} in {share * 100:.0f} % of the draws, by {fmt.format_watts(w)}" for o, (share, w) in found
    ]
    free = site.margin + max(w for _, (_, w) in found) / site.budget_w
    return (
        f"as planned the budget is kept; with what is not known of powers it is exceeded under {'; '.join(parts)} at "
        f"most. A --margin of about {math.ceil(free * 100)}% covers that"
    )


def _caps(outcome: Outcome) -> str:
    if not outcome.policy.goal or set(outcome.caps) == {None}:
        return ""
    parts = [f"{'no cap' if cap is None else f'{cap:g} W'} {count}" for cap, count in outcome.caps.items()]
    return f"{outcome.policy.name}, jobs by cap of each GPU: {', '.join(parts)}"


def _price(comparison: Comparison) -> str:
    """Return what it costs to count nodes at their nameplates."""
    own, rated = comparison.outcome(BACKFILL), comparison.outcome(NAMEPLATE)
    if own is None or rated is None:
        return ""
    longer, more_s = rated.change("makespan_s", own), rated.change("wait_s", own)
    assert longer is not None
    assert more_s is not None
    if abs(longer.value) < NO_SHARE and abs(more_s.value) < 0.5:
        return "admission by nameplates costs nothing here: they are not what limits"
    makespan = "the same" if abs(longer.value) < NO_SHARE else fmt.format_percent(longer.value)
    waiting = f"{fmt.format_duration(abs(more_s.value))} of waiting {'more' if more_s.value >= 0 else 'less'} per job"
    return f"admission by nameplates instead of what was measured: {makespan} makespan, {waiting}"


def _rate(label: Mapping[str, Any]) -> str:
    kind = "price" if label["kind"] == "price" else f"{label['kind']} carbon intensity"
    unsure = "" if label["u_rel"] is not None else "; its uncertainty is not known and not in the intervals"
    return f"{label['name']} ({kind}){unsure}"


def schedule_json(
    comparison: Comparison, responses: Mapping[str, CapResponse], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the whole answer as plain data; units are in the names."""
    site, stream = comparison.site, comparison.stream
    return {
        "jobs": {"source": stream.source, "count": len(stream.jobs), "uncapped": comparison.uncapped},
        "simulated": bool(stream.twins) or any(r.source == "twin" for r in responses.values()),
        "twins": list(stream.twins),
        "site": {name: getattr(site, name) for name in site.__dataclass_fields__},
        "draws": comparison.draws,
        "seed": comparison.seed,
        "rates": {name: rate.label.to_json() for name, rate in comparison.rates.items()},
        "responses": {
            name: {"source": r.source, "said": r.said, "caps_w": list(r.caps_w)} for name, r in responses.items()
        },
        "compared_with": comparison.base.policy.name,
        "policies": [_policy(each, comparison) for each in comparison.outcomes],
        "notes": [*notes, ASSUMED],
    }


def _policy(outcome: Outcome, comparison: Comparison) -> dict[str, Any]:
    told: dict[str, Any] = {"name": outcome.policy.name, "said": outcome.policy.said}
    if outcome.refused:
        return told | {"refused": outcome.refused}
    changes: dict[str, Any] = {}
    for base in (comparison.outcome(policy) for policy in BASES):
        if base is not None:
            pairs = {
                name: outcome.change(name, base) for name in outcome.names if not name.startswith(("over", "peak"))
            }
            changes[base.policy.name] = {name: _plain(q) for name, q in pairs.items() if q is not None}
    drawn = outcome.exceeded(comparison.site.count)
    return told | {
        "figures": {name: _plain(outcome.figure(name)) for name in outcome.names},
        "changes_against": changes,
        "exceeded": None if drawn is None else {"share_of_draws": drawn[0], "most_w": drawn[1]},
        "caps": [{"cap_w": cap, "jobs": count} for cap, count in outcome.caps.items()],
        "starts": [
            {
                "job": comparison.stream.jobs[s.job].id, "submit_s": s.submit_s, "start_s": s.start_s,
                "end_s": s.end_s, "cap_w": s.option.cap_w, "nodes": s.option.nodes, "mean_w": s.option.mean_w,
                "highest_w": s.option.high_w,
            }
            for s in outcome.starts
        ],
    }  # fmt: skip


def _plain(q: Quantity) -> dict[str, Any]:
    return {"value": q.value, "expanded": q.expanded}
