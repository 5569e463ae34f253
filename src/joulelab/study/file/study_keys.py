"""Declare the tables of a study file: their keys, what each means, and what may stand behind it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds
from joulelab.core.toml_reading import TEXTS, TIME, declare_key, is_number, read_texts, read_time
from joulelab.study.values import read_cooling

SHORTEST_S, SHORTEST_JOB_S = 0.001, 1.0
JOB_TIME = "write it as 30m, 2h, 02:00:00 or 1-12:00:00"
COOL = "write 45C for a temperature of the GPUs, 60s for a time"
WORDS = "give a text, or a list of words in quotes"
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


def _read_cool(value: Any) -> dict[str, float]:
    """Return the setting that a temperature (degC) or a time (s) stands for."""
    try:
        if not isinstance(value, str) and not is_number(value):
            raise ValueError
        return dict([read_cooling(value)])
    except ConfigError as error:
        raise ConfigError(error.what, next=COOL) from None


def _read_job_time(value: Any) -> float:
    """Return the time limit of a job in s. A bare number is refused: Slurm's would be minutes, ours seconds."""
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    try:
        if match:
            days, hours, minutes, rest = (int(part or 0) for part in match.groups())
            return read_seconds(float(((days * 24 + hours) * 60 + minutes) * 60 + rest), SHORTEST_JOB_S)
        if isinstance(value, str) and value.strip()[-1:].isalpha():
            return read_seconds(value, SHORTEST_JOB_S)
    except (ConfigError, OverflowError):
        pass  # as wrong as all else
    raise ValueError


def _read_command(value: Any) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        then = "close the quotes, or give a list of words"
        raise ConfigError("it cannot be split into words", why=str(error), next=then) from None
    is_list = isinstance(words, list) and all(isinstance(word, str) and "\0" not in word for word in words)
    if not is_list or not words or not words[0].strip():
        raise ValueError
    return tuple(words)


def _time(doc: str, least: float = 0.0) -> Any:
    return declare_key(None, doc, read=partial(read_time, least=least), advice=TIME)


def _texts(default: Any, doc: str) -> Any:
    return declare_key(default, doc, read=read_texts, advice=TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobKeys:
    """Hold a knob that is a table: its values, and the cells that it is for."""

    values: Any = None
    when: dict[str, Any] | None = declare_key(
        None, "the cells that have it: workloads, node types, values of other knobs"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKeys:
    """Hold a workload `[workloads.NAME]`: a command, a notebook, or a reference workload."""

    command: tuple[str, ...] | None = declare_key(
        None, "the words to run, with {knob}", read=_read_command, advice=WORDS
    )
    notebook: str | None = declare_key(None, "a notebook, relative to the study file")
    reference: str | None = declare_key(None, "a reference workload by its name")
    parameters: dict[str, Any] = declare_key(dict, "fixed parameters of a notebook or a reference workload")
    pause: float | None = _time("the pause between cells of a notebook")
    kernel: str | None = declare_key(None, "the kernel of a notebook")
    phases: tuple[str, ...] = _texts((), "the phases that count")
    nodes: tuple[str, ...] | None = _texts(None, "the node types that it runs on, by default all")
    work: tuple[str, ...] = _texts((), "patterns that find the work done in its output")
    work_sum: bool | None = declare_key(None, "whether the work of all lines is added up")
    knobs: dict[str, Any] = declare_key(dict, "knobs of this workload alone")
    timeout: float | None = _time("the longest that it may take", SHORTEST_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKeys:
    """Hold a node type `[nodes.NAME]`; keys below `twin` are for jobs of a cluster."""

    executor: str | None = declare_key(None, "what runs its slots: local, slurm, twin")
    uses: Literal["gpu", "cpu"] | None = None
    environment: dict[str, Any] = declare_key(dict, "variables for the workload")
    twin: str | None = declare_key(None, "a simulated node: its name or its file")
    partition: str | None = declare_key(None, "the partition of Slurm")
    constraint: str | None = declare_key(None, "features of the nodes")
    gpus: int | None = declare_key(None, "GPUs of each node", least=0)
    nodes: int | None = declare_key(None, "how many nodes", least=1)
    tasks: int | None = declare_key(None, "tasks of each node", least=1)
    cpus: int | None = declare_key(None, "CPUs of each task", least=1)
    time: float | None = declare_key(None, "the time limit of a job", read=_read_job_time, advice=JOB_TIME)
    account: str | None = declare_key(None, "the account that pays")
    qos: str | None = declare_key(None, "the quality of service")
    exclusive: bool | None = declare_key(None, "whether nodes are not shared with others")
    options: tuple[str, ...] | None = _texts(None, "further options of sbatch")
    launch: Literal["direct", "srun"] | None = None
    at_once: int | None = declare_key(None, "how many jobs may wait or run at once", least=1)
    setup: tuple[str, ...] | None = _texts(None, "lines of shell before the workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKeys:
    """Hold a study file."""

    name: str | None = declare_key(None, "the study's name, by default that of the file")
    repeats: int = declare_key(3, "how often each cell is measured", least=1)
    warmup: int = declare_key(0, "runs of each cell that do not count", least=0)
    seed: int | None = declare_key(None, "the seed of the order")
    goals: tuple[str, ...] = _texts(("energy", "edp"), "what shall be small")
    reference: dict[str, Any] = declare_key(dict, "the cells that others are compared with")
    scope: str | None = declare_key(None, "the scope whose energy counts")
    per: str | None = declare_key(None, "the unit of work that energy is given per")
    idle: float | None = _time("how long to measure before each workload")
    cool: dict[str, float] = declare_key(dict, "what to wait for between slots", read=_read_cool, advice=COOL)
    cool_limit: float | None = _time("the longest wait for a temperature")
    timeout: float | None = _time("the longest that a workload may take", SHORTEST_S)
    period: float | None = _time("the time between readings", SHORTEST_S)
    meters: tuple[str, ...] = _texts((), "the meters to read, by default the usual ones")
    no_meters: tuple[str, ...] = _texts((), "meters that are left out")
    config: str | None = declare_key(None, "the configuration's file, relative to this one")
    estimate: bool = declare_key(False, "whether to estimate where nothing is measured")
    rated_cpu: float | None = declare_key(None, "the rated power of the CPUs for the estimate, in W", above=0)
    knobs: dict[str, Any] = declare_key(dict, "what is varied, with its values")
    skip: list[dict[str, Any]] = declare_key(list, "combinations that are left out")
    workloads: dict[str, WorkloadKeys] = field(default_factory=dict)
    nodes: dict[str, NodeKeys] = field(default_factory=dict)
