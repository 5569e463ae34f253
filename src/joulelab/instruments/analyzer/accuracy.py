"""State how far a WT300E may be off: from its ranges, the signal's frequency and power factor, and how it is set.

From the makers' Getting Started Guides IM WT310E-02EN and IM WT310-02EN, section 7.3, twelve months, 23 +- 5 degC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GUIDE = "IM WT310E-02EN 7.3"
_LARGE = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_SMALL = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_HIGH = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
VOLT_RANGES = (15.0, 30.0, 60.0, 150.0, 300.0, 600.0)


@dataclass(frozen=True, slots=True)
class Model:
    """Hold what differs between models: elements, current ranges (A) at crest factor 3, and how good they are.

    `mains` is the share of the range at 45 to 66 Hz, `dc` the share of the reading at DC, `phase` that of the apparent
    power at power factor 0.
    """

    elements: tuple[int, ...]
    amperes: tuple[float, ...]
    mains: float = 0.0005
    dc: float = 0.001
    phase: float = 0.001


MODELS = {
    "WT310E": Model((1,), _SMALL + _LARGE),
    "WT310EH": Model((1,), _HIGH, dc=0.003),
    "WT332E": Model((1, 3), _LARGE),
    "WT333E": Model((1, 2, 3), _LARGE),
    "WT310": Model((1,), _SMALL + _LARGE, mains=0.001, phase=0.002),
    "WT310HC": Model((1,), _HIGH, mains=0.001, dc=0.003, phase=0.002),
    "WT332": Model((1, 3), _LARGE, mains=0.001, phase=0.002),
    "WT333": Model((1, 2, 3), _LARGE, mains=0.001, phase=0.002),
}
# Elements that make the sum, by wiring; others measure something else.
SUMMED = {"P1W3": (1, 3), "P3W3": (1, 3), "V3A3": (1, 3), "P3W4": (1, 2, 3)}


@dataclass(frozen=True, slots=True)
class Ranges:
    """Hold the ranges that are set (V, A; NaN for an external sensor) and by what readings are scaled."""

    volts: float
    amperes: float
    scale: float = 1.0

    @property
    def watts(self) -> float:
        """Return the power range, NaN where it is not known."""
        return self.volts * self.amperes * self.scale


@dataclass(frozen=True, slots=True)
class Signal:
    """Hold what matters of the signal and the settings: frequency (NaN: DC), power factor, crest factor, filter."""

    hertz: float
    factor: float
    crest: int = 3
    line_filter: bool = False
    update_s: float = 0.1


def allowed(model: Model, crest: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return voltage (V) and current ranges (A); they halve at crest factor 6."""
    half = 1.0 if crest == 3 else 0.5
    return tuple(half * v for v in VOLT_RANGES), tuple(half * a for a in model.amperes)


def power_accuracy(model: Model, ranges: Ranges, signal: Signal) -> tuple[float, float]:
    """Return half-widths of an element's power: of the reading, and in W."""
    reading, share = _band(model, signal.hertz)
    if not math.isnan(signal.hertz):
        factor = min(max(abs(signal.factor), 0.5), 1.0)
        influence = model.phase + (0.0 if signal.hertz <= 66 else 0.0015 * signal.hertz / 1000)
        reading += influence * math.tan(math.acos(factor))
    if signal.line_filter:
        reading += 0.003 if signal.hertz >= 45 else 0.01
    if signal.update_s <= 0.1:
        reading += 0.0005  # the shortest interval averages few periods
    reading += 1.3e-6 * ranges.amperes**2  # the shunt's own heat, at the most that the range takes
    return reading, share * (1 if signal.crest == 3 else 2) * ranges.watts


def _band(model: Model, hertz: float) -> tuple[float, float]:
    """Return the shares of reading and of range at a frequency."""
    if math.isnan(hertz):
        return model.dc, 0.002
    if hertz < 45:
        return 0.003, 0.002
    if hertz <= 66:
        return 0.001, model.mains
    if hertz <= 1000:
        return 0.002, 0.002
    return 0.001 + 0.0013 * hertz / 1000, 0.005  # beyond 1 kHz: the wider of the models'


def relative(gain: float, offset_w: float, watts: float) -> float:
    """Return how far a reading may be off, as a share of it."""
    return gain + offset_w / abs(watts) if watts else math.inf


def step_w(range_w: float) -> float:
    """Return the last of the five digits of a power range, in W."""
    return 10.0 ** (math.floor(math.log10(range_w)) - 4)
