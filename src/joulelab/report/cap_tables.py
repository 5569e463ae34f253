"""Show power caps: the devices that can be capped, who has capped them, and the caps that a run set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report.format import format_plain, join_scopes
from joulelab.report.tables import make_table
from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

if TYPE_CHECKING:
    from joulelab.analysis.result import Result
    from joulelab.control.client import CapDevice, CapStatus
    from joulelab.report.terminal import TextBlock

HEADINGS = ("device", "now", "enforced", "default", "range", "")
# The end of a cap by its outcome.
ENDINGS = {
    "restored": "restored",
    "as found": "unchanged",
    "left": "left as another program set it",
    "failed": "NOT restored: joulelab cap restore",
    "": "not restored yet",
}


def lay_out_cap_status(status: CapStatus) -> list[TextBlock]:
    """Return a line for each device, then the processes that hold caps, then devices that cannot be capped."""
    if status.devices:
        table = make_table(HEADINGS, map(_list_cells, status.devices), left=(0, 5))
        blocks: list[TextBlock] = [table, BLANK_LINE]
    else:
        blocks = [TextLine("No device can be capped here.")]
    held = [(device.scope, _name_holder(device)) for device in status.devices if device.holder or device.leftover]
    return [*blocks, list_facts([*held, *status.missing])]


def list_cap_facts(result: Result) -> list[tuple[str, str]]:
    """List the caps that a run set; devices with equal caps share a line."""
    equal: dict[tuple[float, float | None, str, int, str], list[str]] = {}
    for cap in result.caps:
        equal.setdefault((cap.asked, cap.found, cap.unit, cap.changes, cap.outcome), []).append(cap.scope)
    facts = []
    for (asked, found, unit, changes, outcome), scopes in equal.items():
        last = f", the last of {changes + 1} tried" if changes else ""
        before = "free before" if found is None else f"{format_cap(found, unit)} before"
        what = "clocks locked at" if unit == "Hz" else "capped at"
        text = f"{join_scopes(scopes)} {what} {format_cap(asked, unit)}{last}; {before}, {ENDINGS[outcome]}"
        facts.append(("caps", text))
    return facts


def format_cap(value: float | None, unit: str) -> str:
    """Return `170 W` or `1,410 MHz`."""
    if value is None:
        return "-"
    return f"{value / 1e6:,.0f} MHz" if unit == "Hz" else f"{format_plain(value, 4)} W"


def _list_cells(device: CapDevice) -> tuple[str, ...]:
    limits = f"{format_cap(device.lowest, device.unit).split()[0]} to {format_cap(device.highest, device.unit)}"
    name = device.scope if device.kind == "power" else f"{device.scope} clocks"
    values = (format_cap(value, device.unit) for value in (device.requested, device.enforced, device.default))
    return (name, *values, limits, device.model if device.kind == "power" else "")


def _name_holder(device: CapDevice) -> str:
    if device.holder:
        return f"held by {device.holder}"
    if device.leftover and device.leftover.get("problem"):
        return f"a cap was left behind: {device.leftover['problem']}"
    if device.leftover and device.leftover.get("is_restored"):
        file, then = device.leftover.get("journal"), "make its folder writable, then: joulelab cap restore"
        return f"back at its original setting; only the journal of its cap is left: {file}\n-> {then}"
    return "a cap was left behind, and no process holds it\n-> joulelab cap restore"
