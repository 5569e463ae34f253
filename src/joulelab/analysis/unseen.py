"""Bound the energy that a sensor misses because it measures only part of the time."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.quantity import COVERAGE_FACTOR, IN_STEP

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats, Ints, Readings

BEYOND_MEANS = 0.25  # share of the range of means by which true powers may lie beyond them
RIPPLE = 0.1  # share of the power by which it may vary inside a tick without showing in the means
FEWEST_BEAT_READINGS = 16  # new values needed to find a beat
FEWEST_CROSSINGS = 4  # slow crossings of the middle: two beats
SHARP_CROSSING = 0.4  # share of the range of power that a load crosses at once when it switches
SHORTEST_BEAT = 4.0  # updates: shorter beats scatter like random samples
LOCK_READINGS = 16_384  # readings searched for an exact repeat
FEWEST_LOCKED = 32  # readings needed to find one
LOCKED_CORRELATION = 0.85  # autocorrelation from which readings repeat exactly
MOST_LOCKED_CHANGES = 8  # changes of power in a pattern that repeats
FLAT_SHARE = 0.02  # of the mean: a load that varies by less is flat
FEWEST_STEPS = 12  # reported steps from which their phases on the sensor's period are looked at
STEPS_PER_BLOCK = 96  # steps looked at together: a load may be in step for part of the run only
LONGEST_PAUSE = 10.0  # usual steps; after a longer pause the phase of the steps may be another one
CYCLE_BINS = 48  # parts into which a sensor's period is divided
GRID_DRIFT = 0.015  # a sensor keeps its stated period within 1.5 %: a recorded A100 updates every 101.2 ms
EVIDENT_DRIFT = 0.005  # the same, where steps shall be evidence: within 1.5 %, long steps fit some period by chance
IN_STEP_EVIDENCE = 0.25  # share of the hidden part, left unseen, from which steps are evidence; chance leaves less
MOST_PERIODS = 2_000  # of a sensor that are tried
STEP_CELLS = 1 << 18  # periods times steps that are computed at once
CACHED_SHARES = 512  # results kept by a digest of the steps: devices of one kind need the same phases again
_SHARES: dict[tuple[float, float, float, bytes], float] = {}


@dataclass(frozen=True)
class PowerBounds:
    """Bound the true power of a scope (W): never below `low`, never above `high`."""

    low: float
    high: float


def bound_unseen(energy_j: float, span_s: float, share: float, bounds: PowerBounds) -> float:
    """Return half of the largest error (J) that the hidden share can cause, with any power within bounds.

    It is half, so that the expanded uncertainty (k = 2) equals the largest possible error.
    """
    if share <= 0 or span_s <= 0:
        return 0.0
    mean = energy_j / span_s
    return share * span_s * max(mean - bounds.low, bounds.high - mean, 0.0) / COVERAGE_FACTOR


def place_unseen(u: float, source: str, terms: dict[str, float], evident: bool) -> dict[str, float]:
    """Make the energy that a sensor may have missed a term if steps are evidence for it, else a bound."""
    if evident:
        terms[IN_STEP + source] = u
    return {source: u} if u and not evident else {}


Beat = tuple[int, int, float, float]  # begin and end (ns) of a slow beat, its period (s), standard deviation (W)


def find_beat(readings: Readings, update_s: float, seen: float) -> Beat | None:
    """Find a slow beat between a load and a sensor that measures the share `seen` of every `update_s`; None without.

    Loads switch within one reading. If power crosses its middle slowly instead, several times, the windows of the
    sensor wander through a faster load.
    """
    t, value = readings.t0_ns, readings.value
    new = np.concatenate(([True], np.diff(value) != 0)) if t.size else np.zeros(0, dtype=bool)
    t, value = t[new], value[new]
    if value.size < FEWEST_BEAT_READINGS:
        return None
    low, high = np.percentile(value, (5, 95))
    above = value > (low + high) / 2
    crossed = np.flatnonzero(above[1:] != above[:-1])
    slow = crossed[np.abs(value[crossed + 1] - value[crossed]) < SHARP_CROSSING * (high - low)]
    if slow.size < FEWEST_CROSSINGS or slow.size < crossed.size / 2:
        return None
    period_s = 2 * float(np.median(np.diff(t[slow]))) * 1e-9
    if period_s < SHORTEST_BEAT * update_s:
        return None
    part = value[slow[0] : slow[-1] + 1]
    # It begins and ends up to half a beat outside, where the load itself switched at the latest.
    half, sharp = round(period_s / 2 * 1e9), t[np.setdiff1d(crossed, slow)]
    since, until = int(t[slow[0]]) - half, int(t[slow[-1]]) + half
    since = max(since, int(sharp[sharp < t[slow[0]]].max(initial=since)))
    until = min(until, int(sharp[sharp > t[slow[-1]]].min(initial=until)))
    return since, until, period_s, float(part.std()) * min(1.0, 2 * (1 - seen))


def find_locked_period(readings: Readings, step_s: float) -> float | None:
    """Return the period (s) after which the readings repeat exactly, from the begin to the end; None without.

    Then load and readings keep time with each other: each change of power falls at the same moment of a step.
    """
    t = (readings.t0_ns - readings.t0_ns[0]) * 1e-9
    count = min(int(t[-1] / step_s) + 1, LOCK_READINGS)
    if count < FEWEST_LOCKED:
        return None
    # Between the usual times of readings: on them, a reading that is a little late would be missed.
    grid = t[0] + (np.arange(count) + 0.5) * step_s
    x = readings.value[np.maximum(np.searchsorted(t, grid, side="right") - 1, 0)]
    x = x - x.mean()
    power = float(np.dot(x, x))
    if power <= 0 or float(np.abs(x).max()) <= FLAT_SHARE * abs(float(readings.value.mean())):
        return None
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    alike = np.fft.irfft(spectrum * np.conj(spectrum), size)[: count // 2] / power * count
    alike /= count - np.arange(count // 2)
    # A pattern of many changes meets a step at so many moments that their errors cancel.
    changes = float(np.mean((x[1:] > 0) != (x[:-1] > 0)))
    longest = min(count // 4, int(MOST_LOCKED_CHANGES / changes) + 1)
    likely = 2 + np.flatnonzero(alike[2:longest] > LOCKED_CORRELATION)
    # A slow wave is alike at some lags by chance, but not at all their multiples.
    return next((float(lag) * step_s for lag in likely if alike[lag::lag].min() > LOCKED_CORRELATION), None)


def select_steps(steps_ns: Ints | None, a_ns: int, b_ns: int) -> Ints | None:
    """Return the steps in [a, b]: steps of another phase are no evidence for this one."""
    return None if steps_ns is None else steps_ns[(steps_ns >= a_ns) & (steps_ns <= b_ns)]


def find_unseen_share(seen: float, grid_s: float, steps_ns: Ints | None = None) -> float:
    """Return the share of a load's cycle that a meter may have missed, or seen less often than the rest.

    A meter that sees the share `seen` of every `grid_s` misses 1 - seen of a load in step with it. The times at which
    the workload reported steps show whether it is in step: where their phases on the grid are spread evenly, for every
    period that the sensor may really have, every part of the cycle was seen equally often. Without steps, or without a
    known grid (0), nothing is excluded. Steps of several processes follow each other (a fall in time begins the next);
    the worst process counts, because it is unknown which of them uses this device.
    """
    hidden = 1.0 - min(1.0, seen)
    if hidden <= 1e-9:
        return 0.0
    if grid_s <= 0:
        return hidden
    return hidden if steps_ns is None else min(hidden, _find_worst_share(seen, grid_s, steps_ns, GRID_DRIFT))


def is_in_step(seen: float, grid_s: float, steps_ns: Ints | None) -> bool:
    """Return whether reported steps are evidence that the load repeats at the rate of the meter.

    Too few steps are no evidence. By chance, 12 steps of random lengths leave a tenth of the hidden part unseen, 96
    nearly nothing.
    """
    hidden = 1.0 - min(1.0, seen)
    if hidden <= 1e-9 or grid_s <= 0 or steps_ns is None:
        return False
    return IN_STEP_EVIDENCE * hidden < _find_worst_share(seen, grid_s, steps_ns, EVIDENT_DRIFT) < 1.0


def _find_worst_share(seen: float, grid_s: float, steps_ns: Ints, drift: float) -> float:
    """Return the largest unseen share of all processes, 1 if none reported enough steps."""
    key = seen, grid_s, drift, blake2b(steps_ns.tobytes(), digest_size=16).digest()
    found = _SHARES.get(key)
    if found is None:
        sources = np.split(steps_ns, np.flatnonzero(np.diff(steps_ns) < 0) + 1)
        shares = [
            _find_share_in_step(s, max(seen, 1 / CYCLE_BINS), grid_s * 1e9, drift)
            for s in sources
            if s.size >= FEWEST_STEPS
        ]
        found = max(shares, default=1.0)
        if len(_SHARES) >= CACHED_SHARES:
            _SHARES.clear()
        _SHARES[key] = found
    return found


def _find_share_in_step(steps_ns: Ints, seen: float, grid_ns: float, drift: float) -> float:
    """Return the unseen share for the worst possible period of the sensor, as the mean over blocks of steps."""
    size = min(steps_ns.size, STEPS_PER_BLOCK)
    blocks = steps_ns[: steps_ns.size - steps_ns.size % size].reshape(-1, size)
    pauses = np.diff(blocks, axis=1)
    blocks = blocks[pauses.max(axis=1) <= LONGEST_PAUSE * np.median(pauses, axis=1)]
    if not len(blocks):
        return 1.0
    since = (blocks - blocks[:, :1]).astype(np.float64)
    # Fine enough that from one period to the next no phase moves by more than a quarter of the window.
    count = int(8 * drift * float(since.max()) / grid_ns / seen) + 3
    grids = grid_ns * (1 + drift * np.linspace(-1, 1, min(count, MOST_PERIODS) | 1))
    together = max(STEP_CELLS // since.size, 1)
    worst = np.zeros(len(blocks))
    for first in range(0, grids.size, together):
        some = grids[first : first + together, np.newaxis, np.newaxis]
        shares = _measure_unevenness((since % some / some).reshape(-1, size), seen)
        worst = np.maximum(worst, shares.reshape(-1, len(blocks)).max(axis=0))
    return float(worst.mean())


def _measure_unevenness(phase: Floats, seen: float) -> Floats:
    """Return for each block the share of the cycle that was not measured, or measured less often than the rest."""
    rows, size = phase.shape
    bins = np.arange(rows)[:, np.newaxis] * CYCLE_BINS + np.minimum(
        (phase * CYCLE_BINS).astype(np.int64), CYCLE_BINS - 1
    )
    found = np.bincount(bins.ravel(), minlength=rows * CYCLE_BINS).reshape(rows, CYCLE_BINS)
    window = max(round(seen * CYCLE_BINS), 1)
    reached = np.cumsum(np.concatenate((found, found), axis=1), axis=1)
    covered = reached[:, CYCLE_BINS:] - reached[:, CYCLE_BINS - window : 2 * CYCLE_BINS - window]
    unseen: Floats = np.mean(covered == 0, axis=1)
    uneven: Floats = np.mean(np.abs(covered * CYCLE_BINS / (size * window) - 1.0), axis=1) / 2
    # Unevenness of random steps, times 1.5 because the worst period is searched.
    chance = 1.5 * 0.4 * np.sqrt((1 - seen) / (size * seen))
    share: Floats = np.maximum(unseen, uneven - chance)
    return share
