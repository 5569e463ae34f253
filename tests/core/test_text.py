"""Texts that others wrote."""

from __future__ import annotations

from joulelab.core.text import printable, storable


def test_lone_surrogates_are_written_out() -> None:
    assert [storable(t) for t in ("a", "ä", "\udc80x")] == ["a", "ä", r"\udc80x"]


def test_what_moves_the_cursor_is_written_out() -> None:
    assert [printable(t) for t in ("ä b", "\x1b[31m\n", "\u202e")] == ["ä b", r"\x1b[31m\n", r"\u202e"]
