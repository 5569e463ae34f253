"""Claim slots, and tell what became of them. A slot is a folder: claimed by a rename, done by its run's `end.json`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_clock_pair
from joulelab.core.errors import NewerSchema, StoreError
from joulelab.core.process_identity import find_process, identify_process
from joulelab.store.documents import read_json
from joulelab.store.run_folder import list_runs, read_end, write_json_atomic
from joulelab.store.safe_files import open_regular
from joulelab.study.folder import lock_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    # Tells of a claim whether its job has ended; None where that is not known.
    IsOver = Callable[[Mapping[str, Any]], bool | None]

CLAIM, STOPPED, NOTES, OUT, ERR = "claim.json", "stopped.json", "slot.json", "out.txt", "err.txt"
JOB = "job.json"  # what became of the job of a cluster that ran the slot; written when it is over
# Conditions of jobs by the limits that they were given: to try again would not help. A job that FAILED did so by its
# slot's process, not by its workload.
FAILING = ("TIMEOUT", "DEADLINE", "OUT_OF_MEMORY")
# Conditions that are somebody else's doing.
STRIKING = ("CANCELLED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REQUEUED", "REVOKED")
ALSO_NS = 2 * NS
LAST_BYTES, LAST_SHOWN = 2000, 120
SLOT = re.compile(r"([rw])(\d{2,})")
_PREPARED = re.compile(r"\.[rw]\d{2,}\.\d+-[0-9a-f]+")


class State(StrEnum):
    """Say what became of a slot."""

    FREE = "free"
    LIVE = "live"
    DONE = "done"
    FAILED = "failed"
    STALE = "interrupted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Slot:
    """Hold what is known of a slot: `run` is its run folder, `why` says in words why it is not done."""

    folder: Path
    state: State
    run: Path | None = None
    why: str = ""
    claim: Mapping[str, Any] = field(default_factory=dict)


def is_claim_stale(claim: Mapping[str, Any], file: Path) -> bool:
    """Return whether the process that claimed is known to have ended; of another machine nothing is known.

    A process in another container of this machine cannot be seen, but it holds a lock on its claim as long as it lives.
    """
    state = find_process(claim)
    return state == "ended" or (state == "hidden" and not _is_locked(file))


def _is_locked(file: Path) -> bool:
    try:
        opened = open_regular(file)
    except OSError:
        return False
    with opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextlib.contextmanager
def claim_slot(folder: Path, more: Mapping[str, Any], *, sync: bool = True) -> Iterator[bool]:
    """Claim a slot for this process; give False where it is claimed already. Raises StoreError.

    The claim is prepared beside the slot and renamed into its place: of two, one succeeds. Without `sync` a power loss
    may empty it: for slots that are soon made again.
    """
    prepared = folder.with_name(f".{folder.name}.{os.getpid()}-{os.urandom(3).hex()}")
    lock = -1
    try:
        try:
            prepared.mkdir(parents=False)
            pair = read_clock_pair()
            times = {"mono_ns": pair.mono_ns, "utc_ns": pair.utc_ns}
            write_json_atomic(prepared / CLAIM, {**more, **identify_process(), **times}, sync=sync)
            lock = os.open(prepared / CLAIM, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            prepared.rename(folder)
        except (OSError, StoreError) as error:
            shutil.rmtree(prepared, ignore_errors=True)
            if isinstance(error, StoreError):
                raise
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise StoreError("cannot claim a slot", where=str(folder), why=error.strerror) from error
            yield False
            return
        yield True
    finally:
        if lock >= 0:
            os.close(lock)


def read_slot(folder: Path, is_over: IsOver | None = None) -> Slot:
    """Return what became of a slot. What it left and nobody can read counts as cut off. Raises NewerSchema.

    `is_over` is asked where the process that claimed it cannot be seen from here.
    """
    claim: Mapping[str, Any] = {}
    try:
        claim = read_json(folder / CLAIM)
    except StoreError:
        if not folder.is_dir():
            return Slot(folder, State.FREE)
    run = next(reversed(list_runs(folder)), None)
    state, why = _ended(folder, run)
    if state is State.DONE:
        return Slot(folder, state, run, why, claim)
    gone = _has_gone(claim, folder, is_over)
    job = _optional(folder / JOB)  # who is asked whether the job is over may write it
    if job is None and not gone:
        # Where there is an end already, it is still being closed.
        return Slot(folder, State.LIVE, run, why or "it runs", claim)
    if job is not None:
        state, why = _by_job(job, state, why)
    return Slot(folder, state, run, why, claim)


def _has_gone(claim: Mapping[str, Any], folder: Path, is_over: IsOver | None) -> bool:
    gone = is_claim_stale(claim, folder / CLAIM) if claim else not _is_locked(folder / CLAIM)
    return gone or bool(is_over is not None and claim.get("job") and is_over(claim))


def _ended(folder: Path, run: Path | None) -> tuple[State, str]:
    """Tell from what a slot left how it ended; without a whole end it was cut off. Raises NewerSchema."""
    try:
        end = None if run is None else read_end(run)
        return (State.STALE, "") if end is None else _judge(end, _optional(folder / STOPPED))
    except NewerSchema:
        raise
    except (StoreError, ValueError, TypeError):
        return State.STALE, "its end.json is damaged"


def _by_job(job: Mapping[str, Any], state: State, why: str) -> tuple[State, str]:
    """Tell of a slot that is not done what its job's condition says of it."""
    condition = str(job.get("state") or "").partition(" ")[0]
    told = f"job {job.get('job')}: {job.get('why') or job.get('state')}"
    if condition in STRIKING and state is State.FAILED:
        return State.STALE, told  # its workload was told to end before the slot's process was
    if state is not State.STALE or not condition:
        return state, why
    return State.FAILED if condition in FAILING else State.STALE, told


def _judge(end: Mapping[str, Any], stopped: Mapping[str, Any] | None) -> tuple[State, str]:
    """Tell from a run's end, and from what was done to it, what became of the slot."""
    outcome, code, number = end.get("outcome"), end.get("exit_code"), end.get("signal")
    if outcome == "not-started":
        return State.REFUSED, str(end.get("message") or "the command could not be started")
    if outcome not in ("exit", "signal"):
        return State.STALE, "it was interrupted before the command started"
    # A cluster tells all processes of a job to end at once: the workload may have ended before its slot noted it.
    failed = outcome == "signal" or code != 0
    noted_ns = int((stopped or {}).get("t_ns", 0)) - (ALSO_NS if failed else 0)
    if stopped is not None and noted_ns < int(end.get("end_ns") or 0):
        if stopped.get("why") == "timeout":
            return State.FAILED, f"it took longer than {stopped.get('after_s')} s"
        return State.STALE, "it was interrupted"
    if outcome == "exit" and code == 0:
        return State.DONE, ""
    return State.FAILED, f"exit code {code}" if outcome == "exit" else f"killed by signal {number}"


def _optional(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(StoreError):
        return read_json(file)
    return None


def note_stop(folder: Path, why: str, **more: Any) -> None:
    """Note that a slot is being ended by us, before it is; the first reason stays."""
    if not (folder / STOPPED).exists():
        with contextlib.suppress(StoreError):
            write_json_atomic(folder / STOPPED, {"why": why, "t_ns": monotonic_ns(), **more})


def read_own_job(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the job that this process runs in, for its claim; empty outside of one."""
    names = {"job": "SLURM_JOB_ID", "cluster": "SLURM_CLUSTER_NAME", "node": "SLURMD_NODENAME"}
    if "SLURM_JOB_ID" not in environ:
        return {}
    restart = environ.get("SLURM_RESTART_COUNT", "0")
    found: dict[str, Any] = {key: environ[name] for key, name in names.items() if name in environ}
    if "SLURM_ARRAY_TASK_ID" in environ:  # by this name people look at it and cancel it
        found["task"] = f"{environ.get('SLURM_ARRAY_JOB_ID')}_{environ['SLURM_ARRAY_TASK_ID']}"
    return found | {"restart": int(restart) if restart.isdecimal() else 0}


def clear_earlier_attempt(folder: Path, study: Path, job: Mapping[str, Any]) -> None:
    """Set aside what an earlier attempt of this very job left: it was put back into the queue meanwhile."""

    def is_over(claim: Mapping[str, Any]) -> bool:
        same = all(claim.get(key) == job.get(key) for key in ("job", "cluster"))
        return bool(job) and same and int(claim.get("restart", 0)) < job["restart"]

    slot = read_slot(folder, is_over)
    if slot.state in (State.STALE, State.FAILED, State.REFUSED) and is_over(slot.claim):
        set_slot_aside(slot, study, is_over)


def set_slot_aside(slot: Slot, study: Path, is_over: IsOver | None = None) -> Path | None:
    """Move a slot out of the way, so that it is free again; None where it is no longer as it was seen.

    Nothing is deleted. Only who holds the study's lock moves slots, so what is moved is what was looked at.
    """
    with lock_folder(study):
        now = read_slot(slot.folder, is_over)
        if now.state is not slot.state or now.claim != slot.claim or slot.state is State.LIVE:
            return None
        for n in range(1, 100_000):
            aside = slot.folder.with_name(f"{slot.folder.name}.{slot.state.value}-{n}")
            if not aside.exists():
                try:
                    slot.folder.rename(aside)
                except OSError as error:
                    then = "run it as the user whose study it is"
                    raise StoreError(
                        "a slot cannot be set aside", where=str(slot.folder), why=error.strerror, next=then
                    ) from error
                return aside
    return None


def read_last_error(slot: Path) -> str:
    """Return the last line that a slot's workload wrote to its errors, shortened; empty where there is none."""
    with contextlib.suppress(OSError), open_regular(slot / ERR) as file:
        file.seek(max(file.seek(0, os.SEEK_END) - LAST_BYTES, 0))
        lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip()[:LAST_SHOWN] for line in reversed(lines) if line.strip()), "")
    return ""


def list_claimed_slots(cell: Path) -> list[Path]:
    """Return the slots of a cell that are claimed or ended, in order."""
    try:
        names = [entry.name for entry in os.scandir(cell) if SLOT.fullmatch(entry.name)]
    except OSError:
        return []
    return [cell / name for name in sorted(names, key=lambda name: (name[0], int(name[1:])))]


def remove_remnants(cell: Path) -> None:
    """Remove what processes of a cell's slots were about to write or to place when they were killed."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(cell):
            folder = Path(entry.path)
            if _PREPARED.fullmatch(entry.name):
                with contextlib.suppress(StoreError):  # one without a claim is being made, or harmless
                    if is_claim_stale(read_json(folder / CLAIM), folder / CLAIM):
                        shutil.rmtree(folder, ignore_errors=True)
            elif SLOT.fullmatch(entry.name):
                _tidy_slot(folder)


def _tidy_slot(slot: Path) -> None:
    rests = [
        Path(rest.path) for folder in (slot, *list_runs(slot)) for rest in os.scandir(folder) if _is_rest(rest.name)
    ]
    if rests and is_claim_stale(_optional(slot / CLAIM) or {}, slot / CLAIM):
        for rest in rests:
            rest.unlink(missing_ok=True)


def _is_rest(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")
