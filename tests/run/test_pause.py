"""A supervisor that was stopped says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from joulelab.run import run_command
from joulelab.run.run_command import PAUSE_NS, _Supervisor

if TYPE_CHECKING:
    import pytest


def test_a_sleep_much_longer_than_wanted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    recording = SimpleNamespace(event=lambda name, **more: told.append((name, more)))
    supervisor: Any = SimpleNamespace(recording=recording)
    for slept_ns in (500_000_000, 500_000_000 + PAUSE_NS, 500_000_001 + PAUSE_NS):
        monkeypatch.setattr(run_command, "monotonic_ns", lambda slept_ns=slept_ns: 1000 + slept_ns)
        _Supervisor._note_pause(supervisor, 1000, wait_ms=500)
    assert told == [("supervisor-paused", {"from": 1000, "to": 1000 + 500_000_001 + PAUSE_NS})]
