"""Read a job of Slurm's accounting that ended: find its execution, and give its energy, its steps and its doubts."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.instruments.slurm.client import expand_nodes
from joulelab.instruments.slurm.energies import (
    NO_STEPS,
    Execution,
    choose_energy,
    explain_no_energy,
    explain_sharing,
    group_rows,
    has_energy,
)
from joulelab.instruments.wall import feeds_of, stated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.instruments.slurm.client import AccountingRow, OtherJob, SlurmClient
    from joulelab.instruments.slurm.energies import JobEnergy, KnownSteps, Sampling

POLL_S = 0.25
RECENT_S = 30.0
# A total is known at the job's own edges and nowhere else: the error of these is in the quantum, see `_find_accuracy`.
_AT_ITS_EDGES_S = 1e-9
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_RUNS = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING")
_ACTIVE = (*_WAITS, *_RUNS, "COMPLETING", "STAGE_OUT")


class JobStep(NamedTuple):
    """Hold begin and end of a step."""

    name: str
    start_utc_ns: int
    end_utc_ns: int


@dataclass(frozen=True, slots=True)
class FoundJob:
    """Hold an execution of a job, whether it runs, doubts in sentences, and the controller's description."""

    execution: Execution
    running: bool
    doubts: tuple[str, ...]
    controller: dict[str, str]


@dataclass(frozen=True, slots=True)
class JobFinder:
    """Find one job; wait up to `settle_s` for rows that the database does not have yet.

    `attempt` counts executions of a requeued job from 1, None is the last.
    """

    slurm: SlurmClient
    job: str
    where: str
    sampling: Sampling
    settle_s: float = 10.0
    attempt: int | None = None
    now: Callable[[], int] = monotonic_ns
    sleep: Callable[[float], None] = time.sleep
    utc: Callable[[], int] = read_utc_ns

    def find_execution(self) -> FoundJob:
        """Return the job. Raises Unavailable, ReadFailed, Denied, ConfigError."""
        began = self.now()
        while True:
            rows = self.slurm.read_rows([self.job])
            found, doubts = self._choose_execution(rows)
            settled = found is not None and is_settled(found)
            known = self.slurm.read_job(self.job)
            state, waited_s = known.get("JobState", ""), (self.now() - began) / NS
            if found is not None and settled and self._has_final_energy(found):
                late = [f"the database had the job's end only after {waited_s:.1f} s"] if waited_s > 2 else []
                return FoundJob(found, running=False, doubts=(*doubts, *late), controller=known)
            if found is not None and not settled and state in _RUNS and _has_nodes(found):
                return FoundJob(found, running=True, doubts=tuple(doubts), controller=known)
            if not known and found is None:
                why = "it has no row of its own in the database" if rows else "neither database nor controller has it"
                advice, code = "see sacct -S now-30days, and on which cluster it ran", "unavailable.unknown-job"
                raise Unavailable(f"there is no job {self.job}", where=self.where, why=why, next=advice, code=code)
            if state in _WAITS and not settled:
                why = f"it is {state}" + ("; attempt = 1 is its first execution" if len(rows) > 1 else "")
                what, code = f"job {self.job} does not run yet", "unavailable.not-started"
                raise Unavailable(what, where=self.where, why=why, next="wait for its end", code=code)
            if waited_s >= self.settle_s:
                return self._accept_unsettled(found, doubts, known)
            self.sleep(POLL_S)

    def _has_final_energy(self, execution: Execution) -> bool:
        """Return whether no energy is still to come: for a moment the rows of a job that ended are 0."""
        if self.sampling.plugin.name == "none" or self.utc() - (execution.row.end_ns or 0) > RECENT_S * NS:
            return True
        return has_energy(execution, self.sampling)

    def _accept_unsettled(self, found: Execution | None, doubts: Sequence[str], known: dict[str, str]) -> FoundJob:
        """Return a job after the wait if its own row is final; the energy of its steps may be incomplete then."""
        what = f"the database does not have the end of job {self.job} after {self.settle_s:g} s"
        if found is not None and is_final(found.row):
            unfinished = [f"{found.row.job}.{row.step}" for row in found.steps if not is_final(row)]
            doubt = f"{what}: {', '.join(unfinished)} still counts as running there, so its energy may be incomplete"
            if not unfinished:
                doubt = f"it ended less than {RECENT_S:.0f} s ago, and its energy may still come: try again"
            return FoundJob(found, running=False, doubts=(*doubts, doubt), controller=known)
        if not known:
            why = "it runs in the database, but the controller does not know it"
            advice, code = "an administrator finds such jobs with: sacctmgr show runawayjobs", "unavailable.no-end"
            raise Unavailable(f"job {self.job} has no end", where=self.where, why=why, next=advice, code=code)
        why = f"its state at the controller is {known.get('JobState') or 'empty'}"
        advice, code = "try again in a minute, or give a longer settle_s", "read-failed.no-end"
        raise ReadFailed(what, where=self.where, why=why, next=advice, code=code)

    def _choose_execution(self, rows: Sequence[AccountingRow]) -> tuple[Execution | None, list[str]]:
        """Return the execution that is meant, and doubts. Raises ConfigError for an array or a heterogeneous job."""
        jobs = sorted({row.job for row in rows}, key=lambda text: [int(digits) for digits in re.findall(r"\d+", text)])
        if len(jobs) > 1:
            kind = "a heterogeneous job" if "+" in jobs[0] else "an array"
            what, why = f"job {self.job} is {kind}", f"it has {len(jobs)} parts, each a job of its own"
            advice = f"name one of {', '.join(jobs[:20])}{' ...' if len(jobs) > 20 else ''}"
            raise ConfigError(what, where=self.where, why=why, next=advice, code="config.several-jobs")
        tries = [execution for executions in group_rows(rows).values() for execution in executions]
        if not tries:
            return None, []
        index = len(tries) - 1 if self.attempt is None else self.attempt - 1
        if index >= len(tries):
            what, advice = f"job {self.job} has no execution {self.attempt}", f"attempt is 1 to {len(tries)}"
            raise ConfigError(what, where=self.where, next=advice, code="config.no-attempt")
        if len(tries) == 1:
            doubt = f"job {tries[0].row.job} was put back into the queue after this execution"
            return tries[0], [doubt] if tries[0].row.state == "REQUEUED" else []
        others = [f"{n + 1} ({c.row.state}, {c.row.elapsed_s or 0} s)" for n, c in enumerate(tries) if n != index]
        doubt = f"execution {index + 1} of {len(tries)} is shown; not counted: {', '.join(others)}"
        return tries[index], [f"job {tries[index].row.job} was requeued, or its number used again: {doubt}"]


def is_settled(execution: Execution) -> bool:
    """Return whether the rows of a job and of all its steps are final."""
    return is_final(execution.row) and all(is_final(row) for row in execution.steps)


def is_final(row: AccountingRow) -> bool:
    """Return whether a row is that of something that ended."""
    ended = row.end_ns is not None and (row.start_ns is not None or not row.elapsed_s)
    # An execution that was put back into the queue is over; its next one has rows of its own.
    return ended and (row.state not in _ACTIVE or row.state == "REQUEUED")


def _has_nodes(execution: Execution) -> bool:
    """Return whether a job's row is complete; for a moment the database has one without nodes."""
    return execution.row.start_ns is not None and execution.row.node_count > 0 and bool(execution.row.nodes)


class JobArchive:
    """Fetch one job that ended: `interval`, `facts` (for a run's labels), `steps` (for its phases), and `fetch()`.

    The stream of the scope `job` has two rows of a counter: 0 J at the start and the energy at the end; steps have
    theirs in `job/STEP` (`job/batch`, `job/0`). Without an energy both rows are NaN and a gap holds the reason.
    `execution`, `sampling` and `problems` (sentences, which are events of the job's stream) are its sources.
    """

    def __init__(self, finder: JobFinder, config: Mapping[str, Any]) -> None:
        """Find the job. Raises MeterError, ConfigError."""
        found = finder.find_execution()
        self.execution, self.sampling = found.execution, finder.sampling
        row, plugin = self.execution.row, self.sampling.plugin
        if found.running:
            advice, code = "wait for its end, or read it live: a meter slurm with job", "unavailable.running"
            what, why = f"job {row.job} still runs", "its energy is not final"
            raise Unavailable(what, where=finder.where, why=why, next=advice, code=code)
        if row.start_ns is None or row.end_ns is None or not row.nodes:
            why, code = f"it is {row.state} and never had a node", "unavailable.not-run"
            raise Unavailable(
                f"job {finder.job} did not run", where=finder.where, why=why, next="name another", code=code
            )
        self._config, self._energy = config, choose_energy(self.execution, self.sampling)
        self.interval = row.start_ns, row.end_ns
        self.steps = [
            JobStep(
                step.step, step.start_ns, step.end_ns if step.end_ns is not None else max(row.end_ns, step.start_ns)
            )
            for step in self.execution.steps
            if step.start_ns is not None
        ]
        self.facts: dict[str, Any] = {
            "job": finder.job,
            "name": finder.slurm.read_name(row.job),
            "user": row.user,
            "state": row.state,
            "exit_code": row.exit_code,
            "nodes": row.nodes,
            "node_count": row.node_count,
            "elapsed_s": (row.end_ns - row.start_ns) // NS,
            "plugin": plugin.name,
            "covers": plugin.covers,
            "frequency_s": self.sampling.frequency_s,
            "row": self._energy.row,
        }
        self.problems = [*found.doubts]
        if not self.sampling.is_stated:
            self.problems.append(
                f"how often the meter is sampled is not stated: {self.sampling.frequency_s:g} s assumed"
            )
        others: Sequence[OtherJob] | str
        try:
            others = finder.slurm.read_others(row.nodes, row.start_ns, row.end_ns)
        except MeterError as error:
            others = str(error)
        may_share = found.controller.get("OverSubscribe") == "YES"
        self.problems += explain_sharing(self.execution, others, self.sampling, may_share=may_share)
        self._sharing = [] if isinstance(others, str) else self._describe_sharing(finder.slurm, others)

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:  # noqa: ARG002 a job is one piece
        """Return the job and its steps, whatever part of it is wanted."""
        job, energy, host = self.facts["job"], self._energy, self.facts["nodes"]
        events = [_make_problem(self.interval[0], text) for text in (*energy.doubts, *self.problems)]
        events += self._sharing
        whole = _describe_stream("job", energy.joules, self.interval, self.sampling, job, self._config)
        fetched = [_fetch_total(whole, self.interval, energy.joules, energy.reason, host, events)]
        for step in self.steps:
            row = self.execution.find_step(step.name)
            reason = explain_no_energy(row, self.sampling) if row is not None and is_final(row) else "it still runs"
            joules = row.energy_j if row is not None and not reason else None
            stream = _describe_stream(f"job/{step.name}", joules, step[1:], self.sampling, job, self._config)
            fetched.append(_fetch_total(stream, step[1:], joules, reason, host, ()))
        return fetched

    def close(self) -> None:
        """Do nothing: each program ends with its answer."""

    def _describe_sharing(self, slurm: SlurmClient, others: Sequence[OtherJob]) -> list[dict[str, Any]]:
        """Return an event with the jobs of the same node and time: reserved CPUs, CPU time, and when each ran (s).

        Of a job on several nodes, an equal part is on each; the CPU time of one that still runs is None. No event for a
        job of several nodes, without other jobs, or if the use of one is not known.
        """
        (start, end), own = self.interval, self.execution.row.raw
        near = [
            (other.raw, other.start_ns, other.end_ns, other.nodes)
            for other in others
            if other.raw != own and other.start_ns is not None and other.start_ns < end
            and (other.end_ns is None or other.end_ns > start)
        ]  # fmt: skip
        if not near or self.execution.row.node_count != 1:
            return []
        near.append((own, start, end, self.execution.row.nodes))
        try:
            use = slurm.read_cpu_use([raw for raw, *_ in near])
            counts = {raw: max(len(expand_nodes(nodes)), 1) for raw, *_, nodes in near}
        except MeterError:
            return []
        if use.keys() != counts.keys() or len(counts) != len(near):
            return []
        jobs = [
            {
                "job": raw,
                "from_s": (a - start) / NS,
                "to_s": ((end if b is None else b) - start) / NS,
                "cpus": use[raw][0] / counts[raw],
                "cpu_s": None if b is None else use[raw][1] / counts[raw],
            }
            for raw, a, b, _ in sorted(near, key=lambda job: job[1])
        ]
        return [{"t": start, "event": "shared-jobs", "meter": "slurm", "job": own, "jobs": jobs}]


def account_job(
    execution: Execution,
    sampling: Sampling,
    energy: JobEnergy,
    doubts: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    known: KnownSteps = NO_STEPS,
) -> tuple[Fetched, dict[str, Any]]:
    """Return a job's energy as a stream, and its facts for a comparison with our own meters. Raises ReadFailed.

    `config` may state the accuracy, and the side of the supplies (`feeds`) of a node's plugin.
    """
    row, plugin, config = execution.row, sampling.plugin, config or {}
    nodes, times = expand_nodes(row.nodes), energy.times
    if times is None:
        what, advice, code = f"job {row.job} has no times", "try again later", "read-failed.no-times"
        raise ReadFailed(what, where="slurm", why=energy.reason, next=advice, code=code)
    stream = _describe_stream("job", energy.joules, times, sampling, row.job, config)
    events = [_make_problem(times[0], text) for text in (*energy.doubts, *doubts)]
    covers = plugin.parts if len(plugin.parts) > 1 or "feeds" not in config else (feeds_of(config, plugin.scope),)
    # The nodes whose record lies inside the row: all of the job's, or those of a step of our recorders.
    holds = [] if any(letter.isdigit() for letter in energy.row) else nodes
    if known.step and energy.row == f".{known.step}":
        holds = [node for node in nodes if node != known.host]
    facts = {
        "job": row.job,
        "raw": row.raw,
        "state": row.state,
        "exit_code": row.exit_code,
        "nodes": nodes,
        "row": energy.row,
        "holds": holds,
        "energy_j": energy.joules,
        "reason": energy.reason,
        "start_utc_ns": times[0],
        "end_utc_ns": times[1],
        "plugin": plugin.name,
        "covers": list(covers),
        "frequency_s": sampling.frequency_s,
        "rows": {f".{step.step}": step.energy_j for step in execution.steps},
    }
    return _fetch_total(stream, times, energy.joules, energy.reason, "", events), facts


def _describe_stream(
    scope: str, joules: int | None, times: tuple[int, ...], sampling: Sampling, job: str, config: Mapping[str, Any]
) -> Stream:
    span_s = max((times[1] - times[0]) / NS, 1.0)
    accuracy = _find_accuracy(joules or 0, span_s, sampling, config)
    spec = Spec("energy_j", "energy", "J", "counter", _AT_ITS_EDGES_S, accuracy=accuracy)
    model, parent = f"slurm {sampling.plugin.name}", None if scope == "job" else "job"
    return Stream(scope, "job", scope, span_s, (spec,), parent, device=job, model=model)


def _find_accuracy(joules: int, span_s: float, sampling: Sampling, config: Mapping[str, Any]) -> Accuracy:
    """Return the accuracy of a total: gain of the meter, and as its step the energy of one sample while the job worked.

    The time of one sample may be missing from the total, with idle time in its place: the power at work may be as much
    as the total over the rest of the time. For a job below two samples that rest is next to nothing, and no interval is
    stated.
    """
    working = joules / max(span_s - sampling.edge_s, sampling.edge_s)
    accuracy = stated(config, sampling.plugin.describe_accuracy(1.0 + working * sampling.edge_s))
    if sampling.is_too_short(span_s):
        why = f"it lasted {span_s:.0f} s, below two samples of the meter ({sampling.frequency_s:g} s)"
        accuracy = replace(accuracy, source="unknown", reference=why)
    if not accuracy.offset:
        return accuracy
    # An offset is in W of a node: for an energy it is a share of the power.
    return replace(accuracy, offset=0.0, gain=accuracy.gain + (accuracy.offset * span_s / joules if joules else 0.0))


def _fetch_total(
    stream: Stream, times: tuple[int, ...], joules: int | None, reason: str, host: str, events: Sequence[dict[str, Any]]
) -> Fetched:
    """Return 0 J at the start and the energy at the end; without one both are NaN, and a gap holds the reason."""
    start, end = times
    values = (math.nan, math.nan) if joules is None else (0.0, float(joules))
    if joules is None:
        gap = {"meter": "slurm", "stream": stream.name}
        begin = {"t": start, "event": "gap", **gap, "reason": reason, "error": "ReadFailed"}
        events = [*events, begin, {"t": end, "event": "gap-end", **gap}]
    return Fetched(stream, ((start, start, values[:1]), (end, end, values[1:])), host, tuple(events))


def _make_problem(t_ns: int, what: str) -> dict[str, Any]:
    return {"t": t_ns, "event": "problem", "meter": "slurm", "what": what}
