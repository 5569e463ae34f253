"""Draw a live run: as a screen that fits any terminal, or as one line. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from joulelab.report import format as fmt
from joulelab.report.run_summary import choose_work_kinds, format_energy, word_coverage
from joulelab.report.tables import UNKNOWN_WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.report.watch.watched_run import GpuRow, PowerRow, WatchedMeter, WatchedPhase, WatchView

BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"
LEAST_SPARK = 6
MOST_LABEL = 18
NO_POWER_METER, MOST_REASONS = "no power meter can be read here", 2
MOST_TITLE = 40  # letters of a phase's name in a line
SUM, TROUBLE, FAINT, CURVE = "bold", "bold red", "dim", "green"
FOOT = "q quits; each curve goes from 0 to its own highest"
STATES = {"killed": "joulelab was killed", "closed": "ended"}


def draw_spark(powers: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Return the last powers as a row of bars, scaled from 0 to the highest; a blank is a gap."""
    levels = ASCII if ascii_only else BLOCKS
    shown = list(powers)[-width:] if width > 0 else []
    top = max((w for w in shown if w > 0), default=0.0)
    scale, most = len(levels) / top if top else 0.0, len(levels) - 1
    bars = [" " if math.isnan(w) else levels[min(int(w * scale), most)] if w > 0 else levels[0] for w in shown]
    return "".join(bars).rjust(width)


def draw_screen(view: WatchView, width: int, height: int | None = None, *, ascii_only: bool = False) -> list[Text]:
    """Return the lines of a screen, cut to its width and height; without a height all lines."""
    head, width = list_heading(view, width), max(width, 1)
    room = 10_000 if height is None else max(height - len(head) - 1, 0)
    power = list_power_lines(view.rows, width, ascii_only=ascii_only)
    meters = list_meter_lines(view.meters, width, 10_000)
    gpus = len(view.gpus) + 1 if view.gpus else 0
    wanted = {"power": len(power), "meters": len(meters), "phases": len(view.phases), "gpus": gpus}
    given = _share_lines(wanted, room)
    parts = [
        power[: given["power"]],
        list_phase_lines(view.phases, width, given["phases"]),
        list_gpu_lines(view.gpus, width, given["gpus"], ascii_only=ascii_only),
        list_meter_lines(view.meters, width, given["meters"]),
    ]
    parts = [part for part in parts if part]
    spare = room - sum(map(len, parts))
    lines = list(head)
    for part in parts:
        lines += [Text()] if spare > 0 else []
        spare -= 1
        lines += part
    if height is not None:
        lines = [*lines[: height - 1], Text(FOOT, style=FAINT)] if height > 1 else lines[:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _share_lines(wanted: dict[str, int], room: int) -> dict[str, int]:
    """Give each part its least number of lines, then the rest to one part after the other."""
    least = {"power": 3, "meters": 1, "phases": 2, "gpus": 4}
    given = dict.fromkeys(wanted, 0)
    for bound in (least, wanted):
        for name in ("power", "phases", "gpus", "meters"):
            more = min(min(bound[name], wanted[name]) - given[name], room)
            given[name] += max(more, 0)
            room -= max(more, 0)
    return given


def list_heading(view: WatchView, width: int) -> list[Text]:
    """Return the name of the run, power now, energy so far, and notes."""
    title = "this node" if view.own else view.run + (f" · {fmt.format_fact(view.name)}" if view.name else "")
    lines = [
        Text(f"joulelab watch · {_describe_state(view)} · {title}", style=SUM),
        Text(write_summary(view), style=SUM),
    ]
    lines += [Text(covers)] if (covers := describe_view_coverage(view)) else []
    facts = [p for p in (_name_hosts(view), _describe_load(view), _describe_work(view)) if p]
    if not view.own:
        facts.insert(1, fmt.shorten_end(view.command, max(width - sum(map(len, facts)) - 3 * len(facts), 12)))
    lines.append(Text(" · ".join(facts)))
    if not view.rows and view.meters:
        lines.append(Text("-> joulelab doctor"))
    return lines + [Text(fmt.shorten_end(note, width)) for note in view.notes]


def write_summary(view: WatchView) -> str:
    """Return the most important line: power now, energy so far with its interval and its time."""
    if not view.rows:
        return f"{NO_POWER_METER}{_list_reasons(view)}" if view.meters else "no reading yet"
    power = f"{'~' if view.estimate else ''}{fmt.format_watts(view.now_w)} now"
    return " · ".join([power, *_list_energy(view)])


def describe_view_coverage(view: WatchView) -> str:
    """Return what the power covers: `covers GPUs only (8): no meter for the rest of the node`; empty if nothing."""
    return f"covers {word_coverage(view.counted, len(view.hosts))}" if view.counted else ""


def _list_reasons(view: WatchView) -> str:
    """Return why meters are not read, for the first of them: `: nvml is absent (no driver)`."""
    reasons = [f"{m.name} is {m.state} ({m.why})" for m in view.meters if m.state != "ok" and m.why]
    return f": {'; '.join(reasons[:MOST_REASONS])}" if reasons else ""


def _list_energy(view: WatchView) -> list[str]:
    if view.energy is None:
        return []
    used = format_energy(view.energy, estimate=view.estimate)
    return [f"{used} in the first {fmt.format_duration(view.energy_s)}"]


def _describe_state(view: WatchView) -> str:
    if view.state != "live":
        return STATES.get(view.state, view.state)
    return "not begun" if view.elapsed_s is None else fmt.format_rough_duration(max(view.elapsed_s, 0.0))


def write_line(view: WatchView, most: int = 6) -> str:
    """Return everything in one line, for files and pipes."""
    time = "-" if view.elapsed_s is None else f"{view.elapsed_s:.1f} s"
    parts = [f"{time:>9}", fmt.format_watts(view.now_w) if view.rows else f"{NO_POWER_METER}{_list_reasons(view)}"]
    parts += [
        f"{r.label} {fmt.format_watts(r.now_w)}"
        for r in view.rows[:most]
        if len(view.rows) > 1 and not math.isnan(r.now_w)
    ]
    parts += _list_energy(view)
    parts += [f"in {fmt.shorten_middle(p.title, MOST_TITLE)}" for p in [p for p in view.phases if p.is_open][-1:]]
    parts += [f"{m.name} {m.state}" for m in view.meters if m.state in ("silent", "failing")]
    return "  ".join(parts)


def list_power_lines(rows: Sequence[PowerRow], width: int, *, ascii_only: bool = False) -> list[Text]:
    """Return power by family with curves, and the energy so far."""
    if not rows:
        return []
    watts, power = fmt.choose_scale([w for r in rows for w in (r.now_w, r.peak_w)], "W")
    joules, unit = fmt.choose_scale([r.energy.value for r in rows if r.energy is not None], "J")
    energies = any(r.energy is not None for r in rows)
    table = [["", f"now, {power}", "peak", *([f"energy, {unit}"] if energies else [])]]
    for r in rows:
        mark = "~" if r.estimate else ""
        cells = [r.label, mark + _format_watts(r.now_w / watts), mark + _format_watts(r.peak_w / watts)]
        # The line above the table says once that an accuracy is unknown.
        used = fmt.format_scaled(r.energy, joules, estimate=r.estimate).replace(UNKNOWN_WIDTH, "")
        table.append([*cells, *([used] if energies else [])])
    styles = ["", *(SUM if r.total else "" for r in rows)]
    return _draw_table(table, width, [(), *(r.powers for r in rows)], styles, optional=(2, 3), ascii_only=ascii_only)


def list_gpu_lines(gpus: Sequence[GpuRow], width: int, most: int, *, ascii_only: bool = False) -> list[Text]:
    """Return a table of GPUs in at most `most` lines; of too many GPUs, those with the highest and lowest power."""
    if not gpus or most < 2:
        return []
    shown, left = list(gpus), 0
    if len(gpus) > most - 1:
        room = max(most - 2, 1)
        ranked = sorted(gpus, key=lambda g: -g.power.now_w if not math.isnan(g.power.now_w) else math.inf)
        chosen = {id(g) for g in (*ranked[: (room + 1) // 2], *ranked[len(ranked) - room // 2 :])}
        shown = [g for g in ranked if id(g) in chosen]
        left = len(gpus) - len(shown)
    table = [["GPU", "W", "cap", "load", "memory", "temp", "clock"]]
    for g in shown:
        clock = fmt.NOTHING if math.isnan(g.clock_hz) else f"{g.clock_hz / 1e6:,.0f} MHz"
        heat = fmt.NOTHING if math.isnan(g.temperature_c) else f"{g.temperature_c:.0f} °C"
        memory = fmt.NOTHING if math.isnan(g.memory_b) else fmt.format_bytes(g.memory_b)
        load = fmt.NOTHING if math.isnan(g.load) else f"{100 * g.load:.0f} %"
        cap = fmt.NOTHING if math.isnan(g.cap_w) else f"{g.cap_w:,.0f}"
        table.append([g.label, _format_watts(g.power.now_w), cap, load, memory, heat, clock])
    curves = [(), *(g.power.powers for g in shown)]
    lines = _draw_table(table, width, curves, [""] * len(table), optional=(6, 4, 2, 5), ascii_only=ascii_only)
    if left and most > 2:
        lines.append(Text(f"{left} of {len(gpus)} GPUs are not shown: their power lies between these", style=FAINT))
    return lines


def list_phase_lines(phases: Sequence[WatchedPhase], width: int, most: int) -> list[Text]:
    """Return phases in at most `most` lines; open ones have precedence."""
    if not phases or most < 1:
        return []
    ranked = sorted(range(len(phases)), key=lambda k: (not phases[k].is_open, -k))
    shown = [phases[k] for k in sorted(ranked[:most])]
    titles = [("  " * p.depth + p.title) for p in shown]
    room = min(max(width - 44, 12), max(map(cell_len, titles)) + 2)
    lines: list[Text] = []
    for title, p in zip(titles, shown, strict=True):
        cut = set_cell_size(fmt.shorten_middle(title, room) if cell_len(title) > room else title, room)
        used = "" if p.energy is None else "  " + fmt.format_quantity(p.energy, "J")
        state = " (open)" if p.is_open else ""
        text = f"{'phase' if not lines else '':<8}{cut}{fmt.format_duration(p.seconds):>12}{used}{state}"
        lines.append(Text(text, style=SUM if p.is_open else ""))
    return lines


def list_meter_lines(meters: Sequence[WatchedMeter], width: int, most: int) -> list[Text]:
    """Return the state of the meters in at most `most` lines: meters with a problem first, then the others."""
    if most < 1:
        return []
    lines = []
    for m in [m for m in meters if m.state != "ok"]:
        since = "" if math.isnan(m.age_s) else f" for {fmt.format_rough_duration(m.age_s)}"
        text = f"{m.name} is {m.state}{since}" + (f": {m.why}" if m.why else "")
        lines.append(Text(fmt.shorten_end(text, width), style=TROUBLE if m.state != "absent" else ""))
    fine = [m for m in meters if m.state == "ok"]
    others = _list_fine_meters(fine, width)
    if len(lines) + len(others) > most and fine:
        others = [Text(_write_fine_meters(fine))]
    if len(lines) + len(others) > most:
        more = len(lines) + len(others) - most
        lines = [*lines[: max(most - 1, 0)], Text(f"and {more + 1} more lines on meters", style=TROUBLE)]
        return lines[:most]
    return [*lines, *others]


def _list_fine_meters(meters: Sequence[WatchedMeter], width: int) -> list[Text]:
    lines, text = [], "read    "
    for k, m in enumerate(meters):
        counts = ((m.gaps, "gaps"), (m.missed, "missed"), (m.late, "late"))
        extra = [f"{count} {name}" for count, name in counts if count]
        part = f"{m.name} {m.age_s:.1f} s" + (f" ({', '.join(extra)})" if extra else "")
        part += ", " if k < len(meters) - 1 else " ago"
        if cell_len(text) + cell_len(part) > width and k:
            lines.append(Text(text.rstrip()))
            text = " " * 8
        text += part
    return [*lines, Text(text)] if meters else []


def _write_fine_meters(meters: Sequence[WatchedMeter]) -> str:
    """Return the state of the meters without a problem in one line."""
    oldest = max(meters, key=lambda m: m.age_s)
    counts = [(sum(m.gaps for m in meters), "gaps"), (sum(m.missed + m.late for m in meters), "late")]
    extra = "".join(f", {count} {name}" for count, name in counts if count)
    return f"read    {len(meters)} meters, {oldest.name} last: {oldest.age_s:.1f} s ago{extra}"


def _draw_table(
    rows: list[list[str]],
    width: int,
    curves: Sequence[Sequence[float]],
    styles: Sequence[str],
    *,
    optional: Sequence[int],
    ascii_only: bool,
) -> list[Text]:
    """Return rows in columns, the curve last; if they are too wide, `optional` columns are left out one by one."""
    columns = list(range(len(rows[0])))
    label = min(max(cell_len(row[0]) for row in rows), MOST_LABEL)
    sizes = [label, *(max(cell_len(row[k]) for row in rows) for k in columns[1:])]
    for column in optional:
        if sum(sizes[k] + 2 for k in columns) + LEAST_SPARK <= width:
            break
        columns = [k for k in columns if k != column]
    left = width - sum(sizes[k] + 2 for k in columns)
    lines = []
    for row, curve, style in zip(rows, curves, styles, strict=True):
        name = row[0] if cell_len(row[0]) <= label else fmt.shorten_middle(row[0], label)
        text = Text(set_cell_size(name, label), style=style)
        for k in columns[1:]:
            text.append(f"  {row[k]:>{sizes[k]}}")
        if curve and left >= LEAST_SPARK:
            text.append("  " + draw_spark(curve, min(left, len(curve)), ascii_only=ascii_only), style=CURVE)
        lines.append(text)
    lines[0].stylize(FAINT)
    return lines


def _format_watts(value: float) -> str:
    return fmt.format_number(value) if math.isfinite(value) else fmt.NOTHING


def _name_hosts(view: WatchView) -> str:
    if len(view.hosts) == 1:
        return fmt.format_fact(view.hosts[0])
    return f"{len(view.hosts)} hosts"


def _describe_load(view: WatchView) -> str:
    return "" if math.isnan(view.busy) else f"CPUs {100 * view.busy:.0f} % busy"


def _describe_work(view: WatchView) -> str:
    return ", ".join(fmt.format_work(view.work[kind], fmt.format_fact(kind)) for kind in choose_work_kinds(view.work))
