"""Test meters: `joulelab doctor [METER]`."""

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

from joulelab.cli.meters import OPENED_AT_ONCE, MeterOpener, find_entries, load_configuration
from joulelab.cli.output import print_blocks, print_json, show_progress, write_file
from joulelab.cli.parameters import Duration, UsageError, config_option, format_examples, json_option
from joulelab.core.errors import ConfigError, Denied, JoulelabError, ReadFailed
from joulelab.instruments.meter_health import (
    SLOW_READING_S,
    ChannelHealth,
    MeterHealth,
    find_failed_share,
    group_channels,
    has_power,
    is_readable,
    judge_meter,
    probe_meter,
)
from joulelab.run.config.meter_choice import list_lost_meters, mask_secrets
from joulelab.run.config.meter_entries import find_meter_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from joulelab.core.spec import Meter
    from joulelab.instruments.capture import Capture
    from joulelab.instruments.capture.removal import Remover
    from joulelab.instruments.meter_health import MeterFinding
    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock
    from joulelab.run.config.configuration import Config, MeterEntry

TEST_S, NETWORK_TEST_S = 3.0, 6.0
MOST_FAILED = 0.02  # share of failed readings; a meter with more works in part
EXAMPLES = format_examples(
    "joulelab doctor", "joulelab doctor rapl pdu1 --for 10s", "joulelab doctor pdu1 --capture pdu1.txt"
)
CAPTURED = ("snmp", "redfish", "plug", "modbus", "ipmi", "analyzer")  # devices that may answer and not be understood
OWN_ADVICE = r"(?:; |: )?(?:(?:run|see) )?joulelab doctor\b.*?(?:, or |(?=;)|$)"


@click.command("doctor", epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[METER]...")
@click.option("--for", "seconds", type=Duration(0.02), help="Read each meter this long.  [default: 3s, by network 6s]")
@click.option(
    "--capture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write all answers of one meter to a file, without secrets and serial numbers.",
)
@click.option(
    "--from",
    "recording",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="With --capture: take the answers from a walk (snmpwalk -On) or a folder of a Redfish mockup.",
)
@config_option
@json_option
def command(
    names: tuple[str, ...],
    seconds: float | None,
    capture: Path | None,
    recording: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Test all meters that a run would read, and show how to fix problems.

    METER is the name of a configured meter, or a kind such as nvml or snmp: only these are tested. Each meter is read
    for a few seconds. The exit code is 1 if the configuration has a problem, a named meter cannot be read, or no power
    meter works.
    """
    settings = load_configuration(config)
    if capture is not None:
        write_capture(settings, names, capture, recording, as_json=as_json)
        return
    if recording is not None:
        raise UsageError("needs-capture", "--from needs --capture FILE")
    found = []
    lost = list_lost_meters(settings, names)
    plain, entries = _choose_meters(settings, names, {word for one in lost for word in (one.meter, one.kind)})
    for name in plain:
        if not as_json and sys.stderr.isatty():
            click.echo(f"reading {name} for {seconds or TEST_S:g} s ...\r", err=True, nl=False)
        report = examine_meter(name, seconds or TEST_S)
        found.append(report)
        if not as_json:
            print_blocks(_lay_out(report))
    outside = []
    title = f"reading {len(entries)} configured meters"
    with show_progress(title, len(entries)) as step, ThreadPoolExecutor(OPENED_AT_ONCE) as pool:
        for report in pool.map(lambda entry: examine_entry(entry, seconds or NETWORK_TEST_S), entries):
            outside.append(report)
            step()
    failed = [one.to_json() | {"status": "failed"} for one in lost]
    outside += [_start_report(row["meter"]) | row for row in failed]
    found += outside
    for report in () if as_json else outside:
        print_blocks(_lay_out(report))
    works = bool(names) or any(r["status"] == "open" and r["power"] for r in found)
    if as_json:
        print_json(found)
    elif not works:
        click.echo("No power meter works here. Try a simulated one:\n-> joulelab twin -- joulelab doctor")
    if not works or any(r["status"] == "failed" or (names and r["status"] != "open") for r in found):
        click.get_current_context().exit(1)


def write_capture(
    settings: Config, names: tuple[str, ...], path: Path, recording: Path | None, *, as_json: bool
) -> None:
    """Write the answers of one meter, or a recording, to a file, and count the removed values. Raises JoulelabError."""
    from joulelab.instruments.capture import ADVICE, format_capture
    from joulelab.instruments.capture.families import make_capture
    from joulelab.instruments.capture.recordings import read_recording

    if len(names) != (recording is None):
        raise UsageError("one-meter", "--capture needs the name of one meter, or --from PATH")
    if path.exists():
        why = "it may hold corrections"
        raise ConfigError(f"{path} exists", why=why, next="name another file", code="config.file-exists")
    with show_progress("asking for everything"):
        if recording is None:
            found, remover = _capture_meter(settings, names[0])
        else:
            found, remover = make_capture(*read_recording(recording), {})
    write_file(path, format_capture(found).encode(), what="capture", option="--capture")
    values = [str(value) for value in found.values]
    if as_json:
        print_json({"file": str(path), "answers": len(found.exchanges), "removed": remover.counts, "values": values})
        return
    removed = ", ".join(f"{count} x {kind}" for kind, count in remover.counts.items()) or "nothing"
    click.echo(f"{path}: {len(found.exchanges)} answers, {len(values)} values. Removed: {removed}.")
    click.echo(f"Read it before you send it. {ADVICE}")
    click.echo(f"-> joulelab twin --replay {path} -- joulelab doctor {found.meter_name}")


def _capture_meter(settings: Config, name: str) -> tuple[Capture, Remover]:
    from joulelab.instruments.capture.families import capture_device
    from joulelab.run.config.meter_choice import resolve_secrets
    from joulelab.run.run_options import read_offers

    entries, lost = find_entries(settings, (name,)), list_lost_meters(settings, (name,))
    if lost:
        raise lost[0].problem
    if len(entries) > 1:
        listed = ", ".join(entry.name for entry in entries)
        raise UsageError("one-meter", f"--capture needs the name of one meter: {listed}")
    if entries:
        given, _ = resolve_secrets(entries[0], os.environ)
        return capture_device(entries[0].meter, given, entries[0].secrets)
    find_meter_module(name)
    root = read_offers(os.environ).get(f"{name}.root")
    return capture_device(name, {"root": root} if root else {}, ())


def _choose_meters(config: Config, names: tuple[str, ...], lost: set[str]) -> tuple[list[str], list[MeterEntry]]:
    """Return the kinds of meters to test, and the configured meters; `lost` ones are neither."""
    from joulelab import instruments

    entries = find_entries(config, names)
    covered = {word for e in entries for word in (e.name, e.meter)} | lost | (set() if names else set(config.off))
    return [name for name in names or instruments.list_defaults() if name not in covered], entries


def examine_meter(name: str, seconds: float) -> dict[str, Any]:
    """Open a meter as a run would, read it for some seconds, and return its quality or its failure as plain data."""
    from joulelab.recorder.plan import MeterPlan, Plan, open_meter
    from joulelab.run.run_options import read_offers

    offers = read_offers(os.environ)
    try:
        meter = open_meter(Plan(Path(), "", os.getpid(), offers=offers), MeterPlan(name, name, {}))
    except JoulelabError as error:
        report = _report_failure(name, error)
        if isinstance(error, ConfigError) and (command := _suggest_adding(name)):
            return report | {"status": "not configured", "next": command}
        return report | {"fixes": _list_fixes(name, offers) if report["status"] == "denied" else []}
    report = _report_health(name, meter, seconds)
    is_denied = any("ermission" in m["what"] + m["why"] for m in report["missing"])
    return report | {"fixes": _list_fixes(name, offers) if is_denied else []}


def examine_entry(entry: MeterEntry, seconds: float) -> dict[str, Any]:
    """Open a configured meter, read it, and return its quality, or its failure with a diagnosis."""
    opener = MeterOpener(entry)
    about = {"module": entry.meter, "feeds": entry.feeds, "source": str(entry.source), "settings": mask_secrets(entry)}
    try:
        meter = opener.open_entry()
    except JoulelabError as error:
        found = [remove_own_advice(text) for text in (*opener.diagnose_error(), *opener.warnings)]
        return _report_failure(entry.name, error) | about | {"found": found}
    if not hasattr(meter, "streams"):
        meter.close()
        return _start_report(entry.name) | about | {"advice": ["It opens. It is read after a run."]}
    report = _report_health(entry.name, meter, seconds, polite=not entry.usual)
    hidden = {key: _hide_secrets(report[key], opener) for key in ("why", "health", "findings")}
    advice = [opener.hide_secrets(text) for text in (*report["advice"], *opener.warnings)]
    return report | hidden | {"advice": advice} | about


def _hide_secrets(data: Any, opener: MeterOpener) -> Any:
    """Hide secrets in plain data, also in the keys: errors of readings are counted by their texts."""
    if isinstance(data, dict):
        return {opener.hide_secrets(key): _hide_secrets(value, opener) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_hide_secrets(item, opener) for item in data]
    return opener.hide_secrets(data)


def _start_report(name: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"health": None, "advice": [], "findings": [], "missing": [], "found": [], "fixes": []}
    return {"meter": name, "status": "open", "code": "", "what": "", "why": "", "next": "", "power": False, **empty}


def _report_failure(name: str, error: JoulelabError) -> dict[str, Any]:
    status = "failed" if isinstance(error, ConfigError) else "denied" if isinstance(error, Denied) else "unavailable"
    then = remove_own_advice(error.next or "")
    failure = {"status": status, "code": error.code, "what": error.what, "why": error.why or "", "next": then}
    return _start_report(name) | failure


def remove_own_advice(text: str) -> str:
    """Remove the advice to run `joulelab doctor` from a text: it runs already."""
    return re.sub(OWN_ADVICE, "", text).removeprefix("; ")


def _report_health(name: str, meter: Meter, seconds: float, *, polite: bool = False) -> dict[str, Any]:
    try:
        health = probe_meter(meter, seconds, polite=polite)
        streams = [stream for stream in meter.streams() if has_power(stream)]
        slow_s = max((1.2 * s.period_s for s in streams if polite), default=SLOW_READING_S)
        missing = [asdict(m) for m in getattr(meter, "missing", list)()]
    finally:
        meter.close()
    findings = describe_findings(name, judge_meter(health, slow_s))
    if not is_readable(health):
        reason = remove_own_advice(max(health.errors, key=lambda text: health.errors[text]))
        failure: dict[str, Any] = {
            "status": "unavailable",
            "code": ReadFailed.code,
            "what": "it opens, but each reading failed",
        }
        failure |= {"why": reason, "power": bool(streams), "health": asdict(health), "missing": missing}
        return _start_report(name) | failure | {"findings": findings}
    advice = ["; ".join(filter(None, (f["message"], f["next"]))) for f in findings]
    found = {"power": bool(streams), "health": asdict(health), "missing": missing}
    return _start_report(name) | found | {"advice": advice, "findings": findings}


def _suggest_adding(name: str) -> str | None:
    """Return the command that configures a meter, None if it is unknown or needs no configuration."""
    from joulelab.instruments.catalog import is_configured, make_add_command

    try:
        module = find_meter_module(name)
    except JoulelabError:
        return None
    return make_add_command(name, module) if is_configured(module) else None


def _list_fixes(name: str, offers: dict[str, str]) -> list[tuple[str, str]]:
    """Return the ways to grant access that the meter knows: (what it does, command)."""
    from joulelab import instruments

    fixes: Callable[..., list[tuple[str, str]]] | None = getattr(instruments.find_meter(name), "list_fixes", None)
    root = offers.get(f"{name}.root")
    if fixes is None:
        return []
    return fixes(root, python=sys.executable) if root else fixes(python=sys.executable)


def describe_findings(name: str, findings: Iterable[MeterFinding]) -> list[dict[str, Any]]:
    """Return findings as plain data: code, scope and numbers beside the sentence and its next step."""
    from joulelab.analysis.result import Check
    from joulelab.report.messages import word_check

    described = []
    for f in findings:
        texts = {"channel": f.channel, "meter": name, "error": remove_own_advice(f.error)}
        worded = word_check(Check(f.code, "warning", f.scope, dict(f.numbers), {k: v for k, v in texts.items() if v}))
        numbers = dict(f.numbers)
        about = {"code": f.code, "scope": f.scope, "channel": f.channel, "numbers": numbers, "error": f.error}
        described.append(about | {"message": worded.text, "next": worded.next})
    return described


def _lay_out(report: dict[str, Any]) -> list[TextBlock]:
    from joulelab.report.messages import add_next_step
    from joulelab.report.terminal import BLANK_LINE, list_facts

    name = report["meter"]
    if report["status"] != "open":
        why = f" ({report['why']})" if report["why"] else ""
        text = add_next_step(f"{report['status']}: {report['what']}{why}", report["next"])
        blocks: list[TextBlock] = [list_facts([(name, text)])]
    elif report["health"] is None:
        blocks = [list_facts((name, text) for text in report["advice"])]
    else:
        blocks = _lay_out_health(report)
    lines = list(report["found"])
    if "source" in report:
        settings = ", ".join(f"{key} {value}" for key, value in report["settings"].items())
        lines.append(f"{report['module']} from {report['source']}: {settings}")
    lines += [f"{what}:\n-> {how}" for what, how in report["fixes"]]
    if report["status"] == "unavailable" and report.get("module") in CAPTURED:
        lines.append(f"To report it, send its answers:\n-> joulelab doctor {name} --capture {name}.txt")
    blocks.append(list_facts(("", line) for line in lines))
    return blocks if report["status"] == "open" and report["health"] is None else [*blocks, BLANK_LINE]


def _lay_out_health(report: dict[str, Any]) -> list[TextBlock]:
    from joulelab.report import format as fmt
    from joulelab.report.terminal import list_facts

    channels = tuple(ChannelHealth(**c) for c in report["health"]["channels"])
    health = MeterHealth(**{**report["health"], "channels": channels})
    late, worst = fmt.format_duration(health.late_s), fmt.format_duration(health.worst_late_s)
    cost = fmt.format_duration(health.cpu_per_read_s)
    measured = [c for c in group_channels(channels) if c.unit in ("J", "W") and c.kind != "state"]
    rate = f"{fmt.format_number(statistics.median(c.rate_hz for c in measured), 3)} readings/s, " if measured else ""
    failed = find_failed_share(health)
    works = f"works in part, {failed * 100:.0f} % of readings failed" if failed > MOST_FAILED else "works"
    text = f"{works}: {rate}{cost} of CPU per reading; 95 % of readings start at most {late} late, the latest {worst}"
    notes = [*report["advice"], *(f"{m['scope']}: {m['what']} ({m['why']})" for m in report["missing"])]
    table = [_make_table(measured)] if measured else []
    return [list_facts([(report["meter"], text)]), *table, list_facts(("", note) for note in notes)]


def _make_table(channels: list[ChannelHealth]) -> Table:
    from joulelab.report import format as fmt
    from joulelab.report.tables import make_table

    rows = []
    for c in channels:
        step = fmt.NOTHING
        if c.resolution is not None:
            factor, unit = fmt.find_prefix(c.resolution)
            step = f"{c.resolution / factor:.3g} {unit}{c.unit}"
        times = [fmt.format_period(t) for t in (c.read_s, c.refresh_s, c.declared_s)]
        rows.append((fmt.join_scopes(c.scope.split(", ")), c.channel, *times, fmt.format_number(c.noise_w, 2), step))
    columns = ("scope", "channel", "read", "refresh", "expected", "noise, W", "resolution")
    return make_table(columns, rows, left=(0, 1))
