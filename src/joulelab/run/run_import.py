"""Make a run from measurements of other programs: read a time span from archives; add an archive to a run."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, ReadFailed, StoreError
from joulelab.core.scope import find_family
from joulelab.core.text import suggest_name
from joulelab.core.version import __version__
from joulelab.instruments.file.sources import describe_file
from joulelab.run.config.configuration import KeySource, MeterEntry, load_config
from joulelab.run.config.meter_choice import resolve_secrets
from joulelab.run.config.meter_entries import find_meter_module
from joulelab.store.imported import ImportedMeter, ImportedPhase, RunImport, attach_host, import_run, name_meters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.core.spec import Archive, Fetched
    from joulelab.instruments.file.tool_results import ToolResult

PROBLEM_STATES = ("warning", "failed")  # of events about the time span
QUARTER_NS, MOST_QUARTERS = 900 * 10**9, 14 * 4  # zones are apart by quarters of an hour, up to 14 h
EDGE_NS = 60 * 10**9  # readings of a load may begin and end so much inside of it
COMMAND_LINE = KeySource(Path("the command line"))


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """Hold an archive to read: its module, its label, its settings with secrets resolved."""

    meter: str
    label: str
    settings: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Hold the run to make of archives: time span, idle time span and phases in UTC ns, name and labels."""

    source: str
    command: Sequence[str]
    start_ns: int | None = None
    end_ns: int | None = None
    idle: tuple[int, int] | None = None
    phases: Sequence[ImportedPhase] = ()
    host: str = ""
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """Hold the run that was made, problems of its sources, and remarks about what they chose themselves."""

    run: Path
    problems: Sequence[str]
    remarks: Sequence[str] = ()


def read_archive_entry(
    name: str, environ: Mapping[str, str], host: str, *, named: Path | None = None
) -> ArchiveRequest:
    """Return the archive of an entry of the configuration. Raises ConfigError with the nearest name."""
    config = load_config(environ, host, named=named)
    entry = config.find_entry(name)
    if entry is None:
        config.check()  # its entry may be wrong
        valid = [e.name for e in config.entries]
        advice = suggest_name(name, valid) if valid else f"write [meters.{name}] into joulelab.toml"
        raise ConfigError(
            f"there is no entry {name!r}", where="joulelab.toml", next=advice, code="config.unknown-entry"
        )
    settings, _ = resolve_secrets(entry, environ)
    if entry.meter == "file" and isinstance(settings.get("path"), str):
        beside = entry.sources.get("path", entry.source).file.parent
        settings["path"] = str(beside / Path(settings["path"]).expanduser())
    return ArchiveRequest(entry.meter, name, settings)


def make_archive_request(
    meter: str, label: str, settings: Mapping[str, Any], environ: Mapping[str, str]
) -> ArchiveRequest:
    """Return an archive with settings of the command line; secrets are references, too. Raises ConfigError."""
    secrets = tuple(getattr(find_meter_module(meter), "SECRETS", ()))
    entry = MeterEntry(label, meter, COMMAND_LINE, dict(settings), secrets=secrets)
    return ArchiveRequest(meter, label, resolve_secrets(entry, environ)[0])


def import_archives(runs: Path, requests: Sequence[ArchiveRequest], wanted: ImportRequest) -> ImportedRun:
    """Read the time span from all archives, write a run and seal it. Raises ConfigError, MeterError, StoreError."""
    with contextlib.ExitStack() as stack:
        archives = [_open_archive(one, stack) for one in requests]
        start_ns, end_ns = _find_span(archives, wanted)
        phases = [*_list_steps(archives, start_ns, end_ns), *wanted.phases]
        since, until = start_ns, end_ns
        if wanted.idle is not None:
            since, until = min(since, wanted.idle[0]), max(until, wanted.idle[1])
        names = name_meters(one.label for one in requests)
        fetched = [(name, a.fetch(since, until)) for name, a in zip(names, archives, strict=True)]
        doubts = _list_doubts(archives, wanted, start_ns)
        parts = _add_doubts(_group_by_meter(fetched), doubts)
        _refuse_no_readings(parts, archives, wanted.source, (start_ns, end_ns))
        for one, archive, (_, streams) in zip(requests, archives, fetched, strict=True):
            if one.meter == "file":
                _refuse_impossible_powers(one, archive, streams)
        about: dict[str, Any] = {"source": wanted.source, "archives": [*_describe_archives(requests, names, archives)]}
        what = RunImport(
            parts=parts,
            start_ns=start_ns,
            end_ns=end_ns,
            about=about,
            command=wanted.command,
            host=wanted.host,
            name=wanted.name or next((str(a["name"]) for a in about["archives"] if a.get("name")), None),
            labels={**_collect_labels(archives), **wanted.labels},
            idle=wanted.idle,
            phases=phases,
            version=__version__,
            unsure_s=_get_span_error(archives, wanted),
        )
        run = import_run(runs, what)
        remarks = [str(text) for a in archives for text in getattr(a, "remarks", ())]
    from joulelab.store.seal import seal_run

    seal_run(run, wait=True)
    return ImportedRun(
        run, list_archive_problems([f for part in parts for f in part.streams]), list(dict.fromkeys(remarks))
    )


def import_tool_results(
    runs: Path, path: Path, results: Sequence[ToolResult], wanted: ImportRequest, settings: Mapping[str, Any]
) -> list[Path]:
    """Write a run for each result of another tool and seal it; `settings` may state their accuracy.

    Raises ConfigError, StoreError.
    """
    from joulelab.store.seal import seal_run

    made, facts = list[Path](), describe_file(path)
    for one in results:
        streams = one.make_streams(settings)
        # A doubt is about the whole result: it is in the first stream.
        doubts = [{"t": one.span[0], **event} for event in one.doubts]
        streams[0] = replace(streams[0], events=[*doubts, *streams[0].events])
        stated = {name: value for name, value in one.facts.items() if value not in (None, "")}
        archive = {"meter": one.tool, "archive": one.tool, **facts, "line": one.line, **stated}
        labels = {"origin": one.origin, **{key: value for key, value in one.labels.items() if value}}
        what = RunImport(
            parts=[ImportedMeter(one.tool, streams)],
            start_ns=one.span[0],
            end_ns=one.span[1],
            about={"source": wanted.source, "archives": [archive]},
            command=wanted.command,
            host=wanted.host,
            name=wanted.name or one.name or None,
            labels={**labels, **wanted.labels},
            version=__version__,
            facts=stated,
        )
        made.append(import_run(runs, what))
        seal_run(made[-1], wait=True)
    return made


def _refuse_no_readings(
    parts: Sequence[ImportedMeter], archives: Sequence[Archive], source: str, span: tuple[int, int]
) -> None:
    """Raise ReadFailed where no stream has readings in the run or on both sides of it, with the times of readings.

    Beside the log of a load, readings have to cover the whole run: clocks of two zones may overlap in part.
    """
    start_ns, end_ns = span
    times = [(f.rows[0][0], f.rows[-1][1]) for part in parts for f in part.streams if len(f.rows)]
    overlap = any(first <= end_ns and last >= start_ns for first, last in times)
    is_local = any(getattr(a, "is_local", False) for a in archives)
    if overlap and (not is_local or any(a <= start_ns + EDGE_NS and b >= end_ns - EDGE_NS for a, b in times)):
        return
    why, advice = None, next((a.lacks for a in archives if hasattr(a, "lacks") and not times), "give --from and --to")
    own = next((a.interval for a in archives if hasattr(a, "find_cell")), None)  # type: ignore[attr-defined]
    if own is not None:
        ours, theirs = (f"from {format_utc(a)} to {format_utc(b)}" for a, b in (span, own))
        why = f"the readings are {theirs}, the run is {ours}"
        quarters = round((start_ns + end_ns - sum(own)) / 2 / QUARTER_NS)
        if abs(quarters) <= MOST_QUARTERS:
            advice += f"; if the clock of the readings is of another zone, type clock_offset_s={quarters * 900}"
    what = "the readings do not cover the run" if overlap else "there is no reading in that interval"
    raise ReadFailed(what, where=source, why=why, next=advice, code="read-failed.no-readings")


def _refuse_impossible_powers(request: ArchiveRequest, archive: Archive, fetched: Sequence[Fetched]) -> None:
    """Raise ReadFailed for a power that no device has, with its line: a sum with it would be wrong by any amount."""
    from joulelab.analysis.device_checks import BELOW_ZERO_W, MOST_ELSE_W, MOST_W

    for one in fetched:
        most_w = MOST_W.get(find_family(one.stream.scope), MOST_ELSE_W)
        for k, spec in enumerate(one.stream.channels):
            low_w, high_w = -BELOW_ZERO_W - spec.accuracy.offset, most_w
            if spec.kind != "power":
                continue
            wrong = [(row[0], row[2][k]) for row in one.rows if row[2][k] < low_w or row[2][k] > high_w]
            if not wrong:
                continue
            (at_ns, watts), scope = wrong[0], one.stream.scope
            line, column, text = archive.find_cell(at_ns, one, spec.name)  # type: ignore[attr-defined]
            why = "it is below zero" if watts < low_w else f"no such device reaches {high_w:g} W"
            raise ReadFailed(
                f"{watts:g} W is no power of {scope}",
                where=f"{request.settings.get('path')}, line {line}, column {column!r}",
                why=f"{why}; {len(wrong)} of {len(one.rows)} readings are such",
                next=f"correct the file, or the unit: --map '{column}={scope}:UNIT' header_units=false; "
                f"where {text} stands for no reading, type 'missing={text}'",
                code="read-failed.impossible-power",
            )


def format_utc(utc_ns: int) -> str:
    """Return a time as people read it: 2024-05-01T12:00:00Z."""
    return dt.datetime.fromtimestamp(utc_ns // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_archive_problems(fetched: Sequence[Fetched]) -> list[str]:
    """Return the problems of archives, and the doubts about the time span, each once."""
    bad = (e for f in fetched for e in f.events if e.get("event") == "problem" or e.get("status") in PROBLEM_STATES)
    return list(dict.fromkeys(str(e.get("what", "")) for e in bad))


def _list_doubts(archives: Sequence[Archive], wanted: ImportRequest, start_ns: int) -> list[dict[str, Any]]:
    """Return as events the doubts about the time span, except about a begin or an end that was given."""
    own = _find_span_owner(archives)
    given = {"begin": wanted.start_ns is not None, "end": wanted.end_ns is not None}
    events = (dict(event) for event in getattr(own, "doubts", ()))
    return [{"t": start_ns, **event} for event in events if not given.get(event.get("side", ""))]


def _add_doubts(parts: list[ImportedMeter], doubts: Sequence[dict[str, Any]]) -> list[ImportedMeter]:
    """Return parts with these events of the whole run in the first stream."""
    place = next((k for k, part in enumerate(parts) if part.streams), None)
    if not doubts or place is None:
        return parts
    first, *others = parts[place].streams
    streams = [replace(first, events=[*doubts, *first.events]), *others]
    return [*parts[:place], ImportedMeter(parts[place].meter, streams), *parts[place + 1 :]]


def _group_by_meter(fetched: Sequence[tuple[str, Sequence[Fetched]]]) -> list[ImportedMeter]:
    """Return the series by meter; an archive may distinguish several."""
    found: dict[tuple[str, str], list[Fetched]] = {}
    for name, streams in fetched:
        for one in streams:
            found.setdefault((name, one.meter), []).append(one)
    names = name_meters(meter or name for name, meter in found)
    return [ImportedMeter(name, streams) for name, streams in zip(names, found.values(), strict=True)]


def _collect_labels(archives: Sequence[Archive]) -> dict[str, str]:
    return {str(k): str(v) for a in archives for k, v in getattr(a, "labels", {}).items()}


def _find_span_owner(archives: Sequence[Archive]) -> Archive | None:
    """Return the first archive that has a time span of its own."""
    return next((a for a in archives if getattr(a, "interval", None) is not None), None)


def _get_span_error(archives: Sequence[Archive], wanted: ImportRequest) -> tuple[float, float]:
    """Return the possible error of begin and end in s; 0 where they were given."""
    own = _find_span_owner(archives)
    begin_s, end_s = getattr(own, "unsure_s", (0.0, 0.0))
    return (begin_s if wanted.start_ns is None else 0.0), (end_s if wanted.end_ns is None else 0.0)


def _open_archive(request: ArchiveRequest, stack: contextlib.ExitStack) -> Archive:
    module = find_meter_module(request.meter)
    if not callable(getattr(module, "open_archive", None)):
        why = "it is read during a run"
        what = f"meter {request.meter} cannot be read afterwards"
        raise ConfigError(what, why=why, next="joulelab run -- COMMAND", code="config.not-an-archive")
    archive: Archive = module.open_archive({**request.settings, "label": request.label})
    stack.callback(archive.close)
    return archive


def _find_span(archives: Sequence[Archive], wanted: ImportRequest) -> tuple[int, int]:
    """Return the given time span, else that of the first archive that has one of its own."""
    start_ns, end_ns = wanted.start_ns, wanted.end_ns
    if start_ns is None or end_ns is None:
        own = next((i for i in (getattr(a, "interval", None) for a in archives) if i is not None), None)
        if own is None:
            raise ConfigError(
                f"{wanted.source} has no interval of its own", next="give --from and --to", code="config.no-interval"
            )
        start_ns, end_ns = (own[0] if start_ns is None else start_ns), (own[1] if end_ns is None else end_ns)
    if start_ns >= end_ns:
        why = f"it begins {(start_ns - end_ns) * 1e-9:g} s after its end" if start_ns > end_ns else "it has no length"
        raise ConfigError("the interval is empty", why=why, next="give --from and --to", code="config.empty-interval")
    return int(start_ns), int(end_ns)


def _list_steps(archives: Sequence[Archive], start_ns: int, end_ns: int) -> Iterator[ImportedPhase]:
    for archive in archives:
        for name, since, to, *work in getattr(archive, "steps", ()):
            if since is not None and since < end_ns and (to is None or to > start_ns):
                # Work of a longer time is not that of the run.
                done = work[0] if work and start_ns <= since and to <= end_ns else {}
                yield ImportedPhase(str(name), int(since), int(end_ns if to is None else to), done)


def _describe_archives(
    requests: Sequence[ArchiveRequest], names: Sequence[str], archives: Sequence[Archive]
) -> Iterator[dict[str, Any]]:
    for one, name, archive in zip(requests, names, archives, strict=True):
        facts: dict[str, Any] = json.loads(json.dumps(dict(getattr(archive, "facts", {})), default=str))
        yield {"meter": name, "archive": one.meter, **facts}


def attach_archive(
    run: Path, name: str, fetched: Sequence[Fetched], facts: Mapping[str, Any], *, meter: str = "slurm"
) -> None:
    """Add the readings of an archive to a closed run as the host `name`, once. Raises StoreError.

    `facts` go into the host's events as they are. Only the caches of the run are removed.
    """
    stamps = [t for one in fetched for row in one.rows for t in row[:2]]
    if not stamps:
        raise StoreError("there is nothing to add", where=str(run), code="store.nothing-to-add")
    plain: dict[str, Any] = json.loads(json.dumps(dict(facts), default=str))
    attach_host(run, name, [ImportedMeter(name_meters([meter])[0], fetched)], plain, (min(stamps), max(stamps)))
