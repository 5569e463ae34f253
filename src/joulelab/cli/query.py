"""Ask all runs: `joulelab query "SELECT ..."`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import UsageError, json_option, runs_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("query")
@click.argument("sql")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
@runs_option
def command(sql: str, as_csv: bool, as_json: bool, runs: Path) -> None:
    """Answer SQL over all runs.

    Views: runs, energies, phases, facts, and the samples of every meter, such as nvml_power and rapl_energy.
    Scopes that are `counted` in energies add up to what was measured.

    joulelab query "SELECT scope, avg(mean_w) FROM energies GROUP BY scope"
    """
    if as_csv and as_json:
        raise UsageError("exclusive", "--csv and --json exclude each other")
    from joulelab.analysis.results_file import list_query_rows, seal_ended
    from joulelab.cli.output import show_progress
    from joulelab.store.query import query

    lost: dict[Path, str] = {}
    failed: dict[str, str] = {}
    try:
        with show_progress("asking all runs"):
            columns, rows = query(runs, sql, results=list_query_rows, prepare=seal_ended, left_out=lost, damaged=failed)
    finally:
        for file, why in lost.items():
            click.echo(f"warning: the answer lacks the samples of {file}: {why}", err=True)
        for run, why in failed.items():
            click.echo(f"warning: the answer lacks figures of run {run}: {why}", err=True)
    if as_json:
        print_json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
    elif as_csv:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        _print(columns, rows)


def _plain(value: Any) -> Any:
    from joulelab.core.text import finite_or_none

    if isinstance(value, float):
        return finite_or_none(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _print(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    from joulelab.report.columns import GAP, print_columns, widths
    from joulelab.report.console import make_console

    texts = [[_cell(value) for value in row] for row in rows]
    left = [k for k in range(len(columns)) if not any(isinstance(row[k], int | float) for row in rows)]
    # What is wider than the terminal cannot be read as a table.
    if sum(width + GAP for width in widths(columns, texts)) - GAP <= make_console(sys.stdout).width:
        print_columns(sys.stdout, columns, texts, left=left)
    else:
        _print_records(columns, rows)
    click.echo(f"{len(rows)} row{'' if len(rows) == 1 else 's'}", err=True)


def _print_records(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Print a line per value."""
    width = max(len(name) for name in columns)
    for k, row in enumerate(rows):
        if k:
            click.echo()
        for name, value in zip(columns, row, strict=True):
            click.echo(f"{name:<{width}}  {_cell(value)}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.isoformat(sep=" ", timespec="seconds") if hasattr(value, "isoformat") else str(value)
