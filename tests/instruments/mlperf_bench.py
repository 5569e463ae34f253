"""Write small logs as MLPerf's programs do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.instruments.file_bench import T0

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = "05-01-2024 12:00:02.000", "05-01-2024 12:00:06.000"


def write_spl(path: Path, watts: list[str], hour: int = 12, *, scale: float = 1.0) -> Path:
    """Write readings; their volts x amperes x power factor are `scale` times their power."""
    rows = []
    for k, w in enumerate(watts):
        amps = scale * float(w) / (230.1 * 0.96) if w.replace(".", "").isdigit() else 1.2
        start = f"Time,05-01-2024 {hour}:00:{k:02d}.000,Watts,{w},Volts,230.1,Amps,{amps:.6f},PF,0.96"
        rows.append(f"{start},Mark,test,Ch1,Watts,1,Volts,2\n")
    path.write_text("".join(rows) + "\n")
    return path


def write_mllog(path: Path, *entries: tuple[str, Any, dict[str, Any]], time_ms: float = T0 / 1e6) -> Path:
    lines = []
    for k, (key, value, metadata) in enumerate(entries):
        entry = {"namespace": "", "time_ms": int(time_ms) + 1000 * k, "key": key, "value": value, "metadata": metadata}
        lines.append(f"0: :::MLLOG {json.dumps(entry)}\n")
    path.write_text("a line of something else\n" + "".join(lines))
    return path


def write_load(path: Path, scenario: str = "Offline", begin: str = BEGIN, end: str = END, **results: float) -> Path:
    results = results or {"result_tokens_per_second": 250.0}
    facts = {"effective_scenario": scenario, "power_begin": begin, "power_end": end, "result_validity": "VALID"}
    return write_mllog(path, *((key, value, {}) for key, value in {**facts, **results}.items()), time_ms=0.016)


def write_session(path: Path, zone_s: int = 0, dc_flag: str | None = None) -> Path:
    """Write a server.json of a session from 5 s before to 15 s after 12:00:00 UTC."""
    times = [[T0 / 1e9 + s, 0.0] for s in (-5, 0, 10, 15)]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"timezone": zone_s, "phases": {"testing": times}, "ptd_config": {"dc_flag": dc_flag}}))
    return path
