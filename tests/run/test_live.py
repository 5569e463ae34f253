"""Figures of a run that goes on: the same as a whole analysis would give, at a bounded cost, and never in the way."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.store.make import START_NS, gpus, make_run, open_journal
from tests.waiting import until

from joulelab.analysis import live_energy
from joulelab.analysis.analyse import RunSpan, analyse_span
from joulelab.analysis.live_energy import LiveHost
from joulelab.core.clock import monotonic_ns
from joulelab.core.spec import Spec, Stream
from joulelab.run import live
from joulelab.run.live import LiveReader, is_covered, wait_until_covered
from joulelab.store.journal import HeaderFields, JournalWriter, pack_row
from joulelab.store.run_reader import open_run
from joulelab.store.sample_tables import make_row_type

if TYPE_CHECKING:
    from pathlib import Path

A = START_NS + 30_000_000


def rows(count: int, *, since: int = 0, devices: int = 2, at_ns: int = START_NS, watts: float = 300.0) -> bytes:
    """Return readings each 0.1 s of devices that use a constant power, with a counter and a power that scatters."""
    made = np.zeros(count * devices, make_row_type(["energy", "power"]))
    k = np.arange(count * devices)
    turn = since + k // devices
    made["stream"] = k % devices
    made["t0_ns"] = at_ns + turn * 100_000_000 + (k % devices) * 100_000
    made["t1_ns"] = made["t0_ns"] + 50_000
    made["energy"] = turn * watts / 10
    made["power"] = watts + np.random.default_rng(since).normal(0, 20, k.size)
    return made.tobytes()


def test_what_is_summed_up_on_the_way_is_what_a_whole_analysis_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_energy, "MOST_ROWS", 400)
    run = make_run(tmp_path)
    read = LiveHost(run / "node1", A, over_s=5.0)
    with open_journal(run, gpus(2)) as journal:
        for part in range(20):
            journal.append_rows(rows(100, since=100 * part))
            now = read.read()
            assert now is not None
            assert read._tail._run.rows < 900
            assert now.power_w["gpu"] == pytest.approx(600, rel=0.03)
        assert now.seconds == pytest.approx(199.8, abs=0.2)
        with open_run(run) as opened:
            whole = analyse_span(opened, RunSpan(A, now.at_ns, None), []).energy
        assert whole is not None
        found = now.energy["measured"]
        assert found.value == pytest.approx(whole.value, rel=1e-6)
        assert found.u == pytest.approx(whole.u, rel=1e-3)
        assert len(found.terms) < 30
        assert read.read() is not None  # nothing has come since
    read.close()


def test_a_meter_that_comes_late_counts_from_the_start_and_one_that_is_gone_is_in_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_energy, "MOST_ROWS", 400)
    run = make_run(tmp_path)
    read = LiveHost(run / "node1", A)
    assert read.read() is None  # there is not even a table
    with open_journal(run, gpus(1)) as first, open_journal(run, gpus(2)[1:], meter="other") as late:
        first.append_rows(rows(600, devices=1))
        now = read.read()
        assert now is not None
        alone = now.energy["measured"].value
        late.append_rows(rows(20, since=590, devices=1))
        now = read.read()
        assert now is not None
        assert now.energy["measured"].value > 1.5 * alone
        first.append_rows(rows(3000, since=600, devices=1))
        for _ in range(8):
            now = read.read()
        assert now is not None
        assert now.energy == {}  # of the one that still speaks nobody may think that it is everything
    read.close()


def test_it_costs_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cpu, seen = [0.0], [0.0], []

    class Bell:
        def wait(self, seconds: float) -> bool:
            now[0] += seconds
            return now[0] > 1000

    class Costly:
        def read(self) -> str:
            cpu[0] += 0.1
            return "figures"

    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: cpu[0]))
    watched = LiveReader(None, 0, every_s=1.0, then=seen.append)
    monkeypatch.setattr(watched, "_bell", Bell())
    monkeypatch.setattr(watched, "_host", Costly())
    watched._read_on()
    assert len(seen) == 1000  # whether there is something new or not
    assert set(seen) == {"figures"}
    assert watched.spent_s == pytest.approx(cpu[0]) == pytest.approx(live.SHARE * 1000, rel=0.03)
    assert watched.reads == round(10 * cpu[0])


@pytest.mark.system
def test_it_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    with open_journal(run, gpus(2)) as journal:
        journal.append_rows(rows(100, at_ns=monotonic_ns() - 10**10))
        monkeypatch.setattr(live, "SHARE", 1.0)
        with LiveReader(run / "node1", monotonic_ns() - 9 * 10**9, every_s=0.01) as watched:
            until(lambda: watched.reads >= 2)
            ticks = [t for t in threading.enumerate() if t.name == "joulelab-live"]
        assert ticks
        assert not any(t.is_alive() for t in ticks)
        assert watched.now is not None
        assert watched.now.power_w["measured"] == pytest.approx(600, rel=0.05)
        monkeypatch.setattr(live, "COVER_S", 0.1)
        wait_until_covered(run, monotonic_ns())  # in vain, for a bounded time


@pytest.mark.system
def test_nothing_that_fails_reaches_the_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> None:
        calls.append(1)
        raise RuntimeError("our fault")

    calls: list[int] = []
    with caplog.at_level(logging.WARNING), LiveReader(tmp_path / "none" / "h", 1, every_s=0.01, then=broken) as watched:
        until(lambda: len(calls) > 5)
    assert watched.now is None
    assert watched.read_until(2) is None
    assert caplog.text.count("our fault") == 1
    assert caplog.text.count("live figures are missing") == 2


# On disk ----------------------------------------------------------------------------------------------------------

POWER = (Spec("p", "power", "W", "power"),)


def begin(host: Path, table: str, stream: Stream, segment: int = 0) -> JournalWriter:
    header: HeaderFields = {"meter": "m", "table": table, "segment": segment, "host": "h", "boot_id": "b"}
    return JournalWriter(host / f"m.{table}.{segment}.journal", header, [stream])


def add(journal: JournalWriter, t: int) -> None:
    journal.append_rows(pack_row(journal.row, 0, t, t + 1, [1.0]))


def test_it_waits_for_every_fast_table_of_power(tmp_path: Path) -> None:
    host = tmp_path / "h"
    host.mkdir()
    assert not is_covered(tmp_path, 100)
    with (
        begin(host, "power", Stream("a", "power", "gpu:0", 0.1, POWER)) as power,
        begin(host, "slow", Stream("b", "slow", "outlet:1", 60.0, POWER)),
        begin(host, "state", Stream("c", "state", "gpu:0", 1.0, (Spec("x", "x", "1"),))),
    ):
        add(power, 100)
        assert not is_covered(tmp_path, 100)  # the recorder has not finished its first round
        (host / "events.0.jsonl").write_text("{}\n")
        assert is_covered(tmp_path, 100)
        assert not is_covered(tmp_path, 101)
        with begin(host, "power", Stream("a", "power", "gpu:0", 0.1, POWER), segment=1) as restarted:
            assert not is_covered(tmp_path, 100)
            add(restarted, 200)
            assert is_covered(tmp_path, 200)
    (host / "m.new.0.journal").write_bytes(b"JL")
    assert not is_covered(tmp_path, 100)
