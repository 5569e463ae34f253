"""Show the answer of a run first: energy and its interval, time, power, coverage, cost, work, one table, three notes.

`joulelab run`, `joulelab show`, `print(measurement)`, callbacks and notebooks begin with these lines; `run_tables.py`
has the rest (`joulelab show --all`).
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.analysis.marked_phases import list_figure_kinds
from joulelab.core.scope import FAMILIES, find_family
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.cap_tables import list_cap_facts
from joulelab.report.footprint_text import list_footprint_facts
from joulelab.report.messages import word_check, word_checks
from joulelab.report.run_rows import list_energy_rows, list_phase_rows
from joulelab.report.run_tables import (
    J_PER_KWH,
    WORTH_KWH,
    choose_work_kinds,
    explain_no_energy,
    explain_no_interval,
    list_missing_facts,
    list_workload_facts,
    make_phase_table,
    name_ending,
)
from joulelab.report.tables import Column, MarkedCell, Table, TableRow, make_table, scale_column
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts, write_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.report.run_rows import EnergyRow

MOST_NOTES = 3
MOST_WORK_LINES = 2
LABEL_WIDTH = 10
TEXT_WIDTH = 80  # columns of `print(m)`, and of a command with its remark
PARTS = {"gpu": "GPU", "cpu": "CPU", "accel": "accelerator board", "module": "module"}
WHOLES = {
    "node.ac": "the whole node at the wall",
    "node.dc": "the whole node behind its power supplies",
    "psys": "the platform (psys)",
    "rack": "the rack",
    "job": "what the cluster accounted for the job",
}
NODE_WHOLES = ("node.ac", "node.dc", "rack", "job", "outlet", "psu", "psu.dc", "psys")
LABELS = {"dram": "memory", "node.ac": "node (wall)", "node.dc": "node (DC)"}


def lay_out_summary(
    result: Result, folder: Path, *, width: int, handle: str, problems: Sequence[str] = ()
) -> list[TextBlock]:
    """Return the answer of a run as blocks for a terminal; `handle` is the name of the run in commands."""
    blocks: list[TextBlock] = [list_facts(list_answer_facts(result, width), label_width=LABEL_WIDTH)]
    if result.energy is not None and (rows := choose_summary_rows(result)):
        blocks += [BLANK_LINE, make_summary_table(rows, result.energy)]
    notes, hidden = choose_notes(result, problems)
    lines = list(notes)
    if result.energy is None:
        lines += list_missing_facts(result)
    if lines:
        blocks += [BLANK_LINE, list_facts(lines, label_width=LABEL_WIDTH, styles=STATUS_STYLES)]
    blocks.append(BLANK_LINE)
    return blocks + [
        TextLine(f"{label:<{LABEL_WIDTH}} {text}", is_wrapped=False)
        for label, text in list_next_commands(result, folder, handle, hidden)
    ]


def list_answer_facts(result: Result, width: int, *, has_hint: bool = True) -> list[tuple[str, str]]:
    """Return the labelled lines of the answer: command, energy, coverage, cost, caps, work, quality.

    With `has_hint`, one line says how to set a site if none is set.
    """
    end = f" · {fmt.format_duration(result.duration_s)} · {name_ending(result)}"
    room = max(width - LABEL_WIDTH - 1 - len(end), 20)
    title = fmt.shorten_end(shlex.join(result.command), room)
    lines = [("joulelab", f"{title}{end}")]
    if result.twin:
        label, _, text = fmt.name_twins([result.twin]).partition(": ")
        lines.append((label, text))
    lines.append(("energy", write_energy_answer(result)))
    if covers := describe_coverage(result):
        lines.append(("covers", covers))
    lines += list_footprint_facts(result, has_hint=has_hint) + list_cap_facts(result) + list_work_answers(result)
    return lines + [(label, text) for label, text in list_workload_facts(result) if label in ("data", "quality")]


def write_energy_answer(result: Result) -> str:
    """Return energy with its interval and mean power in one line, or the reason why there is none."""
    energy, whole = result.energy, result.group("measured")
    if energy is None or whole is None:
        if result.is_damaged:
            return "no total: a file of the run cannot be read or is missing"
        if result.outcome == "imported":
            return "none: the imported data has neither power nor energy"
        return explain_no_energy(result)
    if not energy.is_resolved:
        return fmt.word_unresolved(energy)
    so_far = " so far" if result.state == "live" else ""
    mean = fmt.format_watts(whole.mean_w.value, whole.mean_w.expanded)
    return (
        f"{format_energy(energy, estimate=whole.estimate, why=explain_no_interval(result))}{so_far}, {mean} on average"
    )


def format_energy(energy: Quantity, *, estimate: bool = False, why: str = fmt.ACCURACY_UNKNOWN) -> str:
    """Return an energy with its interval, also in percent: in kWh from 0.1 kWh up, else in joules."""
    if not energy.is_resolved:
        return fmt.word_unresolved(energy)
    factor, unit = (
        (J_PER_KWH, "kWh") if abs(energy.value) >= WORTH_KWH * J_PER_KWH else fmt.choose_scale([energy.value], "J")
    )
    notes = [fmt.format_relative(energy) if energy.expanded is not None else why, "estimate" if estimate else ""]
    text = fmt.mark_figure(
        fmt.format_number(energy.value / factor)
        if energy.expanded is None
        else fmt.format_interval(energy.value / factor, energy.expanded / factor),
        unit,
        estimate=estimate,
    )
    return f"{text} ({', '.join(note for note in notes if note)})"


def describe_coverage(result: Result) -> str:
    """Return in words what the energy covers, and whether a part of the node has no meter."""
    whole = result.group("measured")
    if whole is None:
        return ""
    counts: dict[str, int] = {}
    for scope in whole.scopes:
        counts[find_family(scope)] = counts.get(find_family(scope), 0) + 1
    names = [_name_family(family, count) for family, count in counts.items()]
    hosts = f" on {len(set(whole.hosts))} nodes" if len(set(whole.hosts)) > 1 else ""
    if not any(family in NODE_WHOLES for family in counts):
        if set(counts) == {"gpu"}:
            return f"GPUs only ({counts['gpu']}){hosts}: no meter for the rest of the node"
        return f"{', '.join(names)}{hosts}; nothing measures the rest of the node"
    return f"{', '.join(names)}{hosts}"


def _name_family(family: str, count: int) -> str:
    if family in WHOLES:
        return WHOLES[family] if count == 1 else f"{count} x {WHOLES[family].removeprefix('the ')}"
    if family == "dram":
        return "memory"
    name = PARTS.get(family, family)
    return f"{count} {name}{'s' if count > 1 else ''}"


def list_work_answers(result: Result) -> list[tuple[str, str]]:
    """Return lines of amount, energy per unit and rate of the work that the run reported."""
    per_work, lines = result.per_work(), []
    for kind in choose_work_kinds(list_figure_kinds(result.work))[:MOST_WORK_LINES]:
        parts = []
        if kind in per_work and per_work[kind].is_resolved:
            whole = result.group("measured")
            one = f"J/{kind.removesuffix('s')}"
            parts.append(fmt.format_quantity(per_work[kind], one, estimate=bool(whole and whole.estimate), why=""))
        if result.duration_s > 0:
            parts.append(fmt.format_work_rate(result.work[kind] / result.duration_s, kind))
        lines.append(("work", f"{fmt.format_work(result.work[kind], kind)}: {', '.join(parts)}"))
    return lines


def choose_summary_rows(result: Result) -> list[EnergyRow]:
    """Choose one row for each kind of device inside the node, the outermost whole, and its rest if it is resolved."""
    rows = [row for row in list_energy_rows(result) if row.label != "measured"]
    summed = {group.name for group in result.groups if len(group.scopes) > 1}
    kept = [row for row in rows if row.total or _find_row_family(row) not in summed]
    whole = next((family for family in reversed(FAMILIES) if any(_find_row_family(row) == family for row in kept)), "")
    return [
        row
        for row in kept
        if (not row.is_derived and (_find_row_family(row) == whole or _find_row_family(row) not in NODE_WHOLES))
        or (row.is_derived and row.label.endswith(f"rest of {whole}") and row.energy.is_resolved)
    ]


def _find_row_family(row: EnergyRow) -> str:
    return find_family(row.label.rpartition("/")[2].partition(" (")[0])


def make_summary_table(rows: Sequence[EnergyRow], whole: Quantity) -> Table:
    """Return energy, share of the total, mean and highest power of each kind of device."""
    energy = scale_column("energy", "J", [row.energy for row in rows])
    power = scale_column("mean", "W", [w for row in rows for w in (row.mean_w, row.max_w)])
    has_peak = any(row.max_w is not None for row in rows)
    columns = [Column("", align="left"), energy, Column("share", "%"), replace(power, bare=True)]
    columns += [Column("peak", power.unit, factor=power.factor)] if has_peak else []
    made = []
    for row in rows:
        name, _, count = row.label.partition(" (")
        label = "rest of the node" if row.is_derived else LABELS.get(name, name) + (f" ({count}" if count else "")
        share = row.energy.value / whole.value if whole.value and row.energy.is_resolved else None
        cells = (
            label,
            MarkedCell(row.energy, "~" if row.estimate else ""),
            None if share is None else f"{100 * share:.0f}",
            row.mean_w if row.energy.is_resolved else None,
            row.max_w,
        )
        made.append(TableRow(cells[: len(columns)]))
    return make_table(columns, made)


def choose_notes(result: Result, problems: Sequence[str] = ()) -> tuple[list[tuple[str, str]], int]:
    """Choose the three most important notes, each with its next step; return them and the number of the others."""
    lines = [("problem", text) for text in problems]
    if (bound := result.bound_check) is not None:
        worded = word_check(bound)
        lines.append((worded.status, f"{worded.text}\n-> {worded.next}"))
    for check in word_checks(result.checks):
        if (check.name == "power meter" and not result.scopes) or (check.name == "unseen" and bound is not None):
            continue
        advice = f"\n-> {check.next}" if check.next else ""
        lines.append((check.status, f"{check.name}: {check.text}{advice}"))
    return lines[:MOST_NOTES], max(len(lines) - MOST_NOTES, 0)


def list_next_commands(result: Result, folder: Path, handle: str, hidden: int) -> list[tuple[str, str]]:
    """Return commands to copy: the page of the run, all that is known about it, or a try without a meter."""
    lines = [("run", f"{folder}{f' ({result.name})' if result.name else ''}")]
    if not result.scopes:
        if result.outcome != "imported":
            lines.append(("try", f"joulelab twin -- joulelab run -- {shlex.join(result.command)}   # a simulated node"))
        return lines
    more = []
    if result.phases:
        more.append("phases")
    if hidden:
        more.append(f"{hidden} more {'note' if hidden == 1 else 'notes'}")
    more.append("meters")
    all_of_it, remark = f"joulelab show {handle} --all", f"   # {', '.join(more)}"
    return [
        *lines,
        ("more", all_of_it + (remark if LABEL_WIDTH + 1 + len(all_of_it + remark) <= TEXT_WIDTH else "")),
        ("next", f"joulelab report {handle} --open"),
    ]


def describe_measurement(title: str, duration_s: float, run: Path | None, result: Result | None) -> str:
    """Return a measurement as text, for `print(m)`: the answer, the table of devices, the phases inside, notes."""
    head = f"{escape_unprintable(title)} · {fmt.format_duration(duration_s)}"
    if run is None or result is None:
        return f"{head} · not recorded"
    facts = [("joulelab", f"{head} · run {run.name}"), *list_answer_facts(result, TEXT_WIDTH, has_hint=False)[1:]]
    blocks: list[TextBlock] = [list_facts(facts, label_width=LABEL_WIDTH)]
    if result.energy is not None and (rows := choose_summary_rows(result)):
        blocks += [BLANK_LINE, make_summary_table(rows, result.energy)]
    if result.phases:
        blocks += [BLANK_LINE, make_phase_table(list_phase_rows(result))]
    notes, _ = choose_notes(result)
    if notes:
        blocks += [BLANK_LINE, list_facts(notes, label_width=LABEL_WIDTH)]
    return write_blocks(blocks, TEXT_WIDTH).rstrip("\n")
