"""Print how many nodes fit in a rack: by each rule, what more of them would need, and what was assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.plan.rack.extremes import Refusal, independent, up_to
from joulelab.plan.rack.fit import usable_w
from joulelab.report import format as fmt
from joulelab.report.tables import Table, TableRow, make_table
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.plan.rack.capping import Target
    from joulelab.plan.rack.decide import Decision
    from joulelab.plan.rack.extremes import Exceeding
    from joulelab.plan.rack.guarantee import Capped
    from joulelab.plan.rack.mixed import Mixed
    from joulelab.plan.rack.rules import Row
    from joulelab.plan.rack.steps import Steps

LABEL = 9
BY = {"measured": "measured", "twin": "simulated", "model": "model"}
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
UNKNOWN = "+?"  # after an upper end: more, and nobody knows how much
HEADS = (
    "kW: of a node at the wall (of percentiles the upper end); upper: with all that is known of meters, hidden peaks "
    "and other nodes; sure: nodes that fit then; over: time above what each may draw, seen or at most (<); each: what "
    "each may draw; short: what so many lack"
)


def lay_out_rack(decision: Decision) -> list[TextBlock]:
    """Return everything that is said of a rack, for a terminal."""
    blocks: list[TextBlock] = [BLANK_LINE, *(TextLine(line, "bold") for line in headline(decision))]
    blocks += [BLANK_LINE, _rules(decision)]
    if decision.targets:
        blocks += [BLANK_LINE, _targets(decision)]
    return [*blocks, BLANK_LINE, list_facts(_once(facts(decision)), styles=STATUS_STYLES, label_width=LABEL)]


def headline(decision: Decision) -> list[str]:
    """Return the answer in a few sentences."""
    best, rated = decision.best, decision.row("nameplate")
    found = [decision.title] if decision.title else []
    if decision.twins:
        said = fmt.name_twins(decision.twins)
        found.append(f"{said[:1].upper()}{said[1:]}.")
    under = f" under {best.held}" if best.held else ""
    text = f"{_nodes(best.nodes or 0)} by the {best.rule} of {_kilowatts(best.node_w)} each{under}"
    if rated is not None and rated is not best:
        text += f", {rated.nodes} by the nameplate of {_kilowatts(rated.node_w)}"
    found += [f"{text}.", _left(decision, best)]
    if best.held:
        found.append("Every run was under caps: they have to stay, or nodes may draw more than was seen.")
    if best.sure is not None and best.nodes is not None and best.sure < best.nodes:
        found.append(f"Only {best.sure} fit if a node draws {_kilowatts(best.upper_w)}, which the readings allow.")
    if best.upper_w is not None and best.lacks:
        found.append(f"Nobody knows {' and '.join(best.lacks)}: that comes on top of {_kilowatts(best.upper_w)}.")
    now = _now(decision, best)
    return [*found, now] if now else found


def _left(decision: Decision, best: Row) -> str:
    kept = f", {fmt.format_percent(decision.rack.margin, signed=False)} have to" if decision.rack.margin else ""
    free = "" if best.free is None else f"{_share(best.free)} % of the supply stay free{kept}; "
    return f"{free}{best.binding} keeps out one more."


def _now(decision: Decision, best: Row) -> str:
    now, nodes = decision.rack.nodes_now, best.nodes or 0
    if now is None:
        return ""
    more = nodes - now
    if more > 0:
        count = COUNTS[more] if more < len(COUNTS) else str(more)
        return f"There are {now} now: {count} more {'fits' if more == 1 else 'fit'}."
    return f"There are {now} now: no more fit." if more == 0 else f"There are {now} now: {-more} too many."


def _once(found: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return facts, the label only with the first of those that follow each other."""
    told = [fact for fact in found if fact[1]]
    return [("" if k and name == told[k - 1][0] else name, text) for k, (name, text) in enumerate(told)]


def _rule(row: Row) -> str:
    """Return a rule for the table; below it its confidence interval, and the caps that its runs were under."""
    found = [row.rule.replace("maximum", "max")]
    if row.low_w is not None and row.high_w is not None:
        found.append(f"{_kw(row.low_w)}-{_kw(row.high_w)}")
    if row.held:
        found.append("under caps" if row.cap_w is None else f"at {row.cap_w:g} W caps")
    return "\n".join(found)


def _upper(row: Row) -> tuple[str, str]:
    """Return the upper end and how many fit then, with a sign where somebody would have to know more."""
    if row.upper_w is None:
        return "?", "?"
    sign = UNKNOWN if row.lacks else ""
    return f"{_kw(row.upper_w)}{sign}", f"{row.sure}{'?' if sign else ''}"


def _nodes(count: int) -> str:
    return "No node fits" if count == 0 else "One node fits" if count == 1 else f"{count} nodes fit"


def _rules(decision: Decision) -> Table:
    rows = []
    for row in decision.rows:
        if row.nodes is None:
            refused = "refused" if row.kind == "percentile" else "-"
            rows.append(TableRow((_rule(row), *["-"] * 4, refused, *["-"] * 3)))
            continue
        figures = (_kw(row.node_w), _upper(row)[0], row.nodes, _upper(row)[1], row.binding)
        cells = (_rule(row), *figures, _share(row.free), _kw(row.stranded_w), _over(row.exceed))
        rows.append(TableRow(cells, "best" if row is decision.best else ""))
    heads = ("rule", "kW", "upper", "nodes", "sure", "binds", "free %", "stranded", "over %")
    return make_table(heads, rows, left=(0, 5))


def _targets(decision: Decision) -> Table:
    """Return what more nodes would need: power that is not there, or caps; those only where something is known."""
    source = "" if decision.response is None else BY[decision.response.source]
    capped = bool(source) or not isinstance(decision.guarantee, str)
    against_w = decision.priced.against_w
    to = "" if against_w is None else f"\nto {against_w:g} W"
    heads = ("cap by", "cap, W", f"time, %{to}", f"energy, %{to}") if capped else ()
    rows: list[tuple[str, ...]] = []
    for target in decision.targets:
        if not target.room:
            rows.append((str(target.nodes), "-", "no room", *["-"] * len(heads)))
            continue
        shown = (str(target.nodes), _kw(target.allowed_w), _kw(target.short_w))
        if not capped:
            rows.append(shown)
            continue
        for name, one in _ways(target, source):
            rows.append((*shown, name, *_capped(one)))
            shown = ("", "", "")
    return make_table(("nodes", "each, kW", "short, kW", *heads), rows, left=(3,) if capped else ())


def _ways(target: Target, source: str) -> list[tuple[str, Capped | None]]:
    found: list[tuple[str, Capped | None]] = []
    if target.guarantee is not None:
        found.append(("promise", target.guarantee))
    if source:
        found.append((source, target.measured))
    return found


def _capped(capped: Capped | None) -> tuple[str, str, str]:
    if capped is None:
        return "-", "-", "-"
    if not capped.needed:
        return "none", "0", "0"
    cap = "none" if capped.cap_w is None else f"{capped.cap_w:g}"
    return ("refused" if capped.cap_w is None else cap), _change(capped.slowdown), _change(capped.energy)


def _change(ratio: Quantity | None) -> str:
    if ratio is None:
        return "?"
    return fmt.format_change(ratio.value - 1, ratio.expanded, is_forecast=True).replace(" %", "")


def facts(decision: Decision) -> list[tuple[str, str]]:
    """Return what has to be said beside the tables, each with its label."""
    rack = decision.rack
    found: list[tuple[str, str]] = []
    if decision.twins:
        found.append(("warning", "simulated: nothing of it was measured on real nodes"))
    seen = max((r for r in decision.rows if r.kind == "maximum"), key=lambda r: r.node_w or 0.0)
    plate = decision.row("nameplate")
    if plate is not None and (seen.node_w or 0.0) > (plate.node_w or 0.0):
        text = f"a node at {_kilowatts(seen.node_w)} is above its nameplate of {_kilowatts(plate.node_w)}, which bounds"
        found.append(("warning", f"{text} nothing then; correct --rated, or look at the meter"))
    found += [("limit", f"{limit.name}: {limit.said}") for limit in decision.limits]
    now = rack.nodes_now
    rated = decision.row("nameplate")
    if now and rated is not None and rated.node_w is not None:
        free = rack.free(now, rated.node_w)
        found.append(("now", f"{now} nodes by the nameplate leave {fmt.format_percent(free, signed=False)} free"))
    found.append(("draws", _draws(decision)))
    found += [("refused", f"{row.rule}: {row.refused}") for row in decision.rows if row.refused]
    found += _refused_caps(decision)
    found += [("rule", f"{row.rule}: {_said(row)}") for row in decision.rows if row.said and row.kind != "caps"]
    found += _unknown(decision)
    found += _risk(decision.best)
    found += _mix(decision.mixed)
    found += _steps(decision.steps)
    for one in decision.together:
        text = f"run {one.run}: {one.hosts} hosts together peaked at {one.ratio:.1%} of the sum of their peaks"
        found.append(("together", text))
    found += [("assumed", text) for text in decision.assumed]
    return [*found, ("columns", HEADS)]


def _said(row: Row) -> str:
    if row.value_w is None:
        return row.said
    return f"{_kilowatts(row.value_w)}, {_kilowatts(row.low_w)} to {_kilowatts(row.high_w)}; {row.said}"


def _unknown(decision: Decision) -> list[tuple[str, str]]:
    """Return what is in no upper end because nobody knows it."""
    lacks = dict.fromkeys(text for row in decision.rows if row.upper_w is not None for text in row.lacks)
    return [("unknown", f"{UNKNOWN} without {', '.join(lacks)}: nobody states it")] if lacks else []


def _draws(decision: Decision) -> str:
    """Return what so many nodes really draw of what the supply has for them."""
    best = decision.best
    if not best.nodes or best.node_w is None or decision.mean_w is None:
        return ""
    most, mean = best.nodes * best.node_w, best.nodes * decision.mean_w
    usable = _kilowatts(usable_w(decision.limits))
    return f"{best.nodes} nodes draw {_kilowatts(most)} at most and {_kilowatts(mean)} on average of {usable} for nodes"


def _refused_caps(decision: Decision) -> list[tuple[str, str]]:
    """Return why caps have no answer; where nobody knows what caps do, once and not for each number of nodes."""
    told = [] if decision.response else [f"what caps cost: {decision.priced.why}"]
    told += [
        f"cap for {target.nodes} nodes: {capped.refused}"
        for target in decision.targets
        for capped in ((target.guarantee, target.measured) if decision.response else (target.guarantee,))
        if capped is not None and capped.refused and (decision.response or capped.cap_w is None)
    ]
    return [("refused", text) for text in dict.fromkeys(told)]


def _risk(row: Row) -> list[tuple[str, str]]:
    if row.exceed is None or row.allowed_w is None:
        return []
    over = row.exceed
    seen = (
        "was never seen" if over.share == 0 else f"was seen {fmt.format_percent(over.share, signed=False)} of the time"
    )
    least = "at most " if over.share == 0 else f"{fmt.format_percent(over.low, signed=False)} to "
    text = (
        f"a node above {_kilowatts(row.allowed_w)}, which {row.nodes} of them may draw each, {seen}; with "
        f"{100 * over.confidence:g} % confidence {least}{fmt.format_percent(over.high, signed=False)} of the time "
        f"({independent(over.blocks)} of {up_to(over.works)}{fmt.format_rough_duration(over.block_s)}), "
        "for the work of these runs"
    )
    if over.wider > 1:
        without = f", without {' and '.join(row.lacks)}" if row.lacks else ""
        text += f"; that counts up to {100 * (over.wider - 1):.2g} % more than was read{without}"
    return [("risk", text)]


def _steps(steps: Steps | None) -> list[tuple[str, str]]:
    if steps is None:
        return []
    parts = [
        f"{name} {_kilowatts(abs(step.watts))} in {fmt.format_period(round(step.over_s, 1))}"
        for name, step in (("up", steps.rise), ("down", steps.fall))
        if step is not None
    ]
    ramp = "" if steps.steepest is None else f", {fmt.format_watts(abs(steps.steepest.ramp_w_per_s))}/s at most"
    return [("steps", f"{' and '.join(parts)}{ramp}: {steps.said}" if parts else steps.said)]


def _mix(mixed: Mixed | None) -> list[tuple[str, str]]:
    if mixed is None:
        return []
    over = mixed.exceed
    whole = (
        f"{', '.join(mixed.names)}: {mixed.nodes} nodes, {_kilowatts(mixed.mean_w)} on average, at most "
        f"{_kilowatts(mixed.maximum_w)} of {_kilowatts(mixed.allowed_w)} ({mixed.binding}): {_verdict(mixed)}"
    )
    above = (
        f"above that {fmt.format_percent(over.share, signed=False)} of the time, at most "
        f"{fmt.format_percent(over.high, signed=False)} with {100 * over.confidence:g} % confidence"
    )
    found = [("mix", whole), ("mix", above)]
    for name, one in mixed.percentiles.items():
        if isinstance(one, Refusal):
            found.append(("mix", f"refused: {one.said}"))
        else:
            text = f"{name}: {_kilowatts(one.value_w)}, {_kilowatts(one.low_w)} to {_kilowatts(one.high_w)}; {one.said}"
            found.append(("mix", text))
    return [*found, *(("mix", note) for note in mixed.notes)]


def _verdict(mixed: Mixed) -> str:
    upper = f"{_kilowatts(mixed.upper_w)}, which the readings allow"
    if mixed.lacks:
        upper += f", without {' and '.join(mixed.lacks)}"
    if not mixed.fits_as_read:
        return f"does not fit by the sum of maxima; it may be {upper}"
    return f"fits, also at {upper}" if mixed.fits else f"fits as it was read, not at {upper}"


def _kw(watts: float | None) -> str:
    return (
        fmt.NOTHING if watts is None else fmt.format_number(round(watts / 1000, 6) + 0.0)
    )  # no rounding in sums, no -0


def _kilowatts(watts: float | None) -> str:
    return fmt.NOTHING if watts is None else f"{fmt.format_number(watts / 1000)} kW"


def _share(share: float | None) -> str:
    return fmt.NOTHING if share is None else f"{round(100 * share, 2) + 0.0:.2f}"  # never -0.00


def _over(over: Exceeding | None) -> str:
    """Return the share of time above, or the most that it may be where it was never seen."""
    if over is None:
        return fmt.NOTHING
    if over.share == 0:
        return f"< {fmt.format_number(100 * over.high, 2)}"
    return fmt.format_number(100 * over.share, 2)
