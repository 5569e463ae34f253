"""Read the configuration of an SNMP meter: where, who, which outlets; every wrong value is refused with what fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments import wall
from joulelab.instruments.settings import check_keys, number, seconds, text
from joulelab.instruments.snmp.client import MAX_OIDS, PORT, Community, Session, User
from joulelab.instruments.snmp.tables import find_maker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG = wall.COMMON | {
    "address": "HOST or HOST:PORT of the PDU or UPS (port 161)",
    "community": "for SNMP v2c: the community that may read",
    "user": "for SNMP v3: the user's name",
    "auth": "v3: MD5, SHA, SHA224, SHA256, SHA384 or SHA512 (SHA)",
    "password": "v3: the authentication password",
    "privacy": "v3: AES, AES192, AES256, AES192C or AES256C (AES where privacy_password is given)",
    "privacy_password": "v3: the privacy password",
    "vendor": "whose tables to read, where finding it fails: a name as joulelab doctor lists them",
    "outlets": "outlets that feed the node, by number or name; none: the whole unit",
    "units": "units of a chain to read as a whole, by number; none: all",
    "energy": "read energy counters too (true); false: power alone, and energy is made of its readings",
    "phases": "read phases, banks, input and battery too (true)",
    "timestamps": "use the device's own time of each reading, in whole seconds (false)",
    "update_s": "how often the device refreshes its values, in s (1)",
    "wraps_at_kwh": "where the energy counter starts again at zero, if nobody resets it",
    "max_oids": f"at most so many values in one request ({MAX_OIDS})",
    "trap_port": "receive the device's traps on this UDP port and keep them as events",
}
SECRETS = ("community", "password", "privacy_password")
TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class SnmpSettings:
    """Hold the checked configuration."""

    config: Mapping[str, Any] = field(repr=False)
    host: str
    port: int
    login: Community | User
    vendor: str | None
    outlets: tuple[int | str, ...]
    units: tuple[int | str, ...]
    energy: bool
    phases: bool
    timestamps: bool
    period_s: float
    timeout_s: float
    update_s: float
    modulus_j: float | None
    max_oids: int
    trap_port: int

    @property
    def label(self) -> str:
        """Return the name of the entry."""
        return wall.label_of(self.config)

    @property
    def kind(self) -> str:
        """Return what is read: outlets where some are named, else the whole unit."""
        return "outlet" if self.outlets else "unit"

    @property
    def where(self) -> str:
        """Return where errors happen."""
        return f"{self.label} ({self.host}:{self.port})"

    def session(self) -> Session:
        """Return a conversation with the device."""
        wait_s, where = self.timeout_s, self.where
        return Session(self.host, self.port, self.login, timeout_s=wait_s, where=where, max_oids=self.max_oids)


def read_settings(config: Mapping[str, Any]) -> SnmpSettings:
    """Check a configuration. Raises ConfigError."""
    check_keys("snmp", config, CONFIG)
    label = wall.label_of(config)
    host, port = wall.address(config, PORT)
    vendor = text(label, config, "vendor")
    if vendor is not None:
        find_maker(vendor)
    outlets, units = _rows(label, config, "outlets"), _rows(label, config, "units")
    if outlets and units:
        raise ConfigError("outlets and units are both given", where=f"meter {label}", next="give one of them")
    wraps = number(label, config, "wraps_at_kwh", 0.0, above=-1e-12)
    return SnmpSettings(
        config,
        host,
        port,
        _login(label, config),
        vendor,
        outlets,
        units,
        _flag(label, config, "energy", default=True),
        _flag(label, config, "phases", default=True),
        _flag(label, config, "timestamps", default=False),
        seconds(label, config, "period_s", 1.0),
        seconds(label, config, "timeout_s", TIMEOUT_S),
        seconds(label, config, "update_s", 1.0),
        wraps * 3.6e6 or None,
        _whole(label, config, "max_oids", MAX_OIDS, 200),
        _whole(label, config, "trap_port", 0, 65535),
    )


def _login(label: str, config: Mapping[str, Any]) -> Community | User:
    where = f"meter {label}"
    given = {key: _secret(label, config, key) for key in SECRETS}
    user = text(label, config, "user")
    if given["community"] is not None:
        if user is not None:
            raise ConfigError("community and user are both given", where=where, next="v2c: community; v3: user")
        return Community(given["community"])
    if not user:
        advice = 'set community = { env = "NAME" } for v2c, or user and password for v3'
        raise ConfigError("no login is given", where=where, next=advice)
    auth = _protocol(text(label, config, "auth") or ("SHA" if given["password"] else ""))
    privacy = _protocol(text(label, config, "privacy") or ("AES" if given["privacy_password"] else ""))
    for name, key in ((auth, "password"), (privacy, "privacy_password")):
        if name and not given[key]:
            raise ConfigError(f"{key} is missing", where=where, next=f'set {key} = {{ env = "NAME" }}')
    return User(user, auth, given["password"] or "", privacy, given["privacy_password"] or "")


def _protocol(name: str) -> str:
    """Return a protocol's name as we write it: sha-256 is SHA256, SHA1 is SHA, AES128 is AES."""
    plain = name.upper().replace("-", "").replace("_", "")
    return {"SHA1": "SHA", "AES128": "AES"}.get(plain, plain)


def _secret(label: str, config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{key} is not a text", where=f"meter {label}", next="give one that is not empty")
    return value


def _rows(label: str, config: Mapping[str, Any], key: str) -> tuple[int | str, ...]:
    value: Any = config.get(key, ())
    if isinstance(value, int | str) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, list | tuple) or not all(_is_row(one) for one in value):
        raise ConfigError(f"{key} is {value!r}", where=f"meter {label}", next='give a list: [3, 4] or ["node07 a"]')
    if key in config and not value:
        raise ConfigError(f"{key} is empty", where=f"meter {label}", next=f"name some, or leave out {key}")
    return tuple(value)


def _is_row(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and value >= 0) or (isinstance(value, str) and bool(value.strip()))


def _flag(label: str, config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}", where=f"meter {label}", next="give true or false")
    return value


def _whole(label: str, config: Mapping[str, Any], key: str, default: int, top: int) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not (value == default or 0 < value <= top):
        raise ConfigError(f"{key} is {value!r}", where=f"meter {label}", next=f"give a whole number from 1 to {top}")
    return value


def describe_login(login: Community | User) -> str:
    """Return how one logs in, without secrets."""
    if isinstance(login, Community):
        return "SNMP v2c"
    return f"SNMP v3 as {login.name!r}, {login.auth or 'no authentication'}, {login.priv or 'no privacy'}"


def join_rows(rows: Sequence[Any]) -> str:
    """Return rows in one line."""
    return ", ".join(map(str, rows)) or "none"
