"""Make the grid of caps that tuning chooses from, and say what to ask for on which GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from joulelab.control.client import CapRequest
from joulelab.core.errors import ConfigError, Refused
from joulelab.study.knobs import Value, read_caps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapDevice, CapStatus

STEPS = 16  # of the grid where none is given: about so many
ROUND_W = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class Grid:
    """Hold the caps to choose from, by the watts that they are on one GPU, and the GPUs they are set on."""

    scopes: tuple[str, ...]
    values: Mapping[float, Value]

    @property
    def watts(self) -> list[float]:
        """Return the caps in W, the lowest first."""
        return sorted(self.values)

    @property
    def reference(self) -> float:
        """Return what is compared with: the highest cap."""
        return max(self.values)

    @property
    def shown(self) -> dict[float, str]:
        """Return each cap in words."""
        return {w: v.label if v.unit == "W" else f"{v.text} ({w:.0f} W)" for w, v in self.values.items()}

    def wishes(self, cap: float) -> list[CapRequest]:
        """Return what to ask the keeper for."""
        value = self.values[cap]
        unit: Literal["W", "share"] = "share" if value.unit == "share" else "W"
        return [CapRequest(scope, float(value.value), unit) for scope in self.scopes]


def make_grid(status: CapStatus, scopes: Sequence[str], text: str | None) -> Grid:
    """Return the caps that a text names, or the GPUs' range up to their default in round steps.

    Raises ConfigError for what cannot be read, Refused for a cap that a GPU does not allow.
    """
    there = [d for d in status.devices if d.scope in scopes and d.kind == "power"]
    without = [scope for scope in scopes if scope not in {d.scope for d in there}]
    if without or not there:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing) or None
        raise Refused(f"{', '.join(without) or 'nothing'} cannot be capped", where="tune", why=why)
    lowest, highest = max(d.lowest for d in there), min(d.highest for d in there)
    default = min(highest if d.default is None else min(d.default, d.highest) for d in there)
    values = read_caps(text) if text is not None else _usual(lowest, default)
    grid = Grid(tuple(scopes), {_watts(value, default): value for value in values})
    for watts in grid.watts:
        if not lowest - 0.5 <= watts <= highest + 0.5:
            raise Refused(
                f"{grid.shown[watts]} is out of range",
                where="--cap",
                why=f"{_names(there)} takes {lowest:.0f} to {highest:.0f} W",
            )
    if len(grid.values) < 2:
        raise ConfigError("there is nothing to choose from", where="--cap", next="name at least two caps: 100:260:10")
    return grid


def _watts(value: Value, default: float) -> float:
    number = float(value.value)
    return round(number * default, 3) if value.unit == "share" else number


def _usual(lowest: float, highest: float) -> tuple[Value, ...]:
    """Return both ends and what is round between them."""
    step = min(ROUND_W, key=lambda w: abs(math.log(w * STEPS / max(highest - lowest, 1e-9))))
    inner = [k * step for k in range(math.ceil(lowest / step), math.floor(highest / step) + 1)]
    apart = [w for w in inner if lowest + step / 2 <= w <= highest - step / 2]
    return read_caps(",".join(f"{w:g}" for w in [lowest, *apart, highest]))


def _names(there: Sequence[CapDevice]) -> str:
    return " + ".join(dict.fromkeys(d.model for d in there))
