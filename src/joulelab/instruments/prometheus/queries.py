"""Describe channels by PromQL selectors: presets and entries, labels in scopes, SI units."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import Mistakes, declare_key, read_table, read_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PRESETS = Path(__file__).parent / "presets"
UNKNOWN = "unknown"  # a scope: the series is not read
MODEL = "modelName"  # DCGM's label


class Unit(NamedTuple):
    """Describe a unit of series: its SI unit, its factor, its quantity, and the usual name of a channel."""

    si: str
    factor: float
    quantity: str
    channel: str


UNITS = {
    "W": Unit("W", 1.0, "power", "power_w"),
    "kW": Unit("W", 1e3, "power", "power_w"),
    "mW": Unit("W", 1e-3, "power", "power_w"),
    "uW": Unit("W", 1e-6, "power", "power_w"),
    "J": Unit("J", 1.0, "energy", "energy_j"),
    "mJ": Unit("J", 1e-3, "energy", "energy_j"),
    "uJ": Unit("J", 1e-6, "energy", "energy_j"),
    "Wh": Unit("J", 3600.0, "energy", "energy_j"),
    "kWh": Unit("J", 3.6e6, "energy", "energy_j"),
    "degC": Unit("degC", 1.0, "temperature", "temperature_c"),
    "V": Unit("V", 1.0, "voltage", "voltage_v"),
    "A": Unit("A", 1.0, "current", "current_a"),
    "1": Unit("1", 1.0, "value", "value"),
}
KINDS = ("power", "counter", "state")
# A metric, or labels in braces, or both; texts in them may hold braces.
_BRACES = r"""\{(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`|[^{}"'`])*\}"""
SELECTOR = re.compile(rf"\s*(?:[A-Za-z_:][\w:]*\s*(?:{_BRACES})?|{_BRACES})\s*")
# By SI unit: no device has more. DCGM's marks for "no value" (2**47 W, nearly 2**63 mJ) are above.
LARGEST = {"W": 1e8, "J": 1e15}


def _choose_from(names: tuple[str, ...]) -> Callable[[Any], str]:
    def read_name(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return read_name


@dataclass(frozen=True, slots=True)
class Query:
    """Describe one channel; its fields are the keys of a query in `joulelab.toml` and in a preset."""

    query: str = declare_key("", "PromQL")
    scope: str = declare_key("", "the scope of each series, {label} is filled in: gpu:{gpu}, node.ac")
    unit: str = declare_key("W", "its unit", read=_choose_from(tuple(UNITS)), advice=f"give one of {', '.join(UNITS)}")
    kind: str = declare_key("", "its kind", read=_choose_from(KINDS), advice=f"give one of {', '.join(KINDS)}")
    name: str = declare_key("", "the channel, with its SI unit at the end")
    scale: float = declare_key(1.0, "one count in that unit", above=0.0)
    modulus: float | None = declare_key(None, "where the counter wraps, in that unit", above=0.0)
    update_s: float = declare_key(1.0, "how often the instrument behind the exporter renews its value", above=0.0)
    window_s: float = declare_key(0.0, "the time that the instrument averages over", least=0.0)
    quantum: float = declare_key(0.0, "its step, in that unit", least=0.0)
    gain: float = declare_key(0.0, "its largest relative error", least=0.0)
    reference: str = declare_key("", "the source of that")
    parent: str = declare_key("", "the scope that contains it")
    zero_is_gap: bool = declare_key(False, "0 stands for no reading")
    meter: str = declare_key("", "the instrument of a series, if an exporter has several: {meter}")
    user_labels: tuple[str, ...] = declare_key(
        (), "labels of who uses a device: series in turn are one", read=read_texts
    )
    models: dict[str, str] = declare_key(dict, f"other scopes by a part of the label {MODEL}; {UNKNOWN}: not read")

    @property
    def factor(self) -> float:
        """Return the value of one count in SI."""
        return self.scale * UNITS[self.unit].factor

    def convert(self, value: float) -> float | None:
        """Return a value in SI, None if it is no reading: powers and counters are neither negative nor impossible."""
        si = value * self.factor
        if not math.isfinite(si) or (self.zero_is_gap and value == 0):
            return None
        is_energy = self.kind in ("power", "counter")
        return None if is_energy and not 0 <= si <= LARGEST[UNITS[self.unit].si] else si

    def find_scope(self, labels: Mapping[str, str]) -> str:
        """Return the scope of a series before labels are filled in; models of superchips may have another."""
        model = labels.get(MODEL, "")
        return next((scope for part, scope in self.models.items() if part in model), self.scope)

    def narrow(self, match: str) -> Query:
        """Return the query with more matchers in its selector."""
        return replace(self, query=add_matchers(self.query, match))


def list_presets() -> list[str]:
    """Return the names of the presets: the files in their folder."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_preset(name: str, where: str) -> tuple[list[Query], str]:
    """Return the queries of a preset, and the template of their host. Raises ConfigError."""
    if name not in list_presets():
        advice = suggest_name(name, list_presets())
        raise ConfigError(f"there is no preset {name!r}", where=where, next=advice, code="config.unknown-preset")
    content = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    rows = [content.get("defaults", {}) | row for row in content["queries"]]
    return [parse_query(row, f"preset {name}", n) for n, row in enumerate(rows)], content.get("host", "")


def parse_query(row: Any, where: str, number: int = 0) -> Query:
    """Return the query that a table describes. Raises ConfigError."""
    if not isinstance(row, dict):
        advice = 'give a table: {query = "...", scope = "node.ac"}'
        raise ConfigError(f"a query is {row!r}", where=where, next=advice, code="config.wrong-value")
    mistakes, place = Mistakes(where), ("queries", number)
    query = read_table(Query, row, mistakes, place) or Query()
    unit = UNITS[query.unit]
    kind = query.kind or {"W": "power", "J": "counter"}.get(unit.si, "state")
    name, ending = query.name or unit.channel, "" if unit.si == "1" else unit.channel[unit.channel.rfind("_") :]
    if {"power": "W", "counter": "J"}.get(kind, unit.si) != unit.si:
        mistakes.add(
            place, f"a {kind} in {query.unit}", next="give a power in W, a counter in J or Wh", code="config.unit"
        )
    if not name.isidentifier() or not name.endswith(ending):
        mistakes.add(place, f"name is {name!r} for {query.unit}", next=f"end it in {ending}", code="config.unit")
    if not mistakes.errors and not SELECTOR.fullmatch(query.query):
        why = "expressions repeat old samples between scrapes, and for 5 minutes after the last one"
        advice = "give metric{label='...'}; let Prometheus record the expression under a name (a recording rule)"
        mistakes.add(place, "the query is not a plain selector", why=why, next=advice, code="config.no-selector")
    mistakes.check()
    return replace(query, kind=kind, name=name)


def fill_labels(template: str, labels: Mapping[str, str], where: str) -> str:
    """Return a template with labels filled in. Raises ConfigError with the labels of the series."""

    def find_label(match: re.Match[str]) -> str:
        found = labels.get(match[1])
        if found is None:
            advice = suggest_name(match[1], [key for key in labels if key != "__name__"])
            what, code = f"the series has no label {match[1]!r}", "config.unknown-label"
            raise ConfigError(what, where=where, next=advice, code=code)
        return found

    return re.sub(r"\{(\w+)\}", find_label, template)


def add_matchers(selector: str, match: str) -> str:
    """Return a selector with more matchers in it."""
    if not match.strip():
        return selector
    head, brace, rest = selector.partition("{")
    inside = rest.rsplit("}", 1)[0].strip().rstrip(",") if brace else ""
    return f"{head}{{{', '.join(part for part in (inside, match.strip().strip(',')) if part)}}}"
