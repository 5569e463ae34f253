"""Print the plan and the progress of a study: every slot, its expected time and energy, failures."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import describe_error, print_blocks, print_json
from joulelab.study.matrix import LOCAL, SLURM, list_simulated
from joulelab.study.slots import read_last_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.core.errors import JoulelabError
    from joulelab.study.folder import Plan, Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.plan_check import CostForecast, CostSum, SlotCost
    from joulelab.study.slots import Slot

SETTLED = ("done", "failed")
MAX_ROWS = 40
FIRST_SLOTS = 3  # of a plan that are named
# States of slots, in the order of the table, each with the word that is printed.
STATES = {
    "done": "done",
    "failed": "failed",
    "live": "running",
    "interrupted": "interrupted",
    "refused": "refused",
    "free": "to run",
}


def show_plan(
    folder: Path,
    name: str,
    plan: Plan,
    *,
    seed: int | None,
    as_json: bool,
    error: JoulelabError | None = None,
    every: bool = False,
) -> int:
    """Print knobs, cells and the expected time and energy of a plan; `every` slot in its order on request.

    JSON has every slot, and the error, if any.
    """
    from joulelab.report.terminal import TextLine
    from joulelab.study.drive import list_planned_slots as list_slots
    from joulelab.study.folder import FILE, Study, open_study
    from joulelab.study.plan_check import CostForecast

    drawn = int.from_bytes(os.urandom(4)) if seed is None else seed
    exists = (folder / FILE).exists()
    study = open_study(folder) if exists else Study(folder, {"name": name, "seed": drawn})
    cells = {cell.key: cell for cell in plan.cells}
    slots = list_slots(study, list(cells), plan.repeats, max_repeats=plan.max_repeats)
    expected = CostForecast(study, cells, scope=plan.scope)
    left = [slot.folder.parent.name for slot in slots if slot.state.value not in SETTLED]
    rest = expected.sum_costs(left)
    if as_json:
        head = {"study": study.name, "seed": study.seed, "left_s": rest.time_s if rest.unknown < rest.slots else None}
        head |= {"left_j": rest.energy_j or None, "unknown": rest.unknown}
        head |= {} if error is None else {"error": describe_error(error)}
        print_json({**head, "slots": [_list_planned(cells[s.folder.parent.name], s, expected) for s in slots]})
        return 0
    if every:
        _print_slots(slots, cells, expected)
    else:
        _print_matrix(slots, cells)
    more = "" if plan.until is None else f"; up to {plan.max_repeats} per cell until ± {100 * plan.until:.3g} %"
    end = f"{len(left)} of {len(slots)} slots to run{describe_rest(rest, plan)}{more}; seed {study.seed}"
    print_blocks([TextLine(end)])
    return 0


def _print_slots(slots: Sequence[Slot], cells: Mapping[str, PlannedCell], expected: CostForecast) -> None:
    """Print a line per slot, in the order in which they run."""
    width = len(str(len(slots)))
    for number, slot in enumerate(slots, 1):
        key, state = slot.folder.parent.name, slot.state.value
        usual = "" if state in SETTLED else _describe_expected(expected.get_cost(key))
        word = STATES.get(state, state)
        click.echo(f"{number:>{width}}  {slot.folder.name}  {describe_cell(cells[key])}  {word}{usual}")


def _print_matrix(slots: Sequence[Slot], cells: Mapping[str, PlannedCell]) -> None:
    """Print the values of each knob, a table of the cells if they are few, and the first slots."""
    from joulelab.report.matrix_tables import MOST_ROWS, make_plan_table, word_knob
    from joulelab.report.terminal import BLANK_LINE, TextBlock, list_facts

    named = {key: _list_named_knobs(cell) for key, cell in cells.items()}
    names = dict.fromkeys(name for knobs in named.values() for name in knobs)
    facts = [(name, word_knob(name, [knobs[name] for knobs in named.values() if name in knobs])) for name in names]
    first = "; ".join(describe_cell(cells[slot.folder.parent.name]) for slot in slots[:FIRST_SLOTS])
    facts.append(("order", f"random, first {first}; --all lists every run"))
    blocks: list[TextBlock] = [list_facts(facts)]
    if names and len(cells) <= MOST_ROWS:
        counts: dict[str, Counter[str]] = {key: Counter() for key in cells}
        for slot in slots:
            counts[slot.folder.parent.name][STATES.get(slot.state.value, slot.state.value)] += 1
        blocks += [BLANK_LINE, make_plan_table(list(named.values()), list(counts.values()))]
    print_blocks([*blocks, BLANK_LINE])


def _list_named_knobs(cell: PlannedCell) -> dict[str, Any]:
    """Return the knobs of a cell, with its workload and node type if they have names."""
    node = cell.workload.node_type if cell.workload.node_type != LOCAL else ""
    named = {"workload": cell.workload.name, "node": node}
    return {name: value for name, value in named.items() if value} | cell.get_knob_values()


def describe_cell(cell: PlannedCell) -> str:
    """Return a cell in words: its workload and node type if they have names, then its knobs."""
    named = [cell.workload.name, cell.workload.node_type if cell.workload.node_type != LOCAL else ""]
    words = [name for name in named if name]
    return ", ".join([*words, cell.label] if cell.knobs or not words else words)


def describe_rest(rest: CostSum, plan: Plan) -> str:
    """Return the expected time and energy of slots in words, empty if there are none."""
    from joulelab.report import format as fmt

    if rest.unknown == rest.slots:
        return "" if not rest.slots else "; their duration is unknown: none like them has run yet"
    energy = f" and {fmt.format_rough(rest.energy_j, 'J')}" if rest.energy_j else ""
    unknown = f", without {rest.unknown} of unknown duration" if rest.unknown else ""
    serial = " one after another" if any(node.executor != LOCAL for node in plan.nodes.values()) else ""
    return f", about {fmt.format_rough_duration(rest.time_s)}{serial}{energy}{unknown}"


def _describe_expected(taken: SlotCost) -> str:
    from joulelab.report import format as fmt

    if taken.time_s is None:
        return ""
    energy = "" if taken.energy_j is None else f", {fmt.format_rough(taken.energy_j, 'J')}"
    return f"  about {fmt.format_rough_duration(taken.time_s)}{energy}"


def _list_planned(cell: PlannedCell, slot: Slot, expected: CostForecast) -> dict[str, Any]:
    taken = expected.get_cost(cell.key)
    return {
        "cell": cell.key,
        "workload": cell.workload.name,
        "node": cell.workload.node_type,
        "knobs": cell.get_knob_values(),
        "slot": slot.folder.name,
        "state": slot.state.value,
        "command": cell.make_argv(),
        "expected_s": taken.time_s,
        "expected_j": taken.energy_j,
    }


def collect_status(study: Study, plan: Plan, slots: Sequence[Slot]) -> dict[str, Any]:
    """Return the state of a study as plain data."""
    from joulelab.study.plan_check import CostForecast
    from joulelab.study.results import read_power_now

    cells = {cell.key: cell for cell in plan.cells}
    by_cell: dict[str, Counter[str]] = {}
    for slot in slots:
        by_cell.setdefault(slot.folder.parent.name, Counter())[slot.state.value] += 1
    left = [slot.folder.parent.name for slot in slots if slot.state.value not in SETTLED]
    rest = CostForecast(study, cells, scope=plan.scope).sum_costs(left)
    queued = _find_queued(study, plan)

    def list_slots(*states: str) -> list[dict[str, Any]]:
        return [_describe_slot(cells[s.folder.parent.name], s) for s in slots if s.state.value in states]

    return {
        "study": study.name,
        "folder": str(study.folder),
        "twin": list_simulated(plan.nodes) or None,
        "slots": dict(Counter(slot.state.value for slot in slots)),
        "left_s": None if rest.unknown == rest.slots else rest.time_s,
        "left": describe_rest(rest, plan),
        "running": [
            {
                **_describe_slot(cells[slot.folder.parent.name], slot),
                "power_w": None if slot.run is None else read_power_now(slot.run),
                "job": slot.claim.get("task") or slot.claim.get("job"),
                "node": slot.claim.get("node") or slot.claim.get("host"),
            }
            for slot in slots
            if slot.state.value == "live"
        ],
        "queued": [
            {**_describe_slot(cells[slot.folder.parent.name], slot), "job": queued[slot.folder]}
            for slot in slots
            if slot.folder in queued and slot.state.value not in ("live", *SETTLED)
        ],
        "failed": list_slots("failed", "refused"),
        "interrupted": list_slots("interrupted"),
        "cells": [{"cell": k, "name": describe_cell(cell), "slots": dict(by_cell[k])} for k, cell in cells.items()],
    }


def _find_queued(study: Study, plan: Plan) -> dict[Path, str]:
    """Return the jobs in a cluster's queue, by slot."""
    if not any(node.executor == SLURM for node in plan.nodes.values()):
        return {}
    from joulelab.study.slurm.submitted_jobs import list_queued_slots

    return list_queued_slots(study.folder, os.environ)


def _describe_slot(cell: PlannedCell, slot: Slot) -> dict[str, Any]:
    return {
        "cell": cell.key,
        "name": describe_cell(cell),
        "slot": slot.folder.name,
        "why": slot.why,
        "said": read_last_error(slot.folder) if slot.state.value == "failed" else "",
        "folder": str(slot.folder),
    }


def print_status(status: Mapping[str, Any]) -> None:
    """Print the state of a study."""
    from joulelab.report import format as fmt
    from joulelab.report.tables import make_table

    counts = status["slots"]
    words = [f"{counts[state]} {word}" for state, word in STATES.items() if counts.get(state)]
    click.echo(f"{status['study']}: {sum(counts.values())} slots: {', '.join(words)}{status['left']}")
    if status["twin"]:
        click.echo(f"  {fmt.name_twins(list(dict.fromkeys(status['twin'].values())))}")
    for slot in status["running"]:
        power = "" if slot["power_w"] is None else f", {fmt.format_rough(slot['power_w'], 'W')} now"
        job = f", job {slot['job']}" if slot["job"] else ""
        click.echo(f"  running: {slot['name']} ({slot['slot']}) on {slot['node']}{job}{power}")
    for slot in status["queued"][:MAX_ROWS]:
        click.echo(f"  in the queue: {slot['name']} ({slot['slot']}): {slot['job']}")
    for kind in ("failed", "interrupted"):
        for slot in status[kind][:MAX_ROWS]:
            last_line = f": {slot['said']}" if slot["said"] else ""
            why = slot["why"] or "stopped before its end"
            click.echo(f"  {kind}: {slot['name']} ({slot['slot']}): {why}{last_line}; {slot['folder']}")
    unfinished = [cell for cell in status["cells"] if set(cell["slots"]) != {"done"}]
    if not unfinished:
        return
    rows = [(cell["name"], *(cell["slots"].get(state, "") for state in STATES)) for cell in unfinished[:MAX_ROWS]]
    print_blocks([make_table(("cell", *STATES.values()), rows)])
    if len(unfinished) > MAX_ROWS:
        click.echo(f"and {len(unfinished) - MAX_ROWS} more unfinished cells; --json lists all")
