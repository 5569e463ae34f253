"""Resolve credentials: from the environment, a file or the keyring; never from the configuration itself."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.text import suggest_name
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.run.config.entry import MeterEntry

SECRET_SOURCES = ("env", "file", "keyring")
HIDDEN = "***"
# Shorter ones are not looked for in texts: they would be found in any.
SHORT_SECRET = 4


def resolve_secrets(entry: MeterEntry, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return an entry's settings with its secrets in plain, for the meter only, and warnings. Raises ConfigError."""
    settings, warnings = dict(entry.settings), []
    for key in entry.secrets:
        if key in settings:
            try:
                settings[key], warning = _resolve_secret(entry, key, settings[key], environ)
            except ConfigError as error:
                where = f"{entry.sources.get(key, entry.source)}, {key}"
                raise ConfigError(error.what, where=where, why=error.why, next=error.next) from None
            warnings += [f"meter {entry.name}: {warning}"] if warning else []
    if entry.parts:
        settings.setdefault("parts", entry.parts)
    return settings, warnings


def mask_secrets(entry: MeterEntry) -> dict[str, Any]:
    """Return an entry's settings as they may be printed: of secrets only where they come from."""
    return {k: _describe_source(v) if k in entry.secrets else v for k, v in entry.settings.items()}


def list_secrets(entry: MeterEntry, settings: Mapping[str, Any]) -> list[str]:
    """Return the secrets among resolved settings, to look for them in texts."""
    found = [settings.get(key) for key in entry.secrets]
    return [value for value in found if isinstance(value, str) and len(value) >= SHORT_SECRET and value != "public"]


def hide_secrets(text: str, entry: MeterEntry, settings: Mapping[str, Any]) -> str:
    """Return a text without the entry's secrets, should one have got into it."""
    for value in list_secrets(entry, settings):
        text = text.replace(value, HIDDEN)
    return text


def _describe_source(value: Any) -> str:
    if isinstance(value, dict) and len(value) == 1:
        kind, place = next(iter(value.items()))
        return f"{HIDDEN} ({kind} {place})"
    return HIDDEN


def _resolve_secret(entry: MeterEntry, key: str, value: Any, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return a secret, and a warning about how it is kept. Raises ConfigError."""
    example = f"{entry.name}_{key}".upper().replace("-", "_")
    if key == "community" and value == "public":
        return value, None
    if not isinstance(value, dict):
        places = f'{{ env = "{example}" }}, {{ file = "~/.{entry.name}" }} or {{ keyring = "SERVICE/USER" }}'
        then = f"write {key} = {places}"
        raise ConfigError("a secret is given in plain text", why="others may read it", next=then)
    kind, place = _read_reference(value)
    if kind == "env":
        if not environ.get(place):
            raise ConfigError(
                f"the variable {place} is not set", next=f"export {place}=..., or use a file or the keyring"
            )
        return environ[place], None
    if kind == "file":
        return _read_secret_file(entry.sources.get(key, entry.source).file.parent / Path(place).expanduser())
    return _read_keyring(place), None


def _read_reference(value: Mapping[str, Any]) -> tuple[str, str]:
    wrong: Iterable[str] = [key for key in value if key not in SECRET_SOURCES]
    for key in wrong:
        raise ConfigError(f"unknown source {key!r}", next=suggest_name(key, list(SECRET_SOURCES)))
    if len(value) != 1 or not all(isinstance(place, str) and place for place in value.values()):
        raise ConfigError(
            "a secret has exactly one source", next='write { env = "NAME" }, { file = "PATH" } or { keyring = "S/U" }'
        )
    return next(iter(value.items()))


def _read_secret_file(path: Path) -> tuple[str, str | None]:
    try:
        text = read_regular(path).decode().strip()
        mode = path.stat().st_mode
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        then = (
            f"write it: (umask 077; cat > {path}), or correct the path" if missing else "name a file that you can read"
        )
        raise ConfigError(f"cannot read {path}", why=error.strerror, next=then) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text", next="write the secret alone into it") from None
    if not text:
        raise ConfigError(f"{path} is empty", next="write the secret alone into it")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return text, f"{path} can be read by others; chmod 600 {path}"
    return text, None


def _read_keyring(place: str) -> str:
    from joulelab.instruments.keyring import secret

    service, slash, user = place.rpartition("/")
    if not slash or not service or not user:
        raise ConfigError(f"{place!r} is not an entry of a keyring", next='write keyring = "SERVICE/USER"')
    try:
        found = secret(service, user)
    except JoulelabError as error:
        raise ConfigError(error.what, why=error.why, next=error.next) from error
    if not found:
        raise ConfigError(f"the keyring has no {place!r}", next=f"store it: keyring set {service} {user}")
    return found
