"""Say what a setter is: the one interface between the keeper and devices whose power or clocks can be limited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from joulelab.core.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

# What can be read back and put back, SI: {"cap_w": 170.0}; clocks that are not locked are {}.
Setting = Mapping[str, float]
Kind = Literal["power", "clocks"]
# What to do where a setting is refused for lack of rights.
WAYS = "run as root, or ask for capd (sudo joulelab capd; docs/how-to/capd.md)"
# What devices round to. A clock that was locked is known from our own record, not from the device.
_WATTS, _SHARE, _HERTZ = 0.5, 0.003, 1e6


class OutOfBounds(Refused):
    """Report what a device does not take or a user may not: asking again does not help."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold what a device takes, and its default (None: it has none), in W or Hz."""

    lowest: float
    highest: float
    default: float | None
    unit: Literal["W", "Hz"]

    @property
    def text(self) -> str:
        """Return the range for people: `100 to 260 W`."""
        scale, unit = (1.0, "W") if self.unit == "W" else (1e-6, "MHz")
        return f"{self.lowest * scale:.10g} to {self.highest * scale:.10g} {unit}"

    def check(self, value: float, scope: str) -> None:
        """Raise OutOfBounds, with the range, for a value that is not within it."""
        # A device may tell its own limit to a whole milliwatt only.
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
    """Limit one device. Only the keeper calls `set`."""

    @property
    def device(self) -> str:
        """Return what lock and journal go by: unique on the machine, the same after a reboot."""
        ...

    @property
    def scope(self) -> str:
        """Return `gpu:0`."""
        ...

    @property
    def model(self) -> str:
        """Return the device's name."""
        ...

    @property
    def kind(self) -> Kind:
        """Return what is limited."""
        ...

    def limits(self) -> Limits:
        """Return what the device takes. Raises Denied, ReadFailed, DeviceLost."""
        ...

    def get(self) -> Setting:
        """Return what is requested now. Raises Denied, ReadFailed, DeviceLost."""
        ...

    def enforced(self) -> float | None:
        """Return the limit in force (W or Hz), None where the device does not tell. Raises as `get`."""
        ...

    def setting(self, value: float) -> Setting:
        """Return the setting that asks for `value` (W or Hz), given what is there now. Raises Refused, and as `get`."""
        ...

    def set(self, setting: Setting) -> None:
        """Ask the device for a setting, never clipped. Raises Denied, Refused, ReadFailed, DeviceLost."""
        ...

    def default(self) -> Setting | None:
        """Return what the device falls back to when it forgets, None where that is not known. Raises as `get`."""
        ...


@dataclass(slots=True)
class Opened:
    """Hold the setters of one family, and (scope, reason) of what cannot be set; closed once, twice is harmless."""

    setters: list[Setter] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    on_close: Callable[[], Any] | None = None

    def close(self) -> None:
        """Let go of the library."""
        if self.on_close is not None:
            self.on_close()
            self.on_close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def same(a: Setting, b: Setting) -> bool:
    """Return whether two settings are equal within what devices round to: 0.5 W or 0.3 %, 1 MHz."""
    return a.keys() == b.keys() and all(_close(key, a[key], b[key]) for key in a)


def _close(key: str, one: float, other: float) -> bool:
    if key.endswith("_w"):
        return math.isclose(one, other, rel_tol=_SHARE, abs_tol=_WATTS)
    return math.isclose(one, other, rel_tol=0.0, abs_tol=_HERTZ if key.endswith("_hz") else 0.0)
