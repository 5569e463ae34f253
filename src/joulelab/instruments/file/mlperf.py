"""Read MLPerf's logs as they are: the analyzer's `spl.txt`, and `:::MLLOG` lines with readings, times and results.

Formats: mlcommons/power-dev (spl.txt, server.json), loadgen (mlperf_log_detail.txt), mlcommons/logging (training).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy
from joulelab.instruments.file.sources import CsvSource, Faults, read_lines
from joulelab.instruments.file.values import BadStamp, Clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from zoneinfo import ZoneInfo

    from joulelab.core.spec import Fetched

STAMP = "%m-%d-%Y %H:%M:%S.%f"  # of spl.txt, and of power_begin and power_end
MARK = "::MLLOG"  # one of the colons is missing in some published lines
SIDES = {"AC": "ac_w", "DC": "dc_w"}
# Work by the results of the load generator, the best first. Rates count over the time of the test.
RATES = {
    "result_tokens_per_second": "tokens",
    "result_completed_tokens_per_second": "tokens",
    "result_samples_per_second": "samples",
    "result_completed_samples_per_sec": "samples",
    "result_scheduled_samples_per_sec": "samples",
}
STREAMS = ("SingleStream", "MultiStream")  # scenarios without a rate: queries are counted
PHASES = ("epoch", "block", "eval")  # of a training: KEY_start and KEY_stop
LABELS = {"effective_scenario": "scenario", "sut_name": "sut", "submission_benchmark": "benchmark"}
QUARTER_NS, MOST_QUARTERS = 900 * NS, 14 * 4  # zones are apart by quarters of an hour, up to 14 h
SLACK_NS = 60 * NS  # of a log before and after its session
WHY_ONE_PERCENT = "MLPerf accepts analyzers within 1 % only; model and ranges are not in spl.txt"
ANALYZER = Accuracy("assumed", 0.01, shared="ptdaemon", reference=WHY_ONE_PERCENT)


@dataclass(frozen=True, slots=True)
class PowerSession:
    """Hold the true times of a measurement (UTC, ns), the local zone (s west of UTC), and the kind of meter."""

    start_ns: int
    end_ns: int
    zone_s: int
    is_dc: bool

    def find_shift(self, first_ns: int, last_ns: int) -> int | None:
        """Return the ns to add to the stamps of a log so that they lie in the session, None if that is not certain.

        PTDaemon and older load generators write local time, newer ones UTC.
        """

        def fits(shift_ns: int) -> bool:
            return self.start_ns - SLACK_NS <= first_ns + shift_ns and last_ns + shift_ns <= self.end_ns + SLACK_NS

        likely = {shift for shift in (0, self.zone_s * NS, (self.zone_s - 3600) * NS) if fits(shift)}
        quarters = (k * QUARTER_NS for k in range(-MOST_QUARTERS, MOST_QUARTERS + 1))
        found = likely or {shift for shift in quarters if fits(shift)}
        return found.pop() if len(found) == 1 else None


def find_session(path: Path) -> PowerSession | None:
    """Return the session of a log by the power controller's `server.json`, beside it or in the folder `power`."""
    places = (path.parent, path.parent / "power", path.parent.parent / "power")
    file = next((p / name for name in ("server.json", "client.json") for p in places if (p / name).is_file()), None)
    try:
        found = json.loads(file.read_bytes()) if file else {}
        phase = found["phases"]["ranging" if path.parent.name == "ranging" else "testing"]
        start_ns, end_ns = (round(phase[k][0] * NS) for k in (0, -1))
        ptd = found.get("ptd_config") or {}
        replies = [str(m.get("reply")) for m in found.get("ptd_messages") or () if m.get("cmd") == "Identify"]
        is_dc = bool(ptd.get("dc_flag")) or any(reply.partition(",")[0].endswith("_DC") for reply in replies)
        return PowerSession(start_ns, end_ns, int(found.get("timezone") or 0), is_dc)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _word_shift(name: str, shift_ns: int) -> list[str]:
    return [f"{name}: {shift_ns / NS / 3600:+g} h are added to its times, by those of server.json"] if shift_ns else []


@dataclass(slots=True)
class SplSource(CsvSource):
    """Read `Time,...,Watts,...,Ch1,Watts,...`: each line has names and values in turn, those of channels at its end."""

    def __post_init__(self) -> None:
        """Read the names of the first line."""
        lines = (_read_pairs(line) for _, line in read_lines(self.path))
        self.names = next(([name for name, _ in pairs] for pairs in lines if pairs), [])

    def read_rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield line number and values of each line; one with other names is counted and left out."""
        self.faults, line = Faults(), "\n"
        for number, line in read_lines(self.path):
            pairs = _read_pairs(line)
            if pairs and [name for name, _ in pairs] == self.names:
                # PTDaemon writes -1 for a value that it did not get.
                yield number, ["" if value.startswith("-") else value for _, value in pairs]
            elif line.strip():
                self.faults.add_row(number)
        self.faults.is_cut = not line.endswith("\n")

    def read_session(self) -> tuple[dict[str, Any], list[str]]:
        """Return settings by the session that the log is from, and remarks on them."""
        session, clock, stamps = find_session(self.path), Clock(STAMP), list[int]()
        if session is None:
            return {}, []
        for _, cells in self.read_rows():
            try:
                stamps.append(clock.read_stamp(cells[0]))
            except BadStamp:
                continue
        settings = {"feeds": "node.dc"} if session.is_dc else {}
        stamps, few = sorted(stamps), len(stamps) // 50  # damaged ones are at the ends
        shift_ns = session.find_shift(stamps[few], stamps[-1 - few]) if stamps else None
        if shift_ns is None:
            return settings, []
        return {**settings, "clock_offset_s": shift_ns / NS, "zone": "UTC"}, _word_shift(self.path.name, shift_ns)


def _read_pairs(line: str) -> list[tuple[str, str]]:
    """Return names and values of a line, nothing for one that does not begin with a time."""
    cells = iter(cell.strip() for cell in line.strip().split(","))
    channel, pairs = "", list[tuple[str, str]]()
    for name in cells:
        if re.fullmatch(r"Ch[0-9]+", name):
            channel = f"{name} "
        else:
            pairs.append((channel + name, next(cells, "")))
    return pairs if pairs and pairs[0][0] == "Time" else []


@dataclass(slots=True)
class LoadLog:
    """Collect the facts of a run in a log: begin and end (UTC, ns), phases with their work, labels."""

    start_ns: int | None = None
    end_ns: int | None = None
    steps: list[tuple[str, int, int, dict[str, float]]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    efficiency: Any = None
    shift_ns: int = 0
    results: dict[str, Any] = field(default_factory=dict)
    _opened: dict[str, int] = field(default_factory=dict)

    def add_entry(self, key: str, value: Any, time_ms: Any, zone: ZoneInfo | None) -> None:
        """Add one entry of the log."""
        name, _, edge = key.rpartition("_")
        if key in LABELS and value:
            self.labels[LABELS[key]] = str(value)
        elif key.startswith(("result_", "effective_")):
            self.results[key] = value
        elif name == "power" and edge in ("begin", "end"):
            self._set_edge(edge, _read_stamp(Clock(STAMP, zone), value))
        elif (at_ns := _read_stamp(Clock("unix_ms"), time_ms)) is None:
            return
        elif name == "run" and edge in ("start", "stop"):
            self._set_edge("begin" if edge == "start" else "end", at_ns)
        elif name in PHASES and edge == "start":
            self._opened[name] = at_ns
        elif name in PHASES and edge == "stop" and (start_ns := self._opened.pop(name, at_ns)) < at_ns:
            self.steps.append((name, start_ns, at_ns, {}))

    def _set_edge(self, edge: str, at_ns: int | None) -> None:
        if edge == "begin":
            self.start_ns = self.start_ns or at_ns
        else:
            self.end_ns = self.end_ns or at_ns

    def finish(self, session: PowerSession | None) -> None:
        """Make the test of the load generator a phase with its work, at the times of the session."""
        scenario, span = self.labels.get("scenario"), self.interval
        if span is None or not self.results:
            return
        self.shift_ns = (session.find_shift(*span) if session else None) or 0
        self.start_ns, self.end_ns = span[0] + self.shift_ns, span[1] + self.shift_ns
        work = dict[str, float]()
        numbers = {k: float(v) for k, v in self.results.items() if isinstance(v, int | float)}
        for key, unit in RATES.items():
            if key in numbers:
                work.setdefault(unit, numbers[key] * (span[1] - span[0]) / NS)
        if scenario in STREAMS and "result_query_count" in numbers:
            per_query = numbers.get("effective_samples_per_query", 1.0)
            work = {"samples": numbers["result_query_count"] * per_query}
            work |= {"queries": numbers["result_query_count"]} if per_query > 1 else {}
        self.steps.append(("test", self.start_ns, self.end_ns, work))

    @property
    def interval(self) -> tuple[int, int] | None:
        """Return begin and end of the run (UTC, ns), None where the log lacks one."""
        return None if self.start_ns is None or self.end_ns is None else (self.start_ns, self.end_ns)

    def list_remarks(self, name: str) -> list[str]:
        """Return remarks for the user."""
        remarks, validity = _word_shift(name, self.shift_ns), self.results.get("result_validity", "VALID")
        if self.efficiency not in (None, 1, 1.0):
            remarks.append(
                f"{name}: conversion_eff {self.efficiency} is not applied: energies are those of the readings"
            )
        if validity != "VALID":
            remarks.append(f"{name}: the load generator calls the result {validity}")
        return remarks


@dataclass(slots=True)
class MllogSource(CsvSource):
    """Read the lines of `:::MLLOG`: power readings become rows; begin, end and results are in `load`.

    `side`, AC or DC, is that of readings that do not state it. A log of one node is named after it (`node_3.txt`).
    """

    side: str = ""
    zone: ZoneInfo | None = None
    load: LoadLog = field(default_factory=LoadLog)
    readings: list[tuple[int, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read the file. Raises ConfigError for readings of an unknown side."""
        found, common = list[tuple[int, str, str, str, str]](), self.side
        for number, line in read_lines(self.path):
            entry = _read_entry(line)
            key, value, about = entry.get("key"), entry.get("value"), entry.get("metadata")
            about = about if isinstance(about, dict) else {}
            side = next((str(v).upper() for v in about.values() if str(v).upper() in SIDES), "")
            if key == "conversion_eff":
                common, self.load.efficiency = side or common, value
            elif key == "power_reading":
                found.append(
                    (number, str(entry.get("time_ms")), str(about.get("host", "")), side or common, str(value))
                )
            elif key is not None:
                self.load.add_entry(str(key), value, entry.get("time_ms"), self.zone)
        hosts = {host for _, _, host, _, _ in found}
        own = self.path.name.partition(".")[0] if len(hosts) == 1 else ""
        for number, stamp, host, side, value in found:
            if not (side := side or common):
                raise ConfigError(
                    "its readings do not state whether they are AC or DC",
                    where=f"{self.path}, line {number}",
                    next="type feeds=node.ac for power at the wall, feeds=node.dc for power behind the supplies",
                    code="config.no-side",
                )
            node = own if re.fullmatch(r"node_?[0-9]+", own) else host
            self.readings.append((number, {"time_ms": stamp, "host": node, SIDES[side]: value}))
        self.load.finish(None if self.zone or found else find_session(self.path))
        there = set(chain.from_iterable(cells for _, cells in self.readings))
        self.names = ["time_ms", "host", *(name for name in SIDES.values() if name in there)]

    def read_rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield line number and cells of each reading."""
        for number, cells in self.readings:
            yield number, [cells.get(name, "") for name in self.names]


def _read_entry(line: str) -> dict[str, Any]:
    """Return the JSON of a line of the log, empty for any other line; the prefix of a launcher is left out."""
    _, mark, text = line.partition(MARK)
    try:
        found = json.loads(text) if mark else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _read_stamp(clock: Clock, value: Any) -> int | None:
    try:
        return clock.read_stamp(str(value))
    except BadStamp:
        return None


class LoadArchive:
    """Give begin, end, phases and work of a run from its log, which has no readings."""

    lacks = "this is the log of the load: add that of the analyzer, joulelab import mlperf FOLDER"

    def __init__(self, path: Path, load: LoadLog) -> None:
        self.interval = load.interval
        self.steps, self.labels = load.steps, load.labels
        self.is_local = bool(load.results)  # its times are of a clock without a zone
        self.facts: Mapping[str, Any] = {"file": path.name}
        self.remarks = load.list_remarks(path.name)
        if load.interval is None:
            self.remarks.append(f"{path.name} has no begin and end of the run: its work is left out")

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:  # noqa: ARG002 it has none
        """Return no readings."""
        return ()

    def close(self) -> None:
        """Do nothing: the file is closed."""


# A whole submission ----------------------------------------------------------------------------------------------

SPL_PLACES = ("", "run_1", "performance/run_1")
DETAIL_LOG, SUMMARY_LOG = "mlperf_log_detail.txt", "mlperf_log_summary.txt"
FACTORS = ("Volts", "Amps", "PF")  # whose product is power


def find_power_log(folder: Path) -> Path | None:
    """Return the analyzer's log of the testing run in a folder of a submission, None if it has none."""
    return next((p for place in SPL_PLACES if (p := folder / place / "spl.txt").is_file()), None)


def read_power_log(spl: Path) -> tuple[list[float], list[float], list[float], list[tuple[float, float]]]:
    """Return times (UTC, s), power (W), sum of the channels (W) and product of each reading; NaN for a missing value.

    A product is volts x amperes x power factor (W), and the share by which its digits round it. A reading whose time
    cannot be read is left out. Raises MeterError.
    """
    source = SplSource(spl, ",")
    shift_s = float(source.read_session()[0].get("clock_offset_s", 0.0))
    clock, times, watts, sums = Clock(STAMP), list[float](), list[float](), list[float]()
    power = source.names.index("Watts") if "Watts" in source.names else -1
    channels = [k for k, name in enumerate(source.names) if re.fullmatch(r"Ch[0-9]+ Watts", name)]
    factors, products = _find_factors(source.names, len(channels)), list[tuple[float, float]]()
    for _, cells in source.read_rows():
        at_ns = _read_stamp(clock, cells[0])
        if at_ns is None:
            continue
        times.append(at_ns / NS + shift_s)
        watts.append(_read_watts(cells[power]) if power >= 0 else math.nan)
        if channels:
            sums.append(sum(_read_watts(cells[k]) for k in channels))
        if factors:
            products.append(_multiply_factors(cells, factors))
    return times, watts, sums, products


def _find_factors(names: Sequence[str], channels: int) -> list[list[int]]:
    """Return the columns of each channel's factors; those of the whole log with one channel at most.

    With more of them, PTDaemon writes the mean of their amperes.
    """
    places = [name.removesuffix("Watts") for name in names if re.fullmatch(r"Ch[0-9]+ Watts", name)]
    for prefixes in (places, [""] if channels <= 1 else []):
        if prefixes and all(prefix + name in names for prefix in prefixes for name in FACTORS):
            return [[names.index(prefix + name) for name in FACTORS] for prefix in prefixes]
    return []


def _multiply_factors(cells: Sequence[str], factors: Sequence[Sequence[int]]) -> tuple[float, float]:
    watts = rounding_w = 0.0
    for columns in factors:
        # PTDaemon fills up to six decimals with zeros; analyzers have three at least.
        texts = [re.sub(r"(\.\d{3}\d*?)0+$", r"\1", cells[k]) for k in columns]
        values = [_read_watts(text) for text in texts]
        product = math.prod(values)
        watts += product
        if product > 0:
            rounding_w += product * sum(_find_half_digit(t) / v for t, v in zip(texts, values, strict=True))
    return watts, rounding_w / watts if watts > 0 else math.nan


def _find_half_digit(text: str) -> float:
    """Return half of the last digit of a printed number."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


def _read_watts(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def read_window(spl: Path) -> tuple[tuple[float, float] | None, dict[str, Any]]:
    """Return begin and end (UTC, s) of the timed part beside a power log, and facts of the load.

    These are `validity`, `least_s`, and `rates`: name, numbers in detail log and summary, half of the last digit.
    """
    detail = spl.parent / DETAIL_LOG
    if not detail.is_file():
        return None, {}
    load = MllogSource(detail, ",").load
    span = load.interval
    window = None if span is None else (span[0] / NS, span[1] / NS)
    least_ms = load.results.get("effective_min_duration_ms")
    least_s = least_ms / 1e3 if isinstance(least_ms, int | float) else None
    facts = {"validity": str(load.results.get("result_validity", "")), "least_s": least_s}
    return window, {**facts, "rates": _read_summary(spl.parent / SUMMARY_LOG, load.results)}


def _read_summary(path: Path, results: Mapping[str, Any]) -> list[tuple[str, float, float, float]]:
    """Compare the lines `Tokens per second: 25262.1` of a summary with the results of the detail log."""
    rates = {key.replace("_per_second", "_per_sec"): results[key] for key in RATES if key in results}
    found = []
    for _, line in read_lines(path) if path.is_file() else ():
        name, _, text = (part.strip() for part in line.partition(":"))
        key = f"result_{name.lower().replace(' ', '_')}".replace("_per_second", "_per_sec")
        value = rates.get(key)
        if isinstance(value, int | float) and math.isfinite(stated := _read_watts(text)):
            found.append((name, float(value), stated, _find_half_digit(text)))
    return found


def read_control(spl: Path) -> dict[str, Any]:
    """Return what the power controller recorded of the testing run, as far as `server.json` and `client.json` have it.

    `watts` (mean, lowest, highest, count), `uncertainty` (share), `server_s` and `client_s` (times of the phases),
    `hashes` (name, stated, found or None), `analyzer`, `is_range_fixed`, `has_ranging`,
    `missing` (file -> whether it exists).
    """
    root = spl.parent.parent if spl.parent.name == "run_1" else spl.parent
    missing: dict[str, bool] = {}
    server, client = (_read_controller(root, spl.parent, name, missing) for name in ("server.json", "client.json"))
    messages = [m for m in server.get("ptd_messages") or () if isinstance(m, dict)]
    asked = [str(m.get("cmd", "")) for m in messages]
    testing = next((k for k, cmd in enumerate(asked) if cmd.startswith("Go,") and cmd.endswith("_testing")), None)
    found: dict[str, Any] = {
        "server_s": _read_phase(server),
        "client_s": _read_phase(client),
        "hashes": _compare_hashes({**_get_hashes(client), **_get_hashes(server)}, root, spl.parent),
        "analyzer": next((str(m.get("reply", "")) for m in messages if m.get("cmd") == "Identify"), ""),
        "missing": missing,
    }
    if testing is None:
        return found
    replies = {cmd: str(m.get("reply", "")) for cmd, m in zip(asked[testing:], messages[testing:], strict=True)}
    ranges = [cmd for cmd in asked[:testing] if cmd.startswith("SR,")][-2:]
    found["is_range_fixed"] = len(ranges) == 2 and not any(cmd.endswith("Auto") for cmd in ranges)
    found["has_ranging"] = any(cmd.startswith("Go,") and cmd.endswith("_ranging") for cmd in asked[:testing])
    found["watts"] = _read_reply(replies.get("Watts", ""))
    numbers = replies.get("Uncertainty", "").split(",")
    found["uncertainty"] = _read_watts(numbers[1]) if len(numbers) > 1 else None
    return found


def _read_controller(root: Path, beside: Path, name: str, missing: dict[str, bool]) -> dict[str, Any]:
    is_there = False
    for folder in (root / "power", beside, beside / "power"):
        try:
            data = json.loads((folder / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            data = None
        if isinstance(data, dict):
            return data
        is_there = True
    missing[name] = is_there
    return {}


def _read_phase(data: Mapping[str, Any]) -> tuple[float, ...]:
    try:
        return tuple(float(pair[0]) for pair in data["phases"]["testing"])
    except (LookupError, TypeError, ValueError):
        return ()


def _get_hashes(data: Mapping[str, Any]) -> dict[str, str]:
    results = data.get("results")
    return {str(k): str(v) for k, v in results.items()} if isinstance(results, dict) else {}


def _compare_hashes(stated: Mapping[str, str], root: Path, beside: Path) -> list[tuple[str, str, str | None]]:
    found: list[tuple[str, str, str | None]] = []
    for name, value in sorted(stated.items()):
        folder, _, base = name.rpartition("/")
        if ".." in name or name.startswith("/"):
            continue
        places = [root / name, *([beside / base] if folder in ("run_1", "power") else [])]
        path = next((p for p in places if p.is_file()), None)
        found.append((name, value, None if path is None else hashlib.sha1(path.read_bytes()).hexdigest()))  # noqa: S324 MLPerf's own choice
    return found


def _read_reply(reply: str) -> tuple[float, float, float, int] | None:
    """Return mean, lowest and highest power and the number of samples of `Watts,5639.5,2406.5,6219.0,3634,0,3634`."""
    try:
        _, mean, low, high, count, *_ = reply.split(",")
        return float(mean), float(low), float(high), int(count)
    except ValueError:
        return None
