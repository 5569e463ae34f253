"""Write marks of work as processes do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from joulelab.core.clock import NS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def line(t_s: float, since_s: float, amount: float, *, count: int = 1, at_s: Sequence[float] = ()) -> dict[str, object]:
    stamps = [round(s * NS) for s in at_s or [t_s]]
    work = {"mark": "work", "phase": None, "amounts": {"steps": amount, "samples": 64 * amount}, "rank": 0}
    return {"t": round(t_s * NS), "from": round(since_s * NS), "count": count, "at": stamps, **work}


def write(folder: Path, name: str, *lines: dict[str, object], torn: str = "") -> None:
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write("".join(json.dumps(each) + "\n" for each in lines) + torn)


def even(start_s: int, end_s: int, per_s: float = 10.0) -> list[dict[str, object]]:
    """Return a line per second with ten reports each."""
    tenths = [k / 10 for k in range(1, 11)]
    return [line(t + 1, t, per_s, count=10, at_s=[t + x for x in tenths]) for t in range(start_s, end_s)]
