"""Query all runs with SQL: `joulelab query "SELECT ..."`."""

from __future__ import annotations

import functools
import math
import sys
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
from joulelab.cli.parameters import Duration, UsageError, format_examples, json_option, runs_option

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.report.terminal import TextBlock

EXAMPLES = format_examples(
    'joulelab query "SELECT * FROM runs" --json',
    'joulelab query "SELECT scope, avg(mean_w) FROM energies GROUP BY scope"',
)


@click.command("query", epilog=EXAMPLES)
@click.argument("sql")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--timeout", type=Duration(0.001), default="10m", show_default=True, help="Time that it may take.")
@json_option
@runs_option
def command(sql: str, as_csv: bool, timeout: float, as_json: bool, runs: Path) -> None:
    """Query all runs with SQL.

    Tables: runs, energies, phases, facts, and the readings of each meter, such as nvml_power and rapl_energy. The
    scopes marked `counted` in energies add up to the total of a run.
    """
    if as_csv and as_json:
        raise UsageError("exclusive", "--csv and --json exclude each other")
    from joulelab.analysis.results_file import list_query_rows, seal_ended
    from joulelab.store.run_query import run_query

    lost: dict[Path, str] = {}
    failed: dict[str, str] = {}
    try:
        with show_progress("reading all runs"):
            results = functools.partial(list_query_rows, site=load_current_site())
            more: dict[str, Any] = {"results": results, "prepare": seal_ended, "left_out": lost, "damaged": failed}
            columns, rows = run_query(runs, sql, limit_s=timeout, **more)
    finally:
        for file, why in lost.items():
            print_notice(f"the readings of {file} are missing: {why}")
        for run, why in failed.items():
            print_notice(f"figures of run {run} are missing: {why}")
    if as_json:
        print_json([dict(zip(columns, map(_make_plain, row), strict=True)) for row in rows])
    elif as_csv:
        from joulelab.report.tables import make_table, write_csv

        sys.stdout.write(write_csv(make_table(columns, rows)))
    else:
        _print_rows(columns, rows)


def _make_plain(value: Any) -> Any:
    from joulelab.core.text import finite_or_none

    if isinstance(value, float):
        return finite_or_none(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _print_rows(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    from joulelab.report.tables import make_table, measure_table
    from joulelab.report.terminal import BLANK_LINE, list_facts

    texts = [[_format_value(value) for value in row] for row in rows]
    left = [k for k in range(len(columns)) if not any(isinstance(row[k], int | float) for row in rows)]
    table = make_table(columns, texts, left=left)
    if measure_table(table) <= measure_terminal():
        print_blocks([table])
    else:  # one line per value: a table that is wider than the terminal cannot be read
        width = max(len(name) for name in columns) + 1
        for number, row in enumerate(texts):
            blocks: list[TextBlock] = [list_facts(zip(columns, row, strict=True), label_width=width)]
            print_blocks([BLANK_LINE, *blocks] if number else blocks)
    click.echo(f"{len(rows)} row{'' if len(rows) == 1 else 's'}", err=True)


def _format_value(value: Any) -> str:
    from joulelab.report.format import format_plain

    if value is None:
        return "-"
    if isinstance(value, float):
        return format_plain(value) if math.isfinite(value) else str(value)
    return value.isoformat(sep=" ", timespec="seconds") if hasattr(value, "isoformat") else str(value)
