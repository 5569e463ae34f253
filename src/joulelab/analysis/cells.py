"""Hold the repeats of a cell and give their means, each with what the meters and the repeats say of it. Pure.

Gain and offset belong to the meter: the same in every run, so they stay in the mean and cancel between cells.
What a lag or a blind sensor may hide is the same in all repeats of a cell. All else is the run's own and shrinks with
their number, unless the repeats spread more than that: then their spread counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.student import t_975
from joulelab.analysis.terms import COVERAGE_FACTOR, Quantity, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHARED = ("gain:", "offset:")
LASTING = ("lag:", "unseen:")
PHASES_SEEN = 3  # so many repeats begin at phases of the sensor of their own: their spread tells what it cannot see


@dataclass(frozen=True, slots=True)
class Trial:
    """Hold one run that succeeded: energy (J; None without a meter), time, work done, share of idle devices.

    `meter` names the devices that measured it: gains cancel only between trials where it is the same.
    """

    energy: Quantity | None
    time_s: float
    work: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    idle_share: float | None = None
    meter: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """Hold one combination of knobs (`cap` and `cpu_cap` in W, `clock` in Hz, others) and the trials that succeeded."""

    key: str
    knobs: Mapping[str, Any]
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True)
class Means:
    """Hold the means of a cell: energy (J) and time (s), or both per unit of work; by how many, measured by what."""

    energy: Quantity | None
    time: Quantity
    measured: int = 0
    meters: frozenset[str] = frozenset()


def means(cell: Cell, per: str | None = None) -> Means | None:
    """Return mean energy and time of a cell, per unit of a kind of work where named; None without trials."""
    trials = [_per(t, per) for t in cell.trials]
    if not trials:
        return None
    measured = [t for t in trials if t.energy is not None]
    # Of one trial no spread is known: its time has no uncertainty, and the notes of a summary say so.
    time = mean_plain([t.time_s for t in trials], f"repeats:time@{cell.key}")
    return Means(_mean_energy(measured, cell.key), time, len(measured), frozenset(t.meter for t in measured))


def energy_ratio(a: Means, b: Means) -> Quantity | None:
    """Return the energy of a over that of b, None where one has none.

    Where nobody states the meter's accuracy, what it gets wrong in both still cancels, and repeats tell the rest.
    """
    if a.energy is None or b.energy is None or a.energy.value <= 0 or b.energy.value <= 0:
        return None
    repeated = min(a.measured, b.measured) >= 2 and len(a.meters | b.meters) == 1
    ratio = a.energy.ratio(b.energy)
    return replace(ratio, known=ratio.known or repeated)


def time_ratio(a: Means, b: Means) -> Quantity | None:
    """Return the time of a over that of b, None where one took none."""
    return a.time.ratio(b.time) if a.time.value > 0 and b.time.value > 0 else None


def mean_plain(values: Sequence[float], source: str) -> Quantity:
    """Return the mean of plain numbers with the uncertainty that their spread gives."""
    spread = type_a(values)
    return Quantity(mean_of(values), {source: spread} if spread else {})


def per_work(cell: Cell, kind: str) -> Quantity | None:
    """Return joules per unit of a kind of work, None unless every trial has both."""
    done = [_per(t, kind) for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.energy is not None]
    return _mean_energy(done, cell.key) if done and len(done) == len(cell.trials) else None


def rate(cell: Cell, kind: str) -> Quantity | None:
    """Return units of work per second, None unless every trial reports it."""
    rates = [t.work[kind] / t.time_s for t in cell.trials if t.work.get(kind, 0.0) > 0 and t.time_s > 0]
    return mean_plain(rates, f"repeats:rate@{cell.key}") if rates and len(rates) == len(cell.trials) else None


def idle_share(cell: Cell) -> Quantity | None:
    """Return the mean share of idle devices, None where it was not worked out."""
    shares = [t.idle_share for t in cell.trials if t.idle_share is not None]
    return mean_plain(shares, f"repeats:idle@{cell.key}") if shares else None


def mean_of(values: Sequence[float]) -> float:
    """Return the mean, exact where all values are the same."""
    return values[0] + math.fsum(v - values[0] for v in values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample's standard deviation, None below two values."""
    if len(values) < 2:
        return None
    mean = mean_of(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def type_a(values: Sequence[float]) -> float:
    """Return the standard uncertainty of a mean such that k = 2 reaches as far as Student's t; 0 for one value."""
    spread = deviation(values)
    if spread is None:
        return 0.0
    return t_975(len(values) - 1) * spread / math.sqrt(len(values)) / COVERAGE_FACTOR


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return how far two series go together (-1 to 1), 0 where one does not vary."""
    mean_a, mean_b = mean_of(a), mean_of(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    alone = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return max(-1.0, min(1.0, both / alone)) if alone > 0 else 0.0


def _per(trial: Trial, kind: str | None) -> Trial:
    if kind is None:
        return trial
    share = 1 / trial.work[kind]
    energy = None if trial.energy is None else trial.energy.scaled(share)
    return replace(trial, energy=energy, time_s=trial.time_s * share)


def _mean_energy(trials: Sequence[Trial], tag: str) -> Quantity | None:
    """Return the mean energy: what goes with time by the source of the mean time, the rest by its own."""
    energies = [t.energy for t in trials if t.energy is not None]
    if not energies:
        return None
    whole, own = _of_meters(energies, trials, tag)
    values = [q.value for q in energies]
    u_own, u_spread = math.hypot(*own.values()), type_a(values)
    with_time = correlation(values, [t.time_s for t in trials]) * u_spread
    rest = math.sqrt(max(max(u_own, u_spread) ** 2 - with_time**2, 0.0))
    terms = dict(whole.terms)
    if u_spread > u_own:
        terms[f"repeats:energy@{tag}"] = rest
    elif u_own > 0:
        terms |= {s: u * rest / u_own for s, u in own.items()}
    if with_time:
        terms[f"repeats:time@{tag}"] = with_time
    return Quantity(whole.value, terms, whole.known)


def _of_meters(energies: Sequence[Quantity], trials: Sequence[Trial], tag: str) -> tuple[Quantity, dict[str, float]]:
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
            elif n < PHASES_SEEN or not source.startswith("unseen:"):
                lasting[f"{source}@{tag}"] = u / n
        parts.append(Quantity(energy.value / n, lasting, energy.known))
    return total(parts), own
