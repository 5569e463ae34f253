"""Find files of a run that are missing, unreadable, cut off or changed, by comparing them with records in its folder.

A run without a manifest (sealed by joulelab 0.1.1 and before, or not sealed yet) records little of the content: a file
that was changed and can still be read is then found only by its number of rows or its size.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from joulelab.store.clock_joining import UTC_BOOT_ID
from joulelab.store.manifest import compare_size
from joulelab.store.run_folder import RunState
from joulelab.store.safe_files import open_regular
from joulelab.store.sample_tables import FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.store.manifest import FileCheck
    from joulelab.store.sample_tables import SampleTable

CHANGED = "it was changed after the run"


def find_damage(
    known: Sequence[FileProblem],
    *,
    run: Path,
    state: RunState,
    folders: Sequence[Path],
    tables: Sequence[SampleTable],
    events: Sequence[Mapping[str, Any]],
    files: Mapping[str, int],
) -> list[FileProblem]:
    """Return files that cannot be read, files with damaged lines, files that were cut off, and files that are missing.

    `known` are problems that were found while reading; `folders` are the expected folders of hosts; `files` are the
    sizes (bytes) at the end of the run. A live run is still being written: its newest journals may have no header yet,
    and its newest meters no file. The files of a killed run may end anywhere.
    """
    if state is RunState.LIVE:
        return [p for p in known if p.path.suffix == ".jsonl" or (p.lost and p.path.suffix != ".journal")]
    found = [p for p in known if p.lost or p.path.suffix in (".jsonl", ".json")]
    for folder in folders:
        if not folder.is_dir():
            found.append(FileProblem(folder, "the folder of the host is missing", lost=True, code="missing-host"))
            continue
        here = [t for t in tables if t.host == folder.name]
        own = [e for e in events if e.get("host") == folder.name]
        found += _find_missing_events(folder, here, own)
        # A recorder makes a file for its first row; imported tables may be empty.
        empty = [t for t in here if t.segments and not t.rows and t.segments[0].header.boot_id != UTC_BOOT_ID]
        for path in (folder / f"{t.meter}.{t.table}" for t in empty):
            found.append(FileProblem(path, "it holds no rows", lost=True, code="no-rows"))
        if state is RunState.CLOSED:
            unusable = {p.path for p in found if p.lost}
            cut = _find_cut_files(folder, [t for t in here if t not in empty], own, files)
            found += [p for p in cut if p.path not in unusable]
        lost = {p.path.name.partition(".")[0] for p in found if p.path.parent == folder}
        opened = (e for e in own if e.get("event") == "meter" and e.get("status") == "open")
        for event in (e for e in opened if e.get("meter") not in lost):
            # Imported tables may belong to other hosts.
            found += _find_missing_samples(folder, event, here if "streams" in event else tables, own)
    listed = {p.path for p in found}
    lines = (run / name for name in files if name.endswith(".jsonl"))
    gone = [p for p in lines if not os.path.lexists(p) and listed.isdisjoint((p, *p.parents))]
    gone = list(dict.fromkeys(p if p.parent.exists() else p.parent for p in gone))
    found += [FileProblem(p, "it is missing", lost=True, code="missing") for p in gone]
    return list({p.path: p for p in reversed(found)}.values())[::-1]  # the first problem of each file


def word_damage(run: Path, check: FileCheck) -> FileProblem:
    """Describe the difference of a file from the manifest as a problem of the run."""
    size, whole = check.size or 0, check.record.size
    what, code = {
        "missing": ("it is missing", "missing"),
        "cut": (f"it was cut off after {size:,} of {whole:,} bytes", "cut-off"),
        "changed": (CHANGED, "changed"),
    }.get(check.status, (f"it cannot be read ({check.why})", "unreadable"))
    return FileProblem(run / check.name, what, lost=True, code=code, numbers=count_bytes(size, whole))


def count_bytes(size: int | None, recorded: int | None) -> dict[str, float]:
    """Return the size of a file, and that of its record, as numbers of a problem."""
    return {"bytes": float(size or 0), "recorded": float(recorded or 0)}


def _find_cut_files(
    folder: Path, tables: Sequence[SampleTable], events: Sequence[Mapping[str, Any]], files: Mapping[str, int]
) -> Iterator[FileProblem]:
    """Find files of an ended run whose size is not that of its end, or that lack their last row, line or event.

    A killed recorder leaves such files, and its supervisor writes an event; on a lost node there may be
    no event, so files of recorders on other nodes are judged by their sizes only.
    """
    killed = {str(e.get("segment")) for e in events if e.get("event") in ("recorder-died", "recorder-stuck")}
    is_node = any(e.get("source") == "events.node" for e in events)
    for meter, name, s in ((t.meter, t.table, s) for t in tables for s in t.segments):
        path = folder / f"{meter}.{name}.{s.header.segment}.journal"
        torn = s.torn_bytes and not is_node and str(s.header.segment) not in killed
        size, recorded = s.journal_bytes, files.get(f"{folder.name}/{path.name}")
        status = "whole" if size is None or recorded is None else compare_size(path.name, size, recorded)
        if torn and status == "changed":
            yield FileProblem(path, CHANGED, lost=True, code="changed", numbers=count_bytes(size, recorded))
        elif torn or status == "cut":
            what = f"it was cut off after {s.rows:,} rows"
            yield FileProblem(path, what, lost=True, code="cut-off", numbers={"rows": s.rows})
    started = {str(e.get("segment")) for e in events if e.get("event") == "recorder-started"}
    stopped = {e.get("source") for e in events if e.get("event") == "stop"}
    marks = folder / "marks"
    if os.path.lexists(marks) and not marks.is_dir():
        yield FileProblem(marks, "it is not a folder", lost=True, code="no-folder")
    for path in sorted((*folder.glob("events.*.jsonl"), *folder.glob("marks/*.jsonl"))):
        number = path.name.split(".")[1]
        excused = path.parent == folder and (is_node or number in killed)
        try:
            size, whole = _check_end_record(path)
        except OSError:
            continue  # known already
        recorded = files.get(path.relative_to(folder.parent).as_posix())
        if size < (recorded or 0) or not (whole or excused or (recorded is not None and size > recorded)):
            what = f"it was cut off after {size:,} bytes"
            yield FileProblem(path, what, lost=True, code="cut-off", numbers={"bytes": size})
        elif not (whole or excused):  # nothing of the run is lost
            what = "a line that was added after the run has no end"
            yield FileProblem(path, what, code="torn-line", numbers=count_bytes(size, recorded))
        elif number in started and path.stem not in stopped and not excused:
            yield FileProblem(path, "it was cut off before the recorder stopped", lost=True, code="no-stop")


def _check_end_record(path: Path) -> tuple[int, bool]:
    """Return the size of a file of lines, and whether its last line is whole. Raises OSError."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return size, file.read(1) in (b"", b"\n")


def _find_missing_events(
    folder: Path, tables: Sequence[SampleTable], events: Sequence[Mapping[str, Any]]
) -> Iterator[FileProblem]:
    """Find recorders that wrote samples but no events, or no events of the meters that the samples belong to."""
    segments = {s.header.segment for table in tables for s in table.segments}
    for event in (e for e in events if e.get("event") == "recorder-started" and e.get("segment") in segments):
        path = folder / f"events.{event['segment']}.jsonl"
        ends = f".{event['segment']}"
        if not path.exists():
            yield FileProblem(path, f"{path.name} is missing", lost=True, code="missing")
        elif not any(e.get("event") == "meter" and str(e.get("source")).endswith(ends) for e in events):
            yield FileProblem(path, f"{path.name} names no meter", lost=True, code="no-meters")


def _find_missing_samples(
    folder: Path, opened: Mapping[str, Any], tables: Sequence[SampleTable], events: Sequence[Mapping[str, Any]]
) -> Iterator[FileProblem]:
    """Find a meter that was opened with more streams than the folder holds; streams that never answered have gaps."""
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
        numbers = {"stored": float(len(stored)), "wanted": float(wanted)}
        yield FileProblem(folder / f"{meter}", what, lost=True, code="missing-streams", numbers=numbers)
