"""Take readings out of what smart plugs answer: pure functions over JSON, which raise rather than guess."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from joulelab.core.errors import Denied, ReadFailed, Unavailable

NAN = math.nan
HIGHEST_W = 25_000.0  # of a clamp on a 100 A circuit; a plug ends at 3.7 kW
# Components of Shelly devices that measure, each with its keys: power, energy, apparent power, factor.
SHELLY = {
    "switch": ("apower", "aenergy", "aprtpower", "pf"),
    "pm1": ("apower", "aenergy", "aprtpower", "pf"),
    "em1": ("act_power", "", "aprt_power", "pf"),
}


@dataclass(frozen=True, slots=True)
class PlugRow:
    """Hold one reading in SI, NaN for what the plug has not; `quanta` are the steps of W and J that it shows."""

    power_w: float
    energy_j: float = NAN
    apparent_va: float = NAN
    power_factor: float = NAN
    voltage_v: float = NAN
    current_a: float = NAN
    quanta: tuple[float, float] = (1.0, 3600.0)

    def values(self) -> tuple[float, ...]:
        """Return the channels."""
        return (
            self.power_w, self.energy_j, self.apparent_va, self.power_factor, self.voltage_v, self.current_a
        )  # fmt: skip


def shelly(status: Any, component: str, channel: int) -> PlugRow:
    """Return the reading of one component in an answer to Shelly.GetStatus. Raises ReadFailed."""
    found = status.get(f"{component}:{channel}") if isinstance(status, dict) else None
    if not isinstance(found, dict):
        raise ReadFailed("the plug's answer lacks what it had", why=f"{component}:{channel}")
    if found.get("errors"):
        raise ReadFailed("the plug reports a fault", why=", ".join(map(str, found["errors"]))[:80])
    power, energy, apparent, factor = SHELLY[component]
    counter, unit = found.get(energy), "total"
    if component == "em1":
        counter, unit = status.get(f"em1data:{channel}"), "total_act_energy"
    total = counter.get(unit) if isinstance(counter, dict) else None
    watts = needed(found.get(power), f"{component}:{channel}.{power}", 0.0, HIGHEST_W)
    return PlugRow(
        watts,
        NAN if total is None else 3600.0 * needed(total, "energy", 0.0, 1e9),
        optional(found.get(apparent), HIGHEST_W),
        optional(found.get(factor), 1.0),
        optional(found.get("voltage"), 1000.0),
        optional(found.get("current"), 1000.0),
        (_step(found[power]), 3600.0 * _step(total) if total is not None else 3600.0),
    )


def shelly_components(status: Any) -> list[str]:
    """Return the components that measure power (switch:0, em1:1)."""
    if not isinstance(status, dict):
        raise ReadFailed("the plug's answer is no status", why="not an object")
    return [
        name
        for name, found in status.items()
        if (kind := name.partition(":")[0]) in SHELLY and isinstance(found, dict) and SHELLY[kind][0] in found
    ]


def tasmota(answer: Any, channel: int) -> PlugRow:
    """Return the reading in a Tasmota status or sensor message. Raises ReadFailed, Denied, Unavailable."""
    if not isinstance(answer, dict):
        raise ReadFailed("the plug's answer is no status", why="not an object")
    if "WARNING" in answer:
        raise Denied(
            "the plug refuses us", why="it wants a user and a password", next="check user and password of its web page"
        )
    found = answer.get("StatusSNS", answer)
    energy = found.get("ENERGY") if isinstance(found, dict) else None
    if not isinstance(energy, dict):
        if isinstance(found, dict) and "Time" in found:
            raise Unavailable(
                "the plug measures no energy", why="its status has no ENERGY", next="use a plug with a meter"
            )
        raise ReadFailed("the plug's answer lacks what it had", why="ENERGY")

    def one(key: str) -> Any:
        value = energy.get(key)
        if isinstance(value, list):
            return value[channel] if channel < len(value) else None
        return value if channel == 0 else None

    total, watts = one("Total"), needed(one("Power"), "ENERGY.Power", 0.0, HIGHEST_W)
    # One total serves all channels unless each has its own.
    return PlugRow(
        watts,
        NAN if total is None else 3.6e6 * needed(total, "ENERGY.Total", 0.0, 1e6),
        optional(one("ApparentPower"), HIGHEST_W),
        optional(one("Factor"), 1.0),
        optional(one("Voltage"), 1000.0),
        optional(one("Current"), 1000.0),
        (_step(one("Power")), 3.6e6 * _step(total) if total is not None else 3600.0),
    )


def needed(value: Any, name: str, low: float, high: float) -> float:
    """Return a number within bounds. Raises ReadFailed."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        shown = f"{value:g}" if isinstance(value, float) else type(value).__name__
        raise ReadFailed("the plug gives no reading", why=f"{name} is {shown}")
    return float(value)


def optional(value: Any, high: float) -> float:
    """Return a number within bounds, NaN for anything else: the power does not depend on it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e-9 <= value <= high:
        return NAN
    return float(value)


def _step(value: Any) -> float:
    digits = repr(float(value))
    return 10.0 ** -len(digits.partition(".")[2]) if "e" not in digits and not digits.endswith(".0") else 1.0
