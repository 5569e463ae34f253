"""The supervisor of a run, in virtual time: pauses of its own, and modules that it loads while the workload runs."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from joulelab.cli.run import PRINTING_MODULES
from joulelab.run import run_command
from joulelab.run.run_command import ANALYSIS_MODULES, PAUSE_NS, _Supervisor

if TYPE_CHECKING:
    import pytest


def test_a_sleep_much_longer_than_wanted_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[tuple[str, dict[str, Any]]] = []
    recording = SimpleNamespace(event=lambda name, **more: stored.append((name, more)))
    supervisor: Any = SimpleNamespace(recording=recording)
    for slept_ns in (500_000_000, 500_000_000 + PAUSE_NS, 500_000_001 + PAUSE_NS):
        monkeypatch.setattr(run_command, "monotonic_ns", lambda slept_ns=slept_ns: 1000 + slept_ns)
        _Supervisor._note_pause(supervisor, 1000, wait_ms=500)
    assert stored == [("supervisor-paused", {"from": 1000, "to": 1000 + 500_000_001 + PAUSE_NS})]


def test_the_modules_to_load_meanwhile_exist() -> None:
    """A wrong name would only cost time: 0.3 s after each command."""
    names = (*ANALYSIS_MODULES, *PRINTING_MODULES)
    assert [name for name in names if importlib.util.find_spec(name) is None] == []
