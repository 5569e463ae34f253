"""Jobs of the node are found in control groups of both versions, or by squeue, and get the energy of their time."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster, Machine, missing
from tests.waiting import until

from joulelab.agent.collect import Collector
from joulelab.agent.ledger import LINGER_NS, MOST_JOBS, Ledger
from joulelab.agent.metrics import Metrics
from joulelab.agent.slurm_jobs import POLL_S, SEEN_S, Groups, Job, Jobs, Queue
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Unavailable
from joulelab.instruments.slurm.client import Answer
from joulelab.recorder.plan import Plan
from joulelab.twin.model import H100, Node
from joulelab.twin.twin_server import TwinServer

LINES = "123|ann|physics|gpu|2026-11-16T10:00:00|32|2\n124|bob|(null)|gpu|N/A|N/A|1\nslurm_load error|x\n"


class Fake:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, words, timeout_s):
        self.asked.append(words)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Answer) else Answer(0, answer, "")


@pytest.mark.parametrize(
    "path",
    [
        "system.slice/slurmstepd.scope",
        "system.slice/n1_slurmstepd.scope",
        "memory/slurm/uid_1000",
        "cpu/slurm_n1/uid_7",
    ],
)
def test_jobs_are_found_in_control_groups(tmp_path, path):
    folder = tmp_path / path
    folder.mkdir(parents=True)
    run = Fake(LINES)
    jobs = Jobs(Groups(tmp_path), Queue("n1", run=run))
    jobs.look(0.0)
    assert (jobs.by, jobs.now, run.asked) == ("cgroup", {}, [])
    for name in ("job_123", "job_0", "job_12x", "system"):
        (folder / name).mkdir()
    jobs.look(2.0)
    assert jobs.now["123"].user == "ann"
    assert jobs.now["123"].cpus == 16
    assert jobs.now["123"].start_utc_ns == 1794823200 * NS
    assert list(jobs.now) == ["123"]
    for t in range(3, 40):
        jobs.look(float(t))
    assert len(run.asked) == 1, "squeue is asked once for a new job"
    assert "--nodelist=n1" in run.asked[0]
    (folder / "job_123").rmdir()
    jobs.look(50.0)
    assert jobs.now == {}


def test_a_job_that_the_controller_does_not_tell_about_has_its_number(tmp_path):
    folder = tmp_path / "system.slice/slurmstepd.scope/job_9"
    folder.mkdir(parents=True)
    run = Fake(Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller"))
    jobs = Jobs(Groups(tmp_path), Queue("n1", run=run))
    for t in range(40):
        jobs.look(float(t))
    assert jobs.now == {"9": Job("9")}
    assert len(run.asked) == 3, "and is asked again only every quarter of a minute"


def test_squeue_is_asked_seldom_where_there_are_no_groups(tmp_path):
    (tmp_path / "system.slice/slurmd.service").mkdir(parents=True)  # not where jobs are
    busy = Answer(1, "", "slurm_load_jobs error: Socket timed out on send/recv operation")
    run = Fake(LINES, busy, "")
    jobs = Jobs(Groups(tmp_path), Queue("n1", run=run))
    jobs.look(0.0)
    assert (jobs.by, sorted(jobs.now)) == ("squeue", ["123", "124"])
    jobs.look(29.0)
    assert len(run.asked) == 1
    jobs.look(30.0)
    assert sorted(jobs.now) == ["123", "124"], "a controller that is busy says nothing about jobs"
    jobs.look(61.0)
    assert jobs.now == {}


def test_without_slurm_nothing_is_asked_again_soon(tmp_path):
    run = Fake(Unavailable("Slurm is not installed"))
    jobs = Jobs(Groups(tmp_path), Queue("n1", run=run))
    for t in range(200):
        jobs.look(float(t))
    assert (jobs.by, len(run.asked)) == ("", 1)


def test_a_node_that_slurm_does_not_know_is_told(tmp_path):
    jobs = Jobs(Groups(tmp_path), Queue("n1", run=Fake(Answer(1, "", "squeue: error: Invalid node name n1"))))
    jobs.look(0.0)
    assert jobs.by == ""
    assert jobs.problem.endswith("--slurm-node")


@pytest.mark.campaign
@pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")
def test_jobs_of_a_real_slurm(monkeypatch):
    folder = Path(tempfile.mkdtemp(prefix="joulelab-agent-"))
    folder.chmod(0o755)
    (folder / "feed").mkdir()
    try:
        with Cluster(folder / "slurm", folder / "feed", {"n1": Machine("none"), "n2": Machine("none")}) as cluster:
            monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
            number = cluster.submit("sleep 600", "--nodelist=n1")
            cluster.submit("sleep 600", "--nodelist=n2")
            jobs = Jobs(Groups(folder), Queue("n1"))
            looks = itertools.count()
            until(lambda: jobs.look(30.0 * next(looks)) or jobs.now, "the job")
            (job,) = jobs.now.values()
            assert (job.number, job.partition) == (number, "main")
            assert job.start_utc_ns is not None
            assert abs(job.start_utc_ns - time.clock_gettime_ns(time.CLOCK_REALTIME)) < 600 * NS
            with pytest.raises(Unavailable, match="does not know this node"):
                Queue("n3").jobs()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


KEY = ("node.ac", "pdu")


def test_a_job_gets_the_energy_of_its_time():
    ledger, utc = Ledger(), 1000 * NS
    for t in range(10):
        ledger.take(t * NS, utc + t * NS, {KEY: 100.0 * t}, {})
    job = Job("7", start_utc_ns=utc + 5 * NS)  # noticed at 10, as squeue tells it late
    for t in range(10, 20):
        ledger.take(t * NS, utc + t * NS, {KEY: 100.0 * t}, {"7": job})
    assert ledger.accounts["7"].energy_j == {KEY: 1400.0}
    assert ledger.accounts["7"].shared_s == 0.0
    ledger.take(20 * NS, utc, {KEY: 2000.0}, {"7": job, "8": Job("8")})
    ledger.take(21 * NS, utc, {KEY: 2100.0}, {"7": job, "8": Job("8")})
    assert ledger.accounts["8"].energy_j == {KEY: 200.0}  # since the last moment without it
    assert ledger.accounts["7"].shared_s == 2.0
    ledger.take(22 * NS, utc, {KEY: 2200.0}, {"8": Job("8")})
    ledger.take(23 * NS, utc, {KEY: 2300.0}, {"8": Job("8")})
    assert ledger.accounts["7"].energy_j == {KEY: 1600.0}, "after its end nothing is added"
    assert ledger.accounts["7"].ended_ns == 22 * NS
    ledger.take(23 * NS + LINGER_NS, utc, {KEY: 9e9}, {})
    assert sorted(ledger.accounts) == ["8"], "it is shown for a while, so that its last value is scraped"


def test_a_job_older_than_the_agent_gets_what_the_agent_saw():
    ledger = Ledger()
    ledger.take(NS, 10**6 * NS, {KEY: 0.0}, {"7": Job("7", start_utc_ns=0)})
    ledger.take(2 * NS, 10**6 * NS, {KEY: 100.0}, {"7": Job("7", start_utc_ns=0)})
    assert ledger.accounts["7"].energy_j == {KEY: 100.0}


def test_a_total_that_is_first_seen_while_a_job_runs_counts_from_then():
    """Two PDUs of a node are told together once both answer: what they counted before the job is none of its."""
    ledger, both = Ledger(), ("node.ac", "pdu1+pdu2")
    running = {"7": Job("7")}
    ledger.take(NS, 0, {KEY: 0.0}, {})
    ledger.take(2 * NS, 0, {KEY: 10.0}, running)
    ledger.take(3 * NS, 0, {KEY: 20.0, both: 240.0}, running)
    ledger.take(4 * NS, 0, {KEY: 30.0, both: 250.0}, running)
    assert ledger.accounts["7"].energy_j == {KEY: 30.0, both: 10.0}
    # A job that is noticed late, and began before it was seen.
    ledger.take(5 * NS, 5 * NS, {KEY: 40.0, both: 260.0}, {"8": Job("8", start_utc_ns=2 * NS)})
    assert ledger.accounts["8"].energy_j == {KEY: 30.0, both: 20.0}


def test_a_requeued_job_begins_anew():
    ledger = Ledger()
    for t, jobs in ((1, {"7": Job("7")}), (2, {"7": Job("7")}), (3, {}), (4, {"7": Job("7")}), (5, {"7": Job("7")})):
        ledger.take(t * NS, 0, {KEY: 100.0 * t}, jobs)
    assert ledger.accounts["7"].energy_j == {KEY: 200.0}
    assert not ledger.accounts["7"].ended_ns


def test_ten_thousand_short_jobs_are_not_all_kept():
    ledger = Ledger()
    for t in range(2 * MOST_JOBS):
        ledger.take(t * NS // 10, 0, {KEY: float(t)}, {str(t + 1): Job(str(t + 1))})
    assert len(ledger.accounts) == MOST_JOBS
    assert str(2 * MOST_JOBS) in ledger.accounts


def test_a_stream_that_disappears_and_returns_costs_nothing_that_was_counted():
    """A device that comes back counts from 0: what it had used before stays, what it uses from then on is added."""
    ledger, other = Ledger(), ("gpu:0", "nvml")
    ledger.take(0, 0, {KEY: 500.0, other: 50.0}, {})
    running = {"7": Job("7")}
    for t, totals, expected in (
        (1, {KEY: 600.0, other: 60.0}, {KEY: 100.0, other: 10.0}),
        (2, {KEY: 700.0}, {KEY: 200.0, other: 10.0}),  # it is gone, not what it used
        (3, {KEY: 800.0, other: 5.0}, {KEY: 300.0, other: 15.0}),
        (4, {KEY: 900.0, other: 25.0}, {KEY: 400.0, other: 35.0}),
        (5, {}, {KEY: 400.0, other: 35.0}),
    ):
        ledger.take(t * NS, 0, totals, running)
        assert ledger.accounts["7"].energy_j == expected, t
    ledger.take(6 * NS, 0, {other: 30.0}, {"8": Job("8")})
    assert ledger.accounts["8"].energy_j == {other: 5.0}, "what is away when a job begins is none of its"


def test_it_is_told_how_late_jobs_are_known(tmp_path):
    busy = Answer(1, "", "slurm_load_jobs error: Socket timed out on send/recv operation")
    jobs = Jobs(Groups(tmp_path), Queue("n1", run=Fake(LINES, busy)))
    assert jobs.lag_s(0.0) is None, "squeue has not answered yet"
    jobs.look(10.0)
    assert jobs.lag_s(11.0) == POLL_S + SEEN_S
    jobs.look(41.0)
    assert jobs.lag_s(90.0) == 80.0 + SEEN_S, "the controller does not answer: what was known stands"
    (tmp_path / "system.slice/slurmstepd.scope").mkdir(parents=True)
    jobs.look(100.0)
    assert jobs.lag_s(100.0) == SEEN_S
    gone = Jobs(Groups(tmp_path / "no"), Queue("n1", run=Fake(Unavailable("Slurm is not installed"))))
    gone.look(0.0)
    assert gone.lag_s(1.0) is None


def test_a_scrape_shows_how_late_jobs_are_known(tmp_path):
    jobs = Jobs(Groups(tmp_path), Queue("n1", run=Fake(LINES)))

    def shown():
        found = Metrics(Collector(Plan(Path(), "h", 1, meters=[]), jobs=jobs), {}).collect()
        return [s.value for f in found for s in f.samples if s.name == "joulelab_slurm_job_lag_seconds"]

    assert shown() == []
    jobs.look(monotonic_ns() / NS)
    assert shown() == [POLL_S + SEEN_S]


SHARE = re.compile(
    r'^joulelab_job_share_joules_total{container="",end="(\w+)",meter="nvml",scope="gpu:0",slurm_job="(\w+)"} (\S+)$'
)


def read_gpu_shares(url):
    """Return the shares of the GPU by job and end, and the energy of the GPU (J)."""
    text = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=20).read().decode()
    found = {(m[2], m[1]): float(m[3]) for m in map(SHARE.match, text.splitlines()) if m}
    total = re.search(r'^joulelab_energy_joules_total{.*scope="gpu:0".*} (\S+)$', text, re.MULTILINE)
    return found, float(total[1]) if total else 0.0


def remove_groups(name):
    """Remove the control groups that a slurmd leaves behind."""
    for top in Path("/sys/fs/cgroup").glob(f"*/{name}"):
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()


@pytest.mark.campaign
@pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")
@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/cpuacct", os.W_OK), reason="no control groups of version 1 to write to"
)
def test_two_jobs_of_a_real_slurm_share_the_gpu_of_a_twin():
    """Slurm puts jobs into control groups; a twin shows their processes on one GPU, and its energy is divided."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="joulelab-shares-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        (folder / "feed").mkdir()
        served = stack.enter_context(TwinServer(Node(gpus=(H100,), packages=1), directory=folder))
        stack.callback(remove_groups, "slurm_shared1")
        groups = {"ProctrackType": "proctrack/cgroup", "JobAcctGatherType": "jobacct_gather/cgroup"}
        cluster = stack.enter_context(Cluster(folder / "slurm", folder / "feed", {"shared1": Machine("none")}, groups))
        environ = {**cluster.environment, **served.environment}
        words = [
            sys.executable,
            "-m",
            "joulelab",
            "agent",
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--slurm-node",
            "shared1",
        ]
        agent = stack.enter_context(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True, cwd=folder))
        stack.callback(agent.terminate)
        url = json.loads(agent.stdout.readline())["url"]
        first_j = until(lambda: read_gpu_shares(url)[1], "the GPU is read")
        exported = ",".join(f"{key}={value}" for key, value in served.environment.items())
        script = f"{sys.executable} -m joulelab.twin.job --gpus 1 --work 100000 --load {{}}"
        loads = {cluster.submit(script.format(load), f"--export=ALL,{exported}", "-n1"): load for load in (0.6, 0.2)}
        one, two = loads
        started_j = until(
            lambda: served.truth.power("gpu:0", monotonic_ns()) > 500 and read_gpu_shares(url)[1], "both run"
        )
        until(lambda: read_gpu_shares(url)[1] > started_j + 3000, "both have run for some seconds")
        cluster.run("scancel", one)
        until(lambda: (one, "share") in read_gpu_shares(url)[0], "a block ends with a job")
        cluster.run("scancel", two)
        until(lambda: served.truth.power("gpu:0", monotonic_ns()) < 100, "the other one has ended")
        before = read_gpu_shares(url)[0]
        until(lambda: read_gpu_shares(url)[0] != before, "the last block ends")
        found, last_j = read_gpu_shares(url)
    total_j = sum(joules for (_, end), joules in found.items() if end == "share")
    assert 3000 < total_j <= last_j - first_j
    for job in loads:
        assert found[job, "low"] <= found[job, "share"] <= found[job, "high"]
    assert found[one, "share"] > found[two, "share"] - 600, "it drew three times as much while both ran"
    assert found["other", "share"] == 0
