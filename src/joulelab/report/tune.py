"""Print what tuning found: the caps that were tried, the choice, what it saves and what finding it cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.text import Text

from joulelab.report import format as fmt
from joulelab.report.console import STYLE, make_table, print_facts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from joulelab.analysis.terms import Quantity
    from joulelab.study.tuning.tuned import Row, Tuned

COVERAGE = "Intervals are expanded uncertainties (k = 2); * is what the others are compared with"
TIED = "~ cannot be told apart from the best"
PLAIN = ("energy", "time", "eds")  # goals whose score is in the table anyhow, or follows from it by a sum


def print_tuned(console: Console, tuned: Tuned) -> None:
    """Print everything that a tuning says."""
    console.print()
    console.print(Text(headline(tuned), style="bold"), soft_wrap=True)
    if tuned.rows:
        console.print()
        console.print(_table(tuned))
        console.print()
    facts = [(name, text) for name, text in lines(tuned) if text]
    print_facts(console, facts, styles=STYLE)


def headline(tuned: Tuned) -> str:
    """Return the choice in a sentence."""
    best = tuned.row(tuned.choice)
    if best is None:
        return f"No cap was chosen for {tuned.goal.text}."
    so_far = "" if tuned.complete else " so far"
    text = f"Best cap for {tuned.goal.text}{so_far}: {best.shown}"
    if best.cap == tuned.reference:
        return f"{text}, the highest"
    changes = [_change(best.gain, "less energy", "more energy"), _change(best.loss, "longer", "faster")]
    known = [c for c in changes if c]
    against = tuned.row(tuned.reference)
    return f"{text}: {', '.join(known)} than {against.shown}" if known and against else text


def _change(q: Quantity | None, more: str, less: str) -> str:
    if q is None:
        return ""
    word = more if q.value >= 0 else less
    return f"{fmt.change(abs(q.value), q.expanded).removeprefix('+')} {word}"


def _table(tuned: Tuned) -> Table:
    joules, unit = fmt.column([r.energy.value for r in tuned.rows], "J")
    seconds, unit_s = fmt.column([r.time.value for r in tuned.rows], "s")
    scored = tuned.goal.name not in PLAIN
    heads = ["cap", "n", f"energy, {unit}", f"time, {unit_s}", "gain, %", "loss, %"]
    table = make_table(*heads, *([tuned.goal.name] if scored else []), "", left=(0, 6 + scored))
    for row in tuned.rows:
        reference = row.cap == tuned.reference
        cells = [_cell(row.energy, joules), _cell(row.time, seconds)]
        cells += [fmt.NOTHING] * 2 if reference else [_cell(row.gain, 0.01), _cell(row.loss, 0.01)]
        if scored:
            cells.append("1" if reference else _cell(row.score, 1.0))
        bold = "bold" if row.cap == tuned.choice else ""
        table.add_row(f"{row.shown}{'*' if reference else ''}", str(row.n), *cells, _verdict(tuned, row), style=bold)
    return table


def _cell(q: Quantity | None, factor: float) -> str:
    if q is None:
        return fmt.NOTHING
    if not q.terms:
        return fmt.plain(q.value / factor)
    return fmt.interval(q.value / factor, None if q.expanded is None else q.expanded / factor)


def _verdict(tuned: Tuned, row: Row) -> str:
    if row.cap == tuned.choice:
        return "best"
    return "~" if row.cap in tuned.tied else ""


def lines(tuned: Tuned) -> list[tuple[str, str]]:
    """Return what has to be said beside the table, each with its label."""
    kinds = {"runs": "trial", "online": "window"}
    price, kind = tuned.price, kinds[tuned.mode]
    spent_more = tuned.saved is not None and tuned.saved.value < 0
    found = [("why", tuned.why), ("spent" if spent_more else "saved", _saved(tuned))]
    if price.trials:
        many = f"{price.trials} {kind}{'s' if price.trials > 1 else ''}"
        spent = f"{many}: {_joules(price.energy_j)} and {fmt.duration(price.time_s)}"
        best = tuned.row(tuned.choice)
        more = f"; {_joules(price.more_j)} and {_seconds(price.more_s)} more than under {best.shown}" if best else ""
        found.append(("cost", spent + more))
    elif tuned.mode == "runs" and tuned.rows:
        found.append(("cost", "nothing: all trials were there already"))
    found += [("note", note) for note in tuned.notes]
    if tuned.rows:
        per = f"energy and time are per {tuned.unit.removesuffix('s')}. " if tuned.unit else ""
        found.append(("note", f"{per.capitalize()}{COVERAGE}{'; ' + TIED if tuned.tied else ''}."))
    found += [("problem", problem) for problem in tuned.problems]
    found.append(("study" if tuned.mode == "runs" else "run", tuned.folder))
    found.append(("next", tuned.next))
    return found


def _saved(tuned: Tuned) -> str:
    base, best = tuned.row(tuned.reference), tuned.row(tuned.choice)
    if tuned.saved is None or base is None or best is None or (best is base and tuned.mode == "runs"):
        return ""
    amount, wide = tuned.saved.value, tuned.saved.expanded
    said = f"{fmt.quantity(abs(amount), wide, 'J')} {'' if amount >= 0 else 'more '}{tuned.over}"
    took = "" if tuned.slower is None else f", {_seconds(tuned.slower.value)} {_longer(tuned.slower.value)}"
    always = " all the time" if tuned.mode == "online" else ""
    return f"{said}{took}, against {base.shown}{always}{_pays(tuned, base, best)}"


def _pays(tuned: Tuned, base: Row, best: Row) -> str:
    """Return after how much more of the run, or after how many runs, tuning has paid."""
    assert tuned.saved is not None
    each = base.energy.value - best.energy.value
    if each <= 0:
        return ""
    if tuned.mode == "online":
        left_s = -tuned.saved.value / each * best.time.value
        return f"; {fmt.duration(left_s)} more of it would have paid for the windows" if left_s > 0 else ""
    if tuned.saved.value <= 0 or not tuned.price.energy_j:
        return ""
    return f"; {math.ceil(tuned.price.energy_j / tuned.saved.value)} runs pay for the trials"


def _longer(seconds: float) -> str:
    return "longer" if seconds >= 0 else "shorter"


def _joules(value: float) -> str:
    factor, unit = fmt.column([value], "J")
    return f"{fmt.plain(value / factor, 3)} {unit}"


def _seconds(value: float) -> str:
    return fmt.duration(abs(value))
