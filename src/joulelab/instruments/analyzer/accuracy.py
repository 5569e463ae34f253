"""State the accuracy of a WT300E by its ranges, its settings and the signal, and describe its streams.

From the maker's Getting Started Guides IM WT310E-02EN and IM WT310-02EN, section 7.3, twelve months, 23 +- 5 degC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.analyzer.answers import Element, find_integral_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.spec import AccuracySource
    from joulelab.instruments.analyzer.settings import AnalyzerSettings
    from joulelab.instruments.analyzer.setup import InstrumentState

GUIDE = "IM WT310E-02EN 7.3"
VOLT_RANGES = (15.0, 30.0, 60.0, 150.0, 300.0, 600.0)
_LARGE = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_SMALL = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_HIGH = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
# The error of the integrator, its timer included, on top of the power's gain error.
_INTEGRATOR_GAIN = 0.001
# The error of a current transformer without `ct_gain`.
_ASSUMED_CT_GAIN = 0.005
# An integral has a relative error only: its offset is taken at the power at opening, or at this share of the range.
_LEAST_LOAD = 0.05
# Power factors of servers fall with the load: the one at opening is taken, but none better than this.
_BEST_FACTOR = 0.95


@dataclass(frozen=True, slots=True)
class Model:
    """Hold the differences between models: elements, current ranges (A) at crest factor 3, and errors.

    `mains` is a share of the range at 45 to 66 Hz, `dc` a share of the reading at DC, `phase` a share of the apparent
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
# Elements that sum to the load, by wiring; the others measure something else.
WIRED_ELEMENTS = {"P1W3": (1, 3), "P3W3": (1, 3), "V3A3": (1, 3), "P3W4": (1, 2, 3)}


@dataclass(frozen=True, slots=True)
class Ranges:
    """Hold the ranges of an element (V, A; NaN for an external sensor) and the scale of its readings."""

    volts: float
    amperes: float
    scale: float = 1.0

    @property
    def watts(self) -> float:
        """Return the power range, NaN where it is unknown."""
        return self.volts * self.amperes * self.scale


@dataclass(frozen=True, slots=True)
class Signal:
    """Hold what decides the accuracy beside the range: frequency (NaN: DC), power factor, and settings."""

    hertz: float
    factor: float
    crest: int = 3
    has_line_filter: bool = False
    update_s: float = 0.1


def list_ranges(model: Model, crest: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return voltage (V) and current ranges (A); they halve at crest factor 6."""
    half = 1.0 if crest == 3 else 0.5
    return tuple(half * v for v in VOLT_RANGES), tuple(half * a for a in model.amperes)


def compute_power_errors(model: Model, ranges: Ranges, signal: Signal) -> tuple[float, float]:
    """Return the largest errors of an element's power: as a share of the reading, and in W."""
    hertz = signal.hertz
    if math.isnan(hertz):
        gain, share = model.dc, 0.002
    elif hertz < 45:
        gain, share = 0.003, 0.002
    elif hertz <= 66:
        gain, share = 0.001, model.mains
    elif hertz <= 1000:
        gain, share = 0.002, 0.002
    else:  # the larger of the models' errors
        gain, share = 0.001 + 0.0013 * hertz / 1000, 0.005
    if not math.isnan(hertz):
        factor = min(max(abs(signal.factor), 0.5), 1.0)
        gain += (model.phase + (0.0 if hertz <= 66 else 0.0015 * hertz / 1000)) * math.tan(math.acos(factor))
    if signal.has_line_filter:
        gain += 0.003 if hertz >= 45 else 0.01
    if signal.update_s <= 0.1:
        gain += 0.0005  # the shortest interval averages few periods
    gain += 1.3e-6 * ranges.amperes**2  # the shunt heats itself, most at the end of the range
    return gain, share * (1 if signal.crest == 3 else 2) * ranges.watts


def widen_ranges(state: InstrumentState) -> list[Ranges]:
    """Return the ranges of the elements; with auto range the widest current range."""
    if not state.is_auto:
        return list(state.ranges.values())
    largest = max(list_ranges(state.model, state.crest)[1])
    return [replace(r, amperes=largest) for r in state.ranges.values()]


def build_streams(settings: AnalyzerSettings, state: InstrumentState, values: Sequence[Element]) -> list[Stream]:
    """Describe one stream per element, by the values at opening. Raises ConfigError."""
    hertz = [e.hertz for e in values if math.isfinite(e.hertz)]
    factors = [abs(e.factor) for e in values if math.isfinite(e.factor)]
    frequency = math.nan if state.is_dc or not hertz else median(hertz)
    signal = Signal(frequency, min([*factors, _BEST_FACTOR]), state.crest, state.has_line_filter, state.update_s)
    ranges = widen_ranges(state)
    range_w = max(r.watts for r in ranges)
    power = wall.stated(settings.config, _state_power_accuracy(settings, state, signal, ranges))
    load_w = max(min(abs(e.watts) for e in values), _LEAST_LOAD * range_w if math.isfinite(range_w) else 1.0)
    gain = power.gain + power.offset / load_w + _INTEGRATOR_GAIN if power.source != "unknown" else 0.0
    # Six digits: the step is that of an hour at full range.
    step_j = find_integral_step(3600 * (range_w if math.isfinite(range_w) else 1000.0))
    why = f"{power.reference}; integrated from {load_w:.0f} W on"
    energy = replace(power, gain=gain, offset=0.0, quantum=step_j, reference=why)
    update_s, identity = state.update_s, state.identity
    channels = (
        Spec("power_w", "power", "W", "power", update_s, update_s, accuracy=power),
        Spec("energy_j", "energy", "J", "counter", update_s, accuracy=energy),
        Spec("voltage_v", "voltage", "V", update_s=update_s, window_s=update_s),
        Spec("current_a", "current", "A", update_s=update_s, window_s=update_s),
        Spec("apparent_va", "apparent power", "VA", update_s=update_s, window_s=update_s),
        Spec("power_factor", "power factor", "1", update_s=update_s, window_s=update_s),
        Spec("frequency_hz", "frequency", "Hz", update_s=update_s, window_s=update_s),
        Spec("age_s", "age", "s"),
        Spec("missed", "updates missed", "1"),
        Spec("duplicate", "answers without an update", "1"),
    )
    pieces = ("",) if len(state.elements) == 1 else tuple(map(str, state.elements))
    return [
        Stream(
            name=f"{settings.label}.{piece}".removesuffix("."),
            table="power",
            period_s=update_s,
            channels=channels,
            pace="instrument",
            device=identity.serial,
            model=f"{identity.maker} {identity.model}",
            **wall.place(settings.config, "node.ac", piece, len(pieces)),
        )
        for piece in pieces
    ]


def _state_power_accuracy(
    settings: AnalyzerSettings, state: InstrumentState, signal: Signal, ranges: Sequence[Ranges]
) -> Accuracy:
    """Return the largest errors of all elements, with their reference."""
    range_w = max(r.watts for r in ranges)
    if math.isnan(range_w):
        why = "an external sensor is connected, and its accuracy is unknown"
        return Accuracy("unknown", shared=settings.label, reference=why)
    gains, offsets_w = zip(*(compute_power_errors(state.model, r, signal) for r in ranges), strict=True)
    first = next(iter(state.ranges.values()))
    band = "DC" if math.isnan(signal.hertz) else f"{signal.hertz:.0f} Hz"
    reference = (
        f"{GUIDE}: {state.identity.model}, {first.volts:g} V, {first.amperes:g} A, {band}, "
        f"power factor {signal.factor:.2f} or better, crest factor {signal.crest}"
    )
    step_w = 10.0 ** (math.floor(math.log10(range_w)) - 4)  # five digits
    accuracy = Accuracy("datasheet", max(gains), max(offsets_w), step_w, settings.label, reference)
    if first.scale == 1 and settings.ct_gain is None:
        return accuracy
    extra, origin = (_ASSUMED_CT_GAIN, "assumed") if settings.ct_gain is None else (settings.ct_gain, "stated")
    reference += f", scaled by {first.scale:g}: {100 * extra:g} % for the transformer, {origin}"
    source: AccuracySource = "assumed" if settings.ct_gain is None else "datasheet"
    return replace(accuracy, source=source, gain=accuracy.gain + extra, reference=reference)
