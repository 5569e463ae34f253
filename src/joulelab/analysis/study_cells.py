"""Hold the repeats of a cell and give their means, each with what the meters and the repeats say of it. Pure.

Gain and offset belong to the meter: the same in every run, so they stay in the mean and cancel between cells.
What a lag or a blind sensor may hide is the same in all repeats of a cell. All else is the run's own and shrinks with
their number, unless the repeats spread more than that: then their spread counts, pooled over cells where it can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.statistics import (
    NO_POOL,
    PooledDeviation,
    SpreadPool,
    compute_correlation,
    compute_mean,
    compute_type_a,
    measure_scatter,
    pool_scatters,
)
from joulelab.core.quantity import COVERAGE_FACTOR, IN_STEP, ONE, Quantity, total

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.result import Fact
    from joulelab.analysis.statistics import RepeatScatter

SHARED_SOURCES = ("gain:", "offset:")
LASTING_SOURCES = ("lag:", IN_STEP)
ENOUGH_REPEATS = 3  # so many repeats begin at phases of the sensor of their own: their spread tells what it cannot see
ENOUGH_IN_POOL = 2  # so many do where the repeats of other cells tell what spread is usual
ASSUMED_SPREAD = 0.05  # so far (k = 2) a single run is taken to be off where nothing tells how much runs differ


class Note(str):
    """Hold a sentence that has to be known beside the figures of a study, its stable code, and its numbers."""

    __slots__ = ("code", "numbers")

    def __new__(cls, code: str, text: str, **numbers: float) -> Note:
        """Make a note; `numbers` are those of the text, in SI units."""
        note = super().__new__(cls, text)
        note.code, note.numbers = code, numbers
        return note

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """Return what a copy is made from."""
        return self.code, str(self)

    code: str
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """Hold one run that succeeded: energy (J; None without a meter), time, work done.

    `idle_energy_share` is the share of the GPUs' energy that went to GPUs that did nothing. `meter` names the devices
    that measured it: gains cancel only between trials where it is the same. `estimate` tells that the energy was not
    measured, wholly or in part: load x rated power. `doubts` are the run's own, as `name: message`; `uncapped` are
    those by which a cap was not in force. `used` and `idle` name the devices that did something and those that did
    not; `idle_energy` is what the latter took (J). `facts` are what the workload told of itself.
    """

    energy: Quantity | None
    time_s: float
    work: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    idle_energy_share: float | None = None
    meter: str = ""
    estimate: bool = False
    doubts: tuple[str, ...] = ()
    uncapped: tuple[str, ...] = ()
    idle_energy: Quantity | None = None
    used: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """Hold one combination of knobs (`cap` and `cpu_cap` in W, `clock` in Hz, others) and the trials that succeeded.

    `moments` are what is known of a cell without its trials, as a paper prints it: `energy` (J), `power` (W), `time`
    (s), each by number, mean and deviation. `warmup` counts the runs that are kept and not among the trials.
    """

    key: str
    knobs: Mapping[str, Any]
    trials: tuple[Trial, ...] = ()
    moments: Mapping[str, RepeatSample] = field(default_factory=dict)
    warmup: int = 0

    @property
    def uncapped(self) -> bool:
        """Return whether a cap was not in force in one of its runs: they are not what the knobs say."""
        return any(t.uncapped for t in self.trials)


@dataclass(frozen=True, slots=True)
class CellMeans:
    """Hold the means of a cell: energy (J) and time (s), or both per unit of work, and by what it was measured.

    `spread` tells that it is known how much such energies differ by themselves. Where it is not known how much times
    do, that of the time is unknown.
    """

    energy: Quantity | None
    time: Quantity
    spread: bool = False
    meters: frozenset[str] = frozenset()

    def judged(self, key: str) -> CellMeans:
        """Return what cells are told apart by: a single run is taken to be off by ASSUMED where no spread is known."""
        energy, time, source = self.energy, self.time, f"assumed:run@{key}"
        if not time.known:
            time = Quantity(time.value, {source: ASSUMED_SPREAD / COVERAGE_FACTOR * time.value})
        if energy is not None and not self.spread:
            off = ASSUMED_SPREAD / COVERAGE_FACTOR * energy.value
            energy = replace(energy, terms={**energy.terms, source: off})
        return replace(self, energy=energy, time=time, spread=self.spread or (energy is not None and energy.known))


def compute_means(cell: Cell, per: str | None = None, pool: SpreadPool = NO_POOL) -> CellMeans | None:
    """Return mean energy and time of a cell, per unit of a kind of work where named; None without trials or moments."""
    trials = divide_trials(cell, per)
    if not trials:
        return None if per is not None else _read_moments(cell)  # moments tell no work
    measured = [t for t in trials if t.energy is not None]
    held = pool.of(cell.key)
    time = average_numbers([t.time_s for t in trials], f"repeats:time@{cell.key}", held.time)
    spread = len(measured) >= 2 or held.energy is not None
    return CellMeans(_average_energy(measured, cell.key, held), time, spread, frozenset(t.meter for t in measured))


def pool_cells(cells: Iterable[tuple[Cell, str | None]], lines: Iterable[Collection[str]] = ()) -> SpreadPool:
    """Return how much runs differ, pooled over cells, each with the kind of work it is divided by.

    `lines` are the keys of cells that are pooled by themselves if there are runs enough.
    """
    scatters: dict[str, RepeatScatter] = {}
    blind = set()
    for cell, per in cells:
        trials = [_divide_trial(t, per) for t in cell.trials]
        scatters[cell.key] = measure_scatter([(t.energy.value if t.energy else None, t.time_s) for t in trials])
        if has_blind_sensor(cell):
            blind.add(cell.key)
    within = [[key for key in line if key in scatters] for line in lines]
    return pool_scatters(scatters, blind, [line for line in within if line])


def pool_by_work(cells: Sequence[Cell], lines: Sequence[Collection[str]] = ()) -> dict[str, SpreadPool]:
    """Return a pool for each kind of work, of the cells whose every trial reports it."""
    kinds = dict.fromkeys(kind for c in cells for t in c.trials for kind in t.work)
    done = {kind: [c for c in cells if all(t.work.get(kind, 0.0) > 0 for t in c.trials)] for kind in kinds}
    return {kind: pool_cells(((c, kind) for c in of), lines) for kind, of in done.items()}


def has_blind_sensor(cell: Cell) -> bool:
    """Return whether the sensors may have missed something in a run of the cell."""
    energies = [t.energy for t in cell.trials if t.energy is not None]
    return any(q.bounds or any(s.startswith(IN_STEP) for s in q.terms) for q in energies)


def list_doubts(trial: Trial) -> list[str]:
    """Return the names of a run's doubts, each once."""
    return list(dict.fromkeys(doubt.partition(": ")[0] for doubt in trial.doubts))


def is_hidden_covered(repeats: int, pool: SpreadPool) -> bool:
    """Return whether a spread stands for what the sensors may have missed, by repeats with an energy."""
    return repeats >= (ENOUGH_IN_POOL if pool.blind else ENOUGH_REPEATS)


def divide_energies(a: CellMeans, b: CellMeans) -> Quantity | None:
    """Return the energy of a over that of b, None where one has none.

    Where nobody states the meter's accuracy, what it gets wrong in both still cancels, and repeats tell the rest. Where
    nothing tells how much runs differ, the ratio of two is unknown.
    """
    if a.energy is None or b.energy is None or a.energy.value <= 0 or b.energy.value <= 0:
        return None
    if a is b:
        return ONE
    ratio, spread = a.energy / b.energy, a.spread and b.spread
    return replace(ratio, known=spread and (ratio.known or len(a.meters | b.meters) == 1))


def divide_times(a: CellMeans, b: CellMeans) -> Quantity | None:
    """Return the time of a over that of b, None where one took none."""
    if a.time.value <= 0 or b.time.value <= 0:
        return None
    return ONE if a is b else a.time / b.time


def average_numbers(values: Sequence[float], source: str, pooled: PooledDeviation | None = None) -> Quantity:
    """Return the mean of plain numbers with the uncertainty that their spread gives, or a pooled one.

    That of one number alone is unknown.
    """
    spread = compute_type_a(values, pooled)
    return Quantity(
        compute_mean(values), {source: spread} if spread else {}, known=len(values) > 1 or pooled is not None
    )


def average_lasting(cell: Cell) -> Quantity:
    """Return the mean energy with those terms of its meters that repeating does not make smaller.

    Raises ValueError where no trial has an energy.
    """
    trials = [t for t in cell.trials if t.energy is not None]
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        raise ValueError(f"{cell.key} has no energy")
    return _average_meters(energies, trials, cell.key, hidden=not is_hidden_covered(len(energies), NO_POOL))[0]


def divide_trials(cell: Cell, kind: str | None) -> list[Trial]:
    """Return the trials of a cell with energy and time per unit of a kind of work, as they are where None."""
    return [_divide_trial(t, kind) for t in cell.trials]


def compute_energy_per_work(cell: Cell, kind: str, pool: SpreadPool = NO_POOL) -> Quantity | None:
    """Return joules per unit of a kind of work, None unless every trial has both."""
    done = [_divide_trial(t, kind) for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.energy is not None]
    return _average_energy(done, cell.key, pool.of(cell.key)) if done and len(done) == len(cell.trials) else None


def compute_rate(cell: Cell, kind: str, pool: SpreadPool = NO_POOL) -> Quantity | None:
    """Return units of work per second, None unless every trial reports it; it scatters as the time per unit does."""
    rates = [t.work[kind] / t.time_s for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.time_s > 0]
    if not rates or len(rates) < len(cell.trials):
        return None
    return average_numbers(rates, f"repeats:rate@{cell.key}", pool.of(cell.key).time)


def compute_idle_share(cell: Cell) -> Quantity | None:
    """Return the mean share of the GPUs' energy that went to idle ones, None where it was not worked out."""
    shares = [t.idle_energy_share for t in cell.trials if t.idle_energy_share is not None]
    return average_numbers(shares, f"repeats:idle@{cell.key}") if shares else None


def compute_idle_energy(cell: Cell) -> Quantity | None:
    """Return the mean energy of devices that did nothing (J), None where it was not worked out."""
    known = [replace(t, energy=t.idle_energy) for t in cell.trials if t.idle_energy is not None]
    return _average_energy(known, f"{cell.key} idle", NO_POOL)


def join_pools(pools: Sequence[tuple[Collection[str], SpreadPool]]) -> SpreadPool:
    """Return one pool in which the cells of each have their own: workloads are not pooled with others."""
    if len(pools) == 1:
        return pools[0][1]
    return SpreadPool(
        apart=frozenset(key for _, pool in pools for key in pool.apart),
        blind=any(pool.blind for _, pool in pools),
        lines={key: pool.lines.get(key, pool) for keys, pool in pools for key in keys},
        alone=frozenset(key for _, pool in pools for key in pool.alone),
    )


def _read_moments(cell: Cell) -> CellMeans | None:
    """Return the means of a cell of which no more is known than moments; None without a time."""
    energy, time = cell.moments.get("energy"), cell.moments.get("time")
    if time is None:
        return None
    return CellMeans(
        None
        if energy is None
        else _make_quantity(energy, f"repeats:energy@{cell.key}", known=energy.meter is not None),
        _make_quantity(time, f"repeats:time@{cell.key}", known=time.half_width is not None),
        energy is not None and energy.half_width is not None,
        frozenset() if energy is None else energy.devices or frozenset({""}),
    )


def _make_quantity(sample: RepeatSample, source: str, *, known: bool) -> Quantity:
    half = sample.half_width
    terms = {} if half is None else {source: half / COVERAGE_FACTOR}
    terms |= {name: u * sample.mean for name, u in sample.terms.items()}
    return Quantity(sample.mean, terms, known)


def _divide_trial(trial: Trial, kind: str | None) -> Trial:
    if kind is None:
        return trial
    share = 1 / trial.work[kind]
    energy = None if trial.energy is None else trial.energy * share
    return replace(trial, energy=energy, time_s=trial.time_s * share)


def _average_energy(trials: Sequence[Trial], tag: str, pool: SpreadPool) -> Quantity | None:
    """Return the mean energy: what goes with time by the source of the mean time, the rest by its own."""
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        return None
    whole, own = _average_meters(energies, trials, tag, hidden=not is_hidden_covered(len(energies), pool))
    values = [q.value for q in energies]
    u_own, u_spread = math.hypot(*own.values()), compute_type_a(values, pool.energy)
    together = compute_correlation(values, [t.time_s for t in trials]) if pool.energy is None else pool.correlation
    with_time = together * u_spread
    rest = math.sqrt(max(max(u_own, u_spread) ** 2 - with_time**2, 0.0))
    terms = dict(whole.terms)
    if u_spread > u_own:
        terms[f"repeats:energy@{tag}"] = rest
    elif u_own > 0:
        terms |= {s: u * rest / u_own for s, u in own.items()}
    if with_time:
        terms[f"repeats:time@{tag}"] = with_time
    return Quantity(whole.value, terms, whole.known, whole.bounds)


def _average_meters(
    energies: Sequence[Quantity], trials: Sequence[Trial], tag: str, *, hidden: bool
) -> tuple[Quantity, dict[str, float]]:
    """Return the mean with the terms that repeating does not make smaller, and each run's own terms apart."""
    n = len(energies)
    parts: list[Quantity] = []
    own: dict[str, float] = {}
    for k, (energy, trial) in enumerate(zip(energies, trials, strict=True)):
        lasting: dict[str, float] = {}
        for source, u in energy.terms.items():
            if source.startswith(SHARED_SOURCES):
                lasting[f"{source}@{trial.meter}" if trial.meter else source] = u / n
            elif not source.startswith(LASTING_SOURCES):
                own[f"{source}@{tag}#{k}"] = u / n
            elif hidden or not source.startswith(IN_STEP):
                lasting[f"{source}@{tag}"] = u / n
        bounds = {f"{source}@{tag}": u / n for source, u in energy.bounds.items()} if hidden else {}
        parts.append(Quantity(energy.value / n, lasting, energy.known, bounds))
    return total(parts), own
