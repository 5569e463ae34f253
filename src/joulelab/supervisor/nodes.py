"""Record on the other nodes of a Slurm job: one step over all of them, told by its standard input what to do.

Nothing here stops or delays a workload beyond the bounds that hold for this host's recorder; what fails is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.process import start_ticks
from joulelab.core.spawn import above_standard, findable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.supervisor.host import HostRecording
    from joulelab.supervisor.options import RunOptions

NEVER_NS = 1 << 62
MODULE = "joulelab.supervisor.node"
# Of Slurm's variables a step of ours needs these; the others would change it, as they were made for the workload's.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JWT", "SLURM_WORKING_CLUSTER")
CHANGING = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")
# Step numbers from here on are those of batch scripts, interactive shells and the like, not of steps.
SPECIAL_STEPS = 0xFFFFFFF0
SENT = ("period_s", "slow_period_s", "open_s", "ready_s", "edge_s", "flush_s")
RETRY_NS = NS // 20  # while a plan does not fit into the pipe
CLOCK_NS = 60 * NS
END_S = 1.0  # for srun to end by itself, by a signal, and by force
SHOWN = 300  # characters of what srun said
NOISE = "lacks support for cpu binding"  # then there is none to switch off


def other_nodes(environ: Mapping[str, str]) -> int:
    """Return the number of nodes of the job if it has several and this is its script, not a step; else 0."""
    with contextlib.suppress(ValueError):
        step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
        count = int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
        if environ.get("SLURM_JOB_ID") and count > 1 and (not step or int(step) >= SPECIAL_STEPS):
            return count
    return 0


class Nodes:
    """Own the step. `fds` become readable when a node says something or the step ends.

    A node says hello, then that it is ready or has failed, and in the end that it has ended.
    """

    def __init__(self, recording: HostRecording, run: Path, environ: Mapping[str, str], count: int) -> None:
        self.count = count
        self.names: list[str] = []
        self.step = ""
        self._recording = recording
        self._said: dict[str, set[str]] = {"ready": set(), "failed": set(), "ended": set()}
        self._edges: dict[int, set[str]] = {}
        self._asked_ns: dict[int, int] = {}
        self._clock_ns = NEVER_NS
        self._announced = 0
        self._output, self._input = b"", b""
        self._closing = self._silent = False
        self._pid = self._commands = self._status = -1
        self.fds: list[int] = []
        try:
            self._start(environ, recording.folder / "nodes.log")
        except OSError as error:
            recording.tell(f"only this node is recorded, {count - 1} others are not: srun: {error.strerror or error}")
            return
        self._send({"do": "plan", "run": str(run), "host": recording.host, **_owner(), **_plan(recording.options)})

    @property
    def ready(self) -> bool:
        """Return whether there is nothing to wait for before the workload starts."""
        return self.is_over or not self.missing

    @property
    def missing(self) -> int:
        """Return how many nodes have not said yet whether they record."""
        return self.count - len(self._said["ready"] | self._said["failed"])

    @property
    def is_over(self) -> bool:
        """Return whether the step has ended, or never began."""
        return self._pid < 0

    @property
    def ended(self) -> bool:
        """Return whether every node that ever answered has ended."""
        return self.is_over or self._said["ended"] >= set(self.names)

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable."""
        if self.is_over:
            return NEVER_NS
        return monotonic_ns() + RETRY_NS if self._output or self._silent else self._clock_ns

    def serve(self) -> None:
        """Hear what the nodes say; notice the end of the step; compare clocks each minute."""
        if self.is_over:
            return
        over = self._has_ended()
        self._read()
        self._flush()
        if over:
            self._bury()
        elif monotonic_ns() >= self._clock_ns and not self._silent:
            self.ask_clocks()

    def announce(self) -> None:
        """Store which nodes are recorded by which step, as far as it is known now."""
        if self.names and self._announced != len(self.names):
            self._announced = len(self.names)
            self._recording.event("nodes", step=self.step, nodes=sorted(self.names))

    def ask_edge(self, number: int) -> None:
        """Let all recorders poll their counters until they have stepped."""
        self._edges[number] = set()
        self._send({"do": "edge", "id": number})

    def has_edge(self, number: int) -> bool:
        """Return whether all nodes have answered `ask_edge`, as far as they record at all."""
        return self.is_over or self._edges.get(number, set()) >= self._said["ready"]

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
        self._send({"do": "finish", "tail_s": tail_s})

    def close(self) -> None:
        """End the step, and tell which nodes were not recorded to their end."""
        if self.is_over:
            return
        self._closing = True
        self._clock_ns = NEVER_NS
        self._flush()
        os.close(self._commands)
        self._commands = -1
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None and not self._has_ended():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, number)
            # A step that has not come up is not worth waiting for.
            until = time.monotonic() + (END_S if self.names or number is not None else 0.0)
            while not self._has_ended() and time.monotonic() < until:
                time.sleep(0.005)
                self._read()
        self._read()
        self._bury()

    def _start(self, environ: Mapping[str, str], log: Path) -> None:
        srun = shutil.which("srun", path=environ.get("PATH"))
        if srun is None:
            raise FileNotFoundError("there is no such command")
        command = [srun, *_options(self.count), sys.executable, "-P", "-W", "ignore", "-m", MODULE]
        opened: list[int] = []
        try:
            opened += (*os.pipe(), *os.pipe())
            opened.append(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
            opened = [above_standard(fd) for fd in opened]
            commands, self._commands, said, told, errors = opened
            actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((commands, told, errors))]
            # In a session of its own: what the terminal sends to the workload's group must not end the step.
            self._pid = os.posix_spawn(
                srun,
                command,
                step_environ(environ),
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        for fd in (commands, told, errors):
            os.close(fd)
        os.set_blocking(self._commands, False)
        os.set_blocking(said, False)
        self._status = said
        self.fds = [said]

    def _send(self, message: Mapping[str, Any]) -> None:
        self._output += json.dumps(message).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            while self._output and self._commands >= 0:
                self._output = self._output[os.write(self._commands, self._output) :]
        except BlockingIOError:
            return  # srun reads when the step runs
        except OSError:
            self._output = b""  # it is gone, which is noticed elsewhere

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._status, 65536):
                self._input += data
            self.fds, self._silent = [], True  # the end of srun itself is near
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._hear(json.loads(line))

    def _hear(self, message: Mapping[str, Any]) -> None:
        node, what = str(message["node"]), message.get("is")
        if what == "hello":
            self.names.append(node)
            self.step = str(message.get("step", ""))
            if len(self.names) == self.count:
                self.announce()
        elif what in self._said:
            self._said[what].add(node)
            if what == "failed":
                self._recording.tell(f"{node} is not recorded: {message.get('what')}")
            if what != "ended" and not self.missing:
                self.ask_clocks()
        elif what == "edge":
            self._edges.get(int(message["id"]), set()).add(node)
        elif what == "problem":
            self._recording.tell(f"{node}: {message.get('what')}")
        elif what == "clock" and node != self._recording.host and int(message["id"]) in self._asked_ns:
            times = {"from": self._asked_ns[int(message["id"])], "to": monotonic_ns(), "node_ns": int(message["t"])}
            self._recording.event("clock-node", node=node, **times, boot_id=message.get("boot_id"))

    def _has_ended(self) -> bool:
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def _bury(self) -> None:
        """Tell what the end of the step means, and forget it."""
        self._pid, fds = -1, [fd for fd in (self._commands, self._status) if fd >= 0]
        self._commands = self._status = -1
        self.fds = []
        for fd in fds:
            os.close(fd)
        self.announce()
        recording, answered = self._recording, self._said["ready"] | self._said["failed"]
        if not self._closing:
            done = "ended early" if self.names else "did not start"
            recording.tell(f"the step that records the other nodes {done}{self._why()}")
            recording.event("nodes-ended", step=self.step)
        elif len(answered) < self.count:
            which = ", ".join(sorted(set(self.names) - answered)) or "none answered in time"
            recording.tell(
                f"{self.count - len(answered)} of {self.count} nodes were not recorded: {which}{self._why()}"
            )
        elif not self._said["ended"] >= answered:
            left = ", ".join(sorted(answered - self._said["ended"]))
            recording.tell(f"the recorders on {left} did not end in time and were killed")

    def _why(self) -> str:
        """Return the last words of srun."""
        with contextlib.suppress(OSError):
            lines = (self._recording.folder / "nodes.log").read_text(errors="replace").splitlines()
            text = "; ".join(line for line in lines if line.strip() and NOISE not in line)
            return f" ({text[-SHOWN:]})" if text else ""
        return ""


def step_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for our step: without what changes steps, and such that joulelab is found."""
    return findable({k: v for k, v in environ.items() if k in KEPT or not k.startswith(CHANGING)})


def _options(count: int) -> Sequence[str]:
    # No --cpus-per-task: it implies --exact, and the recorder would be held on one CPU.
    wide = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    plain = ["--mpi=none", "--cpu-bind=none", "--export=ALL", "--input=all", "--kill-on-bad-exit=0", "--wait=0"]
    return ["--overlap", *wide, *plain, "--no-kill", "--quiet", "--job-name=joulelab"]


def _owner() -> dict[str, Any]:
    return {"owner_pid": os.getpid(), "owner_start_ticks": start_ticks()}


def _plan(options: RunOptions) -> dict[str, Any]:
    """Return the options that nodes need. Configured meters are not sent: each node has its own, and their secrets."""
    own = {entry.get("name") for entry in options.configured}
    also = [dict(item) for item in options.also if item.get("name") not in own or item.get("name") is None]
    meters = None if options.meters is None else [dict(item) for item in options.meters]
    sent = {key: getattr(options, key) for key in SENT}
    return {"options": {**sent, "meters": meters, "also": also}, "chosen_by": options.chosen_by}
