"""Know the layouts of files that common programs write; what the user maps by hand counts before it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def preset(config: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return the configuration completed by its preset. Raises ConfigError."""
    wanted = config.get("preset")
    if wanted is None:
        return dict(config)
    if wanted not in PRESETS:
        raise ConfigError(
            f"there is no preset {wanted!r}", where=names.where, next=suggest_name(str(wanted), list(PRESETS))
        )
    known = PRESETS[wanted](names)
    merged = {**known, **config}
    time, given = known.get("time"), config.get("time")
    if isinstance(time, dict) and isinstance(given, dict):
        merged["time"] = {**time, **given}
    if not merged["columns"]:
        listed = ", ".join(repr(n) for n in names.names[:30])
        raise ConfigError(f"no column of a {wanted} file is there", where=names.where, next=f"it has {listed}")
    return merged


def _nvidia_smi(names: Names) -> dict[str, Any]:
    device = next((d for d in _GPU_DEVICES if names.has(d)), None)
    scope = "gpu:0" if device is None else "gpu:{device}"
    columns = [{"column": c, "scope": scope, **known} for c, known in _SMI.items() if names.has(c)]
    # One column for each channel: the driver gives the clock under two names.
    unique = list({c["name"]: c for c in reversed(columns)}.values())
    found = {"time": {"column": "timestamp", "format": "iso"}, "columns": unique[::-1]}
    return found if device is None else {**found, "device": device}


def _wandb(names: Names) -> dict[str, Any]:
    columns = []
    for name in names.names:
        match = _WANDB.fullmatch(name.strip())
        if match and match[2] in _WANDB_TAGS:
            columns.append({"column": name, "scope": f"gpu:{match[1]}", **_WANDB_TAGS[match[2]]})
    return {"time": {"column": "_timestamp", "format": "unix"}, "columns": columns}


def _yokotool(names: Names) -> dict[str, Any]:
    columns = [{"column": c, **known} for c, known in _YOKO.items() if c in names.names]
    return {"time": {"column": "T"}, "columns": columns}


PRESETS: dict[str, Callable[[Names], dict[str, Any]]] = {
    "nvidia-smi": _nvidia_smi,
    "wandb": _wandb,
    "yokotool": _yokotool,
}
