"""Describe what an analyzer delivers, with the accuracy of the ranges that are set."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.analyzer import accuracy
from joulelab.instruments.analyzer.answers import JOULES_PER_WH, Element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.spec import AccuracySource
    from joulelab.instruments.analyzer.config import Options
    from joulelab.instruments.analyzer.setup import State

STATED_AT = "the accuracy is stated for the widest range"
# What the integrator adds to the power's share of the reading, its timer included.
_INTEGRATOR = 0.001
# A current transformer of which nothing is said.
_CT_ASSUMED = 0.005
# An integral is compared with what flows at opening, or with this share of the range where next to nothing does.
_LEAST = 0.05
# Power factors of servers fall with the load: what is seen at opening, but none better than this.
_FACTOR = 0.95


@dataclass(frozen=True, slots=True)
class Stated:
    """Hold how far one stream may be off, of the reading and in W, and on which range (W)."""

    gain: float
    offset_w: float
    range_w: float
    load_w: float
    known: Accuracy

    @classmethod
    def of(cls, options: Options, state: State, shown: Sequence[Element]) -> Stated:
        """State it from how the instrument is set and what it shows. Raises ConfigError."""
        signal = _signal(state, shown)
        per_element = [accuracy.power_accuracy(state.model, r, signal) for r in widest(state)]
        count = len(per_element) if options.wishes.summed else 1
        gain = max(g for g, _ in per_element)
        offset_w = sum(o for _, o in per_element) if options.wishes.summed else max(o for _, o in per_element)
        range_w = max(r.watts for r in widest(state)) * count
        known = _named(options, state, signal, gain, offset_w, range_w)
        stated = wall.stated(options.config, known)
        least_w = _LEAST * range_w if math.isfinite(range_w) else 1.0
        load_w = max(min((abs(e.watts) for e in shown), default=0.0), least_w)
        return cls(stated.gain, stated.offset, range_w, load_w, stated)


def _signal(state: State, shown: Sequence[Element]) -> accuracy.Signal:
    hertz = [e.hertz for e in shown if math.isfinite(e.hertz)]
    factors = [abs(e.factor) for e in shown if math.isfinite(e.factor)]
    return accuracy.Signal(
        math.nan if state.dc or not hertz else median(hertz),
        min([*factors, _FACTOR]),
        state.crest,
        state.line_filter,
        state.update_s,
    )


def widest(state: State) -> list[accuracy.Ranges]:
    """Return the ranges, with auto range the widest current range that there is."""
    if not state.auto:
        return list(state.ranges.values())
    largest = max(accuracy.allowed(state.model, state.crest)[1])
    return [replace(r, amperes=largest) for r in state.ranges.values()]


def _named(
    options: Options, state: State, signal: accuracy.Signal, gain: float, offset_w: float, range_w: float
) -> Accuracy:
    """Return the accuracy and where it is known from."""
    if math.isnan(range_w):
        why = "an external sensor is connected, of which nothing is known"
        return Accuracy("unknown", shared=options.label, reference=why)
    band = "DC" if math.isnan(signal.hertz) else f"{signal.hertz:.0f} Hz"
    first = next(iter(state.ranges.values()))
    reference = f"{accuracy.GUIDE}: {state.identity.model}, {first.volts:g} V, {first.amperes:g} A, {band}"
    reference += f", power factor {signal.factor:.2f} or better, crest factor {signal.crest}"
    step = accuracy.step_w(range_w)
    if first.scale == 1 and options.ct_gain is None:
        return Accuracy("datasheet", gain, offset_w, step, options.label, reference)
    extra = _CT_ASSUMED if options.ct_gain is None else options.ct_gain
    said = "assumed" if options.ct_gain is None else "stated"
    reference += f", scaled by {first.scale:g}: {100 * extra:g} % for the transformer, {said}"
    source: AccuracySource = "assumed" if options.ct_gain is None else "datasheet"
    return Accuracy(source, gain + extra, offset_w, step, options.label, reference)


def build(options: Options, state: State, stated: Stated) -> list[Stream]:
    """Return a stream per element, or one for their sum. Raises ConfigError."""
    channels = _channels(state, stated)
    identity = state.identity
    groups = ("",) if options.wishes.summed or len(state.elements) == 1 else tuple(map(str, state.elements))
    return [
        Stream(
            name=f"{options.label}.{piece}".removesuffix("."),
            table="power",
            period_s=state.update_s,
            channels=channels,
            pace="instrument",
            device=identity.serial,
            model=f"{identity.maker} {identity.model}",
            **wall.place(options.config, "node.ac", piece, len(groups)),
        )
        for piece in groups
    ]


def _channels(state: State, stated: Stated) -> tuple[Spec, ...]:
    update_s, known = state.update_s, stated.known
    power = Spec("power_w", "power", "W", "power", update_s, update_s, accuracy=known)
    # An integral has six digits: those of an hour at full range. What is open at any load goes by what flows.
    hour = stated.range_w if math.isfinite(stated.range_w) else 1000.0
    quantum = 10.0 ** (math.floor(math.log10(hour)) - 5) * JOULES_PER_WH
    gain = known.gain + known.offset / stated.load_w + _INTEGRATOR if known.source != "unknown" else 0.0
    why = f"{known.reference}; integrated from {stated.load_w:.0f} W on"
    integral = replace(known, gain=gain, offset=0.0, quantum=quantum, reference=why)
    return (
        power,
        Spec("energy_j", "energy", "J", "counter", update_s, accuracy=integral),
        Spec("voltage_v", "voltage", "V", update_s=update_s, window_s=update_s),
        Spec("current_a", "current", "A", update_s=update_s, window_s=update_s),
        Spec("apparent_va", "apparent power", "VA", update_s=update_s, window_s=update_s),
        Spec("power_factor", "power factor", "1", update_s=update_s, window_s=update_s),
        Spec("frequency_hz", "frequency", "Hz", update_s=update_s, window_s=update_s),
        Spec("age_s", "age", "s"),
        Spec("missed", "updates missed", "1"),
        Spec("duplicate", "updates read twice", "1"),
    )
