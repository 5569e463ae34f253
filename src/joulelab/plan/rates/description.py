"""Say what a file of values holds: in `#` lines at its top, in a TOML file beside it, or by options.

# kind: average
# unit: g/kWh
# zone: DE
time,value
2026-11-01T00:00Z,312
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds
from joulelab.plan.plan_tables import Mistakes, TomlTable, read_toml
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.units import Unit, unit_of
from joulelab.plan.rates.zones import utc_of, zone_of
from joulelab.run.config.toml_writing import format_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.plan.rates.rate import Kind

KINDS = ("average", "marginal", "price")
COVERS = ("direct", "lifecycle")
TEXTS = (
    "kind", "unit", "title", "zone", "covers", "source", "licence", "time_zone",
    "time_column", "value_column", "end_column", "u_column",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Description:
    """Hold what is said of a file of values; None where nothing is said.

    `step_s` is how long each value holds, `end_s` (s since 1970) when the last ends: then each holds until the next.
    `u_rel` is the standard uncertainty of the values as a share, `issued_s` when a forecast was made.
    """

    kind: str | None = None
    unit: str | None = None
    title: str | None = None
    zone: str | None = None
    covers: str | None = None
    source: str | None = None
    licence: str | None = None
    time_zone: str | None = None
    time_column: str | None = None
    value_column: str | None = None
    end_column: str | None = None
    u_column: str | None = None
    step_s: float | None = None
    end_s: float | None = None
    issued_s: float | None = None
    u_rel: float | None = None

    def with_others(self, other: Description, where: str) -> Description:
        """Return what either says. Raises ConfigError where they contradict each other."""
        given = {f.name: getattr(other, f.name) for f in fields(other) if getattr(other, f.name) is not None}
        for name, value in given.items():
            mine = getattr(self, name)
            if mine is not None and mine != value:
                what = f"{name.removesuffix('_s')} is said twice: {mine} and {value}"
                raise ConfigError(what, where=where, next="say it once")
        return replace(self, **given)

    def label(self, name: str, where: str) -> tuple[Label, Unit]:
        """Return what the values are, and by what to multiply them. Raises ConfigError where it is not said."""
        if self.unit is None:
            raise ConfigError(
                "it is not said which unit the values are in", where=where, next=_say(name, "unit", "g/kWh")
            )
        unit = unit_of(self.unit)
        kind = self.kind or ("price" if unit.money else None)
        if kind is None:
            why = "one is of all generation, the other of what one kWh more causes; the two are never mixed"
            what = "it is not said whether these intensities are average or marginal"
            raise ConfigError(what, where=where, why=why, next=_say(name, "kind", "average"))
        if (kind == "price") != unit.money:
            raise ConfigError(f"kind is {kind}, but {self.unit} is {'money' if unit.money else 'carbon'}", where=where)
        label = Label(
            cast("Kind", kind), unit.unit, self.title or name, zone=self.zone or "",
            covers=cast("Any", self.covers or ""), source=self.source or name, licence=self.licence or "",
            time_zone=self.time_zone or "UTC", u_rel=self.u_rel, issued_utc_s=self.issued_s,
        )  # fmt: skip
        return label, unit


# Keys of tariffs, annual tables and plans, which may stand beside a series under the same name.
OTHERS = ("price", "rules", "zones", "rack", "nodes", "mix", "sites", "work", "schedule")
KEYS = (*TEXTS, "file", "step", "end", "issued", "u_rel")


def read_side(path: Path, of: Path) -> Description:
    """Return what the TOML file beside a file of values says of it; nothing where it is of something else.

    Raises ConfigError.
    """
    text, values = read_toml(path, "description of a series")
    if any(key in values for key in OTHERS) or (path.parent / str(values.get("file", of.name))) != of:
        return Description()
    return read_described(path, text, values)[0]


def read_described(path: Path, text: str, values: dict[str, Any]) -> tuple[Description, str | None]:
    """Read what TOML says of values, and the name of the file that holds them. Raises ConfigError."""
    problems = Mistakes(str(path), text)
    table = TomlTable(values, (), problems)
    table.allow(KEYS)
    found = {key: table.text(key) for key in TEXTS}
    for key in ("step", "end", "issued"):
        value = values.get(key)
        found[key] = None if value is None else value.isoformat() if isinstance(value, dt.datetime) else str(value)
    u_rel = table.positive("u_rel")
    file = table.text("file")
    try:
        told = described_by({key: value for key, value in found.items() if value is not None})
    except ConfigError as error:
        problems.add_error((), error)
    problems.check()
    return replace(told, u_rel=u_rel), file


def described_by(words: Mapping[str, str]) -> Description:
    """Return what pairs of words say. Raises ConfigError for words that mean nothing."""
    for key in TEXTS:
        if key in words and not words[key].strip():
            raise ConfigError(f"{key} is empty", next="leave it out")
    given: dict[str, Any] = {key: value for key, value in words.items() if key in TEXTS}
    for key, valid in (("kind", KINDS), ("covers", COVERS)):
        if given.get(key) not in (None, *valid):
            raise ConfigError(f"{key} is {given[key]!r}", next=f"one of {', '.join(valid)}")
    if "unit" in given:
        unit_of(given["unit"])
    zone = zone_of(given.get("time_zone", "UTC"))
    if "step" in words:
        given["step_s"] = read_seconds(words["step"], 1.0)
    for key in ("end", "issued"):
        if key in words:
            given[f"{key}_s"] = utc_of(moment(words[key]), zone)
    if "u_rel" in words:
        given["u_rel"] = _share(words["u_rel"])
    return Description(**given)


def header_of(lines: list[str], where: str) -> Description:
    """Return what the `#` lines at the top of a file say; lines without `key:` are remarks. Raises ConfigError."""
    words: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.lstrip("# \t").partition(":")
        name = key.strip().lower().replace(" ", "_")
        if colon and name in KEYS and name != "file" and value.strip():
            words[name] = value.strip()
    try:
        return described_by(words)
    except ConfigError as error:
        raise ConfigError(error.what, where=where, why=error.why, next=error.next) from None


def moment(text: str) -> dt.datetime:
    """Read a time: ISO 8601, or whole s since 1970. Raises ConfigError."""
    said = text.strip()
    try:
        if said.isdigit() and len(said) == 10:
            return dt.datetime.fromtimestamp(int(said), dt.UTC)
        return dt.datetime.fromisoformat(said)
    except ValueError:
        raise ConfigError(f"{text!r} is no time", next="write it as 2026-11-16T14:00Z") from None


def _say(name: str, key: str, value: str) -> str:
    """Return how to say something of a file; JSON has no remarks."""
    beside = f'write {key} = "{value}" into {name.rpartition(".")[0]}.toml beside it'
    return beside if name.lower().endswith(".json") else f"write `# {key}: {value}` at its top, or {beside}"


def _share(text: str) -> float:
    try:
        share = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise ConfigError(f"u_rel is {text!r}", next="give the standard uncertainty as a share: 0.05")
    return share


def side_text(name: str, words: Mapping[str, str]) -> str:
    """Return TOML that describes the values of a file. Raises ConfigError for words that mean nothing."""
    described_by(words)
    lines = [f"{key} = {format_toml(value)}" for key, value in words.items()]
    return "\n".join([f"# What {name} holds.", *lines]) + "\n"
