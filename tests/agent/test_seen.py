"""What a scrape shows, and when a meter is opened anew, in virtual time: rows and failures come when a test says so."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.recorder.fake import Fake

from joulelab.agent.collect import TOLD_NS, Collector
from joulelab.agent.kept_meter import ANEW_NS, Kept
from joulelab.agent.metrics import samples
from joulelab.agent.watched import find_place, list_sums
from joulelab.analysis.live_state import STALE_S, LiveState
from joulelab.core.clock import NS
from joulelab.core.spec import Spec, Stream
from joulelab.recorder.plan import Plan
from joulelab.recorder.rows import make_row_tables

PLAN = Plan(Path(), "h", 1, meters=[])


class Virtual:
    """A collector of meters that are read only when told."""

    def __init__(self, *meters: str) -> None:
        self.now_ns, self.told = 1000 * NS, []
        self.collector = Collector(PLAN, tell=self.told.append, clock=lambda: self.now_ns)
        self.collector.kept = [SimpleNamespace(name=name, is_expected=True) for name in meters]
        self.tables = {name: make_row_tables(name, Fake({}).streams()) for name in meters}
        self.collector._new.extend(self.tables.items())

    def read(self, *meters: str) -> None:
        """Let a second pass, in which these meters are read; each draws 100 W."""
        self.now_ns += NS
        for name in meters:
            (table,) = self.tables[name]
            table.rows.append(table.pack(0, self.now_ns, self.now_ns, 100.0 * self.now_ns / NS, 100.0))

    def hear(self, **event: object) -> None:
        self.collector._events.append(event)

    def up(self) -> dict[str, bool]:
        return {h.meter: h.up for h in self.collector.seen().health}


def test_of_a_meter_that_hangs_the_energy_stays_and_the_power_goes() -> None:
    node = Virtual("hangs", "goes on")
    assert node.up() == {"hangs": False, "goes on": False}
    for _ in range(3):
        node.read("hangs", "goes on")
    assert node.up() == {"hangs": True, "goes on": True}
    for _ in range(int(STALE_S)):
        node.read("goes on")
    assert node.up() == {"hangs": True, "goes on": True}  # as old as a reading may be
    node.read("goes on")
    seen = node.collector.seen()
    shown = samples(seen)
    assert {key[1]: value for key, value in shown["joulelab_power_watts"].items()} == {"goes on": 100.0}
    energy = {key[1]: value for key, value in shown["joulelab_energy_joules_total"].items()}
    assert energy == {"hangs": pytest.approx(200.0), "goes on": pytest.approx(600.0)}
    assert [(h.meter, h.up, h.silent) for h in seen.health] == [("hangs", False, 1), ("goes on", True, 0)]


def test_failures_are_counted_each_and_told_once_a_minute() -> None:
    node = Virtual("m")
    node.hear(event="meter", meter="m", status="open")
    for _ in range(3):
        node.hear(event="gap", meter="m", stream="gpu:0.power", reason="no answer")
        node.collector.seen()
        node.now_ns += TOLD_NS // 2
    assert node.collector.seen().health[0].errors == 3
    assert node.told == ["m: open", "m gpu:0.power: no answer", "m gpu:0.power: no answer"]


class Thread:
    """A meter's thread, by hand."""

    def __init__(self) -> None:
        self.ended, self.status, self.sampler = False, None, None
        self.inbox = SimpleNamespace(put=lambda request: setattr(self, "ended", True))


def test_a_meter_that_was_lost_is_opened_anew_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[Thread] = []
    monkeypatch.setattr(Kept, "_started", lambda self: threads.append(Thread()) or threads[-1])
    kept = Kept(PLAN, SimpleNamespace(name="m", paced=False), [], deque())
    opened_at = []
    for second in range(300):
        kept.look(second * NS)
        if len(threads) > len(opened_at):
            opened_at.append(second)
        threads[-1].sampler = SimpleNamespace(readings=[SimpleNamespace(retry_ns=1)])  # every reading fails
    every = ANEW_NS // NS
    assert opened_at[:2] == [0, every + 2]  # a look to see it fail, and one to see it end
    assert opened_at[2] - opened_at[1] == 2 * every + 2


def test_a_sum_of_supplies_is_not_shown_beside_what_their_meter_reads_itself() -> None:
    node = LiveState()
    spec = Spec("power_w", "power", "W", "power", 1.0, 1.0)
    for meter, family in (("bmc", "psu"), ("pdu", "outlet")):
        for n in (1, 2):
            scope = f"{family}:{n}"
            node.add_stream(meter, Stream(scope, "power", scope, 1.0, (spec,), sums="node.ac", parts=2))
    assert [find_place(cords).meter for cords in list_sums(node)] == ["bmc", "pdu"]
    node.add_stream("bmc", Stream("node.ac", "power", "node.ac", 1.0, (spec,)))
    assert [find_place(cords).meter for cords in list_sums(node)] == ["pdu"]
