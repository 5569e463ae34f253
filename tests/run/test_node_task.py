"""The task of a step on one node: driven by its pipes as srun does it, with a real recorder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.recorder.driving import SRC, events_of, fake
from tests.run.supervised import gone, recorders_in
from tests.waiting import until

from joulelab.core.clock import monotonic_ns, read_boot_id
from joulelab.core.process_identity import read_start_ticks
from joulelab.run.job_nodes import TASK_MODULE, _make_plan
from joulelab.run.node_task import _next_segment
from joulelab.run.run_options import RunOptions
from joulelab.store.run_folder import create_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system


class Task:
    """Hold a task on node `n2` whose supervisor is this process, on `n1` unless told otherwise."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.run = create_run(folder / "runs", {"host": "n1", "command": ["true"]})
        self.folder = self.run / "n2"
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "JOULELAB"))}
        job = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "5", "SLURMD_NODENAME": "n2", "PYTHONPATH": SRC}
        self.process = subprocess.Popen(
            [sys.executable, "-m", TASK_MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=base | job | environ
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.said: list[dict[str, Any]] = []
        self._text = b""

    def send(self, do: str, **more: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        self.process.stdin.flush()

    def plan(self, *, host: str = "n1", owner: int | None = None, **more: Any) -> None:
        pid = os.getpid() if owner is None else owner
        options = RunOptions(runs=self.run.parent, **{"meters": [fake(devices=1)], "period_s": 0.02, **more})
        self.send(
            "plan",
            run=str(self.run),
            host=host,
            owner_pid=pid,
            owner_start_ticks=read_start_ticks(pid),
            **_make_plan(options),
        )

    def hear(self, kind: str, limit_s: float = 120.0) -> dict[str, Any]:
        """Wait until something of a kind is said, and return it."""
        until(lambda: self._of(kind), within_s=limit_s)
        return self._of(kind)[-1]

    def _of(self, kind: str) -> list[dict[str, Any]]:
        assert self.process.stdout is not None
        self._text += self.process.stdout.read() or b""
        *lines, self._text = self._text.split(b"\n")
        self.said += [json.loads(line) for line in lines]
        return [each for each in self.said if each["is"] == kind]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for path in sorted(self.folder.glob("events.*.jsonl")) for e in events_of(path, kind)]

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    made = Task(tmp_path)
    yield made
    with contextlib.suppress(BrokenPipeError):
        made.close_input()
    assert made.process.wait(120) == 0
    assert made.process.stdout is not None
    made.process.stdout.close()


def recorder_of(task: Task) -> int:
    until(lambda: recorders_in(task.folder))
    return recorders_in(task.folder)[0]


def test_it_records_as_it_is_told(task: Task) -> None:
    assert task.hear("hello") | {"step": "5", "node": "n2"} == task.said[0]
    task.plan()
    assert task.hear("ready")["open"] == 1
    before = monotonic_ns()
    task.send("edge", id=3)
    task.send("clock", id=8)
    clock = task.hear("clock")
    assert clock["id"] == 8
    assert before < clock["t"] < monotonic_ns()
    assert clock["boot_id"] == read_boot_id()
    assert task.hear("edge")["id"] == 3
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):  # sent to all steps of a job
        task.process.send_signal(number)
    task.send("finish", tail_s=0.1)
    task.hear("ended")
    assert task.process.wait(120) == 0
    assert [e["reason"] for e in task.events("stop")] == ["asked"]
    assert len(task.events("clock")) == 2
    assert recorders_in(task.folder) == []
    assert not list(task.folder.glob("*.log"))


def test_it_ends_with_its_input(task: Task) -> None:
    task.plan()
    task.hear("ready")
    recorder = recorder_of(task)
    task.close_input()
    task.hear("ended")
    assert task.process.wait(120) == 0
    assert gone(recorder)
    assert task.events("owner-ended")


def test_a_recorder_that_dies_is_told_and_started_again(task: Task) -> None:
    task.plan()
    task.hear("ready")
    os.kill(recorder_of(task), signal.SIGKILL)
    assert task.hear("problem") == {
        "node": "n2",
        "is": "problem",
        "what": "the recorder died (signal 9) and is started again",
    }
    until(lambda: len(task.events("recorder-started")) == 2 and recorders_in(task.folder))
    assert task.hear("alive") == {"node": "n2", "is": "alive"}, "each second"
    task.send("finish", tail_s=0.0)
    task.hear("ended")
    assert len(list(task.folder.glob("fake.power.*.journal"))) == 2


def test_a_folder_that_is_not_there_is_told(task: Task) -> None:
    task.run = task.run.parent / "elsewhere" / task.run.name
    task.plan()
    assert "file system that all nodes share" in task.hear("failed")["what"]
    task.hear("ended")


def test_a_plan_that_cannot_be_read_is_told(task: Task) -> None:
    task.send("plan")
    assert "KeyError" in task.hear("failed")["what"]
    task.hear("ended")


def test_it_ends_without_a_plan(task: Task) -> None:
    task.hear("hello")
    task.close_input()
    task.hear("ended")


def test_each_node_reads_the_meters_that_are_configured_for_it(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[node]\nrated_w = 1400\n[meters.mine]\nmeter = "estimate"\nnode = "n2"\ncpu_w = 50\n')
    task = Task(tmp_path)
    own = {
        "configured": [{"name": "other", "meter": "estimate", "feeds": ""}],
        "also": [{"meter": "estimate", "name": "other"}],
    }
    by = {"file": str(config), "wanted": [], "without": ["nvml", "rapl", "amdsmi"]}
    task.plan(meters=[], chosen_by=by, **own)
    task.hear("ready")
    task.close_input()
    task.hear("ended")
    assert {e["meter"] for e in task.events("meter")} >= {"mine", "host"}
    assert "other" not in {e["meter"] for e in task.events("meter")}
    assert [(e["scope"], e["watts"]) for e in task.events("rated")] == [("node.ac", 1400.0)]
    again = Task(tmp_path)
    again.plan(chosen_by={**by, "wanted": ["no-such-meter"]})
    assert "the configuration is not used" in again.hear("problem")["what"]
    assert again.hear("ready")["open"] == 1
    again.close_input()
    for each in (task, again):
        assert each.process.wait(120) == 0
        assert each.process.stdout is not None
        each.process.stdout.close()


def test_on_the_supervisors_node_it_only_watches(task: Task) -> None:
    task.plan(host="n2")
    task.hear("ready")
    task.send("edge", id=1)
    task.send("clock", id=2)
    assert task.hear("clock")["id"] == 2
    assert task.hear("edge")["id"] == 1
    task.send("finish", tail_s=0.0)
    task.hear("ended")
    assert not task.folder.exists()


def test_its_segments_come_after_those_that_are_there(tmp_path: Path) -> None:
    assert _next_segment(tmp_path) == 0
    for name in ("events.node.jsonl", "events.0.jsonl", "fake.power.0.journal", "recorder.11.log", "nodes.log"):
        (tmp_path / name).touch()
    assert _next_segment(tmp_path) == 12


def scancel(folder: Path) -> str:
    """Make a scancel that writes down what it is told; return where commands are looked for."""
    (folder / "bin").mkdir()
    made = folder / "bin" / "scancel"
    made.write_text(f'#!/bin/sh\necho "$@" > {folder}/cancelled\n')
    made.chmod(0o755)
    return f"{folder}/bin:{os.environ['PATH']}"


@pytest.mark.parametrize(("rank", "told"), [("0", "--signal=KILL 1.3 1.4\n"), ("1", "")])
def test_one_task_ends_the_steps_that_it_replaces(tmp_path: Path, rank: str, told: str) -> None:
    task = Task(tmp_path, PATH=scancel(tmp_path), SLURM_PROCID=rank)
    owner = {"owner_pid": os.getpid(), "owner_start_ticks": read_start_ticks(os.getpid())}
    task.send("plan", host="n2", instead_of=["3", "4"], **owner)
    task.hear("ready")
    cancelled = tmp_path / "cancelled"
    assert (cancelled.read_text() if cancelled.exists() else "") == told
    task.close_input()
    assert task.process.wait(120) == 0
    assert task.process.stdout is not None
    task.process.stdout.close()


def test_the_step_is_cancelled_where_a_worker_of_a_killed_supervisor_holds_its_input(tmp_path: Path) -> None:
    task = Task(tmp_path, PATH=scancel(tmp_path))
    supervisor = subprocess.Popen(["sleep", "300"])
    task.plan(host="n2", owner=supervisor.pid)
    task.hear("ready")
    supervisor.kill()
    supervisor.wait()
    task.hear("ended")
    assert (tmp_path / "cancelled").read_text() == "--signal=KILL 1.5\n"
    assert task.process.wait(120) == 0
    task.close_input()
    assert task.process.stdout is not None
    task.process.stdout.close()
