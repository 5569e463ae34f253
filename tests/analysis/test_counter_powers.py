"""Powers by the rises of counters: readings that come irregularly."""

from __future__ import annotations

import numpy as np
from tests.analysis.virtual import counter_spec, readings

from joulelab.analysis.counter import CounterCurve


def test_readings_that_come_late_and_early_show_no_peak():
    rng = np.random.default_rng(3)
    at = np.arange(0.0, 30.0, 0.1) + rng.uniform(0.0, 0.09, 300)
    steps = np.floor(at * 1000) / 1000  # a counter that steps every ms, at a constant 350 W
    seen = readings(at, 350.0 * (steps + rng.choice((0.0, -0.004), 300)))  # now and then some steps late
    watts = CounterCurve(seen, counter_spec(), name="c").find_powers(0.1).value
    assert watts.max() < 350.0 * 1.1
    assert watts.min() > 350.0 * 0.9
    assert len(watts) > 250
