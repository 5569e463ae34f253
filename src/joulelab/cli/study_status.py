"""Say how a study stands: slots by state, what runs and its power, what failed, what the rest will take."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.study_overview import describe, expected_text
from joulelab.study.nodes import SLURM
from joulelab.study.slots import last_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.study.folder import Plan, Study
    from joulelab.study.slots import Slot

SETTLED = ("done", "failed")
MOST_ROWS = 40
STATES = ("done", "failed", "live", "interrupted", "refused", "free")


def status_of(study: Study, plan: Plan, slots: Sequence[Slot]) -> dict[str, Any]:
    """Return how a study stands as plain data."""
    from joulelab.study.expected import Expected
    from joulelab.study.nodes import list_simulated
    from joulelab.study.now import power_now

    cells = {cell.key: cell for cell in plan.cells}
    states = Counter(slot.state.value for slot in slots)
    of: dict[str, Counter[str]] = {}
    for slot in slots:
        of.setdefault(slot.folder.parent.name, Counter())[slot.state.value] += 1
    left = [slot.folder.parent.name for slot in slots if slot.state.value not in SETTLED]
    rest = Expected(study, cells, scope=plan.scope).sum(left)
    running = [slot for slot in slots if slot.state.value == "live"]
    queued = _queued(study, plan)
    return {
        "study": study.name,
        "folder": str(study.folder),
        "twin": list_simulated(plan.nodes) or None,
        "slots": dict(states),
        "left_s": None if rest.unknown == rest.slots else rest.time_s,
        "left": expected_text(rest, plan),
        "running": [
            {
                **_told(cells[slot.folder.parent.name], slot),
                "power_w": None if slot.run is None else power_now(slot.run),
                "job": slot.claim.get("task") or slot.claim.get("job"),
                "node": slot.claim.get("node") or slot.claim.get("host"),
            }
            for slot in running
        ],
        "queued": [
            {**_told(cells[slot.folder.parent.name], slot), "job": queued[slot.folder]}
            for slot in slots
            if slot.folder in queued and slot.state.value not in ("live", *SETTLED)
        ],
        "failed": [_told(cells[s.folder.parent.name], s) for s in slots if s.state.value in ("failed", "refused")],
        "interrupted": [_told(cells[s.folder.parent.name], s) for s in slots if s.state.value == "interrupted"],
        "cells": [{"cell": key, "name": describe(cell), "slots": dict(of[key])} for key, cell in cells.items()],
    }


def _queued(study: Study, plan: Plan) -> dict[Path, str]:
    """Return the jobs that wait in a cluster's queue, by slot."""
    if not any(node.executor == SLURM for node in plan.nodes.values()):
        return {}
    from joulelab.study.slurm.queued import queued

    return queued(study.folder, os.environ)


def _told(cell: Any, slot: Slot) -> dict[str, Any]:
    return {
        "cell": cell.key,
        "name": describe(cell),
        "slot": slot.folder.name,
        "why": slot.why,
        "said": last_words(slot.folder) if slot.state.value == "failed" else "",
        "folder": str(slot.folder),
    }


def print_status(told: Mapping[str, Any]) -> None:
    """Print how a study stands."""
    from joulelab.report import format as fmt
    from joulelab.report.console import make_console, make_table

    total = sum(told["slots"].values())
    words = [f"{told['slots'][state]} {_word(state)}" for state in STATES if told["slots"].get(state)]
    click.echo(f"{told['study']}: {total} slots: {', '.join(words)}{told['left']}")
    if told["twin"]:
        click.echo(f"  {fmt.name_twins(list(dict.fromkeys(told['twin'].values())))}")
    for slot in told["running"]:
        power = "" if slot["power_w"] is None else f", {fmt.format_rough(slot['power_w'], 'W')} now"
        job = f", job {slot['job']}" if slot["job"] else ""
        click.echo(f"  runs: {slot['name']} ({slot['slot']}) on {slot['node']}{job}{power}")
    for slot in told["queued"][:MOST_ROWS]:
        click.echo(f"  in the queue: {slot['name']} ({slot['slot']}): {slot['job']}")
    for kind in ("failed", "interrupted"):
        for slot in told[kind][:MOST_ROWS]:
            said = f": {slot['said']}" if slot["said"] else ""
            why = slot["why"] or "it was cut off"
            click.echo(f"  {kind}: {slot['name']} ({slot['slot']}): {why}{said}; {slot['folder']}")
    unfinished = [cell for cell in told["cells"] if set(cell["slots"]) != {"done"}]
    if not unfinished:
        return
    table = make_table("cell", *(_word(state) for state in STATES), left=(0,))
    for cell in unfinished[:MOST_ROWS]:
        table.add_row(cell["name"], *(str(cell["slots"].get(state, "")) for state in STATES))
    console = make_console(sys.stdout)
    console.print(table)
    if len(unfinished) > MOST_ROWS:
        click.echo(f"and {len(unfinished) - MOST_ROWS} more cells that are not done; --json lists all")


def _word(state: str) -> str:
    return {"live": "running", "free": "to run"}.get(state, state)
