"""Hold the caps, clocks and numbers of GPUs that cells ask for against what the devices here take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, Refused
from joulelab.study import devices
from joulelab.study.nodes import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.control.client import Device, Status, Wish
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.refusals import Refusals

CAPS = ("cap", "clock", "cpu_cap")
MOST_SHOWN = 5
SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class _Asked:
    """Name a knob of cells: that of all workloads, or of one; the node type where it has a name."""

    knob: str
    workload: str
    node: str

    @property
    def label(self) -> str:
        """Return it in words."""
        node = f" on {self.node}" if self.node != LOCAL else ""
        return f"knob {self.knob}{node}"


@dataclass(frozen=True, slots=True)
class _Reason:
    """Hold why a device does not take values: what cannot be done with it, why, and what to do."""

    what: str
    why: str | None
    next: str | None = None


@dataclass(slots=True)
class _Refused:
    """Collect values that devices do not take, to tell them together: one line for all that are alike."""

    found: dict[tuple[_Asked, _Reason], dict[str, dict[str, None]]] = field(default_factory=dict)

    def note(self, asked: _Asked, reason: _Reason, device: str, value: str) -> None:
        self.found.setdefault((asked, reason), {}).setdefault(device, {})[value] = None

    def tell(self, refusals: Refusals) -> None:
        for (asked, reason), by_device in self.found.items():
            alike: dict[tuple[str, ...], list[str]] = {}
            for device, values in by_device.items():
                alike.setdefault(tuple(values), []).append(device)
            for texts, scopes in alike.items():
                at = f" at {_several(texts)}" if any(texts) else ""
                error = Refused(f"{', '.join(scopes)} {reason.what}{at}", why=reason.why, next=reason.next)
                refusals.add(error, refusals.knob(asked.knob, asked.workload), asked.label, SWEEP)


def check_cells(cells: Sequence[PlannedCell], seen: devices.Visible, status: Status | None, refusals: Refusals) -> None:
    """Refuse more GPUs than are visible, and what devices do not take; where their `status` is known, their ranges."""
    there = () if status is None else status.devices
    packages = list(dict.fromkeys(d.scope for d in there if d.scope.startswith("cpu:")))
    few: dict[_Asked, dict[str, ConfigError]] = {}
    refused = _Refused()
    checked: set[tuple[_Asked, Value, tuple[str, ...]]] = set()
    for cell in cells:
        count = cell.knobs["gpus"] if "gpus" in cell.knobs else None
        try:
            used = seen.first(None if count is None else int(count.value))
        except ConfigError as error:
            assert count is not None
            few.setdefault(_asked("gpus", cell, refusals), {})[count.text] = error
            continue
        for name in (name for name in CAPS if name in cell.knobs and status is not None):
            one = _asked(name, cell, refusals), cell.knobs[name], used.scopes
            if one not in checked:
                checked.add(one)
                _check_value(one[0], one[1], used, packages, status, refused, refusals)
    for asked, errors in few.items():
        first = next(iter(errors.values()))
        _add(refusals, ConfigError(f"{_several(list(errors))} GPUs are asked for", why=first.why), asked)
    refused.tell(refusals)


def _asked(knob: str, cell: PlannedCell, refusals: Refusals) -> _Asked:
    own = len(refusals.knob(knob, cell.workload.name)) > 2
    return _Asked(knob, cell.workload.name if own else "", cell.workload.node_type)


def _add(refusals: Refusals, error: ConfigError, asked: _Asked) -> None:
    option = f"--{asked.knob.replace('_', '-')}"
    refusals.add(error, refusals.knob(asked.knob, asked.workload), asked.label, option)


def _check_wish(asked: _Asked, wish: Wish, status: Status, refused: _Refused) -> None:
    kind = "clocks" if wish.unit == "Hz" else "power"
    device = next((d for d in status.devices if d.scope == wish.device and d.kind == kind), None)
    what = f"cannot be {'locked to a clock' if kind == 'clocks' else 'capped'}"
    if device is None:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing) or None
        refused.note(asked, _Reason(what, why, "joulelab cap status"), wish.device, "")
        return
    if wish.unit == "share" and device.default is None:
        refused.note(asked, _Reason("has no default", None, "give its cap in W"), wish.device, "")
        return
    value = wish.value * (device.default or 0.0) if wish.unit == "share" else wish.value
    if not device.lowest - 0.5 <= value <= device.highest + 0.5:
        refused.note(asked, _Reason(what, _range(device)), wish.device, _text(value, device))


def _range(device: Device) -> str:
    lowest, highest = _text(device.lowest, device), _text(device.highest, device)
    return f"{device.model or 'it'} takes {lowest} to {highest}"


def _text(value: float, device: Device) -> str:
    return f"{value / 1e6:.0f} MHz" if device.unit == "Hz" else f"{value:.0f} W"


def _several(texts: Sequence[str]) -> str:
    if len(texts) <= MOST_SHOWN:
        return ", ".join(texts)
    return f"{', '.join(texts[: MOST_SHOWN - 2])}, ... {texts[-1]}"
