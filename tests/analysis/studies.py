"""Make cells of studies for tests: caps, GPU counts, repeats, meters with gains."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.worded import assert_note_worded

from joulelab.analysis.cell_metrics import Cell, Trial
from joulelab.core.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.cell_metrics import StudySummary

SCALING = {1: 1.0, 2: 1.86, 4: 3.3, 8: 4.95}


def trial(energy: float | None, time: float, *, known: bool = True, meter: str = "", **terms: float) -> Trial:
    """Return a trial; terms by kind, as `gain=3.0`, are of the source `gain:m`."""
    named = {f"{kind}:m": u for kind, u in terms.items()}
    return Trial(None if energy is None else Quantity.from_terms(energy, named, known), time, meter=meter)


def noted(summary: StudySummary) -> dict[str, dict[str, float]]:
    """Return the numbers of the notes of a summary by code."""
    for note in summary.notes:
        assert_note_worded(note)
    return {note.code: note.numbers for note in summary.notes}


def cell(key: str, trials: Iterable[Trial], **knobs: Any) -> Cell:
    return Cell(key, knobs, tuple(trials))


def by_cap(points: Mapping[float, Sequence[tuple[float, float]]], **terms: float) -> list[Cell]:
    """Return cells by cap from (energy, time) pairs; terms are shares of the energy."""
    return [
        cell(f"c{cap:g}", [trial(e, t, **{k: u * e for k, u in terms.items()}) for e, t in pairs], cap=cap)
        for cap, pairs in points.items()
    ]


def sweep(
    caps: Sequence[float] = (100, 140, 180, 220, 260),
    gpus: Sequence[int] = (1, 2, 4, 8),
    n: int = 5,
    noise: float = 0.003,
    seed: int = 1,
    work: Mapping[str, float] | None = None,
) -> list[Cell]:
    """Return a whole sweep of a simulated node with a good analyzer."""
    draw = random.Random(seed)
    done = {"images": 50_000.0} if work is None else dict(work)
    cells = []
    for count in gpus:
        for cap in caps:
            trials = []
            for k in range(n):
                slower = 1 + 0.09 * ((260 - cap) / 90) ** 2 * (0.4 + 0.6 * count / 8)
                t = 424 / SCALING[count] * slower * draw.gauss(1, noise)
                e = (270 + count * min(cap, 230) + (8 - count) * 20) * t * draw.gauss(1, noise)
                q = Quantity(e, {"gain:wt": e * 0.001, "offset:wt": t * 2.0, "edge:wt:1": 5.0})
                trials.append(Trial(q, t, done, f"run-{count}-{cap}-{k}", 1 - count / 8))
            cells.append(Cell(f"g{count}c{cap:g}", {"cap": float(cap), "gpus": count}, tuple(trials)))
    return cells
