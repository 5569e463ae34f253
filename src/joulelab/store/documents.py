"""Read JSON from untrusted files: documents and JSON lines, with limits of size, depth and number.

The recorder imports this module and calls `decode_json` only: msgspec is loaded by those who read many documents.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

from joulelab.core.errors import StoreError
from joulelab.store.safe_files import read_regular

Line = dict[str, Any]
LARGEST_DOCUMENT = 64 << 20  # bytes
MOST_DEPTH = 64  # levels of lists and objects; joulelab writes less than ten
MOST_DIGITS = 300  # of a whole number: it still fits into a float
MOST_LINES = 500_000  # of one file of events or marks
LARGEST_NS = 2**63  # times and counts are 64 bits
_LONG_NUMBER = re.compile(rb"\d{%d}" % (MOST_DIGITS + 1))
_LARGE_TIME = re.compile(rb"\d{20}|9[2-9]\d{17}")  # may be beyond 64 bits
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TIMES = ("t", "from", "to", "start_ns", "end_ns", "mono_ns", "utc_ns")
# Values of events and marks that readers rely on; those of other keys are read with care.
_NUMBERS = (*_TIMES, "count", "missed", "ticks", "pid", "streams", "asked", "requested", "found", "default")
_LISTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("at", "pids"), (int, float)),
    **dict.fromkeys(("covers", "nodes"), (str,)),
    **dict.fromkeys(("missing", "gpus"), (dict,)),
}
_NEEDED_KEYS = {
    **dict.fromkeys(("idle", "supervisor-paused"), ("from", "to")),
    "cap-set": ("asked", "requested", "found"),
}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise StoreError if it is missing, damaged or too large."""
    where = {"where": str(path.parent)}
    try:
        data = decode_json(read_regular(path, LARGEST_DOCUMENT))
    except OSError as error:
        raise StoreError(f"cannot read {path.name}", **where, why=error.strerror, code="store.unreadable") from error
    except ValueError as error:
        raise StoreError(f"{path.name} is damaged", **where, why=str(error), code="store.damaged") from None
    if not isinstance(data, dict):
        raise StoreError(f"{path.name} is damaged", **where, why="not a JSON object", code="store.damaged")
    return data


def read_document(path: str) -> dict[str, Any]:
    """Read a JSON object like `read_json`, but several times as fast; raise StoreError in the same cases."""
    import msgspec

    try:
        text = read_regular(path, LARGEST_DOCUMENT)  # creating a Path takes longer than reading the file
        if not _is_deep(text) and not _LONG_NUMBER.search(text):
            data = msgspec.json.decode(text)
            if isinstance(data, dict):
                return data
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    # Odd documents are left to the function that names the defect; it also takes NaN, and text that is not Unicode.
    return read_json(Path(path))


def decode_json(text: bytes) -> Any:
    """Return the content of a JSON document; raise ValueError, which says what is wrong, if it is damaged."""
    try:
        data = json.loads(text, parse_int=_read_integer)
    except json.JSONDecodeError:
        raise ValueError("not JSON") from None
    except UnicodeDecodeError:
        raise ValueError("not text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _is_deep(text) and _measure_depth(data) > MOST_DEPTH:
        raise ValueError("nested too deeply")
    return data


def read_lines(path: Path) -> tuple[list[Line], int]:
    """Return the lines of a file that are objects with an integer `t`, and the number of damaged lines.

    A last line without a line feed is still being written, or was cut off: it is neither returned nor counted. Raises
    OSError if the file cannot be read, is a link to nothing, or has more than `MOST_LINES` lines.
    """
    try:
        text = read_regular(path)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise
        return [], 0
    if text.count(b"\n") > MOST_LINES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_LINES} lines", str(path))
    whole = text[: text.rfind(b"\n") + 1]
    lines = _read_plain_lines(whole)
    if lines is not None:
        return lines, 0
    lines, damaged = [], 0
    for each in whole.split(b"\n"):
        line = _read_line(each)
        if line is not None:
            lines.append(line)
        elif each.strip():
            damaged += 1
    return lines, damaged


def find_wrong_value(line: Line) -> str:
    """Return the key and the fault of the first value of an event or a mark that readers cannot use; empty if none."""
    for key in _NEEDED_KEYS.get(str(line.get("event")), ()):
        if line.get(key) is None:
            return f"{key} is missing"
    for key, value in line.items():
        is_number = key in _NUMBERS or key.endswith(("_ns", "_s"))
        if is_number and not (value is None and key not in _TIMES) and not _is_finite(value):
            return f"{key} is not a number"
        kinds = _LISTS.get(key)
        if kinds and value is not None and not (isinstance(value, list) and all(isinstance(v, kinds) for v in value)):
            return f"{key} is not a list of {'objects' if kinds == (dict,) else 'numbers or texts'}"
    return ""


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) < float("inf")


def _read_plain_lines(text: bytes) -> list[Line] | None:
    """Return the lines of a file three times as fast; None if a line has unusual content."""
    import msgspec

    if _LARGE_TIME.search(text) or _is_deep(text):
        return None
    try:
        lines = msgspec.json.Decoder(dict[str, Any]).decode_lines(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return lines if all(type(line.get("t")) is int for line in lines) else None


def _read_line(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("t")) is not int:
        return None
    if any(type(value := line.get(key)) is int and abs(value) >= LARGEST_NS for key in _TIMES):
        return None
    is_deep = text.count(b"[") + text.count(b"{") > MOST_DEPTH and _measure_depth(line) > MOST_DEPTH
    return None if is_deep else line


def _read_integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _is_deep(text: bytes) -> bool:
    """Return whether a document may be nested deeper than `MOST_DEPTH`; brackets in strings are counted, too.

    Pairs of brackets are removed from the inside out, in a tenth of the time of a walk through the decoded document.
    """
    brackets = text.translate(None, _NOT_BRACKETS)
    for _ in range(MOST_DEPTH // 2):  # each time one level goes, or two
        if not brackets:
            return False
        before, brackets = brackets, brackets.replace(b"[]", b"").replace(b"{}", b"")
        if brackets == before:
            break
    return bool(brackets)


def _measure_depth(data: object) -> int:
    """Return how deeply lists and objects are nested, without recursion."""
    depth, level = 0, [data]
    while level := [child for each in level for child in _list_children(each)]:
        depth += 1
    return depth


def _list_children(data: object) -> list[Any]:
    if isinstance(data, dict):
        return list(data.values()) or [None]
    return (data or [None]) if isinstance(data, list) else []
