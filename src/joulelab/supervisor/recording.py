"""Own a run folder and the recorder that fills it. Nothing that goes wrong here stops a workload: it is told."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, clock_pair, monotonic_ns
from joulelab.core.errors import RecorderError, StoreError
from joulelab.core.process import start_ticks
from joulelab.core.version import __version__
from joulelab.store.folder import create_run, end_run, host_dir
from joulelab.supervisor.events import EventLog
from joulelab.supervisor.options import HOST, RUN, RunOptions, host_name
from joulelab.supervisor.recorder_process import RecorderProcess

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.supervisor.spawn import Spawned

NEVER_NS = 1 << 62
RESTART_FIRST_NS = NS // 2
RESTART_LAST_NS = 300 * NS
# A recorder that lived this long is started again at once, as if it were the first.
HEALTHY_NS = 10 * NS
YOUNG_NS = NS // 10

# Waits until a condition holds or a time (monotonic ns) is reached, serving the recording meanwhile.
Wait = Callable[[Callable[[], bool], int], bool]


class Recording:
    """Record a run. `run` is None where no folder could be created; then everything else does nothing.

    Poll `fds` until `due_ns` and call `serve()`; `ready`, `edges`, `finished` and `reported` then tell what happened.
    """

    def __init__(self, options: RunOptions, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.options = options
        self.command = list(command)
        self.host = host_name()
        self.run: Path | None = None
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
        self._create(command)

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
        assert self.run is not None
        return host_dir(self.run, self.host)

    def lacked_recorder(self, t_ns: int) -> bool:
        """Return whether there is no recorder, or there may have been none at a time because it was just started."""
        return self.recorder is None or t_ns - self._started_ns < YOUNG_NS

    def environment(self) -> dict[str, str]:
        """Return the variables by which processes find the run they belong to."""
        return {} if self.run is None else {RUN: str(self.run), HOST: self.host}

    def start(self, spawned: Spawned | None = None) -> None:
        """Start the recorder, or go on with one that was spawned already."""
        if self.run is None:
            if spawned is not None:
                spawned.dismiss()
            return
        self._started_ns = monotonic_ns()
        self._restart_ns = NEVER_NS
        log = self.folder / f"recorder.{self._segment}.log"
        try:
            self.recorder = RecorderProcess(self._plan(), self._environ, log, spawned)
        except RecorderError as error:
            self._tell(str(error))
            self._restart_later()
            return
        self.events.add("recorder-started", segment=self._segment)

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
            self.start()

    def wait_ready(self, wait: Wait) -> None:
        """Wait until all meters are open or have refused, at most `ready_s`."""
        if self.recorder is None:
            return
        until = monotonic_ns() + round(self.options.ready_s * NS)
        if not wait(lambda: self.ready or self.recorder is None, until):
            self.event("recorder-late", after_s=self.options.ready_s)

    def wait_edge(self, wait: Wait) -> None:
        """Wait until all fast counters have stepped, at most `edge_s`."""
        if self.recorder is None or not self.ready:
            return
        self._asked += 1
        asked, within = self._asked, self.options.edge_s
        self.recorder.send({"do": "edge", "id": asked, "within_s": within})
        wait(lambda: asked in self.edges or self.recorder is None, monotonic_ns() + round((within + 0.3) * NS))

    def workload(self, pid: int, start_ns: int) -> None:
        """Tell that the workload runs."""
        self._workload_pid = pid
        if self.recorder is not None:
            self.recorder.send({"do": "workload", "pid": pid, "start_ns": start_ns})
        self.event("workload", pid=pid, start_ns=start_ns)

    def finish(self, wait: Wait, tail_s: float) -> None:
        """Let the recorder take its last readings and end; kill it if it does not."""
        self._finishing = True
        self._restart_ns = NEVER_NS
        if self.recorder is not None:
            self._asked += 1
            self.recorder.send({"do": "finish", "tail_s": tail_s, "id": self._asked})
            wait(lambda: self.recorder is None, monotonic_ns() + round((tail_s + self.options.flush_s) * NS))
        if self.recorder is not None:
            self._tell("the recorder did not end and was killed")
            self.event("recorder-stuck", segment=self._segment)
            self._stuck = True
            self.recorder.kill()
            self.serve()

    def abandon_tail(self) -> None:
        """Cut the wait for the last readings short."""
        if self.recorder is not None:
            self.recorder.send({"do": "finish", "tail_s": 0.0, "id": self._asked})

    def close(self, end: Mapping[str, Any]) -> None:
        """Write `end.json`; the run is closed."""
        if self.run is None:
            return
        message = "; ".join([*([end["message"]] if end.get("message") else []), *self.problems]) or None
        try:
            end_run(self.run, {**end, "restarts": self.restarts, "message": message})
        except (StoreError, OSError) as error:
            self.problems.append(str(error))
        self.events.close()
        for log in self.folder.glob("recorder.*.log"):
            with contextlib.suppress(OSError):
                if log.stat().st_size == 0:
                    log.unlink()

    def event(self, event: str, **fields: Any) -> None:
        """Store an event of the supervisor."""
        if self.run is not None:
            self.events.add(event, **fields)

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
            "started": asdict(clock_pair()),
        }
        try:
            self.run = create_run(options.runs.absolute(), meta)
        except Exception as error:  # noqa: BLE001 - the command runs, recorded or not
            told = isinstance(error, (StoreError, OSError))
            self.problems.append(str(error) if told else f"{type(error).__name__}: {error}")
            return
        self.events = EventLog(self.folder / "events.run.jsonl")

    def _plan(self) -> dict[str, Any]:
        options = self.options
        return {
            "host_dir": str(self.folder),
            "segment": self._segment,
            "host": self.host,
            "owner_pid": os.getpid(),
            "owner_start_ticks": start_ticks(),
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
                self._tell(f"{message['lost_rows']} readings could not be written")
            if not message.get("flushed", True):
                self._tell("the recorder ended before everything was on the disk")

    def _bury(self, recorder: RecorderProcess) -> None:
        recorder.close()
        self.recorder = None
        if self.finished or self._stuck or (self._finishing and recorder.status == 0):
            return
        status = _describe(recorder.status)
        self.event("recorder-died", segment=self._segment, status=status)
        if not self.ready:
            self._tell(f"the recorder did not start ({status}); see {self.folder / f'recorder.{self._segment}.log'}")
        if not self._finishing:
            self._restart_later()

    def _restart_later(self) -> None:
        now = monotonic_ns()
        healthy = now - self._started_ns > HEALTHY_NS or self.restarts == 0
        self._delay_ns = 0 if healthy else min(max(2 * self._delay_ns, RESTART_FIRST_NS), RESTART_LAST_NS)
        self._restart_ns = now + self._delay_ns

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            self.event("problem", what=problem)


def _describe(status: int | None) -> str:
    if status is None or status < 0:
        return "unknown"
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}" if code >= 0 else f"signal {-code}"
