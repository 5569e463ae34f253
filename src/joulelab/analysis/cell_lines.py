"""Sort the cells of a study into lines: cells that differ by one knob, with their reference and kind of work. Pure.

Cells of different workloads or phases have done different work: they are never in one line, nor compared.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.marked_phases import list_figure_kinds
from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.study_cells import Cell

AXES = ("cap", "clock", "cpu_cap")
GROUP_KNOBS = ("workload", "phase")  # cells that differ here are in different groups
PLURAL = {"workload": "Workloads", "phase": "Phases"}
WITHOUT = {"cap": "no cap", "clock": "no locked clock", "cpu_cap": "no CPU cap"}
ONLY_CELL = "the only cell"  # a study of one cell has no knob to name it by
SAME_WORK = 1e-3  # amounts of work that differ by less (relative) count as equal
NUMBER = re.compile(r"([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?) *(?:%|W|[MG]?Hz)?", re.IGNORECASE)
LARGEST_SHARE = 2.0  # a cap up to this is a share of the default: no device has a cap of two watts


@dataclass(frozen=True, slots=True)
class CellLine:
    """Hold cells (by key) that differ by one knob (`axis`, None if by several), in its order, and their reference.

    Energy and time are divided by the kind of work `per` before they are compared, if it is not None.
    """

    key: str
    knobs: Mapping[str, Any]
    axis: str | None
    cells: tuple[str, ...]
    reference: str | None
    per: str | None = None


def fill_axes(cells: Sequence[Cell]) -> list[Cell]:
    """Set the knob of a cap or clock to None in cells without it, if other cells of their group have it."""
    axes = {
        _get_group_key(of[0]): [n for n in AXES if any(n in each.knobs for each in of)] for of in group_cells(cells)
    }
    return [
        replace(c, knobs={**{n: None for n in axes[_get_group_key(c)] if n not in c.knobs}, **c.knobs}) for c in cells
    ]


def group_cells(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Group cells by workload and phase, in the order of their first cells."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(_get_group_key(cell), []).append(cell)
    return list(found.values())


def get_group_knobs(cell: Cell) -> dict[str, Any]:
    """Return the knobs `workload` and `phase` of a cell, if it has them."""
    return {name: cell.knobs[name] for name in GROUP_KNOBS if name in cell.knobs}


def _get_group_key(cell: Cell) -> str:
    return repr(get_group_knobs(cell))


def find_cell_lines(
    cells: Sequence[Cell], reference: Mapping[str, Any] | None = None, per: Sequence[str] = ()
) -> list[CellLine]:
    """Return the lines in the order of their first cells; `per` names kinds of work to compare by, best first.

    Raises ConfigError if the reference matches no cell.
    """
    if reference is not None:
        # A study with one workload, node type or phase does not name it in its cells, but a reference may.
        there = _list_knobs(cells)
        reference = {n: v for n, v in reference.items() if n in there or n not in (*GROUP_KNOBS, "node")} or None
    if reference is not None and not _find_matching(cells, reference):
        what, then = f"no cell has {format_knobs(reference)}", f"there are {_list_known_values(cells)}"
        raise ConfigError(what, where="reference", next=then, code="config.unknown-cell")
    of_all = group_cells(cells)
    if len(of_all) == 1:
        return _find_group_lines(cells, reference, per, {})
    found = []
    for of in of_all:
        own = get_group_knobs(of[0])
        # The workload or phase of a reference applies to its own group only, its other knobs to all groups.
        wanted = reference if reference is None or _find_matching(of, reference) else _drop_group_knobs(reference, own)
        found += _find_group_lines(of, wanted or None, per, own)
    return found


def note_unused_reference(cells: Sequence[Cell], reference: Mapping[str, Any] | None) -> list[Note]:
    """Return a note about the part of a reference that has no effect: a workload or phase among several."""
    asked = {n: v for n, v in (reference or {}).items() if n in GROUP_KNOBS and n in _list_varying_knobs(cells)}
    return [
        Note("reference-unused", texts={"knobs": PLURAL[name], "value": format_knobs({name: value})})
        for name, value in asked.items()
    ]


def _drop_group_knobs(reference: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in reference.items() if n not in GROUP_KNOBS or (n in own and is_same_value(own[n], v))}


def _find_group_lines(
    cells: Sequence[Cell], reference: Mapping[str, Any] | None, per: Sequence[str], shared: Mapping[str, Any]
) -> list[CellLine]:
    """Return the lines of one group; `shared` are the knobs of the group, if there are several groups."""
    asked = _find_asked_axis(cells, reference)
    axis = asked or find_axis(cells)
    # Along a cap, all other knobs define the line; along the knob of a reference, those that every cell has.
    apart = _list_common_knobs(cells) if asked else _list_knobs(cells) if axis in AXES else []
    members_of: dict[str, list[Cell]] = {}
    knobs_of: dict[str, dict[str, Any]] = {}
    for cell in cells:
        knobs = {n: v for n, v in cell.knobs.items() if n in apart and n != axis} if apart else dict(shared)
        key = format_knobs(knobs)
        members_of.setdefault(key, []).append(cell)
        knobs_of.setdefault(key, knobs)
    bases = _choose_works(list(members_of.values()), per)
    # A reference that names only the cap is looked up in each line; with other knobs it may be in another line.
    anywhere = reference is not None and not (axis in AXES and set(reference) <= {axis}) and is_comparable(cells)
    elsewhere = _find_matching(cells, reference) if reference is not None and anywhere else []
    lines = []
    for (key, members), base in zip(members_of.items(), bases, strict=True):
        ordered = members if axis is None else sorted(members, key=lambda c: rank_value(c.knobs.get(axis)))
        chosen = _choose_reference(members, elsewhere, axis, reference)
        along = None if asked and len({repr(c.knobs.get(asked)) for c in members}) < len(members) else axis
        against = chosen.key if chosen else None
        lines.append(CellLine(key, knobs_of[key], along, tuple(c.key for c in ordered), against, base))
    return lines


def _find_asked_axis(cells: Sequence[Cell], reference: Mapping[str, Any] | None) -> str | None:
    """Return the varying knob that a reference names, if it names only one, and neither cap nor clock varies.

    Each cell is then compared with the cell that differs from it in this knob only.
    """
    varying = _list_varying_knobs(cells)
    named = [n for n in varying if n in (reference or {})]
    if len(named) != 1 or len(varying) < 2 or any(n in c.knobs for c in cells for n in AXES):
        return None
    return named[0]


def find_axis(cells: Sequence[Cell]) -> str | None:
    """Return the axis of the lines: a cap or clock that varies, else the only varying knob."""
    varying = _list_varying_knobs(cells)
    present = [n for n in AXES if any(n in c.knobs for c in cells)]
    caps = [n for n in AXES if n in varying] or present
    if caps:
        return caps[0]
    return varying[0] if len(varying) == 1 else None


def rank_value(value: Any) -> float:
    """Return the value of a knob as a number without its unit, to sort by; infinity for other values such as no cap."""
    if isinstance(value, (int, float)):
        return float(value)
    found = NUMBER.fullmatch(str(value).strip())
    return float(found[1]) if found else math.inf


def format_knobs(knobs: Mapping[str, Any]) -> str:
    """Return knobs as text: `gpus=8 batch=256`, `cap=170 W`, `no cap`."""
    return " ".join(
        WITHOUT[name] if value is None and name in AXES else f"{name}={format_knob(name, value)}"
        for name, value in knobs.items()
    )


def name_cells(cells: Iterable[Cell], most: int | None = None) -> tuple[str, ...]:
    """Return the names of cells by their knobs, each once; `...` replaces names after the first `most`."""
    names = list(dict.fromkeys(format_knobs(cell.knobs) or ONLY_CELL for cell in cells))
    return tuple(names) if most is None or len(names) <= most else (*names[:most], "...")


def format_knob(name: str, value: Any) -> str:
    """Return the value of a knob with its unit: `170 W`, `1200 MHz`, `8`, `no cap`."""
    if value is None and name in AXES:
        return WITHOUT[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    factor, unit = choose_knob_unit(name, [value])
    return f"{value / factor:g} {unit}".rstrip()


def name_knob_column(name: str) -> str:
    """Return the name of a knob's column in files; clocks are in Hz there."""
    return f"knob_{name}_hz" if name == "clock" else f"knob_{name}"


def choose_knob_unit(name: str, values: Iterable[float]) -> tuple[float, str]:
    """Return the divisor for the values of a knob, and the unit that they then have."""
    if name == "clock":
        return 1e6, "MHz"
    if name not in AXES:
        return 1.0, ""
    return (0.01, "%") if all(0 < v <= LARGEST_SHARE for v in values) else (1.0, "W")


def _list_known_values(cells: Sequence[Cell]) -> str:
    """Return every knob with its values, in order."""
    values = {name: dict.fromkeys(c.knobs.get(name) for c in cells) for name in _list_knobs(cells)}
    return "; ".join(
        f"{name} {', '.join(format_knob(name, v) for v in sorted(there, key=lambda v: (rank_value(v), str(v))))}"
        for name, there in values.items()
    )


def _list_knobs(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(name for c in cells for name in c.knobs))


def _list_varying_knobs(cells: Sequence[Cell]) -> list[str]:
    return [n for n in _list_knobs(cells) if len({repr(c.knobs.get(n)) for c in cells}) > 1]


def _list_common_knobs(cells: Sequence[Cell]) -> list[str]:
    return [n for n in cells[0].knobs if all(n in c.knobs for c in cells)]


def _find_matching(cells: Sequence[Cell], wanted: Mapping[str, Any]) -> list[Cell]:
    return [c for c in cells if all(n in c.knobs and is_same_value(c.knobs[n], v) for n, v in wanted.items())]


def is_same_value(a: Any, b: Any) -> bool:
    """Return whether two values of a knob are equal; numbers may be given as text."""
    return bool(a == b) or f"{a:g}" == str(b) if isinstance(a, (int, float)) else str(a) == str(b)


def _choose_reference(
    members: Sequence[Cell], elsewhere: Sequence[Cell], axis: str | None, wanted: Mapping[str, Any] | None
) -> Cell | None:
    """Return the reference of a line: the wanted cell, else the cell with the highest cap, else the first cell.

    Of the cells `elsewhere`, choose one that shares most of the other knobs with the line.
    """
    found = list(members) if wanted is None else _find_matching(members, wanted)
    if not found and wanted is not None:
        own = {n: v for n, v in members[0].knobs.items() if n not in wanted and n != axis}
        found = _find_nearest(elsewhere, own)
    if not found:
        return None
    return max(found, key=lambda c: rank_value(c.knobs.get(axis))) if axis in AXES else found[0]


def _find_nearest(cells: Sequence[Cell], knobs: Mapping[str, Any]) -> list[Cell]:
    """Return the cells that share most of these knobs, in their order."""
    shared = [sum(n in c.knobs and is_same_value(c.knobs[n], v) for n, v in knobs.items()) for c in cells]
    most = max(shared, default=0)
    return [c for c, count in zip(cells, shared, strict=True) if count == most]


def is_comparable(cells: Sequence[Cell]) -> bool:
    """Return whether cells can be compared: none reports work, or all report a common kind."""
    return bool(list_common_work(cells)) or not any(t.work for c in cells for t in c.trials)


def _choose_works(groups: Sequence[Sequence[Cell]], wanted: Sequence[str]) -> list[str | None]:
    """Return the kind of work to compare by for each line; the same for all if they share one."""
    everything = [c for group in groups for c in group]
    if is_comparable(everything):
        return [_choose_work(everything, wanted)] * len(groups)
    return [_choose_work(group, wanted) for group in groups]


def _choose_work(cells: Sequence[Cell], wanted: Sequence[str]) -> str | None:
    """Return the kind of work to compare by: the first wanted one, else the kind whose amounts differ most.

    None if its amount is the same in all trials: dividing by it changes nothing.
    """
    factors = list_common_work(cells)
    named = [kind for kind in wanted if kind in factors]
    kind = named[0] if named else max(factors, key=lambda k: factors[k], default=None)
    return kind if kind is not None and is_work_different(factors[kind]) else None


def list_common_work(cells: Sequence[Cell]) -> dict[str, float]:
    """Return the kinds of work that all trials report, each with the ratio of its largest to its smallest amount."""
    trials = [t for c in cells for t in c.trials]
    kinds = [
        k for k in list_figure_kinds(trials[0].work if trials else ()) if all(t.work.get(k, 0.0) > 0 for t in trials)
    ]
    return {k: max(t.work[k] for t in trials) / min(t.work[k] for t in trials) for k in kinds}


def is_work_different(factor: float) -> bool:
    """Return whether amounts of work differ, given the ratio of the largest to the smallest."""
    return factor > 1 + SAME_WORK
