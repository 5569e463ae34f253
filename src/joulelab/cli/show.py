"""Show a run: `joulelab show [RUN]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from joulelab.cli.output import measure_terminal, print_blocks, print_json
from joulelab.cli.parameters import json_option, name_run, runs_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("show")
@click.argument("run", default="last")
@click.option("--phases", is_flag=True, help="Show every phase, by family of devices.")
@click.option("--budget", is_flag=True, help="Show what makes up the uncertainty of each scope.")
@click.option(
    "--scopes",
    type=click.Choice(["main", "all"]),
    default="main",
    show_default=True,
    help="all: also parts of packages.",
)
@json_option
@runs_option
def command(run: str, phases: bool, budget: bool, scopes: str, as_json: bool, runs: Path) -> None:
    """Show what a run used, live or ended.

    RUN is an id, the beginning of one, a name, a path, or `last`.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.cli.output import show_progress
    from joulelab.store.folder import find_run

    path = find_run(runs, run)
    with show_progress(f"reading {path.name}"):
        result = load_result(path)
    if as_json:
        print_json(result.to_json() | {"folder": str(path)})
        return
    from joulelab.report.run_tables import lay_out_run

    blocks = lay_out_run(
        result,
        path,
        width=measure_terminal(),
        every_scope=scopes == "all",
        every_phase=phases,
        budget=budget,
        handle=name_run(path),
    )
    print_blocks(blocks)
