"""Make studies for a real Slurm of two kinds of nodes, and drive them in this process or in one of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.slurm.cluster import Cluster, Machine

from joulelab.study.drive import Driver, Outcome, SlotEvent, StopRequest
from joulelab.study.executors import open_executor
from joulelab.study.folder import Plan, Settings, Study, join_study, open_study
from joulelab.study.knobs import Knob
from joulelab.study.matrix import NodeType, Workload, make_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MACHINES = {
    "g1": Machine("none", features="gpu", partition="accelerated"),
    "c1": Machine("none", features="cpu", partition="cpu"),
    "c2": Machine("none", features="cpu", partition="cpu"),
    "t1": Machine("none", partition="limited"),
}
GPU = NodeType("gpu", "slurm", options={"partition": "accelerated", "time": 300})
CPU = NodeType("cpu", "slurm", options={"constraint": "cpu", "time": 300})
LIMITED = NodeType("limited", "slurm", options={"partition": "limited"})
# It ends when a file is there, or in good order when it is told to.
HELD = "until test -e {go}; do sleep 0.1; done"


@dataclass
class Bench:
    """Hold a cluster and a folder for studies."""

    cluster: Cluster
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def study(self, name: str, *command: str, nodes: Mapping[str, NodeType] | None = None, **knobs: str) -> Study:
        """Make a study; it has cells of every node type."""
        kinds = nodes or {"gpu": GPU}
        planned = [
            cell
            for kind in kinds
            for cell in make_cells(Workload(command, node_type=kind), [Knob.parse(*item) for item in knobs.items()])
        ]
        return join_study(self.folder / name, name, Plan(planned, settings=Settings(), nodes=kinds), seed=1)

    def held(self, name: str, nodes: Mapping[str, NodeType] | None = None, **knobs: str) -> tuple[Study, Path]:
        """Make a study whose commands run until the file is there that is returned."""
        go = self.folder / f"{name}.go"
        return self.study(
            name, "sh", "-c", HELD.format(go=go), *(f"{{{knob}}}" for knob in knobs), nodes=nodes, **knobs
        ), go

    def executor(self, study: Study) -> Any:
        """Open the executor for a study."""
        return open_executor("slurm", self.environ, study.nodes, study.folder)

    def drive(self, study: Study, repeats: int = 1, **options: Any) -> tuple[Outcome, list[SlotEvent]]:
        """Drive a study to its end."""
        return drive(study, self.executor(study), repeats, **options)

    def start(self, study: Study, repeats: int = 1) -> subprocess.Popen[bytes]:
        """Drive a study in a process of its own."""
        words = [sys.executable, "-m", "tests.slurm.studies", str(study.folder), str(repeats)]
        return subprocess.Popen(words, cwd=Path(__file__).parents[2], env=self.environ, start_new_session=True)

    def jobs(self, *options: str) -> list[list[str]]:
        """Return the numbers and states of the jobs in the queue."""
        return [
            line.split() for line in self.cluster.run("squeue", "-h", "-r", "-o", "%i %T %A", *options).splitlines()
        ]


def drive(study: Study, executor: Any, repeats: int, **options: Any) -> tuple[Outcome, list[SlotEvent]]:
    """Drive a study by an executor."""
    news: list[SlotEvent] = []
    with StopRequest() as stop:
        outcome = Driver(study, study.read_cells(), repeats, executor, news.append, **options).run(stop)
    executor.close()
    return outcome, news


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Start a Slurm with two kinds of nodes, and stop it at the end of the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="joulelab-slurm-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # or munge refuses it
        (folder / "feed").mkdir()
        settings = {"KillWait": "20", "MaxArraySize": "4"}
        cluster = stack.enter_context(Cluster(folder / "slurm", folder / "feed", MACHINES, settings))
        dropped = ("JOULELAB_RUN", "JOULELAB_HOST", "JOULELAB_STUDIES", "JOULELAB_CONFIG")
        environ = {key: value for key, value in cluster.environment.items() if key not in dropped}
        # As if the driver ran in a job itself: nothing of that may reach ours.
        outer = {"SBATCH_PARTITION": "nowhere", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "7", "SQUEUE_FORMAT": "%j"}
        state = {"JOULELAB_STATE": str(folder / "state"), "JOULELAB_POWERCAP": str(folder / "no-powercap")}
        yield Bench(cluster, folder, environ | outer | state)


if __name__ == "__main__":
    found = open_study(Path(sys.argv[1]))
    opened = open_executor("slurm", os.environ, found.nodes, found.folder)
    drive(found, opened, int(sys.argv[2]))
