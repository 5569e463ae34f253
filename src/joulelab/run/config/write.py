"""Write an entry into a joulelab.toml and leave everything else of the file as it is, comments included."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.config.lines import span_of
from joulelab.run.config.load import parse

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_entry(file: Path, name: str, values: Mapping[str, Any], *, replace: bool = False) -> None:
    """Append an entry to a file, or put it in the place of one of that name. Raises ConfigError, Refused."""
    content, text = parse(file) if file.exists() else ({}, "")
    block = entry_text(name, values)
    exists = name in content.get("meters", {})
    if exists and not replace:
        then = "choose another with --name, or add --replace"
        raise ConfigError(f"there is an entry {name} already", where=str(file), next=then)
    changed = _replaced(text, name, block) if exists else _appended(text, block)
    wanted = {**content, "meters": {**content.get("meters", {}), name: dict(values)}}
    if changed is None or _parsed(changed) != wanted:
        why = (
            f"[meters.{name}] is not written as a table of its own" if exists else "its [meters] is written in one line"
        )
        raise ConfigError("the file cannot be changed safely", where=str(file), why=why, next=f"put this in:\n{block}")
    _write(file, changed)


def entry_text(name: str, values: Mapping[str, Any]) -> str:
    """Return an entry in TOML."""
    return "\n".join([f"[meters.{name}]", *(f"{_key(key)} = {toml(value)}" for key, value in values.items())]) + "\n"


def toml(value: Any) -> str:
    """Return plain data in TOML: texts, numbers, lists, inline tables."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else toml(key)


def _appended(text: str, block: str) -> str:
    if not text.strip():
        return text + block
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}\n{block}"


def _replaced(text: str, name: str, block: str) -> str | None:
    span = span_of(text, f"meters.{name}")
    if span is None:
        return None
    lines = text.splitlines(keepends=True)
    first, last = span
    while last > first + 1 and not lines[last - 1].strip().rstrip("#"):
        last -= 1
    # Comments right above the next table belong to it.
    while last > first + 1 and last < len(lines) and lines[last - 1].lstrip().startswith("#"):
        last -= 1
    after = lines[last:]
    gap = "\n" if after and after[0].strip() else ""
    return "".join(lines[:first]) + block + gap + "".join(after)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _write(file: Path, text: str) -> None:
    target = file.resolve()  # a link stays one
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(text.encode())
            Path(temporary).chmod(mode)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        then = "choose another file with --file, or --user"
        raise ConfigError(
            "the configuration cannot be written", where=str(file), why=error.strerror, next=then
        ) from None
