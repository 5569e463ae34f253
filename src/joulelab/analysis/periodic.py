"""See whether a load repeats, and whether it may be in step with a meter that sees only part of the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joulelab.analysis.series import Floats, Ints

LONGEST = 16_384  # readings looked at; a load that repeats does so within them
ALIKE = 0.5  # autocorrelation from which a series counts as repeating
STEPS_PER_BLOCK = 12  # steps looked at together; over longer stretches two clocks drift apart and hide a lock


def repeat_period_s(value: Floats, step_s: float) -> float | None:
    """Return the shortest lag (s) at which the series resembles itself, None where it does not repeat."""
    n = min(value.size, LONGEST)
    if n < 16:
        return None
    start = (value.size - n) // 2
    x = value[start : start + n] - value[start : start + n].mean()
    power = float(np.dot(x, x))
    if power <= 1e-12 * n * float(np.abs(value[start : start + n]).max() + 1e-30) ** 2:
        return None
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), size)[: n // 2] / power
    correlation *= n / (n - np.arange(n // 2))
    # The first fall below half of the threshold ends the main peak; what comes back above it is a repeat.
    below = np.flatnonzero(correlation < ALIKE / 2)
    if below.size == 0:
        return None
    back = np.flatnonzero(correlation[below[0] :] > ALIKE)
    return float(below[0] + back[0]) * step_s if back.size else None


def unseen_share(seen: float, grid_s: float, steps_ns: Ints | None = None) -> float:
    """Return the share of a load's cycle that a meter may never have seen.

    A meter that sees the share `seen` of every `grid_s` misses 1 - seen of a load in step with it. The times at which
    the workload reported a step tell whether it is: where their phases on the grid lie no further apart than the
    window, every part of the cycle was seen. Without steps nothing is excluded.
    """
    hidden = 1.0 - min(1.0, seen)
    if hidden <= 1e-9:
        return 0.0
    if steps_ns is None or steps_ns.size < STEPS_PER_BLOCK:
        return hidden
    shares = []
    for i in range(0, steps_ns.size - STEPS_PER_BLOCK + 1, STEPS_PER_BLOCK):
        phase = np.sort((steps_ns[i : i + STEPS_PER_BLOCK] % round(grid_s * 1e9)) / (grid_s * 1e9))
        arcs = np.diff(np.concatenate((phase, [phase[0] + 1.0])))
        shares.append(float(np.maximum(arcs - seen, 0.0).sum()))
    return float(np.mean(shares))
