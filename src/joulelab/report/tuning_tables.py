"""Show the result of a tuning: the caps that were tried, the choice, its saving and the cost of the trials."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.messages import word_notes
from joulelab.report.tables import (
    Column,
    Table,
    TableCell,
    TableRow,
    join_tables,
    make_table,
    measure_table,
    scale_column,
)
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.study.tuning.tuned import Row, Tuned

COVERAGE = "intervals are expanded uncertainties (k = 2); * is what the others are compared with"
TIED = "~ no significant difference from the best"
MINUTES_S = 100.0  # times from this on are in minutes
PLAIN = ("energy", "time", "eds")  # goals whose score is in the table anyhow, or follows from it by a sum


def lay_out_tuning(tuned: Tuned, *, width: int) -> list[TextBlock]:
    """Return the whole result of a tuning, for a terminal."""
    blocks: list[TextBlock] = [BLANK_LINE, TextLine(write_tuning_headline(tuned), "bold")]
    if tuned.rows:
        measured, compared = _make_measured_table(tuned), _make_compared_table(tuned)
        whole = join_tables(measured, compared)
        for table in [whole] if measure_table(whole) <= width else [measured, compared]:
            blocks += [BLANK_LINE, table]
        blocks.append(BLANK_LINE)
    facts = [(name, text) for name, text in list_tuning_facts(tuned) if text]
    return [*blocks, list_facts(facts, styles=STATUS_STYLES)]


def write_tuning_headline(tuned: Tuned) -> str:
    """Return the choice in a sentence."""
    best = tuned.row(tuned.choice)
    if best is None:
        return f"No cap was chosen for {tuned.goal.text}."
    so_far = "" if tuned.complete else " so far"
    text = f"Best cap for {tuned.goal.text}{so_far}: {best.shown}"
    if best.cap == tuned.reference:
        return f"{text}, the highest" + ("; no significant difference from others" if tuned.tied else "")
    changes = [_format_gain(best.gain, "less energy", "more energy"), _format_gain(best.loss, "longer", "faster")]
    known = [c for c in changes if c]
    against = tuned.row(tuned.reference)
    if against is None:
        return text
    text = f"{text}: {', '.join(known)} than {against.shown}" if known else text
    pairs = (("energy", best.gain), ("time", best.loss))
    small = [name for name, q in pairs if q is not None and not q.is_resolved]
    text += f"; change of {' and '.join(small)} {fmt.NOT_RESOLVED}" if small else ""
    if any(q is not None and not q.known for q in (best.gain, best.loss)):
        text += " in single runs" if 1 in (best.n, against.n) else ", accuracy unknown"
    return f"{text}; no significant difference between the two" if against.cap in tuned.tied else text


def _format_gain(q: Quantity | None, more: str, less: str) -> str:
    if q is None or not q.is_resolved or not q.value:
        return ""
    word = more if q.value >= 0 else less
    text = fmt.format_percent(abs(q.value)) if q.expanded is None else fmt.format_change(abs(q.value), q.expanded)
    return f"{text.removeprefix('+')} {word}"


def _make_measured_table(tuned: Tuned) -> Table:
    columns = (
        "cap",
        "n",
        scale_column("energy", "J", [r.energy for r in tuned.rows]),
        scale_column("time", "s", [r.time for r in tuned.rows]),
    )
    return make_table(columns, [_make_row(tuned, r, (r.n, r.energy, r.time)) for r in tuned.rows])


def _make_compared_table(tuned: Tuned) -> Table:
    """Return a table of gain, loss and score against the highest cap, and the verdict."""
    has_score = tuned.goal.name not in PLAIN
    share = Column("gain", "%", is_share=True)
    columns: list[Column | str] = [
        "cap",
        share,
        replace(share, name="loss"),
        *([Column(tuned.goal.name, signed=True)] if has_score else []),
    ]
    rows = []
    for r in tuned.rows:
        is_reference = r.cap == tuned.reference
        figures: list[TableCell] = [None, None, "1"] if is_reference else [r.gain, r.loss, r.score]
        rows.append(_make_row(tuned, r, (*figures[: len(columns) - 1], _word_verdict(tuned, r))))
    return make_table([*columns, Column("", align="left")], rows)


def _make_row(tuned: Tuned, row: Row, cells: Sequence[TableCell]) -> TableRow:
    label = f"{row.shown}{'*' if row.cap == tuned.reference else ''}"
    return TableRow((label, *cells), "best" if row.cap == tuned.choice else "")


def _word_verdict(tuned: Tuned, row: Row) -> str:
    if row.doubt:
        return row.doubt
    if row.cap == tuned.choice:
        return "best"
    return "~" if row.cap in tuned.tied else ""


def list_tuning_facts(tuned: Tuned) -> list[tuple[str, str]]:
    """Return the lines below the table, each with its label."""
    kinds = {"runs": "trial", "online": "window"}
    price, kind = tuned.price, kinds[tuned.mode]
    spent_more = tuned.saved is not None and tuned.saved.value < 0 and tuned.saved.is_resolved
    found = [("why", tuned.why), ("spent" if spent_more else "saved", _describe_saving(tuned))]
    if tuned.scopes and tuned.rows:
        found.append(("energy", f"of {fmt.join_scopes(tuned.scopes.split(', '))}"))
    if price.trials:
        many = f"{price.trials} {kind}{'s' if price.trials > 1 else ''}"
        spent = f"{many}: {_format_joules(price.energy_j)} and {fmt.format_duration(price.time_s)}"
        best = tuned.row(tuned.choice)
        more = (
            f"; {_format_joules(price.more_j)} and {_format_seconds(price.more_s)} more than under {best.shown}"
            if best
            else ""
        )
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


def _describe_saving(tuned: Tuned) -> str:
    base, best = tuned.row(tuned.reference), tuned.row(tuned.choice)
    if tuned.saved is None or base is None or best is None or (best is base and tuned.mode == "runs"):
        return ""
    amount = tuned.saved.value
    size = _format_joules(abs(amount)) if tuned.saved.expanded is None else fmt.format_quantity(abs(tuned.saved), "J")
    saving = f"{size} {'' if amount >= 0 else 'more '}{tuned.over}" if tuned.saved.is_resolved else fmt.NOT_RESOLVED
    took = "" if tuned.slower is None else f", {_format_time(tuned.slower)}"
    always = " all the time" if tuned.mode == "online" else ""
    against = f"{saving}{took}, against {base.shown}{always}"
    if not tuned.saved.is_resolved:
        return against
    return f"{against}{_describe_payback(tuned, base, best)}" if tuned.sure else f"not sure: {against}"


def _describe_payback(tuned: Tuned, base: Row, best: Row) -> str:
    """Return the time or the number of runs after which tuning has paid for itself."""
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


def _format_joules(value: float) -> str:
    factor, unit = fmt.choose_scale([value], "J")
    return f"{fmt.format_number(value / factor, 3)} {unit}"


def _format_time(q: Quantity) -> str:
    """Return by how much something takes longer or shorter, with its interval if that is known."""
    wide, word = q.expanded, "longer" if q.value >= 0 else "shorter"
    if not q.is_resolved:
        return f"change of time {fmt.NOT_RESOLVED}"
    if not wide:
        return f"{_format_seconds(q.value)} {word}"
    if abs(q.value) < MINUTES_S:
        return f"{fmt.format_quantity(abs(q), 's')} {word}"
    return f"{_format_seconds(q.value)} ± {fmt.format_duration(wide)} {word}"


def _format_seconds(value: float) -> str:
    return fmt.format_duration(abs(value))
