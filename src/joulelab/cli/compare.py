"""Compare two runs: `joulelab compare A B`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from joulelab.cli.options import json_option, print_json, runs_option

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from joulelab.analysis.result import Result
    from joulelab.report.comparison import Comparison, Line

MOST_OF_NAME, LEAST_OF_FACT = 24, 24  # letters
ALIKE, NOT_APART = "≈", "cannot be told apart"


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
    from joulelab.report.console import make_console

    console = make_console(sys.stdout)
    for label, run in (("A", found.a), ("B", found.b)):
        console.print(Text(fmt.shortened(f"{label}  {run.run}  {_title(run)}", console.width)))
        if run.twin:
            console.print(Text(f"   {fmt.simulated([run.twin])}"))
    console.print()
    alike = _print_figures(console, found)
    if found.facts:
        console.print()
        _print_facts(console, found)
    console.print()
    console.print(Text(found.verdict() + ".", style="bold"))
    for note in (*([f"{ALIKE}: {NOT_APART}."] if alike else []), *found.notes()):
        console.print(Text(note))


def _print_figures(console: Console, found: Comparison) -> bool:
    """Print the figures, in several tables where one is too wide; return whether some have a mark for a verdict."""
    from joulelab.report import format as fmt
    from joulelab.report.study import fits, fitting, print_table
    from joulelab.report.study_rows import Column

    lines = found.lines
    ratios = [line.ratio for line in lines]
    changes = [fmt.NOTHING if r is None else fmt.change(r.value - 1, r.expanded) for r in ratios]
    said = ["" if line.difference is not False or line.unit in ("s", "") else line.verdict() for line in lines]
    values = [_values(line) for line in lines]
    columns = [
        Column("", tuple(line.name for line in lines)),
        Column("A", tuple(a for a, _ in values)),
        Column("B", tuple(b for _, b in values)),
        Column("B / A - 1", tuple(changes)),
    ]
    verdicts = [Column("", tuple(said))] if any(said) else []
    if fits([*columns, *verdicts], console.width):
        print_table(console, [*columns, *verdicts], left=(0, 4))
        return False
    columns[3] = Column("B / A - 1", tuple(f"{c} {ALIKE if v else ' '}" for c, v in zip(changes, said, strict=True)))
    for k, part in enumerate(fitting(columns[0], columns[1:], console.width)):
        if k:
            console.print()
        print_table(console, [columns[0], *part], left=(0,))
    return any(said)


def _print_facts(console: Console, found: Comparison) -> None:
    """Print what the workloads told of themselves; texts that there is no room for are cut in their middle."""
    from joulelab.report import format as fmt
    from joulelab.report.columns import GAP, print_columns

    room = max((console.width - MOST_OF_NAME - 2 * GAP) // 2, LEAST_OF_FACT)
    rows = []
    for name, told in found.facts.items():
        write = fmt.data if name == "data" else fmt.fact
        texts = (fmt.NOTHING if v is None else write(v, room) for v in told)
        rows.append((fmt.in_the_middle(name, MOST_OF_NAME), *texts))
    print_columns(console.file, ("fact", "A", "B"), rows, left=(0, 1, 2))


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
