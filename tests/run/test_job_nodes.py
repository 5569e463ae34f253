"""The step over the nodes of a job, where it does not do what it should: the workload does not notice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.rows import every_row
from tests.run.supervised import DRIVER, Bench, gone
from tests.waiting import until

from joulelab.core.clock import NS, read_boot_id
from joulelab.run import job_nodes
from joulelab.run.job_nodes import JobNodes, count_job_nodes, make_step_environ
from joulelab.run.run_options import find_marks_folder, get_host_name
from joulelab.store.run_folder import list_runs

if TYPE_CHECKING:
    from pathlib import Path

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1"}


@every_row(
    ("environ", "count"),
    [
        ({}, 0),
        (JOB, 2),
        ({**JOB, "SLURM_JOB_NUM_NODES": "1"}, 0),
        ({**JOB, "SLURM_JOB_NUM_NODES": "many"}, 0),
        ({"SLURM_JOB_ID": "7", "SLURM_NNODES": "3"}, 3),
        ({"SLURM_NNODES": "3"}, 0),
        ({**JOB, "SLURM_STEP_ID": "0"}, 0),
        ({**JOB, "SLURM_STEP_ID": "4294967291"}, 2),  # a batch script's, where Slurm tells it
        ({**JOB, "SLURM_STEP_ID": "4294967290"}, 2),  # the shell of an interactive job
    ],
)
def test_a_job_of_several_nodes_is_known_by_its_script(environ: dict[str, str], count: int) -> None:
    assert count_job_nodes(environ) == count


def test_a_step_has_nothing_of_what_was_meant_for_others() -> None:
    mine = {"PATH": "/bin", "SLURM_CONF": "/c", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0", "SLURMISH": "x"}
    others = {"SLURM_NTASKS": "4", "SLURM_LABELIO": "1", "SRUN_CPUS_PER_TASK": "9", "SLURM_EXPORT_ENV": "NONE"}
    found = make_step_environ(mine | others | {"SLURMD_NODENAME": "n1", "PMI_RANK": "0"})
    found.pop("PYTHONPATH", None)
    assert found == mine


def test_folders_are_named_by_the_node_in_a_job_and_by_the_host_elsewhere(tmp_path: Path) -> None:
    assert get_host_name(JOB) == "n1"
    assert get_host_name({**JOB, "SLURMD_NODENAME": "../n/1"}) == "-n-1"
    assert get_host_name({"SLURMD_NODENAME": "n1"}) == os.uname().nodename
    assert get_host_name({**JOB, "SLURMD_NODENAME": "."}) == os.uname().nodename
    (tmp_path / "n1").mkdir()
    own = {"JOULELAB_RUN": str(tmp_path), "JOULELAB_HOST": "n0"}
    assert find_marks_folder({}) is None
    assert find_marks_folder(own) == tmp_path / "n0" / "marks"
    assert find_marks_folder(own | JOB) == tmp_path / "n1" / "marks", "a rank on another node"
    third = own | JOB | {"SLURMD_NODENAME": "n2"}
    assert find_marks_folder(third) == tmp_path / "n0" / "marks", (
        "which is not recorded, and as far as known the same host"
    )
    (tmp_path / "run.json").write_text(json.dumps({"started": {"boot_id": read_boot_id()}}))
    assert find_marks_folder(third) == tmp_path / "n0" / "marks", "a second node of this host"
    (tmp_path / "run.json").write_text('{"started": {"boot_id": "another"}}')
    assert find_marks_folder(third) == tmp_path / "n2" / "marks", "its time is another"
    assert find_marks_folder({"JOULELAB_RUN": str(tmp_path), **JOB}) == tmp_path / "n1" / "marks"


class FakeStep(SimpleNamespace):
    """Stand in for a step that only SIGKILL ends; `say` sends a message of a node."""

    def __init__(self, nodes: tuple[str, ...] = ()) -> None:
        super().__init__(nodes=nodes, number="", fds=[], is_behind=False, told=[], signals=[], is_over=False)
        self.send = self.flush = self.end_input = self.close = lambda *_: None

    def read_messages(self) -> list[dict[str, str]]:
        told, self.told = self.told, []
        return told

    def has_ended(self) -> bool:
        return self.is_over or signal.SIGKILL in self.signals

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def say(self, *words: str, node: str = "n2") -> None:
        self.told += [{"node": node, "is": word} for word in words]


class VirtualNodes(SimpleNamespace):
    """Follow the nodes of a job in virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        super().__init__(now_s=1000.0, events=[], problems=[], steps=[])
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=lambda s: setattr(self, "now_s", self.now_s + s))
        monkeypatch.setattr(job_nodes, "monotonic_ns", lambda: round(self.now_s * NS))
        monkeypatch.setattr(job_nodes, "time", clock)
        monkeypatch.setattr(
            job_nodes, "NodeStep", lambda *words: self.steps.append(FakeStep(*words[3:])) or self.steps[-1]
        )
        recording = SimpleNamespace(
            folder=folder, host="n1", options=SimpleNamespace(configured=(), also=(), meters=None, chosen_by=""),
            report_problem=self.problems.append,
            event=lambda name, **more: self.events.append((name, more.get("node"))),
        )  # fmt: skip
        for key in job_nodes.SENT_OPTIONS:
            setattr(recording.options, key, 1.0)
        self.job = JobNodes(recording, folder, {}, 2)  # type: ignore[arg-type]

    def serve(self, seconds: float, *words: str) -> None:
        """Let time pass; in each second the other node sends these messages."""
        for _ in range(round(seconds)):
            self.now_s += 1
            self.steps[-1].say(*words)
            self.job.serve()

    def list_events(self, *names: str) -> list[str]:
        return [what for what, _ in self.events if what in names]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VirtualNodes:
    virtual = VirtualNodes(monkeypatch, tmp_path)
    virtual.steps[0].say("hello", "ready", node="n1")
    virtual.steps[0].say("hello", "ready")
    virtual.serve(1, "alive")
    return virtual


def test_a_silent_node_is_lost_after_five_seconds(nodes: VirtualNodes) -> None:
    nodes.serve(20, "alive")
    nodes.serve(5)
    assert nodes.problems == []
    nodes.serve(1)
    (problem,) = nodes.problems
    assert problem.startswith("n2: no message for 5 s")
    assert ("node-lost", "n2") in nodes.events


def test_nobody_is_lost_by_a_pause_of_our_own(nodes: VirtualNodes) -> None:
    nodes.now_s += 3600
    nodes.job.serve()
    nodes.serve(5)
    assert nodes.problems == []
    nodes.serve(1)
    assert len(nodes.problems) == 1, "it was silent after the pause as well"


def test_silence_at_the_end_is_told_though_it_was_short(nodes: VirtualNodes) -> None:
    nodes.job.ask_end(0.0)
    nodes.serve(3)
    nodes.steps[0].is_over = True
    nodes.job.close()
    (problem,) = nodes.problems
    assert problem.startswith("n2: no message at the end")


def test_a_step_that_heeds_no_signal_is_killed_after_two_seconds(nodes: VirtualNodes) -> None:
    began_s = nodes.now_s
    nodes.job.close()
    assert nodes.steps[0].signals == [signal.SIGTERM, signal.SIGKILL]
    assert nodes.now_s - began_s == pytest.approx(2 * job_nodes.END_S, abs=0.02)


def test_lost_nodes_are_recorded_again_at_most_three_times(nodes: VirtualNodes) -> None:
    for _ in range(4):
        nodes.steps[-1].is_over = True
        nodes.serve(61)
        nodes.steps[-1].say("hello", "ready")
        nodes.job.serve()
    both = ["n1", "n2"]
    assert [step.nodes for step in nodes.steps] == [(), both, both, both]
    assert nodes.list_events("node-lost", "node-back") == [*["node-lost", "node-back"] * 3, "node-lost"]
    ends = [problem.rpartition("; ")[2] for problem in nodes.problems]
    assert ends == [*["it is started again"] * 3, "it is not started again"]


def test_a_step_that_did_not_start_is_one_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = VirtualNodes(monkeypatch, tmp_path)
    nodes.steps[0].is_over = True
    nodes.serve(100)
    assert nodes.problems == ["the step that records the other nodes did not start"]
    assert (nodes.job.ready, len(nodes.steps)) == (True, 1)


class Job:
    """Run commands as the script of a job does whose srun is given."""

    def __init__(self, bench: Bench, srun: str | None, count: int = 2) -> None:
        self.bench = bench
        self.count = count
        self.path = bench.folder / "bin"
        self.path.mkdir()
        if srun is not None:
            (self.path / "srun").write_text(f"#!/bin/sh\n{srun}\n")
            (self.path / "srun").chmod(0o755)
        for tool in ("sleep", "sh", "cat", "head", "grep"):
            (self.path / tool).symlink_to(str(shutil.which(tool)))

    def environ(self, **options: Any) -> dict[str, str]:
        return (
            self.bench.environ(**{"nodes_s": 60.0, "flush_s": 0.4, "edge_s": 0.1, **options})
            | JOB
            | {"PATH": str(self.path), "SLURM_JOB_NUM_NODES": str(self.count)}
        )

    def run(self, *command: str, **options: Any) -> list[str]:
        """Run a command and return the problems; it ends with 3."""
        words = [sys.executable, DRIVER, *(command or ("sh", "-c", "exit 3"))]
        done = subprocess.run(words, env=self.environ(**options), timeout=300, check=False)
        assert done.returncode == 3
        problems: list[str] = self.bench.outcome["problems"]
        return problems


@pytest.mark.system
def test_without_srun_this_node_is_recorded(bench: Bench) -> None:
    (problem,) = Job(bench, None).run()
    assert problem == "only this node is recorded, 1 others are not: srun: there is no such command"
    (told,) = bench.events("nodes")
    assert (told["nodes"], told["count"]) == (["n1"], 2)
    assert bench.host.name == "n1"
    assert bench.rows()


@pytest.mark.system
def test_the_last_words_of_srun_are_told(bench: Bench) -> None:
    job = Job(bench, "echo srun: error: no step for you >&2; exit 1")
    (problem,) = job.run("sh", "-c", "sleep 0.2; exit 3")
    assert problem == "the step that records the other nodes did not start (srun: error: no step for you)"
    assert bench.events("nodes-ended")


@pytest.mark.system
def test_a_step_that_does_not_come_up_is_not_waited_for(bench: Bench) -> None:
    job = Job(bench, f"echo $$ > {bench.folder}/pid; exec sleep 300")
    (problem,) = job.run("sh", "-c", f"until [ -s {bench.folder}/pid ]; do sleep 0.05; done; exit 3", nodes_s=0.3)
    assert problem == "2 of 2 nodes were not recorded: none answered in time"
    (late,) = bench.events("nodes-late")
    assert late["missing"] == 2
    assert gone(int((bench.folder / "pid").read_text()))


@pytest.mark.campaign
def test_one_that_heeds_no_signal_is_killed(bench: Bench) -> None:
    job = Job(bench, f"trap '' TERM; echo $$ > {bench.folder}/pid; while :; do sleep 0.2; done")
    job.run("sh", "-c", f"until [ -s {bench.folder}/pid ]; do sleep 0.05; done; exit 3", nodes_s=0.3)
    assert gone(int((bench.folder / "pid").read_text()))


@pytest.mark.system
def test_a_node_that_says_little_or_nonsense_is_named(bench: Bench) -> None:
    hello = '{"node":"n%d","is":"hello","step":"4"}'
    said = [hello % 1, '{"node":"n1","is":"ready"}', hello % 2, "no JSON", "{}", '{"node":"n2","is":"edge","id":"x"}']
    told = f"echo told > {bench.folder}/told; cat > /dev/null"
    job = Job(bench, "\n".join([*(f"echo '{line}'" for line in said), told]))
    (problem,) = job.run("sh", "-c", f"until [ -s {bench.folder}/told ]; do sleep 0.05; done; exit 3", nodes_s=0.3)
    assert problem == "1 of 2 nodes were not recorded: n2"
    (told,) = bench.events("nodes")
    assert (told["step"], told["nodes"]) == ("4", ["n1", "n2"])


@pytest.mark.system
def test_what_nodes_tell_is_told(bench: Bench) -> None:
    node = '{"node":"n2","is":'
    said = [f'{node}"hello"}}', f'{node}"failed","what":"no folder"}}', f'{node}"problem","what":"a disk is full"}}']
    others = [f'{{"node":"{name}","is":"{what}"}}' for name in ("n1", "n3") for what in ("hello", "ready")]
    clock = f"""case $line in *clock*) echo '{node}"clock","id":0,"t":5}}';; esac"""
    alive = """echo '{"node":"n3","is":"alive"}'"""
    answers = f"while read -r line; do {clock}; {alive}; done; sleep 300"
    job = Job(bench, "\n".join([*(f"echo '{line}'" for line in (*others, *said)), answers]), count=3)
    assert job.run() == [
        "n2 is not recorded: no folder",
        "n2: a disk is full",
        "the recorders on n3 did not end in time and were killed",
    ]
    assert {e["node_ns"] for e in bench.events("clock-node")} == {5}


def until_event(pattern: str) -> str:
    """Return the words of a workload that waits until its run has such events."""
    return f"until grep -qz '{pattern}' $JOULELAB_RUN/n1/events.run.jsonl; do sleep 0.05; done"


def of_two(*said: str) -> str:
    """Return the lines of a srun whose first node is well, and whose second says this."""
    lines = [("n1", "hello"), ("n1", "ready"), *(("n2", what) for what in said)]
    return "\n".join(f"""echo '{{"node":"{node}","is":"{what}","step":"4"}}'""" for node, what in lines)


@pytest.mark.system
def test_a_node_that_ends_early_is_taken_up_again(bench: Bench) -> None:
    again = f"case $* in *--nodelist=n2*) head -n 1 > {bench.folder}/plan; echo refused >&2; exit 1;; esac"
    job = Job(bench, f"{again}\n{of_two('hello', 'ready', 'ended')}\ncat > /dev/null")
    problems = job.run("sh", "-c", f"{until_event('node-lost.*node-lost')}; exit 3")
    assert problems == [
        "the recording of n2 ended early; it is started again",
        "the step that records n2 did not start (refused); it is started again",
    ], "after a pause that the end does not wait for"
    assert json.loads((bench.folder / "plan").read_text())["instead_of"] == [], "the first step is there still"
    assert [(e["node"], e["step"]) for e in bench.events("node-lost")] == [("n2", "4")] * 2


@pytest.mark.system
def test_a_step_that_ends_early_is_replaced(bench: Bench) -> None:
    again = f"case $* in *--nodelist=n1,n2*) head -n 1 > {bench.folder}/plan; {{}};; esac"
    more = f"{of_two('hello', 'ready')}; cat > /dev/null; {of_two('ended')}; exit 0"
    job = Job(bench, f"{again.format(more)}\n{of_two('hello', 'ready')}\nexit 1")
    (problem,) = job.run("sh", "-c", f"{until_event('node-back[^}]*n2')}; exit 3")
    assert problem == "the step that records n1, n2 ended early; it is started again"
    assert json.loads((bench.folder / "plan").read_text())["instead_of"] == ["4"]
    assert [e["node"] for e in bench.events("node-lost")] == ["n2"]
    assert "n2" in [e["node"] for e in bench.events("node-back")]


@pytest.mark.campaign
def test_a_node_that_is_silent_at_the_end_is_told(bench: Bench) -> None:
    job = Job(bench, f"{of_two('hello', 'ready')}\ncat > /dev/null; sleep 1")
    (problem,) = job.run("sh", "-c", "sleep 2.5; exit 3")
    assert problem.startswith("n2: no message "), "at the end, or for 5 s where the machine is busy"
    assert [e["node"] for e in bench.events("node-lost")] == ["n2"]


@pytest.mark.campaign
def test_nobody_is_lost_while_the_supervisor_itself_is_stopped(bench: Bench) -> None:
    job = Job(bench, f"{of_two('hello', 'ready')}\ncat > /dev/null; {of_two('ended')}")
    words = [sys.executable, DRIVER, "sh", "-c", f"until [ -e {bench.folder}/go ]; do sleep 0.1; done; exit 3"]
    with subprocess.Popen(words, env=job.environ()) as process:
        until(lambda: list_runs(bench.runs) and bench.events("workload"))
        process.send_signal(signal.SIGSTOP)
        time.sleep(7)
        process.send_signal(signal.SIGCONT)
        (bench.folder / "go").touch()
        assert process.wait(120) == 3
    assert bench.outcome["problems"] == []
    assert not bench.events("node-lost")


@pytest.mark.system
def test_a_plan_that_does_not_fit_into_a_pipe_arrives(bench: Bench) -> None:
    job = Job(
        bench, f'sleep 0.3; head -n 1 > {bench.folder}/plan; echo \'{{"node":"n1","is":"hello"}}\'; cat > /dev/null'
    )
    pad = [{"meter": "no-such-meter", "config": {"pad": "x" * 100_000}}]
    job.run("sh", "-c", f"until [ -s {bench.folder}/plan ]; do sleep 0.05; done; exit 3", also=pad, nodes_s=0.3)
    plan = json.loads((bench.folder / "plan").read_text())
    assert plan["host"] == "n1"
    assert len(plan["options"]["also"][0]["config"]["pad"]) == 100_000


@pytest.mark.system
def test_what_is_sent_to_the_workloads_group_does_not_reach_the_step(bench: Bench) -> None:
    job = Job(
        bench, f"trap 'echo hit > {bench.folder}/hit' INT; echo $$ > {bench.folder}/pid; cat > /dev/null; sleep 0.1"
    )
    words = [sys.executable, DRIVER, "sleep", "300"]
    with subprocess.Popen(words, env=job.environ(nodes_s=0.3), process_group=0) as process:
        until(lambda: list_runs(bench.runs) and bench.events("workload"))
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == -signal.SIGINT
    until(lambda: gone(int((bench.folder / "pid").read_text())))
    assert not (bench.folder / "hit").exists()


@pytest.mark.system
def test_ranks_other_than_the_first_of_a_node_are_the_command(bench: Bench) -> None:
    script = bench.folder / "script"
    script.write_text("exit 5\n")
    script.chmod(0o755)

    def rank(*command: str) -> tuple[int, str]:
        environ = bench.environ() | {"JOULELAB_RUNS": str(bench.runs), "SLURM_LOCALID": "1"}
        words = [sys.executable, "-m", "joulelab", "run", "--", *command]
        done = subprocess.run(words, env=environ, timeout=300, check=False, capture_output=True, text=True)
        return done.returncode, done.stderr

    assert rank("sh", "-c", "kill -TERM $$") == (-signal.SIGTERM, "")
    assert rank(str(script)) == (5, ""), "a script without an interpreter, as shells run it"
    assert rank("no-such-command") == (127, "joulelab: no-such-command cannot be started (no such command)\n")
    assert rank(sys.executable, "-c", "import os; os.wait()")[0] == 1, "it has no child of ours"
    assert not bench.runs.exists()
