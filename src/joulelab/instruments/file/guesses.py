"""Guess the layout of a file whose columns are not mapped, if its names leave one meaning; else name the options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.instruments.file.values import NUMERIC, BadStamp, Clock, find_unit, find_unix_format, spell_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.file.layout import Header

TIME_NAMES = ("timestamp", "time", "datetime", "date", "ts", "t", "epoch", "unix", "unixtime", "utc", "elapsed")
HOST_NAMES = ("node", "host", "hostname")
# Columns that separate the devices of rows, and the family of these.
DEVICE_NAMES = {"gpu": "gpu", "gpu_index": "gpu", "gpu_id": "gpu", "outlet": "outlet"}
# Words in a column's name: the family that they stand for, or nothing.
WORDS = {"gpu": "gpu", "cpu": "cpu", "package": "cpu", "dram": "dram", "psu": "psu", "outlet": "outlet", "rack": "rack"}
WORDS |= dict.fromkeys(("ac", "wall", "mains", "node", "server"), "node.ac") | {"dc": "node.dc"}
WORDS |= dict.fromkeys(("power", "p", "energy", "e", "active", "real", "draw", "watts", "watt", "joules", "w", "j"), "")
WORDS |= dict.fromkeys(("input", "total", "system", "consumption", "usage", "used", "kw", "wh", "kwh", "kj"), "")
GPU_WORDS = {"sm", "pstate", "cuda"}  # of columns beside the power of a single GPU
# Of several words the most precise one: node_dc_w is node.dc.
RANKS = ("gpu", "cpu", "dram", "psu", "outlet", "node.dc", "rack", "node.ac")
NO_START = "2000-01-01T00:00:00Z"  # of times that count from an unknown start; no energy depends on it
PATTERNS = ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%m-%d-%Y %H:%M:%S.%f")
EITHER = tuple(f"{day} {time}" for day in ("%d/%m/%Y", "%m/%d/%Y") for time in ("%H:%M:%S", "%H:%M", "%I:%M:%S %p"))
RELATIVE = {"s": "seconds", "sec": "seconds", "seconds": "seconds", "ms": "milliseconds"}
# Names of columns that may separate devices of an unknown kind.
ID_NAMES: tuple[str, ...] = (
    "device",
    "id",
    "name",
    "pdu",
    "unit",
    "sensor",
    "socket",
    "channel",
    "port",
    "phase",
    "index",
)
ID_NAMES += ("uuid", "serial", "instance", "card", "label", "location", "meter", "plug")


@dataclass(slots=True)
class Guess:
    """Hold guessed settings, and the options that state the same."""

    settings: dict[str, Any] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unnamed: str = ""  # a column whose name does not show what it covers

    def list_remarks(self, name: str) -> list[str]:
        """Return the guess as options to type."""
        if not self.options:
            return []
        remarks = [f"{name} is read as if you had typed: {' '.join(self.options)}"]
        if self.unnamed:
            other = _quote(f"{self.unnamed}=gpu:0")
            remarks.append(f"{self.unnamed} is taken for the whole node at the wall; if it is not, type --map {other}")
        if self.left_out:
            remarks.append(f"left out: {', '.join(self.left_out)}; add one with --map COLUMN=SCOPE:UNIT")
        return remarks


def guess_layout(config: Mapping[str, Any], header: Header, rows: Sequence[Sequence[str]]) -> Guess:
    """Return the missing settings, from the names of columns and the first rows. Raises ConfigError."""
    guess, table = Guess(), config["time"]
    is_unstarted = table.get("format") in RELATIVE.values() and not table.get("start")
    if not table.get("column") or not table.get("format") or is_unstarted:
        guess.settings["time"] = {**_guess_time(header, rows, table, guess), **table}
    if not config.get("columns"):
        _guess_columns(config, header, rows, guess)
    return guess


def _guess_time(
    header: Header, rows: Sequence[Sequence[str]], given: Mapping[str, Any], guess: Guess
) -> dict[str, Any]:
    """Return column and format of the times; a column, format or start that was given counts."""
    if not rows:
        raise ConfigError("the file has a header and no rows", where=header.where, code="config.no-rows")
    words = [_split_words(name) for name in header.names]
    named = [k for k, some in enumerate(words) if some and some[0] in TIME_NAMES and "per" not in some]
    both = [k for name in ("date", "time") for k in named if words[k] == [name]]
    column = given.get("column")
    if column:
        choices = [[header.find_column(str(name)) for name in (column if isinstance(column, list) else [column])]]
    else:
        choices = [both] if len(both) == 2 == len(named) and ":" not in rows[0][both[0]] else [[k] for k in named]
    kinds = [_find_format(rows, choice, header.names[choice[0]], given) for choice in choices]
    absolute = [k for k, (form, _) in enumerate(kinds) if form and form not in RELATIVE.values()]
    chosen = absolute or [k for k, (form, _) in enumerate(kinds) if form]
    if len(chosen) != 1:
        advice = next((advice for _, advice in kinds if advice and not chosen), "")
        what = "several columns may be the times" if chosen else "no column is obviously the time"
        if advice:
            what = f"the times of {header.names[choices[0][0]]!r} may be read in several ways"
        advice = advice or f"type --time COLUMN; the file has {header.list_names()}"
        advice += "" if choices else "; if its names are in another line type header=3, if it has none header=0"
        raise ConfigError(what, where=header.where, next=advice, code="config.no-time")
    names, form = [header.names[k] for k in choices[chosen[0]]], kinds[chosen[0]][0]
    found: dict[str, Any] = {"column": names[0] if len(names) == 1 else names, "format": form}
    if not column or form not in ("iso", *NUMERIC):
        option = _quote(f"{names[0]}={form}") if len(names) == 1 else ""
        listed = ", ".join(f'"{name}"' for name in names)
        guess.options.append(f"--time {option}" if option else f"""'time={{column=[{listed}], format="{form}"}}'""")
    if form in RELATIVE.values() and not given.get("start"):
        guess.options.append(f"--start {NO_START}")
        found["start"] = NO_START
    return found


def _find_format(
    rows: Sequence[Sequence[str]], columns: Sequence[int], name: str, given: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the format of the first cell that shows one, else the option to type."""
    if given.get("format"):
        return str(given["format"]), ""
    text = next((t for row in rows if re.search(r"\d", t := " ".join(row[k].strip() for k in columns))), "")
    if not _is_number(text):
        fits = [form for form in ("iso", *PATTERNS, *EITHER) if _is_stamp(text, form)]
        if len(fits) == 1:
            return fits[0], ""
        shown = " or ".join(f'--time "{name}={form}"' for form in fits)
        pattern = f'--time "{name}=%d.%m.%Y %H:%M:%S", with the parts in their order'
        return "", f"type {shown or pattern}" if text else ""
    if not given.get("start") and (form := find_unix_format(float(text.replace(",", ".")))):
        return form, ""
    relative = RELATIVE.get((_split_words(name) or [""])[-1])
    if relative or given.get("start"):
        return relative or "seconds", ""
    return "", f"type --time {_quote(f'{name}=seconds')}, or {_quote(f'{name}=milliseconds')} if they are"


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\s*[+-]?[0-9]+([.,][0-9]*)?([eE][+-]?[0-9]{1,2})?\s*", text))


def _is_stamp(text: str, form: str) -> bool:
    try:
        return Clock(form).read_stamp(text) > NS
    except BadStamp:
        return False


def _guess_columns(config: Mapping[str, Any], header: Header, rows: Sequence[Sequence[str]], guess: Guess) -> None:
    """Map the columns whose unit and scope are in their names. Raises ConfigError where there is none."""
    devices = {name: family for name in header.names if (family := DEVICE_NAMES.get(name.strip().lower()))}
    device = next(iter(devices), None) if "device" not in config and len(devices) == 1 else None
    is_gpu_log = any(GPU_WORDS & {*_split_words(name)} for name in header.names) and device is None
    columns: list[dict[str, Any]] = []
    kinds: list[tuple[str, str]] = []
    for k, name in enumerate(header.names):
        words = _split_words(name)
        spelt = spell_unit(header.find_unit(k) or name.strip().lower())
        unit, names_node = find_unit(spelt), any(WORDS.get(word) == "node.ac" for word in words)
        if unit is None or unit.si not in ("W", "J"):
            guess.left_out += [name] if {"power", "energy"} & {*words} else []
            continue
        scope = _find_scope(words[:-1] if words[-1:] == [spelt.lower()] else words)
        if scope == "node.ac" and not names_node and is_gpu_log:
            scope = "gpu:0"
        if device is not None and (scope == devices[device] or (scope == "node.ac" and not names_node)):
            scope = f"{devices[device]}:{{device}}"
        if scope is None:
            guess.left_out.append(name)
            continue
        columns.append({"column": name, "scope": scope, "unit": spelt})
        kinds.append((scope, unit.si))
        guess.unnamed = name if scope == "node.ac" and not names_node else guess.unnamed
    if not columns or len(set(kinds)) < len(kinds):
        raise _explain_columns(header, columns, kinds, guess.left_out)
    _refuse_devices(config, header, rows, str(columns[0]["column"]))
    guess.settings["columns"] = columns
    guess.options += [f"--map {_quote('{column}={scope}:{unit}'.format(**c))}" for c in columns]
    if any("{device}" in c["scope"] for c in columns):
        guess.settings["device"] = device
        guess.options.append(_quote(f"device={device}"))
    host = next((n for n in header.names if n.strip().lower() in HOST_NAMES), None)
    if host is not None and not config.get("host"):
        guess.settings["host"] = {"column": host}
        guess.options.append(_quote(f'host={{column="{host}"}}'))


def _explain_columns(
    header: Header, columns: Sequence[Mapping[str, str]], kinds: Sequence[tuple[str, str]], left_out: Sequence[str]
) -> ConfigError:
    """Return the error for columns of one scope, or none: examples have only what the names show."""
    if columns:
        what = "several columns may be the power of one scope"
        by_kind: dict[tuple[str, str], list[str]] = {}
        for table, kind in zip(columns, kinds, strict=True):
            by_kind.setdefault(kind, []).append(f"--map {_quote('{column}={scope}:{unit}'.format(**table))}")
        shown = ", and ".join(" or ".join(options) for options in sorted(by_kind.values(), key=len, reverse=True))
    else:
        what, column, scope, unit = "no column is obviously a power", "COLUMN", "SCOPE", ":UNIT"
        if len(left_out) == 1:
            column = left_out[0]
            scope = _find_scope(_split_words(column)) or scope
            unit = "" if header.find_unit(header.names.index(column)) else unit
        shown = f"--map {_quote(f'{column}={scope}{unit}')}, with a scope such as node.ac, gpu:0, outlet:1 or rack"
        shown += ", and a unit such as W or kWh" if unit else ""
    advice = f"type {shown}; the file has {header.list_names()}"
    return ConfigError(what, where=header.where, next=advice, code="config.no-columns")


def _refuse_devices(config: Mapping[str, Any], header: Header, rows: Sequence[Sequence[str]], column: str) -> None:
    """Raise ConfigError where rows may be of several devices of an unknown kind."""
    if config.get("where") or config.get("device"):
        return
    for k, name in enumerate(header.names):
        seen = {row[k].strip() for row in rows} if name.strip().lower() in ID_NAMES else ()
        if len(seen) > 1:
            raise ConfigError(
                "its rows may be of several devices",
                where=header.where,
                why=f"{name!r} has {len(seen)} values",
                next=f"type {_quote(f'device={name}')} --map '{column}=outlet:{{device}}' (or gpu:{{device}}, ...)",
                code="config.devices",
            )


def _find_scope(words: Sequence[str]) -> str | None:
    """Return the scope that the words of a name state, None where a word is not known."""
    numbers = [word for word in words if word.isdecimal()]
    known = [WORDS.get(word) for word in words if not word.isdecimal()]
    if None in known or len(numbers) > 1:
        return None
    family = min((family for family in known if family), key=RANKS.index, default="node.ac")
    if numbers:
        return f"{family}:{numbers[0]}" if "." not in family and family != "rack" else None
    return None if family in ("outlet", "psu") else family


def _split_words(name: str) -> list[str]:
    """Return the words and numbers of a name in small letters: `GPU0 Power (kWh)` has gpu, 0, power, kwh."""
    # The k of kWh and the m of mWs are no words, unlike the y of EnergyWh.
    spaced = re.sub(r"(?<=[a-z])(?<![^A-Za-z][km])(?=[A-Z][a-z])", " ", f" {name.strip()}")
    return re.findall(r"[a-z]+|[0-9]+", spaced.lower())


def _quote(text: str) -> str:
    return text if re.fullmatch(r"[\w.:=%/+-]+", text) else f"'{text}'"
