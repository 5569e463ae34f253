"""Say what has to be known beside the figures of a study. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.cell_lines import (
    format_knobs,
    get_group_knobs,
    group_cells,
    is_comparable,
    is_work_different,
    list_common_work,
)
from joulelab.analysis.quality import data_notes
from joulelab.analysis.statistics import FEWEST_TO_MARK as FEWEST
from joulelab.analysis.statistics import OUTLIER_LEVEL as ODD_BY_CHANCE
from joulelab.analysis.statistics import SCATTER_LEVEL
from joulelab.analysis.study_cells import (
    ASSUMED_SPREAD,
    ENOUGH_IN_POOL,
    ENOUGH_REPEATS,
    Note,
    has_blind_sensor,
    is_hidden_covered,
    list_doubts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.statistics import PooledDeviation, SpreadPool
    from joulelab.analysis.study_cells import Cell, Trial

HALF = Note(
    "eds-is-half", "The gain by EDS(2) is by algebra always half of gain minus loss: one piece of evidence, not two."
)
MOST_NAMED = 4
ONLY = "the only cell"  # nothing names it where there is no other
TOLD = ("estimate", "power meter", "cap not enforced")  # doubts of runs that have a note of their own


def notes_of(
    cells: Sequence[Cell],
    lines: Sequence[CellLine],
    ks: Sequence[float],
    pool: SpreadPool,
    samples: Mapping[str, Mapping[str, RepeatSample]],
    per: Sequence[str] = (),
) -> tuple[Note, ...]:
    """Return the notes, those that touch most figures first; `samples` are those of each cell, by figure."""
    trials = [t for c in cells for t in c.trials]
    if not trials and not any(c.moments for c in cells):
        return (Note("no-results", "No cell has a result so far."),)
    said = _missing(cells, lines) + _moments(cells)
    if not trials:
        return tuple(said)
    said += _uncapped(cells, lines) + data_notes(cells, lines) + _repeats(cells, pool) + _odd(cells, samples)
    said += _all_work(cells, lines, per)
    said += _meters(cells, trials) + _doubts(cells) + _hidden(cells, pool)
    return (*said, HALF) if 2.0 in ks and any(t.energy is not None for t in trials) else tuple(said)


def _missing(cells: Sequence[Cell], lines: Sequence[CellLine]) -> list[Note]:
    empty = {c.key for c in cells if not c.trials and not c.moments}
    said = []
    if empty:
        names = _named([c for c in cells if c.key in empty])
        # A run may have succeeded without the phase that is asked for.
        what = "result" if any("phase" in c.knobs for c in cells if c.key in empty) else "run that succeeded"
        text = f"{_count(len(empty), cells)} no {what}: {names}."
        said.append(Note("cells-missing", text, missing=len(empty), cells=len(cells)))
    without = [line for line in lines if line.reference is None or line.reference in empty]
    if without:
        which = ", ".join(line.key for line in without if line.key)
        text = f"The reference has no run{' for ' + which if which else ''}: no gain or loss is given there."
        said.append(Note("reference-missing", text, lines=len(without)))
    return said


def _moments(cells: Sequence[Cell]) -> list[Note]:
    """Say which figures were told by somebody, and how many runs are kept apart."""
    told = sum(bool(c.moments) and not c.trials for c in cells)
    warm = sum(c.warmup for c in cells)
    said = []
    if told:
        text = f"{_count(told, cells)} no runs here: number, mean and deviation are as they were told."
        said.append(Note("no-runs-here", text, told=told, cells=len(cells)))
    if warm:
        text = f"{warm} warm-up {'run is' if warm == 1 else 'runs are'} kept and not counted."
        said.append(Note("warm-up", text, runs=warm))
    return said


def _odd(cells: Sequence[Cell], samples: Mapping[str, Mapping[str, RepeatSample]]) -> list[Note]:
    """Say which repeats do not look like the others of their cell: cells, and runs by their names."""
    found = [(c, odd) for c in cells if (odd := _odd_runs(c, samples[c.key]))]
    if not found:
        return []
    named = [f"{_name(c)} ({', '.join(odd)})" for c, odd in found[:MOST_NAMED]]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    alone = len(found) == 1 and len(found[0][1]) == 1
    kept = "a run that does not look like the others" if alone else "runs that do not look like the others"
    chance = f"by chance one of {1 / ODD_BY_CHANCE:.0f} cells has one by energy, power or time each"
    text = f"Look at {'; '.join(named)}{more}: {kept} of the cell, marked and kept in all figures ({chance})."
    return [Note("odd-runs", text, cells=len(found), runs=sum(len(odd) for _, odd in found))]


def _odd_runs(cell: Cell, samples: Mapping[str, RepeatSample]) -> list[str]:
    measured = [k for k, t in enumerate(cell.trials) if t.energy is not None]
    places = {k for f, s in samples.items() for k in (s.outliers if f == "time" else [measured[m] for m in s.outliers])}
    return [cell.trials[k].run or f"repeat {k + 1}" for k in sorted(places)]


def _uncapped(cells: Sequence[Cell], lines: Sequence[CellLine]) -> list[Note]:
    """Say which cells are not what their knobs say."""
    bad = [c for c in cells if c.uncapped]
    if not bad:
        return []
    first = next(text for t in bad[0].trials for text in t.uncapped)
    runs = sum(bool(t.uncapped) for c in bad for t in c.trials)
    which = f"{runs} {'run' if runs == 1 else 'runs'} of {_named(bad)} ({first})"
    text = f"! The cap was not in force in {which}: these are not what their caps say, and not named best."
    said = [Note("not-capped", text, runs=runs, cells=len(bad))]
    against = [c for c in bad if any(c.key == line.reference for line in lines)]
    if against:
        text = f"! {_named(against)} is what others are compared with: their gains and losses are no better."
        said.append(Note("reference-not-capped", text, cells=len(against)))
    return said


def _repeats(cells: Sequence[Cell], pool: SpreadPool) -> list[Note]:
    counts = [len(c.trials) for c in cells if c.trials]
    single = counts.count(1)
    if single == len(counts):
        text = f"One run each: how much runs differ is not known, nor what a gain or loss is worth; {_assumed()}."
        return [Note("one-run-each", text, cells=single, assumed_share=ASSUMED_SPREAD)]
    said = _pooled(cells, pool)
    if single:
        alone = [c for c in cells if len(c.trials) == 1]
        unknown = [c for c in alone if pool.of(c.key).time is None]
        code, found = "one-run.pooled", "the pooled spread is taken for theirs."
        if unknown:
            code, found = "one-run.unknown", f"how much they differ is not known; {_assumed()}."
        text = f"{_count(single, counts)} one run only: {found}"
        said.append(Note(code, text, single=single, cells=len(counts)))
    apart = [c for c in cells if pool.is_apart(c.key)]
    if apart:
        few = any(len(c.trials) < FEWEST for c in apart)
        text = (
            f"Look at {_named(apart)}: runs there differ significantly more than elsewhere "
            f"(by chance one cell in {1 / SCATTER_LEVEL:.0f} does), so their own spread counts."
        )
        text += f" Fewer than {FEWEST} repeats do not tell whether one of them is odd." if few else ""
        said.append(Note("wide-cells", text, cells=len(apart), few=few))
    return said


def _assumed() -> str:
    return f"cells are compared as if it were ±{ASSUMED_SPREAD:.0%}; repeat them to know"


def _pooled(cells: Sequence[Cell], pool: SpreadPool) -> list[Note]:
    """Say over which cells spreads are pooled."""
    used = {id(p): p for c in cells if c.trials and (p := pool.of(c.key)).time is not None}
    whole = used.pop(id(pool), None)
    own = list(used.values())
    said = []
    if own:
        text = f"How much runs differ is pooled over the cells of each line: {_spreads(own)}."
        said.append(Note("pooled.lines", text, **_spread_numbers(own)))
    if whole is not None:
        of = "all cells, for lines with too few runs" if own else "cells"
        text = f"How much runs differ is pooled over {of}: {_spreads([pool])}."
        said.append(Note("pooled.rest" if own else "pooled.all", text, **_spread_numbers([pool])))
    return said


def _spread_numbers(pools: Sequence[SpreadPool]) -> dict[str, float]:
    """Return the lowest and highest pooled standard deviations, as shares, and degrees of freedom."""
    numbers: dict[str, float] = {}
    for name in ("energy", "time"):
        found = [p for p in (getattr(pool, name) for pool in pools) if p is not None]
        for end, choose in (("low", min), ("high", max)) if found else ():
            numbers[f"{name}_{end}_share"] = choose(p.deviation for p in found)
            numbers[f"{name}_{end}_freedom"] = choose(p.freedom for p in found)
    return numbers


def _spreads(pools: Sequence[SpreadPool]) -> str:
    """Return the pooled standard deviations in words."""
    named: list[tuple[str, list[PooledDeviation]]] = [
        ("energies", [p.energy for p in pools if p.energy is not None]),
        ("times", [p.time for p in pools if p.time is not None]),
    ]
    return ", ".join(
        f"{name} by {_range([p.deviation * 100 for p in of])} % ({_range([p.freedom for p in of])} degrees of freedom)"
        for name, of in named
        if of
    )


def _range(values: Sequence[float]) -> str:
    low, high = (f"{v:.0f}" if v >= 99.5 else f"{v:.2g}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _all_work(cells: Sequence[Cell], lines: Sequence[CellLine], wanted: Sequence[str]) -> list[Note]:
    """Say by what cells are compared: once where it is the same for every workload and phase."""
    said: dict[Note, list[str]] = {}
    of_all = group_cells(cells)
    for of in of_all:
        keys = {c.key for c in of}
        for note in _work(of, [line for line in lines if line.cells[0] in keys], wanted):
            said.setdefault(note, []).append(format_knobs(get_group_knobs(of[0])))
    return [
        n if len(of) == len(of_all) else Note(n.code, f"{', '.join(of)}: {n[0].lower()}{n[1:]}", **n.numbers)
        for n, of in said.items()
    ]


def _work(cells: Sequence[Cell], lines: Sequence[CellLine], wanted: Sequence[str]) -> list[Note]:
    """Say by what cells are compared, and why."""
    factors = list_common_work(cells)
    missing = [kind for kind in wanted if kind not in factors]
    said = []
    if missing:
        said.append(Note("work.lacking", f"Not all runs report {', '.join(missing)}: it is not compared by."))
    if not any(t.work for c in cells for t in c.trials):
        text = "No work was reported: every run is taken to have done the same."
        return [*said, Note("work.none", text)]
    if not is_comparable(cells):
        text = "Not all runs report the same kind of work: cells are compared within their line only."
        return [*said, Note("work.kinds-differ", text)]
    per = lines[0].per
    others = [kind for kind, factor in factors.items() if kind != per and is_work_different(factor)]
    if per is None:
        if others:
            same = next(kind for kind in wanted if kind in factors)
            text = f"{same} is the same in all runs, as it is asked for: they are compared whole, although "
            said.append(Note("work.whole", f"{text}{', '.join(others)} differ."))
        return said
    why = "as is asked for" if per in wanted else "which differ most" if len(factors) > 1 else ""
    told = f"energy and time are compared per unit of {per}, EDP per unit squared"
    more = f" --per {next(k for k in factors if k != per)} compares otherwise." if len(factors) > 1 else ""
    code = "work.asked-for" if per in wanted else "work.differs"
    return [*said, Note(code, f"Amounts of work differ: {told}{', ' + why if why else ''}.{more}")]


def _meters(cells: Sequence[Cell], trials: Sequence[Trial]) -> list[Note]:
    said = []
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        said.append(Note("no-meter", "No power meter was read: only times are compared."))
    elif len(energies) < len(trials):
        missing = len(trials) - len(energies)
        text = f"{missing} of {len(trials)} runs have no energy: the others stand for them."
        said.append(Note("energy-missing", text, missing=missing, runs=len(trials)))
    if len({t.meter for t in trials if t.energy is not None}) > 1:
        text = "Not all runs were measured by the same devices: their gain errors do not cancel."
        said.append(Note("meters-differ", text))
    if not all(q.known for q in energies):
        text = (
            "The meter's accuracy is unknown, so energies have no interval; ratios on one meter have one from repeats."
        )
        said.append(Note("accuracy-unknown", text))
    estimated = sum(any(t.estimate for t in c.trials) for c in cells)
    if estimated:
        every = estimated == sum(bool(c.trials) for c in cells)
        which = "All cells have" if every else _count(estimated, cells)
        text = f"~ {which} energies that are estimates, wholly or in part: load x rated power, not measured."
        said.append(Note("estimates", text, estimated=estimated, cells=len(cells)))
    return said


def _doubts(cells: Sequence[Cell]) -> list[Note]:
    """Say which warnings runs have: how many runs, and of which cells."""
    found: dict[str, list[Cell]] = {}
    runs = warned = 0
    for c in cells:
        for t in c.trials:
            names = [name for name in list_doubts(t) if name not in TOLD]
            runs, warned = runs + 1, warned + bool(names)
            for name in names:
                found.setdefault(name, []).append(c)
    if not found:
        return []
    told = []
    for name, of in found.items():
        which = list({c.key: c for c in of}.values())
        count = f" in {len(of)}" if len(found) > 1 else ""
        told.append(f"{name}{count}" + ("" if len(of) == runs or len(cells) == 1 else f" ({_named(which)})"))
    have = f"{runs} {'run' if runs == 1 else 'runs'} {'has' if warned == 1 else 'have'} a warning"
    text = f"{warned} of {have}: {'; '.join(told)}. See doubts in slots.csv."
    return [Note("warnings", text, warned=warned, runs=runs)]


def _hidden(cells: Sequence[Cell], pool: SpreadPool) -> list[Note]:
    def repeats(cell: Cell) -> int:
        return sum(t.energy is not None for t in cell.trials)

    if not any(has_blind_sensor(c) and not is_hidden_covered(repeats(c), pool.of(c.key)) for c in cells):
        return []
    enough = ENOUGH_IN_POOL if pool.blind else ENOUGH_REPEATS
    text = "The sensors measure a part of the time; a load in exact step with them is not in the intervals: "
    text += f"repeat each cell {enough} times or more, or call joulelab.step() in the training loop."
    return [Note("unseen", text, repeats=enough)]


def _count(some: int, of: Sequence[object]) -> str:
    """Return `1 of 4 cells has`, `2 of 4 cells have`, `1 of 1 cell has`."""
    return f"{some} of {len(of)} {'cell' if len(of) == 1 else 'cells'} {'has' if some == 1 else 'have'}"


def _named(cells: Sequence[Cell]) -> str:
    names = [_name(c) for c in cells[:MOST_NAMED]]
    more = len(cells) - len(names)
    return "; ".join(names) + (f" and {more} more" if more else "")


def _name(cell: Cell) -> str:
    return format_knobs(cell.knobs) or ONLY
