"""Format the lines of a marks file; values that JSON cannot hold become text."""

from __future__ import annotations

import contextlib
import json
import os
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING

from joulelab.core.text import finite_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_WHOLE = 2**63  # larger whole numbers are stored as text

encode_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


def format_begin(
    t: int,
    identity: str,
    name: str,
    n: int | None,
    labels: Mapping[str, object] | None,
    parent: str | None,
    thread: int,
    rank: int,
    work: Mapping[str, float] | None = None,
) -> str:
    """Return the line that begins a phase. It is formatted by hand, because this is most of the cost of a phase."""
    if n is not None and type(n) is not int:
        name, n = _split_number(name, n)
    inside = "null" if parent is None else f'"{parent}"'
    more = "" if work is None else f',"work":{encode_json(work)}'
    number = "null" if n is None else encode_json(n)
    notes = encode_json(labels) if labels else "{}"
    return (
        f'{{"t":{t},"mark":"begin","id":"{identity}","name":{quote(str(name))},"n":{number},"labels":{notes},'
        f'"parent":{inside},"thread":{thread},"rank":{rank}{more}}}'
    )


def _split_number(name: str, n: object) -> tuple[str, int | None]:
    """Return name and number of a phase; a number that is not whole becomes part of the name."""
    plain = _make_plain(n)
    if isinstance(plain, (int, float)) and plain == plain // 1:
        return name, int(plain)
    return f"{name} {plain}", None


def format_end(t: int, identity: str) -> str:
    """Return the line that ends a phase."""
    return f'{{"t":{t},"mark":"end","id":"{identity}"}}'


def make_fact_line(t: int, facts: Mapping[str, object], rank: int) -> dict[str, object]:
    """Return the content of a line of facts."""
    return {"t": t, "mark": "fact", "facts": {name: _make_plain(value) for name, value in facts.items()}, "rank": rank}


def _make_plain(value: object) -> object:
    """Turn a number of numpy or torch into one of Python, and any other object into printable text."""
    if value is not None and not isinstance(value, (str, int, float)):
        with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
            value = value.item()  # type: ignore[attr-defined]
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < MOST_WHOLE):
        return value
    try:
        return str(value).encode(errors="backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - a fact must not fail the workload
        return f"{type(value).__name__} ({type(error).__name__})"


def read_amount(amount: object) -> float | None:
    """Return an amount of work as a finite number, else None."""
    try:
        number = float(amount)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return finite_or_none(number)


def open_marks(path: Path) -> int:
    """Open a file for appending, never through a link; return its descriptor. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o644)


def write_lines(fd: int, lines: str) -> None:
    """Write lines with one call. Raises OSError."""
    data = f"{lines}\n".encode()
    written = os.write(fd, data)
    if written < len(data):
        # A full disk took a part: end that line, so that the next one is whole again.
        with contextlib.suppress(OSError):
            os.write(fd, b"\n")
        raise OSError("short write")
