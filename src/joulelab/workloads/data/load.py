"""Read hourly electric load as weeks that follow each other: tables, Kaggle's files, a real substitute, a stand-in.

The study's tables are `train.csv`, `valid.csv` and `test.csv` with the columns below, each country's hours one after
another; `split_countries` makes them of the published files. As in the study, the load of a country is brought to
0...1 by its least and greatest value, in each file anew. torch is imported only by `WeekPairs`.
"""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.images import make_once
from joulelab.workloads.data.source import (
    BROKEN,
    FILES,
    MEMORY,
    Data,
    Source,
    choose_source,
    explain_failure,
    get_cache_folder,
    name_data,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

PUBLISHED, VICTORIA = "ai-hero-energy", "victoria"
LOAD, TIME, COUNTRY = "Load [MW]", "Time [s]", "Country"
COLUMNS = (LOAD, TIME, COUNTRY)
WEEK = 7 * 24
SPAN = 2 * WEEK
YEAR, HOUR_S = 8760, 3600
PARTS = ("train", "valid", "test")
# Countries and hours of each in what the study trained on: after its text, and after its notebook.
KNOWN = {(15, 35064): "2014", (14, 26304): "2015"}
# Where the training data begins and each part ends in UTC, as the study divided them. The published files begin with
# 2015, some an hour before it, and go on until August 2020.
BEGIN = "2015-01-01"
PART_ENDS = {"train": "2018-01-01", "valid": "2019-01-01", "test": "2020-01-01"}
# The study's script fills an hour from as many days before it. More than this share of filled hours is refused.
DAYS_BEFORE, MOST_FILLED = 4, 0.05
# A file that statsmodels tests itself with: the hourly load of Victoria, 150 days of 2012.
FIXTURE = Path("tsa", "stl", "tests", "results", "mstl_elec_vic.csv")
FIXTURE_HOURS, FIXTURE_CUTS = 3600, (2400, 3000)
VERSION = 1  # of what synthetic load is like


@dataclass(frozen=True, slots=True)
class CountryLoad:
    """Hold one country's load in MW, hour by hour, and the text of its first and last time."""

    country: str
    mw: NDArray[np.float32]
    first: str = ""
    last: str = ""


class WeekPairs:
    """Be a torch Dataset of each week of hours and the next one: (past, future, scale), the first two as hours x 1.

    `scale` is the least load and the range in MW, by which a normalised load becomes MW again. A sample is found in
    the series itself, and a batch is gathered at once: nothing is stored twice.
    """

    def __init__(self, loads: Sequence[CountryLoad]) -> None:
        import torch

        self.zeros = sum(int((load.mw == 0).sum()) for load in loads)  # hours that no error can be a share of
        lows = [float(load.mw.min()) for load in loads]
        ranges = [float(load.mw.max()) - low for load, low in zip(loads, lows, strict=True)]
        scaled = [(load.mw - low) / width for load, low, width in zip(loads, lows, ranges, strict=True)]
        self._spans = torch.from_numpy(np.concatenate(scaled).astype(np.float32)).unfold(0, SPAN, 1)
        counts = torch.tensor([len(load.mw) - SPAN for load in loads])
        begins = torch.tensor([0, *(len(load.mw) for load in loads[:-1])]).cumsum(0)
        self._country = torch.repeat_interleave(torch.arange(len(loads)), counts)
        self._begin = torch.cat([torch.arange(n) + b for n, b in zip(counts.tolist(), begins.tolist(), strict=True)])
        self._scale = torch.tensor([lows, ranges]).T

    def __len__(self) -> int:
        return len(self._begin)

    def __getitem__(self, number: int) -> tuple[Any, Any, Any]:
        past, future, scale = self.__getitems__([number])
        return past[0], future[0], scale[0]

    def __getitems__(self, numbers: Sequence[int]) -> tuple[Any, Any, Any]:
        chosen = self._begin.new_tensor(numbers)  # int64, as indices have to be
        spans = self._spans[self._begin[chosen]].unsqueeze(-1)
        return spans[:, :WEEK], spans[:, WEEK:], self._scale[self._country[chosen]]


def collate_weeks(samples: Any) -> Any:
    """Return a batch: what was gathered at once is one already."""
    from torch.utils.data import default_collate

    return samples if isinstance(samples, tuple) else default_collate(samples)


def open_load(
    asked: str, *, countries: int = 15, hours: int = 35064, seed: int = 0, environ: Mapping[str, str] = os.environ
) -> Data:
    """Return load as weeks; `countries` and `hours` are those of a stand-in. Raises ConfigError."""
    chosen = choose_source(asked, (PUBLISHED,), environ=environ, otherwise=MEMORY, named=(VICTORIA,))
    name, real, where = str(chosen), not isinstance(chosen, str), ""
    if isinstance(chosen, Path):
        parts, where = read_tables(chosen), str(chosen)
        name = name_data(PUBLISHED, counts=has_study_counts(parts))
    elif chosen == VICTORIA:
        file = find_victoria()
        parts, name, real, where = read_victoria(file), "victoria-load-2012", True, str(file)
    elif chosen == FILES:
        folder = get_cache_folder(f"load-{VERSION}-{countries}x{hours}-{seed}", environ)
        make_once(folder, lambda empty: write_tables(empty, make_load(countries, hours, seed)))
        parts, where = read_tables(folder), str(folder)
    else:
        parts = make_load(countries, hours, seed)
    pairs = {part: WeekPairs(loads) for part, loads in parts.items()}
    source = Source(name, real, len(pairs["train"]), where)
    return Data(pairs["train"], pairs.get("valid"), pairs.get("test"), source)


def make_load(countries: int, hours: int, seed: int) -> dict[str, list[CountryLoad]]:
    """Make up load: cycles of a day, a week and a year and slow changes; a quarter more for each other part."""
    random = np.random.default_rng(seed)
    rest = max(min(YEAR, hours // 4), SPAN + 1)
    hour = np.arange(hours + 2 * rest)
    day = 2 * np.pi * (hour[None, :] / 24 - random.uniform(0.3, 0.4, (countries, 1)))
    cycles = 0.15 * np.sin(day) + 0.05 * np.sin(2 * day) - 0.08 * (hour // 24 % 7 >= 5)
    cycles += 0.15 * np.cos(2 * np.pi * (hour / YEAR - random.uniform(0.0, 0.1, (countries, 1))))
    base = random.uniform(5e3, 6e4, (countries, 1))
    drift = random.normal(0.0, 0.008, (len(hour), countries))
    for k in range(1, len(hour)):  # AR(1): each hour keeps most of the one before
        drift[k] += 0.97 * drift[k - 1]
    mw = (base * (1 + cycles + drift.T)).astype(np.float32)
    cuts = np.split(mw, [hours, hours + rest], axis=1)
    return {
        part: [CountryLoad(f"C{k:02d}", row) for k, row in enumerate(cut)]
        for part, cut in zip(PARTS, cuts, strict=True)
    }


def write_tables(folder: Path, parts: Mapping[str, Sequence[CountryLoad]]) -> None:
    """Write load in the study's form; hours of a load without a first time are counted from 2014 on."""
    for part, loads in parts.items():
        with open(folder / f"{part}.csv", "w", newline="") as opened:
            table = csv.writer(opened)
            table.writerow(COLUMNS)
            for load in loads:
                first = np.datetime64(load.first or "2014-01-01 00:00:00", "s")
                stamps = np.char.replace(
                    (first + np.arange(len(load.mw)) * np.timedelta64(1, "h")).astype(str), "T", " "
                )
                table.writerows(zip(load.mw.tolist(), stamps.tolist(), [load.country] * len(stamps), strict=True))


def find_victoria(package: str = "statsmodels") -> Path:
    """Return the file with the load of Victoria that a package carries. Raises ConfigError where it is not there."""
    spec = importlib.util.find_spec(package)
    places = (spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        if (Path(place) / FIXTURE).is_file():
            return Path(place) / FIXTURE
    why = f"{package} has no {FIXTURE}" if places else f"{package}, whose tests carry it, is not installed"
    advice = "pip install 'statsmodels>=0.14', or give data=synthetic-memory"
    raise ConfigError(f"data is {VICTORIA!r}", why=why, next=advice)


def read_victoria(file: Path) -> dict[str, list[CountryLoad]]:
    """Return the load of Victoria in three parts, one after another. Raises ConfigError."""
    loads = _read_table(file, load="y", time="ds", country=None)
    if len(loads) != 1 or len(loads[0].mw) != FIXTURE_HOURS:
        why = f"it has {sum(len(load.mw) for load in loads)} hours, not {FIXTURE_HOURS}"
        raise ConfigError("this is not the load of Victoria", where=str(file), why=why, next="install statsmodels 0.14")
    cuts = np.split(loads[0].mw, FIXTURE_CUTS)
    return {part: [CountryLoad("Victoria", cut)] for part, cut in zip(PARTS, cuts, strict=True)}


def read_tables(folder: Path) -> dict[str, list[CountryLoad]]:
    """Return the parts of a folder; the study kept its test file to itself, so that one may be missing."""
    files = {part: folder / f"{part}.csv" for part in PARTS}
    return {part: _read_table(file) for part, file in files.items() if part != "test" or file.is_file()}


def split_countries(
    folder: Path, to: Path, without: Collection[str] = (), ends: Mapping[str, str] = PART_ENDS
) -> list[dict[str, str | int]]:
    """Make the study's tables in `to` of published files, one for each country; return hours and filled ones of each.

    An hour is the mean of its readings (15, 30 or 60 minutes). NaN and 0 are no readings. An hour that has none is
    filled with the mean of the same hour of the four days before, as the study's script does. Hours before 2015 in UTC
    are left out. Raises ConfigError.
    """
    parts: dict[str, list[CountryLoad]] = {part: [] for part in PARTS}
    rows: list[dict[str, str | int]] = []
    files = [file for file in sorted(folder.glob("*.csv")) if file.stem not in without]
    if not files:
        advice = "unpack the Western Europe Power Consumption Dataset there: de.csv, fr.csv, ..."
        raise ConfigError("there is no country's file", where=str(folder), next=advice)
    for file in files:
        first_hour, mw = read_country_file(file)
        row: dict[str, str | int] = {"country": file.stem}
        begin = first = max(int(_read_time(BEGIN, "")[0] // HOUR_S) - first_hour, 0)
        filled = fill_hours(mw, file, first_hour)
        for part, date in ends.items():
            end = int(_read_time(date, "")[0] // HOUR_S) - first_hour
            if end - begin <= SPAN or end > len(mw):
                why = f"the {part} data ends before {date}; the file has {len(mw)} hours from {_word_hour(first_hour)}"
                raise ConfigError("there are too few hours", where=str(file), why=why, next=f"--without {file.stem}")
            share = filled[begin:end].mean()
            if share > MOST_FILLED:
                why = f"{share:.0%} of the hours of the {part} data have no reading"
                raise ConfigError("there are too many gaps", where=str(file), why=why, next=f"--without {file.stem}")
            times = (_word_hour(first_hour + begin), _word_hour(first_hour + end - 1))
            parts[part].append(CountryLoad(file.stem, mw[begin:end].astype(np.float32), *times))
            row[part], begin = end - begin, end
        rows.append({**row, "filled": int(filled[first:begin].sum())})
    write_tables(to, parts)
    return rows


def read_country_file(file: Path) -> tuple[int, NDArray[np.float64]]:
    """Return the first hour of a country's file, counted from 1970 in UTC, and hourly means in MW; NaN where none is.

    Raises ConfigError with the line that is wrong.
    """
    readings: dict[int, list[float]] = {}
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            for line, text, stamp, _ in _list_rows(file, csv.reader(opened), "load", "start", None):
                at_s, is_date = _read_time(stamp, f"{file}:{line}")
                if not is_date:
                    raise ConfigError("the time is not a date", where=f"{file}:{line}", why=f"it is {stamp!r}")
                of_hour = readings.setdefault(int(at_s // HOUR_S), [])
                mw = _read_mw(text or "nan", f"{file}:{line}")
                if math.isfinite(mw) and mw != 0:
                    of_hour.append(mw)
    except BROKEN as error:
        raise ConfigError("the load cannot be read", where=str(file), why=explain_failure(error)) from error
    if not any(readings.values()):
        raise ConfigError("there is no load in it", where=str(file), next="its columns are start, end, load")
    hours = range(min(readings), max(readings) + 1)
    return hours[0], np.array([np.mean(readings[k]) if readings.get(k) else np.nan for k in hours])


def fill_hours(mw: NDArray[np.float64], file: Path, first_hour: int) -> NDArray[np.bool_]:
    """Fill hours of NaN in place: the mean of the same hour of up to four days before, or after; return which.

    Raises ConfigError with the file and the hour where no day beside it has a reading.
    """
    is_filled = np.isnan(mw)
    for k in np.flatnonzero(is_filled):
        for step in (-24, 24):  # those before are filled already
            days = mw[[n for n in range(k + step, k + step * (DAYS_BEFORE + 1), step) if 0 <= n < len(mw)]]
            if np.isfinite(days).any():
                mw[k] = np.nanmean(days)
                break
        else:
            why = f"{_word_hour(first_hour + int(k))} has no reading, and no day beside it has one at this hour"
            raise ConfigError("there are too many gaps", where=str(file), why=why, next=f"--without {file.stem}")
    return is_filled


def _word_hour(hour: int) -> str:
    return f"{dt.datetime.fromtimestamp(hour * HOUR_S, tz=dt.UTC):%Y-%m-%d %H:%M:%S}"


@dataclass(slots=True)
class HourSeries:
    """Gather one country's hours, each an hour after the one before: a week with a gap in it would be another week."""

    first: str
    last: str = ""
    mw: list[float] = field(default_factory=list)
    _at_s: float = 0.0
    _step_s: float = 0.0

    def add_hour(self, mw: float, stamp: str, where: str) -> None:
        """Add an hour. Raises ConfigError where it does not follow."""
        at_s, is_date = _read_time(stamp, where)
        step_s, why = at_s - self._at_s, f"{stamp!r} comes after {self.last!r}"
        if self.mw:
            if step_s <= 0:
                raise ConfigError("its hours are not in order", where=where, why=why, next="sort it")
            # Numbers may be seconds, or count hours.
            self._step_s = self._step_s or (HOUR_S if is_date else step_s)
            if step_s != self._step_s:
                advice = "fill them in, with times in UTC" if step_s > self._step_s else "give one row for each hour"
                raise ConfigError("hours are missing or of another length", where=where, why=why, next=advice)
        self._at_s, self.last = at_s, stamp
        self.mw.append(mw)


def _read_time(stamp: str, where: str) -> tuple[float, bool]:
    """Return a time in seconds and whether it is a date, which is in UTC unless it says otherwise, or a number."""
    try:
        return float(stamp), False
    except ValueError:
        pass
    try:
        date = dt.datetime.fromisoformat(stamp.strip())
    except ValueError as error:
        why, then = f"it is {stamp!r}", "write it as 2014-01-31 23:00:00"
        raise ConfigError("the time is neither a date nor a number", where=where, why=why, next=then) from error
    return (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp(), True


def _read_mw(text: str, where: str) -> float:
    try:
        mw = float(text)
    except ValueError as error:
        raise ConfigError("this is not an hour of load", where=where, why=str(error)) from error
    if mw < 0:
        raise ConfigError(f"the load is {mw:g} MW", where=where, next="it cannot be less than 0")
    return mw


def _read_table(file: Path, *, load: str = LOAD, time: str = TIME, country: str | None = COUNTRY) -> list[CountryLoad]:
    """Return each country's load. Raises ConfigError with the line that is wrong."""
    found: dict[str, HourSeries] = {}
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            for line, text, stamp, name in _list_rows(file, csv.reader(opened), load, time, country):
                mw = _read_mw(text, f"{file}:{line}")
                if not math.isfinite(mw):
                    advice = "the series has to be complete"
                    raise ConfigError("the load is not a number", where=f"{file}:{line}", next=advice)
                found.setdefault(name, HourSeries(first=stamp)).add_hour(mw, stamp, f"{file}:{line}")
    except BROKEN as error:
        tables = ", ".join(f"{part}.csv" for part in PARTS)
        advice = f"the folder has to hold {tables} in UTF-8; joulelab workload split load makes them of Kaggle's files"
        raise ConfigError(
            "the load cannot be read", where=str(file), why=explain_failure(error), next=advice
        ) from error
    if not found:
        raise ConfigError("there is no load in it", where=str(file), next=f"columns are {', '.join(COLUMNS)}")
    for name, series in found.items():
        if len(series.mw) <= SPAN:
            why = f"{name or 'the series'} has {len(series.mw)}"
            raise ConfigError("there are too few hours", where=str(file), why=why, next=f"give more than {SPAN}")
        if min(series.mw) == max(series.mw):
            raise ConfigError("the load never changes", where=str(file), why=name, next="check the column")
    return [CountryLoad(k, np.array(one.mw, dtype=np.float32), one.first, one.last) for k, one in found.items()]


def _list_rows(
    file: Path, table: Iterator[list[str]], load: str, time: str, country: str | None
) -> Iterator[tuple[int, str, str, str]]:
    """Give each row's line, load, time and country as text; blank lines are passed over. Raises ConfigError."""
    head = [name.strip() for name in next(table, [])]
    for name in filter(None, (load, time, country)):
        if name not in head:
            why = f"it has: {', '.join(head) or 'nothing'}"
            raise ConfigError(f"there is no column {name!r}", where=str(file), why=why, next=f"name it {name!r}")
    at_load, at_time, at_country = head.index(load), head.index(time), head.index(country) if country else None
    for line, row in enumerate(table, 2):
        if not "".join(row).strip():
            continue  # a blank line, as at the end of some files
        if len(row) <= max(at_load, at_time, at_country or 0):
            raise ConfigError("this is not an hour of load", where=f"{file}:{line}", why=f"it has {len(row)} columns")
        yield line, row[at_load], row[at_time], row[at_country] if at_country is not None else ""


def has_study_counts(parts: Mapping[str, Sequence[CountryLoad]]) -> bool:
    """Return whether countries, hours and years are those of the study; we know no checksums of its files."""
    train = parts["train"]
    begin = KNOWN.get((len(train), len(train[0].mw)))
    years = {"train": (begin or "", "2017"), "valid": ("2018", "2018"), "test": ("2019", "2019")}
    return begin is not None and all(
        load.first.startswith(years[part][0])
        and load.last.startswith(years[part][1])
        and len(load.mw) == (len(train[0].mw) if part == "train" else YEAR)
        for part, loads in parts.items()
        for load in loads
    )
