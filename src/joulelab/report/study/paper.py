"""Write the tables of a study as papers print them, and its comparisons: as text, Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.text import Text

from joulelab.analysis.cell_comparison import make_sample
from joulelab.analysis.cell_lines import format_knobs
from joulelab.analysis.study_cells import list_quality_figures
from joulelab.analysis.study_notes import note_data_difference
from joulelab.report.console import print_facts
from joulelab.report.paper_tables import list_paper_tables
from joulelab.report.study.paper_pairs import list_pair_notes, list_pair_tables
from joulelab.report.study.table import fits, fitting, print_table
from joulelab.report.study.text import escaped, latex_table, markdown_table, tex
from joulelab.report.study_csv import as_csv, list_knob_columns
from joulelab.report.study_tables import Column

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.paper_tables import PaperTable, Spread

SCHEMA = 1
WIDE = 100  # from this on the difference is shown, even if names then take two lines
UNIT = {"energy": "j", "power": "w", "time": "s"}


def print_paper(
    console: Console,
    summary: StudySummary,
    *,
    spread: Spread = "deviation",
    scope: str | None = None,
    every: bool = False,
) -> None:
    """Print the tables and how cells compare with the reference; `every` shows all pairs."""
    for table in list_paper_tables(summary, spread=spread, scope=scope):
        columns = columns_of(table)
        whole = fits(columns, console.width)
        _print(console, table.title, columns if whole else [_one_label(table), *columns[len(table.labels) :]])
        console.print()
        print_facts(console, [("", table.caption)], label=0)
    for title, columns in list_pair_tables(summary, every=every):
        _print(console, title, narrowed(columns, console.width), left=(0,))
    console.print()
    print_facts(console, [("note", note) for note in list_pair_notes(summary)])


def narrowed(columns: list[Column], width: int) -> list[Column]:
    """Return the columns of pairs as one table of a width: with names in two lines, without the difference, or both."""
    names, *others = columns
    short = Column(names.head, tuple(text.replace(" : ", " :\n") for text in names.cells))
    tries = [columns, [names, *others[:-1]], [short, *others[:-1]]]
    if width >= WIDE:
        tries.insert(1, [short, *others])
    return next((each for each in tries if fits(each, width)), tries[-1])


def write_paper_markdown(
    summary: StudySummary, *, spread: Spread = "deviation", scope: str | None = None, every: bool = False
) -> str:
    """Return the tables, captions and comparisons in Markdown."""
    parts = []
    for table in list_paper_tables(summary, spread=spread, scope=scope):
        parts += [f"**{escaped(table.title)}**", markdown_table(columns_of(table)), escaped(table.caption)]
    for title, columns in list_pair_tables(summary, every=every):
        parts += [f"**{escaped(title)}**", markdown_table(columns)]
    return "\n\n".join([*parts, *(escaped(note) for note in list_pair_notes(summary))]) + "\n"


def write_paper_latex(
    summary: StudySummary, *, spread: Spread = "deviation", scope: str | None = None, every: bool = False
) -> str:
    """Return the tables, captions and comparisons in LaTeX (booktabs)."""
    tables = [
        latex_table(f"{table.title}. {table.caption}", columns_of(table), left=len(table.labels), rules=_blocks(table))
        for table in list_paper_tables(summary, spread=spread, scope=scope)
    ]
    tables += [latex_table(title, columns, left=1) for title, columns in list_pair_tables(summary, every=every)]
    return "\n".join([r"% \usepackage{booktabs}", *tables, *(tex(note) for note in list_pair_notes(summary))]) + "\n"


def write_statistics_csv(summary: StudySummary) -> str:
    """Return a row per cell with every figure of its repeats, SI, in full: what the tables are rounded from."""
    rows = []
    for cell in summary.cells:
        row: dict[str, Any] = {"cell": cell.key, **list_knob_columns(cell), "line": cell.line}
        for figure, sample in summary.statistics.get(cell.key, {}).items():
            row |= _figures(figure, sample)
        if cell.idle_energy is not None:
            row["idle_energy_j"] = cell.idle_energy.value
        for name, told in list_quality_figures(cell.trials).items():
            sample = make_sample(told)
            row |= {f"quality_{name}_mean": sample.mean, f"quality_{name}_deviation": sample.deviation}
        rows.append(row | ({"data": cell.data} if cell.data else {}))
    return as_csv(rows)


def write_pairs_csv(summary: StudySummary) -> str:
    """Return a row per pair and figure: ratio, difference in `unit`, p, verdict, more repeats; all pairs."""
    rows = []
    for pair in summary.pairs:
        own, other = summary.cell(pair.cell).knobs, summary.cell(pair.against).knobs
        row: dict[str, Any] = {"workload": own.get("workload"), "phase": own.get("phase"), "figure": pair.figure}
        row |= {"unit": pair.unit, "per": pair.per, "cell": pair.cell, "against": pair.against}
        row |= {"cell_knobs": format_knobs(own), "against_knobs": format_knobs(other), "ratio": pair.ratio}
        row |= _bounds("ratio", pair.ratio_interval) | {"difference": pair.difference}
        row |= _bounds("difference", pair.difference_interval)
        row |= {"freedom": pair.freedom, "p": pair.p, "p_corrected": pair.p_corrected, "verdict": pair.verdict}
        row |= {"more_repeats": pair.more_repeats, "more_repeats_above_100": int(pair.more_than_100)}
        row |= {"by_meters": int(pair.by_meters), "assumed": int(pair.assumed)}
        row["doubt"] = note_data_difference(summary.cell(pair.cell).data, summary.cell(pair.against).data)
        rows.append(row)
    return as_csv(rows)


def describe_paper(summary: StudySummary, *, spread: Spread = "deviation", scope: str | None = None) -> dict[str, Any]:
    """Return the tables as they are printed, and the statistics and pairs that they are made of, in full."""
    tables = [
        {
            "title": table.title,
            "caption": table.caption,
            "columns": [*table.labels, *table.heads],
            "rows": [{"cell": row.cell, "texts": [*row.labels, *row.figures]} for row in table.rows],
        }
        for table in list_paper_tables(summary, spread=spread, scope=scope)
    ]
    plain = summary.to_json()
    return {
        "schema": SCHEMA,
        "spread": spread,
        "scope": scope,
        "tables": tables,
        "statistics": plain["statistics"],
        "pairs": plain["pairs"],
    }


def _print(console: Console, title: str, columns: list[Column], left: Collection[int] = ()) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    label, *others = columns
    for fit in fitting(label, others, console.width):
        console.print()
        print_table(console, [label, *fit], left=left)


def columns_of(table: PaperTable) -> list[Column]:
    """Return the columns as they are printed: a label that stays the same is said once."""
    columns = []
    for k, name in enumerate(table.labels):
        seen = [row.labels[: k + 1] for row in table.rows]
        last = len(table.labels) - 1
        repeated = [False, *(a == b and k < last for a, b in pairwise(seen))]
        texts = ("" if same else row.labels[k] for same, row in zip(repeated, table.rows, strict=False))
        columns.append(Column(name, tuple(texts)))
    figures = zip(*(row.figures for row in table.rows), strict=True)
    return columns + [Column(head, texts) for head, texts in zip(table.heads, figures, strict=False)]


def _one_label(table: PaperTable) -> Column:
    """Return what tells rows apart in one column, to stand before each part of a table that is too wide."""
    return Column(" ".join(table.labels), tuple(" ".join(row.labels) for row in table.rows))


def _blocks(table: PaperTable) -> list[int]:
    """Return before which rows a line is drawn: where the first of several labels changes."""
    if len(table.labels) < 2:
        return []
    return [k for k, (a, b) in enumerate(pairwise(table.rows), start=1) if a.labels[0] != b.labels[0]]


def _figures(figure: str, sample: RepeatSample) -> dict[str, Any]:
    name = f"{figure}_{UNIT[figure]}"
    row: dict[str, Any] = {f"{figure}_n": sample.n, f"{name}_mean": sample.mean, f"{name}_deviation": sample.deviation}
    row |= _bounds(name, sample.interval) | {f"{name}_median": sample.median}
    row |= {f"{figure}_meter_expanded": sample.meter, f"{figure}_outliers": len(sample.outliers)}
    return row | {f"{figure}_outliers_seen": int(sample.outliers_seen)}


def _bounds(name: str, bounds: tuple[float, float] | None) -> dict[str, float | None]:
    return {f"{name}_low": bounds and bounds[0], f"{name}_high": bounds and bounds[1]}
