"""Describe channels that are PromQL: selectors told from expressions, labels put into scopes, units turned into SI."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.core.spec import Kind

# unit: (SI unit, factor, quantity, channel)
UNITS = {
    "W": ("W", 1.0, "power", "power_w"),
    "kW": ("W", 1e3, "power", "power_w"),
    "mW": ("W", 1e-3, "power", "power_w"),
    "uW": ("W", 1e-6, "power", "power_w"),
    "J": ("J", 1.0, "energy", "energy_j"),
    "kJ": ("J", 1e3, "energy", "energy_j"),
    "mJ": ("J", 1e-3, "energy", "energy_j"),
    "uJ": ("J", 1e-6, "energy", "energy_j"),
    "Wh": ("J", 3600.0, "energy", "energy_j"),
    "kWh": ("J", 3.6e6, "energy", "energy_j"),
    "degC": ("degC", 1.0, "temperature", "temperature_c"),
    "V": ("V", 1.0, "voltage", "voltage_v"),
    "A": ("A", 1.0, "current", "current_a"),
    "Hz": ("Hz", 1.0, "frequency", "frequency_hz"),
    "s": ("s", 1.0, "time", "time_s"),
    "1": ("1", 1.0, "value", "value"),
}
KINDS = ("counter", "power", "state")
_KIND: dict[str, Kind] = {"W": "power", "J": "counter"}


@dataclass(frozen=True, slots=True)
class Query:
    """Describe one channel: PromQL, the scope of each of its series ({label} is filled in), unit, and what is known.

    `update_s` is how often the instrument behind the exporter renews the value, `window_s` what it averages over.
    `zero_is_gap`: 0 stands for no reading. `group` joins channels of one exporter into one stream. `meter` names the
    instrument that a series is of where one exporter has several ({label} is filled in).
    """

    query: str
    scope: str
    unit: str = "W"
    kind: Kind = "power"
    name: str = "power_w"
    scale: float = 1.0
    modulus: float | None = None
    update_s: float = 1.0
    window_s: float = 0.0
    quantum: float = 0.0
    gain: float = 0.0
    reference: str = ""
    parent: str = ""
    zero_is_gap: bool = False
    meter: str = ""
    group: str = ""

    @property
    def factor(self) -> float:
        """Return what 1 of the series is in SI."""
        return self.scale * UNITS[self.unit][1]

    @property
    def plain(self) -> bool:
        """Return whether it is a plain selector, of which raw samples can be had."""
        return is_plain(self.query)


_KEYS = {
    "query": "PromQL",
    "scope": "what each series covers, with {label} filled in: gpu:{gpu}, node.ac",
    "unit": "of the series: " + ", ".join(UNITS),
    "kind": "counter, power or state",
    "name": "the channel, ending in its SI unit",
    "scale": "what one count is in that unit",
    "modulus": "where the counter wraps, in that unit",
    "update_s": "how often the instrument renews it",
    "window_s": "what it averages over",
    "quantum": "its step, in that unit",
    "gain": "how far it may be off, as a fraction",
    "reference": "where that is known from",
    "parent": "the scope that contains it",
    "zero_is_gap": "true where 0 stands for no reading",
    "meter": "the instrument that a series is of, where an exporter has several: {meter}",
}
_NUMBERS = ("scale", "modulus", "update_s", "window_s", "quantum", "gain")


def parse_query(row: Any, default_scope: str, where: str) -> Query:
    """Return the query that an entry's table describes. Raises ConfigError."""
    if not isinstance(row, dict):
        raise ConfigError(f"a query is {row!r}", where=where, next='give a table: {query = "...", scope = "node.ac"}')
    for key, value in row.items():
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}", where=where, next=suggest_name(str(key), list(_KEYS)))
        _check(key, value, where)
    if not str(row.get("query", "")).strip():
        raise ConfigError("a query is empty", where=where, next='give PromQL: query = "ipmi_power_watts"')
    unit = row.get("unit", "W")
    si, _, _, channel = UNITS[unit]
    kind = row.get("kind", _KIND.get(si, "state"))
    if {"power": "W", "counter": "J"}.get(kind, si) != si:
        raise ConfigError(f"a {kind} in {unit}", where=where, next="a power is in W, a counter in J or Wh")
    name = row.get("name", channel)
    ending = channel[channel.rfind("_") :] if si != "1" else ""
    if not name.isidentifier() or not name.endswith(ending):
        raise ConfigError(f"name is {name!r} for {unit}", where=where, next=f"end it in {ending}")
    values: dict[str, Any] = {"scope": default_scope, **row, "kind": kind, "unit": unit, "name": name}
    return Query(**values)


def _check(key: str, value: Any, where: str) -> None:
    if key == "unit" and value not in UNITS:
        raise ConfigError(f"unit is {value!r}", where=where, next=suggest_name(str(value), list(UNITS)))
    if key == "kind" and value not in KINDS:
        raise ConfigError(f"kind is {value!r}", where=where, next=suggest_name(str(value), list(KINDS)))
    if key in _NUMBERS:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
        if not good or (value == 0 and key in ("scale", "modulus", "update_s")):
            raise ConfigError(f"{key} is {value!r}", where=where, next="give a number above 0")
    elif key == "zero_is_gap":
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {value!r}", where=where, next="give true or false")
    elif not isinstance(value, str):
        raise ConfigError(f"{key} is {value!r}", where=where, next="give a string")


def filled(template: str, labels: Mapping[str, str], where: str) -> str:
    """Return a template with labels filled in. Raises ConfigError with the labels that there are."""

    def label(match: re.Match[str]) -> str:
        found = labels.get(match[1])
        if found is None:
            valid = [key for key in labels if key != "__name__"]
            raise ConfigError(f"the series has no label {match[1]!r}", where=where, next=suggest_name(match[1], valid))
        return found

    return re.sub(r"\{(\w+)\}", label, template)


# PromQL's own words that look like a metric's name.
_LISTS = ("by", "without", "on", "ignoring", "group_left", "group_right")
_WORDS = frozenset((*_LISTS, "and", "or", "unless", "bool", "offset", "start", "end", "inf", "nan"))
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)|(?P<name>[A-Za-z_:][\w:]*)"""
    r"""|(?P<number>\d[\w.]*)|(?P<other>.)""",
    re.DOTALL,
)


def is_plain(query: str) -> bool:
    """Return whether a query is one selector and nothing else."""
    found = selectors(query)
    return len(found) == 1 and re.sub(r"\s+", "", found[0]) == re.sub(r"\s+", "", query)


def selectors(query: str) -> list[str]:
    """Return the selectors in a query, without their ranges; nothing where their times are shifted (offset, @)."""
    tokens = [(m.lastgroup, m[0]) for m in _TOKEN.finditer(query) if m.lastgroup != "space"]
    found: list[str] = []
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if text == "@" or (kind == "name" and text.lower() == "offset"):
            return []
        if kind == "name" and text.lower() in _LISTS and following == "(":
            at = _closing(tokens, at + 1, "(", ")")
        elif text == "[":
            at = _closing(tokens, at, "[", "]")
        elif text == "{":
            end = _closing(tokens, at, "{", "}")
            found.append("".join(t for _, t in tokens[at:end]))
            at = end
        elif kind == "name" and text.lower() not in _WORDS and following.lower() not in ("(", "by", "without"):
            end = _closing(tokens, at + 1, "{", "}") if following == "{" else at + 1
            found.append("".join(t for _, t in tokens[at:end]))
            at = end
        else:
            at += 1
    return found


def _closing(tokens: list[tuple[str | None, str]], at: int, left: str, right: str) -> int:
    """Return the place behind the bracket that closes the one at a place."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += (tokens[index][1] == left) - (tokens[index][1] == right)
        if depth == 0:
            return index + 1
    return len(tokens)


def narrowed(selector: str, match: str) -> str:
    """Return a selector with more matchers in it."""
    if not match.strip():
        return selector
    head, brace, rest = selector.partition("{")
    inside = rest.rsplit("}", 1)[0].strip().rstrip(",") if brace else ""
    return f"{head}{{{', '.join(part for part in (inside, match.strip().strip(',')) if part)}}}"


assert {f.name for f in fields(Query)} - {"group"} == set(_KEYS)
