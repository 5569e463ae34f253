"""Draw random loads, meters and gaps, measure them in virtual time, and see whether the truth lies in the interval."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.core.spec import Accuracy, Spec
from joulelab.twin.curve import Curve, Pieces
from joulelab.twin.flaws import GA10X, GA100, HOPPER, VOLTA, Counter, Flaws
from joulelab.twin.instrument import average_w, counter_j, instant_w

NS = 1_000_000_000
START = 1_000 * NS  # truth begins; the workload begins LEAD later
LEAD = 12.0
LIMITS_W = (40.0, 700.0)
LOADS = ("constant", "square", "ramp", "burst", "noise", "in step", "training")
# What the analysis believes of each kind of meter: flaws of the twin, seen share, update and window.
KINDS = {
    "full view": (replace(GA10X, average_window_s=0.0), 1.0),
    "25 of 100 ms": (replace(GA100, average_window_s=0.0), 0.25),
    "10 of 20 ms": (VOLTA, 0.5),
    "1 s average": (replace(HOPPER, power_window_s=0.1), 1.0),
    "slow refresh": (Flaws(power_period_s=1.0, power_window_s=1.0, counter_period_s=1.0, average_window_s=0.0), 1.0),
}


@dataclass(frozen=True)
class Outcome:
    """Hold one scenario and what came of it (J)."""

    load: str
    meter: str
    channel: str
    gap: bool
    steps: bool
    error_j: float
    expanded_j: float
    bound_j: float
    true_j: float
    bounded: bool

    @property
    def covered(self) -> bool:
        """Return whether the truth lies in the interval."""
        return abs(self.error_j) <= self.expanded_j

    @property
    def held(self) -> bool:
        """Return whether the truth lies within the bound."""
        return abs(self.error_j) <= self.bound_j

    @property
    def blind(self) -> bool:
        """Return whether the load is in step with a sensor that measures a part of the time, without evidence."""
        return self.load == "in step" and self.bounded

    @property
    def width(self) -> float:
        """Return the half-width of the interval as a share of the true energy."""
        return self.expanded_j / self.true_j


def curve_of(at_s: list[float], watts: list[float]) -> Curve:
    """Return a power curve through points; two points at one time make a step."""
    t = START + np.rint(np.asarray(at_s) * NS).astype(np.int64)
    w = np.asarray(watts, dtype=np.float64)
    width = np.diff(t)
    keep = np.append(width > 0, True)
    slope = np.append(np.divide(np.diff(w), width, out=np.zeros(width.size), where=width > 0), 0.0)
    curve = Curve()
    curve.replace_from(Pieces(t[keep], w[keep], slope[keep]))
    return curve


def square(period_s: float, duty: float, low: float, high: float, until_s: float, phase_s: float) -> Curve:
    """Return a square wave from the start of the truth on."""
    at, watts = [0.0], [low]
    x = phase_s
    while x < until_s:
        at += [x, x, x + duty * period_s, x + duty * period_s]
        watts += [low, high, high, low]
        x += period_s
    return curve_of(at, watts)


def draw_load(
    rng: np.random.Generator, name: str, span_s: float, grid_s: float
) -> tuple[Curve, npt.NDArray[np.float64] | None]:
    """Return a load and, where the workload could report its steps, their times (s from the start of the truth)."""
    low, high, end = rng.uniform(50, 150), rng.uniform(300, 690), LEAD + span_s + 5
    if name in ("square", "in step"):
        period = float(np.exp(rng.uniform(np.log(0.05), np.log(5.0))))
        if name == "in step":
            period = max(grid_s, 0.1) / int(rng.integers(1, 4))
        phase = float(rng.uniform(0, period))
        return square(period, rng.uniform(0.2, 0.8), low, high, end, phase), np.arange(phase, end, period)
    if name == "constant":
        return curve_of([0.0, end], [high, high]), None
    if name == "ramp":
        a, b = LEAD + rng.uniform(-2, span_s / 2), LEAD + rng.uniform(span_s / 2, span_s + 1)
        return curve_of([0.0, a, b, end], [low, low, high, high]), None
    if name == "burst":
        a, length = LEAD + rng.uniform(-0.5, span_s - 0.2), rng.uniform(0.2, 2)
        return curve_of([0.0, a, a, a + length, a + length, end + 3], [low, low, high, high, low, low]), None
    if name == "noise":
        at = np.arange(0, end, rng.uniform(0.01, 0.5))
        return curve_of(at.tolist(), rng.uniform(low, high, at.size).tolist()), None
    at, watts, x, steps = [0.0], [low], LEAD + rng.uniform(-3, 0.5), []
    stop = LEAD + span_s + rng.uniform(-1, 3)
    while x < stop:
        period = 0.3 * (1 + 0.05 * rng.normal())
        steps.append(x)
        at += [x, x, x + 0.7 * period, x + 0.7 * period]
        watts += [watts[-1], high, high, (low + high) / 2]
        x += period
    return curve_of([*at, x, x, end + 3], [*watts, watts[-1], low, low]), np.array(steps)


def poll_times(
    rng: np.random.Generator, span_s: float, period_s: float, flaws: Flaws, *, gap: bool
) -> npt.NDArray[np.int64]:
    """Return when the recorder reads (ns), as it does: every period, and every 2 ms until the counter has stepped.

    That is before the start, after it and after the end, each within bounds; late at random, and with a gap.
    """
    a, b = LEAD, LEAD + span_s
    to_step = [_next_step(flaws, t) - t + 0.002 for t in (a, b)]
    before = np.arange(a - rng.uniform(0, min(flaws.counter_period_s, 1.0)), a, 0.002)
    after = np.arange(a, a + min(to_step[0], 1.0), 0.002)
    tail = np.arange(b, b + min(to_step[1], 0.3), 0.002)
    t = np.concatenate(
        (np.arange(a - rng.uniform(0.2, 1), a, period_s), before, after, np.arange(a, b, period_s), tail)
    )
    t = np.sort(t + np.abs(rng.normal(0, 2e-4, t.size)))
    if gap:
        since = LEAD + rng.uniform(-0.2, span_s)
        until = since + rng.uniform(0.3, max(0.4, 0.2 * span_s))
        t = t[(t < since) | (t > until)]
    return START + np.unique(np.rint(t * NS).astype(np.int64))


def _next_step(flaws: Flaws, t_s: float) -> float:
    """Return when the counter steps next after t (s)."""
    period, phase = flaws.counter_period_s, flaws.counter_phase_s
    return float((np.floor((t_s - phase) / period) + 1) * period + phase)


def specs(flaws: Flaws, seen: float, gain: float) -> tuple[Spec, Spec, Spec]:
    """Return what the analysis believes: counter, instant and average power."""
    accuracy = Accuracy("assumed", gain, 0.0, 0.001, "nvml:twin", "scenario")
    period, window = flaws.power_period_s, flaws.power_window_s
    counter = Spec("energy_j", "energy", "J", "counter", flaws.counter_period_s, None, seen, None, LIMITS_W, accuracy)
    instant = Spec("power_instant_w", "power", "W", "power", period, window, seen, None, LIMITS_W, accuracy)
    return counter, instant, replace(instant, name="power_average_w", window_s=flaws.average_window_s, seen=1.0)


def run_one(rng: np.random.Generator, gain: float) -> Outcome:
    """Draw one scenario and measure it; `gain` is the half-width both of what is drawn and of what is believed."""
    span = float(rng.uniform(1.5, 20))
    meter = str(rng.choice(list(KINDS)))
    base, seen = KINDS[meter]
    flaws = replace(
        base,
        counter=Counter(str(rng.choice(["true", "seen"]))) if seen < 1 else Counter.TRUE,
        gain_error=float(rng.uniform(-gain, gain)),
        noise_w=float(rng.choice([0.0, 2.0])),
        power_phase_s=float(rng.uniform(0, base.power_period_s)),
        counter_phase_s=float(rng.uniform(0, base.counter_period_s)),
    )
    name = str(rng.choice(LOADS))
    curve, steps = draw_load(rng, name, span, base.power_period_s)
    steps = steps if steps is not None and rng.random() < 0.5 else None
    gap = bool(rng.random() < 0.3)
    t = poll_times(rng, span, float(rng.choice([0.1, 0.1, 0.5, 0.02])), flaws, gap=gap)
    took = rng.integers(5_000, 30_000, t.size)
    counter_spec, instant_spec, average_spec = specs(flaws, seen, gain)
    read = t + took // 2
    average = flaws.average_window_s > 0
    values = average_w(curve, flaws, read, start_ns=START) if average else instant_w(curve, flaws, read, start_ns=START)
    power = PowerCurve(Readings.from_rows(t, t + took, values), average_spec if average else instant_spec, name="p")
    counted = Readings.from_rows(t, t + took, counter_j(curve, flaws, read, start_ns=START))
    counter = CounterCurve(counted, counter_spec, name="c", power=power)
    a, b = LEAD, LEAD + span
    if rng.random() < 0.3:  # a phase inside
        a, b = sorted(rng.uniform(LEAD, LEAD + span, 2))
        a, b = (a, b) if b - a > 0.3 else (LEAD, LEAD + span)
    a_ns, b_ns = START + int(a * NS), START + int(b * NS)
    stamps = None if steps is None else START + np.rint(steps[(steps >= a) & (steps <= b)] * NS).astype(np.int64)
    only_power = bool(rng.random() < 0.4)
    energy = (power if only_power else counter).energy(a_ns, b_ns, steps_ns=stamps)
    true = float(np.diff(curve.joules(np.array([a_ns, b_ns])))[0])
    return Outcome(
        name,
        meter,
        "power" if only_power else "counter",
        gap,
        stamps is not None,
        energy.value - true,
        2 * energy.u,
        2 * energy.with_bound().u,
        true,
        energy.budget().get("unseen", 0.0) > 0.01 * true,
    )


def campaign(count: int, gain: float, seed: int = 7) -> list[Outcome]:
    """Return the outcomes of `count` scenarios."""
    rng = np.random.default_rng(seed)
    return [run_one(rng, gain) for _ in range(count)]
