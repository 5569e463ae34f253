"""Measure drawn loads in virtual time, by regime of measurement, and compare the interval with the truth.

Gain and offset are zero on both sides, so that they hide nothing. Draws depend on the seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.loads import NS, START, draw_load, draw_log_uniform, list_kinds, make_square
from joulelab.analysis.channels import EnergyChannel, ScopeChannels
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.joining import join_meters
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.twin.flaws import GA10X, GA100, VOLTA, Counter, Flaws
from joulelab.twin.power_curves import Curve, Pieces
from joulelab.twin.readings import read_average_w, read_counter_j, read_instant_w

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from joulelab.core.quantity import Quantity

    Ints = npt.NDArray[np.int64]

LEAD_S, TAIL_S = 12.0, 5.0
GPU_W = (40.0, 700.0)
NODE_W = (0.0, 10_200.0)
NODE_SCALE = 13.0  # GPUs whose power a node takes
CLOCK_OFF = 0.003  # by which a sensor's own clock may be wrong; a recorded board was off by less than half a per cent
RAPL = Flaws(counter_period_s=0.001, power_period_s=0.1)
MEAN_1S = replace(GA10X, average_window_s=1.0)
REFRESH_1S = Flaws(power_period_s=1.0, power_window_s=1.0, counter_period_s=1.0, average_window_s=0.0)


@dataclass(frozen=True)
class Outcome:
    """Hold one measured energy beside the truth (J)."""

    regime: str
    kind: str
    value: float
    expanded: float
    bound: float
    true: float
    known: bool

    @property
    def error(self) -> float:
        """Return the error as a share of the true energy."""
        return (self.value - self.true) / self.true

    @property
    def width(self) -> float:
        """Return the half-width of the interval as a share of the true energy."""
        return self.expanded / self.true

    @property
    def is_inside(self) -> bool:
        """Return whether the truth lies in the interval."""
        return abs(self.value - self.true) <= self.expanded


@dataclass(frozen=True)
class Sensor:
    """Describe a meter of a GPU: flaws of the twin, the channel that is integrated, and how often it is read (s)."""

    flaws: Flaws
    channel: str  # counter, instant or average
    poll_s: tuple[float, ...] = (0.1,)
    has_power: bool = True  # a counter with a power beside it


COUNTERS = (Sensor(GA10X, "counter", (0.1, 0.5)), Sensor(RAPL, "counter", (0.1, 0.5), has_power=False))
POWERS = (
    Sensor(GA10X, "instant", (0.1, 0.1, 0.5)),
    Sensor(MEAN_1S, "average", (0.1, 0.5)),
    Sensor(REFRESH_1S, "instant", (0.2, 1.0)),
)
PARTIAL = (
    Sensor(GA100, "instant"),
    Sensor(replace(GA100, counter=Counter.SEEN), "counter"),
    Sensor(GA100, "counter"),
    Sensor(VOLTA, "instant", (0.1, 0.02)),
    Sensor(replace(VOLTA, counter=Counter.SEEN), "counter", (0.1, 0.02)),
)
FAST = (*COUNTERS, *POWERS, *PARTIAL)


def list_polls(rng: np.random.Generator, flaws: Flaws, period_s: float, span_s: float) -> Ints:
    """Return when the recorder reads (ns): every period, and every 2 ms at both ends until the counter has stepped."""
    a, b = LEAD_S, LEAD_S + span_s
    to_step = [_find_next_step(flaws, t) - t + 0.002 for t in (a, b)]
    parts = (
        np.arange(a - rng.uniform(0.2, 1) - 2 * period_s, b + 2.5 * period_s, period_s),
        np.arange(a - rng.uniform(0, min(flaws.counter_period_s, 1.0)), a, 0.002),
        np.arange(a, a + min(to_step[0], 1.0), 0.002),
        np.arange(b, b + min(to_step[1], 0.3), 0.002),
    )
    t = np.concatenate(parts)
    t = np.sort(t + np.abs(rng.normal(0, 2e-4, t.size)))
    return START + np.unique(np.rint(t * NS).astype(np.int64))


def _find_next_step(flaws: Flaws, t_s: float) -> float:
    period, phase = flaws.counter_period_s, flaws.counter_phase_s
    return float((np.floor((t_s - phase) / period) + 1) * period + phase)


def make_specs(flaws: Flaws, limits: tuple[float, float]) -> dict[str, Spec]:
    """Return the channels as a meter would describe them, without gain and offset."""
    accuracy = Accuracy("assumed", 0.0, 0.0, 0.001, "nvml:twin", "drawn")
    seen = min(1.0, flaws.power_window_s / flaws.power_period_s)
    instant = Spec(
        "power_instant_w",
        "power",
        "W",
        "power",
        flaws.power_period_s,
        flaws.power_window_s,
        seen,
        None,
        limits,
        accuracy,
    )
    return {
        "instant": instant,
        "average": replace(instant, name="power_average_w", window_s=flaws.average_window_s, seen=1.0),
        "counter": Spec(
            "energy_j", "energy", "J", "counter", flaws.counter_period_s, None, seen, None, limits, accuracy
        ),
    }


def _read(
    curve: Curve, sensor: Sensor, flaws: Flaws, t: Ints, took: Ints, period_s: float
) -> CounterCurve | PowerCurve:
    """Return the curve that the analysis makes of a sensor's readings."""
    specs, read = make_specs(sensor.flaws, GPU_W), t + took // 2
    shown = "average" if sensor.channel == "average" else "instant"
    watts = (read_average_w if shown == "average" else read_instant_w)(curve, flaws, read, start_ns=START)
    power = PowerCurve(Readings.from_rows(t, t + took, watts), specs[shown], name="p", step_s=period_s)
    if sensor.channel != "counter":
        return power
    counted = Readings.from_rows(t, t + took, read_counter_j(curve, flaws, read, start_ns=START))
    spec = specs["counter"] if sensor.has_power else replace(specs["counter"], limits=None)
    return CounterCurve(counted, spec, name="c", power=power if sensor.has_power else None)


def _measure(
    rng: np.random.Generator,
    kind: str,
    sensor: Sensor,
    span_s: float,
    *,
    cut: Callable[[Ints], Ints] | None = None,
    part: tuple[float, float] | None = None,
    load: Curve | None = None,
) -> tuple[Quantity, float]:
    """Return the energy of a drawn load and the truth; `part` are shares of the span, `cut` takes readings away."""
    curve = load or draw_load(rng, kind, LEAD_S, span_s, TAIL_S, 1.0)
    flaws = _draw_flaws(rng, sensor)
    found = _record(rng, curve, sensor, flaws, span_s, cut)
    first, last = part or (0.0, 1.0)
    a, b = (START + round((LEAD_S + share * span_s) * NS) for share in (first, last))
    return found.energy(a, b), _find_truth(curve, a, b)


def _draw_flaws(rng: np.random.Generator, sensor: Sensor) -> Flaws:
    """Draw the clock, the phases and the noise of one sensor of a kind."""
    off = 1 + rng.uniform(-CLOCK_OFF, CLOCK_OFF)
    return replace(
        sensor.flaws,
        power_period_s=sensor.flaws.power_period_s * off,
        counter_period_s=sensor.flaws.counter_period_s * off,
        power_phase_s=float(rng.uniform(0, sensor.flaws.power_period_s)),
        counter_phase_s=float(rng.uniform(0, sensor.flaws.counter_period_s)),
        noise_w=float(rng.choice([0.0, 2.0])),
    )


def _record(
    rng: np.random.Generator,
    curve: Curve,
    sensor: Sensor,
    flaws: Flaws,
    span_s: float,
    cut: Callable[[Ints], Ints] | None = None,
) -> CounterCurve | PowerCurve:
    """Return the curve of a sensor that was read during a run."""
    period = float(rng.choice(sensor.poll_s))
    t = list_polls(rng, flaws, period, span_s)
    t = t if cut is None else cut(t)
    took = rng.integers(5_000, 30_000, t.size)
    return _read(curve, sensor, flaws, t, took, period)


def _find_truth(curve: Curve, a_ns: int, b_ns: int) -> float:
    return float(np.diff(curve.joules(np.array([a_ns, b_ns])))[0])


def _choose(rng: np.random.Generator, sensors: tuple[Sensor, ...]) -> Sensor:
    return sensors[int(rng.integers(len(sensors)))]


def measure_counter(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure by a counter that integrates all the time."""
    return _measure(rng, kind, _choose(rng, COUNTERS), draw_log_uniform(rng, 5, 120))


def measure_power(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure by a power that is averaged over its whole update period, or longer."""
    return _measure(rng, kind, _choose(rng, POWERS), draw_log_uniform(rng, 5, 120))


def measure_partial(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure by a sensor that sees a part of the time, or by its counter."""
    return _measure(rng, kind, _choose(rng, PARTIAL), draw_log_uniform(rng, 5, 120))


def measure_edges(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure a phase inside a run: its edges lie anywhere, and nothing was polled quickly there."""
    span = draw_log_uniform(rng, 10, 60)
    length = draw_log_uniform(rng, 0.5, 8) / span
    first = rng.uniform(0, 1 - min(length, 1.0))
    return _measure(rng, kind, _choose(rng, FAST), span, part=(first, min(first + length, 1.0)))


def measure_gaps(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure with one to three pauses in the record, up to a fifth of the run together."""
    span = draw_log_uniform(rng, 10, 120)

    def cut(t: Ints) -> Ints:
        for _ in range(int(rng.integers(1, 4))):
            since = START + (LEAD_S + rng.uniform(-0.05, 1) * span) * NS
            t = t[(t < since) | (t > since + draw_log_uniform(rng, 0.01, 0.07) * span * NS)]
        return t

    return _measure(rng, kind, _choose(rng, FAST), span, cut=cut)


def measure_short(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure a run of 0.3 to 3 s."""
    return _measure(rng, kind, _choose(rng, FAST), draw_log_uniform(rng, 0.3, 3))


def measure_idle(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure a GPU at rest: the drawn load at a fiftieth of its height above the idle power."""
    span = draw_log_uniform(rng, 2, 60)
    curve = draw_load(rng, kind, LEAD_S, span, TAIL_S, 0.02)
    rest = rng.uniform(45, 100)
    watts, slope = curve.watts(curve.t_ns) + rest, curve.slope(curve.t_ns)
    idle = Curve()
    idle.replace_from(Pieces(curve.t_ns.copy(), watts, slope))
    return _measure(rng, kind, _choose(rng, FAST), span, load=idle)


def _read_slow(rng: np.random.Generator, curve: Curve, step_s: float, end_s: float) -> tuple[PowerCurve, Spec]:
    """Return a node's meter, read seldom: a point, or a mean over one or two seconds; some do not state a window."""
    update, window = [(1.0, 1.0), (2.0, 0.0), (1.0, 0.0), (2.0, 2.0)][int(rng.integers(4))]
    flaws = Flaws(power_period_s=update, power_window_s=window, power_phase_s=float(rng.uniform(0, update)))
    at = np.arange(rng.uniform(0, step_s), end_s, step_s)
    t = START + np.rint((at + rng.exponential(0.002, at.size)) * NS).astype(np.int64)
    accuracy = Accuracy("datasheet", quantum=1.0, shared="wall", reference="drawn")
    spec = Spec("power_w", "power", "W", "power", update, window, limits=NODE_W, accuracy=accuracy)
    watts = read_instant_w(curve, flaws, t, start_ns=START)
    return PowerCurve(Readings.from_rows(t, t + 1_000_000, watts), spec, name="wall", step_s=step_s), spec


def measure_slow(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure a node by a meter that is read every 10 to 120 s, 5 to 200 times."""
    step = draw_log_uniform(rng, 10, 120)
    span, lead = step * draw_log_uniform(rng, 5, 200), 1.5 * step
    curve = draw_load(rng, kind, lead, span, lead, NODE_SCALE)
    slow, _ = _read_slow(rng, curve, step, span + 2 * lead)
    a, b = START + round(lead * NS), START + round((lead + span) * NS)
    return slow.energy(a, b), _find_truth(curve, a, b)


def measure_guided(rng: np.random.Generator, kind: str) -> tuple[Quantity, float]:
    """Measure a node read every 5 to 60 s beside GPUs that are read ten times a second."""
    step = draw_log_uniform(rng, 5, 60)
    span, lead = step * draw_log_uniform(rng, 8, 60), 1.5 * step
    gpus = draw_load(rng, kind, lead, span, lead, 10.0)
    rest, share = rng.uniform(800, 2500), rng.uniform(1.02, 1.25)
    node = Curve()
    node.replace_from(Pieces(gpus.t_ns.copy(), rest + share * gpus.watts(gpus.t_ns), share * gpus.slope(gpus.t_ns)))
    end = span + 2 * lead
    slow, spec = _read_slow(rng, node, step, end)
    t = START + np.rint(np.arange(rng.uniform(0, 0.1), end, 0.1) * NS).astype(np.int64)
    flaws = replace(GA10X, power_phase_s=float(rng.uniform(0, 0.1)))
    counter = make_specs(flaws, (400.0, 7_000.0))["counter"]
    fast = CounterCurve(
        Readings.from_rows(t, t + 20_000, read_counter_j(gpus, flaws, t, start_ns=START)), counter, name="gpu"
    )
    inner = Stream("gpu:0", "power", "gpu:0", 0.1, (counter,))
    outer = Stream("node.ac", "power", "node.ac", step, (spec,))
    scopes = [
        ScopeChannels("gpu:0", "h", "node.dc", (EnergyChannel("h", "nvml", inner, counter, fast),)),
        ScopeChannels("node.ac", "h", None, (EnergyChannel("h", "wall", outer, spec, slow),)),
    ]
    a, b = START + round(lead * NS), START + round((lead + span) * NS)
    joined = next(s for s in join_meters(scopes, a, b).scopes if s.scope == "node.ac")
    return joined.best.energy(a, b), _find_truth(node, a, b)


def measure_in_step(rng: np.random.Generator, *, reported: bool) -> tuple[Quantity, float]:
    """Measure a load that repeats exactly in step with a sensor that sees a part of the time; it may report steps."""
    sensor, span = _choose(rng, PARTIAL), draw_log_uniform(rng, 5, 60)
    flaws = _draw_flaws(rng, sensor)
    period = flaws.power_period_s / int(rng.integers(1, 4))
    phase, end = rng.uniform(0, period), LEAD_S + span + TAIL_S
    curve = make_square(period, rng.uniform(0.2, 0.8), rng.uniform(60, 150), rng.uniform(300, 690), end, phase)
    a, b = (START + round(x * NS) for x in (LEAD_S, LEAD_S + span))
    steps = START + np.rint(np.arange(phase, end, period) * NS).astype(np.int64) if reported else None
    return _record(rng, curve, sensor, flaws, span).energy(a, b, steps_ns=steps), _find_truth(curve, a, b)


def measure_slow_refresh(rng: np.random.Generator, kind: str, refresh_s: float) -> tuple[Quantity, float]:
    """Measure a node by a meter that is read every second and states this refresh, but has new values less often."""
    span, lead = draw_log_uniform(rng, max(60.0, 5 * refresh_s), 900.0), 15.0
    curve = draw_load(rng, kind, lead, span, lead, NODE_SCALE)
    flaws = Flaws(power_period_s=refresh_s, power_window_s=0.0, power_phase_s=rng.uniform(0, refresh_s), noise_w=2.0)
    at = np.arange(rng.uniform(0, 1), span + 2 * lead, 1.0)
    t = START + np.rint((at + rng.exponential(0.002, at.size)) * NS).astype(np.int64)
    accuracy = Accuracy("datasheet", quantum=1.0, shared="wall", reference="drawn")
    spec = Spec("power_w", "power", "W", "power", 1.0, 0.0, limits=NODE_W, accuracy=accuracy)
    readings = Readings.from_rows(t, t + 1_000_000, np.rint(read_instant_w(curve, flaws, t, start_ns=START)))
    a, b = START + round(lead * NS), START + round((lead + span) * NS)
    return PowerCurve(readings, spec, name="wall", step_s=1.0).energy(a, b), _find_truth(curve, a, b)


REGIMES: dict[str, Callable[[np.random.Generator, str], tuple[Quantity, float]]] = {
    "counter": measure_counter,
    "power only": measure_power,
    "partial sensor": measure_partial,
    "slow meter alone": measure_slow,
    "slow meter guided": measure_guided,
    "edges": measure_edges,
    "gaps": measure_gaps,
    "short runs": measure_short,
    "idle": measure_idle,
}


def measure_regime(regime: str, count: int, seed: int) -> list[Outcome]:
    """Measure `count` drawn loads of each kind."""
    found = []
    for k, kind in enumerate(list_kinds()):
        rng = np.random.default_rng((seed, list(REGIMES).index(regime), k))
        for _ in range(count):
            energy, true = REGIMES[regime](rng, kind)
            widest = energy.with_bound()
            found.append(Outcome(regime, kind, energy.value, 2 * energy.u, 2 * widest.u, true, energy.known))
    return found
