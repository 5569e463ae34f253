"""Read the workloads of a study file: a command, a notebook, or a reference workload by its name."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments import nearest
from joulelab.run.config.problems import is_number, show
from joulelab.study import template
from joulelab.study.file.knobs import read_knobs
from joulelab.study.file.nodes import NAME, NAMED
from joulelab.study.file.settings import SHORTEST_S
from joulelab.study.matrix import Workload
from joulelab.study.work import WorkPattern

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from joulelab.run.config.problems import Table
    from joulelab.study.file import knobs

KINDS = ("command", "notebook", "reference")
KEYS = (*KINDS, "parameters", "pause", "kernel", "phases", "nodes", "work", "work_sum", "knobs", "timeout")
OF_NOTEBOOKS = ("pause", "kernel")
MOST_SHOWN = 6
_CELL = re.compile(r"cell (\d{1,9})")


@dataclass(frozen=True, slots=True)
class Around:
    """Hold what of the file a workload may refer to: its folder, the names of the knobs and of the node types."""

    folder: Path
    knobs: Sequence[str]
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Draft:
    """Hold a workload of the file before its knobs are known; `kind` is empty for a command.

    `takes` are the parameters that it has, of a notebook those among the file's knobs. `nodes` None is all of them; it
    `fits` unless it names a node type or a parameter that there is not.
    """

    name: str
    table: Table
    kind: str
    words: tuple[str, ...]
    parameters: Mapping[str, str]
    takes: Collection[str]
    drafts: Sequence[knobs.Draft]
    phases: tuple[str, ...] = ()
    nodes: tuple[str, ...] | None = None
    timeout_s: float | None = None
    work: tuple[WorkPattern, ...] = ()
    fits: bool = True

    @property
    def key(self) -> str:
        """Return the key of its table that placeholders stand in."""
        return "parameters" if self.kind else "command"

    def has(self, name: str) -> bool:
        """Return whether a knob means something to it: by its placeholder, its parameter, or as joulelab's own."""
        if name in template.OWN or name in template.placeholders(self.command(())):
            return True
        return name in self.takes and name not in self.parameters

    def command(self, names: Collection[str]) -> tuple[str, ...]:
        """Return its command where a cell has these knobs; those in a parameter's text need not be parameters too."""
        if not self.kind:
            return self.words
        named = template.placeholders(list(self.parameters.values()))
        left_out = {*template.OWN, *self.parameters, *(name for name in named if name not in self.takes)}
        own = {name: f"{{{name}}}" for name in names if name not in left_out}
        return (*self.words, *(f"{name}={text}" for name, text in sorted({**own, **self.parameters}.items())))

    def on(self, node: str, identity: Mapping[str, Any], names: Collection[str]) -> Workload:
        """Return the workload of cells on a node type with these knobs."""
        return Workload(self.command(names), self.name, node, self.phases, self.kind, identity)


def read_workloads(top: Table, around: Around) -> tuple[list[Draft], bool]:
    """Return the workloads, and whether all of them could be read."""
    table = top.table("workloads")
    if not table.values:
        top.wrong("workloads", "there is no workload", next="add [workloads.NAME] with command = ...")
    found = [_workload(name, table, around) for name in table.values]
    return [draft for draft in found if draft], bool(found) and all(draft and draft.fits for draft in found)


def _workload(name: str, tables: Table, around: Around) -> Draft | None:
    table = tables.table(name)
    table.allow(KEYS)
    if NAME.fullmatch(name) is None:
        table.wrong("", f"{name!r} cannot name a workload", next=NAMED)
    started = _started(table, around.folder)
    drafts, whole = read_knobs(table.table("knobs"))
    nodes, parameters = _names(table, "nodes"), _parameters(table)
    takes = _takes(table, started, around) if started else []
    draft = Draft(
        name=name,
        table=table,
        kind=started[0] if started else "",
        words=started[1] if started else (),
        parameters=parameters,
        takes=takes,
        drafts=drafts,
        phases=_phases(table, around.folder, started),
        nodes=nodes,
        timeout_s=table.time("timeout", SHORTEST_S),
        work=_work(table),
        fits=_check_nodes(table, nodes, around.nodes) and set(parameters) <= set(takes),
    )
    return draft if started and whole else None


def _started(table: Table, folder: Path) -> tuple[str, tuple[str, ...]] | None:
    """Return the kind of a workload and the words of its command."""
    given = [kind for kind in KINDS if kind in table]
    if len(given) != 1:
        what = f"{table.shown} has {' and '.join(given)}" if given else f"{table.shown} has nothing to run"
        table.wrong(given[-1] if given else "", what, next=f"give one of {', '.join(KINDS)}")
        return None
    kind = given[0]
    if kind == "command":
        words = _words(table)
        return ("", words) if words else None
    name = table.text(kind)
    if name is None:
        return None
    if template.placeholders([name]):
        table.wrong(kind, f"{name!r} has a placeholder", why=f"a {kind} is fixed", next="write a workload for each")
        return None
    if kind == "notebook":
        return (kind, (name, *_options(table))) if _is_there(table, folder, name) else None
    return (kind, (name,)) if _is_known(table, name) else None


def _words(table: Table) -> tuple[str, ...] | None:
    value = table.values["command"]
    if isinstance(value, list):
        if value and all(isinstance(word, str) and "\0" not in word for word in value) and value[0].strip():
            return tuple(value)
        table.wrong("command", f"command is {show(value)}", next="give a text, or a list of words in quotes")
        return None
    text = table.text("command")
    try:
        words = tuple(shlex.split(text or ""))
    except ValueError as error:
        table.wrong(
            "command",
            "the command cannot be split into words",
            why=str(error),
            next="close the quotes, or give a list of words",
        )
        return None
    if text is not None and (not words or not words[0].strip() or "\0" in text):
        table.wrong("command", f"command is {show(text)}", next="give a text, or a list of words in quotes")
        return None
    return words or None


def _options(table: Table) -> list[str]:
    """Return the options of a notebook as its runner takes them."""
    pause_s, kernel = table.time("pause"), table.text("kernel")
    return [*([f"--pause={pause_s:g}"] if pause_s else []), *([f"--kernel={kernel}"] if kernel else [])]


def _is_there(table: Table, folder: Path, name: str) -> bool:
    if (folder / name).is_file():
        return True
    beside = sorted(file.name for file in folder.glob("*.ipynb"))
    then = nearest(name, beside) if beside else "its path is relative to the study file"
    table.wrong("notebook", f"there is no notebook {name}", why=f"looked for in {folder}", next=then)
    return False


def _is_known(table: Table, name: str) -> bool:
    from joulelab.run import workloads

    there = workloads.names()
    if name not in there:
        table.wrong("reference", f"there is no reference workload {name!r}", next=nearest(name, there))
    return name in there


def _takes(table: Table, started: tuple[str, tuple[str, ...]], around: Around) -> list[str]:
    """Return the names of the parameters that a workload has, and refuse others that are fixed for it."""
    kind, (name, *_) = started
    if not kind:
        return []
    own, fixed = table.table("knobs"), table.table("parameters")
    if kind == "notebook":
        # What stands in a parameter's text need not be a parameter itself.
        inside = template.placeholders([text for text in fixed.values.values() if isinstance(text, str)])
        must = [*(key for key in own.values if key not in inside), *fixed.values]
        return _taken(table, around.folder / name, must, [*own.values, *around.knobs])
    from joulelab.run import workloads

    module = workloads.find(name)
    takes = [*module.PARAMETERS, *([workloads.PRESET] if workloads.presets(module) else [])]
    for key in fixed.values:
        if key not in takes:
            fixed.wrong(key, f"{name} has no parameter {key!r}", next=nearest(key, takes))
    return takes


def _taken(table: Table, file: Path, own: Sequence[str], shared: Sequence[str]) -> list[str]:
    """Return the parameters of a notebook among the names of knobs; those of `own` must be."""
    from joulelab.run import cells, notebook

    try:
        content = notebook.load(file)
    except ConfigError as error:
        table.problems.add_error((*table.at, "notebook"), error, f"{file.name}: ")
        return list(own)
    found = []
    for name in dict.fromkeys((*own, *shared)):
        try:
            cells.check(content, [] if name in template.OWN else [name], where=file.name)
            found.append(name)
        except ConfigError as error:
            if name in own:
                inner = "knobs" if name in table.table("knobs") else "parameters"
                table.problems.add_error((*table.at, inner, name), error, f"{file.name}: ")
                found.append(name)
    return found


def _parameters(table: Table) -> dict[str, str]:
    """Return the fixed parameters of a notebook or a reference workload."""
    inner = table.table("parameters")
    for key in ("parameters", *OF_NOTEBOOKS):
        if key in table and (("command" in table) or (key in OF_NOTEBOOKS and "notebook" not in table)):
            what = "a notebook" if key in OF_NOTEBOOKS else "a notebook or a reference workload"
            table.wrong(key, f"{key} is for {what}", next="leave it out")
    found = {}
    for name, value in inner.values.items():
        if template.NAME.fullmatch(name) is None:
            inner.wrong(name, f"{name!r} cannot name a parameter", next="letters, digits and _, no digit at its start")
        elif isinstance(value, str) or is_number(value):
            found[name] = str(value)
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        else:
            inner.wrong(name, f"{name} is {show(value)}", next="give a text, a number, true or false")
        if name in table.table("knobs"):
            inner.wrong(name, f"{name} is a knob and a parameter", next="leave one of them out")
    return found


def _names(table: Table, key: str) -> tuple[str, ...] | None:
    """Return names, each once."""
    names = table.texts(key)
    return None if names is None else tuple(dict.fromkeys(names))


def _phases(table: Table, folder: Path, started: tuple[str, tuple[str, ...]] | None) -> tuple[str, ...]:
    """Return the phases that count; those that are cells of a notebook must be there, and run."""
    phases = _names(table, "phases") or ()
    numbers = {phase: int(match[1]) for phase in phases if (match := _CELL.fullmatch(phase))}
    if not numbers or not started or started[0] != "notebook":
        return phases
    from joulelab.run import cells, notebook

    try:
        content = notebook.load(folder / started[1][0])
    except ConfigError:
        return phases  # that is told
    there = cells.numbers(content)
    for phase, number in numbers.items():
        if number not in there:
            every = len([cell for cell in content["cells"] if cell["cell_type"] == "code"])
            why = "nothing of it is run" if 1 <= number <= every else f"{started[1][0]} has {every} code cells"
            then = f"name one of {_ranges(there)}, counted over all code cells" if there else "leave it out"
            table.wrong("phases", f"there is no phase {phase!r}", why=why, next=then)
    return phases


def _ranges(numbers: Sequence[int]) -> str:
    shown = [f"cell {number}" for number in numbers]
    return ", ".join(shown) if len(shown) <= MOST_SHOWN else f"{', '.join(shown[: MOST_SHOWN - 1])}, ... {shown[-1]}"


def _work(table: Table) -> tuple[WorkPattern, ...]:
    add = table.flag("work_sum")
    if "work_sum" in table and "work" not in table:
        table.wrong("work_sum", "work_sum is for work", next="add work = 'samples: (\\d+)'")
    found = []
    for text in table.texts("work") or ():
        try:
            found.append(WorkPattern.parse(text, add=bool(add)))
        except ConfigError as error:
            table.problems.add_error((*table.at, "work"), error, "work: ")
    return tuple(found)


def _check_nodes(table: Table, names: Sequence[str] | None, there: Sequence[str]) -> bool:
    """Return whether a workload names only node types that there are, and at least one."""
    wrong = [name for name in names or () if name not in there]
    for name in wrong:
        table.wrong("nodes", f"there is no node type {name!r}", next=nearest(name, list(there)))
    if names is not None and not names:
        then = f"name some of {', '.join(there)}, or leave it out for all"
        table.wrong("nodes", f"{table.shown} has no node", next=then)
    return not wrong and (names is None or bool(names))


def check_knobs(drafts: Sequence[Draft], shared: Sequence[knobs.Draft], around: Around, *, whole: bool) -> bool:
    """Refuse placeholders without a knob, and knobs that nothing uses; return whether all placeholders have one.

    Where not the `whole` of the workloads could be read, nobody knows what is not used.
    """
    wrong = [draft for draft in drafts if not _check_placeholders(draft, around)]
    for draft in drafts:
        _check_own(draft)
    named = [name for draft in drafts for name in [*template.placeholders(draft.command(())), *draft.takes]]
    for one in shared if whole else ():
        if not any(draft.has(one.knob.name) for draft in drafts):
            _tell_unused(drafts[0].table, one, named, "any workload")
    return not wrong


def _check_placeholders(draft: Draft, around: Around) -> bool:
    there = [*draft.table.table("knobs").values, *around.knobs]
    wrong = [name for name in template.placeholders(draft.command(())) if name not in there]
    for name in wrong:
        literal = f"or write {{{{{name}}}}} for a literal {{{name}}}"
        then = f"{nearest(name, there)}; {literal}" if there else f"add it to [knobs], {literal}"
        draft.table.wrong(draft.key, f"the placeholder {{{name}}} has no knob", next=then)
    return not wrong


def _check_own(draft: Draft) -> None:
    named = draft.takes or template.placeholders(draft.command(()))
    for one in draft.drafts:
        if not draft.has(one.knob.name):
            _tell_unused(draft.table, one, named, draft.table.shown)


def _tell_unused(table: Table, one: knobs.Draft, named: Collection[str], where: str) -> None:
    name = one.knob.name
    then = f"put {{{name}}} where its value belongs, or leave it out"
    then = f"{nearest(name, list(dict.fromkeys(named)))}; {then}" if named else then
    table.problems.add(one.at, f"the knob {name} is not used by {where}", next=then)
