"""The whole cycle on a real Slurm: plan, run, a job killed, one cancelled, the controller restarted, run again, report.

Six cells on two node types, once each, or twice in a campaign; those of one type wait for a word. Slurm's pm_counters
plugin and a BMC over IPMI read one simulated node, whose GPUs are capped by the jobs of one of the node types.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.slurm.cluster import Cluster, Machine
from tests.slurm.feed import Feed
from tests.study.bench import claims
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import MissingDependency
from joulelab.run.run_command import analyse_closed_run
from joulelab.study.slots import read_slot
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.model import RTX6000, Node
from joulelab.twin.readings import Panel
from joulelab.twin.servers import nvml
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pyghmi")

pytestmark = pytest.mark.system
FILE = """
name = "cycle"
repeats = {repeats}
seed = 11
config = "bmc.toml"
meters = ["bmc"]

[workloads.capped]
command = "sleep 3"
nodes = ["gpu"]
knobs = {{ cap = [150, 250] }}
[workloads.plain]
command = "sh -c 'until [ -e {go} ]; do sleep 0.1; done; sleep 3' {{n}}"
nodes = ["cpu-mix"]
knobs = {{ n = [1, 2, 3, 4] }}

[nodes.gpu]
partition = "accelerated"
time = "5m"
[nodes.cpu-mix]
constraint = "cpu"
uses = "cpu"
time = "5m"
"""
CELLS, FOUND_W = 6, 260.0


class Bench:
    """Hold the cluster, the simulated node, and the study's file."""

    def __init__(self, folder: Path, cluster: Cluster, served: TwinServer, repeats: int) -> None:
        self.folder, self.cluster, self.served = folder, cluster, served
        self.slots = CELLS * repeats
        self.file = folder / "cycle.toml"
        self.go = folder / "go"
        self.study = folder / "joulelab-studies" / "cycle"
        self.environ = {**cluster.environment, **served.environment}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, verb: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "joulelab", "study", verb, str(self.file), *words]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, text=True, start_new_session=True, **pipes
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Leave no driver behind where a test fails: without its cluster it would wait for ever."""
        for process in self.started:
            process.kill()
            process.communicate()

    def call(self, verb: str, *words: str, code: int = 0) -> tuple[str, str]:
        process = self.start(verb, *words)
        out, err = process.communicate(timeout=400)
        assert process.returncode == code, out + err
        return out, err

    def live(self) -> list[dict[str, Any]]:
        """Return the claims of slots whose command runs."""
        return [
            c for c in claims(self.study) if read_slot(c["slot"]).state == "live" and list(c["slot"].glob("*/run.json"))
        ]

    def done(self) -> list[Path]:
        return [c["slot"] for c in claims(self.study) if read_slot(c["slot"]).state == "done"]

    def caps(self) -> list[float]:
        return [self.served.truth.caps(gpu, monotonic_ns())[0] for gpu in range(2)]


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.campaign)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    try:
        nvml.build_library()
    except MissingDependency as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="joulelab-cycle-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # munged insists on it
        served = stack.enter_context(TwinServer(Node(gpus=(RTX6000,) * 2, packages=1), directory=folder))
        server = stack.enter_context(ServerProcess("bmc", served.truth.path, folder / "bmc"))
        (folder / "bmc.toml").write_text(_config(dict(next(iter(server.served.entries.values())))))
        (folder / "feed").mkdir()
        panel = Panel(served.truth, "node.dc", PanelFlaws(period_s=0.1, window_s=0.1, quantum_j=1.0, base_j=1e6))
        stack.enter_context(Feed(panel, folder / "feed"))
        machines = {"g1": Machine(features="gpu", partition="accelerated")}
        machines |= {name: Machine(features="cpu") for name in ("c1", "c2", "c3")}
        cluster = stack.enter_context(Cluster(folder / "slurm", folder / "feed", machines))
        made = Bench(folder, cluster, served, request.param)
        made.file.write_text(FILE.format(repeats=request.param, go=made.go))
        stack.callback(made.end)
        yield made


def _config(entry: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{k} = {text(v)}" for k, v in value.items()) + " }"
        return json.dumps(value)

    return "[meters.bmc]\n" + "".join(f"{key} = {text(value)}\n" for key, value in entry.items())


def test_a_study_survives_a_cluster_and_agrees_with_its_accounting(bench: Bench) -> None:
    out, err = bench.call("plan")
    assert f"{bench.slots} of {bench.slots} slots to run" in out, err

    process = bench.start("run", "--no-figures")
    until(lambda: bench.done() or process.poll() is not None, "a slot is done")
    out, _ = bench.call("status")
    assert "in the queue: " in out
    killed = until_found(bench, process, lambda claim: claim["node"] != "g1")
    os.kill(killed["pid"], signal.SIGKILL)  # the job dies: its slot is tried again
    with bench.cluster.without_controller():
        pass
    cancelled = until_found(bench, process, lambda claim: claim["node"] != "g1" and claim["slot"] != killed["slot"])
    bench.cluster.run("scancel", cancelled.get("task", cancelled["job"]))
    until(lambda: read_slot(cancelled["slot"]).state != "live", "the slot is cancelled")
    bench.go.touch()
    out, err = process.communicate(timeout=400)
    assert process.returncode == 1, out + err
    assert f"1 of {bench.slots} slots were cancelled; type the same command to run them" in err, err
    out, _ = bench.call("status")
    assert f"cycle: {bench.slots} slots: {bench.slots - 1} done, 1 to run" in out

    out, err = bench.call("run", "--no-figures")
    assert len(bench.done()) == bench.slots, err
    kept = {path.name.partition(".")[2].partition("-")[0] for path in bench.study.glob("cells/*/r0?.*")}
    assert kept == {"interrupted"}
    assert bench.caps() == [FOUND_W] * 2
    rows = list(csv.DictReader((bench.study / "slots.csv").read_text().splitlines()))
    assert {row["state"] for row in rows} == {"done"}
    assert len(rows) == bench.slots
    compare_with_accounting(bench)


def until_found(bench: Bench, process: subprocess.Popen[str], fits: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def look_for() -> bool:
        found[:] = [claim for claim in bench.live() if fits(claim)]
        return bool(found) or process.poll() is not None

    until(look_for, "a job runs", most_s=0.05)
    assert found, process.communicate()[1]
    return found[0]


def compare_with_accounting(bench: Bench) -> None:
    """Hold what our meter says of every job against what the database does."""
    differences = []
    for slot in bench.done():
        run = read_slot(slot).run
        assert run is not None
        result = analyse_closed_run(run)
        (found,) = [c for c in result.comparisons if c.scope == "job"]
        assert found.verdict == "agree", (slot, found.best.energy, found.other.energy)
        job = json.loads((slot / "claim.json").read_text())["job"]
        raw = bench.cluster.run("sacct", "-n", "-P", "-o", "ConsumedEnergyRaw", "-j", f"{job}.batch").split()[-1]
        assert found.other.energy.value == pytest.approx(int(raw), abs=1)
        differences.append(found.difference.value / found.best.energy.value)
    mean = sum(differences) / len(differences)
    print(f"\naccounting less our own: mean {mean:+.1%}, {min(differences):+.1%} to {max(differences):+.1%}")
    # Slurm looks once a second at jobs of some eight seconds, from when they are given their node.
    assert abs(mean) < 0.25
