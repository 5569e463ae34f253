from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codes import raises_code

from joulelab.core.text import TIME_UNITS, read_seconds


@given(st.integers(0, 10**6), st.sampled_from(sorted(TIME_UNITS)))
def test_a_time_is_a_number_and_a_unit(number: int, unit: str) -> None:
    assert read_seconds(f"{number}{unit}") == read_seconds(f" {number} {unit} ") == number * TIME_UNITS[unit]


def test_times_as_people_write_them() -> None:
    assert [read_seconds(text) for text in ("10", "10s", "500ms", "2m", "1.5h", ".5s", "3.", "2µs")] == [
        10, 10, 0.5, 120, 5400, 0.5, 3, 2e-6,
    ]  # fmt: skip
    assert (read_seconds(3), read_seconds(0.5)) == (3.0, 0.5)


@pytest.mark.parametrize(
    "wrong", ["", "s", "10x", "-1s", "1e3", "10 s s", "1,5s", "9" * 400, float("nan"), float("inf")]
)
def test_what_is_no_time_is_refused(wrong: float | str) -> None:
    with raises_code("config.no-time"):
        read_seconds(wrong)


@pytest.mark.parametrize("short", ["0", "0.5ms", 0, -1.0])
def test_what_is_too_short_is_refused(short: float | str) -> None:
    with raises_code("config.time-too-short"):
        read_seconds(short, 0.001)
