"""Turn the slots of a study into cells that metrics take, and into rows for a list of slots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import name_knob_column
from joulelab.analysis.marked_phases import DATA_FACT
from joulelab.analysis.study_cells import Cell, Trial
from joulelab.core.errors import ConfigError, JoulelabError, StoreError
from joulelab.core.quantity import add_quantities
from joulelab.core.scope import find_family
from joulelab.store.documents import read_document
from joulelab.study.slots import NOTES, Slot, State, list_claimed_slots, read_slot
from joulelab.study.trial import MEASURED, SlotTrial, load_trial
from joulelab.study.work import find_work

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.quantity import Quantity
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.work import WorkPattern

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class RatedTrial:
    """Hold the rated power (W) of the devices of some families in a run, what they used (J) and how long it took (s).

    `meter` names what measured them.
    """

    families: tuple[str, ...]
    watts: float
    used: Quantity
    time_s: float
    meter: str


@dataclass(slots=True)
class Results:
    """Hold what a study has so far: cells with their trials, a row per slot, and notes on what is missing.

    `watts` are the caps that were typed as shares of the default, by knob and share, where a study has both. `rated`
    are the trials by cell of which runtime x rated power can be said.
    """

    cells: list[Cell] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    watts: dict[tuple[str, float], float] = field(default_factory=dict)
    rated: dict[str, list[RatedTrial]] = field(default_factory=dict)


def gather_results(
    study: Study,
    *,
    scope: str | None = None,
    work: Sequence[WorkPattern] = (),
    planned: Collection[str] = (),
    cells: Mapping[str, PlannedCell] | None = None,
) -> Results:
    """Read every slot of a study. `scope` chooses whose energy counts; `work` finds the work in outputs.

    Cells without a slot count only if they are `planned`. With `cells` only these count, in that order, whatever else
    is there. Raises ConfigError for a scope that no run has.
    """
    gathering = _Gathering(study, scope, work)
    there = study.cells() if cells is None else dict(cells)
    planned = planned if cells is None else cells
    gathering.results.notes += study.notes
    chosen = _sorted(there) if cells is None else list(cells.items())
    gathering.name_by([cell for _, cell in chosen])
    for key, cell in chosen:
        gathering.add(key, cell, always=key in planned)
    gathering.conclude()
    _in_one_unit(gathering.results, there, gathering.asked)
    return gathering.results


class _Gathering:
    """Take cell after cell, and keep what is found and what is missing."""

    def __init__(self, study: Study, scope: str | None, work: Sequence[WorkPattern]) -> None:
        self._study, self._scope, self._work = study, scope, work
        self.results = Results()
        self.asked: dict[str, list[Mapping[str, float]]] = {}
        self._scopes: set[str] = set()
        self._lacking: list[str] = []
        self._several: list[str] = []

    def name_by(self, cells: Sequence[PlannedCell]) -> None:
        """Find what tells the cells of a study apart beside their knobs: workloads and node types, if several."""
        named = {"workload": {c.workload.name for c in cells}, "node": {c.workload.node_type for c in cells}}
        self._several = [name for name, values in named.items() if len(values) > 1]

    def add(self, key: str, cell: PlannedCell, *, always: bool) -> None:
        """Take every slot of a cell; one whose phases count is a cell for each."""
        folders = list_claimed_slots(self._study.folder / "cells" / key)
        phases: Sequence[str | None] = cell.workload.phases or (None,)
        trials: dict[str | None, list[Trial]] = {phase: [] for phase in phases}
        for folder in folders:
            slot, notes = read_slot(folder), _notes(folder)
            row = _row(key, self._names(cell), cell, (slot, notes))
            self.results.rows.append(row)
            found = _found(slot, cell, self.results) if slot.state is State.DONE else None
            if found is None:
                continue
            self._scopes |= set(found.energies)
            self.asked.setdefault(key, []).append(found.caps)
            amounts = self._amounts(cell, folder)
            # GPUs that were chosen for it are used; where it merely saw all there are, only their load tells.
            chosen = "gpus" in cell.knobs or notes.get("idle_gpus", True)
            given = notes.get("gpus") or [] if chosen else []
            whole = _trial(found, (given, notes.get("idle_gpus") or []), self._scope, amounts)
            row |= _trial_row(found, whole)
            if folder.name.startswith("r"):
                for phase in phases:
                    self._take(trials[phase], found, phase, whole, folder)
                    self._rate(key if phase is None else f"{key}:{phase}", found, phase, whole.idle)
        warmup = sum(folder.name.startswith("w") for folder in folders)
        if folders or always:
            for phase, own in trials.items():
                knobs = self._names(cell) | ({} if phase is None else {"phase": phase}) | cell.values()
                name = key if phase is None else f"{key}:{phase}"
                self.results.cells.append(Cell(name, knobs, tuple(own), warmup=warmup))

    def conclude(self) -> None:
        """Say what is missing. Raises ConfigError for a scope that no run has."""
        if self._scope is not None and self._scopes and self._scope not in self._scopes:
            why = f"there are {', '.join(sorted(self._scopes))}"
            raise ConfigError(f"no run has {self._scope!r}", where="scope", why=why)
        if self._lacking:
            slots = "1 slot" if len(self._lacking) == 1 else f"{len(self._lacking)} slots"
            self.results.notes.append(f"Not found in {slots}: {', '.join(self._lacking[:MOST_NAMED])}")

    def _take(self, trials: list[Trial], found: SlotTrial, phase: str | None, whole: Trial, folder: Path) -> None:
        if phase is not None and phase not in found.phases:
            self._lacking.append(f"phase {phase} in {folder.relative_to(self._study.folder)}")
            return
        trials.append(whole if phase is None else _part(whole, found, self._scope, phase))

    def _rate(self, key: str, found: SlotTrial, phase: str | None, idle: Collection[str]) -> None:
        """Keep the rated power of a trial, or of a phase of it: of the scope that counts, or of all it is known of.

        GPUs that did nothing are in neither side of the comparison. Of a phase only families are known, and one that
        some did nothing of is left out.
        """
        part = found.phases.get(phase) if phase is not None else None
        if phase is not None and part is None:
            return
        energies, time_s = (found.energies, found.time_s) if part is None else (part.energies, part.time_s)
        known = _rated_of(found, energies, idle)
        if self._scope in known:
            known = {self._scope: known[self._scope]}
        if known and time_s > 0:
            scopes = [scope for own in known.values() for scope in own]
            watts = sum(w for own in known.values() for w in own.values())
            used, meter = (
                add_quantities(energies[scope] for scope in scopes),
                "; ".join(found.meters.get(n, "") for n in scopes),
            )
            self.results.rated.setdefault(key, []).append(RatedTrial(tuple(known), watts, used, time_s, meter))

    def _amounts(self, cell: PlannedCell, folder: Path) -> dict[str, float]:
        own = [pattern for pattern in self._work if pattern.workload in (None, cell.workload.name)]
        amounts, missing = find_work(own, folder)
        if folder.name.startswith("r"):
            self._lacking += [f"a match for {name} in {folder.relative_to(self._study.folder)}" for name in missing]
        return amounts

    def _names(self, cell: PlannedCell) -> dict[str, Any]:
        named = {"workload": cell.workload.name, "node": cell.workload.node_type}
        return {name: named[name] for name in self._several}


def _rated_of(found: SlotTrial, energies: Mapping[str, Quantity], idle: Collection[str]) -> dict[str, dict[str, float]]:
    """Return by family the rated power (W) of what was used, by the names of its energies: the family's if whole."""
    families: dict[str, dict[str, float]] = {}
    for scope, watts in found.rated.items():
        if scope not in idle:
            families.setdefault(find_family(scope), {})[scope] = watts
    known: dict[str, dict[str, float]] = {}
    for name, used in families.items():
        every = {scope for scope in found.energies if find_family(scope) == name and scope != name}
        if name in energies and every <= used.keys():
            known[name] = {name: sum(used.values())}
        elif used.keys() <= energies.keys():
            known[name] = used
    return known


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
            if find_family(scope) == device
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
        return load_trial(slot)
    except JoulelabError as error:
        results.notes.append(f"{slot.folder.name} of {cell.shown} cannot be worked out: {error}")
        return None


def _sorted(cells: Mapping[str, PlannedCell]) -> list[tuple[str, PlannedCell]]:
    """Return the cells in the order of their knobs."""
    return sorted(cells.items(), key=lambda item: _place(item[1].values()))


def _place(knobs: Mapping[str, Any]) -> list[tuple[str, bool, float, str]]:
    """Return where a cell comes: numbers by size, before texts."""
    return [(n, isinstance(v, str), 0.0 if isinstance(v, str) else float(v), str(v)) for n, v in knobs.items()]


def _trial(
    found: SlotTrial, gpus: tuple[list[str], list[str]], scope: str | None, amounts: Mapping[str, float]
) -> Trial:
    """Return what one slot gave; `gpus` are those it was given, and those it was not shown."""
    idle = found.idle_gpus(*gpus)
    return Trial(
        energy=found.energy(scope),
        time_s=found.time_s,
        work={**found.work, **amounts},
        run=found.run,
        idle_energy_share=found.idle_energy_share(*gpus),
        meter=found.meters.get(scope or MEASURED, ""),
        estimate=found.estimate,
        doubts=found.doubts,
        uncapped=found.uncapped,
        idle_energy=found.idle_energy(idle) if idle else None,
        used=() if idle is None else tuple(scope for scope in found.gpus() if scope not in idle),
        idle=tuple(idle or ()),
        facts=found.facts,
        gpu_load=found.gpu_load,
    )


def _part(whole: Trial, found: SlotTrial, scope: str | None, phase: str) -> Trial:
    """Return what one phase of a slot gave."""
    part = found.phases[phase]
    energy = part.energies.get(scope or MEASURED)
    # Of a phase the GPUs' energy is known together: that of idle ones where all are.
    idle = part.energies.get("gpu") if whole.idle and not whole.used else None
    share = None if idle is None else 1.0
    whole = replace(whole, idle_energy=idle, idle_energy_share=share, gpu_load=part.gpu_load)
    return replace(whole, energy=energy, time_s=part.time_s, work=part.work)


def _row(
    key: str, named: Mapping[str, Any], cell: PlannedCell, found: tuple[Slot, Mapping[str, Any]]
) -> dict[str, Any]:
    slot, notes = found
    cooled = notes.get("cooled") or {}
    knobs = {name_knob_column(name): value for name, value in cell.values().items()}
    run = "" if slot.run is None else str(slot.run.name)
    state = {"slot": slot.folder.name, "state": slot.state.value, "why": slot.why, "run": run}
    cooling = {"cooled": cooled.get("reason"), "cooled_s": cooled.get("took_s"), "cooled_to_c": cooled.get("to_c")}
    return {"cell": key, **named, **knobs, **state, "took_s": notes.get("took_s"), **cooling}


def _trial_row(found: SlotTrial, trial: Trial) -> dict[str, Any]:
    energy = trial.energy
    return {
        "start_utc": found.start_utc,
        "time_s": trial.time_s,
        "energy_j": None if energy is None else energy.value,
        "energy_j_expanded": None if energy is None else energy.expanded,
        "gpu_load": trial.gpu_load,
        "idle_energy_share": trial.idle_energy_share,
        "idle_energy_j": None if trial.idle_energy is None else trial.idle_energy.value,
        "used": " ".join(trial.used),
        "idle": " ".join(trial.idle),
        **{f"work_{name}": amount for name, amount in trial.work.items()},
        **{name if name == DATA_FACT else f"fact_{name}": value for name, value in trial.facts.items()},
        "doubts": found.doubts,
    }


def _notes(slot: Path) -> dict[str, Any]:
    try:
        return read_document(f"{slot}/{NOTES}")
    except StoreError:
        return {}
