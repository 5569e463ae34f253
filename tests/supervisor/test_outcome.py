"""The workload's outcome and output survive a full disk, a slow reader, and a recorder that dies or is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.recorder.driving import fake
from tests.supervisor.supervised import CATCHER, DRIVER, Bench, caught, children, gone, recorders_in
from tests.supervisor.test_run import small_disk
from tests.waiting import until

import joulelab
from joulelab.core.clock import NS
from joulelab.store.folder import list_runs, read_end
from joulelab.supervisor.events import EventLog

pytestmark = pytest.mark.system

__all__ = ["small_disk"]
LINES = "import sys\nfor i in range(9000): print('line', i)\nsys.stderr.write('end\\n')"


def started(bench: Bench) -> bool:
    return bool(list_runs(bench.runs) and recorders_in(bench.host) and bench.events("workload"))


class TestWithoutARecorder:
    """A signal to the group reaches the workload once, also while nobody records."""

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
    def test_no_run_folder(self, bench: Bench, number: signal.Signals) -> None:
        (bench.folder / "file").write_text("")
        log = bench.folder / "caught"
        process = bench.start(*CATCHER, str(log), runs=bench.folder / "file" / "runs")
        until(lambda: caught(log) == ["ready"])
        for times in (1, 2):
            os.killpg(process.pid, number)
            time.sleep(0.1)
            assert caught(log).count(number.name) == times
        process.send_signal(number)
        until(lambda: caught(log).count(number.name) == 3)
        process.send_signal(signal.SIGUSR2)
        assert process.wait(30) == 0
        assert caught(log).count("SIGUSR2") == 1

    @pytest.mark.parametrize("after_s", [0.0, 0.05])
    def test_a_recorder_that_has_just_died(self, bench: Bench, after_s: float) -> None:
        log = bench.folder / "caught"
        process = bench.start(*CATCHER, str(log))
        until(lambda: caught(log) == ["ready"] and started(bench))
        os.kill(bench.recorder(), signal.SIGKILL)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.3)
        assert caught(log) == ["ready", "SIGTERM"]
        process.send_signal(signal.SIGUSR2)
        assert process.wait(30) == 0

    def test_nothing_is_left_behind(self, bench: Bench) -> None:
        (bench.folder / "file").write_text("")
        process = bench.start("sleep", "60", runs=bench.folder / "file" / "runs")
        until(lambda: b"sleep\x0060\0" in map(command_of, children(process.pid)))
        others = children(process.pid)
        process.kill()
        process.wait()
        (workload,) = [p for p in others if command_of(p) == b"sleep\x0060\0"]
        until(lambda: all(gone(p) for p in others if p != workload))
        os.kill(workload, signal.SIGKILL)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_window_change_sent_to_the_group_arrives_once(bench: Bench) -> None:
    log = bench.folder / "caught"
    process = bench.start(*CATCHER, str(log))
    until(lambda: caught(log) == ["ready"])
    os.killpg(process.pid, signal.SIGWINCH)
    time.sleep(0.2)
    assert caught(log) == ["ready", "SIGWINCH"]
    process.send_signal(signal.SIGWINCH)
    until(lambda: caught(log).count("SIGWINCH") == 2)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(30) == 0


class TestCapture:
    """All output arrives, however slowly it is read."""

    def start(self, bench: Bench, *command: str) -> subprocess.Popen[bytes]:
        environ = bench.environ(capture=str(bench.folder / "output"), tail_s=0.0)
        return subprocess.Popen([sys.executable, DRIVER, *command], env=environ, stdout=subprocess.PIPE)

    def test_a_slow_reader_gets_all(self, bench: Bench) -> None:
        process = self.start(bench, sys.executable, "-c", LINES)
        until(lambda: list_runs(bench.runs) and bench.events("workload"))
        time.sleep(1.0)
        assert process.stdout is not None
        with process.stdout as out:
            lines = out.read().split(b"\n")
        assert lines[-2] == b"line 8999"
        assert process.wait(30) == 0
        assert bench.outcome["problems"] == []
        assert "line 8999" in (bench.folder / "output").read_text()

    def test_an_interrupt_ends_the_wait_and_not_the_outcome(self, bench: Bench) -> None:
        process = self.start(bench, sys.executable, "-c", "import os; os.write(1, b'x' * 100000); os._exit(5)")
        until(lambda: list_runs(bench.runs) and bench.events("stop"))
        time.sleep(0.8)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 5
        assert "not captured" in bench.outcome["problems"][0]
        assert process.stdout is not None
        process.stdout.close()


class TestAFullDisk:
    """How the workload ended is known even where nothing more can be written."""

    def test_the_event_log_keeps_room_for_its_end(self, small_disk: Path) -> None:
        log = EventLog(small_disk / "events.run.jsonl")
        log.add("first")
        fill(small_disk)
        for _ in range(200):
            log.add("workload-end", exit_code=9, signal=None)
        log.close()
        assert (small_disk / "events.run.jsonl").read_text().count("workload-end") == 200

    def test_the_exit_code_is_in_the_events(self, bench: Bench, small_disk: Path) -> None:
        bench.runs = small_disk / "runs"
        process = bench.start("sh", "-c", "sleep 1.5; exit 9", period_s=0.002, seal_limit=0)
        until(lambda: started(bench))
        fill(small_disk)
        assert process.wait(30) == 9
        assert read_end(bench.run_folder) is None
        (ended,) = bench.events("workload-end")
        assert (ended["outcome"], ended["exit_code"], ended["signal"]) == ("exit", 9, None)
        assert any("could not be written" in e["what"] for e in bench.events("problem"))


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        for size in (4096, 1):
            while True:
                try:
                    filler.write(b"\0" * size)
                except OSError:
                    break


def test_a_recorder_that_we_kill_did_not_die(bench: Bench) -> None:
    process = bench.start("sleep", "1", flush_s=0.3)
    until(lambda: started(bench))
    os.kill(bench.recorder(), signal.SIGSTOP)
    assert process.wait(30) == 0
    assert len(bench.events("recorder-stuck")) == 1
    assert bench.events("recorder-died") == []


def test_the_end_is_stamped_though_we_are_stopped(bench: Bench) -> None:
    process = bench.start("sleep", "0.5", seal_limit=0)
    until(lambda: started(bench))
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    assert process.wait(30) == 0
    assert (bench.end["end_ns"] - bench.end["start_ns"]) / NS < 1.0


def test_a_pause_of_our_own_is_told(bench: Bench) -> None:
    process = bench.start("true", idle_s=1.0)
    until(lambda: list_runs(bench.runs) and recorders_in(bench.host))
    time.sleep(0.3)
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    assert process.wait(30) == 0
    (paused,) = bench.events("supervisor-paused")
    assert 1.0 < (paused["to"] - paused["from"]) / NS < 5


def test_a_fault_before_the_start_costs_the_record_not_the_command(bench: Bench) -> None:
    done = bench.run("sh", "-c", "echo worked; exit 7", drive={"fault": "start"})
    assert (done.returncode, done.stdout) == (7, "worked\n")
    assert "a fault of our own" in bench.outcome["problems"][0]


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(0), 0), (SystemExit("no"), 1), (ValueError("x"), 1)]
)
def test_a_block_that_raises_has_ended_not_never_begun(tmp_path: Path, error: BaseException, code: int) -> None:
    options: dict[str, Any] = {"runs": tmp_path / "runs", "meters": [fake(devices=1)], "tail_s": 0.0}
    others = threading.active_count()  # what tests of shared client libraries left
    m = joulelab.measure("x", **options)
    with pytest.raises(type(error)), m:
        raise error
    assert m.run is not None
    end = read_end(m.run)
    assert end is not None
    assert (end["outcome"], end["exit_code"], end["signal"]) == ("exit", code, None)
    assert end["message"].startswith(type(error).__name__)
    assert threading.active_count() == others
