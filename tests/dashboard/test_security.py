"""Who may come in: names, tokens, sessions, guesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import ConfigError
from joulelab.dashboard.security import MOST_PEERS, MOST_WRONG, SESSION_S, Doors, check_token, new_token, read_token

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "abcdefgh-0123456789"


def test_elsewhere_there_must_be_a_token() -> None:
    with pytest.raises(ConfigError):
        Doors("0.0.0.0")
    with pytest.raises(ConfigError):
        Doors("node7.cluster")
    assert Doors("::1").token is None


def test_tokens_and_sessions() -> None:
    now = [1000.0]
    doors = Doors(token=TOKEN, now=lambda: now[0])
    assert doors.is_token(TOKEN)
    for wrong in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\udc80" * 19):
        assert not doors.is_token(wrong)
    assert not Doors().is_token("")
    session = doors.session()
    assert TOKEN not in session
    assert doors.is_session(session)
    assert not Doors(token=TOKEN, now=lambda: now[0]).is_session(session)  # another process
    until, _, signature = session.partition(".")
    for forged in (
        "",
        ".",
        until,
        f"{int(until) + 1}.{signature}",
        f"{until}.{'0' * 64}",
        f"{until}.",
        f"x.{signature}",
    ):
        assert not doors.is_session(forged)
    now[0] += SESSION_S
    assert not doors.is_session(session)


def test_who_guesses_is_noticed_by_its_peer() -> None:
    now = [0.0]
    doors = Doors(token=TOKEN, now=lambda: now[0])
    assert [doors.note_wrong_token("10.0.0.9") for _ in range(MOST_WRONG + 2)] == [False] * MOST_WRONG + [True] * 2
    assert not doors.note_wrong_token("10.0.0.8")
    now[0] += 61
    assert not doors.note_wrong_token("10.0.0.9")
    found = [doors.note_wrong_token(f"2001:db8::{k}") for k in range(MOST_WRONG + 1)]
    assert found[-1], "addresses of one network are one peer"
    for k in range(MOST_PEERS + 100):
        doors.note_wrong_token(str(k))
    assert len(doors._wrong) == MOST_PEERS


def test_tokens_that_can_be_guessed_are_refused(tmp_path: Path) -> None:
    for bad in ("", "short", "with a space in it..", "ümlaut-ümlaut-ümlaut", "x" * 15):
        with pytest.raises(ConfigError):
            check_token(bad, "--token")
    assert len(new_token()) >= 32
    assert new_token() != new_token()
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(file)
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read"):
        read_token(file)
    file.chmod(0o600)
    assert read_token(file) == TOKEN
