"""A meter's thread: which failures of opening it tries again, and what the event of an opening holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import ConfigError, Denied, MissingDependency, ReadFailed, Unavailable
from joulelab.core.spec import Spec, Stream
from joulelab.recorder.meter_thread import MeterThread
from joulelab.recorder.plan import MeterPlan, Plan
from joulelab.recorder.requests import Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.core.errors import JoulelabError


@pytest.mark.parametrize(
    ("raised", "paced", "final"),
    [
        (Unavailable, False, False),
        (Unavailable, True, True),
        (ReadFailed, False, False),
        (ReadFailed, True, False),
        (Denied, False, True),
        (ConfigError, False, True),
        (MissingDependency, False, True),
    ],
)
def test_what_may_pass_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[JoulelabError], paced: bool, final: bool
) -> None:
    tried: list[int] = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise raised("no")

    monkeypatch.setattr("joulelab.recorder.meter_thread.open_meter", refuse)
    wanted = MeterPlan("x", "x", {}, paced=paced)
    thread = MeterThread(Plan(tmp_path, "h", os.getpid()), wanted, [], add_tables=lambda _: None, done=lambda _: None)
    pauses = iter([None, None, Request("stop")])
    monkeypatch.setattr(thread.inbox, "sleep_until", lambda due_ns: next(pauses))
    thread._main()
    assert len(tried) == (1 if final else 3)
    assert thread.ended


class Failing:
    """Open, and never give a reading."""

    def streams(self) -> Sequence[Stream]:
        watts, load = Spec("power_w", "power", "W", "power", 1.0, 0.0), Spec("load", "load", "1")
        return Stream("f", "power", "node.ac", 1.0, (watts,)), Stream("s", "state", "node.ac", 1.0, (load,))

    def read(self, stream: Stream) -> Sequence[float]:
        raise ReadFailed("no answer", where=stream.name)

    def close(self) -> None:
        pass


def test_an_opened_meter_names_the_scopes_of_its_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.recorder.meter_thread.open_meter", lambda *_: Failing())
    plan, events = Plan(tmp_path, "h", os.getpid()), []
    made = {"add_tables": lambda _: None, "done": lambda _: None}
    thread = MeterThread(plan, MeterPlan("lost", "lost", {}), events, **made)
    monkeypatch.setattr(thread.inbox, "sleep_until", lambda due_ns: Request("stop"))
    thread._main()
    assert (events[0]["status"], events[0]["scopes"]) == ("open", {"f": "node.ac"})
