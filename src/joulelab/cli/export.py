"""Write the readings of a run for other programs: `joulelab export RUN --to csv`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import load_current_site, print_json, show_progress
from joulelab.cli.parameters import UsageError, format_examples, json_option, runs_option

if TYPE_CHECKING:
    from joulelab.store.run_export import Format


@click.command(
    "export", epilog=format_examples("joulelab export last --to csv", "joulelab export RUN --to parquet -o out")
)
@click.argument("run", default="last")
@click.option(
    "--to", type=click.Choice(["csv", "parquet", "json"]), default="csv", show_default=True, help="Format of the files."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to write; with --to json also `-`, standard output.  [default: RUN-csv]",
)
@json_option
@runs_option
def command(run: str, to: Format, output: Path | None, as_json: bool, runs: Path) -> None:
    """Write the readings of a run as CSV, Parquet or JSON.

    Writes one file per table, and metadata.json with everything else. CSV and JSON have times in UTC and in seconds
    since the start of the command; Parquet has them as recorded, in ns of the monotonic clock.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.report.result_json import describe_result
    from joulelab.store.run_export import export_run
    from joulelab.store.run_folder import find_run, write_json_atomic
    from joulelab.store.run_reader import open_run

    to_stdout = str(output) == "-"
    if to_stdout and to != "json":
        raise UsageError("several-files", f"--to {to} writes several files; name a folder with -o")
    path = find_run(runs, run)
    if to_stdout:
        with open_run(path) as opened, tempfile.TemporaryDirectory() as folder:
            for file in export_run(opened, to, Path(folder)):
                sys.stdout.write(file.read_text())
        sys.stdout.flush()
        return
    with show_progress(f"reading {path.name}"):
        result = load_result(path).with_site(load_current_site())
    target = output or Path(f"{path.name}-{to}")
    with open_run(path) as opened, show_progress(f"writing {target}"):
        files = export_run(opened, to, target)
    write_json_atomic(target / "results.json", describe_result(result))
    names = [str(file) for file in (*files, target / "results.json")]
    if as_json:
        print_json({"run": path.name, "files": names})
    else:
        click.echo("\n".join(names))
