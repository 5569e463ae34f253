"""Hold the repeats of a cell and give their means, each with what the meters and the repeats say of it. Pure.

Gain and offset belong to the meter: the same in every run, so they stay in the mean and cancel between cells.
What a lag or a blind sensor may hide is the same in all repeats of a cell. All else is the run's own and shrinks with
their number, unless the repeats spread more than that: then their spread counts, pooled over cells where it can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.spread import NO_POOL, Pool, Pooled, correlation, mean_of, pool_of, scatter_of, type_a
from joulelab.analysis.terms import Quantity, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.spread import Scatter

SHARED = ("gain:", "offset:")
HIDDEN = "unseen:"
LASTING = ("lag:", HIDDEN)
PHASES_SEEN = 3  # so many repeats begin at phases of the sensor of their own: their spread tells what it cannot see
PHASES_IN_POOL = 2  # so many do where the repeats of other cells tell what spread is usual


@dataclass(frozen=True, slots=True)
class Trial:
    """Hold one run that succeeded: energy (J; None without a meter), time, work done, share of idle devices.

    `meter` names the devices that measured it: gains cancel only between trials where it is the same.
    `estimate` tells that the energy was not measured, wholly or in part: load x rated power.
    """

    energy: Quantity | None
    time_s: float
    work: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    idle_share: float | None = None
    meter: str = ""
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """Hold one combination of knobs (`cap` and `cpu_cap` in W, `clock` in Hz, others) and the trials that succeeded."""

    key: str
    knobs: Mapping[str, Any]
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True)
class Means:
    """Hold the means of a cell: energy (J) and time (s), or both per unit of work, and by what it was measured.

    `spread` tells that it is known how much such energies differ by themselves.
    """

    energy: Quantity | None
    time: Quantity
    spread: bool = False
    meters: frozenset[str] = frozenset()


def means(cell: Cell, per: str | None = None, pool: Pool = NO_POOL) -> Means | None:
    """Return mean energy and time of a cell, per unit of a kind of work where named; None without trials."""
    trials = [_per(t, per) for t in cell.trials]
    if not trials:
        return None
    measured = [t for t in trials if t.energy is not None]
    held = pool.of(cell.key)
    # Of one trial without a pool no spread is known: its time has no uncertainty, and the notes of a summary say so.
    time = mean_plain([t.time_s for t in trials], f"repeats:time@{cell.key}", held.time)
    spread = len(measured) >= 2 or held.energy is not None
    return Means(_mean_energy(measured, cell.key, held), time, spread, frozenset(t.meter for t in measured))


def pool_cells(cells: Iterable[tuple[Cell, str | None]]) -> Pool:
    """Return how much runs differ, pooled over cells, each with the kind of work it is divided by."""
    scatters: dict[str, Scatter] = {}
    blind = set()
    for cell, per in cells:
        trials = [_per(t, per) for t in cell.trials]
        scatters[cell.key] = scatter_of([(t.energy.value if t.energy else None, t.time_s) for t in trials])
        if hides(cell):
            blind.add(cell.key)
    return pool_of(scatters, blind)


def pool_by_work(cells: Sequence[Cell]) -> dict[str, Pool]:
    """Return a pool for each kind of work, of the cells whose every trial reports it."""
    kinds = dict.fromkeys(kind for c in cells for t in c.trials for kind in t.work)
    return {
        kind: pool_cells((c, kind) for c in cells if all(t.work.get(kind, 0.0) > 0 for t in c.trials)) for kind in kinds
    }


def hides(cell: Cell) -> bool:
    """Return whether the sensors may have missed something in a run of the cell."""
    return any(s.startswith(HIDDEN) for t in cell.trials if t.energy is not None for s in t.energy.terms)


def shows_hidden(repeats: int, pool: Pool) -> bool:
    """Return whether a spread stands for what the sensors may have missed, by repeats with an energy."""
    return repeats >= (PHASES_IN_POOL if pool.blind else PHASES_SEEN)


def energy_ratio(a: Means, b: Means) -> Quantity | None:
    """Return the energy of a over that of b, None where one has none.

    Where nobody states the meter's accuracy, what it gets wrong in both still cancels, and repeats tell the rest.
    """
    if a.energy is None or b.energy is None or a.energy.value <= 0 or b.energy.value <= 0:
        return None
    repeated = a.spread and b.spread and len(a.meters | b.meters) == 1
    ratio = a.energy.ratio(b.energy)
    return replace(ratio, known=ratio.known or repeated)


def time_ratio(a: Means, b: Means) -> Quantity | None:
    """Return the time of a over that of b, None where one took none."""
    return a.time.ratio(b.time) if a.time.value > 0 and b.time.value > 0 else None


def mean_plain(values: Sequence[float], source: str, pooled: Pooled | None = None) -> Quantity:
    """Return the mean of plain numbers with the uncertainty that their spread gives, or a pooled one."""
    spread = type_a(values, pooled)
    return Quantity(mean_of(values), {source: spread} if spread else {})


def per_work(cell: Cell, kind: str, pool: Pool = NO_POOL) -> Quantity | None:
    """Return joules per unit of a kind of work, None unless every trial has both."""
    done = [_per(t, kind) for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.energy is not None]
    return _mean_energy(done, cell.key, pool.of(cell.key)) if done and len(done) == len(cell.trials) else None


def rate(cell: Cell, kind: str, pool: Pool = NO_POOL) -> Quantity | None:
    """Return units of work per second, None unless every trial reports it; it scatters as the time per unit does."""
    rates = [t.work[kind] / t.time_s for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.time_s > 0]
    if not rates or len(rates) < len(cell.trials):
        return None
    return mean_plain(rates, f"repeats:rate@{cell.key}", pool.of(cell.key).time)


def idle_share(cell: Cell) -> Quantity | None:
    """Return the mean share of idle devices, None where it was not worked out."""
    shares = [t.idle_share for t in cell.trials if t.idle_share is not None]
    return mean_plain(shares, f"repeats:idle@{cell.key}") if shares else None


def _per(trial: Trial, kind: str | None) -> Trial:
    if kind is None:
        return trial
    share = 1 / trial.work[kind]
    energy = None if trial.energy is None else trial.energy.scaled(share)
    return replace(trial, energy=energy, time_s=trial.time_s * share)


def _mean_energy(trials: Sequence[Trial], tag: str, pool: Pool) -> Quantity | None:
    """Return the mean energy: what goes with time by the source of the mean time, the rest by its own."""
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        return None
    whole, own = _of_meters(energies, trials, tag, hidden=not shows_hidden(len(energies), pool))
    values = [q.value for q in energies]
    u_own, u_spread = math.hypot(*own.values()), type_a(values, pool.energy)
    together = correlation(values, [t.time_s for t in trials]) if pool.energy is None else pool.correlation
    with_time = together * u_spread
    rest = math.sqrt(max(max(u_own, u_spread) ** 2 - with_time**2, 0.0))
    terms = dict(whole.terms)
    if u_spread > u_own:
        terms[f"repeats:energy@{tag}"] = rest
    elif u_own > 0:
        terms |= {s: u * rest / u_own for s, u in own.items()}
    if with_time:
        terms[f"repeats:time@{tag}"] = with_time
    return Quantity(whole.value, terms, whole.known)


def _of_meters(
    energies: Sequence[Quantity], trials: Sequence[Trial], tag: str, *, hidden: bool
) -> tuple[Quantity, dict[str, float]]:
    """Return the mean with the terms that repeating does not make smaller, and each run's own terms apart."""
    n = len(energies)
    parts: list[Quantity] = []
    own: dict[str, float] = {}
    for k, (energy, trial) in enumerate(zip(energies, trials, strict=True)):
        lasting: dict[str, float] = {}
        for source, u in energy.terms.items():
            if source.startswith(SHARED):
                lasting[f"{source}@{trial.meter}" if trial.meter else source] = u / n
            elif not source.startswith(LASTING):
                own[f"{source}@{tag}#{k}"] = u / n
            elif hidden or not source.startswith(HIDDEN):
                lasting[f"{source}@{tag}"] = u / n
        parts.append(Quantity(energy.value / n, lasting, energy.known))
    return total(parts), own
