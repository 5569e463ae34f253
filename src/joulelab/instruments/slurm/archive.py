"""Give a job of Slurm's accounting as an archive: energy of the job and of its steps, its interval, its doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import MeterError, Unavailable
from joulelab.instruments.slurm.rows import Energy, energy_of, live_energy, shared_with, total_of, why_not
from joulelab.instruments.slurm.told import fetched_of, nodes_of, problem, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Fetched, Stream
    from joulelab.instruments.slurm.client import AccountingRow, Slurm
    from joulelab.instruments.slurm.job import Finder
    from joulelab.instruments.slurm.plugins import Sampling
    from joulelab.instruments.slurm.rows import Component


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
    NaN and a gap says why. Of a job that runs, the energy so far is given, and `fetch` asks again. `components`,
    `sampling`, `problems` (sentences, which are events of the job's stream) and `running` are what that is made of.
    """

    def __init__(
        self, slurm: Slurm, finder: Finder, config: Mapping[str, Any], now: Callable[[], int] = read_utc_ns
    ) -> None:
        """Find the job. Raises MeterError, ConfigError."""
        self._slurm = slurm
        self._finder = finder
        self._config = config
        self._now = now
        self.sampling: Sampling = finder.sampling
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
        self.components, self.running = started, self._found.running
        self.facts = self._facts(started)
        self.problems = self._problems(started)
        self._fetched = self._streams(started, read)

    def _total(self, components: Sequence[Component]) -> Energy:
        """Add the energies of all components; without one of them there is no sum."""
        return total_of([self._of(component) for component in components])

    def _of(self, component: Component) -> Energy:
        if not self._found.running or component.row.end_ns is not None:
            return energy_of(component, self.sampling)
        try:
            return live_energy(component, self._slurm.live(component.row.raw))
        except MeterError as error:
            return Energy(None, reason=str(error))

    def _facts(self, components: Sequence[Component]) -> dict[str, Any]:
        if self._name is None:
            self._name = self._slurm.job_name(components[0].row.job)
        first, sampling = components[0].row, self.sampling
        return {
            "job": self._finder.job,
            "name": self._name,
            "user": first.user,
            "state": "RUNNING" if self._found.running else first.state,
            "exit_code": first.exit_code,
            "nodes": nodes_of(components),
            "node_count": sum(component.row.node_count for component in components),
            "elapsed_s": (self.interval.end_utc_ns - self.interval.start_utc_ns) // NS,
            "plugin": sampling.plugin.name,
            "covers": sampling.plugin.covers,
            "frequency_s": sampling.frequency_s,
            "row": self._energy.row,
        }

    def _streams(self, components: Sequence[Component], read: int) -> list[Fetched]:
        host, start, end = nodes_of(components), *self.interval
        job = self._stream("job", None, self._energy.joules, (start, end))
        events = [problem(start, text) for text in (*self._energy.doubts, *self.problems)]
        fetched = [fetched_of(job, (start, end), self._energy.joules, self._energy.reason, host, events)]
        for component in components:
            for row in component.steps:
                step = _step(component, row, read)
                if step is None:
                    continue
                running = self._found.running and row.end_ns is None
                reason = "it runs" if running else why_not(row, self.sampling)
                joules = None if reason else row.energy_j
                stream = self._stream(f"job/{step.name}", "job", joules, step[1:])
                fetched.append(fetched_of(stream, step[1:], joules, reason, host, ()))
        return fetched

    def _stream(self, scope: str, parent: str | None, joules: int | None, times: tuple[int, ...]) -> Stream:
        return stream_of(scope, parent, joules, times, self.sampling, device=self._finder.job, config=self._config)

    def _problems(self, components: Sequence[Component]) -> list[str]:
        """Return what is to be said of the job, whichever row is taken."""
        problems = [*self._found.doubts]
        if self._found.running:
            problems.append("the job still runs: this is its energy so far")
        if not self.sampling.told:
            problems.append(
                f"nothing tells how often the meter is looked at: {self.sampling.frequency_s:g} s are taken"
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
        if self.sampling.private:
            return [f"whether others were on {row.nodes} cannot be seen: this cluster hides jobs (PrivateData)"]
        return []


def _step(component: Component, row: AccountingRow, now: int) -> Step | None:
    if row.start_ns is None:
        return None
    part = component.row.part
    name = f"+{part}.{row.step}" if part else row.step
    return Step(name, row.start_ns, row.end_ns if row.end_ns is not None else max(now, row.start_ns))
