"""Read hourly electric load as weeks that follow each other: the published tables, a real substitute, a stand-in.

The published form is `train.csv`, `valid.csv` and `test.csv` with the columns below, each country's hours one after
another. As in the study, the load of a country is brought to 0...1 by its least and greatest value, in each file anew.
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
import torch
from torch.utils.data import Dataset, default_collate

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.images import made_once
from joulelab.workloads.data.source import (
    BROKEN,
    FILES,
    MEMORY,
    Data,
    Source,
    cache_folder,
    choose,
    name_of,
    unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

PUBLISHED, VICTORIA = "ai-hero-energy", "victoria"
LOAD, TIME, COUNTRY = "Load [MW]", "Time [s]", "Country"
COLUMNS = (LOAD, TIME, COUNTRY)
WEEK = 7 * 24
SPAN = 2 * WEEK
YEAR, HOUR_S = 8760, 3600.0
PARTS = ("train", "valid", "test")
# Countries and hours of each in what the study trained on: after its text, and after its notebook.
KNOWN = {(15, 35064): "2014", (14, 26304): "2015"}
# A file that statsmodels tests itself with: the hourly load of Victoria, 150 days of 2012.
FIXTURE = Path("tsa", "stl", "tests", "results", "mstl_elec_vic.csv")
FIXTURE_HOURS, FIXTURE_CUTS = 3600, (2400, 3000)
VERSION = 1  # of what synthetic load is like


@dataclass(frozen=True, slots=True)
class Load:
    """Hold one country's load in MW, hour by hour, and the text of its first and last time."""

    country: str
    mw: NDArray[np.float32]
    first: str = ""
    last: str = ""


class Weeks(Dataset[Any]):
    """Give each week of hours with the week that follows: (past, future, scale), the first two as hours x 1.

    `scale` is the least load and the range in MW, by which a normalised load becomes MW again. A sample is found in
    the series itself, and a batch is gathered at once: nothing is stored twice.
    """

    def __init__(self, loads: Sequence[Load]) -> None:
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
        chosen = torch.as_tensor(numbers)
        spans = self._spans[self._begin[chosen]].unsqueeze(-1)
        return spans[:, :WEEK], spans[:, WEEK:], self._scale[self._country[chosen]]


def collate(samples: Any) -> Any:
    """Return a batch: what was gathered at once is one already."""
    return samples if isinstance(samples, tuple) else default_collate(samples)


def open_data(
    asked: str, *, countries: int = 15, hours: int = 35064, seed: int = 0, environ: Mapping[str, str] = os.environ
) -> Data:
    """Return load as weeks; `countries` and `hours` are those of a stand-in. Raises ConfigError."""
    chosen = choose(asked, (PUBLISHED,), environ=environ, otherwise=MEMORY, named=(VICTORIA,))
    if isinstance(chosen, Path):
        parts = _read_folder(chosen)
        return _data(parts, name_of(PUBLISHED, counts=_has_counts(parts)), str(chosen), real=True)
    if chosen == VICTORIA:
        file = find_victoria()
        return _data(_victoria(file), "victoria-load-2012", str(file), real=True)
    if chosen == FILES:
        name = f"load-{VERSION}-{countries}x{hours}-{seed}"
        folder = made_once(cache_folder(name, environ), lambda to: write(to, synthetic(countries, hours, seed)))
        return _data(_read_folder(folder), FILES, str(folder), real=False)
    return _data(synthetic(countries, hours, seed), MEMORY, "", real=False)


def synthetic(countries: int, hours: int, seed: int) -> dict[str, list[Load]]:
    """Return made-up load: cycles of a day, a week and a year and slow changes; a quarter more for each other part."""
    random = np.random.default_rng(seed)
    rest = max(min(YEAR, hours // 4), SPAN + 1)
    hour = np.arange(hours + 2 * rest)
    day = 2 * np.pi * (hour[None, :] / 24 - random.uniform(0.3, 0.4, (countries, 1)))
    cycles = 0.15 * np.sin(day) + 0.05 * np.sin(2 * day) - 0.08 * (hour // 24 % 7 >= 5)
    cycles += 0.15 * np.cos(2 * np.pi * (hour / YEAR - random.uniform(0.0, 0.1, (countries, 1))))
    base = random.uniform(5e3, 6e4, (countries, 1))
    mw = (base * (1 + cycles + _drift(random, countries, len(hour)))).astype(np.float32)
    cuts = np.split(mw, [hours, hours + rest], axis=1)
    return {part: [Load(f"C{k:02d}", row) for k, row in enumerate(cut)] for part, cut in zip(PARTS, cuts, strict=True)}


def _drift(random: np.random.Generator, countries: int, hours: int) -> NDArray[np.float64]:
    """Return AR(1) noise: each hour keeps most of the one before."""
    out = random.normal(0.0, 0.008, (hours, countries))
    for k in range(1, hours):
        out[k] += 0.97 * out[k - 1]
    return np.asarray(out.T)


def write(folder: Path, parts: Mapping[str, Sequence[Load]]) -> None:
    """Write load in the published form; its hours are counted from 2014 on, whatever the part."""
    for part, loads in parts.items():
        with open(folder / f"{part}.csv", "w", newline="") as opened:
            table = csv.writer(opened)
            table.writerow(COLUMNS)
            for load in loads:
                times = np.datetime64("2014-01-01T00", "s") + np.arange(len(load.mw)).astype("timedelta64[h]")
                stamps = np.char.replace(times.astype(str), "T", " ")
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


def _victoria(file: Path) -> dict[str, list[Load]]:
    loads = _read(file, load="y", time="ds", country=None)
    if len(loads) != 1 or len(loads[0].mw) != FIXTURE_HOURS:
        why = f"it has {sum(len(load.mw) for load in loads)} hours, not {FIXTURE_HOURS}"
        raise ConfigError("this is not the load of Victoria", where=str(file), why=why, next="install statsmodels 0.14")
    cuts = np.split(loads[0].mw, FIXTURE_CUTS)
    return {part: [Load("Victoria", cut)] for part, cut in zip(PARTS, cuts, strict=True)}


def _read_folder(folder: Path) -> dict[str, list[Load]]:
    """Return the parts of a folder; the study kept its test file to itself, so that one may be missing."""
    files = {part: folder / f"{part}.csv" for part in PARTS}
    return {part: _read(file) for part, file in files.items() if part != "test" or file.is_file()}


@dataclass(slots=True)
class Series:
    """Gather one country's hours, each an hour after the one before: a week with a gap in it would be another week."""

    first: str
    last: str = ""
    mw: list[float] = field(default_factory=list)
    _at_s: float = 0.0
    _step_s: float = 0.0

    def add(self, mw: float, stamp: str, where: str) -> None:
        """Take the next hour. Raises ConfigError where it is not the next one."""
        at_s, is_date = _time(stamp, where)
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


def _time(stamp: str, where: str) -> tuple[float, bool]:
    """Return a time in seconds and whether it is a date, which is in UTC unless it says otherwise, or a number."""
    try:
        return float(stamp), False
    except ValueError:
        pass
    try:
        date = dt.datetime.fromisoformat(stamp.strip())
    except ValueError as error:
        why, then = f"it is {stamp!r}", "write it as 2014-01-31 23:00:00"
        raise ConfigError("the time is no date and no number", where=where, why=why, next=then) from error
    return (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp(), True


def _read(file: Path, *, load: str = LOAD, time: str = TIME, country: str | None = COUNTRY) -> list[Load]:
    """Return each country's load. Raises ConfigError with the line that is wrong."""
    found: dict[str, Series] = {}
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            for line, mw, stamp, name in _rows(file, csv.reader(opened), load, time, country):
                if name not in found:
                    found[name] = Series(first=stamp)
                found[name].add(mw, stamp, f"{file}:{line}")
    except BROKEN as error:
        advice = f"the folder has to hold {', '.join(f'{part}.csv' for part in PARTS)}, as text in UTF-8"
        raise ConfigError("the load cannot be read", where=str(file), why=unreadable(error), next=advice) from error
    loads = [Load(k, np.array(one.mw, dtype=np.float32), one.first, one.last) for k, one in found.items()]
    _check(file, loads)
    return loads


def _rows(
    file: Path, table: Iterator[list[str]], load: str, time: str, country: str | None
) -> Iterator[tuple[int, float, str, str]]:
    head = [name.strip() for name in next(table, [])]
    for name in filter(None, (load, time, country)):
        if name not in head:
            why = f"it has: {', '.join(head) or 'nothing'}"
            raise ConfigError(f"there is no column {name!r}", where=str(file), why=why, next=f"name it {name!r}")
    at_load, at_time, at_country = head.index(load), head.index(time), head.index(country) if country else None
    for line, row in enumerate(table, 2):
        try:
            mw, stamp = float(row[at_load]), row[at_time]
            name = row[at_country] if at_country is not None else ""
        except (ValueError, IndexError) as error:
            raise ConfigError("this is no hour of load", where=f"{file}:{line}", why=str(error)) from error
        if not math.isfinite(mw):
            raise ConfigError("the load is no number", where=f"{file}:{line}", next="the series has to be complete")
        if mw < 0:
            raise ConfigError(f"the load is {mw:g} MW", where=f"{file}:{line}", next="it cannot be less than 0")
        yield line, mw, stamp, name


def _check(where: Path, loads: Sequence[Load]) -> None:
    if not loads:
        raise ConfigError("there is no load in it", where=str(where), next=f"columns are {', '.join(COLUMNS)}")
    for load in loads:
        if len(load.mw) <= SPAN:
            why = f"{load.country or 'the series'} has {len(load.mw)}"
            raise ConfigError("there are too few hours", where=str(where), why=why, next=f"give more than {SPAN}")
        if load.mw.min() == load.mw.max():
            raise ConfigError("the load never changes", where=str(where), why=load.country, next="check the column")


def _has_counts(parts: Mapping[str, Sequence[Load]]) -> bool:
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


def _data(parts: Mapping[str, Sequence[Load]], name: str, where: str, *, real: bool) -> Data:
    weeks = {part: Weeks(loads) for part, loads in parts.items()}
    source = Source(name, real, len(weeks["train"]), where)
    return Data(weeks["train"], weeks.get("valid"), weeks.get("test"), source)
