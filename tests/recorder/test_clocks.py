"""Clock pairs and injected clock steps."""

from __future__ import annotations

from typing import Any

import pytest

from joulelab.core.clock import NS, ClockPair
from joulelab.recorder.clocks import ClockWatch


class Clocks:
    """Two clocks of which the wall clock can be stepped."""

    def __init__(self, kernel_error_ns: int | None = 1_000_000) -> None:
        self.mono = 1000 * NS
        self.offset = 1_700_000_000 * NS
        self.kernel_error_ns = kernel_error_ns

    def pair(self) -> ClockPair:
        return ClockPair(self.mono, self.mono + self.offset, 500, self.kernel_error_ns, "boot")

    def watch(self, events: list[dict[str, Any]]) -> ClockWatch:
        return ClockWatch(events, pair=self.pair, mono=lambda: self.mono, utc=lambda: self.mono + self.offset)


def test_pairs_come_each_minute() -> None:
    clocks, events = Clocks(), list[dict[str, Any]]()
    watch = clocks.watch(events)
    for _ in range(300):
        watch.look()
        clocks.mono += NS
    assert [e["event"] for e in events] == ["clock"] * 5
    assert events[0]["utc_ns"] - events[0]["mono_ns"] == clocks.offset


@pytest.mark.parametrize("step_s", [-7200.0, -0.2, 0.2, 7200.0])
@pytest.mark.parametrize("kernel_error_ns", [1_000_000, 16 * NS, None])
def test_a_step_is_an_event_at_the_next_look(step_s: float, kernel_error_ns: int | None) -> None:
    clocks, events = Clocks(kernel_error_ns), list[dict[str, Any]]()
    watch = clocks.watch(events)
    watch.look()
    clocks.mono += NS
    clocks.offset += round(step_s * NS)
    watch.look()
    watch.look()
    assert [e["event"] for e in events] == ["clock", "clock", "clock-step"]
    assert events[-1]["by_ns"] == round(step_s * NS)


def test_a_slewed_clock_is_no_step() -> None:
    clocks, events = Clocks(), list[dict[str, Any]]()
    watch = clocks.watch(events)
    for _ in range(3600):
        watch.look()
        clocks.mono += NS
        clocks.offset += 500_000  # 500 ppm, as fast as the kernel slews
    assert {e["event"] for e in events} == {"clock"}


def test_what_the_kernel_admits_is_no_step() -> None:
    clocks, events = Clocks(kernel_error_ns=300_000_000), list[dict[str, Any]]()
    watch = clocks.watch(events)
    watch.look()
    clocks.offset += 200_000_000
    watch.take()
    assert {e["event"] for e in events} == {"clock"}
