"""Hold a map of colours over two knobs: what stands where. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """Hold one field of a map: its text, what it says when pointed at, and a share of the colour from 0 to 1.

    `mark` is `best`, `tied` (not told apart from it), `reference` or nothing.
    """

    text: str
    told: str
    share: float
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Heat:
    """Hold a map: names along both axes, and rows of tiles; None where no cell has run."""

    name: str
    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    tiles: tuple[tuple[Tile | None, ...], ...]
    low: str
    high: str
    note: str = ""
