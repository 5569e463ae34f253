"""Account for the energy of a job over time: the energy of each slot times the rate of that slot.

A run has its own power profile, planned work a flat one. The overhead of the building (PUE) multiplies the energy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.job_accounting import JOB_SCOPE
from joulelab.analysis.marked_phases import COST_WORK, list_figure_kinds
from joulelab.core.quantity import J_PER_KWH, ONE, Quantity, add_quantities
from joulelab.plan.measured_runs import find_accounted_side, find_node_count, list_outer_scopes, name_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.cost.work import PlannedWork
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.rates.rate import Label, Rate

RUNS = "runs"  # the unit of work of whole runs
STUDY_LABELS = ("study", "cell", "slot", "workload", "node_type")  # of a study's run, without its knobs
SHARED_TERMS = ("gain:", "offset:", "pue:", "rate:")  # the same in every run that has them


@dataclass(frozen=True, slots=True)
class Nameplate:
    """Hold rated power x time of a job: W of all its devices, s, the devices (`of`), and the source of the power.

    `ratio` is that energy by the measured energy of the same devices, None if it was not measured.
    """

    watts: float
    duration_s: float
    of: str
    source: str
    ratio: Quantity | None = None

    @property
    def kwh(self) -> float:
        """Return rated power x time, in kWh."""
        return self.watts * self.duration_s / J_PER_KWH


@dataclass(frozen=True, slots=True)
class RunEnergy:
    """Hold the energy of a run as measured; `rated_w` is the nameplate of a host for runs that do not record it."""

    measured: MeasuredRun
    rated_w: float | None = None

    @property
    def name(self) -> str:
        """Return the run's name, else its id; for a study's run its workload and knobs."""
        labels = self.measured.result.labels
        if "study" in labels:
            knobs = [f"{key}={value}" for key, value in labels.items() if key not in STUDY_LABELS]
            return " ".join([labels.get("workload", ""), *knobs, labels.get("slot", "")]).strip()
        return self.measured.result.name or self.measured.result.run

    @property
    def start_utc_s(self) -> float:
        """Return the start of the workload, in s since 1970."""
        return self.measured.start_utc_s

    @property
    def duration_s(self) -> float:
        """Return the duration of the workload, in s."""
        return self.measured.result.duration_s

    @property
    def whole(self) -> Quantity:
        """Return the energy of everything measured, in J."""
        energy = self.measured.result.energy
        found = self.measured.energies([0.0, self.duration_s])[0]
        return found if energy is None else replace(energy, value=found.value)

    @property
    def time(self) -> Quantity:
        """Return its duration in s, which is exact."""
        return Quantity(self.duration_s)

    @property
    def nameplate(self) -> Nameplate | None:
        """Return rated power x time."""
        return find_nameplate(self.measured, self.rated_w)

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the id of the run."""
        return (self.measured.result.run,)

    @property
    def twins(self) -> tuple[str, ...]:
        """Return the twin of a simulated run."""
        return (self.measured.result.twin,) if self.measured.result.twin else ()

    @property
    def workload(self) -> str:
        """Return the name of the workload."""
        return name_workload(self.measured.result)

    @property
    def side(self) -> str:
        """Return where it was measured: `ac`, `dc`, `parts` or `unknown`."""
        return find_side(self.measured)

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return the measured scopes."""
        return tuple(dict.fromkeys(scope for draw in self.measured.draws for scope in draw.scopes))

    @property
    def meters(self) -> tuple[str, ...]:
        """Return the meters, each with the source of its accuracy."""
        outer = list_outer_scopes(self.measured)
        read = [s.reading for s in self.measured.result.scopes if (s.host, s.scope) in outer]
        return tuple(dict.fromkeys(f"{one.meter} (accuracy: {one.accuracy})" for one in read))

    @property
    def is_total_only(self) -> bool:
        """Return whether a cluster accounted for it as one total: its energy is spread evenly over its time."""
        return not self.measured.resolved

    @property
    def covers(self) -> str:
        """Return what the accounting of a cluster covers, in its words; empty for a measured run."""
        return "" if self.measured.accounted is None else self.measured.accounted.covers

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes, None if it is unknown."""
        return find_node_count(self.measured)

    @property
    def highest_w(self) -> float | None:
        """Return the highest reading of all its nodes together (W); None if no power was read."""
        return None if self.is_total_only else sum(draw.highest_w for draw in self.measured.draws)

    @property
    def done(self) -> dict[str, float]:
        """Return the work that it did, by kind."""
        work = self.measured.result.work
        kinds = [kind for kind in list_figure_kinds(work) if kind not in COST_WORK and work[kind] > 0]
        return {kind: work[kind] for kind in kinds} | {RUNS: 1.0}

    def split_energy(self, at_s: Floats) -> list[Quantity]:
        """Return the energy (J) between each two of some times (s from the start of the workload)."""
        energies = self.measured.energies(at_s)
        if not self.whole.known:
            return energies
        most_w = sum(draw.highest_w for draw in self.measured.draws)
        spans = np.diff(np.clip(at_s, 0.0, self.duration_s))
        return [_bound_energy(e, most_w * s, k) for k, (e, s) in enumerate(zip(energies, spans, strict=True))]


def _bound_energy(energy: Quantity, most_j: float, k: int) -> Quantity:
    """Return the energy of a slot; if it is too short for the meter, anything from zero to the most is possible."""
    if energy.known:
        return energy
    half = max(energy.value, most_j - energy.value) / math.sqrt(3)
    return replace(energy, terms={**energy.terms, f"slot:{k}": half}, known=True)


def find_nameplate(measured: MeasuredRun, rated_w: float | None = None) -> Nameplate | None:
    """Return rated power x time of a run: by the given power of a host, else by the recorded power.

    None if neither is known, or the number of nodes is not.
    """
    result = measured.result
    if rated_w is not None:
        nodes = find_node_count(measured)
        if nodes is None:
            return None
        watts = rated_w * nodes
        used = result.energy if result.energy is not None and result.energy.value > 0 else None
        ratio = None if used is None else Quantity(watts * result.duration_s) / used
        return Nameplate(watts, result.duration_s, "node", "given", ratio)
    rated = result.rated
    if not rated.devices:
        return None
    families = {"node" if name.startswith("node") else name for name in rated.families.split(" + ")}
    sources = ", ".join(dict.fromkeys(device.source for device in rated.devices))
    return Nameplate(rated.watts, rated.duration_s, " + ".join(sorted(families)), sources, rated.ratio)


@dataclass(frozen=True, slots=True)
class RateSlot:
    """Hold a time over which a rate does not change: s since 1970, J without overhead, the rate in its unit."""

    since_s: float
    until_s: float
    energy: Quantity
    rate: float


@dataclass(frozen=True, slots=True)
class RateAmount:
    """Hold the money or the carbon (g) of a job's energy, overhead included.

    `mean_rate` is weighted by energy. `is_rate_known` tells whether the uncertainty of the rate is in the interval.
    `rated` is the same amount for rated power x time, None if the rated power is unknown.
    """

    label: Label
    amount: Quantity
    mean_rate: float
    is_rate_known: bool
    slots: tuple[RateSlot, ...]
    rated: float | None = None


def account_energy(
    profile: RunEnergy | PlannedWork, rate: Rate, *, pue: Quantity = ONE, at_s: float | None = None
) -> RateAmount:
    """Account for a job at a rate, slot by slot; `at_s` (s since 1970) moves it to another time.

    Raises ConfigError if the rate is not known at some time of it.
    """
    start = profile.start_utc_s if at_s is None else at_s
    end = start + profile.duration_s
    edges = np.concatenate(([start], rate.changes(start, end), [end]))
    rates, spans = rate.means(edges), np.diff(edges)
    parts = profile.split_energy(edges - start)
    whole = profile.whole
    used = _weigh_energy(whole, parts, rates)
    over_time = float(np.dot(rates, spans) / spans.sum()) if spans.sum() > 0 else float(rates.mean())
    amount = used * pue * (1 / J_PER_KWH)
    label, plate = rate.label, profile.nameplate
    if label.u_rel is not None:
        source = f"rate:{label.name}:{label.zone}:{label.source}"
        amount = replace(amount, terms={**amount.terms, source: abs(amount.value) * label.u_rel})
    return RateAmount(
        label,
        amount,
        used.value / whole.value if whole.value else over_time,
        label.u_rel is not None,
        tuple(RateSlot(a, b, e, r) for a, b, e, r in zip(edges, edges[1:], parts, rates.tolist(), strict=False)),
        None if plate is None else plate.kwh * pue.value * over_time,
    )


def _weigh_energy(whole: Quantity, parts: Sequence[Quantity], rates: Floats) -> Quantity:
    """Return energies times their rates.

    The uncertainty of the whole counts at the mean rate, that of the parts only by the distance of their rates from it:
    so a constant rate adds nothing to the interval of the run.
    """
    values = np.array([part.value for part in parts])
    mean = float(np.dot(values, rates) / values.sum()) if values.sum() > 0 else float(rates.mean())
    apart = add_quantities(p * (float(r) - mean) for p, r in zip(parts, rates, strict=True) if r != mean)
    return replace(whole * mean + apart, value=float(np.dot(values, rates)))


def add_amounts(amounts: Sequence[tuple[str, Quantity]]) -> Quantity:
    """Add amounts of several runs, each with the run's id; only gains, overhead and rates are common errors."""
    return add_quantities(amount.tagged(run, keep=SHARED_TERMS) for run, amount in amounts)


def find_side(measured: MeasuredRun) -> str:
    """Return where a run was measured: `ac` (at the wall), `dc`, `parts` of the nodes, or `unknown`."""
    if not measured.resolved:
        found = find_accounted_side(measured)
        return "unknown" if found == JOB_SCOPE else found
    sides = {draw.side for draw in measured.draws}
    return "parts" if "parts" in sides else "dc" if "dc" in sides else "ac"
