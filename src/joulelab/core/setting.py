"""Define setters: the interface between a keeper and the devices whose power or clocks it limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from joulelab.core.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

# The values of one device that are set, read back and restored, in SI: {"cap_w": 170.0}; free clocks are {}.
Setting = Mapping[str, float]
Kind = Literal["power", "clocks"]
# The advice for a user who may not set a device.
GET_PERMISSION = "run as root, or ask for capd (sudo joulelab capd; docs/how-to/capd.md)"
# The rounding of devices. (Locked clocks are read from our own record, not from the device.)
_ROUNDING_W, _ROUNDING_SHARE, _ROUNDING_HZ = 0.5, 0.003, 1e6


class OutOfBounds(Refused):
    """Report a value that the device or the policy does not allow; trying again is useless."""


@dataclass(frozen=True, slots=True)
class SettingLimits:
    """Hold the range of a device and its default (None: it reports none), in W or Hz."""

    lowest: float
    highest: float
    default: float | None
    unit: Literal["W", "Hz"]

    @property
    def text(self) -> str:
        """Return the range in words: `100 to 260 W`."""
        scale, unit = (1.0, "W") if self.unit == "W" else (1e-6, "MHz")
        return f"{self.lowest * scale:.10g} to {self.highest * scale:.10g} {unit}"

    def check_value(self, value: float, scope: str) -> None:
        """Raise OutOfBounds for a value outside the range."""
        # Some devices report their limits in whole milliwatts.
        slack = 1e-3 if self.unit == "W" else 1e3
        if not (math.isfinite(value) and self.lowest - slack <= value <= self.highest + slack):
            scale, unit = (1.0, "W") if self.unit == "W" else (1e-6, "MHz")
            raise OutOfBounds(
                f"{value * scale:.10g} {unit} is out of range",
                where=scope,
                why=f"{scope} takes {self.text}",
                next=f"ask for {self.text}",
                code="refused.out-of-range",
            )


class Setter(Protocol):
    """Limit one device. Only a keeper calls `set`."""

    @property
    def device(self) -> str:
        """Return the name for lock and journal: unique on the machine, the same after a reboot."""
        ...

    @property
    def scope(self) -> str:
        """Return `gpu:0`."""
        ...

    @property
    def model(self) -> str:
        """Return the model of the device."""
        ...

    @property
    def kind(self) -> Kind:
        """Return `power` or `clocks`."""
        ...

    def limits(self) -> SettingLimits:
        """Return the range. Raises Denied, ReadFailed, DeviceLost."""
        ...

    def get(self) -> Setting:
        """Return the requested setting. Raises Denied, ReadFailed, DeviceLost."""
        ...

    def enforced(self) -> float | None:
        """Return the enforced limit (W or Hz), None if the device does not report it. Raises as `get`."""
        ...

    def setting(self, value: float) -> Setting:
        """Return the setting for a limit (W or Hz), based on the current one. Raises Refused, and as `get`."""
        ...

    def set(self, setting: Setting) -> None:
        """Set the device; values are never clipped. Raises Denied, Refused, ReadFailed, DeviceLost."""
        ...

    def default(self) -> Setting | None:
        """Return the setting after a reset of the device, None if unknown. Raises as `get`."""
        ...


@dataclass(slots=True)
class SetterFamily:
    """Hold the open setters of one family, and (scope, reason) of devices that cannot be limited."""

    setters: list[Setter] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    on_close: Callable[[], Any] | None = None

    def close(self) -> None:
        """Close the library; closing twice is harmless."""
        if self.on_close is not None:
            self.on_close()
            self.on_close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_same_setting(a: Setting, b: Setting) -> bool:
    """Return whether two settings are equal within the rounding of devices: 0.5 W or 0.3 %, 1 MHz."""
    return a.keys() == b.keys() and all(_is_close(key, a[key], b[key]) for key in a)


def _is_close(key: str, one: float, other: float) -> bool:
    if key.endswith("_w"):
        return math.isclose(one, other, rel_tol=_ROUNDING_SHARE, abs_tol=_ROUNDING_W)
    return math.isclose(one, other, rel_tol=0.0, abs_tol=_ROUNDING_HZ if key.endswith("_hz") else 0.0)
