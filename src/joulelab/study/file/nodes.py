"""Make the node types of a study file: `[nodes.gpu]`."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.study import executors
from joulelab.study.file.study_keys import NodeKeys
from joulelab.study.nodes import LOCAL, SLURM, TWIN, NodeType
from joulelab.study.refusals import OF_KNOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from joulelab.core.toml_reading import Mistakes

_EVERY = [one.name for one in fields(NodeKeys)]
JOB = tuple(_EVERY[_EVERY.index("twin") + 1 :])
# What of a job's options means something on a twin.
OF_TWINS = ("gpus",)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMED = "letters, digits, . _ and -, a letter or digit first"


def make_nodes(
    names: Iterable[str], tables: Mapping[str, NodeKeys], folder: Path, mistakes: Mistakes
) -> dict[str, NodeType]:
    """Return the node types by name; one, `local`, where the file has none. Twins' files are relative to `folder`."""
    found = {}
    for name in names:
        if NAME.fullmatch(name) is None:
            mistakes.add(("nodes", name), f"{name!r} cannot name a node type", next=NAMED, code="config.name")
        found[name] = _make_node(name, tables.get(name, NodeKeys()), folder, mistakes)
    return found or {LOCAL: NodeType()}


def _make_node(name: str, keys: NodeKeys, folder: Path, mistakes: Mistakes) -> NodeType:
    given = {key: getattr(keys, key) for key in JOB if getattr(keys, key) is not None}
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
            then = f"leave it out{f' ({OF_KNOB})' if key == 'gpus' else ''}, or write executor = {SLURM!r}"
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
    """Return the options of a node type that is a twin: `twin` names it, or is the path of its file."""
    place = ("nodes", name)
    if executor not in (None, TWIN):
        why = f"executor = {executor!r}"
        mistakes.add((*place, "twin"), "a twin runs in virtual time", why=why, next="leave executor out")
    for key in (key for key in options if key not in OF_TWINS):
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
    return {**{key: value for key, value in options.items() if key in OF_TWINS}, **found}


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
