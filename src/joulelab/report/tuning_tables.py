"""Show the result of a tuning: the settings that were tried, the choice, its saving and the cost of the trials."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.messages import set_command_apart, word_notes
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
    from joulelab.study.tuning.tuning_result import SettingRow, TuningResult

COVERAGE = "intervals are expanded uncertainties (k = 2); * is what the others are compared with"
TIED = "~ no significant difference from the best"
PLAIN = ("energy", "time", "eds")  # goals whose score is in the table anyhow, or follows from it by a sum


def lay_out_tuning(result: TuningResult, *, width: int) -> list[TextBlock]:
    """Return the whole result of a tuning, for a terminal."""
    blocks: list[TextBlock] = [BLANK_LINE, TextLine(write_tuning_headline(result), "bold")]
    if result.rows:
        measured, compared = _make_measured_table(result), _make_compared_table(result)
        whole = join_tables(measured, compared)
        for table in [whole] if measure_table(whole) <= width else [measured, compared]:
            blocks += [BLANK_LINE, table]
        blocks.append(BLANK_LINE)
    facts = [(name, text) for name, text in list_tuning_facts(result) if text]
    return [*blocks, list_facts(facts, styles=STATUS_STYLES)]


def write_tuning_headline(result: TuningResult) -> str:
    """Return the choice in a sentence."""
    best = result.find_row(result.choice)
    if best is None:
        return f"No {result.noun} was chosen for {result.goal.text}."
    so_far = "" if result.complete else " so far"
    text = f"Best {result.noun} for {result.goal.text}{so_far}: {best.label}"
    if best.setting == result.reference:
        return f"{text}, the highest" + ("; no significant difference from others" if result.tied else "")
    changes = [_format_gain(best.gain, "less energy", "more energy"), _format_gain(best.loss, "longer", "faster")]
    known = [c for c in changes if c]
    against = result.find_row(result.reference)
    if against is None:
        return text
    text = f"{text}: {', '.join(known)} than {against.label}" if known else text
    pairs = (("energy", best.gain), ("time", best.loss))
    small = [name for name, q in pairs if q is not None and not q.is_resolved]
    text += f"; change of {' and '.join(small)} {fmt.NOT_RESOLVED}" if small else ""
    if any(q is not None and not q.known for q in (best.gain, best.loss)):
        text += " in single runs" if 1 in (best.n, against.n) else ", accuracy unknown"
    return f"{text}; no significant difference between the two" if against.setting in result.tied else text


def _format_gain(q: Quantity | None, more: str, less: str) -> str:
    if q is None or not q.is_resolved or not q.value:
        return ""
    word = more if q.value >= 0 else less
    text = fmt.format_percent(abs(q.value)) if q.expanded is None else fmt.format_change(abs(q.value), q.expanded)
    return f"{text.removeprefix('+')} {word}"


def _make_measured_table(result: TuningResult) -> Table:
    columns = (
        result.noun,
        "n",
        scale_column("energy", "J", [r.energy for r in result.rows]),
        scale_column("time", "s", [r.time for r in result.rows]),
    )
    return make_table(columns, [_make_row(result, r, (r.n, r.energy, r.time)) for r in result.rows])


def _make_compared_table(result: TuningResult) -> Table:
    """Return a table of gain, loss and score against the highest setting, and the verdict."""
    has_score = result.goal.name not in PLAIN
    share = Column("gain", "%", is_share=True)
    columns: list[Column | str] = [
        result.noun,
        share,
        replace(share, name="loss"),
        *([Column(result.goal.name, signed=True)] if has_score else []),
    ]
    rows = []
    for r in result.rows:
        is_reference = r.setting == result.reference
        figures: list[TableCell] = [None, None, "1"] if is_reference else [r.gain, r.loss, r.score]
        rows.append(_make_row(result, r, (*figures[: len(columns) - 1], _word_verdict(result, r))))
    return make_table([*columns, Column("", align="left")], rows)


def _make_row(result: TuningResult, row: SettingRow, cells: Sequence[TableCell]) -> TableRow:
    label = f"{row.label}{'*' if row.setting == result.reference else ''}"
    return TableRow((label, *cells), "best" if row.setting == result.choice else "")


def _word_verdict(result: TuningResult, row: SettingRow) -> str:
    if row.doubt:
        return row.doubt
    if row.setting == result.choice:
        return "best"
    return "~" if row.setting in result.tied else ""


def list_tuning_facts(result: TuningResult) -> list[tuple[str, str]]:
    """Return the lines below the table, each with its label."""
    kinds = {"runs": "trial", "online": "window"}
    cost, kind = result.cost, kinds[result.mode]
    spent_more = result.saved is not None and result.saved.value < 0 and result.saved.is_resolved
    found = [("why", result.why), ("spent" if spent_more else "saved", _describe_saving(result))]
    if result.scopes and result.rows:
        found.append(("energy", f"of {fmt.join_scopes(result.scopes.split(', '))}"))
    if cost.trials:
        many = f"{cost.trials} {kind}{'s' if cost.trials > 1 else ''}"
        spent = f"{many}: {_format_joules(cost.energy_j)} and {fmt.format_duration(cost.time_s)}"
        best = result.find_row(result.choice)
        more = (
            f"; {_format_joules(cost.more_j)} and {_format_seconds(cost.more_s)} more than under {best.label}"
            if best
            else ""
        )
        found.append(("cost", spent + more))
    elif result.mode == "runs" and result.rows:
        found.append(("cost", "nothing: all trials were there already"))
    found += [("note", set_command_apart(note)) for note in word_notes(result.notes)]
    if result.rows:
        per = f"energy and time are per {name_one(result.unit)}; " if result.unit else ""
        found.append(("note", f"{per}{COVERAGE}{'; ' + TIED if result.tied else ''}"))
    found += [("problem", problem) for problem in result.problems]
    found.append(("study" if result.mode == "runs" else "run", result.folder))
    found.append(("next", result.next))
    return found


def _describe_saving(result: TuningResult) -> str:
    base, best = result.find_row(result.reference), result.find_row(result.choice)
    if result.saved is None or base is None or best is None or (best is base and result.mode == "runs"):
        return ""
    amount = result.saved.value
    size = _format_joules(abs(amount)) if result.saved.expanded is None else fmt.format_quantity(abs(result.saved), "J")
    saving = f"{size} {'' if amount >= 0 else 'more '}{result.over}" if result.saved.is_resolved else fmt.NOT_RESOLVED
    took = "" if result.slower is None else f", {_format_time(result.slower)}"
    always = " all the time" if result.mode == "online" else ""
    against = f"{saving}{took}, against {base.label}{always}"
    if not result.saved.is_resolved:
        return against
    return f"{against}{_describe_payback(result, base, best)}" if result.is_saving_sure else f"not sure: {against}"


def _describe_payback(result: TuningResult, base: SettingRow, best: SettingRow) -> str:
    """Return the time or the number of runs after which tuning has paid for itself."""
    assert result.saved is not None
    each = base.energy.value - best.energy.value
    if each <= 0:
        return ""
    if result.mode == "online":
        left_s = -result.saved.value / each * best.time.value
        return f"; {fmt.format_duration(left_s)} more of it would have paid for the windows" if left_s > 0 else ""
    if result.saved.value <= 0 or not result.cost.energy_j:
        return ""
    return f"; {math.ceil(result.cost.energy_j / result.saved.value)} runs pay for the trials"


def _format_joules(value: float) -> str:
    return fmt.format_rough(value, "J")


def _format_time(q: Quantity) -> str:
    """Return by how much something takes longer or shorter, with its interval if that is known."""
    wide, word = q.expanded, "longer" if q.value >= 0 else "shorter"
    if not q.is_resolved:
        return f"change of time {fmt.NOT_RESOLVED}"
    if not wide:
        return f"{_format_seconds(q.value)} {word}"
    return f"{fmt.format_interval(abs(q.value), wide)} s {word}"


def _format_seconds(value: float) -> str:
    return fmt.format_duration(abs(value))
