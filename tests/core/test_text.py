"""Texts that others wrote."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codes import raises_code
from tests.rows import every_row

from joulelab.core.text import (
    TIME_UNITS,
    escape_surrogates,
    escape_unprintable,
    finite_or_none,
    is_loopback,
    name_one,
    read_seconds,
    suggest_name,
)


def test_lone_surrogates_are_written_out() -> None:
    assert [escape_surrogates(t) for t in ("a", "ä", "\udc80x")] == ["a", "ä", r"\udc80x"]


def test_what_moves_the_cursor_is_written_out() -> None:
    assert [escape_unprintable(t) for t in ("ä b", "\x1b[31m\n", "\u202e")] == ["ä b", r"\x1b[31m\n", r"\u202e"]


def test_the_nearest_name_is_suggested() -> None:
    assert suggest_name("query", ["user", "queries"]).startswith("did you mean 'queries'?")
    assert suggest_name("gdansk", ["horeka", "gdansk-rtx6000"]).startswith("did you mean 'gdansk-rtx6000'?")
    assert suggest_name("rpal", ["snmp", "rapl"]).startswith("did you mean 'rapl'?")
    assert suggest_name("gup", ["ram", "gpu"]).startswith("did you mean 'gpu'?")
    assert suggest_name("nope", ["snmp", "rapl"]) == "valid: snmp, rapl"
    assert suggest_name("recorder", ["node", "run"]) == "valid: node, run"
    assert suggest_name("zzz", ["a", "b"]) == "valid: a, b"
    assert suggest_name("zzz", []) == "there is none"


def test_json_has_no_number_that_is_not_finite() -> None:
    assert [finite_or_none(x) for x in (1.5, 0, None, math.nan, math.inf)] == [1.5, 0, None, None, None]


@given(st.integers(0, 10**6), st.sampled_from(sorted(TIME_UNITS)))
def test_a_time_is_a_number_and_a_unit(number: int, unit: str) -> None:
    assert read_seconds(f"{number}{unit}") == read_seconds(f" {number} {unit} ") == number * TIME_UNITS[unit]


def test_times_as_people_write_them() -> None:
    assert [read_seconds(text) for text in ("10", "10s", "500ms", "2m", "1.5h", ".5s", "3.", "2µs")] == [
        10, 10, 0.5, 120, 5400, 0.5, 3, 2e-6,
    ]  # fmt: skip
    assert (read_seconds(3), read_seconds(0.5)) == (3.0, 0.5)


@every_row("wrong", ["", "s", "10x", "-1s", "1e3", "10 s s", "1,5s", "9" * 400, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(wrong: float | str) -> None:
    with raises_code("config.no-time"):
        read_seconds(wrong)


@pytest.mark.parametrize("short", ["0", "0.5ms", 0, -1.0])
def test_what_is_too_short_is_refused(short: float | str) -> None:
    with raises_code("config.time-too-short"):
        read_seconds(short, 0.001)


@every_row(
    ("host", "is_local"),
    [("localhost", True), ("127.0.0.2", True), ("[::1]", True), ("0.0.0.0", False), ("node07", False)],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


def test_one_unit_of_work_has_its_name() -> None:
    kinds = {
        "samples": "sample",
        "batches": "batch",
        "queries": "query",
        "loss": "loss",
        "output_tokens": "output_token",
    }
    kinds |= {"output_tokens": "output_token", "FLOP": "FLOP", "boxes": "box", "images": "image", "ties": "tie"}
    assert {kind: name_one(kind) for kind in kinds} == kinds
