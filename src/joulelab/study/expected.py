"""Estimate what slots will take, in time and energy, from what ran before: here, or the same cells elsewhere."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from joulelab.core.errors import StoreError
from joulelab.store.documents import read_json
from joulelab.study.slots import NOTES, SLOT, State, read_slot
from joulelab.study.trial import read_trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot

MAX_SLOTS_READ = 3  # so many slots of a cell tell what it takes


@dataclass(frozen=True, slots=True)
class SlotCost:
    """Hold what a slot takes: time with everything around the run (s) and energy (J); None where it is not known."""

    time_s: float | None = None
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class CostSum:
    """Hold what slots take together, and how many of them nothing is known of."""

    time_s: float
    energy_j: float
    slots: int
    unknown: int


class CostForecast:
    """Tell what slots of cells take: by their own earlier runs, else by those of like cells."""

    def __init__(self, study: Study, cells: Mapping[str, PlannedCell], *, scope: str | None = None) -> None:
        self._cells, self._scope = cells, scope
        self._known: dict[str, SlotCost] = {}
        for folder in [study.folder, *_list_other_studies(study.folder)]:
            for key in _list_cell_keys(folder):
                if key in cells and key not in self._known:
                    self._look(key, folder / "cells" / key)
        self._like: dict[tuple[str, str], SlotCost] = {}

    def of(self, key: str) -> SlotCost:
        """Return what a slot of a cell takes: as it did before, else as those of the same workload and node type."""
        if key in self._known:
            return self._known[key]
        group = self._group(key)
        if group not in self._like:
            alike = [taken for other, taken in self._known.items() if self._group(other) == group]
            self._like[group] = _average_costs(alike)
        return self._like[group]

    def sum(self, keys: Iterable[str]) -> CostSum:
        """Return what slots of these cells take together."""
        every = [self.of(key) for key in keys]
        unknown = sum(taken.time_s is None for taken in every)
        time_s, energy_j = (sum(getattr(t, name) or 0.0 for t in every) for name in ("time_s", "energy_j"))
        return CostSum(time_s, energy_j, len(every), unknown)

    def _group(self, key: str) -> tuple[str, str]:
        workload = self._cells[key].workload
        return workload.name, workload.node_type

    def _look(self, key: str, cell: Path) -> None:
        found: list[SlotCost] = []
        with contextlib.suppress(OSError):
            for entry in sorted(os.scandir(cell), key=lambda e: e.name):
                if (
                    SLOT.fullmatch(entry.name)
                    and len(found) < MAX_SLOTS_READ
                    and (slot := read_slot(cell / entry.name)).state is State.DONE
                ):
                    taken = self._slot(slot)
                    found += [taken] if taken.time_s is not None else []
        if found:
            self._known[key] = _average_costs(found)

    def _slot(self, slot: Slot) -> SlotCost:
        try:
            time_s = read_json(slot.folder / NOTES).get("took_s")
        except StoreError:
            return SlotCost()
        trial = read_trial(slot)
        energy = None if trial is None else trial.energy(self._scope)
        return SlotCost(
            float(time_s) if isinstance(time_s, int | float) else None, None if energy is None else energy.value
        )


def _list_other_studies(study: Path) -> list[Path]:
    """Return the other studies of the same store."""
    with contextlib.suppress(OSError):
        return [study.parent / e.name for e in os.scandir(study.parent) if e.is_dir() and e.name != study.name]
    return []


def _list_cell_keys(study: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.name for entry in os.scandir(study / "cells")]
    return []


def _average_costs(found: Iterable[SlotCost]) -> SlotCost:
    every = list(found)
    times = [t.time_s for t in every if t.time_s is not None]
    energies = [t.energy_j for t in every if t.energy_j is not None]
    return SlotCost(fmean(times) if times else None, fmean(energies) if energies else None)
