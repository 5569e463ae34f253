from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import ConfigError
from joulelab.study.results import WorkPattern, find_work

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"tokens: (\d+)", "tokens"),
        (r"(\d+) samples done", "samples"),
        (r"done (?P<images>\d+)", "images"),
        (r"\bgenerated_tokens=(\d+)", "generated_tokens"),
        (r"(?i)Steps:\s+([\d.]+)", "Steps"),
        (r"(?:a|b)?[xyz]*(\d+)", "a"),
        (r"^(\d+)$", "work"),
    ],
)
def test_work_is_named_by_its_group_or_first_word(pattern: str, name: str) -> None:
    found = WorkPattern.parse(pattern)
    assert found.name == name
    assert WorkPattern.from_json(found.to_json()) == found


@pytest.mark.parametrize(("pattern", "said"), [("(", "regular"), ("tokens", "no group"), (r"(\d)(\d)", "2 groups")])
def test_a_pattern_that_names_no_number_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WorkPattern.parse(pattern)


def test_the_last_match_is_the_total_and_all_can_be_added(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_bytes(b"tokens: 5\r\xfftokens: 1,007\ntokens: x\n")
    (tmp_path / "err.txt").write_text("steps 3\ntokens: 9\n")
    assert WorkPattern.parse(r"tokens: ([\d,]+)").find_amount(tmp_path) == 1007
    assert WorkPattern.parse(r"tokens: ([\d,]+)", add=True).find_amount(tmp_path) == 5 + 1007 + 9
    assert WorkPattern.parse(r"steps (\d+)").find_amount(tmp_path) == 3
    assert WorkPattern.parse(r"^tokens: (\w)$").find_amount(tmp_path) == 9
    patterns = [WorkPattern.parse(p) for p in (r"steps (\d+)", r"epochs (\d+)")]
    assert find_work(patterns, tmp_path) == ({"steps": 3.0}, ["epochs"])


def test_no_output_is_no_work(tmp_path: Path) -> None:
    (tmp_path / "out.txt").touch()
    assert WorkPattern.parse(r"tokens: (\d+)").find_amount(tmp_path) is None
    assert WorkPattern.parse(r"tokens: (\d+)", add=True).find_amount(tmp_path) is None
