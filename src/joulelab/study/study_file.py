"""Read a study file: workloads, knobs, node types, and how slots are run. Write a sweep as one."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from joulelab.analysis.goals import Goal
from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds, suggest_name
from joulelab.core.toml_reading import Mistakes, declare_key, is_number, read_table
from joulelab.run.config.config_files import read_toml
from joulelab.run.config.toml_writing import format_table
from joulelab.study import executors
from joulelab.study.folder import MAX_REPEATS, VALID_NAME, Plan, PrecisionTarget, Settings, check_name, parse_precision
from joulelab.study.knobs import KNOB_NAME, NODE, PHASE, WORKLOAD, read_cooling
from joulelab.study.matrix import GPUS_ADVICE, LOCAL, SLURM, TWIN, NodeType
from joulelab.study.study_workloads import (
    MIN_TIME_S,
    NAME_ADVICE,
    CellMaker,
    NameTable,
    Surroundings,
    WorkloadKeys,
    check_knobs,
    declare_texts,
    declare_time,
    is_reference_cell,
    read_knobs,
    read_workloads,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.study.knobs import Condition, Value
    from joulelab.study.matrix import Workload


MIN_JOB_TIME_S = 1.0
JOB_TIME = "write it as 30m, 2h, 02:00:00 or 1-12:00:00"
COOL = "write 45C for a temperature of the GPUs, 60s for a time"
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


def _read_cool(value: Any) -> dict[str, float]:
    """Return the setting of a temperature (degC) or a time (s)."""
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
            return read_seconds(float(((days * 24 + hours) * 60 + minutes) * 60 + rest), MIN_JOB_TIME_S)
        if isinstance(value, str) and value.strip()[-1:].isalpha():
            return read_seconds(value, MIN_JOB_TIME_S)
    except (ConfigError, OverflowError):
        pass  # refused below
    raise ValueError


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
    options: tuple[str, ...] | None = declare_texts(None, "further options of sbatch")
    launch: Literal["direct", "srun"] | None = None
    at_once: int | None = declare_key(None, "how many jobs may wait or run at once", least=1)
    setup: tuple[str, ...] | None = declare_texts(None, "lines of shell before the workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKeys:
    """Hold a study file."""

    name: str | None = declare_key(None, "the study's name, by default that of the file")
    repeats: int = declare_key(3, "how often each cell is measured", least=1)
    until: float | None = declare_key(
        None, "repeat until the mean energy of a cell is this precise", read=parse_precision, advice="write it as 1%"
    )
    repeat_max: int = declare_key(MAX_REPEATS, "how often a cell is measured at most, with until", least=1)
    warmup: int = declare_key(0, "runs of each cell that do not count", least=0)
    seed: int | None = declare_key(None, "the seed of the order")
    goals: tuple[str, ...] = declare_texts(("energy", "edp"), "what shall be small")
    reference: dict[str, Any] = declare_key(dict, "the cells that others are compared with")
    scope: str | None = declare_key(None, "the scope whose energy counts")
    per: str | None = declare_key(None, "the unit of work that energy is given per")
    idle: float | None = declare_time("how long to measure before each workload")
    cool: dict[str, float] = declare_key(dict, "what to wait for between slots", read=_read_cool, advice=COOL)
    cool_limit: float | None = declare_time("the longest wait for a temperature")
    timeout: float | None = declare_time("the longest that a workload may take", MIN_TIME_S)
    period: float | None = declare_time("the time between readings", MIN_TIME_S)
    meters: tuple[str, ...] = declare_texts((), "the meters to read, by default the usual ones")
    no_meters: tuple[str, ...] = declare_texts((), "meters that are left out")
    config: str | None = declare_key(None, "the configuration's file, relative to this one")
    estimate: bool = declare_key(False, "whether to estimate where nothing is measured")
    rated_cpu: float | None = declare_key(None, "the rated power of the CPUs for the estimate, in W", above=0)
    knobs: dict[str, Any] = declare_key(dict, "what is varied, with its values")
    skip: list[dict[str, Any]] = declare_key(list, "combinations that are left out")
    workloads: dict[str, WorkloadKeys] = field(default_factory=dict)
    nodes: dict[str, NodeKeys] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StudyFile:
    """Hold a study file: its absolute path, the study's name, its text, its seed if it has one, and the plan."""

    path: Path
    name: str
    text: str
    seed: int | None
    plan: Plan

    @property
    def default_seed(self) -> int:
        """Return the seed of a new study: the file's, else a number that depends on the name only."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4]) if self.seed is None else self.seed


def read_study(path: Path) -> StudyFile:
    """Read a study file and check all of it, without this machine. Raises ConfigError with a line per mistake."""
    text, content = read_toml(path, "study file")
    mistakes = Mistakes(path, text, StudyKeys)
    keys = read_table(StudyKeys, content, mistakes) or StudyKeys()
    found = _make_study(keys, content, path.resolve(), text, mistakes)
    mistakes.check()
    return found


def _make_study(keys: StudyKeys, content: Mapping[str, Any], path: Path, text: str, mistakes: Mistakes) -> StudyFile:
    def list_names(table: Any) -> list[str]:
        """List the names of a table, including those with mistakes in their own tables."""
        return list(table) if isinstance(table, dict) else []

    name = _read_name(keys, path.stem, mistakes)
    settings, goals = _make_settings(keys, path.parent, mistakes), _read_goals(keys, mistakes)
    nodes = make_nodes(list_names(content.get("nodes")), keys.nodes, path.parent, mistakes)
    shared = read_knobs(keys.knobs, ("knobs",), mistakes)
    around = Surroundings(path.parent, list(keys.knobs), list(nodes), mistakes)
    drafts = read_workloads(keys.workloads, around)
    workloads = list_names(content.get("workloads"))
    sound = [draft for draft in drafts if draft.is_sound]
    is_whole, has_values = len(sound) == len(workloads) > 0, not mistakes.has("knobs")
    is_whole = check_knobs(sound, shared, around, is_whole=is_whole) and is_whole and has_values
    every = [one.knob for one in [*shared, *(own for draft in drafts for own in draft.knobs)]]
    named = [*keys.knobs, *(knob for table in keys.workloads.values() for knob in table.knobs)]
    phases = list(dict.fromkeys(phase for draft in drafts for phase in draft.phases))
    names = NameTable({WORKLOAD: workloads, NODE: list(nodes), PHASE: phases}, every, named, mistakes)
    skips = _read_skips(keys.skip, names, mistakes)
    common = names.finish_knobs(shared)
    own = {draft.name: names.finish_knobs(draft.knobs) for draft in drafts}
    is_whole = is_whole and len(skips) == len(keys.skip) and len(common) == len(shared)
    is_whole = is_whole and all(len(own[draft.name]) == len(draft.knobs) for draft in drafts)
    cells = CellMaker(drafts, nodes, common, own, skips, mistakes).make_cells(keys.repeats) if is_whole else []
    reference = names.read_reference(keys.reference)
    if (
        cells
        and len(reference) == len(keys.reference)
        and not any(is_reference_cell(cell, reference) for cell in cells)
    ):
        shown = ", ".join(f"{key} {value}" for key, value in keys.reference.items())
        mistakes.add(("reference",), f"no cell has {shown}", next="take a combination that is not left out")
    until = _check_until(keys, mistakes)
    plan = Plan(
        cells=cells,
        repeats=keys.repeats if cells else 1,
        warmup=keys.warmup,
        settings=settings,
        goals=goals,
        reference=reference,
        work=tuple({**each.to_json(), "workload": draft.name} for draft in drafts for each in draft.work),
        scope=keys.scope,
        per=keys.per,
        nodes=nodes,
        timeouts={draft.name: draft.timeout_s for draft in drafts if draft.timeout_s is not None},
        file=path,
        until=until if cells else None,
        repeat_max=keys.repeat_max,
    )
    return StudyFile(path, name, text, keys.seed, plan)


def _check_until(keys: StudyKeys, mistakes: Mistakes) -> float | None:
    """Return the precision that cells are repeated for, None if the numbers of repeats do not fit it."""
    if keys.until is None:
        return None
    try:
        PrecisionTarget(keys.until, keys.repeat_max).check_repeats(keys.repeats)
    except ConfigError as error:
        mistakes.add_error(("until",), error)
        return None
    return keys.until


def _read_name(keys: StudyKeys, stem: str, mistakes: Mistakes) -> str:
    """Return the study's name, by default that of its file."""
    try:
        check_name(keys.name or stem)
    except ConfigError as error:
        if keys.name is not None:
            mistakes.add_error(("name",), error)
        elif not mistakes.has("name"):
            mistakes.add((), f"{error.what}: the file's name", next='add name = "..." at the top', code=error.code)
    return keys.name or stem


def _make_settings(keys: StudyKeys, folder: Path, mistakes: Mistakes) -> Settings:
    """Return the settings of slots; the configuration file is relative to the study file."""
    if keys.rated_cpu is not None and not keys.estimate:
        mistakes.add(("rated_cpu",), "rated_cpu is for an estimate", next="add estimate = true")
    if keys.config is not None and not (folder / keys.config).is_file():
        why, then = f"looked for in {folder}", "it is relative to this file"
        mistakes.add(("config",), f"there is no file {keys.config}", why=why, next=then)
    return Settings(
        idle_s=keys.idle,
        period_s=keys.period,
        meters=keys.meters,
        without=keys.no_meters,
        config=None if keys.config is None else str(folder / keys.config),
        cool_limit_s=Settings().cool_limit_s if keys.cool_limit is None else keys.cool_limit,
        timeout_s=keys.timeout,
        estimate=keys.estimate,
        rated_cpu_w=keys.rated_cpu,
        **keys.cool,
    )


def _read_goals(keys: StudyKeys, mistakes: Mistakes) -> tuple[str, ...]:
    """Return the goals, each once."""
    found = []
    for text in keys.goals or StudyKeys().goals:
        try:
            found.append(Goal.parse(text).text)
        except ConfigError as error:
            mistakes.add_error(("goals",), error)
    return tuple(dict.fromkeys(found))


def _read_skips(tables: Sequence[Mapping[str, Any]], names: NameTable, mistakes: Mistakes) -> list[Condition]:
    """Return the conditions of skipped cells, without wrong ones."""
    found = []
    for n, table in enumerate(tables):
        if not table:
            then = "name a node, a workload or values of knobs"
            mistakes.add(("skip", n), "this skips every cell", next=then)
        condition = names.read_condition(table, ("skip", n)) if table else None
        found += [] if condition is None else [condition]
    return found


_NODE_KEYS = [one.name for one in fields(NodeKeys)]
JOB_KEYS = tuple(_NODE_KEYS[_NODE_KEYS.index("twin") + 1 :])
TWIN_KEYS = ("gpus",)  # keys of jobs that twins have too


def make_nodes(
    names: Iterable[str], tables: Mapping[str, NodeKeys], folder: Path, mistakes: Mistakes
) -> dict[str, NodeType]:
    """Return the node types by name, `local` if the file has none. Files of twins are relative to `folder`."""
    found = {}
    for name in names:
        if VALID_NAME.fullmatch(name) is None:
            mistakes.add(("nodes", name), f"{name!r} cannot name a node type", next=NAME_ADVICE, code="config.name")
        found[name] = _make_node(name, tables.get(name, NodeKeys()), folder, mistakes)
    return found or {LOCAL: NodeType()}


def _make_node(name: str, keys: NodeKeys, folder: Path, mistakes: Mistakes) -> NodeType:
    given = {key: getattr(keys, key) for key in JOB_KEYS if getattr(keys, key) is not None}
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    executor, known = keys.executor, executors.list_executors()
    if executor is not None and executor not in known:
        what, then = f"there is no executor {executor!r}", suggest_name(executor, known)
        mistakes.add(("nodes", name, "executor"), what, next=then, code="config.wrong-value")
        executor = None
    if keys.twin is not None or executor == TWIN or mistakes.has("nodes", name, "twin"):
        options = _make_twin_options(name, keys, executor, options, folder, mistakes)
        executor = TWIN
    elif executor == LOCAL:
        for key in options:
            then = f"leave it out{f' ({GPUS_ADVICE})' if key == 'gpus' else ''}, or write executor = {SLURM!r}"
            what = f"{key} is for jobs of a cluster"
            mistakes.add(("nodes", name, key), what, why='executor = "local"', next=then)
    elif keys.uses == "gpu" and options.get("gpus") == 0:
        then = "give at least 1, or write uses = 'cpu'"
        mistakes.add(("nodes", name, "gpus"), "gpus is 0", why='uses = "gpu"', next=then)
    environment = _read_environment(name, keys.environment, mistakes)
    return NodeType(name, executor or (SLURM if options else LOCAL), keys.uses or "", environment, options)


def _make_twin_options(
    name: str, keys: NodeKeys, executor: str | None, options: Mapping[str, Any], folder: Path, mistakes: Mistakes
) -> dict[str, Any]:
    """Return the options of a twin; the key `twin` is its name or the path of its file."""
    place = ("nodes", name)
    if executor not in (None, TWIN):
        why = f"executor = {executor!r}"
        mistakes.add((*place, "twin"), "a twin runs in virtual time", why=why, next="leave executor out")
    for key in (key for key in options if key not in TWIN_KEYS):
        mistakes.add((*place, key), f"{key} is for jobs of a cluster", why="it is a twin", next="leave it out")
    found: dict[str, Any] = {}
    if keys.twin is not None:
        try:
            found = executors.require_hook(TWIN, "read_options")(keys.twin, folder)
        except ConfigError as error:
            for one in error.mistakes or (error,):
                what = f"{one.where}: {one.what}" if one.where else one.what
                mistakes.add((*place, "twin"), what, why=one.why, next=one.next, code=one.code)
    elif not mistakes.has(*place, "twin"):
        then = 'write twin = "NODE", or the path of a node\'s file'
        mistakes.add((*place, "executor"), "no twin is named", next=then, code="config.missing-key")
    return {**{key: value for key, value in options.items() if key in TWIN_KEYS}, **found}


def _read_environment(node: str, values: Mapping[str, Any], mistakes: Mistakes) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        place = ("nodes", node, "environment", name)
        if not name or "=" in name or "\0" in name:
            mistakes.add(place, f"{name!r} cannot name a variable", next="letters, digits and _", code="config.name")
        elif isinstance(value, str | int | float) and not isinstance(value, bool) and "\0" not in str(value):
            found[name] = str(value)
        else:
            mistakes.add_wrong(place, value, "give a text, in quotes")
    return dict(sorted(found.items()))


SWEEP_REMARK = "# Without a name the runs of the sweep count; with one, the study starts anew.\n"


def write_sweep(plan: Plan, name: str, seed: int | None = None) -> str:
    """Return the text of a study file with the cells and settings of a sweep. Raises ConfigError.

    Its workload has no name, as in the sweep, so that the cells are the same and finished runs count.
    """
    workload = plan.cells[0].workload
    if any("\udc80" <= sign <= "\udcff" for word in workload.command for sign in word):
        raise ConfigError("the command is not text", where="study file", why="it has bytes that are not UTF-8")
    knobs: dict[str, dict[Value, None]] = {}
    for cell in plan.cells:
        for knob, value in cell.knobs.items():
            knobs.setdefault(knob, {})[value] = None
    if plan.file is not None or math.prod(len(values) for values in knobs.values()) != len(plan.cells):
        raise ConfigError("only a sweep can be written as a study file", where="study file")
    settings = plan.settings
    limit_s = None if settings.cool_limit_s == Settings().cool_limit_s else settings.cool_limit_s
    top = {
        "name": name,
        "seed": seed,
        "repeats": plan.repeats,
        "until": None if plan.until is None else f"{_format_number(round(100 * plan.until, 9))}%",
        "repeat_max": None if plan.until is None or plan.repeat_max == MAX_REPEATS else plan.repeat_max,
        "warmup": plan.warmup or None,
        "goals": list(plan.goals),
        "reference": {
            knob: next(_format_value(value) for value in knobs[knob] if value.value == wanted)
            for knob, wanted in plan.reference.items()
        }
        or None,
        "scope": plan.scope,
        "per": plan.per,
        "idle": _format_time(settings.idle_s),
        "cool": _format_time(settings.cool_s or None)
        if settings.cool_c is None
        else f"{_format_number(settings.cool_c)}C",
        "cool_limit": _format_time(limit_s),
        "timeout": _format_time(settings.timeout_s),
        "period": _format_time(settings.period_s),
        "meters": list(settings.meters) or None,
        "no_meters": list(settings.without) or None,
        "config": settings.config,
        "estimate": settings.estimate or None,
        "rated_cpu": settings.rated_cpu_w,
    }
    own = _describe_notebook(workload) if workload.kind else {"command": list(workload.command)}
    if plan.work:
        own["work"] = [each["pattern"] for each in plan.work]
        own |= {"work_sum": True} if plan.work[0]["add"] else {}
    varied = {knob: [_format_value(value) for value in values] for knob, values in knobs.items()}
    parts = [format_table("", {key: value for key, value in top.items() if value is not None})]
    parts += [format_table("knobs", varied)] if varied else []
    return "\n".join([*parts, SWEEP_REMARK + format_table('workloads.""', own)])


def _describe_notebook(workload: Workload) -> dict[str, Any]:
    """Return the keys of a notebook; knobs that are its parameters need no key. Raises ConfigError."""
    file, *words = workload.command
    if any(KNOB_NAME.fullmatch(word.partition("=")[0]) is None or "=" not in word for word in words):
        then = "write NAME=VALUE after the notebook, and options like pause into the file"
        raise ConfigError("the words after the notebook are not all parameters", where="study file", next=then)
    given = dict(word.split("=", 1) for word in words)
    fixed = {name: text for name, text in given.items() if text != f"{{{name}}}"}
    return {"notebook": file} | ({"parameters": fixed} if fixed else {})


def _format_value(value: Value) -> int | str:
    """Return a value for the file: a whole number, or a text if a number would not restore it."""
    return int(value.text) if value.text.isdecimal() and str(int(value.text)) == value.text else value.text


def _format_time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{_format_number(seconds)}s"


def _format_number(number: float) -> str:
    text = f"{Decimal(repr(number)):f}"
    return text.removesuffix(".0")
