"""Try a meter and write it into the configuration: `joulelab meters --add METER KEY=VALUE...`."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.entries import Opener, load_configuration
from joulelab.cli.output import describe_error, print_json
from joulelab.cli.parameters import UsageError
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.run.config.check import NAME, check_values, entry_of
from joulelab.run.config.choose import list_lost_meters
from joulelab.run.config.entry import MeterTable, Source
from joulelab.run.config.files import NAMED, project_file, system_file, user_file
from joulelab.run.config.modules import module_of
from joulelab.run.config.secrets import KINDS
from joulelab.run.config.write import entry_text, write_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.run.config.entry import Config

Reading = dict[str, Any]


def add(
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
    """Try a meter; write it down if it reads; return the exit code. Raises ConfigError for wrong input."""
    if file is not None and level is not None:
        raise UsageError("exclusive", f"--file and --{level} exclude each other")
    found = module_of(module)
    existing = load_configuration(config)
    for problem in existing.unread.values():
        raise problem  # that file may hold an entry of the same name
    target = (file or _target(level, config)).absolute()
    chosen = name or _free_name(module, existing)
    for lost in list_lost_meters(existing):
        if lost.meter != chosen:
            click.echo(f"joulelab: {lost}", err=True)
    _check_name(chosen, target, existing, replace=replace)
    table = MeterTable(chosen, Source(target), {"meter": module, **_values(module, words, found)})
    if module.endswith(".py"):
        table.values["meter"] = str(Path(module).absolute())
    opener, readings = _tried(table, found)
    if opener.error is not None:
        return _refuse(opener, as_json=as_json)
    write_entry(target, chosen, table.values, replace=replace)
    if as_json:
        print_json({"entry": chosen, "file": str(target), "readings": readings})
        return 0
    for line in (*_lines(readings), f"\nwritten to {target}:", entry_text(chosen, table.values)):
        click.echo(line)
    return 0


def _tried(table: MeterTable, module: Any) -> tuple[Opener, list[Reading]]:
    """Open the meter and read it once, asking for keys that it lacks where there is somebody to ask."""
    while True:
        opener = Opener(entry_of(table))
        try:
            check_values(opener.entry)  # what a run would refuse is not written down
            meter = opener.open()
            try:
                return opener, _read(meter)
            finally:
                meter.close()
        except ConfigError as error:
            key = lacking(error, module, table.values)
            if key is None:
                raise
            if not sys.stdin.isatty():
                raise ConfigError(
                    error.what,
                    where=error.where,
                    why=error.why,
                    next=_example(table, key, opener),
                    code="config.missing-key",
                ) from None
            table.values[key] = _value(key, click.prompt(_question(key, opener), err=True), opener.entry.secrets)
        except JoulelabError as error:
            opener.error = error
            return opener, []


def lacking(error: ConfigError, module: Any, given: dict[str, Any]) -> str | None:
    """Return the key that a meter misses, from what it says: the first of its keys that is named there and not set."""
    said = [*re.findall(r"\w+", error.what), *re.findall(r"(\w+) ?=", error.next or "")]
    keys = [key for key in getattr(module, "CONFIG", {}) if key not in given]
    return next((word for word in said if word in keys), None)


def _question(key: str, opener: Opener) -> str:
    meaning = getattr(opener.module, "CONFIG", {}).get(key, "")
    how = "; as env:NAME, file:PATH or keyring:SERVICE/USER" if key in opener.entry.secrets else ""
    return f"{key} ({meaning}{how})"


def _example(table: MeterTable, key: str, opener: Opener) -> str:
    given = [f"{k}={_shown(v)}" for k, v in table.values.items() if k != "meter"]
    value = f"env:{table.name.upper()}_{key.upper()}" if key in opener.entry.secrets else "..."
    words = ["joulelab", "meters", "--add", table.values["meter"], *given, f"{key}={value}"]
    return f"type `{shlex.join(words)}`"


def _shown(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in KINDS:
        return ":".join(next(iter(value.items())))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _values(module: str, words: Sequence[str], found: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError("no-pair", f"{word!r} is no key=value; type `joulelab meters --add {module} address=...`")
        values[key] = _value(key, text, getattr(found, "SECRETS", ()))
    return values


def _value(key: str, text: str, secrets: Sequence[str]) -> Any:
    """Return the value that a text stands for: a secret's place, a number, a list, a table, or the text itself."""
    if key in secrets:
        kind, colon, place = text.partition(":")
        if colon and place and kind in KINDS:
            return {kind: str(Path(place).expanduser().absolute()) if kind == "file" else place}
        if key == "community" and text == "public":
            return text
        then = f"give {key}=env:NAME, {key}=file:PATH or {key}=keyring:SERVICE/USER"
        raise ConfigError(
            f"{key} is given in plain text",
            why="others see it in the history and the list of processes",
            next=then,
            code="config.secret-in-plain-text",
        )
    if re.fullmatch(r"\d+(,\d+)+", text):
        return [int(number) for number in text.split(",")]
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text


def _target(level: str | None, named: Path | None) -> Path:
    if level == "system":
        return system_file(os.environ)
    if level == "user":
        return user_file(os.environ)
    if named is not None or os.environ.get(NAMED):
        return named or Path(os.environ[NAMED])
    return project_file() or user_file(os.environ)


def _free_name(module: str, config: Config) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(module).name.removesuffix(".py")).strip("-") or "meter"
    return next(name for k in range(1, 10000) if (name := f"{stem}{k}") not in config.tables)


def _check_name(name: str, target: Path, config: Config, *, replace: bool) -> None:
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!r} cannot be the name of an entry", next="use letters, digits, - and _", code="config.name"
        )
    there = config.tables.get(name)
    if there is None:
        return
    file = there.source.file.absolute()
    if not replace:
        then = "choose another with --name, or add --replace"
        raise ConfigError(
            f"there is an entry {name} already", where=str(there.source), next=then, code="config.name-taken"
        )
    if file != target:
        then = f"add --file {file}, or choose another name"
        raise ConfigError(
            f"entry {name} stands in another file", where=str(there.source), next=then, code="config.other-file"
        )


def _read(meter: Any) -> list[Reading]:
    """Read every stream once; return the values that were read."""
    found: list[Reading] = []
    for stream in meter.streams() if hasattr(meter, "streams") else ():
        for spec, value in zip(stream.channels, meter.read(stream), strict=True):
            if not math.isnan(value):
                found.append({"scope": stream.scope, "channel": spec.name, "value": value, "unit": spec.unit})
    return found


def _lines(readings: list[Reading]) -> list[str]:
    if not readings:
        return ["it opens; it is asked after a run"]
    width = max(len(r["scope"]) for r in readings)
    name = max(len(r["channel"]) for r in readings)
    return [f"{r['scope']:<{width}}  {r['channel']:<{name}}  {r['value']:g} {r['unit']}" for r in readings]


def _refuse(opener: Opener, *, as_json: bool) -> int:
    error, found = opener.error, opener.diagnose()
    assert error is not None
    if as_json:
        plain = {key: opener.clean(value) for key, value in describe_error(error).items()}
        print_json({"entry": opener.entry.name, "error": plain, "found": found})
    click.echo(f"joulelab: {opener.clean(str(error))}", err=True)
    for sentence in found:
        click.echo(f"  {sentence}", err=True)
    click.echo("nothing was written", err=True)
    return 1
