"""Examine meters: `joulelab doctor [METER]`."""

from __future__ import annotations

import os
import re
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import Duration, config_option, json_option
from joulelab.core.errors import ConfigError, Denied, JoulelabError
from joulelab.run.config.meter_choice import list_lost_meters
from joulelab.run.config.modules import find_meter_module
from joulelab.run.config.secrets import mask_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from joulelab.core.spec import Meter
    from joulelab.instruments.meter_health import ChannelHealth, MeterHealth
    from joulelab.run.config.entry import Config, MeterEntry

INSIDE_S, OUTSIDE_S = 3.0, 6.0
SLOW_READ_S = 0.02
LATE_S = 0.01
OFF = 0.3  # a refresh period that differs from the declared one by more than 30 % is told


@click.command("doctor")
@click.argument("names", nargs=-1, metavar="[METER]...")
@click.option("--for", "seconds", type=Duration(0.02), show_default="3, or 6 by network", help="Read each so long.")
@config_option
@json_option
def command(names: tuple[str, ...], seconds: float | None, config: Path | None, as_json: bool) -> None:
    """Read each meter for a few seconds and say how good it is.

    Names are those of entries of the configuration or of kinds of meters; without any, all that a run would read.
    The exit code is 1 where the configuration has a problem or a meter that is named cannot be read.
    """
    from joulelab.cli.entries import TOGETHER, load_configuration
    from joulelab.cli.output import show_progress
    from joulelab.report.console import make_console

    found = []
    console = make_console(sys.stdout)
    settings = load_configuration(config)
    lost = list_lost_meters(settings, names)
    plain, entries = _targets(settings, names, {word for one in lost for word in (one.meter, one.kind)})
    for name in plain:
        if not as_json and sys.stderr.isatty():
            click.echo(f"reading {name} for {seconds or INSIDE_S:g} s ...\r", err=True, nl=False)
        report = examine(name, seconds or INSIDE_S)
        found.append(report)
        if not as_json:
            _print(console, report)
    with (
        show_progress(f"reading {len(entries)} configured meters", len(entries)) as step,
        ThreadPoolExecutor(TOGETHER) as pool,
    ):
        outside = []
        for report in pool.map(lambda entry: examine_entry(entry, seconds or OUTSIDE_S), entries):
            outside.append(report)
            step()
    outside += [_blank(one.meter) | one.to_json() | {"status": "failed"} for one in lost]
    found += outside
    for report in () if as_json else outside:
        _print(console, report)
    if as_json:
        print_json(found)
    elif not any(r["status"] == "open" and r["power"] for r in found) and not names:
        console.print("There is no power meter here; try a simulated one:")
        console.print("-> joulelab twin -- joulelab doctor", soft_wrap=True)
    if any(r["status"] == "failed" or (names and r["status"] != "open") for r in found):
        click.get_current_context().exit(1)


def _targets(config: Config, names: tuple[str, ...], lost: set[str]) -> tuple[list[str], list[MeterEntry]]:
    """Return the meters to examine that are not configured, and the entries; `lost` ones are neither."""
    from joulelab import instruments as meters

    entries = [e for e in config.entries if not names or e.name in names or e.meter in names]
    covered = {word for e in entries for word in (e.name, e.meter)} | lost | (set() if names else set(config.off))
    return [name for name in names or meters.defaults() if name not in covered], entries


def examine(name: str, seconds: float) -> dict[str, Any]:
    """Open a meter as a run would, read it for a while, and return what is found as plain data."""
    from joulelab.recorder.plan import MeterPlan, Plan, open_meter
    from joulelab.run.run_options import RunOptions

    offers = RunOptions(runs=Path()).offers(os.environ)
    try:
        meter = open_meter(Plan(Path(), "", os.getpid(), offers=offers), MeterPlan(name, name, {}))
    except JoulelabError as error:
        report = _refused(name, error)
        if isinstance(error, ConfigError) and (command := _adding(name)):
            return report | {"status": "not configured", "next": command}
        return report | {"fixes": _fixes(name, offers) if report["status"] == "denied" else []}
    report = _examined(name, meter, seconds)
    denied = any("ermission" in m["what"] + m["why"] for m in report["missing"])
    return report | {"fixes": _fixes(name, offers) if denied else []}


def examine_entry(entry: MeterEntry, seconds: float) -> dict[str, Any]:
    """Open an entry of the configuration, read it, and return what is found; what fails is looked into."""
    from joulelab.cli.entries import Opener

    opener = Opener(entry)
    about = {"module": entry.meter, "feeds": entry.feeds, "source": str(entry.source), "settings": mask_secrets(entry)}
    try:
        meter = opener.open()
    except JoulelabError as error:
        found = [without_doctor(text) for text in (*opener.diagnose(), *opener.warnings)]
        return _refused(entry.name, error) | about | {"found": found}
    if not hasattr(meter, "streams"):
        meter.close()
        return _blank(entry.name) | about | {"advice": ["it opens; it is asked after a run"]}
    report = _examined(entry.name, meter, seconds, polite=not entry.usual)
    report["advice"] = [opener.clean(text) for text in (*report["advice"], *opener.warnings)]
    return report | about


def _blank(name: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"health": None, "advice": [], "missing": [], "found": [], "fixes": []}
    return {"meter": name, "status": "open", "code": "", "what": "", "why": "", "next": "", "power": False, **empty}


def _refused(name: str, error: JoulelabError) -> dict[str, Any]:
    status = "failed" if isinstance(error, ConfigError) else "denied" if isinstance(error, Denied) else "unavailable"
    then = without_doctor(error.next or "")
    told = {"status": status, "code": error.code, "what": error.what, "why": error.why or "", "next": then}
    return _blank(name) | told


def without_doctor(text: str) -> str:
    """Return advice without the part that sends people here."""
    return re.sub(r"(?:; |: )?(?:(?:run|see) )?joulelab doctor\b.*?(?:, or |(?=;)|$)", "", text).removeprefix("; ")


def _examined(name: str, meter: Meter, seconds: float, *, polite: bool = False) -> dict[str, Any]:
    from joulelab.instruments.meter_health import has_power, probe_meter

    try:
        health = probe_meter(meter, seconds, polite=polite)
        power = any(has_power(stream) for stream in meter.streams())
        fast = [1.2 * s.period_s for s in meter.streams() if has_power(s) and polite]
        slow_s = max(fast, default=SLOW_READ_S)
        gone = [asdict(m) for m in getattr(meter, "missing", list)()]
    finally:
        meter.close()
    found = {"power": power, "health": asdict(health), "advice": advice(health, slow_s), "missing": gone}
    return _blank(name) | found


def _adding(name: str) -> str | None:
    """Return the command that configures a meter, None where there is no such meter or it needs none."""
    from joulelab.instruments.catalog import add_command, is_configured

    try:
        module = find_meter_module(name)
    except JoulelabError:
        return None
    return add_command(name, module) if is_configured(module) else None


def _fixes(name: str, offers: dict[str, str]) -> list[tuple[str, str]]:
    """Return how to grant access, as (what it does, command), where the meter knows."""
    from joulelab import instruments as meters

    fixes: Callable[..., list[tuple[str, str]]] | None = getattr(meters.find(name), "fixes", None)
    root = offers.get(f"{name}.root")
    if fixes is None:
        return []
    return fixes(root, python=sys.executable) if root else fixes(python=sys.executable)


def advice(health: MeterHealth, slow_s: float = SLOW_READ_S) -> list[str]:
    """Return what is unusual, in words."""
    said = []
    for c in _together(health.channels):
        if c.refresh_s and c.declared_s and c.refresh_s > 2 * 0.005 and abs(c.refresh_s / c.declared_s - 1) > OFF:
            seen, stated = (f"{t * 1000:.0f} ms" for t in (c.refresh_s, c.declared_s))
            said.append(f"{c.scope} {c.channel} refreshes every {seen}, {stated} was expected; intervals assume that")
        if c.read_s and c.read_s > slow_s and (c.kind != "state" or slow_s == SLOW_READ_S):
            said.append(f"{c.scope} {c.channel}: a read takes {c.read_s * 1000:.0f} ms; use a longer period than that")
        if c.kind != "state" and c.reads and c.resolution is None and c.unit in ("J", "W"):
            said.append(f"{c.scope} {c.channel} did not change at all: idle, or it does not work")
    if health.late_s > LATE_S:
        said.append(f"this machine is busy: readings start {health.late_s * 1000:.0f} ms late; leave a core free")
    said += [f"{count} readings failed: {without_doctor(words)}" for words, count in health.errors.items()]
    return said


def _together(channels: tuple[ChannelHealth, ...]) -> list[ChannelHealth]:
    """Return one line for equal channels of a family: medians over its scopes."""
    from dataclasses import replace

    from joulelab.report.format import join_scopes

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
            scope=join_scopes([m.scope for m in members]),
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
    from joulelab.instruments.meter_health import ChannelHealth, MeterHealth
    from joulelab.report import format as fmt
    from joulelab.report.console import print_facts

    name = report["meter"]
    if report["status"] != "open":
        why = f" ({report['why']})" if report["why"] else ""
        then = f"\n-> {report['next']}" if report["next"] else ""
        print_facts(console, [(name, f"{report['status']}: {report['what']}{why}{then}")])
        _print_entry(console, report)
        _print_fixes(console, report["fixes"])
        console.print()
        return
    if report["health"] is None:
        print_facts(console, [(name, text) for text in report["advice"]])
        _print_entry(console, report)
        return
    channels = tuple(ChannelHealth(**c) for c in report["health"]["channels"])
    health = MeterHealth(**{**report["health"], "channels": channels})
    late, worst = fmt.format_duration(health.late_s), fmt.format_duration(health.worst_late_s)
    cost = fmt.format_duration(health.cpu_per_read_s)
    shown = [c for c in _together(channels) if c.unit in ("J", "W") and c.kind != "state"]
    rate = f"{fmt.format_number(statistics.median(c.rate_hz for c in shown), 3)} readings/s, " if shown else ""
    text = f"works: {rate}{cost} of CPU per reading; 95 % of readings start at most {late} late, the latest {worst}"
    print_facts(console, [(name, text)])
    if shown:
        console.print(_table(shown))
    print_facts(console, [("", f"{text}") for text in report["advice"]])
    print_facts(console, [("", f"{m['scope']}: {m['what']} ({m['why']})") for m in report["missing"]])
    _print_entry(console, report)
    _print_fixes(console, report["fixes"])
    console.print()


def _print_entry(console: Console, report: dict[str, Any]) -> None:
    """Print what was found out about a failure, and where the entry stands."""
    from joulelab.report.console import print_facts

    print_facts(console, [("", sentence) for sentence in report["found"]])
    if "source" in report:
        settings = ", ".join(f"{key} {value}" for key, value in report["settings"].items())
        print_facts(console, [("", f"{report['module']} from {report['source']}: {settings}")])


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
            factor, unit = fmt.find_prefix(c.resolution)
            step = f"{c.resolution / factor:.3g} {unit}{c.unit}"
        times = [fmt.format_period(t) for t in (c.read_s, c.refresh_s, c.declared_s)]
        table.add_row(c.scope, c.channel, *times, fmt.format_number(c.noise_w, 2), step)
    return table
