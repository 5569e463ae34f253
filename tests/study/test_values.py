from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.study.knobs import Value, read_caps, read_clocks, read_counts, read_free_values, read_values


@given(first=st.integers(1, 500), step=st.integers(1, 50), steps=st.integers(0, 60))
def test_a_range_includes_both_ends(first: int, step: int, steps: int) -> None:
    last = first + step * steps
    found = read_caps(f"{first}:{last}:{step}")
    assert [v.value for v in found] == [float(first + k * step) for k in range(steps + 1)]
    assert read_caps(f"{last}:{first}:-{step}") == tuple(reversed(found))
    assert read_caps(f"{first}W:{last}W:{step}W") == found


@given(first=st.decimals("0.1", 10, places=2), step=st.decimals("0.01", 1, places=2), steps=st.integers(0, 200))
def test_a_range_is_exact_and_never_passes_its_end(first: Decimal, step: Decimal, steps: int) -> None:
    found = read_free_values(f"{first}:{first + steps * step + step / 2}:{step}", "--set x")
    assert [Decimal(v.text) for v in found] == [first + k * step for k in range(steps + 1)]


def test_caps_are_watts_or_shares_of_the_default() -> None:
    assert [v.value for v in read_caps("100,150W, 200:220:10")] == [100, 150, 200, 210, 220]
    shares = read_caps("60%:100%:20%")
    assert [(v.text, v.value, v.unit) for v in shares] == [
        ("60%", 0.6, "share"),
        ("80%", 0.8, "share"),
        ("100%", 1.0, "share"),
    ]
    assert [v.label for v in (*read_caps("170.50"), *shares[:1])] == ["170.5 W", "60%"]
    assert read_caps("170") == read_caps("170.0") == read_caps("1.7e2")
    assert read_caps("170,170.0") == read_caps("170")
    (clock,) = read_clocks("1200MHz")
    assert (clock.value, clock.label) == (1.2e9, "1200 MHz")
    assert [v.value for v in read_counts("1,2:8:2")] == [1, 2, 4, 6, 8]


def test_other_values_stay_as_they_are_typed() -> None:
    found = read_free_values("256,01,1e-3,0.5,relu,host:8080,1:3:1", "--set x")
    assert [v.text for v in found] == ["256", "01", "1e-3", "0.5", "relu", "host:8080", "1", "2", "3"]
    assert [v.value for v in found] == [256, "01", "1e-3", 0.5, "relu", "host:8080", 1, 2, 3]
    assert all(Value.from_json(v.to_json()) == v for v in found)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cap", "", "empty"),
        ("cap", "100,,200", "empty"),
        ("cap", "lots", "cannot be read"),
        ("cap", "100:260", "cannot be read"),
        ("cap", "100kW", "cannot be read"),
        ("cap", "100W:200%:10", "several units"),
        ("cap", "100,60%", "mixed"),
        ("cap", "0", "not above 0"),
        ("cap", "100:200:0", "step is 0"),
        ("cap", "200:100:10", "leads away"),
        ("cap", "1:100000:1", "at most 10000"),
        ("clock", "1200W", "cannot be read"),
        ("gpus", "0", "no number of GPUs"),
        ("gpus", "1.5", "no number of GPUs"),
        ("gpus", "two", "no number of GPUs"),
        ("gpus", "2W", "no number of GPUs"),
        ("batch", "1:2:0", "step is 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        read_values(name, text, "--here")
    assert refused.value.where == "--here"


def test_too_many_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most"):
        read_free_values("1:9000:1,9001:18000:1", "--set x")
