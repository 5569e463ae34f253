"""Show measured cells and notebooks: tables and power over time, as HTML for a page and as text for a terminal."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.messages import word_checks
from joulelab.report.run_rows import list_energy_rows, list_phase_rows
from joulelab.report.run_summary import (
    NO_POWER_METER,
    explain_no_energy,
    list_work_facts,
    list_workload_facts,
    write_headline,
)
from joulelab.report.run_tables import make_energy_table, make_phase_table
from joulelab.report.tables import Column, Table, TableRow, make_table, scale_column, write_html, write_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import Result
    from joulelab.integrations.jupyter_figures import MeasuredCell, NotebookFigures, NotebookPart, PowerPicture

MOST_CELLS = 30  # further cells are shown in one row: those that used least
BLOCKS = "▁▂▃▄▅▆▇█"
# Room for the figures at the left and below, and the size of the curve.
LEFT, BELOW, WIDTH, HEIGHT = 58, 18, 420, 70
TEXT = 'fill="currentColor" font-family="sans-serif" font-size="11"'


@dataclass(frozen=True, slots=True)
class NotebookOutput:
    """Hold the output of a magic: title, headline, tables, power over time, and lines below."""

    title: str
    head: str
    tables: tuple[Table, ...] = ()
    power: PowerPicture | None = None
    lines: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return plain text."""
        parts = [f"{self.title}: {self.head}", *(write_terminal(table) for table in self.tables)]
        lines = [*([f"power  {draw_blocks(self.power)}"] if self.power is not None else []), *self.lines]
        return "\n\n".join([*parts, "\n".join(lines)] if lines else parts)

    def to_html(self) -> str:
        """Return HTML without scripts or outside files, readable on dark and on light pages."""
        parts = [f"<div><b>{html.escape(self.title)}</b>: {html.escape(self.head)}</div>"]
        parts += [str(write_html(table, is_inline=True)) for table in self.tables]
        if self.power is not None:
            parts.append(f"<div>{draw_svg(self.power, f'power of {self.title}')}</div>")
        parts += [f"<div><small>{html.escape(line)}</small></div>" for line in self.lines]
        return f'<div class="joulelab">{"".join(parts)}</div>'

    def to_bundle(self) -> dict[str, str]:
        """Return both forms by their MIME types."""
        return {"text/plain": self.to_text(), "text/html": self.to_html()}


def describe_cell(measured: MeasuredCell) -> NotebookOutput:
    """Show a measured cell: energy of each scope, its phases, energy per work, power over time."""
    result = measured.result
    if result is None:
        return NotebookOutput(measured.name, f"{fmt.format_duration(measured.duration_s)}, not recorded")
    tables = [make_energy_table(list_energy_rows(result))] if result.scopes else []
    if result.phases:
        tables.append(make_phase_table(list_phase_rows(result)))
    lines = [f"{label:<6} {text}" for label, text in list_workload_facts(result) + list_work_facts(result)]
    doubts = [c for c in word_checks(result.checks) if c.status in ("warning", "failed")] if result.scopes else []
    lines += [f"{check.status}: {check.name}: {check.text}" for check in doubts]
    lines += [f"run    {measured.run}"] if measured.run is not None else []
    # The run goes on, the cell has ended.
    ended = replace(result, state="closed")
    head = write_headline(ended) if result.scopes else _describe_unmeasured(measured.duration_s, result)
    return NotebookOutput(measured.name, head, tuple(tables), measured.power, tuple(lines))


def describe_notebook(notebook: NotebookFigures, *, is_over: bool) -> NotebookOutput:
    """Show a notebook's cells and the time between them, which together are the whole."""
    whole = notebook.whole
    time = fmt.format_duration(whole.duration_s)
    head = _describe_unmeasured(whole.duration_s, notebook.result)
    if whole.energy is not None:
        mean = f", {fmt.format_watts(whole.mean_w or 0.0)} on average" if whole.energy.is_resolved else ""
        head = f"{fmt.format_quantity(whole.energy, 'J')} in {time}{mean}"
    parts = [*_choose_parts(notebook.parts), notebook.between, whole]
    lines = [f"{label:<6} {text}" for label, text in list_workload_facts(notebook.result)] if notebook.result else []
    if notebook.idle_share is not None:
        energy_share, time_share = (fmt.format_percent(s, signed=False) for s in notebook.idle_share)
        lines.append(f"idle   between cells: {energy_share} of the energy, {time_share} of the time")
    lines.append(f"run    {notebook.run}")
    title = "the notebook" if is_over else "the notebook so far"
    return NotebookOutput(title, head, (_make_part_table(parts),), notebook.power, tuple(lines))


def _describe_unmeasured(seconds: float, result: Result | None) -> str:
    return f"{fmt.format_duration(seconds)}, {NO_POWER_METER if result is None else explain_no_energy(result)}"


def _choose_parts(parts: Sequence[NotebookPart]) -> list[NotebookPart]:
    """Return the parts to list: all parts, or those with the most energy, and the others as one part."""
    from joulelab.integrations.jupyter_figures import join_parts

    if len(parts) <= MOST_CELLS:
        return list(parts)
    ranked = sorted(parts, key=lambda p: (p.energy.value if p.energy is not None else 0.0, p.duration_s))
    rest = ranked[: len(parts) - MOST_CELLS + 1]
    return [p for p in parts if p not in rest] + [join_parts(f"{len(rest)} others", tuple(rest))]


def _make_part_table(parts: Sequence[NotebookPart]) -> Table:
    energy = scale_column("energy", "J", [p.energy for p in parts])
    mean = scale_column("mean", "W", [p.mean_w for p in parts])
    rows = []
    for k, p in enumerate(parts):
        label = f"{p.name}{' (runs)' if p.is_open else ''}{f' · {p.title}' if p.title else ''}"
        mean_w = p.mean_w if p.energy is not None and p.energy.is_resolved else None
        cells = (fmt.shorten_end(label, 48), fmt.format_duration(p.duration_s), p.energy, mean_w)
        rows.append(TableRow(cells, "total" if k == len(parts) - 1 else ""))
    return make_table([Column("", align="left"), Column("time"), energy, mean], rows)


def draw_blocks(power: PowerPicture, most: int = 48) -> str:
    """Return a line of blocks, from 0 W to the largest power, and its range in words."""
    top = max(power.highest, 1e-9)
    levels = (round(min(max(w / top, 0.0), 1.0) * (len(BLOCKS) - 1)) for w in power.coarsen(most).watts)
    return f"{''.join(BLOCKS[level] for level in levels)}  {describe_power(power)}"


def describe_power(power: PowerPicture) -> str:
    """Return the range of a power over time in words, for screen readers."""
    low, high = (fmt.format_watts(w) for w in (min(power.watts), power.highest))
    return f"{low} to {high} in {fmt.format_duration(power.end_s - power.start_s)}"


def draw_svg(power: PowerPicture, title: str) -> str:
    """Return power over time as SVG in the colour of the text around it, so that it suits dark pages as well."""
    top = max(power.highest, 1e-9)
    label = html.escape(f"{title}: {describe_power(power)}")
    bottom, right = HEIGHT + 6, LEFT + WIDTH
    path = _draw_steps(power, top)
    mean_y = bottom - HEIGHT * power.mean / top
    size = f'width="{right + 8}" height="{bottom + BELOW}" viewBox="0 0 {right + 8} {bottom + BELOW}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size} style="max-width:100%">',
        f"<title>{label}</title>",
        f'<path d="{path} L{right} {bottom} L{LEFT} {bottom} Z" fill="currentColor" fill-opacity="0.15"/>',
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round"/>',
        f'<path d="M{LEFT} {bottom} H{right}" stroke="currentColor" stroke-opacity="0.5"/>',
        f'<path d="M{LEFT} {mean_y:.1f} H{right}" stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="4 4"/>',
        _draw_text(LEFT - 4, 12, fmt.format_watts(power.highest), "end"),
        _draw_text(LEFT - 4, bottom, "0 W", "end"),
        _draw_text(LEFT, bottom + 13, fmt.format_duration(power.start_s), "start"),
        _draw_text(right, bottom + 13, fmt.format_duration(power.end_s), "end"),
        _draw_text((LEFT + right) / 2, bottom + 13, f"dashed: mean, {fmt.format_watts(power.mean)}", "middle"),
        "</svg>",
    ]
    return "".join(parts)


def _draw_steps(power: PowerPicture, top: float) -> str:
    """Return power as steps: a mean holds over its whole stretch."""
    bottom, width = HEIGHT + 6, WIDTH / len(power.watts)
    levels = [bottom - HEIGHT * min(max(w / top, 0.0), 1.0) for w in power.watts]
    moves = [f"V{y:.1f} H{LEFT + width * (k + 1):.1f}" for k, y in enumerate(levels)]
    return f"M{LEFT} {levels[0]:.1f} {' '.join(moves)}"


def _draw_text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" {TEXT}>{html.escape(text)}</text>'
