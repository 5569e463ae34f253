"""Read files of JSON lines: events and marks. A torn last line is ignored, a damaged one is reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from pathlib import Path

Line = dict[str, Any]


def read_lines(path: Path) -> tuple[list[Line], int]:
    """Return the whole lines of a file that are objects with an integer `t`, and the number of damaged ones.

    A last line without its end is still being written, or was cut off: it is neither returned nor counted. Raises
    OSError for what cannot be read.
    """
    try:
        whole = read_regular(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return [], 0
    lines: list[Line] = []
    damaged = 0
    for text in whole:
        line = _parse(text)
        if line is not None:
            lines.append(line)
        elif text.strip():
            damaged += 1
    return lines, damaged


def _parse(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or type(line.get("t")) is not int:
        return None
    return line
