"""List the meters of this machine, or add one to the configuration: `joulelab meters [--add METER KEY=VALUE...]`."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import describe_error, print_blocks, print_json, print_notice, show_progress
from joulelab.cli.parameters import UsageError, config_option, format_examples, json_option
from joulelab.core.errors import ConfigError, JoulelabError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Archive, Meter
    from joulelab.instruments.catalog import MeterChannel, MeterRow
    from joulelab.instruments.hooks import Missing
    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock
    from joulelab.run.config.configuration import Config, MeterEntry, MeterTable

    Reading = dict[str, Any]

TWIN_COMMAND = "joulelab twin -- joulelab meters"
NO_POWER = "There is no power meter here: runs are recorded with time and load, without energy."
ON_REQUEST = "No power meter is read unless it is named: others are read on request, see below."
INNER_FAMILIES = ("core", "uncore")
OPENED_AT_ONCE = 16
EXAMPLES = format_examples(
    "joulelab meters",
    "joulelab meters nvml rapl --all",
    "joulelab meters --add snmp --name pdu1 address=10.0.0.5 outlets=3,4",
)
ADD_OPTIONS = ("name", "file", "replace")


@click.command("meters", epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[METER]... | KEY=VALUE...")
@click.option("--all", "every", is_flag=True, help="Show all channels and all kinds of meters, with reasons.")
@click.option("--add", "module", metavar="METER", help="Try a meter with these KEY=VALUE, then save it.")
@click.option("--name", metavar="NAME", help="With --add: name of the meter, such as pdu1.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="With --add: save it in this file.")
@click.option("--user", "level", flag_value="user", help="With --add: save it in your own configuration.")
@click.option("--system", "level", flag_value="system", help="With --add: save it for all users.")
@click.option("--replace", is_flag=True, help="With --add: replace the meter of this name.")
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
    """List the meters of this machine and those that are missing.

    METER is the name of a configured meter, or a kind such as nvml or snmp: it is described in full. Without METER, the
    list has the measured scopes, the problems, and a command for each meter that could be added.
    """
    if module is not None:
        context.exit(add_meter(module, names, config=config, as_json=as_json, **adding))
    given = [f"--{key}" for key in ADD_OPTIONS if adding[key]]
    given += [f"--{adding['level']}"] if adding["level"] else []
    if given:
        raise UsageError("needs-add", f"{given[0]} needs --add METER")
    settings = load_configuration(config)
    with show_progress("looking for meters"):
        rows = _survey_meters(settings, names)
    if as_json:
        print_json([_describe_row(row) for row in rows])
    else:
        print_blocks(_lay_out(rows, every=every, named=bool(names)) if every or names else _lay_out_short(rows))


# ---- configured meters, as `meters` and `doctor` open them


def load_configuration(named: Path | None) -> Config:
    """Load this host's configuration as a run does, and print its warnings."""
    from joulelab.run.config.configuration import load_config
    from joulelab.run.run_options import get_host_name

    config = load_config(os.environ, get_host_name(), named=named)
    for warning in config.warnings:
        print_notice(warning)
    return config


@dataclass(slots=True)
class MeterOpener:
    """Open one configured meter as a run would; `error` is its failure, without secrets."""

    entry: MeterEntry
    error: JoulelabError | None = None
    warnings: list[str] = field(default_factory=list)
    _settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def module(self) -> Any:
        """Return the Python module that reads the meter."""
        from joulelab.run.config.meter_entries import find_meter_module

        return find_meter_module(self.entry.meter)

    def open_entry(self) -> Any:
        """Return the open meter or archive. Raises JoulelabError."""
        from joulelab.run.config.meter_choice import resolve_secrets

        try:
            self._settings, self.warnings = resolve_secrets(self.entry, os.environ)
            return self._open_module()
        except JoulelabError as error:
            self.error = error
            for key in ("what", "where", "why", "next"):
                setattr(error, key, self.hide_secrets(getattr(error, key)))
            raise
        except Exception as error:  # noqa: BLE001 - a module from another package
            why = self.hide_secrets(f"{type(error).__name__}: {error}")
            self.error = Unavailable("it failed", where=f"meter {self.entry.name}", why=why, code="unavailable.failed")
            raise self.error from None

    def diagnose_error(self) -> list[str]:
        """Return what the meter's module finds out about its failure, in sentences."""
        diagnose: Callable[..., Sequence[str]] | None = getattr(self.module, "diagnose", None)
        if diagnose is None or self.error is None or not self._settings:
            return []
        settings = {"label": self.entry.name, **self._settings}
        try:
            return [self.hide_secrets(text) for text in diagnose(settings, self.error)]
        except Exception as error:  # noqa: BLE001 - the failure itself is printed in any case
            return [self.hide_secrets(f"The diagnosis failed ({type(error).__name__}: {error}).")]

    def hide_secrets(self, text: Any) -> Any:
        """Replace secrets in a text by `***`; other values stay."""
        from joulelab.run.config.meter_choice import hide_secrets

        return hide_secrets(text, self.entry, self._settings) if isinstance(text, str) else text

    def _open_module(self) -> Meter | Archive:
        from joulelab.recorder.plan import MeterPlan, Plan, open_meter
        from joulelab.run.config.meter_entries import is_live
        from joulelab.run.run_options import read_offers

        module = self.module
        if not is_live(module):
            archive: Archive = module.open_archive({"label": self.entry.name, **self._settings})
            return archive
        plan = Plan(Path(), "", os.getpid(), offers=read_offers(os.environ))
        return open_meter(plan, MeterPlan(self.entry.meter, self.entry.name, self._settings, self.entry.usual))


def find_entries(config: Config, names: Sequence[str]) -> list[MeterEntry]:
    """Return the configured meters, or those that are named by name or kind."""
    return [e for e in config.entries if not names or e.name in names or e.meter in names]


def _describe_entries(entries: Sequence[MeterEntry]) -> list[MeterRow]:
    from concurrent.futures import ThreadPoolExecutor

    from joulelab.instruments.catalog import describe_meter

    def describe_entry(entry: MeterEntry) -> MeterRow:
        opener = MeterOpener(entry)
        found = describe_meter(entry.name, opener.module, opener.open_entry)
        return replace(found, module=entry.meter, feeds=entry.feeds, source=str(entry.source))

    if not entries:
        return []
    with ThreadPoolExecutor(min(OPENED_AT_ONCE, len(entries))) as pool:
        return list(pool.map(describe_entry, entries))


# ---- the list


def _survey_meters(config: Config, names: tuple[str, ...]) -> list[MeterRow]:
    """Describe all known meters, or the named ones; a problem of the configuration is a row, too.

    Raises ConfigError for an unknown name.
    """
    from joulelab import instruments
    from joulelab.instruments.catalog import MeterRow, survey_meters
    from joulelab.run.config.meter_choice import list_lost_meters

    lost = list_lost_meters(config, names)
    entries = find_entries(config, names)
    covered = {word for e in entries for word in (e.name, e.meter)} | (set() if names else set(config.off))
    covered |= {word for one in lost for word in (one.meter, one.kind)}
    others = [
        name for name in names or [*instruments.list_meters(), *instruments.list_archives()] if name not in covered
    ]
    wrong = [
        MeterRow(**one.to_json(), summary="", status="failed", privilege="", tried="", module=one.kind) for one in lost
    ]
    root = os.environ.get("JOULELAB_POWERCAP")
    settings = {"rapl": {"root": root}} if root else {}
    return [*survey_meters(settings, others, named=bool(names)), *_describe_entries(entries), *wrong]


def _describe_row(row: MeterRow) -> dict[str, Any]:
    data = asdict(row)
    for channel, plain in zip(row.channels, data["channels"], strict=True):
        plain["accuracy"] = channel.accuracy
    return data


def _lay_out_short(rows: list[MeterRow]) -> list[TextBlock]:
    """Lay out what is measured, what has a problem, and what could be measured with one command."""
    from joulelab.core.scope import find_family
    from joulelab.instruments.catalog import ESTIMATE
    from joulelab.instruments.meter_health import is_power_channel
    from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

    opened = [r for r in rows if r.status == "open"]
    channels = [c for r in opened for c in r.channels if is_power_channel(c.spec)]
    outer = [c for c in channels if find_family(c.scope) not in INNER_FAMILIES and "/" not in c.scope] or channels
    asked = any(r.status == "on request" and r.meter != ESTIMATE for r in rows)
    blocks: list[TextBlock] = [_make_short_table(outer) if channels else TextLine(ON_REQUEST if asked else NO_POWER)]
    if channels and not any(c.scope.startswith("node.") for c in channels):
        blocks.append(TextLine("Nothing here measures the whole node."))
    archives = [
        (r.meter, f"read after a run: {r.module}, from {r.source}") for r in opened if r.source and not r.channels
    ]
    wrong = [(r.meter, _describe_refused(r)) for r in rows if _is_problem(r)]
    wrong += [(r.meter, _describe_missing(m)) for r in opened for m in r.missing if m.next]
    has_cpu = any(find_family(c.scope) == "cpu" for c in channels)
    possible = [r for r in rows if r.status in ("on request", "not configured")]
    steps = [(r.next, _shorten_summary(r)) for r in possible if r.meter != ESTIMATE or not has_cpu]
    absent = [r.meter for r in rows if r.status == "unavailable" and not r.source]
    if wrong or archives:
        blocks += [BLANK_LINE, list_facts(archives + wrong)]
    if steps:
        width = max(len(command) for command, _ in steps) + 1
        blocks += [BLANK_LINE, TextLine("With one step:"), list_facts(steps, label_width=width)]
    more = [("not here", f"{', '.join(absent)}; why:\n-> joulelab meters --all")] if absent else []
    more += [] if channels or asked else [("try", f"a simulated node with GPUs and CPUs:\n-> {TWIN_COMMAND}")]
    return [*blocks, BLANK_LINE, list_facts(more)] if more else blocks


def _is_problem(row: MeterRow) -> bool:
    """Return whether a meter is there and cannot be read; a kind that this machine does not have is no problem."""
    return row.status in ("denied", "failed") or (row.status == "unavailable" and bool(row.source))


def _shorten_summary(row: MeterRow) -> str:
    clause = re.split(r"[:;(]", row.summary)[0].strip()
    return clause[:1].lower() + clause[1:] if clause[1:2].islower() else clause


def _make_short_table(channels: list[MeterChannel]) -> Table:
    """Return one row for equal devices of one meter."""
    from joulelab.report import format as fmt
    from joulelab.report.tables import make_table

    groups: dict[tuple[str, ...], list[MeterChannel]] = {}
    for c in channels:
        groups.setdefault((c.meter, re.split("[:.]", c.scope)[0], c.model), []).append(c)
    rows = []
    for members in groups.values():
        worst = max(members, key=lambda c: (c.spec.accuracy.source == "unknown", c.spec.accuracy.gain))
        quantities = ", ".join(dict.fromkeys(c.spec.quantity for c in members))
        scopes = fmt.join_scopes(list(dict.fromkeys(c.scope for c in members)))
        rows.append(
            (
                scopes,
                quantities + (" (estimate)" if any(c.spec.estimate for c in members) else ""),
                worst.accuracy.replace("(", "").replace(")", ""),
                fmt.format_period(min(c.period_s for c in members)),
                _format_seen(min(c.spec.seen for c in members)),
                members[0].meter,
            )
        )
    return make_table(("scope", "quantity", "accuracy", "read", "sees", "meter"), rows, left=(0, 1, 2, 5))


def _format_seen(share: float) -> str:
    return "all" if share >= 1 else f"{share:.0%}"


def _lay_out(rows: list[MeterRow], *, every: bool, named: bool) -> list[TextBlock]:
    from joulelab.instruments.catalog import ESTIMATE
    from joulelab.instruments.meter_health import is_power_channel
    from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

    opened = [r for r in rows if r.status == "open"]
    on_request = [r for r in rows if r.status == "on request" and r.meter != ESTIMATE]
    refused = [r for r in rows if r.status != "open" and r not in on_request]
    has_power = any(is_power_channel(c.spec) for r in opened for c in r.channels)
    blocks: list[TextBlock] = []
    if not has_power:
        here = ON_REQUEST if on_request else NO_POWER
        blocks += [TextLine("None of these meters reads energy or power." if named else here), BLANK_LINE]
    for row in opened:
        blocks += [*_lay_out_meter(row, every=every), BLANK_LINE]
    del blocks[-1]
    if on_request:
        facts = list_facts((r.meter, _describe_refused(r)) for r in on_request)
        blocks += [BLANK_LINE, TextLine("Read on request:"), facts]
    if refused:
        facts = list_facts((r.meter, _describe_refused(r)) for r in refused)
        blocks += [BLANK_LINE, TextLine("Not measured:"), facts]
    if not has_power and not on_request:
        blocks += [BLANK_LINE, list_facts([("try", f"a simulated node with GPUs and CPUs:\n-> {TWIN_COMMAND}")])]
    return blocks


def _lay_out_meter(row: MeterRow, *, every: bool) -> list[TextBlock]:
    """Lay out one open meter: what it is, a table of its energies and powers, and with `every` its other channels."""
    from joulelab.instruments.meter_health import is_power_channel
    from joulelab.report import format as fmt
    from joulelab.report.terminal import list_facts

    powers = [c for c in row.channels if is_power_channel(c.spec)]
    others: dict[tuple[str, ...], list[str]] = {}
    for c in row.channels if every else ():
        if c not in powers:
            names = tuple(o.spec.name for o in row.channels if o.scope == c.scope and o not in powers)
            others.setdefault(names, []).append(c.scope)
    also = [f"{fmt.join_scopes(scopes)}: {', '.join(names)}" for names, scopes in others.items()]
    facts = list_facts(("", text) for text in (*also, *map(_describe_missing, row.missing)))
    return [list_facts(_describe_open(row)), *([_make_table(powers)] if powers else []), facts]


def _make_table(channels: list[MeterChannel]) -> Table:
    from joulelab.report import format as fmt
    from joulelab.report.tables import make_table

    groups: dict[tuple[Any, ...], list[MeterChannel]] = {}
    for c in channels:
        # The update period may be measured when the meter opens: it differs a little between equal devices.
        alike = replace(c.spec, update_s=None, limits=None, accuracy=replace(c.spec.accuracy, shared="", reference=""))
        groups.setdefault((c.scope.split(":")[0], c.model, c.period_s, alike), []).append(c)
    rows = []
    for members in groups.values():
        c = members[0]
        is_averaged = c.spec.kind == "power" and c.spec.window_s and c.spec.window_s != c.spec.update_s
        window = f"/{fmt.format_period(c.spec.window_s)}" if is_averaged else ""
        rows.append(
            (
                fmt.join_scopes([m.scope for m in members]),
                f"{c.spec.quantity}{window}, {c.spec.unit}" + (" (estimate)" if c.spec.estimate else ""),
                c.accuracy.replace("(", "").replace(")", ""),
                fmt.format_period(c.period_s),
                fmt.format_period(c.spec.update_s),
                _format_seen(c.spec.seen),
            )
        )
    return make_table(("scope", "quantity", "accuracy", "read", "updates", "sees"), rows, left=(0, 1, 2))


def _describe_open(row: MeterRow) -> list[tuple[str, str]]:
    models = list(dict.fromkeys(c.model for c in row.channels if c.model))
    feeds = f"feeds {row.feeds}, " if row.feeds else ""
    source = f"{row.module}, {feeds}from {row.source}" if row.source else ""
    text = "; ".join(filter(None, (", ".join(models), row.summary, source)))
    references = list(dict.fromkeys(c.spec.accuracy.reference for c in row.channels if c.spec.accuracy.reference))
    lines = [(row.meter, f"{text}; privilege: {row.privilege or 'none'}")]
    return lines + [("", f"accuracy: {reference}") for reference in references[:2]]


def _describe_missing(part: Missing) -> str:
    from joulelab.report.messages import add_next_step

    return add_next_step(f"{part.scope}: {part.what} ({part.why})", part.next)


def _describe_refused(row: MeterRow) -> str:
    from joulelab.report.messages import add_next_step

    what = row.what or (row.summary if row.status == "on request" else row.status)
    if row.status == "not configured":
        what = f"{row.summary}; not configured"
    why = f" ({row.why})" if row.why else ""
    source = f"\nfrom {row.source}" if row.source else ""
    return add_next_step(f"{what}{why}{source}", row.next)


# ---- --add


def add_meter(
    module: str,
    words: Sequence[str],
    *,
    name: str | None,
    file: Path | None,
    level: str | None,
    replace: bool,
    config: Path | None,
    as_json: bool,
) -> int:
    """Try a meter and save it if it can be read; return the exit code. Raises ConfigError, UsageError."""
    from joulelab.run.config.configuration import KeySource, MeterTable
    from joulelab.run.config.meter_choice import list_lost_meters
    from joulelab.run.config.meter_entries import find_meter_module
    from joulelab.run.config.toml_writing import format_entry, write_entry

    if file is not None and level is not None:
        raise UsageError("exclusive", f"--file and --{level} exclude each other")
    found = find_meter_module(module)
    existing = load_configuration(config)
    for problem in existing.unread.values():
        raise problem  # that file may hold a meter of the same name
    target = (file or _choose_file(level, config)).absolute()
    chosen = name or _find_free_name(module, existing)
    for lost in list_lost_meters(existing):
        if lost.meter != chosen:
            print_notice(str(lost))
    _check_name(chosen, target, existing, replace=replace)
    table = MeterTable(chosen, KeySource(target), {"meter": module, **_read_pairs(module, words, found)})
    if module.endswith(".py"):
        table.values["meter"] = str(Path(module).absolute())
    opener, readings = _try_meter(table, found)
    if opener.error is not None:
        _print_failure(opener, opener.error, as_json=as_json)
        return 1
    write_entry(target, chosen, table.values, replace=replace)
    if as_json:
        print_json({"entry": chosen, "file": str(target), "readings": readings})
    else:
        lines = (*_format_readings(readings), f"\nwritten to {target}:", format_entry(chosen, table.values))
        click.echo("\n".join(lines))
    return 0


def _try_meter(table: MeterTable, module: Any) -> tuple[MeterOpener, list[Reading]]:
    """Open the meter and read it once; on a terminal, ask for settings that are missing."""
    from joulelab.run.config.meter_entries import check_entry_values, read_entry

    while True:
        opener = MeterOpener(read_entry(table))
        try:
            check_entry_values(opener.entry)  # nothing is saved that a run would refuse
            meter = opener.open_entry()
            try:
                return opener, _read_once(meter)
            finally:
                meter.close()
        except ConfigError as error:
            if error.choices and sys.stdin.isatty():
                table.values |= _ask_choice(error)
                continue
            key = find_missing_key(error, module, table.values)
            if key is None:
                raise
            _print_choices(module, table.values)
            if not sys.stdin.isatty():
                raise ConfigError(
                    error.what,
                    where=error.where,
                    why=error.why,
                    next=_suggest_command(table, key, opener),
                    code="config.missing-key",
                ) from None
            if error.why:  # such as the list to choose from
                click.echo(error.why, err=True)
            table.values[key] = _read_value(key, _ask_value(key, opener), opener.entry.secrets)
        except JoulelabError as error:
            opener.error = error
            return opener, []


def _print_choices(module: Any, given: dict[str, Any]) -> None:
    """Print the values that a meter's module knows for settings that are not given."""
    choices: dict[str, dict[str, str]] = getattr(module, "list_choices", dict)()
    for key, values in choices.items():
        if key not in given:
            width = max(map(len, values))
            lines = "".join(f"\n  {key}={value:<{width}}  {meaning}" for value, meaning in values.items())
            click.echo(f"values of {key}:{lines}", err=True)


def find_missing_key(error: ConfigError, module: Any, given: dict[str, Any]) -> str | None:
    """Return the first setting of a meter that its error names and that is not given."""
    named = [*re.findall(r"\w+", error.what), *re.findall(r"(\w+) ?=", error.next or "")]
    keys = [key for key in getattr(module, "CONFIG", {}) if key not in given]
    return next((word for word in named if word in keys), None)


def _ask_choice(error: ConfigError) -> dict[str, str]:
    """Print the settings that an error offers, and return those that the person chooses."""
    click.echo(str(error.what), err=True)
    for number, (text, _) in enumerate(error.choices, 1):
        click.echo(f"{number:3}  {text}", err=True)
    number = click.prompt("Which one", type=click.IntRange(1, len(error.choices)), err=True)
    return error.choices[number - 1][1]


def _ask_value(key: str, opener: MeterOpener) -> str:
    meaning = getattr(opener.module, "CONFIG", {}).get(key, "")
    form = "; as env:NAME, file:PATH or keyring:SERVICE/USER" if key in opener.entry.secrets else ""
    answer: str = click.prompt(f"{key} ({meaning}{form})", err=True)
    return answer


def _suggest_command(table: MeterTable, key: str, opener: MeterOpener) -> str:
    given = [f"{k}={_format_value(v)}" for k, v in table.values.items() if k != "meter"]
    value = f"env:{table.name.upper()}_{key.upper()}" if key in opener.entry.secrets else "..."
    words = ["joulelab", "meters", "--add", table.values["meter"], *given, f"{key}={value}"]
    return f"type `{shlex.join(words)}`"


def _format_value(value: Any) -> str:
    from joulelab.run.config.meter_choice import SECRET_SOURCES

    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in SECRET_SOURCES:
        return ":".join(next(iter(value.items())))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read_pairs(module: str, words: Sequence[str], found: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            example = f"joulelab meters --add {module} address=..."
            raise UsageError("no-pair", f"{word!r} is not of the form KEY=VALUE; type `{example}`")
        values[key] = _read_value(key, text, getattr(found, "SECRETS", ()))
    return values


def _read_value(key: str, text: str, secrets: Sequence[str]) -> Any:
    """Return the value of a setting: the place of a secret, a number, a list, a table, or text. Raises ConfigError."""
    from joulelab.run.config.meter_choice import SECRET_SOURCES

    if key in secrets:
        kind, colon, place = text.partition(":")
        if colon and place and kind in SECRET_SOURCES:
            return {kind: str(Path(place).expanduser().absolute()) if kind == "file" else place}
        if key == "community" and text == "public":
            return text
        raise ConfigError(
            f"{key} is given in plain text",
            why="others can read it in your shell history and in the list of processes",
            next=f"give {key}=env:NAME, {key}=file:PATH or {key}=keyring:SERVICE/USER",
            code="config.secret-in-plain-text",
        )
    if re.fullmatch(r"\d+(,\d+)+", text):
        return [int(number) for number in text.split(",")]
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text


def _choose_file(level: str | None, named: Path | None) -> Path:
    from joulelab.run.config.config_files import FILE_VARIABLE, find_project_file, get_system_file, get_user_file

    if level == "system":
        return get_system_file(os.environ)
    if level == "user":
        return get_user_file(os.environ)
    if named is not None or os.environ.get(FILE_VARIABLE):
        return named or Path(os.environ[FILE_VARIABLE])
    return find_project_file() or get_user_file(os.environ)


def _find_free_name(module: str, config: Config) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(module).name.removesuffix(".py")).strip("-") or "meter"
    return next(name for k in range(1, 10000) if (name := f"{stem}{k}") not in config.tables)


def _check_name(name: str, target: Path, config: Config, *, replace: bool) -> None:
    from joulelab.run.config.meter_entries import ENTRY_NAME

    if ENTRY_NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!r} cannot be the name of a meter", next="use letters, digits, - and _", code="config.name"
        )
    existing = config.tables.get(name)
    if existing is None:
        return
    file, where = existing.source.file.absolute(), str(existing.source)
    if not replace:
        raise ConfigError(
            f"a meter {name} is configured already",
            where=where,
            next="choose another name with --name, or add --replace",
            code="config.name-taken",
        )
    if file != target:
        raise ConfigError(
            f"the meter {name} is configured in another file",
            where=where,
            next=f"add --file {file}, or choose another name",
            code="config.other-file",
        )


def _read_once(meter: Any) -> list[Reading]:
    """Read every stream once; an archive has none."""
    found: list[Reading] = []
    for stream in meter.streams() if hasattr(meter, "streams") else ():
        for spec, value in zip(stream.channels, meter.read(stream), strict=True):
            if not math.isnan(value):
                found.append({"scope": stream.scope, "channel": spec.name, "value": value, "unit": spec.unit})
    return found


def _format_readings(readings: list[Reading]) -> list[str]:
    if not readings:
        return ["It opens. It is read after a run."]
    width = max(len(r["scope"]) for r in readings)
    name = max(len(r["channel"]) for r in readings)
    return [f"{r['scope']:<{width}}  {r['channel']:<{name}}  {r['value']:g} {r['unit']}" for r in readings]


def _print_failure(opener: MeterOpener, error: JoulelabError, *, as_json: bool) -> None:
    found = opener.diagnose_error()
    if as_json:
        plain = {key: opener.hide_secrets(value) for key, value in describe_error(error).items()}
        print_json({"entry": opener.entry.name, "error": plain, "found": found})
    print_notice(opener.hide_secrets(str(error)))
    for sentence in found:
        click.echo(f"  {sentence}", err=True)
    click.echo("nothing was written", err=True)
