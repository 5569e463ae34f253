"""Read nodes and a job that runs, and refuse wrong configurations: without a Slurm."""

from __future__ import annotations

import math

import pytest
from tests.codes import raises_code
from tests.slurm.fake import PM, Fake, row

from joulelab import instruments as meters
from joulelab.core.errors import ConfigError, Denied, ReadFailed
from joulelab.instruments import slurm as module
from joulelab.instruments.slurm.client import Answer, SlurmClient
from joulelab.instruments.slurm.energies import find_sampling


def meter(monkeypatch, fake, **config):
    monkeypatch.setattr(module, "SlurmClient", lambda **options: SlurmClient(run=fake.run, where=options["where"]))
    return meters.open_meter("slurm", config)


def test_live_energy_of_a_job(monkeypatch):
    wide = {"nodes": "n[1-2]", "count": 2, "state": "RUNNING"}
    rows = (
        row("1", "", end="Unknown", **wide)
        + row("1.0", 40, nodes="n[1-2]", count=2)
        + row("1.1", 0, end="Unknown", **wide)
    )
    fake = Fake(rows, sstat="1.batch|90\n1.1|80\n", job="JobState=RUNNING")
    opened = meter(monkeypatch, fake, job=1)
    (stream,) = opened.streams()
    assert opened.read(stream) == (120.0,)
    assert (stream.scope, stream.channels[0].kind, stream.channels[0].update_s) == ("job", "counter", 1.0)
    fake._sstat = "1.extern|130\n1.batch|90\n1.1|80\n"
    assert opened.read(stream) == (130.0,)
    fake._sstat = "1.extern|0\n"
    with raises_code("read-failed.no-energy"):
        opened.read(stream)
    fake._sstat = Answer(1, "", "sstat: error: Invalid user id")
    with pytest.raises(Denied):
        opened.read(stream)
    fake._sacct = [row("1", 140, nodes="n[1-2]", count=2)]
    assert opened.read(stream) == (140.0,)
    opened.close()
    opened.close()


def test_power_of_nodes(monkeypatch):
    fake = Fake("", node="State=IDLE CurrentWatts=240 AveWatts=216")
    opened = meter(monkeypatch, fake, nodes="n1", label="slurm")
    (stream,) = opened.streams()
    assert opened.read(stream) == (240.0, 216.0)
    assert (stream.scope, stream.channels[0].update_s, stream.channels[0].window_s) == ("node.dc", 1.0, 1.0)
    for shown in ("n/s", "0", "4294967294", "99999999"):
        fake._node = f"CurrentWatts={shown} AveWatts=0"
        with raises_code("read-failed.no-power") as caught:
            opened.read(stream)
        assert shown in (caught.value.why or "")
    fake._node = "CurrentWatts=24O"
    with pytest.raises(ReadFailed):
        opened.read(stream)
    fake._node = "CurrentWatts=5 AveWatts=n/s"
    assert math.isnan(opened.read(stream)[1])
    two = meter(monkeypatch, fake, nodes=["n1", "n2"], feeds="rack").streams()
    assert [(s.scope, s.sums, s.parts) for s in two] == [("node:n1", "rack", 2), ("node:n2", "rack", 2)]


def test_power_needs_a_plugin_and_a_frequency(monkeypatch):
    for config, code in (
        (PM.replace("pm_counters", "none"), "unavailable.no-plugin"),
        (PM.replace("1 sec", "0 sec"), "unavailable.not-polled"),
        ("", "read-failed.no-settings"),
    ):
        with raises_code(code):
            meter(monkeypatch, Fake("", config=config), nodes="n1")


def test_scope_and_frequency_follow_the_plugin():
    def of(plugin, **more):
        settings = {"AcctGatherEnergyType": f"acct_gather_energy/{plugin}", "AcctGatherNodeFreq": "1 sec", **more}
        return find_sampling(settings)

    assert of("rapl").plugin.scope == "slurm.rapl"
    assert of("rapl").plugin.describe_accuracy(1.0).source == "unknown"
    assert of("ipmi").plugin.scope == "node.ac"
    assert of("made_up").plugin.describe_accuracy(1.0).source == "unknown"
    assert of("pm_counters", JobAcctGatherFrequency="task=30,energy=10").frequency_s == 10
    # The BMC plugins keep a pace of their own, 30 s where acct_gather.conf does not say.
    assert (of("xcc").frequency_s, of("xcc").is_stated) == (30, False)
    assert (of("xcc", EnergyIPMIFrequency="7").frequency_s, of("xcc", EnergyIPMIFrequency="7").is_stated) == (7, True)


@pytest.mark.parametrize(
    "config",
    [
        {"jbo": "1"},
        {"job": "abc"},
        {"job": True},
        {"job": "1", "attempt": 0},
        {"job": "1", "settle_s": -1},
        {"job": "1", "timeout_s": 0},
        {"job": "1", "frequency_s": "1"},
        {},
    ],
)
def test_wrong_configurations_of_jobs(monkeypatch, config):
    fake = Fake(row("1", 5))
    monkeypatch.setattr(module, "SlurmClient", lambda **options: SlurmClient(run=fake.run, where=options["where"]))
    with pytest.raises(ConfigError):
        module.open_archive(config)


@pytest.mark.parametrize("nodes", [[], "", "-a", ["n1", "n1"], [1], "n1;n2"])
def test_wrong_nodes(monkeypatch, nodes):
    with pytest.raises(ConfigError):
        meter(monkeypatch, Fake("", node="CurrentWatts=5"), nodes=nodes)


def test_the_job_that_this_runs_in(monkeypatch):
    fake = Fake(row("77", 5))
    monkeypatch.setattr(module, "SlurmClient", lambda **options: SlurmClient(run=fake.run, where=options["where"]))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with raises_code("unavailable.no-job"):
        module.open_archive({"job": "self"})
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert module.open_archive({"job": "self"}).facts["job"] == "77"
