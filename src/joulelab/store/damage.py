"""Find files that a run lacks or that cannot be read, by what its folder itself says. Pure.

A file that was changed and can still be read is found only where its number of rows is not the one it was written
with: nothing else in the folder says what was in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.store.clocks import NOWHERE
from joulelab.store.table import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.store.table import Table


def find_damage(
    known: Sequence[Problem], *, live: bool, folders: Sequence[Path], tables: Sequence[Table], events: Sequence[Any]
) -> list[Problem]:
    """Return files that cannot be read, files with damaged lines, and files that are missing.

    `known` are the problems that reading has met; `folders` are those that the hosts should have. A live run is still
    being written: its newest journals may have no header yet, and its newest meters no file.
    """
    if live:
        return [p for p in known if p.path.suffix == ".jsonl" or (p.lost and p.path.suffix != ".journal")]
    found = [p for p in known if p.lost or p.path.suffix == ".jsonl"]
    for folder in folders:
        if not folder.is_dir():
            found.append(Problem(folder, "the folder of the host is missing", lost=True))
            continue
        here = [t for t in tables if t.host == folder.name]
        own = [e for e in events if e.get("host") == folder.name]
        found += _missing_events(folder, here, own)
        # A recorder makes a file for its first row; what was imported may be empty.
        empty = [t for t in here if t.segments and not t.rows and t.segments[0].header.boot_id != NOWHERE]
        found += [Problem(folder / f"{t.meter}.{t.table}", "it holds no rows", lost=True) for t in empty]
        lost = {p.path.name.partition(".")[0] for p in found if p.path.parent == folder}
        opened = (e for e in own if e.get("event") == "meter" and e.get("status") == "open")
        for event in (e for e in opened if e.get("meter") not in lost):
            # The tables of what was imported may be those of other hosts.
            found += _missing_samples(folder, event, here if "streams" in event else tables, own)
    return found


def _missing_events(folder: Path, tables: Sequence[Table], events: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Find recorders that have left samples but no events, or none of the meters that the samples are of."""
    segments = {s.header.segment for table in tables for s in table.segments}
    for event in (e for e in events if e.get("event") == "recorder-started" and e.get("segment") in segments):
        path = folder / f"events.{event['segment']}.jsonl"
        ends = f".{event['segment']}"
        if not path.exists():
            yield Problem(path, f"{path.name} is missing", lost=True)
        elif not any(e.get("event") == "meter" and str(e.get("source")).endswith(ends) for e in events):
            yield Problem(path, f"{path.name} names no meter", lost=True)


def _missing_samples(
    folder: Path, opened: Mapping[str, Any], tables: Sequence[Table], events: Sequence[Mapping[str, Any]]
) -> Iterator[Problem]:
    """Find a meter that was opened with more streams than the folder has; one that never answered has left gaps."""
    meter, source = opened.get("meter"), str(opened.get("source"))
    number = source.rpartition(".")[2]
    segments = [
        (t.table, s.header)
        for t in tables
        for s in t.segments
        if t.meter == meter and number in (str(s.header.segment), "run")
    ]
    stored = {(table, stream.name) for table, header in segments for stream in header.streams}
    same = [e for e in events if e.get("meter") == meter and e.get("source") == source]
    silent = {e.get("stream") for e in same if e.get("event") in ("gap", "stuck")} - {name for _, name in stored}
    wanted = int(opened.get("streams", 1))
    if len(stored) + len(silent) < wanted:
        what = f"{len(stored)} of {wanted} streams are stored, a file with the others is missing"
        yield Problem(folder / f"{meter}", what, lost=True)
