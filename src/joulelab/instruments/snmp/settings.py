"""Read the configuration of an SNMP meter: address, login, outlets; a wrong value is refused with the valid ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments import wall
from joulelab.instruments.settings import check_keys, number, seconds, text
from joulelab.instruments.snmp.client import MAX_OIDS, PORT, Community, Session, User
from joulelab.instruments.snmp.tables import find_maker

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = wall.COMMON | {
    "address": "HOST or HOST:PORT of the PDU or UPS (port 161)",
    "community": "for SNMP v1 and v2c: the community that may read",
    "version": 'with a community: "1" for old devices ("2c")',
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
    "update_s": "how often the device refreshes its values, in s (as its maker states it, or 1)",
    "wraps_at_kwh": "where the energy counter starts again at zero, if it is never reset",
    "max_oids": f"most values in one request ({MAX_OIDS})",
}
SECRETS = ("community", "password", "privacy_password")
TIMEOUT_S = 2.0
_VERSIONS = {"1": 0, "2c": 1}
_MOST_OIDS = 200
# How people write the names of protocols.
_PROTOCOLS = {"SHA1": "SHA", "AES128": "AES"}


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
    period_s: float
    timeout_s: float
    update_s: float | None
    modulus_j: float | None
    max_oids: int

    @property
    def label(self) -> str:
        """Return the name of the entry."""
        return wall.label_of(self.config)

    @property
    def kind(self) -> str:
        """Return which level is read: outlets where some are named, else the whole unit."""
        return "outlet" if self.outlets else "unit"

    @property
    def where(self) -> str:
        """Return the place for errors."""
        return f"{self.label} ({self.host}:{self.port})"

    def open_session(self) -> Session:
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
    outlets, units = _read_rows(label, config, "outlets"), _read_rows(label, config, "units")
    if outlets and units:
        raise _refuse_value(label, "outlets and units are both given", "give one of them")
    for key in ("energy", "phases"):
        if not isinstance(config.get(key, True), bool):
            raise _refuse_value(label, f"{key} is {config[key]!r}", "give true or false")
    max_oids = config.get("max_oids", MAX_OIDS)
    if isinstance(max_oids, bool) or not isinstance(max_oids, int) or not 0 < max_oids <= _MOST_OIDS:
        raise _refuse_value(label, f"max_oids is {max_oids!r}", f"give a whole number from 1 to {_MOST_OIDS}")
    wraps_kwh = number(label, config, "wraps_at_kwh", 0.0, above=-1e-12)
    return SnmpSettings(
        config,
        host,
        port,
        _read_login(label, config),
        vendor,
        outlets,
        units,
        energy=config.get("energy", True),
        phases=config.get("phases", True),
        period_s=seconds(label, config, "period_s", 1.0),
        timeout_s=seconds(label, config, "timeout_s", TIMEOUT_S),
        update_s=seconds(label, config, "update_s", 1.0) if "update_s" in config else None,
        modulus_j=wraps_kwh * 3.6e6 or None,
        max_oids=max_oids,
    )


def describe_login(login: Community | User) -> str:
    """Return how a device is asked, without secrets."""
    if isinstance(login, Community):
        return "SNMP v2c" if login.version else "SNMP v1"
    return f"SNMP v3 as {login.name!r}, {login.auth or 'no authentication'}, {login.priv or 'no privacy'}"


def _refuse_value(label: str, what: str, advice: str) -> ConfigError:
    return ConfigError(what, where=f"meter {label}", next=advice, code="config.value")


def _read_login(label: str, config: Mapping[str, Any]) -> Community | User:
    for key in SECRETS:
        if (value := config.get(key)) is not None and (not isinstance(value, str) or not value):
            raise _refuse_value(label, f"{key} is not a text", "give one that is not empty")
    where = f"meter {label}"
    community, user = config.get("community"), text(label, config, "user")
    version = str(config.get("version", "2c"))
    if version not in _VERSIONS or (user and "version" in config):
        raise _refuse_value(label, f"version is {version!r}", 'valid with a community: "1", "2c"; v3 is chosen by user')
    if community is not None:
        if user is not None:
            advice = "v1 and v2c: community; v3: user"
            raise ConfigError("community and user are both given", where=where, next=advice, code="config.login")
        return Community(community, _VERSIONS[version])
    if not user:
        advice = 'set community = { env = "NAME" } for v2c, or user and password for v3'
        raise ConfigError("no login is given", where=where, next=advice, code="config.login")
    words: list[str] = []
    for key, secret, default in (("auth", "password", "SHA"), ("privacy", "privacy_password", "AES")):
        given = text(label, config, key) or (default if config.get(secret) else "")
        plain = given.upper().replace("-", "").replace("_", "")
        if plain and not config.get(secret):
            advice = f'set {secret} = {{ env = "NAME" }}'
            raise ConfigError(f"{secret} is missing", where=where, next=advice, code="config.login")
        words += [_PROTOCOLS.get(plain, plain), config.get(secret) or ""]
    return User(user, *words)


def _read_rows(label: str, config: Mapping[str, Any], key: str) -> tuple[int | str, ...]:
    value: Any = config.get(key, ())
    if isinstance(value, int | str) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, list | tuple) or not all(_is_row(one) for one in value):
        raise _refuse_value(label, f"{key} is {value!r}", 'give a list: [3, 4] or ["node07 a"]')
    if key in config and not value:
        raise _refuse_value(label, f"{key} is empty", f"name some, or leave out {key}")
    return tuple(value)


def _is_row(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and value >= 0) or (isinstance(value, str) and bool(value.strip()))
