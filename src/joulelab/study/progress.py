"""Estimate how long the rest of a study takes, from what has run."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from joulelab.core.errors import StoreError
from joulelab.store.documents import read_json
from joulelab.study.slots import NOTES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Pace:
    """Keep how long slots took, with everything around them, by cell; in s."""

    def __init__(self) -> None:
        self._took: dict[str, list[float]] = {}

    def add(self, key: str, took_s: float) -> None:
        """Take how long a slot of a cell took."""
        self._took.setdefault(key, []).append(took_s)

    def add_slot(self, folder: Path) -> None:
        """Take how long a slot took that ended earlier, if it noted it."""
        try:
            took_s = read_json(folder / NOTES).get("took_s")
        except StoreError:
            return
        if isinstance(took_s, int | float):
            self.add(folder.parent.name, float(took_s))

    def left_s(self, keys: Iterable[str]) -> float | None:
        """Return how long slots of these cells will take: by the cell's own mean where known, else by that of all."""
        if not self._took:
            return None
        every = fmean(fmean(times) for times in self._took.values())
        return sum(fmean(self._took[key]) if key in self._took else every for key in keys)
