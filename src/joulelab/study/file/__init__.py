"""Read a study file: workloads, knobs, node types, and how slots are run. All that is wrong is told at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.run.config.problems import Problems, Table, read_toml
from joulelab.study.file import nodes as node_types
from joulelab.study.file import settings, workloads
from joulelab.study.file.cells import Matrix, finish_all, is_of
from joulelab.study.file.knobs import Names, read_knobs, read_reference
from joulelab.study.folder import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.study.conditions import Condition
    from joulelab.study.file.knobs import Draft
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.nodes import NodeType


# Where a key belongs that stands in another table.
TOP, A_WORKLOAD, A_NODE = "the top of the file, above the first [table]", "[workloads.NAME]", "[nodes.NAME]"


@dataclass(frozen=True, slots=True)
class StudyFile:
    """Hold a study file: where it is (absolute), the study's name, its text, its seed if it has one, and the plan."""

    path: Path
    name: str
    text: str
    seed: int | None
    plan: Plan

    @property
    def drawn(self) -> int:
        """Return the seed of a study that is not there yet: the file's, else one made of the name, always the same."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4]) if self.seed is None else self.seed


def read_study(path: Path) -> StudyFile:
    """Read a study file and check it whole, without asking anybody. Raises ConfigError with a line per problem."""
    text, content = read_toml(path, "study file")
    problems = Problems(str(path), text)
    problems.homes |= _homes()
    top = Table(content, (), problems)
    read = _read(top, path.resolve(), text)
    problems.check()
    return read


def _homes() -> dict[str, str]:
    """Return where each key belongs, unless it has several places."""
    tables = ((settings.KEYS, TOP), (workloads.KEYS, A_WORKLOAD), (node_types.KEYS, A_NODE))
    every = [key for keys, _ in tables for key in keys]
    return {key: home for keys, home in tables for key in keys if every.count(key) == 1}


def _read(top: Table, path: Path, text: str) -> StudyFile:
    top.allow(settings.KEYS)
    name = settings.read_name(top, path.stem)
    repeats = top.whole("repeats", 1) or settings.REPEATS
    nodes = node_types.read_nodes(top, path.parent)
    shared, knobs_whole = read_knobs(top.table("knobs"))
    around = workloads.Around(path.parent, list(top.table("knobs").values), list(nodes))
    drafts, workloads_whole = workloads.read_workloads(top, around)
    fine = workloads.check_knobs(drafts, shared, around, whole=workloads_whole)
    every = [one.knob for one in [*shared, *(own for draft in drafts for own in draft.drafts)]]
    names = Names(top.table("workloads").values, nodes, every, _named(top))
    cells = _cells(top, _Parts(drafts, nodes, shared, names), repeats, fine=fine and knobs_whole and workloads_whole)
    plan = Plan(
        cells=cells,
        repeats=repeats if cells else 1,
        warmup=top.whole("warmup", 0) or 0,
        settings=settings.read_settings(top, path.parent),
        goals=settings.read_goals(top),
        reference=_reference(top, names, drafts, cells),
        work=tuple({**each.to_json(), "workload": draft.name} for draft in drafts for each in draft.work),
        scope=top.text("scope"),
        per=top.text("per"),
        nodes=nodes,
        timeouts={draft.name: draft.timeout_s for draft in drafts if draft.timeout_s is not None},
        file=path,
    )
    return StudyFile(path, name, text, top.whole("seed"), plan)


def _named(top: Table) -> set[str]:
    """Return the names of all knobs of the file, those as well that could not be read."""
    tables = top.table("workloads").values.values()
    inside = [table.get("knobs") for table in tables if isinstance(table, dict)]
    return {name for knobs in (top.values.get("knobs"), *inside) if isinstance(knobs, dict) for name in knobs}


@dataclass(frozen=True, slots=True)
class _Parts:
    """Hold what the tables of the file say."""

    workloads: Sequence[workloads.Draft]
    nodes: Mapping[str, NodeType]
    shared: Sequence[Draft]
    names: Names


def _cells(top: Table, parts: _Parts, repeats: int, *, fine: bool) -> list[PlannedCell]:
    """Return the cells, none where what they are made of is wrong: that is told already."""
    skips = _skips(top, parts.names)
    knobs = finish_all(parts.shared, parts.workloads, parts.names)
    if not fine or skips is None or knobs is None:
        return []
    common, own = knobs
    return Matrix(parts.workloads, parts.nodes, common, own, skips, top.problems).cells(repeats)


def _skips(top: Table, names: Names) -> list[Condition] | None:
    found = []
    for table in top.tables("skip"):
        if not table.values:
            table.wrong("", "this skips every cell", next="say which: node, workload, or values of knobs")
        found.append(names.condition(table) if table.values else None)
    return None if None in found else [each for each in found if each is not None]


def _reference(
    top: Table, names: Names, drafts: Sequence[workloads.Draft], cells: Sequence[PlannedCell]
) -> dict[str, Any]:
    phases = list(dict.fromkeys(phase for draft in drafts for phase in draft.phases))
    table = top.table("reference")
    found = read_reference(table, names, phases)
    if cells and len(found) == len(table.values) and not any(is_of(cell, found) for cell in cells):
        shown = ", ".join(f"{key} {value}" for key, value in table.values.items())
        top.wrong("reference", f"no cell has {shown}", next="take a combination that is not left out")
    return found
