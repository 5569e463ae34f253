"""Read a cluster's past from a file of jobs: CSV with a head, or what `sacct -P` prints."""

from __future__ import annotations

import csv
import datetime as dt
import io
import itertools
import math
import re
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.core.text import escape_unprintable
from joulelab.plan.queue.jobs import Job, Stream
from joulelab.plan.rates.zones import utc_of, zone_of
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from pathlib import Path
    from zoneinfo import ZoneInfo

# What a column may be called; the second and later names are Slurm's.
NAMES = {
    "id": ("id", "jobid"),
    "submit": ("submit",),
    "nodes": ("nodes", "nnodes", "allocnodes"),
    "duration": ("duration_s", "elapsedraw", "elapsed"),
    "node_w": ("node_w",),
    "energy": ("energy_j", "consumedenergyraw", "consumedenergy"),
    "highest_w": ("highest_w", "max_w"),
    "rated_w": ("rated_w",),
    "workload": ("workload", "jobname"),
    "state": ("state",),
}
NEEDED = ("id", "submit", "nodes", "duration")
NOT_OVER = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "RESIZING")
PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
# Slurm's marks for "no value" and "infinite": no job uses as much as those of 64 bits; those of 32 bits are told by
# their digits.
LEAST_MARK = float(2**63)
NO_VALUE = (str(2**32 - 1), str(2**32 - 2))
FIRST_DATE_S = 946_684_800.0  # 2000-01-01: fewer s are from a start of their own, not since 1970
MOST_TOLD = 10
MOST_BYTES = 500_000_000
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_ENERGY = re.compile(r"(\d+(?:\.\d+)?)([KMGTPE]?)")
Row = dict[str, str]


def read_jobs(path: Path, *, zone: str = "", node_w: float | None = None, accuracy: float | None = None) -> Stream:
    """Read jobs from a file. Times without offset are of `zone` (IANA); s are taken as they are (few are no dates).

    `node_w` (W) is for jobs whose power the file does not tell. `accuracy` is the share by which all powers of the
    file may be wrong alike (k = 2); None where nobody knows. Raises ConfigError with a line for each thing that is
    wrong.
    """
    text = _text(path)
    rows = _rows(path, text)
    reader = _Reader(path, zone_of(zone) if zone else None, node_w, accuracy)
    jobs = [job for line, row in rows if (job := reader.job(line, row)) is not None]
    reader.check()
    if not jobs:
        raise ConfigError(
            "there are no jobs in the file", where=str(path), why=reader.why_none or None, next="name another"
        )
    ordered = tuple(sorted(jobs, key=lambda job: job.submit_s))
    return Stream(
        ordered, f"{len(ordered)} jobs of {path.name}", (*_said(text), *reader.notes()), reader.zoned, reader.dated
    )


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError("the file of jobs is too large", where=str(path), next="give fewer jobs")
        return read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError("cannot read the file of jobs", where=str(path), why=why, next="name a file of CSV") from None


def _said(text: str) -> list[str]:
    """Return what the comments above the head say: where the jobs are from, or that they are made up."""
    above = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    told = " ".join(line.strip("# ") for line in above)
    return [f"the file of jobs says: {escape_unprintable(told)}"] if told else []


def _rows(path: Path, text: str) -> list[tuple[int, Row]]:
    """Return the rows of jobs by our names, with the numbers of their lines. Raises ConfigError."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if not lines:
        raise ConfigError("the file of jobs is empty", where=str(path), next="give a head and a line for each job")
    sign = next((s for s in ("|", ";", "\t") if s in lines[0][1]), ",")
    parsed = [(n, next(csv.reader(io.StringIO(line), delimiter=sign))) for n, line in lines]
    words = [word.strip().lower() for word in parsed[0][1]]
    # Where there are two columns for a thing (Elapsed and ElapsedRaw), the one that we name first.
    found = {name: next((words.index(w) for w in known if w in words), None) for name, known in NAMES.items()}
    missing = [NAMES[name][0] for name in NEEDED if found[name] is None]
    if missing:
        raise ConfigError(
            f"the file of jobs has no column {', '.join(missing)}", where=f"{path}:{parsed[0][0]}",
            why=f"there are {', '.join(map(escape_unprintable, words))[:200]}",
            next="name the columns id, submit, nodes, duration_s, node_w, or as sacct -P does",
        )  # fmt: skip
    at = {name: number for name, number in found.items() if number is not None}
    rows = [(n, {name: row[k].strip() if k < len(row) else "" for name, k in at.items()}) for n, row in parsed[1:]]
    return _whole(rows) if "jobid" in words else rows


def _whole(rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Return the jobs without the steps that sacct lists below them.

    Where only steps have an energy, the largest counts: each is that of whole nodes, and they overlap.
    """
    energies: dict[str, float] = {}
    for _, row in rows:
        job, dot, _ = row["id"].partition(".")
        told = _joules(row.get("energy", "")) if dot else None
        if told is not None:
            energies[job] = max(energies.get(job, 0.0), told)
    jobs = [(n, row) for n, row in rows if "." not in row["id"]]
    for _, row in jobs:
        text = row.get("energy", "")
        if (not text or _ENERGY.fullmatch(text)) and _joules(text) is None and energies.get(row["id"]):
            row["energy"] = f"{energies[row['id']]:.3f}"
    return jobs


class _Reader:
    """Turn rows into jobs, and collect what is wrong with them and what has to be said."""

    def __init__(self, path: Path, zone: ZoneInfo | None, node_w: float | None, accuracy: float | None) -> None:
        self._path, self._zone, self._node_w, self._accuracy = path, zone, node_w, accuracy
        self._wrong: list[ConfigError] = []
        self._lines: dict[str, int] = {}
        self._left = {"jobs that did not run": 0, "jobs that were not over": 0}
        self._assumed = 0
        self.zoned = self.dated = True

    @property
    def why_none(self) -> str:
        """Return what was left out."""
        return ", ".join(f"{count} {what} were left out" for what, count in self._left.items() if count)

    def notes(self) -> tuple[str, ...]:
        """Return what has to be said of the jobs."""
        found = [self.why_none] if self.why_none else []
        if self._assumed:
            found.append(
                f"{self._assumed} jobs without a power of their own are taken to draw {self._node_w:g} W per node"
            )
        if not self.zoned:
            found.append("times have no zone and are taken as UTC")
        return tuple(found)

    def check(self) -> None:
        """Raise ConfigError with all that is wrong."""
        if self._wrong:
            told = [str(error) for error in self._wrong[:MOST_TOLD]]
            more = len(self._wrong) - len(told)
            raise ConfigError("\n".join([*told, f"{self._path}: and {more} more"] if more else told))

    def job(self, line: int, row: Row) -> Job | None:
        """Return a job, None where the row is none or is wrong."""
        where = f"{self._path}:{line}"
        name = escape_unprintable(row.get("id", ""))
        if row.get("state", "").partition(" ")[0].upper() in NOT_OVER:
            self._left["jobs that were not over"] += 1
            return None
        try:
            return self._read(where, line, name, row)
        except ConfigError as error:
            self._wrong.append(ConfigError(error.what, where=where, why=error.why, next=error.next))
            return None

    def _read(self, where: str, line: int, name: str, row: Row) -> Job | None:
        if not name:
            raise ConfigError("a job without id", next="give each job an id of its own")
        if name in self._lines:
            raise ConfigError(
                f"job {name} is there twice", why=f"first in line {self._lines[name]}", next="leave one out"
            )
        duration_s, nodes = _elapsed(row["duration"]), _number(row.get("nodes", ""), "nodes")
        if duration_s == 0 or nodes == 0:
            self._left["jobs that did not run"] += 1
            return None
        if nodes != int(nodes):
            raise ConfigError(f"nodes is {nodes:g}", next="give a whole number")
        self._lines[name] = line
        highest, rated = (_number(row[key], key) if row.get(key) else None for key in ("highest_w", "rated_w"))
        node_w = self._power(row, duration_s * nodes, name)
        if highest is not None and highest < node_w.value * (1 - 1e-6):
            raise ConfigError(
                f"highest_w is {highest:g}, below the mean of {node_w.value:g} W", next="correct that line"
            )
        return Job(
            name, self._time(row["submit"]), int(nodes), duration_s, node_w, highest,
            escape_unprintable(row.get("workload", "")), rated, where,
        )  # fmt: skip

    def _power(self, row: Row, node_s: float, name: str) -> Quantity:
        """Return a node's mean power: as it is told, by its energy, or by what is given for those without."""
        if row.get("node_w"):
            value = _number(row["node_w"], "node_w")
        elif (energy := _energy(row.get("energy", ""))) is not None:
            value = energy / node_s
        elif self._node_w is not None:
            self._assumed += 1
            return Quantity(self._node_w, known=False)
        else:
            raise ConfigError(
                f"the power of job {name} is not known", next="give node_w, or --node-w for all such jobs"
            )
        if value <= 0:
            raise ConfigError(f"node_w is {value:g}", next="give a number above 0")
        if self._accuracy is None:
            return Quantity(value, known=False)
        return Quantity(value, {f"gain:{self._path.name}": value * self._accuracy / 2} if self._accuracy else {})

    def _time(self, text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            pass
        else:
            if not math.isfinite(found):
                raise ConfigError(f"{text!r} is no time", next="write it as 2026-01-05T08:00:00Z, or in s")
            self.dated = self.dated and found >= FIRST_DATE_S
            return found
        try:
            local = dt.datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(
                f"{escape_unprintable(text)!r} is no time", next="write it as 2026-01-05T08:00:00Z, or in s"
            ) from None
        if local.tzinfo is not None:
            return local.timestamp()
        if self._zone is not None:
            return utc_of(local, self._zone)
        self.zoned = False
        return local.replace(tzinfo=dt.UTC).timestamp()


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} is {escape_unprintable(text)!r}", next="give a number that is not below 0")
    return value


def _elapsed(text: str) -> float:
    """Return s of a number, or of Slurm's [days-]hours:minutes:seconds."""
    match = _ELAPSED.fullmatch(text)
    if match is None:
        return _number(text, "duration_s")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _energy(text: str) -> float | None:
    """Return J of a number, or of Slurm's 1.5M; None where there is none: Slurm writes 0 where it has no meter."""
    if text and not _ENERGY.fullmatch(text):
        raise ConfigError(f"the energy is {escape_unprintable(text)!r}", next="give J: 1500000, or 1.5M")
    return _joules(text)


def _joules(text: str) -> float | None:
    """Return J, None where the text is none, 0, or one of Slurm's marks for no value (with a prefix: rounded ones)."""
    match = _ENERGY.fullmatch(text)
    if match is None:
        return None
    value = float(match[1]) * PREFIXES[match[2]]
    return None if value == 0 or value >= LEAST_MARK or match[0] in NO_VALUE else value
