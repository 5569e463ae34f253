"""Run Slurm's own programs (sacct, sstat, scontrol), every call bounded, and parse their answers, in UTC."""

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

# Fields of sacct, in this order; a job's name is free text and is read on its own.
ROW_FIELDS = (
    "JobID", "JobIDRaw", "DBIndex", "User", "State", "ExitCode", "ElapsedRaw", "Start", "End", "NNodes", "NodeList",
    "ConsumedEnergyRaw",
)  # fmt: skip
OTHER_FIELDS = ("JobIDRaw", "State", "Start", "End", "NodeList")
LIVE_FIELDS = ("JobID", "ConsumedEnergyRaw")
USE_FIELDS = ("JobIDRaw", "AllocCPUS", "TotalCPU")
MOST_NODES = 100_000
MOST_JOBS = 400  # named in one call: some kilobytes of command line
SACCT = ("sacct", "--parsable2", "--noheader", "--duplicates", "-o")
# Settings of an outer job, or of the user, for these programs must change neither answers nor our own jobs.
FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SACCT_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SINFO_")
KEPT = ("SLURM_CONF", "SLURM_JWT")
# Of an outer job's own tasks and devices.
OUTER = ("PMI_", "PMIX_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
# Unlimited lists of array indices, times in UTC, the same words in every language.
PLAIN_OUTPUT = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard", "TZ": "UTC", "LC_ALL": "C"}
# 1-02:03:04, 02:03:04, 03:04.567
_CPU_TIME = re.compile(r"(?:(?:(\d{1,6})-)?(\d{1,2}):)?(\d{1,2}):(\d{1,2}(?:\.\d+)?)", re.ASCII)
# 5, 5_2, 5_[3-9] (tasks that wait), 5+1 and their steps: 5.0, 5_2.batch, 5+1.extern
_ROW_ID = re.compile(
    r"(?P<job>[1-9]\d{0,9})(?:_(?:\d{1,10}|\[[\d,:%.-]{1,200}\])|\+\d{1,5})?(?:\.(?P<step>[A-Za-z0-9+]{1,32}))?",
    re.ASCII,
)
_JOB_ID = re.compile(r"[1-9]\d{0,9}([_+]\d{1,10})?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
# Slurm's marks for "no value" and "infinite", in 64 and 32 bits; a float without a value can be printed as either.
_NOT_A_NUMBER = frozenset({2**64 - 1, 2**64 - 2, 2**32 - 1, 2**32 - 2})
_NO_TIME = ("Unknown", "None", "N/A", "")
_RUN_ON = "run it on a machine of the cluster (a login node), or name its slurm.conf by SLURM_CONF"
# Parts of a program's message (lower case): the error's class, what happened, what to do next, its code.
_FAILURES: tuple[tuple[tuple[str, ...], type[MeterError], str, str, str], ...] = (
    (
        ("invalid user id", "permission denied", "access denied"), Denied,
        "{} refuses the answer", "read your own job, or ask the cluster's administrators", "not-yours",
    ),
    (
        ("invalid job id", "bad job", "not found", "couldn't get steps"), Unavailable,
        "{} has no such job or node", "look with sacct or sinfo", "unknown-job",
    ),
    (("no steps running",), Unavailable, "no step of the job runs", "wait for the job's end", "no-step"),
    (
        ("configuration source", "configuration file"), Unavailable,
        "Slurm has no configuration here", _RUN_ON, "no-configuration",
    ),
    (
        ("storage is disabled", "slurmdbd is required", "filetxt"), Unavailable,
        "this cluster keeps no accounting", "ask the administrators for slurmdbd", "no-accounting",
    ),
    (("",), ReadFailed, "{} failed", "it is tried again", "program"),
)  # fmt: skip


class Answer(NamedTuple):
    """Hold the exit code and the output of a program."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class AccountingRow:
    """Hold one row of sacct: a job (`step` empty) or one of its steps; times in UTC ns, None if unknown.

    `energy_j` is None if Slurm gives no number, and then `energy_text` is its text. `execution` is the same for all
    rows of one execution of a job, which may be requeued.
    """

    job: str
    raw: str
    step: str
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


class SlurmClient:
    """Run Slurm's programs; `run(words, timeout_s)` runs one, `where` is for errors. All methods raise MeterError."""

    TIMEOUT_S = 10.0

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
        conf: str | None = None,
        where: str = "slurm",
        run: Callable[..., Answer] | None = None,
    ) -> None:
        self._environ = clean_environment(os.environ if environ is None else environ)
        self._environ |= {} if conf is None else {"SLURM_CONF": conf}
        self._timeout_s, self._where = timeout_s or self.TIMEOUT_S, where
        self._run = run or self._start_program

    def read_rows(self, jobs: Sequence[str]) -> list[AccountingRow]:
        """Return all rows of jobs, of all their executions, each once."""
        rows: dict[AccountingRow, None] = {}
        for first in range(0, len(jobs), MOST_JOBS):
            named = ",".join(check_job(job) for job in jobs[first : first + MOST_JOBS])
            answer = self._get_output(*SACCT, ",".join(ROW_FIELDS), "-j", named)
            rows |= dict.fromkeys(parse_accounting(answer, self._where))
        return list(rows)

    def read_name(self, job: str) -> str:
        """Return the name of a job on one line."""
        answer = self._get_output("sacct", "--parsable2", "--noheader", "-X", "-o", "JobName", "-j", check_job(job))
        return " ".join(answer.split())

    def read_others(self, nodes: str, start_ns: int, end_ns: int) -> list[OtherJob]:
        """Return the jobs of all users on these nodes in [start, end], as far as the user may see them."""
        start, end = (
            dt.datetime.fromtimestamp(t // NS, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S") for t in (start_ns, end_ns)
        )
        words = (*SACCT, ",".join(OTHER_FIELDS), "--allocations", "--allusers", "-N", nodes, "-S", start, "-E", end)
        return parse_others(self._get_output(*words), self._where)

    def read_cpu_use(self, jobs: Sequence[str]) -> dict[str, tuple[int, float]]:
        """Return the reserved CPUs and the CPU time (s) of jobs by their raw numbers, as far as Slurm knows them."""
        named = ",".join(check_job(job) for job in jobs[:MOST_JOBS])
        # With --allocations, sacct reads no steps and shows a CPU time of 0.
        words = (*SACCT, ",".join(USE_FIELDS), "--allusers", "-j", named)
        return parse_cpu_use(self._get_output(*words), self._where)

    def read_live(self, job: str) -> dict[str, int | None]:
        """Return the energy (J) so far of the running steps of a job, by their name."""
        words = ("sstat", "--allsteps", "--parsable2", "--noheader", "-o", ",".join(LIVE_FIELDS), "-j", check_job(job))
        return parse_live(self._get_output(*words), self._where)

    def read_job(self, job: str) -> dict[str, str]:
        """Return the controller's description of a job, empty if it has forgotten the job."""
        try:
            answer = self._get_output("scontrol", "-o", "show", "job", check_job(job))
        except Unavailable:
            return {}
        return parse_pairs(answer.partition("\n")[0])

    def read_node(self, name: str) -> dict[str, str]:
        """Return the controller's description of a node; Unavailable if there is none."""
        return parse_pairs(self._get_output("scontrol", "-o", "show", "node", name))

    def read_settings(self) -> dict[str, str]:
        """Return the controller's configuration."""
        return parse_settings(self._get_output("scontrol", "show", "config"))

    def _get_output(self, *words: str) -> str:
        answer = self._run(words, self._timeout_s)
        # Some versions end with 0 and report only on standard error that they have no answer.
        if answer.code or (not answer.out.strip() and "error" in answer.err):
            raise explain_failure(words[0], answer, self._where)
        return answer.out

    def _start_program(self, words: Sequence[str], timeout_s: float, keep: Sequence[int] = ()) -> Answer:
        env = self._environ | ({} if words[0] == "sbatch" else PLAIN_OUTPUT)
        return run_program(words, env, timeout_s, self._where, keep)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the options, tasks and devices of an outer job."""
    dropped = FOREIGN + (OUTER if "SLURM_JOB_ID" in environ else ())
    return {key: value for key, value in environ.items() if key in KEPT or not key.startswith(dropped)}


def run_program(
    words: Sequence[str], env: Mapping[str, str], timeout_s: float, where: str, keep: Sequence[int] = ()
) -> Answer:
    """Run one of Slurm's programs; `keep` are descriptors that it inherits. Raises Unavailable, ReadFailed."""
    quiet: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL}
    again = "it is tried again"
    try:
        done = subprocess.run(words, env=env, timeout=timeout_s, check=False, pass_fds=keep, **quiet)
    except FileNotFoundError:
        what, why, code = "Slurm is not installed", f"there is no program {words[0]} here", "unavailable.no-slurm"
        raise Unavailable(what, where=where, why=why, next=_RUN_ON, code=code) from None
    except subprocess.TimeoutExpired:
        what, why, code = f"{words[0]} did not finish", f"no answer within {timeout_s:g} s", "read-failed.no-answer"
        raise ReadFailed(what, where=where, why=why, next=again, code=code) from None
    except OSError as error:
        what, code = f"{words[0]} cannot be run", "read-failed.program"
        raise ReadFailed(what, where=where, why=str(error), next=again, code=code) from error
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def explain_failure(program: str, answer: Answer, where: str) -> MeterError:
    """Return the error for a program's message: final, refused, or to be tried again."""
    lines = [line.strip() for line in answer.err.splitlines() + answer.out.splitlines() if line.strip()]
    why, whole = lines[0][:200] if lines else f"exit code {answer.code}", " ".join(lines).lower()
    _, kind, what, advice, reason = next(row for row in _FAILURES if any(mark in whole for mark in row[0]))
    return kind(what.format(program), where=where, why=why, next=advice, code=f"{kind.code}.{reason}")


def check_job(job: str) -> str:
    """Return a job's number as Slurm writes it: 123, 123_4 (task of an array), 123+1. Raises Unavailable."""
    if not _JOB_ID.fullmatch(job):
        what, advice, code = (
            f"{job[:40]!r} is not a job's number",
            "give 123, 123_4 or 123+1",
            "unavailable.unknown-job",
        )
        raise Unavailable(what, where="slurm", next=advice, code=code)
    return job


def parse_accounting(text: str, where: str = "slurm") -> list[AccountingRow]:
    """Return sacct's rows; the fields are ROW_FIELDS. Raises ReadFailed for anything that is not such a row."""
    rows = []
    for line in filter(None, text.split("\n")):
        fields = _split_line(line, ROW_FIELDS, where)
        shown, raw = _ROW_ID.fullmatch(fields["JobID"]), _ROW_ID.fullmatch(fields["JobIDRaw"])
        if not shown or not raw or shown["step"] != raw["step"]:
            raise _not_understood(line, where)
        rows.append(
            AccountingRow(
                job=fields["JobID"].partition(".")[0],
                raw=raw["job"],
                step=shown["step"] or "",
                execution=fields["DBIndex"],
                user=fields["User"],
                state=fields["State"].partition(" ")[0],  # `CANCELLED by 1000`
                exit_code=fields["ExitCode"],
                elapsed_s=parse_number(fields["ElapsedRaw"], line, where),
                start_ns=_parse_time(fields["Start"], line, where),
                end_ns=_parse_time(fields["End"], line, where),
                nodes="" if fields["NodeList"] == "None assigned" else fields["NodeList"],
                node_count=parse_number(fields["NNodes"], line, where) or 0,
                energy_j=parse_number(fields["ConsumedEnergyRaw"], line, where),
                energy_text=fields["ConsumedEnergyRaw"].strip(),
            )
        )
    return rows


def parse_others(text: str, where: str = "slurm") -> list[OtherJob]:
    """Return the jobs that sacct found on nodes; the fields are OTHER_FIELDS. Raises ReadFailed."""
    jobs = []
    for line in filter(None, text.split("\n")):
        raw, _, start, end, nodes = _split_line(line, OTHER_FIELDS, where).values()
        jobs.append(OtherJob(raw, _parse_time(start, line, where), _parse_time(end, line, where), nodes))
    return jobs


def parse_cpu_use(text: str, where: str = "slurm") -> dict[str, tuple[int, float]]:
    """Return reserved CPUs and CPU time (s) of jobs; the fields are USE_FIELDS. Raises ReadFailed.

    Rows of steps are left out, and a job that was requeued: it has several rows.
    """
    found, rows = {}, dict[str, int]()
    for line in filter(None, text.split("\n")):
        raw, cpus, used = _split_line(line, USE_FIELDS, where).values()
        if "." in raw:
            continue
        rows[raw] = rows.get(raw, 0) + 1
        time = _CPU_TIME.fullmatch(used.strip())
        count = parse_number(cpus, line, where)
        if time is not None and count is not None:
            days, hours, minutes = (int(part or 0) for part in time.groups()[:3])
            found[raw] = count, ((24 * days + hours) * 60 + minutes) * 60 + float(time[4])
    return {raw: use for raw, use in found.items() if rows[raw] == 1}


def parse_live(text: str, where: str = "slurm") -> dict[str, int | None]:
    """Return sstat's joules by step (`5.0`, `5.batch`); the fields are LIVE_FIELDS. Raises ReadFailed."""
    found: dict[str, int | None] = {}
    for line in filter(None, text.split("\n")):
        name, energy = _split_line(line, LIVE_FIELDS, where).values()
        if not _ROW_ID.fullmatch(name) or name in found:
            raise _not_understood(line, where)
        found[name] = parse_number(energy, line, where)
    return found


def parse_pairs(line: str) -> dict[str, str]:
    """Return the KEY=VALUE pairs of one line of scontrol; the first of a repeated key counts."""
    found: dict[str, str] = {}
    for match in re.finditer(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", line):
        found.setdefault(match[1], match[2])
    return found


def parse_settings(text: str) -> dict[str, str]:
    """Return `scontrol show config` as names and values; the first of a repeated name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip():
            found.setdefault(name.strip(), value.strip())
    return found


def expand_nodes(text: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it: `n[1-2],gpu[01,03-04]`. Raises ReadFailed."""
    if not text:
        return []
    match = re.match(r"[^,\[\]]*(?:\[[\d,-]+\][^,\[\]]*)*", text)
    rest = text[match.end() :] if match else text
    if not match or not match[0] or (rest and not rest.startswith(",")):
        raise _not_understood(text, "slurm")
    names = [""]
    for part in re.findall(r"\[[^\]]*\]|[^\[\]]+", match[0]):
        names = [name + end for name in names for end in (_expand_numbers(part[1:-1]) if part[0] == "[" else [part])]
    return names + expand_nodes(rest[1:])


def _expand_numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        digits = first.isdigit() and (last.isdigit() or not dash)
        if not digits or (dash and int(last) - int(first) > MOST_NODES):
            raise _not_understood(text, "slurm")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return found


def parse_number(text: str | None, line: str = "", where: str = "slurm") -> int | None:
    """Return a whole number (J, W, s), None for Slurm's marks of no value. Raises ReadFailed for anything else."""
    if text is None or text.strip() in ("", "n/s", "N/A", "n/a", "None"):
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise _not_understood(line or text, where)
    value = int(text)
    return None if value in _NOT_A_NUMBER or value >= 2**63 else value


def _split_line(line: str, names: Sequence[str], where: str) -> dict[str, str]:
    fields = line.split("|")
    if len(fields) != len(names):
        raise _not_understood(line, where)
    return dict(zip(names, fields, strict=True))


def _parse_time(text: str, line: str, where: str) -> int | None:
    if text in _NO_TIME:
        return None
    try:
        moment = dt.datetime.fromisoformat(f"{text}+00:00") if _TIME.fullmatch(text) else None
    except ValueError:
        moment = None
    if moment is None:
        raise _not_understood(line, where)
    return int(moment.timestamp()) * NS


def _not_understood(line: str, where: str) -> ReadFailed:
    what, why = "Slurm's answer is not understood", f"it is {line[:80]!r}"
    advice, code = "check that this is Slurm 20 or later", "read-failed.answer"
    return ReadFailed(what, where=where, why=why, next=advice, code=code)
