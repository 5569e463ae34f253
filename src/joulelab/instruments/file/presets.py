"""Know the layouts of files that common programs write; settings of the user count before them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy
from joulelab.core.text import suggest_name
from joulelab.instruments.file.mlperf import ANALYZER, STAMP
from joulelab.instruments.nvml.generations import find_sensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.file.layout import Header

PRESETS = ("nvidia-smi", "wandb", "spl", "mllog")
_LOAD = {"name": "load", "unit": "%", "kind": "state", "quantity": "utilisation"}
_CAP = {"unit": "W", "kind": "state", "quantity": "cap"}
_CLOCK = {"name": "sm_clock_hz", "unit": "MHz", "kind": "state", "quantity": "clock"}
_TEMPERATURE = {"name": "temperature_c", "unit": "C", "kind": "state"}
# nvidia-smi --query-gpu: columns that separate devices, the best first, and channels by column.
_GPU_DEVICES = ("index", "gpu_uuid", "uuid", "gpu_bus_id", "pci.bus_id", "gpu_serial")
_SMI: dict[str, dict[str, Any]] = {
    "power.draw": {"name": "power_w", "unit": "W"},
    "power.draw.instant": {"name": "power_instant_w", "unit": "W"},
    "power.draw.average": {"name": "power_average_w", "unit": "W"},
    "enforced.power.limit": {"name": "cap_enforced_w", **_CAP},
    "power.limit": {"name": "cap_requested_w", **_CAP},
    "utilization.gpu": _LOAD,
    "temperature.gpu": _TEMPERATURE,
    "clocks.sm": _CLOCK,
    "clocks.current.sm": _CLOCK,
}
# Words of GPUs' names by NVML's number of their architecture; a name without one of them is of an unknown generation.
_ARCHITECTURES = {
    9: ("H100", "H200", "H800", "H20", "GH200"),
    8: ("L4", "L40", "L40S", "L20", "L2", "Ada"),
    7: ("A100", "A800", "A30", "A10", "A10G", "A40", "A16", "A2", "A4000", "A4500", "A5000", "A5500", "A6000"),
    6: ("T4", "Quadro"),
    5: ("V100", "V100S", "TITAN"),
    4: ("P100", "P40", "P4"),
}
_SERIES = {8: "40", 7: "30", 6: "20", 4: "10"}  # GeForce RTX 4090, RTX 3090, RTX 2080, GTX 1080
# W&B: tags of system metrics, alone, after "system.", or after the name of a run as panels export them.
_WANDB = re.compile(r"(?:.* - )?(?:system/|system\.)?gpu\.([0-9]+)\.(\w+)")
_WANDB_TAGS: dict[str, dict[str, Any]] = {
    "powerWatts": {"name": "power_w", "unit": "W"},
    "enforcedPowerLimitWatts": {"name": "cap_enforced_w", **_CAP},
    "gpu": _LOAD,
    "temp": _TEMPERATURE,
}


def find_preset(header: Header) -> str | None:
    """Return the known layout that the names of the columns show, None for any other."""
    names = header.names
    if header.has_column("timestamp") and any(header.has_column(c) for c in _SMI if c.startswith("power.draw")):
        return "nvidia-smi"
    if "_timestamp" in names and any(_WANDB.fullmatch(name.strip()) for name in names):
        return "wandb"
    if {"Time", "Watts"} <= set(names) and {"Volts", "Amps", "PF", "Mark"} & set(names):
        return "spl"
    return "mllog" if names[:2] == ["time_ms", "host"] else None


def apply_preset(config: Mapping[str, Any], header: Header, row: Sequence[str]) -> dict[str, Any]:
    """Return the settings completed by those of the preset; `row` is the first of the file. Raises ConfigError."""
    check_preset(config, header.where)
    known = _make_settings(str(config["preset"]), header, row)
    merged = {**known, **config}
    merged["time"] = {**known["time"], **config["time"]}
    if not merged["columns"]:
        what = f"no column of a {config['preset']} file is there"
        advice = f"leave out --preset; the file has {header.list_names()}"
        raise ConfigError(what, where=header.where, next=advice, code="config.preset")
    return merged


def check_preset(config: Mapping[str, Any], where: str) -> None:
    """Refuse a preset that does not exist. Raises ConfigError."""
    known = config.get("preset")
    if known is not None and known not in PRESETS:
        advice = suggest_name(str(known), PRESETS)
        raise ConfigError(f"there is no preset {known!r}", where=where, next=advice, code="config.preset")


def _make_settings(preset: str, header: Header, row: Sequence[str]) -> dict[str, Any]:
    if preset == "nvidia-smi":
        return _describe_smi(header, row)
    if preset == "wandb":
        matches = ((name, _WANDB.fullmatch(name.strip())) for name in header.names)
        columns = [
            {"column": name, "scope": f"gpu:{match[1]}", **_WANDB_TAGS[match[2]]}
            for name, match in matches
            if match and match[2] in _WANDB_TAGS
        ]
        return {"time": {"column": "_timestamp", "format": "unix"}, "columns": columns}
    if preset == "spl":
        watts = {"column": "Watts", "unit": "W", "assumed": ANALYZER}
        columns = [watts] if "Watts" in header.names else []
        return {"time": {"column": "Time", "format": STAMP}, "columns": columns}
    sides = [{"column": c, "scope": f"node.{c[:2]}", "unit": "W"} for c in header.names if c in ("ac_w", "dc_w")]
    return {"time": {"column": "time_ms", "format": "unix_ms"}, "host": {"column": "host"}, "columns": sides}


def _describe_smi(header: Header, row: Sequence[str]) -> dict[str, Any]:
    device = next((d for d in _GPU_DEVICES if header.has_column(d)), None)
    scope = "gpu:0" if device is None else "gpu:{device}"
    model = row[header.find_column("name")].strip() if header.has_column("name") and row else ""
    channels: dict[str, dict[str, Any]] = {}
    for column, known in _SMI.items():
        if header.has_column(column):  # one for each channel: the driver gives the clock under two names
            about = _describe_sensor(column, model) if column.startswith("power.draw") else {}
            channels.setdefault(known["name"], {"column": column, "scope": scope, **known, **about})
    found = {"time": {"column": "timestamp", "format": "iso"}, "columns": [*channels.values()]}
    return found if device is None else {**found, "device": device}


def _describe_sensor(column: str, model: str) -> dict[str, Any]:
    """Return the properties of the sensor behind a column, as for NVML itself; the driver is not known."""
    words = model.replace("-", " ").split()
    by_word = (number for number, some in _ARCHITECTURES.items() if any(w in some for w in words))
    series = (n for n, s in _SERIES.items() for w in words if w.isdecimal() and len(w) == 4 and w.startswith(s))
    found = find_sensor(next(series, None) or next(by_word, None), None, model)
    is_average = column.endswith("average") or (column == "power.draw" and found.plain_is_average)
    update_s, window_s = (0.1, 1.0) if is_average else (found.update_s, found.window_s)
    accuracy = Accuracy("assumed", found.gain, found.offset_w, 0.01, f"nvml:{model}" if model else "", found.why)
    return {"update_s": update_s, "window_s": window_s, "seen": found.seen, "assumed": accuracy}
