"""Read and merge the configuration's files. Nothing raises here: problems are collected."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.config.config_files import list_config_files, read_toml
from joulelab.run.config.entry import Config, KeySource, MeterTable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def load_config(environ: Mapping[str, str], host: str, *, named: Path | None = None, cwd: str | None = None) -> Config:
    """Return the configuration for a host; where there is no file it is empty, and nothing was loaded for it."""
    files, warnings = list_config_files(environ, named=named, cwd=cwd)
    config = Config(warnings=warnings)
    if not files:
        return config
    from joulelab.run.config.meter_entries import add_entry, count_cords

    for file in files:
        try:
            text, content = read_toml(file, "configuration file")
        except ConfigError as problem:
            config.problems.append(problem)
            config.unread[file] = problem
            continue
        config.files.append(file)
        _read_file(file, text, content, config, host)
    for table in config.tables.values():
        add_entry(config, table, host)
    count_cords(config)
    return config


def _read_file(file: Path, text: str, content: Mapping[str, Any], config: Config, host: str) -> None:
    from joulelab.core.reading import Mistakes, read_table
    from joulelab.instruments.wall import check_scope
    from joulelab.run.config.config_keys import ConfigFile
    from joulelab.run.config.meter_entries import is_for_host

    mistakes = Mistakes(file, text, ConfigFile)
    found = read_table(ConfigFile, content, mistakes) or ConfigFile()
    config.run |= {key: value for key, value in asdict(found.run).items() if value is not None}
    if is_for_host(found.node.node, host) and not mistakes.has("node", "node"):
        config.node |= {key: value for key, value in asdict(found.node).items() if key != "node" and value is not None}
    for scope, watts in found.supply.items():
        try:
            config.supply[check_scope(scope, "", also=("phase", "bank", "input"))] = watts
        except ConfigError as problem:
            mistakes.add_error(("supply", scope), problem)
    for name, values in found.meters.items():
        place = ("meters", name)
        source = KeySource(file, mistakes.locate(place)[1])
        table = config.tables.setdefault(name, MeterTable(name, source))
        table.values |= values
        table.sources |= {key: KeySource(file, mistakes.locate((*place, key))[1]) for key in values}
        if "meter" in values:
            table.source = source
    config.problems += mistakes.errors
