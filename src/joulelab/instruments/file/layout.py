"""Describe the columns of a file: the settings of a `file` entry, checked against the file's own header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.scope import find_family
from joulelab.core.spec import Accuracy, Kind, Spec
from joulelab.core.text import find_near_name, suggest_name
from joulelab.instruments.file.values import (
    FORMATS,
    UNITS,
    Clock,
    NumberReader,
    Unit,
    clean_name,
    find_unit,
    find_zone,
    read_user_time,
)
from joulelab.instruments.settings import check_keys, number
from joulelab.instruments.wall import STATES_OF, check_scope, label_of, place, stated

UNSTATED = Accuracy("unknown", reference="the file does not state its meter; give gain and reference")
KINDS: tuple[Kind, ...] = ("power", "counter", "state")
TIME_KEYS = dict.fromkeys(("column", "format", "zone", "start"), "")
COLUMN_KEYS = dict.fromkeys(("column", "scope", "unit", "kind", "name", "quantity", "sums", "parts"), "")
COLUMN_KEYS |= dict.fromkeys(("update_s", "window_s", "seen", "gain", "offset_w", "reference"), "")
WHERE_KEYS = dict.fromkeys(("column", "equals"), "")
MOST_NAMES = 30  # columns that a message lists
_UNIT_AT_END = re.compile(r"(?i)[_\s.-](k?wh?|[mk]?j|mw)$")
_PLAIN_UNITS = {unit.lower(): unit for unit in ("W", "kW", "Wh", "kWh", "J", "kJ")}  # case separates mW from MW


@dataclass(frozen=True, slots=True)
class Column:
    """Describe one mapped column: its place, its channel, and the scope, with `{device}` where rows are of several."""

    index: int
    name: str
    scope: str
    spec: Spec
    reader: NumberReader
    parent: str | None = None
    sums: str = ""
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Describe a file: `times` are the columns of the stamps, `device` and `host` columns that separate rows.

    `clock` reads stamps, to which `offset_ns` is added; `keep` are (column, text) to filter rows by.
    """

    label: str
    times: tuple[int, ...]
    clock: Clock
    offset_ns: int
    columns: tuple[Column, ...]
    keep: tuple[tuple[int, str], ...]
    device: int | None
    host: int | None
    host_name: str


class Header:
    """Find columns by the names in a header: as written, without a unit in brackets, or in other case."""

    def __init__(self, names: Sequence[str], where: str) -> None:
        self.names = list(names)
        self.where = where

    def find_column(self, name: str) -> int:
        """Return the place of a column. Raises ConfigError with the nearest name."""
        for form in (lambda n: n, _remove_unit, lambda n: _remove_unit(n).lower()):
            found = [k for k, n in enumerate(self.names) if form(n) == form(name)]
            if len(found) == 1:
                return found[0]
            if found:
                what = f"{len(found)} columns are called {name!r}"
                raise ConfigError(what, where=self.where, next="rename one", code="config.same-columns")
        near = find_near_name(name, self.names)
        advice = (f"did you mean {near!r}? " if near else "") + f"the file has {self.list_names()}"
        raise ConfigError(f"there is no column {name!r}", where=self.where, next=advice, code="config.no-column")

    def has_column(self, name: str) -> bool:
        """Return whether there is a column of that name."""
        return any(_remove_unit(n) == name for n in self.names)

    def list_names(self) -> str:
        """Return the names for a message."""
        more = ", ..." if len(self.names) > MOST_NAMES else ""
        return ", ".join(repr(n) for n in self.names[:MOST_NAMES]) + more

    def find_unit(self, index: int) -> str | None:
        """Return the unit in a name, in brackets or at its end: `power.draw [W]`, `P (kW)`, `power_kw`.

        Of `power_mw` it is `mw`, which may be either of mW and MW.
        """
        name = self.names[index]
        for left, right in ("[]", "()"):
            if name.endswith(right) and left in name and find_unit(name[:-1].rpartition(left)[2]):
                return name[:-1].rpartition(left)[2].strip()
        end = _UNIT_AT_END.search(name)
        return _PLAIN_UNITS.get(end[1].lower(), end[1]) if end else None


def _remove_unit(name: str) -> str:
    return name.partition(" [")[0].strip() if name.endswith("]") else name.strip()


def make_layout(config: Mapping[str, Any], header: Header, decimal: str) -> Layout:
    """Return the layout that the settings describe; `decimal` is the decimal mark of times. Raises ConfigError."""
    label, where, device = label_of(config), header.where, config.get("device")
    host: Any = config.get("host") or ""
    if isinstance(host, Mapping):
        check_keys(label, host, {"column": "name of the column with the hosts"})
    columns = [_make_column(config, table, header) for table in _list_tables(config, "columns", where)]
    templates = [c.scope for c in columns if "{device}" in c.scope]
    if bool(templates) != (device is not None):
        what, advice = f"device = {device!r} is used by no scope", "use it in a scope: --map 'COLUMN=outlet:{device}:W'"
        if templates:
            what, advice = f"{templates[0]!r} needs a device", "name the column that separates devices: device=COLUMN"
        raise ConfigError(what, where=where, next=advice, code="config.device")
    keep = []
    for table in _list_tables(config, "where", where):
        check_keys(where, table, WHERE_KEYS)
        keep.append((header.find_column(str(table.get("column", ""))), str(table.get("equals", "")).strip()))
    times, clock = _make_clock(config, header, decimal)
    return Layout(
        label=label,
        times=times,
        clock=clock,
        offset_ns=round(number(where, config, "clock_offset_s", 0.0, above=float("-inf")) * NS),
        columns=tuple(columns),
        keep=tuple(keep),
        device=None if device is None else header.find_column(str(device)),
        host=header.find_column(str(host.get("column", ""))) if isinstance(host, Mapping) else None,
        host_name="" if isinstance(host, Mapping) else str(host),
    )


class _AssumedHeader(Header):
    """Stand for a header that nobody has read yet: it has every column that is asked for."""

    def find_column(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1


def check_layout(config: Mapping[str, Any], where: str) -> None:
    """Check the settings of columns and times before the file is there. Raises ConfigError."""
    time = config.get("time") or {}
    time = dict(time) if isinstance(time, Mapping) else {"column": time}
    columns = []
    for table in _list_tables(config, "columns", where):
        usual = {"counter": "J", "state": "1"}.get(str(table.get("kind")), "W")  # the header may have the unit
        columns.append({**table, "unit": table.get("unit") or usual})
    make_layout(
        {**config, "time": {"column": "", **time}, "columns": columns, "header_units": False},
        _AssumedHeader([], where),
        ".",
    )


def _list_tables(config: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    value = config.get(key) or []
    found = [value] if isinstance(value, Mapping) else value
    if not isinstance(found, list) or not all(isinstance(table, Mapping) for table in found):
        advice = 'give a list of tables: [{column = "...", ...}]'
        raise ConfigError(f"{key} is {value!r}", where=where, next=advice, code="config.tables")
    return found


def _make_clock(config: Mapping[str, Any], header: Header, decimal: str) -> tuple[tuple[int, ...], Clock]:
    """Return the columns of the time stamps, and their clock."""
    table, where = config["time"], header.where
    check_keys(where, table, TIME_KEYS)
    form, start = str(table.get("format") or "iso"), table.get("start")
    if form not in FORMATS and "%" not in form:
        advice = f"{suggest_name(form, FORMATS)}, or a pattern such as %d.%m.%Y %H:%M:%S"
        raise ConfigError(f"there is no time format {form!r}", where=where, next=advice, code="config.time-format")
    zone = find_zone(str(table["zone"]), where) if table.get("zone") else None
    start_ns = None if start is None else read_user_time(str(start), zone, where)
    columns = table["column"] if isinstance(table["column"], list) else [table["column"]]
    return tuple(header.find_column(str(c)) for c in columns), Clock(form, zone, start_ns, decimal)


def _make_column(config: Mapping[str, Any], table: Mapping[str, Any], header: Header) -> Column:
    where, assumed = header.where, table.get("assumed")  # assumed: of a preset
    if isinstance(assumed, Accuracy):
        table = {key: value for key, value in table.items() if key != "assumed"}
    check_keys(where, table, COLUMN_KEYS)
    column = str(table.get("column", ""))
    index = header.find_column(column)
    kind: Any = table.get("kind")
    if kind not in (None, *KINDS):
        raise ConfigError(f"kind is {kind!r}", where=where, next=" or ".join(KINDS), code="config.kind")
    unit = _find_column_unit(config, table, header, index)
    kind = kind or {"W": "power", "J": "counter"}.get(unit.si, "state")
    if kind == "power" and unit.si != "W":
        what = f"{column!r} is not a power: its unit is {unit.si}"
        raise ConfigError(what, where=where, next="correct unit or kind", code="config.kind")
    sums = str(table.get("sums") or "")
    if sums:
        check_scope(sums, where, "sums")
    scope = str(table.get("scope") or "")
    if scope:
        check_scope(scope, where, also=STATES_OF if kind == "state" else ("host",))
    at = place({**config, "feeds": "", "parts": 0} if scope else config, scope or "node.ac")
    missing = config.get("missing") or []
    missing = [missing] if isinstance(missing, str) else missing
    if not isinstance(missing, list):
        advice = 'give a text or a list of them: ["-1"]'
        raise ConfigError(f"missing is {missing!r}", where=where, next=advice, code="config.missing")
    reader = NumberReader(
        unit,
        decimal=str(config.get("decimal") or "."),
        thousands=str(config.get("thousands") or ""),
        missing=frozenset(str(m) for m in missing),
    )
    accuracy = stated({**config, **table}, assumed if isinstance(assumed, Accuracy) else UNSTATED)
    if kind == "state":
        accuracy = Accuracy()
    elif not accuracy.shared:
        # One file may hold several instruments: errors are common within a family only. The name of a file does not
        # separate instruments: two files may well come from one.
        accuracy = replace(accuracy, quantum=0.0, shared=f"file:{find_family(at['scope'])}")
    own = clean_name(_remove_unit(column))
    suffix = "" if unit.si == "1" else f"_{clean_name(unit.si).removeprefix('deg')}"
    usual = {("power", "W"): "power_w", ("counter", "J"): "energy_j"}.get((kind, unit.si))
    update_s, window_s = (
        number(where, table, key, 0.0, above=-1e-12) if key in table else None for key in ("update_s", "window_s")
    )
    spec = Spec(
        clean_name(str(table.get("name") or usual or (own if own.endswith(suffix) else own + suffix))),
        str(table.get("quantity") or unit.quantity),
        unit.si,
        kind,
        update_s,
        window_s,
        number(where, table, "seen", 1.0, above=0.0),
        accuracy=accuracy,
    )
    parts = int(number(where, table, "parts", at["parts"], above=-1))
    return Column(index, column, at["scope"], spec, reader, at["parent"], sums or at["sums"], parts)


def _find_column_unit(config: Mapping[str, Any], table: Mapping[str, Any], header: Header, index: int) -> Unit:
    """Return the unit that is given, else that of the header. Raises ConfigError where they differ."""
    name, scope = header.names[index], str(table.get("scope") or "node.ac")
    shown = header.find_unit(index) if config.get("header_units", True) else None
    text = str(table.get("unit") or shown or ("1" if table.get("kind") == "state" else ""))
    unit = find_unit(text)
    if unit is None:
        what = f"the unit of {name!r} is {text!r}" if text else f"{name!r} has no unit"
        advice = f"type --map '{name}={scope}:W'; {suggest_name(text, list(UNITS))}"
        raise ConfigError(what, where=header.where, next=advice, code="config.unit")
    # A letter at the end that is no unit (T_j, in degrees) is not taken for one.
    if shown and (unit.si in ("W", "J") or name[-1] in "])"):
        fits = [u for u in (find_unit(shown),) if u] or [UNITS[f"{m}{shown[1:].upper()}"] for m in "mM"]
        if (unit.si, unit.factor) not in [(u.si, u.factor) for u in fits]:
            raise ConfigError(
                f"{name!r} is in {shown} by its header, not in {text}",
                where=header.where,
                next=f"type --map '{name}={scope}'; if its values are in {text} all the same, add header_units=false",
                code="config.header-unit",
            )
    return unit
