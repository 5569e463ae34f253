"""Two nodes, each with a recorder and a twin of its own, become one run: `joulelab join`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.cli.entry import JOULELAB
from tests.recorder.driving import SRC

from joulelab.analysis.analyse import analyse_run, find_span
from joulelab.cli.group import commands
from joulelab.core.errors import MissingDependency
from joulelab.core.quantity import add_quantities
from joulelab.store.run_folder import list_runs
from joulelab.store.run_reader import open_run
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

needs_names = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root gives a process another host name"
)
RUN = [*JOULELAB, "run", "-q", "--"]
WORKLOAD = "joulelab.workloads.lstm_load"
TRAINING = [WORKLOAD, "preset=smoke", "workers=0", "threads=1", "max_steps=3"]


def no_library() -> Path:
    raise MissingDependency("no NVML", why="the node has no GPU")


@pytest.fixture
def twins() -> Iterator[dict[str, TwinServer]]:
    """Serve the package of two nodes at different powers, by the names of the nodes."""
    with contextlib.ExitStack() as stack:
        made = {}
        for name, share in (("n1", 0.3), ("n2", 0.8)):
            profiles = {"cpu": profile.constant(share)}
            twin = TwinServer(Node(gpus=(), packages=1), profiles=profiles, library=no_library)
            made[name] = stack.enter_context(twin)
        yield made


def start_node(host: str, words: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command on a node of its own: a process with another host name, and a twin."""
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host, *words]
    return subprocess.Popen(named, env={**os.environ, "PYTHONPATH": str(SRC), **environ})


def join_all(runs: Path, *options: str) -> dict[str, Any]:
    names = sorted((run.name for run in list_runs(runs)), key=lambda name: not (runs / name / "n1").is_dir())
    done = CliRunner().invoke(commands, ["join", *names, "--runs", str(runs), "--json", *options])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_joined(runs: Path, twins: Mapping[str, TwinServer], data: Mapping[str, Any]) -> None:
    """Compare a joined run with its sources, and with the true energies of the twins."""
    sources = [run for run in list_runs(runs) if run.name != data["run"]]
    parts = []
    for source in sources:
        with open_run(source) as opened:
            parts.append(analyse_run(opened).energy)
    with open_run(runs / data["run"]) as opened:
        result, spans = analyse_run(opened), find_span(opened, list(opened.events())).nodes
    assert result.energy is not None
    total = add_quantities(part for part in parts if part is not None)
    assert result.energy.value == pytest.approx(total.value)
    assert result.energy.u == pytest.approx(total.u)
    true = {
        host: sum(twin.truth.energy(point, spans[host].start_ns, spans[host].end_ns) for point in ("cpu:0", "dram:0"))
        for host, twin in twins.items()
    }
    for host, joules in true.items():
        energy = add_quantities(s.energy for s in result.scopes if s.host == host and s.scope in ("cpu:0", "dram:0"))
        assert abs(energy.value - joules) <= 2 * energy.u
    assert abs(result.energy.value - sum(true.values())) <= 2 * result.energy.u


@pytest.mark.system
@needs_names
def test_two_nodes_with_twins_become_one_run(tmp_path: Path, twins: dict[str, TwinServer]) -> None:
    mark = [sys.executable, "-c", "import joulelab, time; joulelab.work(samples=5); time.sleep(0.5)"]
    started = [
        start_node(host, [*RUN, *mark], {**twin.environment, "JOULELAB_RUNS": str(tmp_path)})
        for host, twin in twins.items()
    ]
    assert [process.wait(60) for process in started] == [0, 0]
    data = join_all(tmp_path, "--name", "both", "-l", "size=2")
    assert {s["host"] for s in data["scopes"]} == {"n1", "n2"}
    assert (data["name"], data["labels"]) == ("both", {"size": "2"})
    with open_run(tmp_path / data["run"]) as opened:
        assert analyse_run(opened).work == {"samples": 10.0}
    check_joined(tmp_path, twins, data)


@pytest.mark.campaign
@needs_names
@pytest.mark.parametrize("launcher", ["torchrun", "rendezvous", "mpirun"])
def test_a_training_on_two_nodes_becomes_one_run(
    tmp_path: Path, twins: dict[str, TwinServer], launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runs, port = tmp_path / "runs", 12_000 + os.getpid() % 10_000
    environs = {host: {**twin.environment, "JOULELAB_RUNS": str(runs)} for host, twin in twins.items()}
    if launcher == "mpirun":
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
        run_by_mpirun(tmp_path, environs, [*RUN, sys.executable, "-m", *TRAINING])
    else:
        started = []
        for number, (host, environ) in enumerate(environs.items()):
            words = [sys.executable, "-m", *TRAINING, "nodes=2", f"rendezvous=127.0.0.1:{port}"]
            if launcher == "torchrun":
                meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
                place = ["--nnodes=2", f"--node-rank={number}", f"--rdzv-conf=is_host={1 - number}", *meet]
                words = [sys.executable, "-m", "torch.distributed.run", *place, "-m", *TRAINING]
            started.append(start_node(host, [*RUN, *words], environ))
        assert [process.wait(300) for process in started] == [0, 0]
    data = join_all(runs)
    check_joined(runs, twins, data)
    with open_run(runs / data["run"]) as opened:
        result = analyse_run(opened)
    assert (result.facts["ranks"], result.facts["steps"]) == (2, 3)
    assert result.work["samples"] == 3 * result.facts["batch"]
    epochs = [phase for phase in result.phases if phase.name == "epoch"]
    assert len({phase.n for phase in epochs}) == len(epochs)  # each once, with the work of both nodes
    assert sum(phase.work["samples"] for phase in epochs) == result.work["samples"]


def run_by_mpirun(folder: Path, environs: Mapping[str, Mapping[str, str]], words: Sequence[str]) -> None:
    """Start a command by mpirun on two nodes, which are processes of this machine with other host names."""
    agent = folder / "agent"
    agent.write_text('#!/bin/sh\nhost=$1; shift; exec unshare --uts sh -c "hostname $host; exec $*"\n')
    for host, environ in environs.items():
        lines = "".join(f"export {name}='{value}'\n" for name, value in environ.items())
        (folder / host).write_text(lines)
    own = folder / "on-node"
    own.write_text(f'#!/bin/sh\n. {folder}/$(hostname)\nexec "$@"\n')
    for script in (agent, own):
        script.chmod(0o755)
    loopback = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "lo"]
    exported = [word for name in ("PYTHONPATH", "OMP_NUM_THREADS", "HOME") for word in ("-x", name)]
    place = ["-H", "n1:1,n2:1", "--map-by", "ppr:1:node", "--bind-to", "none", "-np", "2"]
    command = ["mpirun", "--allow-run-as-root", *loopback, *exported, *place, str(own), *words]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=300, check=False)
    assert done.returncode == 0
