"""List runs: `joulelab ls`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import json_option, runs_option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHOWN = 20
MOST_OF_DATA, LEAST_OF_DATA, LEAST_OF_COMMAND = 24, 12, 8  # letters


@click.command("ls")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="Show the last N runs."
)
@click.option("-a", "--all", "every", is_flag=True, help="Show all runs.")
@json_option
@runs_option
def command(count: int, every: bool, as_json: bool, runs: Path) -> None:
    """List the runs of a store.

    The newest comes last.
    """
    from joulelab.cli.output import show_progress
    from joulelab.store.folder import list_runs

    known = list_runs(runs)
    shown = known if every else known[-count:]
    rows = []
    with show_progress(f"reading {len(shown)} runs", len(shown)) as step:
        for path in shown:
            rows.append(_row(path))
            step()
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"no runs in {runs}; joulelab run -- CMD makes one")
        return
    _print(rows)
    if len(shown) < len(known):
        click.echo(f"the last {len(shown)} of {len(known)} runs; joulelab ls --all")


def _row(path: Path) -> dict[str, Any]:
    from joulelab.analysis.results_file import load_head
    from joulelab.core.errors import JoulelabError
    from joulelab.report.result_json import describe_head

    row: dict[str, Any] = {"run": path.name, "folder": str(path), "problem": None}
    try:
        return row | describe_head(load_head(path))
    except JoulelabError as error:
        return row | {"problem": str(error)}
    except Exception as error:  # noqa: BLE001 one run that cannot be analysed must not hide the others
        return row | {"problem": f"{type(error).__name__}: {error}"}


def _print(rows: list[dict[str, Any]]) -> None:
    from joulelab.report import format as fmt
    from joulelab.report.columns import GAP, print_columns
    from joulelab.report.console import make_console

    heads = ["run", "age", "time", "energy", "end", "command"]
    cells = [list(_cells(row)) for row in rows]
    data, width = [_data(row) for row in rows], make_console(sys.stdout).width
    if any(data):
        need = min(max(map(len, data)), LEAST_OF_DATA) + GAP + LEAST_OF_COMMAND
        if _room(heads, cells, width) < need:
            for line in (heads, *cells):
                del line[1]  # the run's name has its date
        room = _room(heads, cells, width)
        alone = room < need
        most = min(max(room if alone else room - GAP - LEAST_OF_COMMAND, LEAST_OF_COMMAND), MOST_OF_DATA)
        for line, told in zip([heads, *cells], ["data", *data], strict=True):
            line.insert(-1, fmt.format_data_name(told, most))
            if alone:
                line.pop()
    if heads[-1] == "command":
        # The command is cut, to the room that the others leave.
        most = _room(heads, cells, width)
        cells = [[*c[:-1], fmt.shorten_end(c[-1], max(most, LEAST_OF_COMMAND))] for c in cells]
    left = [k for k, head in enumerate(heads) if head in ("run", "end", "data", "command")]
    print_columns(sys.stdout, heads, cells, left=left)


def _room(heads: list[str], cells: list[list[str]], width: int) -> int:
    """Return the room that all columns but the last leave in a line."""
    from joulelab.report.columns import GAP, widths

    return width - sum(each + GAP for each in widths(heads[:-1], [c[:-1] for c in cells]))


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    from joulelab.report import format as fmt
    from joulelab.report.listed import format_run_end, format_run_energy

    if row["problem"]:
        age, took = (_age(row["start_utc"]), fmt.format_duration(row["duration_s"])) if "start_utc" in row else ("", "")
        return row["run"], age, took, "", row.get("check") or "damaged", row["problem"]
    words = (f"{row['name']}: " if row["name"] else "") + shlex.join(row["command"])
    words = f"simulated (twin {row['twin']}): {words}" if row.get("twin") else words
    took = fmt.format_duration(row["duration_s"])
    return row["run"], _age(row["start_utc"]), took, format_run_energy(row), format_run_end(row), words


def _data(row: Mapping[str, Any]) -> str:
    """Return what a run says it worked on, empty where it does not."""
    return str((row.get("facts") or {}).get("data", ""))


def _age(start_utc: str) -> str:
    import datetime as dt

    try:
        seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(start_utc)).total_seconds()
    except (ValueError, TypeError):  # it is not known, or no time
        return ""
    for length, unit in ((365.25 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(int(seconds), 0)} s"
