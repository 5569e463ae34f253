"""Word what runtime x rated power would have said, and how far off that is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import RatedResult
    from joulelab.core.quantity import Quantity

HOW = "to tell it: rated_w = WATTS below [node] of joulelab.toml"
MOST = 4  # scopes that are named
KWH, WORTH_KWH = 3.6e6, 0.1  # J; energies from which they are told in kWh too


def describe_rated(rated: RatedResult) -> str:
    """Return the estimate and how far off it is in one line; what is not known with how to tell it."""
    ratio = rated.ratio
    if ratio is None:
        if not rated.unknown:
            return "none: no energy was measured that it could be compared with"
        return f"unknown: the rated power of {_some(rated.unknown)} is not recorded; {HOW}"
    power = format_rated_power(rated)
    power = f"({power})" if " + " in power else power
    sources = ", ".join(dict.fromkeys(device.source for device in rated.devices))
    of = f"what {rated.families} used" if rated.unknown or rated.unused else "what was measured"
    without = f"; without {_some(rated.unused)}, not shown to the workload" if rated.unused else ""
    estimate = f"{power} x {_time(rated.duration_s)} = {_energy(rated.energy_j)}"
    return f"{estimate}: {format_ratio(ratio)} times {of} ({sources}{without})"


def format_rated_power(rated: RatedResult) -> str:
    """Return the rated power in words: `8 x 700 W`, `2 x 350 W + 8 x 700 W`."""
    counts: dict[float, int] = {}
    for device in rated.devices:
        counts[device.watts] = counts.get(device.watts, 0) + 1
    return " + ".join(
        f"{n} x {fmt.format_fact(w)} W" if n > 1 else f"{fmt.format_fact(w)} W" for w, n in counts.items()
    )


def format_ratio(ratio: Quantity) -> str:
    """Return how many times as much it is, with its interval."""
    return fmt.format_interval(ratio.value, ratio.expanded)


def _energy(joules: float) -> str:
    kwh = f" ({fmt.format_number(joules / KWH, 3)} kWh)" if joules >= WORTH_KWH * KWH else ""
    return f"{fmt.format_rough(joules, 'J')}{kwh}"


def _time(seconds: float) -> str:
    """Return a time in one unit, so that it can be multiplied by eye."""
    factor, unit = (1.0, "s") if seconds < 100 else (60.0, "min") if seconds < 6000 else (3600.0, "h")
    return f"{fmt.format_number(seconds / factor, 3)} {unit}"


def _some(scopes: Sequence[str]) -> str:
    more = len(scopes) - MOST
    return ", ".join(scopes[:MOST]) + (f" and {more} more" if more > 0 else "")
