"""Record on the other nodes of a Slurm job: one step over all of them, told by its standard input what to do.

Each node is heard of every second. One that is silent for longer, or whose step has ended, is lost: that is told and
stored, and a further step over the lost nodes takes it up again, a few times at most. Nothing here stops or delays a
workload beyond the bounds that hold for this host's recorder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.process import read_start_ticks
from joulelab.run.step import Step
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.run.recording import HostRecording
    from joulelab.run.run_options import RunOptions

NEVER_NS = 1 << 62
# Step numbers from here on are those of batch scripts, interactive shells and the like, not of steps.
SPECIAL_STEPS = 0xFFFFFFF0
SENT = ("period_s", "slow_period_s", "open_s", "ready_s", "edge_s", "flush_s")
RETRY_NS = NS // 20  # while a plan does not fit into the pipe
CLOCK_NS = 60 * NS
LOOK_NS = NS  # how often silence is looked for
QUIET_NS = 5 * NS // 2  # some of what a node should have said is missing
LOST_NS = 5 * NS
MEND_NS = (0, 10 * NS, 60 * NS)  # how long to wait before a lost node is taken up again, for each try
END_S = 1.0  # for srun to end by itself, by a signal, and by force
SHOWN = 300  # characters of what srun said
NOISE = "lacks support for cpu binding"  # then there is none to switch off


def count_job_nodes(environ: Mapping[str, str]) -> int:
    """Return the number of nodes of the job if it has several and this is its script, not a step; else 0."""
    with contextlib.suppress(ValueError):
        step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
        count = int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
        if environ.get("SLURM_JOB_ID") and count > 1 and (not step or int(step) >= SPECIAL_STEPS):
            return count
    return 0


class JobNodes:
    """Own the step, and those that mend it. `fds` become readable when a node says something or a step ends.

    A node says hello, then that it is ready or has failed, each second that it is alive, and in the end that it has
    ended.
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
        self._steps: list[Step] = []
        self._of: dict[str, Step] = {}  # the step that each node is recorded by
        self._said: dict[str, set[str]] = {"ready": set(), "failed": set(), "ended": set(), "lost": set()}
        self._heard_ns: dict[str, int] = {}
        self._edges: dict[int, set[str]] = {}
        self._asked_ns: dict[int, int] = {}
        self._clock_ns = self._mend_ns = NEVER_NS
        self._looked_ns = monotonic_ns()
        self._tries: dict[str, int] = {}
        self._mended: set[str] = set()  # those to be taken up again
        self._announced = -1
        self._closing = False
        try:
            self._start(count)
        except OSError as error:
            recording.tell(f"only this node is recorded, {count - 1} others are not: srun: {error.strerror or error}")
            self.announce()

    @property
    def fds(self) -> list[int]:
        """Return what to poll."""
        return [fd for step in self._steps for fd in step.fds]

    @property
    def names(self) -> set[str]:
        """Return the nodes that ever answered."""
        return set(self._of)

    @property
    def ready(self) -> bool:
        """Return whether there is nothing to wait for before the workload starts."""
        return self.is_over or not self.missing

    @property
    def missing(self) -> int:
        """Return how many nodes have not said yet whether they record."""
        return self.count - len(self._answered)

    @property
    def is_over(self) -> bool:
        """Return whether all steps have ended, or none began."""
        return not self._steps

    @property
    def ended(self) -> bool:
        """Return whether every node that ever answered, and is not lost, has ended."""
        gone = self._said["ended"] | self._said["lost"] | {self._recording.host}
        return self.is_over or gone >= self.names

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable."""
        if any(step.is_behind for step in self._steps):
            return monotonic_ns() + RETRY_NS
        look_ns = self._looked_ns + LOOK_NS if self._steps and self._said["ready"] else NEVER_NS
        return min(self._clock_ns if self._steps else NEVER_NS, self._mend_ns, look_ns)

    @property
    def _answered(self) -> set[str]:
        return self._said["ready"] | self._said["failed"] | self._said["lost"]

    def serve(self) -> None:
        """Hear what the nodes say; notice which are lost and take them up again; compare clocks each minute."""
        for step in tuple(self._steps):
            over = step.has_ended()
            self._hear_all(step)
            step.flush()
            if over:
                self._bury(step)
        self._look()
        if monotonic_ns() >= self._mend_ns:
            self._mend()
        if monotonic_ns() >= self._clock_ns and self._steps:
            self.ask_clocks()

    def announce(self) -> None:
        """Store which nodes are recorded by which step, as far as it is known now."""
        if self._announced != len(self.names):
            self._announced = len(self.names)
            nodes = sorted(self.names | {self._recording.host})
            self._recording.event("nodes", step=self.step, nodes=nodes, count=self.count)

    def ask_edge(self, number: int) -> None:
        """Let all recorders poll their counters until they have stepped."""
        self._edges[number] = set()
        self._send({"do": "edge", "id": number})

    def has_edge(self, number: int) -> bool:
        """Return whether all nodes have answered `ask_edge`, as far as they record at all."""
        return self.is_over or self._edges.get(number, set()) >= self._said["ready"] - {self._recording.host}

    def ask_clocks(self) -> None:
        """Ask each node for its time: the way there and back bounds how far the clocks are apart."""
        number = len(self._asked_ns)
        self._asked_ns[number] = monotonic_ns()
        self._clock_ns = monotonic_ns() + CLOCK_NS
        self._send({"do": "clock", "id": number})

    def ask_end(self, tail_s: float) -> None:
        """Let all recorders take their last readings and end."""
        if not self._closing:
            self.ask_clocks()
        self._closing = True
        self._mend_ns = NEVER_NS
        self._send({"do": "finish", "tail_s": tail_s})

    def close(self) -> None:
        """End the steps, and tell which nodes were not recorded to their end."""
        self._mend_ns = NEVER_NS
        if self.is_over:
            return
        self._closing = True
        for step in self._steps:
            step.end_input()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            left = [step for step in self._steps if not step.has_ended()]
            if number is not None:
                for step in left:
                    step.signal(number)
            # A step that has not come up is not worth waiting for.
            until = time.monotonic() + (END_S if self.names or number is not None else 0.0)
            while any(not step.has_ended() for step in left) and time.monotonic() < until:
                time.sleep(0.005)
                for step in self._steps:
                    self._hear_all(step)
        for step in tuple(self._steps):
            self._hear_all(step)
            self._bury(step)
        self._tell_end()

    def _start(self, count: int, nodes: Sequence[str] = (), **more: Any) -> None:
        step = Step(self._environ, self._log, count, nodes)
        self._steps.append(step)
        step.send({**self._plan, **more})

    def _send(self, message: Mapping[str, Any]) -> None:
        for step in self._steps:
            step.send(message)

    def _hear_all(self, step: Step) -> None:
        for message in step.messages():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._hear(step, str(message["node"]), message)

    def _hear(self, step: Step, node: str, message: Mapping[str, Any]) -> None:
        what = message.get("is")
        if what == "hello":
            step.number = str(message.get("step", ""))
            self.step = self.step or step.number
            self._of[node] = step
            if len(self.names) == self.count:
                self.announce()
        elif what == "problem":
            self._recording.tell(f"{node}: {message.get('what')}")
        if self._of.get(node) is not step:
            return  # of a task that another has replaced
        self._heard_ns[node] = monotonic_ns()
        if what in ("ready", "alive") and node in self._said["lost"]:
            self._back(node)
        if what in ("ready", "failed", "ended"):
            self._answer(node, str(what), message)
        elif what == "edge":
            self._edges.get(int(message["id"]), set()).add(node)
        elif what == "clock" and node != self._recording.host and int(message["id"]) in self._asked_ns:
            times = {"from": self._asked_ns[int(message["id"])], "to": monotonic_ns(), "node_ns": int(message["t"])}
            self._recording.event("clock-node", node=node, **times, boot_id=message.get("boot_id"))

    def _answer(self, node: str, what: str, message: Mapping[str, Any]) -> None:
        if what == "failed":
            self._said["ready"].discard(node)
            self._recording.tell(f"{node} is not recorded: {message.get('what')}")
        if what == "ended" and not self._closing and node in self._said["ready"] - {self._recording.host}:
            self._lose([node], f"the recording of {node} ended early")
            return
        self._said[what].add(node)
        if what != "ended" and not self.missing:
            self.ask_clocks()

    def _look(self) -> None:
        """Find nodes that are silent; where it was ourselves who slept, nobody could be heard."""
        now = monotonic_ns()
        slept = now - self._looked_ns > QUIET_NS
        if now - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now
        if slept:
            self._heard_ns = dict.fromkeys(self._heard_ns, now)
        silent = self._silent(LOST_NS)
        if silent:
            self._lose(silent, f"{', '.join(silent)}: not heard of for {LOST_NS // NS} s, so the recording is lost")

    def _silent(self, for_ns: int) -> list[str]:
        since = monotonic_ns() - for_ns
        watched = self._said["ready"] - self._said["ended"] - {self._recording.host}
        return sorted(node for node in watched if self._heard_ns[node] < since)

    def _lose(self, nodes: Iterable[str], said: str) -> None:
        """Tell and store that nodes are not recorded, and have them taken up again."""
        nodes = sorted(nodes)
        self._said["lost"] |= set(nodes)
        self._said["ready"] -= set(nodes)
        again = [n for n in nodes if self._tries.get(n, 0) < len(MEND_NS)] if not self._closing else []
        for node in (n for n in nodes if n != self._recording.host):
            step = self._of[node].number if node in self._of else ""
            self._recording.event("node-lost", node=node, step=step, heard_ns=self._heard_ns.get(node))
        then = "; it is started again" if again else "" if self._closing else "; it is not started again"
        self._recording.tell(f"{said}{self._why()}{then}")
        if again:
            self._mended |= set(again)
            self._mend_ns = monotonic_ns() + MEND_NS[max(self._tries.get(n, 0) for n in again)]

    def _mend(self) -> None:
        """Start a step over the lost nodes. Where one of them is left of a step without its srun, that is cancelled."""
        nodes, self._mend_ns = sorted(self._mended & self._said["lost"]), NEVER_NS
        self._mended = set()
        if not nodes:
            return
        self._tries |= {n: self._tries.get(n, 0) + 1 for n in nodes}
        orphans = {self._of[n].number for n in nodes if n in self._of and self._of[n] not in self._steps} - {""}
        try:
            self._start(len(nodes), nodes, instead_of=sorted(orphans))
        except OSError as error:
            self._recording.tell(f"{', '.join(nodes)} cannot be recorded again: srun: {error.strerror or error}")

    def _back(self, node: str) -> None:
        self._said["lost"].discard(node)
        self._said["ended"].discard(node)
        self._said["ready"].add(node)
        self._recording.event("node-back", node=node, step=self._of[node].number)

    def _bury(self, step: Step) -> None:
        """Forget a step that has ended; what it recorded is lost unless it was asked to end."""
        step.close()
        self._steps.remove(step)
        self.announce()
        if self._closing:
            return
        answered = [n for n, of in self._of.items() if of is step]
        if not answered and not step.nodes:
            self._recording.tell(f"the step that records the other nodes did not start{self._why()}")
            self._recording.event("nodes-ended", step="")
            return
        nodes = {*answered, *step.nodes} - self._said["failed"]
        if answered:
            self._recording.event("nodes-ended", step=step.number)
        done = "ended early" if answered else "did not start"
        if nodes - {self._recording.host}:
            self._lose(nodes, f"the step that records {', '.join(sorted(nodes))} {done}")

    def _tell_end(self) -> None:
        """Tell which nodes were not recorded, or not to their end."""
        tell, answered = self._recording.tell, self._answered
        if len(answered) < self.count:
            which = ", ".join(sorted(self.names - answered)) or "none answered in time"
            tell(f"{self.count - len(answered)} of {self.count} nodes were not recorded: {which}{self._why()}")
        silent = self._silent(QUIET_NS)
        if silent:
            self._lose(silent, f"{', '.join(silent)}: not heard of at the end, so the last readings may be missing")
        left = self._said["ready"] - self._said["ended"] - {self._recording.host}
        if left:
            tell(f"the recorders on {', '.join(sorted(left))} did not end in time and were killed")

    def _why(self) -> str:
        """Return what srun said since it was last asked for."""
        with contextlib.suppress(OSError), open_regular(self._log) as file:
            file.seek(self._log_read)
            data = file.read()
            self._log_read += len(data)
            lines = data.decode(errors="replace").splitlines()
            text = "; ".join(line for line in lines if line.strip() and NOISE not in line)
            return f" ({text[-SHOWN:]})" if text else ""
        return ""


def _describe_owner() -> dict[str, Any]:
    return {"owner_pid": os.getpid(), "owner_start_ticks": read_start_ticks()}


def _make_plan(options: RunOptions) -> dict[str, Any]:
    """Return the options that nodes need. Configured meters are not sent: each node has its own, and their secrets."""
    own = {entry.get("name") for entry in options.configured}
    also = [dict(item) for item in options.also if item.get("name") not in own or item.get("name") is None]
    meters = None if options.meters is None else [dict(item) for item in options.meters]
    sent = {key: getattr(options, key) for key in SENT}
    return {"options": {**sent, "meters": meters, "also": also}, "chosen_by": options.chosen_by}
