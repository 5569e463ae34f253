"""Read the configuration of a BMC: where it is, how to log in, which of its readings feed what."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments import wall
from joulelab.instruments.ipmi.inband import COMMAND, InBand
from joulelab.instruments.ipmi.lan import CIPHERS, PORT, PRIVILEGES, Account, Lan
from joulelab.instruments.settings import seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.instruments.ipmi.client import Link

INTERFACES = ("lan", "in-band")
# Source -> what it feeds unless told otherwise.
FEEDS = {"dcmi": "node.ac", "xcc": "node.dc", "psu": "node.ac", "psu.dc": "node.dc", "sensor": "node.ac"}


@dataclass(frozen=True, slots=True)
class Source:
    """Name one reading of a BMC and the scope that it feeds; `sensor` is its name for a single sensor."""

    kind: str
    feeds: str
    sensor: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold what a configuration says; `sources` None means those that are found, patterns None the usual ones."""

    label: str
    period_s: float
    cooling_period_s: float
    timeout_s: float
    update_s: float
    sources: tuple[Source, ...] | None
    psu: str | None
    psu_dc: str | None
    temperatures: tuple[str, ...] | None
    fans: tuple[str, ...] | None


def settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings of a configuration. Raises ConfigError."""
    label = wall.label_of(config)
    return Settings(
        label=label,
        period_s=seconds(label, config, "period_s", 1.0),
        cooling_period_s=seconds(label, config, "cooling_period_s", 5.0),
        timeout_s=seconds(label, config, "timeout_s", 2.0),
        update_s=seconds(label, config, "update_s", 1.0),
        sources=_sources(config),
        psu=text(label, config, "psu"),
        psu_dc=text(label, config, "psu_dc"),
        temperatures=_patterns(config, "temperatures"),
        fans=_patterns(config, "fans"),
    )


def check(config: Mapping[str, Any]) -> None:
    """Check all of a configuration that can be checked without the BMC. Raises ConfigError."""
    for source in settings(config).sources or ():
        wall.check_scope(source.feeds, f"meter {wall.label_of(config)}", "feeds")
    if interface(config) == "lan":
        account(config)
    else:
        _command(config)


def interface(config: Mapping[str, Any]) -> str:
    """Return `lan` or `in-band`: what is said, or LAN where an address is given. Raises ConfigError."""
    usual = "lan" if "address" in config else "in-band"
    return _one_of(config, "interface", usual, INTERFACES)


def link(config: Mapping[str, Any]) -> Link:
    """Return the way to the BMC; nothing is sent yet. Raises ConfigError, MissingDependency."""
    return Lan(account(config)) if interface(config) == "lan" else InBand(_command(config))


def account(config: Mapping[str, Any]) -> Account:
    """Return where the BMC is and how to log in. Raises ConfigError."""
    label = wall.label_of(config)
    host, port = wall.address(config, PORT)
    user, password = text(label, config, "user"), config.get("password")
    if not user or len(user.encode()) > 16:
        raise ConfigError("no user is given", where=f"meter {label}", next='set user = "NAME", 16 bytes at most')
    if not isinstance(password, str) or len(password.encode()) > 20:  # it is never shown
        advice = 'set password = { env = "NAME" } or { file = "PATH" }; IPMI takes 20 bytes at most'
        raise ConfigError("no password that IPMI takes is given", where=f"meter {label}", next=advice)
    cipher = config.get("cipher")
    if cipher is not None and (isinstance(cipher, bool) or cipher not in CIPHERS):
        raise ConfigError(f"cipher is {cipher!r}", where=f"meter {label}", next="give 3 or 17, or leave it out")
    privilege = _one_of(config, "privilege", "operator", tuple(PRIVILEGES))
    return Account(host, port, user, password, PRIVILEGES[privilege], cipher)


def _one_of(config: Mapping[str, Any], key: str, usual: str, valid: tuple[str, ...]) -> str:
    value = text(wall.label_of(config), config, key, usual) or usual
    if value not in valid:
        where = f"meter {wall.label_of(config)}"
        raise ConfigError(f"{key} is {value!r}", where=where, next=f"give one of {', '.join(valid)}")
    return value


def _command(config: Mapping[str, Any]) -> tuple[str, ...]:
    value = config.get("command", COMMAND)
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(w, str) for w in words):
        where = f"meter {wall.label_of(config)}"
        raise ConfigError(f"command is {value!r}", where=where, next='give words such as ["ipmitool", "-I", "open"]')
    return tuple(words)


def _patterns(config: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        where = f"meter {wall.label_of(config)}"
        raise ConfigError(f"{key} is {value!r}", where=where, next='give a list of names or patterns, ["Fan*"], or []')
    return tuple(value)


def _sources(config: Mapping[str, Any]) -> tuple[Source, ...] | None:
    given = config.get("sources", "auto")
    if given == "auto":
        return None
    listed = [given] if isinstance(given, (str, dict)) else given
    if not isinstance(listed, (list, tuple)) or not listed:
        raise _wrong_source(config, given)
    return tuple(_source(config, item, alone=len(listed) == 1) for item in listed)


def _source(config: Mapping[str, Any], item: Any, *, alone: bool) -> Source:
    table = {"source": item} if isinstance(item, str) else item
    if not isinstance(table, dict) or set(table) - {"source", "feeds"}:
        raise _wrong_source(config, item)
    name, feeds = table.get("source"), table.get("feeds")
    if not isinstance(name, str) or not (feeds is None or (isinstance(feeds, str) and feeds)):
        raise _wrong_source(config, item)
    kind, _, sensor = name.partition(":")
    if kind not in FEEDS or (kind == "sensor") is not bool(sensor):
        raise _wrong_source(config, item)
    if feeds is None:
        feeds = wall.feeds_of(config, FEEDS[kind]) if alone or kind in ("dcmi", "sensor") else FEEDS[kind]
    return Source(kind, feeds, sensor)


def _wrong_source(config: Mapping[str, Any], item: Any) -> ConfigError:
    kinds = '"dcmi", "xcc", "psu", "psu.dc", "sensor:NAME"'
    advice = f'give "auto" or a list of {kinds}, {{ source = "sensor:NAME", feeds = "cpu:0" }}'
    return ConfigError(f"sources has {item!r}", where=f"meter {wall.label_of(config)}", next=advice)
