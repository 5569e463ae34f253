"""Turn the slots of a study into trials and cells: energies, time, work found in outputs, doubts."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import name_knob_column
from joulelab.analysis.marked_phases import DATA_FACT
from joulelab.analysis.result import Check
from joulelab.analysis.results_file import load_result, read_result
from joulelab.analysis.study_cells import Cell, Trial
from joulelab.core.errors import ConfigError, JoulelabError, StoreError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.store.documents import read_document
from joulelab.store.manifest import FILE as MANIFEST
from joulelab.store.safe_files import open_regular
from joulelab.study.slots import ERR, NOTES, OUT, Slot, State, list_claimed_slots, read_slot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Fact, PhaseResult, Result
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot


_ESCAPED = re.compile(r"\\.|\(\?(?:P?<\w+>|[a-zA-Z]+\)|[a-zA-Z]*:|<?[=!])|\[[^\]]*\]")
_WORD = re.compile(r"[A-Za-z][A-Za-z_]*")


@dataclass(frozen=True, slots=True)
class WorkPattern:
    """Hold how work is found: the last match is the total, or with `add` all matches are added.

    With a `workload` it is only for the slots of that.
    """

    pattern: str
    name: str
    add: bool = False
    workload: str | None = None

    @classmethod
    def parse(
        cls, pattern: str, *, add: bool = False, workload: str | None = None, where: str = "--work"
    ) -> WorkPattern:
        """Read a pattern; its name is that of its group, or its first word. Raises ConfigError."""
        try:
            compiled = re.compile(pattern.encode(), re.MULTILINE)
        except re.error as error:
            raise ConfigError(f"{pattern!r} is no regular expression", where=where, why=str(error)) from None
        named = list(compiled.groupindex)
        if len(named) > 1 or (not named and compiled.groups != 1):
            why = f"it has {compiled.groups} groups" if compiled.groups else "it has no group"
            advice = r"put the number in one group: 'tokens: (\d+)', or name it: '(?P<tokens>\d+) done'"
            raise ConfigError(f"{pattern!r} does not say which number", where=where, why=why, next=advice)
        word = _WORD.search(_ESCAPED.sub(" ", pattern))
        return cls(pattern, named[0] if named else word[0].rstrip("_") if word else "work", add, workload)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        own = {} if self.workload is None else {"workload": self.workload}
        return {"pattern": self.pattern, "name": self.name, "add": self.add, **own}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkPattern:
        """Take what `to_json` gave."""
        return cls(data["pattern"], data["name"], bool(data["add"]), data.get("workload"))

    def find(self, slot: Path) -> float | None:
        """Return the work that a slot's output tells, None where it tells none.

        The last match counts, of standard output if it has one there; with `add`, all of both.
        """
        found = [list(self._matches(slot / name)) for name in (OUT, ERR)]
        if self.add:
            every = [number for numbers in found for number in numbers]
            return sum(every) if every else None
        return next((numbers[-1] for numbers in found if numbers), None)

    def _matches(self, file: Path) -> Iterator[float]:
        compiled = re.compile(self.pattern.encode(), re.MULTILINE)
        group = next(iter(compiled.groupindex), 1)
        with contextlib.suppress(OSError), open_regular(file) as opened:
            if not os.fstat(opened.fileno()).st_size:
                return  # what is empty cannot be mapped
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
                for match in compiled.finditer(text):
                    number = _number(match[group] or b"")
                    if number is not None:
                        yield number


def _number(text: bytes) -> float | None:
    try:
        number = float(text.replace(b",", b""))
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def find_work(patterns: Sequence[WorkPattern], slot: Path) -> tuple[dict[str, float], list[str]]:
    """Return the work found in a slot's output by name, and the names that were not found."""
    found = {pattern.name: pattern.find(slot) for pattern in patterns}
    return {name: n for name, n in found.items() if n is not None}, [name for name, n in found.items() if n is None]


MEASURED = "measured"
OLD_FILE = "trial.json"  # written by versions before results.json held every term
CAP_CHECKS = ("cap", "cap not enforced")  # where one of these fails, a cap was not in force


@dataclass(frozen=True, slots=True)
class PhaseTrial:
    """Hold what the phases of one name of a run took together: energies (J) by scope and group, time (s), work.

    `gpu_load` is the mean load (share of one) of the GPUs that the run used, None where a phase has none.
    """

    energies: Mapping[str, Quantity]
    time_s: float
    work: Mapping[str, float] = field(default_factory=dict)
    gpu_load: float | None = None


@dataclass(frozen=True, slots=True)
class SlotTrial:
    """Hold the outcome of one slot: energies (J) by scope and group, time (s), work as it was reported.

    Scopes of further hosts have those behind them: `gpu:0@n2`. `meters` names what measured each of them: between runs
    that were measured by the same, gain errors cancel. `doubts` are the run's own, `uncapped` those by which a cap was
    not in force. `caps` are the watts that were asked for by scope, `busiest` the highest load (share of one) of each
    GPU whose load was read often enough. `phases` are energy, time and work by name,
    all phases of a name together, but steps. `facts` are what the workload told of itself. `rated` is the rated power
    (W) by scope, of the families that it is known of as a whole: what runtime x rated power is made of. `gpu_load` is
    the mean load (share of one) of the GPUs that did something.
    """

    run: str
    time_s: float
    start_utc: str
    energies: Mapping[str, Quantity]
    work: Mapping[str, float]
    meters: Mapping[str, str]
    doubts: tuple[Check, ...] = ()
    estimate: bool = False
    uncapped: tuple[Check, ...] = ()
    caps: Mapping[str, float] = field(default_factory=dict)
    busiest: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, PhaseTrial] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    rated: Mapping[str, float] = field(default_factory=dict)
    gpu_load: float | None = None

    def energy(self, scope: str | None = None) -> Quantity | None:
        """Return the energy of a scope or group, of everything measured unless one is named."""
        return self.energies.get(scope or MEASURED)

    def gpus(self) -> dict[str, Quantity]:
        """Return the energy of each GPU."""
        return {scope: q for scope, q in self.energies.items() if ":" in scope and find_family(scope) == "gpu"}

    def idle_gpus(self, used: Collection[str], unused: Collection[str] = ()) -> list[str] | None:
        """Return the GPUs that did nothing, None where that is not known.

        Its load tells. Where that was not read often enough, one that the cell was given (`used`) was busy, others then
        were not, nor were those that the workload was not shown (`unused`); what else it saw is not known.
        """
        idle = []
        for scope in self.gpus():
            load = self.busiest.get(scope)
            if load is None and not used and scope not in unused:
                return None
            if scope not in used if load is None else _is_idle(load):
                idle.append(scope)
        return idle

    def idle_energy_share(self, used: Collection[str], unused: Collection[str] = ()) -> float | None:
        """Return the share of the GPUs' energy that went to GPUs that did nothing, None where that is not known."""
        idle, gpus = self.idle_gpus(used, unused), self.gpus()
        whole = sum(q.value for q in gpus.values())
        if idle is None or whole <= 0:
            return None
        return sum(gpus[scope].value for scope in idle) / whole

    def idle_energy(self, idle: Collection[str]) -> Quantity | None:
        """Return the energy of GPUs that did nothing; None where no GPU was measured."""
        gpus = self.gpus()
        return add_quantities(q for scope, q in gpus.items() if scope in idle) if gpus else None


def make_trial(result: Result) -> SlotTrial:
    """Take from a run's result what a study needs of it."""
    names = {(s.host, s.scope): s.scope if s.host == result.host else f"{s.scope}@{s.host}" for s in result.scopes}
    energies = {names[s.host, s.scope]: s.energy for s in result.scopes}
    energies |= {group.name: group.energy for group in result.groups}
    read = {
        names[s.host, s.scope]: f"{s.reading.meter} {s.reading.channel} {s.device or s.host}" for s in result.scopes
    }
    together = {g.name: "; ".join(sorted(read.get(scope, scope) for scope in g.scopes)) for g in result.groups}
    whole = result.group(MEASURED)
    return SlotTrial(
        run=result.run,
        time_s=result.duration_s,
        start_utc=result.start_utc,
        energies=energies,
        work=dict(result.work),
        meters=read | together,
        doubts=tuple(c for c in result.checks if c.status in ("warning", "failed")),
        estimate=whole is not None and whole.estimate,
        uncapped=tuple(c for c in result.checks if c.status == "failed" and c.name in CAP_CHECKS),
        caps={cap.scope: cap.asked for cap in result.caps if cap.unit == "W"},
        busiest=result.busiest,
        phases=_phases(result),
        facts=dict(result.facts),
        rated=_rated(result),
        gpu_load=result.gpu_load,
    )


def _rated(result: Result) -> dict[str, float]:
    """Return the rated power of the devices of those families that it is known of as a whole."""
    lacking = {find_family(scope.rpartition("/")[2]) for scope in result.rated.unknown}
    return {
        d.scope if d.host == result.host else f"{d.scope}@{d.host}": d.watts
        for d in result.rated.devices
        if find_family(d.scope) not in lacking
    }


def _phases(result: Result) -> dict[str, PhaseTrial]:
    """Return what phases took, those of a name together: an epoch that comes thirty times is one of them.

    Each node of a job tells its phases, and each has the energy of all: those of the first count. Steps are no kind of
    phase to compare: what they took is told per step.
    """
    found: dict[str, list[PhaseResult]] = {}
    for phase in result.phases:
        if phase.host in ("", result.host) and phase.last is None:
            found.setdefault(phase.name, []).append(phase)
    together = {}
    for name, phases in found.items():
        shared = set.intersection(*(set(phase.energy) for phase in phases))
        energies: Mapping[str, Quantity] = phases[0].energy
        if len(phases) > 1:
            energies = {
                scope: add_quantities(phase.energy[scope] for phase in phases) for scope in energies if scope in shared
            }
        work: dict[str, float] = {}
        for kind, amount in (item for phase in phases for item in phase.work.items()):
            work[kind] = work.get(kind, 0.0) + amount
        time_s, loads = sum(phase.duration_s for phase in phases), [(p.gpu_load, p.duration_s) for p in phases]
        known = [load * seconds for load, seconds in loads if load is not None]
        gpu_load = sum(known) / time_s if len(known) == len(loads) and time_s > 0 else None
        together[name] = PhaseTrial(energies, time_s, work, gpu_load)
    return together


def load_trial(slot: Slot) -> SlotTrial:
    """Return the trial of a slot that is done, from the result of its run. Raises JoulelabError."""
    if slot.run is None:
        raise StoreError("there is no run", where=str(slot.folder))
    stored = read_trial(slot)
    if stored is not None:
        return stored
    try:
        return make_trial(load_result(slot.run))
    except JoulelabError:
        raise
    except Exception as error:  # one run that cannot be analysed must not hide the others
        why = f"{type(error).__name__}: {error}"
        raise StoreError("the run cannot be worked out", where=str(slot.run), why=why) from error


def read_trial(slot: Slot) -> SlotTrial | None:
    """Return the trial of a slot where the result of its run is stored, else None: nothing is analysed."""
    if slot.run is None:
        return None
    old = _read_old_trial(slot.folder, slot.run)
    result = read_result(slot.run) if old is None else None
    return old if result is None else make_trial(result)


def _is_idle(busiest: float) -> bool:
    """Return whether a GPU did nothing, as the check of a run judges it."""
    from joulelab.analysis.result import IDLE_LOAD

    return busiest < IDLE_LOAD


def _read_old_trial(slot: Path, run: Path) -> SlotTrial | None:
    """Return the trial that an older version stored of a run whose readings were left out since, else None."""
    file = f"{slot}/{OLD_FILE}"
    if not os.path.lexists(file) or (run / MANIFEST).exists():
        return None
    if any(reading.suffix in (".parquet", ".journal") for reading in run.glob("*/*")):
        return None
    try:
        data = read_document(file)
        if data["run"] != run.name:
            return None
        phases = data["phases"].items()
        plain = {key: data[key] for key in ("run", "time_s", "start_utc", "work", "meters", "estimate", "caps")}
        return SlotTrial(
            **plain,
            energies=_read_quantities(data["energies"]),
            doubts=tuple(_read_old_check(*text.partition(": ")[::2]) for text in data["doubts"]),
            uncapped=tuple(_read_old_check("cap", text) for text in data["uncapped"]),
            busiest=data["busiest"] or {},
            phases={name: PhaseTrial(_read_quantities(p["energies"]), p["time_s"], p["work"]) for name, p in phases},
            facts=data.get("facts", {}),
            rated=data.get("rated", {}),
        )
    except (StoreError, OSError, KeyError, TypeError, AttributeError):
        return None


def _read_old_check(name: str, text: str) -> Check:
    """Return a check of which only its name and its sentence were stored."""
    return Check(name.lower().replace(" ", "-"), "warning", texts={"stored": text})


def _read_quantities(data: Mapping[str, Any]) -> dict[str, Quantity]:
    return {name: Quantity.from_terms(q["value"], q["terms"], q["known"]) for name, q in data.items()}


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
                knobs = self._names(cell) | ({} if phase is None else {"phase": phase}) | cell.get_knob_values()
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
        results.notes.append(f"{slot.folder.name} of {cell.label} cannot be worked out: {error}")
        return None


def _sorted(cells: Mapping[str, PlannedCell]) -> list[tuple[str, PlannedCell]]:
    """Return the cells in the order of their knobs."""
    return sorted(cells.items(), key=lambda item: _place(item[1].get_knob_values()))


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
    knobs = {name_knob_column(name): value for name, value in cell.get_knob_values().items()}
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
