"""Write small logs as MLPerf's programs do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.instruments.file_bench import T0

if TYPE_CHECKING:
    from pathlib import Path


def write_spl(path: Path, watts: list[str], hour: int = 12) -> Path:
    rows = (
        f"Time,05-01-2024 {hour}:00:{k:02d}.000,Watts,{w},Volts,230.1,Amps,1.2,PF,0.96,Mark,test,Ch1,Watts,1,Volts,2\n"
        for k, w in enumerate(watts)
    )
    path.write_text("".join(rows) + "\n")
    return path


def write_mllog(path: Path, *entries: tuple[str, Any, dict[str, Any]], time_ms: float = T0 / 1e6) -> Path:
    lines = []
    for k, (key, value, metadata) in enumerate(entries):
        entry = {"namespace": "", "time_ms": int(time_ms) + 1000 * k, "key": key, "value": value, "metadata": metadata}
        lines.append(f"0: :::MLLOG {json.dumps(entry)}\n")
    path.write_text("a line of something else\n" + "".join(lines))
    return path


def write_load(path: Path) -> Path:
    begin, end = "05-01-2024 12:00:02.000", "05-01-2024 12:00:06.000"
    entries: list[tuple[str, Any, dict[str, Any]]] = [
        ("effective_scenario", "Offline", {}),
        ("power_begin", begin, {}),
        ("power_end", end, {}),
    ]
    entries += [("result_tokens_per_second", 250.0, {}), ("result_validity", "VALID", {})]
    return write_mllog(path, *entries, time_ms=0.016)
