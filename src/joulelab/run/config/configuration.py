"""Read and merge the configuration's files. Nothing raises here: problems are collected."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.config.config_files import list_config_files, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.core.toml_reading import Mistakes
    from joulelab.site.footprint import Site


@dataclass(frozen=True, slots=True)
class KeySource:
    """Hold the place of a key: its file, and its line if that is known."""

    file: Path
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)


@dataclass(slots=True)
class MeterTable:
    """Collect the keys of one entry from all files, with their places; the last one wins."""

    name: str
    source: KeySource
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    sources: dict[str, KeySource] = field(default_factory=dict, repr=False)

    def find_source(self, key: str) -> KeySource:
        """Return the place of a key, or that of the entry."""
        return self.sources.get(key, self.source)


@dataclass(frozen=True, slots=True)
class MeterEntry:
    """Describe one configured meter that is enabled and for this host.

    `meter` is its module; `settings` are its keys, secrets not resolved; `sources` are their places. `parts` is the
    number of cords of the scope that it `feeds`, 0 where it measures all of them. A `live` meter is read during a run,
    an archive after it. A `usual` meter replaces the one that a run opens by default.
    """

    name: str
    meter: str
    source: KeySource
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sources: Mapping[str, KeySource] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()
    feeds: str = ""
    parts: int = 0
    live: bool = True
    usual: bool = False


@dataclass(slots=True)
class Config:
    """Hold the merged configuration. `run` are defaults of a run; `off` are usual meters that are disabled.

    `node` holds `rated_w` and `planned_w` of this host, `supply` the allowed power by scope in W. `tables` are all
    entries of the files, also those for other hosts. `site` is made from `site_values`, the keys of [site]; it is None
    if there are none. `problems` are all mistakes; their entries and keys are left out
    of the other fields. `lost` are the problems of single entries by name, `unread` those of unreadable files;
    `warnings` are sentences.
    """

    entries: list[MeterEntry] = field(default_factory=list)
    run: dict[str, float] = field(default_factory=dict)
    node: dict[str, float] = field(default_factory=dict)
    supply: dict[str, float] = field(default_factory=dict)
    site: Site | None = None
    site_values: dict[str, Any] = field(default_factory=dict)
    off: list[str] = field(default_factory=list)
    tables: dict[str, MeterTable] = field(default_factory=dict, repr=False)
    files: list[Path] = field(default_factory=list)
    problems: list[ConfigError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lost: dict[str, list[ConfigError]] = field(default_factory=dict)
    unread: dict[Path, ConfigError] = field(default_factory=dict)

    def check(self) -> None:
        """Raise the first problem, if there is one."""
        if self.problems:
            raise self.problems[0]

    def find_entry(self, name: str) -> MeterEntry | None:
        """Return the entry of a name, None without one."""
        return next((entry for entry in self.entries if entry.name == name), None)


def load_config(environ: Mapping[str, str], host: str, *, named: Path | None = None, cwd: str | None = None) -> Config:
    """Return the configuration for a host; without a file it is empty, and nothing is loaded for it."""
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
    if config.site_values:
        from joulelab.site.site_settings import read_site

        config.site = read_site(config.site_values)
    return config


@dataclass(slots=True)
class ConfiguredSite:
    """Hold the site that is set now (None without one), its keys, their files, and problems of [site] or of files."""

    site: Site | None = None
    values: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    problems: list[ConfigError] = field(default_factory=list)


def load_site(environ: Mapping[str, str], *, named: Path | None = None, cwd: str | None = None) -> ConfiguredSite:
    """Return the site that is set now; the rest of the configuration is not loaded. Nothing raises here."""
    found = ConfiguredSite()
    for file in list_config_files(environ, named=named, cwd=cwd)[0]:
        try:
            text, content = read_toml(file, "configuration file")
        except ConfigError as problem:
            found.problems.append(problem)
            continue
        if not content.get("site"):
            continue
        from joulelab.core.toml_reading import Mistakes

        mistakes = Mistakes(file, text)
        if isinstance(content["site"], dict):
            found.values = _merge_site(found.values, content["site"], mistakes)
        else:
            mistakes.add_wrong(("site",), content["site"], "write it as a table: [site]")
        found.files.append(file)
        found.problems += mistakes.errors
    if found.values:
        from joulelab.site.site_settings import read_site

        found.site = read_site(found.values)
    return found


def _merge_site(weaker: dict[str, Any], values: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    """Add [site] of a file to that of weaker files; a wrong table is not used."""
    if not values:
        return weaker
    from joulelab.site.site_settings import merge_site_values, read_site

    return weaker if read_site(values, mistakes) is None else merge_site_values(weaker, values)


def _read_file(file: Path, text: str, content: Mapping[str, Any], config: Config, host: str) -> None:
    from joulelab.core.toml_reading import Mistakes, read_table
    from joulelab.instruments.wall import check_scope
    from joulelab.run.config.meter_entries import ConfigFile, is_for_host

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
    config.site_values = _merge_site(config.site_values, found.site, mistakes)
    for name, values in found.meters.items():
        place = ("meters", name)
        source = KeySource(file, mistakes.locate(place)[1])
        table = config.tables.setdefault(name, MeterTable(name, source))
        table.values |= values
        table.sources |= {key: KeySource(file, mistakes.locate((*place, key))[1]) for key in values}
        if "meter" in values:
            table.source = source
    config.problems += mistakes.errors
