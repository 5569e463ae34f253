"""Guess the layout of a file whose columns nobody mapped, where its names leave one meaning; else say what to type."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.instruments.file.cells import spell_unit, unit_of
from joulelab.instruments.file.times import BadStamp, Clock, find_unix_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.file.layout import Names

TIME_NAMES = ("timestamp", "time", "datetime", "date", "ts", "t", "epoch", "unix", "unixtime", "utc", "elapsed")
HOST_NAMES = ("node", "host", "hostname")
# Columns that tell the devices of rows apart, and the family of these.
DEVICE_NAMES = {"gpu": "gpu", "gpu_index": "gpu", "gpu_id": "gpu", "outlet": "outlet"}
# Words in a column's name: the family that they stand for, or nothing.
WORDS = {"gpu": "gpu", "cpu": "cpu", "package": "cpu", "dram": "dram", "psu": "psu", "outlet": "outlet", "rack": "rack"}
WORDS |= {
    "ac": "node.ac",
    "wall": "node.ac",
    "mains": "node.ac",
    "node": "node.ac",
    "server": "node.ac",
    "dc": "node.dc",
}
WORDS |= dict.fromkeys(("power", "p", "energy", "e", "active", "real", "draw", "watts", "watt", "joules", "w", "j"), "")
WORDS |= dict.fromkeys(("input", "total", "system", "consumption", "usage", "used", "kw", "wh", "kwh", "kj"), "")
# Of several words the one that says most: node_dc_w is node.dc.
RANKS = ("gpu", "cpu", "dram", "psu", "outlet", "node.dc", "rack", "node.ac")
NO_START = "2000-01-01T00:00:00Z"  # of times that count from a start that nobody told; no energy depends on it
PATTERNS = ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%m-%d-%Y %H:%M:%S.%f")
EITHER = tuple(f"{day} {time}" for day in ("%d/%m/%Y", "%m/%d/%Y") for time in ("%H:%M:%S", "%H:%M", "%I:%M:%S %p"))
# Names of columns that may tell devices apart; which kind of device is not in them.
ID_NAMES = ("device", "id", "name", "pdu", "unit", "sensor", "socket", "channel", "port", "phase", "index", "uuid")
OTHER_ID_NAMES = ("serial", "instance", "card", "label", "location", "meter", "plug")


@dataclass(slots=True)
class Guess:
    """Hold guessed settings, and the options that state the same."""

    settings: dict[str, Any] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unnamed: str = ""  # a column whose name does not show what it covers

    def list_remarks(self, name: str) -> list[str]:
        """Return what was guessed, as the words to type."""
        if not self.options:
            return []
        said = [f"{name} is read as if you had typed: {' '.join(self.options)}"]
        if self.unnamed:
            other = _quote(f"{self.unnamed}=gpu:0")
            said.append(f"{self.unnamed} is taken for the whole node at the wall; if it is not, type --map {other}")
        if self.left_out:
            said.append(f"left out: {', '.join(self.left_out)}; add one with --map COLUMN=SCOPE:UNIT")
        return said


def guess_layout(config: Mapping[str, Any], names: Names, rows: Sequence[Sequence[str]]) -> Guess:
    """Return what the settings lack, from the names of columns and the first rows. Raises ConfigError."""
    guess = Guess()
    time = config.get("time")
    table = {"column": time} if isinstance(time, str | list) else dict(time or {})
    if not table.get("column"):
        guess.settings["time"] = {**_guess_time(names, rows, table, guess), **table}
    elif isinstance(table["column"], str) and not table.get("format") and rows:
        k = names.index(table["column"])
        form, _ = _find_format(rows[0][k], _split_words(names.names[k]), names.names[k], table)
        if form in (*PATTERNS, *EITHER):
            guess.settings["time"] = {**table, "format": form}
            guess.options.append(f"--time {_quote(f'{names.names[k]}={form}')}")
    if not config.get("columns"):
        _guess_columns(config, names, rows, guess)
    return guess


def _guess_time(names: Names, rows: Sequence[Sequence[str]], given: Mapping[str, Any], guess: Guess) -> dict[str, Any]:
    """Return column and format of the times; a format or start that was given counts."""
    if not rows:
        raise ConfigError("the file has a header and no rows", where=names.where, code="config.no-rows")
    row = rows[0]
    plain = [_split_words(name) for name in names.names]
    found = [k for k, words in enumerate(plain) if words and words[0] in TIME_NAMES]
    both = [k for name in ("date", "time") for k in found if plain[k] == [name]]
    if len(both) == 2 and len(found) == 2 and ":" not in row[both[0]]:
        columns = [names.names[k] for k in both]
        guess.options.append(f"""'time={{column=["{columns[0]}", "{columns[1]}"]}}'""")
        return {"column": columns}
    kinds = {k: _find_format(row[k], plain[k], names.names[k], given) for k in found}
    absolute = [k for k, (form, _) in kinds.items() if form and form not in ("seconds", "milliseconds")]
    chosen = absolute or [k for k, (form, _) in kinds.items() if form]
    if len(chosen) != 1:
        asked = next((advice for _, advice in kinds.values() if advice), "") if not chosen else ""
        advice = asked or f"type --time COLUMN; the file has {_list_names(names)}"
        advice += "" if found else "; if its names are in another line type header=3, if it has none header=0"
        what = "several columns may be the times" if chosen else "no column is obviously the time"
        if asked:
            what = f"the times of {names.names[found[0]]!r} may be read in several ways"
        raise ConfigError(what, where=names.where, next=advice, code="config.no-time")
    column, form = names.names[chosen[0]], kinds[chosen[0]][0]
    guess.options.append(f"--time {_quote(f'{column}={form}')}")
    if form in ("seconds", "milliseconds") and not given.get("start"):
        guess.options.append(f"--start {NO_START}")
        return {"column": column, "format": form, "start": NO_START}
    return {"column": column, "format": form}


def _find_format(cell: str, words: Sequence[str], name: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the format of a cell, else what to type."""
    if given.get("format"):
        return str(given["format"]), ""
    text = cell.strip()
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        fits = [form for form in ("iso", *PATTERNS, *EITHER) if _is_stamp(text, form)]
        if not fits and not re.search(r"\d", text):
            return "", ""
        if len(fits) == 1:
            return fits[0], ""
        shown = " or ".join(f'--time "{name}={form}"' for form in fits)
        pattern = f'--time "{name}=%d.%m.%Y %H:%M:%S", with the parts in their order'
        return "", f"type {shown or pattern}"
    if not given.get("start") and (form := find_unix_format(number)):
        return form, ""
    relative = {"s": "seconds", "sec": "seconds", "seconds": "seconds", "ms": "milliseconds"}.get(words[-1])
    if relative or given.get("start"):
        return relative or "seconds", ""
    return "", f"type --time {name}=seconds, or {name}=milliseconds if they are"


def _is_stamp(text: str, form: str) -> bool:
    try:
        return Clock(form).parse(text) > NS
    except BadStamp:
        return False


def _guess_columns(config: Mapping[str, Any], names: Names, rows: Sequence[Sequence[str]], guess: Guess) -> None:
    """Map the columns whose unit and scope are in their names. Raises ConfigError where there is none."""
    devices = {name: family for name in names.names if (family := DEVICE_NAMES.get(name.strip().lower()))}
    device = next(iter(devices), None) if "device" not in config and len(devices) == 1 else None
    columns: list[dict[str, Any]] = []
    for k, name in enumerate(names.names):
        unit = _find_unit(names, k)
        if unit is None:
            guess.left_out += [name] if {"power", "energy"} & {*_split_words(name)} else []
            continue
        scope = _find_scope(name, unit)
        if device is not None and (scope == devices[device] or (scope == "node.ac" and not _names_node(name))):
            scope = f"{devices[device]}:{{device}}"
        if scope is None:
            guess.left_out.append(name)
        else:
            columns.append({"column": name, "scope": scope, "unit": unit})
            guess.unnamed = name if scope == "node.ac" and not _names_node(name) else guess.unnamed
    kinds = [(c["scope"], (unit_of(c["unit"]) or unit_of("W")).si) for c in columns]  # type: ignore[union-attr]
    if not columns or len(set(kinds)) < len(kinds):
        what = "several columns may be the power of one scope" if columns else "no column is obviously a power"
        named = [c["column"] for c in columns] or guess.left_out
        first = f"{named[0]}=node.ac{'' if names.unit(names.index(named[0])) else ':W'}" if named else ""
        first = _quote(first or "COLUMN=node.ac:W")
        advice = f"type --map {first} (or gpu:0, outlet:1, rack); the file has {_list_names(names)}"
        raise ConfigError(what, where=names.where, next=advice, code="config.no-columns")
    _refuse_unknown_devices(config, names, rows, str(columns[0]["column"]))
    guess.settings["columns"] = columns
    guess.options += [f"--map {_quote('{column}={scope}:{unit}'.format(**c))}" for c in columns]
    if any("{device}" in c["scope"] for c in columns):
        guess.settings["device"] = device
        guess.options.append(_quote(f"device={device}"))
    host = next((n for n in names.names if n.strip().lower() in HOST_NAMES), None)
    if host is not None and not config.get("host"):
        guess.settings["host"] = {"column": host}
        guess.options.append(_quote(f'host={{column="{host}"}}'))


def _refuse_unknown_devices(
    config: Mapping[str, Any], names: Names, rows: Sequence[Sequence[str]], column: str
) -> None:
    """Raise ConfigError where rows may be of several devices of a kind that no name shows."""
    for k, name in enumerate(names.names):
        seen = {row[k].strip() for row in rows} if name.strip().lower() in (*ID_NAMES, *OTHER_ID_NAMES) else ()
        if len(seen) > 1 and not config.get("where") and not config.get("device"):
            advice = f"type {_quote(f'device={name}')} --map '{column}=outlet:{{device}}' (or gpu:{{device}}, ...)"
            why = f"{name!r} has {len(seen)} values"
            raise ConfigError(
                "its rows may be of several devices", where=names.where, why=why, next=advice, code="config.devices"
            )


def _find_unit(names: Names, index: int) -> str | None:
    """Return the unit of a power or energy that a name shows: at its end, in brackets, or alone (`watts`)."""
    text = names.unit(index) or names.names[index].strip().lower()
    unit = unit_of(text)
    return spell_unit(text) if unit is not None and unit.si in ("W", "J") else None


def _find_scope(name: str, unit: str) -> str | None:
    """Return what a column covers by the words of its name, None where a word is not known."""
    words = _split_words(name)
    if words and words[-1] == unit.lower():
        words = words[:-1]
    numbers = [word for word in words if word.isdecimal()]
    known = [WORDS.get(word) for word in words if not word.isdecimal()]
    if None in known or len(numbers) > 1:
        return None
    families = sorted({family for family in known if family}, key=RANKS.index)
    family = families[0] if families else "node.ac"
    if numbers:
        return f"{family}:{numbers[0]}" if "." not in family and family != "rack" else None
    return None if family in ("outlet", "psu") else family


def _names_node(name: str) -> bool:
    return any(WORDS.get(word) == "node.ac" for word in _split_words(name))


def _split_words(name: str) -> list[str]:
    """Return the words and numbers of a name in small letters: `GPU0 Power (W)` has gpu, 0, power, w."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", name.strip())
    return re.findall(r"[a-z]+|[0-9]+", spaced.lower())


def _quote(text: str) -> str:
    return text if re.fullmatch(r"[\w.:=%/+-]+", text) else f"'{text}'"


def _list_names(names: Names) -> str:
    return ", ".join(repr(n) for n in names.names[:30]) + (", ..." if len(names.names) > 30 else "")
