"""Compare two runs: `joulelab compare A B`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from joulelab.cli.output import measure_terminal, print_blocks, print_json
from joulelab.cli.parameters import UsageError, format_examples, json_option, runs_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("compare", epilog=format_examples("joulelab compare baseline", "joulelab compare A B --json"))
@click.argument("a")
@click.argument("b", default="last")
@json_option
@runs_option
def command(a: str, b: str, as_json: bool, runs: Path) -> None:
    """Compare two runs, with the uncertainty of the difference.

    A and B are runs: an id or its beginning, a name, a path, or `last`. B is the last run by default.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.cli.output import show_progress
    from joulelab.report.comparison import compare_runs
    from joulelab.store.run_folder import find_run

    first, second = find_run(runs, a), find_run(runs, b)
    if first.resolve() == second.resolve():
        raise UsageError("same-run", f"A and B are the same run {first.name}; name two runs of `joulelab ls`")
    with show_progress(f"reading {first.name} and {second.name}"):
        found = compare_runs(load_result(first), load_result(second))
    if as_json:
        print_json(found.to_json())
        return
    from joulelab.report.comparison import lay_out_comparison

    print_blocks(lay_out_comparison(found, width=measure_terminal()))
