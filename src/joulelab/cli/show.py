"""Show a run: `joulelab show [RUN]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import (
    load_current_site,
    measure_terminal,
    print_blocks,
    print_json,
    print_notice,
    show_progress,
)
from joulelab.cli.parameters import add_format_option, format_examples, json_option, name_run, runs_option

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result


@click.command(
    "show",
    epilog=format_examples(
        "joulelab show", "joulelab show baseline --phases", "joulelab show last --json", "joulelab show --format latex"
    ),
)
@click.argument("run", default="last")
@click.option("--all", "everything", is_flag=True, help="Show every device, all notes, meters and phases.")
@click.option("--phases", is_flag=True, help="Show all phases, with the energy of each kind of device.")
@click.option("--budget", is_flag=True, help="Show what each uncertainty is made of.")
@click.option(
    "--scopes",
    type=click.Choice(["main", "all"]),
    default="main",
    show_default=True,
    help="Show whole devices (main), or their parts too (all).",
)
@click.option(
    "--calibration",
    metavar="FILE|none",
    help="Use this calibration instead of those that the run stored, or none.",
)
@add_format_option()
@json_option
@runs_option
def command(
    run: str,
    everything: bool,
    phases: bool,
    budget: bool,
    scopes: str,
    calibration: str | None,
    form: str,
    as_json: bool,
    runs: Path,
) -> None:
    """Show the energy of a run, finished or still running.

    RUN is an id or its beginning, a name, a path, or `last`.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.store.run_folder import find_run

    path = find_run(runs, run)
    with show_progress(f"reading {path.name}"):
        result = load_result(path) if calibration is None else _analyse_with(path, calibration)
        result = result.with_site(load_current_site())
    if as_json:
        from joulelab.report.result_json import describe_result

        print_json(describe_result(result) | {"folder": str(path)})
        return
    from joulelab.report.run_tables import lay_out_run, write_run_document

    wanted: dict[str, Any] = {"every_scope": scopes == "all", "every_phase": phases, "budget": budget}
    if form != "text":
        click.echo(write_run_document(result, form, **wanted), nl=False)
        return
    if everything or any(wanted.values()):
        print_blocks(lay_out_run(result, path, width=measure_terminal(), handle=name_run(path), **wanted))
        return
    from joulelab.report.run_summary import lay_out_summary

    print_blocks(lay_out_summary(result, path, width=measure_terminal(), handle=name_run(path)))


def _analyse_with(path: Path, calibration: str) -> Result:
    """Analyse a run with another calibration, or without any; the stored result stays as it is."""
    from pathlib import Path

    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.calibration_files import read_calibration
    from joulelab.store.run_reader import open_run

    record = {} if calibration == "none" else read_calibration(Path(calibration))
    with open_run(path) as opened:
        result = analyse_run(opened, calibration=record)
    stated = any(check.name == "calibration" for check in result.checks)
    if record and not stated and all(scope.reading.accuracy != "calibrated" for scope in result.scopes):
        print_notice(f"{calibration} is not used: no meter of this run is in it")
    return result
