"""Write TOML with tomlkit: an entry or [site] into a joulelab.toml, whose comments survive; values; whole files."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.items import Comment, InlineTable, Table, Whitespace

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import find_lines
from joulelab.run.config.config_files import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write_entry(file: Path, name: str, values: Mapping[str, Any], *, replace: bool = False) -> None:
    """Append an entry to a file, or replace the one of that name. Raises ConfigError."""
    text, content = read_toml(file, "configuration file") if file.exists() else ("", {})
    block = format_entry(name, values)
    exists = name in content.get("meters", {})
    if exists and not replace:
        then = "choose another with --name, or add --replace"
        raise ConfigError(f"there is an entry {name} already", where=str(file), next=then, code="config.entry-exists")
    try:
        document = tomlkit.parse(text)
        if exists or isinstance(document.get("meters"), InlineTable):
            _set_entry(document["meters"], name, values)
            changed = document.as_string()
        else:
            gap = ("\n" if text.endswith("\n") else "\n\n") if text.strip() else ""
            changed = f"{text}{gap}{block}"
        is_right = tomllib.loads(changed) == {**content, "meters": {**content.get("meters", {}), name: dict(values)}}
    except (ValueError, LookupError, TypeError):  # tomlkit raises each of these
        is_right = False
    if not is_right:
        what = "the file cannot be changed safely"
        raise ConfigError(what, where=str(file), next=f"put this in:\n{block}", code="config.unsafe-change")
    _write_file(file, changed)


def write_site(file: Path, values: Mapping[str, Any] | None) -> None:
    """Write [site] into a file, or remove it from there (None); the rest of the file stays. Raises ConfigError."""
    text, content = read_toml(file, "configuration file") if file.exists() else ("", {})
    block = format_table("site", values or {})
    expected = {key: value for key, value in content.items() if key != "site"} | (
        {"site": dict(values)} if values else {}
    )
    try:
        if values and "site" in content:
            document = tomlkit.parse(text)
            _set_entry(document, "site", values)
            changed = document.as_string()
        elif values:
            gap = ("\n" if text.endswith("\n") else "\n\n") if text.strip() else ""
            changed = f"{text}{gap}{block}"
        else:
            changed = _cut_table(text, "site")
        is_right = tomllib.loads(changed) == expected
    except (ValueError, LookupError, TypeError):  # tomlkit raises each of these
        is_right = False
    if not is_right:
        then = f"put this in:\n{block}" if values else "remove [site] with an editor"
        what = "the file cannot be changed safely"
        raise ConfigError(what, where=str(file), next=then, code="config.unsafe-change")
    _write_file(file, changed)


def _cut_table(text: str, name: str) -> str:
    """Return a text without a table: from its header to its last key, so that comments above the next table stay."""
    numbers = [number for place, number in find_lines(text).items() if place[:1] == (name,)]
    lines = text.splitlines(keepends=True)
    first, end = min(numbers) - 1, max(numbers)
    while end < len(lines) and not lines[end].strip():
        end += 1
    return "".join([*lines[:first], *lines[end:]])


def _set_entry(meters: Any, name: str, values: Mapping[str, Any]) -> None:
    """Replace the values of an entry; comments stay, also those at its end, above the next table."""
    there = meters.get(name)
    if not isinstance(there, Table):
        meters[name] = _to_item(dict(values))
        return
    for key in [key for key in there if key not in values]:
        there.remove(key)
    body, end = there.value.body, []
    while body and body[-1][0] is None:
        end.append(body.pop()[1])
    for key, value in values.items():
        if key not in there or there[key] != value:
            there[key] = _to_item(value)
    for item in (item for item in reversed(end) if isinstance(item, Comment | Whitespace)):
        there.add(item)


def format_entry(name: str, values: Mapping[str, Any]) -> str:
    """Return an entry in TOML."""
    return format_table(f"meters.{format_key(name)}", values)


def format_table(name: str, values: Mapping[str, Any]) -> str:
    """Return a table in TOML, a line for each key; without a name, the top of a file."""
    lines = [f"{format_key(key)} = {format_toml(value)}\n" for key, value in values.items()]
    return "".join([f"[{name}]\n" if name else "", *lines])


def format_toml(value: Any) -> str:
    """Return plain data in TOML: texts, numbers, lists, inline tables."""
    return str(_to_item(value).as_string())


def format_toml_file(values: Mapping[str, Any], head: str) -> str:
    """Return plain data as the text of a file, below a head line."""
    return f"{head}\n\n{tomlkit.dumps(_drop_fractions(values))}"


def format_key(key: str) -> str:
    """Return a key in TOML, in quotation marks where it needs them."""
    is_plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_plain else format_toml(key)


def _drop_fractions(value: Any) -> Any:
    """Write whole numbers without a fraction: 10200, not 10200.0."""
    if isinstance(value, dict):
        return {key: _drop_fractions(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_drop_fractions(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def _to_item(value: Any) -> Any:
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        for key, inner in value.items():
            table.append(key, _to_item(inner))
        return table
    if isinstance(value, list | tuple):
        array = tomlkit.array()
        for inner in value:
            array.append(_to_item(inner))
        return array
    return tomlkit.item(_drop_fractions(value))


def _write_file(file: Path, text: str) -> None:
    from joulelab.store.safe_files import replace_file

    target = file.resolve()  # a link stays one
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        replace_file(target, text.encode(), sync=True, mode=mode)
    except OSError as error:
        then = "choose another file with --file, or --user"
        what = "the configuration cannot be written"
        raise ConfigError(what, where=str(file), why=error.strerror, next=then, code="config.not-written") from None
