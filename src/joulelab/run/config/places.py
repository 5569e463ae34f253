"""Find the lines of a TOML file on which tables and keys stand; the parser does not tell."""

from __future__ import annotations

import itertools
import re
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    # The way to a value: keys, and numbers within a list of tables.
    Place = tuple[str | int, ...]

_TOKEN = re.compile(
    r'(?P<text>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\')'
    r"|(?P<comment>#[^\n]*)|(?P<end>\n)|(?P<bare>[A-Za-z0-9_-]+)|(?P<sign>[\[\]{}=.])|(?P<other>.)",
    re.DOTALL,
)


def find_lines(text: str) -> dict[Place, int]:
    """Return the line (from 1) of every table and key of a file that can be parsed, but not of inline tables."""
    found: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    for line, tokens in _statements(text):
        signs = [token for kind, token in tokens if kind == "sign"]
        several = signs[:2] == ["[", "["] and tokens[1] == ("sign", "[")
        if signs and tokens[0] == ("sign", "["):
            table = _whole(_keys(tokens[1 + several :], "]"), counts)
            if several:
                counts[table] = counts.get(table, -1) + 1
                found.setdefault(table, line)
                table = (*table, counts[table])
            _note(found, table, line)
        else:
            _note(found, (*table, *_keys(tokens, "=")), line)
    return found


def line_of(found: Mapping[Place, int], place: Place) -> int | None:
    """Return the line of a place, or of the nearest one that holds it; None where there is none."""
    return next((found[place[:n]] for n in range(len(place), 0, -1) if place[:n] in found), None)


def _note(found: dict[Place, int], place: Place, line: int) -> None:
    """Note a place, and what holds it where that is not known: `[nodes.gpu]` is the first of `nodes`."""
    for n in range(1, len(place) + 1):
        found.setdefault(place[:n], line)


def _whole(keys: tuple[str, ...], counts: Mapping[Place, int]) -> Place:
    """Return the place that a header names: within lists of tables, it is in the last."""
    place: Place = ()
    for n, key in enumerate(keys):
        place = (*place, key)
        if place in counts and n < len(keys) - 1:
            place = (*place, counts[place])
    return place


def _keys(tokens: list[tuple[str, str]], until: str) -> tuple[str, ...]:
    keys: list[str] = []
    for kind, token in itertools.takewhile(lambda each: each != ("sign", until), tokens):
        if kind == "bare":
            keys.append(token)
        elif kind == "text":
            keys.append(str(tomllib.loads(f"k = {token}")["k"]))
    return tuple(keys)


def _statements(text: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield each header and each `key = value` with the line on which it begins."""
    line, first, depth = 1, 1, 0
    tokens: list[tuple[str, str]] = []
    valued = False  # brackets are a header's before, a list's after the `=`
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match[0]
        if kind == "end" and not depth:
            if tokens:
                yield first, tokens
            tokens, valued = [], False
        elif kind in ("text", "bare", "sign"):
            first = first if tokens else line
            tokens.append((kind, token))
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0) if valued and kind == "sign" else 0
            valued = valued or (kind, token) == ("sign", "=")
        line += token.count("\n")
    if tokens:
        yield first, tokens
