"""A table of rows is one case, and its failure names every row that fails."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path


def test_all_rows_are_tried_and_those_that_fail_are_named(tmp_path: Path) -> None:
    tried = []

    @every_row(("number", "word"), [(1, "one"), (2, "two"), (3, "three"), (4, "four")])
    def check(number: int, tmp_path: Path, word: str) -> None:
        tried.append((number, tmp_path))
        assert number != 2, "it is two"
        if number == 3:
            pytest.fail("it is three")
        if number == 4:
            raise OSError("no such file")

    assert list(inspect.signature(check).parameters) == ["tmp_path"]
    with pytest.raises(AssertionError, match="3 of 4 rows fail") as caught:
        check(tmp_path=tmp_path)
    assert tried == [(number + 1, tmp_path / str(number)) for number in range(4)]
    assert all(path.is_dir() for _, path in tried)
    text = str(caught.value)
    assert "{'number': 2, 'word': 'two'}: AssertionError: it is two" in text
    assert "{'number': 3, 'word': 'three'}: Failed: it is three (test_rows.py:" in text
    assert "{'number': 4, 'word': 'four'}: OSError: no such file" in text
    assert "'one'" not in text


def test_a_table_without_rows_or_with_a_short_row_is_refused() -> None:
    with pytest.raises(AssertionError, match="tests nothing"):
        every_row("number", [])
    with pytest.raises(ValueError, match="zip"):
        every_row("number, word", [(1,)])
