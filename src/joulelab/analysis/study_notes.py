"""Say what has to be known beside the figures of a study. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.cells import PHASES_IN_POOL, PHASES_SEEN, hides, shows_hidden
from joulelab.analysis.lines import comparable, knob_text
from joulelab.analysis.spread import LEVEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.cells import Cell, Trial
    from joulelab.analysis.lines import Line
    from joulelab.analysis.spread import Pool, Pooled

HALF = "The gain by EDS(2) is by algebra always half of gain minus loss: one piece of evidence, not two."
MOST_NAMED = 4


def notes_of(cells: Sequence[Cell], lines: Sequence[Line], ks: Sequence[float], pool: Pool) -> tuple[str, ...]:
    """Return the notes, those that touch most figures first."""
    trials = [t for c in cells for t in c.trials]
    if not trials:
        return ("No run has succeeded yet.",)
    said = _missing(cells, lines) + _repeats(cells, pool) + _work(cells, lines) + _meters(cells, trials)
    said += _hidden(cells, pool)
    return (*said, HALF) if 2.0 in ks and any(t.energy is not None for t in trials) else tuple(said)


def _missing(cells: Sequence[Cell], lines: Sequence[Line]) -> list[str]:
    empty = {c.key for c in cells if not c.trials}
    said = []
    if empty:
        names = _named([c for c in cells if c.key in empty])
        said.append(f"{len(empty)} of {len(cells)} cells have no run that succeeded: {names}.")
    without = [line for line in lines if line.reference is None or line.reference in empty]
    if without:
        which = ", ".join(line.key for line in without if line.key)
        said.append(f"The reference has no run{' for ' + which if which else ''}: no gain or loss is given there.")
    return said


def _repeats(cells: Sequence[Cell], pool: Pool) -> list[str]:
    counts = [len(c.trials) for c in cells if c.trials]
    single = counts.count(1)
    if single == len(counts):
        return ["One run each: how much runs differ by themselves is not in these intervals; repeat them to know."]
    said = []
    if pool.time is not None:
        said.append(f"How much runs differ is pooled over cells: {_spreads(pool)}.")
    if single:
        some = f"{single} of {len(counts)} cells have one run only: "
        found = "the pooled spread is taken for theirs."
        said.append(some + (found if pool.time else "how much runs differ is not in their intervals."))
    apart = [c for c in cells if c.key in pool.apart]
    if apart:
        said.append(
            f"Look at {_named(apart)}: runs there differ significantly more than elsewhere "
            f"(by chance one cell in {1 / LEVEL:.0f} does), so their own spread counts."
        )
    return said


def _spreads(pool: Pool) -> str:
    """Return the pooled standard deviations in words."""
    named: list[tuple[str, Pooled | None]] = [("energies", pool.energy), ("times", pool.time)]
    return ", ".join(
        f"{name} by {p.deviation * 100:.2g} % ({p.freedom} degrees of freedom)" for name, p in named if p is not None
    )


def _work(cells: Sequence[Cell], lines: Sequence[Line]) -> list[str]:
    if not any(t.work for c in cells for t in c.trials):
        return ["No work was reported: every run is taken to have done the same."]
    if not comparable(cells):
        return ["Not all runs report the same kind of work: cells are compared within their line only."]
    per = lines[0].per
    if per is None:
        return []
    return [f"Amounts of work differ: energy and time are compared per unit of {per}, EDP per unit squared."]


def _meters(cells: Sequence[Cell], trials: Sequence[Trial]) -> list[str]:
    said = []
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        said.append("No power meter was read: only times are compared.")
    elif len(energies) < len(trials):
        said.append(f"{len(trials) - len(energies)} of {len(trials)} runs have no energy: the others stand for them.")
    if len({t.meter for t in trials if t.energy is not None}) > 1:
        said.append("Not all runs were measured by the same devices: their gain errors do not cancel.")
    if not all(q.known for q in energies):
        said.append(
            "The meter's accuracy is unknown, so energies have no interval; ratios on one meter have one from repeats."
        )
    estimated = sum(any(t.estimate for t in c.trials) for c in cells)
    if estimated:
        which = "All cells" if estimated == sum(bool(c.trials) for c in cells) else f"{estimated} of {len(cells)} cells"
        said.append(f"~ {which} have energies that are estimates, wholly or in part: load x rated power, not measured.")
    return said


def _hidden(cells: Sequence[Cell], pool: Pool) -> list[str]:
    def repeats(cell: Cell) -> int:
        return sum(t.energy is not None for t in cell.trials)

    if not any(hides(c) and not shows_hidden(repeats(c), pool.of(c.key)) for c in cells):
        return []
    enough = PHASES_IN_POOL if pool.blind else PHASES_SEEN
    text = "A load in step with the sensors cannot be seen by them, and its bound is in the intervals; "
    return [f"{text}{enough} repeats or more replace it by their spread."]


def _named(cells: Sequence[Cell]) -> str:
    names = [knob_text(c.knobs) or c.key for c in cells[:MOST_NAMED]]
    more = len(cells) - len(names)
    return "; ".join(names) + (f" and {more} more" if more else "")
