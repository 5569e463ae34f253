"""Read a series of values over time from a CSV file that describes itself in `#` lines; write one.

# kind: average
# unit: g/kWh
# zone: DE
time,value
2026-11-01T00:00Z,312
"""

from __future__ import annotations

import csv
import datetime as dt
import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds, suggest_name
from joulelab.plan.rates.rate import CARBON, Label, Steps, format_time, read_unit
from joulelab.plan.rates.time_zones import convert_to_utc, find_time_zone, read_moment
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from zoneinfo import ZoneInfo

    from joulelab.analysis.readings import Floats

MISSING = ("", "-", "na", "n/a", "nan", "null", "none")
TIMES = ("time", "timestamp", "datetime", "date", "start", "from", "start_time", "datetime (utc)", "time (utc)")
VALUES = ("value", "values", "intensity", "carbon_intensity", "carbonintensity", "price", "rate")
ENDS = ("end", "until", "to", "end_time")
TEXTS = ("kind", "unit", "title", "zone", "covers", "source", "licence", "time_zone")
COLUMNS = {"time": "time_column", "value": "value_column", "end": "end_column"}
KEYS = (*TEXTS, *COLUMNS.values(), "step", "end", "issued", "u_rel")
REMOVED = {"u_column": "write one uncertainty for all values: `# u_rel: 0.05`; or delete the line"}
CHOICES = {"kind": ("average", "marginal", "price"), "covers": ("direct", "lifecycle")}
MOST_BYTES = 200_000_000
NO_ZONE = "write times with Z or +01:00, or `# time_zone: Europe/Berlin` at the top of the file"


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """Hold one value with its line, begin and end (s since 1970)."""

    where: str
    start_s: float
    value: float
    end_s: float | None = None


def read_series(path: Path, *, zone: str | None = None) -> Steps:
    """Return the series in a CSV file; `zone` is the time zone of times without an offset, if the file has none.

    Raises ConfigError with the line of a mistake.
    """
    lines = _read_lines(path)
    top = next((k for k, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), len(lines))
    try:
        facts = _read_facts(lines[:top])
        label, factor = _make_label(facts, path)
    except ConfigError as error:
        raise ConfigError(error.what, where=str(path), why=error.why, next=error.next) from None
    rows, clock = _read_rows(path, lines, top, facts, zone)
    if not rows:
        raise ConfigError("the file has no values", where=str(path), next="add at least one line of values")
    for before, row in pairwise(rows):
        if row.start_s <= before.start_s:
            how = "occurs twice" if row.start_s == before.start_s else f"comes after {format_time(before.start_s)}"
            then = "delete one of them" if row.start_s == before.start_s else "sort the file by time"
            raise ConfigError(f"{format_time(row.start_s)} {how}", where=row.where, next=then)
    starts = np.array([row.start_s for row in rows])
    ends = _find_ends(path, rows, starts, facts, clock)
    values = np.array([row.value for row in rows]) * factor
    if label.kind != "price" and (values < 0).any():
        bad = rows[int(np.argmax(values < 0))]
        what, then = f"{bad.value:g} {facts['unit']} is negative", "a carbon intensity is 0 or more; leave a gap empty"
        raise ConfigError(what, where=bad.where, next=then)
    # What no row covers is a gap.
    holes = np.flatnonzero(ends[:-1] < starts[1:] - 1e-3) + 1
    label = replace(label, resolution_s=float(np.median(ends - starts)), time_zone=clock.key if clock else "UTC")
    return Steps(label, np.insert(starts, holes, ends[holes - 1]), np.insert(values, holes, math.nan), float(ends[-1]))


def _read_lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError("the file is too large for a series", where=str(path), next="name a file of values")
        return read_regular(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ConfigError("the file is not UTF-8", where=str(path), next="save it as UTF-8") from None
    except OSError as error:
        then = "name a CSV file with the columns time and value"
        raise ConfigError("cannot read the series", where=str(path), why=error.strerror, next=then) from None


def _read_facts(lines: Sequence[str]) -> dict[str, str]:
    """Return the `# key: value` lines; other `#` lines are remarks. Raises ConfigError."""
    facts: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.lstrip("# \t").partition(":")
        name = key.strip().lower().replace(" ", "_")
        if colon and name in REMOVED:
            raise ConfigError(f"{name} is no longer read", next=REMOVED[name])
        if colon and name in KEYS and value.strip():
            facts[name] = value.strip()
    for key, valid in CHOICES.items():
        if facts.get(key, valid[0]) not in valid:
            raise ConfigError(f"{key} is {facts[key]!r}", next=f"write one of {', '.join(valid)}")
    return facts


def _make_label(facts: Mapping[str, str], path: Path) -> tuple[Label, float]:
    if "unit" not in facts:
        why = None
        if path.with_suffix(".toml").exists():
            why = f"{path.with_suffix('.toml').name} beside it is no longer read"
        raise ConfigError("the file does not state its unit", why=why, next="write `# unit: g/kWh` at its top")
    factor, unit = read_unit(facts["unit"])
    kind = facts.get("kind") or ("price" if unit != CARBON else "")
    if not kind:
        what, why = "average or marginal intensities?", "average is of all generation, marginal of one kWh more"
        raise ConfigError(what, why=why, next="write `# kind: average` or `# kind: marginal` at the top of the file")
    if (kind == "price") == (unit == CARBON):
        what = f"kind is {kind}, but {facts['unit']} is {'carbon' if unit == CARBON else 'money'}"
        raise ConfigError(what, next="correct `# kind:` or `# unit:`")
    u_rel = _read_share(facts["u_rel"]) if "u_rel" in facts else None
    issued = convert_to_utc(read_moment(facts["issued"]), _find_clock(facts)) if "issued" in facts else None
    label = Label(
        cast("Any", kind), unit, facts.get("title") or path.name, zone=facts.get("zone", ""),
        covers=cast("Any", facts.get("covers", "")), source=facts.get("source") or path.name,
        licence=facts.get("licence", ""), u_rel=u_rel, issued_utc_s=issued,
    )  # fmt: skip
    return label, factor


def _read_share(text: str) -> float:
    try:
        share = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise ConfigError(f"u_rel is {text!r}", next="write the standard uncertainty as a share: 0.05")
    return share


def _find_clock(facts: Mapping[str, str]) -> ZoneInfo:
    return find_time_zone(facts.get("time_zone", "UTC"))


def _read_rows(
    path: Path, lines: Sequence[str], top: int, facts: Mapping[str, str], zone: str | None
) -> tuple[list[SeriesRow], ZoneInfo | None]:
    if top >= len(lines):
        return [], None
    sign = max(";,\t", key=lines[top].count)
    reader = csv.reader(lines[top:], delimiter=sign)
    head = [name.strip() for name in next(reader)]
    columns = _find_columns(head, facts, f"{path}:{top + 1}")
    utc = "UTC" if re.search(r"\butc\b", head[columns["time"]], re.IGNORECASE) else None
    name = facts.get("time_zone") or zone or utc
    clock = find_time_zone(name) if name else None
    rows = []
    for cells in reader:
        where = f"{path}:{top + reader.line_num}"
        if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
            continue
        if len(cells) <= max(columns.values()):
            raise ConfigError(f"the line has {len(cells)} columns of {len(head)}", where=where, next="correct it")
        try:
            times = {key: _read_time(cells[columns[key]], clock) for key in ("time", "end") if key in columns}
            value = _read_number(cells[columns["value"]].strip(), sign)
        except ConfigError as error:
            raise ConfigError(error.what, where=where, why=error.why, next=error.next) from None
        rows.append(SeriesRow(where, times["time"], value, times.get("end")))
    return rows, clock


def _find_columns(head: Sequence[str], facts: Mapping[str, str], where: str) -> dict[str, int]:
    """Return the places of the columns: those named in `#` lines, else those with a known name."""
    found: dict[str, int] = {}
    for key, fact in COLUMNS.items():
        name = facts.get(fact)
        if name is not None and name not in head:
            raise ConfigError(f"there is no column {name!r}", where=where, next=suggest_name(name, list(head)))
        if name is not None:
            found[key] = head.index(name)
    for key, names in (("time", TIMES), ("value", VALUES), ("end", ENDS)):
        known = [k for k, name in enumerate(head) if name.lower() in names and k not in found.values()]
        if key not in found and known:
            found[key] = known[0]
    rest = [k for k in range(len(head)) if k not in found.values()]
    if "value" not in found and "time" in found and len(rest) == 1:
        found["value"] = rest[0]
    for key in ("time", "value"):
        if key not in found:
            then = f"name it: `# {key}_column: {head[rest[0]] if rest else key}`; columns: {', '.join(head)}"
            raise ConfigError(f"the column of the {key} is not known", where=where, next=then)
    return found


def _read_time(text: str, clock: ZoneInfo | None) -> float:
    time = read_moment(text)
    if time.tzinfo is None and clock is None:
        raise ConfigError(f"{text.strip()} has no offset, and the file names no time zone", next=NO_ZONE)
    return time.timestamp() if clock is None else convert_to_utc(time, clock)


def _read_number(text: str, sign: str) -> float:
    if text.lower() in MISSING:
        return math.nan
    # Between semicolons, a comma may be the decimal sign.
    plain = text.replace(",", ".") if sign == ";" and "." not in text else text
    try:
        number = float(plain)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{text!r} is not a number", next="write numbers as 312.5, and leave a gap empty")
    return number


def _find_ends(
    path: Path, rows: Sequence[SeriesRow], starts: Floats, facts: Mapping[str, str], clock: ZoneInfo | None
) -> Floats:
    """Return the end of each value: of its row, by `# step:`, until the next (`# end:`), or by even steps."""
    if all(row.end_s is not None for row in rows):
        ends = np.array([row.end_s for row in rows], dtype=float)
    elif "end" in facts:
        ends = np.append(starts[1:], convert_to_utc(read_moment(facts["end"]), clock or _find_clock(facts)))
    else:
        ends = starts + (read_seconds(facts["step"], 1.0) if "step" in facts else _find_step(path, rows, starts))
    for k, row in enumerate(rows):
        if ends[k] <= row.start_s:
            what = f"the value ends at {format_time(ends[k])}, before it begins"
            raise ConfigError(what, where=row.where, next="correct its end")
        if k and ends[k - 1] > row.start_s + 1e-3:
            what = f"it begins before the value above ends ({format_time(ends[k - 1])})"
            raise ConfigError(what, where=row.where, next="correct the times, or `# step:`")
    return ends


def _find_step(path: Path, rows: Sequence[SeriesRow], starts: Floats) -> float:
    """Return the step of times that are even except for gaps. Raises ConfigError."""
    apart = np.diff(starts)
    if not apart.size:
        raise ConfigError(
            "the duration of the only value is not known", where=str(path), next="write `# step: 1h` at the top"
        )
    lengths, counts = np.unique(np.round(apart, 3), return_counts=True)
    step = float(lengths[int(np.argmax(counts))])
    odd = np.flatnonzero(np.abs(apart / step - np.round(apart / step)) * step > 1e-3)
    if odd.size:
        why = f"most steps are {step:g} s, this one is {apart[odd[0]]:g} s"
        then = "add a column `end`, or `# end: TIME` of the last value if each holds until the next"
        raise ConfigError("the times are not even", where=rows[int(odd[0]) + 1].where, why=why, next=then)
    return step


def write_series(steps: Steps) -> str:
    """Return a series as CSV with its `#` lines; `read_series` reads the same values. A gap has an empty value."""
    label = steps.label
    facts = {name: getattr(label, name) for name in ("kind", "unit", "zone", "covers", "source", "licence")}
    if label.issued_utc_s is not None:
        facts["issued"] = _format_utc(label.issued_utc_s)
    facts["end"] = _format_utc(steps.end_s)
    lines = [f"# {key}: {value}" for key, value in facts.items() if value]
    rows = zip(steps.start_s.tolist(), steps.values.tolist(), strict=True)
    lines += ["time,value", *(f"{_format_utc(s)},{'' if math.isnan(v) else f'{v:.10g}'}" for s, v in rows)]
    return "\n".join(lines) + "\n"


def _format_utc(time_s: float) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
