"""measure(), measured, phase, work: in one process, nested, in threads, forked, and inside a recorded run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.recorder.driving import FAKE, SRC, events_of, fake, until
from tests.supervisor.supervised import gone, recorders_in

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.store.folder import RunState, list_runs, read_end, read_meta, run_state
from joulelab.supervisor import phases, session
from joulelab.supervisor.recording import Recording

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

METERS = [fake(devices=2)]


@pytest.fixture
def kw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("JOULELAB_RUN", "JOULELAB_HOST"):
        monkeypatch.delenv(name, raising=False)
    return {"runs": tmp_path / "runs", "meters": METERS, "period_s": 0.02}


def marks(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in run.glob("*/marks/*") for line in path.read_text().splitlines()]
    return sorted((m for m in lines if kind in (None, m["mark"])), key=lambda m: m["t"])


def at_rest() -> bool:
    here = session._here
    return phases.writer() is None and "JOULELAB_RUN" not in os.environ and (here is None or here.session is None)


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
    assert run_state(m.run) is RunState.CLOSED
    assert recorders_in(m.run) == []
    meta = read_meta(m.run)
    assert (meta["name"], meta["labels"]) == ("training", {"lr": "0.1"})
    assert 0.4 < m.duration_s < 1.0
    assert m.energy is not None
    assert m.energy.value == pytest.approx(200 * m.duration_s, rel=0.05)
    assert set(m.scopes) == {"gpu:0", "gpu:1"}
    assert [p.title for p in m.phases] == ["epoch 3", "rest"]
    assert m.phases[0].work == {"samples": 64}
    assert "gpu:0" in str(m)
    assert m.run.name in repr(m)
    with pytest.raises(ConfigError, match="once"), m:
        pass


def test_blocks_inside_are_phases_and_have_results_while_the_run_goes_on(kw: dict[str, Any]) -> None:
    with joulelab.measure("outer", **kw) as outer:
        with joulelab.measure("inner") as inner:
            time.sleep(0.3)
        assert inner.run == outer.run
        assert inner.energy is not None
        assert inner.energy.value == pytest.approx(200 * inner.duration_s, rel=0.12)
    assert outer.run is not None
    assert [(m["name"], m["parent"]) for m in marks(outer.run, "begin")] == [("inner", None)]
    assert len(list_runs(kw["runs"])) == 1


def test_threads_share_a_run_that_closes_with_the_last(kw: dict[str, Any]) -> None:
    done: dict[str, joulelab.Measurement] = {}
    first_is_in, first_is_out = threading.Event(), threading.Event()

    def first() -> None:
        with joulelab.measure("first", **kw) as done["first"]:
            first_is_in.set()
            time.sleep(0.3)
        first_is_out.set()

    def second() -> None:
        first_is_in.wait()
        with joulelab.measure("second", **kw) as done["second"]:
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
    assert a.energy is not None
    assert b.energy is not None
    assert a.energy.value == pytest.approx(200 * a.duration_s, rel=0.12)
    assert b.energy.value == pytest.approx(200 * b.duration_s, rel=0.12)
    assert a.duration_s < b.duration_s
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

    monkeypatch.setattr(Recording, "wait_edge", interrupted)
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
        patched.setattr(Recording, "wait_ready", faulty)
        with joulelab.measure("x", **kw) as m:
            pass
    assert m.run is None
    with monkeypatch.context() as patched:
        patched.setattr(Recording, "finish", faulty)
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
    assert run_state(reports[0].run) is RunState.CLOSED
    assert fail.measurement is reports[0]  # type: ignore[attr-defined]


def test_a_forked_child_is_never_a_second_owner(kw: dict[str, Any]) -> None:
    with joulelab.measure("parent", **kw) as m:
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
        assert m.run is not None
        assert read_end(m.run) is None
        assert len(recorders_in(m.run)) <= 1
    assert [b["id"].split("-")[0] for b in marks(m.run, "begin")] == [str(pid)]
    assert marks(m.run, "work")[0]["amounts"] == {"samples": 5.0}
    assert len(list_runs(kw["runs"])) == 1


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    # Without what measures coverage, too: it imports a lot and takes its time.
    base = {k: v for k, v in os.environ.items() if not k.startswith(("JOULELAB", "COVERAGE"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**base, "PYTHONPATH": SRC, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ARGUMENTS = f"meters=[dict(meter={FAKE!r})]"


def test_the_recorder_ends_with_a_process_that_never_left_its_block(tmp_path: Path) -> None:
    code = f"import joulelab, os\nm = joulelab.measure('x', {ARGUMENTS})\nm.__enter__()\nprint(m.run)\n"
    done = python(code, JOULELAB_RUNS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (run,) = list_runs(tmp_path)
    until(lambda: recorders_in(run) == [], 3)
    assert run_state(run) is RunState.KILLED


def test_children_of_a_measured_process_mark_its_run(tmp_path: Path) -> None:
    code = f"""
import joulelab, multiprocessing, subprocess, sys

def worker():
    for _ in range(100):
        joulelab.work(samples=1)

if __name__ == "__main__":
    with joulelab.measure("x", {ARGUMENTS}) as m:
        for how in ("fork", "forkserver"):
            p = multiprocessing.get_context(how).Process(target=worker)
            p.start(); p.join()
        child = "import joulelab\\nwith joulelab.measure('child'):\\n  [joulelab.work(samples=1) for _ in range(100)]"
        subprocess.run([sys.executable, "-c", child], check=True)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    base = {k: v for k, v in os.environ.items() if not k.startswith("JOULELAB")}
    environ = {**base, "PYTHONPATH": SRC, "JOULELAB_RUNS": str(tmp_path / "runs")}
    subprocess.run([sys.executable, str(script)], env=environ, check=True, timeout=60)
    (run,) = list_runs(tmp_path / "runs")
    assert sum(w["amounts"]["samples"] for w in marks(run, "work")) == 300
    assert [b["name"] for b in marks(run, "begin")] == ["child"]


def test_other_ranks_are_inert(tmp_path: Path) -> None:
    code = f"import joulelab\nwith joulelab.measure('x', {ARGUMENTS}) as m: pass\nprint(m.run, m.energy)"
    done = python(code, JOULELAB_RUNS=str(tmp_path / "runs"), LOCAL_RANK="1")
    assert done.stdout.split() == ["None", "None"], done.stderr
    assert not (tmp_path / "runs").exists()


def test_inside_joulelab_run_a_block_is_a_phase(tmp_path: Path) -> None:
    from tests.supervisor.supervised import Bench

    bench = Bench(tmp_path)
    code = (
        "import joulelab, time\n"
        "with joulelab.measure('block') as m: time.sleep(0.3); joulelab.work(samples=2)\n"
        "print(m.energy.value / m.duration_s, m.run)"
    )
    done = bench.run(sys.executable, "-c", code)
    watts, run = done.stdout.split()
    assert float(watts) == pytest.approx(200, rel=0.12)
    assert run == str(bench.run_folder)
    assert [m["name"] for m in marks(bench.run_folder, "begin")] == ["block"]
    assert len(list_runs(bench.runs)) == 1


def test_a_closed_run_is_not_marked_any_more(tmp_path: Path) -> None:
    (tmp_path / "host" / "marks").mkdir(parents=True)
    (tmp_path / "end.json").write_text("{}")
    code = "import joulelab.supervisor.phases as p; print(p.writer())"
    assert python(code, JOULELAB_RUN=str(tmp_path), JOULELAB_HOST="host").stdout.strip() == "None"


def test_work_is_written_though_the_process_just_ends(tmp_path: Path) -> None:
    (tmp_path / "host" / "marks").mkdir(parents=True)
    code = "import joulelab\nfor _ in range(50): joulelab.work(samples=1)"
    assert python(code, JOULELAB_RUN=str(tmp_path), JOULELAB_HOST="host").returncode == 0
    assert sum(w["amounts"]["samples"] for w in marks(tmp_path, "work")) == 50


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


def test_importing_costs_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import joulelab; print(*(set(sys.modules) - before))"
    assert set(python(code).stdout.split()) == {"joulelab", "joulelab.core", "joulelab.core.version", "__future__"}
    assert {"measure", "measured", "phase", "work", "mark"} <= set(dir(joulelab))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = joulelab.nonsense


def test_without_a_recording_marks_cost_nothing() -> None:
    code = """
import timeit, joulelab
work, phase = joulelab.work, joulelab.phase
def in_phase():
    with phase("x", n=1): pass
n = 20000
print(min(timeit.repeat(lambda: work(samples=64), number=n, repeat=7)) / n * 1e9,
      min(timeit.repeat(in_phase, number=n, repeat=7)) / n * 1e9)
"""
    work_ns, phase_ns = map(float, python(code).stdout.split())
    assert work_ns < 2000
    assert phase_ns < 10000
