"""Read a study file: workloads, knobs, node types, and how slots are run. All mistakes are reported at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.goals import Goal
from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import Mistakes, read_table
from joulelab.run.config.config_files import read_toml
from joulelab.study.conditions import NODE, PHASE, WORKLOAD
from joulelab.study.file.cells import Matrix, is_of
from joulelab.study.file.knobs import Names, read_knobs
from joulelab.study.file.nodes import make_nodes
from joulelab.study.file.study_keys import StudyKeys
from joulelab.study.file.workloads import Surroundings, check_knobs, read_workloads
from joulelab.study.folder import Plan, Settings, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.study.conditions import Condition


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
    """Read a study file and check it whole, without asking anybody. Raises ConfigError with a line per mistake."""
    text, content = read_toml(path, "study file")
    mistakes = Mistakes(path, text, StudyKeys)
    keys = read_table(StudyKeys, content, mistakes) or StudyKeys()
    found = _read(keys, content, path.resolve(), text, mistakes)
    mistakes.check()
    return found


def _read(keys: StudyKeys, content: Mapping[str, Any], path: Path, text: str, mistakes: Mistakes) -> StudyFile:
    def list_names(table: Any) -> list[str]:
        """List the names of a table, those as well whose own tables are wrong."""
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
    names = Names({WORKLOAD: workloads, NODE: list(nodes), PHASE: phases}, every, named, mistakes)
    skips = _read_skips(keys.skip, names, mistakes)
    common = names.finish_knobs(shared)
    own = {draft.name: names.finish_knobs(draft.knobs) for draft in drafts}
    is_whole = is_whole and len(skips) == len(keys.skip) and len(common) == len(shared)
    is_whole = is_whole and all(len(own[draft.name]) == len(draft.knobs) for draft in drafts)
    cells = Matrix(drafts, nodes, common, own, skips, mistakes).cells(keys.repeats) if is_whole else []
    reference = names.read_reference(keys.reference)
    if cells and len(reference) == len(keys.reference) and not any(is_of(cell, reference) for cell in cells):
        shown = ", ".join(f"{key} {value}" for key, value in keys.reference.items())
        mistakes.add(("reference",), f"no cell has {shown}", next="take a combination that is not left out")
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
    )
    return StudyFile(path, name, text, keys.seed, plan)


def _read_name(keys: StudyKeys, stem: str, mistakes: Mistakes) -> str:
    """Return the study's name: by default that of its file."""
    try:
        check_name(keys.name or stem)
    except ConfigError as error:
        if keys.name is not None:
            mistakes.add_error(("name",), error)
        elif not mistakes.has("name"):
            mistakes.add((), f"{error.what}: the file's name", next='add name = "..." at the top', code=error.code)
    return keys.name or stem


def _make_settings(keys: StudyKeys, folder: Path, mistakes: Mistakes) -> Settings:
    """Return how slots are run; the configuration's file is looked for beside the study file."""
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
    """Return what shall be small."""
    found = []
    for text in keys.goals or StudyKeys().goals:
        try:
            found.append(Goal.parse(text).text)
        except ConfigError as error:
            mistakes.add_error(("goals",), error)
    return tuple(dict.fromkeys(found))


def _read_skips(tables: Sequence[Mapping[str, Any]], names: Names, mistakes: Mistakes) -> list[Condition]:
    """Return the conditions of cells that are skipped, without those that are wrong."""
    found = []
    for n, table in enumerate(tables):
        if not table:
            then = "say which: node, workload, or values of knobs"
            mistakes.add(("skip", n), "this skips every cell", next=then)
        condition = names.read_condition(table, ("skip", n)) if table else None
        found += [] if condition is None else [condition]
    return found
