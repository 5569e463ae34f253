"""Turn the slots of a study into trials and cells: energies, time, work found in outputs, checks that failed."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import name_knob_column
from joulelab.analysis.marked_phases import DATA_FACT
from joulelab.analysis.result import IDLE_LOAD, Check
from joulelab.analysis.results_file import load_result, read_result
from joulelab.analysis.study_cells import Cell, Note, Trial, name_meter_device
from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, JoulelabError, StoreError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family, find_roots
from joulelab.store.documents import read_document
from joulelab.store.manifest import FILE as MANIFEST
from joulelab.store.safe_files import open_regular
from joulelab.study.slots import ERR, NOTES, OUT, State, list_claimed_slots, read_slot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Fact, GroupResult, PhaseResult, Result
    from joulelab.site.footprint import Site
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.precision import CellPrecision
    from joulelab.study.slots import Slot

MEASURED = "measured"
OLD_FILE = "trial.json"  # written by versions before results.json held every term
CAP_CHECKS = ("cap", "cap not enforced")  # if one of these failed, a cap was not in force
MAX_NAMED = 3  # slots that a note names
POWER_S = 3.0  # power now is the mean over this time
_ESCAPED = re.compile(r"\\.|\(\?(?:P?<\w+>|[a-zA-Z]+\)|[a-zA-Z]*:|<?[=!])|\[[^\]]*\]")
_WORD = re.compile(r"[A-Za-z][A-Za-z_]*")


# Work in the output of a workload


@dataclass(frozen=True, slots=True)
class WorkPattern:
    """Hold a regular expression for work: the last match is the total, or with `add` the sum of all matches.

    With a `workload` it applies only to the slots of that workload.
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
            raise ConfigError(f"{pattern!r} is not a regular expression", where=where, why=str(error)) from None
        named = list(compiled.groupindex)
        if len(named) > 1 or (not named and compiled.groups != 1):
            why = f"it has {compiled.groups} groups" if compiled.groups else "it has no group"
            advice = r"put the number in one group: 'tokens: (\d+)', or name it: '(?P<tokens>\d+) done'"
            raise ConfigError(f"{pattern!r} does not select one number", where=where, why=why, next=advice)
        word = _WORD.search(_ESCAPED.sub(" ", pattern))
        return cls(pattern, named[0] if named else word[0].rstrip("_") if word else "work", add, workload)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        own = {} if self.workload is None else {"workload": self.workload}
        return {"pattern": self.pattern, "name": self.name, "add": self.add, **own}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkPattern:
        """Restore from `to_json`."""
        return cls(data["pattern"], data["name"], bool(data["add"]), data.get("workload"))

    def find_amount(self, slot: Path) -> float | None:
        """Return the work that a slot printed, None without a match.

        The last match counts, that of standard output first; with `add`, all matches of both outputs.
        """
        found = [list(self._list_matches(slot / name)) for name in (OUT, ERR)]
        if self.add:
            every = [number for numbers in found for number in numbers]
            return sum(every) if every else None
        return next((numbers[-1] for numbers in found if numbers), None)

    def _list_matches(self, file: Path) -> Iterator[float]:
        compiled = re.compile(self.pattern.encode(), re.MULTILINE)
        group = next(iter(compiled.groupindex), 1)
        with contextlib.suppress(OSError), open_regular(file) as opened:
            if not os.fstat(opened.fileno()).st_size:
                return  # an empty file cannot be mapped
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
                for match in compiled.finditer(text):
                    with contextlib.suppress(ValueError):
                        number = float((match[group] or b"").replace(b",", b""))
                        if 0 <= number < math.inf:
                            yield number


def find_work(patterns: Sequence[WorkPattern], slot: Path) -> tuple[dict[str, float], list[str]]:
    """Return the work found in a slot's output by name, and the names without a match."""
    found = {pattern.name: pattern.find_amount(slot) for pattern in patterns}
    return {name: n for name, n in found.items() if n is not None}, [name for name, n in found.items() if n is None]


# Trials


@dataclass(frozen=True, slots=True)
class PhaseTrial:
    """Hold the sums over all phases of one name of a run: energies (J) by scope and group, time (s), work.

    `gpu_load` is the mean load (share of one) of the GPUs that the run used, None if a phase has none.
    """

    energies: Mapping[str, Quantity]
    time_s: float
    work: Mapping[str, float] = field(default_factory=dict)
    gpu_load: float | None = None


@dataclass(frozen=True, slots=True)
class SlotTrial:
    """Hold the outcome of one slot: energies (J) by scope and group, time (s), work as the workload reported it.

    Scopes of further hosts end in the host: `gpu:0@n2`. `meters` names the meter of each energy: gain errors cancel
    between runs of one meter. `doubts` are checks that failed or warn, `uncapped` those by which a cap was not in
    force. `busiest` is the highest load (share of one) of each GPU whose load was read often enough, `gpu_load` the
    mean load of the GPUs that worked. `rated` is the rated power (W) by scope, for families in which it is known of
    every device. Steps are not in `phases`.
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
    busiest: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, PhaseTrial] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    rated: Mapping[str, float] = field(default_factory=dict)
    gpu_load: float | None = None
    site: Site | None = None

    def get_energy(self, scope: str | None = None) -> Quantity | None:
        """Return the energy of a scope or group, by default of everything measured."""
        return self.energies.get(scope or MEASURED)

    def list_gpu_energies(self) -> dict[str, Quantity]:
        """Return the energy of each GPU."""
        return {scope: q for scope, q in self.energies.items() if ":" in scope and find_family(scope) == "gpu"}

    def find_idle_gpus(self, used: Collection[str], hidden: Collection[str] = ()) -> list[str] | None:
        """Return the GPUs that did nothing, None if that is unknown.

        The load decides. Without enough readings of it, a GPU that was given to the cell (`used`) was busy; others were
        idle if some GPUs were given, or if they were `hidden` from the workload.
        """
        idle = []
        for scope in self.list_gpu_energies():
            load = self.busiest.get(scope)
            if load is None and not used and scope not in hidden:
                return None
            if scope not in used if load is None else load < IDLE_LOAD:
                idle.append(scope)
        return idle

    def get_idle_share(self, idle: Collection[str] | None) -> float | None:
        """Return the share of the GPUs' energy that idle GPUs used, None if it is unknown."""
        gpus = self.list_gpu_energies()
        total = sum(q.value for q in gpus.values())
        return None if idle is None or total <= 0 else sum(gpus[scope].value for scope in idle) / total


def make_trial(result: Result) -> SlotTrial:
    """Take the figures that a study compares from the result of a run."""

    def name_scope(scope: str, host: str) -> str:
        return scope if host == result.host else f"{scope}@{host}"

    energies = {name_scope(s.scope, s.host): s.energy for s in result.scopes}
    meters = {
        name_scope(s.scope, s.host): name_meter_device(s.reading.meter, s.reading.channel, s.device, s.host)
        for s in result.scopes
    }

    def name_meters(group: GroupResult) -> str:
        hosts = group.hosts or (result.host,) * len(group.scopes)
        named = map(name_scope, group.scopes, hosts)
        return "; ".join(sorted(meters.get(scope, scope) for scope in named))

    lacking = {find_family(scope.rpartition("/")[2]) for scope in result.rated.unknown}
    whole = result.group(MEASURED)
    return SlotTrial(
        run=result.run,
        time_s=result.duration_s,
        start_utc=result.start_utc,
        energies=energies | {group.name: group.energy for group in result.groups},
        work=dict(result.work),
        meters=meters | {g.name: name_meters(g) for g in result.groups},
        doubts=tuple(c for c in result.checks if c.status in ("warning", "failed")),
        estimate=whole is not None and whole.estimate,
        uncapped=tuple(c for c in result.checks if c.status == "failed" and c.name in CAP_CHECKS),
        busiest=result.busiest,
        phases=_sum_phases(result),
        facts=dict(result.facts),
        rated={
            name_scope(d.scope, d.host): d.watts for d in result.rated.devices if find_family(d.scope) not in lacking
        },
        gpu_load=result.gpu_load,
        site=None if result.site is None else replace(result.site, is_recorded=False),
    )


def _sum_phases(result: Result) -> dict[str, PhaseTrial]:
    """Add up the phases of one name: thirty epochs are one phase `epoch`. Steps are left out."""
    found: dict[str, list[PhaseResult]] = {}
    for phase in result.phases:
        if phase.last is None:
            found.setdefault(phase.name, []).append(phase)
    sums = {}
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
        sums[name] = PhaseTrial(energies, time_s, work, gpu_load)
    return sums


def load_trial(slot: Slot) -> SlotTrial:
    """Return the trial of a finished slot; its run is analysed if no result is stored. Raises JoulelabError."""
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
        raise StoreError("the run cannot be analysed", where=str(slot.run), why=why) from error


def read_trial(slot: Slot) -> SlotTrial | None:
    """Return the trial of a slot from the stored result of its run, None if nothing is stored."""
    if slot.run is None:
        return None
    old = _read_old_trial(slot.folder, slot.run)
    result = read_result(slot.run) if old is None else None
    return old if result is None else make_trial(result)


def _read_old_trial(slot: Path, run: Path) -> SlotTrial | None:
    """Return the trial that an older version stored, if the readings of its run are gone."""
    file = f"{slot}/{OLD_FILE}"
    if not os.path.lexists(file) or (run / MANIFEST).exists():
        return None
    if any(reading.suffix in (".parquet", ".journal") for reading in run.glob("*/*")):
        return None

    def read_quantities(data: Mapping[str, Any]) -> dict[str, Quantity]:
        return {name: Quantity.from_terms(q["value"], q["terms"], q["known"]) for name, q in data.items()}

    def read_check(name: str, text: str) -> Check:  # only its name and its sentence were stored
        return Check(name.lower().replace(" ", "-"), "warning", texts={"stored": text})

    try:
        data = read_document(file)
        if data["run"] != run.name:
            return None
        plain = {key: data[key] for key in ("run", "time_s", "start_utc", "work", "meters", "estimate")}
        return SlotTrial(
            **plain,
            energies=read_quantities(data["energies"]),
            doubts=tuple(read_check(*text.partition(": ")[::2]) for text in data["doubts"]),
            uncapped=tuple(read_check("cap", text) for text in data["uncapped"]),
            busiest=data["busiest"] or {},
            phases={
                name: PhaseTrial(read_quantities(p["energies"]), p["time_s"], p["work"])
                for name, p in data["phases"].items()
            },
            facts=data.get("facts", {}),
            rated=data.get("rated", {}),
        )
    except (StoreError, OSError, KeyError, TypeError, AttributeError):
        return None


# Results of a study


@dataclass(frozen=True, slots=True)
class RatedTrial:
    """Hold the rated power (W) of the devices of some families in a run, their energy (J), and the time (s).

    `meter` names the meters of that energy.
    """

    families: tuple[str, ...]
    watts: float
    used: Quantity
    time_s: float
    meter: str


@dataclass(slots=True)
class Results:
    """Hold the results of a study so far: cells with their trials, a row per slot, and notes on missing parts.

    `rated` are the trials by cell whose runtime x rated power is known. `precision` is there if a study has a target.
    """

    cells: list[Cell] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    rated: dict[str, list[RatedTrial]] = field(default_factory=dict)
    precision: list[CellPrecision] = field(default_factory=list)


def gather_results(
    study: Study,
    *,
    scope: str | None = None,
    work: Sequence[WorkPattern] = (),
    planned: Collection[str] = (),
    cells: Mapping[str, PlannedCell] | None = None,
) -> Results:
    """Read every slot of a study. `scope` chooses the energy that counts; `work` finds the work in outputs.

    Cells without a slot count only if they are `planned`. With `cells` only these count, in that order. Raises
    ConfigError for a scope that no run has.
    """
    stored = study.read_cells() if cells is None else cells
    chosen = dict(sorted(stored.items(), key=lambda item: _sort_knobs(item[1]))) if cells is None else cells
    reader = _ResultReader(study, chosen.values(), scope, work)
    reader.results.notes += study.notes
    for key, cell in chosen.items():
        reader.read_cell(key, cell, is_planned=cells is not None or key in planned)
    reader.finish()
    return reader.results


class _ResultReader:
    """Read cell after cell, and collect results and missing parts."""

    def __init__(
        self, study: Study, cells: Collection[PlannedCell], scope: str | None, work: Sequence[WorkPattern]
    ) -> None:
        self._study, self._scope, self._work = study, scope, work
        self.results = Results()
        self._scopes: set[str] = set()
        self._missing: dict[tuple[str, str], list[str]] = {}
        names = {"workload": {c.workload.name for c in cells}, "node": {c.workload.node_type for c in cells}}
        self._varied = [name for name, values in names.items() if len(values) > 1]
        units = {name: {c.knobs[name].unit for c in cells if name in c.knobs} for name in ("cap", "cpu_cap")}
        # Shares of the default and watts are not compared: shares are lines of their own.
        self._mixed = [name for name, found in units.items() if found == {"W", "share"}]

    def read_cell(self, key: str, cell: PlannedCell, *, is_planned: bool) -> None:
        """Read every slot of a cell; each phase that counts becomes a cell of its own."""
        folders = list_claimed_slots(self._study.folder / "cells" / key)
        phases: Sequence[str | None] = cell.workload.phases or (None,)
        trials: dict[str | None, list[Trial]] = {phase: [] for phase in phases}
        named = {"workload": cell.workload.name, "node": cell.workload.node_type}
        named = {name: named[name] for name in self._varied}
        for folder in folders:
            slot, notes = read_slot(folder), _read_slot_notes(folder)
            row = {"cell": key, **named, **_make_slot_row(cell, slot, notes)}
            self.results.rows.append(row)
            found = self._load_trial(slot, cell) if slot.state is State.DONE else None
            if found is None:
                continue
            self._scopes |= set(found.energies)
            whole = _make_whole_trial(found, cell, notes, self._scope, self._find_work(cell, folder))
            row |= _make_trial_row(found, whole)
            for phase in phases if folder.name.startswith("r") else ():
                if phase is not None and phase not in found.phases:
                    self._note_missing("phase-missing", phase, folder)
                    continue
                trials[phase].append(whole if phase is None else _make_phase_trial(whole, found, self._scope, phase))
                rated = _rate_trial(found, phase, self._scope, whole.idle)
                if rated is not None:
                    self.results.rated.setdefault(_name_cell(key, phase), []).append(rated)
        shares = {
            f"{name}_of": "default" for name in self._mixed if name in cell.knobs and cell.knobs[name].unit != "W"
        }
        warmup = sum(folder.name.startswith("w") for folder in folders)
        for phase, own in trials.items() if folders or is_planned else ():
            knobs = named | ({} if phase is None else {"phase": phase}) | cell.get_knob_values() | shares
            self.results.cells.append(Cell(_name_cell(key, phase), knobs, tuple(own), warmup=warmup))

    def finish(self) -> None:
        """Note missing phases and work. Raises ConfigError for a scope that no run has."""
        if self._scope is not None and self._scopes and self._scope not in self._scopes:
            why = f"there are {', '.join(sorted(self._scopes))}"
            raise ConfigError(f"no run has {self._scope!r}", where="scope", why=why)
        for (code, name), slots in self._missing.items():
            texts: dict[str, str | tuple[str, ...] | Check] = {"name": name, "names": tuple(slots[:MAX_NAMED])}
            self.results.notes.append(Note(code, {"slots": len(slots)}, texts))

    def _load_trial(self, slot: Slot, cell: PlannedCell) -> SlotTrial | None:
        try:
            return load_trial(slot)
        except JoulelabError as error:
            texts = {"slot": slot.folder.name, "cell": cell.label, "error": str(error)}
            self.results.notes.append(Note("slot-not-analysed", texts=texts))
            return None

    def _find_work(self, cell: PlannedCell, folder: Path) -> dict[str, float]:
        own = [pattern for pattern in self._work if pattern.workload in (None, cell.workload.name)]
        amounts, missing = find_work(own, folder)
        for name in missing if folder.name.startswith("r") else ():
            self._note_missing("work-missing", name, folder)
        return amounts

    def _note_missing(self, code: str, name: str, folder: Path) -> None:
        self._missing.setdefault((code, name), []).append(str(folder.relative_to(self._study.folder)))


def _name_cell(key: str, phase: str | None) -> str:
    return key if phase is None else f"{key}:{phase}"


def _sort_knobs(cell: PlannedCell) -> list[tuple[str, bool, float, str]]:
    """Return the sort key of a cell: numbers by size, before texts."""
    values = cell.get_knob_values().items()
    return [(n, isinstance(v, str), 0.0 if isinstance(v, str) else float(v), str(v)) for n, v in values]


def _rate_trial(found: SlotTrial, phase: str | None, scope: str | None, idle: Collection[str]) -> RatedTrial | None:
    """Return the rated power of a trial or of one phase: of the chosen scope, or of all families in which it is known.

    Idle GPUs are left out on both sides. The energies of a phase are known by family only, so a family with idle
    devices is left out there.
    """
    part = found if phase is None else found.phases[phase]
    known = _list_rated_scopes(found, part.energies, idle)
    if scope in known:
        known = {scope: known[scope]}
    if not known or part.time_s <= 0:
        return None
    scopes = [scope for own in known.values() for scope in own]
    return RatedTrial(
        families=tuple(known),
        watts=sum(watts for own in known.values() for watts in own.values()),
        used=add_quantities(part.energies[scope] for scope in scopes),
        time_s=part.time_s,
        meter="; ".join(found.meters.get(scope, "") for scope in scopes),
    )


def _list_rated_scopes(
    found: SlotTrial, energies: Mapping[str, Quantity], idle: Collection[str]
) -> dict[str, dict[str, float]]:
    """Return by family the rated power (W) of its used devices; of the family as a whole if all were used."""
    families: dict[str, dict[str, float]] = {}
    for scope, watts in found.rated.items():
        if scope not in idle:
            families.setdefault(find_family(scope), {})[scope] = watts
    known: dict[str, dict[str, float]] = {}
    for name, used in families.items():
        devices = {scope for scope in found.energies if find_family(scope) == name and scope != name}
        if name in energies and devices <= used.keys():
            known[name] = {name: sum(used.values())}
        elif used.keys() <= energies.keys():
            known[name] = used
    return known


def _make_whole_trial(
    found: SlotTrial, cell: PlannedCell, notes: Mapping[str, Any], scope: str | None, amounts: Mapping[str, float]
) -> Trial:
    """Return the trial of a whole run; `amounts` is the work found in its output."""
    # GPUs that were chosen for the slot were used. If it merely saw all GPUs, only their load tells.
    is_chosen = "gpus" in cell.knobs or notes.get("idle_gpus", True)
    idle = found.find_idle_gpus(notes.get("gpus") or [] if is_chosen else [], notes.get("idle_gpus") or [])
    gpus = found.list_gpu_energies()
    return Trial(
        energy=found.get_energy(scope),
        time_s=found.time_s,
        work={**found.work, **amounts},
        run=found.run,
        idle_energy_share=found.get_idle_share(idle),
        meter=found.meters.get(scope or MEASURED, ""),
        estimate=found.estimate,
        doubts=found.doubts,
        uncapped=found.uncapped,
        idle_energy=add_quantities(gpus[name] for name in idle) if idle else None,
        used=() if idle is None else tuple(name for name in gpus if name not in idle),
        idle=tuple(idle or ()),
        facts=found.facts,
        gpu_load=found.gpu_load,
        site=found.site,
    )


def _make_phase_trial(whole: Trial, found: SlotTrial, scope: str | None, phase: str) -> Trial:
    part = found.phases[phase]
    # The energies of a phase are known by family: that of idle GPUs only if all were idle.
    idle = part.energies.get("gpu") if whole.idle and not whole.used else None
    return replace(
        whole,
        energy=part.energies.get(scope or MEASURED),
        time_s=part.time_s,
        work=part.work,
        idle_energy=idle,
        idle_energy_share=None if idle is None else 1.0,
        gpu_load=part.gpu_load,
    )


def _make_slot_row(cell: PlannedCell, slot: Slot, notes: Mapping[str, Any]) -> dict[str, Any]:
    cooled = notes.get("cooled") or {}
    return {
        **{name_knob_column(name): value for name, value in cell.get_knob_values().items()},
        "slot": slot.folder.name,
        "state": slot.state.value,
        "why": slot.why,
        "run": "" if slot.run is None else slot.run.name,
        "took_s": notes.get("took_s"),
        "cooled": cooled.get("reason"),
        "cooled_s": cooled.get("took_s"),
        "cooled_to_c": cooled.get("to_c"),
    }


def _make_trial_row(found: SlotTrial, trial: Trial) -> dict[str, Any]:
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


def _read_slot_notes(slot: Path) -> dict[str, Any]:
    try:
        return read_document(f"{slot}/{NOTES}")
    except StoreError:
        return {}


# A run that is going on


def read_power_now(run: Path) -> float | None:
    """Return the power (W) of everything that is measured in a run that is going on, None if nothing is.

    It is the mean over the last readings; scopes inside others are not counted twice.
    """
    from joulelab.analysis.live_state import JournalFollower

    found: list[float] = []
    for host in sorted({journal.parent for journal in run.glob("*/*.journal")}):
        follower = JournalFollower(host, POWER_S)
        with contextlib.suppress(OSError):
            follower.read()
        now_ns = follower.find_newest_ns()
        powers = follower.state.find_powers(now_ns - round(POWER_S * NS), now_ns)
        known = {name: p for name, p in powers.items() if not p.estimate and not math.isnan(p.watts)}
        found += [known[name].watts for name in find_roots(known, {name: p.parent for name, p in known.items()})]
    return sum(found) if found else None
