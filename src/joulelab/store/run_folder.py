"""Create, find and describe run folders. The recorder imports this module: standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_boot_id, read_clock_pair
from joulelab.core.errors import NotARun, StoreError, WriteFailed
from joulelab.core.process_identity import PROC, find_process, identify_process
from joulelab.store.documents import read_json
from joulelab.store.safe_files import is_being_written, read_regular, replace_file, sync_directory
from joulelab.store.upgrade import SCHEMA, upgrade_document

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
# Where neither owner nor locks can be seen (another host on a shared disk), a journal that grew this recently is live.
RECENT_S = 60.0
MOST_NAMED = 5  # labels that an error names
HASHED_BYTES = 16 << 20  # of all files of a run that are hashed at its end
ATTACHED = "attached"  # the event of a host that was added from an archive
JOINED = "joined"  # the event of a host that was taken over from a run of its own


class RunState(StrEnum):
    """Define the states of a run: being recorded (live), ended properly (closed), or cut off (killed)."""

    LIVE = "live"
    CLOSED = "closed"
    KILLED = "killed"


def create_run(runs: Path, meta: Mapping[str, Any], *, sync: bool = True) -> Path:
    """Create a run folder with its `run.json` and host folder, and return its path.

    `meta` needs `host` and `command`; everything else of `run.json` has a default (this process is the owner).
    Secrets are removed from `command`, `name` and `labels`; `environment` is reduced to the allow-list. Raises
    StoreError.
    """
    from joulelab.store import redact  # readers of runs do without

    started = meta.get("started") or asdict(read_clock_pair())
    run, run_id = _claim_folder(runs, int(started["utc_ns"]))
    data: dict[str, Any] = {
        "cwd": _get_cwd(),
        "user": _get_user(),
        "joulelab": None,
        "python": sys.version.split(maxsplit=1)[0],
        "options": {},
        **meta,
        "schema": SCHEMA,
        "id": run_id,
        "name": None if meta.get("name") is None else redact.clean_text(str(meta["name"])),
        "labels": redact.redact_labels(meta.get("labels") or {}),
        "command": redact.redact_command(meta["command"]),
        "started": dict(started),
        "environment": redact.select_environment(meta.get("environment") or {}),
        "owner": meta.get("owner") or identify_owner(),
    }
    make_host_dir(run, str(data["host"]))
    write_json_atomic(run / "run.json", data, sync=sync)
    if sync:
        sync_directory(runs)
    return run


def _claim_folder(runs: Path, utc_ns: int) -> tuple[Path, str]:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(utc_ns // NS))
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for _ in range(64):
            run_id = f"{stamp}-{os.urandom(2).hex()}"
            with contextlib.suppress(FileExistsError):
                (runs / run_id).mkdir()
                return runs / run_id, run_id
    except OSError as error:
        raise StoreError(
            "cannot create a run folder",
            where=str(runs),
            why=error.strerror,
            next="set JOULELAB_RUNS",
            code="store.not-created",
        ) from error
    raise StoreError("cannot find a free run id", where=str(runs), code="store.no-free-id")


def _get_cwd() -> str:
    # The folder may have been deleted meanwhile; the kernel still knows its path.
    with contextlib.suppress(OSError):
        return str(Path.cwd())
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/cwd").readlink())
    return ""


def _get_user() -> str:
    import getpass

    # A container may run under a user id that has no name.
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def end_run(run: Path, end: Mapping[str, Any], *, sync: bool = True) -> Path:
    """Close a run by writing its `end.json`; raise StoreError if it is closed already or the disk is full.

    `files` in it are the sizes (bytes) of journals, events and marks, by which readers find those that were cut off,
    and `sha256` the hash of every file, or none if the files are large together or of several hosts: they protect a
    run until it is sealed.
    """
    path = run / "end.json"
    if path.exists():
        raise StoreError("the run is closed already", where=str(run), code="store.closed")
    defaults = {"exit_code": None, "signal": None, "start_ns": None, "end_ns": None, "restarts": 0, "message": None}
    ended = end.get("ended") or asdict(read_clock_pair())
    files: dict[str, int] = {}
    for file in (p for pattern in ("*/*.journal", "*/*.jsonl", "*/marks/*.jsonl") for p in sorted(run.glob(pattern))):
        with contextlib.suppress(OSError):
            files[file.relative_to(run).as_posix()] = file.lstat().st_size
    more = {"ended": dict(ended), "files": files, "sha256": _hash_small(run, files)}
    write_json_atomic(path, {**defaults, **end, "schema": SCHEMA, **more}, sync=sync)
    return path


def _hash_small(run: Path, files: Mapping[str, int]) -> dict[str, str]:
    """Return the hash of every file by name; none if the files are large, of several hosts, or still being written."""
    if sum(files.values()) > HASHED_BYTES or len({name.partition("/")[0] for name in files}) > 1:
        return {}
    import hashlib

    found = {}
    for name in files:
        if name.endswith(".journal") and is_being_written(run / name):
            return {}  # its recorder hangs: it may write more
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(read_regular(run / name, HASHED_BYTES)[: files[name]]).hexdigest()
    return found


def find_host_dir(run: Path, host: str) -> Path:
    """Return the folder of a host inside a run; raise StoreError if the name would lead outside of the run."""
    if host in ("", ".", "..") or host.startswith(".") or "/" in host or "\0" in host:
        raise StoreError(f"{host!r} cannot name a host folder", code="store.bad-name")
    return run / host


def make_host_dir(run: Path, host: str) -> Path:
    """Create the folder of a host, with its folder `marks`, and return it; raise StoreError if that fails."""
    path = find_host_dir(run, host)
    try:
        (path / "marks").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what, why = "cannot create the host folder", error.strerror
        raise StoreError(what, where=str(path), why=why, code="store.not-created") from error
    return path


def list_host_dirs(run: Path) -> list[Path]:
    """Return the host folders of a run, sorted by name."""
    return sorted(p for p in run.iterdir() if p.is_dir() and not p.name.startswith("."))


def write_json_atomic(path: Path, data: Mapping[str, Any], *, sync: bool = True) -> None:
    """Write a JSON file atomically; raise WriteFailed and leave no temporary file behind.

    Without `sync`, the file is one line and may be empty after a power loss: fast, for files that can be made again.
    """
    # Bytes of a command line that are no UTF-8 are lone surrogates here: they become JSON's own escapes.
    text = json.dumps(data, indent=1 if sync else None, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    try:
        replace_file(path, text, sync=sync)
    except OSError as error:
        raise WriteFailed(f"cannot write {path.name}", where=str(path.parent), error=error, rows_written=0) from error


def read_meta(run: Path) -> dict[str, Any]:
    """Read `run.json` in the current schema; a host that is missing is empty.

    Raises NotARun, NewerSchema or StoreError.
    """
    if not os.path.lexists(run / "run.json"):
        why = "no run.json in it, or no permission"
        raise NotARun("not a run folder", where=str(run), why=why, next="joulelab ls", code="not-a-run.folder")
    meta = upgrade_document("run", read_json(run / "run.json"), where=str(run))
    return {**meta, "host": meta.get("host") or ""}


def read_end(run: Path) -> dict[str, Any] | None:
    """Read `end.json` in the current schema, None if the run has not ended; raise NewerSchema or StoreError."""
    if not os.path.lexists(run / "end.json"):
        return None
    return upgrade_document("end", read_json(run / "end.json"), where=str(run))


def _is_file(path: Path) -> bool:
    # A folder that may not be entered holds no run for us; pathlib would raise.
    with contextlib.suppress(OSError):
        return path.is_file()
    return False


def identify_owner(pid: int | None = None) -> dict[str, Any]:
    """Return the identity of a process (None = this one) in the form of `run.json`."""
    known = identify_process(pid)
    return {"pid": known["pid"], "start_ticks": known["ticks"], "boot_id": known["boot"]}


def read_run_state(
    run: Path, meta: Mapping[str, Any] | None = None, *, proc: Path = PROC, boot: str | None = None
) -> RunState:
    """Return whether a run is live, closed or killed; it is live while a process writes one of its journals."""
    if os.path.lexists(run / "end.json"):
        return RunState.CLOSED
    who = (read_meta(run) if meta is None else meta).get("owner") or {}
    if find_process(who, proc=proc, boot=boot) == "alive":
        return RunState.LIVE
    journals = list(run.glob("*/*.journal"))
    if any(is_being_written(p) for p in journals):
        return RunState.LIVE
    elsewhere = who.get("boot_id") != (read_boot_id() if boot is None else boot)
    if elsewhere and _measure_age(journals) < RECENT_S:
        return RunState.LIVE
    # end.json may have come while we looked.
    return RunState.CLOSED if os.path.lexists(run / "end.json") else RunState.KILLED


def _measure_age(paths: list[Path]) -> float:
    newest = 0.0
    for path in paths:
        with contextlib.suppress(OSError):
            newest = max(newest, path.stat().st_mtime)
    return time.clock_gettime(time.CLOCK_REALTIME) - newest


def list_runs(runs: Path) -> list[Path]:
    """Return the run folders of a store, the oldest first; none if the store does not exist."""
    try:
        names = sorted(p.name for p in os.scandir(runs) if RUN_ID.fullmatch(p.name))
    except OSError:
        return []
    return [runs / name for name in names if os.path.lexists(f"{runs}/{name}/run.json")]


def find_run(runs: Path, what: str) -> Path:
    """Find a run by `last`, id, name (the newest of that name), unique prefix of its id, or path; raise NotARun."""
    known = list_runs(runs)
    if what == "last":
        if not known:
            then = "joulelab run -- COMMAND"
            raise NotARun("there is no run yet", where=str(runs), next=then, code="not-a-run.none-yet")
        return _find_newest(known)
    if ("/" in what or what in (".", "..")) or _is_file(Path(what) / "run.json"):
        read_meta(Path(what))
        return Path(what)
    by_id = {p.name: p for p in known}
    if what in by_id:
        return by_id[what]
    names = {p: _read_name(p) for p in known}
    named = [p for p in known if names[p] == what]
    if named:
        return _find_newest(named)
    matching = [p for p in known if what and p.name.startswith(what)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        some = ", ".join(p.name for p in matching[-5:])
        raise NotARun(
            f"the names of {len(matching)} runs begin with {what!r}",
            where=str(runs),
            why=f"the latest: {some}",
            next="give more letters of the name",
            code="not-a-run.ambiguous",
        )
    import difflib

    candidates = [*(n for n in names.values() if n), *reversed(by_id)]
    near = list(dict.fromkeys(difflib.get_close_matches(what, candidates, n=5, cutoff=0.5)))
    why = f"nearest: {', '.join(near)}" if near else f"{len(known)} runs there, none of that id or name"
    raise NotARun(f"no run {what!r}", where=str(runs), why=why, next="joulelab ls", code="not-a-run.unknown")


def select_runs(runs: Path, text: str) -> list[Path]:
    """Return all runs with these labels, the oldest first: `batch=256`, `batch=256,model=vgg`, `name=baseline`.

    `name` is the name of a run. Raises NotARun if there is none.
    """
    wanted = dict(part.strip().split("=", 1) for part in text.split(",") if "=" in part)
    known = [(path, _read_labels(path)) for path in list_runs(runs)]
    found = [path for path, labels in known if wanted and wanted.items() <= labels.items()]
    if found:
        return found
    names = sorted({f"{name}={labels[name]}" for _, labels in known for name in wanted if name in labels})
    why = f"there are {', '.join(names[:MOST_NAMED])}" if names else f"{len(known)} runs there, none with these labels"
    then = "label runs with --label NAME=VALUE, or name them: joulelab ls"
    raise NotARun(f"no run has {text}", where=str(runs), why=why, next=then, code="not-a-run.label")


def _read_labels(run: Path) -> dict[str, str]:
    """Return the labels of a run, and its name as `name`; empty if the run cannot be read."""
    try:
        meta = read_json(run / "run.json")
        labels = {str(name): str(value) for name, value in (meta.get("labels") or {}).items()}
        return labels | ({"name": str(meta["name"])} if meta.get("name") else {})
    except (StoreError, AttributeError):
        return {}


def _find_newest(known: list[Path]) -> Path:
    # Ids have whole seconds; runs of the same second are ordered by their clocks.
    second = known[-1].name[:15]
    return max((p for p in known if p.name[:15] == second), key=_read_start_ns)


def _read_start_ns(run: Path) -> int:
    try:
        return int(read_json(run / "run.json")["started"]["utc_ns"])
    except (StoreError, KeyError, TypeError, ValueError):
        return 0


def _read_name(run: Path) -> str | None:
    try:
        name = read_json(run / "run.json").get("name")
    except StoreError:
        return None
    return name if isinstance(name, str) else None
