"""Show measured cells and notebooks: the answer, one table, power over time, at most three notes; as text and HTML."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.run_summary import (
    LABEL_WIDTH,
    TEXT_WIDTH,
    avoid_breaks,
    choose_notes,
    choose_phase_rows,
    choose_summary_rows,
    list_answer_facts,
    make_summary_table,
)
from joulelab.report.tables import Column, Table, TableRow, make_table, scale_column, write_html
from joulelab.report.terminal import BLANK_LINE, list_facts, write_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.integrations.jupyter_figures import MeasuredCell, NotebookFigures, NotebookPart, PowerPicture
    from joulelab.report.terminal import TextBlock

FactRow = tuple[str, str]
MOST_CELLS = 30  # further cells are shown in one row: those that used least
GOOD_SHARE = 0.2  # a cell is long enough if its interval is not wider than this share of its energy
GUESSED_S = 5.0  # long enough for most meters
CELL_TIMES_S = (1, 2, 5, 10, 30, 60, 300, 600, 3600)  # that are advised
BLOCKS = "▁▂▃▄▅▆▇█"
# Room for the figures at the left and below, and the size of the curve.
LEFT, BELOW, WIDTH, HEIGHT = 58, 18, 420, 70
TEXT = 'fill="currentColor" font-family="sans-serif" font-size="11"'


@dataclass(frozen=True, slots=True)
class NotebookOutput:
    """Hold the output of a magic: the labelled lines of the answer, a table, power over time, notes."""

    answer: Sequence[FactRow]
    table: Table | None = None
    power: PowerPicture | None = None
    notes: Sequence[FactRow] = ()

    def to_text(self) -> str:
        """Return plain text of 80 columns."""
        blocks: list[TextBlock] = [list_facts(avoid_breaks(self.answer), label_width=LABEL_WIDTH)]
        blocks += [BLANK_LINE, self.table] if self.table is not None else []
        power = [("power", draw_blocks(self.power))] if self.power is not None else []
        blocks += [BLANK_LINE, list_facts([*power, *self.notes], label_width=LABEL_WIDTH)]
        return write_blocks(blocks, TEXT_WIDTH).rstrip("\n")

    def to_html(self) -> str:
        """Return HTML without scripts or outside files, readable on dark and on light pages."""
        (_, title), *answer = self.answer
        parts = [f"<div><b>{html.escape(title)}</b></div>"]
        parts += [_write_fact(fact) for fact in answer]
        parts += [str(write_html(self.table, is_inline=True))] if self.table is not None else []
        if self.power is not None:
            parts.append(f"<div>{draw_svg(self.power, f'power of {title}')}</div>")
        parts += [f"<small>{_write_fact(fact)}</small>" for fact in self.notes]
        return f'<div class="joulelab">{"".join(parts)}</div>'

    def to_bundle(self) -> dict[str, str]:
        """Return both forms by their MIME types."""
        return {"text/plain": self.to_text(), "text/html": self.to_html()}


def _write_fact(fact: FactRow) -> str:
    label, text = (html.escape(part).replace("\n", "<br/>") for part in fact)
    return f"<div><b>{label}</b> {text}</div>"


def describe_cell(measured: MeasuredCell) -> NotebookOutput:
    """Show a measured cell: its energy, devices and phases, power over time; or why it has no energy."""
    result, title = measured.result, f"{measured.name} · {fmt.format_duration(measured.duration_s)}"
    if result is None:
        return NotebookOutput([("joulelab", f"{title} · not recorded")])
    answer = _list_answer(title, result)
    run = [("more", f"joulelab show {result.run} --all")]
    if result.energy is None:
        return NotebookOutput(answer, notes=run)
    if not result.energy.is_resolved:
        answer = [
            (label, _explain_short_cell(measured, result.energy) if label == "energy" else text)
            for label, text in answer
        ]
        return NotebookOutput(answer, power=measured.power, notes=run)
    left_out = {"ending"}  # the run goes on, the cell has ended
    if result.gpu_loads and not any(load.is_used for load in result.gpu_loads):
        mean_w = result.energy / result.duration_s
        watts = fmt.format_watts(mean_w.value, mean_w.expanded)
        answer.append(("idle", f"the GPUs did nothing: {watts} is idle power"))
        left_out.add("unseen")  # there is no load that could be in step with a sensor
    table = make_summary_table(choose_summary_rows(result), result.energy, choose_phase_rows(result))
    checks = tuple(check for check in result.checks if check.name not in left_out)
    notes, _ = choose_notes(replace(result, checks=checks), is_python=True)
    return NotebookOutput(answer, table, measured.power, [*notes, *run])


def _list_answer(title: str, result: Result) -> list[FactRow]:
    return [("joulelab", title), *list_answer_facts(replace(result, state="closed"), TEXT_WIDTH, has_hint=False)[1:]]


def _explain_short_cell(measured: MeasuredCell, energy: Quantity) -> str:
    """Return that a cell has no energy, the power around it, and how long it must be."""
    around_w = measured.around_w
    words = fmt.word_unresolved(energy)
    text = f"{words} in {fmt.format_duration(measured.duration_s)}"
    text += f"; {fmt.format_watts(around_w)} on average around it" if around_w is not None else ""
    if words != fmt.TOO_SHORT:
        return text
    # The uncertainty of the edges does not grow with the time.
    needed_s = (energy.expanded or 0.0) / (GOOD_SHARE * around_w) if around_w else GUESSED_S
    needed_s = next((seconds for seconds in CELL_TIMES_S if seconds >= needed_s), CELL_TIMES_S[-1])
    times = math.ceil(needed_s / max(measured.duration_s, 1e-6))
    advice = f"Repeat its work for {fmt.format_rough_duration(needed_s)} or more"
    return f"{text}\n{advice}:\n-> for _ in range({times}): ..."


def describe_notebook(notebook: NotebookFigures, *, is_over: bool) -> NotebookOutput:
    """Show a notebook's cells and the time between them, which together are the whole."""
    whole, result = notebook.whole, notebook.result
    title = f"{'the notebook' if is_over else 'the notebook so far'} · {fmt.format_duration(whole.duration_s)}"
    answer, between = _list_answer(title, result), notebook.between
    if notebook.idle_share is not None and between.mean_w is not None:
        energy_share, time_share = (fmt.format_percent(share, signed=False) for share in notebook.idle_share)
        watts = fmt.format_watts(between.mean_w.value, between.mean_w.expanded)
        answer.append(("idle", f"{watts} between cells: {energy_share} of the energy, {time_share} of the time"))
    table = _make_part_table([*_choose_parts(notebook.parts), between, whole])
    return NotebookOutput(answer, table, notebook.power, [("more", f"joulelab show {result.run} --all")])


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
    mean = replace(scale_column("mean", "W", [p.mean_w for p in parts]), bare=True)
    rows = []
    for k, p in enumerate(parts):
        label = f"{p.name}{' (runs)' if p.is_open else ''}{f' · {p.title}' if p.title else ''}"
        cells = (fmt.shorten_end(label, 48), fmt.format_duration(p.duration_s), p.energy, p.mean_w)
        rows.append(TableRow(cells, "total" if k == len(parts) - 1 else ""))
    return make_table([Column("", align="left"), Column("time"), energy, mean], rows)


def draw_blocks(power: PowerPicture, most: int = 36) -> str:
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
