"""Compare two runs: `joulelab compare A B`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from joulelab.cli.options import json_option, print_json, runs_option

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.report.comparison import Comparison, Line


MOST_OF_FACT = 28  # letters of a fact that a column has room for


@click.command("compare")
@click.argument("a")
@click.argument("b", default="last")
@json_option
@runs_option
def command(a: str, b: str, as_json: bool, runs: Path) -> None:
    """Compare two runs, with the interval of the difference.

    Runs are named as for `joulelab show`; B is the last one unless named.
    """
    from joulelab.report.cache import result_of
    from joulelab.report.comparison import compare
    from joulelab.store.folder import find_run

    first, second = find_run(runs, a), find_run(runs, b)
    if first.resolve() == second.resolve():
        raise click.UsageError(f"both are run {first.name}; name two, see `joulelab ls`")
    found = compare(result_of(first), result_of(second))
    if as_json:
        print_json(found.to_json())
        return
    _print(found)


def _print(found: Comparison) -> None:
    from rich.text import Text

    from joulelab.report import format as fmt
    from joulelab.report.console import make_console, make_table

    console = make_console(sys.stdout)
    for label, run in (("A", found.a), ("B", found.b)):
        console.print(Text(fmt.shortened(f"{label}  {run.run}  {_title(run)}", console.width)))
    console.print()
    table = make_table("", "A", "B", "B / A - 1", "", left=(0, 4))
    for line in found.lines:
        ratio = line.ratio
        change = fmt.NOTHING if ratio is None else fmt.change(ratio.value - 1, ratio.expanded)
        verdict = "" if line.difference is not False or line.unit in ("s", "") else line.verdict()
        table.add_row(line.name, *_values(line), change, verdict)
    for name, told in found.facts.items():
        table.add_row(name, *(fmt.NOTHING if v is None else fmt.shortened(fmt.fact(v), MOST_OF_FACT) for v in told))
    console.print(table)
    console.print()
    console.print(Text(found.verdict() + ".", style="bold"))
    for note in found.notes():
        console.print(Text(note))


def _title(run: Result) -> str:
    return f"{run.name}: {shlex.join(run.command)}" if run.name else shlex.join(run.command)


def _values(line: Line) -> tuple[str, str]:
    from joulelab.report import format as fmt

    if line.unit == "s":
        return fmt.duration(line.a.value), fmt.duration(line.b.value)
    if not line.unit:
        return fmt.rate(line.a.value), fmt.rate(line.b.value)
    largest = [v for q in (line.a, line.b) for v in (q.value, q.expanded)]
    factor, unit = fmt.column(largest, line.unit)
    mark = "~" if line.estimate else ""

    def text(value: float, expanded: float | None) -> str:
        return f"{mark}{fmt.interval(value / factor, None if expanded is None else expanded / factor)} {unit}"

    return text(line.a.value, line.a.expanded), text(line.b.value, line.b.expanded)
