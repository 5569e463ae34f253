"""Set up the list of a study's slots: what became of each, what it took, and where its run is. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from joulelab.report import format as fmt
from joulelab.report.html import tag
from joulelab.report.page.blocks import Block, Lines, Part, Table, Text
from joulelab.report.page.tables import Grid, Row, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.report.page.make import Link
    from joulelab.study.folder import Study
    from joulelab.study.results import Results

WORDS = {"live": "running", "free": "to run"}
BAD = ("failed", "refused", "interrupted")
MOST_FAILED = 40
KNOB = "knob_"


def states_text(slots: Sequence[Mapping[str, Any]]) -> str:
    """Return how many slots are done, run, failed: `680 slots: 680 done`."""
    counts = Counter(str(row["state"]) for row in slots)
    words = ", ".join(f"{count} {WORDS.get(state, state)}" for state, count in counts.items())
    return f"{len(slots)} slot{'' if len(slots) == 1 else 's'}{f': {words}' if words else ''}"


def slot_part(study: Study, results: Results, link: Link | None) -> Part:
    """Return every slot with its run; what failed comes first, with why."""
    slots = results.rows
    blocks: list[Block] = [Text(f"{states_text(slots)}.")]
    failed = [row for row in slots if row["state"] in BAD]
    if failed:
        told = [(str(row["state"]), f"{_name(row)} {row['slot']}: {row['why'] or 'it was cut off'}") for row in failed]
        blocks.append(Lines(tuple(told[:MOST_FAILED]), "checks"))
    if slots:
        blocks.append(Table(_grid(study, slots, link), "Slots"))
    return Part("slots", "Slots and their runs", tuple(blocks))


def _grid(study: Study, slots: Sequence[Mapping[str, Any]], link: Link | None) -> Grid:
    energies = [row.get("energy_j") for row in slots]
    factor, unit = fmt.choose_scale([e for e in energies if e is not None], "J")
    heads = ("cell", "slot", "state", "run", "start", "time", f"energy, {unit}", "doubts")
    made = []
    for row, energy in zip(slots, energies, strict=True):
        wide = row.get("energy_j_expanded")
        used = (
            fmt.NOTHING
            if energy is None
            else fmt.format_interval(energy / factor, None if wide is None else wide / factor)
        )
        took = fmt.NOTHING if row.get("time_s") is None else fmt.format_duration(row["time_s"])
        started = str(row.get("start_utc") or "")[:19].replace("T", " ")
        state = WORDS.get(row["state"], row["state"])
        made.append(
            Row((_name(row), row["slot"], state, _run(study, row, link), started, took, used, row.get("doubts") or ""))
        )
    return Grid(heads, tuple(made), frozenset({0, 1, 2, 3, 4, 7}))


def _name(row: Mapping[str, Any]) -> str:
    """Return a slot's cell by its workload, node type and knobs."""
    from joulelab.analysis.cell_lines import format_knobs

    named = [str(row[name]) for name in ("workload", "node") if row.get(name)]
    knobs = {key.removeprefix(KNOB).removesuffix("_hz"): v for key, v in row.items() if key.startswith(KNOB)}
    return " ".join([*named, format_knobs(knobs)]).strip() or str(row["cell"])


def _run(study: Study, row: Mapping[str, Any], link: Link | None) -> str:
    """Return the run of a slot, as a link where it has a page of its own."""
    run = str(row["run"])
    if not run or link is None:
        return run
    address = link(study.folder / "cells" / str(row["cell"]) / str(row["slot"]) / run)
    return tag("a", shown(run), href=address) if address else run
