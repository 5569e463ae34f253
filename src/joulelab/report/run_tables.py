"""Print a result as a table that people can paste."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from joulelab.analysis.marked_phases import find_work_phase, list_figure_kinds
from joulelab.analysis.quality import DATA_FACT, QUALITY_FACT, read_quality
from joulelab.core.scope import rank_scope
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report import rated
from joulelab.report.agreement import list_agreement_rows, list_joining_facts, make_agreement_table
from joulelab.report.caps import cap_lines
from joulelab.report.console import BLANK, LABEL, STYLE, make_table, print_facts
from joulelab.report.run_rows import (
    check_lines,
    count_hidden_phases,
    list_energy_rows,
    list_meter_rows,
    list_phase_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.report.run_rows import EnergyRow, PhaseRow

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
WORTH_TELLING_B = 10e6
SAME_RATE = 0.02  # rates that differ by less are told once
MOST_UNBROKEN = 60  # letters that fit into any line
MOST_LONG = 6  # texts that are too long for a line and are named only
MOST_OF_NAME = 24  # letters of the name of a phase, in a line
MOST_KINDS = 3  # of work, in the table of phases
BEHIND = {"FLOP": 1, "steps": 2, "validated": 3}  # kinds of work that come after others
MOVED = (
    ("disk", "disk_read_b", "read"),
    ("disk", "disk_written_b", "written"),
    ("network", "net_received_b", "in"),
    ("network", "net_sent_b", "out"),
)


def print_result(
    console: Console,
    result: Result,
    folder: Path,
    *,
    problems: Sequence[str] = (),
    every_scope: bool = False,
    every_phase: bool = False,
    budget: bool = False,
    handle: str | None = None,
) -> None:
    """Print everything that a result says: figures first, then doubts, then what to type next.

    `handle` is how commands name the run: its id unless given.
    """
    name = handle or result.run
    titled = f" · {result.name}" if result.name else ""
    console.rule(Text(escape_unprintable(f"joulelab · {result.run}{titled}")), align="left", style="dim")
    if result.twin:
        console.print(Text(fmt.name_twins([result.twin])))
    console.print(Text(write_headline(result), style="bold"), soft_wrap=True)
    if (bound := result.bound_check) is not None:
        print_facts(console, [(bound.status, f"{bound.message}\n-> {bound.next}")])
    console.print(Text(describe_command(result, console.width)))
    if result.scopes:
        _print_energies(console, result, every=every_scope, budget=budget)
    if result.phases:
        console.print()
        console.print(_fitting(console, list_phase_rows(result, every=every_phase), families=every_phase))
        if not every_phase and count_hidden_phases(result):
            console.print(Text(f"and {count_hidden_phases(result)} more names: joulelab show {name} --phases"))
    console.print()
    print_facts(console, avoid_breaks(list_workload_facts(result) + list_work_facts(result)) + cap_lines(result))
    print_facts(console, list_joining_facts(result) + list_load_facts(result) + list_rated_facts(result))
    doubts = [("problem", text) for text in problems] + list_check_facts(result)
    print_facts(console, doubts, styles=STYLE)
    print_facts(console, list_missing_facts(result))
    for label, text in list_closing_facts(result, folder, name):
        # Not wrapped: paths and commands are there to be copied.
        console.print(Text(f"{label:<{LABEL}} {text}"), soft_wrap=True)


def _print_energies(console: Console, result: Result, *, every: bool, budget: bool) -> None:
    by = list_meter_facts(result, every=every)
    console.print()
    console.print(make_energy_table(list_energy_rows(result, every=every)))
    console.print()
    print_facts(console, by, label=max(LABEL, *(len(label) for label, _ in by)))
    agreement = list_agreement_rows(result, every=every)
    if agreement:
        console.print()
        console.print(make_agreement_table(agreement))
    if budget:
        console.print()
        console.print(make_budget_table(result))


def write_headline(result: Result) -> str:
    """Return the one line that matters: energy, time, power."""
    took = fmt.format_duration(result.duration_s)
    energy, whole = result.energy, result.group("measured")
    if energy is None or whole is None:
        if result.is_damaged:
            return f"no total: a file of the run cannot be read or is missing. It took {took}"
        if result.outcome == "imported":
            return f"no energy: there is neither power nor energy in what was imported. It covers {took}"
        return f"no energy measured: no power meter can be read here. It took {took}"
    text = fmt.format_quantity(energy.value, energy.expanded, "J", estimate=whole.estimate)
    so_far = " so far" if result.state == "live" else ""
    mean = fmt.format_watts(whole.mean_w.value)
    return f"{text} ({fmt.format_watt_hours(energy.value)}) in {took}{so_far}, {mean} on average"


def describe_command(result: Result, width: int) -> str:
    """Return what ran, how it ended and what the energy covers."""
    whole = result.group("measured")
    covers = f"{fmt.join_scopes(sorted(whole.scopes, key=rank_scope))} · " if whole else ""
    end = f" · {name_ending(result)}"
    room = max(width - len(covers) - len(end), 20)
    return f"{covers}{fmt.shorten_end(shlex.join(result.command), room)}{end}"


def list_rated_facts(result: Result) -> list[tuple[str, str]]:
    """Return what runtime x rated power would have said, where that is known."""
    return [("estimate", rated.describe_rated(result.rated))] if result.rated.ratio is not None else []


def name_ending(result: Result) -> str:
    """Return how the workload ended, in words."""
    if result.outcome == "exit":
        return f"exit {result.exit_code}"
    if result.outcome == "signal":
        return f"killed by {SIGNALS.get(result.signal or 0, f'signal {result.signal}')}"
    words = {"not-started": "could not be started", "interrupted": "interrupted before it began"}
    words |= {"live": "still running", "killed": "joulelab was killed"}
    return words.get(result.outcome, result.outcome)


def cell(q: Quantity | None, factor: float, *, estimate: bool = False) -> str:
    """Return a quantity of a column in the column's unit."""
    if q is None:
        return fmt.NOTHING
    expanded = q.expanded
    text = fmt.format_interval(q.value / factor, None if expanded is None else expanded / factor)
    return f"~{text}" if estimate else text


def make_energy_table(rows: list[EnergyRow]) -> Table:
    """Return energy with its interval (k = 2), powers, and net of idle where idle was measured."""
    joules, unit = fmt.choose_scale([r.energy.value for r in rows], "J")
    watts, power = fmt.choose_scale([w for r in rows for w in (r.mean_w.value, r.max_w)], "W")
    net = any(r.net is not None for r in rows)
    heads = ["", f"energy, {unit}", f"mean, {power}", "median", "max", *([f"net of idle, {unit}"] if net else [])]
    table = make_table(*heads)
    for k, r in enumerate(rows):
        mark = "~" if r.estimate else ""
        powers = [None if w is None else w / watts for w in (r.mean_w.value, r.median_w, r.max_w)]
        cells = [cell(r.energy, joules, estimate=r.estimate)]
        cells += [fmt.NOTHING if w is None else mark + fmt.format_number(w) for w in powers]
        if net:
            cells.append(cell(r.net, joules, estimate=r.estimate))
        last = k + 1 < len(rows) and rows[k + 1].label == "measured"
        label = f"{r.label} (estimate)" if r.estimate and not r.total else r.label
        table.add_row(label, *cells, style="bold" if r.total else "", end_section=last)
    return table


def list_meter_facts(result: Result, *, every: bool = False) -> list[tuple[str, str]]:
    """Return for each kind of scope by which meter and channel it was measured, and how accurate that is."""
    lines = []
    for m in list_meter_rows(result, every=every):
        if m.estimate:
            how = "an estimate: load x rated power, not measured"
        elif m.accuracy == "unknown":
            how = "accuracy unknown, so no interval"
        else:
            how = f"accuracy {m.accuracy}"
        lines.append((m.scopes, f"by {m.meter} {m.channel}, {how}"))
    return lines


def make_budget_table(result: Result) -> Table:
    """Return what makes up the interval of each scope: percent of its energy at k = 2, by kind of source."""
    kinds = list(dict.fromkeys(kind for s in result.scopes for kind in s.energy.budget()))
    kinds.sort(key=lambda kind: kind == "unseen")  # last: it is a bound, and no part of `all`
    heads = ("bound: unseen" if kind == "unseen" else kind for kind in kinds)
    table = make_table("uncertainty, %", "all", *heads)
    parts = [(s.scope, s.energy) for s in result.scopes] + [(g.name, g.energy) for g in result.groups]
    for label, energy in parts:
        if energy.value == 0:
            continue
        share = 200 / abs(energy.value)
        whole = fmt.format_number(energy.u * share, 3) if energy.known else "unknown"
        spent = energy.budget()
        table.add_row(label, whole, *(fmt.format_number(spent.get(k, 0.0) * share, 2) for k in kinds))
    return table


def _fitting(console: Console, rows: list[PhaseRow], *, families: bool) -> Table:
    """Return the table of phases with as many kinds of work as there is room for: no figure may be cut off."""
    unbounded = console.options.update(max_width=10_000)
    for kinds in range(MOST_KINDS, 0, -1):
        table = make_phase_table(rows, families=families, kinds=kinds)
        if console.measure(table, options=unbounded).maximum <= console.width:
            return table
    return make_phase_table(rows, families=families, kinds=0)


def make_phase_table(rows: list[PhaseRow], *, families: bool = False, kinds: int = MOST_KINDS) -> Table:
    """Return the phases with time, energy, power and energy per unit of work; with `families` a line for each."""
    joules, unit = fmt.choose_scale([r.energy.value for r in rows if r.energy is not None], "J")
    means = {k: r.energy.value / r.duration_s for k, r in enumerate(rows) if r.energy and r.duration_s > 0}
    watts, power = fmt.choose_scale(means.values(), "W")
    works = choose_work_kinds(name for r in rows for name in r.work)[:kinds]
    energy_heads = [f"energy, {unit}", f"mean, {power}"] if means else []
    scales = [fmt.scale_per_work(_each(rows, w), w) if means else (1.0, f"{w}/s") for w in works]
    table = make_table("phase", "time", *energy_heads, *(head for _, head in scales))
    for k, r in enumerate(rows):
        cells = ["  " * r.depth + r.label + (" (open)" if r.open_end else ""), fmt.format_duration(r.duration_s)]
        if means:
            cells += [cell(r.energy, joules), fmt.format_number(means[k] / watts) if k in means else fmt.NOTHING]
        per = (_per_work(r, w, factor, energy=bool(means)) for w, (factor, _) in zip(works, scales, strict=True))
        table.add_row(*cells, *per)
        if families and len(r.by_family) > 1 and r.duration_s > 0:
            for name, q in r.by_family.items():
                mean = fmt.format_number(q.value / r.duration_s / watts)
                table.add_row("  " * r.depth + f"  by {name}", "", cell(q, joules), mean, style="dim")
    return table


def choose_work_kinds(kinds: Iterable[str]) -> list[str]:
    """Return the kinds of work that there is room for: what was worked on before what it took."""
    return sorted(dict.fromkeys(kinds), key=lambda kind: BEHIND.get(kind, 0))[:MOST_KINDS]


def _each(rows: list[PhaseRow], work: str) -> list[float]:
    return [r.energy.value / r.work[work] for r in rows if r.energy is not None and r.work.get(work)]


def _per_work(row: PhaseRow, work: str, factor: float, *, energy: bool) -> str:
    done = row.work.get(work, 0.0)
    if not done or (energy and row.energy is None) or row.duration_s <= 0:
        return fmt.NOTHING
    if row.energy is None:
        return fmt.format_rate(done / row.duration_s)
    return cell(row.energy * (1 / done), factor)


def list_work_facts(result: Result) -> list[tuple[str, str]]:
    """Return work done: amount, per second in the phases it was done in and over all, and energy for each."""
    per_work, lines = result.per_work(), []
    told = list_figure_kinds(result.work)
    for name in told:
        one = name.removesuffix("s")
        text = fmt.format_work(result.work[name], name) + _rates(result, name)
        if name in per_work:
            q, whole = per_work[name], result.group("measured")
            text += f", {fmt.format_quantity(q.value, q.expanded, f'J/{one}', estimate=bool(whole and whole.estimate))}"
        lines.append(("work", text))
    judged = [fmt.format_work(done, name) for name, done in result.work.items() if name not in told]
    return lines + ([("work", ", ".join(judged))] if judged else [])


def _rates(result: Result, kind: str) -> str:
    """Return work per second over all, and in the phases it was done in where that is something else."""
    if result.duration_s <= 0:
        return ""
    over_all, inside = result.work[kind] / result.duration_s, find_work_phase(result.phases, kind)
    if inside is None or abs(inside[1] - over_all) <= SAME_RATE * over_all:
        return f", {fmt.format_work_rate(over_all, kind)}"
    name = fmt.shorten_middle(inside[0], MOST_OF_NAME)
    return f", {fmt.format_work_rate(inside[1], kind)} in {name}, {fmt.format_work_rate(over_all, kind)} over all"


def list_workload_facts(result: Result) -> list[tuple[str, str]]:
    """Return what the workload told of itself: the data, by what it is to be judged, then the rest in one line."""
    facts, quality = dict(result.facts), read_quality(result.facts)
    data = facts.pop(DATA_FACT, None)
    rest = {name: value for name, value in facts.items() if not quality or name not in (QUALITY_FACT, *quality)}
    long = [name for name, value in rest.items() if isinstance(value, str) and len(value) > fmt.MOST_OF_FACT]
    judged = ", ".join(f"{fmt.format_fact(name)} {fmt.format_quality(value)}" for name, value in quality.items())
    parts = [f"{fmt.format_fact(name)} = {fmt.format_fact(value)}" for name, value in rest.items() if name not in long]
    parts += [f"{', '.join(map(fmt.format_fact, long[:MOST_LONG]))}: see --json"] if long else []
    said = "; ".join(parts)
    told = [("data", "" if data is None else fmt.format_fact(data)), ("quality", judged), ("facts", said)]
    return [(label, text) for label, text in told if text]


def avoid_breaks(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return lines that are wrapped between their parts only: no figure is broken, nor parted from its name."""
    found = []
    for label, text in lines:
        parts = re.split(r"(?<=[,;]) ", text)
        found.append((label, " ".join(p.replace(" ", BLANK) if len(p) <= MOST_UNBROKEN else p for p in parts)))
    return found


def list_load_facts(result: Result) -> list[tuple[str, str]]:
    """Return the load of the command and of the whole machine in one line."""
    load, own, machine = result.load, [], []
    if "workload.user_s" in load:
        own.append(f"{fmt.format_duration(load['workload.user_s'] + load.get('workload.system_s', 0.0))} of CPU")
    elif load.get("workload.cpu_s"):  # read once a second: the last of it is missing
        own.append(f"at least {fmt.format_duration(load['workload.cpu_s'])} of CPU")
    peak = load.get("workload.peak_memory_b", load.get("workload.memory_b.max"))
    if peak:
        own.append(f"{fmt.format_bytes(peak)} of memory")
    if "host.busy.mean" in load:
        machine.append(f"CPUs {load['host.busy.mean']:.0%} busy (peak {load['host.busy.max']:.0%})")
    for title, key, way in MOVED:
        if load.get(f"host.{key}", 0.0) >= WORTH_TELLING_B:
            machine.append(f"{title} {fmt.format_bytes(load[f'host.{key}'])} {way}")
    parts = [f"{title}: {', '.join(said)}" for title, said in (("command", own), ("machine", machine)) if said]
    return [("load", "; ".join(parts))] if parts else []


def list_check_facts(result: Result) -> list[tuple[str, str]]:
    """Return the checks that did not end well, the worst first, with the next command to type."""
    rows: list[tuple[str, str]] = []
    for check in check_lines(result.checks):
        if check.name == "power meter" and not result.scopes:
            continue  # the headline says it, and what follows says why
        if check.name == "unseen" and result.bound_check is not None:
            continue  # it is below the headline
        then = f"\n-> {check.next}" if check.next else ""
        rows.append((check.status, f"{check.name}: {check.message}{then}"))
    return rows


def list_missing_facts(result: Result) -> list[tuple[str, str]]:
    """Return meters that gave nothing: all of them where there is no energy, else those that somebody can repair."""
    lines = []
    for m in result.missing:
        if result.scopes and m["status"] == "unavailable":
            continue
        why = f" ({m['why']})" if m["why"] else ""
        then = f"\n-> {m['next']}" if m["next"] else ""
        lines.append((m["meter"], f"{m['what'] or m['status']}{why}{then}"))
    return lines


def list_closing_facts(result: Result, folder: Path, name: str) -> list[tuple[str, str]]:
    """Return where the run is and what to type next."""
    lines = [("run", str(folder))]
    if not result.scopes and result.outcome == "imported":
        return lines
    if not result.scopes:
        command = shlex.join(result.command)
        lines.append(("try", f"joulelab twin -- joulelab run -- {command}   # a simulated node"))
        return lines
    lines.append(("next", f"joulelab show {name} --budget | joulelab compare A B"))
    return lines
