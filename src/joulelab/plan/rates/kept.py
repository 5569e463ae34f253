"""Keep every series that a service gave, forecasts and later actuals side by side, for use without a network.

    joulelab-rates/em-DE/forecast-20261116T190000Z.json     by when it was issued
    joulelab-rates/em-DE/actual-20261101T000000Z.json       by when it begins

A file is there whole or not at all and is never written over: values that a service corrected later make a further
file (`...-2.json`). Of actual values the newest answer is used where several tell of the same time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = Path("joulelab-rates")
FORMAT = 1
MARK = "joulelab rate"
MOST_NAMED = 12  # names that a message lists
MOST_VERSIONS = 10_000  # of one name; a service that corrects itself more often is broken
ZONE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NAME = re.compile(r"(?P<series>[A-Za-z0-9][A-Za-z0-9_.-]*)/(?P<what>actual|forecast)-\d{8}T\d{6}Z(-\d+)?")


@dataclass(frozen=True, slots=True)
class Kept:
    """Describe a kept series: `name` is what `kept:NAME` takes; times in s since 1970, from when to when it is known.

    `fetched_s` is when the service gave it, `unknown_s` how much of its time is a gap, `estimated_s` how much the
    service calls estimated (None where it does not say). `problem` says why the file cannot be used, else empty.
    """

    name: str
    path: Path
    label: Label | None = None
    service: str = ""
    forecast: bool = False
    since_s: float = math.nan
    until_s: float = math.nan
    fetched_s: float = math.nan
    unknown_s: float = 0.0
    estimated_s: float | None = None
    problem: str = ""

    @property
    def series(self) -> str:
        """Return the name of the series it belongs to: service and zone."""
        return self.name.partition("/")[0]

    def to_json(self) -> dict[str, Any]:
        """Return plain data; what is not known is None."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain |= {"path": str(self.path), "label": self.label.to_json() if self.label else None}
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in plain.items()}


@dataclass(frozen=True, slots=True)
class Origin:
    """Say where a series comes from; `series` is the folder it is kept in, `asked` what was asked of the service."""

    service: str
    series: str
    fetched_s: float
    asked: Mapping[str, Any] = field(default_factory=dict)
    estimated_s: float | None = None


def keep(steps: Steps, origin: Origin, folder: Path = FOLDER) -> Kept:
    """Keep a series and return what was kept; the same values again are not kept twice. Raises ConfigError.

    A forecast is named by the label's `issued_utc_s`, actual values by when they begin.
    """
    if not ZONE.fullmatch(origin.series):
        raise ConfigError(f"{origin.series!r} cannot name a folder", next="use letters, digits, '-', '_' and '.'")
    issued = steps.label.issued_utc_s
    what, time_s = ("actual", steps.since_s) if issued is None else ("forecast", issued)
    first = f"{what}-{dt.datetime.fromtimestamp(time_s, dt.UTC):%Y%m%dT%H%M%SZ}"
    place = folder / origin.series
    try:
        place.mkdir(parents=True, exist_ok=True)
        for n in range(1, MOST_VERSIONS):
            name = f"{origin.series}/{first}" + (f"-{n}" if n > 1 else "")
            path = folder / f"{name}.json"
            if _put(path, _data(steps, origin, name)):
                break
            if _is_kept(path, steps):
                return _described(path, name)
    except OSError as error:
        raise ConfigError(
            "what was fetched cannot be kept", where=str(place), why=error.strerror,
            next="free some space, or name another folder",
        ) from error  # fmt: skip
    return _described(path, name)


def list_kept(folder: Path = FOLDER) -> list[Kept]:
    """Return what is kept, by series and time; a file that cannot be used is listed with its problem."""
    found = []
    for path in sorted(folder.glob("*/*.json"), key=_order):
        name = f"{path.parent.name}/{path.stem}"
        if not _NAME.fullmatch(name):
            continue
        try:
            found.append(_described(path, name))
        except ConfigError as error:
            found.append(Kept(name, path, forecast=path.stem.startswith("forecast"), problem=error.why or error.what))
    return found


def _order(path: Path) -> tuple[str, str, int]:
    """Return what sorts files by series and time; the tenth answer comes after the second."""
    time, _, version = path.stem.partition("Z-")
    return path.parent.name, time.removesuffix("Z"), int(version) if version.isdecimal() else 1


def read_kept(name: str, folder: Path = FOLDER) -> Steps:
    """Return what is kept under a name: one file, or for a series all its actual values as one.

    `em-DE/forecast-20261116T190000Z` is that file, `em-DE` all actual values of it (the newest answer where several
    tell of the same time), `em-DE/forecast` the forecast that was issued last. Raises ConfigError.
    """
    if _NAME.fullmatch(name):
        path = folder / f"{name}.json"
        if not path.is_file():
            raise _missing(name, folder)
        return _read(path)[1]
    series, _, what = name.partition("/")
    mine = [one for one in list_kept(folder) if one.series == series and not one.problem]
    forecasts = [one for one in mine if one.forecast]
    actuals = [one for one in mine if not one.forecast]
    if what == "forecast" and forecasts:
        newest = max(forecasts, key=lambda one: ((one.label and one.label.issued_utc_s) or 0.0, one.fetched_s))
        return _read(newest.path)[1]
    if what in ("", "actual") and actuals:
        return _joined([_read(one.path) for one in sorted(actuals, key=lambda one: one.fetched_s)], series)
    raise _missing(name, folder)


def actual_beside(name: str, folder: Path = FOLDER) -> Steps | None:
    """Return the actual values kept for the time of a kept forecast, None where there are none; gaps stay gaps."""
    forecast = read_kept(name, folder)
    try:
        actual = read_kept(name.partition("/")[0], folder)
    except ConfigError:
        return None
    if actual.end_s <= forecast.since_s or actual.since_s >= forecast.end_s:
        return None
    return cut(actual, forecast.since_s, forecast.end_s)


def pairs(series: str, folder: Path = FOLDER) -> list[tuple[Kept, Steps, Steps]]:
    """Return each kept forecast of a series with the actual values of its time, where there are any, oldest first."""
    found = []
    for one in list_kept(folder):
        if one.series == series and one.forecast and not one.problem:
            actual = actual_beside(one.name, folder)
            if actual is not None:
                found.append((one, read_kept(one.name, folder), actual))
    return sorted(found, key=lambda pair: (pair[0].label and pair[0].label.issued_utc_s) or 0.0)


def cut(steps: Steps, since_s: float, until_s: float) -> Steps:
    """Return the part of a series between two times that overlap it; nothing is added at its ends."""
    edges = np.append(steps.start_s, steps.end_s)
    inside = (edges[1:] > since_s) & (edges[:-1] < until_s)
    starts = np.maximum(steps.start_s[inside], since_s)
    u = None if steps.u is None else steps.u[inside]
    return Steps(steps.label, starts, steps.values[inside], min(steps.end_s, until_s), u)


def _joined(found: Sequence[tuple[Mapping[str, Any], Steps]], series: str) -> Steps:
    """Return several answers as one series: of two that tell of the same time the later in the list wins."""
    parts = [steps for _, steps in found]
    labels = {(s.label.kind, s.label.unit, s.label.covers) for s in parts}
    if len(labels) > 1:
        told = " and ".join(sorted(" ".join(filter(None, label)) for label in labels))
        raise ConfigError(f"{series} holds different kinds of figures", why=told, next="name one file of it")
    edges = np.unique(np.concatenate([np.append(s.start_s, s.end_s) for s in parts]))
    values = np.full(edges.size - 1, np.nan)
    for steps in parts:
        at = np.searchsorted(steps.start_s, edges[:-1], side="right") - 1
        known = (at >= 0) & (edges[:-1] < steps.end_s)
        taken = steps.values[np.clip(at, 0, None)]
        known &= ~np.isnan(taken)
        values[known] = taken[known]
    last = parts[-1].label
    notes = tuple(dict.fromkeys(note for s in parts for note in s.label.notes))
    return Steps(replace(last, name=f"kept:{series}", notes=notes), edges[:-1], values, float(edges[-1]))


def _data(steps: Steps, origin: Origin, name: str) -> bytes:
    values = [None if math.isnan(v) else v for v in steps.values.tolist()]
    plain = {
        "what": MARK,
        "format": FORMAT,
        "service": origin.service,
        "fetched_utc_s": origin.fetched_s,
        "estimated_s": origin.estimated_s,
        "asked": dict(origin.asked),
        "label": steps.label.to_json() | {"name": f"kept:{name}"},
        "start_utc_s": steps.start_s.tolist(),
        "end_utc_s": steps.end_s,
        "values": values,
    }
    return json.dumps(plain, indent=1).encode() + b"\n"


def _put(path: Path, data: bytes) -> bool:
    """Write a file whole, False where there is one of that name: a link fails there, where a rename would replace."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with part.open("wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if os.path.lexists(path):
                return False
            part.rename(path)
        return True
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _described(path: Path, name: str) -> Kept:
    plain, steps = _read(path)
    return Kept(
        name=name, path=path, label=steps.label, service=str(plain["service"]),
        forecast=steps.label.issued_utc_s is not None, since_s=steps.since_s, until_s=steps.end_s,
        fetched_s=float(plain["fetched_utc_s"]), unknown_s=sum(b - a for a, b in steps.gaps()),
        estimated_s=plain.get("estimated_s"),
    )  # fmt: skip


def _read(path: Path) -> tuple[Mapping[str, Any], Steps]:
    """Return what a file says. Raises ConfigError where it is not one of ours, damaged, or newer than this version."""
    why = "it is damaged"
    try:
        plain = json.loads(path.read_bytes())
        if plain["what"] == MARK and plain["format"] <= FORMAT:
            return plain, _steps(plain)
        why = "it is no kept series" if plain["what"] != MARK else f"a newer joulelab wrote it ({plain['format']})"
    except OSError as error:
        why = error.strerror or type(error).__name__
    except ConfigError as error:
        why = str(error)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ConfigError("this kept series cannot be used", where=str(path), why=why, next="fetch it again") from None


def _steps(plain: Mapping[str, Any]) -> Steps:
    if not isinstance(plain["service"], str) or not isinstance(plain["fetched_utc_s"], float | int):
        raise TypeError
    known = {k: v for k, v in plain["label"].items() if k in Label.__dataclass_fields__}
    label = Label(**known | {"notes": tuple(known.get("notes", ()))})
    values = [math.nan if v is None else float(v) for v in plain["values"]]
    return Steps(label, np.array(plain["start_utc_s"], float), np.array(values), float(plain["end_utc_s"]))


def _is_kept(path: Path, new: Steps) -> bool:
    """Return whether a file holds these values; one that is damaged holds none."""
    try:
        old = _read(path)[1]
    except ConfigError:
        return False
    plain_old, plain_new = replace(old.label, name=""), replace(new.label, name="")
    same_times = np.array_equal(old.start_s, new.start_s) and old.end_s == new.end_s
    return plain_old == plain_new and same_times and np.array_equal(old.values, new.values, equal_nan=True)


def _missing(name: str, folder: Path) -> ConfigError:
    known = list_kept(folder)
    series = name.partition("/")[0]
    names = [one.name for one in known if one.series == series] or sorted({one.series for one in known})
    if not names:
        return ConfigError(f"nothing is kept in {folder}", next="fetch something: joulelab plan rates fetch em:DE")
    return ConfigError(f"nothing is kept as {name!r}", where=str(folder), next=suggest_name(name, names[-MOST_NAMED:]))
