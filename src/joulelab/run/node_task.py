"""Record one node of a job for a supervisor on another: `python -m joulelab.run.node_task`, a task of its step.

The plan and the commands come by standard input, one JSON line each; what is said goes to standard output, in short
lines, since Slurm mixes long ones of several nodes; each second there is one, so that silence means something. The end
of the input is the end of the supervisor. On the supervisor's own node, which it records itself, the task only watches
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_boot_id
from joulelab.core.process import read_start_ticks
from joulelab.recorder.owner import Owner
from joulelab.recorder.signals import REPORTED
from joulelab.run.recording import EventLog, HostRecording
from joulelab.run.run_options import RunOptions, get_host_name
from joulelab.store.folder import host_dir, make_host_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAN_S = 60.0  # a step whose srun was killed gets neither plan nor end of input
FOLDER_S = 2.0  # for a folder that was just made to be seen on a shared file system
BEAT_NS = NS
ORPHAN_S = 1.5  # for the end of input to arrive after the supervisor ended
SHORT = 300  # characters of what is told; a line of more than 1024 bytes may be torn


class NodeRecording(HostRecording):
    """Record this node into its folder of a run; problems are told to the supervisor too.

    Where an earlier task was lost, its segments are there, and this one's come after them.
    """

    def __init__(self, options: RunOptions, run: Path, host: str, environ: Mapping[str, str]) -> None:
        """Make the folder; raise StoreError or OSError where that fails."""
        super().__init__(options, host, environ)
        self._folder = host_dir(run, host)
        make_host_dir(run, host)
        self._segment = _next_segment(self._folder)
        self.events = EventLog(self._folder / "events.node.jsonl")
        if "rated_w" in options.node:  # run.json has that of the first node only
            self.event("rated", scope="node.ac", watts=options.node["rated_w"])

    @property
    def folder(self) -> Path:
        """Return this node's folder in the run."""
        return self._folder

    def tell(self, problem: str) -> None:
        """Keep a problem, and tell it."""
        if problem not in self.problems:
            send_message("problem", what=problem[:SHORT])
        super().tell(problem)

    def event(self, event: str, **fields: Any) -> None:
        """Store an event; tell of a recorder that died."""
        if event == "recorder-died":
            send_message("problem", what=f"the recorder died ({fields.get('status')}) and is started again")
        super().event(event, **fields)


def send_message(kind: str, **fields: Any) -> None:
    """Say one line to the supervisor; nobody may be there to hear it."""
    line = json.dumps({"node": get_host_name(), "is": kind, **fields}, separators=(",", ":")).encode() + b"\n"
    with contextlib.suppress(OSError):
        os.write(1, line)


class CommandInput:
    """Read commands from standard input; `ended` once there will be no more."""

    def __init__(self, fd: int = 0) -> None:
        self.fd = fd
        self.ended = False
        self._rest = b""

    def take(self, timeout_s: float, also: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        """Return what was sent, waiting until there is something, here or at the other files, or time is over."""
        fds = also if self.ended else (self.fd, *also)
        if self.fd not in select.select(fds, (), (), max(timeout_s, 0.0))[0]:
            return []
        data = os.read(self.fd, 65536)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]


def main() -> None:
    """Serve the supervisor until it says that it is over, or is over itself; the exit code is always 0."""
    for number in (*REPORTED, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # they are sent to all steps of a job, and meant for its workload
    try:
        send_message("hello", step=os.environ.get("SLURM_STEP_ID", ""))
        given = CommandInput()
        until, commands = time.monotonic() + PLAN_S, given.take(PLAN_S)
        while not commands and not given.ended and time.monotonic() < until:
            commands = given.take(until - time.monotonic())
        if not commands:
            return
        plan, *more = commands
        if os.environ.get("SLURM_PROCID") == "0":
            _cancel_steps(plan.get("instead_of", ()))
        if plan["host"] == get_host_name():
            _watch_owner(plan, given, more)
        else:
            _record_node(plan, given, more)
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor is told
        send_message("failed", what=f"{type(error).__name__}: {error}"[:SHORT])
        sys.excepthook(*sys.exc_info())
    finally:
        send_message("ended")
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(0)


def _answer_clock(command: Mapping[str, Any]) -> None:
    """Answer what needs no recorder: the time here."""
    if command.get("do") == "clock":
        send_message("clock", id=command.get("id"), t=monotonic_ns(), boot_id=read_boot_id())


def _watch_owner(plan: Mapping[str, Any], given: CommandInput, commands: list[dict[str, Any]]) -> None:
    """Wait for the end of the supervisor, which is a process of this node.

    A forked worker of it may hold the input open, or srun may have been killed with it: then the step is cancelled.
    """
    send_message("ready")
    owner, pid, ticks = None, int(plan["owner_pid"]), plan.get("owner_start_ticks")
    if read_start_ticks(pid) == ticks:  # else it lives among other process numbers
        owner = Owner(pid, ticks)
    while not given.ended:
        for command in commands:
            _answer_clock(command)
            if command.get("do") == "edge":
                send_message("edge", id=command["id"])  # the supervisor's own recorder sees to that
            elif command.get("do") == "finish":
                return
        if owner is not None and owner.ended():
            _cancel_own_step(given)
            return
        patience_s = 60.0 if owner is None else owner.patience_ns / NS
        commands = given.take(patience_s, tuple(owner.fds) if owner is not None else ())


def _cancel_own_step(given: CommandInput) -> None:
    until = time.monotonic() + ORPHAN_S
    while not given.ended and time.monotonic() < until:
        given.take(until - time.monotonic())
    if not given.ended:
        _cancel_steps([os.environ.get("SLURM_STEP_ID", "")])


def _cancel_steps(steps: Sequence[str]) -> None:
    """Kill steps of this job; of one that has ended nothing is said."""
    words = [f"{os.environ.get('SLURM_JOB_ID')}.{step}" for step in steps]
    if words:
        command, null = ["scancel", "--signal=KILL", *words], subprocess.DEVNULL
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, timeout=30, check=False, stdin=null, stdout=null, stderr=null)


def _next_segment(folder: Path) -> int:
    names = (re.fullmatch(r".+\.(\d+)\.(?:journal|jsonl|log)", path.name) for path in folder.iterdir())
    return max((int(name[1]) + 1 for name in names if name), default=0)


def _record_node(plan: Mapping[str, Any], given: CommandInput, commands: list[dict[str, Any]]) -> None:
    run = Path(plan["run"])
    until = time.monotonic() + FOLDER_S
    while not (run / "run.json").exists():
        if time.monotonic() > until:
            send_message(
                "failed", what=f"{run} is not there; the store of runs must be on a file system that all nodes share"
            )
            return
        time.sleep(0.1)
    node = NodeRecording(read_plan_options(plan, run, os.environ), run, get_host_name(), os.environ)
    node.begin()
    try:
        _serve_commands(node, given, commands)
    finally:
        if node.recorder is not None:
            node.recorder.kill()
        node.close_log()


def _serve_commands(node: NodeRecording, given: CommandInput, commands: list[dict[str, Any]]) -> None:
    """Do what is asked until the recorder has ended, which it is asked to at the latest by the end of input."""
    told_ready, until_ns, beat_ns = False, 1 << 62, monotonic_ns() + BEAT_NS
    edges: set[int] = set()
    while True:
        for command in commands:
            _answer_clock(command)
            if command.get("do") == "edge":
                node.ask_edge(int(command["id"]))
            elif command.get("do") == "finish":
                tail_s = float(command.get("tail_s", 0.0))
                node.ask_end(tail_s)
                until_ns = min(until_ns, monotonic_ns() + round((tail_s + node.options.flush_s) * NS))
        if given.ended and until_ns == 1 << 62:
            node.event("owner-ended")
            node.ask_end(0.0)
            until_ns = monotonic_ns() + round(node.options.flush_s * NS)
        if until_ns != 1 << 62 and (node.recorder is None or monotonic_ns() >= until_ns):
            node.kill_stuck()
            return
        if monotonic_ns() >= beat_ns:
            send_message("alive")
            beat_ns = monotonic_ns() + BEAT_NS
        left_s = (min(until_ns, node.due_ns, beat_ns) - monotonic_ns()) / NS
        commands = given.take(left_s, tuple(node.fds))
        node.serve()
        if node.ready and not told_ready:
            told_ready = True
            send_message("ready", open=sum(m.get("status") == "open" for m in node.meters))
        for number in node.edges.keys() - edges:
            edges.add(number)
            send_message("edge", id=number, stepped=node.edges[number])


def read_plan_options(plan: Mapping[str, Any], run: Path, environ: Mapping[str, str]) -> RunOptions:
    """Return the options of the plan, with the meters that the configuration names for this node."""
    options = RunOptions(runs=run.parent, **plan["options"])
    by = plan.get("chosen_by")
    if by is None:
        return options
    from joulelab.run.config.configuration import load_config
    from joulelab.run.config.meter_choice import choose_meters

    try:
        config = load_config(environ, get_host_name(environ), named=None if by["file"] is None else Path(by["file"]))
        chosen = choose_meters(config, environ, by["wanted"], by["without"])
    except Exception as error:  # noqa: BLE001 - the usual meters are better than none
        send_message("problem", what=f"the configuration is not used: {error}"[:SHORT])
        return options
    for lost in chosen.lost:
        send_message("problem", what=str(lost)[:SHORT])
    return options.reading(chosen)


if __name__ == "__main__":
    main()
