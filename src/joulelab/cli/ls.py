"""List runs: `joulelab ls`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import load_current_site, measure_terminal, print_blocks, print_json, show_progress
from joulelab.cli.parameters import format_examples, json_option, runs_option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.report.tables import Table
    from joulelab.site.footprint import Site

DEFAULT_COUNT = 20
MAX_DATA_WIDTH, MIN_DATA_WIDTH, MIN_COMMAND_WIDTH = 24, 12, 8
SIMULATED = "sim."  # a column, if there are simulated runs
LEGEND = "sim.: simulated by a twin, not measured"


@click.command("ls", epilog=format_examples("joulelab ls", "joulelab ls -n 100", "joulelab ls --all --json"))
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=DEFAULT_COUNT,
    show_default=True,
    metavar="N",
    help="Show the last N runs.",
)
@click.option("-a", "--all", "every", is_flag=True, help="Show all runs.")
@json_option
@runs_option
def command(count: int, every: bool, as_json: bool, runs: Path) -> None:
    """List the runs: age, duration, energy, outcome, command.

    The newest run comes last.
    """
    from joulelab.store.run_folder import list_runs

    known = list_runs(runs)
    chosen = known if every else known[-count:]
    rows = []
    site = load_current_site() if as_json else None
    with show_progress(f"reading {len(chosen)} runs", len(chosen)) as step:
        for path in chosen:
            rows.append(_read_row(path, site))
            step()
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"There are no runs in {runs}. Make one:\n-> joulelab run -- CMD")
        return
    from joulelab.report.terminal import TextLine

    legend = [TextLine(LEGEND)] if any(row.get("twin") for row in rows) else []
    print_blocks([_make_table(rows, measure_terminal()), *legend])
    if len(chosen) < len(known):
        click.echo(f"the last {len(chosen)} of {len(known)} runs; all:\n-> joulelab ls --all")


def _read_row(path: Path, site: Site | None) -> dict[str, Any]:
    from joulelab.analysis.results_file import load_head
    from joulelab.core.errors import JoulelabError
    from joulelab.report.result_json import describe_head

    row: dict[str, Any] = {"run": path.name, "folder": str(path), "problem": None, "code": None}
    try:
        return row | describe_head(load_head(path).with_site(site))
    except JoulelabError as error:
        return row | {"problem": str(error), "code": error.code}
    except Exception as error:  # noqa: BLE001 one run that cannot be analysed must not hide the others
        return row | {"problem": f"{type(error).__name__}: {error}"}


def _make_table(rows: list[dict[str, Any]], width: int) -> Table:
    """Return the table; on a narrow terminal without the age, then with shorter texts, at last without the command."""
    from dataclasses import replace

    from joulelab.report.run_tables import word_no_interval

    shown = [row for row in rows if row.get("energy") and not row["problem"]]
    unsure = [row["run"] for row in shown if row["energy"]["expanded"] is None]
    return replace(_fit_columns(rows, width), no_interval=word_no_interval(unsure[-1]) if unsure else "")


def _fit_columns(rows: list[dict[str, Any]], width: int) -> Table:
    from joulelab.report import format as fmt
    from joulelab.report.tables import GAP, make_table, measure_table

    names = ["run", "age", "time", "energy", "outcome"]
    cells = [_format_cells(row) for row in rows]
    if any(row.get("twin") for row in rows):
        names.append(SIMULATED)
        cells = [[*line, "yes" if row.get("twin") else ""] for line, row in zip(cells, rows, strict=True)]
    commands = [" ".join(row["problem"].split()) if row["problem"] else _format_command(row) for row in rows]
    data = [str((row.get("facts") or {}).get("data", "")) for row in rows]  # what the run worked on
    left = {"run", "outcome", SIMULATED, "data", "command"}

    def find_room() -> int:
        return (
            width
            - measure_table(make_table(names, cells, left=[k for k, name in enumerate(names) if name in left]))
            - GAP
        )

    longest = max(map(len, data))
    needed = MIN_COMMAND_WIDTH + (min(longest, MIN_DATA_WIDTH) + GAP if longest else 0)
    wanted = min(max(map(len, commands)), MAX_DATA_WIDTH)  # for a command that is not cut
    if find_room() < max(needed, wanted):
        names.remove("age")  # the name of a run has its date
        cells = [[run, *rest] for run, _, *rest in cells]
    if longest:
        room = find_room()
        has_command = room >= needed
        most = room - GAP - MIN_COMMAND_WIDTH if has_command else room
        most = min(max(most, MIN_COMMAND_WIDTH), MAX_DATA_WIDTH)
        names.append("data")
        cells = [[*line, fmt.format_data_name(text, most)] for line, text in zip(cells, data, strict=True)]
        if not has_command:
            return make_table(names, cells, left=[k for k, name in enumerate(names) if name in left])
    room = max(find_room(), MIN_COMMAND_WIDTH)
    names.append("command")
    cells = [[*line, fmt.shorten_end(text, room)] for line, text in zip(cells, commands, strict=True)]
    return make_table(names, cells, left=[k for k, name in enumerate(names) if name in left])


def _format_cells(row: Mapping[str, Any]) -> list[str]:
    """Return run, age, time, energy and end; a damaged run may have none but its name."""
    from joulelab.report import format as fmt
    from joulelab.report.run_tables import format_run_end, format_run_energy

    age = _format_age(row["start_utc"]) if "start_utc" in row else ""
    took = fmt.format_duration(row["duration_s"]) if "start_utc" in row else ""
    if row["problem"]:
        return [row["run"], age, took, "", row.get("check") or "damaged"]
    return [row["run"], age, took, format_run_energy(row), format_run_end(row)]


def _format_command(row: Mapping[str, Any]) -> str:
    return (f"{row['name']}: " if row["name"] else "") + shlex.join(row["command"])


def _format_age(start_utc: str) -> str:
    import datetime as dt

    try:
        seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(start_utc)).total_seconds()
    except (ValueError, TypeError):  # missing, or not a time
        return ""
    for length, unit in ((365.25 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(int(seconds), 0)} s"
