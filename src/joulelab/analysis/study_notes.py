"""Find the notes about the figures of a study, as codes with numbers and names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.analysis.cell_lines import (
    format_knobs,
    get_group_knobs,
    group_cells,
    is_comparable,
    is_work_different,
    list_common_work,
    name_cells,
)
from joulelab.analysis.marked_phases import DATA_FACT
from joulelab.analysis.statistics import FEWEST_TO_MARK, OUTLIER_LEVEL, SCATTER_LEVEL
from joulelab.analysis.study_cells import (
    ASSUMED_SPREAD,
    ENOUGH_IN_POOL,
    ENOUGH_REPEATS,
    Note,
    has_blind_sensor,
    is_hidden_covered,
    list_doubts,
    name_data,
)
from joulelab.core.text import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.statistics import SpreadPool
    from joulelab.analysis.study_cells import Cell, Trial

MOST_NAMED = 4  # cells that a note names
UNKNOWN_DATA = "(unknown)"
OWN_NOTES = ("estimate", "power meter", "cap not enforced")  # checks of runs that have a note of their own


def list_notes(
    cells: Sequence[Cell],
    lines: Sequence[CellLine],
    ks: Sequence[float],
    pool: SpreadPool,
    samples: Mapping[str, Mapping[str, RepeatSample]],
    per: Sequence[str] = (),
) -> tuple[Note, ...]:
    """List the notes, the most important ones first; `samples` are the repeats of each cell, by figure."""
    trials = [t for c in cells for t in c.trials]
    if not trials and not any(c.moments for c in cells):
        return (Note("no-results"),)
    notes = _note_missing(cells, lines) + _note_moments(cells)
    if not trials:
        return tuple(notes)
    notes += _note_uncapped(cells, lines) + _note_data(cells, lines) + _note_repeats(cells, pool)
    notes += _note_outliers(cells, samples) + _note_work(cells, lines, per) + _note_meters(cells, trials)
    notes += _note_warnings(cells) + _note_unseen(cells, pool)
    if 2.0 in ks and any(t.energy is not None for t in trials):
        notes.append(Note("eds-is-half"))
    return tuple(notes)


def _note_missing(cells: Sequence[Cell], lines: Sequence[CellLine]) -> list[Note]:
    empty = {c.key for c in cells if not c.trials and not c.moments}
    notes = []
    if empty:
        names = name_cells(c for c in cells if c.key in empty)
        notes.append(Note("cells-missing", {"missing": len(empty), "cells": len(cells)}, {"names": names}))
    without = [line for line in lines if line.reference is None or line.reference in empty]
    if without:
        named = tuple(line.key for line in without if line.key)
        notes.append(Note("reference-missing", {"lines": len(without)}, {"names": named} if named else {}))
    return notes


def _note_moments(cells: Sequence[Cell]) -> list[Note]:
    """Note figures that are published moments, and runs that do not count."""
    published = sum(bool(c.moments) and not c.trials for c in cells)
    warm = sum(c.warmup for c in cells)
    notes = []
    if published:
        notes.append(Note("no-runs-here", {"published": published, "cells": len(cells)}))
    if warm:
        notes.append(Note("warm-up", {"runs": warm}))
    return notes


def _note_outliers(cells: Sequence[Cell], samples: Mapping[str, Mapping[str, RepeatSample]]) -> list[Note]:
    """Note the repeats that differ from the others of their cell: cells, and runs by their names."""
    found = [(c, runs) for c in cells if (runs := _find_outliers(c, samples[c.key]))]
    if not found:
        return []
    names = tuple(f"{name_cells([cell])[0]} ({', '.join(runs)})" for cell, runs in found)
    numbers = {"cells": len(found), "runs": sum(len(runs) for _, runs in found), "chance": 1 / OUTLIER_LEVEL}
    return [Note("odd-runs", numbers, {"names": names})]


def _find_outliers(cell: Cell, samples: Mapping[str, RepeatSample]) -> list[str]:
    measured = [k for k, t in enumerate(cell.trials) if t.energy is not None]
    places = {k for f, s in samples.items() for k in (s.outliers if f == "time" else [measured[m] for m in s.outliers])}
    return [cell.trials[k].run or f"repeat {k + 1}" for k in sorted(places)]


def _note_uncapped(cells: Sequence[Cell], lines: Sequence[CellLine]) -> list[Note]:
    """Note the cells whose runs do not have the cap of their knobs."""
    bad = [c for c in cells if c.uncapped]
    if not bad:
        return []
    first = next(check for t in bad[0].trials for check in t.uncapped)
    runs = sum(bool(t.uncapped) for c in bad for t in c.trials)
    notes = [Note("not-capped", {"runs": runs, "cells": len(bad)}, {"names": name_cells(bad), "first": first})]
    references = [c for c in bad if any(c.key == line.reference for line in lines)]
    if references:
        notes.append(Note("reference-not-capped", {"cells": len(references)}, {"names": name_cells(references)}))
    return notes


def _note_repeats(cells: Sequence[Cell], pool: SpreadPool) -> list[Note]:
    counts = [len(c.trials) for c in cells if c.trials]
    single = counts.count(1)
    if single == len(counts):
        return [Note("one-run-each", {"cells": single, "assumed_share": ASSUMED_SPREAD})]
    notes = _note_pools(cells, pool)
    if single:
        has_unknown = any(pool.get_pool(c.key).time is None for c in cells if len(c.trials) == 1)
        numbers = {"single": single, "cells": len(counts)}
        if has_unknown:
            notes.append(Note("one-run.unknown", numbers | {"assumed_share": ASSUMED_SPREAD}))
        else:
            notes.append(Note("one-run.pooled", numbers))
    apart = [c for c in cells if pool.is_apart(c.key)]
    if apart:
        few = any(len(c.trials) < FEWEST_TO_MARK for c in apart)
        texts: dict[str, str | tuple[str, ...]] = {"names": name_cells(apart)}
        texts |= {"fewest": str(FEWEST_TO_MARK)} if few else {}
        notes.append(Note("wide-cells", {"cells": len(apart), "few": few, "chance": 1 / SCATTER_LEVEL}, texts))
    return notes


def _note_pools(cells: Sequence[Cell], pool: SpreadPool) -> list[Note]:
    """Note over which cells spreads are pooled."""
    used = {id(p): p for c in cells if c.trials and (p := pool.get_pool(c.key)).time is not None}
    whole = used.pop(id(pool), None)
    lines = list(used.values())
    notes = []
    if lines:
        notes.append(Note("pooled.lines", _find_spread_range(lines)))
    if whole is not None:
        notes.append(Note("pooled.rest" if lines else "pooled.all", _find_spread_range([pool])))
    return notes


def _find_spread_range(pools: Sequence[SpreadPool]) -> dict[str, float]:
    """Return the lowest and highest pooled standard deviations, as shares, and degrees of freedom."""
    numbers: dict[str, float] = {}
    for name in ("energy", "time"):
        found = [p for p in (getattr(pool, name) for pool in pools) if p is not None]
        for end, choose in (("low", min), ("high", max)) if found else ():
            numbers[f"{name}_{end}_share"] = choose(p.deviation for p in found)
            numbers[f"{name}_{end}_freedom"] = choose(p.freedom for p in found)
    return numbers


def _note_work(cells: Sequence[Cell], lines: Sequence[CellLine], wanted: Sequence[str]) -> list[Note]:
    """Note the kind of work by which cells are compared; one note if it is the same for every workload and phase."""
    found: dict[str, tuple[Note, list[str]]] = {}
    all_groups = group_cells(cells)
    for group in all_groups:
        keys = {c.key for c in group}
        for note in _note_group_work(group, [line for line in lines if line.cells[0] in keys], wanted):
            found.setdefault(repr(note), (note, []))[1].append(format_knobs(get_group_knobs(group[0])))
    return [
        note if len(names) == len(all_groups) else replace(note, texts={**note.texts, "groups": tuple(names)})
        for note, names in found.values()
    ]


def _note_group_work(cells: Sequence[Cell], lines: Sequence[CellLine], wanted: Sequence[str]) -> list[Note]:
    factors = list_common_work(cells)
    missing = tuple(kind for kind in wanted if kind not in factors)
    notes = []
    if missing:
        notes.append(Note("work.lacking", texts={"kinds": missing}))
    if not any(t.work for c in cells for t in c.trials):
        return [*notes, Note("work.none")]
    if not is_comparable(cells):
        return [*notes, Note("work.kinds-differ")]
    per = lines[0].per
    others = tuple(kind for kind, factor in factors.items() if kind != per and is_work_different(factor))
    if per is None:
        if others:
            same = next(kind for kind in wanted if kind in factors)
            notes.append(Note("work.whole", texts={"same": same, "kinds": others}))
        return notes
    texts = {"per": per} | ({"other": next(k for k in factors if k != per)} if len(factors) > 1 else {})
    return [*notes, Note("work.asked-for" if per in wanted else "work.differs", texts=texts)]


def _note_meters(cells: Sequence[Cell], trials: Sequence[Trial]) -> list[Note]:
    notes = []
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        notes.append(Note("no-meter"))
    elif len(energies) < len(trials):
        notes.append(Note("energy-missing", {"missing": len(trials) - len(energies), "runs": len(trials)}))
    if len({t.meter for t in trials if t.energy is not None}) > 1:
        notes.append(Note("meters-differ"))
    if not all(q.known for q in energies):
        notes.append(Note("accuracy-unknown"))
    estimated = sum(any(t.estimate for t in c.trials) for c in cells)
    if estimated:
        notes.append(Note("estimates", {"estimated": estimated, "cells": len(cells)}))
    return notes


def _note_warnings(cells: Sequence[Cell]) -> list[Note]:
    """Note the warnings of runs: the number of runs, and their cells."""
    found: dict[str, list[Cell]] = {}
    runs = warned = 0
    for c in cells:
        for t in c.trials:
            names = [name for name in list_doubts(t) if name not in OWN_NOTES]
            runs, warned = runs + 1, warned + bool(names)
            for name in names:
                found.setdefault(name, []).append(c)
    if not found:
        return []
    doubts = []
    for name, where in found.items():
        named = "" if len(where) == runs or len(cells) == 1 else "; ".join(name_cells(where, most=4))
        details = ": ".join(filter(None, (str(len(where)) if len(found) > 1 else "", named)))
        doubts.append(f"{name} ({details})" if details else name)
    return [Note("warnings", {"warned": warned, "runs": runs}, {"doubts": ", ".join(doubts)})]


def _note_unseen(cells: Sequence[Cell], pool: SpreadPool) -> list[Note]:
    def count_energies(cell: Cell) -> int:
        return sum(t.energy is not None for t in cell.trials)

    if not any(has_blind_sensor(c) and not is_hidden_covered(count_energies(c), pool.get_pool(c.key)) for c in cells):
        return []
    return [Note("unseen", {"repeats": ENOUGH_IN_POOL if pool.blind else ENOUGH_REPEATS})]


def _note_data(cells: Sequence[Cell], lines: Sequence[CellLine]) -> list[Note]:
    """Name the data of cells that are compared although they did not work on the same data."""
    by_key = {c.key: c for c in cells}
    doubtful: dict[str, list[Cell]] = {}
    for line in lines:
        keys = dict.fromkeys((*line.cells, *([line.reference] if line.reference else [])))
        members = [by_key[key] for key in keys if by_key[key].trials]
        data = {c.key: escape_unprintable(name_data(c.trials)) or UNKNOWN_DATA for c in members}
        is_mixed = any(len({str(t.facts.get(DATA_FACT, "")) for t in c.trials}) > 1 for c in members)
        if is_mixed or len(set(data.values())) > 1:
            for cell in members:
                among = doubtful.setdefault(data[cell.key], [])
                among += [cell] if cell not in among else []
    if not doubtful:
        return []
    names = tuple(f"{name}: {', '.join(name_cells(where, most=MOST_NAMED))}" for name, where in doubtful.items())
    return [Note("different-data", {"data": len(doubtful)}, {"data": names})]


def note_data_difference(a: str, b: str) -> Note | None:
    """Return the doubt about a comparison of cells that worked on different data, None if it is the same."""
    texts = {"first": a or UNKNOWN_DATA, "second": b or UNKNOWN_DATA}
    return None if a == b else Note("different-data.pair", texts=texts)
