"""Describe two GPUs as a keeper does."""

from __future__ import annotations

from typing import Any

from joulelab.control.client import Device, Status


def device(scope: str = "gpu:0", **more: Any) -> Device:
    limits = {"lowest": 100.0, "highest": 260.0, "default": 260.0, "requested": 260.0, "enforced": 260.0, **more}
    return Device(scope, f"GPU-{scope}", "Quadro RTX 6000", "power", "W", **limits)


STATUS = Status([device(), device("gpu:1")])
