"""Show all that is known about a run (`joulelab show --all`): tables of energies, phases, meters and uncertainty."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.result import is_efficiency_resolved
from joulelab.core.scope import find_family
from joulelab.report import format as fmt
from joulelab.report.cap_tables import list_cap_facts
from joulelab.report.messages import join_next_step
from joulelab.report.run_rows import (
    count_hidden_phases,
    list_energy_rows,
    list_meter_rows,
    list_phase_rows,
)
from joulelab.report.run_summary import (
    LABEL_WIDTH,
    NO_INTERVAL_REASON,
    TOO_FEW,
    avoid_breaks,
    choose_work_kinds,
    divide_by_time,
    find_calibration_day,
    lay_out_commands,
    list_answer_facts,
    list_check_facts,
    list_missing_facts,
    list_notes,
    list_work_facts,
    list_workload_facts,
    name_ending,
    write_headline,
)
from joulelab.report.tables import (
    DOCUMENT_FORMATS,
    Column,
    MarkedCell,
    Table,
    TableCell,
    TableRow,
    make_table,
    measure_table,
    scale_column,
)
from joulelab.report.terminal import (
    BLANK_LINE,
    STATUS_STYLES,
    TextBlock,
    TextLine,
    list_facts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.result import (
        ChannelEnergy,
        GroupResult,
        Lag,
        MeterComparison,
        RatedResult,
        Result,
        ScopeResult,
    )
    from joulelab.core.quantity import Quantity
    from joulelab.report.run_rows import EnergyRow, PhaseRow

WORTH_SHOWING_B = 10e6  # bytes moved
MOST_DEPTH = 20  # levels of nested phases that are indented
RATED_ADVICE = "set rated_w = WATTS below [node] of joulelab.toml"
MOST_SCOPES = 4  # whose rated power is unknown
INTERVAL_NOTE = "Intervals are expanded uncertainties (k = 2)"
MOVED = (
    ("disk", "disk_read_b", "read"),
    ("disk", "disk_written_b", "written"),
    ("network", "net_received_b", "in"),
    ("network", "net_sent_b", "out"),
)


def lay_out_run(
    result: Result,
    folder: Path,
    *,
    width: int,
    problems: Sequence[str] = (),
    every_scope: bool = False,
    every_phase: bool = False,
    budget: bool = False,
    handle: str | None = None,
) -> list[TextBlock]:
    """Return the whole text about a run: figures first, then doubts, then the next command.

    `handle` is the name of the run in commands, by default its id. A command that is too long for `width` is cut.
    """
    name = handle or result.run
    answer = avoid_breaks(list_answer_facts(result, width, every=True))
    blocks: list[TextBlock] = [list_facts(answer, label_width=LABEL_WIDTH)]
    if result.scopes:
        blocks += _lay_out_energies(result, width, every=every_scope, budget=budget)
    if result.phases:
        blocks += [BLANK_LINE, make_phase_table(list_phase_rows(result, every=every_phase), families=every_phase)]
        if not every_phase and (hidden := count_hidden_phases(result)):
            blocks.append(TextLine(f"and {hidden} more names: joulelab show {name} --phases"))
    if result.work_channels:
        blocks += [BLANK_LINE, make_work_table(result)]
    facts = list_joining_facts(result) + list_load_facts(result) + list_rated_facts(result)
    notes = [*facts, *list_notes(result, problems), *list_missing_facts(result)]
    blocks += [BLANK_LINE, list_facts(notes, label_width=LABEL_WIDTH, styles=STATUS_STYLES), BLANK_LINE]
    more: tuple[str, str] | None = ("--budget", "parts of each uncertainty")
    if budget:
        more = None if every_scope else ("--budget --scopes all", "parts of devices, too")
    return blocks + lay_out_commands(result, folder, name, more)


def _lay_out_energies(result: Result, width: int, *, every: bool, budget: bool) -> list[TextBlock]:
    by = list_meter_facts(result, every=every)
    rows = list_energy_rows(result, every=every)
    blocks: list[TextBlock] = [BLANK_LINE, make_energy_table(rows), BLANK_LINE, list_facts(by)]
    if agreement := list_agreement_rows(result, every=every):
        blocks += [BLANK_LINE, make_agreement_table(agreement)]
    return [*blocks, BLANK_LINE, make_budget_table(rows, width)] if budget else blocks


def write_run_document(
    result: Result,
    form: str,
    *,
    every_scope: bool = False,
    every_phase: bool = False,
    budget: bool = False,
) -> str:
    """Return the energies, phases, facts and checks of a run in a format of DOCUMENT_FORMATS."""
    document = DOCUMENT_FORMATS[form]
    name = f"{result.run} ({result.name})" if result.name else result.run
    head = f"{write_headline(result)}. {shlex.join(result.command)}: {name_ending(result)}."
    simulated = f" ({fmt.name_twins([result.twin])})" if result.twin else ""
    parts: list[Table | str] = [document.escape_text(head)]
    if result.scopes:
        rows = list_energy_rows(result, every=every_scope)
        meters = [f"{scopes} {text}" for scopes, text in list_meter_facts(result, every=every_scope)]
        notes = (INTERVAL_NOTE, f"{'; '.join(meters)}.")
        parts.append(replace(make_energy_table(rows), title=f"Energy and power of {name}{simulated}", notes=notes))
        if agreement := list_agreement_rows(result, every=every_scope):
            parts.append(replace(make_agreement_table(agreement), title=f"Meters of {name} compared"))
        parts += [replace(make_budget_table(rows), title=f"Uncertainty of {name}")] if budget else []
    if result.phases:
        phases = make_phase_table(list_phase_rows(result, every=every_phase), families=every_phase)
        parts.append(replace(phases, title=f"Phases of {name}{simulated}", notes=(INTERVAL_NOTE,)))
    if result.work_channels:
        parts.append(
            replace(make_work_table(result), title=f"Work that meters of {name} counted", notes=(INTERVAL_NOTE,))
        )
    facts = list_workload_facts(result) + list_work_facts(result, every=True) + list_cap_facts(result)
    facts += list_joining_facts(result) + list_load_facts(result) + list_rated_facts(result)
    checks = [(label, join_next_step(text)) for label, text in list_check_facts(result)]
    if lines := [f"{label}: {text}" for label, text in facts + checks]:
        parts.append(document.write_list(lines))
    return document.write_document(parts)


def format_mean(group: GroupResult) -> str:
    """Return the mean power of a group, with the digits that its uncertainty justifies."""
    return fmt.format_watts(group.mean_w.value, group.mean_w.expanded)


def make_energy_table(rows: list[EnergyRow]) -> Table:
    """Return a table of energy (with interval, k = 2) and power; also energy without idle, where it is resolved."""
    energy = scale_column("energy", "J", [r.energy for r in rows])
    mean = scale_column("mean", "W", [w for r in rows for w in (r.mean_w, r.max_w)])
    has_net = any(r.net is not None and r.net.is_resolved for r in rows)
    columns = [
        Column("", align="left"),
        energy,
        replace(mean, bare=True),
        replace(mean, name="median", unit=""),
        replace(mean, name="max", unit=""),
    ]
    columns += [replace(energy, name="net of idle", is_derived=True)] if has_net else []
    made = []
    for k, r in enumerate(rows):
        powers = [r.mean_w, r.median_w, r.max_w]
        if not r.energy.is_resolved:
            powers = [None, None, None] if r.is_derived else [None, *powers[1:]]
        figures: list[Quantity | float | None] = [r.energy, *powers, r.net]
        label = f"{r.label} (estimate)" if r.estimate and not r.total else r.label
        marked: list[TableCell] = [MarkedCell(figure, "~" if r.estimate else "") for figure in figures]
        if r.is_derived and not r.energy.is_resolved:
            marked[0] = fmt.NOT_RESOLVED
        cells = (label, *marked[: len(columns) - 1])
        is_last_part = k + 1 < len(rows) and rows[k + 1].label == "measured"
        made.append(TableRow(cells, "total" if r.total else "", has_rule_below=is_last_part))
    return replace(make_table(columns, made), no_interval=NO_INTERVAL_REASON)


def list_meter_facts(result: Result, *, every: bool = False) -> list[tuple[str, str]]:
    """Return meter, channel and accuracy of each kind of scope."""
    lines = []
    for m in list_meter_rows(result, every=every):
        if m.estimate:
            how = "an estimate, not measured"
            how += "" if result.outcome == "imported" else ": load x rated power"
        elif m.accuracy == "unknown":
            how = "accuracy unknown, so no interval"
        else:
            day = find_calibration_day(m.accuracy, m.reference)
            how = f"calibrated {day}" if day else f"accuracy {m.accuracy}"
            how += f", {TOO_FEW}" if m.has_too_few else ""
        lines.append((m.scopes, f"by {m.meter} {m.channel}, {how}"))
    return lines


def make_budget_table(rows: Sequence[EnergyRow], width: int | None = None) -> Table:
    """Return the parts of the uncertainty of each row by kind of source, in percent of its energy (k = 2).

    In a terminal that is too narrow, the smallest kinds are one column, `other`.
    """
    shown = [row for row in rows if row.energy.value != 0]
    largest: dict[str, float] = {}
    for energy in (row.energy for row in shown):
        for kind, u in energy.budget().items():
            largest[kind] = max(largest.get(kind, 0.0), u / abs(energy.value))
    has_bound = largest.pop("unseen", None) is not None
    kinds = sorted(largest, key=lambda kind: -largest[kind])
    for count in range(len(kinds), 0, -1):
        table = _fill_budget(shown, kinds[:count], kinds[count:], has_bound=has_bound)
        if width is None or measure_table(table) <= width:
            return table
    return _fill_budget(shown, kinds[:1], kinds[1:], has_bound=has_bound)


def _fill_budget(rows: Sequence[EnergyRow], kinds: Sequence[str], small: Sequence[str], *, has_bound: bool) -> Table:
    made = []
    for row in rows:
        share, spent = 200 / abs(row.energy.value), row.energy.budget()
        parts = [spent.get(kind, 0.0) for kind in kinds]
        parts += [math.hypot(*(spent.get(kind, 0.0) for kind in small))] if small else []
        parts += [spent.get("unseen", 0.0)] if has_bound else []  # no part of `all`
        whole = fmt.format_number(row.energy.u * share, 3) if row.energy.known else "unknown"
        made.append((row.label, whole, *(fmt.format_number(u * share, 2) for u in parts)))
    heads = (*kinds, *(["other"] if small else []), *(["bound:\nunseen"] if has_bound else []))
    return make_table(("uncertainty, %", "all", *heads), made)


def make_phase_table(rows: list[PhaseRow], *, families: bool = False) -> Table:
    """Return a table of phases: time, energy, power, energy per unit of work; with `families`, one line per family.

    Columns of work and of the load of GPUs are optional: those that do not fit into the terminal are left out.
    """
    energy = scale_column("energy", "J", [r.energy for r in rows])
    means = [divide_by_time(r.energy, r.duration_s) for r in rows]
    mean = replace(scale_column("mean", "W", means), bare=True)
    has_energy = any(r.energy is not None and r.duration_s > 0 for r in rows)
    kinds = choose_work_kinds(name for r in rows for name in r.work)
    columns = [Column("phase", align="left"), Column("time"), *([energy, mean] if has_energy else [])]
    for kind in kinds:
        each = [r.energy.value / r.work[kind] for r in rows if r.energy is not None and r.work.get(kind)]
        factor, head = fmt.scale_per_work(each, kind) if has_energy else (1.0, f"{kind}/s")
        columns.append(Column(head, factor=factor, is_optional=True))
    has_load = any(r.gpu_load is not None for r in rows)
    columns += [Column("GPU load", "%", is_optional=True)] if has_load else []
    made = []
    for r, mean_w in zip(rows, means, strict=True):
        cells: list[TableCell] = [r.label + (" (open)" if r.open_end else ""), fmt.format_duration(r.duration_s)]
        mark = "~" if r.estimate else ""
        energies = [figure if figure is None else MarkedCell(figure, mark) for figure in (r.energy, mean_w)]
        cells += energies if has_energy else []
        cells += [_share_work(r, kind, has_energy=has_energy) for kind in kinds]
        cells += [None if r.gpu_load is None else format_load(r.gpu_load)] if has_load else []
        depth = min(r.depth, MOST_DEPTH)
        made.append(TableRow(tuple(cells), depth=depth))
        if families and len(r.by_family) > 1 and r.duration_s > 0:
            for name, q in r.by_family.items():
                made.append(TableRow((f"by {name}", "", q, divide_by_time(q, r.duration_s)), "dim", depth + 1))
    return replace(make_table(columns, made), no_interval=NO_INTERVAL_REASON)


def _share_work(row: PhaseRow, kind: str, *, has_energy: bool) -> TableCell:
    """Return the energy per unit of work of a phase, or the rate of work if nothing was measured."""
    done = row.work.get(kind, 0.0)
    if not done or row.duration_s <= 0 or (has_energy and row.energy is None):
        return None
    return fmt.format_rate(done / row.duration_s) if row.energy is None else row.energy * (1 / done)


def make_work_table(result: Result) -> Table:
    """Return a table of the work that meters counted: amount, rate, and the energy of everything measured per unit."""
    several = len({channel.host for channel in result.work_channels}) > 1
    energies = [
        result.energy / channel.total if result.energy is not None and channel.total.value > 0 else None
        for channel in result.work_channels
    ]
    columns = [Column("work", align="left"), Column("counted by", align="left"), Column("amount"), Column("per s")]
    rows = []
    for channel, per in zip(result.work_channels, energies, strict=True):
        scope = f"{channel.host}/{channel.scope}" if several else channel.scope
        rate = fmt.format_rate(channel.total.value / result.duration_s) if result.duration_s > 0 else None
        rows.append((channel.name, f"{channel.meter} {scope}", channel.total, rate, per))
    return make_table([*columns, scale_column("energy of one", "J", energies)], rows)


def format_load(load: float) -> str:
    """Return a load (share of one) in percent, without the sign; `< 1` for a load that would be rounded to zero."""
    return "< 1" if 0 < load < 0.005 else f"{100 * load:.0f}"


def describe_gpu_load(result: Result) -> str:
    """Return the mean load of the GPUs that did something in words, with its range; empty if it is not known."""
    used = sorted((load for load in result.gpu_loads if load.is_used), key=lambda load: load.mean)
    if result.gpu_load is None or not used:
        return ""
    several = len({load.host for load in result.gpu_loads}) > 1
    names = [f"{load.host}/{load.scope}" if several else load.scope for load in (used[0], used[-1])]
    if len(used) == 1:
        return f"{names[0]} {format_load(used[0].mean)} % busy"
    low, high = (format_load(load.mean) for load in (used[0], used[-1]))
    between = f", from {low} % ({names[0]}) to {high} % ({names[1]})" if low != high else ""
    return f"{len(used)} GPUs {format_load(result.gpu_load)} % busy on average{between}"


def list_load_facts(result: Result) -> list[tuple[str, str]]:
    """Return the load of the GPUs, of the command and of the whole machine in one line."""
    load, own, machine = result.load, [], []
    if "workload.user_s" in load:
        own.append(f"{fmt.format_duration(load['workload.user_s'] + load.get('workload.system_s', 0.0))} of CPU")
    elif load.get("workload.cpu_s"):  # read once a second: the last of it is missing
        own.append(f"at least {fmt.format_duration(load['workload.cpu_s'])} of CPU")
    peak = load.get("workload.peak_memory_b", load.get("workload.memory_b.max"))
    if peak:
        own.append(f"{fmt.format_bytes(peak)} of memory")
    if "host.busy.mean" in load:
        mean, most = (format_load(load[f"host.busy.{name}"]) for name in ("mean", "max"))
        machine.append(f"CPUs {mean} % busy (peak {most} %)")
    for title, key, way in MOVED:
        if load.get(f"host.{key}", 0.0) >= WORTH_SHOWING_B:
            machine.append(f"{title} {fmt.format_bytes(load[f'host.{key}'])} {way}")
    parts = [f"{title}: {', '.join(texts)}" for title, texts in (("command", own), ("machine", machine)) if texts]
    parts = [text for text in (describe_gpu_load(result), *parts) if text]
    return [("load", "; ".join(parts))] if parts else []


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """Hold one meter of a scope; `off` is its difference from the best meter, as a share of the best one's energy."""

    scope: str
    meter: str
    energy: Quantity
    off: Quantity | None
    verdict: str
    lag: str


def list_agreement_rows(result: Result, *, every: bool = False) -> list[AgreementRow]:
    """List the meters of scopes that several meters cover, the best one first.

    Without `every`: only the best channel of each meter of node and rack, and of other scopes meters that differ.
    """
    several = len({s.host for s in result.scopes if find_family(s.scope) != "job"}) > 1
    rows: list[AgreementRow] = []
    for s in result.scopes:
        others = [c for c in result.comparisons if (c.host, c.scope) == (s.host, s.scope) and c.over is None]
        if not every:
            others = _choose_comparisons(s, others, imported=result.outcome == "imported")
        if not others:
            continue
        scope = f"{s.host}/{s.scope}" if several else s.scope
        rows.append(
            AgreementRow(scope, _name_channel(s.reading), s.energy, None, "best", _format_lag(result, s, s.reading))
        )
        for c in others:
            off = c.difference * (1 / s.energy.value) if s.energy.value > 0 else None
            rows.append(
                AgreementRow(
                    "", _name_channel(c.other), c.other.energy, off, c.verdict, _format_lag(result, s, c.other)
                )
            )
    return rows + [row for c in result.comparisons for row in _list_accounted_rows(c)]


def _list_accounted_rows(c: MeterComparison) -> list[AgreementRow]:
    """Return rows that compare the energy accounted by a cluster with that of our meters over the same time."""
    if c.over is None:
        return []
    since, until = c.over
    off = c.difference * (1 / c.best.energy.value) if c.best.energy.value > 0 else None
    ours = AgreementRow(
        f"{c.scope}, {since:+.0f} to {until:+.0f} s", _name_channel(c.best), c.best.energy, None, "ours", fmt.NOTHING
    )
    return [ours, AgreementRow("", _name_channel(c.other), c.other.energy, off, c.verdict, fmt.NOTHING)]


def _choose_comparisons(scope: ScopeResult, others: list[MeterComparison], *, imported: bool) -> list[MeterComparison]:
    # Who imports two meters of one GPU wants to see them compared.
    wall = find_family(scope.scope) in ("node.ac", "node.dc", "rack") or imported
    best: dict[str, MeterComparison] = {}
    for c in others:  # the narrowest comes first
        if c.other.meter != scope.reading.meter and (wall or c.verdict == "differ"):
            best.setdefault(c.other.meter, c)
    return list(best.values())


def _name_channel(reading: ChannelEnergy) -> str:
    return f"{reading.meter} {reading.channel}"


def _format_lag(result: Result, scope: ScopeResult, reading: ChannelEnergy) -> str:
    """Return the lag (s) that was removed from the readings of a meter, with its interval."""
    meters = reading.meter.split("+")
    lags = [g for g in result.lags if g.host == scope.host and g.meter in meters and _has_lag(scope, g)]
    moved = [g.total_s for g in lags if g.applied]
    if not moved:
        return fmt.NOTHING
    # Cords of one meter are read at once, so their lags are about the same.
    half = max((max(moved) - min(moved)) / 2, 2 * max(g.u_s for g in lags if g.applied))
    middle = (max(moved) + min(moved)) / 2
    return fmt.format_signed(middle, half)


def _has_lag(scope: ScopeResult, lag: Lag) -> bool:
    parts = ("outlet:", "psu:") if scope.scope == "node.ac" else ("psu.dc:",) if scope.scope == "node.dc" else ()
    return lag.scope == scope.scope or lag.scope.startswith(parts)


def make_agreement_table(rows: list[AgreementRow]) -> Table:
    """Return meters of one scope with their energies, differences and verdicts."""
    energy = scale_column("energy", "J", [r.energy for r in rows])
    columns = ("scope", "meter", energy, "off, %", "", "lag, s")
    cells = [(r.scope, r.meter, r.energy, _format_off(r.off), r.verdict, r.lag) for r in rows]
    return make_table(columns, cells, left=(0, 1, 4))


def _format_off(off: Quantity | None) -> str:
    if off is None:
        return fmt.NOTHING
    if not off.is_resolved:  # what the difference may be at most says how well they agree
        most = abs(off.value) + 2 * off.u
        return f"within {fmt.format_number(100 * most, 2)}" if most <= 1 else fmt.NOT_RESOLVED
    return fmt.format_change(off.value, off.expanded).replace(" %", "")


def list_joining_facts(result: Result) -> list[tuple[str, str]]:
    """Return lines about idle energy, the largest error of each rest, and the efficiency of power supplies."""
    nets = [s.net for s in result.scopes if s.net is not None]
    lines = (
        [] if not nets or any(q.is_resolved for q in nets) else [("idle", f"energy net of idle: {fmt.NOT_RESOLVED}")]
    )
    for group in (g for g in result.groups if g.name.startswith("rest ") and g.energy.known and g.is_resolved):
        bound = 2 * group.energy.with_bound().u
        if bound > 1.5 * 2 * group.energy.u:
            off = fmt.format_rough(bound, "J", 2)
            lines.append(
                ("rest", f"{group.name}: off by up to {off} if the load repeats in step with the sensors inside")
            )
    for name, q in result.ratios.items():
        text = fmt.format_scaled(q, 0.01, "%", is_derived=True) if is_efficiency_resolved(q) else fmt.NOT_RESOLVED
        lines.append(("supply", f"{name.replace('supply ', '')} {text} (node.dc / node.ac)"))
    return lines


def list_rated_facts(result: Result) -> list[tuple[str, str]]:
    """Return the estimate by runtime x rated power, where the rated power is known."""
    return [("estimate", describe_rated(result.rated))] if result.rated.ratio is not None else []


def describe_rated(rated: RatedResult) -> str:
    """Return the estimate and its ratio to the measured energy in one line, or advice if the rated power is unknown."""
    ratio = rated.ratio
    if ratio is None:
        if not rated.unknown:
            return "none: no measured energy to compare it with"
        return f"unknown: the rated power of {_list_some(rated.unknown)} is not recorded; {RATED_ADVICE}"
    power = format_rated_power(rated)
    power = f"({power})" if " + " in power else power
    sources = ", ".join(dict.fromkeys(device.source for device in rated.devices))
    of = f"the energy of {rated.families}" if rated.unknown or rated.unused else "the measured energy"
    without = f"; without {_list_some(rated.unused)}, not shown to the workload" if rated.unused else ""
    estimate = f"{power} x {_format_one_unit(rated.duration_s)} = {_format_joules(rated.energy_j)}"
    if not ratio.is_resolved:
        return f"{estimate} ({sources}{without}); the energy of {rated.families} is {fmt.NOT_RESOLVED}"
    return f"{estimate}: {format_ratio(ratio)} times {of} ({sources}{without})"


def format_rated_power(rated: RatedResult) -> str:
    """Return the rated power in words: `8 x 700 W`, `2 x 350 W + 8 x 700 W`."""
    counts: dict[float, int] = {}
    for device in rated.devices:
        counts[device.watts] = counts.get(device.watts, 0) + 1
    return " + ".join(
        f"{n} x {fmt.format_fact(w)} W" if n > 1 else f"{fmt.format_fact(w)} W" for w, n in counts.items()
    )


def format_ratio(ratio: Quantity) -> str:
    """Return a ratio with its interval."""
    return fmt.format_scaled(ratio, 1.0, is_derived=True)


def _format_joules(joules: float) -> str:
    factor, unit = fmt.choose_energy_unit(joules)
    kwh = f" ({fmt.format_number(joules / factor, 3)} kWh)" if unit == "kWh" else ""
    return f"{fmt.format_rough(joules, 'J')}{kwh}"


def _format_one_unit(seconds: float) -> str:
    """Return a time in one unit, so that it can be multiplied by eye."""
    factor, unit = (1.0, "s") if seconds < 100 else (60.0, "min") if seconds < 6000 else (3600.0, "h")
    return f"{fmt.format_number(seconds / factor, 3)} {unit}"


def _list_some(scopes: Sequence[str]) -> str:
    more = len(scopes) - MOST_SCOPES
    return ", ".join(scopes[:MOST_SCOPES]) + (f" and {more} more" if more > 0 else "")


def format_run_energy(listed: Mapping[str, Any]) -> str:
    """Return the energy of a run with its interval: `28.2 ± 1.7 kJ`, `~` before an estimate, `no meter`."""
    energy = listed["energy"]
    if energy is None:
        return "no meter"
    value, expanded = float(energy["value"]), energy["expanded"]
    factor, unit = fmt.choose_scale([value], "J")
    words = fmt.word_largest_term(energy["budget"], is_cell=True) if "budget" in energy else fmt.TOO_SHORT_CELL
    text = fmt.format_interval(value / factor, None if expanded is None else expanded / factor, unresolved=words)
    return fmt.mark_figure(text, unit, estimate=listed["estimate"])


def word_no_interval(run: str) -> str:
    """Return why an energy in a list of runs has no interval, and the command that names the meter."""
    return f"{NO_INTERVAL_REASON}; details:\n-> joulelab show {run} --all"


def format_run_end(listed: Mapping[str, Any]) -> str:
    """Return how a run ended: `exit 0`, `signal 9`, or its outcome."""
    if listed["outcome"] == "exit":
        return f"exit {listed['exit_code']}"
    if listed["outcome"] == "imported" and "origin" in (listed.get("labels") or {}):
        return f"from {listed['labels']['origin'].partition(' ')[0]}"
    return f"signal {listed['signal']}" if listed["outcome"] == "signal" else str(listed["outcome"])
