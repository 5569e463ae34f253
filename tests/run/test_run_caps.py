"""What a run is told of its caps while it goes on."""

from __future__ import annotations

from typing import Any

from joulelab.run.run_caps import RunCaps


class Told:
    """Take what a recording is told."""

    def __init__(self) -> None:
        self.problems: list[str] = ["the disk is full"]
        self.events: list[str] = []

    def event(self, event: str, **_: Any) -> None:
        self.events.append(event)


def test_a_keeper_that_came_back_is_no_problem_any_more_but_stays_an_event() -> None:
    told = Told()
    capping = RunCaps((), {}, told)  # type: ignore[arg-type]
    for event in (
        {"event": "keeper-died", "why": "SIGKILL"},
        {"event": "caps-problem", "problem": "the caps are not set again yet: capd is gone"},
        {"event": "caps-released", "problem": "the keeper got SIGTERM"},
    ):
        capping._note(event)
    assert told.problems[1:] == ["the caps are not set again yet: capd is gone", "the keeper got SIGTERM"]
    capping._note({"event": "keeper-started"})
    assert told.problems == ["the disk is full", "the keeper got SIGTERM"]
    assert told.events == ["keeper-died", "caps-problem", "caps-released", "keeper-started"]
