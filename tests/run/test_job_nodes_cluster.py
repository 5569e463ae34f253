"""Record jobs of two nodes on a real Slurm: one run, one recorder per node, whatever the number of ranks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.recorder.driving import SRC
from tests.run.supervised import gone, recorders_in
from tests.slurm.cluster import Cluster, Machine
from tests.waiting import until

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS
from joulelab.core.errors import MissingDependency
from joulelab.run.job_nodes import TASK_MODULE
from joulelab.store.documents import read_lines
from joulelab.store.run_folder import list_runs, read_end
from joulelab.store.run_reader import open_run
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

# A script's command is typed so in each of them.
JOULELAB = f"{sys.executable} -m joulelab"


def no_library() -> Path:
    raise MissingDependency("no NVML", why="the node has no GPU")


class Bench:
    """Hold a cluster of two nodes that see one simulated package, and submit jobs that are recorded."""

    def __init__(self, folder: Path, cluster: Cluster, twin: TwinServer) -> None:
        self.folder = folder
        self.cluster = cluster
        self.twin = twin

    def submit(self, name: str, command: str, *options: str, **variables: str) -> Path:
        """Submit a job and return its store of runs; what it prints goes to `out` there."""
        runs = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        own = {
            "JOULELAB_RUNS": runs,
            "PYTHONPATH": SRC,
            "JOULELAB_POWERCAP": self.twin.environment["JOULELAB_POWERCAP"],
        }
        given = " ".join(f"{key}='{value}'" for key, value in {**own, **variables}.items())
        script = f"cd {runs}; export {given}; {command}; echo $? > code"
        self.job = self.cluster.submit(script, "-o", str(runs / "out"), *options)
        return runs

    def ended(self, runs: Path) -> int:
        """Wait for a job's end and return the exit code of its command."""
        until((runs / "code").exists, f"{runs.name} ends")
        return int((runs / "code").read_text())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="joulelab-nodes-"))
    folder.chmod(0o755)
    (folder / "feed").mkdir()
    node = Node(gpus=(), packages=1)
    try:
        with (
            TwinServer(node, profiles={"cpu": profile.constant(0.5)}, library=no_library) as twin,
            Cluster(folder / "slurm", folder / "feed", {"n1": Machine("none"), "n2": Machine("none")}) as cluster,
        ):
            yield Bench(folder, cluster, twin)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_job_left(bench: Bench) -> Iterator[None]:
    """Leave the nodes free where a test fails."""
    yield
    jobs = bench.cluster.run("squeue", "-h", "-o", "%i").split()
    if jobs:
        bench.cluster.run("scancel", *jobs)
        until(lambda: not bench.cluster.run("squeue", "-h", "-o", "%i").split(), "no job is left")


def only_run(runs: Path) -> Path:
    (run,) = list_runs(runs)
    return run


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for path in folder.glob("events.*.jsonl") for e in read_lines(path)[0] if e["event"] == kind]


def words_in(file: Path) -> list[str]:
    return file.read_bytes().decode(errors="replace").split("\0")


def commands(runs: Path, *variables: str) -> dict[int, list[str]]:
    """Return the command lines of a job's processes that have these variables: other tests run beside this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and {f"JOULELAB_RUNS={runs}", *variables} <= set(words_in(entry / "environ")):
                found[int(entry.name)] = words_in(entry / "cmdline")
    return found


def test_a_job_of_two_nodes_is_one_run(bench: Bench) -> None:
    # What the job says of tasks must not change the step that records.
    runs = bench.submit(
        "whole",
        f"{JOULELAB} run -o result.json -- srun --ntasks-per-node=3 sh -c 'echo rank on $SLURMD_NODENAME; sleep 1'",
        "-N2",
        "--ntasks-per-node=3",
        SLURM_LABELIO="1",
        SLURM_DISTRIBUTION="cyclic",
        SLURM_CPU_BIND="none",
    )
    assert bench.ended(runs) == 0, (runs / "out").read_text()
    run = only_run(runs)
    assert sorted(p.name for p in run.iterdir() if p.is_dir()) == ["n1", "n2"]
    (told,) = events(run / "n1", "nodes")
    assert told["nodes"] == ["n1", "n2"]
    assert f"{bench.job}.{told['step']}" in bench.cluster.run("sacct", "-n", "-P", "-j", bench.job, "-o", "JobID")
    for host in ("n1", "n2"):
        assert len(list((run / host).glob("rapl.energy.*.journal"))) == 1, "one recorder each"
        assert len(events(run / host, "stop")) == 1
        assert len(events(run / host, "clock")) >= 2
    assert events(run / "n2", "stop")[0]["reason"] == "asked"
    assert json.loads((runs / "result.json").read_text())["problems"] == []
    assert (runs / "out").read_text().count("rank on n") == 6
    end = read_end(run)
    assert end is not None
    true = bench.twin.truth.energy("cpu:0", end["start_ns"], end["end_ns"])
    with open_run(run) as opened:
        found = {(s.host, s.scope): s.energy.value for s in analyse_run(opened).scopes}
        assert found["n1", "cpu:0"] == pytest.approx(true, rel=0.1)
        assert found["n2", "cpu:0"] == pytest.approx(true, rel=0.1)
        assert opened.unjoined() == []
        assert opened.clock_error_ns("n2") == 0, "both are of one boot"
        for table in opened.tables():
            if table.meter == "rapl" and table.table == "energy":
                times = opened.series(table, table.streams[0].name).t0_ns
                assert times[0] < end["start_ns"] < end["end_ns"] < times[-1], table.host


def test_all_recorders_end_when_the_supervisor_is_killed(bench: Bench) -> None:
    runs = bench.submit("killed", f"{JOULELAB} run -- srun sleep 300.25 || sleep 300", "-N2", "--ntasks-per-node=1")
    until(lambda: list_runs(runs), "the run begins")
    run = only_run(runs)
    until(lambda: events(run / "n1", "workload"), "the workload runs")
    until(lambda: recorders_in(run / "n2"), "the other node is recorded")
    (own,), (other,) = recorders_in(run / "n1"), recorders_in(run / "n2")
    (supervisor,) = (
        p for p, words in commands(runs).items() if words[1:4] == ["-m", "joulelab", "run"] and "300.25" in words
    )
    step = [p for p, words in commands(runs).items() if TASK_MODULE in words]
    assert len(step) >= 3, "srun, and a task on each node"
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: all(gone(p) for p in (own, other, *step)), "recorders and step are gone")
    assert events(run / "n2", "owner-ended")
    assert any("300.25" in words for words in commands(runs).values()), "the workload goes on"
    bench.cluster.run("scancel", bench.job)
    until(lambda: bench.job not in bench.cluster.run("squeue", "-h", "-o", "%i"), "the job is gone")


def test_each_node_has_one_run_where_ranks_are_recorded(bench: Bench) -> None:
    runs = bench.submit(
        "ranks", f"srun -N2 -n4 {JOULELAB} run -q -- sh -c 'echo rank on $SLURMD_NODENAME; sleep 0.3'", "-N2", "-n4"
    )
    assert bench.ended(runs) == 0, (runs / "out").read_text()
    assert (runs / "out").read_text().count("rank on n") == 4
    found = list_runs(runs)
    assert sorted(p.name for run in found for p in run.iterdir() if p.is_dir()) == ["n1", "n2"]
    assert not any(events(p, "nodes") for run in found for p in run.iterdir() if p.is_dir()), "inside a step"


@pytest.mark.campaign
def test_a_step_that_is_refused_costs_nothing(bench: Bench) -> None:
    # As if the job were another's: Slurm refuses the step.
    runs = bench.submit(
        "refused",
        f"SLURM_JOB_ID=999999 SLURM_JOBID=999999 {JOULELAB} run -o result.json -- sh -c 'exit 7'",
        "-N2",
    )
    assert bench.ended(runs) == 7
    result = json.loads((runs / "result.json").read_text())
    assert any("did not start" in problem and "999999" in problem for problem in result["problems"]), result["problems"]
    run = only_run(runs)
    assert [p.name for p in run.iterdir() if p.is_dir()] == ["n1"]
    (workload,) = events(run / "n1", "workload")
    (began,) = events(run / "n1", "recorder-started")
    assert (workload["t"] - began["t"]) / NS < 30


def tasks_on(runs: Path, host: str) -> list[int]:
    """Return the tasks of our steps on a node, not their srun."""
    there = commands(runs, f"SLURMD_NODENAME={host}")
    return [pid for pid, words in there.items() if TASK_MODULE in words and Path(words[0]).name != "srun"]


def begin_waiting(bench: Bench, name: str) -> tuple[Path, Path]:
    """Begin a run on both nodes whose workload ends soon after the file `go` is in its store; return both."""
    wait = "sh -c 'until [ -e go ]; do sleep 0.1; done; sleep 0.3'"
    runs = bench.submit(name, f"{JOULELAB} run -o result.json -- {wait}", "-N2")
    until(lambda: list_runs(runs), "the run begins")
    run = only_run(runs)
    until(lambda: events(run / "n1", "workload") and recorders_in(run / "n2"), "both nodes are recorded")
    return runs, run


def problems_of(bench: Bench, runs: Path) -> list[str]:
    (runs / "go").touch()
    assert bench.ended(runs) == 0, (runs / "out").read_text()
    problems: list[str] = json.loads((runs / "result.json").read_text())["problems"]
    return problems


def segments(run: Path) -> list[str]:
    return sorted(p.name.split(".")[2] for p in (run / "n2").glob("rapl.energy.*.journal"))


def test_a_node_whose_task_is_killed_is_told_and_recorded_again(bench: Bench) -> None:
    runs, run = begin_waiting(bench, "task")
    (task,), (recorder,) = tasks_on(runs, "n2"), recorders_in(run / "n2")
    os.kill(task, signal.SIGKILL)
    until(lambda: gone(recorder), "its recorder ends with it")
    until(lambda: events(run / "n1", "node-back") and segments(run) == ["0", "1"], "it is recorded again")
    (problem,) = problems_of(bench, runs)
    assert problem.startswith("n2: no message for 5 s, so the recording is lost (srun: error: n2: task 1: Killed)")
    assert problem.endswith("; it is started again")
    (lost,), (back,) = events(run / "n1", "node-lost"), events(run / "n1", "node-back")
    assert lost["node"] == back["node"] == "n2"
    assert lost["heard_ns"] < lost["t"] < back["t"]
    assert lost["step"] != back["step"]
    with open_run(run) as opened:
        (check,) = (c for c in analyse_run(opened).checks if c.name == "recorder lost")
        assert check.status == "note", "counters went on"
        assert (check.code, check.scope) == ("recorder-lost.counted", "n2")


@pytest.mark.campaign
def test_nodes_whose_srun_is_killed_are_recorded_again_and_not_twice(bench: Bench) -> None:
    runs, run = begin_waiting(bench, "srun")
    left = [*tasks_on(runs, "n1"), *tasks_on(runs, "n2")]
    assert len(left) == 2
    sruns = [p for p, words in commands(runs).items() if TASK_MODULE in words and Path(words[0]).name == "srun"]
    for srun in sruns:  # it has a child of its own
        os.kill(srun, signal.SIGKILL)
    until(lambda: events(run / "n1", "node-back") and segments(run) == ["0", "1"], "they are recorded again")
    until(lambda: all(gone(pid) for pid in left), "the tasks that were left are gone")
    # Again and again, until it is given up; there is a pause before each try.
    (task,) = tasks_on(runs, "n2")
    os.kill(task, signal.SIGKILL)
    until(lambda: len(events(run / "n1", "node-back")) >= 3, "it is recorded again")
    problems = problems_of(bench, runs)
    assert problems[0].startswith("the step that records n1, n2 ended early")
    assert len(problems) == 2, problems
    assert [e["node"] for e in events(run / "n1", "node-lost")] == ["n2", "n2"]
    assert segments(run) == ["0", "1", "2"]
