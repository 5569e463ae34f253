"""Errors say what, where, why and next, and form the tree that is drawn above them."""

from __future__ import annotations

import errno
import inspect
import re

import pytest

from joulelab.core import errors
from joulelab.core.errors import ConfigError, JoulelabError, MeterError, ReadFailed, StoreError, WorkloadError

CLASSES = {n: c for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, JoulelabError)}


def drawn() -> dict[str, str | None]:
    """Return name and base of every error in the drawing."""
    found: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]*)(\w+)(?:\s{2,}|$)", line)
        if match and match[2] in CLASSES:
            depth = len(match[1])
            above = [a for a in above if a[0] < depth]
            found[match[2]] = above[-1][1] if above else None
            above.append((depth, match[2]))
    return found


def test_the_drawing_is_the_tree():
    assert drawn() == {n: None if c is JoulelabError else c.__bases__[0].__name__ for n, c in CLASSES.items()}


def test_there_are_about_a_dozen_and_each_says_what_it_is_for():
    assert 10 <= len(CLASSES) <= 16
    assert all(c.__doc__ and c.__doc__.endswith(".") for c in CLASSES.values())


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
def test_a_message_reads_as_one_sentence(given, said):
    error = ReadFailed("cannot read package-0", **given)
    assert str(error) == said
    assert error.what == "cannot read package-0"
    assert (error.where, error.why, error.next) == (given.get("where"), given.get("why"), given.get("next"))


def test_one_except_clause_catches_a_family():
    with pytest.raises(MeterError):
        raise ReadFailed("x")
    with pytest.raises(ConfigError):
        raise errors.Refused("x")
    with pytest.raises(StoreError):
        raise errors.NotARun("x")


def test_a_command_that_cannot_start_carries_the_shells_exit_code():
    error = WorkloadError("cannot start nosuch", exit_code=127, why="no such file", next="check PATH")
    assert error.exit_code == 127
    assert str(error) == "cannot start nosuch (no such file); check PATH"


@pytest.mark.parametrize(
    ("number", "why", "advice"),
    [
        (errno.ENOSPC, "ENOSPC: ", "free some space"),
        (errno.EDQUOT, "EDQUOT: ", "free some space"),
        (errno.EIO, "EIO: ", None),
        (None, "OSError: ", None),
    ],
)
def test_rows_that_did_not_reach_the_disk_say_why_and_how_many_did(number, why, advice):
    cause = OSError("odd") if number is None else OSError(number, "as the system says")
    error = errors.WriteFailed("cannot write rows", where="/runs/1", error=cause, rows_written=3)
    assert (error.why or "").startswith(why)
    assert (error.next, error.errno, error.rows_written) == (advice, number, 3)
