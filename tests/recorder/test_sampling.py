"""The sampling loop, in virtual time: deadlines, late and missed ticks, gaps and back-off, edges."""

from __future__ import annotations

import itertools
import math
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorder.virtual import START, VirtualMeter, World, sampler_of, stream

from joulelab.core.clock import NS
from joulelab.core.errors import DeviceLost, ReadFailed
from joulelab.core.spec import Spec
from joulelab.recorder.requests import Request

if TYPE_CHECKING:
    from joulelab.core.spec import Stream
    from joulelab.recorder.sampling import Sampler


def rows_of(sampler: Sampler) -> list[tuple[float, ...]]:
    return [struct.unpack("<qqq2d", row) for row in sampler.tables[0].rows]


def times(meter: VirtualMeter, name: str = "gpu:0.power") -> list[float]:
    return [t for n, t in meter.reads if n == name]


def test_reads_at_absolute_deadlines() -> None:
    world = World(end_s=1.0)
    world.oversleep = lambda t: 300_000  # always 0.3 ms late: it must not add up
    meter = VirtualMeter(world, [stream()], cost_ns=5_000_000)
    sampler = sampler_of(world, meter)
    sampler.run()
    assert times(meter)[1:] == pytest.approx([0.1 * k + 0.0003 for k in range(1, 10)])
    assert sampler.take_counts() == {"count": 0, "missed": 0, "worst_ns": 0, "ticks": 10}


def test_streams_of_different_periods_share_the_thread() -> None:
    world = World(end_s=3.05)
    meter = VirtualMeter(world, [stream(), stream("gpu:0.state", 1.0, table="state", channels=(Spec("x", "x", "1"),))])
    sampler_of(world, meter).run()
    assert len(times(meter)) == 31
    assert times(meter, "gpu:0.state") == pytest.approx([0, 1, 2, 3])


def test_what_is_late_is_counted_and_what_is_missed_is_skipped() -> None:
    world = World(end_s=2.05)
    world.oversleep = lambda t: round(0.35 * NS) if t == START + NS else 0
    meter = VirtualMeter(world, [stream()])
    sampler = sampler_of(world, meter)
    sampler.run()
    read = times(meter)
    assert 1.35 in read
    assert not [t for t in read if 1.0 < t < 1.35]
    assert next(t for t in read if t > 1.35) == pytest.approx(1.4)
    counts = sampler.take_counts()
    assert (counts["count"], counts["missed"]) == (1, 3)
    assert counts["worst_ns"] == round(0.35 * NS)
    assert sampler.take_counts()["missed"] == 0


def test_a_meter_slower_than_its_period_is_not_read_back_to_back() -> None:
    world = World(end_s=2.0)
    meter = VirtualMeter(world, [stream()], cost_ns=150_000_000)
    sampler = sampler_of(world, meter)
    sampler.run()
    assert times(meter) == pytest.approx([0.2 * k for k in range(10)])
    assert sampler.missed == 10


@pytest.mark.system  # pure, and slow
@settings(max_examples=60)
@given(
    costs=st.lists(st.integers(0, 400_000_000), min_size=1, max_size=30),
    delays=st.lists(st.integers(0, 400_000_000), min_size=1, max_size=30),
    period=st.sampled_from([0.01, 0.1, 0.25]),
)
def test_every_deadline_is_met_late_or_missed_whatever_happens(
    costs: list[int], delays: list[int], period: float
) -> None:
    world = World(end_s=20.0)
    meter = VirtualMeter(world, [stream(period_s=period)])
    meter.cost_ns = lambda s: costs[len(meter.reads) % len(costs)]
    world.oversleep = lambda t: delays[t // round(period * NS) % len(delays)]
    sampler = sampler_of(world, meter)
    sampler.run()
    read = times(meter)
    passed = (sampler.groups[0].due_ns - START) // round(period * NS)
    assert sampler.ticks + sampler.missed == passed
    assert len(read) == sampler.ticks
    # Never caught up: in no stretch are there more readings than deadlines.
    slots = [math.floor(t / period + 1e-9) for t in read]
    assert len(set(slots)) == len(slots)
    rows = rows_of(sampler)
    assert len(rows) == len(read)
    assert all(a[2] <= b[1] for a, b in itertools.pairwise(rows))


def test_a_failure_is_a_gap_with_its_reason_and_is_retried_ever_more_rarely() -> None:
    world = World(end_s=60.0)
    meter = VirtualMeter(world, [stream("gpu:0.power"), stream("gpu:1.power")])
    meter.fails = lambda s, t: ReadFailed("no answer", why="bus") if s.scope == "gpu:0" and 5 <= t < 40 else None
    sampler = sampler_of(world, meter)
    sampler.run()
    gap, end = world.events
    assert (gap["event"], gap["stream"], gap["error"]) == ("gap", "gpu:0.power", "ReadFailed")
    assert gap["reason"] == "no answer (bus)"
    assert (gap["from"] - START) / NS == pytest.approx(4.9)
    assert end["event"] == "gap-end"
    assert end["from"] == gap["from"]
    tries = [t for t in times(meter) if 5 <= t < 45]
    waits = [b - a for a, b in itertools.pairwise(tries)]
    assert waits[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0])
    assert (end["to"] - START) / NS < 40 + 10.1
    # The other device of the meter has not noticed.
    assert len(times(meter, "gpu:1.power")) == 600
    first = [(r[1] - START) / NS for r in rows_of(sampler) if r[0] == 0]
    assert not [t for t in first if 5 <= t < 40]
    assert len(rows_of(sampler)) == 600 + len(first)


def test_a_change_of_error_is_told_once_more() -> None:
    world = World(end_s=3.0)
    meter = VirtualMeter(world, [stream()])
    meter.fails = lambda s, t: ReadFailed("x") if t < 1 else DeviceLost("y")
    sampler_of(world, meter).run()
    assert [e["error"] for e in world.events] == ["ReadFailed", "DeviceLost"]
    assert {e["from"] for e in world.events} == {START}


def test_a_row_of_the_wrong_length_or_a_bug_is_a_gap() -> None:
    world = World(end_s=0.35)
    meter = VirtualMeter(world, [stream()])
    meter.read = lambda s: [1.0]  # type: ignore[method-assign, assignment]
    sampler_of(world, meter).run()
    assert world.events[0]["error"] == "error"  # struct.error
    assert world.events[0]["event"] == "gap"


def test_an_edge_polls_quickly_until_every_counter_has_stepped() -> None:
    world = World(end_s=2.0)
    world.ask(0.53, Request("edge", START + round(1.53 * NS)))
    meter = VirtualMeter(world, [stream("gpu:0.power"), stream("gpu:1.power", update_s=0.05)])
    sampler_of(world, meter).run()
    at, what, stepped = world.answers[0]
    assert (what, stepped) == ("edge", True)
    assert at == pytest.approx(0.6, abs=0.0021)
    fast = [t for t in times(meter) if 0.53 <= t <= 0.61]
    assert max(b - a for a, b in itertools.pairwise(fast)) < 0.0021
    # The faster counter is left alone once it has stepped.
    assert len([t for t in times(meter, "gpu:1.power") if 0.53 <= t < 0.6]) < 13
    # Deadlines are kept through the edge and after it.
    assert times(meter)[-1] == pytest.approx(1.9)


@pytest.mark.parametrize(("update_s", "wait_s"), [(0.001, 0.1), (0.1, 0.4), (0.2, 0.5)])
def test_an_edge_is_bounded_when_a_counter_does_not_step(update_s: float, wait_s: float) -> None:
    world = World(end_s=3.0)
    world.ask(0.5, Request("edge", START + round(1.0 * NS)))
    meter = VirtualMeter(world, [stream(update_s=update_s)], watts=0.0)
    sampler_of(world, meter).run()
    at, _, stepped = world.answers[0]
    assert at == pytest.approx(0.5 + wait_s, abs=0.005)
    assert not stepped


def test_what_a_meter_does_wrong_beside_reading_costs_nothing_else() -> None:
    class Faulty(VirtualMeter):
        def events(self) -> list[dict[str, object]]:
            raise KeyError("events")

        def set_workload(self, pid: int) -> None:
            raise KeyError("workload")

    world = World(end_s=1.05)
    world.ask(0.5, Request("follow", START + NS, pid=1))
    meter = Faulty(world, [stream()])
    sampler_of(world, meter).run()
    assert [e["what"] for e in world.events] == ["KeyError: 'events'", "KeyError: 'workload'"]
    assert times(meter)[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("slow", [stream(update_s=10.0), stream(period_s=5.0)])
def test_a_slow_meter_never_holds_up_the_start(slow: Stream) -> None:
    world = World(end_s=3.0)
    world.ask(0.5, Request("edge", START + NS))
    meter = VirtualMeter(world, [slow])
    sampler_of(world, meter).run()
    at, what, stepped = world.answers[0]
    assert at == pytest.approx(0.5)
    assert (what, stepped) == ("edge", True)


def test_finish_reads_everything_once_more_waits_for_a_step_and_stops() -> None:
    world = World(end_s=99.0)
    world.ask(2.04, Request("finish", START + round(2.34 * NS), tail_s=0.3))
    slow = stream("outlet:1.power", 10.0, update_s=10.0, table="slow")
    state = stream("gpu:0.state", 1.0, table="state", channels=(Spec("x", "x", "1"),))
    meter = VirtualMeter(world, [stream(), state, slow])
    sampler_of(world, meter).run()
    ((at, what, stepped),) = world.answers
    assert at == pytest.approx(2.1, abs=0.003)
    assert (what, stepped) == ("finish", True)
    assert times(meter, "gpu:0.state")[-1] == pytest.approx(2.04)
    assert times(meter, "outlet:1.power") == pytest.approx([0, 2.04])
    assert times(meter)[-1] == pytest.approx(2.1, abs=0.003)


def test_a_longer_tail_waits_for_a_slow_counter_at_its_own_pace() -> None:
    world = World(end_s=99.0)
    world.ask(2.0, Request("finish", START + round(14.0 * NS), tail_s=12.0))
    meter = VirtualMeter(world, [stream("outlet:1.power", 2.0, update_s=10.0)])
    sampler_of(world, meter).run()
    ((at, _, stepped),) = world.answers
    assert stepped
    assert 10.0 <= at <= 12.1
    assert len(meter.reads) < 20


def test_a_power_is_read_again_after_it_was_updated() -> None:
    world = World(end_s=99.0)
    world.ask(1.0, Request("finish", START + round(1.3 * NS), tail_s=0.3))
    power = (Spec("power_w", "power", "W", "power", update_s=0.1),)
    meter = VirtualMeter(world, [stream(channels=power, period_s=1.0)])
    sampler_of(world, meter).run()
    assert times(meter)[-2:] == pytest.approx([1.0, 1.1])


def test_an_instrument_paces_itself() -> None:
    world = World(end_s=1.0)
    meter = VirtualMeter(world, [stream(pace="instrument", period_s=0.1)], cost_ns=97_000_000)
    sampler = sampler_of(world, meter)
    sampler.run()
    assert len(meter.reads) == 11
    assert sampler.missed == sampler.late == 0


def test_nan_counters_are_not_waited_for() -> None:
    world = World(end_s=2.0)
    world.ask(0.5, Request("edge", START + round(1.5 * NS)))
    meter = VirtualMeter(world, [stream()])
    meter.read = lambda s: [math.nan, 5.0]  # type: ignore[method-assign, assignment]
    sampler_of(world, meter).run()
    at, what, stepped = world.answers[0]
    assert at == pytest.approx(0.5)
    assert (what, stepped) == ("edge", True)
