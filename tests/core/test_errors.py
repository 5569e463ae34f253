"""Errors say what, where, why and next, and form the tree that is drawn above them."""

from __future__ import annotations

import errno
import inspect
import pickle
import re

import pytest

from joulelab.core import errors
from joulelab.core.errors import (
    ConfigError,
    JoulelabError,
    MeterError,
    ReadFailed,
    StoreError,
    WorkloadError,
    join_errors,
)

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
    assert all(c.__doc__ and c.__doc__.rstrip().endswith(".") for c in CLASSES.values())


def test_an_error_has_the_code_of_its_class_or_a_more_precise_one():
    assert (ReadFailed("x").code, ReadFailed("x", code="read-failed.timeout").code) == (
        "read-failed",
        "read-failed.timeout",
    )
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", c.code) for c in CLASSES.values())
    copied = pickle.loads(pickle.dumps(ReadFailed("x", where="y", code="read-failed.timeout")))
    assert (copied.code, copied.where) == ("read-failed.timeout", "y")


def test_a_defect_names_the_last_line_of_joulelab():
    with pytest.raises(TypeError) as caught:
        join_errors(5)  # type: ignore[arg-type]
    found = errors.explain_defect(caught.value)
    assert (found.code, found.why) == ("defect", f"TypeError: {caught.value}")
    assert re.fullmatch(r"core/errors\.py:\d+", found.where or "")


def test_several_errors_become_one_that_holds_each_once():
    one, other = ConfigError("a", where="file:1", code="config.unknown-key"), errors.Refused("b", where="file:2")
    assert join_errors([one]) is one
    assert join_errors([one, ConfigError("a", where="file:1")]) is one
    both = join_errors([one, other, one])
    assert isinstance(both, ConfigError)
    assert (both.code, both.mistakes) == ("config.several", (one, other))
    assert str(both).splitlines() == [str(one), str(other)]


def test_one_except_clause_catches_a_family():
    with pytest.raises(MeterError):
        raise ReadFailed("x")
    with pytest.raises(ConfigError):
        raise errors.Refused("x")
    with pytest.raises(StoreError):
        raise errors.NotARun("x")


def test_a_command_that_cannot_start_carries_the_shells_exit_code():
    error = WorkloadError("cannot start nosuch", exit_code=127, why="no such file", next="check PATH")
    assert (error.exit_code, error.code) == (127, "workload")


@pytest.mark.parametrize(
    ("number", "why", "code"),
    [
        (errno.ENOSPC, "ENOSPC: ", "write-failed.no-space"),
        (errno.EDQUOT, "EDQUOT: ", "write-failed.no-space"),
        (errno.EIO, "EIO: ", "write-failed"),
        (None, "OSError: ", "write-failed"),
    ],
)
def test_rows_that_did_not_reach_the_disk_say_why_and_how_many_did(number, why, code):
    cause = OSError("odd") if number is None else OSError(number, "as the system says")
    error = errors.WriteFailed("cannot write rows", where="/runs/1", error=cause, rows_written=3)
    assert (error.why or "").startswith(why)
    assert (error.code, error.errno, error.rows_written) == (code, number, 3)
