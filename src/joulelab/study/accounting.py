"""Add the energy that Slurm accounted to the runs of slots that it ran, beside our own meters: one question for all."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, JoulelabError, MeterError, StoreError
from joulelab.instruments.slurm import open_archive
from joulelab.instruments.slurm.archive import RECENT_S, account_job, is_final, is_settled
from joulelab.instruments.slurm.client import SlurmClient, expand_nodes
from joulelab.instruments.slurm.energies import (
    KnownSteps,
    choose_energy,
    explain_sharing,
    find_sampling,
    group_rows,
    has_energy,
)
from joulelab.run.run_import import attach_archive
from joulelab.store.documents import read_json
from joulelab.store.imported import is_attached
from joulelab.store.run_folder import read_end, read_meta, write_json_atomic
from joulelab.store.run_reader import open_run
from joulelab.study.slots import CLAIM, JOB, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.instruments.slurm.client import OtherJob
    from joulelab.instruments.slurm.energies import Execution, Sampling
    from joulelab.study.slots import Slot

TIMEOUT_S = 30.0
POLL_S = 1.0
# Clocks of nodes and controller may differ by so much, and a job's number be used again later.
ASKEW_S = 60
MOST_NAMED = 5


@dataclass(frozen=True)
class _UnaccountedRun:
    """Hold a run that lacks its accounting: its job, its begin and end (UTC, ns)."""

    slot: Slot
    run: Path
    job: str
    began_ns: int
    ended_ns: int

    @cached_property
    def steps(self) -> KnownSteps:
        """Return what is known of the job's steps. Raises StoreError."""
        return _read_known_steps(self.run)


def name_accounting_host(job: str) -> str:
    """Return the name of the host folder that holds the accounting of a job, by its raw number."""
    return f"slurm-{job}"


def attach_accounting(
    slots: Sequence[Slot],
    environ: Mapping[str, str],
    *,
    wait_s: float = 0.0,
    slurm: SlurmClient | None = None,
    now: Callable[[], int] = read_utc_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Add Slurm's energy to the runs of slots that are done and lack it; return problems in words. Never raises.

    What the database does not have yet is left to the next call, or asked for again for up to `wait_s`.
    """
    problems: list[str] = []
    wanted = [w for slot in slots if (w := _find_unaccounted(slot, problems)) is not None]
    if not wanted:
        return problems
    slurm = slurm or SlurmClient(timeout_s=TIMEOUT_S, conf=environ.get("SLURM_CONF"), where="slurm accounting")
    try:
        sampling = find_sampling(slurm.read_settings())
        if sampling.plugin.name == "none":
            return [*problems, "this cluster does not account energy (AcctGatherEnergyType is none)"]
        until = now() + round(wait_s * NS)
        while wanted := _attach_ready(wanted, slurm, sampling, now(), problems):
            if now() >= until:
                problems.append(_describe_late(wanted))
                break
            sleep(POLL_S)
    except JoulelabError as error:
        problems.append(f"Slurm's energy is not added: {error}")
    return problems


def attach_job(run: Path, config: Mapping[str, Any], *, name: str = "") -> list[str]:
    """Add what Slurm accounted for one job to a closed run; return doubts. Raises MeterError, ConfigError, StoreError.

    `config` is as for the archive; `name` is that of the host folder, by the job's number unless given.
    """
    archive = open_archive(config)
    execution, row = archive.execution, archive.execution.row
    began = int(read_meta(run)["started"]["utc_ns"])
    if _measure_offset_s(execution, began) > ASKEW_S:
        what = f"job {row.job} is not that of this run"
        raise ConfigError(
            what, where=str(run), why="it ran at another time", next="list your jobs: sacct -X -S now-30days"
        )
    known = _read_known_steps(run)
    energy = choose_energy(execution, archive.sampling, known)
    fetched, facts = account_job(execution, archive.sampling, energy, archive.problems, config, known)
    attach_archive(run, name or name_accounting_host(row.raw), [fetched], facts)
    if (run.parent / CLAIM).is_file():
        _write_facts(run.parent, facts)
    return [*energy.doubts, *archive.problems, *([energy.reason] if energy.reason else [])]


def _find_unaccounted(slot: Slot, problems: list[str]) -> _UnaccountedRun | None:
    """Return what is to be asked for a slot, None where there is nothing to ask."""
    job = str(slot.claim.get("job") or "")
    if slot.state is not State.DONE or slot.run is None or not job.isdigit():
        return None
    try:
        if is_attached(slot.run, name_accounting_host(job)):
            return None
        began, ended = read_meta(slot.run)["started"], (read_end(slot.run) or {})["ended"]
        return _UnaccountedRun(slot, slot.run, job, int(began["utc_ns"]), int(ended["utc_ns"]))
    except (JoulelabError, OSError, KeyError, ValueError, TypeError) as error:
        problems.append(f"Slurm's energy is not added to {slot.run.name}: {error}")
        return None


def _read_known_steps(run: Path) -> KnownSteps:
    """Return the steps of a run's job that the run knows: ours on all nodes, and whether srun started the workload."""
    with open_run(run) as opened:
        command = [str(word) for word in opened.meta.get("command") or [""]]
        events = opened.events()
    steps = [str(e["step"]) for e in events if e.get("event") == "nodes" and e.get("step")]
    lost = any(e.get("event") == "node-lost" for e in events)  # then no step of ours saw all nodes all the time
    step = steps[-1] if steps and not lost else ""
    return KnownSteps(step, Path(command[0]).name == "srun", str(opened.meta.get("host", "")))


def _attach_ready(
    wanted: Sequence[_UnaccountedRun], slurm: SlurmClient, sampling: Sampling, now_ns: int, problems: list[str]
) -> list[_UnaccountedRun]:
    """Ask once for all, add what is final; return what is still to come. Raises MeterError."""
    executions = group_rows(slurm.read_rows(list(dict.fromkeys(w.job for w in wanted))))
    later: list[_UnaccountedRun] = []
    ready: list[tuple[_UnaccountedRun, Execution]] = []
    for one in wanted:
        tries = executions.get(one.job, [])
        mine = min(reversed(tries), key=lambda c: _measure_offset_s(c, one.began_ns), default=None)
        if mine is not None and _measure_offset_s(mine, one.began_ns) > ASKEW_S:
            mine = None
        try:
            if mine is not None and _is_ready(mine, one, sampling, now_ns):
                ready.append((one, mine))
            elif mine is not None or (not tries and now_ns - one.ended_ns < ASKEW_S * NS):
                later.append(one)
            else:
                why = "it has that number at another time only" if tries else "it is not in the database"
                problems.append(f"Slurm accounted nothing for job {one.job} of {one.run.name}: {why}")
        except (JoulelabError, OSError) as error:
            problems.append(f"Slurm's energy is not added to {one.run.name}: {error}")
    others = _list_jobs_beside([execution for _, execution in ready], slurm)
    for one, execution in ready:
        problems += _attach_run(one, execution, sampling, others)
    return later


def _measure_offset_s(execution: Execution, began_ns: int) -> float:
    """Return for how many seconds a run began outside of a job's execution, 0 where it began inside."""
    start, end = execution.row.start_ns, execution.row.end_ns
    if start is None:
        return float("inf")
    return max(start - began_ns, 0 if end is None else began_ns - end, 0) / NS


def _is_ready(execution: Execution, one: _UnaccountedRun, sampling: Sampling, now_ns: int) -> bool:
    """Tell whether a job is over and no energy is still to come: for a while its rows are open, or say 0."""
    end = execution.row.end_ns
    if end is None or not is_final(execution.row):
        return False
    if now_ns - end > RECENT_S * NS:
        return True
    ours = not one.steps.step or execution.find_step(one.steps.step) is not None
    return ours and is_settled(execution) and has_energy(execution, sampling, one.steps)


def _list_jobs_beside(executions: Sequence[Execution], slurm: SlurmClient) -> dict[str, list[OtherJob]] | str:
    """Return all jobs on the nodes of these in their time, by node, or why that is not known."""
    if not executions:
        return {}
    nodes = ",".join(dict.fromkeys(c.row.nodes for c in executions))
    starts, ends = [c.row.start_ns or 0 for c in executions], [c.row.end_ns or 0 for c in executions]
    found: dict[str, list[OtherJob]] = {}
    try:
        for other in slurm.read_others(nodes, min(starts), max(ends)):
            for node in expand_nodes(other.nodes):
                found.setdefault(node, []).append(other)
    except MeterError as error:
        return str(error)
    return found


def _list_others(execution: Execution, others: Mapping[str, Sequence[OtherJob]]) -> list[OtherJob]:
    """Return the jobs on the nodes of an execution, each once."""
    return list(dict.fromkeys(job for node in expand_nodes(execution.row.nodes) for job in others.get(node, ())))


def _attach_run(
    one: _UnaccountedRun, execution: Execution, sampling: Sampling, others: dict[str, list[OtherJob]] | str
) -> list[str]:
    """Add a job's energy to its run; return what went wrong in words."""
    try:
        around = others if isinstance(others, str) else _list_others(execution, others)
        doubts = explain_sharing(execution, around, sampling)
        if not is_settled(execution):
            doubts.append("some of its steps still count as running: its energy may be incomplete")
        energy = choose_energy(execution, sampling, one.steps)
        fetched, facts = account_job(execution, sampling, energy, doubts, known=one.steps)
        attach_archive(one.run, name_accounting_host(one.job), [fetched], facts)
    except (JoulelabError, OSError) as error:
        # Another call may have been faster: then it is there.
        there = is_attached(one.run, name_accounting_host(one.job))
        return [] if there else [f"Slurm's energy is not added to {one.run.name}: {error}"]
    _write_facts(one.slot.folder, facts)
    return []


def _write_facts(slot: Path, facts: Mapping[str, Any]) -> None:
    """Note the accounting beside the slot's job."""
    with contextlib.suppress(StoreError):
        if (slot / JOB).is_file():
            write_json_atomic(slot / JOB, {**read_json(slot / JOB), "accounting": dict(facts)})


def _describe_late(wanted: Sequence[_UnaccountedRun]) -> str:
    jobs = ", ".join(w.job for w in wanted[:MOST_NAMED]) + (", ..." if len(wanted) > MOST_NAMED else "")
    what = "job" if len(wanted) == 1 else f"{len(wanted)} jobs:"
    return f"Slurm does not have the energy of {what} {jobs} yet; the next call of this command reads it"
