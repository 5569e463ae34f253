"""Find the carbon intensity of a country for a year.

Two tables come with joulelab. `annual.toml` has figures that were looked up row by row, each with its own source and
with what it covers. `carbon-intensity.csv` has one figure for each of 213 countries. A row of the first table wins over
one of the second; `IntensityTable.list_rows` returns both. README.md in this folder has sources and licences.
"""

from __future__ import annotations

import csv
import functools
import tomllib
import unicodedata
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.text import find_near_name
from joulelab.core.toml_reading import Mistakes, declare_key, parse_toml, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_FILE, COUNTRY_FILE, CODE_FILE = "annual.toml", "carbon-intensity.csv", "country-codes.csv"
COUNTRY_SOURCE = "Ember and Energy Institute, by Our World in Data, as distributed by CodeCarbon 3.3.2"
COUNTRY_URL = "https://ourworldindata.org/grapher/carbon-intensity-electricity"
COUNTRY_LICENCE = "CC BY 4.0 (Our World in Data, Ember); MIT (CodeCarbon)"
LIST_COMMAND = "joulelab site --list"
MOST_G_PER_KWH = 5000.0  # the highest figure of the tables is 1,306
FIRST_YEAR, LAST_YEAR = 1990, 2100
CLOSE, SHORTEST_NAME = 0.75, 4  # likeness and letters of a wrong name that is corrected

Coverage = Literal["lifecycle", "direct"]


@dataclass(frozen=True, slots=True)
class IntensityRow:
    """Hold the mean carbon intensity (g/kWh) of one zone in one year.

    `covers` is "lifecycle" (with plants, fuel supply and methane) or "direct" (burning only); `u_rel` is the standard
    uncertainty as a share, None if the source states none.
    """

    zone: str = declare_key("", "The zone: ISO 3166 code of two letters, or a name of your own.")
    year: int = declare_key(0, "The year of the figure.", least=FIRST_YEAR, most=LAST_YEAR)
    g_per_kwh: float = declare_key(0.0, "Carbon intensity in g/kWh.", least=0.0, most=MOST_G_PER_KWH)
    kind: Literal["average", "marginal"] = declare_key(
        "average", "Average of all plants, or of those that follow load."
    )
    covers: Coverage = declare_key("lifecycle", "The emissions that are counted.")
    source: str = declare_key("", "Publisher and title.")
    url: str = declare_key("", "Address of the source.")
    licence: str = declare_key("", "Licence of the figure.")
    note: str = declare_key("", "Remark on the figure.")
    u_rel: float | None = declare_key(None, "Standard uncertainty as a share.", above=0.0, most=1.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


NEEDED_KEYS = ("zone", "year", "g_per_kwh", "kind", "covers", "source")


@dataclass(frozen=True, slots=True)
class _TableFile:
    prefer: Coverage = declare_key("lifecycle", "The rows that are used if a zone has both.")
    zones: list[dict[str, Any]] = declare_key(list, "One table for each figure.")


@dataclass(frozen=True, slots=True)
class IntensityTable:
    """Hold the rows of a table file, and rows of countries that are used where the file has none.

    `label` names the table in messages; `prefer` is the coverage that is used if a zone has both.
    """

    label: str
    rows: tuple[IntensityRow, ...]
    prefer: Coverage = "lifecycle"
    country_rows: Mapping[str, IntensityRow] = field(default_factory=dict, repr=False)

    def find_row(self, zone: str, year: int | None = None, covers: str | None = None) -> IntensityRow:
        """Return the row of a zone; without a year the newest one, without `covers` the preferred one.

        A zone is written as DE, DEU or Germany. Raises ConfigError if there is no such row.
        """
        rows = self.list_rows(zone)
        if not rows:
            raise self._refuse_zone(zone)
        own = [row for row in rows if row in self.rows]
        for some in (own, rows):
            fitting = [row for row in some if year in (None, row.year) and covers in (None, row.covers)]
            preferred = [row for row in fitting if row.covers == self.prefer] or fitting
            if preferred:
                found = max(preferred, key=lambda row: row.year)
                if not found.g_per_kwh and found not in self.rows:
                    raise self._refuse_zero(found)
                return found
        offered = ", ".join(sorted({f"{row.year} {row.covers}" for row in rows}))
        asked = " ".join(str(word) for word in (year, covers) if word)
        raise ConfigError(
            f"there is no {asked} carbon intensity for {name_zone(rows[0].zone)}",
            where=self.label,
            next=f"choose one of: {offered}",
            code="config.no-such-intensity",
        )

    def list_rows(self, zone: str) -> list[IntensityRow]:
        """Return all rows of a zone, those of the table file first."""
        wanted = {fold_name(zone), fold_name(find_country_code(zone) or zone)}
        own = [row for row in self.rows if fold_name(row.zone) in wanted]
        return own + [row for code, row in self.country_rows.items() if fold_name(code) in wanted]

    def search_rows(self, text: str = "") -> list[IntensityRow]:
        """Return the rows whose zone or country contains a text, by country."""
        part = fold_name(text)
        rows = [*self.rows, *self.country_rows.values()]
        exact = self.list_rows(text) if text else []
        found = exact or [row for row in rows if part in fold_name(f"{row.zone} {name_zone(row.zone)}")]
        return sorted(found, key=lambda row: fold_name(name_zone(row.zone)))  # stable: rows of the file stay first

    def _refuse_zero(self, row: IntensityRow) -> ConfigError:
        return ConfigError(
            f"the table states 0 g/kWh for {name_zone(row.zone)} ({row.year})",
            where=self.label,
            why="no power plant has lifecycle emissions of zero",
            next="give a figure of your own: joulelab site --intensity 30 --source TEXT --year 2024",
            code="config.zero-intensity",
        )

    def _refuse_zone(self, zone: str) -> ConfigError:
        zones = {row.zone for row in self.rows} | set(self.country_rows)
        names = {fold_name(name): code for code in zones for name in (code, *_list_names(code))}
        near = _find_close_name(fold_name(zone), list(names))
        meant = f"did you mean {names[near]} ({name_zone(names[near])})? " if near else ""
        every = f"all zones: {LIST_COMMAND}" if self.country_rows else f"it has {', '.join(sorted(zones))}"
        what = f"no carbon intensity is known for the zone {zone!r}"
        return ConfigError(what, where=self.label, next=f"{meant}{every}", code="config.unknown-zone")


def load_intensity_table(path: Path | None = None) -> IntensityTable:
    """Load joulelab's tables, or a table file alone. Raises ConfigError with all mistakes of the file."""
    if path is None:
        return _load_own_tables()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            "cannot read the table of intensities",
            where=str(path),
            why=error.strerror,
            next="name a file like the one that `joulelab plan rates table` prints",
            code="config.unreadable",
        ) from None
    return parse_intensity_table(data, str(path))


def read_own_text() -> str:
    """Return the text of the table file that comes with joulelab."""
    return _read_resource(OWN_FILE)


def parse_intensity_table(data: bytes, label: str) -> IntensityTable:
    """Read a table file in TOML. Raises ConfigError with all its mistakes."""
    text, values = parse_toml(data, label)
    mistakes = Mistakes(label, text)
    found = read_table(_TableFile, values, mistakes) or _TableFile()
    rows: list[IntensityRow] = []
    seen: set[tuple[str, int, str, str]] = set()
    for number, table in enumerate(found.zones):
        place = ("zones", number)
        missing = [key for key in NEEDED_KEYS if key not in table]
        if missing:
            then = f"a row needs {', '.join(NEEDED_KEYS)}"
            mistakes.add(place, f"a row has no {', '.join(missing)}", next=then, code="config.missing-key")
        row = read_table(IntensityRow, table, mistakes, place)
        if row is None or mistakes.has(*place):
            continue
        key = (fold_name(row.zone), row.year, row.covers, row.kind)
        if key in seen:
            what = f"{row.zone} {row.year} {row.covers} is there twice"
            mistakes.add(place, what, next="remove one of them", code="config.duplicate")
        seen.add(key)
        rows.append(row)
    if not found.zones and not mistakes.errors:
        mistakes.add((), "the table has no rows", next="joulelab plan rates table > mine.toml", code="config.empty")
    mistakes.check()
    return IntensityTable(label, tuple(rows), found.prefer)


# ---- countries


@dataclass(frozen=True, slots=True)
class Country:
    """Hold a country: ISO 3166 codes of two and three letters, its name, other names."""

    iso2: str
    iso3: str
    name: str
    other_names: tuple[str, ...] = ()


def find_country_code(zone: str) -> str | None:
    """Return the two-letter code of a country that is named by code or name, None if it is unknown."""
    country = _find_countries().get(fold_name(zone))
    return country.iso2 if country else None


def name_zone(zone: str) -> str:
    """Return the name of the country with this code or name; other zones are returned as they are."""
    country = _find_countries().get(fold_name(zone))
    return country.name if country else {"WORLD": "World"}.get(zone, zone)


def list_countries() -> list[Country]:
    """Return all countries of the table."""
    return list({country.iso2: country for country in _find_countries().values()}.values())


def _find_close_name(wrong: str, names: list[str]) -> str | None:
    """Return the name that was surely meant: a few letters are wrong, or it is a part; no code is guessed."""
    import difflib

    near = find_near_name(wrong, names) if len(wrong) >= SHORTEST_NAME else None
    if near is None:
        return None
    return near if wrong in near or difflib.SequenceMatcher(None, wrong, near).ratio() >= CLOSE else None


def fold_name(text: str) -> str:
    """Return a name in small letters without accents and signs, to compare it."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return " ".join("".join(c if c.isalnum() else " " for c in plain if not unicodedata.combining(c)).split())


def _list_names(code: str) -> tuple[str, ...]:
    country = _find_countries().get(fold_name(code))
    return (country.iso3, country.name, *country.other_names) if country else ()


@functools.cache
def _find_countries() -> dict[str, Country]:
    names = {row["iso3"]: row["country"] for row in _read_csv(COUNTRY_FILE)}
    found: dict[str, Country] = {}
    for row in _read_csv(CODE_FILE):
        others = tuple(filter(None, row["other_names"].split(";")))
        country = Country(row["iso2"], row["iso3"], names[row["iso3"]], others)
        found |= {fold_name(name): country for name in (country.iso2, country.iso3, country.name, *others)}
    return found


@functools.cache
def _load_own_tables() -> IntensityTable:
    # Not parse_intensity_table(), which loads msgspec: a run with a site waits for this. A test compares both.
    own = tomllib.loads(read_own_text())
    rows = tuple(IntensityRow(**row | {"g_per_kwh": float(row["g_per_kwh"])}) for row in own["zones"])
    countries = {}
    for row in _read_csv(COUNTRY_FILE):
        code = find_country_code(row["iso3"]) or row["iso3"]
        countries[code] = IntensityRow(
            code,
            int(row["year"]),
            float(row["g_co2_per_kwh"]),
            source=COUNTRY_SOURCE,
            url=COUNTRY_URL,
            licence=COUNTRY_LICENCE,
            note="lifecycle by Ember's method of 2024; the file itself does not say what it covers",
        )
    return IntensityTable("joulelab's tables", rows, own["prefer"], countries)


def _read_csv(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_read_resource(name).splitlines()))


def _read_resource(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
