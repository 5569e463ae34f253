"""Find the lines of a TOML file on which tables and keys stand; the parser does not tell."""

from __future__ import annotations

import re


def line_of(text: str, table: str, key: str = "") -> int | None:
    """Return the line (from 1) of a table's header, or of a key in it; None where it is written another way."""
    span = span_of(text, table)
    if span is None:
        return None
    first, last = span
    lines = text.splitlines()
    if not key:
        return first + 1
    wanted = re.compile(rf"\s*{_either(key)}\s*[.=]")
    found = (n for n in range(first + 1, last) if wanted.match(lines[n]))
    return next((n + 1 for n in found), first + 1)


def top_line_of(text: str, key: str) -> int | None:
    """Return the line (from 1) on which a key of the top first stands: its header, one inside it, or the key."""
    wanted = re.compile(rf"\s*(?:\[{{1,2}}\s*{_either(key)}\s*[.\]]|{_either(key)}\s*[.=])")
    return next((n + 1 for n, line in enumerate(text.splitlines()) if wanted.match(line)), None)


def span_of(text: str, table: str) -> tuple[int, int] | None:
    """Return the lines (from 0, the end excluded) of a table with its header and the tables inside it."""
    names = r"\s*\.\s*".join(_either(part) for part in table.split("."))
    head = re.compile(rf"\s*\[\s*{names}\s*\]\s*(#.*)?$")
    inside = re.compile(rf"\s*\[\s*{names}\s*\.")
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if head.match(line)), None)
    if first is None:
        return None
    last = first + 1
    while last < len(lines) and not (_is_header(lines[last]) and not inside.match(lines[last])):
        last += 1
    return first, last


def _is_header(line: str) -> bool:
    return re.match(r"\s*\[{1,2}\s*[\w\"'][^=]*\]{1,2}\s*(#.*)?$", line) is not None


def _either(name: str) -> str:
    plain = re.escape(name)
    return rf"(?:{plain}|\"{plain}\"|'{plain}')"
