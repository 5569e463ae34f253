"""Find a rate by its text: a figure, a row of the annual table, a CSV file, a tariff, or Electricity Maps."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import format_value
from joulelab.plan.rates.electricity_maps import WORD, MapsRate
from joulelab.plan.rates.rate import CARBON, Constant, Kind, Label, Rate, read_unit
from joulelab.plan.rates.rate_series import read_series
from joulelab.plan.rates.tariff import Tariff, read_tariff
from joulelab.run.config.config_files import read_toml
from joulelab.site.intensity import load_intensity_table, name_zone

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The kind that is needed: one of them, or carbon of either kind.
WantedKind = Kind | Literal["carbon"]

NUMBER = re.compile(r"(?P<value>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\D.*)?")
LONGEST = 4096  # bytes of a path
FORMS = "380 (g/kWh), 0.32EUR, table:DE, FILE.csv, TARIFF.toml or em:ZONE"
TABLE_FORM = "write it as table:DE, table:DE:2023, table:DE:2023:direct or table:FILE.toml:DE"
COVERS = ("direct", "lifecycle")
GIVEN = "given as a figure"
CSV_NEXT = "write its values into a CSV file with the columns time and value, and `# unit:` and `# kind:` lines"
REMOVED = {
    "kept": ("stores of fetched series are gone", "joulelab plan rates fetch em:DE --to de.csv, then name de.csv"),
    "gb": ("the service 'gb' was removed", CSV_NEXT),
    "watttime": ("the service 'watttime' was removed", CSV_NEXT),
    "entsoe": ("the service 'entsoe' was removed", CSV_NEXT),
}


def find_rate(text: str, *, want: WantedKind | None = None, zone: str | None = None, folder: Path = Path()) -> Rate:
    """Return the rate that a text names; files are relative to `folder`.

    `want` is the kind that is needed, None for any. A bare number is in g/kWh. `zone` is the time zone (IANA) of files
    that name none. Raises ConfigError for an unknown rate, or one of another kind.
    """
    text = text.strip()
    if not text.isprintable() or len(text.encode()) > LONGEST:
        raise ConfigError(f"{format_value(text)} is not a rate", next=f"write it as {FORMS}")
    word, colon, rest = text.partition(":")
    figure = None if text.lower().endswith((".csv", ".tsv", ".toml", ".json")) else NUMBER.fullmatch(text)
    rate: Rate
    if figure:
        rate = _read_figure(figure["value"], figure["unit"] or "", want)
    elif word == "table":
        rate = _find_table_row(rest.split(":"), folder)
    elif word == WORD and (colon or not is_file(folder / text)):
        rate = MapsRate(rest)
    elif word in REMOVED and not is_file(folder / text):
        what, then = REMOVED[word]
        raise ConfigError(what, next=then)
    elif is_file(folder / text) or text.lower().endswith((".csv", ".tsv", ".toml", ".json")):
        rate = _read_rate_file(folder / text, zone)
    else:
        raise ConfigError(f"{text!r} is not a rate", next=f"write it as {FORMS}")
    _check_kind(rate.label, want, text)
    return rate


def is_varying(rate: Rate) -> bool:
    """Return whether a rate changes over time."""
    return not isinstance(rate, Constant) and not (isinstance(rate, Tariff) and rate.is_flat)


def _read_figure(value: str, unit_text: str, want: WantedKind | None) -> Constant:
    if not unit_text and want == "price":
        then = f"write it as {value}EUR or {value}EUR/MWh"
        raise ConfigError(f"the price {value} has no currency", next=then)
    factor, unit = read_unit(unit_text or CARBON)
    amount = float(value) * factor
    if not math.isfinite(amount):
        raise ConfigError(f"{value} is too large", next="correct the value")
    if unit == CARBON and amount < 0:
        raise ConfigError(f"the carbon intensity {value} is negative", next="give a figure of 0 or more, in g/kWh")
    kind: Kind = "price" if unit != CARBON else "marginal" if want == "marginal" else "average"
    return Constant(amount, Label(kind, unit, f"{amount:g} {unit}", source=GIVEN))


def _find_table_row(words: Sequence[str], folder: Path) -> Constant:
    rest = list(words)
    path = folder / rest.pop(0) if rest[0].lower().endswith(".toml") else None
    if not rest or not rest[0]:
        raise ConfigError("the table needs a zone", next=TABLE_FORM)
    zone, year, covers = rest.pop(0), None, None
    for word in rest:
        if word.isdigit() and year is None:
            year = int(word)
        elif word in COVERS and covers is None:
            covers = word
        else:
            raise ConfigError(f"{word!r} is neither a year nor direct or lifecycle", next=TABLE_FORM)
    row = load_intensity_table(path).find_row(zone, year, covers)
    name, covered = f"{name_zone(row.zone)} {row.year}", cast("Any", row.covers)
    label = Label(
        cast("Kind", row.kind), CARBON, name, zone=row.zone, covers=covered, source=row.source,
        licence=row.licence, u_rel=row.u_rel, notes=(row.note,) if row.note else (),
    )  # fmt: skip
    return Constant(row.g_per_kwh, label)


def is_file(path: Path) -> bool:
    """Return whether there is such a file; False for a text that is no path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long for a file
        return False


def _read_rate_file(path: Path, zone: str | None) -> Rate:
    suffix = path.suffix.lower()
    if suffix == ".json":
        raise ConfigError("JSON files of the Carbon Aware SDK are no longer read", where=str(path), next=CSV_NEXT)
    if suffix != ".toml":
        return read_series(path, zone=zone)
    text, values = read_toml(path, "tariff")
    if "zones" in values:
        then = f"name a zone of it: table:{path}:DE"
        raise ConfigError("this is a table of annual intensities", where=str(path), next=then)
    if "file" in values:
        then = f"write its keys as `# key: value` lines at the top of {values['file']}, and name that file"
        raise ConfigError("a TOML file that describes a CSV file is no longer read", where=str(path), next=then)
    return read_tariff(path, text, values)


def _check_kind(label: Label, want: WantedKind | None, text: str) -> None:
    if want is None or label.kind == want or (want == "carbon" and label.kind != "price"):
        return
    nouns = {"carbon": "a carbon intensity", "price": "a price"}
    have = nouns.get(label.kind, f"{label.kind} carbon")
    wanted = nouns.get(want, f"{want} carbon")
    raise ConfigError(f"{text} is {have}, but {wanted} is needed", next="name another rate: --tariff or --intensity")


def check_same_kind(labels: Iterable[Label]) -> None:
    """Check that rates may be in one table or sum: one kind, one unit. Raises ConfigError."""
    first: Label | None = None
    for label in labels:
        first = first or label
        if label.kind != first.kind:
            what = f"{first.name} is {first.kind} and {label.name} is {label.kind}: the two are never mixed"
            raise ConfigError(what, next="give rates of one kind")
        if label.unit != first.unit:
            what = f"{first.name} is in {first.unit} and {label.name} in {label.unit}"
            raise ConfigError(what, next="give rates in one unit; currencies are not converted")


def compare_labels(labels: Iterable[Label]) -> list[Note]:
    """Return notes on rates of one kind that are side by side although they are not alike."""
    found = list(labels)
    notes = []
    covers = sorted({label.covers or "not stated" for label in found if label.kind != "price"})
    if len(covers) > 1:
        notes.append(Note("rates.covers-differ", texts={"covers": tuple(covers)}))
    if len({label.issued_utc_s is None for label in found}) > 1:
        notes.append(Note("rates.some-forecasts"))
    return notes
