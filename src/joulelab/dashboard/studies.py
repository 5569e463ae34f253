"""Look at studies: their knobs and goals, the states of their slots, and the runs of their slots."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import StoreError
from joulelab.dashboard.run_entries import Place, word_problem
from joulelab.study.folder import CELL, FILE, VALID_NAME, open_study
from joulelab.study.matrix import list_simulated
from joulelab.study.slots import State, list_claimed_slots, read_slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from joulelab.study.folder import Study

SETTLED = (State.DONE, State.FAILED, State.REFUSED)
STATES = ("done", "failed", "live", "interrupted", "refused")


@dataclass(frozen=True, slots=True)
class StudyEntry:
    """Hold one study of a list: slots by state, how many are planned (None = not known), and where its runs lie."""

    id: str
    folder: Path
    created_utc: str = ""
    knobs: dict[str, int] = field(default_factory=dict)
    goals: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    cells: int = 0
    slots: dict[str, int] = field(default_factory=dict)
    planned: int | None = None
    problem: str = ""
    places: tuple[Place, ...] = ()

    @property
    def status(self) -> str:
        """Return how it stands, in a word: broken, live, done, open."""
        if self.problem:
            return "broken"
        if self.slots.get("live"):
            return "live"
        done = sum(self.slots.get(state.value, 0) for state in SETTLED)
        return "done" if done and self.planned == done else "open"

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the API; where it lies is not part of it."""
        left_out = ("folder", "places", "goals", "twins")
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in left_out}
        return plain | {"goals": list(self.goals), "twins": list(self.twins), "status": self.status}


class StudyLooker:
    """Look at a folder of studies repeatedly; a settled slot is not read again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, tuple[int, str, Path | None]] = {}

    def look(self) -> list[StudyEntry]:
        """Return the studies there are, by name; one that cannot be read says why."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._root) if VALID_NAME.fullmatch(entry.name))
        except OSError:
            return []
        folders = [self._root / name for name in names]
        return [self._study(folder) for folder in folders if _has(folder / FILE) or folder.is_symlink()]

    def _study(self, folder: Path) -> StudyEntry:
        try:
            if not folder.resolve().is_relative_to(self._root):
                raise StoreError("a link that leads out of the store", why="such links are not followed")  # noqa: TRY301
            return self._make_entry(folder, open_study(folder))
        except Exception as error:  # noqa: BLE001 one study that cannot be read must not hide the others
            return StudyEntry(folder.name, folder, problem=word_problem(error, self._root))

    def _make_entry(self, folder: Path, study: Study) -> StudyEntry:
        data = study.data
        places, states, cells = [], Counter[str](), 0
        for cell in self._cells(folder):
            cells += 1
            for slot in list_claimed_slots(cell):
                state, run = self._slot(slot)
                states[state] += 1
                if run is not None:
                    names = (folder.name, cell.name, slot.name)
                    ident = f"{run.name}@{'.'.join(names)}"
                    places.append(Place(ident, run, self._root, *names))
        utc_s = int(data["created"]["utc_ns"]) / NS
        return StudyEntry(
            folder.name,
            folder,
            created_utc=dt.datetime.fromtimestamp(utc_s, dt.UTC).isoformat(timespec="seconds"),
            knobs={str(name): len(values) for name, values in dict(data.get("knobs") or {}).items()},
            goals=tuple(map(str, data["goals"])),
            twins=tuple(dict.fromkeys(map(str, list_simulated(study.nodes).values()))),
            cells=cells,
            slots=dict(states),
            planned=_planned(data, cells),
            places=tuple(places),
        )

    def _cells(self, folder: Path) -> Iterator[Path]:
        try:
            entries = sorted(os.scandir(folder / "cells"), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and _has(Path(entry.path) / CELL):
                yield Path(entry.path)

    def _slot(self, slot: Path) -> tuple[str, Path | None]:
        """Return how a slot stands and its run; one that is settled is looked at again when its folder has changed."""
        try:
            key, changed = str(slot), slot.lstat().st_mtime_ns
        except OSError:  # set aside this very moment
            return State.FREE.value, None
        known = self._known.get(key)
        if known is not None and known[0] == changed:
            return known[1], known[2]
        if slot.is_symlink():
            return State.STALE.value, None
        found = read_slot(slot)
        if found.state in SETTLED:
            self._known[key] = (changed, found.state.value, found.run)
        return found.state.value, found.run


def word_slots(slots: Mapping[str, int], planned: int | None) -> str:
    """Return how the slots of a study stand: `12 of 30 done, 1 failed, 2 running`."""
    words = {"live": "running"}
    done = slots.get("done", 0)
    parts = [f"{done} of {planned} done" if planned else f"{done} done"]
    return ", ".join(parts + [f"{slots[s]} {words.get(s, s)}" for s in STATES[1:] if slots.get(s)])


def _planned(data: Mapping[str, Any], there: int) -> int | None:
    """Return how many slots a study has in all, None if that is not recorded, or depends on its precision.

    The cells of a sweep are there from its start; of a study file each comes with its first slot.
    """
    cells = data.get("cells") if data.get("file") else there
    repeats, warmup = int(data.get("repeats") or 1), int(data.get("warmup") or 0)
    return None if cells is None or data.get("until") else int(cells) * (repeats + warmup)


def _has(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
