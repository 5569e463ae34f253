"""Show what a study will run, before it does: every slot in order, with the time and energy it is expected to take."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import describe_error, print_json
from joulelab.study.nodes import LOCAL

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.core.errors import JoulelabError
    from joulelab.study.expected import Expected, Sum, Taken
    from joulelab.study.folder import Plan
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot

SETTLED = ("done", "failed")


def show_plan(
    folder: Path, name: str, plan: Plan, *, seed: int | None, as_json: bool, error: JoulelabError | None = None
) -> int:
    """Print every slot in order, as it is now, and what the rest will take; JSON has the error that prevents it."""
    from joulelab.study.drive import plan as planned
    from joulelab.study.expected import Expected
    from joulelab.study.folder import FILE, Study, open_study

    drawn = int.from_bytes(os.urandom(4)) if seed is None else seed
    there = (folder / FILE).exists()
    study = open_study(folder) if there else Study(folder, {"name": name, "seed": drawn})
    cells = {cell.key: cell for cell in plan.cells}
    slots = planned(study, list(cells), plan.repeats)
    expected = Expected(study, cells, scope=plan.scope)
    left = [slot.folder.parent.name for slot in slots if slot.state.value not in SETTLED]
    rest = expected.sum(left)
    if as_json:
        told = {"study": study.name, "seed": study.seed, "left_s": rest.time_s if rest.unknown < rest.slots else None}
        told |= {"left_j": rest.energy_j or None, "unknown": rest.unknown}
        told |= {} if error is None else {"error": describe_error(error)}
        print_json({**told, "slots": [_plain(cells[s.folder.parent.name], s, expected) for s in slots]})
        return 0
    width = len(str(len(slots)))
    lines = [
        f"{number:>{width}}  {slot.folder.name}  {describe(cells[slot.folder.parent.name])}  {slot.state.value}"
        f"{_taken(expected.of(slot.folder.parent.name)) if slot.state.value not in SETTLED else ''}"
        for number, slot in enumerate(slots, 1)
    ]
    click.echo("\n".join(lines))
    made = "" if there or seed is not None else "; --seed makes it this order" if plan.file is None else ""
    click.echo(f"{len(left)} of {len(slots)} slots to run{expected_text(rest, plan)}; seed {study.seed}{made}")
    return 0


def describe(cell: PlannedCell) -> str:
    """Return a cell in words: workload and node type where they have names, then its knobs."""
    named = [cell.workload.name, cell.workload.node_type if cell.workload.node_type != LOCAL else ""]
    words = [name for name in named if name]
    return ", ".join([*words, cell.shown] if cell.knobs or not words else words)


def expected_text(rest: Sum, plan: Plan) -> str:
    """Return what slots will take in words, one after another; empty where nothing is known."""
    from joulelab.report import format as fmt

    if rest.unknown == rest.slots:
        return "" if not rest.slots else "; how long they take is not known yet: none like them has run"
    energy = f" and {fmt.format_rough(rest.energy_j, 'J')}" if rest.energy_j else ""
    unknown = f" without {rest.unknown} of which nothing is known" if rest.unknown else ""
    serial = " one after another" if any(node.executor != LOCAL for node in plan.nodes.values()) else ""
    return f", about {fmt.format_rough_duration(rest.time_s)}{serial}{energy}{unknown}"


def _taken(taken: Taken) -> str:
    from joulelab.report import format as fmt

    if taken.time_s is None:
        return ""
    energy = "" if taken.energy_j is None else f", {fmt.format_rough(taken.energy_j, 'J')}"
    return f"  about {fmt.format_rough_duration(taken.time_s)}{energy}"


def _plain(cell: PlannedCell, slot: Slot, expected: Expected) -> dict[str, Any]:
    taken = expected.of(cell.key)
    told = {"cell": cell.key, "workload": cell.workload.name, "node": cell.workload.node_type, "knobs": cell.values()}
    told |= {"slot": slot.folder.name, "state": slot.state.value, "command": cell.argv()}
    return told | {"expected_s": taken.time_s, "expected_j": taken.energy_j}
