"""Hold what a client asks a keeper for and is told: the fields of the frames, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Told:
    """Come from a frame, and go to JSON."""

    __slots__ = ()

    @classmethod
    def of(cls, frame: Mapping[str, Any]) -> Self:
        """Return what a frame tells; fields of a newer keeper are left out."""
        return cls(**{f.name: frame[f.name] for f in fields(cls) if f.name in frame})  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True)
class Wish(_Told):
    """Ask for a device (`gpu:0`, `cpu:1`, a UUID) to be limited: in W, as a share of its default, or in Hz."""

    device: str
    value: float
    unit: Literal["W", "share", "Hz"] = "W"


@dataclass(frozen=True, slots=True)
class Held(_Told):
    """Tell what is set on a device; values in `unit`, `found` is what will be put back (None: clocks are free)."""

    scope: str
    device: str
    model: str
    kind: str
    asked: float
    requested: float | None
    enforced: float | None
    found: float | None
    default: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Released(_Told):
    """Tell what became of a device, and in a sentence why; values in `unit`, None where nothing is set or read."""

    scope: str
    device: str
    outcome: Literal["restored", "as found", "left", "failed"]
    found: float | None
    now: float | None
    unit: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Device(_Told):
    """Tell of a device that can be limited: its range, what is set, who holds it, what was left behind."""

    scope: str
    device: str
    model: str
    kind: str
    unit: str
    lowest: float
    highest: float
    default: float | None
    requested: float | None
    enforced: float | None
    holder: str | None = None
    leftover: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Status(_Told):
    """Tell of all devices, and why others cannot be limited."""

    devices: list[Device] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
