"""Draw loads with a known truth: constant, repeating, rare dips and bursts, ramps, phases, and logs of real nodes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from joulelab.twin.power_curves import Curve, Pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

NS = 1_000_000_000
START = 1_000 * NS  # the truth begins
REAL_LOGS = Path(__file__).parents[2] / "shared" / "data" / "h100-node-power"
SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 0.005, 600.0
MOST_CYCLES = 60_000  # of one load, for memory
NODE_W = 10_000.0  # power of a node in the real logs, about


@dataclass(frozen=True)
class Levels:
    """Hold the powers (W) of a load: idle outside of the workload, low and high inside."""

    idle: float
    low: float
    high: float


def make_curve(t_s: Floats, watts: Floats) -> Curve:
    """Make a power curve through points (s from the start of the truth); two points at one time make a step."""
    t = START + np.rint(t_s * NS).astype(np.int64)
    width = np.diff(t)
    keep = np.append(width > 0, True)
    slope = np.append(np.divide(np.diff(watts), width, out=np.zeros(width.size), where=width > 0), 0.0)
    curve = Curve()
    curve.replace_from(Pieces(t[keep], watts[keep], slope[keep]))
    return curve


def draw_log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is evenly distributed."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _hold(at: Floats, level: Floats, stop: float) -> tuple[Floats, Floats]:
    """Return the points of a power that steps to each level at its time, up to `stop`."""
    keep = at < stop
    at, level = at[keep], level[keep]
    return np.append(np.repeat(at, 2)[1:], stop), np.repeat(level, 2)


def make_square(period_s: float, duty: float, low: float, high: float, end_s: float, phase_s: float) -> Curve:
    """Make a square wave that rises first at `phase_s`."""
    rises = np.arange(phase_s, end_s, period_s)
    at = np.concatenate(([0.0], np.stack((rises, rises + duty * period_s), axis=1).ravel()))
    return make_curve(*_hold(at, np.concatenate(([low], np.tile([high, low], rises.size))), end_s))


def _draw_square(rng: np.random.Generator, p: Levels, begin: float, stop: float) -> tuple[Floats, Floats]:
    shortest = max(SHORTEST_PERIOD_S, (stop - begin) / MOST_CYCLES)
    period, duty = draw_log_uniform(rng, shortest, LONGEST_PERIOD_S), rng.uniform(0.1, 0.9)
    first = begin - rng.uniform(0, period)
    rises = first + period * np.arange(int((stop - first) / period) + 1)
    at = np.stack((rises, rises + duty * period), axis=1).ravel()
    level = np.tile([p.high, p.low], rises.size)
    inside = int(np.searchsorted(at, begin, side="right")) - 1
    at, level = at[inside:].copy(), level[inside:]
    at[0] = begin
    return _hold(at, level, stop)


def _draw_training(rng: np.random.Generator, p: Levels, begin: float, stop: float) -> tuple[Floats, Floats]:
    period = draw_log_uniform(rng, max(0.05, (stop - begin) / MOST_CYCLES), 20.0)
    steps = period * (1 + 0.05 * rng.normal(size=int((stop - begin) / period * 1.3) + 10))
    starts = begin + np.concatenate(([0.0], np.cumsum(steps[:-1])))
    at = np.stack((starts, starts + rng.uniform(0.5, 0.9) * steps), axis=1).ravel()
    return _hold(at, np.tile([p.high, (p.low + p.high) / 2], starts.size), stop)


def _draw_noise(rng: np.random.Generator, p: Levels, begin: float, stop: float) -> tuple[Floats, Floats]:
    hold = draw_log_uniform(rng, max(0.01, (stop - begin) / MOST_CYCLES), 60.0)
    at = np.arange(begin, stop, hold)
    return _hold(at, rng.uniform(p.low, p.high, at.size), stop)


def _draw_events(
    rng: np.random.Generator, base: float, other: float, begin: float, stop: float
) -> tuple[Floats, Floats]:
    """Return a power that leaves its base seldom, at random times."""
    length = draw_log_uniform(rng, max(0.05, (stop - begin) / MOST_CYCLES), max(0.1, min(30.0, (stop - begin) / 5)))
    mean = length * rng.uniform(10, 100)
    pauses = rng.exponential(mean, int((stop - begin) / mean * 2) + 20)
    starts = begin + np.cumsum(pauses) + length * np.arange(pauses.size)
    at = np.concatenate(([begin], np.stack((starts, starts + length), axis=1).ravel()))
    return _hold(at, np.concatenate(([base], np.tile([other, base], starts.size))), stop)


def _draw_ramp(rng: np.random.Generator, p: Levels, begin: float, stop: float) -> tuple[Floats, Floats]:
    inner = np.sort(rng.uniform(begin, stop, int(rng.integers(0, 4))))
    at = np.concatenate(([begin], inner, [stop]))
    return at, rng.uniform(p.low, p.high, at.size)


def _draw_phases(rng: np.random.Generator, p: Levels, begin: float, stop: float) -> tuple[Floats, Floats]:
    """Return a few long phases, each with a ripple of 2 % every 0.2 s or so."""
    ends = np.sort(rng.uniform(begin, stop, int(rng.integers(1, 6))))
    levels = rng.uniform(p.low, p.high, ends.size + 1)
    at = np.arange(begin, stop, max(0.2, (stop - begin) / MOST_CYCLES))
    return _hold(at, levels[np.searchsorted(ends, at)] * rng.normal(1.0, 0.02, at.size), stop)


@cache
def read_real_logs() -> tuple[tuple[str, Floats, Floats], ...]:
    """Read the power logs of real nodes: name, seconds and watts (AC) of each; none where `../shared` is absent."""
    return tuple(_read_logs()) if REAL_LOGS.is_dir() else ()


def _read_logs() -> Iterator[tuple[str, Floats, Floats]]:
    for path in sorted(REAL_LOGS.glob("*.csv")):
        rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
        with path.open() as file:
            for row in csv.DictReader(file):
                for side in ("ac_w", "dc_w"):
                    if row[side]:
                        rows.setdefault((row["node"], side), []).append((float(row["t_s"]), float(row[side])))
        for (node, side), points in rows.items():
            t, watts = np.array(sorted(points)).T
            keep = np.concatenate(([True], np.diff(t) > 0.5))  # near-duplicate stamps
            if keep.sum() > 60:
                yield f"{path.stem} {node} {side[:2]}", t[keep], watts[keep]


def _draw_real(rng: np.random.Generator, p: Levels, begin: float, stop: float) -> tuple[Floats, Floats]:
    """Return a stretch of a real log, scaled to the levels; longer ones repeat it forth and back."""
    logs = read_real_logs()
    _, t, watts = logs[int(rng.integers(len(logs)))]
    t, watts = t - t[0], watts * p.high / NODE_W * 1.4
    while t[-1] < stop - begin:
        t, watts = np.concatenate((t, t[-1] + 2.0 + t)), np.concatenate((watts, watts[::-1]))
    since = rng.uniform(0, t[-1] - (stop - begin))
    inside = (t > since) & (t < since + stop - begin)
    ends = np.interp([since, since + stop - begin], t, watts)
    return (
        np.concatenate(([begin], begin + t[inside] - since, [stop])),
        np.concatenate((ends[:1], watts[inside], ends[1:])),
    )


DRAWN = {
    "constant": lambda _, p, a, b: _hold(np.array([a]), np.array([p.high]), b),
    "square": _draw_square,
    "training": _draw_training,
    "noise": _draw_noise,
    "rare dips": lambda rng, p, a, b: _draw_events(rng, p.high, p.low, a, b),
    "bursts": lambda rng, p, a, b: _draw_events(rng, p.low, p.high, a, b),
    "ramp": _draw_ramp,
    "phases": _draw_phases,
    "real log": _draw_real,
}


def list_kinds() -> list[str]:
    """List the kinds of load that can be drawn here."""
    return [kind for kind in DRAWN if kind != "real log" or read_real_logs()]


def draw_load(rng: np.random.Generator, kind: str, lead_s: float, span_s: float, tail_s: float, scale: float) -> Curve:
    """Draw a load around a workload of `span_s`; half of them begin and end with it, the others go on outside.

    `scale` multiplies the powers of a GPU (50 to 690 W).
    """
    low = rng.uniform(60, 150) * scale
    p = Levels(rng.uniform(50, 80) * scale, low, rng.uniform(300, 690) * scale)
    end = lead_s + span_s + tail_s
    begin, stop = 0.0, end
    if rng.random() < 0.5:
        late = min(0.5, span_s / 10)
        begin, stop = lead_s + rng.uniform(0, late), lead_s + span_s - rng.uniform(0, late)
    t, watts = DRAWN[kind](rng, p, begin, stop)
    outside = np.array([p.idle, p.idle])
    return make_curve(
        np.concatenate(([0.0, begin], t, [stop, end])),
        np.concatenate((outside, np.maximum(watts, p.idle / 2), outside)),
    )
