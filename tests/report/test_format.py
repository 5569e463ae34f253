from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt

values = st.floats(min_value=1e-9, max_value=1e13)
numbers = st.floats(min_value=-1e12, max_value=1e12)


@every_row(
    ("value", "expanded", "text"),
    [
        (12.3412, 0.1234, "12.34 ± 0.12"),
        (512.4, 123.0, "510 ± 120"),
        (12.3, 4.1, "12 ± 4"),
        (12.3, 15.2, "too short"),
        (15.2, 15.2, "15 ± 15"),
        (12.3456, None, "12.35 ± ?"),
        (12.3456, 0.0, "12.35"),
        (9.96, 0.0996, "9.96 ± 0.10"),
        (-1.43, 0.67, "-1.4 ± 0.7"),
        (-0.5, 0.67, "too short"),
        (0.0, 0.5, "too short"),
        (0.0, 0.0, "0"),
        (-1e-14, 5.2, "too short"),
        (123.456789, 1e-9, "123.457 ± 0.001"),
        (math.nan, 1.0, "-"),
    ],
)
def test_an_interval_has_the_digits_of_its_uncertainty(value: float, expanded: float | None, text: str) -> None:
    assert fmt.format_interval(value, expanded) == text


@every_row(
    ("watts", "expanded", "text"),
    [
        (1065.3, 420.0, "1,070 W"),
        (1393.2, 18.0, "1,393 W"),
        (497.24, 40.0, "497 W"),
        (90.09, 5.2, "90.1 W"),
        (497.24, 0.0123, "497.2 W"),
        (497.24, None, "497.2 W"),
        (12345.0, 2345.0, "12.3 kW"),
        (0.0, 5.0, "0 W"),
    ],
)
def test_a_mean_power_has_the_digits_of_its_energy(watts: float, expanded: float | None, text: str) -> None:
    assert fmt.format_watts(watts, expanded) == text


def read_number(text: str) -> float:
    return float(text.replace(",", ""))


def make_quantity(value: float, expanded: float | None, kind: str = "edge") -> Quantity:
    return Quantity(value, {kind: (expanded or 0.0) / 2}, known=expanded is not None)


def test_a_quality_may_be_smaller_than_its_interval_an_energy_may_not() -> None:
    assert fmt.format_interval(12.3, 15.2, signed=True) == "12 ± 15"
    assert fmt.format_interval(12.3, 15.2, unresolved=fmt.NOT_RESOLVED) == fmt.NOT_RESOLVED


@pytest.mark.parametrize(
    ("kind", "sentence", "cell"),
    [
        ("edge", fmt.TOO_SHORT, fmt.TOO_SHORT_CELL),
        ("missed", fmt.TOO_SHORT, fmt.TOO_SHORT_CELL),
        ("gap", fmt.NOT_RESOLVED, fmt.NOT_RESOLVED),
        ("offset", fmt.NOT_RESOLVED, fmt.NOT_RESOLVED),
    ],
)
def test_a_figure_is_called_too_short_only_if_more_time_would_help(kind: str, sentence: str, cell: str) -> None:
    energy = make_quantity(12.3, 15.2, kind)
    assert fmt.format_quantity(energy, "J", estimate=True) == sentence
    assert fmt.format_scaled(energy, 1.0, "J", estimate=True) == cell
    assert fmt.format_scaled(energy, 1.0, "J", is_derived=True) == fmt.NOT_RESOLVED


@every_row(
    ("value", "expanded", "text"),
    [
        (12341.2, 123.4, "12.34 ± 0.12 kJ"),
        (12341.2, None, "12.34 kJ (accuracy unknown)"),
        (12341.2, 4100.0, "12 ± 4 kJ (± 33 %)"),
        (0.0123, 0.0001, "12.30 ± 0.10 mJ"),
        (0.0, 0.0, "0 J"),
    ],
)
def test_a_quantity_has_a_prefix_and_says_what_is_unusual(value: float, expanded: float | None, text: str) -> None:
    assert fmt.format_quantity(make_quantity(value, expanded), "J") == text


def test_an_estimate_is_marked() -> None:
    assert fmt.format_quantity(make_quantity(100.0, 50.0), "J", estimate=True) == "~100 ± 50 J (± 50 %, estimate)"


def test_everything_beside_a_quantity_is_in_one_pair_of_brackets() -> None:
    text = fmt.format_quantity(make_quantity(9290.0, None), "J", estimate=True)
    assert text == "~9.290 kJ (accuracy unknown, estimate)"


@every_row(
    ("value", "expanded", "text"),
    [
        (0.00828, 0.0005, "0.0083"),
        (0.353, 0.021, "0.35"),
        (0.353, 0.012, "0.353"),
        (0.3534, None, "0.3534"),
        (0.3534, math.inf, "0.3534"),
    ],
)
def test_money_has_the_digits_of_its_interval(value: float, expanded: float | None, text: str) -> None:
    assert fmt.format_rounded(value, expanded) == text
    if expanded is not None and math.isfinite(expanded):
        assert fmt.format_interval(value, expanded).startswith(f"{text} ± ")


@every_row(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0000123, "12.3 µs"),
        (0.345, "345 ms"),
        (0.9999, "0.9999 s"),
        (92.414, "92.41 s"),
        (99.999, "1 min 40 s"),
        (119.6, "2 min 00 s"),
        (3599.6, "1 h 00 min"),
        (11530, "3 h 12 min"),
        (200000, "2 d 8 h"),
        (25.94 * 3600, "1 d 2 h"),
        (-1.5, "-1.500 s"),
        (math.inf, "-"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert fmt.format_duration(seconds) == text


@every_row(
    ("scopes", "text"),
    [
        ([f"gpu:{k}" for k in range(8)], "gpu:0-7"),
        (["gpu:0", "gpu:1", "cpu:0"], "gpu:0,1, cpu:0"),
        (["gpu:0", "gpu:2", "gpu:3", "gpu:4"], "gpu:0,2-4"),
        (["node.ac"], "node.ac"),
        (["cpu:0/die:0", "cpu:0/die:1"], "cpu:0/die:0,1"),
        ([], ""),
    ],
)
def test_spans_of_scopes(scopes: list[str], text: str) -> None:
    assert fmt.join_scopes(scopes) == text


def test_small_formats() -> None:
    assert fmt.format_period(0.1) == "100 ms"
    assert fmt.format_period(1.0) == "1 s"
    assert fmt.format_period(None) == "-"
    assert fmt.format_bytes(1_234_567) == "1.23 MB"
    assert fmt.format_bytes(0) == "0 B"
    assert fmt.format_amount(64000.0) == "64,000"
    assert fmt.format_amount(0.5) == "0.5"
    assert fmt.format_rate(1234567.0) == "1.235 M"
    assert fmt.format_rate(53.614) == "53.61"
    assert fmt.format_percent(0.123) == "+12.3 %"
    assert fmt.format_percent(-0.0049, signed=False) == "-0.49 %"
    assert fmt.format_percent(math.nan) == "-"
    assert (fmt.format_percent(0.0), fmt.format_percent(-1e-6), fmt.format_percent(1e-6)) == (
        "0.00 %",
    ) * 3  # nothing has no sign
    assert fmt.format_watts(1068.0) == "1,068 W"
    assert fmt.format_watts(12345.0) == "12.35 kW"
    assert fmt.format_change(-0.123, 0.011) == "-12.3 ± 1.1 %"
    assert fmt.format_change(-1.869, 0.1998) == fmt.format_change(-1.869, 0.2004) == "-190 ± 20 %"
    assert fmt.format_change(0.029, 0.0) == "+2.9 %"
    assert fmt.format_change(-0.029, 0.03) == fmt.NOT_RESOLVED
    assert fmt.format_change(0.029, None) == "+2.9 % ± ?"
    assert fmt.shorten_end("a  b\nc", 80) == "a b c"
    assert fmt.shorten_end("abcdef", 4) == "abc…"
    assert fmt.choose_scale([10_000.0], "W") == (1e3, "kW")
    assert fmt.choose_scale([], "J") == (1.0, "J")


@given(values, st.floats(min_value=1e-4, max_value=3.0))
def test_an_interval_is_true_to_its_numbers(value: float, relative: float) -> None:
    expanded = value * relative
    shown, _, width = fmt.format_interval(value, expanded, signed=True).partition(" ± ")
    assert abs(read_number(shown) - value) <= 0.251 * expanded + 1e-6 * value
    assert abs(read_number(width) - expanded) <= 0.251 * expanded + 1e-5 * value
    assert len(shown.partition(".")[2]) == len(width.partition(".")[2])
    assert len(width.replace(",", "").replace(".", "").strip("0")) <= (2 if width.strip("0.,")[0] == "1" else 1)
    assert "e" not in shown + width


@given(st.floats(1e-2, 3) | st.floats(-3, -1e-2), st.floats(1e-2, 0.99), st.floats(1, 100))
def test_a_change_is_rounded_to_its_uncertainty_and_never_finer_if_that_grows(
    share: float, relative: float, factor: float
) -> None:
    expanded = relative * abs(share) / factor
    shown, wider = (
        fmt.format_change(share, u).removesuffix(" %").partition(" ± ") for u in (expanded, factor * expanded)
    )
    assert len(wider[0].partition(".")[2]) <= len(shown[0].partition(".")[2])
    assert len(shown[0].partition(".")[2]) == len(shown[2].partition(".")[2])
    assert abs(read_number(shown[0]) - 100 * share) <= 0.251 * 100 * expanded + 1e-3


@given(values, st.floats(min_value=1e-15, max_value=1e-5))
def test_an_interval_never_claims_more_than_is_known(value: float, relative: float) -> None:
    expanded = value * relative
    text = fmt.format_interval(value, expanded)
    width = read_number(text.partition(" ± ")[2])
    assert width >= 0.5 * expanded
    assert len(re.sub(r"\D", "", text.partition(" ± ")[0]).lstrip("0")) <= 14


@given(numbers)
def test_plain_numbers_keep_four_digits(value: float) -> None:
    text = fmt.format_number(value)
    assert "e" not in text
    assert math.isclose(read_number(text), value, rel_tol=5.1e-4, abs_tol=1e-11)


@given(values)
def test_a_prefix_leaves_one_to_three_digits_before_the_point(value: float) -> None:
    factor, _ = fmt.find_prefix(value)
    assert value / factor < 1000.5 or factor == 1e12
    assert value / factor > 0.999 or factor == 1e-9


@given(st.floats(min_value=0, max_value=1e9))
def test_durations_read_back(seconds: float) -> None:
    units = {"ps": 1e-12, "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    parts = fmt.format_duration(seconds).split()
    back = sum(float(n) * units[u] for n, u in zip(parts[::2], parts[1::2], strict=True))
    # Days are told with hours, hours with minutes.
    assert math.isclose(back, seconds, rel_tol=5e-2, abs_tol=1e-12)


def test_a_difference_without_a_known_interval_is_not_resolved() -> None:
    assert [fmt.format_signed(2.0, u) for u in (math.nan, math.inf, 3.0)] == ["not resolved"] * 3
    assert fmt.format_signed(0.31, 0.04) == "+0.31 ± 0.04"
