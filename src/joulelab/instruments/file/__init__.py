"""Read what something else has measured and written into a file: CSV or Parquet, columns mapped by configuration."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.core.spec import Fetched
from joulelab.core.text import suggest_name
from joulelab.instruments import wall
from joulelab.instruments.file.guesses import guess_layout
from joulelab.instruments.file.layout import Layout, Names, check_tables, layout_of
from joulelab.instruments.file.mlperf import MARK, LoadArchive, MllogSource, SplSource
from joulelab.instruments.file.presets import PRESETS, find_preset, preset
from joulelab.instruments.file.source import CsvSource, ParquetSource, read_lines, sha256
from joulelab.instruments.file.streams import (
    Track,
    drop_zeros,
    fetched,
    find_mixed_rows,
    find_update_s,
    is_much,
    unreadable,
)
from joulelab.instruments.file.times import BadStamp, Clock, guess, zone_of
from joulelab.instruments.settings import check_keys, seconds, text

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence


SUMMARY = "CSV or Parquet files that something else wrote, asked after the fact"
PRIVILEGE = "none beyond reading the file"
TRIED = "public logs of nodes and GPUs, a submission of MLPerf Inference, and files made for tests"
DEFAULT = False
SECRETS: tuple[str, ...] = ()
CONFIG = {k: v for k, v in wall.COMMON.items() if k != "timeout_s"} | {
    "path": "the file",
    "format": "csv, parquet, or MLPerf's spl or mllog (found from the file)",
    "preset": f"a known layout: {', '.join(PRESETS)}",
    "delimiter": "what separates cells (guessed from the header)",
    "decimal": "decimal mark: . or ,",
    "thousands": "what separates thousands, if anything does",
    "header": "line of the column names; 0 = there are none, and columns are called 1, 2, ...",
    "comment": "what lines to leave out begin with (#)",
    "encoding": "utf-8, utf-16, latin-1 ...",
    "missing": 'text that means "no value", beside N/A, -, nan and empty cells, or a list of them',
    "time": "the time stamps: {column, format, zone, start}",
    "clock_offset_s": "seconds to add to the file's time stamps",
    "columns": "list of {column, scope, unit, kind, name, update_s, window_s, gain, offset_w, reference, ...}",
    "where": "rows to keep: {column, equals}, or a list of such",
    "device": "column that tells devices apart; used in scopes as {device}",
    "host": "the node's name, or {column} if a column has it",
}
Source = CsvSource | ParquetSource
MOST_PROBED = 1000  # lines in which a log of MLPerf has to show itself


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before it is used; the file need not be there yet. Raises ConfigError."""
    _path(config)
    known = config.get("preset")
    if known is not None and known not in PRESETS:
        where = f"meter {wall.label_of(config)}"
        raise ConfigError(f"there is no preset {known!r}", where=where, next=suggest_name(str(known), list(PRESETS)))
    _form(Path("x.csv"), config)
    check_tables(config)


def open_archive(config: Mapping[str, Any]) -> FileArchive | LoadArchive:
    """Open a file and check its columns. Raises ConfigError, Unavailable, Denied."""
    path = _path(config)
    source = _source(path, config)
    if isinstance(source, MllogSource) and not source.has_readings:
        return LoadArchive(path, source.load)
    return FileArchive(path, dict(config), source)


def _path(config: Mapping[str, Any]) -> Path:
    check_keys("file", config, CONFIG)
    label = wall.label_of(config)
    given = text(label, config, "path")
    if not given:
        raise ConfigError("no path is given", where=f"meter {label}", next='set path = "power.csv"')
    return Path(given).expanduser()


class FileArchive:
    """Give the streams of one file; it is read once, when first asked for."""

    def __init__(self, path: Path, config: Mapping[str, Any], source: Source) -> None:
        self.path = path
        self._source = source
        names = Names(self._source.names, str(path))
        complete = self._complete(config, names)
        if isinstance(self._source, ParquetSource):
            complete |= {"decimal": ".", "thousands": ""}  # the file holds numbers, not texts of them
        self.layout: Layout = layout_of(complete, names)
        if any(c.spec.kind != "state" and c.spec.accuracy.source == "unknown" for c in self.layout.columns):
            self.told.append("how accurate its meter was is not in the file: type gain=0.01 for 1 % to get an interval")
        label = wall.label_of(config)
        self._period_s = seconds(label, config, "period_s", 1.0) if "period_s" in config else None
        self._tracks: list[Track] | None = None
        self._events: list[dict[str, Any]] = []
        self._updates_s: dict[int, float] = {}

    def _complete(self, config: Mapping[str, Any], names: Names) -> dict[str, Any]:
        """Return the settings with those of a preset, or with guessed ones where columns or times are not given.

        What was guessed is in `told`.
        """
        self.told: list[str] = []
        self._is_guessed = False
        if isinstance(self._source, MllogSource):
            self.told += self._source.load.list_remarks(self.path.name)
        rows = [cells for _, cells in islice(self._source.rows(), MOST_PROBED)]
        if config.get("preset") is None and not config.get("columns") and (known := find_preset(names)):
            self.told.append(f"{self.path.name} is read as if you had typed: --preset {known}")
            config = {**config, "preset": known}
        complete = preset(config, names, rows[0] if rows else ())
        if config.get("preset") is not None:
            self._is_guessed = (
                config["preset"] == "nvidia-smi" and not complete.get("device") and not config.get("columns")
            )
            return complete
        guess = guess_layout(config, names, rows)
        self._is_guessed = "columns" in guess.settings
        self.told += guess.list_remarks(self.path.name)
        return complete | guess.settings

    @property
    def interval(self) -> tuple[int, int]:
        """Return begin and end of the run as the file states them, else its first and last stamp. Raises MeterError."""
        if isinstance(self._source, MllogSource) and self._source.load.interval is not None:
            return self._source.load.interval
        times = [t.times for t in self._load()]
        return min(min(t) for t in times), max(max(t) for t in times)

    @property
    def steps(self) -> list[tuple[str, int, int, dict[str, float]]]:
        """Return the phases that a log of MLPerf states."""
        return self._source.load.steps if isinstance(self._source, MllogSource) else []

    @property
    def facts(self) -> dict[str, Any]:
        """Return what identifies the file, and how it was read: name, size, hash, mapped columns. Raises MeterError."""
        time = self.layout.time
        return {
            "file": self.path.name,
            "bytes": self.path.stat().st_size,
            "sha256": sha256(self.path),
            "columns": {c.name: f"{c.scope} {c.spec.name}" for c in self.layout.columns},
            "zone": time.zone,
            "clock_offset_s": time.offset_ns / NS,
        }

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:
        """Return what the file holds of [start, end], and the nearest rows outside. Raises MeterError."""
        found: list[Fetched] = []
        for track in self._load():
            rows = track.near(start_utc_ns, end_utc_ns)
            part = track if rows is None else track.only(rows)
            found += fetched(part, self.layout, self._period_s, self._updates_s)
        if found:  # what concerns the file as a whole is told once
            first = found[0]
            found[0] = Fetched(first.stream, first.rows, first.host, [*self._events, *first.events])
        return found

    def find_cell(self, t_ns: int, one: Fetched, channel: str) -> tuple[int, str, str]:
        """Return line, column and text of the reading of a channel at a time."""
        track = next(t for t in self._load() if (t.host, t.device) == (one.host, one.stream.device) and t_ns in t.times)
        line = track.lines[track.times.index(t_ns)]
        scopes = (c.scope.replace("{device}", track.device) for c in self.layout.columns)
        here = (one.stream.scope, channel)
        column = next(c for c, s in zip(self.layout.columns, scopes, strict=True) if (s, c.spec.name) == here)
        return line, column.name, next(cells[column.index].strip() for k, cells in self._source.rows() if k == line)

    def close(self) -> None:
        """Forget what was read; closing twice is harmless."""
        self._tracks = None

    def _load(self) -> list[Track]:
        if self._tracks is None:
            self._tracks = self._read()
        return self._tracks

    def _read(self) -> list[Track]:
        layout, tracks = self.layout, dict[tuple[str, str], Track]()
        clock, bad_times, first_bad = None, 0, ""
        at, offset = layout.time.columns, layout.time.offset_ns
        for line, cells in self._source.rows():
            if layout.keep and any(cells[k].strip() != wanted for k, wanted in layout.keep):
                continue
            stamp = cells[at[0]] if len(at) == 1 else " ".join(cells[k].strip() for k in at)
            clock = clock or self._clock(stamp)
            host = layout.host_name if layout.host is None else cells[layout.host].strip()
            device = "" if layout.device is None else cells[layout.device].strip()
            track = tracks.get((host, device)) or _new_track(host, device, layout)
            try:
                t_ns = clock.parse(stamp, track.times[-1] - offset if track.times else None) + offset
            except BadStamp as error:
                bad_times += 1
                first_bad = first_bad or f"line {line}: {str(error)[:40]!r}"
                continue
            tracks[host, device] = track
            track.add(t_ns, line, cells, layout.columns)
        if not tracks:
            why = f"{bad_times} rows without a time stamp, first {first_bad}" if bad_times else "no row fits"
            raise ReadFailed("the file has no rows to read", where=str(self.path), why=why, next=self._shapes())
        found = list(tracks.values())
        wrong = unreadable(found, layout)
        if wrong is not None:
            raise ReadFailed(wrong[0], where=str(self.path), why=wrong[1], next=wrong[2])
        if is_much(self._source.faults.shape, sum(len(t.times) for t in found)):
            why = "a part of the readings is not the whole"
            raise ReadFailed("many rows do not fit the header", where=str(self.path), why=why, next=self._shapes())
        mixed = next((why for t in found if (why := find_mixed_rows(t))), "") if self._is_guessed else ""
        if mixed:
            raise ReadFailed(
                "its rows seem to be of several devices",
                where=str(self.path),
                why=mixed,
                next="log what tells them apart (nvidia-smi: index), and type device=COLUMN --map 'COLUMN=gpu:{device}'"
                "; if they are of one device, type --map COLUMN=SCOPE for each column",
                code="read-failed.mixed-rows",
            )
        problems = [*self._problems(clock, found)]
        problems += [f"{self.path.name}: {what}" for track in found for what in drop_zeros(track, layout)]
        if bad_times:
            problems.append(f"{bad_times} rows are left out: no time stamp ({first_bad})")
        self._find_updates(found)
        first = min(t.times[0] for t in found)
        self._events = [{"t": first, "event": "problem", "meter": layout.label, "what": p} for p in problems]
        return found

    def _find_updates(self, tracks: Sequence[Track]) -> None:
        """Find columns whose sensor has new values less often than the file has rows, unless that is stated."""
        for k, column in enumerate(self.layout.columns):
            if column.spec.kind == "power" and column.spec.update_s is None:
                update_s = max(find_update_s(track, k) for track in tracks)
                if update_s:
                    self._updates_s[k] = update_s
                    self.told.append(f"{column.name} has a new value about every {update_s:.3g} s, rows repeat it")

    def _clock(self, stamp: str) -> Clock:
        time = self.layout.time
        form = time.format or guess(stamp, time.start_ns, str(self.path))
        zone = zone_of(time.zone, str(self.path)) if time.zone else None
        decimal = getattr(self._source, "decimal", ".")
        return Clock(form, zone, time.start_ns, decimal)

    def _shapes(self) -> str | None:
        """Return advice where rows have other numbers of cells than the header."""
        if not self._source.faults.shape:
            return None
        count, line = self._source.faults.shape, self._source.faults.first_line
        advice = 'set delimiter=";" and, for decimal commas, decimal=","; quote cells that hold the delimiter ("1,300")'
        return f"{count} rows have another number of cells than the header (first: line {line}): {advice}"

    def _problems(self, clock: Clock | None, tracks: Sequence[Track]) -> list[str]:
        said, name = [], self.path.name
        faults = self._source.faults
        if faults.shape:
            said.append(f"{faults.shape} rows are left out: another number of cells (first: line {faults.first_line})")
        if faults.unended:
            said.append("the last line has no end: it may be cut off")
        doubts = clock.doubts if clock else None
        if doubts and doubts.unzoned:
            said.append("the time stamps carry no zone: taken as UTC; if they are local, type --zone ZONE")
        if doubts and doubts.twice:
            said.append(
                f"{doubts.twice} stamps are of an hour that comes twice in {self.layout.time.zone} (first "
                f"{doubts.first}): the first pass is taken until the stamps go back"
            )
        if doubts and doubts.never:
            said.append(
                f"{doubts.never} stamps are of an hour that {self.layout.time.zone} leaves out ({doubts.first})"
            )
        doubtful = [t for t in tracks if t.backward or t.repeated]
        if doubtful:
            back, same = sum(t.backward for t in doubtful), sum(t.repeated for t in doubtful)
            said.append(f"{back} stamps go back and {same} repeat (first: line {doubtful[0].first_doubt})")
        return [f"{name}: {text}" for text in said]


def _new_track(host: str, device: str, layout: Layout) -> Track:
    from array import array

    columns: list[array[float]] = [array("d") for _ in layout.columns]
    return Track(host, device, values=columns)


def _source(path: Path, config: Mapping[str, Any]) -> Source:
    form = _form(path, config)
    if form is None:
        return ParquetSource(path)
    kind = config.get("format") or (_find_kind(path, form[3]) if config.get("preset") is None else config["preset"])
    if kind == "spl":
        return SplSource(path, encoding=form[3])
    if kind == "mllog":
        side = {"node.ac": "AC", "node.dc": "DC"}.get(str(config.get("feeds") or ""), "")
        time = config.get("time")
        zone = time.get("zone") if isinstance(time, dict) else None
        return MllogSource(path, encoding=form[3], side=side, zone=zone_of(str(zone), str(path)) if zone else None)
    return CsvSource(path, *form)


def _find_kind(path: Path, encoding: str | None) -> str:
    """Return `mllog` or `spl` for logs of MLPerf, which have no header; else `csv`."""
    for number, line in read_lines(path, encoding):
        if MARK in line:
            return "mllog"
        if line.startswith("Time,") and ",Watts," in line:
            return "spl"
        if number > MOST_PROBED:
            break
    return "csv"


def _form(path: Path, config: Mapping[str, Any]) -> tuple[str | None, int | None, str, str | None, str] | None:
    """Return how a CSV file is written, None for Parquet. Raises ConfigError."""
    label = wall.label_of(config)
    form = text(label, config, "format") or ("parquet" if path.suffix.lower() in (".parquet", ".pq") else "csv")
    if form == "parquet":
        return None
    if form not in ("csv", "spl", "mllog"):
        raise ConfigError(f"format is {form!r}", where=f"meter {label}", next="csv or parquet, spl or mllog")
    decimal = text(label, config, "decimal", ".") or "."
    if decimal not in (".", ","):
        raise ConfigError(f"decimal is {decimal!r}", where=f"meter {label}", next="'.' or ','")
    header = config.get("header")
    if header is not None and (isinstance(header, bool) or not isinstance(header, int) or header < 0):
        raise ConfigError(f"header is {header!r}", where=f"meter {label}", next="give a line number, or 0 for none")
    delimiter = text(label, config, "delimiter")
    if delimiter is not None and len(delimiter) != 1:
        raise ConfigError(f"delimiter is {delimiter!r}", where=f"meter {label}", next="give one character")
    comment = text(label, config, "comment", "#")
    return delimiter, header, comment or "", text(label, config, "encoding"), decimal
