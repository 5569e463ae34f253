"""Say what runtime x rated power would have said, and how far that is from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.terms import Quantity
from joulelab.core.scope import family

if TYPE_CHECKING:
    from collections.abc import Sequence

HOW = "to tell it: rated_w = WATTS below [node] of joulelab.toml"
MOST = 4  # scopes that are named


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
    the scopes that were measured and whose rated power nobody tells.
    """

    devices: tuple[Rated, ...] = ()
    duration_s: float = 0.0
    measured: Quantity | None = None
    unknown: tuple[str, ...] = ()

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

    def power_told(self) -> str:
        """Return the rated power in words: `8 x 700 W`, `2 x 350 W + 8 x 700 W`."""
        counts: dict[float, int] = {}
        for device in self.devices:
            counts[device.watts] = counts.get(device.watts, 0) + 1
        return " + ".join(f"{n} x {_plain(w)} W" if n > 1 else f"{_plain(w)} W" for w, n in counts.items())

    def told(self) -> str:
        """Return the estimate and how far off it is in one line; what is not known with how to tell it."""
        ratio = self.ratio
        if ratio is None:
            if not self.unknown:
                return "none: no energy was measured that it could be compared with"
            return f"unknown: the rated power of {_some(self.unknown)} is not recorded; {HOW}"
        power = self.power_told()
        power = f"({power})" if " + " in power else power
        sources = ", ".join(dict.fromkeys(device.source for device in self.devices))
        of = f"what {self.families} used" if self.unknown else "what was measured"
        return f"{power} x {_time(self.duration_s)} = {_energy(self.energy_j)}: {_times(ratio)} times {of} ({sources})"

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
            "told": self.told(),
        }


def _some(scopes: Sequence[str]) -> str:
    more = len(scopes) - MOST
    return ", ".join(scopes[:MOST]) + (f" and {more} more" if more > 0 else "")


def _times(ratio: Quantity) -> str:
    """Return a ratio with digits after its uncertainty."""
    if ratio.expanded is None:
        return f"{_plain(ratio.value)} (accuracy unknown)"
    if ratio.expanded == 0:
        return _plain(ratio.value)
    decimals = min(max(1 - math.floor(math.log10(max(ratio.expanded, 1e-3))), 0), 3)
    return f"{ratio.value:.{decimals}f} ± {ratio.expanded:.{decimals}f}"


def _energy(joules: float) -> str:
    factor, unit = next((f, u) for f, u in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (0.0, "J")) if joules >= f)
    kwh = f" ({_plain(joules / 3.6e6)} kWh)" if joules >= 3.6e5 else ""
    return f"{_plain(joules / (factor or 1.0))} {unit}{kwh}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{_plain(seconds)} s"
    return f"{_plain(seconds / 60)} min" if seconds < 6000 else f"{_plain(seconds / 3600)} h"


def _plain(value: float) -> str:
    """Return a number with three digits, whole ones whole, without an exponent."""
    if value == round(value) and value < 1e6:
        return f"{value:.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"
