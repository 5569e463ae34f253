"""The workloads and knobs of a study file, and their cells. All mistakes are collected with their lines."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import (
    TEXTS,
    TIME,
    TableKey,
    declare_key,
    format_table_name,
    format_value,
    is_number,
    read_table,
    read_texts,
    read_time,
    read_value,
)
from joulelab.study.folder import VALID_NAME
from joulelab.study.knobs import (
    ALWAYS,
    KNOB_NAME,
    KNOB_NAME_ADVICE,
    NODE,
    OWN_KNOBS,
    PHASE,
    WORKLOAD,
    Condition,
    Knob,
    Value,
    list_placeholders,
    read_value_list,
    read_values,
)
from joulelab.study.matrix import MAX_SLOTS, Combinations, PlannedCell, Workload
from joulelab.study.results import WorkPattern

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.toml_reading import Mistakes, Place
    from joulelab.run.workload_registry import WorkloadModule
    from joulelab.study.matrix import NodeType

MIN_TIME_S = 0.001
MAX_VALUES_SHOWN, MAX_VALUES_REFUSED, MAX_CELLS_SHOWN = 10, 3, 6
MAX_CELLS_TRIED = 2 * MAX_SLOTS  # a matrix that is skipped almost entirely is not searched for ever
RESERVED_NAMES = (WORKLOAD, NODE, PHASE)  # columns of results: no knob may have such a name
GPU_KNOBS = ("cap", "clock", "gpus")
KINDS = ("command", "notebook", "reference")
NOTEBOOK_KEYS = ("pause", "kernel")
CELL_KEYS = (*KINDS, "parameters", "nodes", "knobs")  # a mistake in one of these leaves a workload without cells
NAME_ADVICE = "letters, digits, . _ and -, a letter or digit first"
VALUES_ADVICE = "give a text as for sweep, a list, or { values = ..., when = { ... } }"
_CELL_PHASE = re.compile(r"cell (\d{1,9})")


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


def declare_time(doc: str, least: float = 0.0) -> Any:
    """Declare a key for a time in s."""
    return declare_key(None, doc, read=partial(read_time, least=least), advice=TIME)


def declare_texts(default: Any, doc: str) -> Any:
    """Declare a key for a text or a list of texts."""
    return declare_key(default, doc, read=read_texts, advice=TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobKeys:
    """Hold a knob that is a table: its values, and the cells that have it."""

    values: Any = None
    when: dict[str, Any] | None = declare_key(
        None, "the cells that have it: workloads, node types, values of other knobs"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKeys:
    """Hold a workload `[workloads.NAME]`: a command, a notebook, or a reference workload."""

    command: tuple[str, ...] | None = declare_key(
        None, "the words to run, with {knob}", read=_read_command, advice="give a text, or a list of words in quotes"
    )
    notebook: str | None = declare_key(None, "a notebook, relative to the study file")
    reference: str | None = declare_key(None, "a reference workload by its name")
    parameters: dict[str, Any] = declare_key(dict, "fixed parameters of a notebook or a reference workload")
    pause: float | None = declare_time("the pause between cells of a notebook")
    kernel: str | None = declare_key(None, "the kernel of a notebook")
    phases: tuple[str, ...] = declare_texts((), "the phases that count")
    nodes: tuple[str, ...] | None = declare_texts(None, "the node types that it runs on, by default all")
    work: tuple[str, ...] = declare_texts((), "patterns that find the work done in its output")
    work_sum: bool | None = declare_key(None, "whether the work of all lines is added up")
    knobs: dict[str, Any] = declare_key(dict, "knobs of this workload alone")
    timeout: float | None = declare_time("the longest that it may take", MIN_TIME_S)


# Knobs


@dataclass(frozen=True, slots=True)
class KnobDraft:
    """Hold a knob whose condition is not read yet: it may name tables that follow."""

    knob: Knob
    place: Place
    when: Mapping[str, Any] | None = None


def read_knobs(table: Mapping[str, Any], place: Place, mistakes: Mistakes) -> list[KnobDraft]:
    """Read the knobs of `[knobs]` or of a workload; wrong ones are left out."""
    return [draft for name, raw in table.items() for draft in _read_knob(name, raw, (*place, name), mistakes)]


def _read_knob(name: str, raw: Any, place: Place, mistakes: Mistakes) -> list[KnobDraft]:
    """Read a knob: once for each of its tables, or once for plain values."""
    if name in RESERVED_NAMES:
        why, then = "it is a column of results", "choose another name"
        mistakes.add(place, f"a knob cannot be named {name}", why=why, next=then, code="config.name")
        return []
    if KNOB_NAME.fullmatch(name) is None:
        mistakes.add(place, f"{name!r} cannot name a knob", next=KNOB_NAME_ADVICE, code="config.name")
        return []
    if isinstance(raw, list) and raw and all(isinstance(item, dict) for item in raw):
        tables = {(*place, n): item for n, item in enumerate(raw)}
    else:
        tables = {place: raw}
    found = []
    for at, item in tables.items():
        keys = KnobKeys(values=item)
        if isinstance(item, dict):
            keys = read_table(KnobKeys, item, mistakes, at) or keys
            if keys.values is None:
                then = "add values = [...]"
                mistakes.add(at, f"the knob {name} has no values", next=then, code="config.missing-key")
                continue
        values = read_knob_values(name, keys.values, (*at, "values") if isinstance(item, dict) else at, mistakes)
        found += [KnobDraft(Knob(name, values), at, keys.when)] if values else []
    return found


def read_knob_values(name: str, raw: Any, place: Place, mistakes: Mistakes) -> tuple[Value, ...] | None:
    """Read the values of a knob: as typed for sweep, a number, or a list."""
    items = raw if isinstance(raw, list) else [raw]
    if not all(isinstance(item, str | bool) or is_number(item) for item in items):
        what = f"the values of the knob {name} are {format_value(raw)}"
        mistakes.add(place, what, next=VALUES_ADVICE, code="config.wrong-value")
        return None
    try:
        return read_values(name, raw, name) if isinstance(raw, str) else read_value_list(name, items, name)
    except ConfigError as error:
        mistakes.add_error(place, error, f"knob {name}: ")
        return None


class NameTable:
    """Hold the names that conditions may use: workloads, node types and phases (`plain`), knobs and their values.

    Knobs of `named` that are not in `knobs` have a mistake already.
    """

    def __init__(
        self,
        plain: Mapping[str, Sequence[str]],
        knobs: Iterable[Knob],
        named: Iterable[str],
        mistakes: Mistakes,
    ) -> None:
        self.plain = plain
        self.knobs: dict[str, dict[Value, None]] = {}
        for knob in knobs:
            self.knobs.setdefault(knob.name, {}).update(dict.fromkeys(knob.values))
        self.unread = set(named) - set(self.knobs) - set(RESERVED_NAMES)
        self._mistakes = mistakes

    def read_condition(self, table: Mapping[str, Any], place: Place, *, own: str = "") -> Condition | None:
        """Read a condition, None if it has a mistake. `own` is the knob that has this condition."""
        keys = [WORKLOAD, NODE, *(name for name in self.knobs if name != own)]
        found = {key: self.read_key(key, value, (*place, key), keys, own) for key, value in table.items()}
        if None in found.values():
            return None
        taken = {key: frozenset(texts) for key, texts in found.items() if texts is not None}
        workloads, nodes = taken.pop(WORKLOAD, frozenset()), taken.pop(NODE, frozenset())
        return Condition(workloads, nodes, taken)

    def read_key(self, key: str, raw: Any, place: Place, keys: Sequence[str], own: str = "") -> dict[str, Any] | None:
        """Read a key of a condition: names, or values of a knob by their texts; None for a mistake."""
        if key in self.unread:
            return None
        if key not in keys:
            what = "a knob cannot depend on itself" if key == own else f"there is no knob {key!r}"
            self._mistakes.add(place, what, next=suggest_name(key, keys), code="config.unknown-key")
            return None
        if key not in self.plain:
            return self._read_values(key, raw, place)
        names = read_value(TableKey(read=read_texts, advice=TEXTS), raw, self._mistakes, place)
        if names == ():
            self._mistakes.add(place, f"{key} names nothing", next=f"name one of {', '.join(self.plain[key])}")
        wrong = [name for name in names or () if name not in self.plain[key]]
        for name in wrong:
            what = f"there is no {'node type' if key == NODE else key} {name!r}"
            self._mistakes.add(place, what, next=suggest_name(name, self.plain[key]), code="config.wrong-value")
        return None if wrong or not names else dict(zip(names, names, strict=True))

    def _read_values(self, key: str, raw: Any, place: Place) -> dict[str, Any] | None:
        values = read_knob_values(key, raw, place, self._mistakes)
        if values is None:
            return None
        there = self.knobs[key]
        wrong = [value for value in values if value not in there]
        for value in wrong[:MAX_VALUES_REFUSED]:
            what, then = f"no cell has {key} {value.label}", _suggest_value(value, list(there))
            self._mistakes.add(place, what, next=then, code="config.wrong-value")
        return None if wrong else {value.text: value.value for value in values}

    def read_reference(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Read which cells are the reference: names, and values of knobs."""
        valid = [*(key for key in self.plain if self.plain[key]), *self.knobs]
        found: dict[str, Any] = {}
        for key, raw in table.items():
            choices = list((self.read_key(key, raw, ("reference", key), valid) or {}).values())
            if len(choices) > 1:
                what = f"the reference has {len(choices)} values of {key}"
                self._mistakes.add(("reference", key), what, next="name one of them")
            found |= {key: choices[0]} if len(choices) == 1 else {}
        if found and len(found) == len(table) and set(found) <= {WORKLOAD, PHASE}:
            why = "different workloads and phases are not compared with each other"
            then = f"name a node or a value of a knob too ({', '.join([NODE, *self.knobs])}), or leave it out"
            what = f"a {' and a '.join(found)} alone cannot be the reference"
            self._mistakes.add(("reference",), what, why=why, next=then)
        return found

    def finish_knobs(self, drafts: Iterable[KnobDraft]) -> list[Knob]:
        """Return the knobs with their conditions; those with a wrong condition are left out."""
        knobs = []
        for draft in drafts:
            when: Condition | None = ALWAYS
            if draft.when is not None:
                when = self.read_condition(draft.when, (*draft.place, "when"), own=draft.knob.name)
            knobs += [] if when is None else [replace(draft.knob, when=when)]
        return knobs


def _suggest_value(wrong: Value, there: Sequence[Value]) -> str:
    """Return advice for a value that no cell has: the nearest numbers."""
    number = wrong.value
    if isinstance(number, str):
        return suggest_name(wrong.label, [value.label for value in there][:MAX_VALUES_SHOWN])
    near = sorted(there, key=lambda v: math.inf if isinstance(v.value, str) else abs(v.value - number))
    shown = [value.label for value in there if value in near[:MAX_VALUES_SHOWN]]
    more = ", ..." if len(there) > len(shown) else ""
    return f"did you mean {near[0].label!r}? valid: {', '.join(shown)}{more}"


# Workloads


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Hold the folder of the file, the names of its shared knobs and of its node types: workloads refer to them."""

    folder: Path
    knobs: Sequence[str]
    nodes: Sequence[str]
    mistakes: Mistakes


@dataclass(frozen=True, slots=True)
class WorkloadDraft:
    """Hold a workload before its knobs are known; `kind` is empty for a command.

    `takes` are its parameters; for a notebook only those that are knobs of the file. `nodes` None stands for all.
    Without mistakes in `CELL_KEYS` it `is_sound`.
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
        """Return the key of its table that has the placeholders."""
        return "parameters" if self.kind else "command"

    def uses_knob(self, name: str) -> bool:
        """Return whether it uses a knob: by a placeholder, as a parameter, or because joulelab sets it."""
        if name in OWN_KNOBS or name in list_placeholders(self.make_command(())):
            return True
        return name in self.takes and name not in self.parameters

    def make_command(self, names: Collection[str]) -> tuple[str, ...]:
        """Return its command for cells with these knobs. A knob in the text of a parameter need not be a parameter."""
        if not self.kind:
            return self.words
        named = list_placeholders(list(self.parameters.values()))
        left_out = {*OWN_KNOBS, *self.parameters, *(name for name in named if name not in self.takes)}
        own = {name: f"{{{name}}}" for name in names if name not in left_out}
        return (*self.words, *(f"{name}={text}" for name, text in sorted({**own, **self.parameters}.items())))

    def make_workload(self, node: str, identity: Mapping[str, Any], names: Collection[str]) -> Workload:
        """Return the workload of cells on a node type with these knobs."""
        return Workload(self.make_command(names), self.name, node, self.phases, self.kind, identity)


def read_workloads(tables: Mapping[str, WorkloadKeys], around: Surroundings) -> list[WorkloadDraft]:
    """Read the workloads; those with mistakes are not sound."""
    if not tables and not around.mistakes.has("workloads"):
        then = "add [workloads.NAME] with command = ..."
        around.mistakes.add(("workloads",), "there is no workload", next=then, code="config.missing-key")
    return [_read_workload(name, keys, around) for name, keys in tables.items()]


def _read_workload(name: str, keys: WorkloadKeys, around: Surroundings) -> WorkloadDraft:
    mistakes, place = around.mistakes, ("workloads", name)
    if name and VALID_NAME.fullmatch(name) is None:  # a sweep that was written as a file has none
        mistakes.add(place, f"{name!r} cannot name a workload", next=NAME_ADVICE, code="config.name")
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
    return replace(draft, is_sound=bool(words) and not any(mistakes.has(*place, key) for key in CELL_KEYS))


def _check_keys(place: Place, keys: WorkloadKeys, around: Surroundings) -> None:
    """Refuse keys that do not fit the kind of workload, and unknown node types."""
    mistakes = around.mistakes
    for key in ("parameters", *NOTEBOOK_KEYS):
        is_lost = keys.command is not None or (key in NOTEBOOK_KEYS and keys.reference is not None)
        if getattr(keys, key) and is_lost:
            what = "a notebook" if key in NOTEBOOK_KEYS else "a notebook or a reference workload"
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
    """Return the kind of a workload and the words of its command, no words for a mistake."""
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
    if list_placeholders([name]):
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
    then = suggest_name(name, workload_registry.list_workloads())
    mistakes.add(at, f"there is no reference workload {name!r}", next=then)
    return kind, ()


def _find_parameters(place: Place, kind: str, name: str, keys: WorkloadKeys, around: Surroundings) -> list[str]:
    """Return the names of a workload's parameters, and refuse unknown ones in its table."""
    if kind == "command":
        return []
    if kind == "notebook":
        # A placeholder in the text of a parameter need not be a parameter itself.
        inside = list_placeholders([text for text in keys.parameters.values() if isinstance(text, str)])
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
    """Return the knobs that are parameters of a notebook; refuse names of `must` (with their tables) that are not."""
    from joulelab.run import notebook

    try:
        content = notebook.load_notebook(file)
    except ConfigError as error:
        mistakes.add_error((*place, "notebook"), error, f"{file.name}: ")
        return list(must)
    found = []
    for name in dict.fromkeys((*must, *shared)):
        try:
            notebook.check_parameters(content, [] if name in OWN_KNOBS else [name], where=file.name)
        except ConfigError as error:
            if name not in must:
                continue
            mistakes.add_error((*place, must[name], name), error, f"{file.name}: ")
        found.append(name)
    return found


def _read_parameters(place: Place, keys: WorkloadKeys, mistakes: Mistakes) -> dict[str, str]:
    """Read the fixed parameters of a notebook or a reference workload."""
    found = {}
    for name, value in keys.parameters.items():
        at = (*place, "parameters", name)
        if KNOB_NAME.fullmatch(name) is None:
            mistakes.add(at, f"{name!r} cannot name a parameter", next=KNOB_NAME_ADVICE, code="config.name")
        elif isinstance(value, str | bool) or is_number(value):
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            mistakes.add_wrong(at, value, "give a text, a number, true or false")
        if name in keys.knobs:
            mistakes.add(at, f"{name} is a knob and a parameter", next="leave one of them out")
    return found


def _check_phases(draft: WorkloadDraft, around: Surroundings) -> None:
    """Refuse phases `cell N` that the notebook does not have, or does not run."""
    numbers = {phase: int(match[1]) for phase in draft.phases if (match := _CELL_PHASE.fullmatch(phase))}
    if not numbers or around.mistakes.has(*draft.place, "notebook"):
        return
    from joulelab.run import notebook

    content = notebook.load_notebook(around.folder / draft.words[0])
    valid = notebook.number_cells(content)
    shown = [f"cell {number}" for number in valid[:MAX_CELLS_SHOWN]] + ["..."] * (len(valid) > MAX_CELLS_SHOWN)
    for phase in (phase for phase, number in numbers.items() if number not in valid):
        count = sum(cell["cell_type"] == "code" for cell in content["cells"])
        is_cell = 1 <= numbers[phase] <= count
        why = "this cell is not run" if is_cell else f"{draft.words[0]} has {count} code cells"
        then = f"name one of {', '.join(shown)}, counted over all code cells" if valid else "leave it out"
        around.mistakes.add((*draft.place, "phases"), f"there is no phase {phase!r}", why=why, next=then)


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
    """Refuse placeholders without a knob, and unused knobs; return whether all placeholders have one.

    Unused knobs are known only if all workloads and knobs could be read (`is_whole`).
    """
    wrong = [draft for draft in drafts if not _check_placeholders(draft, around)]
    for draft in drafts:
        named = draft.takes or list_placeholders(draft.make_command(()))
        for one in (one for one in draft.knobs if not draft.uses_knob(one.knob.name)):
            _refuse_unused(one, named, format_table_name(draft.place), around.mistakes)
    named = [name for draft in drafts for name in [*list_placeholders(draft.make_command(())), *draft.takes]]
    for one in shared if is_whole else ():
        if not any(draft.uses_knob(one.knob.name) for draft in drafts):
            _refuse_unused(one, named, "any workload", around.mistakes)
    return not wrong


def _check_placeholders(draft: WorkloadDraft, around: Surroundings) -> bool:
    there = [*(one.knob.name for one in draft.knobs), *around.knobs]
    wrong = [name for name in list_placeholders(draft.make_command(())) if name not in there]
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


# Cells


@dataclass(slots=True)
class CellMaker:
    """Make the cells of a file, and add their mistakes, each once."""

    drafts: Sequence[WorkloadDraft]
    nodes: Mapping[str, NodeType]
    shared: Sequence[Knob]
    own: Mapping[str, Sequence[Knob]]
    skips: Sequence[Condition]
    mistakes: Mistakes
    _added: set[tuple[Place, str]] = field(default_factory=set)
    _modules: dict[str, WorkloadModule] = field(default_factory=dict)

    def make_cells(self, repeats: int) -> list[PlannedCell]:
        """Return all cells, none after a mistake of the whole matrix."""
        found: list[PlannedCell] = []
        try:
            parts = [(draft, self._combine_knobs(draft)) for draft in self.drafts]
        except CycleError as error:
            what, why = "conditions of knobs go round in circles", " -> ".join(map(str, error.args[1]))
            self.mistakes.add(("knobs",), what, why=why, next="let one of them hold always")
            return []
        tried = 0
        for draft, combinations in parts:
            for node in self._list_nodes(draft):
                for cell in self._make_node_cells(draft, node, combinations):
                    tried += 1
                    found += [] if cell is None else [cell]
                    if len(found) * repeats > MAX_SLOTS or tried > MAX_CELLS_TRIED:
                        most = sum(each.max_count * len(self._list_nodes(one)) for one, each in parts)
                        what = f"up to {most} cells x {repeats} are too many slots"
                        why, then = f"at most {MAX_SLOTS} are taken", "give fewer values or repeats"
                        self.mistakes.add(("knobs",), what, why=why, next=then)
                        return []
        if not found:
            self.mistakes.add(("skip",), "no cell is left", why="all are skipped", next="skip less")
        return found

    def _list_nodes(self, draft: WorkloadDraft) -> Sequence[str]:
        return list(self.nodes) if draft.nodes is None else draft.nodes

    def _combine_knobs(self, draft: WorkloadDraft) -> Combinations:
        own = self.own[draft.name]
        taken = {knob.name for knob in own}
        common = [knob for knob in self.shared if knob.name not in taken]
        return Combinations([knob for knob in (*common, *own) if draft.uses_knob(knob.name)], self.skips)

    def _make_node_cells(
        self, draft: WorkloadDraft, node: str, combinations: Combinations
    ) -> Iterator[PlannedCell | None]:
        """Yield the cells of a workload on a node type; None for a skipped cell."""
        identity = self.nodes[node].get_identity()
        made: dict[tuple[str, ...], Workload] = {}
        for values in combinations.list_combinations(draft.name, node):
            if values is None:
                yield None
                continue
            names = tuple(values)
            if names not in made:
                made[names] = draft.make_workload(node, identity, names)
                self._check_knobs(draft, node, names)
            if "gpus" in values:
                self._check_gpu_count(node, values["gpus"])
            cell = PlannedCell(made[names], values)
            if draft.kind == "reference":
                self._check_reference(draft, cell)
            yield cell

    def _check_knobs(self, draft: WorkloadDraft, node: str, names: Sequence[str]) -> None:
        """Refuse a cell without the knob of a placeholder, or with a knob for GPUs on a node type without GPUs."""
        for name in list_placeholders(draft.make_command(names)):
            if name not in names:
                what = f"some cells of {draft.name} on {node} have no knob {name}, which {{{name}}} stands for"
                then = f"let {name} hold there too, or leave them out by [[skip]] or nodes = [...]"
                self._add_once((*draft.place, draft.key), what, next=then)
        for name in (name for name in GPU_KNOBS if name in names and self.nodes[node].hides_gpus):
            is_own = name in {knob.name for knob in self.own[draft.name]}
            at = (*draft.place, "knobs", name) if is_own else ("knobs", name)
            why = 'uses = "cpu"' if self.nodes[node].uses == "cpu" else "gpus = 0"
            what = f"{name} cannot be set for cells on {node}: their workload has no GPU"
            self._add_once(at, what, why=why, next=self._suggest_condition(name, node))

    def _check_gpu_count(self, node: str, value: Value) -> None:
        most = self.nodes[node].options.get("gpus")
        if most and int(value.value) > most:
            what, then = f"gpus {value.text} is more than {node} has", "take fewer, or leave them out by [[skip]]"
            self._add_once(("nodes", node, "gpus"), what, why=f"gpus = {most}", next=then)

    def _check_reference(self, draft: WorkloadDraft, cell: PlannedCell) -> None:
        """Refuse values that a reference workload does not take."""
        from joulelab.run.workload_registry import find_workload, get_presets, merge_parameters, read_pairs

        name = draft.words[0]
        if name not in self._modules:
            self._modules[name] = find_workload(name)  # to search other packages takes long
        module = self._modules[name]
        try:
            given = read_pairs(cell.make_argv()[1:], where=name)
            module.command(merge_parameters(name, module.PARAMETERS, given, get_presets(module)))
        except ConfigError as error:
            more = {"why": error.why, "next": error.next, "code": error.code}
            self._add_once((*draft.place, "reference"), f"{name}: {error.what}", **more)
        except (KeyError, MissingDependency):
            return  # a placeholder without a knob has a mistake already; missing packages are refused before a run

    def _suggest_condition(self, name: str, node: str) -> str:
        others = [f'"{other}"' for other in self.nodes if other != node and not self.nodes[other].hides_gpus]
        if not others:
            return "leave them out by [[skip]], or the knob"
        wanted = others[0] if len(others) == 1 else f"[{', '.join(others)}]"
        return f"write {name} = {{ values = ..., when = {{ node = {wanted} }} }}, or leave them out by [[skip]]"

    def _add_once(self, place: Place, what: str, **more: Any) -> None:
        if (place, what) not in self._added:
            self._added.add((place, what))
            self.mistakes.add(place, what, **more)


def is_reference_cell(cell: PlannedCell, reference: Mapping[str, Any]) -> bool:
    """Return whether a cell, or a phase of it, is in the reference."""
    plain = {WORKLOAD: (cell.workload.name,), NODE: (cell.workload.node_type,), PHASE: cell.workload.phases}
    return all(
        value in plain[key] if key in plain else key in cell.knobs and cell.knobs[key].value == value
        for key, value in reference.items()
    )
