"""Show the answer of a run first: energy and its interval, time, power, coverage, cost, work, one table, three notes.

`joulelab run`, `show`, `import`, `join`, `watch`, `print(measurement)`, callbacks, notebooks and pages begin with these
lines, or with all of them in one sentence (`write_headline`); `run_tables.py` has the rest (`joulelab show --all`).
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.analysis.marked_phases import DATA_FACT, QUALITY_FACT, find_work_phase, list_figure_kinds, read_quality
from joulelab.core.scope import FAMILIES, find_family
from joulelab.core.text import escape_unprintable, name_one
from joulelab.report import format as fmt
from joulelab.report.cap_tables import list_cap_facts
from joulelab.report.footprint_text import list_footprint_facts
from joulelab.report.limit_text import REACHED, list_limit_facts
from joulelab.report.messages import add_next_step, word_check, word_checks
from joulelab.report.run_rows import has_too_few_readings, list_energy_rows, list_phase_rows
from joulelab.report.tables import HARD_BLANK, Column, MarkedCell, Table, TableCell, TableRow, make_table, scale_column
from joulelab.report.terminal import BLANK_LINE, STATUS_STYLES, TextBlock, TextLine, list_facts, write_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.report.run_rows import EnergyRow, PhaseRow

MOST_NOTES = 3
LEFT_OUT = " ..."  # in place of words of a command
MOST_WORK_LINES = 2
MOST_KINDS = 3  # of work, in a table
MOST_PHASE_ROWS = 5  # below the devices; `--all` has the others
MOST_OF_NAME = 24  # letters of the name of a phase, in a line
MOST_UNBROKEN = 60  # letters that fit into any line
MOST_LONG = 6  # texts that are too long for a line and are named only
LABEL_WIDTH = 10
TEXT_WIDTH = 80  # columns of `print(m)`, and of a command with its remark
SAME_RATE = 0.02  # rates that differ by less are shown once
BEHIND = {"FLOP": 1, "steps": 2, "validated": 3}  # kinds of work that come after others
TOO_FEW = "too few readings for an interval"
NO_INTERVAL_REASON = "the accuracy of a meter is unknown, or there were too few readings"
NO_POWER_METER = "no power meter was read (`joulelab meters` shows why)"
# Options in next steps, and what a Python program writes instead.
PYTHON_ARGUMENTS = {"--tail 2": "joulelab.measure(..., tail_s=2)", "--idle": "idle_s in joulelab.measure()"}
PARTS = {"gpu": "GPU", "cpu": "CPU", "accel": "accelerator board", "module": "module"}
WHOLES = {
    "node.ac": "the whole node at the wall",
    "node.dc": "the whole node behind its power supplies",
    "psys": "the platform (psys)",
    "rack": "the rack",
    "job": "what the cluster accounted for the job",
}
SHARED = "shared-node"
USUAL_METERS = ("nvml", "rapl")
NODE_WHOLES = ("node.ac", "node.dc", "rack", "job", "outlet", "psu", "psu.dc", "psys")
CALIBRATED = re.compile(r"(\d{4}-\d\d-\d\d) against ")  # the reference of a meter with a calibration of its own
LABELS = {"dram": "memory", "node.ac": "node (wall)", "node.dc": "node (DC)"}
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    6: "SIGABRT",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
}


# The answer ------------------------------------------------------------------------------------------------------


def write_headline(result: Result) -> str:
    """Return the answer as one sentence: energy, time, mean power, cost and CO2e, energy per work, coverage."""
    answer = write_energy_answer(result, has_time=True)
    parts = [answer]
    if result.energy is None or not result.energy.is_resolved:
        label = "" if answer.startswith("no ") else "energy: "
        what = "covers" if result.outcome == "imported" else "took"
        parts = [f"{label}{answer}", f"it {what} {fmt.format_duration(result.duration_s)}"]
    parts += [text for _, text in list_footprint_facts(result)]
    parts += [text for text in (write_work_price(result, kind) for kind in _list_kinds(result)[:1]) if text]
    return "; ".join([*parts, *([covers] if (covers := describe_coverage(result)) else [])])


def lay_out_summary(
    result: Result, folder: Path, *, width: int, handle: str, problems: Sequence[str] = ()
) -> list[TextBlock]:
    """Return the answer of a run as blocks for a terminal; `handle` is the name of the run in commands."""
    blocks, hidden = _lay_out_answer(list_answer_facts(result, width), result, problems)
    more = ["phases"] if result.phases else []
    more += [f"{hidden} more {'note' if hidden == 1 else 'notes'}"] if hidden else []
    return [*blocks, BLANK_LINE, *lay_out_commands(result, folder, handle, ("--all", ", ".join([*more, "meters"])))]


def describe_measurement(title: str, duration_s: float, run: Path | None, result: Result | None) -> str:
    """Return a measurement as text, for `print(m)`: the answer, one table of devices and phases, notes."""
    head = f"{escape_unprintable(title)} · {fmt.format_duration(duration_s)}"
    if run is None or result is None:
        return f"{head} · not recorded"
    facts = [("joulelab", f"{head} · run {run.name}"), *list_answer_facts(result, TEXT_WIDTH, has_hint=False)[1:]]
    return write_blocks(_lay_out_answer(facts, result, is_python=True)[0], TEXT_WIDTH).rstrip("\n")


def _lay_out_answer(
    facts: Sequence[tuple[str, str]], result: Result, problems: Sequence[str] = (), *, is_python: bool = False
) -> tuple[list[TextBlock], int]:
    """Return the answer, one table and the notes as blocks, and the number of notes that are left out."""
    blocks: list[TextBlock] = [list_facts(avoid_breaks(facts), label_width=LABEL_WIDTH)]
    if result.energy is not None and (rows := choose_summary_rows(result)):
        blocks += [BLANK_LINE, make_summary_table(rows, result.energy, choose_phase_rows(result))]
    notes, hidden = choose_notes(result, problems, is_python=is_python)
    if result.energy is None:
        notes += list_missing_facts(result)[: MOST_NOTES - len(notes)]
    if notes:
        blocks += [BLANK_LINE, list_facts(notes, label_width=LABEL_WIDTH, styles=STATUS_STYLES)]
    return blocks, hidden


def list_answer_facts(
    result: Result, width: int, *, has_hint: bool = True, every: bool = False
) -> list[tuple[str, str]]:
    """Return the labelled lines of the answer: command, energy, coverage, cost, caps, work, quality.

    With `has_hint`, one line says how to set a site if none is set; with `every`, all work and all facts are listed.
    """
    end = f" · {fmt.format_duration(result.duration_s)} · {name_ending(result)}"
    room = max(width - LABEL_WIDTH - 1 - len(end), 20)
    lines = [("joulelab", f"{shlex.join(result.command) if every else _shorten_command(result, room)}{end}")]
    if result.twin:
        label, _, text = fmt.name_twins([result.twin]).partition(": ")
        lines.append((label, text))
    lines.append(("energy", write_energy_answer(result)))
    if covers := describe_coverage(result):
        lines.append(("covers", covers))
    lines += list_calibration_facts(result) + list_share_facts(result)
    lines += list_footprint_facts(result, has_hint=has_hint) + list_limit_facts(result) + list_cap_facts(result)
    lines += list_work_facts(result, every=every)
    return lines + [fact for fact in list_workload_facts(result) if every or fact[0] in ("data", "quality")]


def _shorten_command(result: Result, room: int) -> str:
    """Return the command in one line: the program without its folder, and as many whole words as there is room for."""
    words = [shlex.quote(word) for word in result.command]
    words[:1] = [shlex.quote(word.rpartition("/")[2] or word) for word in result.command[:1]]
    if len(" ".join(words)) <= room:
        return fmt.shorten_end(" ".join(words), room)
    while len(words) > 1 and len(" ".join(words)) + len(LEFT_OUT) > room:
        words.pop()
    return fmt.shorten_end(" ".join(words), room - len(LEFT_OUT)) + LEFT_OUT


def write_energy_answer(result: Result, *, has_time: bool = False) -> str:
    """Return energy with its interval and mean power in one line, or the reason why there is none."""
    energy, whole = result.energy, result.group("measured")
    if energy is None or whole is None:
        if result.is_damaged:
            return "no total: a file of the run cannot be read or is missing"
        if result.outcome == "imported":
            return "no energy: the imported data has neither power nor energy"
        return explain_no_energy(result)
    if not energy.is_resolved:
        return fmt.word_unresolved(energy)
    so_far = " so far" if result.state == "live" else ""
    mean = fmt.format_watts(whole.mean_w.value, whole.mean_w.expanded)
    text = format_energy(energy, estimate=whole.estimate, why=explain_no_interval(result))
    time = f" in {fmt.format_duration(result.duration_s)}" if has_time else ""
    return f"{text}{time}{so_far}, {mean} on average"


def format_energy(energy: Quantity, *, estimate: bool = False, why: str = fmt.ACCURACY_UNKNOWN) -> str:
    """Return an energy with its interval, also in percent: in kWh from 0.1 kWh up, else in joules."""
    if not energy.is_resolved:
        return fmt.word_unresolved(energy)
    factor, unit = fmt.choose_energy_unit(energy.value)
    notes = [fmt.format_relative(energy) if energy.expanded is not None else why, "estimate" if estimate else ""]
    text = fmt.mark_figure(
        fmt.format_number(energy.value / factor)
        if energy.expanded is None
        else fmt.format_interval(energy.value / factor, energy.expanded / factor),
        unit,
        estimate=estimate,
    )
    return f"{text} ({', '.join(note for note in notes if note)})"


def write_live_figures(now_w: float, energy: Quantity | None, elapsed_s: float, *, estimate: bool = False) -> str:
    """Return power now, energy so far (None = not known) and time in one short line: `4.87 kW · 0.31 kWh · 200 s`."""
    parts = [fmt.format_rough(now_w, "W") if math.isfinite(now_w) else "no reading"]
    if energy is not None and energy.is_resolved:
        factor, unit = fmt.choose_energy_unit(energy.value)
        value, wide = energy.value / factor, (energy.expanded or 0.0) / factor
        parts.append(f"{fmt.format_rounded(value, wide) if wide else fmt.format_number(value, 3)} {unit}")
    marked = [f"~{part}" if estimate and part[0].isdigit() else part for part in parts]
    return " · ".join([*marked, fmt.format_rough_duration(max(elapsed_s, 0.0))])


def explain_no_energy(result: Result) -> str:
    """Return why nothing was measured: meters that gave no readings with their reasons, or that there is no meter."""
    unread = [word_check(check).text for check in result.checks if check.name == "not read"]
    return f"no energy: {'; '.join(unread)}" if unread else NO_POWER_METER


def explain_no_interval(result: Result) -> str:
    """Return why the energy of a run has no interval: too few readings, or an accuracy that is not known."""
    whole = result.group("measured")
    unsure = [s for s in result.scopes if whole and s.scope in whole.scopes and not s.energy.known]
    return TOO_FEW if unsure and all(map(has_too_few_readings, unsure)) else fmt.ACCURACY_UNKNOWN


def name_ending(result: Result) -> str:
    """Return how the workload ended, in words; of nodes that ended differently, on the first that failed."""
    where = next((f" on {check.scope}" for check in result.checks if check.code == "joined-failed"), "")
    if result.outcome == "exit":
        return f"exit {result.exit_code}{where}"
    if result.outcome == "signal":
        return f"killed by {SIGNALS.get(result.signal or 0, f'signal {result.signal}')}{where}"
    words = {"not-started": "could not be started", "interrupted": "interrupted before it began"}
    words |= {"live": "still running", "killed": "joulelab was killed"}
    if result.outcome == "imported" and "origin" in result.labels:
        return f"from {result.labels['origin']}"
    return words.get(result.outcome, result.outcome)


def describe_coverage(result: Result) -> str:
    """Return in words what the energy covers, and whether a part of the node has no meter."""
    whole = result.group("measured")
    if whole is None:
        return ""
    return word_coverage(whole.scopes, len(set(whole.hosts)))


def word_coverage(scopes: Iterable[str], nodes: int) -> str:
    """Return in words what some scopes on some nodes cover: `GPUs only (4): no meter for the rest of the node`."""
    counts: dict[str, int] = {}
    for scope in scopes:
        family = find_family(scope)
        # A scope of all devices of a kind has no number: how many there are is not known.
        counts[family] = counts.get(family, 0) + (0 if family in PARTS and scope == family else 1)
    names = [_name_family(family, count) for family, count in counts.items()]
    where, rest = (f" on {nodes} nodes", "the rest of the nodes") if nodes > 1 else ("", "the rest of the node")
    if any(family in NODE_WHOLES for family in counts):
        return f"{', '.join(names)}{where}"
    if set(counts) == {"gpu"}:
        number = f" ({counts['gpu']})" if counts["gpu"] else ""
        return f"GPUs only{number}{where}: no meter for {rest}"
    return f"{', '.join(names)}{where}; nothing measures {rest}"


def _name_family(family: str, count: int) -> str:
    if family in WHOLES:
        return WHOLES[family] if count == 1 else f"{count} x {WHOLES[family].removeprefix('the ')}"
    if family == "dram":
        return "memory"
    name = PARTS.get(family, family)
    return f"{count} {name}{'s' if count > 1 else ''}" if count else f"{name}s"


def list_calibration_facts(result: Result) -> list[tuple[str, str]]:
    """Return a line for the scopes whose meters were calibrated, with the day and the reference."""
    found: dict[str, list[str]] = {}
    for scope in (s for s in result.scopes if find_calibration_day(s.reading.accuracy, s.reading.reference)):
        found.setdefault(scope.reading.reference, []).append(scope.scope)
    return [("calibrated", f"{fmt.join_scopes(scopes)} on {text}") for text, scopes in found.items()]


def list_share_facts(result: Result) -> list[tuple[str, str]]:
    """Return the line of the run's part in the energy of a node that others used, too."""
    return [("share", word_check(check).text) for check in result.checks if check.code.startswith(SHARED)]


def find_calibration_day(accuracy: str, reference: str) -> str:
    """Return the day of a calibration by `joulelab calibrate`, empty for other sources of an accuracy."""
    found = CALIBRATED.match(reference) if accuracy == "calibrated" else None
    return "" if found is None else found[1]


# Work and facts --------------------------------------------------------------------------------------------------


def choose_work_kinds(kinds: Iterable[str]) -> list[str]:
    """Choose up to three kinds of work: samples and tokens before steps and FLOP."""
    return sorted(dict.fromkeys(kinds), key=lambda kind: BEHIND.get(kind, 0))[:MOST_KINDS]


def _list_kinds(result: Result) -> list[str]:
    return choose_work_kinds(list_figure_kinds(result.work))


def write_work_price(result: Result, kind: str) -> str:
    """Return the energy per unit of a kind of work, empty if it is not known or not resolved."""
    price, whole = result.per_work().get(kind), result.group("measured")
    if price is None or not price.is_resolved:
        return ""
    return fmt.format_quantity(price, f"J/{name_one(kind)}", estimate=bool(whole and whole.estimate), why="")


def list_work_facts(result: Result, *, every: bool = False) -> list[tuple[str, str]]:
    """Return lines of amount, energy per unit and rate of the work that the run reported.

    With `every`: of all kinds, and also the rate in the phases with work where it differs from that of the run.
    """
    lines = []
    figures = list_figure_kinds(result.work)
    for kind in figures if every else choose_work_kinds(figures)[:MOST_WORK_LINES]:
        parts = [write_work_price(result, kind), _format_rates(result, kind, every=every)]
        lines.append(("work", f"{fmt.format_work(result.work[kind], kind)}: {', '.join(p for p in parts if p)}"))
    judged = [fmt.format_work(done, kind) for kind, done in result.work.items() if kind not in figures]
    return lines + ([("work", ", ".join(judged))] if judged and every else [])


def _format_rates(result: Result, kind: str, *, every: bool) -> str:
    """Return the rate of work over the run; with `every` also that in the phases with work if it is different."""
    if result.duration_s <= 0:
        return ""
    over_all, inside = result.work[kind] / result.duration_s, find_work_phase(result.phases, kind)
    if not every or inside is None or abs(inside[1] - over_all) <= SAME_RATE * over_all:
        return fmt.format_work_rate(over_all, kind)
    name = fmt.shorten_middle(inside[0], MOST_OF_NAME)
    return f"{fmt.format_work_rate(inside[1], kind)} in {name}, {fmt.format_work_rate(over_all, kind)} over all"


def list_workload_facts(result: Result) -> list[tuple[str, str]]:
    """Return the facts that the workload reported: its data, its quality, then the others in one line."""
    facts, quality = dict(result.facts), read_quality(result.facts)
    data = facts.pop(DATA_FACT, None)
    rest = {name: value for name, value in facts.items() if not quality or name not in (QUALITY_FACT, *quality)}
    long = [name for name, value in rest.items() if isinstance(value, str) and len(value) > fmt.MOST_OF_FACT]
    judged = ", ".join(f"{fmt.format_fact(name)} {fmt.format_quality(value)}" for name, value in quality.items())
    parts = [f"{fmt.format_fact(name)} = {fmt.format_fact(value)}" for name, value in rest.items() if name not in long]
    parts += [f"{', '.join(map(fmt.format_fact, long[:MOST_LONG]))}: see --json"] if long else []
    lines = [("data", "" if data is None else fmt.format_fact(data)), ("quality", judged), ("facts", "; ".join(parts))]
    return [(label, text) for label, text in lines if text]


def list_missing_facts(result: Result) -> list[tuple[str, str]]:
    """List the meters without readings: all of them if there is no energy, else those that can be repaired.

    Those that can be repaired come first, then those that most nodes have. Remarks on the source of readings are left
    to `joulelab doctor` and `joulelab meters --all`.
    """
    lines = []
    for m in sorted(result.missing, key=lambda m: (m["status"] == "unavailable", m["meter"] not in USUAL_METERS)):
        if result.scopes and (m["status"] == "unavailable" or m.get("code") == "meter.source"):
            continue
        why = f" ({m['why']})" if m["why"] else ""
        lines.append((m["meter"], add_next_step(f"{m['what'] or m['status']}{why}", m["next"])))
    return lines


def avoid_breaks(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return lines that are wrapped only between their parts, so that no figure is separated from its name."""
    found = []
    for label, text in lines:
        parts = re.split(r"(?<=[,;]) ", text)
        found.append((label, " ".join(p.replace(" ", HARD_BLANK) if len(p) <= MOST_UNBROKEN else p for p in parts)))
    return found


# Table, notes, commands ------------------------------------------------------------------------------------------


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


def choose_phase_rows(result: Result) -> list[PhaseRow]:
    """Choose the outermost phases, and the phases inside a single one if they are few; none if they are many."""
    rows = [row for row in list_phase_rows(result) if row.energy is not None]
    outer = [row for row in rows if row.depth == 0]
    inner = [row for row in rows if row.depth <= 1] if len(outer) == 1 else outer
    return next((some for some in (inner, outer) if len(some) <= MOST_PHASE_ROWS), [])


def make_summary_table(rows: Sequence[EnergyRow], whole: Quantity, phases: Sequence[PhaseRow] = ()) -> Table:
    """Return energy, share of the total, mean and highest power of each kind of device; below a rule, of each phase."""
    energies = [row.energy for row in rows] + [row.energy for row in phases if row.energy is not None]
    power = scale_column("mean", "W", [w for row in rows for w in (row.mean_w, row.max_w)])
    has_peak = any(row.max_w is not None for row in rows)
    columns = [Column("", align="left"), scale_column("energy", "J", energies), Column("share", "%")]
    columns += [replace(power, bare=True)]
    columns += [Column("peak", power.unit, factor=power.factor)] if has_peak else []
    columns += [Column("time")] if phases else []
    made = []
    for k, row in enumerate(rows):
        name, _, count = row.label.partition(" (")
        label = "rest of the node" if row.is_derived else LABELS.get(name, name) + (f" ({count}" if count else "")
        energy = MarkedCell(row.energy, "~" if row.estimate else "")
        mean_w = row.mean_w if row.energy.is_resolved else None
        cells: list[TableCell] = [
            label,
            energy,
            _format_share(row.energy, whole),
            mean_w,
            *([row.max_w] if has_peak else []),
        ]
        made.append(TableRow(tuple(cells), has_rule_below=bool(phases) and k == len(rows) - 1))
    for phase in phases:
        label = fmt.shorten_middle(phase.label + (" (open)" if phase.open_end else ""), MOST_OF_NAME)
        mean_w = divide_by_time(phase.energy, phase.duration_s)
        used = None if phase.energy is None else MarkedCell(phase.energy, "~" if phase.estimate else "")
        cells = [label, used, _format_share(phase.energy, whole), mean_w, *([""] if has_peak else [])]
        made.append(TableRow((*cells, fmt.format_duration(phase.duration_s)), depth=phase.depth))
    return replace(make_table(columns, made), no_interval=NO_INTERVAL_REASON)


def _format_share(energy: Quantity | None, whole: Quantity) -> str | None:
    if energy is None or not whole.value or not energy.is_resolved:
        return None
    return f"{100 * energy.value / whole.value:.0f}"


def divide_by_time(energy: Quantity | None, seconds: float) -> Quantity | None:
    """Return the mean power (W) of a phase, None if its energy is unknown or smaller than its interval."""
    return energy * (1 / seconds) if energy is not None and energy.is_resolved and seconds > 0 else None


def choose_notes(
    result: Result, problems: Sequence[str] = (), *, is_python: bool = False
) -> tuple[list[tuple[str, str]], int]:
    """Choose the three most important notes, each with its next step; return them and the number of the others.

    Where `is_python`, options of `joulelab run` are named as arguments of `joulelab.measure()`.
    """
    lines = list_notes(result, problems)
    for option, argument in PYTHON_ARGUMENTS.items() if is_python else ():
        lines = [(label, text.replace(option, argument)) for label, text in lines]
    return lines[:MOST_NOTES], max(len(lines) - MOST_NOTES, 0)


def list_notes(result: Result, problems: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return problems of the recording, the bound of a sensor, and the checks, each with its next step."""
    lines = [("problem", text) for text in problems]
    if (check := result.bound_check) is not None:
        bound = word_check(check)
        lines.append((bound.status, add_next_step(bound.text, bound.next)))
    return lines + list_check_facts(result)


def list_check_facts(result: Result) -> list[tuple[str, str]]:
    """Return the checks that are not ok, the worst first, with the next command to type."""
    rows: list[tuple[str, str]] = []
    for check in word_checks(result.checks, result.run):
        if check.name == "power meter" and not result.scopes:
            continue  # it is in the answer, and the reasons follow
        if check.name == "unseen" and result.bound_check is not None:
            continue  # it is the first note
        if check.code == REACHED or check.code.startswith(SHARED):
            continue  # it is in the answer
        rows.append((check.status, add_next_step(f"{check.name}: {check.text}", check.next)))
    return rows


def lay_out_commands(result: Result, folder: Path, handle: str, more: tuple[str, str] | None) -> list[TextBlock]:
    """Return the folder of the run, then commands to copy: the rest of the figures, the page, or a try without a meter.

    `more` is the option of `joulelab show` that shows more, and what it shows; None if everything is shown already.
    """
    lines = [("run", f"{folder}{f' ({result.name})' if result.name else ''}")]
    if result.scopes:
        if more is not None:
            command, remark = f"joulelab show {handle} {more[0]}", more[1]
            is_short = LABEL_WIDTH + 1 + len(f"{command}   # {remark}") <= TEXT_WIDTH
            lines.append(("more", f"{command}   # {remark}" if is_short else command))
        lines.append(("next", f"joulelab report {handle} --open"))
    elif result.outcome != "imported":
        lines.append(("try", f"joulelab twin -- joulelab run -- {shlex.join(result.command)}   # a simulated node"))
    # Not wrapped: paths and commands are there to be copied.
    return [TextLine(f"{label:<{LABEL_WIDTH}} {text}", is_wrapped=False) for label, text in lines]
