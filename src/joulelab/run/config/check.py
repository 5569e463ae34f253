"""Check an entry against its meter's module, and find out whether it is for this host and a cord of what it feeds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.instruments import nearest, settings, wall
from joulelab.run.config.entry import Entry
from joulelab.run.config.modules import is_inside, is_live, is_usual, module_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.run.config.entry import Config, Table

# The keys of an entry that are for the configuration itself; all others are the meter's.
OWN = ("meter", "node", "enabled", "cord")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
FEEDS = "node.ac"
# The keys that name cords of what an entry feeds.
CORDS = ("outlets", "inlets")
# What stands in the place of a secret while an entry is checked: long enough for SNMPv3, short enough for IPMI.
PLACEHOLDER = "not-resolved"
LOGIN = re.compile(r"://[^/\s]*@")


def add(config: Config, table: Table, host: str) -> None:
    """Add an entry to the configuration if it is switched on and for this host. Raises ConfigError."""
    values = table.values
    _check_own(table)
    if not values.get("enabled", True):
        config.off += [table.name] if "meter" not in values and is_inside(table.name) else []
    elif is_for(values.get("node", "*"), host):
        entry = entry_of(table)
        _check_values(entry, table)
        config.entries.append(entry)


def check_values(entry: Entry) -> None:
    """Check an entry's values, as its module does, without its secrets and without the instrument. Raises ConfigError.

    What is wrong stands under `meter NAME`; `add` says where in the files.
    """
    module = module_of(entry.meter)
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
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(
                "the values of the entry cannot be checked", where=f"meter {entry.name}", why=why
            ) from error


def _check_values(entry: Entry, table: Table) -> None:
    try:
        check_values(entry)
    except JoulelabError as error:
        where = table.at(_key_of(error, table))
        more = re.sub(r"^(meter )+", "", error.where or "")
        if more not in ("", entry.meter, entry.name):
            where += f", {more}"  # such as a profile's file, a register
        raise ConfigError(error.what, where=where, why=error.why, next=error.next) from error


def _key_of(error: JoulelabError, table: Table) -> str:
    """Return the key of an entry that an error is about: one that it names, or the one that holds that."""
    words = [form for word in re.findall(r"\w+", error.what) for form in (word, f"{word}s")]
    inside = {word: key for key, value in table.values.items() for word in _keys_inside(value)}
    return next((word for word in words if word in table.values), next((inside[w] for w in words if w in inside), ""))


def _keys_inside(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {str(key) for key in value}.union(*map(_keys_inside, value.values()))
    return set().union(*map(_keys_inside, value)) if isinstance(value, list) else set()


def entry_of(table: Table) -> Entry:
    """Return what a table describes; its module is loaded for that. Raises ConfigError."""
    meter = _meter(table)
    try:
        module = module_of(meter)
    except JoulelabError as error:
        raise ConfigError(error.what, where=table.at("meter"), why=error.why, next=error.next) from error
    given = {key: value for key, value in table.values.items() if key not in OWN}
    known = getattr(module, "CONFIG", None)
    if known is not None:
        _check_keys(table, given, known)
    _refuse_logins(table, given, getattr(module, "SECRETS", ()))
    return Entry(
        table.name,
        meter,
        table.source,
        given,
        table.sources,
        secrets=tuple(getattr(module, "SECRETS", ())),
        feeds=str(given.get("feeds") or FEEDS) if known is None or "feeds" in known else "",
        parts=_cords(table),
        live=is_live(module),
        usual=is_usual(module),
    )


def count_cords(config: Config) -> None:
    """Tell each cord how many there are in all of what it feeds; warn of one that two entries name.

    Cords of a wrong entry count, too: a sum without them would be taken for the whole. A file that cannot be read may
    have named one more.
    """
    total: dict[str, int] = {}
    for name in config.lost:
        feeds = str(config.tables[name].values.get("feeds") or FEEDS)
        total[feeds] = total.get(feeds, 0) + _cords(config.tables[name])
    owner: dict[tuple[str, str, str], str] = {}
    for entry in config.entries:
        total[entry.feeds] = total.get(entry.feeds, 0) + entry.parts
        for key in (k for k in CORDS if isinstance(entry.settings.get(k), list)):
            for cord in entry.settings[key]:
                first = owner.setdefault((str(entry.settings.get("address")), key, str(cord)), entry.name)
                if first != entry.name:
                    twice = f"{key} {cord} of one address is in {first} and {entry.name}: it counts twice"
                    config.warnings.append(f"{twice}; name it in one of them")
    unknown = 1 if config.unread else 0
    config.entries = [replace(e, parts=total[e.feeds] + unknown) if e.parts else e for e in config.entries]


def is_for(patterns: Any, host: str) -> bool:
    """Return whether a host is meant by a pattern, or by one of several, by its full or its short name."""
    from fnmatch import fnmatchcase

    names = {host.lower(), host.lower().split(".")[0]}
    listed = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(name, pattern.lower()) for pattern in listed for name in names)


def is_elsewhere(table: Table, host: str) -> bool:
    """Return whether an entry is surely not for a host; one whose `node` is wrong itself may be."""
    nodes = table.values.get("node", "*")
    right = isinstance(nodes, str) or (isinstance(nodes, list) and all(isinstance(n, str) for n in nodes))
    return right and not is_for(nodes, host)


def _check_own(table: Table) -> None:
    values = table.values
    if NAME.fullmatch(table.name) is None:
        then = "use letters, digits, - and _"
        raise ConfigError(f"{table.name!r} cannot be the name of an entry", where=str(table.source), next=then)
    for key in ("enabled", "cord"):
        if not isinstance(values.get(key, False), bool):
            raise ConfigError(f"{key} is {values[key]!r}", where=table.at(key), next="give true or false")
    nodes = values.get("node", "*")
    if not isinstance(nodes, str) and not (isinstance(nodes, list) and all(isinstance(n, str) for n in nodes)):
        then = 'give a host\'s name or a pattern: "node07", "gpu*"'
        raise ConfigError(f"node is {nodes!r}", where=table.at("node"), next=then)


def _meter(table: Table) -> str:
    """Return the name of an entry's module; a file is looked for beside the configuration."""
    meter = table.values.get("meter", table.name)
    if not isinstance(meter, str) or not meter:
        raise ConfigError(f"meter is {meter!r}", where=table.at("meter"), next='give a name: meter = "snmp"')
    if "meter" not in table.values and not is_inside(meter):
        then = _perhaps(table) or 'add meter = "snmp" or another'
        raise ConfigError(f"entry {table.name} has no key 'meter'", where=str(table.source), next=then)
    if meter != table.name and is_inside(table.name):
        then = "give the entry another name"
        raise ConfigError(f"{table.name} is the name of a built-in meter", where=str(table.source), next=then)
    if meter.endswith(".py"):
        return str(table.sources.get("meter", table.source).file.parent / Path(meter).expanduser())
    return meter


def _perhaps(table: Table) -> str:
    """Return advice where `meter` itself seems to be misspelt."""
    import difflib

    close = difflib.get_close_matches("meter", table.values, n=1, cutoff=0.6)
    return f"did you mean 'meter' instead of {close[0]!r}?" if close else ""


def _check_keys(table: Table, given: Mapping[str, Any], known: Mapping[str, str]) -> None:
    valid = [*OWN, *(key for key in known if key != "label")]
    for key in given:
        if key not in valid:
            raise ConfigError(f"unknown key {key!r}", where=table.at(key), next=nearest(key, valid))


def _refuse_logins(table: Table, given: Mapping[str, Any], secrets: Sequence[str]) -> None:
    """Refuse a user or password in an address, without a word of it."""
    for key, value in given.items():
        if key in wall.ADDRESSES or (key not in secrets and isinstance(value, str) and LOGIN.search(value)):
            try:
                wall.refuse_login(given, key)
            except ConfigError as error:
                raise ConfigError(error.what, where=table.at(key), why=error.why, next=error.next) from None


def _cords(table: Table) -> int:
    """Return how many cords an entry has: those that it names, or one where it says that it is one."""
    for key in CORDS:
        if key in table.values:
            named = table.values[key]
            return len(named) if isinstance(named, list) else 1
    return int(bool(table.values.get("cord", False)))
