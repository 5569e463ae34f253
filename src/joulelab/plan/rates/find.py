"""Find a rate by what a person writes for it: a figure, a row of the annual table, a file, a kept series, a service."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import format_value
from joulelab.plan.plan_tables import read_toml
from joulelab.plan.rates.annual import from_words
from joulelab.plan.rates.asked import Asked, is_service
from joulelab.plan.rates.constant import Constant
from joulelab.plan.rates.description import read_described
from joulelab.plan.rates.kept import FOLDER, read_kept
from joulelab.plan.rates.rate import Kind, Label, Rate
from joulelab.plan.rates.series_file import read_series
from joulelab.plan.rates.tariff_file import read_tariff
from joulelab.plan.rates.units import CARBON, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.plan.rates.description import Description

# What is asked for: one kind, or carbon of either.
Want = Kind | Literal["carbon"]

NUMBER = re.compile(r"(?P<value>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\D.*)?")
LONGEST = 4096  # bytes of a path
SUFFIXES = (".csv", ".tsv", ".json", ".toml")
FORMS = "380, 0.32EUR, table:DE, FILE.csv, FILE.toml, kept:NAME or em:ZONE"


def rate_of(
    spec: str, *, want: Want | None = None, zone: str | None = None, folder: Path = Path(), kept: Path = FOLDER
) -> Rate:
    """Return the rate that a person means by `spec`; files are looked for from `folder`.

    `want` is the kind that is asked for (`carbon`: average or marginal), None for any. A bare figure is g/kWh, of the
    kind that is asked for. `zone` is the time zone (IANA) of files whose times do not say theirs, `kept` the folder of
    kept series. A service is asked when the rate is used first.
    Raises ConfigError where there is no such rate, or it is of another kind.
    """
    text = spec.strip()
    if not text.isprintable() or len(text.encode()) > LONGEST:
        raise ConfigError(f"{format_value(text)} is no rate", next=f"write it as {FORMS}")
    figure = None if _is_file(text) else NUMBER.fullmatch(text)
    rate = _figure(figure["value"], figure["unit"] or "", want) if figure else _named(text, zone, folder, kept)
    check_wanted(rate.label, want, text)
    return rate


def _figure(value: str, unit_text: str, want: Want | None) -> Constant:
    if not unit_text and want == "price":
        then = f"write it as {value}EUR or {value}EUR/MWh"
        raise ConfigError(f"{value} is no price", why="no currency is given", next=then)
    unit = unit_of(unit_text or CARBON)
    amount = float(value) * unit.factor
    if not math.isfinite(amount):
        raise ConfigError(f"{value} is too large")
    if not unit.money and amount < 0:
        raise ConfigError(f"{value} {unit.unit}: a carbon intensity cannot be below 0")
    kind: Kind = "price" if unit.money else "marginal" if want == "marginal" else "average"
    return Constant(amount, Label(kind, unit.unit, f"{amount:g} {unit.unit}", source="given as a figure"))


def _named(text: str, zone: str | None, folder: Path, kept: Path) -> Rate:
    word, _, rest = text.partition(":")
    if word == "table":
        return from_words(rest.split(":"), folder)
    if word == "kept":
        return read_kept(rest, kept)
    if is_service(word):
        return Asked.of(text, kept)
    if _is_file(text) or _is_there(folder / text):
        return read_file(folder / text, zone=zone)
    raise ConfigError(f"{text!r} is no rate", next=f"write it as {FORMS}")


def _is_file(text: str) -> bool:
    return text.lower().endswith(SUFFIXES)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for one, for example
        return False


def read_file(path: Path, *, told: Description | None = None, zone: str | None = None) -> Rate:
    """Return the rate that a file holds: a series of values, TOML that describes one, or a tariff.

    `told` is what is known of a series besides. Raises ConfigError.
    """
    if path.suffix.lower() != ".toml":
        return read_series(path, told=told, zone=zone)
    text, values = read_toml(path, "tariff or description of a series")
    if "zones" in values:
        then = f"name a zone of it: table:{path}:DE"
        raise ConfigError("this is a table of annual intensities", where=str(path), next=then)
    if "file" in values:
        described, file = read_described(path, text, values)
        return read_series(path.parent / str(file), told=described, zone=zone)
    return read_tariff(path, text, values)


def check_wanted(label: Label, want: Want | None, spec: str) -> None:
    """Check that a rate is of the kind that is asked for. Raises ConfigError."""
    if want is None or label.kind == want or (want == "carbon" and label.kind != "price"):
        return
    asked = "a carbon intensity" if want == "carbon" else "a price" if want == "price" else f"{want} carbon"
    have = "a price" if label.kind == "price" else f"{label.kind} carbon"
    raise ConfigError(f"{spec} is {have}, where {asked} is asked for", next="name another rate")


def check_same(labels: Iterable[Label]) -> None:
    """Check that rates may stand in one table or sum: one kind, one unit. Raises ConfigError."""
    first: Label | None = None
    for label in labels:
        if first is None:
            first = label
        elif label.kind != first.kind:
            what = f"{first.name} is {first.kind} and {label.name} is {label.kind}: the two are never mixed"
            raise ConfigError(what, next="give rates of one kind")
        elif label.unit != first.unit:
            what = f"{first.name} is in {first.unit} and {label.name} in {label.unit}"
            raise ConfigError(what, next="give rates in one unit; currencies are not converted")


def caveats(labels: Iterable[Label]) -> tuple[str, ...]:
    """Return what has to be said where rates of one kind stand side by side although they do not tell the same."""
    found: Sequence[Label] = list(labels)
    told = []
    covers = {label.covers for label in found if label.kind != "price"}
    if len(covers) > 1:
        parts = {c: [label.name for label in found if label.covers == c] for c in sorted(covers)}
        words = "; ".join(f"{c or 'not said what'}: {', '.join(dict.fromkeys(names))}" for c, names in parts.items())
        told.append(f"intensities cover different emissions and cannot be compared as they stand ({words})")
    if len({label.issued_utc_s is None for label in found}) > 1:
        told.append("some rates are forecasts, others are not")
    if len({label.resolution_s is None for label in found}) > 1 and any(label.kind != "price" for label in found):
        told.append("some rates are means of a year or figures, others follow the hour")
    return tuple(told)
