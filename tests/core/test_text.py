"""Texts that others wrote."""

from __future__ import annotations

import math

from joulelab.core.text import escape_surrogates, escape_unprintable, finite_or_none, suggest_name


def test_lone_surrogates_are_written_out() -> None:
    assert [escape_surrogates(t) for t in ("a", "ä", "\udc80x")] == ["a", "ä", r"\udc80x"]


def test_what_moves_the_cursor_is_written_out() -> None:
    assert [escape_unprintable(t) for t in ("ä b", "\x1b[31m\n", "\u202e")] == ["ä b", r"\x1b[31m\n", r"\u202e"]


def test_the_nearest_name_is_suggested() -> None:
    assert suggest_name("query", ["user", "queries"]).startswith("did you mean 'queries'?")
    assert suggest_name("gdansk", ["horeka", "gdansk-rtx6000"]).startswith("did you mean 'gdansk-rtx6000'?")
    assert suggest_name("zzz", ["a", "b"]) == "valid: a, b"
    assert suggest_name("zzz", []) == "there is none"


def test_json_has_no_number_that_is_not_finite() -> None:
    assert [finite_or_none(x) for x in (1.5, 0, None, math.nan, math.inf)] == [1.5, 0, None, None, None]
