"""Compute the metrics of a study: cells against their reference, the best per goal, Pareto front, scaling. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.cell_comparison import FIGURES, UNITS, CellPair, RepeatSample, compare_cells, make_samples
from joulelab.analysis.cell_lines import (
    ONLY_CELL,
    CellLine,
    fill_axes,
    find_cell_lines,
    format_knobs,
    group_cells,
    is_comparable,
    note_unused_reference,
)
from joulelab.analysis.goals import REACHED, BestCell, Goal, choose_best, compute_eds
from joulelab.analysis.marked_phases import list_figure_kinds, read_quality
from joulelab.analysis.statistics import SpreadPool, compute_deviation
from joulelab.analysis.study_cells import (
    Cell,
    CellMeans,
    Note,
    Trial,
    average_numbers,
    compute_energy_per_work,
    compute_gpu_load,
    compute_idle_energy,
    compute_idle_share,
    compute_means,
    compute_rate,
    divide_energies,
    divide_times,
    join_pools,
    list_doubts,
    list_numbers,
    list_quality_figures,
    name_data,
    pool_by_work,
    pool_cells,
)
from joulelab.analysis.study_notes import list_notes
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import COVERAGE_FACTOR, ONE, Quantity
from joulelab.core.text import finite_or_none, name_one
from joulelab.site.footprint import compute_footprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.site.footprint import Footprint

__all__ = ["Cell", "CellMetrics", "StudySummary", "Trial", "summarise_cells"]
SCHEMA = 1
GPU_KNOB = "gpus"
ROUNDING = 1e-9  # relative margin of a cheap test; pairs near its limit are compared in full
ALL_PAIRS = 8  # up to this length of a line, all pairs of cells are compared; else each with the reference


@dataclass(frozen=True, slots=True)
class CellMetrics:
    """Hold every metric of a cell; None where there is no energy, no run or no reference.

    Energy in J, time in s, EDP in J s, ED2P in J s², per unit of work (squared, cubed) if the line compares per work;
    gains and losses are shares of one. `compared` are energy and time as they are compared. `told` is the number of
    repeats of a cell that has only moments. `quality` are means of the workload's figures of quality, `gpu_load` is the
    mean load of the GPUs that worked (share of one).
    """

    key: str
    knobs: Mapping[str, Any]
    line: str
    trials: tuple[Trial, ...] = ()
    energy: Quantity | None = None
    time: Quantity | None = None
    mean_w: Quantity | None = None
    energy_deviation: float | None = None
    time_deviation: float | None = None
    compared: CellMeans | None = None
    gain: Quantity | None = None
    loss: Quantity | None = None
    gain_minus_loss: Quantity | None = None
    edp: Quantity | None = None
    edp_gain: Quantity | None = None
    ed2p: Quantity | None = None
    ed2p_gain: Quantity | None = None
    eds: Mapping[float, Quantity] = field(default_factory=dict)
    eds_gain: Mapping[float, Quantity] = field(default_factory=dict)
    per_work: Mapping[str, Quantity] = field(default_factory=dict)
    rate: Mapping[str, Quantity] = field(default_factory=dict)
    idle_energy_share: Quantity | None = None
    idle_energy: Quantity | None = None
    told: int = 0
    quality: Mapping[str, Quantity] = field(default_factory=dict)
    gpu_load: Quantity | None = None

    @property
    def footprint(self) -> Footprint | None:
        """Return kWh, cost and CO2e of the energy; None without an energy, or if the repeats have no site in common."""
        sites = {trial.site for trial in self.trials}
        site = sites.pop() if len(sites) == 1 else None
        return None if self.energy is None or site is None else compute_footprint(self.energy, site)

    @property
    def data(self) -> str:
        """Return the data that the runs worked on, empty if the runs do not report it."""
        return name_data(self.trials)

    @property
    def n(self) -> int:
        """Return the number of repeats: of the trials, or as published if there are no trials."""
        return len(self.trials) or self.told

    @property
    def estimate(self) -> bool:
        """Return whether the energy of the cell is an estimate, wholly or in part."""
        return any(t.estimate for t in self.trials)

    @property
    def uncapped(self) -> int:
        """Return the number of runs in which a cap was not in force, so that the knobs do not describe these runs."""
        return sum(bool(t.uncapped) for t in self.trials)

    @property
    def doubts(self) -> dict[str, int]:
        """Return the names of the runs' doubts, each with its number of runs."""
        return dict(Counter(name for t in self.trials for name in list_doubts(t)))


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Hold the Pareto front of a line (None: of all), by time; `unsure` cells may be on it, given the uncertainty."""

    line: str | None
    cells: tuple[str, ...]
    unsure: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Hold speed-up, efficiency (speed-up per added GPU) and energy of one GPU count against the fewest GPUs."""

    cell: str
    gpus: float
    speedup: Quantity
    efficiency: Quantity
    energy_ratio: Quantity | None


@dataclass(frozen=True, slots=True)
class Scaling:
    """Hold cells that differ only in the number of GPUs; the first point is the reference of the others."""

    key: str
    knobs: Mapping[str, Any]
    points: tuple[ScalingPoint, ...]


@dataclass(frozen=True, slots=True)
class StudySummary:
    """Hold all figures of a study. `reference` is the cell that all lines together are compared with.

    `statistics` are energy, power and time of each cell by key, of whole runs and without pooling; `pairs` compare two
    cells each, per unit of work where the line does.
    """

    cells: tuple[CellMetrics, ...]
    lines: tuple[CellLine, ...]
    goals: tuple[Goal, ...]
    ks: tuple[float, ...]
    best: tuple[BestCell, ...]
    fronts: tuple[ParetoFront, ...]
    scaling: tuple[Scaling, ...]
    notes: tuple[Note, ...]
    reference: str | None = None
    statistics: Mapping[str, Mapping[str, RepeatSample]] = field(default_factory=dict)
    pairs: tuple[CellPair, ...] = ()
    by_key: Mapping[str, CellMetrics] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_key", {c.key: c for c in self.cells})

    def cell(self, key: str) -> CellMetrics:
        """Return a cell by its key. Raises KeyError."""
        return self.by_key[key]

    def list_line_cells(self, line: CellLine) -> tuple[CellMetrics, ...]:
        """Return the cells of a line, in its order."""
        return tuple(self.by_key[key] for key in line.cells)

    def list_choosable(self, line: CellLine) -> dict[str, CellMeans]:
        """Return the cells of a line that may be the best: those whose caps were in force."""
        return {c.key: c.compared for c in self.list_line_cells(line) if c.compared is not None and not c.uncapped}

    def best_for(self, goal: Goal, line: str | None = None) -> BestCell | None:
        """Return the best cell of a line, or of all lines, for a goal; None if no cell has a score."""
        if line is None and len(self.lines) == 1:
            line = self.lines[0].key
        return next((b for b in self.best if b.goal == goal and b.line == line), None)

    def front_for(self, line: str | None = None) -> ParetoFront | None:
        """Return the Pareto front of a line, or of all lines together."""
        if line is None and len(self.lines) == 1:
            line = self.lines[0].key
        return next((f for f in self.fronts if f.line == line), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, quantities as value, expanded uncertainty and budget."""
        plain: dict[str, Any] = _make_plain(self)
        return {"schema": SCHEMA} | plain


def summarise_cells(
    cells: Sequence[Cell],
    *,
    goals: Sequence[Goal] = (),
    reference: Mapping[str, Any] | None = None,
    ks: Sequence[float] = (1.5, 2.0),
    per: Sequence[str] = (),
) -> StudySummary:
    """Compute all metrics of a study. Raises ConfigError if the reference matches no cell.

    `per` names kinds of work to compare by; the first that all runs report is used.
    """
    cells = fill_axes(cells)
    lines = find_cell_lines(cells, reference, per)
    by_key = {c.key: c for c in cells}
    line_of = {key: line for line in lines for key in line.cells}
    every_k = tuple(sorted({*ks, *(g.k for g in goals if g.k is not None)}))
    pools = _StudyPools.pool_lines(cells, lines)
    compared = {
        k: m for k, line in line_of.items() if (m := compute_means(by_key[k], line.per, pools.compared)) is not None
    }
    limited = tuple(dict.fromkeys(limit.name for g in goals for limit in g.quality))
    metrics = tuple(_compute_metrics(c, line_of[c.key], compared, every_k, pools, limited) for c in cells)
    judged, overall = _list_choices(cells, lines, compared)
    quality = {m.key: m.quality for m in metrics}
    divided = {g: compared if g.work is None else _divide_by_goal(g, cells) for g in goals}
    best = [
        choose_best(g, key, {k: divided[g][k] for k in of if k in divided[g]}, divided[g].get(ref or ""), quality)
        for g in goals
        for key, ref, of in judged
    ]
    samples = {c.key: make_samples(c) for c in cells}
    notes = list_notes(cells, lines, every_k, pools.compared, samples, per)
    return StudySummary(
        cells=metrics,
        lines=tuple(lines),
        goals=tuple(goals),
        ks=every_k,
        best=tuple(b for b in best if b is not None),
        fronts=tuple(find_front(key, of) for key, _, of in judged if of),
        scaling=tuple(s for of in group_cells(cells) if is_comparable(of) for s in find_scaling(of, compared)),
        notes=(
            *_note_qualities(metrics, lines, goals, [b for b in best if b is not None]),
            *(Note("work.lacking", texts={"kinds": (g.work,)}) for g in goals if g.work and not divided[g] and metrics),
            *notes,
            *note_unused_reference(cells, reference),
        ),
        reference=overall,
        statistics=samples,
        pairs=_compare_pairs(by_key, lines, samples),
    )


def _divide_by_goal(goal: Goal, cells: Sequence[Cell]) -> dict[str, CellMeans]:
    """Return the means per unit of the goal's kind of work, of the cells whose runs all report it."""
    kind = goal.work or ""
    amounts = {c.key: [goal.find_work(t.work) for t in c.trials] for c in cells}
    counted = []
    for c in (c for c in cells if c.trials and all(amounts[c.key])):
        pairs = zip(c.trials, amounts[c.key], strict=True)
        counted.append(replace(c, trials=tuple(replace(t, work={kind: amount or 0.0}) for t, amount in pairs)))
    pool = pool_cells((c, kind) for c in counted)
    return {c.key: means for c in counted if (means := compute_means(c, kind, pool)) is not None}


def _list_choices(
    cells: Sequence[Cell], lines: Sequence[CellLine], compared: Mapping[str, CellMeans]
) -> tuple[list[tuple[str | None, str | None, dict[str, CellMeans]]], str | None]:
    """Return the sets of cells to choose the best from: each line, and all lines together, each with its reference."""
    uncapped = {c.key for c in cells if c.uncapped}
    fit = {k: m for k, m in compared.items() if k not in uncapped}
    judged: list[tuple[str | None, str | None, dict[str, CellMeans]]] = [
        (line.key, line.reference, {k: fit[k] for k in line.cells if k in fit}) for line in lines
    ]
    if len(lines) == 1 or len(group_cells(cells)) != 1 or not is_comparable(cells):
        return judged, None
    overall = _find_fastest(lines, compared)
    return [*judged, (None, overall, fit)], overall


def _note_qualities(
    cells: Sequence[CellMetrics], lines: Sequence[CellLine], goals: Sequence[Goal], best: Sequence[BestCell]
) -> list[Note]:
    """Note the cells that miss the quality of a goal, lines in which all do, and qualities that no run reports."""
    done = [c for c in cells if c.trials]
    facts = [list_numbers(t.facts) | read_quality(t.facts) for c in done for t in c.trials]
    reported = tuple(dict.fromkeys(name for each in facts for name in each))
    chosen = {(b.goal, b.line) for b in best}
    notes = []
    for goal in (g for g in goals if g.quality and done):
        unknown = tuple(limit.name for limit in goal.quality if limit.name not in reported)
        if unknown:
            texts: dict[str, str | tuple[str, ...]] = {"goal": goal.text, "quality": unknown}
            notes.append(Note("quality-unreported", texts=texts | ({"names": reported} if reported else {})))
            continue
        verdicts = {c.key: goal.judge_quality(c.quality) for c in done}
        missed = [verdict for verdict in verdicts.values() if verdict not in (*REACHED, "unknown")]
        if unjudged := [c for c in done if verdicts[c.key] == "unknown"]:
            names = tuple(format_knobs(c.knobs) or ONLY_CELL for c in unjudged)
            lacking = tuple(limit.name for limit in goal.quality)
            texts = {"goal": goal.text, "quality": lacking, "names": names}
            notes.append(Note("quality-unknown", {"unknown": len(unjudged), "cells": len(verdicts)}, texts))
        unsure = [c for c in done if verdicts[c.key] == "possibly not" and c.n > 1]  # one run has no interval
        counts = {"missed": len(missed), "cells": len(verdicts), "unsure": len(unsure)}
        without = [
            line
            for line in lines
            if (goal, line.key) not in chosen
            and (of := [verdicts[k] for k in line.cells if k in verdicts])
            and (goal.slowdown is not None or not any(verdict in REACHED for verdict in of))
        ]
        numbers = {name: count for name, count in counts.items() if count}
        named = tuple(line.key for line in without if line.key)
        if without:
            texts = {"goal": goal.text}
            notes.append(Note("quality-missed.all", numbers, texts | ({"names": named} if named else {})))
        elif missed:
            notes.append(Note("quality-missed", numbers, {"goal": goal.text}))
    return notes


def refuse_unreported_quality(summary: StudySummary) -> None:
    """Raise ConfigError if a goal has the limit of a quality that no run reports as a number."""
    for texts in (note.texts for note in summary.notes if note.code == "quality-unreported"):
        quality, names = (each if isinstance(each := texts.get(key), tuple) else () for key in ("quality", "names"))
        raise ConfigError(
            f"no run reports {' and '.join(quality)} as a number",
            where=f"goal {texts['goal']}",
            why=f"the runs report {', '.join(names) or 'no number'}",
            next="name one of these in the goal" if names else "report it: joulelab.fact(accuracy=0.98)",
            code="config.goal-quality",
        )


def _compare_pairs(
    cells: Mapping[str, Cell], lines: Sequence[CellLine], whole: Mapping[str, dict[str, RepeatSample]]
) -> tuple[CellPair, ...]:
    """Compare each cell with the reference of its line, and all pairs of cells in short lines."""
    wanted: dict[tuple[str, str], None] = {}
    samples: dict[str, dict[str, RepeatSample]] = {}
    per = {key: line.per for line in lines for key in line.cells}
    for line in lines:
        samples |= {k: make_samples(cells[k], line.per) if line.per else whole[k] for k in line.cells}
        if line.reference is not None:
            wanted |= dict.fromkeys((key, line.reference) for key in line.cells if key != line.reference)
        if len(line.cells) <= ALL_PAIRS:
            both = [(b, a) for k, b in enumerate(line.cells) for a in line.cells[:k]]
            wanted |= dict.fromkeys((b, a) for b, a in both if (a, b) not in wanted)
    found: list[CellPair] = []
    for figure in FIGURES:
        of = {key: each[figure] for key, each in samples.items() if figure in each}
        both_known = [pair for pair in wanted if pair[0] in of and pair[1] in of]
        found += [_set_unit(pair, per[pair.cell]) for pair in compare_cells(of, both_known, figure)]
    return tuple(found)


def _set_unit(pair: CellPair, per: str | None) -> CellPair:
    unit = UNITS[pair.figure]
    if per is None or pair.figure == "power":  # power does not depend on the amount of work
        return replace(pair, unit=unit)
    return replace(pair, unit=f"{unit}/{name_one(per)}", per=per)


@dataclass(frozen=True, slots=True)
class _StudyPools:
    """Hold the spread between runs: of whole runs, of compared figures, and per unit of each kind of work."""

    whole: SpreadPool
    compared: SpreadPool
    work: Mapping[str, SpreadPool]

    @classmethod
    def pool_lines(cls, cells: Sequence[Cell], lines: Sequence[CellLine]) -> _StudyPools:
        """Pool each line by itself if it has enough runs, else all lines of a workload and phase."""
        per = {key: line.per for line in lines for key in line.cells}
        found = []
        for of in group_cells(cells):
            names = {c.key for c in of}
            keys = [line.cells for line in lines if line.cells[0] in names]
            whole = pool_cells(((c, None) for c in of), keys)
            compared = pool_cells(((c, per[c.key]) for c in of), keys)
            found.append((names, cls(whole, compared, pool_by_work(of, keys))))
        kinds = dict.fromkeys(kind for _, pools in found for kind in pools.work)
        return cls(
            join_pools([(names, pools.whole) for names, pools in found]),
            join_pools([(names, pools.compared) for names, pools in found]),
            {k: join_pools([(names, p.work[k]) for names, p in found if k in p.work]) for k in kinds},
        )


def _compute_metrics(
    cell: Cell,
    line: CellLine,
    compared: Mapping[str, CellMeans],
    ks: Sequence[float],
    pools: _StudyPools,
    limited: Sequence[str] = (),
) -> CellMetrics:
    whole, own = compute_means(cell, pool=pools.whole), compared.get(cell.key)
    repeats = max((s.n for s in cell.moments.values()), default=0)
    if whole is None or own is None:
        return CellMetrics(cell.key, cell.knobs, line.key, told=repeats)
    energies = [t.energy.value for t in cell.trials if t.energy is not None]
    kinds = list_figure_kinds(kind for t in cell.trials for kind in t.work)
    edp = None if own.energy is None else own.energy * own.time
    reference = compared.get(line.reference or "")
    return CellMetrics(
        key=cell.key,
        knobs=cell.knobs,
        line=line.key,
        trials=cell.trials,
        energy=whole.energy,
        time=whole.time,
        mean_w=_compute_power(whole),
        energy_deviation=compute_deviation(energies),
        time_deviation=compute_deviation([t.time_s for t in cell.trials]),
        compared=own,
        edp=edp,
        ed2p=None if edp is None else edp * own.time,
        per_work={
            kind: q for kind in kinds if (q := compute_energy_per_work(cell, kind, pools.work[kind])) is not None
        },
        rate={kind: q for kind in kinds if (q := compute_rate(cell, kind, pools.work[kind])) is not None},
        idle_energy_share=compute_idle_share(cell),
        idle_energy=compute_idle_energy(cell),
        told=repeats,
        gpu_load=compute_gpu_load(cell),
        quality={
            name: average_numbers(values, f"repeats:{name}@{cell.key}")
            for name, values in list_quality_figures(cell.trials, limited).items()
        },
        **({} if reference is None else _compare_reference(own, reference, ks)),
    )


def _compute_power(of: CellMeans) -> Quantity | None:
    if of.energy is None or of.time.value <= 0:
        return None
    # The time of a single run is exact (its spread is unknown): its mean power is as uncertain as its energy.
    return of.energy / of.time if of.time.known else of.energy * (1 / of.time.value)


def _compare_reference(own: CellMeans, reference: CellMeans, ks: Sequence[float]) -> dict[str, Any]:
    """Return the metrics that compare a cell with its reference."""
    energy, time = divide_energies(own, reference), divide_times(own, reference)
    if time is None:
        return {}
    found: dict[str, Any] = {"loss": time - ONE}
    if energy is None:
        return found
    edp = energy * time
    sums = {k: compute_eds(energy, time, k) for k in ks}
    return found | {
        "gain": ONE - energy,
        "gain_minus_loss": ONE + ONE - energy - time,
        "edp_gain": ONE - edp,
        "ed2p_gain": ONE - edp * time,
        "eds": sums,
        "eds_gain": {k: ONE - q for k, q in sums.items()},
    }


def _find_fastest(lines: Sequence[CellLine], compared: Mapping[str, CellMeans]) -> str | None:
    """Return the fastest reference of all lines: the cell to run if energy did not matter."""
    references = [line.reference for line in lines if line.reference in compared]
    return min(references, key=lambda key: compared[key or ""].time.value, default=None)


def find_front(line: str | None, cells: Mapping[str, CellMeans]) -> ParetoFront:
    """Return the cells on the Pareto front of time and energy, and cells that may be on it, given the uncertainty."""
    points = {k: (m.time.value, m.energy.value) for k, m in cells.items() if m.energy is not None}
    judged = {k: cells[k].assume_spread(k) for k in points}
    keys, place = list(points), np.array(list(points.values())).reshape(-1, 2)
    front, unsure = [], []
    for k, own in zip(keys, place, strict=True):
        better = np.flatnonzero((place <= own).all(axis=1) & (place != own).any(axis=1))
        if better.size == 0:
            front.append(k)
            continue
        # Begin with the cell whose smaller advantage is largest: if any is surely better, mostly this one is.
        shares = np.divide(place[better], own, out=np.ones((better.size, 2)), where=own > 0)
        ranked = better[np.argsort(shares.max(axis=1), kind="stable")]
        if not any(_is_surely_better(judged[keys[d]], judged[k]) for d in ranked):
            unsure.append(k)
    return ParetoFront(line, tuple(sorted(front, key=lambda k: points[k])), tuple(unsure))


def _is_surely_better(a: CellMeans, b: CellMeans) -> bool:
    """Return whether a is better than b in time and in energy, in both by more than the uncertainty."""
    if a.energy is None or b.energy is None or not (_is_below(a.time, b.time) and _is_below(a.energy, b.energy)):
        return False
    ratios = divide_times(a, b), divide_energies(a, b)
    return all(r is not None and (ONE - r).is_positive for r in ratios)


def _is_below(a: Quantity, b: Quantity) -> bool:
    """Return whether a is below b by about the uncertainty of their ratio: a quick test that decides most pairs."""
    if a.value >= b.value:
        return False
    share = a.value / b.value
    mine, other = a.terms, b.terms
    squares = sum((u - share * other.get(source, 0.0)) ** 2 for source, u in mine.items())
    squares += sum((share * u) ** 2 for source, u in other.items() if source not in mine)
    return (b.value - a.value) * (1 + ROUNDING) > COVERAGE_FACTOR * math.sqrt(squares)


def find_scaling(cells: Sequence[Cell], means: Mapping[str, CellMeans]) -> list[Scaling]:
    """Return the scaling for each set of the other knobs that was run with at least two GPU counts."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.key in means and isinstance(cell.knobs.get(GPU_KNOB), (int, float)):
            groups.setdefault(format_knobs(_list_other_knobs(cell)), []).append(cell)
    found = []
    for key, members in groups.items():
        points = _make_points(sorted(members, key=lambda c: float(c.knobs[GPU_KNOB])), means)
        if len(points) > 1:
            found.append(Scaling(key, _list_other_knobs(members[0]), tuple(points)))
    return found


def _make_points(members: Sequence[Cell], means: Mapping[str, CellMeans]) -> list[ScalingPoint]:
    first = members[0]
    base, fewest = means[first.key], float(first.knobs[GPU_KNOB])
    points = []
    for cell in members:
        count, own = float(cell.knobs[GPU_KNOB]), means[cell.key]
        speedup = divide_times(base, own)
        if speedup is not None and count > 0 and fewest > 0:
            efficiency = speedup * (fewest / count)
            points.append(ScalingPoint(cell.key, count, speedup, efficiency, divide_energies(own, base)))
    return points


def _list_other_knobs(cell: Cell) -> dict[str, Any]:
    return {name: value for name, value in cell.knobs.items() if name != GPU_KNOB}


def _make_plain(value: Any) -> Any:
    if isinstance(value, Goal):
        return value.text
    if isinstance(value, (Quantity, RepeatSample)):
        return _make_plain(value.to_json())
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, Mapping):
        return {f"{k:g}" if isinstance(k, float) else str(k): _make_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [_make_plain(v) for v in value]
    if isinstance(value, CellMetrics):
        computed = {"n": value.n, "data": value.data, "uncapped": value.uncapped, "doubts": value.doubts}
        computed["footprint"] = value.footprint and _make_plain(value.footprint.to_json())
        return computed | {k: _make_plain(getattr(value, k)) for k in value.__dataclass_fields__}
    if hasattr(value, "__dataclass_fields__"):
        return {k: _make_plain(getattr(value, k)) for k, each in value.__dataclass_fields__.items() if each.repr}
    return value
