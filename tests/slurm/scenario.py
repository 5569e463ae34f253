"""Run jobs of every kind on a real Slurm whose nodes take a twin's true power, once for all tests that look at them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.slurm.cluster import Cluster, Machine
from tests.slurm.feed import Feed
from tests.waiting import until

from joulelab.core.errors import JoulelabError
from joulelab.twin import profile
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.model import Node
from joulelab.twin.readings import Panel
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterator

# A step that runs beside others: it waits for all that share its folder, each in a task of its own, and then a while.
BESIDE = "mkdir -p {0}; touch {0}/$$; until [ $(ls {0} | wc -l) -ge {1} ]; do sleep 0.2; done; sleep 3"
# Some CPU time, so that the accounting has one to divide by.
BURN = "i=0; until [ $i -eq 100000 ]; do i=$((i+1)); done"
# Ended by being requeued the first time, by itself the second.
AGAIN = "srun sleep $((${SLURM_RESTART_COUNT:-0} > 0 ? 2 : 300))"
XCC = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm/acct_gather_energy_xcc.so")


@dataclass
class Accounts:
    """Hold the cluster after the jobs: their numbers by name, the true power of a node (W), why there is no BMC.

    Tasks that run side by side find each other in `meeting`.
    """

    cluster: Cluster
    meeting: Path
    jobs: dict[str, str]
    truth: Truth
    no_bmc: str

    def sacct(self, job: str, *options: str) -> dict[str, str]:
        """Return sacct's own joules by row."""
        out = self.cluster.run("sacct", "-n", "-P", "-o", "JobID,ConsumedEnergyRaw", "-j", self.jobs[job], *options)
        return dict(line.split("|") for line in out.splitlines())

    def is_settled(self) -> bool:
        """Return whether the database has the end of all that ran, and so its energy."""
        words = ("-n", "-P", "-D", "-o", "JobID,End", "-j", ",".join(self.jobs.values()))
        rows = self.cluster.run("sacct", *words).splitlines()
        return len(rows) > len(self.jobs) and not any(row.endswith("|Unknown") for row in rows)

    def side_by_side(self, name: str, options: str, tasks: int) -> str:
        """Return a script of two steps that run at the same time, however late one of them starts."""
        step = f"srun {options} --exact sh -c '{BESIDE.format(self.meeting / name, 2 * tasks)}'"
        return f"{step} & {step} & wait"


@contextlib.contextmanager
def accounts() -> Iterator[Accounts]:
    """Start a Slurm, run all jobs, and stop it at the end of the block."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="joulelab-slurm-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # other users ask, too
        feed = folder / "feed"
        feed.mkdir()
        truth = stack.enter_context(Truth.create(folder / "truth", Node(), profiles={"gpu": profile.constant(0.5)}))
        machines = {name: Machine() for name in ("n1", "n2", "n3", "n4", "n5", "n6")} | {"z1": Machine("none")}
        machine, no_bmc = _xcc(stack, folder)
        if machine is not None:
            machines["x1"] = machine
        # In steps as fine as Cray's meter has them, from a counter that ran for a while.
        panel = Panel(truth, "node.dc", PanelFlaws(period_s=0.1, window_s=0.1, quantum_j=1.0, base_j=1e6))
        stack.enter_context(Feed(panel, feed))
        cluster = stack.enter_context(Cluster(folder / "slurm", feed, machines))
        found = Accounts(cluster, folder / "meeting", {}, truth, no_bmc)
        found.meeting.mkdir()
        _plain(found, with_bmc=machine is not None)
        _contained(found)
        until(found.is_settled, "the database has the end of every job and step")
        yield found


def _plain(found: Accounts, *, with_bmc: bool) -> None:
    """Run jobs without `.extern` steps; those that need the same nodes wait for each other in the queue."""
    cluster, jobs, alone = found.cluster, found.jobs, "--exclusive"
    step = subprocess.Popen(
        ["srun", "-Q", alone, "-w", "n1", "-J", "step", "sleep", "4"], env=cluster.environment, cwd="/"
    )
    jobs["again"] = cluster.submit(AGAIN, alone, "--requeue", "-w", "n6")
    jobs["batch"] = cluster.submit("sleep 3", alone, "-w", "n2", "-J", "a|name\nof two lines")
    jobs["parallel"] = cluster.submit(found.side_by_side("parallel", "-n1", 1), alone, "-w", "n3", "-n2")
    jobs["wide"] = cluster.submit(found.side_by_side("wide", "-N2 -n2", 2), alone, "-w", "n4,n5", "-N2", "-n4")
    jobs["zero"] = cluster.submit("srun sleep 3", "-w", "z1")
    jobs["gaps"] = cluster.submit("srun sleep 1; sleep 3; srun sleep 1", alone, "-w", "n4,n5", "-N2")
    jobs["array"] = cluster.submit("srun sleep 2", alone, "-w", "n2", "--array=1-2")
    jobs["het"] = cluster.submit("srun --het-group=0,1 sleep 2", alone, "-w", "n3", ":", alone, "-w", "n1")
    both = f"srun sh -c '{BURN}; {BESIDE.format(found.meeting / 'shared', 2)}'"
    jobs["shared"] = cluster.submit(both, "-n1", "-w", "n1")
    jobs["beside"] = cluster.submit(both, "-n1", "-w", "n1")
    if with_bmc:
        # What is counted before the plugin's session with the BMC stands is lost.
        shown = ("scontrol", "-o", "show", "node", "x1")
        until(lambda: "CurrentWatts=0 " not in cluster.run(*shown), "the BMC is read")
        jobs["xcc"] = cluster.submit("srun sleep 6", alone, "-w", "x1")
    _requeue(cluster, jobs["again"], "n6")
    assert step.wait(120) == 0
    named = ("sacct", "-n", "-P", "-X", "--name=step", "-o", "JobIDRaw")
    until(lambda: cluster.run(*named).strip(), "the database has the job")
    jobs["step"] = cluster.run(*named).strip()
    until(lambda: not cluster.run("squeue", "-h").strip(), "the jobs end")


def _contained(found: Accounts) -> None:
    """Run jobs with `.extern` steps."""
    cluster, jobs, alone = found.cluster, found.jobs, "--exclusive"
    cluster.set(PrologFlags="Contain")
    jobs["contained"] = cluster.submit(found.side_by_side("contained", "-n1", 1), alone, "-w", "n1", "-n2")
    jobs["contained wide"] = cluster.submit("sleep 2; srun sleep 1", alone, "-w", "n2,n3", "-N2")
    until(lambda: not cluster.run("squeue", "-h").strip(), "the jobs end")


def _requeue(cluster: Cluster, job: str, node: str) -> None:
    """Put a job that runs back into the queue, and let it start again at once."""
    shown = ("squeue", "-h", "-j", job, "-o", "%T %M")
    until(lambda: re.match("RUNNING (?!0:0[0-2])", cluster.run(*shown)), f"job {job} has run 3 s")
    # The controller tells the database of a start within 5 s; of a job that is requeued before, it never does.
    asked = ("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,NodeList")
    until(lambda: f"RUNNING|{node}" in cluster.run(*asked), f"the database knows that job {job} runs")
    cluster.run("scontrol", "requeue", job)
    # A node refuses what was signed before it was told to end the job, to the second.
    later = time.monotonic() + 2.5
    until(lambda: "PENDING" in cluster.run(*shown), f"job {job} waits again")
    until(lambda: cluster.run("sinfo", "-h", "-n", node, "-o", "%T").strip() == "idle", f"{node} is free of it")
    # What is changed before the database knows of the second execution may be written into the first.
    listed = ("sacct", "-D", "-n", "-X", "-P", "-j", job, "-o", "State,NodeList,End")
    until(lambda: len(cluster.run(*listed).splitlines()) == 2, f"the database has both executions of job {job}")
    time.sleep(max(later - time.monotonic(), 0))
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")


def _xcc(stack: contextlib.ExitStack, folder: Path) -> tuple[Machine | None, str]:
    """Serve a BMC and build what lets Slurm's xcc plugin reach it; return why not otherwise."""
    if os.geteuid():
        return None, "Slurm's xcc plugin opens a BMC as root only"
    if not XCC.exists():
        return None, "install slurm-wlm-ipmi-plugins"
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(source)]
    try:
        done = subprocess.run([*words, "-Wl,--no-as-needed", "-lfreeipmi"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return None, "install gcc"
    if done.returncode:
        assert "freeipmi" in done.stderr, done.stderr
        return None, "install libfreeipmi-dev"
    try:
        server = stack.enter_context(ServerProcess("bmc", folder / "truth", folder / "bmc"))
    except JoulelabError as error:
        return None, str(error)
    entry = next(iter(server.served.entries.values()))
    environment = {
        "LD_PRELOAD": str(library),
        "JOULELAB_BMC": str(entry["address"]),
        "JOULELAB_BMC_USER": str(entry["user"]),
        "JOULELAB_BMC_PASSWORD_FILE": str(entry["password"]["file"]),
    }
    return Machine("xcc", environment), ""
