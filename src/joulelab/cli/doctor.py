"""Examine meters: `joulelab doctor [METER]`."""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.options import Duration, json_option, print_json
from joulelab.core.errors import Denied, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from joulelab.cli.probe import ChannelHealth, MeterHealth

SLOW_READ_S = 0.02
LATE_S = 0.01
OFF = 0.3  # a refresh period that differs from the declared one by more than 30 % is told


@click.command("doctor")
@click.argument("names", nargs=-1, metavar="[METER]...")
@click.option("--for", "seconds", type=Duration(0.02), default="3", show_default=True, help="Read each meter so long.")
@json_option
def command(names: tuple[str, ...], seconds: float, as_json: bool) -> None:
    """Read each meter for a few seconds and say how good it is."""
    from joulelab import meters
    from joulelab.report.console import make_console

    found = []
    console = make_console(sys.stdout)
    for name in names or meters.defaults():
        if not as_json and sys.stderr.isatty():
            click.echo(f"reading {name} for {seconds:g} s ...\r", err=True, nl=False)
        report = examine(name, seconds)
        found.append(report)
        if not as_json:
            _print(console, report)
    if as_json:
        print_json(found)
    elif not any(r["status"] == "open" and r["power"] for r in found) and not names:
        console.print("There is no power meter here; try a simulated one:")
        console.print("-> joulelab twin -- joulelab doctor", soft_wrap=True)
    if names and any(r["status"] != "open" for r in found):
        click.get_current_context().exit(1)


def examine(name: str, seconds: float) -> dict[str, Any]:
    """Open a meter as a run would, read it for a while, and return what is found as plain data."""
    from joulelab.cli.probe import is_fast, probe
    from joulelab.recorder.plan import MeterPlan, Plan, open_meter
    from joulelab.supervisor.options import RunOptions

    offers = RunOptions(runs=Path()).offers(os.environ)
    report: dict[str, Any] = {"meter": name, "status": "open", "what": "", "why": "", "next": "", "power": False}
    report |= {"health": None, "advice": [], "fixes": []}
    try:
        meter = open_meter(Plan(Path(), "", os.getpid(), offers=offers), MeterPlan(name, name, {}))
    except JoulelabError as error:
        status = "denied" if isinstance(error, Denied) else "unavailable"
        report |= {"status": status, "what": error.what, "why": error.why or "", "next": error.next or ""}
        return report | {"fixes": _fixes(name, offers) if status == "denied" else []}
    try:
        health = probe(meter, seconds)
        report["power"] = any(is_fast(stream) for stream in meter.streams())
        missing = getattr(meter, "missing", list)
        gone = [asdict(m) for m in missing()]
    finally:
        meter.close()
    denied = any("ermission" in m["what"] + m["why"] for m in gone)
    report |= {"health": asdict(health), "advice": advice(health), "missing": gone}
    return report | {"fixes": _fixes(name, offers) if denied else []}


def _fixes(name: str, offers: dict[str, str]) -> list[tuple[str, str]]:
    """Return how to grant access, as (what it does, command), where the meter knows."""
    from joulelab import meters

    fixes: Callable[..., list[tuple[str, str]]] | None = getattr(meters.find(name), "fixes", None)
    root = offers.get(f"{name}.root")
    if fixes is None:
        return []
    return fixes(root, python=sys.executable) if root else fixes(python=sys.executable)


def advice(health: MeterHealth) -> list[str]:
    """Return what is unusual, in words."""
    said = []
    for c in _together(health.channels):
        if c.refresh_s and c.declared_s and c.refresh_s > 2 * 0.005 and abs(c.refresh_s / c.declared_s - 1) > OFF:
            seen, stated = (f"{t * 1000:.0f} ms" for t in (c.refresh_s, c.declared_s))
            said.append(f"{c.scope} {c.channel} refreshes every {seen}, {stated} was expected; intervals assume that")
        if c.read_s and c.read_s > SLOW_READ_S:
            said.append(f"{c.scope} {c.channel}: a read takes {c.read_s * 1000:.0f} ms; use a --period above that")
        if c.kind != "state" and c.reads and c.resolution is None and c.unit in ("J", "W"):
            said.append(f"{c.scope} {c.channel} did not change at all: idle, or it does not work")
    if health.late_s > LATE_S:
        said.append(f"this machine is busy: readings start {health.late_s * 1000:.0f} ms late; leave a core free")
    said += [f"{count} readings failed: {words}" for words, count in health.errors.items()]
    return said


def _together(channels: tuple[ChannelHealth, ...]) -> list[ChannelHealth]:
    """Return one line for equal channels of a family: medians over its scopes."""
    from dataclasses import replace

    from joulelab.report.format import span

    groups: dict[tuple[str, str], list[ChannelHealth]] = {}
    for c in channels:
        if c.reads or c.failed:
            groups.setdefault((c.scope.split(":")[0], c.channel), []).append(c)

    def middle(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return statistics.median(known) if known else None

    return [
        replace(
            members[0],
            scope=span([m.scope for m in members]),
            failed=sum(m.failed for m in members),
            rate_hz=middle([m.rate_hz for m in members]) or 0.0,
            read_s=middle([m.read_s for m in members]),
            refresh_s=middle([m.refresh_s for m in members]),
            noise_w=middle([m.noise_w for m in members]),
            resolution=middle([m.resolution for m in members]),
        )
        for members in groups.values()
    ]


def _print(console: Console, report: dict[str, Any]) -> None:
    from joulelab.cli.probe import ChannelHealth, MeterHealth
    from joulelab.report import format as fmt
    from joulelab.report.console import print_facts

    name = report["meter"]
    if report["status"] != "open":
        why = f" ({report['why']})" if report["why"] else ""
        then = f"\n-> {report['next']}" if report["next"] else ""
        print_facts(console, [(name, f"{report['status']}: {report['what']}{why}{then}")])
        _print_fixes(console, report["fixes"])
        console.print()
        return
    channels = tuple(ChannelHealth(**c) for c in report["health"]["channels"])
    health = MeterHealth(**{**report["health"], "channels": channels})
    late, worst = fmt.duration(health.late_s), fmt.duration(health.worst_late_s)
    cost = fmt.duration(health.cpu_per_read_s)
    shown = [c for c in _together(channels) if c.unit in ("J", "W") and c.kind != "state"]
    rate = f"{fmt.plain(statistics.median(c.rate_hz for c in shown), 3)} readings/s, " if shown else ""
    text = f"works: {rate}{cost} of CPU each; the reader woke up {late} late in 95 %, {worst} at worst"
    print_facts(console, [(name, text)])
    if shown:
        console.print(_table(shown))
    print_facts(console, [("", f"{text}") for text in report["advice"]])
    print_facts(console, [("", f"{m['scope']}: {m['what']} ({m['why']})") for m in report["missing"]])
    _print_fixes(console, report["fixes"])
    console.print()


def _print_fixes(console: Console, fixes: list[tuple[str, str]]) -> None:
    from joulelab.report.console import print_facts

    print_facts(console, [("", f"{what}:\n-> {how}") for what, how in fixes])


def _table(channels: list[ChannelHealth]) -> Any:
    from joulelab.report import format as fmt
    from joulelab.report.console import make_table

    table = make_table("scope", "channel", "read", "refresh", "expected", "noise, W", "resolution", left=(0, 1))
    for c in channels:
        step = fmt.NOTHING
        if c.resolution is not None:
            factor, unit = fmt.prefix(c.resolution)
            step = f"{c.resolution / factor:.3g} {unit}{c.unit}"
        times = [fmt.period(t) for t in (c.read_s, c.refresh_s, c.declared_s)]
        table.add_row(c.scope, c.channel, *times, fmt.plain(c.noise_w, 2), step)
    return table
