"""Make the matrix of a study: knobs and their values, every combination a cell with an identity of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.study import template
from joulelab.study.values import Value, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_SLOTS = 100_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Say what is run: a command with placeholders, the kind of node it runs on, and the phases that count.

    `kind` is empty for a command; of a `notebook` or a `reference` workload the command is its file or name, and then
    its parameters as NAME={NAME}. `node` is what of the node type decides what is measured.
    """

    command: tuple[str, ...]
    name: str = ""
    node_type: str = "local"
    phases: tuple[str, ...] = ()
    kind: str = ""
    node: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; what is not special is left out, so that identities stay as they were."""
        special = {"kind": self.kind, "node": dict(self.node)}
        return {
            "workload": self.name,
            "command": list(self.command),
            "node_type": self.node_type,
            "phases": list(self.phases),
        } | {key: value for key, value in special.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Take what `to_json` gave."""
        known = cls(tuple(data["command"]), data["workload"], data["node_type"], tuple(data["phases"]))
        return replace(known, kind=data.get("kind", ""), node=data.get("node", {}))


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """Hold one combination of a workload and the values of its knobs; `key` identifies it, in any study."""

    workload: Workload
    knobs: Mapping[str, Value]

    @property
    def key(self) -> str:
        """Return the cell's identity: a hash of what defines it, whatever the order of its knobs."""
        knobs = {name: [value.text, value.unit] for name, value in self.knobs.items()}
        return _hash({**self.workload.to_json(), "knobs": knobs})[:12]

    @property
    def shown(self) -> str:
        """Return the knobs in words."""
        return ", ".join(f"{name} {value.shown}" for name, value in self.knobs.items()) or "(no knob)"

    def argv(self) -> list[str]:
        """Return the command of this cell."""
        return template.fill(self.workload.command, {name: value.text for name, value in self.knobs.items()})

    def values(self) -> dict[str, Any]:
        """Return the values of the knobs, as metrics take them."""
        return {name: value.value for name, value in self.knobs.items()}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**self.workload.to_json(), "knobs": {name: value.to_json() for name, value in self.knobs.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedCell:
        """Take what `to_json` gave."""
        knobs = {name: Value.from_json(value) for name, value in data["knobs"].items()}
        return cls(Workload.from_json(data), knobs)


@dataclass(frozen=True, slots=True)
class Knob:
    """Hold a knob and the values it takes."""

    name: str
    values: tuple[Value, ...]

    @classmethod
    def parse(cls, name: str, text: str, where: str | None = None) -> Knob:
        """Read a knob's values as they are typed. Raises ConfigError."""
        if template.NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name!r} cannot name a knob", where=where, next="letters, digits and _, no digit at its start"
            )
        return cls(name, read(name, text, where or f"--set {name}"))


def check_slots(count: int, repeats: int) -> None:
    """Refuse a plan of more slots than a study can hold. Raises ConfigError."""
    if count * repeats > MOST_SLOTS:
        cells = "1 cell" if count == 1 else f"{count} cells"
        raise ConfigError(
            f"{cells} x {repeats} = {count * repeats} slots are too many",
            where="knobs",
            why=f"at most {MOST_SLOTS} are taken",
            next="give fewer values or a smaller --repeat",
        )


def cells(workload: Workload, knobs: Sequence[Knob], repeats: int = 1) -> list[PlannedCell]:
    """Return every combination, each once. Raises ConfigError for knobs and placeholders that do not fit.

    So many `repeats` of them must not be more than a study takes: that is known before any is made.
    """
    names = [knob.name for knob in knobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"the knob {twice} is given twice", where="knobs", next="give all its values at once")
    template.check(workload.command, names)
    check_slots(math.prod(len(knob.values) for knob in knobs), repeats)
    combined = itertools.product(*(knob.values for knob in knobs))
    made = (PlannedCell(workload, dict(zip(names, values, strict=True))) for values in combined)
    return list({cell.key: cell for cell in made}.values())


def find_reference(pairs: Mapping[str, str], knobs: Sequence[Knob]) -> dict[str, Any]:
    """Return the values that single out the reference cells: `cap=260`. Raises ConfigError with what there is."""
    by_name = {knob.name: knob for knob in knobs}
    found: dict[str, Any] = {}
    for name, text in pairs.items():
        if name not in by_name:
            raise ConfigError(f"there is no knob {name!r}", where="--reference", why=f"knobs: {', '.join(by_name)}")
        wanted = read(name, text, "--reference")
        there = {(v.value, v.unit): v for v in by_name[name].values}
        if len(wanted) != 1 or (wanted[0].value, wanted[0].unit) not in there:
            listed = ", ".join(v.shown for v in by_name[name].values)
            raise ConfigError(f"no cell has {name} {text}", where="--reference", why=f"there are {listed}")
        found[name] = wanted[0].value
    return found


def template_hash(workload: Workload) -> str:
    """Return a short hash of a workload without its knobs, to tell studies of different commands apart."""
    return _hash(workload.to_json())[:6]


def _hash(data: Mapping[str, Any]) -> str:
    # Bytes of a command line that are no UTF-8 are lone surrogates: JSON's escapes take them.
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
