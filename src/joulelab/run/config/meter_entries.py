"""Read the entries `[meters.NAME]`: declare the keys, find the meter's module, check the values.

Every run has to create the classes of keys; with only the needed methods this takes a third of the time.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import Mistakes, declare_key, read_table, read_texts
from joulelab.instruments import settings, wall
from joulelab.recorder.plan import find_module
from joulelab.run.config.configuration import MeterEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.core.toml_reading import Place
    from joulelab.run.config.configuration import Config, MeterTable

MOST_W = 1e9
WATTS = "give a number of watts above 0"
SUPPLY = f'{WATTS}; a scope with a dot is written in quotation marks: "node.ac" = 11000'
HOSTS = 'give a host\'s name or a pattern: "node07", "gpu*"'


def _seconds(doc: str, least: float = 0.0) -> Any:
    return declare_key(None, doc, least=least, advice=f"give a number of seconds, {least:g} or more")


@dataclass(repr=False, eq=False)
class RunTable:
    """Hold the defaults of a run, in s."""

    period_s: float | None = _seconds("seconds between readings", 0.001)
    idle_s: float | None = _seconds("seconds to measure before the command starts")
    tail_s: float | None = _seconds("seconds to measure after it has ended")


@dataclass(repr=False, eq=False)
class NodeTable:
    """Hold the rated and the planned power of a node, in W, and the hosts that they are for."""

    node: tuple[str, ...] = declare_key(
        ("*",), "the hosts that this is for: names or patterns", read=read_texts, advice=HOSTS
    )
    rated_w: float | None = declare_key(
        None, "rated power of the whole node, from its maker", above=0, most=MOST_W, advice=WATTS
    )
    planned_w: float | None = declare_key(
        None, "power that the plan of the rack allows", above=0, most=MOST_W, advice=WATTS
    )


@dataclass(repr=False, eq=False)
class EntryKeys:
    """Hold the keys of an entry `[meters.NAME]` that are for the configuration itself; all others are the meter's."""

    meter: str | None = declare_key(
        None, "its module, unless the entry has the name of one", advice='give a name: meter = "snmp"'
    )
    node: tuple[str, ...] = declare_key(
        ("*",), "the hosts that it is for: names or patterns", read=read_texts, advice=HOSTS
    )
    enabled: bool = declare_key(True, "false switches it off")
    cord: bool = declare_key(False, "true: it measures one of several cords that feed its scope")


@dataclass(repr=False, eq=False)
class ConfigFile:
    """Hold a `joulelab.toml`."""

    meters: dict[str, dict[str, Any]] = declare_key(dict, "entries of meters by their names: [meters.pdu1]")
    run: RunTable = field(default_factory=RunTable)
    node: NodeTable = field(default_factory=NodeTable)
    supply: dict[str, float] = declare_key(
        dict, "the watts that may be drawn, by scope", above=0, most=MOST_W, advice=SUPPLY
    )
    # Its keys are in `joulelab.site.site_settings`, which is loaded only if a file has this table.
    site: dict[str, Any] = declare_key(dict, "zone, price and PUE, as `joulelab site` writes them")


def find_meter_module(meter: str) -> Any:
    """Return a module by its name, dotted path or file. Raises ConfigError with the nearest name, Unavailable."""
    inside = _find_builtin(meter)
    if inside is not None:
        return inside
    try:
        module = find_module(meter)
    except JoulelabError:
        raise
    except (Exception, SystemExit) as error:
        why, then = f"{type(error).__name__}: {error}", "correct its module, or write enabled = false"
        raise ConfigError(f"meter {meter} cannot be loaded", why=why, next=then, code="config.broken-meter") from error
    if not is_live(module) and not is_archive(module):
        why = "it has neither open_meter(config) nor open_archive(config)"
        what = f"{meter} is not a meter"
        raise ConfigError(what, why=why, next="name a meter that `joulelab meters` lists", code="config.not-a-meter")
    return module


def is_builtin_meter(name: str) -> bool:
    """Return whether one of joulelab's own meters or archives has that name."""
    return _find_builtin(name) is not None


def _find_builtin(name: str) -> Any:
    if not name.isidentifier() or importlib.util.find_spec(f"joulelab.instruments.{name}") is None:
        return None
    module = importlib.import_module(f"joulelab.instruments.{name}")
    return module if is_live(module) or is_archive(module) else None


def is_live(module: Any) -> bool:
    """Return whether a meter is read during a run."""
    return callable(getattr(module, "open_meter", None))


def is_archive(module: Any) -> bool:
    """Return whether a module is read after a run."""
    return callable(getattr(module, "open_archive", None))


def is_usual(module: Any) -> bool:
    """Return whether a run opens this meter by default."""
    return is_live(module) and bool(getattr(module, "DEFAULT", True))


OWN_KEYS = tuple(one.name for one in fields(EntryKeys))
ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
DEFAULT_SCOPE = "node.ac"
# Keys that name the cords of an entry.
CORD_KEYS = ("outlets", "inlets")
# Replaces a secret while an entry is checked: long enough for SNMPv3, short enough for IPMI.
PLACEHOLDER = "not-resolved"
LOGIN_PATTERN = re.compile(r"://[^/\s]*@")


class EntryMistakes(Mistakes):
    """Collect the mistakes of an entry, whose keys may be in several files."""

    def __init__(self, table: MeterTable) -> None:
        super().__init__(table.source.file, shape=ConfigFile)
        self.table = table
        self.place = ("meters", table.name)

    def locate(self, place: Place) -> tuple[str, int]:
        """Return the file and the line of a key of the entry, else those of the entry itself."""
        source = self.table.find_source(str(place[2]) if len(place) > 2 else "")
        return str(source.file), source.line or 0

    def add_key_error(self, key: str, error: JoulelabError, before: str = "") -> None:
        """Note the error of a key, or of the whole entry where `key` is empty."""
        self.add_error((*self.place, key) if key else self.place, error, before)


def add_entry(config: Config, table: MeterTable, host: str) -> None:
    """Add an entry to the configuration if it is enabled and for this host, or its mistakes."""
    mistakes = EntryMistakes(table)
    own = {key: value for key, value in table.values.items() if key in OWN_KEYS}
    keys = read_table(EntryKeys, own, mistakes, mistakes.place) or EntryKeys()
    if ENTRY_NAME.fullmatch(table.name) is None:
        what, then = f"{table.name!r} cannot be the name of an entry", "use letters, digits, - and _"
        mistakes.add(mistakes.place, what, next=then, code="config.name")
    is_here = is_for_host(keys.node, host)
    if keys.enabled and is_here and (entry := _make_entry(mistakes)) is not None:
        _note_value_errors(entry, mistakes)
        config.entries += [] if mistakes.errors else [entry]
    elif not keys.enabled and not mistakes.errors and "meter" not in own and is_builtin_meter(table.name):
        config.off.append(table.name)
    config.problems += mistakes.errors
    if mistakes.errors and is_here:
        config.lost[table.name] = mistakes.errors


def check_entry_values(entry: MeterEntry) -> None:
    """Check an entry's values, as its module does, without its secrets and its instrument. Raises ConfigError."""
    module = find_meter_module(entry.meter)
    known = getattr(module, "CONFIG", {})
    values = {key: PLACEHOLDER if key in entry.secrets else value for key, value in entry.settings.items()}
    values |= {"label": entry.name} | ({"parts": entry.parts} if entry.parts and "parts" not in values else {})
    for key in ("period_s", "slow_period_s", "timeout_s"):
        settings.seconds(entry.name, values, key, 1.0)
    if "devices" in known:
        settings.devices(entry.name, values)
    if "feeds" in known:
        wall.check(values)
    check = getattr(module, "check", None)
    if callable(check):
        try:
            check(values)
        except JoulelabError:
            raise
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            what = "the values of the entry cannot be checked"
            raise ConfigError(what, where=f"meter {entry.name}", why=why, code="config.broken-meter") from error


def _note_value_errors(entry: MeterEntry, mistakes: EntryMistakes) -> None:
    if mistakes.errors:
        return  # a misspelt key would be reported as missing, too
    try:
        check_entry_values(entry)
    except JoulelabError as error:
        more = re.sub(r"^(meter )+", "", error.where or "")  # such as the file of a profile, or a register
        before = "" if more in ("", entry.meter, entry.name) else f"{more}: "
        mistakes.add_key_error(_find_key(error, mistakes.table.values), error, before)


def _find_key(error: JoulelabError, values: Mapping[str, Any]) -> str:
    """Return the key of an entry that an error is about: the key that the error names, or the table around it."""
    words = [form for word in re.findall(r"\w+", error.what) for form in (word, f"{word}s")]
    inside = {word: key for key, value in values.items() for word in _find_keys_inside(value)}
    return next((word for word in words if word in values), next((inside[w] for w in words if w in inside), ""))


def _find_keys_inside(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {str(key) for key in value}.union(*map(_find_keys_inside, value.values()))
    return set().union(*map(_find_keys_inside, value)) if isinstance(value, list) else set()


def read_entry(table: MeterTable) -> MeterEntry:
    """Return the entry of a table; its module is loaded for that. Raises ConfigError."""
    mistakes = EntryMistakes(table)
    entry = _make_entry(mistakes)
    mistakes.check()
    assert entry is not None
    return entry


def _make_entry(mistakes: EntryMistakes) -> MeterEntry | None:
    """Return the entry of a table without checking its values; None if it has no module."""
    table = mistakes.table
    meter = _find_meter(mistakes)
    if meter is None:
        return None
    try:
        module = find_meter_module(meter)
    except JoulelabError as error:
        mistakes.add_key_error("meter", error)
        return None
    given = {key: value for key, value in table.values.items() if key not in OWN_KEYS}
    known = getattr(module, "CONFIG", None)
    valid = [*OWN_KEYS, *(key for key in known or () if key != "label")]
    for key in given if known is not None else ():
        if key not in valid:
            mistakes.refuse_key(mistakes.place, key, valid)
    secrets = tuple(getattr(module, "SECRETS", ()))
    _refuse_logins(given, secrets, mistakes)
    return MeterEntry(
        table.name,
        meter,
        table.source,
        given,
        table.sources,
        secrets=secrets,
        feeds=str(given.get("feeds") or DEFAULT_SCOPE) if known is None or "feeds" in known else "",
        parts=_count_own_cords(table),
        live=is_live(module),
        usual=is_usual(module),
    )


def count_cords(config: Config) -> None:
    """Set the number of cords of each scope in its entries; warn of a cord that two entries name.

    Cords of a wrong entry count, too, so that a sum without them is not taken for the whole. A file that cannot be
    read may name one more.
    """
    total: dict[str, int] = {}
    for name in config.lost:
        feeds = str(config.tables[name].values.get("feeds") or DEFAULT_SCOPE)
        total[feeds] = total.get(feeds, 0) + _count_own_cords(config.tables[name])
    owner: dict[tuple[str, str, str], str] = {}
    for entry in config.entries:
        total[entry.feeds] = total.get(entry.feeds, 0) + entry.parts
        for key in (k for k in CORD_KEYS if isinstance(entry.settings.get(k), list)):
            for cord in entry.settings[key]:
                first = owner.setdefault((str(entry.settings.get("address")), key, str(cord)), entry.name)
                if first != entry.name:
                    twice = f"{key} {cord} of one address is in {first} and {entry.name}: it counts twice"
                    config.warnings.append(f"{twice}; name it in one of them")
    unknown = 1 if config.unread else 0
    config.entries = [replace(e, parts=total[e.feeds] + unknown) if e.parts else e for e in config.entries]


def is_for_host(patterns: Iterable[str], host: str) -> bool:
    """Return whether one of several patterns matches a host, by its full or its short name."""
    from fnmatch import fnmatchcase

    names = {host.lower(), host.lower().split(".")[0]}
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns for name in names)


def _find_meter(mistakes: EntryMistakes) -> str | None:
    """Return the name of an entry's module or None; the path of a file is relative to the configuration file."""
    table = mistakes.table
    meter = table.values.get("meter", table.name)
    if not isinstance(meter, str) or not meter:
        return None  # noted already
    if "meter" not in table.values and not is_builtin_meter(meter):
        wrong = next((key for key in table.values if suggest_name(key, ["meter"]).startswith("did")), None)
        then = f"did you mean 'meter' instead of {wrong!r}?" if wrong else 'add meter = "snmp" or another'
        mistakes.add(mistakes.place, f"entry {table.name} has no key 'meter'", next=then, code="config.missing-key")
        return None
    if meter != table.name and is_builtin_meter(table.name):
        mistakes.add(
            mistakes.place,
            f"{table.name} is the name of a built-in meter",
            next="give the entry another name",
            code="config.name-taken",
        )
        return None
    if meter.endswith(".py"):
        return str(table.find_source("meter").file.parent / Path(meter).expanduser())
    return meter


def _refuse_logins(given: Mapping[str, Any], secrets: Sequence[str], mistakes: EntryMistakes) -> None:
    """Refuse a user or password in an address, without repeating it."""
    for key, value in given.items():
        if key in wall.ADDRESSES or (key not in secrets and isinstance(value, str) and LOGIN_PATTERN.search(value)):
            try:
                wall.refuse_login(given, key)
            except ConfigError as error:
                mistakes.add_key_error(key, error)


def _count_own_cords(table: MeterTable) -> int:
    """Return the number of cords of an entry: the cords that it names, or one if `cord` is set."""
    for key in CORD_KEYS:
        if key in table.values:
            named = table.values[key]
            return len(named) if isinstance(named, list) else 1
    return int(bool(table.values.get("cord", False)))
