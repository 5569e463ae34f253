"""Write plain data as a file of TOML that people can read and go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.run.config.write import toml

if TYPE_CHECKING:
    from collections.abc import Mapping


def toml_file(values: Mapping[str, Any], head: str) -> str:
    """Return plain data as the text of a file, below a line that says what it is."""
    return f"{head}\n{_written(values, ())}"


def _written(values: Mapping[str, Any], at: tuple[str, ...]) -> str:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    # Feeds are short: a line for each is easier to read than a table of its own.
    lists = {key: value for key, value in values.items() if _tables(value) and key != "feeds"}
    lines = [f"{_name(key)} = {_value(value)}" for key, value in values.items() if key not in {*tables, *lists}]
    head = [f"\n[{'.'.join(map(_name, at))}]"] if at and (lines or not (tables or lists)) else []
    text = "".join(f"{line}\n" for line in [*head, *lines])
    for key, each in lists.items():
        for one in each:
            inside = "".join(f"{_name(name)} = {_value(value)}\n" for name, value in one.items())
            text += f"\n[[{'.'.join(map(_name, (*at, key)))}]]\n{inside}"
    return text + "".join(_written(value, (*at, key)) for key, value in tables.items())


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _value(value: Any) -> str:
    if _tables(value):
        return "[\n" + "".join(f"  {toml(one)},\n" for one in value) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return toml(value)


def _name(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else toml(key)
