"""Show what can be measured here: `joulelab meters`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import UsageError, config_option, json_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.instruments.catalog import Channel, Row
    from joulelab.run.config.entry import Config

TWIN = "joulelab twin -- joulelab meters   # a simulated node with GPUs and CPUs"


@click.command("meters")
@click.argument("names", nargs=-1, metavar="[METER]... | KEY=VALUE...")
@click.option("--all", "every", is_flag=True, help="Show every channel, also those that are not energy or power.")
@click.option("--add", "module", metavar="METER", help="Try a meter with KEY=VALUE..., then write it down.")
@click.option("--name", metavar="NAME", help="With --add: name the entry.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="With --add: write into this file.")
@click.option("--user", "level", flag_value="user", help="With --add: write into the user's file.")
@click.option("--system", "level", flag_value="system", help="With --add: write into the system's file.")
@click.option("--replace", is_flag=True, help="With --add: replace an entry of that name.")
@config_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    names: tuple[str, ...],
    every: bool,
    module: str | None,
    config: Path | None,
    as_json: bool,
    **adding: Any,
) -> None:
    """Show what can be measured here, and what to do about the rest.

    joulelab meters --add snmp --name pdu1 address=10.0.0.5 community=env:PDU1 outlets=3,4
    """
    if module is not None:
        from joulelab.cli.add import add

        context.exit(add(module, names, config=config, as_json=as_json, **adding))
    given = [f"--{key}" for key in ("name", "file", "replace") if adding[key]]
    given += [f"--{adding['level']}"] if adding["level"] else []
    if given:
        raise UsageError("needs-add", f"{given[0]} is for --add METER")
    from joulelab.cli.entries import load_configuration
    from joulelab.cli.output import show_progress

    settings = load_configuration(config)
    with show_progress("looking for meters"):
        rows = _rows(settings, names)
    if as_json:
        print_json([_plain(row) for row in rows])
        return
    _print(rows, every=every, named=bool(names))


def _rows(config: Config, names: tuple[str, ...]) -> list[Row]:
    """Describe the usual meters, the configured ones, and those that could be; or those that are named.

    A problem of the configuration is a row, too. Raises ConfigError for a name that no meter has.
    """
    from joulelab import instruments as meters
    from joulelab.cli.entries import rows_of
    from joulelab.instruments.catalog import Row, archives, survey
    from joulelab.run.config.choose import list_lost_meters

    lost = list_lost_meters(config, names)
    entries = [e for e in config.entries if not names or e.name in names or e.meter in names]
    covered = {word for e in entries for word in (e.name, e.meter)} | (set() if names else set(config.off))
    covered |= {word for one in lost for word in (one.meter, one.kind)}
    plain = [name for name in names or [*meters.names(), *archives()] if name not in covered]
    wrong = [Row(**one.to_json(), summary="", status="failed", privilege="", tried="", module=one.kind) for one in lost]
    return [*survey(configs(os.environ), plain, named=bool(names)), *rows_of(entries), *wrong]


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


def _print(rows: list[Row], *, every: bool, named: bool) -> None:
    from joulelab.report.console import make_console, print_facts

    console = make_console(sys.stdout)
    opened = [r for r in rows if r.status == "open"]
    table = _table([c for r in opened for c in r.channels if every or is_power(c)])
    if table is not None:
        console.print(table)
        console.print()
    else:
        here = "There is no power meter here: runs are recorded with time and load, without energy."
        console.print("None of the named meters reads energy or power." if named else here)
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
        alike = replace(c.spec, update_s=None, limits=None, accuracy=replace(c.spec.accuracy, shared="", reference=""))
        key = (c.meter, c.scope.split(":")[0], c.model, c.period_s, alike)
        together.setdefault(key, []).append(c)
    table = make_table("scope", "quantity", "accuracy", "read", "updates", "sees", "meter", left=(0, 1, 2, 6))
    for members in together.values():
        c = members[0]
        updates = fmt.format_period(c.spec.update_s)
        sees = "all" if c.spec.seen >= 1 else f"{c.spec.seen:.0%}"
        averaged = c.spec.kind == "power" and c.spec.window_s and c.spec.window_s != c.spec.update_s
        window = f"/{fmt.format_period(c.spec.window_s)}" if averaged else ""
        what = f"{c.spec.quantity}{window}, {c.spec.unit}" + (" (estimate)" if c.spec.estimate else "")
        accuracy = c.accuracy.replace("(", "").replace(")", "")
        scopes = fmt.join_scopes([m.scope for m in members])
        table.add_row(scopes, what, accuracy, fmt.format_period(c.period_s), updates, sees, c.meter)
    return table


def _open_lines(row: Row) -> list[tuple[str, str]]:
    models = list(dict.fromkeys(c.model for c in row.channels if c.model))
    text = f"{', '.join(models)}; {row.summary}" if models else row.summary
    text += f"; {row.module}, feeds {row.feeds}, from {row.source}" if row.source else ""
    references = list(dict.fromkeys(c.spec.accuracy.reference for c in row.channels if c.spec.accuracy.reference))
    lines = [(row.meter, f"{text}; privilege: {row.privilege or 'none'}")]
    lines += [("", f"accuracy: {reference}") for reference in references[:2]]
    lines += [("", f"{m.scope}: {m.what} ({m.why})" + (f"\n-> {m.next}" if m.next else "")) for m in row.missing]
    return lines


def _refused_lines(row: Row) -> list[tuple[str, str]]:
    why = f" ({row.why})" if row.why else ""
    what = row.what or (row.summary if row.status == "on request" else row.status)
    if row.status == "not configured":
        what = f"{row.summary}; not configured"
    then = f"\n-> {row.next}" if row.next else ""
    source = f"\nfrom {row.source}" if row.source else ""
    return [(row.meter, f"{what}{why}{source}{then}")]
