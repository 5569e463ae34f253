"""Judge how precise the mean energy of a cell is between its repeats, and which cells need more repeats.

Only the scatter between repeats counts. An error that all runs of one meter share (its gain) is not reduced by
repeating: it is part of the stated uncertainty of energies, not of this target.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from joulelab.analysis.cell_comparison import make_sample
from joulelab.analysis.study_cells import Note
from joulelab.core.errors import JoulelabError
from joulelab.study.folder import MIN_REPEATS, PrecisionTarget
from joulelab.study.results import MEASURED, load_trial
from joulelab.study.slots import State, list_claimed_slots, read_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.results import SlotTrial
    from joulelab.study.slots import Slot

# Why a cell gets no more repeats; `unfinished` cells need more.
Verdict = Literal["reached", "maximum", "no-energy", "failed", "unfinished"]
MISSED = {
    "maximum": "precision-missed.maximum",
    "no-energy": "precision-missed.no-energy",
    "failed": "precision-missed.failed",
    "unfinished": "precision-missed.unfinished",
}


@dataclass(frozen=True, slots=True)
class CellPrecision:
    """Hold the precision of a cell: half-width as a share of the mean (None: unknown), and why it got no more repeats.

    Of a cell with several phases the least precise one counts.
    """

    cell: str
    repeats: int
    share: float | None
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def judge_precision(
    key: str, phases: Sequence[str], trials: Sequence[SlotTrial], tried: int, target: PrecisionTarget
) -> CellPrecision:
    """Judge the precision of a cell by its trials; `tried` counts ended repeats, failed ones too."""
    shares: list[float | None] = []
    for phase in phases or (None,):
        found = [_read_energy(trial, phase, target.scope) for trial in trials]
        values = [value for value in found if value is not None]
        if trials and (not values or sum(values) <= 0):
            return CellPrecision(key, len(trials), None, "no-energy")
        half = make_sample(values).half_width if values else None
        shares.append(None if half is None else half * len(values) / sum(values))
    share = None if None in shares else max(share for share in shares if share is not None)
    verdict: Verdict = "unfinished"
    if share is not None and share <= target.share:
        verdict = "reached"
    elif tried >= MIN_REPEATS and not trials:
        verdict = "failed"
    elif tried >= target.max_repeats:
        verdict = "maximum"
    return CellPrecision(key, len(trials), share, verdict)


def _read_energy(trial: SlotTrial, phase: str | None, scope: str | None) -> float | None:
    part = trial if phase is None else trial.phases.get(phase)
    energy = None if part is None else part.energies.get(scope or MEASURED)
    return None if energy is None else energy.value


def read_precision(
    study: Study,
    cells: Mapping[str, PlannedCell],
    target: PrecisionTarget,
    *,
    read: Callable[[Path], Slot] = read_slot,
    trials: dict[Path, SlotTrial] | None = None,
) -> list[CellPrecision]:
    """Judge every cell by the slots that it has now; `trials` keeps those that were read before, by slot."""
    known = {} if trials is None else trials
    found = []
    for key, cell in cells.items():
        folders = [folder for folder in list_claimed_slots(study.folder / "cells" / key) if folder.name[0] == "r"]
        tried = len(folders)
        for folder in (folder for folder in folders if folder not in known):
            slot = read(folder)
            tried -= slot.state in (State.FREE, State.LIVE, State.STALE)
            if slot.state is State.DONE:
                with contextlib.suppress(JoulelabError):
                    known[folder] = load_trial(slot)
        own = [known[folder] for folder in folders if folder in known]
        found.append(judge_precision(key, cell.workload.phases, own, tried, target))
    return found


def list_precision_notes(
    found: Sequence[CellPrecision], labels: Mapping[str, str], target: PrecisionTarget
) -> list[Note]:
    """Return which cells reached the target with how many repeats, and which did not and why."""
    cells = {"cells": float(len(found)), "share": target.share}
    reached = [one for one in found if one.verdict == "reached"]
    notes = []
    if reached:
        counts = [one.repeats for one in reached]
        numbers = cells | {"reached": float(len(reached)), "fewest": min(counts), "most": max(counts)}
        names = tuple(f"{labels[one.cell]}: {one.repeats}" for one in reached)
        notes.append(Note("precision-reached", numbers, {"names": names} if min(counts) < max(counts) else {}))
    for verdict, code in MISSED.items():
        missed = [one for one in found if one.verdict == verdict]
        worst = max((one.share for one in missed if one.share is not None), default=None)
        numbers = cells | {"missed": float(len(missed)), "repeats": float(target.max_repeats)}
        numbers |= {} if worst is None else {"worst_share": worst}
        if missed:
            counts = [one.repeats for one in missed]  # without failed ones
            numbers |= {"fewest": min(counts), "most": max(counts)}
            names = tuple(labels[one.cell] for one in missed)
            notes.append(Note(code, numbers, {"names": names}))
    return notes
