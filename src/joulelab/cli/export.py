"""Write the samples of a run for other programs: `joulelab export RUN --to csv`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import UsageError, json_option, runs_option

if TYPE_CHECKING:
    from joulelab.store.export import Format


@click.command("export")
@click.argument("run", default="last")
@click.option(
    "--to",
    type=click.Choice(["csv", "parquet", "json"]),
    default="csv",
    show_default=True,
    help="Format of the samples.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder to write into (RUN-csv); for JSON also `-`, standard output.",
)
@json_option
@runs_option
def command(run: str, to: Format, output: Path | None, as_json: bool, runs: Path) -> None:
    """Write the samples of a run as CSV, Parquet or JSON.

    One file per table, and metadata.json with everything else. CSV and JSON have times in UTC and in seconds since
    the command started; Parquet has them as they were recorded, in ns of the monotonic clock.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.cli.output import show_progress
    from joulelab.report.result_json import describe_result
    from joulelab.store.export import export
    from joulelab.store.folder import find_run, write_json_atomic
    from joulelab.store.run import open_run

    path = find_run(runs, run)
    with show_progress(f"reading {path.name}"):
        result = load_result(path)
    with open_run(path) as opened:
        if str(output) == "-":
            _to_stdout(opened, to)
            return
        folder = output or Path(f"{path.name}-{to}")
        with show_progress(f"writing {folder}"):
            files = export(opened, to, folder)
    write_json_atomic(folder / "results.json", describe_result(result))
    files = [*files, folder / "results.json"]
    if as_json:
        print_json({"run": path.name, "files": [str(f) for f in files]})
        return
    for file in files:
        click.echo(str(file))


def _to_stdout(opened: object, to: Format) -> None:
    from joulelab.store.export import export
    from joulelab.store.run import Run

    if to != "json":
        raise UsageError("several-files", f"--to {to} is several files; give a folder with -o")
    assert isinstance(opened, Run)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for file in export(opened, to, folder):
            sys.stdout.write(file.read_text())
    sys.stdout.flush()
