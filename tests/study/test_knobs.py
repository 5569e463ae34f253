"""Values of knobs, placeholders in commands, conditions."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.study.knobs import (
    ALWAYS,
    Condition,
    Value,
    check_command,
    fill_command,
    list_placeholders,
    read_caps,
    read_clocks,
    read_cooling,
    read_counts,
    read_free_values,
    read_value_list,
    read_values,
)


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


@every_row(
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
        ("gpus", "0", "not a number of GPUs"),
        ("gpus", "1.5", "not a number of GPUs"),
        ("gpus", "two", "not a number of GPUs"),
        ("gpus", "2W", "not a number of GPUs"),
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
        ("gpus", [0], "not a number of GPUs"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_value_list(name, items, "here")


def test_cooling_is_a_temperature_or_a_time() -> None:
    assert [read_cooling(text) for text in ("45C", " 45.5 °C ", "45degC", "60s", "2m", 30)] == [
        ("cool_c", 45.0), ("cool_c", 45.5), ("cool_c", 45.0), ("cool_s", 60.0), ("cool_s", 120.0), ("cool_s", 30.0),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="is not a time"):
        read_cooling("cold")


def test_only_names_in_braces_are_placeholders() -> None:
    command = [
        "train",
        "--n={n}",
        "{a}{b}",
        '{"lr": 0.1, "inner": {"x": {n}}}',
        "${HOME}",
        "{}",
        "{0}",
        "{ n }",
        "{{n}}",
    ]
    assert list_placeholders(command) == ["n", "a", "b"]
    assert fill_command(command, {"n": "3", "a": "x", "b": "{n}"}) == [
        "train", "--n=3", "x{n}", '{"lr": 0.1, "inner": {"x": 3}}', "${HOME}", "{}", "{0}", "{ n }", "{n}",
    ]  # fmt: skip
    assert fill_command(["{{{n}}}", "{{n}", "{n}}"], {"n": "3"}) == ["{{n}}", "{3", "3}"]


@pytest.mark.system  # pure, and slow
@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_passes_through(data: object) -> None:
    text = json.dumps({"data": data}).replace("{}", "[]")
    if not list_placeholders([text]) and "{{" not in text:
        assert fill_command([text], {}) == [text]


@given(st.lists(st.sampled_from(["{", "}", "a", "$", " ", '"', "1"]), max_size=14).map("".join))
def test_filling_is_stable(text: str) -> None:
    filled = fill_command([text], {"a": "V", "aa": "V", "a1": "V", **dict.fromkeys(list_placeholders([text]), "V")})
    assert len(filled) == 1
    assert filled[0].replace("{", "").replace("}", "").count("V") == len([*_found(text)])


def _found(text: str) -> list[str]:
    from joulelab.study import knobs

    return [m["name"] for m in knobs._BRACED.finditer(text) if knobs._count_braces(m) == 1]


def test_what_does_not_fit_is_told_with_the_nearest_name() -> None:
    check_command(["train", "{batch}"], ["batch", "cap", "gpus", "clock", "cpu_cap"])
    with pytest.raises(ConfigError) as refused:
        check_command(["train", "{bacth}"], ["batch"])
    assert "did you mean 'batch'" in str(refused.value)
    assert "{{bacth}}" in str(refused.value)
    with pytest.raises(ConfigError, match=r"there is no knob.*add --gpus"):
        check_command(["train", "{gpus}"], [])
    with pytest.raises(ConfigError, match=r"add --cpu-cap"):
        check_command(["{cpu_cap}"], [])
    with pytest.raises(ConfigError, match=r"knob batch is not in the command.*\{bacth\}.*did you mean 'bacth'"):
        check_command(["train", "{{bacth}}", "{bacth}"], ["bacth", "batch"])
    with pytest.raises(ConfigError, match="the command has no placeholder"):
        check_command(["train"], ["batch"])


def test_all_that_a_condition_names_must_hold() -> None:
    caps, batches = read_values("cap", "100,200", ""), read_values("batch", "32,64", "")
    knobs = {"cap": caps[0], "batch": batches[1]}
    assert ALWAYS.is_met("train", "gpu", {})
    assert Condition(frozenset({"train", "predict"})).is_met("train", "gpu", knobs)
    assert not Condition(frozenset({"predict"})).is_met("train", "gpu", knobs)
    assert Condition(nodes=frozenset({"gpu"})).is_met("train", "gpu", knobs)
    assert not Condition(nodes=frozenset({"cpu"})).is_met("train", "gpu", knobs)
    both = Condition(knobs={"cap": frozenset({"100", "200"}), "batch": frozenset({"64"})})
    assert both.is_met("train", "gpu", knobs)
    assert not both.is_met("train", "gpu", {**knobs, "batch": batches[0]})


def test_a_cell_without_the_knob_is_not_meant() -> None:
    condition = Condition(knobs={"cap": frozenset({"100"})})
    assert not condition.is_met("train", "gpu", {})
    assert not condition.is_met("train", "gpu", {"cap": read_values("cap", "100%", "")[0]})
    assert condition.is_met("train", "gpu", {"cap": read_values("cap", "100.0W", "")[0]})
