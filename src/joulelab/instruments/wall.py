"""Settings that all node-level meters share: where they are, what they feed, what is known of their accuracy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from joulelab.core.errors import ConfigError
from joulelab.core.scope import FAMILIES, find_family
from joulelab.core.text import suggest_name
from joulelab.instruments.settings import number, seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.core.spec import Accuracy

# Every node-level meter's CONFIG has these, and its own on top.
COMMON = {
    "label": "name of the entry; the recorder gives it",
    "feeds": "the scope that it covers, or is a part of (node.ac, node.dc, rack)",
    "parts": "how many cords feed that scope in all, over all entries; the configuration counts them",
    "period_s": "seconds between readings",
    "timeout_s": "seconds to wait for an answer",
    "gain": "how far the reading may be off, as a fraction (0.01), if you know better than the default",
    "offset_w": "how far it may be off at any load, in W",
    "reference": "where gain and offset are known from",
}


# A BMC shows power 1 to 4 s late, and no BMC states the delay; the analysis finds it if meters inside allow.
BMC_LAG_S = 4.0

# Families of scopes of which there is one for each device.
NUMBERED = ("gpu", "cpu", "core", "uncore", "dram", "accel", "module", "psu.dc", "psu", "outlet")
# Scopes without an energy of their own: only states are of these.
STATES_OF = ("host", "node", "phase", "bank")
# Beside more than this a power of 0 W is no reading: 0.5 A are 115 VA at 230 V. Less may be filters of idle supplies.
DRAWS = {"current_a": 0.5, "apparent_va": 115.0}
# Keys that hold the place of an instrument.
ADDRESSES = ("address", "resource", "url")


class Place(TypedDict):
    """Hold the scope of a stream and the scopes that it is a part of."""

    scope: str
    parent: str | None
    sums: str
    parts: int


def place(config: Mapping[str, Any], feeds: str, piece: str = "", pieces: int = 1) -> Place:
    """Return the place of a stream: the scope itself, or one of the cords that together make it.

    `piece` names one of this meter's own `pieces` (an outlet); `parts` of the configuration counts those of all
    meters. Scopes of cords are `outlet:LABEL.PIECE`.
    """
    scope = feeds_of(config, feeds)
    parts = max(int(config.get("parts") or 1), pieces)
    if parts == 1 and not piece:
        return {"scope": scope, "parent": None, "sums": "", "parts": 0}
    name = f"{config.get('label') or 'meter'}.{piece}".removesuffix(".")
    return {"scope": f"outlet:{name}", "parent": scope, "sums": scope, "parts": parts}


def find_draw(values: Mapping[str, float]) -> str:
    """Return the current or apparent power that shows a load, in words; empty where there is none."""
    return next((f"{name} is {values[name]:g}" for name, least in DRAWS.items() if values.get(name, 0.0) > least), "")


def feeds_of(config: Mapping[str, Any], default: str) -> str:
    """Return the scope that a meter feeds. Raises ConfigError with the nearest one."""
    given = text(label_of(config), config, "feeds")
    return check_scope(given, f"meter {label_of(config)}", "feeds") if given else default


def check_scope(scope: str, where: str, key: str = "scope", also: tuple[str, ...] = ()) -> str:
    """Return a scope whose family is known, or one of `also`; {label} may stand in it. Raises ConfigError."""
    name = find_family(scope)
    if (name in FAMILIES or name in also or "{" in name) and not scope.endswith((":", "/")):
        return scope
    then = suggest_name(scope, [f"{one}:N" if one in NUMBERED else one for one in (*FAMILIES, *also)])
    why = "there is no such scope"
    raise ConfigError(f"{key} is {scope!r}", where=where, why=why, next=then, code="config.unknown-scope")


def check(config: Mapping[str, Any]) -> None:
    """Check the settings that all node-level meters share. Raises ConfigError."""
    label = label_of(config)
    for key in ADDRESSES:
        refuse_login(config, key)
    feeds_of(config, "")
    for key in ("period_s", "timeout_s"):
        seconds(label, config, key, 1.0)
    parts = config.get("parts", 1)
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 0:
        where, then = f"meter {label}", "give a whole number"
        raise ConfigError(f"parts is {parts!r}", where=where, next=then, code="config.wrong-value")
    _read_errors(config, 0.0, 0.0)
    text(label, config, "reference")


def refuse_login(config: Mapping[str, Any], key: str = "address") -> None:
    """Refuse a user or password in an address, without a word of it. Raises ConfigError."""
    if "@" in str(config.get(key, "")):
        where, why = f"meter {label_of(config)}", "the text before @ would be stored and shown"
        then = 'leave it out; if a login is needed, set user = "NAME" and password = { env = "NAME" }'
        raise ConfigError(f"{key} holds a login", where=where, why=why, next=then, code="config.login-in-address")


def label_of(config: Mapping[str, Any]) -> str:
    """Return the name of the configuration's entry, for messages."""
    return str(config.get("label") or "meter")


def read_server_url(config: Mapping[str, Any], usual_port: int) -> str:
    """Return `address` as the URL of a server, http:// if it names no scheme. Raises ConfigError."""
    from urllib.parse import urlsplit

    label = label_of(config)
    refuse_login(config)
    given = (text(label, config, "address") or "").strip()
    given = given if "://" in given or not given else f"http://{given}"
    try:
        parts = urlsplit(given)
        is_server = parts.scheme in ("http", "https") and parts.hostname and not parts.query and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        is_server = False
    if not is_server:
        what = "address is not a server's" if given else "no address is given"
        advice = f'set address = "http://HOST:{usual_port}"'
        raise ConfigError(what, where=f"meter {label}", next=advice, code="config.address")
    return given.rstrip("/")


def address(config: Mapping[str, Any], default_port: int) -> tuple[str, int]:
    """Return host and port of `address`: `pdu1`, `10.0.0.5:1161`, `[fe80::1]:161`. Raises ConfigError."""
    label = label_of(config)
    refuse_login(config)
    given = text(label, config, "address")
    where, then = f"meter {label}", 'set address = "HOST" or "HOST:PORT"'
    if not given or not given.strip():
        raise ConfigError("no address is given", where=where, next=then, code="config.no-address")
    host, port = given.strip(), ""
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":")
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise ConfigError(f"address is {given!r}", where=where, next=then, code="config.wrong-value")
    return host, int(port) if port else default_port


def stated(config: Mapping[str, Any], default: Accuracy) -> Accuracy:
    """Return the accuracy that the user states, if any: assumed without a reference. Raises ConfigError."""
    if "gain" not in config and "offset_w" not in config:
        return default
    gain, offset = _read_errors(config, default.gain, default.offset)
    reference = text(label_of(config), config, "reference")
    source: Literal["calibrated", "assumed"] = "calibrated" if reference else "assumed"
    reference = reference or "stated without a reference"
    return replace(default, source=source, gain=gain, offset=offset, reference=reference)


def _read_errors(config: Mapping[str, Any], gain: float, offset: float) -> tuple[float, float]:
    label = label_of(config)
    given = config.get("gain", gain)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1:
        where, then = f"meter {label}", "give a fraction: 0.01 for 1 %"
        raise ConfigError(f"gain is {given!r}", where=where, next=then, code="config.wrong-value")
    return float(given), number(label, config, "offset_w", offset, above=-1e-12)
