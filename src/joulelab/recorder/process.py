"""Run the recorder: read the plan, sample, follow commands, and end on request or when the owner has ended."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_boot_id
from joulelab.recorder.clocks import ClockWatch
from joulelab.recorder.meter_thread import MeterThread
from joulelab.recorder.owner import Owner
from joulelab.recorder.requests import EDGE_S, Answer, Request
from joulelab.recorder.signals import read_signals
from joulelab.recorder.writer import WRITE_NS, Watchdog, Writer

if TYPE_CHECKING:
    from joulelab.recorder.plan import MeterPlan, Plan
    from joulelab.recorder.rows import RowQueue
    from joulelab.recorder.sampling import Event

LATE_NS = 60 * NS
# How long after its bound a sampling thread may still be waited for, and how long the disk at the end.
GRACE_NS = NS // 4
FLUSH_NS = 5 * NS
CLOSED_NS = NS // 2
NEVER_NS = 1 << 62


class Waiting:
    """Count the answers that a command still needs."""

    def __init__(self, request: Request, threads: list[MeterThread]) -> None:
        self.request = request
        self.missing = len(threads)
        self.stepped = True
        self.until_ns = request.until_ns + GRACE_NS


class Recorder:
    """Own the threads of a recording. `commands`, `status` and `signals` are file descriptors."""

    def __init__(self, plan: Plan, *, commands: int, status: int, signals: int) -> None:
        self.plan = plan
        self.events: list[Event] = []
        self._commands, self._status, self._signals = commands, status, signals
        self._input = b""
        self._owner = Owner(plan.owner_pid, plan.owner_start_ticks)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stop_writer = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._answers: deque[Answer] = deque()
        header = {"segment": plan.segment, "host": plan.host, "boot_id": read_boot_id()}
        self.writer = Writer(plan.host_dir, header, self.events, hidden=plan.hidden())
        self.clock = ClockWatch(self.events)
        self._flushed = False
        self._ready_ns = monotonic_ns() + round(plan.ready_s * NS)
        self._late_ns = monotonic_ns() + LATE_NS
        self._ready = False
        self._closed_ns = NEVER_NS
        self._pid = plan.workload_pid
        self._poll = select.poll()
        self._workload_fd = -1
        self._waiting: list[Waiting] = []
        self.threads: list[MeterThread] = []

    def start(self) -> None:
        """Start all threads."""
        self.clock.take()
        for wanted in self._wanted():
            thread = MeterThread(self.plan, wanted, self.events, add_tables=self._add_tables, done=self._answer)
            self.threads.append(thread)
            if self._pid is not None:
                thread.inbox.put(self._follow(self._pid))
        for thread in self.threads:
            thread.start()
        threading.Thread(target=self._write, name="writer", daemon=True).start()

    def run(self) -> None:
        """Serve until there is a reason to stop, then write everything to the disk."""
        reason = ""
        poll = self._poll
        for fd in (self._commands, self._bell, self._signals, *self._owner.fds):
            poll.register(fd, select.POLLIN)
        if self._pid is not None:
            self._watch(self._pid)
        self._announce()
        while not reason:
            ready = dict(poll.poll(self._patience_ms()))
            if self._workload_fd in ready:
                self._tell_end()
            if self._signals in ready:
                self._report_signals()
            if self._bell in ready:
                os.eventfd_read(self._bell)
            if self._commands in ready and not self._read_commands():
                # A dying owner closes its files before it is gone: give it the time to be seen as such.
                poll.unregister(self._commands)
                self._closed_ns = monotonic_ns() + CLOSED_NS
            self._settle()
            finished = next((w for w in self._waiting if w.request.what == "finish"), None)
            if finished is not None and self._is_over(finished):
                reason = "asked"
            elif self._owner.ended():
                reason = "owner-ended"
            elif monotonic_ns() >= self._closed_ns:
                reason = "owner-closed"
            self._announce()
        self._end(reason)

    def _watch(self, pid: int) -> None:
        """Watch for the end of the workload, because a busy owner may notice it late."""
        if pid != self.plan.owner_pid and self._workload_fd < 0:
            try:
                self._workload_fd = os.pidfd_open(pid)
            except (OSError, AttributeError):
                return
            self._poll.register(self._workload_fd, select.POLLIN)

    def _tell_end(self) -> None:
        self._say({"is": "workload-ended", "t": monotonic_ns()})
        self._poll.unregister(self._workload_fd)
        os.close(self._workload_fd)
        self._workload_fd = -1

    def _wanted(self) -> list[MeterPlan]:
        try:
            return self.plan.all_meters()
        except Exception as error:  # noqa: BLE001 - a record without meters still tells how long a run took
            status = {"meter": "", "status": "failed", "what": f"{type(error).__name__}: {error}"}
            self.events.append({"t": monotonic_ns(), "event": "meter", **status, "why": "", "next": ""})
            return []

    def _add_tables(self, tables: list[RowQueue]) -> None:
        self.writer.tables.extend(tables)  # by several threads at once: replacing the list could lose some

    def _answer(self, answer: Answer) -> None:
        """Store the answer of a sampling thread and wake the main thread."""
        if answer.request is not None:
            self._answers.append(answer)
        os.eventfd_write(self._bell, 1)

    def _write(self) -> None:
        watchdog = Watchdog(self.events)
        while not select.select([self._stop_writer], (), (), WRITE_NS / NS)[0]:
            try:
                self.clock.look()
                watchdog.look([t.sampler for t in self.threads if t.sampler is not None])
                self.writer.write()
            except Exception:  # noqa: BLE001 - to the log; the next round may work
                sys.excepthook(*sys.exc_info())
        try:
            self.writer.close()
            self._flushed = True
        except Exception:  # noqa: BLE001 - to the log; the owner is told that not everything is on the disk
            sys.excepthook(*sys.exc_info())
        os.eventfd_write(self._bell, 1)

    def _patience_ms(self) -> int:
        now = monotonic_ns()
        until = min(
            [self._late_ns, self._closed_ns, now + self._owner.patience_ns, *(w.until_ns for w in self._waiting)]
        )
        if not self._ready:
            until = min(until, self._ready_ns)
        return max(0, -(-(until - now) // 1_000_000))

    def _report_signals(self) -> None:
        for number, _, sender in read_signals(self._signals):
            self._say({"is": "signal", "number": number, "sender": sender})

    def _read_commands(self) -> bool:
        data = os.read(self._commands, 65536)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._obey(json.loads(line))
        return bool(data)

    def _obey(self, command: dict[str, Any]) -> None:
        what, now = command.get("do"), monotonic_ns()
        number = int(command.get("id", 0))
        if what == "edge":
            within = float(command.get("within_s", EDGE_S))
            self._ask(Request("edge", now + round(within * NS), id=number))
        elif what == "workload":
            self._pid = int(command["pid"])
            self._watch(self._pid)
            self._ask(self._follow(self._pid))
        elif what == "finish":
            tail_s = float(command.get("tail_s", 0.3))
            self._ask(Request("finish", now + round(tail_s * NS), tail_s=tail_s, id=number))

    def _follow(self, pid: int) -> Request:
        return Request("follow", monotonic_ns() + round(EDGE_S * NS), pid=pid)

    def _ask(self, request: Request) -> None:
        asked = [t for t in self.threads if not t.ended]
        for thread in asked:
            thread.inbox.put(request)
        if request.what in ("edge", "finish"):
            # A meter that is not open yet has no edge to wait for.
            self._waiting.append(Waiting(request, [t for t in asked if t.sampler is not None]))

    def _settle(self) -> None:
        while self._answers:
            request, stepped = self._answers.popleft()
            for waiting in self._waiting:
                if waiting.request is request:
                    waiting.missing -= 1
                    waiting.stepped &= stepped
        for waiting in [w for w in self._waiting if w.request.what == "edge" and self._is_over(w)]:
            self._waiting.remove(waiting)
            stepped = waiting.stepped and waiting.missing <= 0
            self._say({"is": "edge", "id": waiting.request.id, "stepped": stepped})

    def _is_over(self, waiting: Waiting) -> bool:
        return waiting.missing <= 0 or monotonic_ns() >= waiting.until_ns

    def _announce(self) -> None:
        now = monotonic_ns()
        if not self._ready and (now >= self._ready_ns or all(t.status for t in self.threads)):
            self._ready = True
            opening = {"status": "opening", "streams": 0, "what": "", "why": "it has not answered yet", "next": ""}
            meters = [t.status or {"meter": t.name, **opening} for t in self.threads]
            late = (m for m in meters if m["status"] == "opening")
            self.events += [{"t": now, "event": "meter", **m} for m in late]
            self._say({"is": "ready", "meters": meters})
        if now >= self._late_ns:
            self._late_ns = now + LATE_NS
            self._summarise()

    def _summarise(self) -> None:
        for thread in self.threads:
            if thread.sampler is not None:
                counts = thread.sampler.take_counts()
                self.events.append({"t": monotonic_ns(), "event": "late", "meter": thread.name, **counts})

    def _end(self, reason: str) -> None:
        for thread in self.threads:
            thread.inbox.put(Request("stop"))
        # Meters close in their threads; one that hangs is left behind by the exit of the process.
        self._until(lambda: all(t.ended for t in self.threads), GRACE_NS)
        self._summarise()
        self.clock.take()
        self.events.append({"t": monotonic_ns(), "event": "stop", "reason": reason, "alive_ns": self._owner.alive_ns})
        os.eventfd_write(self._stop_writer, 1)
        self._until(lambda: self._flushed, FLUSH_NS)
        asked = next((w.request.id for w in self._waiting if w.request.what == "finish"), None)
        lost = self.writer.dropped + self.writer.waiting
        self._say({"is": "finished", "id": asked, "lost_rows": lost, "flushed": self._flushed})

    def _until(self, condition: Any, bound_ns: int) -> None:
        until = monotonic_ns() + bound_ns
        while not condition() and (left := until - monotonic_ns()) > 0:
            if select.select([self._bell], (), (), left / NS)[0]:
                os.eventfd_read(self._bell)

    def _say(self, message: dict[str, Any]) -> None:
        # The pipe does not block: an owner that does not listen must not hold up the recording.
        try:
            os.write(self._status, self.writer.line(message))
        except OSError:
            return
