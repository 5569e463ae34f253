"""Turn the slots of a study into cells that metrics take, and into rows for a list of slots."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cells import Cell, Trial
from joulelab.core.errors import ConfigError, JoulelabError, StoreError
from joulelab.store.folder import read_json
from joulelab.study.slots import NOTES, Slot, State, look, slots_of
from joulelab.study.trial import MEASURED, SlotTrial, trial_of
from joulelab.study.work import WorkPattern, find_all

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell

MOST_NAMED = 3


@dataclass(slots=True)
class Results:
    """Hold what a study has so far: cells with their trials, a row per slot, and notes on what is missing."""

    cells: list[Cell] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(
    study: Study, *, scope: str | None = None, work: Sequence[WorkPattern] = (), planned: Collection[str] = ()
) -> Results:
    """Read every slot of a study. `scope` chooses whose energy counts; `work` finds the work in outputs.

    Cells without a slot count only if they are `planned`. Raises ConfigError for a scope that no run has.
    """
    results = Results()
    scopes: set[str] = set()
    lacking: list[str] = []
    for key, cell in _sorted(study.cells()):
        folders = slots_of(study.folder / "cells" / key)
        trials = []
        for folder in folders:
            slot = look(folder)
            row = _row(key, cell, slot)
            results.rows.append(row)
            found = _found(slot, cell, results) if slot.state is State.DONE else None
            if found is None:
                continue
            scopes |= set(found.energies)
            trial, missing = _trial(slot, found, scope, work)
            row |= _trial_row(found, trial)
            if folder.name.startswith("r"):
                trials.append(trial)
                lacking += [f"{name} in {folder.relative_to(study.folder)}" for name in missing]
        if folders or key in planned:
            results.cells.append(Cell(key, cell.values(), tuple(trials)))
    if scope is not None and scopes and scope not in scopes:
        raise ConfigError(f"no run has {scope!r}", where="--scope", why=f"there are {', '.join(sorted(scopes))}")
    if lacking:
        results.notes.append(f"No match of --work in {len(lacking)} slots: {', '.join(lacking[:MOST_NAMED])}")
    return results


def _found(slot: Slot, cell: PlannedCell, results: Results) -> SlotTrial | None:
    try:
        return trial_of(slot)
    except JoulelabError as error:
        results.notes.append(f"{slot.folder.name} of {cell.shown} cannot be worked out: {error}")
        return None


def _sorted(cells: Mapping[str, PlannedCell]) -> list[tuple[str, PlannedCell]]:
    """Return the cells in the order of their knobs: numbers by size, before texts."""

    def place(item: tuple[str, PlannedCell]) -> list[tuple[str, bool, float, str]]:
        knobs = item[1].values().items()
        return [(n, isinstance(v, str), 0.0 if isinstance(v, str) else float(v), str(v)) for n, v in knobs]

    return sorted(cells.items(), key=place)


def _trial(slot: Slot, found: SlotTrial, scope: str | None, work: Sequence[WorkPattern]) -> tuple[Trial, list[str]]:
    amounts, missing = find_all(work, slot.folder)
    used = _notes(slot).get("gpus") or []
    trial = Trial(
        energy=found.energy(scope),
        time_s=found.time_s,
        work={**found.work, **amounts},
        run=found.run,
        idle_share=found.idle_share(used),
        meter=found.meters.get(scope or MEASURED, ""),
        estimate=found.estimate,
    )
    return trial, missing


def _row(key: str, cell: PlannedCell, slot: Slot) -> dict[str, Any]:
    notes = _notes(slot)
    cooled = notes.get("cooled") or {}
    knobs = {f"knob_{name}": value for name, value in cell.values().items()}
    run = "" if slot.run is None else str(slot.run.name)
    state = {"slot": slot.folder.name, "state": slot.state.value, "why": slot.why, "run": run}
    cooling = {"cooled": cooled.get("reason"), "cooled_s": cooled.get("took_s"), "cooled_to_c": cooled.get("to_c")}
    return {"cell": key, **knobs, **state, "took_s": notes.get("took_s"), **cooling}


def _trial_row(found: SlotTrial, trial: Trial) -> dict[str, Any]:
    energy = trial.energy
    return {
        "start_utc": found.start_utc,
        "time_s": trial.time_s,
        "energy_j": None if energy is None else energy.value,
        "energy_j_expanded": None if energy is None else energy.expanded,
        "idle_share": trial.idle_share,
        **{f"work_{name}": amount for name, amount in trial.work.items()},
        "doubts": "; ".join(found.doubts),
    }


def _notes(slot: Slot) -> dict[str, Any]:
    try:
        return read_json(slot.folder / NOTES)
    except StoreError:
        return {}


def slots_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of slots as CSV, with the columns of all of them."""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
