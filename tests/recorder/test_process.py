"""The recorder as a process: what it records, survives, reports, and how it ends."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.recorder.driving import SRC, Driven, fake
from tests.waiting import until

from joulelab.core.clock import NS
from joulelab.recorder.plan import Plan
from joulelab.recorder.process import Recorder
from joulelab.recorder.signals import IGNORED, REPORTED

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def test_it_records_obeys_and_finishes(tmp_path: Path) -> None:
    meter = fake(devices=3, state=True, slow_period_s=0.1, update_s=0.05)
    with Driven(tmp_path, [meter], period_s=0.05) as r:
        (opened,) = r.hear("ready")["meters"]
        assert (opened["meter"], opened["status"], opened["streams"]) == ("fake", "open", 6)
        r.say({"do": "edge", "id": 7, "within_s": 60})
        assert r.hear("edge") == {"is": "edge", "id": 7, "stepped": True}
        start = time.monotonic_ns()
        r.say({"do": "workload", "pid": os.getpid(), "start_ns": start})
        until(lambda: len(r.rows(table="state")) >= 3 * 2 and r.events("tree"))
        end = time.monotonic_ns()
        assert r.finish() == 0
    for device in range(3):
        mine = [row for row in r.rows() if row[0] == device]
        assert all(t0 <= t1 for _, t0, t1, *_ in mine)
        assert mine == sorted(mine, key=lambda row: row[1])
        # After both edges the counter was read until it had stepped.
        for edge in (start, end):
            after = [row for row in mine if row[1] >= edge]
            assert after[-1][3] > after[0][3]
    kinds = [e["event"] for e in r.events()]
    assert kinds[0] == "clock"
    assert kinds[-1] == "stop"
    assert kinds.count("clock") >= 2
    assert r.events("stop")[0]["reason"] == "asked"
    assert r.events("tree")[0]["pids"] == [os.getpid()]
    assert r.events("late")[0]["ticks"] >= 3


@pytest.mark.campaign
def test_it_keeps_its_pace_and_polls_quickly_at_the_edges(tmp_path: Path) -> None:
    """In virtual time: test_sampling.py, deadlines, late and missed ones, and edges."""
    with Driven(tmp_path, [fake(devices=3, update_s=0.05)], period_s=0.05) as r:
        r.hear("ready")
        start = time.monotonic_ns()
        r.say({"do": "workload", "pid": os.getpid(), "start_ns": start})
        time.sleep(0.5)
        end = time.monotonic_ns()
        assert r.finish(tail_s=0.3) == 0
    for device in range(3):
        mine = [row for row in r.rows() if row[0] == device]
        assert max(b[1] - a[1] for a, b in itertools.pairwise(mine)) < 0.2 * NS
        for edge in (start, end):
            after = [row for row in mine if row[1] >= edge]
            step = next(i for i, row in enumerate(after) if row[3] != after[0][3])
            assert after[step][1] - after[step - 1][1] < 0.02 * NS
    assert r.events("late")[0]["ticks"] >= 10


def test_it_writes_while_it_records(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()], period_s=0.02) as r:
        r.hear("ready")
        for _ in range(2):  # and goes on writing
            written = len(r.rows())
            until(lambda written=written: len(r.rows()) > written + 5)


def test_it_ends_with_its_owner_though_the_pipe_stays_open(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner, Driven(tmp_path, [fake()], owner_pid=owner.pid) as r:
        r.hear("ready")
        until(lambda: len(r.rows()) >= 2)
        owner.kill()
        assert r.process.wait(120) == 0
    assert r.events("stop")[0]["reason"] == "owner-ended"
    assert len(r.rows()) >= 2


def test_it_ends_when_the_owner_was_gone_before_it_looked(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()], owner_start_ticks=1) as r:
        assert r.process.wait(120) == 0
    assert r.events("stop")[0]["reason"] == "owner-ended"


def test_it_ends_when_the_owner_closes_the_pipe(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()]) as r:
        r.hear("ready")
        assert r.process.stdin is not None
        r.process.stdin.close()
        assert r.process.wait(120) == 0
    assert r.events("stop")[0]["reason"] == "owner-closed"


def test_it_reports_signals_and_outlives_them(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()]) as r:
        r.hear("ready")
        for number in IGNORED:
            r.process.send_signal(number)
        for number in REPORTED:
            r.process.send_signal(number)
        assert {r.hear("signal")["number"] for _ in REPORTED} == set(REPORTED)
        assert r.finish() == 0


def test_it_says_when_the_workload_ended_and_who_sent_a_signal(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()]) as r:
        r.hear("ready")
        begun = time.monotonic_ns()
        workload = subprocess.Popen(["sleep", "0.2"])
        r.say({"do": "workload", "pid": workload.pid, "start_ns": begun})
        ended = r.hear("workload-ended")["t"]
        assert begun + 0.2 * NS <= ended <= time.monotonic_ns()
        workload.wait()
        r.process.send_signal(REPORTED[0])
        assert r.hear("signal")["sender"] == os.getpid()
        assert r.finish() == 0


def test_a_writer_that_fails_at_the_end_is_told(tmp_path: Path) -> None:
    plan = Plan(tmp_path, "h", os.getpid())
    status, said = os.pipe()
    recorder = Recorder(plan, commands=0, status=said, signals=0)

    def fail() -> None:
        raise RuntimeError("no close")

    recorder.writer.close = fail  # type: ignore[method-assign]
    os.eventfd_write(recorder._stop_writer, 1)
    hook, sys.excepthook = sys.excepthook, lambda *_: None
    try:
        recorder._write()
    finally:
        sys.excepthook = hook
    assert not recorder._flushed
    os.close(status)
    os.close(said)


def test_a_library_that_prints_does_not_disturb_the_protocol(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake(chatty=True)]) as r:
        assert r.hear("ready")["meters"][0]["status"] == "open"
        assert r.finish() == 0


def test_every_meter_says_how_it_opened(tmp_path: Path) -> None:
    meters = [
        fake(),
        fake(raises="unavailable"),
        fake(raises="denied"),
        fake(raises="bug"),
        {"meter": "no_such_meter"},
        {"meter": "/no/such.py"},
    ]
    with Driven(tmp_path, meters) as r:
        said = r.hear("ready")["meters"]
        assert r.finish() == 0
    assert [m["status"] for m in said] == ["open", "unavailable", "denied", "failed", "failed", "unavailable"]
    assert said[1]["next"] == "ask again"
    assert {e["meter"]: e["status"] for e in r.events("meter")} == {m["meter"]: m["status"] for m in said}


def test_a_configured_meter_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    there = tmp_path / "there"
    with Driven(
        tmp_path, [fake(appears=str(there)) | {"paced": False}, fake(appears=str(there)) | {"name": "usual"}]
    ) as r:
        assert [m["status"] for m in r.hear("ready")["meters"]] == ["unavailable", "unavailable"]
        there.touch()
        until(lambda: len(r.rows()) > 2)
        assert r.finish() == 0
    assert [e["status"] for e in r.events("meter") if e["meter"] == "fake"] == ["unavailable", "open"]
    assert [e["status"] for e in r.events("meter") if e["meter"] == "usual"] == ["unavailable"]


def test_a_meter_that_hangs_in_opening_holds_up_nobody(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake(hang_open_s=3600), fake()], ready_s=0.1) as r:
        assert r.hear("ready")["meters"][0]["status"] == "opening"
        until(lambda: len(r.rows("fake-2")) > 2)
        r.say({"do": "edge", "id": 1, "within_s": 60})
        assert r.hear("edge")["stepped"]
        assert r.finish() == 0
    assert [e["status"] for e in r.events("meter") if e["meter"] == "fake"] == ["opening"]


def test_a_meter_that_opens_late_is_still_recorded_and_told_the_workload(tmp_path: Path) -> None:
    opens = tmp_path / "opens"
    with Driven(tmp_path, [fake(hang_open_until=str(opens))], ready_s=0.1) as r:
        r.hear("ready")
        r.say({"do": "workload", "pid": 4711, "start_ns": 1})
        opens.touch()
        until(lambda: r.events("tree"))
        assert r.finish() == 0
    assert r.events("tree")[0]["pids"] == [4711]
    assert [e["status"] for e in r.events("meter")] == ["opening", "open"]


def test_a_reading_that_hangs_delays_its_own_meter_only(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake(hang_s=3600, hang_after_s=0.2), fake()]) as r:
        r.hear("ready")
        until(lambda: r.events("stuck"))
        assert r.finish(tail_s=0.3) == 0  # waits no longer for the one that hangs
    assert r.events("stuck")[0]["meter"] == "fake"
    (gap,) = r.events("gap")
    assert gap["error"] == "Stuck"
    assert r.rows("fake-2")[-1][1] - gap["from"] > 2 * NS


def test_a_stream_that_fails_is_a_gap_and_comes_back(tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    with Driven(tmp_path, [fake(devices=2, fail_while=str(fails))], period_s=0.02) as r:
        r.hear("ready")
        until(lambda: len(r.rows()) > 4)
        fails.touch()
        until(lambda: r.events("gap"))
        fails.unlink()
        until(lambda: r.events("gap-end"))
        assert r.finish() == 0
    (gap,), (end,) = r.events("gap"), r.events("gap-end")
    assert (gap["stream"], gap["error"], gap["reason"]) == ("gpu:0.power", "ReadFailed", "fake fails (asked to)")
    inside = [row for row in r.rows() if gap["from"] < row[1] < end["to"]]
    assert {row[0] for row in inside} == {1}


def test_a_disk_that_fills_and_clears_loses_nothing(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()], period_s=0.01) as r:
        r.hear("ready")
        until(lambda: len(r.rows()) > 10)
        full = (tmp_path / "fake.power.0.journal").stat().st_size + 17
        resource.prlimit(r.process.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
        until(lambda: r.events("disk"))
        held = len(r.rows())
        assert (tmp_path / "fake.power.0.journal").stat().st_size <= full
        resource.prlimit(r.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: len(r.rows()) > held + 50)
        assert r.finish() == 0
    times = [row[1] for row in r.rows()]
    assert times == sorted(times)
    assert len(times) >= sum(e["ticks"] for e in r.events("late"))
    assert "EFBIG" in r.events("disk")[0]["error"]
    assert r.events("disk-end")[0]["dropped_rows"] == 0


def test_a_disk_that_stays_full_is_told_at_the_end(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()], period_s=0.01) as r:
        r.hear("ready")
        resource.prlimit(r.process.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        time.sleep(0.2)
        r.say({"do": "finish", "tail_s": 60, "id": 1})
        assert r.hear("finished")["lost_rows"] > 0
        assert r.process.wait(120) == 0


def test_kill_9_leaves_what_was_written(tmp_path: Path) -> None:
    with Driven(tmp_path, [fake()], period_s=0.01) as r:
        r.hear("ready")
        until(lambda: len(r.rows()) > 20)
        written = r.rows()
        r.process.send_signal(signal.SIGKILL)
        r.process.wait()
    assert r.rows()[: len(written)] == written


@pytest.mark.campaign
def test_kill_9_loses_less_than_a_second(tmp_path: Path) -> None:
    """What is written at once is tested in test_writer.py: rows and events are written in order."""
    with Driven(tmp_path, [fake()], period_s=0.01) as r:
        r.hear("ready")
        time.sleep(1.5)
        r.process.send_signal(signal.SIGKILL)
        killed = time.monotonic_ns()
        r.process.wait()
    assert killed - r.rows()[-1][2] < NS


def test_the_recorder_imports_nothing_heavy() -> None:
    code = (
        "import sys, joulelab.recorder.__main__, joulelab.instruments as m\n"
        "[m.find_meter(n) for n in m.list_defaults()]\n"
        "from joulelab.instruments.nvml.client import load_binding\n"
        "load_binding()\n"  # which names ctypes.util and never uses it
        "heavy = {'numpy', 'duckdb', 'msgspec', 'rich', 'click', 'multiprocessing', 'subprocess', 'tempfile'}\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
        "import ctypes.util, pynvml\n"
        "assert pynvml.find_library('c') == ctypes.util.find_library('c') != None"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")} | {"PYTHONPATH": SRC}
    out = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


@pytest.mark.parametrize("segment", [3])
def test_segments_have_files_of_their_own(tmp_path: Path, segment: int) -> None:
    with Driven(tmp_path, [fake()], segment=segment) as r:
        r.hear("ready")
        assert r.finish() == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["events.3.jsonl", "fake.power.3.journal"]
