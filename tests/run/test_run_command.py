"""Supervised commands: what passes through, how they end, and what is on disk afterwards."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.recorder.driving import SRC
from tests.run.supervised import DRIVER, Bench, children, gone, recorders_in, started
from tests.waiting import until

from joulelab.analysis.analyse import find_span
from joulelab.core.clock import NS
from joulelab.run.child_process import start_recorder
from joulelab.store.run_folder import RunState, list_runs, read_run_state
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system


def test_input_output_and_errors_pass_through(bench: Bench) -> None:
    done = bench.run("sh", "-c", "cat; echo to-stderr >&2", text="some\ninput\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "some\ninput\n", "to-stderr\n")
    assert bench.end["outcome"] == "exit"
    assert bench.end["exit_code"] == 0
    assert read_run_state(bench.run_folder) is RunState.CLOSED


def test_a_run_is_recorded_from_before_its_start_to_after_its_end(bench: Bench) -> None:
    bench.run("sleep", "0.3", seal_limit=0)
    start, end = bench.end["start_ns"], bench.end["end_ns"]
    assert end - start >= 0.3 * NS
    for device in (0, 1):
        times = [row[1] for row in bench.rows() if row[0] == device]
        assert times[0] < start < end < times[-1]
    (workload,) = bench.events("workload")
    (ended,) = bench.events("workload-end")
    assert workload["start_ns"] == start
    assert ended["end_ns"] == end
    assert ended["peak_memory_b"] > 0
    assert recorders_in(bench.host) == []
    assert not list(bench.host.glob("*.log"))


def test_the_result_is_right_and_the_run_sealed(bench: Bench) -> None:
    bench.run("sleep", "0.4", analyse=True, seal_from_s=0.3)
    seconds = (bench.outcome["end_ns"] - bench.outcome["start_ns"]) / NS
    assert bench.outcome["problems"] == []
    assert bench.outcome["energy_j"] == pytest.approx(200 * seconds, rel=0.03)
    assert [p.name for p in bench.host.glob("fake.*")] == ["fake.power.parquet"]


def test_the_seal_of_a_short_run_is_left_to_whoever_opens_it(bench: Bench) -> None:
    bench.run("sleep", "0.1", analyse=True)
    assert [p.name for p in bench.host.glob("fake.*")] == ["fake.power.0.journal"]


@pytest.mark.parametrize(
    ("command", "code", "kind"),
    [
        (["sh", "-c", "exit 3"], 3, "exit"),
        (["sh", "-c", "kill -TERM $$"], -15, "signal"),
        (["sh", "-c", "kill -KILL $$"], -9, "signal"),
        (["joulelab-no-such-command"], 127, "not-started"),
        (["/etc/passwd"], 126, "not-started"),
    ],
)
def test_it_ends_as_the_command_ended(bench: Bench, command: list[str], code: int, kind: str) -> None:
    done = bench.run(*command)
    assert done.returncode == code
    assert bench.outcome["kind"] == bench.end["outcome"] == kind
    assert bench.end["signal"] == (-code if code < 0 else None)
    assert (bench.outcome["error"] is None) == (kind != "not-started")


def test_a_script_without_an_interpreter_line_runs_as_in_a_shell(bench: Bench) -> None:
    script = bench.folder / "script"
    script.write_text("echo from the script $1\nexit 4\n")
    script.chmod(0o755)
    done = bench.run(str(script), "x")
    assert (done.returncode, done.stdout) == (4, "from the script x\n")


def test_the_command_finds_its_run_and_the_signals_of_a_plain_start(bench: Bench) -> None:
    command = ["sh", "-c", 'grep -E "Sig(Blk|Ign|Cgt)" /proc/self/status; echo "$JOULELAB_RUN $JOULELAB_HOST"']
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = bench.run(*command).stdout.splitlines()
    # glibc's posix_spawn leaves its two internal signals, 32 and 33, ignored; programs that use them set them first.
    ours, theirs = ([int(line.split()[1], 16) & ~(3 << 31) for line in lines[:3]] for lines in (found, plain))
    assert ours == theirs
    assert found[3] == f"{bench.run_folder} {bench.host.name}"


def test_a_signal_that_was_ignored_stays_ignored(bench: Bench) -> None:
    command = ["nohup", sys.executable, DRIVER, "grep", "SigIgn", "/proc/self/status"]
    out = subprocess.run(command, env=bench.environ(), capture_output=True, text=True, check=True).stdout
    assert int(out.split()[1], 16) & 1


def test_children_that_outlive_the_command_are_left_alone(bench: Bench) -> None:
    ended = bench.folder / "outcome.json"
    done = bench.run("sh", "-c", f"(until [ -e {ended} ]; do sleep 0.05; done; echo late) & echo now")
    # The output is read until the last child has closed it; the run itself ended with the command.
    assert done.stdout == "now\nlate\n"


def test_idle_is_recorded_before(bench: Bench) -> None:
    bench.run("true", idle_s=0.4, seal_limit=0)
    (idle,) = bench.events("idle")
    assert idle["to"] - idle["from"] >= 0.4 * NS
    assert any(idle["from"] < row[1] < idle["to"] for row in bench.rows())
    assert idle["to"] <= bench.end["start_ns"]


def test_captured_output_goes_both_ways(bench: Bench) -> None:
    captured = bench.folder / "output"
    done = bench.run("sh", "-c", "echo out; echo err >&2; exit 5", capture=str(captured))
    assert (done.returncode, done.stdout, done.stderr) == (5, "out\n", "err\n")
    assert sorted(captured.read_text().split()) == ["err", "out"]


def test_a_reader_that_leaves_ends_a_captured_command_as_a_pipe_would(bench: Bench) -> None:
    command = f"{sys.executable} {DRIVER} yes | head -n 1; exit ${{PIPESTATUS[0]}}"
    environ = bench.environ(capture=str(bench.folder / "output"))
    done = subprocess.run(
        ["bash", "-c", command], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "y\n"
    assert bench.outcome["signal"] == 13


def test_a_capture_that_cannot_be_written(bench: Bench) -> None:
    done = bench.run("echo", "out", capture=str(bench.folder / "no" / "such" / "folder"))
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert "cannot capture" in bench.outcome["problems"][0]


def test_a_child_that_outlives_a_captured_command_does_not_hold_it_up(bench: Bench) -> None:
    child = f"(until [ -e {bench.folder}/outcome.json ]; do sleep 0.05; done) &"
    process = bench.start("sh", "-c", f"{child} echo now", capture=str(bench.folder / "output"))
    assert process.wait(120) == 0
    assert "outlived" in bench.outcome["problems"][0]


def test_a_recorder_that_was_started_early_is_used(bench: Bench) -> None:
    done = bench.run("echo", "out", drive={"early": True}, seal_limit=0)
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert bench.rows()[0][1] < bench.end["start_ns"]
    assert len(bench.events("recorder-started")) == 1


def test_a_recorder_that_was_started_early_ends_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SRC)
    recorder = start_recorder(os.environ, warm=True)
    recorder.close()
    assert os.waitpid(recorder.pid, 0)[1] == 0


class TestTroubleWithTheMeasurement:
    """The workload is never stopped, slowed or killed by it."""

    def test_a_run_folder_that_cannot_be_created(self, bench: Bench) -> None:
        blocked = bench.folder / "file"
        blocked.write_text("")
        done = bench.run("sh", "-c", "echo worked; exit 7", runs=blocked / "runs")
        assert (done.returncode, done.stdout) == (7, "worked\n")
        assert "not recorded" in done.stderr
        assert bench.run("true", runs=blocked / "runs", drive={"early": True}).returncode == 0
        assert bench.outcome["run"] is None

    def test_a_recorder_that_cannot_be_started(self, bench: Bench) -> None:
        done = bench.run("sh", "-c", "echo worked; exit 7", drive={"python": "/no/such/python"})
        assert (done.returncode, done.stdout) == (7, "worked\n")
        assert "cannot be started" in bench.outcome["problems"][0]
        assert bench.end["exit_code"] == 7

    def test_a_recorder_that_ends_at_once_is_tried_again_with_patience(self, bench: Bench) -> None:
        done = bench.run("sleep", "0.6", drive={"python": "/bin/false"})
        assert done.returncode == 0
        assert "did not start" in bench.outcome["problems"][0]
        seconds = (bench.end["end_ns"] - bench.end["start_ns"]) / NS
        assert 1 <= bench.end["restarts"] <= 2 + seconds  # after 0.5 s, 1 s, 2 s, ...

    def test_a_fault_of_our_own(self, bench: Bench) -> None:
        done = bench.run("sh", "-c", "echo worked; exit 7", drive={"fault": True})
        assert (done.returncode, done.stdout) == (7, "worked\n")
        assert "a fault of our own" in bench.outcome["problems"][0]
        assert bench.end["exit_code"] == 7
        assert recorders_in(bench.host) == []

    def test_a_recorder_that_is_late(self, bench: Bench) -> None:
        done = bench.run("sleep", "0.2", ready_s=0.0)
        assert done.returncode == 0
        assert len(bench.events("recorder-late")) == 1

    def test_a_recorder_that_is_killed_is_started_again(self, bench: Bench) -> None:
        process = bench.start(*bench.held(), seal_limit=0, period_s=0.01)
        until(lambda: started(bench))
        before = bench.rows(0)
        os.kill(bench.recorder(), 9)
        killed = time.monotonic_ns()
        until(lambda: bench.rows(1) and len(bench.events("tree")) == 2)
        bench.release()
        assert process.wait(120) == 0
        assert bench.end["restarts"] == 1
        assert bench.events("recorder-died")[0]["status"] == "signal 9"
        assert bench.rows(0)[: len(before)] == before
        assert bench.rows(1)[0][1] > killed
        assert bench.events("tree")[-1]["pids"] == [bench.events("workload")[0]["pid"]]
        assert recorders_in(bench.host) == []

    def test_a_recorder_that_hangs_is_killed_in_the_end_and_did_not_die(self, bench: Bench) -> None:
        process = bench.start(*bench.held(), flush_s=0.3)
        until(lambda: started(bench))
        recorder = bench.recorder()
        os.kill(recorder, 19)
        bench.release()
        assert process.wait(120) == 0
        assert gone(recorder)
        assert any("was killed" in p for p in bench.outcome["problems"])
        assert len(bench.events("recorder-stuck")) == 1
        assert bench.events("recorder-died") == []

    def test_a_meter_that_hangs(self, bench: Bench) -> None:
        meters = [{"meter": str(bench.folder / "m.py")}]
        (bench.folder / "m.py").write_text("import time\ndef open_meter(config): time.sleep(900)\n")
        assert bench.run("sh", "-c", "exit 2", meters=meters).returncode == 2

    @pytest.mark.skipif(os.getuid() != 0, reason="a file system of a test's own needs root")
    def test_a_disk_that_is_full(self, bench: Bench, small_disk: Path) -> None:
        (small_disk / "filler").write_bytes(b"\0" * (180 << 10))
        done = bench.run("sh", "-c", "sleep 0.3; exit 6", runs=small_disk / "runs", period_s=0.001)
        assert done.returncode == 6

    @pytest.mark.campaign  # what is kept while the disk is full: recorder/test_writer.py
    @pytest.mark.skipif(os.getuid() != 0, reason="a file system of a test's own needs root")
    def test_a_disk_that_fills_and_is_cleared(self, bench: Bench, small_disk: Path) -> None:
        bench.runs = small_disk / "runs"
        process = bench.start("sleep", "2.5", period_s=0.01, seal_limit=0)
        until(lambda: list_runs(bench.runs) and recorders_in(bench.host) and bench.events("workload"))
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            while True:
                try:
                    filler.write(b"\0" * 4096)
                except OSError:
                    break
        time.sleep(1.2)
        (small_disk / "filler").unlink()
        assert process.wait(120) == 0
        assert bench.outcome["problems"] == []
        times = [row[1] for row in bench.rows() if row[0] == 0]
        assert max(b - a for a, b in itertools.pairwise(times)) < 0.3 * NS
        assert times[-1] > bench.end["end_ns"]
        assert len(bench.events("disk-end")) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_kill_9_of_the_workload(bench: Bench) -> None:
    process = bench.start("sleep", "30", seal_limit=0)
    until(lambda: list_runs(bench.runs) and bench.events("workload"))
    os.kill(bench.events("workload")[0]["pid"], 9)
    killed = time.monotonic_ns()
    assert process.wait(120) == -9
    assert (bench.end["outcome"], bench.end["signal"]) == ("signal", 9)
    assert bench.rows()[-1][1] > killed
    assert recorders_in(bench.host) == []


def test_kill_9_of_the_supervisor(bench: Bench) -> None:
    process = bench.start(*bench.held(f"echo went on > {bench.folder}/proof"), period_s=0.01)
    until(lambda: started(bench))
    recorder, (workload,) = bench.recorder(), (e["pid"] for e in bench.events("workload"))
    assert recorder in children(process.pid)
    started_ns = time.monotonic_ns()
    until(lambda: bench.rows()[-1][1] > started_ns + NS // 5)
    process.kill()
    process.wait()
    killed_ns = time.monotonic_ns()
    until(lambda: gone(recorder))
    assert not gone(workload)
    assert read_run_state(bench.run_folder) is RunState.KILLED
    assert bench.events("stop")[0]["reason"] == "owner-ended"
    with open_run(bench.run_folder) as run:
        assert started_ns < find_span(run, run.events()).end_ns <= killed_ns, "the run ends before it was killed"
    bench.release()
    until((bench.folder / "proof").exists)
    assert json.loads((bench.run_folder / "run.json").read_text())["command"][0] == "sh"
