"""Know the layouts of files that common programs write; what the user maps by hand counts before it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy
from joulelab.core.text import suggest_name
from joulelab.instruments.file.mlperf import STAMP
from joulelab.instruments.nvml.generations import sensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.instruments.file.layout import Names

# nvidia-smi --query-gpu: columns that tell devices apart, the best first, and channels by column.
_GPU_DEVICES = ("index", "gpu_uuid", "uuid", "gpu_bus_id", "pci.bus_id", "gpu_serial")
_SMI: dict[str, dict[str, Any]] = {
    "power.draw": {"name": "power_w", "unit": "W"},
    "power.draw.instant": {"name": "power_instant_w", "unit": "W"},
    "power.draw.average": {"name": "power_average_w", "unit": "W"},
    "enforced.power.limit": {"name": "cap_enforced_w", "unit": "W", "kind": "state", "quantity": "cap"},
    "power.limit": {"name": "cap_requested_w", "unit": "W", "kind": "state", "quantity": "cap"},
    "utilization.gpu": {"name": "load", "unit": "%", "kind": "state", "quantity": "utilisation"},
    "temperature.gpu": {"name": "temperature_c", "unit": "C", "kind": "state"},
    "clocks.sm": {"name": "sm_clock_hz", "unit": "MHz", "kind": "state", "quantity": "clock"},
    "clocks.current.sm": {"name": "sm_clock_hz", "unit": "MHz", "kind": "state", "quantity": "clock"},
}
# Words of GPUs' names by NVML's number of their architecture; a name without one of them is of a generation unknown.
_ARCHITECTURES = {
    9: ("H100", "H200", "H800", "H20", "GH200"),
    8: ("L4", "L40", "L40S", "L20", "L2", "Ada"),
    7: ("A100", "A800", "A30", "A10", "A10G", "A40", "A16", "A2", "A4000", "A4500", "A5000", "A5500", "A6000"),
    6: ("T4", "Quadro"),
    5: ("V100", "V100S", "TITAN"),
    4: ("P100", "P40", "P4"),
}
_SERIES = {8: "40", 7: "30", 6: "20", 4: "10"}  # GeForce RTX 4090, RTX 3090, RTX 2080, GTX 1080
_SPL = "MLPerf takes analyzers within 1 % only; which one it was, and its ranges, are not in spl.txt"
# W&B: tags of system metrics, alone, after "system.", or after the name of a run as panels export them.
_WANDB = re.compile(r"(?:.* - )?(?:system/|system\.)?gpu\.([0-9]+)\.(\w+)")
_WANDB_TAGS: dict[str, dict[str, Any]] = {
    "powerWatts": {"name": "power_w", "unit": "W"},
    "enforcedPowerLimitWatts": {"name": "cap_enforced_w", "unit": "W", "kind": "state", "quantity": "cap"},
    "gpu": {"name": "load", "unit": "%", "kind": "state", "quantity": "utilisation"},
    "temp": {"name": "temperature_c", "unit": "C", "kind": "state"},
}
_YOKO: dict[str, dict[str, Any]] = {
    "P": {"unit": "W"},
    "V": {"name": "voltage_v", "unit": "V", "kind": "state"},
    "I": {"name": "current_a", "unit": "A", "kind": "state"},
    "Wh": {"unit": "Wh"},
    "J": {"unit": "J"},
}


def find_preset(names: Names) -> str | None:
    """Return the known layout that the names of the columns show, None for any other."""
    if names.has("timestamp") and any(names.has(c) for c in _SMI if c.startswith("power.draw")):
        return "nvidia-smi"
    if "_timestamp" in names.names and _wandb(names, ())["columns"]:
        return "wandb"
    if {"Time", "Watts", "Volts", "Mark"} <= set(names.names):
        return "spl"
    return "mllog" if names.names[:2] == ["time_ms", "host"] else None


def preset(config: Mapping[str, Any], names: Names, row: Sequence[str]) -> dict[str, Any]:
    """Return the configuration completed by its preset; `row` is the first of the file. Raises ConfigError."""
    wanted = config.get("preset")
    if wanted is None:
        return dict(config)
    if wanted not in PRESETS:
        raise ConfigError(
            f"there is no preset {wanted!r}", where=names.where, next=suggest_name(str(wanted), list(PRESETS))
        )
    known = PRESETS[wanted](names, row)
    merged = {**known, **config}
    time, given = known.get("time"), config.get("time")
    if isinstance(time, dict) and isinstance(given, dict):
        merged["time"] = {**time, **given}
    if not merged["columns"]:
        listed = ", ".join(repr(n) for n in names.names[:30])
        advice = f"leave out --preset; the file has {listed}"
        raise ConfigError(f"no column of a {wanted} file is there", where=names.where, next=advice)
    return merged


def _nvidia_smi(names: Names, row: Sequence[str]) -> dict[str, Any]:
    device = next((d for d in _GPU_DEVICES if names.has(d)), None)
    scope = "gpu:0" if device is None else "gpu:{device}"
    model = row[names.index("name")].strip() if names.has("name") and row else ""
    columns = [
        {"column": c, "scope": scope, **known, **(_describe_sensor(c, model) if c.startswith("power.draw") else {})}
        for c, known in _SMI.items()
        if names.has(c)
    ]
    # One column for each channel: the driver gives the clock under two names.
    unique = list({c["name"]: c for c in reversed(columns)}.values())
    found = {"time": {"column": "timestamp", "format": "iso"}, "columns": unique[::-1]}
    return found if device is None else {**found, "device": device}


def _describe_sensor(column: str, model: str) -> dict[str, Any]:
    """Return what is known of the sensor behind a column, as for NVML itself; the driver is not known."""
    words = model.replace("-", " ").split()
    by_word = (number for number, some in _ARCHITECTURES.items() if any(w in some for w in words))
    series = (n for n, s in _SERIES.items() for w in words if w.isdecimal() and len(w) == 4 and w.startswith(s))
    found = sensor(next(series, None) or next(by_word, None), None, model)
    is_average = column.endswith("average") or (column == "power.draw" and found.plain_is_average)
    update_s, window_s = (0.1, 1.0) if is_average else (found.update_s, found.window_s)
    accuracy = Accuracy("assumed", found.gain, found.offset_w, 0.01, f"nvml:{model}" if model else "", found.why)
    return {"update_s": update_s, "window_s": window_s, "seen": found.seen, "assumed": accuracy}


def _wandb(names: Names, _: Sequence[str]) -> dict[str, Any]:
    columns = []
    for name in names.names:
        match = _WANDB.fullmatch(name.strip())
        if match and match[2] in _WANDB_TAGS:
            columns.append({"column": name, "scope": f"gpu:{match[1]}", **_WANDB_TAGS[match[2]]})
    return {"time": {"column": "_timestamp", "format": "unix"}, "columns": columns}


def _yokotool(names: Names, _: Sequence[str]) -> dict[str, Any]:
    columns = [{"column": c, **known} for c, known in _YOKO.items() if c in names.names]
    return {"time": {"column": "T"}, "columns": columns}


def _spl(names: Names, _: Sequence[str]) -> dict[str, Any]:
    watts = {"column": "Watts", "unit": "W", "assumed": Accuracy("assumed", 0.01, reference=_SPL)}
    columns = [{**watts, "scope": "node.ac"}] if "Watts" in names.names else []
    return {"time": {"column": "Time", "format": STAMP}, "columns": columns}


def _mllog(names: Names, _: Sequence[str]) -> dict[str, Any]:
    columns = [{"column": c, "scope": f"node.{c[:2]}", "unit": "W"} for c in names.names if c in ("ac_w", "dc_w")]
    return {"time": {"column": "time_ms", "format": "unix_ms"}, "host": {"column": "host"}, "columns": columns}


PRESETS: dict[str, Callable[[Names, Sequence[str]], dict[str, Any]]] = {
    "nvidia-smi": _nvidia_smi,
    "wandb": _wandb,
    "yokotool": _yokotool,
    "spl": _spl,
    "mllog": _mllog,
}
