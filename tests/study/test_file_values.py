from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.study.knobs import read_cooling, read_free_values, read_value_list, read_values


@pytest.mark.system  # pure, and slow
@given(st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_a_text_in_a_list_is_one_value_as_it_stands(texts: list[str]) -> None:
    assert [value.text for value in read_value_list("name", texts, "")] == texts


@given(st.lists(st.integers(), min_size=1, unique=True))
def test_numbers_in_a_list_are_as_if_typed(numbers: list[int]) -> None:
    assert read_value_list("batch", numbers, "") == read_free_values(",".join(map(str, numbers)), "")


def test_values_of_joulelabs_own_knobs_are_read_by_their_kind() -> None:
    assert read_value_list("cap", [100, 150.0, "200W"], "") == read_values("cap", "100,150,200", "")
    assert read_value_list("cap", ["60%:100%:20%"], "") == read_values("cap", "60%,80%,100%", "")
    assert [value.text for value in read_value_list("amp", [True, 0.1, "a,b"], "")] == ["true", "0.1", "a,b"]
    for name, items, said in (
        ("cap", [-1], "not above 0; write it as"),
        ("cap", [], "there is no value"),
        ("batch", [], "there is no value"),
        ("batch", [""], "a value is empty"),
        ("gpus", [0], "no number of GPUs"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_value_list(name, items, "here")


def test_cooling_is_a_temperature_or_a_time() -> None:
    assert [read_cooling(text) for text in ("45C", " 45.5 °C ", "45degC", "60s", "2m", 30)] == [
        ("cool_c", 45.0), ("cool_c", 45.5), ("cool_c", 45.0), ("cool_s", 60.0), ("cool_s", 120.0), ("cool_s", 30.0),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="is no time"):
        read_cooling("cold")
