"""Hold what a kWh costs or emits over time; every figure carries what it is, so that kinds are never mixed.

A rate is a step function of UTC. Constants, annual tables, series from files or services, and tariffs by the hour all
are rates; whoever accounts asks for means between edges and gets an error, never a guess, where a rate is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.text import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats

# Carbon by the average of all generation or by what one kWh more causes; money. They are never added or compared.
Kind = Literal["average", "marginal", "price"]
MOST = 1e9  # per kWh: no currency and no way to make electricity comes near it


@dataclass(frozen=True, slots=True)
class Label:
    """Say what a rate is: for tables, JSON and statements. `covers` is direct or lifecycle emissions, or empty.

    `unit` is g/kWh for carbon, CURRENCY/kWh for money. `u_rel` is the standard uncertainty as a share, None where
    nobody states it. `issued_utc_s` is when a forecast was made, None for actual values.
    """

    kind: Kind
    unit: str
    name: str
    zone: str = ""
    covers: Literal["direct", "lifecycle", ""] = ""
    source: str = ""
    licence: str = ""
    resolution_s: float | None = None
    time_zone: str = "UTC"
    u_rel: float | None = None
    issued_utc_s: float | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        # All of it is shown, and much of it is from files and services of others.
        for name in ("unit", "name", "zone", "source", "licence", "time_zone"):
            object.__setattr__(self, name, escape_unprintable(getattr(self, name)))
        object.__setattr__(self, "notes", tuple(escape_unprintable(note) for note in self.notes))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {k: getattr(self, k) for k in self.__dataclass_fields__} | {"notes": list(self.notes)}


def check_size(values: Sequence[float] | Floats, label: Label) -> None:
    """Refuse values that no rate has: they are a slip, and sums of them are no numbers. Raises ConfigError."""
    sizes = np.abs(np.asarray(values, dtype=np.float64))
    if (sizes > MOST).any():
        what, where = f"{np.nanmax(sizes):.3g} {label.unit} is no rate", label.source or label.name
        raise ConfigError(what, where=where, why=f"it is above {MOST:g}", next="correct the value, or its unit")


class Rate(Protocol):
    """Tell a rate over time."""

    @property
    def label(self) -> Label:
        """Return what it is."""
        ...

    def changes(self, since_s: float, until_s: float) -> Floats:
        """Return the times (s since 1970) strictly between two at which it may change, ascending."""
        ...

    def means(self, edges_s: Floats) -> Floats:
        """Return its mean between each two of ascending times. Raises ConfigError where it is not known."""
        ...
