"""Read times as people write them: `10`, `10s`, `500ms`, `2m`, `1h`."""

from __future__ import annotations

import math
import re

from joulelab.core.errors import ConfigError

UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]*)\s*")


def read_seconds(value: float | str, least: float = 0.0) -> float:
    """Return a time in s; numbers are in s already. Raises ConfigError, also below `least`."""
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        unit = match[2].replace("µ", "u") if match else ""
        found = float(match[1]) * UNITS[unit] if match and unit in UNITS else math.nan
    else:
        found = float(value)
    if not math.isfinite(found):
        raise ConfigError(f"{value!r} is no time", next="write it as 10, 10s, 500ms or 2m", code="config.no-time")
    if found < least:
        raise ConfigError(f"{value!r} is too short", next=f"at least {least:g}s", code="config.time-too-short")
    return found
