"""The words of errors: one sentence of where, what, why and next."""

from __future__ import annotations

import pytest
from tests.codes import raises_code

from joulelab.core.errors import ReadFailed
from joulelab.core.text import read_seconds


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "cannot read package-0"),
        ({"where": "rapl on node07"}, "rapl on node07: cannot read package-0"),
        ({"why": "permission denied"}, "cannot read package-0 (permission denied)"),
        (
            {"where": "rapl on node07", "why": "permission denied", "next": "run `joulelab doctor rapl`"},
            "rapl on node07: cannot read package-0 (permission denied); run `joulelab doctor rapl`",
        ),
    ],
)
def test_a_message_reads_as_one_sentence(given: dict[str, str], said: str) -> None:
    error = ReadFailed("cannot read package-0", **given)
    assert str(error) == said
    assert (error.where, error.why, error.next) == (given.get("where"), given.get("why"), given.get("next"))


def test_a_time_that_is_none_is_told_how_to_write_it() -> None:
    with raises_code("config.no-time") as caught:
        read_seconds("10x")
    assert str(caught.value) == "'10x' is not a time; write it as 10, 10s, 500ms or 2m"
    with raises_code("config.time-too-short") as caught:
        read_seconds("0", 0.001)
    assert caught.value.next == "at least 0.001s"
