"""Keep what one slot gave: energies with every term of their uncertainty, time, work; worked out once per run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.terms import Quantity, total
from joulelab.core.errors import JoulelabError, StoreError
from joulelab.core.scope import family
from joulelab.core.version import __version__
from joulelab.store.folder import read_json, write_json_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.study.slots import Slot

FILE = "trial.json"
SCHEMA = 1
MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class SlotTrial:
    """Hold the outcome of one slot: energies (J) by scope and group, time (s), work as it was reported.

    `meters` names what measured each of them: between runs that were measured by the same, gain errors cancel.
    """

    run: str
    time_s: float
    start_utc: str
    energies: Mapping[str, Quantity]
    work: Mapping[str, float]
    meters: Mapping[str, str]
    doubts: tuple[str, ...] = ()
    estimate: bool = False

    def energy(self, scope: str | None = None) -> Quantity | None:
        """Return the energy of a scope or group, of everything measured unless one is named."""
        return self.energies.get(scope or MEASURED)

    def idle_share(self, used: Collection[str]) -> float | None:
        """Return the share of idle GPUs in the energy of all, None where that is not known."""
        gpus = {scope: q for scope, q in self.energies.items() if family(scope) == "gpu" and ":" in scope}
        whole = total(gpus.values()).value
        if not gpus or whole <= 0 or not used:
            return None
        return sum(q.value for scope, q in gpus.items() if scope not in used) / whole

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        energies = {
            name: {"value": q.value, "known": q.known, "terms": dict(q.terms)} for name, q in self.energies.items()
        }
        return {
            "schema": SCHEMA,
            "joulelab": __version__,
            "run": self.run,
            "time_s": self.time_s,
            "start_utc": self.start_utc,
            "energies": energies,
            "work": dict(self.work),
            "meters": dict(self.meters),
            "doubts": list(self.doubts),
            "estimate": self.estimate,
        }


def from_result(result: Result) -> SlotTrial:
    """Take from a run's result what a study needs of it."""
    energies = {scope.scope: scope.energy for scope in result.scopes}
    energies |= {group.name: group.energy for group in result.groups}
    read = {
        s.scope: f"{s.reading.meter} {s.reading.channel} {s.host if not s.device else s.device}" for s in result.scopes
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
        doubts=tuple(f"{c.name}: {c.message}" for c in result.checks if c.status in ("warning", "failed")),
        estimate=whole is not None and whole.estimate,
    )


def keep(slot: Path, found: SlotTrial) -> None:
    """Keep a trial beside its run; a full disk costs only that."""
    with contextlib.suppress(StoreError):
        write_json_atomic(slot / FILE, found.to_json())


def trial_of(slot: Slot) -> SlotTrial:
    """Return the trial of a slot that is done, kept or worked out anew. Raises JoulelabError."""
    kept = _kept(slot)
    if kept is not None:
        return kept
    if slot.run is None:
        raise StoreError("there is no run", where=str(slot.folder))
    from joulelab.supervisor.closing import analyse_run

    try:
        found = from_result(analyse_run(slot.run))
    except JoulelabError:
        raise
    except Exception as error:  # one run that cannot be worked out must not hide the others
        why = f"{type(error).__name__}: {error}"
        raise StoreError("the run cannot be worked out", where=str(slot.run), why=why) from error
    keep(slot.folder, found)
    return found


def _kept(slot: Slot) -> SlotTrial | None:
    try:
        data = read_json(slot.folder / FILE)
    except StoreError:
        return None
    run = None if slot.run is None else slot.run.name
    if (data.get("schema"), data.get("joulelab"), data.get("run")) != (SCHEMA, __version__, run):
        return None
    energies = {name: Quantity(q["value"], q["terms"], q["known"]) for name, q in data["energies"].items()}
    return SlotTrial(
        run=data["run"],
        time_s=data["time_s"],
        start_utc=data["start_utc"],
        energies=energies,
        work=data["work"],
        meters=data["meters"],
        doubts=tuple(data["doubts"]),
        estimate=data["estimate"],
    )
