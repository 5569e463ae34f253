"""Own a run folder and the recorders that fill it. Nothing that goes wrong here stops a workload: it is told."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_clock_pair
from joulelab.core.errors import StoreError
from joulelab.core.version import __version__
from joulelab.run.events import EventLog
from joulelab.run.host import HostRecording
from joulelab.run.job_nodes import JobNodes, count_job_nodes
from joulelab.run.run_options import HOST_VARIABLE, RUN_VARIABLE, RunOptions, get_host_name
from joulelab.store.folder import create_run, end_run, host_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.run.host import Wait
    from joulelab.run.spawn import Spawned


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
