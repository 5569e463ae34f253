"""Compare two runs: `joulelab compare A B`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import UsageError, json_option, runs_option

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from joulelab.report.comparison import RunComparison

LEAST_OF_FACT = 24  # letters
ALIKE, NOT_APART = "≈", "no significant difference"


@click.command("compare")
@click.argument("a")
@click.argument("b", default="last")
@json_option
@runs_option
def command(a: str, b: str, as_json: bool, runs: Path) -> None:
    """Compare two runs, with the interval of the difference.

    Runs are named as for `joulelab show`; B is the last one unless named.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.cli.output import show_progress
    from joulelab.report.comparison import compare_runs
    from joulelab.store.run_folder import find_run

    first, second = find_run(runs, a), find_run(runs, b)
    if first.resolve() == second.resolve():
        raise UsageError("same-run", f"both are run {first.name}; name two, see `joulelab ls`")
    with show_progress(f"reading {first.name} and {second.name}"):
        found = compare_runs(load_result(first), load_result(second))
    if as_json:
        print_json(found.to_json())
        return
    _print(found)


def _print(found: RunComparison) -> None:
    from rich.text import Text

    from joulelab.report import format as fmt
    from joulelab.report.comparison_rows import title_run
    from joulelab.report.console import make_console
    from joulelab.report.messages import COMPARISON, word_notes

    console = make_console(sys.stdout)
    for label, run in (("A", found.a), ("B", found.b)):
        console.print(Text(fmt.shorten_end(f"{label}  {run.run}  {title_run(run)}", console.width)))
        if run.twin:
            console.print(Text(f"   {fmt.name_twins([run.twin])}"))
    console.print()
    alike = _print_figures(console, found)
    if found.facts:
        console.print()
        _print_facts(console, found)
    console.print()
    console.print(Text(found.verdict() + ".", style="bold"))
    for note in (*([f"{ALIKE}: {NOT_APART}."] if alike else []), *word_notes(found.notes(), COMPARISON)):
        console.print(Text(note))


def _print_figures(console: Console, found: RunComparison) -> bool:
    """Print the figures, in several tables where one is too wide; return whether some have a mark for a verdict."""
    from joulelab.report.comparison_rows import list_figure_rows
    from joulelab.report.study.table import fits, fitting, print_table
    from joulelab.report.study_tables import Column

    rows = list_figure_rows(found)
    changes, said = [row.change for row in rows], [row.verdict for row in rows]
    columns = [
        Column("", tuple(row.name for row in rows)),
        Column("A", tuple(row.a for row in rows)),
        Column("B", tuple(row.b for row in rows)),
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


def _print_facts(console: Console, found: RunComparison) -> None:
    """Print what the workloads told of themselves; texts that there is no room for are cut in their middle."""
    from joulelab.report.columns import GAP, print_columns
    from joulelab.report.comparison_rows import MOST_OF_NAME, list_compared_facts

    room = max((console.width - MOST_OF_NAME - 2 * GAP) // 2, LEAST_OF_FACT)
    print_columns(console.file, ("fact", "A", "B"), list_compared_facts(found, room), left=(0, 1, 2))
