"""Turn the slots of a study into cells that metrics take, and into rows for a list of slots."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cells import Cell, Trial
from joulelab.core.errors import ConfigError, JoulelabError, StoreError
from joulelab.core.scope import family
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
    """Hold what a study has so far: cells with their trials, a row per slot, and notes on what is missing.

    `watts` are the caps that were typed as shares of the default, by knob and share, where a study has both.
    """

    cells: list[Cell] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    watts: dict[tuple[str, float], float] = field(default_factory=dict)


def gather(
    study: Study, *, scope: str | None = None, work: Sequence[WorkPattern] = (), planned: Collection[str] = ()
) -> Results:
    """Read every slot of a study. `scope` chooses whose energy counts; `work` finds the work in outputs.

    Cells without a slot count only if they are `planned`. Raises ConfigError for a scope that no run has.
    """
    results = Results()
    scopes: set[str] = set()
    lacking: list[str] = []
    planning = study.cells()
    results.notes += study.notes
    asked: dict[str, list[Mapping[str, float]]] = {}
    for key, cell in _sorted(planning):
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
            asked.setdefault(key, []).append(found.caps)
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
        slots = "1 slot" if len(lacking) == 1 else f"{len(lacking)} slots"
        results.notes.append(f"No match of --work in {slots}: {', '.join(lacking[:MOST_NAMED])}")
    _in_one_unit(results, planning, asked)
    return results


def _in_one_unit(
    results: Results, planned: Mapping[str, PlannedCell], asked: Mapping[str, Sequence[Mapping[str, float]]]
) -> None:
    """Turn shares into watts where a study has both, by what runs asked for; else they are lines of their own."""
    for name, device in (("cap", "gpu"), ("cpu_cap", "cpu")):
        values = {key: cell.knobs[name] for key, cell in planned.items() if name in cell.knobs}
        if {v.unit for v in values.values()} != {"W", "share"}:
            continue
        shares = {key: float(v.value) for key, v in values.items() if v.unit == "share"}
        defaults = {
            round(watts / shares[key], 1)
            for key in shares
            for caps in asked.get(key, ())
            for scope, watts in caps.items()
            if family(scope) == device
        }
        if len(defaults) == 1:
            default = defaults.pop()
            results.watts |= {(name, share): round(share * default, 1) for share in shares.values()}
        results.cells = [_converted(c, name, shares.get(c.key), results.watts) for c in results.cells]
    results.cells = _merged(sorted(results.cells, key=lambda c: _place(c.knobs))) if results.watts else results.cells


def _merged(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells so that no two have the same knobs: 60 % of the default may be one of the watts."""
    found: dict[str, Cell] = {}
    for cell in cells:
        known = found.get(repr(cell.knobs))
        found[repr(cell.knobs)] = cell if known is None else replace(known, trials=known.trials + cell.trials)
    return list(found.values())


def _converted(cell: Cell, name: str, share: float | None, watts: Mapping[tuple[str, float], float]) -> Cell:
    if share is None:
        return cell
    if (name, share) in watts:
        return replace(cell, knobs={**cell.knobs, name: watts[name, share]})
    return replace(cell, knobs={**cell.knobs, f"{name}_of": "default"})


def _found(slot: Slot, cell: PlannedCell, results: Results) -> SlotTrial | None:
    try:
        return trial_of(slot)
    except JoulelabError as error:
        results.notes.append(f"{slot.folder.name} of {cell.shown} cannot be worked out: {error}")
        return None


def _sorted(cells: Mapping[str, PlannedCell]) -> list[tuple[str, PlannedCell]]:
    """Return the cells in the order of their knobs."""
    return sorted(cells.items(), key=lambda item: _place(item[1].values()))


def _place(knobs: Mapping[str, Any]) -> list[tuple[str, bool, float, str]]:
    """Return where a cell comes: numbers by size, before texts."""
    return [(n, isinstance(v, str), 0.0 if isinstance(v, str) else float(v), str(v)) for n, v in knobs.items()]


def _trial(slot: Slot, found: SlotTrial, scope: str | None, work: Sequence[WorkPattern]) -> tuple[Trial, list[str]]:
    amounts, missing = find_all(work, slot.folder)
    used = _notes(slot).get("gpus") or []
    trial = Trial(
        energy=found.energy(scope),
        time_s=found.time_s,
        work={**found.work, **amounts},
        run=found.run,
        idle_energy_share=found.idle_energy_share(used),
        meter=found.meters.get(scope or MEASURED, ""),
        estimate=found.estimate,
        doubts=found.doubts,
        uncapped=found.uncapped,
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
        "idle_energy_share": trial.idle_energy_share,
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
