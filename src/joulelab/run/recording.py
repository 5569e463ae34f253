"""Own a run folder and the recorders that fill it. Nothing that goes wrong here stops a workload: it is told."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_clock_pair
from joulelab.core.errors import RecorderError, StoreError
from joulelab.core.process import read_start_ticks
from joulelab.core.version import __version__
from joulelab.run.job_nodes import JobNodes, count_job_nodes
from joulelab.run.recorder_process import RecorderProcess
from joulelab.run.run_options import HOST_VARIABLE, RUN_VARIABLE, RunOptions, get_host_name
from joulelab.store.folder import create_run, end_run, host_dir
from joulelab.store.safe_files import open_append

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.run.run_options import RunOptions
    from joulelab.run.spawn import Spawned

# Kept free for the last events: how the workload ended is written even on a disk that is full by then.
RESERVED = 32 << 10
FALLOC_FL_KEEP_SIZE = 1


class EventLog:
    """Write one event per line; what a full disk refuses is tried again with the next event, and at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lines = bytearray()
        self._lock = threading.Lock()

    def add(self, event: str, *, t: int | None = None, **fields: Any) -> None:
        """Append an event; `t` is monotonic ns, now unless given."""
        data = {"t": monotonic_ns() if t is None else t, "event": event, **fields}
        line = json.dumps(data, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            self._lines += line
            self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = open_append(self._path)
                _reserve_space(self._fd)
            while self._lines:
                del self._lines[: os.write(self._fd, self._lines)]

    def close(self) -> None:
        """Flush and close."""
        with self._lock:
            self._flush()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # gives back what was reserved
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


def _reserve_space(fd: int) -> None:
    with contextlib.suppress(AttributeError):
        call = ctypes.CDLL(None).fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        call(fd, FALLOC_FL_KEEP_SIZE, 0, RESERVED)  # where it fails, there is no reserve


NEVER_NS = 1 << 62
RESTART_FIRST_NS = NS // 2
RESTART_LAST_NS = 300 * NS
# A recorder that lived this long is started again at once, as if it were the first.
HEALTHY_NS = 10 * NS
YOUNG_NS = NS // 10

# Waits until a condition holds or a time (monotonic ns) is reached, serving the recording meanwhile.
Wait = Callable[[Callable[[], bool], int], bool]


class HostRecording:
    """Record one host into its folder. Where there is no `events` log, nothing is recorded.

    Poll `fds` until `due_ns` and call `serve()`; `ready`, `edges`, `finished` and `reported` then tell what happened.
    """

    def __init__(self, options: RunOptions, host: str, environ: Mapping[str, str]) -> None:
        self.options = options
        self.host = host
        self.events: EventLog | None = None
        self.problems: list[str] = []
        self.meters: list[dict[str, Any]] = []
        self.ready = False
        self.finished = False
        self.restarts = 0
        self.edges: dict[int, bool] = {}
        self.reported: dict[tuple[int, int], int] = {}
        self.ended_ns: int | None = None
        self.recorder: RecorderProcess | None = None
        self._environ = environ
        self._segment = 0
        self._started_ns = 0
        self._restart_ns = NEVER_NS
        self._delay_ns = RESTART_FIRST_NS
        self._workload_pid: int | None = None
        self._asked = 0
        self._finishing = False
        self._stuck = False

    @property
    def fds(self) -> Sequence[int]:
        """Return what to poll."""
        return self.recorder.fds if self.recorder is not None else ()

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable."""
        return self._restart_ns

    @property
    def folder(self) -> Path:
        """Return this host's folder in the run."""
        raise NotImplementedError

    def lacked_recorder(self, t_ns: int) -> bool:
        """Return whether there is no recorder, or there may have been none at a time because it was just started."""
        return self.recorder is None or t_ns - self._started_ns < YOUNG_NS

    def begin(self, spawned: Spawned | None = None) -> None:
        """Start the recorder, or go on with one that was spawned already."""
        if self.events is None:
            if spawned is not None:
                spawned.dismiss()
            return
        for lost in self.options.lost if not self._segment else ():
            self.event("meter", status="failed", **lost)
        self._started_ns = monotonic_ns()
        self._restart_ns = NEVER_NS
        log = self.folder / f"recorder.{self._segment}.log"
        try:
            self.recorder = RecorderProcess(self._plan(), self._environ, log, spawned)
        except RecorderError as error:
            self.tell(str(error))
            self._restart_later()
            return
        self.event("recorder-started", segment=self._segment)

    def serve(self) -> None:
        """Hear what the recorder says; start it again where it died."""
        if self.recorder is not None:
            ended = self.recorder.ended()
            for message in self.recorder.messages():
                self._hear(message)
            if ended:
                self._bury(self.recorder)
        if self.recorder is None and monotonic_ns() >= self._restart_ns:
            self._segment += 1
            self.restarts += 1
            self.begin()

    def ask_edge(self, number: int) -> None:
        """Let the recorder poll all fast counters until they have stepped, at most `edge_s`."""
        if self.recorder is not None:
            self.recorder.send({"do": "edge", "id": number, "within_s": self.options.edge_s})

    def ask_end(self, tail_s: float) -> None:
        """Let the recorder take its last readings and end; asked again, it waits only so long."""
        if not self._finishing:
            self._asked += 1
        self._finishing = True
        self._restart_ns = NEVER_NS
        if self.recorder is not None:
            self.recorder.send({"do": "finish", "tail_s": tail_s, "id": self._asked})

    def kill_stuck(self) -> None:
        """Kill a recorder that has not ended in time."""
        if self.recorder is not None:
            self.tell("the recorder did not end and was killed")
            self.event("recorder-stuck", segment=self._segment)
            self._stuck = True
            self.recorder.kill()
            HostRecording.serve(self)

    def close_log(self) -> None:
        """Close the log of events, and remove logs of recorders that had nothing to say."""
        if self.events is None:
            return
        self.events.close()
        for log in self.folder.glob("*.log"):
            with contextlib.suppress(OSError):
                if log.stat().st_size == 0:
                    log.unlink()

    def event(self, event: str, **fields: Any) -> None:
        """Store an event of the supervisor."""
        if self.events is not None:
            self.events.add(event, **fields)

    def tell(self, problem: str) -> None:
        """Keep a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)
            self.event("problem", what=problem)

    def _plan(self) -> dict[str, Any]:
        options = self.options
        return {
            "host_dir": str(self.folder),
            "segment": self._segment,
            "host": self.host,
            "owner_pid": os.getpid(),
            "owner_start_ticks": read_start_ticks(),
            "meters": None if options.meters is None else list(options.meters),
            "also": list(options.also),
            "period_s": options.period_s,
            "slow_period_s": options.slow_period_s,
            "workload_pid": self._workload_pid,
            "offers": options.offers(self._environ),
            "ready_s": options.open_s,
        }

    def _hear(self, message: Mapping[str, Any]) -> None:
        what = message.get("is")
        if what == "ready":
            self.ready = True
            self.meters = list(message.get("meters", ()))
        elif what == "edge":
            self.edges[int(message["id"])] = bool(message.get("stepped"))
        elif what == "signal":
            self.reported[int(message["number"]), int(message["sender"])] = monotonic_ns()
        elif what == "workload-ended":
            self.ended_ns = int(message["t"])
        elif what == "finished":
            self.finished = True
            if message.get("lost_rows"):
                self.tell(f"{message['lost_rows']} readings could not be written")
            if not message.get("flushed", True):
                self.tell("the recorder ended before everything was on the disk")

    def _bury(self, recorder: RecorderProcess) -> None:
        recorder.close()
        self.recorder = None
        if self.finished or self._stuck or (self._finishing and recorder.status == 0):
            return
        status = _describe_status(recorder.status)
        self.event("recorder-died", segment=self._segment, status=status)
        if not self.ready:
            self.tell(f"the recorder did not start ({status}); see {self.folder / f'recorder.{self._segment}.log'}")
        if not self._finishing:
            self._restart_later()

    def _restart_later(self) -> None:
        now = monotonic_ns()
        healthy = now - self._started_ns > HEALTHY_NS or self.restarts == 0
        self._delay_ns = 0 if healthy else min(max(2 * self._delay_ns, RESTART_FIRST_NS), RESTART_LAST_NS)
        self._restart_ns = now + self._delay_ns


def _describe_status(status: int | None) -> str:
    if status is None or status < 0:
        return "unknown"
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}" if code >= 0 else f"signal {-code}"


class RunRecording(HostRecording):
    """Record a run. `run` is None where no folder could be created; then everything else does nothing.

    In a job of several nodes, `nodes` are the recorders of the other ones.
    """

    def __init__(self, options: RunOptions, command: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(options, get_host_name(environ), environ)
        self.command = list(command)
        self.run: Path | None = None
        self.nodes: JobNodes | None = None
        self._create(command)

    @property
    def fds(self) -> Sequence[int]:
        """Return what to poll."""
        return (*super().fds, *(self.nodes.fds if self.nodes is not None else ()))

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable."""
        return super().due_ns if self.nodes is None else min(super().due_ns, self.nodes.due_ns)

    @property
    def folder(self) -> Path:
        """Return this host's folder in the run."""
        assert self.run is not None
        return host_dir(self.run, self.host)

    def environment(self) -> dict[str, str]:
        """Return the variables by which processes find the run they belong to."""
        return {} if self.run is None else {RUN_VARIABLE: str(self.run), HOST_VARIABLE: self.host}

    def start(self, spawned: Spawned | None = None) -> None:
        """Start the recorder, or go on with one that was spawned already, and those of other nodes."""
        self.begin(spawned)
        count = count_job_nodes(self._environ)
        if self.run is not None and count:
            self.nodes = JobNodes(self, self.run, self._environ, count)

    def serve(self) -> None:
        """Hear what the recorders say; start the one of this host again where it died."""
        super().serve()
        if self.nodes is not None:
            self.nodes.serve()

    def wait_ready(self, wait: Wait) -> None:
        """Wait until all meters are open or have refused, at most `ready_s`; for other nodes as for slow meters."""
        began = monotonic_ns()
        if self.recorder is not None:
            until = began + round(self.options.ready_s * NS)
            if not wait(lambda: self.ready or self.recorder is None, until):
                self.event("recorder-late", after_s=self.options.ready_s)
        nodes = self.nodes
        if nodes is not None:
            if not wait(lambda: nodes.ready, began + round(self.options.nodes_s * NS)):
                self.event("nodes-late", after_s=self.options.nodes_s, missing=nodes.missing)
            nodes.announce()

    def wait_edge(self, wait: Wait) -> None:
        """Wait until all fast counters have stepped, at most `edge_s`."""
        if self.recorder is None or not self.ready:
            return
        self._asked += 1
        asked, nodes = self._asked, self.nodes
        self.ask_edge(asked)
        if nodes is not None:
            nodes.ask_edge(asked)
        until = monotonic_ns() + round((self.options.edge_s + 0.3) * NS)
        wait(lambda: asked in self.edges or self.recorder is None, until)
        if nodes is not None:
            wait(lambda: nodes.has_edge(asked), until)

    def workload(self, pid: int, start_ns: int) -> None:
        """Tell that the workload runs."""
        self._workload_pid = pid
        if self.recorder is not None:
            self.recorder.send({"do": "workload", "pid": pid, "start_ns": start_ns})
        if self.nodes is not None:
            self._asked += 1
            self.nodes.ask_edge(self._asked)
        self.event("workload", pid=pid, start_ns=start_ns)

    def finish(self, wait: Wait, tail_s: float) -> None:
        """Let the recorders take their last readings and end; kill those that do not."""
        nodes = self.nodes
        if nodes is not None:
            nodes.ask_end(tail_s)
        self.ask_end(tail_s)
        until = monotonic_ns() + round((tail_s + self.options.flush_s) * NS)
        wait(lambda: self.recorder is None, until)
        self.kill_stuck()
        if nodes is not None:
            wait(lambda: nodes.ended, until)
            nodes.close()

    def abandon_tail(self) -> None:
        """Cut the wait for the last readings short."""
        self.ask_end(0.0)
        if self.nodes is not None:
            self.nodes.ask_end(0.0)

    def close(self, end: Mapping[str, Any]) -> None:
        """Write `end.json`; the run is closed."""
        if self.nodes is not None:
            self.nodes.close()
        if self.run is None:
            return
        message = "; ".join([*([end["message"]] if end.get("message") else []), *self.problems]) or None
        try:
            end_run(self.run, {**end, "restarts": self.restarts, "message": message})
        except (StoreError, OSError) as error:
            self.problems.append(str(error))
        self.close_log()

    def _create(self, command: Sequence[str]) -> None:
        options = self.options
        meta = {
            "name": options.name,
            "labels": dict(options.labels),
            "command": list(command),
            "joulelab": __version__,
            "python": platform.python_version(),
            "host": self.host,
            "environment": dict(self._environ),
            "options": options.to_json(),
            "started": asdict(read_clock_pair()),
        }
        try:
            self.run = create_run(options.runs.absolute(), meta)
        except Exception as error:  # noqa: BLE001 - the command runs, recorded or not
            told = isinstance(error, (StoreError, OSError))
            self.problems.append(str(error) if told else f"{type(error).__name__}: {error}")
            return
        self.events = EventLog(self.folder / "events.run.jsonl")
