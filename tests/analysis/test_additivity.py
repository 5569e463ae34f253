"""The whole is the sum of its parts: any split, counters and powers, with wraps, gaps and uneven polling."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.virtual import counter_spec, ns, power_spec, readings

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.core.quantity import add_quantities

LIMITS = (0.0, 800.0)
# Polls as they come: fast around edges, usual, late, and after a gap.
pauses = st.lists(st.sampled_from([0.002, 0.002, 0.02, 0.1, 0.1, 0.1, 0.13, 0.5, 3.0, 12.0]), min_size=2, max_size=80)
levels = st.lists(st.floats(0.0, 800.0), min_size=1, max_size=12)
cuts = st.lists(st.floats(-0.3, 1.3), min_size=3, max_size=8, unique=True)


def joules(t, watts, every_s):
    """Return the energy up to each time of a load that takes the next level every so often, from second -5 on."""
    grid = np.arange(-5.0, float(np.max(t)) + every_s, every_s)
    power = np.resize(np.array(watts), grid.size - 1)
    known = np.concatenate(([0.0], np.cumsum(power * every_s)))
    return np.interp(t, grid, known)


@st.composite
def counters(draw):
    t = np.concatenate(([0.0], np.cumsum(draw(pauses))))
    tick = draw(st.sampled_from([0.001, 0.1, 1.0]))
    modulus = draw(st.sampled_from([None, 12_000.0, 65_536.0]))
    at = np.floor((t - draw(st.floats(0, 0.1))) / tick) * tick
    energy = 4_000.0 + joules(at, draw(levels), draw(st.sampled_from([0.05, 0.37, 2.0])))
    shown = energy % modulus if modulus else energy
    spec = counter_spec(tick, gain=draw(st.sampled_from([0.0, 0.05])), limits=LIMITS, modulus=modulus, quantum=0.001)
    return t, CounterCurve(readings(t, shown), spec, name="c")


@st.composite
def powers(draw):
    t = np.concatenate(([0.0], np.cumsum(draw(pauses))))
    update, window = draw(st.sampled_from([(0.0, 0.0), (0.1, 0.1), (0.1, 0.025), (0.1, 1.0), (1.0, 1.0)]))
    watts = np.resize(np.array(draw(levels)), t.size)
    seen = min(1.0, window / update) if update else 1.0
    spec = power_spec(update, window, gain=0.05, offset=1.0, quantum=0.001, limits=LIMITS, seen=seen)
    return t, PowerCurve(readings(t, watts), spec, name="p", step_s=0.1)


def split(t, shares):
    return [ns(float(x) * float(t[-1])) for x in sorted(shares)]


@pytest.mark.system  # pure, and slow
@settings(max_examples=40, deadline=None)
@given(counters() | powers(), cuts)
def test_energies_add_to_rounding(made, shares):
    t, curve = made
    ends = split(t, shares)
    parts = [curve.energy(a, b).value for a, b in pairwise(ends)]
    whole = curve.energy(ends[0], ends[-1]).value
    assert math.fsum(parts) == pytest.approx(whole, rel=1e-9, abs=1e-6)
    assert curve.energy(ends[-1], ends[0]).value == pytest.approx(-whole, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(counters(), cuts)
def test_adjacent_phases_of_a_counter_are_as_sure_as_the_whole(made, shares):
    """Wraps, resets and the gain add up to those of the whole, and every edge inside cancels.

    Readings that are equally old at both ends of a short phase may not be at those of the whole.
    """
    t, curve = made
    ends = split(t, shares)
    whole = curve.energy(ends[0], ends[-1])
    parts = add_quantities(curve.energy(a, b) for a, b in pairwise(ends))
    alike = any(curve._find_alike((b - a) * 1e-9) for a, b in pairwise(ends))
    for kind, u in whole.budget().items():
        if not alike or kind not in ("edge", "lag"):
            assert parts.budget()[kind] == pytest.approx(u, rel=1e-6, abs=1e-6), kind
    assert parts.u >= whole.u / math.sqrt(len(ends) - 1) * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(powers(), cuts)
def test_adjacent_phases_of_a_power_are_as_sure_as_the_whole(made, shares):
    t, curve = made
    ends = split(t, shares)
    whole = curve.energy(ends[0], ends[-1])
    parts = add_quantities(curve.energy(a, b) for a, b in pairwise(ends))
    for kind in ("gain", "offset", "edge", "lag"):
        expected = whole.budget().get(kind, 0.0)
        assert parts.budget().get(kind, 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-6), kind
    # Where nobody knows what the sensor missed, parts are never surer than the whole.
    assert parts.budget().get("unseen", 0.0) >= whole.budget().get("unseen", 0.0) * (1 - 1e-9)
    # Parts of a gap are judged as gaps of their own length.
    assert ("gap" in parts.budget()) == ("gap" in whole.budget())
    # Between readings: from 1/12 to 1/2 of the same squares, less for parts of a step; ages count by the range inside.
    if curve.update_s == 0:
        least = whole.budget().get("sampling", 0.0) / math.sqrt(6 * (len(ends) - 1))
        assert parts.budget().get("sampling", 0.0) >= least * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(counters(), cuts)
def test_energy_is_never_less_than_nothing_beyond_its_interval(made, shares):
    t, curve = made
    for a, b in pairwise(split(t, shares)):
        found = curve.energy(a, b)
        assert found.value >= -2 * found.u - 1e-6


@pytest.mark.system  # pure, and slow
@settings(max_examples=40, deadline=None)
@given(counters(), st.integers(2, 8))
def test_gpus_of_one_model_work_in_step_and_others_do_not(made, count):
    """What the load did at an edge it did on all of them, so those errors add linearly, as the gains do."""
    t, curve = made
    a, b = split(t, [0.1, 0.9])
    for shared, share in (("nvml:H100", count), ("", math.sqrt(count))):
        spec = counter_spec(0.1, gain=0.05, limits=LIMITS, shared=shared)
        gpus = [CounterCurve(curve.readings, spec, name=f"gpu:{i}") for i in range(count)]
        one, node = gpus[0].energy(a, b), add_quantities(g.energy(a, b) for g in gpus)
        assert node.value == pytest.approx(count * one.value)
        for kind, u in one.without("break").budget().items():
            # How old their readings are is each counter's own.
            of_all = math.sqrt(count) if kind == "lag" else share
            assert node.budget()[kind] == pytest.approx(of_all * u, abs=1e-9), kind
