"""Read the knobs of a study file, the conditions on them, and what is skipped."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments import nearest
from joulelab.run.config.problems import Table, is_number, show
from joulelab.study import template
from joulelab.study.conditions import ALWAYS, NODE, PHASE, WORKLOAD, Condition
from joulelab.study.matrix import Knob
from joulelab.study.values import Value, listed, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.core.reading import Place

KEYS = ("values", "when")
# What results tell of a cell beside its knobs: a knob of that name would be taken for it.
TAKEN = (WORKLOAD, NODE, PHASE)
MOST_SHOWN, MOST_WRONG = 10, 3
THEN = "give a text as for sweep, a list, or { values = ..., when = { ... } }"


@dataclass(frozen=True, slots=True)
class Draft:
    """Hold a knob of the file whose condition is not read yet: names in it may be of tables that follow."""

    knob: Knob
    at: Place
    when: Table | None = None


def read_knobs(table: Table) -> tuple[list[Draft], bool]:
    """Return the knobs of `[knobs]` or of a workload, and whether all of them could be read."""
    found: list[Draft] = []
    whole = True
    for name in table.values:
        made = _alternatives(name, table)
        whole = whole and made is not None
        found += made or []
    return found, whole


def _alternatives(name: str, table: Table) -> list[Draft] | None:
    raw, at = table.values[name], (*table.at, name)
    if name in TAKEN:
        table.wrong(
            name, f"a knob cannot be named {name}", why="results tell it of every cell", next="choose another name"
        )
        return None
    if template.NAME.fullmatch(name) is None:
        table.wrong(name, f"{name!r} cannot name a knob", next="letters, digits and _, no digit at its start")
        return None
    if isinstance(raw, dict):
        parts = [Table(raw, at, table.problems)]
    elif isinstance(raw, list) and raw and all(isinstance(item, dict) for item in raw):
        parts = [Table(item, (*at, n), table.problems) for n, item in enumerate(raw)]
    else:
        values = read_values(name, raw, at, table)
        return [Draft(Knob(name, values), at)] if values else None
    drafts = [_conditional(name, part) for part in parts]
    return [draft for draft in drafts if draft] if all(drafts) else None


def _conditional(name: str, part: Table) -> Draft | None:
    part.allow(KEYS)
    if "values" not in part:
        part.wrong("", f"the knob {name} has no values", next="add values = [...]")
        return None
    values = read_values(name, part.values["values"], (*part.at, "values"), part)
    when = part.table("when") if "when" in part else None
    return Draft(Knob(name, values), part.at, when) if values else None


def read_values(name: str, raw: Any, at: Place, table: Table) -> tuple[Value, ...] | None:
    """Return the values of a knob: as typed for sweep, a number, or a list. What is wrong is noted."""
    items = raw if isinstance(raw, list) else [raw]
    if not all(isinstance(item, str | bool) or is_number(item) for item in items):
        table.problems.add(at, f"the values of the knob {name} are {show(raw)}", next=THEN)
        return None
    try:
        return read(name, raw, name) if isinstance(raw, str) else listed(name, items, name)
    except ConfigError as error:
        table.problems.add_error(at, error, f"knob {name}: ")
        return None


class Names:
    """Know what a condition may name: workloads, node types, knobs and their values.

    Of `named` some knobs could not be read: that is told already.
    """

    def __init__(
        self, workloads: Iterable[str], nodes: Iterable[str], knobs: Iterable[Knob], named: Iterable[str] = ()
    ) -> None:
        self.plain = {WORKLOAD: list(workloads), NODE: list(nodes)}
        self.knobs: dict[str, dict[Value, None]] = {}
        for knob in knobs:
            self.knobs.setdefault(knob.name, {}).update(dict.fromkeys(knob.values))
        self.unread = set(named) - set(self.knobs) - set(TAKEN)

    def condition(self, table: Table, *, own: str = "") -> Condition | None:
        """Return the condition that a table says, None where something is wrong. `own` is the knob it is of."""
        keys = [*self.plain, *(name for name in self.knobs if name != own)]
        found: dict[str, frozenset[str] | None] = {}
        for key in table.values:
            if key in self.unread:
                found[key] = None
            elif key not in keys:
                what = "a knob cannot depend on itself" if key == own else f"there is no knob {key!r}"
                table.wrong(key, what, next=nearest(key, keys))
                found[key] = None
            else:
                found[key] = self._plain(key, table) if key in self.plain else self._texts(key, table)
        if None in found.values():
            return None
        taken = {key: values for key, values in found.items() if values is not None}
        workloads, nodes = taken.pop(WORKLOAD, frozenset()), taken.pop(NODE, frozenset())
        return Condition(workloads, nodes, taken)

    def _plain(self, key: str, table: Table) -> frozenset[str] | None:
        names = table.texts(key)
        if not names:
            if names is not None:
                table.wrong(key, f"{key} names nothing", next=f"name one of {', '.join(self.plain[key])}")
            return None
        what = "workload" if key == WORKLOAD else "node type"
        wrong = [name for name in names if name not in self.plain[key]]
        for name in wrong:
            table.wrong(key, f"there is no {what} {name!r}", next=nearest(name, self.plain[key]))
        return None if wrong else frozenset(names)

    def _texts(self, key: str, table: Table) -> frozenset[str] | None:
        values = self.values(key, table)
        return None if values is None else frozenset(value.text for value in values)

    def values(self, key: str, table: Table) -> tuple[Value, ...] | None:
        """Return the values of a knob that a key names, None where there are others."""
        values = read_values(key, table.values[key], (*table.at, key), table)
        if values is None:
            return None
        there = self.knobs[key]
        wrong = [value for value in values if value not in there]
        for value in wrong[:MOST_WRONG]:
            table.wrong(key, f"no cell has {key} {value.shown}", next=_nearest_value(value, list(there)))
        return None if wrong else values


def _nearest_value(wrong: Value, there: Sequence[Value]) -> str:
    """Return advice for a value that no cell has: of numbers the nearest ones."""
    number = wrong.value
    if isinstance(number, str):
        return nearest(wrong.shown, [value.shown for value in there][:MOST_SHOWN])
    near = sorted(there, key=lambda v: math.inf if isinstance(v.value, str) else abs(v.value - number))
    listed = [value.shown for value in there if value in near[:MOST_SHOWN]]
    more = ", ..." if len(there) > len(listed) else ""
    return f"did you mean {near[0].shown!r}? valid: {', '.join(listed)}{more}"


def finish(drafts: Sequence[Draft], names: Names) -> list[Knob] | None:
    """Return the knobs with their conditions, None where one of those is wrong."""
    knobs = []
    for draft in drafts:
        when = ALWAYS if draft.when is None else names.condition(draft.when, own=draft.knob.name)
        if when is not None:
            knobs.append(replace(draft.knob, when=when))
    return knobs if len(knobs) == len(drafts) else None


def read_reference(table: Table, names: Names, phases: Sequence[str]) -> dict[str, Any]:
    """Return what singles out the cells that others are compared with: names, and values of knobs."""
    plain: Mapping[str, Sequence[str]] = {**names.plain, PHASE: phases}
    found: dict[str, Any] = {}
    table_keys = [*(key for key in plain if plain[key]), *names.knobs]
    for key in table.values:
        if key in names.unread:
            continue
        if key not in table_keys:
            table.wrong(key, f"there is no knob {key!r}", next=nearest(key, table_keys))
        elif key in plain:
            name = table.one_of(key, plain[key], "node type" if key == NODE else key)
            found |= {key: name} if name is not None else {}
        else:
            values = names.values(key, table)
            if values and len(values) > 1:
                table.wrong(key, f"the reference has {len(values)} values of {key}", next="name one of them")
            elif values:
                found[key] = values[0].value
    if found and len(found) == len(table.values) and set(found) <= {WORKLOAD, PHASE}:
        why = "different workloads and phases are not compared with each other"
        then = f"name a node or a value of a knob too ({', '.join([NODE, *names.knobs])}), or leave it out"
        table.wrong("", f"a {' and a '.join(found)} alone cannot be the reference", why=why, next=then)
    return found
