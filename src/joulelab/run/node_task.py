"""Record one node of a job for a supervisor on another: `python -m joulelab.run.node_task`, a task of its step.

The plan and the commands come by standard input, one JSON line each. Messages go to standard output, in short lines,
since Slurm mixes long lines of several nodes; there is at least one each second, so that silence means a loss. The end
of the input is the end of the supervisor. On the supervisor's own node, which it records itself, the task only watches
the supervisor.
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

from joulelab.core.clock import NEVER_NS, NS, monotonic_ns, read_boot_id
from joulelab.core.process_identity import read_start_ticks
from joulelab.recorder.owner import Owner
from joulelab.recorder.signals import REPORTED
from joulelab.run.recording import EventLog, HostRecording
from joulelab.run.run_options import RunOptions, get_host_name
from joulelab.store.run_folder import find_host_dir, make_host_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAN_S = 60.0  # a step whose srun was killed gets neither plan nor end of input
FOLDER_S = 2.0  # until a new folder is visible on a shared file system
BEAT_NS = NS
ORPHAN_S = 1.5  # until the end of input arrives after the end of the supervisor
SHORT = 300  # characters of a problem; a line of more than 1024 bytes may be torn


class NodeRecording(HostRecording):
    """Record this node into its folder of a run, and send its problems to the supervisor.

    Segments of an earlier task that was lost are kept; the new ones come after them.
    """

    def __init__(self, options: RunOptions, run: Path, host: str, environ: Mapping[str, str]) -> None:
        """Make the folder. Raises StoreError, OSError."""
        super().__init__(options, host, environ)
        self._folder = find_host_dir(run, host)
        make_host_dir(run, host)
        self._segment = _next_segment(self._folder)
        self.events = EventLog(self._folder / "events.node.jsonl")
        if "rated_w" in options.node:  # run.json has that of the first node only
            self.event("rated", scope="node.ac", watts=options.node["rated_w"])

    @property
    def folder(self) -> Path:
        """Return this node's folder in the run."""
        return self._folder

    def report_problem(self, problem: str) -> None:
        """Store a problem, and send it."""
        if problem not in self.problems:
            send_message("problem", what=problem[:SHORT])
        super().report_problem(problem)

    def event(self, event: str, **fields: Any) -> None:
        """Store an event; report a recorder that died."""
        if event == "recorder-died":
            send_message("problem", what=f"the recorder died ({fields.get('status')}) and is started again")
        super().event(event, **fields)


def send_message(kind: str, **fields: Any) -> None:
    """Send one line to the supervisor, which may have ended."""
    line = json.dumps({"node": get_host_name(), "is": kind, **fields}, separators=(",", ":")).encode() + b"\n"
    with contextlib.suppress(OSError):
        os.write(1, line)


class CommandInput:
    """Read commands from standard input; `ended` at its end."""

    def __init__(self, fd: int = 0) -> None:
        self.fd = fd
        self.ended = False
        self._rest = b""

    def take(self, timeout_s: float, also: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        """Return new commands; wait at most `timeout_s` until there is one, or one of the other files is readable."""
        fds = also if self.ended else (self.fd, *also)
        if self.fd not in select.select(fds, (), (), max(timeout_s, 0.0))[0]:
            return []
        data = os.read(self.fd, 65536)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]


def main() -> None:
    """Serve the supervisor until it finishes the recording or ends; the exit code is always 0."""
    for number in (*REPORTED, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # sent to all steps of a job, but meant for its workload
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
    except Exception as error:  # noqa: BLE001 - any error is sent to the supervisor
        send_message("failed", what=f"{type(error).__name__}: {error}"[:SHORT])
        sys.excepthook(*sys.exc_info())
    finally:
        send_message("ended")
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(0)


def _answer_clock(command: Mapping[str, Any]) -> None:
    """Answer a question for the time of this node."""
    if command.get("do") == "clock":
        send_message("clock", id=command.get("id"), t=monotonic_ns(), boot_id=read_boot_id())


def _watch_owner(plan: Mapping[str, Any], given: CommandInput, commands: list[dict[str, Any]]) -> None:
    """Wait for the end of the supervisor, which is a process of this node.

    If a forked worker of it holds the input open, or srun was killed with it, the step is cancelled.
    """
    send_message("ready")
    owner, pid, ticks = None, int(plan["owner_pid"]), plan.get("owner_start_ticks")
    if read_start_ticks(pid) == ticks:  # else it is in another namespace of process numbers
        owner = Owner(pid, ticks)
    while not given.ended:
        for command in commands:
            _answer_clock(command)
            if command.get("do") == "edge":
                send_message("edge", id=command["id"])  # the supervisor's own recorder does it
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
    """Kill steps of this job; those that have ended are ignored."""
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
                "failed", what=f"{run} is not there; put the store of runs on a file system that all nodes share"
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
    """Follow the commands until the recorder has ended; the end of input asks it to end, too."""
    is_ready_sent, until_ns, beat_ns = False, NEVER_NS, monotonic_ns() + BEAT_NS
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
        if given.ended and until_ns == NEVER_NS:
            node.event("owner-ended")
            node.ask_end(0.0)
            until_ns = monotonic_ns() + round(node.options.flush_s * NS)
        if until_ns != NEVER_NS and (node.recorder is None or monotonic_ns() >= until_ns):
            node.kill_stuck()
            return
        if monotonic_ns() >= beat_ns:
            send_message("alive")
            beat_ns = monotonic_ns() + BEAT_NS
        left_s = (min(until_ns, node.due_ns, beat_ns) - monotonic_ns()) / NS
        commands = given.take(left_s, tuple(node.fds))
        node.serve()
        if node.ready and not is_ready_sent:
            is_ready_sent = True
            send_message("ready", open=sum(m.get("status") == "open" for m in node.meters))
        for number in node.edges.keys() - edges:
            edges.add(number)
            send_message("edge", id=number, stepped=node.edges[number])


def read_plan_options(plan: Mapping[str, Any], run: Path, environ: Mapping[str, str]) -> RunOptions:
    """Return the options of the plan, with the meters that this node's configuration names."""
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
    return options.with_meters(chosen)


if __name__ == "__main__":
    main()
