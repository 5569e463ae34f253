"""Read the workloads of a study file: a command, a notebook, or a reference workload by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import format_table_name, is_number
from joulelab.study import template
from joulelab.study.file.knobs import read_knobs
from joulelab.study.file.nodes import NAME, NAMED
from joulelab.study.matrix import Workload
from joulelab.study.work import WorkPattern

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.toml_reading import Mistakes, Place
    from joulelab.study.file.knobs import KnobDraft
    from joulelab.study.file.study_keys import WorkloadKeys

KINDS = ("command", "notebook", "reference")
OF_NOTEBOOKS = ("pause", "kernel")
# A workload with a mistake in one of these has no cells yet.
OF_CELLS = (*KINDS, "parameters", "nodes", "knobs")
MOST_SHOWN = 6
_CELL = re.compile(r"cell (\d{1,9})")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Hold what of the file a workload may refer to: its folder, the names of the knobs and of the node types."""

    folder: Path
    knobs: Sequence[str]
    nodes: Sequence[str]
    mistakes: Mistakes


@dataclass(frozen=True, slots=True)
class WorkloadDraft:
    """Hold a workload of the file before its knobs are known; `kind` is empty for a command.

    `takes` are the parameters that it has, of a notebook those among the file's knobs. `nodes` None is all of them. One
    that `is_sound` has no mistake in what cells are made of.
    """

    name: str
    kind: str
    words: tuple[str, ...]
    parameters: Mapping[str, str]
    takes: Collection[str]
    knobs: Sequence[KnobDraft]
    phases: tuple[str, ...] = ()
    nodes: tuple[str, ...] | None = None
    timeout_s: float | None = None
    work: tuple[WorkPattern, ...] = ()
    is_sound: bool = False

    @property
    def place(self) -> Place:
        """Return its table."""
        return ("workloads", self.name)

    @property
    def key(self) -> str:
        """Return the key of its table that placeholders stand in."""
        return "parameters" if self.kind else "command"

    def has(self, name: str) -> bool:
        """Return whether a knob means something to it: by its placeholder, its parameter, or as joulelab's own."""
        if name in template.OWN_KNOBS or name in template.list_placeholders(self.command(())):
            return True
        return name in self.takes and name not in self.parameters

    def command(self, names: Collection[str]) -> tuple[str, ...]:
        """Return its command where a cell has these knobs; those in a parameter's text need not be parameters too."""
        if not self.kind:
            return self.words
        named = template.list_placeholders(list(self.parameters.values()))
        left_out = {*template.OWN_KNOBS, *self.parameters, *(name for name in named if name not in self.takes)}
        own = {name: f"{{{name}}}" for name in names if name not in left_out}
        return (*self.words, *(f"{name}={text}" for name, text in sorted({**own, **self.parameters}.items())))

    def on(self, node: str, identity: Mapping[str, Any], names: Collection[str]) -> Workload:
        """Return the workload of cells on a node type with these knobs."""
        return Workload(self.command(names), self.name, node, self.phases, self.kind, identity)


def read_workloads(tables: Mapping[str, WorkloadKeys], around: Surroundings) -> list[WorkloadDraft]:
    """Return the workloads; those that could not be read whole are not sound."""
    if not tables and not around.mistakes.has("workloads"):
        then = "add [workloads.NAME] with command = ..."
        around.mistakes.add(("workloads",), "there is no workload", next=then, code="config.missing-key")
    return [_read_workload(name, keys, around) for name, keys in tables.items()]


def _read_workload(name: str, keys: WorkloadKeys, around: Surroundings) -> WorkloadDraft:
    mistakes, place = around.mistakes, ("workloads", name)
    if NAME.fullmatch(name) is None:
        mistakes.add(place, f"{name!r} cannot name a workload", next=NAMED, code="config.name")
    kind, words = _find_start(place, keys, around)
    _check_keys(place, keys, around)
    draft = WorkloadDraft(
        name=name,
        kind="" if kind == "command" else kind,
        words=words,
        parameters=_read_parameters(place, keys, mistakes),
        takes=_find_parameters(place, kind, words[0], keys, around) if words else [],
        knobs=read_knobs(keys.knobs, (*place, "knobs"), mistakes),
        phases=tuple(dict.fromkeys(keys.phases)),
        nodes=None if keys.nodes is None else tuple(dict.fromkeys(keys.nodes)),
        timeout_s=keys.timeout,
        work=_read_work(place, keys, mistakes),
    )
    if kind == "notebook" and words:
        _check_phases(draft, around)
    return replace(draft, is_sound=bool(words) and not any(mistakes.has(*place, key) for key in OF_CELLS))


def _check_keys(place: Place, keys: WorkloadKeys, around: Surroundings) -> None:
    """Refuse keys that mean nothing to such a workload, and node types that there are not."""
    mistakes = around.mistakes
    for key in ("parameters", *OF_NOTEBOOKS):
        is_lost = keys.command is not None or (key in OF_NOTEBOOKS and keys.reference is not None)
        if getattr(keys, key) and is_lost:
            what = "a notebook" if key in OF_NOTEBOOKS else "a notebook or a reference workload"
            mistakes.add((*place, key), f"{key} is for {what}", next="leave it out")
    if keys.work_sum is not None and not keys.work:
        mistakes.add((*place, "work_sum"), "work_sum is for work", next="add work = 'samples: (\\d+)'")
    for name in (name for name in keys.nodes or () if name not in around.nodes):
        then = suggest_name(name, around.nodes)
        mistakes.add((*place, "nodes"), f"there is no node type {name!r}", next=then, code="config.wrong-value")
    if keys.nodes == ():
        then = f"name some of {', '.join(around.nodes)}, or leave it out for all"
        mistakes.add((*place, "nodes"), f"{format_table_name(place)} has no node", next=then)


def _find_start(place: Place, keys: WorkloadKeys, around: Surroundings) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a workload and the words of its command, none where something is wrong."""
    mistakes = around.mistakes
    given = [kind for kind in KINDS if getattr(keys, kind) is not None or mistakes.has(*place, kind)]
    if len(given) != 1:
        what = f"{format_table_name(place)} has {' and '.join(given) if given else 'nothing to run'}"
        then = f"give one of {', '.join(KINDS)}"
        mistakes.add((*place, *given[-1:]), what, next=then, code="config.missing-key" if not given else "")
        return "", ()
    kind = given[0]
    if kind == "command":
        return kind, keys.command or ()
    name = keys.notebook or keys.reference
    if name is None:
        return kind, ()
    at = (*place, kind)
    if template.list_placeholders([name]):
        why = f"a {kind} is fixed"
        mistakes.add(at, f"{name!r} has a placeholder", why=why, next="write a workload for each")
        return kind, ()
    if kind == "notebook":
        pause = [f"--pause={keys.pause:g}"] if keys.pause else []
        kernel = [f"--kernel={keys.kernel}"] if keys.kernel else []
        if (around.folder / name).is_file():
            return kind, (name, *pause, *kernel)
        beside = sorted(file.name for file in around.folder.glob("*.ipynb"))
        then = suggest_name(name, beside) if beside else "its path is relative to the study file"
        mistakes.add(at, f"there is no notebook {name}", why=f"looked for in {around.folder}", next=then)
        return kind, ()
    from joulelab.run import workload_registry

    if name in workload_registry.list_workloads():
        return kind, (name,)
    mistakes.add(
        at, f"there is no reference workload {name!r}", next=suggest_name(name, workload_registry.list_workloads())
    )
    return kind, ()


def _find_parameters(place: Place, kind: str, name: str, keys: WorkloadKeys, around: Surroundings) -> list[str]:
    """Return the names of the parameters that a workload has, and refuse others that are fixed for it."""
    if kind == "command":
        return []
    if kind == "notebook":
        # What stands in a parameter's text need not be a parameter itself.
        inside = template.list_placeholders([text for text in keys.parameters.values() if isinstance(text, str)])
        must = {key: "knobs" for key in keys.knobs if key not in inside} | dict.fromkeys(keys.parameters, "parameters")
        return _find_notebook_parameters(
            place, around.folder / name, must, [*keys.knobs, *around.knobs], around.mistakes
        )
    from joulelab.run import workload_registry

    module = workload_registry.find_workload(name)
    takes = [*module.PARAMETERS, *([workload_registry.PRESET] if workload_registry.get_presets(module) else [])]
    for key in (key for key in keys.parameters if key not in takes):
        what, then = f"{name} has no parameter {key!r}", suggest_name(key, takes)
        around.mistakes.add((*place, "parameters", key), what, next=then, code="config.unknown-key")
    return takes


def _find_notebook_parameters(
    place: Place, file: Path, must: Mapping[str, str], shared: Sequence[str], mistakes: Mistakes
) -> list[str]:
    """Return the parameters of a notebook among the names of knobs; those of `must`, by their tables, must be."""
    from joulelab.run import notebook

    try:
        content = notebook.load_notebook(file)
    except ConfigError as error:
        mistakes.add_error((*place, "notebook"), error, f"{file.name}: ")
        return list(must)
    found = []
    for name in dict.fromkeys((*must, *shared)):
        try:
            notebook.check_parameters(content, [] if name in template.OWN_KNOBS else [name], where=file.name)
        except ConfigError as error:
            if name not in must:
                continue
            mistakes.add_error((*place, must[name], name), error, f"{file.name}: ")
        found.append(name)
    return found


def _read_parameters(place: Place, keys: WorkloadKeys, mistakes: Mistakes) -> dict[str, str]:
    """Return the fixed parameters of a notebook or a reference workload."""
    found = {}
    for name, value in keys.parameters.items():
        at = (*place, "parameters", name)
        if template.KNOB_NAME.fullmatch(name) is None:
            then = "letters, digits and _, no digit at its start"
            mistakes.add(at, f"{name!r} cannot name a parameter", next=then, code="config.name")
        elif isinstance(value, str | bool) or is_number(value):
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            mistakes.add_wrong(at, value, "give a text, a number, true or false")
        if name in keys.knobs:
            mistakes.add(at, f"{name} is a knob and a parameter", next="leave one of them out")
    return found


def _check_phases(draft: WorkloadDraft, around: Surroundings) -> None:
    """Refuse phases that are cells of a notebook and are not there, or not run."""
    numbers = {phase: int(match[1]) for phase in draft.phases if (match := _CELL.fullmatch(phase))}
    if not numbers or around.mistakes.has(*draft.place, "notebook"):
        return
    from joulelab.run import notebook

    content = notebook.load_notebook(around.folder / draft.words[0])
    there = notebook.number_cells(content)
    for phase, number in numbers.items():
        if number not in there:
            every = len([cell for cell in content["cells"] if cell["cell_type"] == "code"])
            why = "nothing of it is run" if 1 <= number <= every else f"{draft.words[0]} has {every} code cells"
            then = f"name one of {_show_cells(there)}, counted over all code cells" if there else "leave it out"
            around.mistakes.add((*draft.place, "phases"), f"there is no phase {phase!r}", why=why, next=then)


def _show_cells(numbers: Sequence[int]) -> str:
    shown = [f"cell {number}" for number in numbers]
    return ", ".join(shown) if len(shown) <= MOST_SHOWN else f"{', '.join(shown[: MOST_SHOWN - 1])}, ... {shown[-1]}"


def _read_work(place: Place, keys: WorkloadKeys, mistakes: Mistakes) -> tuple[WorkPattern, ...]:
    found = []
    for text in keys.work:
        try:
            found.append(WorkPattern.parse(text, add=bool(keys.work_sum)))
        except ConfigError as error:
            mistakes.add_error((*place, "work"), error, "work: ")
    return tuple(found)


def check_knobs(
    drafts: Sequence[WorkloadDraft], shared: Sequence[KnobDraft], around: Surroundings, *, is_whole: bool
) -> bool:
    """Refuse placeholders without a knob, and knobs that nothing uses; return whether all placeholders have one.

    Unless all workloads and knobs could be read (`is_whole`), nobody knows which knobs are not used.
    """
    wrong = [draft for draft in drafts if not _check_placeholders(draft, around)]
    for draft in drafts:
        named = draft.takes or template.list_placeholders(draft.command(()))
        for one in (one for one in draft.knobs if not draft.has(one.knob.name)):
            _refuse_unused(one, named, format_table_name(draft.place), around.mistakes)
    named = [name for draft in drafts for name in [*template.list_placeholders(draft.command(())), *draft.takes]]
    for one in shared if is_whole else ():
        if not any(draft.has(one.knob.name) for draft in drafts):
            _refuse_unused(one, named, "any workload", around.mistakes)
    return not wrong


def _check_placeholders(draft: WorkloadDraft, around: Surroundings) -> bool:
    there = [*(one.knob.name for one in draft.knobs), *around.knobs]
    wrong = [name for name in template.list_placeholders(draft.command(())) if name not in there]
    for name in wrong:
        literal = f"or write {{{{{name}}}}} for a literal {{{name}}}"
        then = f"{suggest_name(name, there)}; {literal}" if there else f"add it to [knobs], {literal}"
        around.mistakes.add((*draft.place, draft.key), f"the placeholder {{{name}}} has no knob", next=then)
    return not wrong


def _refuse_unused(one: KnobDraft, named: Collection[str], where: str, mistakes: Mistakes) -> None:
    name = one.knob.name
    then = f"put {{{name}}} where its value belongs, or leave it out"
    then = f"{suggest_name(name, list(dict.fromkeys(named)))}; {then}" if named else then
    mistakes.add(one.place, f"the knob {name} is not used by {where}", next=then)
