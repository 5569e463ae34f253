"""Find a service's key: from a file that says where it is (environment, file, keyring), or from its usual variable.

    # ~/.config/joulelab/rates.toml, or the file that JOULELAB_RATES names
    [em]
    token = { file = "~/.electricity-maps" }

Keys are never taken from the command line, never printed and never stored.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from joulelab.core.errors import ConfigError
from joulelab.plan.plan_tables import Mistakes, TomlTable, read_toml
from joulelab.run.config.config_files import get_user_file
from joulelab.run.config.configuration import KeySource, MeterEntry
from joulelab.run.config.meter_choice import resolve_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.rates.services.asking import About

NAME, NAMED = "rates.toml", "JOULELAB_RATES"
# Services that joulelab 0.1.1 had, by their word: whoever still names one is told what to use instead.
REMOVED = {"gb": "GB Carbon Intensity API", "watttime": "WattTime", "entsoe": "ENTSO-E Transparency Platform"}
REMOVED_NEXT = "use a CSV file of its values (FILE.csv), or Electricity Maps for average carbon intensities (em:ZONE)"


@dataclass(frozen=True, slots=True)
class Access:
    """Hold where a service is asked and with which secrets, in plain; `warnings` are about how they are kept."""

    address: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()


def access_of(about: About, environ: Mapping[str, str], known: Sequence[About]) -> Access:
    """Return how to get at a service; `known` are all there are. Raises ConfigError where a key is missing."""
    path, table = _table(about, environ, known)
    address = str(table.get("address", about.address))
    _check_address(address, about, path)
    given = {key: table[key] for key in about.secrets if key in table}
    for key, variable in about.secrets.items():
        if key not in given and environ.get(variable):
            given[key] = {"env": variable}
    missing = [key for key in about.secrets if key not in given]
    if missing:
        raise _missing(about, missing[0], path)
    entry = MeterEntry(about.word, about.word, KeySource(path), given, secrets=tuple(about.secrets))
    try:
        settings, warnings = resolve_secrets(entry, environ)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{path}, [{about.word}]", why=error.why, next=error.next) from None
    secrets = {key: str(settings[key]) for key in about.secrets}
    for key, value in secrets.items():
        if not value.isprintable() or not value.isascii():  # it could not go into a header
            raise ConfigError(f"the {key} of {about.title} has signs that no key has", next="write it again, alone")
    return Access(address, secrets, tuple(word.removeprefix(f"meter {about.word}: ") for word in warnings))


def settings_file(environ: Mapping[str, str]) -> Path:
    """Return the file that says where keys are, whether it exists or not."""
    named = environ.get(NAMED)
    return Path(named).expanduser() if named else get_user_file(environ).with_name(NAME)


def _table(about: About, environ: Mapping[str, str], known: Sequence[About]) -> tuple[Path, dict[str, Any]]:
    """Return the service's table of the file; what is wrong in any part of it is told at once."""
    path = settings_file(environ)
    if not environ.get(NAMED) and not path.is_file():
        return path, {}
    text, values = read_toml(path, "file of services")
    problems = Mistakes(str(path), text)
    whole = TomlTable(values, (), problems)
    whole.allow([*(one.word for one in known), *REMOVED])
    for word in REMOVED.keys() & values.keys():
        whole.wrong(word, f"the service [{word}] ({REMOVED[word]}) was removed", next=f"delete it; {REMOVED_NEXT}")
    for one in known:
        table = whole.table(one.word)
        table.allow(["address", *one.secrets])
        table.text("address")
    problems.check()
    return path, dict(values.get(about.word, {}))


def _check_address(address: str, about: About, path: Path) -> None:
    """Refuse to send a key over an open line. Raises ConfigError."""
    parts = urlsplit(address)
    where = f"{path}, [{about.word}] address"
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ConfigError(f"{address!r} is no address", where=where, next=f"write it as {about.address!r}")
    if parts.scheme == "http" and about.secrets and not _is_here(parts.hostname):
        raise ConfigError("a key is not sent over an open line", where=where, next="use https")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _missing(about: About, key: str, path: Path) -> ConfigError:
    return ConfigError(
        f"{about.title} needs a key ({key})",
        why=f"neither {about.secrets[key]} is set nor has {path} one in [{about.word}]",
        next=f'export {about.secrets[key]}=..., or write [{about.word}] {key} = {{ file = "PATH" }} into {path}',
    )
