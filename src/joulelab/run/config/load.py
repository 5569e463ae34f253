"""Read and merge the configuration's files. Nothing raises here: problems are collected."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.config.entry import Config, Source, Table
from joulelab.run.config.files import present

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOP = ("meters", "run", "node", "supply")
RUN = ("period_s", "idle_s", "tail_s")


def load(environ: Mapping[str, str], host: str, *, named: Path | None = None, cwd: str | None = None) -> Config:
    """Return the configuration for a host; where there is no file it is empty, and nothing was loaded for it."""
    files, warnings = present(environ, named=named, cwd=cwd)
    config = Config(warnings=warnings)
    if not files:
        return config
    from joulelab.run.config.check import add, count_cords, is_elsewhere

    for file in files:
        _read(file, config, host)
    for table in config.tables.values():
        try:
            add(config, table, host)
        except ConfigError as problem:
            config.problems.append(problem)
            if not is_elsewhere(table, host):
                config.lost[table.name] = problem
    count_cords(config)
    return config


def parse(file: Path) -> tuple[dict[str, Any], str]:
    """Return a file's tables and its text. Raises ConfigError with the line."""
    import tomllib

    from joulelab.store.safe_files import read_regular

    try:
        text = read_regular(file).decode()
        return tomllib.loads(text), text
    except OSError as error:
        other = "replace it with a regular file" if error.errno == errno.EINVAL else "make it readable"
        then = "create it, or name another" if isinstance(error, FileNotFoundError) else other
        raise ConfigError("cannot read this file", where=str(file), why=error.strerror, next=then) from None
    except UnicodeDecodeError:
        raise ConfigError("not a TOML file", where=str(file), why="it is not UTF-8", next="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        from joulelab.run.config.problems import locate_toml_error

        line, why = locate_toml_error(error, text)
        raise ConfigError("not a TOML file", where=f"{file}:{line}", why=why, next="correct that line") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, lists 1,000 deep
        raise ConfigError("not a TOML file", where=str(file), why=str(error), next="correct it") from None


def _read(file: Path, config: Config, host: str) -> None:
    from joulelab.instruments import nearest
    from joulelab.run.config.lines import line_of, top_line_of
    from joulelab.run.config.watts import read_node, read_supply

    try:
        content, text = parse(file)
    except ConfigError as problem:
        config.problems.append(problem)
        config.unread[file] = problem
        return
    config.files.append(file)
    for key in content:
        if key not in TOP:
            where, then = str(Source(file, top_line_of(text, key))), nearest(key, list(TOP))
            config.problems.append(ConfigError(f"unknown table or key {key!r}", where=where, next=then))
    _read_run(file, content.get("run", {}), text, config)
    read_node(file, content.get("node", {}), text, host, config)
    read_supply(file, content.get("supply", {}), text, config)
    entries = content.get("meters", {})
    for name, values in entries.items() if isinstance(entries, dict) else [("NAME", entries)]:
        if not isinstance(values, dict):
            then = f"write [meters.{name}]"
            config.problems.append(ConfigError(f"meters.{name} is not a table", where=str(file), next=then))
            continue
        source = Source(file, line_of(text, f"meters.{name}"))
        table = config.tables.setdefault(name, Table(name, source))
        table.values |= values
        table.sources |= {key: Source(file, line_of(text, f"meters.{name}", key)) for key in values}
        if "meter" in values:
            table.source = source


def _read_run(file: Path, table: Any, text: str, config: Config) -> None:
    from joulelab.instruments import nearest
    from joulelab.run.config.lines import line_of

    for key, value in table.items() if isinstance(table, dict) else [("run", table)]:
        where = str(Source(file, line_of(text, "run", key)))
        least = 0.001 if key == "period_s" else 0.0
        if key not in RUN:
            config.problems.append(ConfigError(f"unknown key {key!r}", where=where, next=nearest(key, list(RUN))))
        elif isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            then = f"give a number of seconds, {least:g} or more"
            config.problems.append(ConfigError(f"{key} is {value!r}", where=where, next=then))
        else:
            config.run[key] = float(value)
