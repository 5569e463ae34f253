"""Read the knobs of a study file, the conditions on them, and what is skipped."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import TEXTS, TableKey, format_value, is_number, read_table, read_texts, read_value
from joulelab.study import template
from joulelab.study.conditions import ALWAYS, NODE, PHASE, WORKLOAD, Condition
from joulelab.study.file.study_keys import KnobKeys
from joulelab.study.matrix import Knob
from joulelab.study.values import Value, read_value_list, read_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.core.toml_reading import Mistakes, Place

# What results tell of a cell beside its knobs: a knob of that name would be taken for it.
TAKEN = (WORKLOAD, NODE, PHASE)
MOST_SHOWN, MOST_WRONG = 10, 3
THEN = "give a text as for sweep, a list, or { values = ..., when = { ... } }"


@dataclass(frozen=True, slots=True)
class KnobDraft:
    """Hold a knob of the file whose condition is not read yet: names in it may be of tables that follow."""

    knob: Knob
    place: Place
    when: Mapping[str, Any] | None = None


def read_knobs(table: Mapping[str, Any], place: Place, mistakes: Mistakes) -> list[KnobDraft]:
    """Return the knobs of `[knobs]` or of a workload that can be read."""
    return [draft for name, raw in table.items() for draft in _read_knob(name, raw, (*place, name), mistakes)]


def _read_knob(name: str, raw: Any, place: Place, mistakes: Mistakes) -> list[KnobDraft]:
    """Return a knob once for each of its tables, or once where it is values alone."""
    if name in TAKEN:
        why, then = "results tell it of every cell", "choose another name"
        mistakes.add(place, f"a knob cannot be named {name}", why=why, next=then, code="config.name")
        return []
    if template.KNOB_NAME.fullmatch(name) is None:
        then = "letters, digits and _, no digit at its start"
        mistakes.add(place, f"{name!r} cannot name a knob", next=then, code="config.name")
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
    """Return the values of a knob: as typed for sweep, a number, or a list."""
    items = raw if isinstance(raw, list) else [raw]
    if not all(isinstance(item, str | bool) or is_number(item) for item in items):
        what = f"the values of the knob {name} are {format_value(raw)}"
        mistakes.add(place, what, next=THEN, code="config.wrong-value")
        return None
    try:
        return read_values(name, raw, name) if isinstance(raw, str) else read_value_list(name, items, name)
    except ConfigError as error:
        mistakes.add_error(place, error, f"knob {name}: ")
        return None


class Names:
    """Know what a condition may name: workloads, node types and phases (`plain`), knobs and their values.

    Some knobs of `named` could not be read: they have a mistake already.
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
        self.unread = set(named) - set(self.knobs) - set(TAKEN)
        self._mistakes = mistakes

    def read_condition(self, table: Mapping[str, Any], place: Place, *, own: str = "") -> Condition | None:
        """Return the condition that a table says, None where something is wrong. `own` is the knob it is of."""
        keys = [WORKLOAD, NODE, *(name for name in self.knobs if name != own)]
        found = {key: self.read_key(key, value, (*place, key), keys, own) for key, value in table.items()}
        if None in found.values():
            return None
        taken = {key: frozenset(texts) for key, texts in found.items() if texts is not None}
        workloads, nodes = taken.pop(WORKLOAD, frozenset()), taken.pop(NODE, frozenset())
        return Condition(workloads, nodes, taken)

    def read_key(self, key: str, raw: Any, place: Place, keys: Sequence[str], own: str = "") -> dict[str, Any] | None:
        """Return what a key of a condition names: names, or values of a knob by their texts; None where it is wrong."""
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
        for value in wrong[:MOST_WRONG]:
            what, then = f"no cell has {key} {value.shown}", _suggest_value(value, list(there))
            self._mistakes.add(place, what, next=then, code="config.wrong-value")
        return None if wrong else {value.text: value.value for value in values}

    def read_reference(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return what singles out the cells that others are compared with: names, and values of knobs."""
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
        """Return the knobs with their conditions, without those whose condition is wrong."""
        knobs = []
        for draft in drafts:
            when: Condition | None = ALWAYS
            if draft.when is not None:
                when = self.read_condition(draft.when, (*draft.place, "when"), own=draft.knob.name)
            knobs += [] if when is None else [replace(draft.knob, when=when)]
        return knobs


def _suggest_value(wrong: Value, there: Sequence[Value]) -> str:
    """Return advice for a value that no cell has: of numbers the nearest ones."""
    number = wrong.value
    if isinstance(number, str):
        return suggest_name(wrong.shown, [value.shown for value in there][:MOST_SHOWN])
    near = sorted(there, key=lambda v: math.inf if isinstance(v.value, str) else abs(v.value - number))
    shown = [value.shown for value in there if value in near[:MOST_SHOWN]]
    more = ", ..." if len(there) > len(shown) else ""
    return f"did you mean {near[0].shown!r}? valid: {', '.join(shown)}{more}"
