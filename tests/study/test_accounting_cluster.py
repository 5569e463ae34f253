"""Slurm's energy and our own meters, both of one simulated node, in one record: they agree, or say that they do not.

A real Slurm runs `joulelab run` in batch jobs. Its pm_counters plugin and a BMC over IPMI read the same twin.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster, Machine
from tests.slurm.feed import Feed
from tests.waiting import until

from joulelab.core.errors import ConfigError, StoreError, Unavailable
from joulelab.run.run_command import analyse_closed_run
from joulelab.store.run_folder import list_runs
from joulelab.study.accounting import attach_accounting, attach_job
from joulelab.study.slots import Slot, State
from joulelab.twin import profile
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.model import Node
from joulelab.twin.readings import Panel
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytest.importorskip("pyghmi")

pytestmark = pytest.mark.system
SECONDS = 12


@dataclass
class Ran:
    """Hold the cluster, and the slots that its jobs made by name."""

    cluster: Cluster
    slots: dict[str, Slot]

    def joulelab(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "joulelab", *words],
            env=self.cluster.environment, capture_output=True, text=True, timeout=240, cwd=self.cluster.folder,
        )  # fmt: skip


def toml(folder: Path, name: str, truth: Path, stack: contextlib.ExitStack, **flaws: float) -> Path:
    """Serve a BMC; return a configuration that names it."""
    server = stack.enter_context(ServerProcess("bmc", truth, folder / name, flaws=flaws))
    entry = dict(next(iter(server.served.entries.values())))
    lines = "".join(f"{key} = {_toml(value)}\n" for key, value in entry.items())
    path = folder / f"{name}.toml"
    path.write_text(f"[meters.bmc]\n{lines}")
    return path


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


@pytest.fixture(scope="module")
def ran():
    """Run three jobs side by side: one node, one node whose BMC shows 80 % more, two nodes."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="joulelab-accounting-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # munged insists on it
        truth = stack.enter_context(Truth.create(folder / "truth", Node(), profiles={"gpu": profile.constant(0.5)}))
        right = toml(folder, "right", folder / "truth", stack)
        # So far off that it shows on a busy machine too, where joulelab starts late and sees less of its job.
        wrong = toml(folder, "wrong", folder / "truth", stack, gain_error=0.8)
        (folder / "feed").mkdir()
        panel = Panel(truth, "node.dc", PanelFlaws(period_s=0.1, window_s=0.1, quantum_j=1.0, base_j=1e6))
        stack.enter_context(Feed(panel, folder / "feed"))
        machines = {name: Machine() for name in ("n1", "n2", "n3", "n4")}
        cluster = stack.enter_context(Cluster(folder / "slurm", folder / "feed", machines))
        jobs = {}
        for name, config, nodes in (("one", right, "n1"), ("off", wrong, "n2"), ("two", right, "n3,n4")):
            (folder / name).mkdir()
            words = (
                f"{sys.executable} -m joulelab run -q --idle 2s --meter bmc --config {config} --runs {folder / name}"
            )
            script = f"exec {words} -- sleep {SECONDS}"
            output = ("-o", str(folder / f"{name}.out"), "--export=ALL", "--exclusive", "-w", nodes)
            jobs[name] = cluster.submit(script, *output, "-N", str(nodes.count(",") + 1))
        until(lambda: not cluster.run("squeue", "-h").strip(), "the jobs end")
        slots = {}
        for name, job in jobs.items():
            runs = list_runs(folder / name)
            assert len(runs) == 1, (folder / f"{name}.out").read_text()
            (folder / name / "claim.json").write_text(json.dumps({"job": job}))
            slots[name] = Slot(folder / name, State.DONE, runs[0], "", {"job": job})
        yield Ran(cluster, slots)


def accounted(slot):
    result = analyse_closed_run(slot.run)
    (found,) = [c for c in result.comparisons if c.scope == "job"]
    return result, found


@pytest.fixture(scope="module")
def filled(ran):
    slots = [ran.slots["one"], ran.slots["two"]]
    assert attach_accounting(slots, ran.cluster.environment, wait_s=120) == []
    return ran


def test_both_energies_are_in_the_record_and_agree(filled):
    slot = filled.slots["one"]
    result, found = accounted(slot)
    job = slot.claim["job"]
    raw = filled.cluster.run("sacct", "-n", "-P", "-o", "ConsumedEnergyRaw", "-j", f"{job}.batch").strip()
    assert found.other.energy.value == pytest.approx(int(raw), abs=1)
    assert found.verdict == "agree", (found.best.energy.terms, found.difference)
    assert abs(found.difference.value) < 0.2 * found.best.energy.value
    assert 2 * found.difference.u < 0.28 * found.best.energy.value
    assert "job" not in result.group("measured").scopes
    assert {s.host for s in result.scopes} == {"n1", f"slurm-{job}"}


def test_two_nodes_are_compared_with_the_step_of_ours_on_both(filled):
    result, found = accounted(filled.slots["two"])
    event = next(
        json.loads(line)
        for line in next(filled.slots["two"].run.glob("slurm-*/events.0.jsonl")).read_text().splitlines()
        if '"attached"' in line
    )
    assert event["nodes"] == ["n3", "n4"]
    assert event["row"] in (".0", ".1")
    assert len([s for s in result.scopes if s.scope == "node.dc"]) == 2
    assert found.verdict == "agree", (found.best.energy, found.other.energy)


def test_a_meter_that_is_far_off_differs_when_it_is_imported_into_the_run(filled, tmp_path):
    whole = filled.slots["off"]
    slot = replace(whole, folder=tmp_path / "off", run=tmp_path / "off" / whole.run.name)
    shutil.copytree(whole.folder, slot.folder)
    job, words = slot.claim["job"], ["import", "slurm", slot.claim["job"], "--into", str(slot.run)]
    done = filled.joulelab(*words)
    assert done.returncode == 0, done.stderr
    assert "differ" in done.stdout
    assert "meters disagree" in done.stdout.replace("\n", " ")
    _, found = accounted(slot)
    assert (found.verdict, found.host) == ("differ", f"slurm-{job}")
    settings = {"job": job, "slurm_conf": str(filled.cluster.conf)}
    with pytest.raises(StoreError, match="already"):
        attach_job(slot.run, settings)
    attach_job(slot.run, settings, name="twice")
    assert [c.host for c in analyse_closed_run(slot.run).comparisons if c.verdict == "differ"] == [
        f"slurm-{job}",
        "twice",
    ]


def test_the_job_of_another_time_is_refused_and_one_that_runs(filled, tmp_path):
    run, job = filled.slots["one"].run, filled.slots["one"].claim["job"]
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    meta = json.loads((copy / "run.json").read_text())
    meta["started"]["utc_ns"] -= 3600 * 10**9
    (copy / "run.json").write_text(json.dumps(meta))
    settings = {"slurm_conf": str(filled.cluster.conf), "settle_s": 120}
    with pytest.raises(ConfigError, match="is not that of this run"):
        attach_job(copy, {"job": job, **settings})
    running = filled.cluster.submit("sleep 60", "-w", "n1")
    until(lambda: "RUNNING" in filled.cluster.run("squeue", "-h", "-j", running, "-o", "%T"), "the job runs")
    until(lambda: "n1" in filled.cluster.run("sacct", "-n", "-X", "-j", running, "-o", "NodeList"), "it is known")
    with pytest.raises(Unavailable, match="still runs"):
        attach_job(run, {"job": running, **settings})
    filled.cluster.run("scancel", running)
