"""Describe two GPUs as a keeper does."""

from __future__ import annotations

from typing import Any

from joulelab.control.client import CapDevice, CapStatus


def device(scope: str = "gpu:0", **more: Any) -> CapDevice:
    limits = {"lowest": 100.0, "highest": 260.0, "default": 260.0, "requested": 260.0, "enforced": 260.0, **more}
    return CapDevice(scope, f"GPU-{scope}", "Quadro RTX 6000", "power", "W", **limits)


def clocks(scope: str = "gpu:0") -> CapDevice:
    limits = {"lowest": 210e6, "highest": 2100e6, "default": 2100e6, "requested": None, "enforced": None}
    return CapDevice(scope, f"GPU-{scope}.clocks", "Quadro RTX 6000", "clocks", "Hz", **limits)  # type: ignore[arg-type]


STATUS = CapStatus([device(), device("gpu:1"), clocks(), clocks("gpu:1")])
