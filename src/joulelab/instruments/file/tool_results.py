"""Read the results of CodeCarbon, Zeus and perun: totals of energy, which have no readings between begin and end.

The energies of a file are kept apart by device, in J. These tools state no uncertainty, so the accuracy is unknown;
a figure that the file does not show to be measured is an estimate. An energy of 0 J of a device that is there is no
reading. CO2 and cost as the tool states them are facts of the run, apart from what joulelab computes.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.core.quantity import J_PER_KWH
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.instruments.file.sources import CsvSource, open_bytes
from joulelab.instruments.file.values import FIRST_NS, LAST_NS, BadStamp, Clock
from joulelab.instruments.wall import stated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from zoneinfo import ZoneInfo

MOST_W = 100_000.0  # a part of one node with more: another unit, or a damaged file
SUM_SHARE = 0.01  # parts and total of one file are the same numbers, added up once more
POWER_RATIO = 1.6  # CodeCarbon 2 states its last power, not the mean: only a large difference is a doubt
LARGEST_JSON = 256 * 2**20  # bytes; perun stores all readings of all sensors
NO_START_NS = 946_684_800 * NS  # 2000-01-01, the begin of a result that states none: no energy depends on it
DOUBT = "import-doubt"  # the event of a doubt: a code and numbers
SAME_BEGIN_NS = 3 * NS  # CodeCarbon writes the end of a row in whole seconds
_AT_ITS_EDGES_S = 1e-9  # a total is known at begin and end, and nowhere between
CODECARBON_NAMES = frozenset(("timestamp", "duration", "emissions", "energy_consumed"))
ZEUS_NAMES = frozenset(("start_time", "window_name", "elapsed_time"))
PERUN_RUN, PERUN_NODE = 3, 4  # types of nodes in its tree: below an application and its executions
PERUN_PARTS = {"gpu_energy": "gpu", "cpu_energy": "cpu", "dram_energy": "dram"}
HDF5 = b"\x89HDF"


@dataclass(frozen=True, slots=True)
class EnergyTotal:
    """Hold the energy of one scope in J, or None and the reason."""

    scope: str
    joules: float | None
    reason: str = ""
    is_estimate: bool = False
    host: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Hold one result of another tool: name, begin and end (UTC, ns), totals, facts as stated, doubts as events.

    `line` is its place in the file, 0 where it has none; `run_id` is the tool's own name of the run.
    """

    tool: str
    version: str
    name: str
    span: tuple[int, int]
    totals: Sequence[EnergyTotal]
    line: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    doubts: Sequence[Mapping[str, Any]] = ()
    run_id: str = ""

    @property
    def has_energy(self) -> bool:
        """Return whether the energy of any scope is known."""
        return any(total.joules is not None for total in self.totals)

    @property
    def origin(self) -> str:
        """Return the tool with its version, where it is known."""
        return f"{self.tool} {self.version}".strip()

    def make_streams(self, settings: Mapping[str, Any]) -> list[Fetched]:
        """Return a counter for each scope: 0 J at the begin, the energy at the end. Raises ConfigError.

        `settings` may state the accuracy: gain, reference.
        """
        start, end = self.span
        default = Accuracy("unknown", shared=self.tool, reference=f"{self.tool} states no uncertainty")
        accuracy, found = stated({**settings, "label": self.tool}, default), list[Fetched]()
        for one in self.totals:
            spec = Spec(
                "energy_j", "energy", "J", "counter", _AT_ITS_EDGES_S, accuracy=accuracy, estimate=one.is_estimate
            )
            table = "estimated" if one.is_estimate else "total"
            stream = Stream(one.scope, table, one.scope, (end - start) / NS, (spec,), model=one.model)
            values = (math.nan, math.nan) if one.joules is None else (0.0, one.joules)
            gap = {"event": "gap", "stream": one.scope, "reason": one.reason, "error": "ReadFailed"}
            events = [{"t": start, **gap}, {"t": end, "event": "gap-end", "stream": one.scope}] if one.reason else []
            rows = ((start, start, values[:1]), (end, end, values[1:]))
            found.append(Fetched(stream, rows, one.host, tuple(events)))
        return found


def read_tool_results(
    tool: str, path: Path, *, zone: ZoneInfo | None = None, start_ns: int | None = None
) -> tuple[list[ToolResult], list[str]]:
    """Return the results in a file of `tool`, and remarks on how it was read. Raises MeterError, ConfigError.

    `start_ns` is the begin of a result that states none.
    """
    clock = Clock("iso", zone)
    if tool == "codecarbon":
        results = [*_read_codecarbon(path, clock)]
    elif tool == "zeus":
        results = [*_read_zeus(path, NO_START_NS if start_ns is None else start_ns)]
    else:
        results = [*_read_perun(path, clock)]
    if not results:
        raise ReadFailed("it holds no result", where=str(path), next=_name_help(tool), code="read-failed.no-rows")
    for one in results:
        _check_result(one, path)
    empty, results = [one for one in results if not one.has_energy], [one for one in results if one.has_energy]
    if not results:
        why = next((total.reason for total in empty[0].totals), "it lists no device")
        raise ReadFailed("it has no energy", where=str(path), why=why, code="read-failed.no-energy")
    remarks, count = [], len(results)
    results = _drop_stages(results)
    if len(results) < count:
        left = f"{count - len(results)} of {count} rows are left out"
        remarks.append(f"{path.name}: {left}: a later row of the same run includes them (CodeCarbon's flush)")
    if empty:
        first = f" (first: line {empty[0].line})" if empty[0].line else ""
        remarks.append(f"{path.name}: {len(empty)} of its results have no energy and are left out{first}")
    if clock.is_unzoned:
        remarks.append(f"{path.name}: its times have no zone and are taken as UTC; to change that: --zone ZONE")
    if any(one.span[0] == NO_START_NS for one in results):
        remarks.append(f"{path.name} has no begin: 2000-01-01 stands for it; to change that: --start TIME")
    return results, remarks


def find_tool(names: Sequence[str]) -> str:
    """Return the tool whose file has these columns, empty for any other file."""
    return next((t for t, own in (("codecarbon", CODECARBON_NAMES), ("zeus", ZEUS_NAMES)) if own <= set(names)), "")


# CodeCarbon --------------------------------------------------------------------------------------------------------


def _read_codecarbon(path: Path, clock: Clock) -> Iterator[ToolResult]:
    """Yield the rows of `emissions.csv`: energies in kWh, powers in W, durations in s, CO2 in kg, local times."""
    for row in _read_table("codecarbon", path, CODECARBON_NAMES):
        if "cpu_energy" not in row.cells:
            why = "CodeCarbon 1 states one total of CPU, GPU and memory"
            advice = "measure again with CodeCarbon 2 or later, or with joulelab run"
            raise ConfigError(
                "its energy is not divided by device", where=str(path), why=why, next=advice, code="config.old-file"
            )
        seconds, pue = row.read_duration("duration"), row.read_number("pue")
        try:
            end_ns = clock.read_stamp(row.cells["timestamp"])
        except BadStamp:
            raise row.refuse_cell("timestamp", "it is no time") from None
        pue = 1.0 if pue is None else pue
        if pue < 1:
            raise row.refuse_cell("pue", "a PUE is 1 or more")
        cells = {part: row.read_number(f"{part}_energy") for part in ("gpu", "cpu", "ram")}
        kwh = {part: energy or 0.0 for part, energy in cells.items()}
        gpus, model = row.read_number("gpu_count") or 0.0, row.cells.get("gpu_model", "")
        totals = []
        for part, scope, is_there in (("gpu", "gpu", gpus > 0), ("cpu", "cpu", True), ("ram", "dram", True)):
            joules = kwh[part] * J_PER_KWH / pue
            amount = "no energy" if cells[part] is None else "0 kWh"
            reason = "" if joules else f"the file states {amount} in {part}_energy"
            if joules or is_there:
                # The file does not show whether the CPUs were measured; the power of memory is a model.
                named = model if part == "gpu" else row.cells.get("cpu_model", "") if part == "cpu" else ""
                totals.append(EnergyTotal(scope, joules or None, reason, part != "gpu", "", named))
        stated_kwh = row.read_number("energy_consumed")
        facts = {
            "codecarbon_energy_kwh": stated_kwh,
            "codecarbon_co2e_kg": row.read_number("emissions"),
            "codecarbon_pue": pue,
            "codecarbon_tracking_mode": row.cells.get("tracking_mode"),
            "codecarbon_country": row.cells.get("country_name"),
        }
        doubts = [
            *_doubt_sum(sum(kwh.values()) * J_PER_KWH, None if stated_kwh is None else stated_kwh * J_PER_KWH),
            *_doubt_power(row, sum(kwh.values()) * J_PER_KWH / seconds, pue, seconds),
            *([_make_doubt("included.pue", {"pue": pue})] if pue > 1 else []),
        ]
        name = row.cells.get("task_name") or row.cells.get("project_name", "")
        span = end_ns - round(seconds * NS), end_ns
        version, labels = row.cells.get("codecarbon_version", ""), {"project": row.cells.get("project_name", "")}
        run_id = row.cells.get("run_id", "")
        yield ToolResult("codecarbon", version, name, span, totals, row.line, facts, labels, doubts, run_id)


def _drop_stages(results: Sequence[ToolResult]) -> list[ToolResult]:
    """Leave out each row that the next one of its run includes: CodeCarbon's `flush` appends totals since the begin."""
    kept, last = dict(enumerate(results)), dict[tuple[str, str], int]()
    for number, one in enumerate(results):
        before = last.get((one.run_id, one.name)) if one.run_id else None
        if before is not None and _includes_stage(one, kept[before]):
            del kept[before]
        last[one.run_id, one.name] = number
    return [*kept.values()]


def _includes_stage(one: ToolResult, before: ToolResult) -> bool:
    energies_j = [sum(total.joules or 0.0 for total in result.totals) for result in (before, one)]
    is_same_begin = abs(one.span[0] - before.span[0]) <= SAME_BEGIN_NS
    return is_same_begin and before.span[1] <= one.span[1] and energies_j[0] <= energies_j[1]


def _doubt_power(row: ResultRow, mean_w: float, pue: float, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a doubt where the powers of a row do not fit its energy; older versions do not multiply them by PUE."""
    power_w = sum(row.read_number(f"{part}_power") or 0.0 for part in ("gpu", "cpu", "ram"))
    ratios = [mean_w / (power_w * factor) for factor in (1.0, pue) if power_w > 0]
    if ratios and not any(1 / POWER_RATIO < ratio < POWER_RATIO for ratio in ratios):
        yield _make_doubt("does-not-add-up.power", {"mean_w": mean_w / pue, "power_w": power_w, "duration_s": seconds})


# Zeus --------------------------------------------------------------------------------------------------------------


def _read_zeus(path: Path, start_ns: int) -> Iterator[ToolResult]:
    """Yield the windows of a `log_file` of ZeusMonitor, or one `Measurement` as JSON: energies in J, times in s."""
    with open_bytes(path, may_be_json=True) as file:
        is_json = file.read(1) == b"{"
    if is_json:
        yield _read_measurement(path, start_ns)
        return
    windows = []
    for row in _read_table("zeus", path, ZEUS_NAMES):
        begin_ns, seconds = round((row.read_number("start_time") or 0.0) * NS), row.read_duration("elapsed_time")
        columns = ((name, re.fullmatch(r"gpu(\d{1,4})_energy", name)) for name in row.cells)
        totals = [_make_zeus_total(f"gpu:{found[1]}", row.read_number(name)) for name, found in columns if found]
        span = begin_ns, begin_ns + round(seconds * NS)
        windows.append(ToolResult("zeus", "", row.cells["window_name"], span, totals, row.line))
    around = list[ToolResult]()  # the windows that are open where the next one begins
    for one in sorted(windows, key=lambda window: (window.span[0], -window.span[1])):
        while around and around[-1].span[1] < one.span[1]:
            around.pop()
        yield replace(one, labels={"inside": around[-1].name} if around else {})
        around.append(one)


def _make_zeus_total(scope: str, joules: float | None) -> EnergyTotal:
    reason = "" if joules else "the file states 0 J: the window is shorter than the update of the energy counter"
    reason = "the file states no energy" if joules is None else reason
    return EnergyTotal(scope, joules or None, reason)


def _read_measurement(path: Path, start_ns: int) -> ToolResult:
    data = _read_json("zeus", path)
    seconds: Any = data.get("time")
    if not _is_number(seconds) or seconds <= 0 or not isinstance(data.get("gpu_energy"), dict):
        why = "it has no positive `time` with `gpu_energy`"
        advice = "write it by json.dump(dataclasses.asdict(measurement), file)"
        raise ConfigError(
            "it is no Measurement of Zeus", where=str(path), why=why, next=advice, code="config.no-result"
        )
    if data.get("soc_energy"):
        what, why = "the energy of a system on a chip is not read", "its parts have no scope here"
        raise ConfigError(what, where=f"{path}, soc_energy", why=why, next="joulelab meters", code="config.no-result")
    totals = []
    for key, family in (("gpu_energy", "gpu"), ("cpu_energy", "cpu"), ("dram_energy", "dram")):
        energies = data.get(key)
        for number, joules in energies.items() if isinstance(energies, dict) else ():
            if not number.isdecimal() or not _is_number(joules) or joules < 0:
                raise _refuse_value(f"{path}, {key}.{number}", joules)
            totals.append(_make_zeus_total(f"{family}:{number}", float(joules)))
    return ToolResult("zeus", "", path.stem, (start_ns, start_ns + round(seconds * NS)), totals)


# perun -------------------------------------------------------------------------------------------------------------


def _read_perun(path: Path, clock: Clock) -> Iterator[ToolResult]:
    """Yield the rounds of every execution in a JSON export of perun; its energies are in J before PUE."""
    app = _read_json("perun", path)
    for execution in _list_nodes(app):
        settings = _get_table(execution, "metadata")
        try:
            begin_ns = clock.read_stamp(str(settings.get("execution_dt", execution.get("id"))))
        except BadStamp:
            where = f"{path}, {execution.get('id')}"
            raise ReadFailed("it has no time of execution", where=where, code="read-failed.no-times") from None
        for run in (node for node in _list_nodes(execution) if node.get("type") == PERUN_RUN):
            where = f"{path}, {execution.get('id')}, round {run.get('id')}"
            seconds = _read_metric(run, "runtime", where) or 0.0
            if seconds <= 0:
                raise _refuse_value(f"{where}, runtime", seconds)
            span = begin_ns, begin_ns + round(seconds * NS)
            begin_ns = span[1]  # the begin of a later round is not stated
            yield _make_perun_result(app, run, settings, span, where)


def _make_perun_result(
    app: Mapping[str, Any], run: Mapping[str, Any], settings: Mapping[str, Any], span: tuple[int, int], where: str
) -> ToolResult:
    totals = []
    hosts = [node for node in _list_nodes(run) if node.get("type") == PERUN_NODE]
    for host in hosts:
        for name, scope in PERUN_PARTS.items():
            joules = _read_metric(host, name, where)
            if joules is not None:
                reason = "" if joules else f"the file states 0 J in {name}"
                totals.append(EnergyTotal(scope, joules or None, reason, host=str(host.get("id"))))
    if not totals:
        why = "perun could read neither RAPL nor a GPU"
        raise ReadFailed("it has no energy", where=where, why=why, next="perun sensors", code="read-failed.no-energy")
    pue, overhead_w = (_read_setting(settings, key, low) for key, low in (("pue", 1.0), ("power_overhead", 0.0)))
    total_j, co2_g = _read_metric(run, "energy", where), _read_metric(run, "co2", where)
    facts = {
        "perun_energy_kwh": None if total_j is None else total_j / J_PER_KWH,
        "perun_co2e_kg": None if co2_g is None else co2_g * 1e-3,
        "perun_cost": _read_metric(run, "money", where),
        "perun_cost_unit": settings.get("post-processing.price_unit"),
        "perun_pue": pue,
        "perun_power_overhead_w": overhead_w,
    }
    # The total of perun has an assumed power for the rest of each node, and the PUE of the site.
    assumed_j = overhead_w * len(hosts) * (span[1] - span[0]) / NS
    inner_j = None if total_j is None else total_j / pue - assumed_j
    doubts = [*_doubt_sum(sum(one.joules or 0.0 for one in totals), inner_j)]
    if pue > 1 or overhead_w:
        doubts.append(_make_doubt("included.overhead", {"pue": pue, "overhead_w": overhead_w}))
    version, name = str(settings.get("perun_version", "")), str(app.get("id", ""))
    labels = {"project": name, "round": str(run.get("id"))}
    return ToolResult("perun", version, name, span, totals, 0, facts, labels, doubts)


def _list_nodes(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes below a node of perun's tree: a dictionary, or one in a list."""
    inner = node.get("nodes") or {}
    parts = inner if isinstance(inner, list) else [inner]
    return [one for part in parts if isinstance(part, dict) for one in part.values() if isinstance(one, dict)]


def _read_metric(node: Mapping[str, Any], name: str, where: str) -> float | None:
    """Return a metric in its unit without prefix, None where there is none. Raises ReadFailed."""
    metric = _get_table(_get_table(node, "metrics"), name)
    if not metric:
        return None
    value, scale = metric.get("value"), _get_table(metric, "metric_md").get("mag", 1.0)
    if not _is_number(value) or not _is_number(scale) or value * scale < 0:
        raise _refuse_value(f"{where}, {name}", value)
    return float(value * scale)


def _read_setting(settings: Mapping[str, Any], key: str, least: float) -> float:
    text = settings.get(f"post-processing.{key}", least)
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not value >= least:
        raise _refuse_value(f"post-processing.{key}", text)
    return value


def _get_table(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = node.get(key)
    return found if isinstance(found, dict) else {}


# Files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Hold a row of a table: its cells by column, and its line for errors."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def read_number(self, column: str) -> float | None:
        """Return a number that is not negative, None for an empty cell or no such column. Raises ReadFailed."""
        text = self.cells.get(column, "")
        if not text or text.lower() in ("nan", "none", "null"):
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.refuse_cell(column, "it is no number") from None
        if not math.isfinite(value) or value < 0:
            raise self.refuse_cell(column, "it is below zero" if value < 0 else "it is not finite")
        return value

    def read_duration(self, column: str) -> float:
        """Return a time above zero, in s. Raises ReadFailed."""
        seconds = self.read_number(column)
        if not seconds or round(seconds * NS) <= 0:
            raise self.refuse_cell(column, "a duration is above zero")
        return seconds

    def refuse_cell(self, column: str, why: str) -> ReadFailed:
        """Return the error of a cell, with line and column."""
        where = f"{self.path}, line {self.line}, column {column!r}"
        advice = "correct or remove this line, and import the file again"
        what = f"{self.cells.get(column, '')[:40]!r} cannot be used"
        return ReadFailed(what, where=where, why=why, next=advice, code="read-failed.cell")


def _read_table(tool: str, path: Path, needed: frozenset[str]) -> Iterator[ResultRow]:
    """Yield the rows of a CSV file. Raises ConfigError where columns are missing, ReadFailed for a row of other length.

    A row that lacks a cell would shift all that follow, so none is left out.
    """
    source = CsvSource(path, ",")
    if missing := sorted(needed - set(source.names)):
        why = f"it has no column {', '.join(missing)}"
        raise ConfigError(
            f"it is no file of {tool}", where=str(path), why=why, next=_name_help(tool), code="config.no-result"
        )
    for line, cells in source.read_rows():
        yield ResultRow(path, line, {n: c.strip() for n, c in zip(source.names, cells, strict=True)})
    if source.faults.shape:
        where, why = f"{path}, line {source.faults.first_line}", "its values may be in wrong columns"
        advice = "correct or remove this line, and import the file again"
        raise ReadFailed(
            "this row has another number of cells than the header",
            where=where,
            why=why,
            next=advice,
            code="read-failed.shape",
        )


def _read_json(tool: str, path: Path) -> dict[str, Any]:
    with open_bytes(path, may_be_json=True) as file:
        content = file.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        what, advice = "the file is too large", "export a single execution: perun export --id RUN_ID FILE json"
        raise ConfigError(what, where=str(path), next=advice, code="config.large-file")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        is_packed = content.startswith(HDF5) or isinstance(error, UnicodeDecodeError)
        why = "it is a file of HDF5" if content.startswith(HDF5) else "" if is_packed else str(error)
        what, advice = "it is no JSON", _name_help(tool)
        raise ConfigError(what, where=str(path), why=why or None, next=advice, code="config.no-result") from None
    if not isinstance(found, dict) or (tool == "perun" and not {"nodes", "metrics"} <= found.keys()):
        raise ConfigError(f"it is no result of {tool}", where=str(path), next=_name_help(tool), code="config.no-result")
    return found


def _name_help(tool: str) -> str:
    """Return how to get the file of a tool that can be imported."""
    return {
        "codecarbon": "give the emissions.csv that CodeCarbon writes",
        "zeus": "give the log_file of ZeusMonitor, or a Measurement as JSON",
        "perun": "export it first, then import the .json: perun export FILE json",
    }[tool]


# Checks ------------------------------------------------------------------------------------------------------------


def _check_result(one: ToolResult, path: Path) -> None:
    """Refuse times that cannot be right, and a mean power that no node has. Raises ReadFailed."""
    where = f"{path}, line {one.line}" if one.line else str(path)
    seconds = (one.span[1] - one.span[0]) / NS
    if not FIRST_NS < one.span[0] < one.span[1] < LAST_NS:
        raise ReadFailed("its begin or end is no time", where=where, code="read-failed.no-times")
    for total in one.totals:
        if total.joules is not None and total.joules > MOST_W * seconds:
            what = f"{total.joules / seconds:.4g} W is no power of {total.scope}"
            why, unit = f"{total.joules:.4g} J in {seconds:.4g} s", "kWh" if one.tool == "codecarbon" else "J"
            advice = f"correct the file: energies of {one.tool} are in {unit}"
            raise ReadFailed(what, where=where, why=why, next=advice, code="read-failed.impossible-power")


def _doubt_sum(parts_j: float, total_j: float | None) -> Iterator[dict[str, Any]]:
    if total_j is not None and abs(parts_j - total_j) > SUM_SHARE * max(parts_j, total_j):
        yield _make_doubt("does-not-add-up.sum", {"parts_j": parts_j, "total_j": total_j})


def _make_doubt(code: str, numbers: Mapping[str, float]) -> dict[str, Any]:
    return {"event": DOUBT, "code": code, "numbers": dict(numbers)}


def _refuse_value(where: str, value: object) -> ReadFailed:
    why = "it is no number above zero"
    return ReadFailed(f"{str(value)[:40]!r} cannot be used", where=where, why=why, code="read-failed.cell")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
