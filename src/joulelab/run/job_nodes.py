"""Record on the other nodes of a Slurm job: one step over all of them, commanded by its standard input.

Each node sends a message every second. A node that is silent for longer, or whose step has ended, is lost: that is
stored as a problem, and another step over the lost nodes records them again, a few times at most. Nothing here stops
or delays a workload beyond the bounds that hold for this host's recorder. The tasks of a step run `node_task.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NEVER_NS, NS, monotonic_ns
from joulelab.core.process_identity import read_start_ticks
from joulelab.core.spawn import add_import_path
from joulelab.run.child_process import ChildProcess
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.run.recording import HostRecording
    from joulelab.run.run_options import RunOptions

TASK_MODULE = "joulelab.run.node_task"
# Of Slurm's variables our step needs these; the others were made for the workload's steps and would change ours.
KEPT_VARIABLES = (
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_JWT",
    "SLURM_WORKING_CLUSTER",
)
STEP_VARIABLES = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")
# Step numbers from here on belong to batch scripts, interactive shells and the like, not to steps.
SPECIAL_STEPS = 0xFFFFFFF0
SENT_OPTIONS = ("period_s", "slow_period_s", "open_s", "ready_s", "edge_s", "flush_s")
RETRY_NS = NS // 20  # while a plan does not fit into the pipe
CLOCK_NS = 60 * NS
LOOK_NS = NS  # how often silent nodes are looked for
QUIET_NS = 5 * NS // 2  # after this silence, some messages of a node are missing
LOST_NS = 5 * NS
RETRY_STEP_NS = (0, 10 * NS, 60 * NS)  # wait before a lost node is recorded again, for each try
END_S = 1.0  # for srun to end by itself, by SIGTERM, and by SIGKILL
LOG_LETTERS = 300  # of srun's output in a problem
NOISE = "lacks support for cpu binding"  # no binding has to be switched off then


def count_job_nodes(environ: Mapping[str, str]) -> int:
    """Return the number of nodes of the job if it has several and this is its script, not a step; else 0."""
    with contextlib.suppress(ValueError):
        step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
        count = int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
        if environ.get("SLURM_JOB_ID") and count > 1 and (not step or int(step) >= SPECIAL_STEPS):
            return count
    return 0


class NodeStep(ChildProcess):
    """Start a step over `count` nodes: all of the job, or those in `nodes`. The output of srun goes to a log."""

    def __init__(self, environ: Mapping[str, str], log: Path, count: int, nodes: Sequence[str] = ()) -> None:
        """Start it. Raises OSError."""
        self.nodes = tuple(nodes)
        self.number = ""  # Slurm's, known after the first message
        srun = shutil.which("srun", path=environ.get("PATH"))
        if srun is None:
            raise FileNotFoundError("there is no such command")
        # No --cpus-per-task: it implies --exact, and the recorder would be held on one CPU.
        size = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
        named = [f"--nodelist={','.join(nodes)}"] if nodes else []
        plain = ["--mpi=none", "--cpu-bind=none", "--export=ALL", "--input=all", "--kill-on-bad-exit=0", "--wait=0"]
        options = ["--overlap", *size, *named, *plain, "--no-kill", "--quiet", "--job-name=joulelab"]
        command = [srun, *options, sys.executable, "-P", "-W", "ignore", "-m", TASK_MODULE]
        # In a session of its own: signals of the terminal to the workload's group must not end the step.
        signals = {"setsigmask": (), "setsigdef": (signal.SIGPIPE, signal.SIGXFSZ)}
        super().__init__(command, make_step_environ(environ), log=log, setsid=True, **signals)


def make_step_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for our step: without the variables that change steps, and such that joulelab is found."""
    return add_import_path(
        {k: v for k, v in environ.items() if k in KEPT_VARIABLES or not k.startswith(STEP_VARIABLES)}
    )


class JobNodes:
    """Own the step, and the steps that replace it. `fds` become readable when a node sends a message or a step ends.

    A node sends `hello`, then `ready` or `failed`, `alive` each second, and `ended` at the end.
    """

    def __init__(self, recording: HostRecording, run: Path, environ: Mapping[str, str], count: int) -> None:
        self.count = count
        self.step = ""
        self._recording = recording
        self._environ = environ
        self._log = recording.folder / "nodes.log"
        self._log_read = 0
        self._plan = {
            "do": "plan",
            "run": str(run),
            "host": recording.host,
            **_describe_owner(),
            **_make_plan(recording.options),
        }
        self._steps: list[NodeStep] = []
        self._step_of: dict[str, NodeStep] = {}  # the step that each node is recorded by
        self._nodes: dict[str, set[str]] = {"ready": set(), "failed": set(), "ended": set(), "lost": set()}
        self._message_ns: dict[str, int] = {}
        self._edges: dict[int, set[str]] = {}
        self._asked_ns: dict[int, int] = {}
        self._clock_ns = self._retry_step_ns = NEVER_NS
        self._looked_ns = monotonic_ns()
        self._tries: dict[str, int] = {}
        self._awaited: set[str] = set()  # lost nodes that are to be recorded again
        self._announced = -1
        self._closing = False
        try:
            self._start(count)
        except OSError as error:
            recording.report_problem(
                f"only this node is recorded, {count - 1} others are not: srun: {error.strerror or error}"
            )
            self.announce()

    @property
    def fds(self) -> list[int]:
        """Return the file descriptors to poll."""
        return [fd for step in self._steps for fd in step.fds]

    @property
    def names(self) -> set[str]:
        """Return the nodes that have ever sent a message."""
        return set(self._step_of)

    @property
    def ready(self) -> bool:
        """Return whether the workload can start, because all nodes have answered."""
        return self.is_over or not self.missing

    @property
    def missing(self) -> int:
        """Return the number of nodes that have not yet answered whether they record."""
        return self.count - len(self._answered)

    @property
    def is_over(self) -> bool:
        """Return whether all steps have ended, or none began."""
        return not self._steps

    @property
    def ended(self) -> bool:
        """Return whether every node that answered, and is not lost, has ended."""
        gone = self._nodes["ended"] | self._nodes["lost"] | {self._recording.host}
        return self.is_over or gone >= self.names

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable."""
        if any(step.is_behind for step in self._steps):
            return monotonic_ns() + RETRY_NS
        look_ns = self._looked_ns + LOOK_NS if self._steps and self._nodes["ready"] else NEVER_NS
        return min(self._clock_ns if self._steps else NEVER_NS, self._retry_step_ns, look_ns)

    @property
    def _answered(self) -> set[str]:
        return self._nodes["ready"] | self._nodes["failed"] | self._nodes["lost"]

    def serve(self) -> None:
        """Take the messages of the nodes; find lost nodes and record them again; compare clocks each minute."""
        for step in tuple(self._steps):
            over = step.has_ended()
            self._take_messages(step)
            step.flush()
            if over:
                self._handle_end(step)
        self._find_silent_nodes()
        if monotonic_ns() >= self._retry_step_ns:
            self._record_again()
        if monotonic_ns() >= self._clock_ns and self._steps:
            self.ask_clocks()

    def announce(self) -> None:
        """Store which nodes are recorded by which step, as far as known."""
        if self._announced != len(self.names):
            self._announced = len(self.names)
            nodes = sorted(self.names | {self._recording.host})
            self._recording.event("nodes", step=self.step, nodes=nodes, count=self.count)

    def ask_edge(self, number: int) -> None:
        """Let all recorders poll their counters until every counter has stepped."""
        self._edges[number] = set()
        self._send({"do": "edge", "id": number})

    def has_edge(self, number: int) -> bool:
        """Return whether all nodes that record have answered `ask_edge`."""
        return self.is_over or self._edges.get(number, set()) >= self._nodes["ready"] - {self._recording.host}

    def ask_clocks(self) -> None:
        """Ask each node for its time; the round trip bounds the difference of the clocks."""
        number = len(self._asked_ns)
        self._asked_ns[number] = monotonic_ns()
        self._clock_ns = monotonic_ns() + CLOCK_NS
        self._send({"do": "clock", "id": number})

    def ask_end(self, tail_s: float) -> None:
        """Let all recorders take their last readings and end."""
        if not self._closing:
            self.ask_clocks()
        self._closing = True
        self._retry_step_ns = NEVER_NS
        self._send({"do": "finish", "tail_s": tail_s})

    def close(self) -> None:
        """End the steps, and report nodes that were not recorded to the end."""
        self._retry_step_ns = NEVER_NS
        if self.is_over:
            return
        self._closing = True
        for step in self._steps:
            step.end_input()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            left = [step for step in self._steps if not step.has_ended()]
            if number is not None:
                for step in left:
                    step.send_signal(number)
            # A step that has never started is not waited for.
            until = time.monotonic() + (END_S if self.names or number is not None else 0.0)
            while any(not step.has_ended() for step in left) and time.monotonic() < until:
                time.sleep(0.005)
                for step in self._steps:
                    self._take_messages(step)
        for step in tuple(self._steps):
            self._take_messages(step)
            self._handle_end(step)
        self._report_end()

    def _start(self, count: int, nodes: Sequence[str] = (), **more: Any) -> None:
        step = NodeStep(self._environ, self._log, count, nodes)
        self._steps.append(step)
        step.send({**self._plan, **more})

    def _send(self, message: Mapping[str, Any]) -> None:
        for step in self._steps:
            step.send(message)

    def _take_messages(self, step: NodeStep) -> None:
        for message in step.read_messages():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._take_message(step, str(message["node"]), message)

    def _take_message(self, step: NodeStep, node: str, message: Mapping[str, Any]) -> None:
        what = message.get("is")
        if what == "hello":
            step.number = str(message.get("step", ""))
            self.step = self.step or step.number
            self._step_of[node] = step
            if len(self.names) == self.count:
                self.announce()
        elif what == "problem":
            self._recording.report_problem(f"{node}: {message.get('what')}")
        if self._step_of.get(node) is not step:
            return  # from a task that another one has replaced
        self._message_ns[node] = monotonic_ns()
        if what in ("ready", "alive") and node in self._nodes["lost"]:
            self._note_return(node)
        if what in ("ready", "failed", "ended"):
            self._note_state(node, str(what), message)
        elif what == "edge":
            self._edges.get(int(message["id"]), set()).add(node)
        elif what == "clock" and node != self._recording.host and int(message["id"]) in self._asked_ns:
            times = {"from": self._asked_ns[int(message["id"])], "to": monotonic_ns(), "node_ns": int(message["t"])}
            self._recording.event("clock-node", node=node, **times, boot_id=message.get("boot_id"))

    def _note_state(self, node: str, what: str, message: Mapping[str, Any]) -> None:
        if what == "failed":
            self._nodes["ready"].discard(node)
            self._recording.report_problem(f"{node} is not recorded: {message.get('what')}")
        if what == "ended" and not self._closing and node in self._nodes["ready"] - {self._recording.host}:
            self._lose_nodes([node], f"the recording of {node} ended early")
            return
        self._nodes[what].add(node)
        if what != "ended" and not self.missing:
            self.ask_clocks()

    def _find_silent_nodes(self) -> None:
        """Find silent nodes; after a pause of this process itself, all nodes get a new start."""
        now = monotonic_ns()
        slept = now - self._looked_ns > QUIET_NS
        if now - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now
        if slept:
            self._message_ns = dict.fromkeys(self._message_ns, now)
        silent = self._list_silent(LOST_NS)
        if silent:
            self._lose_nodes(silent, f"{', '.join(silent)}: no message for {LOST_NS // NS} s, so the recording is lost")

    def _list_silent(self, for_ns: int) -> list[str]:
        since = monotonic_ns() - for_ns
        watched = self._nodes["ready"] - self._nodes["ended"] - {self._recording.host}
        return sorted(node for node in watched if self._message_ns[node] < since)

    def _lose_nodes(self, nodes: Iterable[str], problem: str) -> None:
        """Store that nodes are not recorded, and plan to record them again."""
        nodes = sorted(nodes)
        self._nodes["lost"] |= set(nodes)
        self._nodes["ready"] -= set(nodes)
        again = [n for n in nodes if self._tries.get(n, 0) < len(RETRY_STEP_NS)] if not self._closing else []
        for node in (n for n in nodes if n != self._recording.host):
            step = self._step_of[node].number if node in self._step_of else ""
            self._recording.event("node-lost", node=node, step=step, heard_ns=self._message_ns.get(node))
        then = "; it is started again" if again else "" if self._closing else "; it is not started again"
        self._recording.report_problem(f"{problem}{self._read_log()}{then}")
        if again:
            self._awaited |= set(again)
            self._retry_step_ns = monotonic_ns() + RETRY_STEP_NS[max(self._tries.get(n, 0) for n in again)]

    def _record_again(self) -> None:
        """Start a step over the lost nodes; steps whose srun has ended are cancelled by it."""
        nodes, self._retry_step_ns = sorted(self._awaited & self._nodes["lost"]), NEVER_NS
        self._awaited = set()
        if not nodes:
            return
        self._tries |= {n: self._tries.get(n, 0) + 1 for n in nodes}
        orphans = {
            self._step_of[n].number for n in nodes if n in self._step_of and self._step_of[n] not in self._steps
        } - {""}
        try:
            self._start(len(nodes), nodes, instead_of=sorted(orphans))
        except OSError as error:
            self._recording.report_problem(
                f"{', '.join(nodes)} cannot be recorded again: srun: {error.strerror or error}"
            )

    def _note_return(self, node: str) -> None:
        self._nodes["lost"].discard(node)
        self._nodes["ended"].discard(node)
        self._nodes["ready"].add(node)
        self._recording.event("node-back", node=node, step=self._step_of[node].number)

    def _handle_end(self, step: NodeStep) -> None:
        """Forget a step that has ended; its nodes are lost unless it was asked to end."""
        step.close()
        self._steps.remove(step)
        self.announce()
        if self._closing:
            return
        answered = [n for n, of in self._step_of.items() if of is step]
        if not answered and not step.nodes:
            self._recording.report_problem(f"the step that records the other nodes did not start{self._read_log()}")
            self._recording.event("nodes-ended", step="")
            return
        nodes = {*answered, *step.nodes} - self._nodes["failed"]
        if answered:
            self._recording.event("nodes-ended", step=step.number)
        done = "ended early" if answered else "did not start"
        if nodes - {self._recording.host}:
            self._lose_nodes(nodes, f"the step that records {', '.join(sorted(nodes))} {done}")

    def _report_end(self) -> None:
        """Report nodes that were not recorded, or not to the end."""
        report, answered = self._recording.report_problem, self._answered
        if len(answered) < self.count:
            which = ", ".join(sorted(self.names - answered)) or "none answered in time"
            report(f"{self.count - len(answered)} of {self.count} nodes were not recorded: {which}{self._read_log()}")
        silent = self._list_silent(QUIET_NS)
        if silent:
            self._lose_nodes(silent, f"{', '.join(silent)}: no message at the end, so the last readings may be missing")
        left = self._nodes["ready"] - self._nodes["ended"] - {self._recording.host}
        if left:
            report(f"the recorders on {', '.join(sorted(left))} did not end in time and were killed")

    def _read_log(self) -> str:
        """Return the output of srun since the last call."""
        with contextlib.suppress(OSError), open_regular(self._log) as file:
            file.seek(self._log_read)
            data = file.read()
            self._log_read += len(data)
            lines = data.decode(errors="replace").splitlines()
            text = "; ".join(line for line in lines if line.strip() and NOISE not in line)
            return f" ({text[-LOG_LETTERS:]})" if text else ""
        return ""


def _describe_owner() -> dict[str, Any]:
    return {"owner_pid": os.getpid(), "owner_start_ticks": read_start_ticks()}


def _make_plan(options: RunOptions) -> dict[str, Any]:
    """Return the options that nodes need. Configured meters are not sent: each node has its own, and their secrets."""
    own = {entry.get("name") for entry in options.configured}
    also = [dict(item) for item in options.also if item.get("name") not in own or item.get("name") is None]
    meters = None if options.meters is None else [dict(item) for item in options.meters]
    sent = {key: getattr(options, key) for key in SENT_OPTIONS}
    return {"options": {**sent, "meters": meters, "also": also}, "chosen_by": options.chosen_by}
