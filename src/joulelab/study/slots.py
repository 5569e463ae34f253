"""Claim slots, read their state, and take turns. A slot is a folder: claimed by a rename, done by its run's end.json.

One slot of a user at a time runs on a machine, whatever study it is of, or slots would disturb each other. Nodes of a
cluster that share one machine count as machines. Whoever can lock the file of the turn can hold up all slots: the file
is in a folder of ours, and only we may open it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.control.state import format_holder, format_utc, get_user_name
from joulelab.core.clock import NS, monotonic_ns, read_clock_pair
from joulelab.core.errors import NewerSchema, StoreError
from joulelab.core.process_identity import find_process, identify_process
from joulelab.store.documents import read_json
from joulelab.store.run_folder import list_runs, read_end, write_json_atomic
from joulelab.store.safe_files import open_regular
from joulelab.study.folder import lock_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    # Returns whether the job of a claim has ended; None if that is not known.
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
STATE_VARIABLE, DEFAULT_STATE = "JOULELAB_STATE", "/var/lib/joulelab"
RUNTIME_VARIABLE = "XDG_RUNTIME_DIR"
TURN_POLL_S = 0.2
TURN_NOTICE_S = 1.0  # slots that follow each other wait for moments; a longer wait is reported
HOLDER_BYTES = 4096
TURN_ADVICE = f"set {STATE_VARIABLE} to a folder of yours"


class State(StrEnum):
    """Name the states of a slot."""

    FREE = "free"
    LIVE = "live"
    DONE = "done"
    FAILED = "failed"
    STALE = "interrupted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Slot:
    """Hold the state of a slot: `run` is its run folder, `why` says in words why it is not done."""

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
    """Claim a slot for this process; give False if it is claimed already. Raises StoreError.

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
    """Return the state of a slot; one with damaged files was interrupted. Raises NewerSchema.

    `is_over` is asked if the process of the claim cannot be seen from here.
    """
    claim: Mapping[str, Any] = {}
    try:
        claim = read_json(folder / CLAIM)
    except StoreError:
        if not folder.is_dir():
            return Slot(folder, State.FREE)
    run = next(reversed(list_runs(folder)), None)
    state, why = _read_end_state(folder, run)
    if state is State.DONE:
        return Slot(folder, state, run, why, claim)
    gone = _has_gone(claim, folder, is_over)
    job = _read_optional(folder / JOB)  # who is asked whether the job is over may write it
    if job is None and not gone:
        # Where there is an end already, it is still being closed.
        return Slot(folder, State.LIVE, run, why or "it runs", claim)
    if job is not None:
        state, why = _apply_job_state(job, state, why)
    return Slot(folder, state, run, why, claim)


def _has_gone(claim: Mapping[str, Any], folder: Path, is_over: IsOver | None) -> bool:
    gone = is_claim_stale(claim, folder / CLAIM) if claim else not _is_locked(folder / CLAIM)
    return gone or bool(is_over is not None and claim.get("job") and is_over(claim))


def _read_end_state(folder: Path, run: Path | None) -> tuple[State, str]:
    """Return how a slot ended by its files; without a whole end it was interrupted. Raises NewerSchema."""
    try:
        end = None if run is None else read_end(run)
        return (State.STALE, "") if end is None else _judge_end(end, _read_optional(folder / STOPPED))
    except NewerSchema:
        raise
    except (StoreError, ValueError, TypeError):
        return State.STALE, "its end.json is damaged"


def _apply_job_state(job: Mapping[str, Any], state: State, why: str) -> tuple[State, str]:
    """Correct the state of a slot that is not done by the state of its job."""
    condition = str(job.get("state") or "").partition(" ")[0]
    words = f"job {job.get('job')}: {job.get('why') or job.get('state')}"
    if condition in STRIKING and state is State.FAILED:
        return State.STALE, words  # its workload got the signal before the slot's process did
    if state is not State.STALE or not condition:
        return state, why
    return State.FAILED if condition in FAILING else State.STALE, words


def _judge_end(end: Mapping[str, Any], stopped: Mapping[str, Any] | None) -> tuple[State, str]:
    """Return the state of a slot by the end of its run, and by who stopped it."""
    outcome, code, number = end.get("outcome"), end.get("exit_code"), end.get("signal")
    if outcome == "not-started":
        return State.REFUSED, str(end.get("message") or "the command could not be started")
    if outcome not in ("exit", "signal"):
        return State.STALE, "it was interrupted before the command started"
    # A cluster signals all processes of a job at once: the workload may have ended before its slot recorded the stop.
    failed = outcome == "signal" or code != 0
    noted_ns = int((stopped or {}).get("t_ns", 0)) - (ALSO_NS if failed else 0)
    if stopped is not None and noted_ns < int(end.get("end_ns") or 0):
        if stopped.get("why") == "timeout":
            return State.FAILED, f"it took longer than {stopped.get('after_s')} s"
        return State.STALE, "it was interrupted"
    if outcome == "exit" and code == 0:
        return State.DONE, ""
    return State.FAILED, f"exit code {code}" if outcome == "exit" else f"killed by signal {number}"


def _read_optional(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(StoreError):
        return read_json(file)
    return None


def note_stop(folder: Path, why: str, **more: Any) -> None:
    """Record that we stop a slot, before it is stopped; the first reason stays."""
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
    """Set aside the earlier attempt of this very job, which was put back into the queue meanwhile."""

    def is_over(claim: Mapping[str, Any]) -> bool:
        same = all(claim.get(key) == job.get(key) for key in ("job", "cluster"))
        return bool(job) and same and int(claim.get("restart", 0)) < job["restart"]

    slot = read_slot(folder, is_over)
    if slot.state in (State.STALE, State.FAILED, State.REFUSED) and is_over(slot.claim):
        set_slot_aside(slot, study, is_over)


def set_slot_aside(slot: Slot, study: Path, is_over: IsOver | None = None) -> Path | None:
    """Move a slot out of the way, so that it is free again; None if it has changed since it was read.

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
    if rests and is_claim_stale(_read_optional(slot / CLAIM) or {}, slot / CLAIM):
        for rest in rests:
            rest.unlink(missing_ok=True)


def _is_rest(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def list_lock_files(environ: Mapping[str, str]) -> list[Path]:
    """Return where the lock may be, the best first: in the machine's state, among the user's sockets, in /tmp."""
    user, node = os.geteuid(), _name_node(environ)
    name = f"joulelab-slot-{user}{node}.lock"
    folders = [
        Path(environ.get(STATE_VARIABLE) or DEFAULT_STATE),
        Path(environ.get(RUNTIME_VARIABLE) or f"/run/user/{user}"),
    ]
    with contextlib.suppress(OSError):
        folders[0].mkdir(parents=True, exist_ok=True)
    files = [
        folder / own for folder, own in zip(folders, (f"slot{node}.lock", name), strict=True) if _is_own_folder(folder)
    ]
    return [*files, Path(tempfile.gettempdir()) / name]


def _name_node(environ: Mapping[str, str]) -> str:
    """Return a suffix for a cluster's node that shares this machine, each with its own turn; else nothing."""
    name = environ.get("SLURMD_NODENAME", "") if "SLURM_JOB_ID" in environ else ""
    here = os.uname().nodename.partition(".")[0]
    return f"-{name.replace('/', '-')}" if name and name.partition(".")[0] != here else ""


def _is_own_folder(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return folder.is_absolute() and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@contextlib.contextmanager
def hold_turn(
    environ: Mapping[str, str],
    pause: Callable[[float], bool],
    *,
    command: str = "",
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[bool]:
    """Wait for the turn and hold it; give False if the wait was cut short. Raises StoreError.

    `pause` waits a time (s) and returns False if the slot is stopped; `report` gets once who holds the turn; `command`
    describes this slot to others that wait.
    """
    began = time.monotonic()
    reported = False
    while (fd := _take_turn(environ)) is None:
        if not reported and time.monotonic() - began >= TURN_NOTICE_S:
            reported = True
            report(_describe_holder(environ))
        if not pause(TURN_POLL_S):
            yield False
            return
    try:
        _write_holder(
            fd, {"pid": os.getpid(), "user": get_user_name(os.geteuid()), "command": command, "since": format_utc()}
        )
        yield True
    finally:
        os.close(fd)


def _take_turn(environ: Mapping[str, str]) -> int | None:
    """Return the lock, held; None where somebody has it. Raises StoreError."""
    fd, file = _open_lock(environ)
    try:
        # A lock of this kind needs the right to write, and does not go by process as others of fcntl() do.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        # Somebody may have removed the file meanwhile: a lock on that would be a lock on nothing.
        if os.path.samestat(os.fstat(fd), file.stat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(fd)
        raise _explain_lock(file, error.strerror) from error
    os.close(fd)
    return None


def _open_lock(environ: Mapping[str, str]) -> tuple[int, Path]:
    """Return the first lock file that can be opened and is ours. Raises StoreError."""
    why: str | None = None
    file = Path()
    for file in list_lock_files(environ):
        try:
            return _open_own_lock(file), file
        except OSError as error:
            why = error.strerror
    raise _explain_lock(file, why)


def _open_own_lock(file: Path) -> int:
    """Open a lock file that nobody else can have placed, whatever is there; raise OSError."""
    # Not to wait for the other end of a pipe, nor to be led elsewhere by a link.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(file, flags, 0o600)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        if stat.S_IMODE(found.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
        return fd
    os.close(fd)
    plain = stat.S_ISREG(found.st_mode)
    raise PermissionError(0, f"it belongs to {get_user_name(found.st_uid)}" if plain else "it is not a plain file")


def _explain_lock(file: Path, why: str | None) -> StoreError:
    return StoreError("cannot take turns with other slots", where=str(file), why=why, next=TURN_ADVICE)


def _write_holder(fd: int, who: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk costs the text, not the lock
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(who).encode()[:HOLDER_BYTES] + b"\n", 0)


def _describe_holder(environ: Mapping[str, str]) -> str:
    """Return who has the turn, for people."""
    holder: Any = {}
    with contextlib.suppress(OSError, ValueError, StoreError):
        fd, _ = _open_lock(environ)
        try:
            holder = json.loads(os.pread(fd, 2 * HOLDER_BYTES, 0))
        finally:
            os.close(fd)
    return format_holder(holder if isinstance(holder, dict) else {})
