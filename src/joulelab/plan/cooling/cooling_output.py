"""Print what another cooling would change: a table of coolings, what they rest on, what to beware of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.plan.cooling.blowing import BEYOND_SEEN
from joulelab.report import format as fmt
from joulelab.report.tables import Column, FilledColumn, Table, TableRow, make_table
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.plan.cooling.decide import CoolingPlan, Option

KWH = 1e3  # in a MWh
COVERAGE = "intervals are expanded uncertainties (k = 2); ± ? where nobody states the accuracy"


def lay_out_cooling(plan: CoolingPlan) -> list[TextBlock]:
    """Return everything that a plan of cooling says, for a terminal."""
    blocks: list[TextBlock] = [BLANK_LINE, TextLine(headline(plan), "bold"), BLANK_LINE]
    for table in _tables(plan):
        blocks += [table, BLANK_LINE]
    return [*blocks, list_facts(lines(plan), styles=STATUS_STYLES)]


def headline(plan: CoolingPlan) -> str:
    """Return the largest gain in a sentence."""
    simulated = " (simulated)" if plan.twin else ""
    best = min(plan.options, key=lambda option: option.change_w.value, default=None)
    if best is None or best.change_w.value >= 0:
        return f"No cooling that was asked for saves anything at the node{simulated}."
    share = best.change_w.value / plan.now.node_w.value
    marked = " by a model" if best.by == "model" else ""
    percent = fmt.format_percent(share, signed=False).lstrip("-")
    return f"{_named(best)} would take {percent} off the node{marked}{simulated}."


def _named(option: Option) -> str:
    kind = option.setting.kind.capitalize()
    return kind if option.setting.kind == "immersion" else f"{kind} at {option.setting.inlet_c:g} °C"


def _tables(plan: CoolingPlan) -> list[Table]:
    """Return two tables, as one would be too wide: what the node draws, and what that comes to."""
    rows = [plan.now, *plan.options]
    watts, unit = fmt.choose_scale([o.highest_w for o in rows], "W")
    drawn: list[FilledColumn] = [
        (Column("fans, W"), tuple(f"{_cell(o.fans_w)}{_sign(o)}" for o in rows)),
        (Column("fans by", align="left"), tuple(o.by for o in rows)),
        (Column(f"node, {unit}"), tuple(_cell(o.node_w, watts) for o in rows)),
        (Column("change, W"), tuple(fmt.NOTHING if o is plan.now else _cell(o.change_w) for o in rows)),
    ]
    comes: list[FilledColumn] = [
        (Column(f"highest, {unit}"), tuple(fmt.format_number(o.highest_w / watts) for o in rows)),
        (Column("MWh/year"), tuple(_cell(o.kwh, KWH) for o in rows)),
    ]
    if plan.given.supply_w is not None:
        comes.insert(1, (Column(f"at most, {unit}"), tuple(fmt.format_number(o.upper_w / watts) for o in rows)))
        comes.append((Column("nodes"), tuple(f"{o.nodes}{_sign(o)}" for o in rows)))
    if plan.given.pue:
        facility = (fmt.NOTHING if o.facility_kwh is None else _cell(o.facility_kwh, KWH) for o in rows)
        comes.append((Column("facility\nMWh/year"), tuple(facility)))
    return [_table(plan, rows, columns) for columns in (drawn, comes)]


def _table(plan: CoolingPlan, rows: Sequence[Option], columns: Sequence[FilledColumn]) -> Table:
    made = []
    for option, *cells in zip(rows, *(cells for _, cells in columns), strict=True):
        name = f"{option.setting.kind}{'*' if option is plan.now else ''}"
        inlet = fmt.NOTHING if option.setting.kind == "immersion" else f"{option.setting.inlet_c:g}"
        made.append(TableRow((name, inlet, *cells), "total" if option is plan.now else ""))
    return make_table(("cooling", "inlet, °C", *(column for column, _ in columns)), made)


def _sign(option: Option) -> str:
    """Return the mark of fans that would have to blow more than they can, or than was seen of them."""
    return " !" if option.full_speed else " ~" if option.beyond_seen else ""


def _cell(q: Quantity, factor: float = 1.0) -> str:
    if q.expanded == 0:
        return fmt.format_number(q.value / factor)
    return fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor, signed=True)


def lines(plan: CoolingPlan) -> list[tuple[str, str]]:
    """Return what has to be said beside the table, each with its label."""
    found: list[tuple[str, str]] = []
    if plan.twin:
        found.append(("note", fmt.name_twins([plan.twin])))
    found.append(("fans", plan.notes[0].removeprefix("fans: ")))
    if plan.rated_kwh is not None and plan.rated_w is not None:
        share = plan.rated_kwh / plan.now.kwh.value
        told = (
            f"{fmt.format_watts(plan.rated_w)} x {plan.hours:.0f} h = {fmt.format_number(plan.rated_kwh / KWH, 3)} MWh"
        )
        found.append(("rated", f"{told}, {fmt.format_number(share, 3)} times what it is with the cooling of now"))
    if plan.given.pue:
        told = ", ".join(f"{kind} {pue:g}" for kind, pue in plan.given.pue.items())
        found.append(("facility", f"MWh/year with the PUEs that were given ({told})"))
    if any(o.full_speed for o in (plan.now, *plan.options)):
        found.append(("note", "! fans at full speed, which is not enough"))
    if any(o.beyond_seen for o in plan.options):
        told = f"by the law of fans, over {BEYOND_SEEN:g} times what was seen of them; what they can take is not known"
        found.append(("note", f"~ {told} (--fan-max)"))
    found += [("warning", text) for text in plan.warnings]
    found += [("note", text) for text in plan.notes[1:]]
    load = "" if plan.runs else "; node: at the power given" if plan.given.power_w else "; node: at full load"
    found.append(("note", f"* now{load}; {COVERAGE}"))
    return found
