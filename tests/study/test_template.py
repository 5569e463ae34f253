from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.study.knobs import check_command, fill_command, list_placeholders


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
