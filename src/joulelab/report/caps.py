"""Show caps: what can be capped here and who holds it, and what a run did with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report.console import make_table, print_facts
from joulelab.report.format import join_scopes

if TYPE_CHECKING:
    from rich.console import Console

    from joulelab.analysis.result import Result
    from joulelab.control.client import CapDevice, CapStatus

ENDINGS = {
    "restored": "put back",
    "as found": "as it was",
    "left": "left, since somebody else had changed it",
    "failed": "NOT put back: joulelab cap restore",
    "": "not put back yet",
}


def print_caps(console: Console, status: CapStatus) -> None:
    """Print one line per device, then what cannot be capped and why."""
    if status.devices:
        table = make_table("device", "now", "enforced", "default", "range", "", left=(0, 5))
        for device in status.devices:
            table.add_row(*_cells(device))
        console.print(table)
        console.print()
    else:
        console.print("there is nothing to cap here")
    facts = [(device.scope, _holder(device)) for device in status.devices if device.holder or device.leftover]
    print_facts(console, [*facts, *status.missing])


def cap_lines(result: Result) -> list[tuple[str, str]]:
    """Return the caps that a run set, devices with equal ones together."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for cap in result.caps:
        key = (cap.asked, cap.found, cap.unit, cap.changes, cap.outcome)
        alike.setdefault(key, []).append(cap.scope)
    lines = []
    for cap in result.caps:
        scopes = alike.pop((cap.asked, cap.found, cap.unit, cap.changes, cap.outcome), None)
        if scopes is None:
            continue
        last = f", the last of {cap.changes + 1} tried" if cap.changes else ""
        before = "free before" if cap.found is None else f"{value(cap.found, cap.unit)} before"
        what = "clocks locked at" if cap.unit == "Hz" else "capped at"
        text = f"{join_scopes(scopes)} {what} {value(cap.asked, cap.unit)}{last}; {before}, {ENDINGS[cap.outcome]}"
        lines.append(("caps", text))
    return lines


def value(number: float | None, unit: str) -> str:
    """Return `170 W` or `1410 MHz`."""
    if number is None:
        return "-"
    return f"{number / 1e6:.0f} MHz" if unit == "Hz" else f"{number:.4g} W"


def _cells(device: CapDevice) -> tuple[str, ...]:
    limits = f"{value(device.lowest, device.unit).split()[0]} to {value(device.highest, device.unit)}"
    name = device.scope if device.kind == "power" else f"{device.scope} clocks"
    values = (value(number, device.unit) for number in (device.requested, device.enforced, device.default))
    return (name, *values, limits, device.model if device.kind == "power" else "")


def _holder(device: CapDevice) -> str:
    if device.holder:
        return f"held by {device.holder}"
    if device.leftover and device.leftover.get("problem"):
        return f"a cap was left behind: {device.leftover['problem']}"
    return "a cap was left behind and nobody holds it\n-> joulelab cap restore"
