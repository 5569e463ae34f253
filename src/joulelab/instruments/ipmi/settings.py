"""Read the entry of a BMC: its address and login, and the scopes that its readings feed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.instruments import wall
from joulelab.instruments.ipmi.client import COMMAND, InBandLink
from joulelab.instruments.settings import check_keys, read_choice, seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.instruments.ipmi.client import BmcLink

CONFIG = wall.COMMON | {
    "address": "the BMC's host or host:port (port 623)",
    "user": "the BMC's user",
    "password": "its password, from environment, file or keyring",
    "interface": "lan or in-band (lan where an address is given)",
    "command": 'the command in front of raw, in-band (["ipmitool", "-I", "open"])',
    "privilege": "user, operator or administrator (operator)",
    "cipher": "3 to log in by cipher suite 3 at once (17, or 3 where the BMC has no 17)",
    "sources": 'what to read: "auto" or a list of dcmi, xcc, psu, psu.dc, sensor:NAME',
    "psu": "pattern of the names of the supplies' input power sensors (by their entity)",
    "psu_dc": "pattern of the names of the supplies' output power sensors (by their entity)",
    "temperatures": "patterns of temperature sensors (the inlet)",
    "fans": "patterns of fan sensors (all)",
    "cooling_period_s": "seconds between readings of temperatures and fans (5.0)",
    "update_s": "seconds between the BMC's own updates (1.0)",
}
PORT = 623
PRIVILEGES = {"user": 2, "operator": 3, "administrator": 4}
# Source -> the scope that it feeds unless the entry states another.
FEEDS = {"dcmi": "node.ac", "xcc": "node.dc", "psu": "node.ac", "psu.dc": "node.dc", "sensor": "node.ac"}


@dataclass(frozen=True, slots=True, repr=False)
class BmcAccount:
    """Hold the address of a BMC and its login; it is never printed."""

    host: str
    port: int
    user: str
    password: str
    privilege: int = 3
    cipher: int | None = None


@dataclass(frozen=True, slots=True)
class PowerSource:
    """Name one reading of a BMC and the scope that it feeds; `sensor` is the name of a single sensor."""

    kind: str
    feeds: str
    sensor: str = ""


@dataclass(frozen=True, slots=True)
class IpmiSettings:
    """Hold a checked entry; `sources` None means those that are found, patterns None the usual ones."""

    label: str
    period_s: float
    cooling_period_s: float
    timeout_s: float
    update_s: float
    sources: tuple[PowerSource, ...] | None
    psu: str | None
    psu_dc: str | None
    temperatures: tuple[str, ...] | None
    fans: tuple[str, ...] | None


def read_settings(config: Mapping[str, Any]) -> IpmiSettings:
    """Check an entry, but for its login. Raises ConfigError."""
    check_keys("ipmi", config, CONFIG)
    label = wall.label_of(config)
    return IpmiSettings(
        label=label,
        period_s=seconds(label, config, "period_s", 1.0),
        cooling_period_s=seconds(label, config, "cooling_period_s", 5.0),
        timeout_s=seconds(label, config, "timeout_s", 2.0),
        update_s=seconds(label, config, "update_s", 1.0),
        sources=_read_sources(config),
        psu=text(label, config, "psu"),
        psu_dc=text(label, config, "psu_dc"),
        temperatures=_read_patterns(config, "temperatures"),
        fans=_read_patterns(config, "fans"),
    )


def choose_interface(config: Mapping[str, Any]) -> str:
    """Return `lan` or `in-band`: the stated one, or LAN where an address is given. Raises ConfigError."""
    usual = "lan" if "address" in config else "in-band"
    return str(read_choice(wall.label_of(config), config, "interface", ("lan", "in-band"), usual))


def open_link(config: Mapping[str, Any]) -> BmcLink:
    """Return the link to the BMC; nothing is sent yet. Raises ConfigError, MissingDependency."""
    if choose_interface(config) == "in-band":
        return InBandLink(read_command(config))
    account = read_account(config)
    try:
        from joulelab.instruments.ipmi.lan import LanLink
    except ImportError as error:
        what, advice = "reading a BMC over LAN needs pyghmi", "pip install 'joulelab[ipmi]'"
        raise MissingDependency(what, why=str(error), next=advice, code="missing-dependency.pyghmi") from None
    return LanLink(account)


def read_account(config: Mapping[str, Any]) -> BmcAccount:
    """Return the address of the BMC and its login. Raises ConfigError."""
    where = f"meter {wall.label_of(config)}"
    host, port = wall.address(config, PORT)
    user, password = config.get("user"), config.get("password")
    if not isinstance(user, str) or not 0 < len(user.encode()) <= 16:
        advice = 'set user = "NAME", 16 bytes at most'
        raise ConfigError("no user is given", where=where, next=advice, code="config.wrong-value")
    if not isinstance(password, str) or len(password.encode()) > 20:  # it is never shown
        advice = 'set password = { env = "NAME" } or { file = "PATH" }; IPMI takes 20 bytes at most'
        raise ConfigError("no password that IPMI takes is given", where=where, next=advice, code="config.wrong-value")
    cipher = config.get("cipher")
    if cipher not in (None, 3) or isinstance(cipher, bool):
        raise _explain_value(config, "cipher", "3, or leave it out: 17 is tried first")
    privilege = read_choice(wall.label_of(config), config, "privilege", tuple(PRIVILEGES), "operator")
    return BmcAccount(host, port, user, password, PRIVILEGES[privilege], cipher)


def read_command(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command line in front of `raw`. Raises ConfigError."""
    value = config.get("command", COMMAND)
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:  # a quotation mark without another
        words = None
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(w, str) for w in words):
        raise _explain_value(config, "command", 'words such as ["ipmitool", "-I", "open"]')
    return tuple(words)


def _read_patterns(config: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    value = config.get(key)
    if value is not None and (not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value)):
        raise _explain_value(config, key, 'a list of names or patterns, ["Fan*"], or []')
    return None if value is None else tuple(value)


def _read_sources(config: Mapping[str, Any]) -> tuple[PowerSource, ...] | None:
    given, where = config.get("sources", "auto"), f"meter {wall.label_of(config)}"
    if given == "auto":
        return None
    listed = given if isinstance(given, (list, tuple)) and given else [given]
    found = []
    for item in listed:
        table = {"source": item} if isinstance(item, str) else item
        is_table = isinstance(table, dict) and "source" in table and set(table) <= {"source", "feeds"}
        texts = [v for v in table.values() if isinstance(v, str) and v] if is_table else []
        kind, _, sensor = table["source"].partition(":") if is_table and len(texts) == len(table) else ("", "", "")
        if kind not in FEEDS or (kind == "sensor") is not bool(sensor):
            kinds = '"auto" or a list of "dcmi", "xcc", "psu", "psu.dc", "sensor:NAME"'
            advice = f'give {kinds}, {{ source = "sensor:NAME", feeds = "cpu:0" }}'
            raise ConfigError(f"sources has {item!r}", where=where, next=advice, code="config.wrong-value")
        takes_feeds = len(listed) == 1 or kind in ("dcmi", "sensor")
        usual = wall.feeds_of(config, FEEDS[kind]) if takes_feeds else FEEDS[kind]
        found.append(PowerSource(kind, wall.check_scope(table.get("feeds", usual), where, "feeds"), sensor))
    return tuple(found)


def _explain_value(config: Mapping[str, Any], key: str, right: str) -> ConfigError:
    where = f"meter {wall.label_of(config)}"
    return ConfigError(f"{key} is {config.get(key)!r}", where=where, next=f"give {right}", code="config.wrong-value")
