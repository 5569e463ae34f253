"""Good meters around a node are believed whatever its fast sensors show of quick loads; dead meters are found."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.virtual import accuracy, ns, readings

from joulelab.analysis.channels import EnergyChannel, ScopeChannels
from joulelab.analysis.joining import join_meters
from joulelab.analysis.power import PowerCurve
from joulelab.core.spec import Spec, Stream

LOW, HIGH, IDLE = 150.0, 650.0, 60.0
DRAWS = [5, pytest.param(150, marks=pytest.mark.campaign)]


class Square:
    """Compute the energy of a square wave with idle time before and after it."""

    def __init__(self, rng, shortest_s, longest_s, *, around_s, span_s):
        self.period_s = float(np.exp(rng.uniform(np.log(shortest_s), np.log(longest_s))))
        self.duty, self.phase = rng.uniform(0.2, 0.8), rng.uniform(0, 1)
        self.begin, self.end = around_s, span_s - around_s

    def joules(self, t):
        busy = np.clip(t, self.begin, self.end)
        cycles = busy / self.period_s + self.phase
        on_s = (np.floor(cycles) * self.duty + np.minimum(cycles % 1, self.duty)) * self.period_s
        return on_s * (HIGH - LOW) + LOW * busy + IDLE * (t - busy)

    def mean(self, t, window_s):
        return (self.joules(t) - self.joules(t - window_s)) / window_s


def channel(scope, meter, t, watts, step_s, update_s, window_s, parts=0):
    spec = Spec("power_w", "power", "W", "power", update_s, window_s, accuracy=accuracy(0.01, shared=meter))
    curve = PowerCurve(readings(t, watts), spec, name=f"{meter}/{scope}", step_s=step_s)
    stream = Stream(scope, "power", scope, step_s, (spec,), sums="node.ac" if parts else "", parts=parts)
    return EnergyChannel("h", meter, stream, spec, curve)


def doubt(rng, load, span_s, *, every_s=1.0, good=1, dead=0):
    """Return the meters that are doubted: PDUs around a GPU whose sensor measures 25 of 100 ms."""
    t = np.arange(rng.uniform(0, every_s), span_s, every_s)
    t = t + rng.exponential(0.002, t.size)
    gpu = channel("gpu:0", "nvml", t, load.mean(t, 0.025), every_s, 0.1, 0.025)
    at = np.arange(rng.uniform(0, 1), span_s, 1.0)
    shown = {f"good{k}": 300 + 1.1 * load.mean(at - 0.3, 1.0) + rng.normal(0, 3, at.size) for k in range(good)}
    shown |= {f"dead{k}": 900 + rng.normal(0, 1, at.size) for k in range(dead)}
    around = tuple(channel("node.ac", name, at, np.round(watts), 1.0, 1.0, 1.0) for name, watts in shown.items())
    scopes = [ScopeChannels("gpu:0", "h", "node.ac", (gpu,)), ScopeChannels("node.ac", "h", None, around)]
    found = join_meters(scopes, ns(max(load.begin, 2.0)), ns(min(load.end, span_s - 2.0)))
    return {lag.meter for lag in found.lags if lag.doubted}


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(("every_s", "around_s", "good"), [(1.0, 0.0, 1), (0.1, 0.0, 1), (1.0, 30.0, 1), (1.0, 0.0, 4)])
def test_a_good_meter_is_never_doubted_because_of_a_load_that_is_faster_than_readings(draws, every_s, around_s, good):
    rng, span_s = np.random.default_rng(7), 300.0 if every_s == 1.0 else 100.0
    loads = (Square(rng, 0.05, 0.95, around_s=around_s, span_s=span_s) for _ in range(draws))
    assert [load.period_s for load in loads if doubt(rng, load, span_s, every_s=every_s, good=good)] == []


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(("shortest_s", "longest_s"), [(0.05, 0.95), (8.0, 150.0)])
def test_a_dead_meter_is_found_by_begin_and_end_of_the_workload(draws, shortest_s, longest_s):
    rng = np.random.default_rng(8)
    loads = [Square(rng, shortest_s, longest_s, around_s=30.0, span_s=300.0) for _ in range(draws)]
    assert [load.period_s for load in loads if doubt(rng, load, 300.0, good=0, dead=1) != {"dead0"}] == []


@pytest.mark.parametrize("shares", [[1 / 8] * 8, [0.5, 0.5, 0.0, 0.0]])
def test_a_cord_that_carries_a_small_part_or_is_in_reserve_is_believed(shares):
    rng, at, fast = np.random.default_rng(10), np.arange(0.4, 76, 1.0), np.arange(0, 76, 0.1)
    load = Square(rng, 0.05, 0.06, around_s=8.0, span_s=76.0)
    gpu = channel("gpu:0", "nvml", fast, load.mean(fast, 0.025), 0.1, 0.1, 0.025)
    cords = [
        channel(
            f"outlet:{k}", "pdu", at, share * load.mean(at, 1.0) + rng.normal(5, 1, at.size), 1.0, 1.0, 1.0, parts=8
        )
        for k, share in enumerate(shares)
    ]
    scopes = [ScopeChannels(c.stream.scope, "h", "node.ac", (c,)) for c in (gpu, *cords)]
    found = join_meters(scopes, ns(8.0), ns(68.0)).lags
    assert [lag.doubted for lag in found] == [False] * len(shares)
    assert [lag.correlation < 0.5 for lag in found] == [share == 0 for share in shares]


@pytest.mark.parametrize("draws", DRAWS)
def test_a_dead_meter_is_found_beside_one_that_follows_the_load(draws):
    rng = np.random.default_rng(9)
    loads = [Square(rng, 20.0, 100.0, around_s=0.0, span_s=300.0) for _ in range(draws)]
    found = [doubt(rng, load, 300.0, every_s=0.1, good=1, dead=1) for load in loads]
    assert set().union(*found) == {"dead0"}
    assert np.mean([some == {"dead0"} for some in found]) >= 0.8  # some agree about the energy
