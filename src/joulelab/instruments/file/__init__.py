"""Read measurements of other programs from files: CSV or Parquet with mapped columns, logs of MLPerf."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.instruments import wall
from joulelab.instruments.file.guesses import guess_layout
from joulelab.instruments.file.layout import Header, check_layout, make_layout
from joulelab.instruments.file.mlperf import MARK, LoadArchive, MllogSource, SplSource
from joulelab.instruments.file.presets import PRESETS, apply_preset, check_preset, find_preset
from joulelab.instruments.file.sources import PARQUET, CsvSource, ParquetSource, describe_file, open_bytes, read_lines
from joulelab.instruments.file.streams import (
    Track,
    drop_false_values,
    find_mixed_rows,
    find_update,
    is_much,
    make_streams,
    refuse_texts,
)
from joulelab.instruments.file.tool_results import find_tool
from joulelab.instruments.file.values import BadStamp, find_zone
from joulelab.instruments.settings import check_keys, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Fetched

SUMMARY = "CSV or Parquet files of other programs, read after the fact"
PRIVILEGE = "none beyond reading the file"
TRIED = "public logs of nodes and GPUs, a submission of MLPerf Inference, and files made for tests"
DEFAULT = False
SECRETS: tuple[str, ...] = ()
CONFIG = {k: v for k, v in wall.COMMON.items() if k not in ("timeout_s", "period_s")} | {
    "path": "the file, also compressed by gzip",
    "preset": f"a known layout: {', '.join(PRESETS)}",
    "delimiter": "separator of cells (guessed from the header)",
    "decimal": "decimal mark: . or ,",
    "thousands": "separator of thousands, if there is one",
    "header": "line of the column names; 0 = there are none, and columns are called 1, 2, ...",
    "header_units": "false = units in the header are wrong, and those of `columns` count",
    "missing": 'text that means "no value", beside N/A, -, nan and empty cells, or a list of them',
    "time": "the time stamps: {column, format, zone, start}",
    "clock_offset_s": "seconds to add to the file's time stamps",
    "columns": "list of {column, scope, unit, kind, name, update_s, window_s, gain, offset_w, reference, ...}",
    "where": "rows to keep: {column, equals}, or a list of such",
    "device": "column that separates devices; used in scopes as {device}",
    "host": "the node's name, or {column} if a column has it",
}
MOST_PROBED = 1000  # lines in which a log of MLPerf has to show itself


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before it is used; the file need not be there yet. Raises ConfigError."""
    _check_form(config)
    where = f"meter {wall.label_of(config)}"
    check_preset(config, where)
    if config.get("preset") is None:
        check_layout(config, where)


def open_archive(config: Mapping[str, Any]) -> FileArchive | LoadArchive:
    """Open a file and check its columns. Raises ConfigError, Unavailable, Denied."""
    path, time = _check_form(config), config.get("time") or {}
    settings = {**config, "time": {"column": time} if isinstance(time, str | list) else dict(time)}
    source = _open_source(path, settings)
    if isinstance(source, MllogSource) and not source.readings:
        return LoadArchive(path, source.load)
    return FileArchive(path, settings, source)


class FileArchive:
    """Give the streams of one file, which is read once; `remarks` are choices that it made."""

    def __init__(self, path: Path, config: dict[str, Any], source: CsvSource | ParquetSource) -> None:
        self.path, self._source = path, source
        self.remarks: list[str] = []
        self._is_guessed = False
        self._tracks: list[Track] = []
        self._events: list[dict[str, Any]] = []
        self._updates_s: dict[int, float] = {}
        if tool := find_tool(source.names):
            what, advice = f"it is a result of {tool}", f"joulelab import {tool} {path}"
            raise ConfigError(what, where=str(path), next=advice, code="config.tool-result")
        header = Header(source.names, str(path))
        settings = self._complete_settings(config, header)
        if isinstance(source, ParquetSource):
            settings |= {"decimal": ".", "thousands": ""}  # the file holds numbers, not texts of them
        self.layout = make_layout(settings, header, source.decimal)
        if any(c.spec.kind != "state" and c.spec.accuracy.source == "unknown" for c in self.layout.columns):
            self.remarks.append(
                "the accuracy of its meter is not in the file: type gain=0.01 for 1 % to get an interval"
            )

    def _complete_settings(self, config: dict[str, Any], header: Header) -> dict[str, Any]:
        """Return the settings with those of a preset, or with guessed ones; adds remarks on both."""
        rows = [cells for _, cells in islice(self._source.read_rows(), MOST_PROBED)]
        if isinstance(self._source, MllogSource):
            self.remarks += self._source.load.list_remarks(self.path.name)
        if config.get("preset") is None and not config.get("columns") and (known := find_preset(header)):
            if known != "mllog":  # whose lines state what they are; there may be a log for each of many nodes
                self.remarks.append(f"{self.path.name} is read as if you had typed: --preset {known}")
            config["preset"] = known
        if config.get("preset") is None:
            guess = guess_layout(config, header, rows)
            self._is_guessed = "columns" in guess.settings
            self.remarks += guess.list_remarks(self.path.name)
            return config | guess.settings
        settings = apply_preset(config, header, rows[0] if rows else ())
        self._is_guessed = config["preset"] == "nvidia-smi" and not settings.get("device") and not config.get("columns")
        if isinstance(self._source, SplSource) and "clock_offset_s" not in config and not settings["time"].get("zone"):
            session, remarks = self._source.read_session()
            self.remarks += remarks
            settings["time"] = {**settings["time"], "zone": session.pop("zone", None)}
            settings = session | settings
        return settings

    @property
    def interval(self) -> tuple[int, int]:
        """Return begin and end of the run as the file states them, else its first and last stamp. Raises MeterError."""
        if isinstance(self._source, MllogSource) and self._source.load.interval is not None:
            return self._source.load.interval
        tracks = self._load_tracks()
        return min(t.times[0] for t in tracks), max(t.times[-1] for t in tracks)

    @property
    def steps(self) -> list[tuple[str, int, int, dict[str, float]]]:
        """Return the phases that a log of MLPerf states."""
        return self._source.load.steps if isinstance(self._source, MllogSource) else []

    @property
    def facts(self) -> dict[str, Any]:
        """Return name, size and hash of the file, and how it was read. Raises MeterError."""
        return describe_file(self.path) | {
            "columns": {c.name: f"{c.scope} {c.spec.name}" for c in self.layout.columns},
            "zone": self.layout.clock.zone and str(self.layout.clock.zone),
            "clock_offset_s": self.layout.offset_ns / NS,
        }

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:
        """Return the readings of [start, end], and the nearest rows outside. Raises MeterError."""
        parts = [track.cut_rows(start_utc_ns, end_utc_ns) for track in self._load_tracks()]
        found = [one for p in parts for one in make_streams(p, self.layout, self._updates_s)]
        # Events of the whole file are in its first stream.
        return [replace(found[0], events=[*self._events, *found[0].events]), *found[1:]]

    def find_cell(self, t_ns: int, one: Fetched, channel: str) -> tuple[int, str, str]:
        """Return line, column and text of the reading of a channel at a time."""
        same = [t for t in self._load_tracks() if (t.host, t.device) == (one.host, one.stream.device)]
        track = next(t for t in same if t_ns in t.times)
        scopes = [(c.scope.replace("{device}", track.device), c.spec.name) for c in self.layout.columns]
        column = self.layout.columns[scopes.index((one.stream.scope, channel))]
        line, rows = track.lines[track.times.index(t_ns)], self._source.read_rows()
        return line, column.name, next(cells[column.index].strip() for k, cells in rows if k == line)

    def close(self) -> None:
        """Forget the readings; closing twice is harmless."""
        self._tracks = []

    def _load_tracks(self) -> list[Track]:
        """Read the file, once. Raises MeterError where its rows cannot be right."""
        if self._tracks:
            return self._tracks
        layout, where = self.layout, str(self.path)
        tracks, bad_times, first_bad = self._read_rows()
        faults, count = self._source.faults, sum(len(t.times) for t in tracks)
        why = f"{bad_times} rows without a time stamp, first {first_bad}" if bad_times else "no row fits"
        shapes = None
        if faults.shape:
            shapes = f"{faults.shape} rows have another number of cells than the header (first: line "
            shapes += f'{faults.first_line}): set delimiter=";" and, for decimal commas, decimal=","; '
            shapes += 'quote cells that hold the delimiter ("1,300")'
        if not tracks:
            raise ReadFailed("the file has no rows", where=where, why=why, next=shapes, code="read-failed.no-rows")
        refuse_texts(tracks, layout, where)
        if is_much(faults.shape, count):
            what, why = "many rows do not fit the header", "a part of the readings is not the whole"
            raise ReadFailed(what, where=where, why=why, next=shapes, code="read-failed.shape")
        if is_much(bad_times, count):
            advice = "type --time COLUMN=FORMAT; times in the hour in which clocks change have to be UTC"
            raise ReadFailed("many rows have no time", where=where, why=why, next=advice, code="read-failed.no-times")
        mixed = next((why for t in tracks if (why := find_mixed_rows(t))), "") if self._is_guessed else ""
        if mixed:
            raise ReadFailed(
                "its rows seem to be of several devices",
                where=where,
                why=mixed,
                next="log a column that separates them (nvidia-smi: index), and type device=COLUMN "
                "--map 'COLUMN=gpu:{device}'; if they are of one device, type --map COLUMN=SCOPE for each column",
                code="read-failed.mixed-rows",
            )
        problems = self._list_problems(tracks)
        problems += [remark for track in tracks for remark in drop_false_values(track, layout)]
        if bad_times:
            problems.append(f"{bad_times} rows are left out: no time stamp ({first_bad})")
        event = {"t": min(t.times[0] for t in tracks), "event": "problem", "meter": layout.label}
        self._events = [{**event, "what": f"{self.path.name}: {problem}"} for problem in problems]
        for k, column in enumerate(layout.columns):
            if column.spec.kind == "power" and column.spec.update_s is None and k not in self._updates_s:
                self._updates_s[k] = max(find_update(track, k) for track in tracks)
                if update_s := self._updates_s[k]:
                    self.remarks.append(f"{column.name} has a new value about every {update_s:.3g} s, rows repeat it")
        self._tracks = tracks
        return tracks

    def _read_rows(self) -> tuple[list[Track], int, str]:
        """Return the rows by host and device in order of time; rows without a time are counted, with the first one."""
        layout, clock, at = self.layout, self.layout.clock, self.layout.times
        tracks, bad_times, first_bad = dict[tuple[str, str], Track](), 0, ""
        for line, cells in self._source.read_rows():
            if layout.keep and any(cells[k].strip() != wanted for k, wanted in layout.keep):
                continue
            try:
                stamp = cells[at[0]] if len(at) == 1 else " ".join(cells[k].strip() for k in at)
                t_ns = clock.read_stamp(stamp) + layout.offset_ns
            except BadStamp as error:
                bad_times += 1
                first_bad = first_bad or f"line {line}: {str(error)[:40]!r}"
                continue
            host = layout.host_name if layout.host is None else cells[layout.host].strip()
            device = "" if layout.device is None else cells[layout.device].strip()
            if (host, device) not in tracks:
                tracks[host, device] = Track(host, device, [array("d") for _ in layout.columns])
            tracks[host, device].add_row(t_ns, line, cells, layout.columns)
        for track in tracks.values():
            track.sort_rows()
        return [*tracks.values()], bad_times, first_bad

    def _list_problems(self, tracks: Sequence[Track]) -> list[str]:
        problems, faults = [], self._source.faults
        if faults.shape:
            count = f"{faults.shape} rows are left out"
            problems.append(f"{count}: another number of cells (first: line {faults.first_line})")
        if faults.is_cut:
            problems.append("the last line has no end: it may be cut off")
        if self.layout.clock.is_unzoned:
            problems.append("the time stamps carry no zone: taken as UTC; if they are local, type --zone ZONE")
        doubtful = [t for t in tracks if t.backward or t.repeated]
        if doubtful:
            back, same = sum(t.backward for t in doubtful), sum(t.repeated for t in doubtful)
            problems.append(f"{back} stamps go back and {same} repeat (first: line {doubtful[0].first_doubt})")
        return problems


def _check_form(config: Mapping[str, Any]) -> Path:
    """Return the path of the file; check how it is written. Raises ConfigError."""
    check_keys("file", config, CONFIG)
    label = wall.label_of(config)
    path, decimal, delimiter = (text(label, config, key) for key in ("path", "decimal", "delimiter"))
    header = config.get("header")
    rules = (
        (bool(path), "path", 'set path = "power.csv"'),
        (decimal in (None, "", ".", ","), "decimal", "'.' or ','"),
        (delimiter is None or len(delimiter) == 1, "delimiter", "give one character"),
        (header is None or (type(header) is int and header >= 0), "header", "give a line number, or 0 for none"),
        (isinstance(config.get("header_units", True), bool), "header_units", "true or false"),
        (isinstance(config.get("time") or "", str | list | dict), "time", "name its column"),
    )
    for is_right, key, advice in rules:
        if not is_right:
            what = f"{key} is {config[key]!r}" if config.get(key) is not None else f"no {key} is given"
            raise ConfigError(what, where=f"meter {label}", next=advice, code=f"config.{key.replace('_', '-')}")
    return Path(path or "").expanduser()


def _open_source(path: Path, config: Mapping[str, Any]) -> CsvSource | ParquetSource:
    with open_bytes(path) as file:
        if file.read(len(PARQUET)) == PARQUET:
            return ParquetSource(path)
    form = config.get("preset")
    for number, line in read_lines(path) if form is None else ():
        if MARK in line:
            form = "mllog"
        elif line.startswith("Time,") and ",Watts," in line:
            form = "spl"
        elif line.startswith(("#Date", "# gpu")):
            advice = "log with nvidia-smi --query-gpu=timestamp,index,name,power.draw --format=csv -l 1"
            raise ConfigError("it is a table of nvidia-smi dmon", where=str(path), next=advice, code="config.dmon")
        if form is not None or number > MOST_PROBED:
            break
    if form == "spl":
        return SplSource(path)
    if form == "mllog":
        side = {"node.ac": "AC", "node.dc": "DC"}.get(str(config.get("feeds") or ""), "")
        zone = config["time"].get("zone")
        return MllogSource(path, side=side, zone=find_zone(str(zone), str(path)) if zone else None)
    return CsvSource(path, config.get("delimiter"), config.get("header"), config.get("decimal") or ".")
