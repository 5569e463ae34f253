"""Own the recorder of one host: start it, hear it, start it again where it died. Nothing stops a workload here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import RecorderError
from joulelab.core.process import read_start_ticks
from joulelab.run.recorder_process import RecorderProcess

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.run.events import EventLog
    from joulelab.run.run_options import RunOptions
    from joulelab.run.spawn import Spawned

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
