"""Put published beside reproduced: as columns, and as records that CSV and JSON take. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.core.text import finite_or_none
from joulelab.papers.figure_judgement import of_kind
from joulelab.report import format as fmt
from joulelab.report.study_csv import write_records
from joulelab.report.tables import Column, FilledColumn, Table, join_columns, make_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.papers import PublishedTable
    from joulelab.papers.figure_judgement import Figure, Kind, Tolerance

# Kinds that have a table of numbers, with what stands above it.
TITLES: dict[Kind, str] = {
    "calibrated": "Calibrated on: the twin's numbers were fitted to these",
    "predicted": "Predicted: everything else that the paper prints",
    "identity": "Follows from the figures above: shown, not counted",
    "outside": "Outside of a twin: shown, not judged",
}
SHOWN = {"hit": "hit", "miss": "MISS", "": fmt.NOTHING}
FEWEST_DIGITS, MOST_DIGITS = 4, 9


def sections(figures: Sequence[Figure]) -> list[Table]:
    """Return the tables that have a row: calibrated, predicted, what follows, what is outside."""
    chosen = [(title, of_kind(figures, kind)) for kind, title in TITLES.items()]
    return [figure_table(title, own) for title, own in chosen if own]


def figure_table(title: str, figures: Sequence[Figure]) -> Table:
    """Return figures: published and reproduced with their unit, how far off, how far allowed, verdict."""
    columns: list[FilledColumn] = [
        (Column("figure", align="left"), tuple(f.label for f in figures)),
        (Column("published"), tuple(_with_unit(number(f.published), f.unit) for f in figures)),
        (Column("reproduced"), tuple(reproduced(f) for f in figures)),
    ]
    if any(f.kind != "outside" for f in figures):
        columns += [
            (Column("off by"), tuple(deviation(f) for f in figures)),
            (Column("allowed"), tuple(allowed(f.tolerance, f.unit) for f in figures)),
            (Column(""), tuple(SHOWN[f.verdict] for f in figures)),
        ]
    return join_columns(columns, styles=["best" if f.verdict == "miss" else "" for f in figures], title=title)


def number(value: float | str | None) -> str:
    """Return a figure as it was printed, with thousands apart from five digits on."""
    if value is None:
        return fmt.NOTHING
    if isinstance(value, str):
        return value
    text = f"{value:.{MOST_DIGITS}g}"
    return _apart(text)


def reproduced(figure: Figure) -> str:
    """Return what the study gave, with its interval where there is one, and with its unit."""
    value = figure.reproduced
    if value is None or isinstance(value, (str, bool)):
        return fmt.NOTHING if value is None else str(value)
    if figure.uncertainty is not None and math.isfinite(figure.uncertainty):
        text = " ± ".join(
            _apart(part) for part in fmt.format_interval(value, figure.uncertainty, signed=True).split(" ± ")
        )
    elif float(value).is_integer():  # a cap, a count
        text = number(value)
    else:
        text = _apart(fmt.format_number(value, _digits(figure.published)))
    return _with_unit(text, figure.unit)


def deviation(figure: Figure) -> str:
    """Return how far off a figure is, in the terms of its tolerance: a share of it, points, or its unit."""
    off = figure.deviation
    if off is None:
        return fmt.NOTHING
    if figure.tolerance.amount is None:
        return fmt.NOTHING if figure.relative is None else fmt.format_percent(figure.relative)
    size = number(abs(off)) if float(off).is_integer() else _apart(fmt.format_number(abs(off), 2))
    return f"{'-' if off < 0 else '+'}{size} {amount_unit(figure.tolerance, figure.unit)}"


def allowed(tolerance: Tolerance, unit: str) -> str:
    """Return how far a figure may lie off."""
    if tolerance.amount is not None:
        return f"± {number(tolerance.amount)} {amount_unit(tolerance, unit)}".rstrip()
    return fmt.NOTHING if tolerance.share is None else f"± {100 * tolerance.share:g} %"


def amount_unit(tolerance: Tolerance, unit: str) -> str:
    """Return the unit of an amount: that of the figure, but points where the figure is in percent."""
    return "points" if tolerance.text == "points" or unit == "%" else unit


def records(paper: str, figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Return a record per figure with everything that is known of it."""
    return [
        {
            "paper": paper,
            "id": f.id,
            "label": f.label,
            "kind": f.kind,
            "unit": f.unit,
            "published": f.published,
            "reproduced": f.reproduced,
            "expanded": f.uncertainty,
            "deviation": f.deviation,
            "relative": f.relative,
            "allowed": _finite(f),
            "allowed_from": f.tolerance.text or ("5 %" if f.tolerance.share == 0.05 else ""),
            "verdict": f.verdict,
            "detail": f.detail,
            "note": f.note,
        }
        for f in figures
    ]


def figures_csv(papers: Iterable[tuple[str, Sequence[Figure]]]) -> str:
    """Return a row per figure of each paper, in full."""
    return write_records([record for paper, figures in papers for record in records(paper, figures)])


def paper_table(table: PublishedTable) -> Table:
    """Return one of the paper's own tables."""
    return make_table(table.heads, table.rows, title=table.title)


def table_csv(table: PublishedTable) -> str:
    """Return one of the paper's own tables as CSV: its records in full, else its texts."""
    return write_records(table.records or [dict(zip(table.heads, row, strict=True)) for row in table.rows])


def _finite(figure: Figure) -> float | None:
    numbers = figure.numbers
    limit = math.inf if numbers is None else figure.tolerance.allowed(numbers[0])
    return finite_or_none(limit)


def _digits(published: float | str | None) -> int:
    """Return as how many digits a figure is shown: one more than the paper has, at least four."""
    if published is None or isinstance(published, str):
        return FEWEST_DIGITS
    digits = len(f"{published:.{MOST_DIGITS}g}".lstrip("-0.").replace(".", ""))
    return min(max(FEWEST_DIGITS, digits), MOST_DIGITS)


def _apart(text: str) -> str:
    """Return a number with its thousands apart, from five digits on."""
    whole, dot, rest = text.partition(".")
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    if not digits.isdecimal() or len(digits) < 5:
        return text
    return f"{sign}{int(digits):,}".replace(",", " ") + dot + rest


def _with_unit(text: str, unit: str) -> str:
    return text if not unit or text == fmt.NOTHING else f"{text} {unit}"
