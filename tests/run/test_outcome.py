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
from tests.run.supervised import CATCHER, DRIVER, Bench, caught, children, gone, recorders_in, started
from tests.run.test_run_command import small_disk
from tests.waiting import until

import joulelab
from joulelab.core.clock import NS
from joulelab.run.recording import EventLog
from joulelab.store.run_folder import list_runs, read_end

pytestmark = pytest.mark.system

__all__ = ["small_disk"]
LINES = "import sys\nfor i in range(9000): print('line', i)\nsys.stderr.write('end\\n')"


class TestWithoutARecorder:
    """A signal to the group reaches the workload once, also while nobody records."""

    def test_no_run_folder(self, bench: Bench) -> None:
        (bench.folder / "file").write_text("")
        log = bench.folder / "caught"
        process = bench.start(*CATCHER, str(log), runs=bench.folder / "file" / "runs")
        until(lambda: caught(log) == ["ready"] and len(children(process.pid)) == 2)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            for times in (1, 2):
                before = children(process.pid)
                os.killpg(process.pid, number)
                until(lambda number=number, times=times: caught(log).count(number.name) >= times)
                # Another witness takes the place of the one that saw it.
                until(lambda before=before: len(now := children(process.pid)) == 2 and now != before)
            process.send_signal(number)
            until(lambda number=number: caught(log).count(number.name) >= 3)
        process.send_signal(signal.SIGUSR2)
        assert process.wait(120) == 0
        assert caught(log) == ["ready", *["SIGTERM"] * 3, *["SIGINT"] * 3, *["SIGHUP"] * 3, *["SIGUSR1"] * 3, "SIGUSR2"]

    def test_a_recorder_that_has_just_died(self, bench: Bench) -> None:
        log = bench.folder / "caught"
        process = bench.start(*CATCHER, str(log))
        until(lambda: caught(log) == ["ready"] and started(bench))
        os.kill(bench.recorder(), signal.SIGKILL)
        os.killpg(process.pid, signal.SIGTERM)
        until(lambda: "SIGTERM" in caught(log))
        process.send_signal(signal.SIGUSR2)
        assert process.wait(120) == 0
        assert caught(log) == ["ready", "SIGTERM", "SIGUSR2"]

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
    until(lambda: caught(log) == ["ready"] and started(bench))
    process.send_signal(signal.SIGWINCH)
    until(lambda: caught(log).count("SIGWINCH") == 1)
    os.killpg(process.pid, signal.SIGWINCH)
    until(lambda: caught(log).count("SIGWINCH") == 2)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(120) == 0
    assert caught(log) == ["ready", "SIGWINCH", "SIGWINCH", "SIGUSR2"]


class TestCapture:
    """All output arrives, however slowly it is read."""

    def start(self, bench: Bench, *command: str) -> subprocess.Popen[bytes]:
        environ = bench.environ(capture=str(bench.folder / "output"), tail_s=0.0)
        return subprocess.Popen([sys.executable, DRIVER, *command], env=environ, stdout=subprocess.PIPE)

    def test_a_slow_reader_gets_all(self, bench: Bench) -> None:
        process = self.start(bench, sys.executable, "-c", LINES)
        until(lambda: list_runs(bench.runs) and bench.events("workload"))
        time.sleep(0.3)
        assert process.stdout is not None
        with process.stdout as out:
            lines = out.read().split(b"\n")
        assert lines[-2] == b"line 8999"
        assert process.wait(120) == 0
        assert bench.outcome["problems"] == []
        assert "line 8999" in (bench.folder / "output").read_text()

    def test_an_interrupt_ends_the_wait_and_not_the_outcome(self, bench: Bench) -> None:
        process = self.start(bench, sys.executable, "-c", "import os; os.write(1, b'x' * 100000); os._exit(5)")
        until(lambda: list_runs(bench.runs) and bench.events("stop"))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 5
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
        process = bench.start(*bench.held("exit 9"), period_s=0.002, seal_limit=0)
        until(lambda: started(bench))
        fill(small_disk)
        bench.release()
        assert process.wait(120) == 9
        assert read_end(bench.run_folder) is None
        (ended,) = bench.events("workload-end")
        assert (ended["outcome"], ended["exit_code"], ended["signal"]) == ("exit", 9, None)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        for size in (4096, 1):
            while True:
                try:
                    filler.write(b"\0" * size)
                except OSError:
                    break


def test_the_end_is_stamped_though_we_are_stopped(bench: Bench) -> None:
    process = bench.start(*bench.held(), seal_limit=0)
    until(lambda: started(bench))
    (workload,) = bench.events("workload")
    process.send_signal(signal.SIGSTOP)
    bench.release()
    until(lambda: gone(workload["pid"]))
    time.sleep(0.3)
    continued = time.monotonic_ns()
    process.send_signal(signal.SIGCONT)
    assert process.wait(120) == 0
    assert bench.end["end_ns"] < continued


@pytest.mark.campaign  # test_supervisor.py tells it in virtual time
def test_a_pause_of_our_own_is_told(bench: Bench) -> None:
    process = bench.start("true", idle_s=1.0)
    until(lambda: list_runs(bench.runs) and recorders_in(bench.host))
    process.send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    process.send_signal(signal.SIGCONT)
    assert process.wait(120) == 0
    assert any(e["to"] - e["from"] > NS for e in bench.events("supervisor-paused"))


def test_a_fault_before_the_start_costs_the_record_not_the_command(bench: Bench) -> None:
    done = bench.run("sh", "-c", "echo worked; exit 7", drive={"fault": "start"})
    assert (done.returncode, done.stdout) == (7, "worked\n")
    assert "a fault of our own" in bench.outcome["problems"][0]


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(0), 0), (SystemExit("no"), 1), (ValueError("x"), 1)]
)
def test_a_block_that_raises_has_ended_not_never_begun(tmp_path: Path, error: BaseException, code: int) -> None:
    options: dict[str, Any] = {"runs": tmp_path / "runs", "meters": [fake(devices=1)], "tail_s": 0.0}
    others = set(threading.enumerate())  # what tests of shared client libraries left, some of which end meanwhile
    m = joulelab.measure("x", **options)
    with pytest.raises(type(error)), m:
        raise error
    assert m.run is not None
    end = read_end(m.run)
    assert end is not None
    assert (end["outcome"], end["exit_code"], end["signal"]) == ("exit", code, None)
    assert end["message"].startswith(type(error).__name__)
    assert not set(threading.enumerate()) - others
