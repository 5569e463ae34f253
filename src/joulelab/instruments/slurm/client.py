"""Ask Slurm by its own programs (sacct, sstat, scontrol): text for machines only, times in UTC, every call bounded."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.clock import NS
from joulelab.core.errors import Denied, MeterError, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What sacct is asked for, in this order; a job's name is free text and is asked for on its own.
ROW_FIELDS = (
    "JobID", "JobIDRaw", "DBIndex", "User", "State", "ExitCode", "ElapsedRaw", "Start", "End", "NNodes", "NodeList",
    "ConsumedEnergyRaw",
)  # fmt: skip
OTHER_FIELDS = ("JobIDRaw", "State", "Start", "End", "NodeList")
LIVE_FIELDS = ("JobID", "ConsumedEnergyRaw")
MOST_NODES = 100_000
MOST_JOBS = 400  # named in one call: some kilobytes of command line
# 5, 5_2, 5_[3-9] (tasks that wait), 5+1 and their steps: 5.0, 5_2.batch, 5+1.extern
_ROW_ID = re.compile(
    r"(?P<job>[1-9]\d{0,9})(?:_(?:\d{1,10}|\[[\d,:%.-]{1,200}\])|\+(?P<part>\d{1,5}))?(?:\.(?P<step>[A-Za-z0-9+]{1,32}))?",
    re.ASCII,
)
_JOB_ID = re.compile(r"[1-9]\d{0,9}([_+]\d{1,10})?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
# Slurm's marks for "no value" and "infinite", in 64 and 32 bits; a float without a value can be printed as either.
_NOT_A_NUMBER = frozenset({2**64 - 1, 2**64 - 2, 2**32 - 1, 2**32 - 2})
_NO_TIME = ("Unknown", "None", "N/A", "")
_RUN_ON = "run it on a machine of the cluster (a login node), or name its slurm.conf by SLURM_CONF"


class Answer(NamedTuple):
    """Hold how a program ended and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class AccountingRow:
    """Hold one row of sacct: a job (`step` empty) or one of its steps; times in UTC ns, None where not known.

    `energy_j` is None where Slurm gives no number, and then `energy_text` is what it gave. `execution` is the same
    for all rows of one execution of a job, which may be requeued; `part` is a component of a heterogeneous job.
    """

    job: str
    raw: str
    step: str
    part: str
    execution: str
    user: str
    state: str
    exit_code: str
    elapsed_s: int | None
    start_ns: int | None
    end_ns: int | None
    nodes: str
    node_count: int
    energy_j: int | None
    energy_text: str


@dataclass(frozen=True, slots=True)
class OtherJob:
    """Hold a job that was on a node at some time; `end_ns` is None while it runs."""

    raw: str
    start_ns: int | None
    end_ns: int | None
    nodes: str


class Slurm:
    """Run Slurm's client programs; `run(words, timeout_s)` is how, `where` is for messages."""

    def __init__(
        self,
        *,
        timeout_s: float = 10.0,
        conf: str | None = None,
        where: str = "slurm",
        run: Callable[[Sequence[str], float], Answer] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._conf = conf
        self._where = where
        self._run = run or self._start

    def accounting(self, job: str) -> list[AccountingRow]:
        """Return all rows of a job, of all its executions. Raises MeterError."""
        words = ("sacct", "--parsable2", "--noheader", "--duplicates", "-o", ",".join(ROW_FIELDS), "-j", check_job(job))
        return parse_accounting(self._ask(words), self._where)

    def accounting_of(self, jobs: Sequence[str]) -> list[AccountingRow]:
        """Return all rows of several jobs, each once, with as few calls as a command line allows. Raises MeterError."""
        rows: dict[AccountingRow, None] = {}
        for first in range(0, len(jobs), MOST_JOBS):
            words = ("sacct", "--parsable2", "--noheader", "--duplicates", "-o", ",".join(ROW_FIELDS), "-j")
            named = ",".join(check_job(job) for job in jobs[first : first + MOST_JOBS])
            rows |= dict.fromkeys(parse_accounting(self._ask((*words, named)), self._where))
        return list(rows)

    def job_name(self, job: str) -> str:
        """Return the name of a job on one line. Raises MeterError."""
        words = ("sacct", "--parsable2", "--noheader", "--allocations", "-o", "JobName", "-j", check_job(job))
        return " ".join(self._ask(words).split())

    def others(self, nodes: str, start_ns: int, end_ns: int) -> list[OtherJob]:
        """Return the jobs of all users that were on these nodes in [start, end], as far as one may see them."""
        words = ["sacct", "--parsable2", "--noheader", "--duplicates", "--allocations", "--allusers"]
        words += ["-o", ",".join(OTHER_FIELDS), "-N", nodes, "-S", _stamp(start_ns), "-E", _stamp(end_ns)]
        return parse_others(self._ask(words), self._where)

    def live(self, job: str) -> dict[str, int | None]:
        """Return the energy (J) so far of the steps of a job that run, by their name. Raises MeterError."""
        words = ("sstat", "--allsteps", "--parsable2", "--noheader", "-o", ",".join(LIVE_FIELDS), "-j", check_job(job))
        return parse_live(self._ask(words), self._where)

    def job(self, job: str) -> dict[str, str]:
        """Return what the controller knows of a job; empty where it knows it no more. Raises MeterError."""
        try:
            return parse_pairs(self._ask(("scontrol", "-o", "show", "job", check_job(job))).partition("\n")[0])
        except Unavailable:
            return {}

    def node(self, name: str) -> dict[str, str]:
        """Return what the controller knows of a node. Raises MeterError, Unavailable where there is none."""
        return parse_pairs(self._ask(("scontrol", "-o", "show", "node", name)))

    def settings(self) -> dict[str, str]:
        """Return the controller's configuration. Raises MeterError."""
        return parse_settings(self._ask(("scontrol", "show", "config")))

    def _ask(self, words: Sequence[str]) -> str:
        answer = self._run(words, self._timeout_s)
        # Some versions end with 0 and say only on standard error that they had no answer.
        if answer.code or (not answer.out.strip() and "error" in answer.err):
            raise failure(words[0], answer, self._where)
        return answer.out

    def _start(self, words: Sequence[str], timeout_s: float) -> Answer:
        env = {**os.environ, "TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
        if self._conf is not None:
            env["SLURM_CONF"] = self._conf
        # What a user sets for these programs must not change what they answer here.
        env = {
            key: value for key, value in env.items() if not key.startswith(("SACCT_", "SCONTROL_", "SLURM_CLUSTERS"))
        }
        return run_program(words, env, timeout_s, self._where)


def run_program(
    words: Sequence[str], env: Mapping[str, str], timeout_s: float, where: str, keep: Sequence[int] = ()
) -> Answer:
    """Run one of Slurm's programs; `keep` are descriptors that it shall hold. Raises Unavailable, ReadFailed."""
    quiet: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(words, env=env, timeout=timeout_s, check=False, pass_fds=keep, **quiet)
    except FileNotFoundError:
        why = f"there is no program {words[0]} here"
        raise Unavailable("Slurm is not installed", where=where, why=why, next=_RUN_ON) from None
    except subprocess.TimeoutExpired:
        why = f"no answer within {timeout_s:g} s"
        raise ReadFailed(f"{words[0]} did not finish", where=where, why=why, next="it is tried again") from None
    except OSError as error:
        raise ReadFailed(f"{words[0]} cannot be run", where=where, why=str(error), next="it is tried again") from error
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def failure(program: str, answer: Answer, where: str) -> MeterError:
    """Return joulelab's error for what a program said: final, refused, or to be tried again."""
    said = [line.strip() for line in answer.err.splitlines() + answer.out.splitlines() if line.strip()]
    why = said[0][:200] if said else f"it ended with {answer.code}"
    whole = " ".join(said).lower()
    if "invalid user id" in whole or "permission denied" in whole or "access denied" in whole:
        advice = "ask for your own job, or ask the cluster's administrators"
        return Denied(f"{program} may not tell", where=where, why=why, next=advice)
    if "invalid job id" in whole or "bad job" in whole or "not found" in whole or "couldn't get steps" in whole:
        return Unavailable(
            f"{program} knows no such job or node", where=where, why=why, next="look with sacct or sinfo"
        )
    if "no steps running" in whole:
        return Unavailable("no step of the job runs", where=where, why=why, next="ask sacct")
    if "configuration source" in whole or "configuration file" in whole:
        return Unavailable("Slurm has no configuration here", where=where, why=why, next=_RUN_ON)
    if "storage is disabled" in whole or "slurmdbd is required" in whole or "filetxt" in whole:
        advice = "ask the administrators for slurmdbd"
        return Unavailable("this cluster keeps no accounting", where=where, why=why, next=advice)
    return ReadFailed(f"{program} failed", where=where, why=why, next="it is tried again")


def check_job(job: str) -> str:
    """Return a job's number as Slurm writes it: 123, 123_4 (task of an array), 123+1. Raises Unavailable."""
    if not _JOB_ID.fullmatch(job):
        raise Unavailable(
            f"{job[:40]!r} is no job", where="slurm", why="it is not a number", next="give 123, 123_4 or 123+1"
        )
    return job


def parse_accounting(text: str, where: str = "slurm") -> list[AccountingRow]:
    """Return sacct's rows; the fields are ROW_FIELDS. Raises ReadFailed for anything that is not such a row."""
    return [_row(line, where) for line in text.split("\n") if line]


def parse_others(text: str, where: str = "slurm") -> list[OtherJob]:
    """Return the jobs that sacct found on nodes; the fields are OTHER_FIELDS. Raises ReadFailed."""
    jobs = []
    for line in text.split("\n"):
        if line:
            raw, _, start, end, nodes = _fields(line, OTHER_FIELDS, where)
            jobs.append(OtherJob(raw, _time_ns(start, line, where), _time_ns(end, line, where), nodes))
    return jobs


def parse_live(text: str, where: str = "slurm") -> dict[str, int | None]:
    """Return sstat's joules by step (`5.0`, `5.batch`); the fields are LIVE_FIELDS. Raises ReadFailed."""
    found: dict[str, int | None] = {}
    for line in text.split("\n"):
        if line:
            name, energy = _fields(line, LIVE_FIELDS, where)
            if not _ROW_ID.fullmatch(name) or name in found:
                raise _malformed(line, where)
            found[name] = joules(energy, line, where)
    return found


def parse_pairs(line: str) -> dict[str, str]:
    """Return the KEY=VALUE pairs of one line of scontrol; of a repeated key the first counts."""
    found: dict[str, str] = {}
    for match in re.finditer(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line):
        found.setdefault(match[1], match[2])
    return found


def parse_settings(text: str) -> dict[str, str]:
    """Return `scontrol show config` as names and values; of a repeated name the first counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip():
            found.setdefault(name.strip(), value.strip())
    return found


def node_names(text: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it: `n[1-2],gpu[01,03-04]`. Raises ReadFailed."""
    if not text:
        return []
    match = re.match(r"[^,\[\]]*(?:\[[\d,-]+\][^,\[\]]*)*", text)
    rest = text[match.end() :] if match else text
    if not match or not match[0] or (rest and not rest.startswith(",")):
        raise _malformed(text, "slurm")
    names = [""]
    for part in re.findall(r"\[[^\]]*\]|[^\[\]]+", match[0]):
        names = [name + end for name in names for end in (_numbers(part[1:-1]) if part[0] == "[" else [part])]
    return names + node_names(rest[1:])


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        digits = first.isdigit() and (last.isdigit() or not dash)
        if not digits or (dash and int(last) - int(first) > MOST_NODES):
            raise _malformed(text, "slurm")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return found


def joules(text: str, line: str = "", where: str = "slurm") -> int | None:
    """Return joules, None where Slurm says that there is no value. Raises ReadFailed for anything else."""
    if text.strip() in ("", "n/s", "N/A", "None"):
        return None
    return _number(text, line or text, where)


def watts(text: str | None, where: str = "slurm") -> float | None:
    """Return a node's watts, None where Slurm says that there is no value. Raises ReadFailed for anything else."""
    if text is None or text.strip() in ("", "n/s", "N/A", "n/a"):
        return None
    value = _number(text, text, where)
    return None if value is None else float(value)


def _row(line: str, where: str) -> AccountingRow:
    fields = dict(zip(ROW_FIELDS, _fields(line, ROW_FIELDS, where), strict=True))
    shown, raw = _ROW_ID.fullmatch(fields["JobID"]), _ROW_ID.fullmatch(fields["JobIDRaw"])
    if not shown or not raw or shown["step"] != raw["step"]:
        raise _malformed(line, where)
    energy = fields["ConsumedEnergyRaw"]
    count = _number(fields["NNodes"] or "0", line, where)
    elapsed = fields["ElapsedRaw"]
    return AccountingRow(
        job=fields["JobID"].partition(".")[0],
        raw=raw["job"],
        step=shown["step"] or "",
        part=shown["part"] or "",
        execution=fields["DBIndex"],
        user=fields["User"],
        state=fields["State"].partition(" ")[0],  # `CANCELLED by 1000`
        exit_code=fields["ExitCode"],
        elapsed_s=_number(elapsed, line, where) if elapsed else None,
        start_ns=_time_ns(fields["Start"], line, where),
        end_ns=_time_ns(fields["End"], line, where),
        nodes="" if fields["NodeList"] == "None assigned" else fields["NodeList"],
        node_count=count or 0,
        energy_j=joules(energy, line, where),
        energy_text=energy.strip(),
    )


def _fields(line: str, names: Sequence[str], where: str) -> list[str]:
    fields = line.split("|")
    if len(fields) != len(names):
        raise _malformed(line, where)
    return fields


def _number(text: str, line: str, where: str) -> int | None:
    """Return a whole number, None for Slurm's marks of no value."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise _malformed(line, where)
    value = int(text)
    return None if value in _NOT_A_NUMBER or value >= 2**63 else value


def _time_ns(text: str, line: str, where: str) -> int | None:
    if text in _NO_TIME:
        return None
    if not _TIME.fullmatch(text):
        raise _malformed(line, where)
    try:
        moment = dt.datetime.fromisoformat(f"{text}+00:00")
    except ValueError:
        raise _malformed(line, where) from None
    return int(moment.timestamp()) * NS


def _stamp(t_ns: int) -> str:
    return dt.datetime.fromtimestamp(t_ns // NS, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _malformed(line: str, where: str) -> ReadFailed:
    why = f"it says {line[:80]!r}"
    return ReadFailed(
        "Slurm's answer is not understood", where=where, why=why, next="is it sacct of Slurm 20 or later?"
    )
