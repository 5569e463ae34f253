"""Say how far a gain may be off because forecasts are: by earlier forecasts of the series and what came of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.rates.steps import Steps
    from joulelab.plan.when.baselines import Way
    from joulelab.plan.when.slots import Slots


@dataclass(frozen=True)
class Scatter:
    """Hold the gain of a way against another if this forecast were off as earlier ones were, one for each of these."""

    gains: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        gains = list(self.gains)
        return {"forecasts": len(gains), "gains": gains, "lowest": min(gains), "highest": max(gains)}


def scatter_of(
    way: Way, against: Way, slots: Slots, pairs: Sequence[tuple[Steps, Steps]], *, issued_s: float
) -> Scatter | None:
    """Return the gain under the errors of earlier forecasts (each with what came), None where none is long enough.

    An error belongs to how far ahead it was: hour 30 of a forecast is off as hour 30 of the others was. A carbon
    intensity is not taken below 0.
    """
    gains = []
    for forecast, actual in pairs:
        values = _as_if(slots, forecast, actual, issued_s)
        if values is None:
            continue
        base = float(against.energy_j @ values)
        if base > 0:
            gains.append(1.0 - float(way.energy_j @ values) / base)
    return Scatter(tuple(gains)) if gains else None


def _as_if(slots: Slots, forecast: Steps, actual: Steps, issued_s: float) -> Floats | None:
    """Return the rates of slots, off as another forecast was as far ahead; None where that one is too short."""
    then_s = forecast.label.issued_utc_s
    edges = slots.edges_s - issued_s + (forecast.since_s if then_s is None else then_s)
    try:
        values = slots.values + actual.means(edges) - forecast.means(edges)
    except ConfigError:
        return None
    found: Floats = values if slots.label.kind == "price" else np.maximum(values, 0.0)
    return found
