"""Hold the caps, clocks and numbers of GPUs that cells ask for against what the devices here take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, Refused
from joulelab.study import devices
from joulelab.study.nodes import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.control.client import CapDevice, CapRequest, CapStatus
    from joulelab.instruments.visible import VisibleGpus
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.refusals import Refusals
    from joulelab.study.values import Value

CAP_KNOBS = ("cap", "clock", "cpu_cap")
MOST_SHOWN = 5


def check_limits(cells: Sequence[PlannedCell], seen: VisibleGpus, status: CapStatus | None, refusals: Refusals) -> None:
    """Refuse more GPUs than are visible, and what devices do not take; without a `status` nobody knows their ranges."""
    limits = _Limits(seen, status, refusals)
    for cell in cells:
        limits.check(cell)
    limits.tell()


@dataclass(frozen=True, slots=True)
class _Asked:
    """Name a knob on a node type: that of all workloads, or of the one that is named."""

    knob: str
    workload: str
    node: str

    @property
    def label(self) -> str:
        return f"knob {self.knob} on {self.node}" if self.node != LOCAL else f"knob {self.knob}"


@dataclass(frozen=True, slots=True)
class _Reason:
    """Hold why a device does not take values: what cannot be done with it, why, and what to do."""

    what: str
    why: str | None
    next: str | None = None


class _Limits:
    """Check cells one after another; what is refused alike is told in one line at the end."""

    def __init__(self, seen: VisibleGpus, status: CapStatus | None, refusals: Refusals) -> None:
        self._seen, self._status, self._refusals = seen, status, refusals
        there = () if status is None else status.devices
        self._packages = list(dict.fromkeys(d.scope for d in there if d.scope.startswith("cpu:")))
        self._checked: set[tuple[_Asked, Value, tuple[str, ...]]] = set()
        self._few: dict[_Asked, dict[str, ConfigError]] = {}
        self._values: dict[tuple[_Asked, _Reason], dict[str, dict[str, None]]] = {}

    def check(self, cell: PlannedCell) -> None:
        """Hold a cell's knobs against the devices."""
        count = cell.knobs.get("gpus")
        try:
            used = self._seen.take_first(None if count is None else int(count.value))
        except ConfigError as error:
            self._few.setdefault(self._asked("gpus", cell), {})[str(count and count.text)] = error
            return
        for name in (name for name in CAP_KNOBS if name in cell.knobs):
            asked, value = self._asked(name, cell), cell.knobs[name]
            if self._status is not None and (asked, value, used.scopes) not in self._checked:
                self._checked.add((asked, value, used.scopes))
                self._check_value(asked, value, used, self._status)

    def tell(self) -> None:
        """Pass on what was refused."""
        for asked, errors in self._few.items():
            why = next(iter(errors.values())).why
            what = f"{_several(list(errors))} GPUs are asked for"
            self._add(ConfigError(what, why=why, code="config.too-many-gpus"), asked)
        for (asked, reason), by_device in self._values.items():
            alike: dict[tuple[str, ...], list[str]] = {}
            for device, values in by_device.items():
                alike.setdefault(tuple(values), []).append(device)
            for texts, scopes in alike.items():
                at = f" at {_several(texts)}" if any(texts) else ""
                what = f"{', '.join(scopes)} {reason.what}{at}"
                code = "refused.out-of-range" if any(texts) else "refused.not-cappable"
                self._add(Refused(what, why=reason.why, next=reason.next, code=code), asked, "sweep")

    def _asked(self, knob: str, cell: PlannedCell) -> _Asked:
        own = self._refusals.knob(knob, cell.workload.name)[0] == "workloads"
        return _Asked(knob, cell.workload.name if own else "", cell.workload.node_type)

    def _add(self, error: ConfigError, asked: _Asked, option: str = "") -> None:
        place = self._refusals.knob(asked.knob, asked.workload)
        self._refusals.add(error, place, asked.label, option or f"--{asked.knob.replace('_', '-')}")

    def _check_value(self, asked: _Asked, value: Value, used: VisibleGpus, status: CapStatus) -> None:
        try:
            wishes = devices.list_cap_requests({asked.knob: value}, used, self._packages)
        except ConfigError as error:
            self._add(error, asked)
            return
        for wish in wishes:
            refused = _refused(wish, status)
            if refused is not None:
                self._values.setdefault((asked, refused[0]), {}).setdefault(wish.device, {})[refused[1]] = None


def _refused(wish: CapRequest, status: CapStatus) -> tuple[_Reason, str] | None:
    """Return why a device does not take a value, and the value in words (empty: it takes none); None if it does."""
    kind = "clocks" if wish.unit == "Hz" else "power"
    device = next((d for d in status.devices if d.scope == wish.device and d.kind == kind), None)
    what = f"cannot be {'locked to a clock' if kind == 'clocks' else 'capped'}"
    if device is None:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing) or None
        return _Reason(what, why, "joulelab cap status"), ""
    if wish.unit == "share" and device.default is None:
        return _Reason("has no default", None, "give its cap in W"), ""
    value = wish.value * (device.default or 0.0) if wish.unit == "share" else wish.value
    if device.lowest - 0.5 <= value <= device.highest + 0.5:
        return None
    return _Reason(what, _range(device)), _text(value, device)


def _range(device: CapDevice) -> str:
    lowest, highest = _text(device.lowest, device), _text(device.highest, device)
    return f"{device.model or 'it'} takes {lowest} to {highest}"


def _text(value: float, device: CapDevice) -> str:
    return f"{value / 1e6:.0f} MHz" if device.unit == "Hz" else f"{value:.0f} W"


def _several(texts: Sequence[str]) -> str:
    if len(texts) <= MOST_SHOWN:
        return ", ".join(texts)
    return f"{', '.join(texts[: MOST_SHOWN - 2])}, ... {texts[-1]}"
