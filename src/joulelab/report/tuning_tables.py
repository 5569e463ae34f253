"""Print what tuning found: the caps that were tried, the choice, what it saves and what finding it cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.text import Text

from joulelab.report import format as fmt
from joulelab.report.console import STYLE, make_table, print_facts
from joulelab.report.messages import word_notes
from joulelab.report.study_tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from joulelab.core.quantity import Quantity
    from joulelab.study.tuning.tuned import Row, Tuned

COVERAGE = "intervals are expanded uncertainties (k = 2); * is what the others are compared with"
TIED = "~ no significant difference from the best"
MINUTES_S = 100.0  # times from this on are said in minutes
PLAIN = ("energy", "time", "eds")  # goals whose score is in the table anyhow, or follows from it by a sum


def print_tuned(console: Console, tuned: Tuned) -> None:
    """Print everything that a tuning says."""
    console.print()
    console.print(Text(write_tuning_headline(tuned), style="bold"))
    if tuned.rows:
        for table in _tables(tuned, console):
            console.print()
            console.print(table)
        console.print()
    facts = [(name, text) for name, text in list_tuning_facts(tuned) if text]
    print_facts(console, facts, styles=STYLE)


def write_tuning_headline(tuned: Tuned) -> str:
    """Return the choice in a sentence."""
    best = tuned.row(tuned.choice)
    if best is None:
        return f"No cap was chosen for {tuned.goal.text}."
    so_far = "" if tuned.complete else " so far"
    text = f"Best cap for {tuned.goal.text}{so_far}: {best.shown}"
    if best.cap == tuned.reference:
        return f"{text}, the highest" + ("; no significant difference from others" if tuned.tied else "")
    changes = [_change(best.gain, "less energy", "more energy"), _change(best.loss, "longer", "faster")]
    known = [c for c in changes if c]
    against = tuned.row(tuned.reference)
    if not known or against is None:
        return text
    text = f"{text}: {', '.join(known)} than {against.shown}"
    if any(q is not None and not q.known for q in (best.gain, best.loss)):
        text += " in single runs" if 1 in (best.n, against.n) else ", how surely is not known"
    return f"{text}; no significant difference between the two" if against.cap in tuned.tied else text


def _change(q: Quantity | None, more: str, less: str) -> str:
    if q is None:
        return ""
    word = more if q.value >= 0 else less
    text = fmt.format_percent(abs(q.value)) if q.expanded is None else fmt.format_change(abs(q.value), q.expanded)
    return f"{text.removeprefix('+')} {word}"


def _tables(tuned: Tuned, console: Console) -> list[Table]:
    """Return one table, or two where it would be too wide: nothing is cut off."""
    measured, compared = _measured(tuned), _compared(tuned)
    whole = _table(tuned, [*measured, *compared])
    if Measurement.get(console, console.options.update(width=10 * console.width), whole).maximum <= console.width:
        return [whole]
    return [_table(tuned, measured), _table(tuned, compared)]


def _measured(tuned: Tuned) -> list[Column]:
    joules, unit = fmt.choose_scale([r.energy.value for r in tuned.rows], "J")
    seconds, unit_s = fmt.choose_scale([r.time.value for r in tuned.rows], "s")
    return [
        Column("n", tuple(str(r.n) for r in tuned.rows)),
        Column(f"energy, {unit}", tuple(_cell(r.energy, joules) for r in tuned.rows)),
        Column(f"time, {unit_s}", tuple(_cell(r.time, seconds) for r in tuned.rows)),
    ]


def _compared(tuned: Tuned) -> list[Column]:
    others = [None if r.cap == tuned.reference else r for r in tuned.rows]
    columns = [
        Column("gain, %", tuple(_cell(None if r is None else r.gain, 0.01) for r in others)),
        Column("loss, %", tuple(_cell(None if r is None else r.loss, 0.01) for r in others)),
    ]
    if tuned.goal.name not in PLAIN:
        columns.append(
            Column(tuned.goal.name, tuple("1" if r is None else _cell(r.score, 1.0, signed=True) for r in others))
        )
    return [*columns, Column("", tuple(_verdict(tuned, r) for r in tuned.rows))]


def _table(tuned: Tuned, columns: Sequence[Column]) -> Table:
    heads = [c.head for c in columns]
    table = make_table("cap", *heads, left=[0, *(k for k, head in enumerate(heads, 1) if not head)])
    for row, *cells in zip(tuned.rows, *(c.cells for c in columns), strict=True):
        bold = "bold" if row.cap == tuned.choice else ""
        table.add_row(f"{row.shown}{'*' if row.cap == tuned.reference else ''}", *cells, style=bold)
    return table


def _cell(q: Quantity | None, factor: float, *, signed: bool = False) -> str:
    if q is None:
        return fmt.NOTHING
    if q.known and not q.terms:
        return fmt.format_number(q.value / factor)
    return fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor, signed=signed)


def _verdict(tuned: Tuned, row: Row) -> str:
    if row.doubt:
        return row.doubt
    if row.cap == tuned.choice:
        return "best"
    return "~" if row.cap in tuned.tied else ""


def list_tuning_facts(tuned: Tuned) -> list[tuple[str, str]]:
    """Return what has to be said beside the table, each with its label."""
    kinds = {"runs": "trial", "online": "window"}
    price, kind = tuned.price, kinds[tuned.mode]
    spent_more = tuned.saved is not None and tuned.saved.value < 0
    found = [("why", tuned.why), ("spent" if spent_more else "saved", _saved(tuned))]
    if tuned.scopes and tuned.rows:
        found.append(("energy", f"of {fmt.join_scopes(tuned.scopes.split(', '))}"))
    if price.trials:
        many = f"{price.trials} {kind}{'s' if price.trials > 1 else ''}"
        spent = f"{many}: {_joules(price.energy_j)} and {fmt.format_duration(price.time_s)}"
        best = tuned.row(tuned.choice)
        more = f"; {_joules(price.more_j)} and {_seconds(price.more_s)} more than under {best.shown}" if best else ""
        found.append(("cost", spent + more))
    elif tuned.mode == "runs" and tuned.rows:
        found.append(("cost", "nothing: all trials were there already"))
    found += [("note", note) for note in word_notes(tuned.notes)]
    if tuned.rows:
        per = f"energy and time are per {tuned.unit.removesuffix('s')}; " if tuned.unit else ""
        found.append(("note", f"{per}{COVERAGE}{'; ' + TIED if tuned.tied else ''}"))
    found += [("problem", problem) for problem in tuned.problems]
    found.append(("study" if tuned.mode == "runs" else "run", tuned.folder))
    found.append(("next", tuned.next))
    return found


def _saved(tuned: Tuned) -> str:
    base, best = tuned.row(tuned.reference), tuned.row(tuned.choice)
    if tuned.saved is None or base is None or best is None or (best is base and tuned.mode == "runs"):
        return ""
    amount, wide = tuned.saved.value, tuned.saved.expanded
    size = _joules(abs(amount)) if wide is None else fmt.format_quantity(abs(amount), wide, "J", signed=True)
    said = f"{size} {'' if amount >= 0 else 'more '}{tuned.over}"
    took = "" if tuned.slower is None else f", {_time(tuned.slower)} {_longer(tuned.slower.value)}"
    always = " all the time" if tuned.mode == "online" else ""
    against = f"{said}{took}, against {base.shown}{always}"
    return f"{against}{_pays(tuned, base, best)}" if tuned.sure else f"not sure: {against}"


def _pays(tuned: Tuned, base: Row, best: Row) -> str:
    """Return after how much more of the run, or after how many runs, tuning has paid."""
    assert tuned.saved is not None
    each = base.energy.value - best.energy.value
    if each <= 0:
        return ""
    if tuned.mode == "online":
        left_s = -tuned.saved.value / each * best.time.value
        return f"; {fmt.format_duration(left_s)} more of it would have paid for the windows" if left_s > 0 else ""
    if tuned.saved.value <= 0 or not tuned.price.energy_j:
        return ""
    return f"; {math.ceil(tuned.price.energy_j / tuned.saved.value)} runs pay for the trials"


def _longer(seconds: float) -> str:
    return "longer" if seconds >= 0 else "shorter"


def _joules(value: float) -> str:
    factor, unit = fmt.choose_scale([value], "J")
    return f"{fmt.format_number(value / factor, 3)} {unit}"


def _time(q: Quantity) -> str:
    """Return a time with its interval, where that is known."""
    wide = q.expanded
    if not wide:
        return _seconds(q.value)
    if max(abs(q.value), wide) < MINUTES_S:
        return fmt.format_quantity(abs(q.value), wide, "s", signed=True)
    return f"{_seconds(q.value)} ± {fmt.format_duration(wide)}"


def _seconds(value: float) -> str:
    return fmt.format_duration(abs(value))
