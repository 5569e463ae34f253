"""Terms: equal sources linearly, others in quadrature, with signs."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.quantity import Quantity, add_quantities, make_edge_terms

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
sources = st.sampled_from(["gain:a", "gain:b", "edge:x:1", "edge:x:2"])
terms = st.dictionaries(sources, numbers, max_size=4)
quantities = st.builds(Quantity, numbers, terms, st.booleans(), st.dictionaries(sources, numbers, max_size=2))


def same(a: Quantity, b: Quantity, tolerance: float = 1e-6) -> None:
    assert a.value == pytest.approx(b.value, abs=tolerance)
    assert a.known == b.known
    for mine, other in ((a.terms, b.terms), (a.bounds, b.bounds)):
        for source in {*mine, *other}:
            assert mine.get(source, 0.0) == pytest.approx(other.get(source, 0.0), abs=tolerance)


@given(numbers, numbers)
def test_equal_sources_add_linearly_others_in_quadrature(u, v):
    one, same_source, other = Quantity(1.0, {"gain:a": u}), Quantity(2.0, {"gain:a": v}), Quantity(2.0, {"gain:b": v})
    assert (one + same_source).u == pytest.approx(abs(u + v), abs=1e-6)
    assert (one + other).u == pytest.approx(math.hypot(u, v), abs=1e-6)
    assert (one - same_source).u == pytest.approx(abs(u - v), abs=1e-6)
    assert (one - other).u == pytest.approx(math.hypot(u, v), abs=1e-6)


@given(quantities, quantities, quantities)
def test_sums_do_not_care_about_order(a, b, c):
    same((a + b) + c, a + (b + c))
    same(a + b, b + a)
    same(add_quantities([a, b, c]), a + b + c)
    same(add_quantities([]), Quantity(0.0))


@given(quantities, st.floats(-100, 100), st.floats(-100, 100))
def test_scaling_is_linear(a, x, y):
    same(a * x + a * y, a * (x + y), 1e-3)
    same(a * x * y, a * (x * y), 1e-2)
    assert (a * x).u == pytest.approx(abs(x) * a.u, rel=1e-9, abs=1e-9)
    same(a + -a * 2.0, -a)


@given(quantities)
def test_what_is_taken_away_whole_leaves_nothing(a):
    left = a - a
    assert (left.value, left.u) == (0.0, 0.0)
    assert left.known == a.known


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0, 0.2), st.floats(-1.0, 1.0))
def test_the_gain_of_one_meter_cancels_in_a_ratio(a, b, gain, error):
    """Readings wrong by one factor have the ratio of the true values, and the interval knows it."""
    one = Quantity(a * (1 + gain * error), {"gain:m": a * (1 + gain * error) * gain})
    two = Quantity(b * (1 + gain * error), {"gain:m": b * (1 + gain * error) * gain})
    ratio = one / two
    assert ratio.value == pytest.approx(a / b)
    assert ratio.u == pytest.approx(0.0, abs=1e-9 * ratio.value)
    other = Quantity(two.value, {"gain:other": two.value * gain})
    assert (one / other).u == pytest.approx(math.sqrt(2) * gain * a / b, rel=1e-9)


@given(st.floats(10, 1e4), st.floats(10, 1e4), st.floats(-0.01, 0.01), st.floats(-0.01, 0.01))
def test_a_ratio_is_right_to_first_order(a, b, du, dv):
    """Move every source by one u: the ratio moves by the sum of its terms."""
    one, two = Quantity(a, {"x": a * du, "z": a * dv}), Quantity(b, {"y": b * dv / 2, "z": b * du / 3})
    moved = a * (1 + du + dv) / (b * (1 + dv / 2 + du / 3)) - a / b
    first_order = sum((one / two).terms.values())
    assert first_order == pytest.approx(moved, abs=(3 * (abs(du) + abs(dv)) ** 2 + 1e-12) * a / b)


def test_a_number_is_divided_by_a_quantity():
    found = 1.0 / Quantity(2.0, {"gain:m": 0.1})
    assert (found.value, found.terms) == (0.5, {"gain:m": pytest.approx(-0.025)})


def test_nothing_divides_by_nothing():
    with pytest.raises(ZeroDivisionError):
        Quantity(1.0) / Quantity(0.0)


def test_net_of_idle_keeps_the_gain_of_what_is_left():
    load, idle = Quantity(1000.0, {"gain:m": 50.0}), Quantity(300.0, {"gain:m": 15.0})
    assert (load - idle).u == pytest.approx(35.0)


def test_an_unknown_part_makes_the_whole_unknown():
    known, unknown = Quantity(1.0, {"a": 0.1}), Quantity(1.0, {"b": 0.1}, known=False)
    assert known.expanded == pytest.approx(0.2)
    for whole in (known + unknown, known - unknown, known / unknown, unknown / known, unknown * 2):
        assert whole.expanded is None
        assert whole.u > 0


def test_tags_keep_two_runs_apart_but_for_what_they_share():
    a = Quantity(10.0, {"gain:m": 1.0, "edge:m:5": 2.0, "lag:m": 3.0})
    tagged = a.tagged("a", keep=("gain:",))
    assert dict(tagged.terms) == {"gain:m": 1.0, "edge:m:5@a": 2.0, "lag:m@a": 3.0}
    assert (tagged - a.tagged("b", keep=("gain:",))).u == pytest.approx(math.sqrt(2 * 4 + 2 * 9))
    assert a.tagged("a").terms.keys() == {"gain:m@a", "edge:m:5@a", "lag:m@a"}


def test_the_budget_is_by_kind_largest_first_whatever_the_tag():
    a = Quantity(10.0, {"edge:m:5": 3.0, "edge:m:9": -4.0, "gain:m": 6.0, "lag:m@idle": 2.0})
    assert a.budget() == {"gain": 6.0, "edge": 5.0, "lag": 2.0}
    assert list(a.budget()) == ["gain", "edge", "lag"]
    assert math.sqrt(sum(u * u for u in a.budget().values())) == pytest.approx(a.u)
    assert a.without("lag", "edge").budget() == {"gain": 6.0}
    widths = {"expanded": 2 * a.u, "bound": 2 * a.u}
    assert a.to_json() == {"value": 10.0, **widths, "known": True, "budget": a.budget()}


def test_a_bound_is_beside_the_interval_until_there_is_evidence_for_it():
    a = Quantity(10.0, {"gain:m": 3.0}, bounds={"m": 4.0})
    assert (a.u, a.expanded, a.bound) == (3.0, 6.0, 10.0)
    assert Quantity.from_terms(10.0, {"gain:m": 3.0, "unseen:m": 4.0}) == a  # as files of older versions have it
    assert a.without("unseen").bound == 6.0
    assert a.tagged("x", keep=("gain:",)).bounds == {"m@x": 4.0}
    assert a.budget() == {"unseen": 4.0, "gain": 3.0}
    assert (a.to_json()["expanded"], a.to_json()["bound"]) == (6.0, 10.0)
    evident = a.with_bound()
    assert dict(evident.terms) == {"gain:m": 3.0, "in-step:m": 4.0}
    assert (evident.expanded, evident.bound) == (10.0, 10.0)
    assert Quantity(10.0, {}, known=False, bounds={"m": 4.0}).bound is None


def test_bounds_of_one_sensor_add_and_cancel_as_terms_do():
    a = Quantity(10.0, bounds={"m": 4.0})
    assert (a + a).bound == 16.0
    assert (a - a).bound == 0.0
    assert (a / a).bound == 0.0
    assert (a * a).bound == 160.0
    assert add_quantities([a, a]).bounds == {"m": 8.0}


@given(quantities, numbers)
def test_numbers_are_exact_quantities(a, x):
    exact = Quantity(x)
    same(a + x, a + exact)
    same(x + a, exact + a)
    same(a - x, a - exact)
    same(x - a, exact - a)
    same(a * x, a * exact, 1e-3)
    same(x * a, exact * a, 1e-3)
    assert (float(a), a < x, a > x, a > exact) == (a.value, a.value < x, a.value > x, a.value > x)
    if x:
        same(a / x, a / exact)


@given(st.floats(10, 1e4), st.floats(10, 1e4), st.floats(-0.01, 0.01), st.floats(-0.01, 0.01))
def test_a_product_is_right_to_first_order(a, b, du, dv):
    one, two = Quantity(a, {"x": a * du, "z": a * dv}), Quantity(b, {"y": b * dv, "z": b * du})
    moved = a * (1 + du + dv) * b * (1 + dv + du) - a * b
    assert sum((one * two).terms.values()) == pytest.approx(moved, abs=((abs(du) + abs(dv)) ** 2 + 1e-12) * a * b)


def test_numbers_of_numpy_are_numbers_and_arrays_are_refused():
    a = Quantity(10.0, {"gain:m": 3.0})
    assert np.float64(2.0) * a == a * np.float32(2.0) == np.int64(2) * a == a * 2
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \*: '(numpy.)?ndarray' and 'Quantity'"):
        np.arange(3.0) * a  # would be an array of quantities, each with the same error
    with pytest.raises(TypeError):
        a + "1"


def test_an_energy_is_told_in_kwh_and_its_width_as_a_share():
    a = Quantity(7.2e6, {"gain:m": 0.36e6}, bounds={"m": 3.6e6})
    assert (a.kwh.value, a.kwh.u, a.kwh.bounds) == (2.0, pytest.approx(0.1), {"m": 1.0})
    assert a.relative == pytest.approx(0.1)
    assert Quantity(0.0).relative is None
    assert Quantity(1.0, known=False).relative is None
    assert (a.is_positive, (-a).is_positive, Quantity(1.0, known=False).is_positive) == (True, False, None)


@every_row(
    ("value", "u", "known", "is_resolved"),
    [(10.0, 5.0, True, True), (10.0, 5.1, True, False), (-10.0, 4.0, True, True), (0.0, 0.0, True, True),
     (0.0, 1.0, True, False), (1.0, math.inf, True, False), (math.nan, 0.0, True, False), (1.0, 9.0, False, True)],
)  # fmt: skip
def test_a_figure_is_resolved_unless_its_interval_exceeds_it(value, u, known, is_resolved):
    assert Quantity(value, {"gain:a": u}, known).is_resolved is is_resolved


def test_the_edge_between_two_phases_cancels_in_their_sum():
    def u(t_ns):
        return float(t_ns)

    first, second = (Quantity(1.0, make_edge_terms("c", *ends, u)) for ends in ((1, 2), (2, 5)))
    assert (first + second).u == pytest.approx(math.hypot(1, 5))
    assert make_edge_terms("c", 3, 3, u) == {}


@every_row(
    ("value", "u", "text"),
    [
        (1234.5678, 6.0, "1,235 ± 12"),
        (100.036, 1.15, "100 ± 2"),
        (99.96, 0.4985, "100.0 ± 1.0"),
        (-0.04, 0.5, "not resolved (± 1.0)"),
        (123456.7, 600.0, "123,500 ± 1,200"),
        (0.0012345, 0.00005, "0.00123 ± 0.00010"),
        (2.7787878e-5, 3.2e-7, "0.0000278 ± 0.0000006"),
        (3.2e-14, 4e-16, "(3.20 ± 0.08)e-14"),
        (4.56789e15, 1e13, "(4.57 ± 0.02)e+15"),
        (0.0, 6.0, "not resolved (± 12)"),
        (3.5, 1e-30, "3.50000 ± 0.00001"),
        (1234.5678, 0.0, "1,234.57"),
        (math.nan, 1.0, "nan ± 2"),
        (1.0, math.inf, "1 ± inf"),
    ],
)
def test_a_quantity_reads_as_value_rounded_to_its_interval(value, u, text):
    a = Quantity(value, {"a": u})
    assert (str(a), repr(a), f"{a}") == (text, text, text)


def test_a_quantity_of_unknown_accuracy_reads_as_value_alone():
    assert str(Quantity(1234.5678, {"a": 6.0}, known=False)) == "1,235 (accuracy unknown)"


@given(quantities)
def test_a_quantity_is_formatted_and_rounded_as_its_value(a):
    assert f"{a:.2f} {a:>12.3g} {a:e}" == f"{a.value:.2f} {a.value:>12.3g} {a.value:e}"
    assert (round(a), round(a, 1)) == (round(a.value), round(a.value, 1))
    assert abs(a).value == abs(a.value)
    assert (abs(a).u, abs(a).known) == (pytest.approx(a.u), a.known)


@given(quantities, quantities, numbers)
def test_comparisons_are_those_of_values(a, b, x):
    assert (a <= b, a >= b, a < b, a > b) == (
        a.value <= b.value,
        a.value >= b.value,
        a.value < b.value,
        a.value > b.value,
    )
    assert (a <= x, x <= a, a >= x, x >= a) == (a.value <= x, x <= a.value, a.value >= x, x >= a.value)


@pytest.mark.parametrize("other", ["5", None, np.arange(3.0)])
def test_a_quantity_is_not_compared_with_anything_but_numbers(other):
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(TypeError, match="not supported between instances of 'Quantity' and"):
            compare(Quantity(1.0), other)


@given(quantities)
def test_equal_quantities_have_one_hash(a):
    again = Quantity(a.value, dict(reversed(a.terms.items())), a.known, dict(a.bounds))
    assert hash(a) == hash(again)
    assert {a: 1}[again] == 1
    assert len({a, again, a + 1.0}) == 2
