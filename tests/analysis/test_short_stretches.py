"""Stretches shorter than a step of a counter: their energies are not negative, whatever the counter and the polls."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.virtual import counter_spec, ns, readings

from joulelab.analysis.counter import CounterCurve

SPAN = 60.0
FINE = np.arange(0, SPAN, 0.001)


def draw_counter(rng):
    """Return a counter of a random load, with random ticks, polls and counts, and the longest of its steps (s)."""
    tick, every = rng.choice([0.001, 0.02, 0.1, 0.5, 1.0]), rng.choice([0.01, 0.1, 0.3, 1.0])
    quantum = rng.choice([0.001, 1.0, 36.0])
    ends = np.cumsum(rng.uniform(0.05, 3, 2000))
    joules = np.concatenate(([0.0], np.cumsum(rng.uniform(0, 700, 2001)[np.searchsorted(ends, FINE[1:])] * 0.001)))
    t = np.arange(rng.uniform(0, every), SPAN - 0.2, every)
    t = np.sort(t + rng.exponential(float(rng.choice([0.0002, 0.002, 0.02])), t.size))
    phase = rng.uniform(0, tick)
    shown = np.floor(np.interp(np.floor((t - phase) / tick) * tick + phase, FINE, joules) / quantum) * quantum
    made = readings(t, shown, took=int(rng.choice([20_000, 2_000_000])))
    return CounterCurve(made, counter_spec(tick, quantum=quantum, limits=(0.0, 700.0)), name="c"), max(tick, every)


@pytest.mark.parametrize("draws", [10, pytest.param(400, marks=pytest.mark.campaign)])
def test_energy_is_never_negative(draws):
    rng = np.random.default_rng(11)
    least = []
    for _ in range(draws):
        curve, step_s = draw_counter(rng)
        since = rng.uniform(1, SPAN - 4, 30)
        lengths = np.exp(rng.uniform(np.log(1e-3), np.log(2 * step_s), 30))
        least += [curve.energy(ns(a), ns(a + s)).value for a, s in zip(since, lengths, strict=True)]
    assert min(least) >= -1e-6
