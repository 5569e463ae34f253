"""Write run folders of virtual time as the recorder would: journals, events, marks. Nothing is forced to the disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.clock import NS
from joulelab.core.errors import WriteFailed
from joulelab.core.mark_lines import encode_json, format_begin, format_end
from joulelab.core.version import __version__
from joulelab.store.imported import NO_HOST, make_utc_pair, write_lines
from joulelab.store.journal import list_columns, make_journal_path, pack_header
from joulelab.store.run_folder import create_run, end_run, find_host_dir
from joulelab.store.safe_files import replace_file
from joulelab.twin.virtual.meters import draw_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.spec import Stream
    from joulelab.store.journal import HeaderFields
    from joulelab.twin.timeline import Span, Timeline
    from joulelab.twin.virtual.meters import Measured, Rows

STAMP_NS = 1_000_000  # between two notes on a run
WORK = "samples"
MOST_STEPS, STEP_NS = 16, NS // 2  # at most this many steps of a stretch have a time, as in a real record
FIRST_NS = 18_262 * 86_400 * NS  # 2020-01-01, in UTC: the day on which virtual time begins


@dataclass(frozen=True, slots=True)
class RunDescription:
    """Hold the content of `run.json` of a run in virtual time."""

    name: str
    labels: Mapping[str, str]
    command: Sequence[str]
    host: str
    twin: Mapping[str, Any]
    options: Mapping[str, Any]


def write_run(
    runs: Path,
    about: RunDescription,
    timeline: Timeline,
    measured: Sequence[Measured],
    events: Iterable[Mapping[str, Any]],
    marks: Mapping[str, Iterable[str]] | None = None,
) -> Path:
    """Write a closed run folder into `runs` and return its path. Raises StoreError.

    `marks` are lines by the name of their file; without them the stages of the timeline are marked.
    """
    start = asdict(make_utc_pair(timeline.begin_ns))
    meta = {"host": about.host, "command": list(about.command), "name": about.name, "labels": dict(about.labels)}
    more = {"joulelab": __version__, "started": start, "twin": dict(about.twin), "options": dict(about.options)}
    run = create_run(runs, {**meta, **more}, sync=False)
    folder = find_host_dir(run, about.host)
    every = [*_list_events(timeline, measured), *events]
    write_lines(folder / "events.0.jsonl", sorted(every, key=lambda event: int(event["t"])))
    for name, lines in ({"0": _list_marks(timeline.spans)} if marks is None else marks).items():
        _write_text(folder / "marks" / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))
    for each in measured:
        tables: dict[str, list[Rows]] = {}
        for rows in each.rows:
            tables.setdefault(rows.stream.table, []).append(rows)
        for table, members in tables.items():
            _write_journal(folder, each.meter, table, members)
    ended = {"outcome": "exit", "exit_code": 0, "start_ns": timeline.start_ns, "end_ns": timeline.end_ns}
    end_run(run, {**ended, "ended": asdict(make_utc_pair(timeline.close_ns))}, sync=False)
    return run


def _list_events(timeline: Timeline, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    begin, start, end, close = timeline.begin_ns, timeline.start_ns, timeline.end_ns, timeline.close_ns
    events: list[dict[str, Any]] = [{"t": t, "event": "clock", **asdict(make_utc_pair(t))} for t in (begin, close)]
    events += [{"t": begin, "event": "meter", "meter": each.meter, "status": "open"} for each in measured]
    events += [event for each in measured for event in each.events]
    if start > begin:
        events.append({"t": start - STAMP_NS, "event": "idle", "from": begin, "to": start - STAMP_NS})
    events.append({"t": start, "event": "workload", "pid": 1, "start_ns": start})
    events.append({"t": end, "event": "workload-end", "end_ns": end, "outcome": "exit", "exit_code": 0, "signal": None})
    return events


def _list_marks(spans: Sequence[Span]) -> list[str]:
    """Return phases, those of one name and number that follow each other as one, and the samples done in each."""
    lines: list[str] = []
    groups = groupby(spans, lambda span: (span.name, span.epoch))
    for number, group in enumerate(list(members) for _, members in groups):
        first, last = group[0], group[-1]
        identity = f"1-{number}" if first.name else None
        if identity:
            lines.append(format_begin(first.start_ns, identity, first.name, first.epoch, None, None, 1, 0))
        samples = sum(span.samples for span in group)
        if samples:
            at = _draw_steps(first.start_ns, last.end_ns, number)
            about = {"from": at[0], "phase": identity, "amounts": {WORK: samples}, "count": len(at), "at": at}
            lines.append(encode_json({"t": at[-1], "mark": "work", **about, "rank": 0}))
        if identity:
            lines.append(format_end(last.end_ns, identity))
    return lines


def _draw_steps(start_ns: int, end_ns: int, number: int) -> list[int]:
    """Return some times of steps inside a stretch: in step with nothing, as those of real work."""
    count = min(MOST_STEPS, max(1, (end_ns - start_ns) // STEP_NS))
    each = (end_ns - start_ns) // count
    inside = [start_ns + k * each + round(draw_share(number, k) * each) for k in range(count - 1)]
    return [*inside, end_ns]


def _write_journal(folder: Path, meter: str, table: str, members: Sequence[Rows]) -> None:
    """Write all streams of a table as one journal, packed at once."""
    streams = [rows.stream for rows in members]
    kind = np.dtype([("stream", "<i8"), ("t0", "<i8"), ("t1", "<i8"), ("values", "<f8", (len(list_columns(streams)),))])
    packed = np.empty(sum(len(rows.t0_ns) for rows in members), kind)
    at = 0
    for index, rows in enumerate(members):
        part = packed[at : at + len(rows.t0_ns)]
        part["stream"], part["t0"], part["t1"], part["values"] = index, rows.t0_ns, rows.t1_ns, rows.values
        at += len(part)
    path = make_journal_path(folder, meter, table, 0)
    try:
        with path.open("xb") as file:
            file.write(_pack_head(meter, table, folder.name, tuple(streams)))
            file.write(packed.view(np.uint8).data)
    except OSError as error:
        raise WriteFailed(f"cannot write {path.name}", where=str(folder), error=error, rows_written=0) from error


@lru_cache(maxsize=64)  # slots of a study have the same meters
def _pack_head(meter: str, table: str, host: str, streams: tuple[Stream, ...]) -> bytes:
    header: HeaderFields = {"meter": meter, "table": table, "segment": 0, "host": host, "boot_id": NO_HOST}
    return pack_header(header, streams)


def _write_text(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode(), sync=False)
    except OSError as error:
        raise WriteFailed(f"cannot write {path.name}", where=str(path.parent), error=error, rows_written=0) from error
