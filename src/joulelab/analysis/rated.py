"""Hold what runtime x rated power would have said, and how far that is from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulelab.core.quantity import Quantity
from joulelab.core.scope import family


@dataclass(frozen=True, slots=True)
class Rated:
    """Hold the rated power of one scope (W) and where it is known from."""

    host: str
    scope: str
    watts: float
    source: str


@dataclass(frozen=True, slots=True)
class RatedResult:
    """Hold what runtime x rated power says of the `devices`: energy (J), and its ratio to what they used.

    `measured` is what they used (J), None where nothing was measured of which the rated power is known. `unknown` are
    the scopes that were measured and whose rated power nobody tells, `unused` those that were measured and that the
    workload was not shown: neither their rated power nor what they used is in it.
    """

    devices: tuple[Rated, ...] = ()
    duration_s: float = 0.0
    measured: Quantity | None = None
    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def watts(self) -> float:
        """Return the rated power of all these devices together, in W."""
        return sum(device.watts for device in self.devices)

    @property
    def energy_j(self) -> float:
        """Return what runtime x rated power says, in J."""
        return self.watts * self.duration_s

    @property
    def families(self) -> str:
        """Return what kinds of devices these are: `gpu`, `gpu + cpu`."""
        return " + ".join(dict.fromkeys(family(device.scope) for device in self.devices))

    @property
    def ratio(self) -> Quantity | None:
        """Return how many times what was measured that is, None where either is unknown."""
        if self.measured is None or self.measured.value <= 0:
            return None
        return Quantity(self.energy_j).ratio(self.measured)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: watts, energy in J, ratio, devices with their sources, what is unknown."""
        known = bool(self.devices)
        return {
            "rated_w": self.watts if known else None,
            "energy_j": self.energy_j if known else None,
            "measured": None if self.measured is None else self.measured.to_json(),
            "ratio": None if self.ratio is None else self.ratio.to_json(),
            "devices": [
                {"host": d.host, "scope": d.scope, "rated_w": d.watts, "source": d.source} for d in self.devices
            ],
            "unknown": list(self.unknown),
            "unused": list(self.unused),
        }
