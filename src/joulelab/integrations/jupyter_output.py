"""Show measured cells and notebooks: as HTML in a page, as text in a terminal and wherever there is no page. Pure."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.integrations.picture import draw_blocks, draw_svg
from joulelab.report import format as fmt
from joulelab.report.messages import word_checks
from joulelab.report.run_rows import list_energy_rows, list_phase_rows
from joulelab.report.run_tables import choose_work_kinds, list_work_facts, list_workload_facts, write_headline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.integrations.jupyter_figures import MeasuredCell, NotebookFigures, NotebookPart
    from joulelab.integrations.picture import PowerPicture

# Cells beyond this many are shown as one, but for those that used most.
MOST_CELLS = 30
STYLE = 'style="text-align:{};padding:1px 8px;white-space:nowrap;{}"'
NO_METER = "no power meter can be read here: `joulelab meters` says what is missing"


@dataclass(frozen=True, slots=True)
class Grid:
    """Hold a table: heads, rows of as many words, and the numbers of the rows that are sums."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sums: frozenset[int] = frozenset()

    def text(self) -> str:
        """Return the table as lines, the first column to the left, the others to the right."""
        table = [self.heads, *self.rows]
        widths = [max(len(row[k]) for row in table) for k in range(len(self.heads))]
        lines = []
        for row in table:
            words = [w.ljust(widths[k]) if k == 0 else w.rjust(widths[k]) for k, w in enumerate(row)]
            lines.append("  ".join(words).rstrip())
        return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])

    def html(self) -> str:
        """Return the table as HTML that takes its colours from the page."""
        head = "".join(self._cell("th", k, word) for k, word in enumerate(self.heads))
        rows = []
        for number, row in enumerate(self.rows):
            words = (self._cell("td", k, word, bold=number in self.sums) for k, word in enumerate(row))
            rows.append(f"<tr>{''.join(words)}</tr>")
        return f'<table style="border-collapse:collapse"><tr>{head}</tr>{"".join(rows)}</table>'

    @staticmethod
    def _cell(tag: str, column: int, word: str, *, bold: bool = False) -> str:
        kept = html.escape(word).replace("  ", "&nbsp;&nbsp;")
        style = STYLE.format("right" if column else "left", "font-weight:bold" if bold else "")
        return f"<{tag} {style}>{kept}</{tag}>"


@dataclass(frozen=True, slots=True)
class NotebookOutput:
    """Hold what is shown: a title, the line that matters, tables, the power over time, and lines below."""

    title: str
    head: str
    grids: tuple[Grid, ...] = ()
    curve: PowerPicture | None = None
    lines: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it as plain text."""
        parts = [f"{self.title}: {self.head}", *(grid.text() for grid in self.grids)]
        lines = [*([f"power  {draw_blocks(self.curve)}"] if self.curve is not None else []), *self.lines]
        return "\n\n".join([*parts, "\n".join(lines)] if lines else parts)

    def html(self) -> str:
        """Return it as HTML: no script, nothing from outside, readable on dark and on light pages."""
        parts = [f"<div><b>{html.escape(self.title)}</b>: {html.escape(self.head)}</div>"]
        parts += [grid.html() for grid in self.grids]
        if self.curve is not None:
            parts.append(f"<div>{draw_svg(self.curve, f'power of {self.title}')}</div>")
        parts += [f"<div><small>{html.escape(line)}</small></div>" for line in self.lines]
        return f'<div class="joulelab">{"".join(parts)}</div>'

    def bundle(self) -> dict[str, str]:
        """Return both forms by their types."""
        return {"text/plain": self.text(), "text/html": self.html()}


def describe_cell(measured: MeasuredCell) -> NotebookOutput:
    """Show a measured cell: energy of each scope, phases in it, J for each unit of work, power over time."""
    result = measured.result
    if result is None:
        return NotebookOutput(measured.name, f"{fmt.format_duration(measured.duration_s)}, not recorded")
    grids = [_make_energy_table(result)] if result.scopes else []
    if result.phases:
        grids.append(_make_phase_table(result))
    lines = [f"{label:<6} {text}" for label, text in list_workload_facts(result) + list_work_facts(result)]
    doubts = [c for c in word_checks(result.checks) if c.status in ("warning", "failed")] if result.scopes else []
    lines += [f"{check.status}: {check.name}: {check.text}" for check in doubts]
    lines += [f"run    {measured.run}"] if measured.run is not None else []
    # The run goes on, the cell does not.
    head = (
        write_headline(replace(result, state="closed")) if result.scopes else _describe_unmeasured(measured.duration_s)
    )
    return NotebookOutput(measured.name, head, tuple(grids), measured.curve, tuple(lines))


def describe_notebook(notebook: NotebookFigures, *, is_over: bool) -> NotebookOutput:
    """Show a notebook's cells and the time between them, which together are the whole."""
    whole = notebook.whole
    head = _describe_unmeasured(whole.duration_s)
    if whole.energy is not None:
        energy = fmt.format_quantity(whole.energy.value, whole.energy.expanded, "J")
        head = (
            f"{energy} in {fmt.format_duration(whole.duration_s)}, {fmt.format_watts(whole.mean_w or 0.0)} on average"
        )
    rows = [*_choose_parts(notebook.parts), notebook.between, whole]
    lines = [f"{label:<6} {text}" for label, text in list_workload_facts(notebook.result)] if notebook.result else []
    if notebook.idle_share is not None:
        energy_share, time_share = (fmt.format_percent(s, signed=False) for s in notebook.idle_share)
        lines.append(f"idle   between cells: {energy_share} of the energy, {time_share} of the time")
    lines.append(f"run    {notebook.run}")
    title = "the notebook" if is_over else "the notebook so far"
    return NotebookOutput(title, head, (_make_part_table(rows),), notebook.curve, tuple(lines))


def _describe_unmeasured(seconds: float) -> str:
    return f"{fmt.format_duration(seconds)}; {NO_METER}"


def _choose_parts(parts: Sequence[NotebookPart]) -> list[NotebookPart]:
    """Return the parts to list: all, or those that used most and the rest as one."""
    from joulelab.integrations.jupyter_figures import join_parts

    if len(parts) <= MOST_CELLS:
        return list(parts)
    ranked = sorted(parts, key=lambda p: (p.energy.value if p.energy is not None else 0.0, p.duration_s))
    rest = ranked[: len(parts) - MOST_CELLS + 1]
    return [p for p in parts if p not in rest] + [join_parts(f"{len(rest)} others", tuple(rest))]


def _make_part_table(rows: Sequence[NotebookPart]) -> Grid:
    joules, unit = fmt.choose_scale([p.energy.value for p in rows if p.energy is not None], "J")
    watts, power = fmt.choose_scale([p.mean_w for p in rows], "W")
    body = []
    for p in rows:
        label = f"{p.name}{' (runs)' if p.is_open else ''}{f' · {p.title}' if p.title else ''}"
        mean = None if p.mean_w is None else p.mean_w / watts
        body.append(
            (
                fmt.shorten_end(label, 48),
                fmt.format_duration(p.duration_s),
                fmt.format_scaled(p.energy, joules),
                fmt.format_number(mean),
            )
        )
    return Grid(("", "time", f"energy, {unit}", f"mean, {power}"), tuple(body), frozenset({len(body) - 1}))


def _make_energy_table(result: Result) -> Grid:
    rows = list_energy_rows(result)
    joules, unit = fmt.choose_scale([r.energy.value for r in rows], "J")
    watts, power = fmt.choose_scale([w for r in rows for w in (r.mean_w.value, r.max_w)], "W")
    body = []
    for r in rows:
        mark = "~" if r.estimate else ""
        powers = [fmt.format_number(None if w is None else w / watts) for w in (r.mean_w.value, r.max_w)]
        body.append((r.label, fmt.format_scaled(r.energy, joules, estimate=r.estimate), mark + powers[0], powers[1]))
    sums = frozenset(k for k, r in enumerate(rows) if r.total)
    return Grid(("", f"energy, {unit}", f"mean, {power}", "max"), tuple(body), sums)


def _make_phase_table(result: Result) -> Grid:
    rows = list_phase_rows(result)
    kinds = choose_work_kinds(kind for r in rows for kind in r.work)
    each = {k: [r.energy.value / r.work[k] for r in rows if r.energy is not None and r.work.get(k)] for k in kinds}
    scales = {kind: fmt.scale_per_work(values, kind) for kind, values in each.items()}
    joules, unit = fmt.choose_scale([r.energy.value for r in rows if r.energy is not None], "J")
    body = []
    for r in rows:
        mean = None if r.energy is None or r.duration_s <= 0 else r.energy.value / r.duration_s
        words = [
            f"{'  ' * r.depth}{r.label}",
            fmt.format_duration(r.duration_s),
            fmt.format_scaled(r.energy, joules),
            fmt.format_number(mean),
        ]
        body.append((*words, *(_each(r.energy, r.work.get(kind, 0.0), scales[kind][0]) for kind in kinds)))
    heads = ("phase", "time", f"energy, {unit}", "mean, W", *(head for _, head in scales.values()))
    return Grid(heads, tuple(body))


def _each(energy: Quantity | None, done: float, factor: float) -> str:
    return fmt.NOTHING if energy is None or done <= 0 else fmt.format_scaled(energy * (1 / done), factor)
