"""Say what the columns of a file are: the configuration of a `file` entry, checked against the file's own header."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.scope import find_family
from joulelab.core.spec import Accuracy, Kind, Spec
from joulelab.core.text import suggest_name
from joulelab.instruments.file.cells import UNITS, Cells, clean, unit_of
from joulelab.instruments.file.times import check_format, utc_ns, zone_of
from joulelab.instruments.settings import check_keys, number
from joulelab.instruments.wall import STATES_OF, check_scope, label_of, place, stated

UNSTATED = Accuracy("unknown", reference="the file does not say what measured it; give gain and reference")
TIME_KEYS = {
    "column": "name of the column with the time stamps, or a list (date, time)",
    "format": "iso, unix, unix_ms, unix_us, unix_ns, seconds or milliseconds (from start), or a pattern of strptime",
    "zone": "time zone of stamps that carry none (UTC)",
    "start": "the time from which seconds or milliseconds count",
}
COLUMN_KEYS = {
    "column": "its name in the file",
    "scope": "what it covers (node.ac, gpu:{device})",
    "unit": "W, kW, mW, J, Wh, kWh, ... ; from the header if that has it in brackets",
    "kind": "power, counter or state; from the unit if not given",
    "name": "name of the channel",
    "quantity": "what is measured",
    "update_s": "seconds between updates of the sensor",
    "window_s": "seconds over which a value is averaged",
    "seen": "share of the time that the sensor sees",
    "modulus": "where a counter wraps, in the unit of the column",
    "limits": "least and most true power, in W",
    "gain": "how far it may be off, as a fraction",
    "offset_w": "how far it may be off at any load, in W",
    "reference": "where gain and offset are known from",
    "parent": "the scope that contains it",
    "sums": "the scope that is the sum of several of these",
    "parts": "how many make that sum",
}
_UNIT_AT_END = re.compile(r"(?i)[_\s.-](k?wh?|[mk]?j|mw)$")
_PLAIN_UNITS = {unit.lower(): unit for unit in ("W", "kW", "Wh", "kWh", "J", "kJ")}  # case tells mW from MW
WHERE_KEYS = {"column": "name of the column", "equals": "the text that rows to keep have there"}


@dataclass(frozen=True, slots=True)
class Time:
    """Say where the stamps stand and how to read them; `format` None = guess from the first."""

    columns: tuple[int, ...]
    format: str | None
    zone: str | None
    start_ns: int | None
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Column:
    """Describe one mapped column: its place, its channel, and the scope, with `{device}` where rows are of several."""

    index: int
    name: str
    scope: str
    spec: Spec
    cells: Cells
    parent: str | None = None
    sums: str = ""
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Describe a file. `device` and `host` are columns that tell rows apart; `keep` are (column, text) to filter by."""

    label: str
    time: Time
    columns: tuple[Column, ...]
    keep: tuple[tuple[int, str], ...]
    device: int | None
    host: int | None
    host_name: str


class Names:
    """Find columns by the names in a header: as written, without a unit in brackets, or in other case."""

    def __init__(self, names: Sequence[str], where: str) -> None:
        self.names = list(names)
        self.where = where

    def index(self, name: str) -> int:
        """Return the place of a column. Raises ConfigError with the nearest name."""
        for form in (lambda n: n, _bare, lambda n: _bare(n).lower()):
            found = [k for k, n in enumerate(self.names) if form(n) == form(name)]
            if len(found) == 1:
                return found[0]
            if found:
                raise ConfigError(f"{len(found)} columns are called {name!r}", where=self.where, next="rename one")
        near = difflib.get_close_matches(name, self.names, n=1, cutoff=0.4)
        listed = ", ".join(repr(n) for n in self.names[:30]) + (", ..." if len(self.names) > 30 else "")
        advice = f"did you mean {near[0]!r}? the file has {listed}" if near else f"the file has {listed}"
        raise ConfigError(f"there is no column {name!r}", where=self.where, next=advice)

    def has(self, name: str) -> bool:
        """Return whether there is such a column."""
        return any(_bare(n) == name for n in self.names)

    def unit(self, index: int) -> str | None:
        """Return the unit that the header gives, in brackets or at its end: `power.draw [W]`, `P (kW)`, `power_kw`.

        Of `power_mw` it is `mw`, which may be either of mW and MW.
        """
        name = self.names[index]
        for left, right in ("[]", "()"):
            if name.endswith(right) and left in name and unit_of(name[:-1].rpartition(left)[2]):
                return name[:-1].rpartition(left)[2].strip()
        end = _UNIT_AT_END.search(name)
        return _PLAIN_UNITS.get(end[1].lower(), end[1]) if end else None


def _bare(name: str) -> str:
    return name.partition(" [")[0].strip() if name.endswith("]") else name.strip()


def layout_of(config: Mapping[str, Any], names: Names) -> Layout:
    """Return what the file's columns are. Raises ConfigError."""
    label = label_of(config)
    host: Any = config.get("host") or ""
    by_column = isinstance(host, Mapping)
    if by_column:
        check_keys(label, host, {"column": "name of the column with the hosts"})
    device = config.get("device")
    columns = [_column(config, c, names) for c in _tables(config, "columns", names.where)]
    if not columns:
        listed = ", ".join(repr(n) for n in names.names[:30])
        advice = f"type --map COLUMN=node.ac:W; the file has {listed}"
        raise ConfigError("no column is mapped", where=names.where, next=advice)
    templates = [c for c in columns if "{device}" in c.scope]
    if templates and device is None:
        advice = "name the column that tells devices apart: device=COLUMN"
        raise ConfigError(f"{templates[0].scope!r} needs a device", where=names.where, next=advice)
    if device is not None and not templates:
        advice = "use it in a scope: --map 'COLUMN=outlet:{device}:W'"
        raise ConfigError(f"device = {device!r} is used by no scope", where=names.where, next=advice)
    return Layout(
        label=label,
        time=_time(config, names),
        columns=tuple(columns),
        keep=tuple(_keep(w, names) for w in _tables(config, "where", names.where)),
        device=None if device is None else names.index(str(device)),
        host=names.index(str(host.get("column", ""))) if by_column else None,
        host_name="" if by_column else str(host),
    )


def _tables(config: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    value = config.get(key) or []
    found = [value] if isinstance(value, Mapping) else value
    if not isinstance(found, Sequence) or isinstance(found, str) or not all(isinstance(t, Mapping) for t in found):
        raise ConfigError(f"{key} is {value!r}", where=where, next='give a list of tables: [{column = "...", ...}]')
    return list(found)


def _keep(table: Mapping[str, Any], names: Names) -> tuple[int, str]:
    check_keys(names.where, table, WHERE_KEYS)
    return names.index(str(table.get("column", ""))), str(table.get("equals", "")).strip()


def _time(config: Mapping[str, Any], names: Names) -> Time:
    value = config.get("time")
    table = {"column": value} if isinstance(value, str | list) else value
    if not isinstance(table, Mapping) or not table.get("column"):
        listed = ", ".join(repr(n) for n in names.names[:30])
        advice = f"type --time COLUMN; the file has {listed}"
        raise ConfigError("no column of time stamps is given", where=names.where, next=advice)
    check_keys(names.where, table, TIME_KEYS)
    column, form, start = table["column"], table.get("format"), table.get("start")
    given = column if isinstance(column, list) else [column]
    zone = str(table["zone"]) if table.get("zone") else None
    zoned = zone_of(zone, names.where) if zone else None
    start_ns = None if start is None else utc_ns(str(start), zoned, names.where)
    if form is not None:
        check_format(str(form), names.where)
        if form in ("seconds", "milliseconds") and start_ns is None:
            advice = "type --start 2024-05-01T12:00:00Z; any time will do where nobody knows it"
            raise ConfigError(f"{form} count from a start that is not given", where=names.where, next=advice)
    offset_s = number(names.where, config, "clock_offset_s", 0.0, above=float("-inf"))
    indices = tuple(names.index(str(c)) for c in given)
    return Time(indices, None if form is None else str(form), zone, start_ns, round(offset_s * NS))


def _column(config: Mapping[str, Any], table: Mapping[str, Any], names: Names) -> Column:
    assumed = table.get("assumed")  # of a preset
    if isinstance(assumed, Accuracy):
        table = {key: value for key, value in table.items() if key != "assumed"}
    check_keys(names.where, table, COLUMN_KEYS)
    column = str(table.get("column", ""))
    index = names.index(column)
    kind, cells = _kind_and_cells(config, table, names, index)
    scope = _scope(table, names.where, state=kind == "state")
    at = place({**config, "feeds": "", "parts": 0} if scope else config, scope or "node.ac")
    known = assumed if isinstance(assumed, Accuracy) and kind != "state" else UNSTATED
    spec = _spec(config, {**table, "column": column}, kind, cells, names.where, find_family(at["scope"]), known)
    parts = int(number(names.where, table, "parts", at["parts"], above=-1))
    parent, sums = table.get("parent", at["parent"]), str(table.get("sums") or at["sums"])
    return Column(index, column, at["scope"], spec, cells, parent, sums, parts)


def _scope(table: Mapping[str, Any], where: str, *, state: bool) -> str:
    """Return what a column covers, and what it sums to, if that is said; of a state it may be more."""
    for key in ("sums", "parent"):
        if table.get(key):
            check_scope(str(table[key]), where, key)
    given = str(table.get("scope") or "")
    return check_scope(given, where, also=STATES_OF if state else ("host",)) if given else ""


def check_tables(config: Mapping[str, Any]) -> None:
    """Check what can be known of columns, filters and times without the file. Raises ConfigError."""
    where = f"meter {label_of(config)}"
    for table in _tables(config, "columns", where):
        check_keys(where, table, COLUMN_KEYS)
        unit = unit_of(str(table["unit"])) if table.get("unit") else None
        if table.get("unit") and unit is None:
            raise ConfigError(
                f"unit is {table['unit']!r}", where=where, next=suggest_name(str(table["unit"]), list(UNITS))
            )
        if table.get("kind") not in (None, "power", "counter", "state"):
            raise ConfigError(f"kind is {table['kind']!r}", where=where, next="power, counter or state")
        _scope(table, where, state=table.get("kind") == "state" or (unit is not None and unit.si not in ("W", "J")))
        stated({**config, **table}, UNSTATED)
        _limits(table.get("limits"), where)
        for key in ("update_s", "window_s", "seen", "modulus"):
            number(where, table, key, 1.0, above=-1e-12)
    for table in _tables(config, "where", where):
        check_keys(where, table, WHERE_KEYS)
    time = config.get("time")
    if isinstance(time, Mapping):
        check_keys(where, time, TIME_KEYS)
        if time.get("zone"):
            zone_of(str(time["zone"]), where)
        if time.get("format") is not None:
            check_format(str(time["format"]), where)
    number(where, config, "clock_offset_s", 0.0, above=float("-inf"))


def _kind_and_cells(
    config: Mapping[str, Any], table: Mapping[str, Any], names: Names, index: int
) -> tuple[Kind, Cells]:
    where, column = names.where, names.names[index]
    given, header = table.get("unit"), names.unit(index)
    kind: Any = table.get("kind")
    if kind not in (None, "power", "counter", "state"):
        raise ConfigError(f"kind of {column!r} is {kind!r}", where=where, next="power, counter or state")
    text = str(given or header or ("1" if kind == "state" else ""))
    unit = unit_of(text)
    if unit is None:
        scope = str(table.get("scope") or "node.ac")
        advice = f"type --map '{column}={scope}:W' (or one of {', '.join(UNITS)})"
        raise ConfigError(
            f"the unit of {column!r} is {text!r}" if text else f"{column!r} has no unit", where=where, next=advice
        )
    # A letter at the end that is no unit (T_j, in degrees) is not taken for one.
    if header and (unit.si in ("W", "J") or column[-1] in "])"):
        shown = [u for u in (unit_of(header),) if u] or [UNITS[f"{m}{header[1:].upper()}"] for m in "mM"]
        if (unit.si, unit.factor) not in [(u.si, u.factor) for u in shown]:
            what, then = (
                f"{column!r} is in {header} by its header, not in {text}",
                f"leave the unit out: --map '{column}=SCOPE', or rename the column",
            )
            raise ConfigError(what, where=where, next=then)
    if kind is None:
        kind = {"W": "power", "J": "counter"}.get(unit.si, "state")
    if kind == "power" and unit.si != "W":
        raise ConfigError(f"{column!r} is no power: its unit is {text}", where=where, next="correct unit or kind")
    missing = config.get("missing") or []
    missing = [missing] if isinstance(missing, str) else missing
    if not isinstance(missing, list):
        raise ConfigError(f"missing is {missing!r}", where=where, next='give a text or a list of them: ["-1"]')
    cells = Cells(
        unit,
        decimal=str(config.get("decimal") or "."),
        thousands=str(config.get("thousands") or ""),
        missing=frozenset(str(m) for m in missing),
    )
    return kind, cells


def _spec(
    config: Mapping[str, Any],
    table: Mapping[str, Any],
    kind: Kind,
    cells: Cells,
    where: str,
    covers: str,
    known: Accuracy,
) -> Spec:
    unit = cells.unit
    usual = {"power": "power_w", "counter": "energy_j" if unit.si == "J" else clean(str(table["column"]))}
    suffix = "" if unit.si == "1" else f"_{clean(unit.si).removeprefix('deg')}"
    own = clean(_bare(str(table["column"])))
    name = str(table.get("name") or usual.get(kind) or (own if own.endswith(suffix) else own + suffix))
    accuracy = stated({**config, **table}, known) if kind != "state" else Accuracy()
    if kind != "state" and not accuracy.shared:
        # One file may hold several instruments: what is wrong in common is so within a family only. What a
        # file is called does not tell instruments apart: two files may well come from one.
        accuracy = replace(accuracy, quantum=0.0, shared=f"file:{covers}")
    seconds = {k: number(where, table, k, 0.0, above=-1e-12) if k in table else None for k in ("update_s", "window_s")}
    modulus = number(where, table, "modulus", 0.0, above=0.0) * unit.factor if "modulus" in table else None
    return Spec(
        clean(name),
        str(table.get("quantity") or unit.quantity),
        unit.si,
        kind,
        seconds["update_s"],
        seconds["window_s"],
        number(where, table, "seen", 1.0, above=0.0),
        modulus,
        _limits(table.get("limits"), where),
        accuracy,
    )


def _limits(value: Any, where: str) -> tuple[float, float] | None:
    if value is None:
        return None
    fits = isinstance(value, list) and len(value) == 2 and all(isinstance(v, int | float) for v in value)
    if not fits or not value[0] < value[1]:
        raise ConfigError(f"limits is {value!r}", where=where, next="give least and most power in W: [0, 700]")
    return float(value[0]), float(value[1])
