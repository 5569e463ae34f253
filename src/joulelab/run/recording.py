"""Record a run: own its folder, start the recorder of this host, start it again where it died.

No failure here stops a workload: it is stored as a problem of the run, and the workload goes on unrecorded.
"""

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

from joulelab.core.clock import NEVER_NS, NS, monotonic_ns, read_clock_pair
from joulelab.core.errors import StoreError
from joulelab.core.process_identity import RUN_VARIABLE, read_start_ticks
from joulelab.core.version import __version__
from joulelab.run.child_process import start_recorder
from joulelab.run.run_options import HOST_VARIABLE, RunOptions, get_host_name, read_offers
from joulelab.store.calibration_files import EVENT as CALIBRATION
from joulelab.store.calibration_files import load_calibrations
from joulelab.store.run_folder import create_run, end_run, find_host_dir
from joulelab.store.safe_files import open_append

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.run.child_process import ChildProcess
    from joulelab.run.job_nodes import JobNodes

RESTART_FIRST_NS = NS // 2
RESTART_LAST_NS = 300 * NS
# A recorder that lived this long is started again at once, as if it were the first.
HEALTHY_NS = 10 * NS
YOUNG_NS = NS // 10
RETRY_NS = NS // 20  # while a message does not fit into the pipe
PLAN_S = 5.0  # limit for sending the plan; that of hundreds of meters does not fit into the pipe at once
# Kept free for the last events: the end of the workload is written even on a disk that is full by then.
RESERVED_BYTES = 32 << 10
FALLOC_FL_KEEP_SIZE = 1

# Waits until a condition holds or a time (monotonic ns) is reached, serving the recording meanwhile.
Wait = Callable[[Callable[[], bool], int], bool]


class EventLog:
    """Write one event per line. If the disk is full, a line is written again with the next one, and at the end."""

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

    def close(self) -> None:
        """Flush and close."""
        with self._lock:
            self._flush()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # frees the reserved space
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = open_append(self._path)
                with contextlib.suppress(AttributeError):
                    reserve = ctypes.CDLL(None).fallocate
                    reserve.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
                    reserve(self._fd, FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES)  # where it fails, nothing is reserved
            while self._lines:
                del self._lines[: os.write(self._fd, self._lines)]


class HostRecording:
    """Record one host into its folder. Without a log of `events`, nothing is recorded.

    Poll `fds` until `due_ns` and call `serve()`; `ready`, `edges`, `finished` and `reported` then hold the news.
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
        self.recorder: ChildProcess | None = None
        self._environ = environ
        self._segment = 0
        self._started_ns = 0
        self._restart_ns = NEVER_NS
        self._delay_ns = RESTART_FIRST_NS
        self.workload_pid: int | None = None
        self._asked = 0
        self._finishing = False
        self._stuck = False

    @property
    def fds(self) -> Sequence[int]:
        """Return the file descriptors to poll."""
        return self.recorder.fds if self.recorder is not None else ()

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable."""
        if self.recorder is not None and self.recorder.is_behind:
            return monotonic_ns() + RETRY_NS
        return self._restart_ns

    @property
    def folder(self) -> Path:
        """Return this host's folder in the run."""
        raise NotImplementedError

    def lacked_recorder(self, t_ns: int) -> bool:
        """Return whether there was no recorder at a time, or one that had just been started and may have missed it."""
        return self.recorder is None or t_ns - self._started_ns < YOUNG_NS

    def begin(self, recorder: ChildProcess | None = None) -> None:
        """Start the recorder, or use one that was started early, and send it the plan."""
        if self.events is None:
            if recorder is not None:
                recorder.kill()
                recorder.close()
            return
        for lost in self.options.lost if not self._segment else ():
            self.event("meter", status="failed", **lost)
        if not self._segment:
            self._store_calibrations()
        self._started_ns = monotonic_ns()
        self._restart_ns = NEVER_NS
        log = self.folder / f"recorder.{self._segment}.log"
        try:
            self.recorder = recorder or start_recorder(self._environ, log=log)
        except OSError as error:
            self.report_problem(f"the recorder cannot be started ({error.strerror or error})")
            self._restart_later()
            return
        self.recorder.send(self._make_plan(log), within_s=PLAN_S)
        self.event("recorder-started", segment=self._segment)

    def _store_calibrations(self) -> None:
        """Store the calibrations of this host's meters, so that the run can be analysed anywhere."""
        records, problems = load_calibrations(self._environ, self.host)
        for problem in problems:
            self.report_problem(problem)
        for record in records:
            # Readers add the host by the folder of the event, which has another name in a run that was joined.
            fields = {key: value for key, value in record.items() if key != "host"}
            self.event(CALIBRATION, **fields, calibrated_on=record.get("host", ""))

    def serve(self) -> None:
        """Take the recorder's messages; start it again where it died."""
        if self.recorder is not None:
            ended = self.recorder.has_ended()
            self.recorder.flush()
            for message in self.recorder.read_messages():
                self._take_message(message)
            if ended:
                self._handle_end(self.recorder)
        if self.recorder is None and monotonic_ns() >= self._restart_ns:
            self._segment += 1
            self.restarts += 1
            self.begin()

    def ask_edge(self, number: int) -> None:
        """Let the recorder poll all fast counters until they have stepped, at most `edge_s`."""
        if self.recorder is not None:
            self.recorder.send({"do": "edge", "id": number, "within_s": self.options.edge_s})

    def ask_end(self, tail_s: float) -> None:
        """Let the recorder take its last readings and end; asked again, it waits for the new time only."""
        if not self._finishing:
            self._asked += 1
        self._finishing = True
        self._restart_ns = NEVER_NS
        if self.recorder is not None:
            self.recorder.send({"do": "finish", "tail_s": tail_s, "id": self._asked})

    def kill_stuck(self) -> None:
        """Kill a recorder that has not ended in time."""
        if self.recorder is not None:
            self.report_problem("the recorder did not end and was killed")
            self.event("recorder-stuck", segment=self._segment)
            self._stuck = True
            self.recorder.kill()
            HostRecording.serve(self)

    def close_log(self) -> None:
        """Close the log of events, and remove empty logs of recorders."""
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

    def report_problem(self, problem: str) -> None:
        """Store a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)
            self.event("problem", what=problem)

    def _make_plan(self, log: Path) -> dict[str, Any]:
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
            "workload_pid": self.workload_pid,
            "offers": read_offers(self._environ),
            "ready_s": options.open_s,
            "log": str(log),
        }

    def _take_message(self, message: Mapping[str, Any]) -> None:
        kind = message.get("is")
        if kind == "ready":
            self.ready = True
            self.meters = list(message.get("meters", ()))
        elif kind == "edge":
            self.edges[int(message["id"])] = bool(message.get("stepped"))
        elif kind == "signal":
            self.reported[int(message["number"]), int(message["sender"])] = monotonic_ns()
        elif kind == "workload-ended":
            self.ended_ns = int(message["t"])
        elif kind == "finished":
            self.finished = True
            if message.get("lost_rows"):
                self.report_problem(f"{message['lost_rows']} readings could not be written")
            if not message.get("flushed", True):
                self.report_problem("the recorder ended before everything was on the disk")

    def _handle_end(self, recorder: ChildProcess) -> None:
        recorder.close()
        self.recorder = None
        if self.finished or self._stuck or (self._finishing and recorder.status == 0):
            return
        status = _describe_status(recorder.status)
        self.event("recorder-died", segment=self._segment, status=status)
        if not self.ready:
            log = self.folder / f"recorder.{self._segment}.log"
            self.report_problem(f"the recorder did not start ({status}); see {log}")
        if not self._finishing:
            self._restart_later()

    def _restart_later(self) -> None:
        now = monotonic_ns()
        is_healthy = now - self._started_ns > HEALTHY_NS or self.restarts == 0
        self._delay_ns = 0 if is_healthy else min(max(2 * self._delay_ns, RESTART_FIRST_NS), RESTART_LAST_NS)
        self._restart_ns = now + self._delay_ns


def _describe_status(status: int | None) -> str:
    if status is None or status < 0:
        return "unknown"
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}" if code >= 0 else f"signal {-code}"


class RunRecording(HostRecording):
    """Record a run. `run` is None where no folder could be created; then all other methods do nothing.

    In a job of several nodes, `nodes` are the recorders of the other nodes.
    """

    def __init__(self, options: RunOptions, command: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(options, get_host_name(environ), environ)
        self.command = list(command)
        self.run: Path | None = None
        self.nodes: JobNodes | None = None
        self._create_folder(command)

    @property
    def fds(self) -> Sequence[int]:
        """Return the file descriptors to poll."""
        return (*super().fds, *(self.nodes.fds if self.nodes is not None else ()))

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable."""
        return super().due_ns if self.nodes is None else min(super().due_ns, self.nodes.due_ns)

    @property
    def folder(self) -> Path:
        """Return this host's folder in the run."""
        assert self.run is not None
        return find_host_dir(self.run, self.host)

    def environment(self) -> dict[str, str]:
        """Return the variables by which processes find the run they belong to."""
        return {} if self.run is None else {RUN_VARIABLE: str(self.run), HOST_VARIABLE: self.host}

    def start(self, recorder: ChildProcess | None = None) -> None:
        """Start the recorder, or use one that was started early, and the recorders of other nodes."""
        self.begin(recorder)
        if self.run is not None and "SLURM_JOB_ID" in self._environ:
            from joulelab.run.job_nodes import JobNodes, count_job_nodes

            count = count_job_nodes(self._environ)
            self.nodes = JobNodes(self, self.run, self._environ, count) if count else None

    def serve(self) -> None:
        """Take the recorders' messages; start the recorder of this host again where it died."""
        super().serve()
        if self.nodes is not None:
            self.nodes.serve()

    def wait_ready(self, wait: Wait) -> None:
        """Wait until all meters are open or have failed, at most `ready_s`, and at most `nodes_s` for other nodes."""
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

    def record_idle(self, wait: Wait, is_cut_short: Callable[[], bool]) -> None:
        """Record the idle node for `idle_s` before the workload."""
        if self.options.idle_s > 0:
            begin = monotonic_ns()
            wait(is_cut_short, begin + round(self.options.idle_s * NS))
            self.event("idle", **{"from": begin, "to": monotonic_ns()})

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

    def note_workload(self, pid: int, start_ns: int) -> None:
        """Store the start of the workload, and announce it to the recorders."""
        self.workload_pid = pid
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

    def cut_tail(self) -> None:
        """Cut the wait for the last readings short."""
        self.ask_end(0.0)
        if self.nodes is not None:
            self.nodes.ask_end(0.0)

    def close(self, end: Mapping[str, Any]) -> None:
        """Kill recorders that are left and write `end.json`; the run is closed."""
        if self.recorder is not None:
            self.recorder.kill()
            self.recorder.close()
            self.recorder = None
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

    def _create_folder(self, command: Sequence[str]) -> None:
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
            is_worded = isinstance(error, (StoreError, OSError))
            self.problems.append(str(error) if is_worded else f"{type(error).__name__}: {error}")
            return
        self.events = EventLog(self.folder / "events.run.jsonl")
