"""Read values over time from a file that people have: CSV, or JSON in the form of the Carbon Aware SDK."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.plan.rates.description import Description, header_of, moment, read_side
from joulelab.plan.rates.steps import Steps, shown
from joulelab.plan.rates.zones import utc_of, zone_of
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from zoneinfo import ZoneInfo

    from joulelab.analysis.readings import Floats

NOTHING = ("", "-", "na", "n/a", "nan", "null", "none")
TIMES = ("time", "timestamp", "datetime", "date", "start", "from", "start_time", "datetime (utc)", "time (utc)")
VALUES = ("value", "values", "intensity", "carbon_intensity", "carbonintensity", "price", "rate", "rating")
ENDS = ("end", "until", "to", "end_time")
MOST_BYTES = 200_000_000
SAME_S = 1e-3
NO_ZONE = "times say no offset, and no time zone is given"
SAY_ZONE = "write times with Z or +01:00, or `# time_zone: Europe/Berlin` at the top"


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one value as it was read: where it stands, when it begins and ends (s since 1970), and its uncertainty."""

    where: str
    start_s: float
    value: float
    end_s: float | None = None
    u: float | None = None


def read_series(path: Path, *, told: Description | None = None, zone: str | None = None) -> Steps:
    """Return the series that a file holds, by what it, a TOML file beside it and `told` say of it.

    `zone` is the time zone of times that say none. Raises ConfigError with the line of what is wrong.
    """
    text = _text(path)
    side = path.with_suffix(".toml")
    said = told or Description()
    if side.is_file() and told is None:
        said = read_side(side, path)
    if path.suffix.lower() == ".json":
        rows, said = _json_rows(path, text, said, zone)
    else:
        rows, said = _csv_rows(path, text, said, zone)
    if not rows:
        raise ConfigError("the file has no values", where=str(path), next="give at least one line of values")
    return _steps(path, rows, said)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError("the file is too large for a series", where=str(path), next="name a file of values")
        return read_regular(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("the file is not UTF-8", where=str(path), next="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError("cannot read the series", where=str(path), why=error.strerror, next="name a file") from None


def _csv_rows(path: Path, text: str, said: Description, zone: str | None) -> tuple[list[Row], Description]:
    lines = text.splitlines()
    top = 0
    while top < len(lines) and (not lines[top].strip() or lines[top].lstrip().startswith("#")):
        top += 1
    said = said.with_others(header_of(lines[:top], str(path)), str(path))
    if top >= len(lines):
        return [], said
    sign = max(";,\t", key=lines[top].count)
    reader = csv.reader(lines[top:], delimiter=sign)
    head = [name.strip() for name in next(reader)]
    columns = _columns(head, said, f"{path}:{top + 1}")
    clock = _clock(said, zone, head[columns["time"]])
    rows = []
    for cells in reader:
        where = f"{path}:{top + reader.line_num}"
        if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
            continue
        if len(cells) <= max(columns.values()):
            raise ConfigError(f"the line has {len(cells)} columns of {len(head)}", where=where, next="correct it")
        rows.append(_row({name: cells[k].strip() for name, k in columns.items()}, clock, where, sign))
    return rows, replace(said, time_zone=said.time_zone or (clock.key if clock else None))


def _columns(head: Sequence[str], said: Description, where: str) -> dict[str, int]:
    """Return where the columns are: those that were named, else those whose names are known."""
    found: dict[str, int] = {}
    asked = {"time": said.time_column, "value": said.value_column, "end": said.end_column, "u": said.u_column}
    lower = [name.lower() for name in head]
    for key, name in asked.items():
        if name is not None and name not in head:
            raise ConfigError(f"there is no column {name!r}", where=where, next=suggest_name(name, list(head)))
        if name is not None:
            found[key] = head.index(name)
    for key, names in (("time", TIMES), ("value", VALUES), ("end", ENDS)):
        known = [k for k, name in enumerate(lower) if name in names and k not in found.values()]
        if key not in found and known:
            found[key] = known[0]
    rest = [k for k in range(len(head)) if k not in found.values()]
    if "value" not in found and "time" in found and len(rest) == 1:
        found["value"] = rest[0]
    for key in ("time", "value"):
        if key not in found:
            then = f"name it: `# {key}_column: {head[rest[0]] if rest else key}`; columns: {', '.join(head)}"
            raise ConfigError(f"it is not clear which column holds the {key}", where=where, next=then)
    return found


def _clock(said: Description, zone: str | None, column: str = "") -> ZoneInfo | None:
    """Return the time zone of times without offset, None where nobody says it."""
    name = said.time_zone or zone or ("UTC" if re.search(r"\butc\b", column, re.IGNORECASE) else None)
    return None if name is None else zone_of(name)


def _row(cells: dict[str, str], clock: ZoneInfo | None, where: str, sign: str) -> Row:
    try:
        start_s = _time(cells["time"], clock)
        end_s = _time(cells["end"], clock) if "end" in cells else None
        value = _number(cells["value"], sign)
        u = _number(cells["u"], sign) if "u" in cells else None
    except ConfigError as error:
        raise ConfigError(error.what, where=where, why=error.why, next=error.next) from None
    return Row(where, start_s, value, end_s, u)


def _time(text: str, clock: ZoneInfo | None) -> float:
    time = moment(text)
    if time.tzinfo is None and clock is None:
        raise ConfigError(f"{text}: {NO_ZONE}", next=SAY_ZONE)
    return time.timestamp() if clock is None else utc_of(time, clock)


def _number(text: str, sign: str = ",") -> float:
    """Return a number; what says that there is none is a gap (NaN). Raises ConfigError."""
    if text.lower() in NOTHING:
        return math.nan
    # Where columns are apart by semicolons, a comma may be a decimal sign.
    plain = text.replace(",", ".") if sign == ";" and "." not in text else text
    try:
        number = float(plain)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{text!r} is no number", next="write numbers as 312.5, and nothing where there is none")
    return number


def _json_rows(path: Path, text: str, said: Description, zone: str | None) -> tuple[list[Row], Description]:
    """Read `{"Emissions": [{"Location", "Time", "Rating", "Duration"}]}`; of several locations `zone` names one."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("not JSON", where=str(path), why=str(error), next="correct it") from None
    whole = {key.lower(): value for key, value in data.items()} if isinstance(data, dict) else {"emissions": data}
    items = whole.get("emissions")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        what = "no series in the form of the Carbon Aware SDK"
        raise ConfigError(what, where=str(path), next='it has to hold {"Emissions": [{"Time": ..., "Rating": ...}]}')
    entries = [{key.lower(): value for key, value in item.items()} for item in items]
    places = sorted({str(one.get("location") or "") for one in entries})
    if len(places) > 1 and said.zone not in places:
        then = f'name one in {path.with_suffix(".toml").name}: zone = "{places[0]}"'
        raise ConfigError(f"it holds {len(places)} places: {', '.join(places[:5])}", where=str(path), next=then)
    chosen = said.zone if len(places) > 1 else places[0] if places else ""
    said = replace(said, unit=said.unit or "g/kWh", zone=said.zone or chosen or None)
    said = replace(said, licence=said.licence or _plain(whole.get("license")))
    clock = _clock(said, zone)
    numbered = [(n, one) for n, one in enumerate(entries, 1) if str(one.get("location") or "") == chosen]
    return [_json_row(one, clock, f"{path}: entry {n}") for n, one in numbered], said


def _json_row(one: dict[str, Any], clock: ZoneInfo | None, where: str) -> Row:
    rating = one.get("rating")
    cells = {"time": str(one.get("time", "")), "value": "" if rating is None else str(rating)}
    row = _row(cells, clock, where, ",")
    duration = one.get("duration")
    if not duration:
        return row
    match = re.fullmatch(r"(?:(\d+)\.)?(\d{1,2}):(\d\d):(\d\d)(?:\.\d+)?", str(duration))
    if match is None:
        raise ConfigError(f"{duration!r} is no duration", where=where, next="write it as 01:00:00")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    length_s = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    return replace(row, end_s=row.start_s + length_s) if length_s else row


def _plain(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _steps(path: Path, rows: Sequence[Row], said: Description) -> Steps:
    _check_order(rows)
    label, unit = said.label(path.name, str(path))
    starts = np.array([row.start_s for row in rows])
    ends = _ends(path, rows, starts, said)
    values = np.array([row.value for row in rows]) * unit.factor
    u = _uncertainties(rows, unit.factor)
    if label.kind != "price" and (values < 0).any():
        bad = rows[int(np.argmax(values < 0))]
        what = f"{bad.value:g} {said.unit}: a carbon intensity cannot be below 0"
        raise ConfigError(what, where=bad.where, next="correct the value, or leave it empty: a gap")
    lengths = np.diff(np.append(starts, ends[-1]))
    resolution = float(np.median(ends - starts))
    if (np.abs(ends - starts - resolution) > SAME_S).any():
        resolution = float(lengths.min())
    return _with_gaps(replace(label, resolution_s=resolution), starts, ends, values, u)


def _uncertainties(rows: Sequence[Row], factor: float) -> Floats | None:
    """Return the standard uncertainty of each value, NaN where its cell is empty; None without such a column."""
    if rows[0].u is None:
        return None
    for row in rows:
        if row.u is not None and row.u < 0:
            what = f"{row.u:g}: a standard uncertainty cannot be below 0"
            raise ConfigError(what, where=row.where, next="correct it")
    return np.array([math.nan if row.u is None else row.u for row in rows]) * factor


def _check_order(rows: Sequence[Row]) -> None:
    for before, row in pairwise(rows):
        if row.start_s == before.start_s:
            what = f"{shown(row.start_s)} is there twice"
            raise ConfigError(what, where=row.where, why=f"before at {before.where}", next="leave one of them out")
        if row.start_s < before.start_s:
            what = f"{shown(row.start_s)} comes after {shown(before.start_s)}"
            raise ConfigError(what, where=row.where, next="sort the file by time")


def _ends(path: Path, rows: Sequence[Row], starts: Floats, said: Description) -> Floats:
    """Return when each value ends: as its row says, by the step, until the next, or by how far apart all are."""
    if all(row.end_s is not None for row in rows):
        ends = np.array([row.end_s for row in rows], dtype=float)
    elif said.end_s is not None:
        ends = np.append(starts[1:], said.end_s)
    else:
        ends = starts + (said.step_s or _found_step(path, rows, starts))
    over = np.flatnonzero(ends[:-1] > starts[1:] + SAME_S)
    short = np.flatnonzero(ends <= starts)
    if short.size:
        row = rows[int(short[0])]
        raise ConfigError(f"it ends at {shown(ends[short[0]])}, before it begins", where=row.where, next="correct it")
    if over.size:
        row = rows[int(over[0]) + 1]
        what = f"it begins at {shown(row.start_s)}, before the value above ends ({shown(ends[over[0]])})"
        raise ConfigError(what, where=row.where, next="correct the times, or the step")
    return ends


def _found_step(path: Path, rows: Sequence[Row], starts: Floats) -> float:
    """Return how long values hold, where their times are evenly apart but for gaps. Raises ConfigError."""
    apart = np.diff(starts)
    if not apart.size:
        raise ConfigError("it is not said how long the value holds", where=str(path), next="write `# step: 1h`")
    lengths, counts = np.unique(np.round(apart, 3), return_counts=True)
    step = float(lengths[int(np.argmax(counts))])
    odd = np.flatnonzero(np.abs(apart / step - np.round(apart / step)) * step > SAME_S)
    if odd.size:
        row = rows[int(odd[0]) + 1]
        why = f"most are {step:g} s apart, this one {apart[odd[0]]:g} s"
        then = "give a column `end`, or `# end: TIME` of the last value where each holds until the next"
        raise ConfigError("times are not evenly apart", where=row.where, why=why, next=then)
    return step


def _with_gaps(label: Any, starts: Floats, ends: Floats, values: Floats, u: Floats | None) -> Steps:
    """Return a series in which what no row tells of is a gap."""
    hole = np.flatnonzero(ends[:-1] < starts[1:] - SAME_S) + 1
    starts = np.insert(starts, hole, ends[hole - 1])
    values = np.insert(values, hole, math.nan)
    return Steps(label, starts, values, float(ends[-1]), None if u is None else np.insert(u, hole, math.nan))
