"""Read node-level meters in virtual time: `Spec`s by the family's own code, what they show by the twin's flaws."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.instruments.analyzer.accuracy import MODELS, Ranges, build_streams, list_ranges
from joulelab.instruments.analyzer.answers import Element, Identity
from joulelab.instruments.analyzer.settings import read_settings
from joulelab.instruments.analyzer.setup import InstrumentState
from joulelab.twin import readings
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.virtual.bench import Measured, Rows, number_of, own_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Stream
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.power_curves import Curve, Floats, Ints
    from joulelab.twin.virtual.bench import Bench

VOLTS, FACTOR, HERTZ = 230.0, 0.98, 50.0
ANSWER_NS = 2_000_000  # between a question and its answer, beside the instrument's own latency
UPDATE_S = 0.1
RANGE_ROOM = 1.2  # a range that the entry does not name is at least this much larger than the largest load


def analyzer(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Return what a power analyzer shows at each of its updates. `options` may name its `model`. Raises ConfigError."""
    config = {"label": name, **mounted.options}
    model = str(config.pop("model", "WT310E"))
    flaws = mounted.flaws
    if flaws.period_s == PanelFlaws().period_s:  # by its own rate, unless the twin's file says otherwise
        update_s = float(config.get("period_s", UPDATE_S))
        flaws = replace(flaws, period_s=update_s, window_s=update_s)
    share, curve = bench.timeline.curve(mounted.point)
    begin = np.array([bench.timeline.begin_ns])
    idle_w, most_w = share * float(curve.watts(begin)[0]), share * float(curve.watts(curve.t_ns).max())
    streams = _list_analyzer_streams(config, model, idle_w, most_w, flaws.period_s)
    start = bench.since(name, flaws.period_s)
    updates = bench.times(flaws.period_s) + round(flaws.period_s * NS) - (bench.timeline.begin_ns - start)
    updates = updates[updates <= bench.timeline.close_ns]
    t1 = updates + ANSWER_NS + round(flaws.latency_s * NS)
    shown = _Shown(bench, name, mounted, flaws, start)
    return shown.measured(streams, updates, t1 - round(flaws.period_s * NS), t1)


def _list_analyzer_streams(
    config: Mapping[str, Any], model: str, idle_w: float, most_w: float, update_s: float
) -> list[Stream]:
    """Return the streams of an analyzer that is opened at `idle_w`, on ranges for `most_w`. Raises ConfigError."""
    settings = read_settings({"resource": "TCPIP::twin::INSTR", **config})
    if model not in MODELS:
        advice = suggest_name(model, list(MODELS))
        raise ConfigError(f"there is no analyzer {model!r}", where=settings.where, next=advice)
    known, crest, scale = MODELS[model], settings.crest or 3, settings.ct_ratio or 1.0
    most_a = most_w / len(known.elements) / VOLTS / FACTOR / scale
    chosen = []
    needs = ((settings.volts, VOLTS), (settings.amperes, most_a))
    for (wanted, load), ranges in zip(needs, list_ranges(known, crest), strict=True):
        smallest = next((one for one in sorted(ranges) if one >= RANGE_ROOM * load), max(ranges))
        chosen.append(smallest if isinstance(wanted, str) else wanted)
    state = InstrumentState(
        identity=Identity("YOKOGAWA", model, "twin", ""),
        model=known,
        elements=known.elements,
        ranges=dict.fromkeys(known.elements, Ranges(chosen[0], chosen[1], scale)),
        is_auto="auto" in (settings.volts, settings.amperes),
        crest=crest,
        is_dc=False,
        has_line_filter=False,
        update_s=update_s,
        integration="STAR" if settings.integrate else "RES",
    )
    apparent = idle_w / FACTOR
    return build_streams(settings, state, [Element(VOLTS, apparent / VOLTS, idle_w, apparent, FACTOR, HERTZ, 0.0)])


def polled(
    bench: Bench, name: str, mounted: MountedMeter, streams: Sequence[Stream], at: Sequence[str] = ()
) -> Measured:
    """Return what an instrument shows that is asked every so often; `at` are the points of its streams, if its own."""
    flaws = mounted.flaws
    t0 = bench.times(streams[0].period_s)
    t1 = t0 + ANSWER_NS + round(flaws.latency_s * NS)
    shown = _Shown(bench, name, mounted, flaws, bench.since(name, flaws.period_s))
    return shown.measured(streams, (t0 + t1) // 2, t0, t1, at)


class _Shown:
    """Work out what the streams of one instrument show."""

    def __init__(self, bench: Bench, name: str, mounted: MountedMeter, flaws: PanelFlaws, start_ns: int) -> None:
        self._bench, self._name, self._mounted, self._start = bench, name, mounted, start_ns
        self._flaws = flaws

    def measured(self, streams: Sequence[Stream], at: Ints, t0: Ints, t1: Ints, places: Sequence[str] = ()) -> Measured:
        """Return the rows of each stream; requests without an answer are gaps."""
        fine = readings.find_answered(self._flaws, at, start_ns=self._start)
        found = Measured(self._name)
        for k, stream in enumerate(streams):
            source = self._bench.timeline.curve(places[k]) if places else self._source(k, len(streams))
            rows = self._rows(stream, source, number_of(f"{self._name}:{k}"), at)
            age = [c for c, spec in enumerate(stream.channels) if spec.quantity == "age"]
            rows[:, age] = ((t1 - at) / NS)[:, np.newaxis]
            found.rows.append(Rows(stream, t0[fine], t1[fine], rows[fine]))
            found.events.extend(self._gaps(stream, at, fine))
        return found

    def _source(self, place: int, count: int) -> tuple[float, Curve]:
        """Return what a stream reads: the meter's point, or one of the node's cords where it has one for each."""
        node, timeline = self._bench.timeline.node, self._bench.timeline
        if count == 1:
            return timeline.curve(self._mounted.point)
        if len(node.supply.cords) == count:
            return timeline.curve(f"outlet:{place + 1}")
        share, curve = timeline.curve(self._mounted.point)
        return share / count, curve

    def _rows(self, stream: Stream, source: tuple[float, Curve], number: int, at: Ints) -> Floats:
        gain = self._bench.gain(self._name, self._mounted, stream.scope)
        flaws, start, seed = own_steps(replace(self._flaws, gain_error=gain), stream), self._start, self._bench.seed
        watts = readings.read_panel_w(source, flaws, at, start_ns=start, seed=seed, number=number)
        shown: Mapping[str, Callable[[], Any]] = {
            "power_w": lambda: watts,
            "energy_j": lambda: readings.read_panel_j(source, flaws, at, start_ns=start),
            "voltage_v": lambda: VOLTS,
            "current_a": lambda: watts / FACTOR / VOLTS,
            "apparent_va": lambda: watts / FACTOR,
            "power_factor": lambda: FACTOR,
            "frequency_hz": lambda: HERTZ,
            "missed": lambda: 0.0,
            "duplicate": lambda: 0.0,
        }
        values = np.full((len(at), len(stream.channels)), np.nan)
        for c, spec in enumerate(stream.channels):
            if spec.name in shown:
                values[:, c] = shown[spec.name]()
        return values

    def _gaps(self, stream: Stream, at: Ints, fine: Any) -> list[dict[str, Any]]:
        """Return the stretches without an answer as events."""
        lost = np.flatnonzero(~fine)
        told: list[dict[str, Any]] = []
        for run in np.split(lost, np.flatnonzero(np.diff(lost) > 1) + 1) if lost.size else ():
            first, after = int(at[run[0]]), int(at[min(run[-1] + 1, len(at) - 1)])
            where = {"meter": self._name, "stream": stream.name, "from": first}
            told.append({"t": first, "event": "gap", **where, "reason": "no answer", "error": "ReadFailed"})
            told.append({"t": after, "event": "gap-end", **where, "to": after})
        return told
