"""measure(), measured, phase, work: in one process, nested, in threads, forked, and inside a recorded run."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.recorder.driving import events_of, fake
from tests.run.supervised import gone, marks, recorders_in
from tests.waiting import until

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.run import marking, session
from joulelab.run.recording import RunRecording
from joulelab.store.run_folder import RunState, list_runs, read_end, read_meta, read_run_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from joulelab.core.quantity import Quantity

pytestmark = pytest.mark.system

METERS = [fake(devices=2)]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def kw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("JOULELAB_RUN", "JOULELAB_HOST"):
        monkeypatch.delenv(name, raising=False)
    return {"runs": tmp_path / "runs", "meters": METERS, "period_s": 0.02}


def at_rest() -> bool:
    slot = session._slot
    return marking.writer() is None and "JOULELAB_RUN" not in os.environ and (slot is None or slot.session is None)


def holds(energy: Quantity | None, joules: float) -> bool:
    """Return whether it is about the energy of both GPUs, and not of one or three: a busy machine samples late.

    tests/analysis have the exact figures, in virtual time.
    """
    assert energy is not None
    return energy.value == pytest.approx(joules, rel=0.4)


def test_a_block_is_a_run(kw: dict[str, Any]) -> None:
    with joulelab.measure("training", labels={"lr": "0.1"}, **kw) as m:
        assert "measuring" in repr(m)
        assert os.environ["JOULELAB_RUN"] == str(m.run)
        with pytest.raises(ConfigError, match="not ended"):
            _ = m.energy
        with joulelab.phase("epoch", n=3, fold="a"):
            time.sleep(0.2)
            joulelab.work(samples=64)
        joulelab.mark("rest")
        time.sleep(0.2)
    assert at_rest()
    assert m.run is not None
    assert read_run_state(m.run) is RunState.CLOSED
    assert recorders_in(m.run) == []
    meta = read_meta(m.run)
    assert (meta["name"], meta["labels"]) == ("training", {"lr": "0.1"})
    assert m.duration_s > 0.4
    assert holds(m.energy, 200 * m.duration_s)
    assert set(m.scopes) == {"gpu:0", "gpu:1"}
    assert [p.title for p in m.phases] == ["epoch 3", "rest"]
    assert m.phases[0].work == {"samples": 64}
    assert "gpu:0" in str(m)
    assert m.run.name in repr(m)
    with pytest.raises(ConfigError, match="once"), m:
        pass


def test_between_begin_and_end_is_a_run(kw: dict[str, Any]) -> None:
    joulelab.begin("training", **kw)
    joulelab.begin("epoch")
    time.sleep(0.3)
    epoch = joulelab.end()
    m = joulelab.end()
    assert at_rest()
    assert m.run is not None
    assert read_run_state(m.run) is RunState.CLOSED
    assert epoch.run == m.run
    assert [b["name"] for b in marks(m.run, "begin")] == ["epoch"]
    assert m.energy is not None
    per_sample = m.energy / 64
    assert holds(per_sample, 200 * m.duration_s / 64)
    assert per_sample.relative == pytest.approx(m.energy.relative)


def test_blocks_inside_are_phases_and_have_results_while_the_run_goes_on(kw: dict[str, Any]) -> None:
    with joulelab.measure("outer", **kw) as outer:
        with joulelab.measure("inner") as inner:
            time.sleep(0.3)
        assert inner.run == outer.run
        assert holds(inner.energy, 200 * inner.duration_s)
    assert outer.run is not None
    assert [(m["name"], m["parent"]) for m in marks(outer.run, "begin")] == [("inner", None)]
    assert len(list_runs(kw["runs"])) == 1


def test_threads_share_a_run_that_closes_with_the_last(kw: dict[str, Any]) -> None:
    done: dict[str, joulelab.Measurement] = {}
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with joulelab.measure("first", **kw) as done["first"]:
            first_is_in.set()
            second_is_in.wait()
            time.sleep(0.3)
        first_is_out.set()

    def second() -> None:
        first_is_in.wait()
        with joulelab.measure("second", **kw) as done["second"]:
            second_is_in.set()
            first_is_out.wait()
            assert not at_rest()
            time.sleep(0.2)

    threads = [threading.Thread(target=f) for f in (first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert at_rest()
    a, b = done["first"], done["second"]
    assert a.run == b.run
    assert holds(a.energy, 200 * a.duration_s)
    assert holds(b.energy, 200 * b.duration_s)
    assert a.run is not None
    assert {m["name"] for m in marks(a.run, "begin")} == {"first", "second"}


def test_what_the_block_raises_goes_on_and_the_run_is_closed(kw: dict[str, Any]) -> None:
    m = joulelab.measure("bad", **kw)
    with pytest.raises(ZeroDivisionError), m:
        1 / 0  # noqa: B018
    assert at_rest()
    assert m.run is not None
    end = read_end(m.run)
    assert end is not None
    assert (end["outcome"], end["exit_code"], end["message"]) == ("exit", 1, "ZeroDivisionError: division by zero")


def test_a_recorder_that_does_not_start_only_warns(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with caplog.at_level(logging.WARNING), joulelab.measure("x", **kw) as m:
        pass
    assert "not measured" in caplog.text
    assert at_rest()
    assert m.energy is None
    assert "no power meter" in str(m)


def test_a_store_that_cannot_be_written_only_warns(kw: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    kw["runs"].parent.joinpath("file").write_text("")
    with joulelab.measure("x", **{**kw, "runs": kw["runs"].parent / "file" / "runs"}) as m:
        joulelab.work(samples=1)
    assert "not measured" in caplog.text
    assert m.run is None
    assert m.energy is None
    assert (m.scopes, m.phases, m.checks) == ({}, (), ())
    assert "not recorded" in str(m)
    assert at_rest()


def test_an_interrupt_while_it_starts_leaves_nothing_behind(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunRecording, "wait_edge", interrupted)
    with pytest.raises(KeyboardInterrupt), joulelab.measure("x", **kw):
        pytest.fail("the block must not run")
    assert at_rest()
    (run,) = list_runs(kw["runs"])
    assert recorders_in(run) == []
    end = read_end(run)
    assert end is not None
    assert end["outcome"] == "interrupted"


def test_a_fault_of_our_own_never_reaches_the_block(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: object) -> None:
        raise RuntimeError("our fault")

    with monkeypatch.context() as patched:
        patched.setattr(RunRecording, "wait_ready", faulty)
        with joulelab.measure("x", **kw) as m:
            pass
    assert m.run is None
    with monkeypatch.context() as patched:
        patched.setattr(RunRecording, "finish", faulty)
        with joulelab.measure("y", **kw) as m:
            pass
    assert caplog.text.count("our fault") == 2
    assert at_rest()
    assert [r for r in list_runs(kw["runs"]) if recorders_in(r)] == []


def test_idle_is_recorded_before_the_block(kw: dict[str, Any]) -> None:
    with joulelab.measure("x", idle_s=0.3, **kw) as m:
        pass
    assert m.run is not None
    (idle,) = (e for p in m.run.glob("*/events.run.jsonl") for e in events_of(p, "idle"))
    assert idle["to"] - idle["from"] >= 0.3e9


def test_functions_coroutines_and_generators_are_measured(kw: dict[str, Any]) -> None:
    reported: list[str | None] = []

    def told(m: joulelab.Measurement) -> None:
        reported.append(m.name)

    @joulelab.measured
    def plain(x: int, *, y: int = 1) -> int:
        """Add."""
        return x + y

    @joulelab.measured(name="counting", report=told)
    def counting(n: int) -> Iterator[int]:
        yield from range(n)

    @joulelab.measured(report=told)
    async def waiting() -> str:
        await asyncio.sleep(0.01)
        return "done"

    @joulelab.measured(report=told)
    async def streaming() -> AsyncIterator[int]:
        yield 1

    async def collect() -> list[int]:
        return [i async for i in streaming()]

    with joulelab.measure("all", **kw) as m:
        assert plain(1, y=2) == 3
        assert list(counting(3)) == [0, 1, 2]
        assert asyncio.run(waiting()) == "done"
        assert asyncio.run(collect()) == [1]
    assert plain.__doc__ == "Add."
    assert m.run is not None
    names = [b["name"].rpartition(".")[2] for b in marks(m.run, "begin")]
    assert names == ["plain", "counting", "waiting", "streaming"]
    assert [r and r.rpartition(".")[2] for r in reported] == ["counting", "waiting", "streaming"]


def test_measured_alone_is_a_run_of_its_own(kw: dict[str, Any]) -> None:
    reports: list[joulelab.Measurement] = []

    @joulelab.measured(report=reports.append, **kw)
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert reports[0].run is not None
    assert read_run_state(reports[0].run) is RunState.CLOSED
    assert fail.measurement is reports[0]  # type: ignore[attr-defined]


FORKED = """
import os, sys
from pathlib import Path
import joulelab
from joulelab.store.run_folder import read_end
from tests.run.supervised import recorders_in
from tests.run.test_measure import METERS
with joulelab.measure("parent", runs=Path(sys.argv[1]), meters=METERS, period_s=0.02) as m:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with joulelab.measure("child"):
                joulelab.work(samples=5)
            m.__exit__(None, None, None)  # as when the child falls out of its parent's block
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert read_end(m.run) is None
    assert len(recorders_in(m.run)) <= 1
print(pid)
"""


def test_a_forked_child_is_never_a_second_owner(kw: dict[str, Any]) -> None:
    # In a process of its own: a worker that has loaded frameworks with threads cannot be forked safely.
    command = [sys.executable, "-c", FORKED, str(kw["runs"])]
    pid = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.split()[-1]
    (run,) = list_runs(kw["runs"])
    assert [b["id"].split("-")[0] for b in marks(run, "begin")] == [pid]
    assert marks(run, "work")[0]["amounts"] == {"samples": 5.0}


def test_the_recorder_is_started_again_for_a_measured_process(kw: dict[str, Any]) -> None:
    with joulelab.measure("x", **kw) as m:
        assert m.run is not None
        run = m.run
        until(lambda: bool(recorders_in(run)))
        killed = recorders_in(run)[0]
        os.kill(killed, 9)
        until(lambda: bool(recorders_in(run)) and gone(killed))
    end = read_end(run)
    assert end is not None
    assert end["restarts"] == 1
