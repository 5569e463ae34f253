"""Read the jobs of a queue: from runs, from CSV or `sacct -P`, or from the Standard Workload Format (SWF).

SWF is the format of the Parallel Workloads Archive: 18 numbers per line, comments after `;`, -1 for unknown values.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import math
import re
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError, join_errors
from joulelab.core.quantity import Quantity
from joulelab.core.text import escape_unprintable
from joulelab.plan.cap_response import find_cap, list_caps
from joulelab.plan.measured_runs import count_nodes, find_accounted_side, name_workload
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.plan.measured_runs import MeasuredRun

    Row = dict[str, str]

# Names of columns; the second and later ones are Slurm's.
COLUMNS = {
    "id": ("id", "jobid"),
    "submit": ("submit",),
    "nodes": ("nodes", "nnodes", "allocnodes"),
    "duration": ("duration_s", "elapsedraw", "elapsed"),
    "requested": ("requested_s",),
    "node_w": ("node_w",),
    "energy": ("energy_j", "consumedenergyraw", "consumedenergy"),
    "highest_w": ("highest_w", "max_w"),
    "rated_w": ("rated_w",),
    "workload": ("workload", "jobname"),
    "state": ("state",),
}
NEEDED_COLUMNS = ("id", "submit", "nodes", "duration")
UNFINISHED = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "RESIZING")
PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
# Slurm's marks for "no value" and "infinite": of 64 bits, also rounded with a prefix, and of 32 bits.
LEAST_MARK = float(2**63)
NO_VALUE = (str(2**32 - 1), str(2**32 - 2))
ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
ENERGY = re.compile(r"(\d+(?:\.\d+)?)([KMGTPE]?)")
SWF_FIELDS = 18
SWF_PARTS = (2, 3, 4)  # status of a part of a job that was interrupted; the whole job has a line of its own
SWF_HEADER = re.compile(r";\s*(MaxNodes|MaxProcs):\s*(\d+)")
GZIP_MARK = b"\x1f\x8b"
GZIP_WINDOW = 31  # of zlib: a gzip header and the largest window
MOST_BYTES = 500_000_000
MOST_MISTAKES = 10
LONGEST_TITLE = 160


@dataclass(frozen=True, slots=True)
class QueueJob:
    """Hold a job as it ran without a cap: times in s (`submit_s` from any start), powers of one node in W.

    `requested_s` is the time by which a scheduler plans. `where` is a line of a file, or a run.
    """

    id: str
    submit_s: float
    nodes: int
    duration_s: float
    node_w: Quantity
    highest_w: float | None = None
    workload: str = ""
    rated_w: float | None = None
    where: str = ""
    requested_s: float | None = None


@dataclass(frozen=True)
class JobStream:
    """Hold jobs by submission and their source; `title` is the comment above a file, `twins` simulated the powers."""

    jobs: tuple[QueueJob, ...]
    source: str
    notes: tuple[Note, ...] = ()
    twins: tuple[str, ...] = ()
    title: str = ""

    @property
    def workloads(self) -> tuple[str, ...]:
        """Return the names of the workloads, each once."""
        return tuple(dict.fromkeys(job.workload for job in self.jobs))


def make_run_stream(
    measured: Sequence[MeasuredRun], repeat: int | None = None, every_s: float | None = None
) -> JobStream:
    """Return runs as jobs, each submitted when it started, or `repeat` jobs of them in turn, one each `every_s`.

    Runs under a cap are not jobs: they show the effect of caps. Raises ConfigError without runs.
    """
    if not measured:
        raise ConfigError("there are no jobs", next="name runs, or a file of jobs: --jobs jobs.csv")
    groups: dict[str, list[MeasuredRun]] = {}
    for each in measured:
        groups.setdefault(name_workload(each.result), []).append(each)
    free: list[MeasuredRun] = []
    for group in groups.values():
        has_caps = any(find_cap(each.result) is not None for each in group)
        caps = list_caps(group) if has_caps else [0.0] * len(group)
        free += [each for each, cap in zip(group, caps, strict=True) if cap == max(caps)]
    notes = []
    if len(free) < len(measured):
        notes.append(Note("queue.capped-runs", {"runs": len(measured) - len(free)}))
    if uneven := sum(not each.resolved for each in free):
        notes.append(Note("queue.even-spread", {"runs": uneven}))
    sides = [{d.side for d in each.draws} or {find_accounted_side(each)} for each in free]
    if inside := sum(side != {"ac"} for side in sides):
        notes.append(Note("queue.not-wall", {"runs": inside}))
    jobs = sorted(map(_make_run_job, free), key=lambda job: job.submit_s)
    source = f"{len(jobs)} run{'s' if len(jobs) > 1 else ''}"
    if repeat is not None and every_s is not None:
        source = f"{repeat} jobs, one each {every_s:g} s, made from {source}"
        turns = [(k, jobs[k % len(jobs)]) for k in range(repeat)]
        jobs = [replace(job, id=f"{job.id}#{k + 1}", submit_s=jobs[0].submit_s + k * every_s) for k, job in turns]
    twins = dict.fromkeys(each.result.twin for each in measured if each.result.twin)
    return JobStream(tuple(jobs), source, tuple(notes), tuple(twins))


def _make_run_job(measured: MeasuredRun) -> QueueJob:
    result, draws, nodes = measured.result, measured.draws, count_nodes(measured)
    [energy] = measured.energies([0.0, result.duration_s])
    rated = [draw.rated_w for draw in draws if draw.rated_w is not None]
    return QueueJob(
        result.run, measured.start_utc_s, nodes, result.duration_s, energy * (1 / (result.duration_s * nodes)),
        max((draw.highest_w for draw in draws), default=None), name_workload(result),
        sum(rated) / len(rated) if rated and len(rated) == len(draws) else None, f"run {result.run}",
    )  # fmt: skip


def read_job_file(
    path: Path, *, node_w: float | None = None, accuracy: float | None = None, processors: int | None = None
) -> JobStream:
    """Read CSV, the output of `sacct -P`, or SWF (`.swf`, or a first line with `;`), each also compressed by gzip.

    `node_w` (W) is for jobs without a power, `accuracy` the share by which all powers of the file may be wrong alike
    (k = 2), `processors` those of a node in SWF. Raises ConfigError with a line for each mistake.
    """
    text = _read_text(path)
    is_swf = ".swf" in [suffix.lower() for suffix in path.suffixes] or text.startswith(";")
    reader = _JobReader(path, node_w, accuracy)
    if is_swf:
        _read_swf(text, reader, processors)
    else:
        _read_csv(text, reader)
    if reader.mistakes:
        more = len(reader.mistakes) - MOST_MISTAKES
        listed = reader.mistakes[:MOST_MISTAKES]
        if more > 0:
            listed.append(ConfigError(f"{more} more mistakes", where=str(path), next="correct these first"))
        raise join_errors(listed)
    left = {name: float(count) for name, count in reader.left_out.items()}
    if not reader.jobs:
        why = ", ".join(f"{count:g} jobs {name}" for name, count in left.items())
        raise ConfigError("the file has no jobs", where=str(path), why=why or None, next="name another file of jobs")
    notes = [Note("queue.left-out", left)] if left else []
    if reader.assumed and node_w is not None:
        notes.append(Note("queue.assumed-power", {"jobs": reader.assumed, "node_w": node_w}))
    ordered = tuple(sorted(reader.jobs, key=lambda job: job.submit_s))
    above = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    title = escape_unprintable(" ".join(line.strip("# ") for line in above))[:LONGEST_TITLE]
    return JobStream(ordered, f"{len(ordered)} jobs of {path.name}", tuple(notes), title=title)


def _read_text(path: Path) -> str:
    why = ""
    try:
        data = read_regular(path, MOST_BYTES)
        if data.startswith(GZIP_MARK):
            unpacker = zlib.decompressobj(GZIP_WINDOW)
            data = unpacker.decompress(data, MOST_BYTES)
            if not unpacker.eof:
                why = "it is too large" if len(data) >= MOST_BYTES else "the compressed file is cut off"
        text = data.decode("utf-8-sig")
    except OSError as error:
        why = error.strerror or str(error)
    except zlib.error:
        why = "the compressed file is damaged"
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    if why:
        then = "name a file of jobs: CSV with a header, the output of sacct -P, or SWF"
        raise ConfigError("cannot read the file of jobs", where=str(path), why=why, next=then)
    return text


class _JobReader:
    """Collect the jobs of a file, its mistakes, and the number of jobs that are left out by reason."""

    def __init__(self, path: Path, node_w: float | None, accuracy: float | None) -> None:
        self.path, self.jobs, self.assumed = path, [], 0  # type: tuple[Path, list[QueueJob], int]
        self.mistakes: list[ConfigError] = []
        self.left_out: Counter[str] = Counter()
        self._node_w, self._accuracy = node_w, accuracy
        self._lines: dict[str, int] = {}

    def read(self, line: int, row: Row) -> None:
        """Add the job of a row by our names of columns, or the mistake in it."""
        try:
            job = self._make_job(f"{self.path}:{line}", row)
        except ConfigError as error:
            self.add_mistake(line, error.what, error.next, error.why)
            return
        if job is None:
            return
        first = self._lines.setdefault(job.id, line)
        if not job.id:
            self.add_mistake(line, "the job has no id", "give each job an id of its own")
        elif first != line:
            self.add_mistake(line, f"job {job.id} is there twice", "remove one", f"first in line {first}")
        else:
            self.jobs.append(job)

    def add_mistake(self, line: int, what: str, advice: str | None, why: str | None = None) -> None:
        """Add a mistake in a line of the file."""
        self.mistakes.append(ConfigError(what, where=f"{self.path}:{line}", why=why, next=advice))

    def _make_job(self, where: str, row: Row) -> QueueJob | None:
        if row.get("state", "").partition(" ")[0].upper() in UNFINISHED:
            self.left_out["unfinished"] += 1
            return None
        duration_s, nodes = _read_elapsed(row["duration"]), _read_number(row["nodes"], "nodes")
        if duration_s == 0 or nodes == 0:
            self.left_out["not_run"] += 1
            return None
        if nodes != int(nodes):
            raise ConfigError(f"nodes is {nodes:g}", next="give a whole number")
        name = escape_unprintable(row["id"])
        node_w = self._find_power(row, duration_s * nodes, name)
        optional = {key: _read_number(row[key], key) for key in ("highest_w", "rated_w", "requested") if row.get(key)}
        highest_w = optional.get("highest_w")
        if highest_w is not None and highest_w < node_w.value * (1 - 1e-6):
            raise ConfigError(
                f"highest_w is {highest_w:g}, below the mean of {node_w.value:g} W", next="correct that line"
            )
        return QueueJob(
            name, _read_submit(row["submit"]), int(nodes), duration_s, node_w, highest_w,
            escape_unprintable(row.get("workload", "")), optional.get("rated_w") or None, where,
            optional.get("requested") or None,
        )  # fmt: skip

    def _find_power(self, row: Row, node_s: float, name: str) -> Quantity:
        """Return the mean power of a node: its own, by its energy, or that given for jobs without."""
        energy_j = _read_energy(row.get("energy", ""))
        if row.get("node_w"):
            watts = _read_number(row["node_w"], "node_w")
        elif energy_j is not None:
            watts = energy_j / node_s
        elif self._node_w is not None:
            self.assumed += 1
            return Quantity(self._node_w, known=False)
        else:
            raise ConfigError(
                f"the power of job {name} is not known", next="give node_w, or --node-w 6kW for all jobs without"
            )
        if watts <= 0:
            raise ConfigError(f"node_w is {watts:g}", next="give a number above 0")
        if self._accuracy is None:
            return Quantity(watts, known=False)
        return Quantity(watts, {f"gain:{self.path.name}": watts * self._accuracy / 2} if self._accuracy else {})


def _read_csv(text: str, reader: _JobReader) -> None:
    """Read CSV with a header; the separator is found in the header. Raises ConfigError without needed columns."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if not lines:
        raise ConfigError(
            "the file of jobs is empty", where=str(reader.path), next="give a header and a line for each job"
        )
    number, header = lines[0]
    separator = next((sign for sign in "|;\t" if sign in header), ",")
    words = [word.strip().lower() for word in next(csv.reader([header], delimiter=separator))]
    # Of two columns for one value (Elapsed, ElapsedRaw), the first in our list.
    places = {name: next((words.index(w) for w in known if w in words), None) for name, known in COLUMNS.items()}
    missing = [COLUMNS[name][0] for name in NEEDED_COLUMNS if places[name] is None]
    if missing:
        raise ConfigError(
            f"the file of jobs has no column {', '.join(missing)}", where=f"{reader.path}:{number}",
            why=f"its columns are {escape_unprintable(', '.join(words))[:200]}",
            next="name the columns id, submit, nodes, duration_s, node_w, or as sacct -P does",
        )  # fmt: skip
    rows: list[tuple[int, Row]] = []
    for n, line in lines[1:]:
        cells = next(csv.reader([line], delimiter=separator))
        filled = {name: k for name, k in places.items() if k is not None}
        rows.append((n, {name: cells[k].strip() if k < len(cells) else "" for name, k in filled.items()}))
    if "jobid" in words:
        rows = _join_slurm_steps(rows)
    for n, row in rows:
        reader.read(n, row)


def _join_slurm_steps(rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Return jobs without their steps (`7.batch`). Energies of steps are those of whole nodes, and overlap.

    So a job without an energy of its own gets the largest of its steps.
    """
    largest: dict[str, float] = {}
    for _, row in rows:
        job, dot, _ = row["id"].partition(".")
        if dot and ENERGY.fullmatch(row.get("energy", "")):
            largest[job] = max(largest.get(job, 0.0), _read_energy(row["energy"]) or 0.0)
    jobs = [(n, row) for n, row in rows if "." not in row["id"]]
    for _, row in jobs:
        text = row.get("energy", "")
        is_missing = not text or (ENERGY.fullmatch(text) is not None and _read_energy(text) is None)
        if is_missing and largest.get(row["id"]):
            row["energy"] = f"{largest[row['id']]:.3f}"
    return jobs


def _read_swf(text: str, reader: _JobReader, processors: int | None) -> None:
    """Read SWF: submit, run and requested time, processors (allocated, else requested), status, application."""
    header = {name: int(number) for name, number in SWF_HEADER.findall(text)}
    if processors is None:
        processors = (
            max(header.get("MaxProcs", 1) // max(header.get("MaxNodes", 0), 1), 1) if "MaxNodes" in header else 1
        )
    for line, content in enumerate(text.splitlines(), 1):
        words = content.partition(";")[0].split()
        if not words:
            continue
        if len(words) != SWF_FIELDS:
            advice = "correct or remove that line"
            reader.add_mistake(line, f"the line has {len(words)} fields", advice, f"SWF has {SWF_FIELDS}")
            continue
        numbers = []
        for name, place in (("run time", 3), ("processors", 4), ("requested processors", 7), ("status", 10)):
            try:
                numbers.append(float(words[place]))
            except ValueError:
                numbers.append(math.nan)
            if not math.isfinite(numbers[-1]):
                advice = "give a number, or -1 where it is unknown"
                reader.add_mistake(line, f"the {name} is {escape_unprintable(words[place])!r}", advice)
        if numbers[3] in SWF_PARTS:
            reader.left_out["parts"] += 1
            continue
        allocated = numbers[1] if numbers[1] >= 0 else numbers[2]
        if not (numbers[0] > 0 and allocated >= 1):  # also where a number is wrong
            reader.left_out["not_run"] += 1
            continue
        reader.read(line, {
            "id": words[0], "submit": words[1], "nodes": str(math.ceil(allocated / processors)), "duration": words[3],
            "requested": "" if words[8].startswith("-") else words[8],
            "workload": "" if words[13].startswith("-") else f"app{words[13]}",
        })  # fmt: skip


def _read_submit(text: str) -> float:
    """Return s of a number, or of a date; dates without an offset are taken as UTC."""
    advice = "write it as 2026-01-05T08:00:00Z, or in s"
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = dt.datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(f"the submit time is {escape_unprintable(text)!r}", next=advice) from None
        seconds = (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ConfigError(f"the submit time is {text!r}", next=advice)
    return seconds


def _read_number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} is {escape_unprintable(text)!r}", next="give a number that is not below 0")
    return value


def _read_elapsed(text: str) -> float:
    """Return s of a number, or of Slurm's [days-]hours:minutes:seconds."""
    match = ELAPSED.fullmatch(text)
    if match is None:
        return _read_number(text, "duration_s")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _read_energy(text: str) -> float | None:
    """Return J of a number, or of Slurm's 1.5M; None for Slurm's marks: empty, 0 (no meter), no value, infinite."""
    if not text:
        return None
    match = ENERGY.fullmatch(text)
    if match is None:
        raise ConfigError(f"the energy is {escape_unprintable(text)!r}", next="give J: 1500000, or 1.5M")
    joules = float(match[1]) * PREFIXES[match[2]]
    return None if joules == 0 or joules >= LEAST_MARK or text in NO_VALUE else joules
