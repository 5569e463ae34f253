"""Check a plan before anything runs: meters, GPUs, the ranges of caps, temperatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulelab import workloads
from joulelab.core.errors import ConfigError, Refused
from joulelab.study import cooling, devices, executors
from joulelab.study.measurable import check_meters
from joulelab.study.nodes import LOCAL, NodeType
from joulelab.study.recording import run_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import Device, Status, Wish
    from joulelab.study.folder import Plan, Settings
    from joulelab.study.matrix import PlannedCell

CAPS = frozenset(("cap", "clock", "cpu_cap"))


def check_plan(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Check what can be checked beforehand; return what is to be warned of. Raises ConfigError, Refused.

    What runs here is checked against this machine, what runs elsewhere by its executor.
    """
    nodes = plan.nodes or {LOCAL: NodeType()}
    _check_workloads(plan)
    run_options(plan.settings, environ, Path())
    warnings = [text for name in _executors(nodes) for text in executors.check(name, nodes, environ)]
    here = {name for name, node in nodes.items() if node.executor == LOCAL}
    local = [cell for cell in plan.cells if cell.workload.node_type in here]
    if not local:
        return warnings
    for name in here:
        own = {**environ, **nodes[name].environment}
        _check_devices([cell for cell in local if cell.workload.node_type == name], own)
    _check_cooling(plan.settings)
    return warnings + check_meters(plan.settings, environ, plan.scope)


def _check_workloads(plan: Plan) -> None:
    """Refuse notebooks and reference workloads that cannot be run by this Python: jobs run by the same."""
    seen: set[tuple[str, ...]] = set()
    for cell in (cell for cell in plan.cells if cell.workload.kind):
        if cell.workload.command not in seen:
            seen.add(cell.workload.command)
            workloads.check(cell.workload.kind, cell.argv(), (plan.file or Path()).parent)


def _executors(nodes: Mapping[str, NodeType]) -> list[str]:
    return [name for name in dict.fromkeys(node.executor for node in nodes.values()) if name != LOCAL]


def _check_devices(cells: Sequence[PlannedCell], environ: Mapping[str, str]) -> None:
    knobs = {name for cell in cells for name in cell.knobs}
    if knobs & {"gpus", *CAPS}:
        _check_cells(cells, devices.look(environ), _status(environ) if knobs & CAPS else None)


def _status(environ: Mapping[str, str]) -> Status:
    from joulelab.control.client import Caps

    with Caps(environ) as caps:
        return caps.status()


def _check_cells(cells: Sequence[PlannedCell], seen: devices.Visible, status: Status | None) -> None:
    there = () if status is None else status.devices
    packages = list(dict.fromkeys(d.scope for d in there if d.scope.startswith("cpu:")))
    checked: set[Wish] = set()
    for cell in cells:
        count = cell.knobs["gpus"].value if "gpus" in cell.knobs else None
        used = seen.first(None if count is None else int(count))
        if status is None or not CAPS & set(cell.knobs):
            continue
        for wish in devices.wishes(cell.knobs, used, packages):
            if wish not in checked:
                checked.add(wish)
                _check_wish(wish, status)


def _check_wish(wish: Wish, status: Status) -> None:
    kind = "clocks" if wish.unit == "Hz" else "power"
    device = next((d for d in status.devices if d.scope == wish.device and d.kind == kind), None)
    what = "locked to a clock" if kind == "clocks" else "capped"
    if device is None:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing) or None
        raise Refused(f"{wish.device} cannot be {what}", where="sweep", why=why, next="joulelab cap status")
    value = wish.value * (device.default or 0.0) if wish.unit == "share" else wish.value
    if wish.unit == "share" and device.default is None:
        raise Refused(f"{wish.device} has no default", where="sweep", next="give its cap in W")
    if not device.lowest - 0.5 <= value <= device.highest + 0.5:
        raise Refused(f"{wish.device} cannot be {what} at {_text(value, device)}", where="sweep", why=_range(device))


def _range(device: Device) -> str:
    lowest, highest = _text(device.lowest, device), _text(device.highest, device)
    return f"{device.model} takes {lowest} to {highest}"


def _text(value: float, device: Device) -> str:
    return f"{value / 1e6:.0f} MHz" if device.unit == "Hz" else f"{value:.0f} W"


def _check_cooling(settings: Settings) -> None:
    if settings.cool_c is None:
        return
    with cooling.thermometer() as gauge:
        if not gauge.scopes:
            raise ConfigError(
                "no GPU tells its temperature here", where="--cool", next="wait for a time instead: --cool 60s"
            )
