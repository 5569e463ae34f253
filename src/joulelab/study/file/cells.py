"""Make the cells of a study file, and refuse those that cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import CycleError
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.study import template
from joulelab.study.conditions import NODE, PHASE, WORKLOAD
from joulelab.study.matrix import MAX_SLOTS, Combinations, PlannedCell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.core.toml_reading import Mistakes
    from joulelab.run.workload_registry import WorkloadModule
    from joulelab.study.conditions import Condition
    from joulelab.study.file.workloads import WorkloadDraft
    from joulelab.study.matrix import Knob, Workload
    from joulelab.study.nodes import NodeType
    from joulelab.study.values import Value

# A matrix of which nearly all is skipped is not looked at without end.
MOST_LOOKED_AT = 2 * MAX_SLOTS
ON_GPUS = ("cap", "clock", "gpus")


@dataclass(slots=True)
class Matrix:
    """Hold what cells are made of, all of it read; mistakes of the cells are noted, each kind once."""

    drafts: Sequence[WorkloadDraft]
    nodes: Mapping[str, NodeType]
    shared: Sequence[Knob]
    own: Mapping[str, Sequence[Knob]]
    skips: Sequence[Condition]
    mistakes: Mistakes
    _noted: set[tuple[Any, ...]] = field(default_factory=set)
    _modules: dict[str, WorkloadModule] = field(default_factory=dict)

    def cells(self, repeats: int) -> list[PlannedCell]:
        """Return every cell."""
        found: list[PlannedCell] = []
        try:
            parts = [(draft, self._combinations(draft)) for draft in self.drafts]
        except CycleError as error:
            round_ = " -> ".join(str(name) for name in error.args[1])
            then = "let one of them hold always"
            self.mistakes.add(("knobs",), "conditions of knobs go round in circles", why=round_, next=then)
            return []
        most = sum(each.most * len(self._nodes(draft)) for draft, each in parts)
        looked = 0
        for draft, each in parts:
            for node in self._nodes(draft):
                for cell in self._of(draft, node, each):
                    looked += 1
                    if cell is not None:
                        found.append(cell)
                    if len(found) * repeats > MAX_SLOTS or looked > MOST_LOOKED_AT:
                        self._refuse_many(most, repeats)
                        return []
        if not found:
            self.mistakes.add(("skip",), "no cell is left", why="all are skipped", next="skip less")
        return found

    def _refuse_many(self, most: int, repeats: int) -> None:
        self.mistakes.add(
            ("knobs",),
            f"up to {most} cells x {repeats} are too many slots",
            why=f"at most {MAX_SLOTS} are taken",
            next="give fewer values or repeats",
        )

    def _nodes(self, draft: WorkloadDraft) -> Sequence[str]:
        return list(self.nodes) if draft.nodes is None else draft.nodes

    def _combinations(self, draft: WorkloadDraft) -> Combinations:
        own = self.own[draft.name]
        taken = {knob.name for knob in own}
        common = [knob for knob in self.shared if knob.name not in taken]
        return Combinations([knob for knob in (*common, *own) if draft.has(knob.name)], self.skips)

    def _of(self, draft: WorkloadDraft, node: str, each: Combinations) -> Iterator[PlannedCell | None]:
        """Yield the cells of a workload on a node type; None is one that is skipped."""
        identity = self.nodes[node].identity()
        made: dict[tuple[str, ...], Workload] = {}
        for values in each.of(draft.name, node):
            if values is None:
                yield None
                continue
            names = tuple(values)
            if names not in made:
                made[names] = draft.on(node, identity, names)
                self._check_knobs(draft, node, names)
            if "gpus" in values:
                self._check_count(node, values["gpus"])
            cell = PlannedCell(made[names], values)
            if draft.kind == "reference":
                self._check_reference(draft, cell)
            yield cell

    def _check_knobs(self, draft: WorkloadDraft, node: str, names: Sequence[str]) -> None:
        """Refuse a cell that lacks the knob of a placeholder, or has a knob that does nothing there."""
        for name in template.list_placeholders(draft.command(names)):
            if name not in names and self._is_new("lacks", draft.name, node, name):
                what = f"some cells of {draft.name} on {node} have no knob {name}, which {{{name}}} stands for"
                then = f"let {name} hold there too, or leave them out by [[skip]] or nodes = [...]"
                self.mistakes.add((*draft.place, draft.key), what, next=then)
        if not self.nodes[node].hides_gpus:
            return
        for name in (name for name in ON_GPUS if name in names):
            if self._is_new("gpus", node, name):
                own = name in {knob.name for knob in self.own[draft.name]}
                at = (*draft.place, "knobs", name) if own else ("knobs", name)
                uses = 'uses = "cpu"' if self.nodes[node].uses == "cpu" else "gpus = 0"
                what = f"{name} cannot be set for cells on {node}: their workload has no GPU"
                self.mistakes.add(at, what, why=uses, next=self._suggest_condition(name, node))

    def _check_count(self, node: str, value: Value) -> None:
        there = self.nodes[node].options.get("gpus")
        if there and int(value.value) > there and self._is_new("count", node, value.text):
            what = f"gpus {value.text} is more than {node} has"
            at = ("nodes", node, "gpus")
            self.mistakes.add(at, what, why=f"gpus = {there}", next="take fewer, or leave them out by [[skip]]")

    def _check_reference(self, draft: WorkloadDraft, cell: PlannedCell) -> None:
        """Refuse values that a reference workload does not take."""
        from joulelab.run.workload_registry import find_workload, get_presets, merge_parameters, read_pairs

        name = draft.words[0]
        if name not in self._modules:
            self._modules[name] = find_workload(name)  # those of other packages are looked for long
        module = self._modules[name]
        try:
            given = read_pairs(cell.argv()[1:], where=name)
            module.command(merge_parameters(name, module.PARAMETERS, given, get_presets(module)))
        except ConfigError as error:
            if self._is_new("value", draft.name, error.what):
                self.mistakes.add_error((*draft.place, "reference"), error, f"{name}: ")
        except (KeyError, MissingDependency):
            return  # a placeholder without a knob: that is told; what is not installed here, before it is run

    def _suggest_condition(self, name: str, node: str) -> str:
        others = [f'"{other}"' for other in self.nodes if other != node and not self.nodes[other].hides_gpus]
        if not others:
            return "leave them out by [[skip]], or the knob"
        wanted = others[0] if len(others) == 1 else f"[{', '.join(others)}]"
        return f"write {name} = {{ values = ..., when = {{ node = {wanted} }} }}, or leave them out by [[skip]]"

    def _is_new(self, *what: Any) -> bool:
        new = what not in self._noted
        self._noted.add(what)
        return new


def is_of(cell: PlannedCell, reference: Mapping[str, Any]) -> bool:
    """Return whether a cell is one of those that others are compared with; some phase of it, where one is named."""
    plain = {WORKLOAD: (cell.workload.name,), NODE: (cell.workload.node_type,), PHASE: cell.workload.phases}
    return all(
        value in plain[key] if key in plain else key in cell.knobs and cell.knobs[key].value == value
        for key, value in reference.items()
    )
