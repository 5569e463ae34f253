"""Give a job of Slurm's accounting as an archive: energy of the job and of its steps, its interval, its doubts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.clock import NS, utc_now_ns
from joulelab.core.errors import MeterError, Unavailable
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.meters.slurm.rows import Energy, energy_of, live_energy, shared_with, why_not
from joulelab.meters.wall import stated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.meters.slurm.job import Finder
    from joulelab.meters.slurm.rows import Component
    from joulelab.transports.slurm import AccountingRow, Slurm

# A total is known at the job's own edges and nowhere else: how far those are off is in the quantum, see `_accuracy`.
_AT_ITS_EDGES_S = 1e-9


class Interval(NamedTuple):
    """Hold when a job ran; Slurm's times are whole seconds."""

    start_utc_ns: int
    end_utc_ns: int


class Step(NamedTuple):
    """Hold when a step ran."""

    name: str
    start_utc_ns: int
    end_utc_ns: int


class JobArchive:
    """Fetch one job: `interval`, `facts` (for a run's labels), `steps` (for its phases), and `fetch()`.

    The stream of the scope `job` has two rows of a counter: 0 J at the start and the energy at the end; steps have
    theirs in `job/STEP` (`job/batch`, `job/0`; `job/+1.0` in a heterogeneous job). Without an energy both rows are
    NaN and a gap says why. Of a job that runs, the energy so far is given, and `fetch` asks again.
    """

    def __init__(
        self, slurm: Slurm, finder: Finder, config: Mapping[str, Any], now: Callable[[], int] = utc_now_ns
    ) -> None:
        """Find the job. Raises MeterError, ConfigError."""
        self._slurm = slurm
        self._finder = finder
        self._config = config
        self._now = now
        self._sampling = finder.sampling
        self._name: str | None = None
        self._load()

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:  # noqa: ARG002 a job is one piece
        """Return the job and its steps, whatever part of it is asked for. Raises MeterError."""
        if self._found.running:
            self._load()
        return self._fetched

    def close(self) -> None:
        """Do nothing: programs run only while they are asked."""

    def _load(self) -> None:
        self._found = self._finder.find()
        started = [c for c in self._found.components if c.row.start_ns is not None and c.row.nodes]
        if not started:
            state = self._found.components[0].row.state
            why = f"it is {state} and was never given a node"
            raise Unavailable(
                f"job {self._finder.job} did not run", where=self._finder.where, why=why, next="name another"
            )
        read = self._now()
        ends = [c.row.end_ns if c.row.end_ns is not None else read for c in started]
        self.interval = Interval(min(c.row.start_ns or 0 for c in started), max(ends))
        self.steps = [step for c in started for row in c.steps if (step := _step(c, row, read)) is not None]
        self._energy = self._total(started)
        self.facts = self._facts(started)
        self._fetched = self._streams(started, read)

    def _total(self, components: Sequence[Component]) -> Energy:
        """Add the energies of all components; without one of them there is no sum."""
        energies = [self._of(component) for component in components]
        missing = [energy for energy in energies if energy.joules is None]
        doubts = tuple(doubt for energy in energies for doubt in energy.doubts)
        if missing:
            return Energy(None, reason="; ".join(energy.reason for energy in missing), doubts=doubts)
        rows = sorted({energy.row for energy in energies})
        return Energy(sum(energy.joules or 0 for energy in energies), " and ".join(rows), doubts=doubts)

    def _of(self, component: Component) -> Energy:
        if not self._found.running or component.row.end_ns is not None:
            return energy_of(component, self._sampling)
        try:
            return live_energy(component, self._slurm.live(component.row.raw))
        except MeterError as error:
            return Energy(None, reason=str(error))

    def _facts(self, components: Sequence[Component]) -> dict[str, Any]:
        if self._name is None:
            self._name = self._slurm.job_name(components[0].row.job)
        first, sampling = components[0].row, self._sampling
        return {
            "job": self._finder.job,
            "name": self._name,
            "user": first.user,
            "state": "RUNNING" if self._found.running else first.state,
            "exit_code": first.exit_code,
            "nodes": _nodes(components),
            "node_count": sum(component.row.node_count for component in components),
            "elapsed_s": (self.interval.end_utc_ns - self.interval.start_utc_ns) // NS,
            "plugin": sampling.plugin.name,
            "covers": sampling.plugin.covers,
            "frequency_s": sampling.frequency_s,
            "row": self._energy.row,
        }

    def _streams(self, components: Sequence[Component], read: int) -> list[Fetched]:
        host, start, end = _nodes(components), *self.interval
        job = self._stream("job", None, self._energy.joules, (start, end))
        events = [_problem(start, text) for text in self._problems(components)]
        fetched = [_fetched(job, (start, end), self._energy.joules, self._energy.reason, host, events)]
        for component in components:
            for row in component.steps:
                step = _step(component, row, read)
                if step is None:
                    continue
                running = self._found.running and row.end_ns is None
                reason = "it runs" if running else why_not(row, self._sampling)
                joules = None if reason else row.energy_j
                stream = self._stream(f"job/{step.name}", "job", joules, step[1:])
                fetched.append(_fetched(stream, step[1:], joules, reason, host, ()))
        return fetched

    def _problems(self, components: Sequence[Component]) -> list[str]:
        problems = [*self._found.doubts, *self._energy.doubts]
        if self._found.running:
            problems.append("the job still runs: this is its energy so far")
        if not self._sampling.told:
            problems.append(
                f"nothing tells how often the meter is looked at: {self._sampling.frequency_s:g} s are taken"
            )
        for component in components:
            problems += self._sharing(component)
        return problems

    def _sharing(self, component: Component) -> list[str]:
        """Say who else was on the nodes: Slurm charges every job the whole node."""
        row = component.row
        end = row.end_ns if row.end_ns is not None else self.interval.end_utc_ns
        if row.start_ns is None or not row.nodes:
            return []
        try:
            others = shared_with(component, self._slurm.others(row.nodes, row.start_ns, end), end)
        except MeterError as error:
            return [f"whether others were on {row.nodes} is not known: {error}"]
        if others:
            listed = ", ".join(f"{raw} ({seconds:.0f} s)" for raw, seconds in list(others.items())[:5])
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            text = "its energy is that of whole nodes, theirs included; use --exclusive"
            return [f"job {row.job} shared {row.nodes} with {listed}{more}: {text}"]
        if self._found.controller.get("OverSubscribe") == "YES":
            return [f"job {row.job} allowed others on {row.nodes} (OverSubscribe=YES); none was found"]
        if self._sampling.private:
            return [f"whether others were on {row.nodes} cannot be seen: this cluster hides jobs (PrivateData)"]
        return []

    def _stream(self, scope: str, parent: str | None, joules: int | None, times: tuple[int, ...]) -> Stream:
        span = max((times[1] - times[0]) / NS, 1.0)
        spec = Spec("energy_j", "energy", "J", "counter", _AT_ITS_EDGES_S, accuracy=self._accuracy(joules, span))
        plugin = self._sampling.plugin
        return Stream(scope, "job", scope, span, (spec,), parent, device=self._finder.job, model=f"slurm {plugin.name}")

    def _accuracy(self, joules: int | None, span_s: float) -> Accuracy:
        """Return the accuracy of a total: gain of the meter, and as its step the energy of one look at usual power."""
        watts = (joules or 0) / span_s
        accuracy = stated(self._config, self._sampling.plugin.accuracy(1.0 + watts * self._sampling.edge_s))
        if not accuracy.offset:
            return accuracy
        # An offset is in W of a node: for an energy it is a share of the power.
        return replace(accuracy, offset=0.0, gain=accuracy.gain + (accuracy.offset / watts if watts else 0.0))


def _step(component: Component, row: AccountingRow, now: int) -> Step | None:
    if row.start_ns is None:
        return None
    part = component.row.part
    name = f"+{part}.{row.step}" if part else row.step
    return Step(name, row.start_ns, row.end_ns if row.end_ns is not None else max(now, row.start_ns))


def _nodes(components: Sequence[Component]) -> str:
    return ",".join(dict.fromkeys(component.row.nodes for component in components if component.row.nodes))


def _fetched(
    stream: Stream, times: tuple[int, ...], joules: int | None, reason: str, host: str, events: Sequence[dict[str, Any]]
) -> Fetched:
    start, end = times
    if joules is None:
        gap = {"meter": "slurm", "stream": stream.name}
        told = [{"t": start, "event": "gap", **gap, "reason": reason, "error": "ReadFailed"}]
        told.append({"t": end, "event": "gap-end", **gap})
        return Fetched(stream, ((start, start, (math.nan,)), (end, end, (math.nan,))), host, (*events, *told))
    return Fetched(stream, ((start, start, (0.0,)), (end, end, (float(joules),))), host, tuple(events))


def _problem(t: int, what: str) -> dict[str, Any]:
    return {"t": t, "event": "problem", "meter": "slurm", "what": what}
