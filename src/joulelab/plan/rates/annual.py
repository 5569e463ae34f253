"""Look carbon intensities of whole years up: in the table that comes with joulelab, or in a copy that people edit."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.plan.plan_tables import Mistakes, TomlTable, is_number, read_toml
from joulelab.plan.rates.constant import Constant
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.units import CARBON

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.plan.rates.rate import Kind

NAME = "annual.toml"
COVERS = ("direct", "lifecycle")
KEYS = ("zone", "year", "g_per_kwh", "kind", "covers", "source", "url", "licence", "note", "u_rel")
NEEDED = ("zone", "year", "g_per_kwh", "kind", "covers", "source")


@dataclass(frozen=True, slots=True)
class Row:
    """Hold the carbon intensity (g/kWh) of one zone in one year; `u_rel` is its standard uncertainty as a share."""

    zone: str
    year: int
    g_per_kwh: float
    kind: str
    covers: str
    source: str
    url: str = ""
    licence: str = ""
    note: str = ""
    u_rel: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def rate(self) -> Constant:
        """Return it as a rate."""
        notes = (f"mean of the year {self.year}: the hour is not in it", *([self.note] if self.note else []))
        label = Label(
            cast("Kind", self.kind), CARBON, f"{self.zone} {self.year} ({self.covers})", zone=self.zone,
            covers=cast("Any", self.covers), source=self.source, licence=self.licence, u_rel=self.u_rel, notes=notes,
        )  # fmt: skip
        return Constant(self.g_per_kwh, label)


@dataclass(frozen=True, slots=True)
class Annual:
    """Hold a table; `prefer` is what is taken where a zone has rows that cover direct and lifecycle emissions."""

    shown: str
    rows: tuple[Row, ...]
    prefer: str = "lifecycle"

    def find(self, zone: str, year: int | None = None, covers: str | None = None) -> Row:
        """Return the row of a zone: of the newest year, and of what is preferred, where neither is given.

        Raises ConfigError where there is none.
        """
        there = [row for row in self.rows if row.zone.upper() == zone.upper()]
        if not there:
            zones = sorted({row.zone for row in self.rows})
            raise ConfigError(
                f"the table has no zone {zone!r}", where=self.shown, next=suggest_name(zone.upper(), zones)
            )
        fit = [row for row in there if year in (None, row.year) and covers in (None, row.covers)]
        if not fit:
            have = ", ".join(f"{row.year} {row.covers}" for row in sorted(there, key=lambda r: (r.year, r.covers)))
            asked = " ".join(str(word) for word in (year, covers) if word)
            raise ConfigError(f"the table has no {asked} for {zone}", where=self.shown, next=f"it has {have}")
        preferred = [row for row in fit if row.covers == self.prefer] or fit
        return max(preferred, key=lambda row: row.year)


def own_table() -> str:
    """Return the text of the table that comes with joulelab."""
    return (resources.files("joulelab.site") / NAME).read_text("utf-8")


def read_annual(path: Path | None = None) -> Annual:
    """Read a table, joulelab's own where no file is named. Raises ConfigError with all that is wrong."""
    shown = str(path or f"joulelab's {NAME}")
    text, values = read_toml(path, "table of intensities") if path else (own_table(), tomllib.loads(own_table()))
    problems = Mistakes(shown, text)
    table = TomlTable(values, (), problems)
    table.allow(("prefer", "zones"))
    prefer = table.one_of("prefer", COVERS) or "lifecycle"
    found = [_row(one) for one in table.tables("zones")]
    if not found:
        table.wrong("", "the table has no rows", next="joulelab plan rates table > mine.toml")
    rows = [row for row in found if row]
    _check_once(table, found)
    problems.check()
    return Annual(shown, tuple(rows), prefer)


def _row(table: TomlTable) -> Row | None:
    table.allow(KEYS)
    missing = [key for key in NEEDED if key not in table]
    if missing:
        table.wrong("", f"a row has no {', '.join(missing)}", next=f"it has to have {', '.join(NEEDED)}")
    zone, source, year = table.text("zone"), table.text("source"), table.whole("year", 1900)
    kind = table.one_of("kind", ("average", "marginal"))
    covers = table.one_of("covers", COVERS)
    amount = table.values.get("g_per_kwh")
    if "g_per_kwh" in table and not (is_number(amount) and amount >= 0):
        table.wrong("g_per_kwh", f"g_per_kwh is {amount!r}", next="give a number that is not negative, in g/kWh")
        return None
    texts = {key: table.text(key) or "" for key in ("url", "licence", "note")}
    u_rel = table.positive("u_rel")
    if zone is None or source is None or year is None or kind is None or covers is None or amount is None:
        return None
    return Row(zone, year, float(amount), kind, covers, source, u_rel=u_rel, **texts)


def _check_once(table: TomlTable, rows: Sequence[Row | None]) -> None:
    seen: set[tuple[str, int, str, str]] = set()
    for n, row in enumerate(rows):
        if row is None:
            continue
        key = (row.zone.upper(), row.year, row.covers, row.kind)
        if key in seen:
            what = f"{row.zone} {row.year} {row.covers} is there twice"
            table.problems.add(("zones", n), what, next="leave one of them out")
        seen.add(key)


def from_words(words: Sequence[str], folder: Path) -> Constant:
    """Return the rate that `table:[FILE:]ZONE[:YEAR][:COVERS]` names, its words after `table`. Raises ConfigError."""
    rest = list(words)
    path = folder / rest.pop(0) if rest and rest[0].lower().endswith(".toml") else None
    form = "write it as table:DE, table:DE:2023, table:DE:2023:direct or table:FILE.toml:DE"
    if not rest or not rest[0]:
        raise ConfigError("no zone is named", next=form)
    zone, year, covers = rest.pop(0), None, None
    for word in rest:
        if word.isdigit() and year is None:
            year = int(word)
        elif word in COVERS and covers is None:
            covers = word
        else:
            raise ConfigError(f"{word!r} is neither a year nor direct or lifecycle", next=form)
    return read_annual(path).find(zone, year, covers).rate()
