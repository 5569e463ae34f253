"""Read TOML files of users: find all mistakes at once, each with its line and advice.

The shape of a file is a dataclass: its fields are the keys, their types and `declare_key(...)` define the valid values.
Fields that are dataclasses, or lists or dictionaries of them, are tables. msgspec converts the values; it is loaded
only for values that do not have their type yet, so that a run with a correct configuration does not wait for it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import itertools
import operator
import re
import types
import typing
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from joulelab.core.errors import ConfigError, JoulelabError, join_errors
from joulelab.core.text import escape_unprintable, read_seconds, suggest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    # The path to a value: keys, and indices within a list of tables.
    Place = tuple[str | int, ...]

T = TypeVar("T")
LONGEST = 60  # characters of a value in a message
LARGEST = 1e300  # a whole number of TOML may be too large for a float
TOP = "the top of the file, above the first [table]"
TIME = "write it as 10, 10s, 500ms or 2m"
TEXTS = "give a text, or a list of texts, none of them empty"
_DICTS = (dict, collections.abc.Mapping)
_TOKEN = re.compile(
    r'(?P<text>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\')'
    r"|(?P<comment>#[^\n]*)|(?P<end>\n)|(?P<bare>[A-Za-z0-9_-]+)|(?P<sign>[\[\]{}=.])|(?P<other>.)",
    re.DOTALL,
)


@dataclasses.dataclass(repr=False, eq=False)
class TableKey:
    """Hold a key of a table: its type without None, whether it is needed, its meaning, and its valid values.

    Values of a key with a `doc` are checked: numbers are finite and within the limits, texts not empty. `read` converts
    the value in place of the type; it raises ConfigError, or ValueError, for which `advice` is given.
    """

    hint: Any = None
    is_needed: bool = False
    doc: str = ""
    least: float | None = None
    above: float | None = None
    most: float = LARGEST
    read: Callable[[Any], Any] | None = None
    advice: str = ""


def declare_key(default: Any, doc: str, **rule: Any) -> Any:
    """Declare a key of a table: its default (a class is called for it), and the fields of its `TableKey`."""
    given = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return dataclasses.field(**given, metadata={"doc": doc, **rule})


class Mistakes:
    """Collect the mistakes of a file, each with its line; `shape` helps to find the right table of a misplaced key."""

    def __init__(self, file: Path | str, text: str = "", shape: type | None = None) -> None:
        self._file = str(file)
        self._lines = find_lines(text)
        self._found: list[tuple[int, Place, ConfigError]] = []
        self._shape = shape

    @property
    def errors(self) -> list[ConfigError]:
        """Return the mistakes in the order of their lines."""
        return [error for _, _, error in sorted(self._found, key=lambda one: one[0])]

    def locate(self, place: Place) -> tuple[str, int]:
        """Return file and line of a place; the line is 0 if it is unknown."""
        return self._file, find_line(self._lines, place) or 0

    def add(self, place: Place, what: str, *, why: str | None = None, next: str | None = None, code: str = "") -> None:
        """Add a mistake at a place: what, why, and what to do."""
        file, line = self.locate(place)
        inside = f", {format_table_name(place[:-1])}" if len(place) > 1 else ""
        where = f"{file}:{line}" if line else f"{file}{inside}"
        error = ConfigError(
            escape_unprintable(what),
            where=where,
            why=why and escape_unprintable(why),
            next=next and escape_unprintable(next),
        )
        error.code = code or error.code
        self._found.append((line, place, error))

    def add_error(self, place: Place, error: JoulelabError, before: str = "") -> None:
        """Add an error as a mistake at a place."""
        self.add(place, f"{before}{error.what}", why=error.why, next=error.next, code=error.code)

    def add_wrong(self, place: Place, value: Any, advice: str) -> None:
        """Add a wrong value."""
        self.add(place, f"{place[-1]} is {format_value(value)}", next=advice, code="config.wrong-value")

    def refuse_key(self, place: Place, name: str, valid: Collection[str]) -> None:
        """Add an unknown key of a table, with the table that it belongs to or the nearest valid key."""
        home = find_homes(self._shape).get(name) if self._shape else None
        code, then = "config.unknown-key", suggest_name(name, valid)
        if home and home != format_table_name(place):
            near = f", or {then.partition('?')[0]}?" if then.startswith("did") else ""
            code, then = "config.misplaced-key", f"it belongs to {home}{near}"
        self.add((*place, name), f"unknown key {name!r} in {format_table_name(place)}", next=then, code=code)

    def has(self, *place: str | int) -> bool:
        """Return whether there is a mistake at a place or inside it."""
        return any(at[: len(place)] == place for _, at, _ in self._found)

    def check(self) -> None:
        """Raise ConfigError with a line for each mistake, if there is one."""
        if self._found:
            raise join_errors(self.errors)


def read_table(
    kind: type[T],
    values: Mapping[str, Any],
    mistakes: Mistakes,
    place: Place = (),
    *,
    base: T | None = None,
    also: Collection[str] = (),
) -> T | None:
    """Read a table into its dataclass; None if a needed key is missing. Wrong values count as missing.

    Missing values are taken from `base`. Keys of `also` are valid too, but not read here.
    """
    keys = describe_keys(cast("Any", kind))
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in keys:
            if name not in also:
                mistakes.refuse_key(place, name, [*keys, *also])
            continue
        found = read_value(keys[name], value, mistakes, (*place, name), getattr(base, name, None))
        given |= {} if found is None else {name: found}
    lacking = [name for name, one in keys.items() if one.is_needed and base is None and name not in given]
    for name in (name for name in lacking if name not in values):
        what, then = f"{format_table_name(place)} has no {name}", _advise_value(keys[name], None, (*place, name))
        mistakes.add(place, what, next=then, code="config.missing-key")
    if lacking:
        return None
    try:
        return kind(**given) if base is None else dataclasses.replace(cast("Any", base), **given)
    except ConfigError as error:  # raised by the dataclass itself, which does not know the file
        if not mistakes.has(*place):
            mistakes.add_error(place, error)
        return None


@functools.cache
def describe_keys(kind: Any) -> dict[str, TableKey]:
    """Return the keys of a table by name."""
    hints, none = typing.get_type_hints(kind), dataclasses.MISSING
    fields = {one.name: one for one in dataclasses.fields(kind)}
    needed = {name for name, one in fields.items() if one.default is none is one.default_factory}
    return {name: TableKey(_without_none(hints[name]), name in needed, **one.metadata) for name, one in fields.items()}


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    return functools.reduce(operator.or_, (one for one in typing.get_args(hint) if one is not types.NoneType))


def _is_table_type(hint: Any) -> bool:
    return hasattr(hint, "__dataclass_fields__") or typing.get_origin(hint) in _DICTS


@functools.cache
def find_homes(shape: type) -> dict[str, str]:
    """Return the table that each key of a file belongs to, except for keys that several tables have."""
    found: dict[str, set[str]] = {}

    def walk(hint: Any, place: Place) -> None:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in _DICTS:
            walk(args[1], (*place, "NAME"))
        elif origin in (list, tuple):
            walk(args[0], (*place, -1))
        for name, one in describe_keys(hint).items() if hasattr(hint, "__dataclass_fields__") else ():
            found.setdefault(name, set()).add(format_table_name(place) if place else TOP)
            walk(one.hint, (*place, name))

    walk(shape, ())
    return {name: next(iter(homes)) for name, homes in found.items() if len(homes) == 1}


def read_value(one: TableKey, value: Any, mistakes: Mistakes, place: Place, base: Any = None) -> Any:
    """Convert a value to its type, None if it is wrong; missing values of a table are taken from `base`."""
    try:
        if one.read:
            return one.read(value)
        if _is_table_type(one.hint) or (typing.get_args(one.hint) and _is_table_type(typing.get_args(one.hint)[0])):
            return _read_tables(one, value, mistakes, place, base)
        return _check_limits(convert_value(value, one.hint), one) if one.doc else convert_value(value, one.hint)
    except ConfigError as error:
        mistakes.add_error(place, error, f"{place[-1]}: ")
    except ValueError:
        mistakes.add_wrong(place, value, _advise_value(one, value, place))
    return None


def _read_tables(one: TableKey, value: Any, mistakes: Mistakes, place: Place, base: Any) -> Any:
    """Read a table, a list of tables or a dictionary; leave out wrong entries. Raises ValueError for other values."""
    origin, args = typing.get_origin(one.hint), typing.get_args(one.hint)
    is_list = origin in (list, tuple)
    wanted: Any = list if is_list else dict
    if type(value) is not wanted or (is_list and not all(type(part) is dict for part in value)):
        raise ValueError
    if origin is None:
        return read_table(one.hint, value, mistakes, place, base=base)
    inner = dataclasses.replace(one, hint=args[0] if is_list else args[1])  # the limits apply to every value
    if inner.hint is Any:
        return value
    parts = enumerate(value) if is_list else value.items()
    found = {name: read_value(inner, part, mistakes, (*place, name)) for name, part in parts}
    if not is_list:
        return {name: part for name, part in found.items() if part is not None}
    return None if None in found.values() else origin(found.values())


def convert_value(value: Any, hint: Any, *, strict: bool = True) -> Any:
    """Convert a value to its type: whole numbers to floats, lists to tuples, and texts to numbers unless `strict`.

    Raises ValueError.
    """
    if type(value) is hint:
        return value
    if hint is float and type(value) is int and abs(value) < LARGEST:
        return float(value)
    import msgspec

    return msgspec.convert(value, hint, strict=strict)


def _check_limits(value: Any, one: TableKey) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError
    if isinstance(value, int | float) and not isinstance(value, bool):
        least = -LARGEST if one.least is None else one.least
        if not least <= value <= one.most or (one.above is not None and value <= one.above):
            raise ValueError
    return value


def _advise_value(one: TableKey, value: Any, place: Place) -> str:
    """Return advice how to write a valid value of a key."""
    hint, origin = one.hint, typing.get_origin(one.hint)
    if one.advice and (one.read or not _is_table_type(hint)):
        return one.advice
    if _is_table_type(hint):
        return f"write it as a table: {format_table_name(place)}"
    if origin in (list, tuple) and _is_table_type(typing.get_args(hint)[0]):
        return f"write each as a table of its own: {format_table_name((*place, -1))}"
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        names = typing.get_args(hint) or [str(member.value) for member in hint]
        return suggest_name(value, names) if isinstance(value, str) else f"give one of {', '.join(names)}"
    if value == "" and hint is str:
        return "give a text that is not empty"
    limit = f" of at least {one.least:g}" if one.least is not None else ""
    return f"give {_word_type(hint)}{limit}{f' above {one.above:g}' if one.above is not None else ''}"


def _word_type(hint: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text, in quotes"}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, tuple):
        many = {int: "whole numbers", float: "numbers", str: "texts"}.get(args[0], "values")
        return f"a list of {many}" if origin is list or ... in args else f"a list of {len(args)} {many}"
    return words.get(hint, " or ".join(map(_word_type, args)))


def read_texts(value: Any) -> tuple[str, ...]:
    """Read a text or a list of texts, none of them empty. Raises ValueError."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(item, str) and item.strip() for item in listed):
        raise ValueError
    return tuple(listed)


def read_time(value: Any, least: float = 0.0) -> float:
    """Read a time of at least `least` s, written as on the command line. Raises ValueError, ConfigError."""
    if not isinstance(value, str) and not is_number(value):
        raise ValueError
    return read_seconds(value, least)


def is_number(value: Any) -> typing.TypeGuard[int | float]:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def format_value(value: Any) -> str:
    """Format a value for a message; long ones are cut."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def format_table_name(place: Place) -> str:
    """Return the name of a table as in the file; tables of a list are counted from 1."""
    if not place:
        return "the file"
    names = ".".join(str(part) for part in place if not isinstance(part, int))
    if not isinstance(place[-1], int):
        return f"[{names}]"
    return f"[[{names}]]" if place[-1] < 0 else f"[[{names}]] {place[-1] + 1}"


def parse_toml(data: bytes, file: Path | str) -> tuple[str, dict[str, Any]]:
    """Parse a file; return its text and tables. Raises ConfigError with the line."""
    import tomllib

    try:
        text = data.decode("utf-8-sig")
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        where, why, then = f"{file}:{line}", "it is not UTF-8", "save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
        line = int(match[2]) if match and match[2] else text.count("\n") + 1
        why = (match[1] if match else str(error)) + (f", at character {match[3]}" if match and match[3] else "")
        where, then = f"{file}:{line}", "correct that line"
    except RecursionError:
        where, why, then = str(file), "its lists or tables are nested too deeply", "nest them less deeply"
    except ValueError as error:  # a number of 5,000 digits
        where, why, then = str(file), str(error), "correct it"
    raise ConfigError("not a TOML file", where=where, why=why, next=then, code="config.not-toml") from None


def find_line(lines: Mapping[Place, int], place: Place) -> int | None:
    """Return the line of a key or table, else of the nearest table around it, else None."""
    return next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)


def find_lines(text: str) -> dict[Place, int]:
    """Return the line (from 1) of every table and key of a valid file, except inside inline tables."""
    found: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    for line, tokens in _split_statements(text):
        place = (*table, *_find_keys(tokens, "="))
        if tokens[0] == ("sign", "["):
            several = tokens[1] == ("sign", "[")
            table = ()
            for name in _find_keys(tokens[1 + several :], "]"):
                # Within lists of tables, a header names a table of the last one.
                table = (*table, *([counts[table]] if table in counts else []), name)
            if several:
                counts[table] = counts.get(table, -1) + 1
                found.setdefault(table, line)
                table = (*table, counts[table])
            place = table
        for n in range(1, len(place) + 1):  # `[nodes.gpu]` is the first line of `nodes`, too
            found.setdefault(place[:n], line)
    return found


def _find_keys(tokens: list[tuple[str, str]], until: str) -> list[str]:
    import tomllib

    taken = itertools.takewhile(lambda one: one != ("sign", until), tokens)
    names = ((kind, token) for kind, token in taken if kind in ("bare", "text"))
    return [token if kind == "bare" else tomllib.loads(f"k = {token}")["k"] for kind, token in names]


def _split_statements(text: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield each header and each `key = value` with the line on which it begins."""
    line, first, depth = 1, 1, 0
    tokens: list[tuple[str, str]] = []
    has_value = False  # brackets before the `=` belong to a header, after it to a list
    for match in itertools.chain(_TOKEN.finditer(text), _TOKEN.finditer("\n")):
        kind, token = str(match.lastgroup), match[0]
        if kind == "end" and not depth:
            if tokens:
                yield first, tokens
            tokens, has_value = [], False
        elif kind in ("text", "bare", "sign"):
            first = first if tokens else line
            tokens.append((kind, token))
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0) if has_value and kind == "sign" else 0
            has_value = has_value or (kind, token) == ("sign", "=")
        line += token.count("\n")
