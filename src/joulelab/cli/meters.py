"""Show what can be measured here: `joulelab meters`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.options import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.meters.catalog import Channel, Row

TWIN = "joulelab twin -- joulelab meters   # a simulated node with GPUs and CPUs"


@click.command("meters")
@click.argument("names", nargs=-1, metavar="[METER]...")
@click.option("--all", "every", is_flag=True, help="Show every channel, also those that are not energy or power.")
@json_option
def command(names: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Show what can be measured here, and what to do about the rest."""
    from joulelab.meters import find
    from joulelab.meters.catalog import survey

    for name in names:
        find(name)  # raises for a name that no meter has
    rows = survey(configs(os.environ), names or None)
    if as_json:
        print_json([_plain(row) for row in rows])
        return
    _print(rows, every=every)


def configs(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the meters' settings that the environment asks for."""
    root = environ.get("JOULELAB_POWERCAP")
    return {"rapl": {"root": root}} if root else {}


def is_power(channel: Channel) -> bool:
    """Return whether a channel tells energy or power."""
    return channel.spec.kind == "power" or (channel.spec.kind == "counter" and channel.spec.unit == "J")


def _plain(row: Row) -> dict[str, Any]:
    data = asdict(row)
    for channel, plain in zip(row.channels, data["channels"], strict=True):
        plain["accuracy"] = channel.accuracy
    return data


def _print(rows: list[Row], *, every: bool) -> None:
    from joulelab.report.console import make_console, print_facts

    console = make_console(sys.stdout)
    opened = [r for r in rows if r.status == "open"]
    table = _table([c for r in opened for c in r.channels if every or is_power(c)])
    if table is not None:
        console.print(table)
        console.print()
    else:
        console.print("There is no power meter here: runs are recorded with time and load, without energy.")
        console.print()
    print_facts(console, [line for r in opened for line in _open_lines(r)])
    refused = [r for r in rows if r.status != "open"]
    if refused:
        console.print()
        console.print("Not measured:")
        print_facts(console, [line for r in refused for line in _refused_lines(r)])
    if table is None:
        console.print()
        console.print(f"try      {TWIN}", soft_wrap=True)


def _table(channels: list[Channel]) -> Any:
    from joulelab.report import format as fmt
    from joulelab.report.console import make_table

    if not channels:
        return None
    together: dict[tuple[Any, ...], list[Channel]] = {}
    for c in channels:
        # The update period may be measured when the meter opens, so that it differs a little between devices.
        key = (c.meter, c.scope.split(":")[0], c.model, c.period_s, replace(c.spec, update_s=None, limits=None))
        together.setdefault(key, []).append(c)
    table = make_table("scope", "quantity", "accuracy", "read", "updates", "sees", "meter", left=(0, 1, 2, 6))
    for members in together.values():
        c = members[0]
        updates = fmt.period(c.spec.update_s)
        sees = "all" if c.spec.seen >= 1 else f"{c.spec.seen:.0%}"
        window = f" over {fmt.period(c.spec.window_s)}" if c.spec.kind == "power" and c.spec.window_s else ""
        what = f"{c.spec.quantity}{window}, {c.spec.unit}" + (" (estimate)" if c.spec.estimate else "")
        accuracy = c.accuracy.replace("(", "").replace(")", "")
        scopes = fmt.span([m.scope for m in members])
        table.add_row(scopes, what, accuracy, fmt.period(c.period_s), updates, sees, c.meter)
    return table


def _open_lines(row: Row) -> list[tuple[str, str]]:
    models = list(dict.fromkeys(c.model for c in row.channels if c.model))
    text = f"{', '.join(models)}; {row.summary}" if models else row.summary
    references = list(dict.fromkeys(c.spec.accuracy.reference for c in row.channels if c.spec.accuracy.reference))
    lines = [(row.meter, f"{text}; privilege: {row.privilege or 'none'}")]
    lines += [("", f"accuracy: {reference}") for reference in references[:2]]
    lines += [("", f"{m.scope}: {m.what} ({m.why})" + (f"\n-> {m.next}" if m.next else "")) for m in row.missing]
    return lines


def _refused_lines(row: Row) -> list[tuple[str, str]]:
    why = f" ({row.why})" if row.why else ""
    what = row.what or (row.summary if row.status == "on request" else row.status)
    then = f"\n-> {row.next}" if row.next else ""
    return [(row.meter, f"{what}{why}{then}")]
