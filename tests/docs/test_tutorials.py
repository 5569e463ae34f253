"""Tutorials are typed from the first command to the last, and print what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.docs.tutorials import TUTORIALS, Typed, play, typed_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


# These take a minute of two cores: campaigns play them.
LONG = {"cluster-operator", "from-a-run-to-a-rack", "planner"}
PAGES = [
    pytest.param(page, id=page.stem, marks=pytest.mark.campaign if page.stem in LONG else ()) for page in TUTORIALS
]


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    typed = typed_in(page.read_text())
    assert typed
    for one in typed:
        printed = play(one.command, tmp_path)
        assert one.agrees(printed), f"{page.name}: $ {one.command}\n{printed}\nrun `python -m tests.docs.refresh`"


def test_what_differs_is_seen() -> None:
    assert Typed("c", "a\nb\n").agrees("a\nb\n\n")
    assert not Typed("c", "a\nb\n").agrees("a\nc\n")
    assert Typed("c", "a\n...\nd\n").agrees("a\nb\nc\nd\n")
    assert Typed("c", "a\n...\nd\n").agrees("a\nd\n")
    assert not Typed("c", "a\n...\nd\n").agrees("a\nb\n")
    assert Typed("c", "...\nd\n").agrees("b\nd\n")
    assert Typed("c", "a\n...\n").agrees("a\nb\n")
    assert not Typed("c", "a\n...\n").agrees("b\na\n")
