"""Add what an archive told to a run that is closed, as a host folder of its own. Nothing that is there is changed.

The folder is prepared beside its place and renamed: it is there whole or not at all, and of two that add the same name
one succeeds. Its time line is UTC, with clock pairs that say so; readers join it with the run's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import StoreError
from joulelab.store.folder import ATTACHED, RunState, find_host_dir, read_run_state
from joulelab.store.imported import make_utc_pair, write_journal, write_lines
from joulelab.store.manifest import RESULTS
from joulelab.store.safe_files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.spec import Fetched
    from joulelab.store.imported import ImportedMeter


def is_attached(run: Path, name: str) -> bool:
    """Return whether a run has a host folder of that name. Raises StoreError for what cannot be one."""
    return find_host_dir(run, name).is_dir()


def attach_host(
    run: Path, name: str, parts: Sequence[ImportedMeter], facts: Mapping[str, Any], times: tuple[int, int]
) -> None:
    """Add `parts` to a run as the host `name`, with `facts` in its events; `times` (UTC, ns) are what it covers.

    Raises StoreError where the run is not closed, or has a host of that name.
    """
    if read_run_state(run) is not RunState.CLOSED:
        why = "what is recorded could be lost"
        raise StoreError("the run is not closed", where=str(run), why=why, next="wait", code="store.not-closed")
    if is_attached(run, name):
        raise _refuse_existing(run, name)
    prepared = f".{name}.{os.getpid()}-{os.urandom(3).hex()}"
    folder = run / prepared
    try:
        (folder / "marks").mkdir(parents=True)
        _write_host(folder, name, parts, facts, times)
        sync_directory(folder)
        folder.rename(run / name)
        sync_directory(run)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _refuse_existing(run, name) from None
        raise StoreError("cannot add to the run", where=str(run), why=error.strerror, code="store.attach") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for cache in RESULTS:
        with contextlib.suppress(OSError):
            (run / cache).unlink(missing_ok=True)


def _refuse_existing(run: Path, name: str) -> StoreError:
    why = "raw data is never changed"
    what, then = f"the run has {name} already", "give another name: --name NAME"
    return StoreError(what, where=str(run), why=why, next=then, code="store.exists")


def _write_host(
    folder: Path, host: str, parts: Iterable[ImportedMeter], facts: Mapping[str, Any], times: tuple[int, int]
) -> None:
    start = times[0]
    events: list[dict[str, Any]] = [{"t": start, "event": ATTACHED, **facts}]
    events += [{"t": t, "event": "clock", **asdict(make_utc_pair(t))} for t in times]
    tables: dict[tuple[str, str], list[Fetched]] = {}
    for part in parts:
        events.append({"t": start, "event": "meter", "meter": part.meter, "status": "open"})
        for fetched in part.streams:
            tables.setdefault((part.meter, fetched.stream.table), []).append(fetched)
            events += [{**event, "meter": part.meter} for event in fetched.events]
    write_lines(folder / "events.0.jsonl", sorted(events, key=lambda event: int(event["t"])))
    for (meter, table), members in tables.items():
        write_journal(folder, meter, table, members, host=host)
