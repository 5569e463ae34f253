"""Take from the result of a slot's run the figures that a study compares: energies by name, time, work, doubts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.analysis.result import Check
from joulelab.analysis.results_file import load_result, read_result
from joulelab.core.errors import JoulelabError, StoreError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.store.documents import read_document
from joulelab.store.manifest import FILE as MANIFEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from joulelab.analysis.result import Fact, PhaseResult, Result
    from joulelab.study.slots import Slot

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
