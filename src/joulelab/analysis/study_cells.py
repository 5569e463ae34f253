"""Compute the means of a cell's repeats, with the uncertainty of the meters and of the repeats. Pure.

Gain and offset belong to the meter: they are the same in every run, stay in the mean and cancel between cells.
The errors of a lag or of a partial sensor are the same in all repeats of a cell. All other terms belong to one run and
shrink with the number of repeats. Where the repeats spread more than that, their spread counts, pooled over cells.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.marked_phases import DATA_FACT, read_quality
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
from joulelab.core.quantity import COVERAGE_FACTOR, IN_STEP, ONE, Quantity, add_quantities

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.result import Check, Fact
    from joulelab.analysis.statistics import RepeatScatter
    from joulelab.site.footprint import Site

SHARED_SOURCES = ("gain:", "offset:")
LASTING_SOURCES = ("lag:", IN_STEP)
ENOUGH_REPEATS = 3  # repeats start at different phases of the sensor: the spread of three covers what it misses
ENOUGH_IN_POOL = 2  # repeats where the usual spread is known from other cells
DECIMAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
ASSUMED_SPREAD = 0.05  # expanded (k = 2) relative error of a single run where the spread of runs is unknown


@dataclass(frozen=True, slots=True)
class Note:
    """Hold a remark about the figures of a study, as data; `report/messages` has the sentence for it.

    `numbers` are in SI units; `texts` are names, lists of names, or a check of one of the runs.
    """

    code: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, str | tuple[str, ...] | Check] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """Hold one run that succeeded: energy (J; None without a meter), time, work done.

    `idle_energy_share` is the share of the GPUs' energy that idle GPUs used. `meter` names the devices that measured
    it: gains cancel only between trials of the same meter. `estimate`: a part of the energy is load x rated power.
    `doubts` are the run's own, as `name: message`; `uncapped` are those about a cap that was not in force. `used` and
    `idle` name the devices that worked and those that did not; `idle_energy` (J) is that of the latter. `facts` are
    those that the workload reported. `gpu_load` is the mean load (share of one) of the GPUs that worked. `site` is the
    place where it ran, None if it is not known.
    """

    energy: Quantity | None
    time_s: float
    work: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    idle_energy_share: float | None = None
    meter: str = ""
    estimate: bool = False
    doubts: tuple[Check, ...] = ()
    uncapped: tuple[Check, ...] = ()
    idle_energy: Quantity | None = None
    used: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    gpu_load: float | None = None
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """Hold one combination of knobs (`cap` and `cpu_cap` in W, `clock` in Hz, others) and the trials that succeeded.

    A cell of a paper has no trials but `moments`: number, mean and deviation of `energy` (J), `power` (W) and `time`
    (s). `warmup` counts the runs that are stored and not among the trials.
    """

    key: str
    knobs: Mapping[str, Any]
    trials: tuple[Trial, ...] = ()
    moments: Mapping[str, RepeatSample] = field(default_factory=dict)
    warmup: int = 0

    @property
    def uncapped(self) -> bool:
        """Return whether a cap was not in force in one of its runs, so that the knobs do not describe it."""
        return any(t.uncapped for t in self.trials)


@dataclass(frozen=True, slots=True)
class CellMeans:
    """Hold the means of a cell: energy (J) and time (s), or both per unit of work, and the meters.

    `spread`: the spread of such energies is known. Where the spread of times is unknown, the uncertainty of `time` is.
    """

    energy: Quantity | None
    time: Quantity
    spread: bool = False
    meters: frozenset[str] = frozenset()

    def assume_spread(self, key: str) -> CellMeans:
        """Return the means for tests of significance: where no spread is known, ASSUMED_SPREAD is added."""
        energy, time, source = self.energy, self.time, f"assumed:run@{key}"
        if not time.known:
            time = Quantity(time.value, {source: ASSUMED_SPREAD / COVERAGE_FACTOR * time.value})
        if energy is not None and not self.spread:
            off = ASSUMED_SPREAD / COVERAGE_FACTOR * energy.value
            energy = replace(energy, terms={**energy.terms, source: off})
        return replace(self, energy=energy, time=time, spread=self.spread or (energy is not None and energy.known))


def name_meter_device(meter: str, channel: str, device: str, host: str) -> str:
    """Name a measuring device for `Trial.meter`: errors cancel between energies by devices of the same name.

    Only a UUID is unique in the world. Other names (`intel-rapl:0`, `pm_counters`, serial numbers that a vendor did not
    set) may be those of another device on another host, so the host is part of the key.
    """
    if UUID.search(device):
        return f"{meter} {channel} {device}"
    return f"{meter} {channel} {device}@{host}" if device else f"{meter} {channel} {host}"


def compute_means(cell: Cell, per: str | None = None, pool: SpreadPool = NO_POOL) -> CellMeans | None:
    """Return mean energy and time of a cell, or both per unit of a kind of work; None without trials or moments."""
    trials = divide_trials(cell, per)
    if not trials:
        return None if per is not None else _read_moments(cell)  # moments have no work
    measured = [t for t in trials if t.energy is not None]
    held = pool.get_pool(cell.key)
    time = average_numbers([t.time_s for t in trials], f"repeats:time@{cell.key}", held.time)
    spread = len(measured) >= 2 or held.energy is not None
    return CellMeans(_average_energy(measured, cell.key, held), time, spread, frozenset(t.meter for t in measured))


def pool_cells(cells: Iterable[tuple[Cell, str | None]], lines: Iterable[Collection[str]] = ()) -> SpreadPool:
    """Pool the spread of runs over cells, each with the kind of work that it is divided by.

    `lines` are the keys of cells that have a pool of their own if they have enough runs.
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
    """Return a pool for each kind of work, over the cells whose trials all report it."""
    kinds = dict.fromkeys(kind for c in cells for t in c.trials for kind in t.work)
    done = {kind: [c for c in cells if all(t.work.get(kind, 0.0) > 0 for t in c.trials)] for kind in kinds}
    return {kind: pool_cells(((c, kind) for c in of), lines) for kind, of in done.items()}


def has_blind_sensor(cell: Cell) -> bool:
    """Return whether a sensor that measures only part of the time may have missed energy in a run of the cell."""
    energies = [t.energy for t in cell.trials if t.energy is not None]
    return any(q.bounds or any(s.startswith(IN_STEP) for s in q.terms) for q in energies)


def list_doubts(trial: Trial) -> list[str]:
    """Return the names of a run's doubts, each once."""
    return list(dict.fromkeys(check.name for check in trial.doubts))


def is_hidden_covered(repeats: int, pool: SpreadPool) -> bool:
    """Return whether there are enough repeats, so that their spread covers what the sensors may have missed."""
    return repeats >= (ENOUGH_IN_POOL if pool.blind else ENOUGH_REPEATS)


def divide_energies(a: CellMeans, b: CellMeans) -> Quantity | None:
    """Return the energy of a divided by the energy of b, None if either is unknown.

    The errors of one meter cancel in the ratio, even if its accuracy is not stated; the spread of repeats gives the
    rest. Where that spread is unknown, so is the uncertainty of the ratio.
    """
    if a.energy is None or b.energy is None or a.energy.value <= 0 or b.energy.value <= 0:
        return None
    if a is b:
        return ONE
    ratio, spread = a.energy / b.energy, a.spread and b.spread
    return replace(ratio, known=spread and (ratio.known or len(a.meters | b.meters) == 1))


def divide_times(a: CellMeans, b: CellMeans) -> Quantity | None:
    """Return the time of a divided by the time of b, None if either is unknown."""
    if a.time.value <= 0 or b.time.value <= 0:
        return None
    return ONE if a is b else a.time / b.time


def average_numbers(values: Sequence[float], source: str, pooled: PooledDeviation | None = None) -> Quantity:
    """Return the mean of numbers with the uncertainty of their spread or of a pooled one; unknown for one number."""
    spread = compute_type_a(values, pooled)
    return Quantity(
        compute_mean(values), {source: spread} if spread else {}, known=len(values) > 1 or pooled is not None
    )


def average_lasting(cell: Cell) -> Quantity:
    """Return the mean energy with only those uncertainty terms that repeats do not reduce.

    Raises ValueError if no trial has an energy.
    """
    trials = [t for t in cell.trials if t.energy is not None]
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        raise ValueError(f"{cell.key} has no energy")
    return _average_meters(energies, trials, cell.key, hidden=not is_hidden_covered(len(energies), NO_POOL))[0]


def divide_trials(cell: Cell, kind: str | None) -> list[Trial]:
    """Return the trials with energy and time divided by a kind of work, unchanged if it is None."""
    return [_divide_trial(t, kind) for t in cell.trials]


def compute_energy_per_work(cell: Cell, kind: str, pool: SpreadPool = NO_POOL) -> Quantity | None:
    """Return joules per unit of a kind of work, None unless every trial has energy and work."""
    done = [_divide_trial(t, kind) for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.energy is not None]
    return _average_energy(done, cell.key, pool.get_pool(cell.key)) if done and len(done) == len(cell.trials) else None


def compute_rate(cell: Cell, kind: str, pool: SpreadPool = NO_POOL) -> Quantity | None:
    """Return units of work per second, with the relative spread of the time; None unless all trials report it."""
    rates = [t.work[kind] / t.time_s for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.time_s > 0]
    if not rates or len(rates) < len(cell.trials):
        return None
    return average_numbers(rates, f"repeats:rate@{cell.key}", pool.get_pool(cell.key).time)


def compute_idle_share(cell: Cell) -> Quantity | None:
    """Return the mean share of the GPUs' energy that idle GPUs used, None where it is not known."""
    shares = [t.idle_energy_share for t in cell.trials if t.idle_energy_share is not None]
    return average_numbers(shares, f"repeats:idle@{cell.key}") if shares else None


def compute_gpu_load(cell: Cell) -> Quantity | None:
    """Return the mean load of the GPUs that worked (share of one), None unless it is known of every trial."""
    loads = [t.gpu_load for t in cell.trials if t.gpu_load is not None]
    return average_numbers(loads, f"repeats:load@{cell.key}") if loads and len(loads) == len(cell.trials) else None


def compute_idle_energy(cell: Cell) -> Quantity | None:
    """Return the mean energy of idle devices (J), None where it is not known."""
    known = [replace(t, energy=t.idle_energy) for t in cell.trials if t.idle_energy is not None]
    return _average_energy(known, f"{cell.key} idle", NO_POOL)


def join_pools(pools: Sequence[tuple[Collection[str], SpreadPool]]) -> SpreadPool:
    """Join pools into one that keeps the spread of each workload separate."""
    if len(pools) == 1:
        return pools[0][1]
    return SpreadPool(
        apart=frozenset(key for _, pool in pools for key in pool.apart),
        blind=any(pool.blind for _, pool in pools),
        lines={key: pool.lines.get(key, pool) for keys, pool in pools for key in keys},
        alone=frozenset(key for _, pool in pools for key in pool.alone),
    )


def _read_moments(cell: Cell) -> CellMeans | None:
    """Return the means of a cell that has moments and no trials; None without a time."""
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
    """Return the mean energy. The part of its spread that follows the time has the source of the mean time."""
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
    """Return the mean with the terms that repeats do not reduce, and the terms of each run."""
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
    return add_quantities(parts), own


def list_quality_figures(trials: Sequence[Trial], also: Iterable[str] = ()) -> dict[str, list[float]]:
    """Return the figures of quality that all trials have, one value per trial.

    Numbers `also` count as figures of quality, in trials that do not call them so.
    """
    extra = list(also)
    figures = [read_quality(t.facts) | list_numbers(t.facts, extra) for t in trials]
    names = [name for name in (figures[0] if figures else ()) if all(name in each for each in figures)]
    return {name: [each[name] for each in figures] for name in names}


def list_numbers(facts: Mapping[str, Fact], names: Iterable[str] | None = None) -> dict[str, float]:
    """Return the facts that are numbers, by name, NaN for those that are not finite; of `names`, or of all.

    A text that is a finite decimal number counts: `joulelab mark --fact accuracy=0.990` is kept as it was typed.
    """
    chosen = facts if names is None else [name for name in names if name in facts]
    numbers = {name: _read_number(facts[name]) for name in chosen}
    return {name: number for name, number in numbers.items() if number is not None}


def _read_number(fact: Fact) -> float | None:
    if isinstance(fact, str):
        number = float(fact) if DECIMAL.fullmatch(fact) else math.nan
        return number if math.isfinite(number) else None
    if isinstance(fact, bool):
        return None
    return float(fact) if math.isfinite(fact) else math.nan


def name_data(trials: Sequence[Trial]) -> str:
    """Return the data that trials worked on, joined if they differ, empty if unknown."""
    return " / ".join(dict.fromkeys(str(t.facts[DATA_FACT]) for t in trials if DATA_FACT in t.facts))
