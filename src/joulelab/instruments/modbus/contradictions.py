"""Compare the values of a Modbus device with each other: a power that the others contradict is no reading."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.core.errors import ReadFailed
from joulelab.instruments.modbus.registers import LEAST_W
from joulelab.instruments.wall import find_draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Values = Mapping[str, float]

CODES = tuple(f"read-failed.{reason}" for reason in ("turned-clamp", "zero-power", "all-zero", "phases", "product"))
# A total is the sum of its phases within this share, and 10 W.
SUM_SHARE = 0.1
# Powers that fit voltage and current, as shares of their product: the filters of idle supplies, three phases.
LEAST_VA, FITTING = 115.0, (0.05, 3.3)


def check_reading(whole: Values, phases: Mapping[str, Values], *, is_outlet: bool) -> None:
    """Raise ReadFailed for a turned clamp and for zeros that are no readings. NaN stands for values that are absent.

    `phases` may be a second older than `whole`: only what no change of the load explains is compared.
    """
    everything = [whole, *phases.values()]
    for scope, phase in phases.items():
        if (watts := phase.get("power_w", 0.0)) < LEAST_W:
            number = scope.rpartition(".")[2]
            advice = f"turn the current transformer of phase {number}, or check which phase it is on"
            raise _refuse("a phase feeds in", f"phase {number} shows {watts:g} W", advice, "turned-clamp")
    if not is_outlet:
        check_zeros(everything)
    if whole.get("power_w") == 0:
        drawn = [text for text in map(find_draw, everything) if text]
        drawn += [f"{scope} has {v['power_w']:g} W" for scope, v in phases.items() if v.get("power_w", 0.0) > -LEAST_W]
        mains = [x for v in everything for name, x in v.items() if name.endswith(("_v", "_hz")) and not math.isnan(x)]
        if mains and not any(mains) and not is_outlet:
            drawn.append("the mains have 0 V")
        if drawn:
            advice = "check the profile, and the device's wiring and transformer settings"
            raise _refuse("power_w is 0 and no reading", drawn[0], advice, "zero-power")


def check_zeros(everything: Sequence[Values]) -> None:
    """Raise ReadFailed where a device answers 0 for several values, and for nothing else another number."""
    numbers = [x for values in everything for x in values.values() if not math.isnan(x)]
    if len(numbers) > 1 and not any(numbers):
        why = f"all {len(numbers)} values are 0"
        raise _refuse("the device measures nothing", why, "check profile, unit_id, shift and stride", "all-zero")


def check_agreement(whole: Values, phases: Mapping[str, Values]) -> None:
    """Raise ReadFailed for a power that is not the sum of its phases, or not near voltage times current.

    A step of the load between two requests looks the same: read again before this counts. Less than three phases may
    be a part of the whole, and are not compared; nor are phases that show 0 (two transformers in a delta).
    """
    watts, parts = whole.get("power_w", math.nan), list(phases.values()) if len(phases) == 3 else []
    total = math.fsum(phase.get("power_w", math.nan) for phase in parts)
    if total and abs(watts - total) > SUM_SHARE * max(watts, total) - LEAST_W:
        why = f"{watts:g} W, and {total:g} W in its phases"
        advice = "check the profile, and the device's wiring setting (3P4W)"
        raise _refuse("power_w is not the sum of the phases", why, advice, "phases")
    product = whole.get("voltage_v", math.nan) * whole.get("current_a", math.nan)
    if math.isnan(product):
        product = math.fsum(v.get("voltage_v", math.nan) * v.get("current_a", math.nan) for v in parts)
    if product > LEAST_VA and watts > 0 and not FITTING[0] <= watts / product <= FITTING[1]:
        why = f"{watts:g} W at {product:g} VA (voltage times current)"
        advice = "compare with its display, and correct unit or scale in a profile of your own"
        raise _refuse("power_w does not fit voltage and current", why, advice, "product")


def _refuse(what: str, why: str, advice: str, reason: str) -> ReadFailed:
    return ReadFailed(what, why=why, next=advice, code=f"read-failed.{reason}")
