"""Agree with a real Slurm to the joule: jobs of every kind, run once; Slurm's own plugins read a twin."""

from __future__ import annotations

import math
import os
import subprocess

import pytest
from tests.codes import raises_code
from tests.slurm.scenario import accounts
from tests.waiting import until

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, ReadFailed, Unavailable
from joulelab.instruments import slurm
from joulelab.instruments.slurm.archive import JobArchive, JobFinder
from joulelab.instruments.slurm.client import Answer, SlurmClient
from joulelab.instruments.slurm.energies import find_sampling
from joulelab.run.run_import import ArchiveRequest, ImportRequest, import_archives
from joulelab.store.run_reader import open_run

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def ran():
    """Run all jobs once."""
    with accounts() as found:
        yield found


@pytest.fixture
def opened(ran):
    """Open the archive of a job by the name that the scenario gives it."""

    def open_(name, **config):
        config.setdefault("job", ran.jobs.get(name))
        return slurm.open_archive({"slurm_conf": str(ran.cluster.conf), **config})

    return open_


def energies(archive):
    return {fetched.stream.scope: fetched.rows[1][2][0] for fetched in archive.fetch(*archive.interval)}


def said(archive, kind="problem"):
    key = {"problem": "what", "gap": "reason"}[kind]
    return [event[key] for event in archive.fetch(0, 0)[0].events if event["event"] == kind]


def by_sacct(ran, name, row):
    """Return what sacct itself says for a row, in J."""
    return int(ran.sacct(name)[f"{ran.jobs[name]}{row}"])


def check_true(ran, joules, archive, nodes=1):
    """Compare with the twin's truth: all of a job that sleeps 3 s, to the second of its edges and of the plugin's look.

    On a busy machine Slurm starts the step that counts late, so the job may be longer than what is counted.
    """
    power = ran.truth.power("node.dc", monotonic_ns()) * nodes
    span = (archive.interval[1] - archive.interval[0]) / NS
    assert power * 1.5 <= joules <= power * (span + 2.5)


@pytest.mark.parametrize(
    ("name", "row", "counts", "nodes"),
    [
        ("step", "", "the job's row", 1),
        ("batch", ".batch", ".batch", 1),
        ("parallel", ".batch", ".batch", 1),
        ("contained", ".extern", ".extern", 1),
        ("contained wide", ".extern", ".extern", 2),
    ],
)
def test_sacct_and_joulelab_agree_to_the_joule(ran, opened, name, row, counts, nodes):
    archive = opened(name)
    found = energies(archive)
    assert found["job"] == by_sacct(ran, name, row)
    assert archive.facts["row"] == counts
    assert archive.facts["state"] == "COMPLETED"
    check_true(ran, found["job"], archive, nodes)
    for shown, joules in ran.sacct(name).items():
        if "." in shown:
            assert found[f"job/{shown.partition('.')[2]}"] == int(joules)


def test_the_name_is_text(opened):
    assert opened("batch").facts["name"] == "a|name of two lines"


def test_two_nodes_with_steps_side_by_side_are_counted_twice_by_slurm_and_flagged(ran, opened):
    archive = opened("wide")
    assert energies(archive)["job"] == by_sacct(ran, "wide", "")
    assert archive.fetch(0, 0)[0].host == archive.facts["nodes"] == "n[4-5]"
    assert any("side by side" in text and "more than once" in text for text in said(archive))
    assert any("do not add" in text for text in said(opened("parallel")))


def test_gaps_between_steps_are_flagged(ran, opened):
    archive = opened("gaps")
    assert energies(archive)["job"] == by_sacct(ran, "gaps", "")
    assert any("no step ran" in text for text in said(archive))
    assert [step.name for step in archive.steps] == ["batch", "0", "1"]


def test_shared_nodes_are_flagged_and_exclusive_ones_are_not(ran, opened):
    archive = opened("shared")
    assert any(f"shared n1 with {ran.jobs['beside']} (" in text for text in said(archive))
    assert not any("shared" in text for name in ("step", "wide", "contained") for text in said(opened(name)))


def test_jobs_side_by_side_divide_the_energy_of_their_node(ran, tmp_path):
    """Two jobs of one node get parts of its energy; in the time of both, these are all of it."""
    spans, shares = {}, {}
    for name in ("shared", "beside"):
        settings = {"slurm_conf": str(ran.cluster.conf), "job": ran.jobs[name]}
        done = import_archives(
            tmp_path / "runs", [ArchiveRequest("slurm", "slurm", settings)], ImportRequest("slurm", ["joulelab"])
        )
        with open_run(done.run) as run:
            result = analyse_run(run)
        (check,) = (check for check in result.checks if check.code == "shared-node.accounted")
        spans[name] = slurm.open_archive(settings).interval
        assert check.numbers["node_j"] == pytest.approx(by_sacct(ran, name, ".batch"))
        assert check.numbers["jobs"] == 1
        shares[name] = {key: check.numbers[key] / check.numbers["node_j"] for key in ("energy_j", "reserved_j")}
    both = (min(end for _, end in spans.values()) - max(start for start, _ in spans.values())) / NS
    for key in ("energy_j", "reserved_j"):
        together = 0.0
        for name, (start, end) in spans.items():
            seconds = (end - start) / NS
            together += shares[name][key] * seconds - (seconds - both)  # without the time in which it was alone
        assert together == pytest.approx(both), key
    assert not any(event["event"] == "shared-jobs" for event in opened_events(ran, "step"))


def opened_events(ran, name):
    archive = slurm.open_archive({"slurm_conf": str(ran.cluster.conf), "job": ran.jobs[name]})
    return archive.fetch(0, 0)[0].events


def test_zero_is_a_gap(ran, opened):
    archive = opened("zero", settle_s=1)
    assert all(math.isnan(joules) for joules in energies(archive).values())
    assert any("does not read its meter on z1" in text for text in said(archive, "gap"))
    assert ran.sacct("zero")[ran.jobs["zero"]] == "0"


def test_a_cluster_without_plugin(ran, opened):
    ran.cluster.set(PrologFlags="Contain", AcctGatherEnergyType="acct_gather_energy/none")
    try:
        archive = opened("zero")
        assert any("AcctGatherEnergyType is none" in text for text in said(archive, "gap"))
        with pytest.raises(Unavailable, match="does not account"):
            slurm.open_meter({"slurm_conf": str(ran.cluster.conf), "nodes": "z1"})
    finally:
        ran.cluster.set(PrologFlags="Contain")


def test_arrays_and_heterogeneous_jobs(ran, opened):
    job = ran.jobs["array"]
    with pytest.raises(ConfigError, match=f"{job}_1, {job}_2"):
        opened("array")
    rows = ran.sacct("array")
    for task in (f"{job}_1", f"{job}_2"):
        assert energies(opened("array", job=task))["job"] == int(rows[f"{task}.batch"])
    job, rows = ran.jobs["het"], ran.sacct("het")
    with raises_code("config.several-jobs"):
        opened("het")
    assert energies(opened("het", job=f"{job}+0"))["job"] == int(rows[f"{job}+0.batch"])
    assert energies(opened("het", job=f"{job}+1"))["job"] == int(rows[f"{job}+1"])


def test_requeued_jobs(ran, opened):
    out = ran.cluster.run("sacct", "-D", "-n", "-P", "-o", "JobID,ConsumedEnergyRaw", "-j", ran.jobs["again"])
    batches = [int(line.split("|")[1]) for line in out.splitlines() if ".batch|" in line]
    assert len(batches) == 2
    assert energies(opened("again"))["job"] == batches[1]
    assert any("execution 2 of 2" in text for text in said(opened("again")))
    first = energies(opened("again", attempt=1))["job/batch"]
    # Slurm may lose the energy of what it ends by force: then there is none, not 0 J.
    assert first == batches[0] or (batches[0] == 0 and math.isnan(first))


def test_slurms_own_xcc_plugin_reads_our_bmc(ran, opened):
    if ran.no_bmc:
        pytest.skip(ran.no_bmc)
    ran.cluster.set(PrologFlags="Contain", AcctGatherEnergyType="acct_gather_energy/xcc")
    try:
        archive = opened("xcc", frequency_s=1.0)
        plain = opened("xcc")
    finally:
        ran.cluster.set(PrologFlags="Contain")
    joules = energies(archive)["job"]
    assert joules == by_sacct(ran, "xcc", ".batch")
    assert archive.facts["plugin"] == "xcc"
    check_true(ran, joules, archive)
    assert any("how often" in text for text in said(plain))
    meter = slurm.open_meter({"slurm_conf": str(ran.cluster.conf), "nodes": "x1"})
    until(lambda: reads(meter), "the controller has heard of the node's power", most_s=0.2)
    stream = meter.streams()[0]
    until(
        lambda: meter.read(stream)[0] == pytest.approx(ran.truth.power("node.dc", monotonic_ns()), rel=0.02),
        "two samples of the plugin give the power",  # its first power is that of a part of its period
        most_s=0.2,
    )


def reads(meter):
    """Tell whether a meter has a reading now."""
    try:
        return bool(meter.read(meter.streams()[0]))
    except ReadFailed:
        return False


def test_power_of_nodes(ran):
    conf = str(ran.cluster.conf)
    meter = slurm.open_meter({"slurm_conf": conf, "nodes": ["n1", "n2"], "feeds": "rack"})
    until(lambda: reads(meter), "the controller has heard of the nodes' power", most_s=0.2)
    for stream in meter.streams():
        assert meter.read(stream)[0] == pytest.approx(ran.truth.power("node.dc", monotonic_ns()), abs=1)
    none = slurm.open_meter({"slurm_conf": conf, "nodes": "z1"})
    with pytest.raises(ReadFailed, match="no power reading"):
        none.read(none.streams()[0])
    with pytest.raises(Unavailable):
        slurm.open_meter({"slurm_conf": conf, "nodes": "nowhere"})


def test_a_job_that_runs_and_then_ends(ran, opened):
    cluster = ran.cluster
    job = cluster.submit("srun sleep 100", "--exclusive", "-w", "n2")
    try:
        until(lambda: _live(cluster, job) > 0, "sstat has an energy", most_s=0.2)
        with raises_code("unavailable.running"):
            opened("", job=job)
        meter = slurm.open_meter({"slurm_conf": str(cluster.conf), "job": job})
        (stream,) = meter.streams()
        first = meter.read(stream)[0]
        assert first > 0
        until(lambda: meter.read(stream)[0] > first, "the counter rises", most_s=0.2)
        if os.geteuid() == 0:
            with pytest.raises(Denied):
                as_nobody(ran).read_live(job)
    finally:
        cluster.run("scancel", job)
    final = opened("", job=job, settle_s=120)
    assert final.facts["state"] == "CANCELLED"
    ran.jobs["cancelled"] = job
    assert energies(final)["job"] == by_sacct(ran, "cancelled", ".extern") >= first


def _live(cluster, job):
    out = cluster.run("sstat", "-a", "-n", "-P", "-j", job, "-o", "ConsumedEnergyRaw", check=False)
    return min((int(word) for word in out.split()), default=0)


def as_nobody(ran):
    """Return Slurm as a user sees it who has nothing to do with the job."""

    def run(words, timeout_s):
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]
        env = {**ran.cluster.environment, "TZ": "UTC"}
        done = subprocess.run(user, capture_output=True, text=True, env=env, timeout=timeout_s, cwd="/")
        return Answer(done.returncode, done.stdout, done.stderr)

    return SlurmClient(run=run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_any_user_may_ask(ran):
    asked = as_nobody(ran)
    archive = JobArchive(JobFinder(asked, ran.jobs["shared"], "slurm", find_sampling(asked.read_settings())), {})
    assert energies(archive)["job"] == by_sacct(ran, "shared", ".batch")
    assert any("shared n1" in text for text in said(archive))


def test_no_such_job(opened):
    with pytest.raises(Unavailable, match="no job 999999"):
        opened("", job="999999")


def test_a_database_that_dies_and_returns(ran, opened):
    with ran.cluster.without_database(), pytest.raises(ReadFailed, match="sacct failed"):
        opened("step")
    assert energies(opened("step"))["job"] == by_sacct(ran, "step", "")


@pytest.mark.parametrize("daemon", ["slurmdbd", "slurmctld"])
def test_daemons_that_do_not_answer(ran, opened, daemon):
    with ran.cluster.paused(daemon), pytest.raises(ReadFailed, match="did not finish"):
        opened("step", timeout_s=1.0)
    assert energies(opened("step"))["job"] == by_sacct(ran, "step", "")
