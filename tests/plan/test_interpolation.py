"""A curve between its points: exact at them, never beyond them, and honest about how it bends."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulelab.core.quantity import Quantity
from joulelab.plan.cap_response import interpolate_quantity

CAPS = (300.0, 400.0, 500.0, 600.0, 700.0)


def slowdown(cap: float) -> float:
    """Return what a curve of the usual form says."""
    return 1 + 0.04 * (math.pow(0.95 * cap / 665.0, -4.2) - 1)


def curve(caps: tuple[float, ...], u: float = 0.0) -> list[Quantity]:
    return [Quantity(slowdown(c), {f"repeats:{c}": u * slowdown(c)} if u else {}) for c in caps]


@given(st.lists(st.floats(0.5, 5.0), min_size=2, max_size=8), st.floats(0.0, 1.0))
def test_it_stays_between_the_two_points_beside(values: list[float], share: float) -> None:
    x = [100.0 + 25.0 * k for k in range(len(values))]
    at = x[0] + share * (x[-1] - x[0])
    found = interpolate_quantity(x, [Quantity(v) for v in values], at, "curve:test").value
    k = min(int((at - x[0]) / 25.0), len(x) - 2)
    low, high = sorted(values[k : k + 2])
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5))
def test_a_curve_that_falls_goes_on_falling(steps: list[float], places: list[float]) -> None:
    values = [10.0]
    for step in steps:
        values.append(values[-1] * math.exp(-step))
    x = [100.0 + 25.0 * k for k in range(len(values))]
    at = sorted(x[0] + share * (x[-1] - x[0]) for share in places)
    found = [interpolate_quantity(x, [Quantity(v) for v in values], each, "curve:test").value for each in at]
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(found))


def test_points_are_given_as_they_are() -> None:
    points = curve(CAPS, 0.01)
    assert [interpolate_quantity(CAPS, points, cap, "curve:test") for cap in CAPS] == points


def test_a_smooth_curve_lies_in_the_interval_also_without_scatter() -> None:
    for left_out in ((), (400.0,), (500.0,), (400.0, 600.0), (400.0, 500.0, 600.0)):
        caps = tuple(c for c in CAPS if c not in left_out)
        for at in range(310, 700, 10):
            found = interpolate_quantity(caps, curve(caps), float(at), "curve:test")
            assert abs(found.value - slowdown(at)) <= 2 * found.u + 1e-12, (left_out, at)


def test_the_uncertainty_of_both_points_is_carried_by_their_shares() -> None:
    flat = [Quantity(2.0, {"repeats:a": 0.1}), Quantity(2.0, {"repeats:b": 0.3})]
    middle = interpolate_quantity((100.0, 400.0), flat, 200.0, "curve:test")
    assert middle.terms == pytest.approx({"repeats:a": 0.05, "repeats:b": 0.15, "curve:test": 0.0})
    unknown = interpolate_quantity((100.0, 400.0), [flat[0], Quantity(2.0, known=False)], 200.0, "curve:test")
    assert not unknown.known


def test_two_points_alone_say_less_than_more_do() -> None:
    few = interpolate_quantity(CAPS[::4], curve(CAPS[::4]), 450.0, "curve:test")
    more = interpolate_quantity(CAPS[::2], curve(CAPS[::2]), 450.0, "curve:test")
    assert few.u > 1.5 * more.u > 0
