"""Show what can be capped: each device, its cap, its range, and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from joulelab.control.client import Device, Status


def print_caps(console: Console, status: Status) -> None:
    """Print one line per device, then what cannot be capped and why."""
    if status.devices:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("device", "now", "enforced", "default", "range", "held by"):
            table.add_column(name, justify="right" if name in ("now", "enforced", "default", "range") else "left")
        for device in status.devices:
            table.add_row(*_cells(device))
        console.print(table)
    else:
        console.print("there is nothing to cap here")
    for scope, reason in status.missing:
        console.print(f"{escape(scope)}: {escape(reason)}", soft_wrap=True)
    if any(device.leftover for device in status.devices):
        console.print("\nA cap was left behind; put back what was found: joulelab cap restore", soft_wrap=True)


def _cells(device: Device) -> tuple[str, ...]:
    unit = 1e6 if device.unit == "Hz" else 1.0
    word = "MHz" if device.unit == "Hz" else "W"
    limits = f"{device.lowest / unit:.0f} to {device.highest / unit:.0f} {word}"
    name = device.scope if device.kind == "power" else f"{device.scope} clocks"
    values = (_number(value, unit, word) for value in (device.requested, device.enforced, device.default))
    return (f"{name} [dim]{escape(device.model)}[/]", *values, limits, escape(_holder(device)))


def _number(value: float | None, unit: float, word: str) -> str:
    return "-" if value is None else f"{value / unit:.0f} {word}"


def _holder(device: Device) -> str:
    if device.leftover:
        return "nobody; a cap was left behind"
    return device.holder or ""
