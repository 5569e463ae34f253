"""Choose what is shown of more than two runs beside each other: energy, time, power, against the first. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.comparison import compare_runs
from joulelab.report.comparison_rows import format_figure_change
from joulelab.report.study_tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def label_runs(results: Sequence[Result]) -> tuple[str, ...]:
    """Return a letter for each run, numbers from the 27th on."""
    return tuple(LETTERS[k] if k < len(LETTERS) else str(k + 1) for k in range(len(results)))


def several_columns(results: Sequence[Result]) -> list[Column]:
    """Return energy, time and mean power of each run, and its energy and time against those of the first."""
    first = results[0]
    found = [compare_runs(first, other) for other in results[1:]]
    against = [(line.line("energy"), line.line("time")) for line in found]
    columns = [
        _column("energy", "J", [r.energy for r in results], _estimates(results)),
        Column("time", tuple(fmt.format_duration(r.duration_s) for r in results)),
        _column(
            "mean power", "W", [g.mean_w if (g := r.group("measured")) else None for r in results], _estimates(results)
        ),
        Column("energy against A", ("", *(fmt.NOTHING if e is None else format_figure_change(e) for e, _ in against))),
        Column("time against A", ("", *(fmt.NOTHING if t is None else format_figure_change(t) for _, t in against))),
    ]
    said = ["", *("" if e is None or e.difference is not False else e.verdict() for e, _ in against)]
    return [*columns, Column("", tuple(said))] if any(said) else columns


def _estimates(results: Sequence[Result]) -> list[bool]:
    return [bool((g := r.group("measured")) and g.estimate) for r in results]


def _column(name: str, unit: str, values: Sequence[Quantity | None], estimates: Sequence[bool]) -> Column:
    factor, prefixed = fmt.choose_scale([None if q is None else q.value for q in values], unit)
    texts = []
    for q, estimate in zip(values, estimates, strict=True):
        if q is None:
            texts.append(fmt.NOTHING)
            continue
        expanded = None if q.expanded is None else q.expanded / factor
        texts.append(f"{'~' if estimate else ''}{fmt.format_interval(q.value / factor, expanded)}")
    return Column(f"{name}, {prefixed}", tuple(texts))
