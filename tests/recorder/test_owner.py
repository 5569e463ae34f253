"""The owner of a recording, with and without pidfds."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tests.waiting import until

from joulelab.core.process_identity import read_start_ticks
from joulelab.recorder.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system


@pytest.fixture(params=["pidfd", "an old kernel"])
def sleeper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    if request.param != "pidfd":

        def missing(pid: int) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", missing)
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_the_end_is_noticed(sleeper: subprocess.Popen[bytes]) -> None:
    owner = Owner(sleeper.pid, read_start_ticks(sleeper.pid))
    before = time.monotonic_ns()
    assert not owner.ended()
    seen = owner.alive_ns
    assert before <= seen <= time.monotonic_ns()
    sleeper.kill()
    sleeper.wait()
    ended = time.monotonic_ns()
    until(owner.ended)
    assert seen <= owner.alive_ns <= ended
    for fd in owner.fds:
        os.close(fd)


def test_a_number_that_was_reused_is_not_the_owner(sleeper: subprocess.Popen[bytes]) -> None:
    assert Owner(sleeper.pid, 1).ended()


def test_an_owner_that_is_gone_has_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    owner = Owner(process.pid, 1)
    assert owner.ended()
    assert owner.patience_ns < 10**9
