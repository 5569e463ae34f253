"""Read the node types of a study file: `[nodes.gpu]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.core.duration import seconds
from joulelab.core.errors import ConfigError
from joulelab.run.config.problems import show
from joulelab.study import executors
from joulelab.study.nodes import LAUNCHES, LOCAL, SLURM, TWIN, USES, NodeType
from joulelab.study.refusals import OF_KNOB

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.run.config.problems import Table

JOB = (
    "partition", "constraint", "gpus", "nodes", "tasks", "cpus", "time", "account", "qos", "exclusive", "options",
    "launch", "at_once", "setup",
)  # fmt: skip
KEYS = ("executor", "uses", "environment", "twin", *JOB)
# What of a job's options means something on a twin.
OF_TWINS = ("gpus",)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMED = "letters, digits, . _ and -, a letter or digit first"
SHORTEST_S = 1.0
TIMES = "write it as 30m, 2h, 02:00:00 or 1-12:00:00"
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


def read_nodes(top: Table, folder: Path) -> dict[str, NodeType]:
    """Return the node types by name; one, `local`, where the file has none. Twins' files are relative to `folder`."""
    table = top.table("nodes")
    found = {}
    for name in table.values:
        if NAME.fullmatch(name) is None:
            table.wrong(name, f"{name!r} cannot name a node type", next=NAMED)
        found[name] = _node(name, table.table(name), folder)
    return found or {LOCAL: NodeType()}


def _node(name: str, table: Table, folder: Path) -> NodeType:
    table.allow(KEYS)
    given = [key for key in JOB if key in table]
    executor = table.one_of("executor", executors.names(), "executor")
    if "twin" in table or executor == TWIN:
        return _twin(name, table, executor, folder)
    if executor == LOCAL:
        for key in given:
            table.wrong(
                key,
                f"{key} is for jobs of a cluster",
                why='executor = "local"',
                next=f"leave it out{f' ({OF_KNOB})' if key == 'gpus' else ''}, or write executor = {SLURM!r}",
            )
    uses = table.one_of("uses", USES) or ""
    options = _options(table)
    if uses == "gpu" and options.get("gpus") == 0:
        table.wrong("gpus", "gpus is 0", why='uses = "gpu"', next="give at least 1, or write uses = 'cpu'")
    return NodeType(name, executor or (SLURM if given else LOCAL), uses, _environment(table), options)


def _twin(name: str, table: Table, executor: str | None, folder: Path) -> NodeType:
    """Return a node type that is a twin: `twin` names it, or is the path of its file."""
    if executor not in (None, TWIN):
        table.wrong("twin", "a twin runs in virtual time", why=f"executor = {executor!r}", next="leave executor out")
    for key in (key for key in JOB if key in table and key not in OF_TWINS):
        table.wrong(key, f"{key} is for jobs of a cluster", why="it is a twin", next="leave it out")
    given = table.text("twin")
    if "twin" not in table:
        table.wrong("executor", "no twin is named", next='write twin = "NODE", or the path of a node\'s file')
    options: dict[str, Any] = {}
    if given:
        try:
            options = executors.require_hook(TWIN, "read_options")(given, folder)
        except ConfigError as error:
            table.problems.add_error((*table.at, "twin"), error)
    kept = {key: value for key, value in _options(table).items() if key in OF_TWINS}
    return NodeType(name, TWIN, table.one_of("uses", USES) or "", _environment(table), {**kept, **options})


def _options(table: Table) -> dict[str, Any]:
    found = {
        **{key: table.text(key) for key in ("partition", "constraint", "account", "qos")},
        **{key: table.whole(key, 1) for key in ("nodes", "tasks", "cpus", "at_once")},
        "gpus": table.whole("gpus", 0),
        "time": _time(table),
        "exclusive": table.flag("exclusive"),
        "options": _list(table, "options"),
        "launch": table.one_of("launch", LAUNCHES),
        "setup": _list(table, "setup"),
    }
    return {key: found[key] for key in JOB if found[key] is not None}


def _list(table: Table, key: str) -> list[str] | None:
    texts = table.texts(key)
    return None if texts is None else list(texts)


def _time(table: Table) -> float | None:
    """Return the time limit of a job in s. A bare number is refused: Slurm's would be minutes, ours seconds."""
    value = table.values.get("time")
    if value is None:
        return None
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    try:
        if match:
            days, hours, minutes, rest = (int(part or 0) for part in match.groups())
            return seconds(float(((days * 24 + hours) * 60 + minutes) * 60 + rest), SHORTEST_S)
        if isinstance(value, str) and value.strip()[-1:].isalpha():
            return seconds(value, SHORTEST_S)
    except (ConfigError, OverflowError):
        pass  # as wrong as all else
    table.wrong("time", f"time is {show(value)}", next=TIMES)
    return None


def _environment(table: Table) -> dict[str, str]:
    inner = table.table("environment")
    found = {}
    for name, value in inner.values.items():
        if not name or "=" in name or "\0" in name:
            inner.wrong(name, f"{name!r} cannot name a variable", next="letters, digits and _")
        elif isinstance(value, str | int | float) and not isinstance(value, bool) and "\0" not in str(value):
            found[name] = str(value)
        else:
            inner.wrong(name, f"{name} is {show(value)}", next="give a text, in quotes")
    return dict(sorted(found.items()))
