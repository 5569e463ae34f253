"""Read MLPerf's logs as they are: the analyzer's `spl.txt`, and `:::MLLOG` lines with readings, times and results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments.file.source import CsvSource, Faults
from joulelab.instruments.file.times import BadStamp, Clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from zoneinfo import ZoneInfo

    from joulelab.core.spec import Fetched

# Of the analyzer's log and of the load generator's power_begin and power_end.
STAMP = "%m-%d-%Y %H:%M:%S.%f"
MARK = "::MLLOG"  # one of the colons is missing in some published lines
SIDES = {"AC": "ac_w", "DC": "dc_w"}
# Rates that the load generator reports, by scenario, and the work that they are of.
RATES = {
    "result_tokens_per_second": "tokens",
    "result_completed_tokens_per_second": "tokens",
    "result_samples_per_second": "samples",
    "result_completed_samples_per_sec": "samples",
}
PHASES = ("epoch", "block", "eval")  # of a training: KEY_start and KEY_stop
LABELS = {"effective_scenario": "scenario", "sut_name": "sut", "submission_benchmark": "benchmark"}
Work = dict[str, float]


@dataclass(slots=True)
class SplSource(CsvSource):
    """Read `Time,...,Watts,...,Ch1,Watts,...`: each line has names and values in turn, those of channels at its end."""

    def __post_init__(self) -> None:
        """Read the names of the first line."""
        self.names = next(([n for n, _ in _read_pairs(line)] for _, line in self._lines() if line.strip()), [])

    def rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield line number and values of each line; one with other names is counted and left out."""
        self.faults, line = Faults(), "\n"
        for number, line in self._lines():
            pairs = _read_pairs(line)
            if [name for name, _ in pairs] == self.names:
                yield number, [value for _, value in pairs]
            elif line.strip():
                self.faults.shape += 1
                self.faults.first_line = self.faults.first_line or number
        self.faults.unended = not line.endswith("\n")


def _read_pairs(line: str) -> list[tuple[str, str]]:
    cells = iter(cell.strip() for cell in line.strip().split(","))
    channel, pairs = "", []
    for name in cells:
        if name.startswith("Ch") and name[2:].isdecimal():
            channel = f"{name} "
        else:
            pairs.append((channel + name, next(cells, "")))
    return pairs


@dataclass(slots=True)
class LoadLog:
    """Collect what a log states of its run: begin and end (UTC, ns), phases with their work, labels."""

    start_ns: int | None = None
    end_ns: int | None = None
    steps: list[tuple[str, int, int, Work]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    efficiency: Any = None
    validity: str = ""
    unzoned: bool = False
    _rates: Work = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, value: Any, entry: Mapping[str, Any], zone: ZoneInfo | None) -> None:
        """Take one entry."""
        if key in LABELS and value:
            self.labels[LABELS[key]] = str(value)
        elif key in RATES and isinstance(value, int | float):
            self._rates.setdefault(RATES[key], float(value))
        elif key in ("power_begin", "power_end"):
            self._set_edge(key == "power_begin", _read_stamp(str(value), zone))
            self.unzoned = zone is None
        elif key in ("run_start", "run_stop"):
            self._set_edge(key == "run_start", _read_ms(entry.get("time_ms")))
        elif key == "result_validity":
            self.validity = str(value)
        else:
            self._add_phase(key, _read_ms(entry.get("time_ms")))

    def _set_edge(self, is_start: bool, at_ns: int | None) -> None:
        if is_start:
            self.start_ns = at_ns
        else:
            self.end_ns = at_ns

    def _add_phase(self, key: str, at_ns: int | None) -> None:
        name, _, edge = key.rpartition("_")
        if name not in PHASES or at_ns is None:
            return
        if edge == "start":
            self._open[name] = at_ns
        elif edge == "stop" and name in self._open and (start := self._open.pop(name)) < at_ns:
            self.steps.append((name, start, at_ns, {}))

    def finish(self) -> None:
        """Make the test of the load generator a phase: its rates times its duration are its work."""
        if self._rates and self.start_ns is not None and self.end_ns is not None:
            seconds = (self.end_ns - self.start_ns) * 1e-9
            self.steps.append(("test", self.start_ns, self.end_ns, {k: r * seconds for k, r in self._rates.items()}))

    @property
    def interval(self) -> tuple[int, int] | None:
        """Return begin and end of the run (UTC, ns), None where the log lacks one."""
        return None if self.start_ns is None or self.end_ns is None else (self.start_ns, self.end_ns)

    def list_remarks(self, name: str) -> list[str]:
        """Return what a user has to know of the log."""
        said = []
        if self.efficiency not in (None, 1, 1.0):
            said.append(f"{name}: conversion_eff {self.efficiency} is not applied: energies are those of the readings")
        if self.validity and self.validity != "VALID":
            said.append(f"{name}: the load generator calls the result {self.validity}")
        return said


@dataclass(slots=True)
class MllogSource(CsvSource):
    """Read the lines of `:::MLLOG`: power readings become rows; begin, end and results are in `load`.

    `side` is what readings are of that do not state it: AC or DC.
    """

    side: str = ""
    zone: ZoneInfo | None = None
    load: LoadLog = field(default_factory=LoadLog)
    _readings: list[tuple[int, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read the file. Raises ConfigError for readings of an unknown side."""
        side = self.side
        for number, line in self._lines():
            entry = _read_entry(line)
            key, value = entry.get("key"), entry.get("value")
            metadata = entry.get("metadata")
            about: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
            stated = [str(v).upper() for v in about.values() if str(v).upper() in SIDES]
            if key == "conversion_eff":
                side = stated[0] if stated else side
                self.load.efficiency = value
            elif key == "power_reading":
                self._add_reading(number, str(entry.get("time_ms")), about, value, (*stated, side)[0])
            elif key is not None:
                self.load.add(str(key), value, entry, self.zone)
        self.load.finish()
        there = {name for _, cells in self._readings for name in cells}
        self.names = ["time_ms", "host", *(name for name in SIDES.values() if name in there)]

    def _add_reading(self, number: int, stamp: str, about: Mapping[str, Any], value: Any, side: str) -> None:
        if side not in SIDES:
            why = "its readings do not state whether they are AC or DC"
            raise ConfigError(
                "what was measured is not known",
                where=f"{self.path}, line {number}",
                why=why,
                next="type feeds=node.ac for power at the wall, feeds=node.dc for power behind the supplies",
                code="config.no-side",
            )
        cells = {"time_ms": stamp, "host": str(about.get("host", "")), SIDES[side]: str(value)}
        self._readings.append((number, cells))

    @property
    def has_readings(self) -> bool:
        """Return whether there is a power reading."""
        return bool(self._readings)

    def rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield line number and cells of each reading."""
        for number, cells in self._readings:
            yield number, [cells.get(name, "") for name in self.names]


def _read_entry(line: str) -> dict[str, Any]:
    """Return the JSON of a line of the log, empty for any other line; what a launcher puts before it is left out."""
    _, mark, text = line.partition(MARK)
    try:
        found = json.loads(text) if mark else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class LoadArchive:
    """Give begin, end, phases and work of a run from its log, which has no readings."""

    lacks = "this is the log of the load: add the analyzer's, joulelab import mlperf FOLDER"

    def __init__(self, path: Path, load: LoadLog) -> None:
        self.interval = load.interval
        self.steps, self.labels = load.steps, load.labels
        self.facts = {"file": path.name}
        self.told = load.list_remarks(path.name)
        if load.interval is None:
            self.told.append(f"{path.name} has no begin and end of the run: its work is left out")

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:  # noqa: ARG002 it has none
        """Return no readings."""
        return ()

    def close(self) -> None:
        """Do nothing: the file is closed."""


def _read_stamp(text: str, zone: ZoneInfo | None) -> int | None:
    try:
        return Clock(STAMP, zone).parse(text)
    except BadStamp:
        return None


def _read_ms(value: Any) -> int | None:
    try:
        return Clock("unix_ms").parse(str(value))
    except BadStamp:
        return None
