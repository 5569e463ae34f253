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

# Names of columns: ours, then Slurm's.
COLUMNS = {
    "id": ("id", "jobid"),
    "submit": ("submit",),
    "nodes": ("nodes", "nnodes", "allocnodes"),
    "duration_s": ("duration_s", "elapsedraw"),
    "requested_s": ("requested_s",),
    "node_w": ("node_w",),
    "energy_j": ("energy_j", "consumedenergyraw"),
    "highest_w": ("highest_w", "max_w"),
    "rated_w": ("rated_w",),
    "workload": ("workload", "jobname"),
    "state": ("state",),
}
NEEDED_COLUMNS = ("id", "submit", "nodes", "duration_s")
UNFINISHED = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "RESIZING")
NO_ENERGY = (0.0, float(2**32 - 1), float(2**32 - 2))  # Slurm without a meter, and its marks for "no value" (32 bits)
LEAST_MARK_J = float(2**63)  # its marks of 64 bits are above
SWF_FIELDS = 18
SWF_PARTS = ("2", "3", "4")  # status of a part of an interrupted job; the whole job has a line of its own
PART = "part"  # as a state
SWF_HEADER = re.compile(r";\s*(MaxNodes|MaxProcs):\s*(\d+)")
DATE = re.compile(r"\d{4}-|\d{8}T")
GZIP_MARK = b"\x1f\x8b"
GZIP_WINDOW = 31  # of zlib: a gzip header and the largest window
MOST_BYTES = 500_000_000
MOST_MISTAKES = 10
LONGEST_TITLE = 160
LATEST_S = 1e11  # the year 5138: later seconds since 1970 are milliseconds


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
    sides = [{str(d.side) for d in each.draws} or {find_accounted_side(each)} for each in free]
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
    counts: Counter[str] = Counter()
    mistakes: list[ConfigError] = []
    jobs: dict[str, QueueJob] = {}
    if is_swf and processors is None:
        processors = _find_swf_processors(text)
    rows = _list_swf_rows(text, processors or 1) if is_swf else _list_csv_rows(text, path)
    _check_submit_times(rows, path)
    for line, row in rows:
        where = f"{path}:{line}"
        if row.get("state") in (*UNFINISHED, PART):
            counts["parts" if row["state"] == PART else "unfinished"] += 1
            continue
        try:
            job = _make_job(row, where, counts, node_w, accuracy)
        except ConfigError as error:
            mistakes.append(ConfigError(error.what, where=where, why=error.why, next=error.next))
            continue
        if job is not None and jobs.setdefault(job.id, job) is not job:
            why = f"first in line {jobs[job.id].where.rpartition(':')[2]}"
            mistakes.append(ConfigError(f"job {job.id} is there twice", where=where, why=why, next="remove one"))
    if len(mistakes) > MOST_MISTAKES:
        more = ConfigError(
            f"{len(mistakes) - MOST_MISTAKES} more mistakes", where=str(path), next="correct these first"
        )
        mistakes = [*mistakes[:MOST_MISTAKES], more]
    if mistakes:
        raise join_errors(mistakes)
    left_out = {name: float(count) for name, count in counts.items() if name != "assumed"}
    if not jobs:
        why = ", ".join(f"{count:,.0f} {name.replace('_', ' ')}" for name, count in left_out.items())
        raise ConfigError("the file has no jobs", where=str(path), why=why or None, next="name another file of jobs")
    notes = [Note("queue.processors-unknown")] if is_swf and processors is None else []
    notes += [Note("queue.left-out", left_out)] if left_out else []
    if counts["assumed"] and node_w is not None:
        notes.append(Note("queue.assumed-power", {"jobs": counts["assumed"], "node_w": node_w}))
    ordered = tuple(sorted(jobs.values(), key=lambda job: job.submit_s))
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


def _list_csv_rows(text: str, path: Path) -> list[tuple[int, Row]]:
    """Return the rows by our names of columns, with their lines. Raises ConfigError without needed columns."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if not lines:
        raise ConfigError("the file of jobs is empty", where=str(path), next="give a header and a line for each job")
    separator = next((sign for sign in "|;\t" if sign in lines[0][1]), ",")
    (number, header), *cells = [(n, next(csv.reader([line], delimiter=separator))) for n, line in lines]
    words = [word.strip().lower() for word in header]
    if not words[-1]:  # `sacct -p` ends every line with a separator
        words.pop()
    places = {name: next((words.index(w) for w in known if w in words), None) for name, known in COLUMNS.items()}
    missing = [name for name in NEEDED_COLUMNS if places[name] is None]
    if missing:
        raise ConfigError(
            f"the file of jobs has no column {', '.join(missing)}", where=f"{path}:{number}",
            why=f"its columns are {escape_unprintable(', '.join(words))[:200]}",
            next="name the columns id, submit, nodes, duration_s, node_w; "
            "for Slurm: sacct -P -o JobID,JobName,Submit,ElapsedRaw,NNodes,ConsumedEnergyRaw,State",
        )  # fmt: skip
    rows = []
    for n, row in cells:
        while len(row) > len(words) and not row[-1].strip():
            row.pop()
        if len(row) != len(words):
            rows.append((n, {"fields": str(len(row)), "wanted": f"the header has {len(words)}"}))
            continue
        found = {name: row[k].strip() for name, k in places.items() if k is not None}
        found["state"] = found.get("state", "").partition(" ")[0].upper()
        rows.append((n, found))
    return _join_slurm_steps(rows) if "jobid" in words else rows


def _join_slurm_steps(rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Return jobs without their steps (`7.batch`). Energies of steps are those of whole nodes, and overlap.

    So a job without an energy of its own gets the largest of its steps.
    """
    largest: dict[str, float] = {}
    for _, row in rows:
        job, dot, _ = row.get("id", "").partition(".")
        if dot and row.get("energy_j", "").isdecimal():
            largest[job] = max(largest.get(job, 0.0), _read_energy(row) or 0.0)
    jobs = [(n, row) for n, row in rows if "." not in row.get("id", "")]
    for _, row in jobs:
        text = row.get("energy_j", "")
        if (not text or text.isdecimal()) and _read_energy(row) is None and largest.get(row.get("id", "")):
            row["energy_j"] = f"{largest[row['id']]:.3f}"
    return jobs


def _check_submit_times(rows: Sequence[tuple[int, Row]], path: Path) -> None:
    """Refuse a file with dates in some lines and seconds in others: they have no common start. Raises ConfigError."""
    lines: dict[str, int] = {}
    for line, row in rows:
        text = row.get("submit", "")
        if text[:1].isdecimal():
            lines.setdefault("a date" if DATE.match(text) else "seconds", line)
    if len(lines) > 1:
        what = "some submit times are dates, others are seconds"
        why = ", ".join(f"{name} in line {line}" for name, line in lines.items())
        raise ConfigError(what, where=str(path), why=why, next="write all of them in one way")


def _find_swf_processors(text: str) -> int | None:
    """Return the processors of a node by the header of SWF, None if it does not state them."""
    header = {name: int(number) for name, number in SWF_HEADER.findall(text)}
    return max(header["MaxProcs"] // max(header["MaxNodes"], 1), 1) if len(header) == 2 else None


def _list_swf_rows(text: str, processors: int) -> list[tuple[int, Row]]:
    """Return the rows of SWF by our names of columns; negative numbers are unknown there, and empty here.

    A line with another number of fields has an empty row.
    """
    rows = []
    for line, content in enumerate(text.splitlines(), 1):
        words = ["" if word.startswith("-") else word for word in content.partition(";")[0].split()]
        if not words:
            continue
        if len(words) != SWF_FIELDS:
            rows.append((line, {"fields": str(len(words)), "wanted": f"SWF has {SWF_FIELDS}"}))
            continue
        nodes = words[4] or words[7] or "0"
        if nodes.isdecimal():
            nodes = str(math.ceil(int(nodes) / processors))
        row = {"id": words[0], "submit": words[1], "nodes": nodes, "duration_s": words[3] or "0"}
        row |= {"requested_s": words[8], "workload": f"app{words[13]}" if words[13] else ""}
        rows.append((line, row | {"state": PART if words[10] in SWF_PARTS else ""}))
    return rows


def _make_job(
    row: Row, where: str, counts: Counter[str], node_w: float | None, accuracy: float | None
) -> QueueJob | None:
    """Return the job of a row; None, and counted, if it did not run. Raises ConfigError."""
    if "fields" in row:
        raise ConfigError(f"the line has {row['fields']} fields", why=row["wanted"], next="correct or remove that line")
    name = escape_unprintable(row.get("id", ""))
    if not name:
        raise ConfigError("the job has no id", next="give each job an id of its own")
    duration_s, nodes = _read_number(row, "duration_s"), _read_number(row, "nodes")
    if duration_s == 0 or nodes == 0:
        counts["not_run"] += 1
        return None
    if nodes != int(nodes):
        raise ConfigError(f"nodes is {nodes:g}", next="give a whole number")
    energy_j = _read_energy(row)
    watts = _read_number(row, "node_w") if row.get("node_w") else energy_j and energy_j / (duration_s * nodes)
    if watts is None:
        if node_w is None:
            raise ConfigError(
                f"the power of job {name} is not known", next="give node_w, or --node-w 6kW for such jobs"
            )
        watts = node_w
        counts["assumed"] += 1
    if watts <= 0:
        raise ConfigError(f"node_w is {watts:g}", next="give a number above 0")
    # One meter for all jobs, so one term: it cancels in differences.
    power = Quantity(watts, {"gain:jobs": watts * accuracy / 2} if accuracy else {}, accuracy is not None)
    highest_w, rated_w, requested_s = (
        _read_number(row, key) if row.get(key) else None for key in ("highest_w", "rated_w", "requested_s")
    )
    if highest_w is not None and highest_w < power.value * (1 - 1e-6):
        raise ConfigError(f"highest_w is {highest_w:g}, below the mean of {power.value:g} W", next="correct that line")
    return QueueJob(
        name, _read_submit(row.get("submit", "")), int(nodes), duration_s, power, highest_w,
        escape_unprintable(row.get("workload", "")), rated_w or None, where, requested_s or None,
    )  # fmt: skip


def _read_submit(text: str) -> float:
    """Return s of a number, or of a date; dates without an offset are taken as UTC."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = dt.datetime.fromisoformat(text)
            seconds = (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp()
        except ValueError:
            seconds = math.nan
    if not abs(seconds) < LATEST_S:
        advice = "write it as 2026-01-05T08:00:00Z, or in s (not in ms)"
        raise ConfigError(f"the submit time is {escape_unprintable(text)!r}", next=advice)
    return seconds


def _read_number(row: Row, name: str) -> float:
    text = row.get(name, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} is {escape_unprintable(text)!r}", next="give a number that is not below 0")
    return value


def _read_energy(row: Row) -> float | None:
    """Return the energy in J; None for an empty cell, and for Slurm's marks: no meter, no value, infinite."""
    joules = _read_number(row, "energy_j") if row.get("energy_j") else 0.0
    return None if joules in NO_ENERGY or joules >= LEAST_MARK_J else joules
