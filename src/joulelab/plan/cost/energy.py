"""Account for energy over time: what each stretch of a run used, times what a kWh costs or emits just then.

A run brings its own power profile, planned work a flat one. Times the facility's overhead (PUE) it is what the site
pays for; beside it stands what rated power x time would have said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulelab.analysis.job_accounting import JOB_SCOPE
from joulelab.core.quantity import ONE, Quantity, add_quantities
from joulelab.plan.measured_runs import find_accounted_side, find_node_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.rates.rate import Label, Rate

KWH = 3.6e6  # J
STUDY = ("study", "cell", "slot", "workload", "node_type")  # labels of a study's run that are no knobs
SHARED = ("gain:", "offset:", "pue:", "rate:", "moving:")  # the same in every run that has them


@dataclass(frozen=True, slots=True)
class Nameplate:
    """Hold what rated power x time would have said of a job: W of all its devices, s, J, and whose power it is.

    `ratio` is how many times that is what the same devices used, where it was measured.
    """

    watts: float
    duration_s: float
    of: str
    source: str
    ratio: Quantity | None = None

    @property
    def energy_j(self) -> float:
        """Return rated power x time, in J."""
        return self.watts * self.duration_s


class Profile(Protocol):
    """Tell what a job uses over time: a run, or planned work."""

    @property
    def name(self) -> str:
        """Return what it is called."""
        ...

    @property
    def start_utc_s(self) -> float:
        """Return when it starts, in s since 1970."""
        ...

    @property
    def duration_s(self) -> float:
        """Return how long it takes, in s."""
        ...

    @property
    def whole(self) -> Quantity:
        """Return all of its energy, in J."""
        ...

    @property
    def nameplate(self) -> Nameplate | None:
        """Return what rated power x time says, None where nobody tells the rated power."""
        ...

    def between(self, at_s: Floats) -> list[Quantity]:
        """Return the energy (J) between each two of some times (s from its start); together they are the whole."""
        ...


@dataclass(frozen=True, slots=True)
class RunProfile:
    """Hold a run as it was measured; `rated_w` is the nameplate of each of its hosts where the run does not tell it."""

    measured: MeasuredRun
    rated_w: float | None = None

    @property
    def name(self) -> str:
        """Return the run's name, its id where it has none; of a study's run, what tells it from the others."""
        labels = self.measured.result.labels
        if "study" in labels:
            knobs = [f"{key}={value}" for key, value in labels.items() if key not in STUDY]
            return " ".join([labels.get("workload", ""), *knobs, labels.get("slot", "")]).strip()
        return self.measured.result.name or self.measured.result.run

    @property
    def start_utc_s(self) -> float:
        """Return when the workload started, in s since 1970."""
        return self.measured.start_utc_s

    @property
    def duration_s(self) -> float:
        """Return how long the workload took, in s."""
        return self.measured.result.duration_s

    @property
    def whole(self) -> Quantity:
        """Return the energy of everything measured, in J."""
        energy = self.measured.result.energy
        found = self.measured.energies([0.0, self.duration_s])[0]
        return found if energy is None else replace(energy, value=found.value)

    @property
    def nameplate(self) -> Nameplate | None:
        """Return what rated power x time says."""
        return nameplate_of(self.measured, self.rated_w)

    def between(self, at_s: Floats) -> list[Quantity]:
        """Return the energy (J) between each two of some times (s from the workload's start)."""
        energies = self.measured.energies(at_s)
        if not self.whole.known:
            return energies
        most_w = sum(draw.highest_w for draw in self.measured.draws)
        spans = np.diff(np.clip(at_s, 0.0, self.duration_s))
        return [_bounded(e, most_w * s, k) for k, (e, s) in enumerate(zip(energies, spans, strict=True))]


def _bounded(energy: Quantity, most_j: float, k: int) -> Quantity:
    """Return the energy of a stretch; where it is too short for the meter: anything from nothing to the most."""
    if energy.known:
        return energy
    half = max(energy.value, most_j - energy.value) / math.sqrt(3)
    return replace(energy, terms={**energy.terms, f"slot:{k}": half}, known=True)


def nameplate_of(measured: MeasuredRun, rated_w: float | None = None) -> Nameplate | None:
    """Return what rated power x time says of a run: by what was given for a host, else by what the run recorded.

    None where neither is known, or it is not known on how many nodes it ran.
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
class Slot:
    """Hold a stretch over which a rate does not change: s since 1970, J without overhead, the rate in its unit."""

    since_s: float
    until_s: float
    energy: Quantity
    rate: float


@dataclass(frozen=True, slots=True)
class Account:
    """Hold what a job costs or emits: `amount` is money, or g of CO2e, as the label says.

    `energy_kwh` is what was measured or planned, `site_kwh` that with the facility's overhead and with moving the data.
    `mean_rate` is weighted by energy. `rate_known` tells whether the rate's own uncertainty is in the interval.
    `rated_amount` is what rated power x time would have said, with the same overhead and rate.
    """

    label: Label
    start_utc_s: float
    energy_kwh: Quantity
    site_kwh: Quantity
    amount: Quantity
    mean_rate: float
    rate_known: bool
    slots: tuple[Slot, ...]
    rated_kwh: float | None = None
    rated_amount: float | None = None


def account_of(
    profile: Profile,
    rate: Rate,
    *,
    pue: Quantity = ONE,
    moved_kwh: Quantity | None = None,
    at_s: float | None = None,
) -> Account:
    """Account for a job at a rate, slot by slot; `at_s` (s since 1970) moves it to another time.

    `moved_kwh` is the energy of moving its data, which has no overhead of the site's and is taken at the mean of the
    rate over the job. Raises ConfigError where the rate is not known at some time of it.
    """
    start = profile.start_utc_s if at_s is None else at_s
    end = start + profile.duration_s
    edges = np.concatenate(([start], rate.changes(start, end), [end]))
    rates, spans = rate.means(edges), np.diff(edges)
    parts = profile.between(edges - start)
    whole = profile.whole
    used = _weighed(whole, parts, rates)
    over_time = float(np.dot(rates, _shares(spans)))
    moved = moved_kwh or Quantity(0.0)
    amount = used * pue * (1 / KWH) + moved * over_time
    drawn = np.array([part.value for part in parts]) / KWH * pue.value
    amount, known = _with_rate(amount, rate, edges, drawn + moved.value * _shares(spans))
    plate = profile.nameplate
    rated_kwh = None if plate is None else plate.energy_j / KWH
    return Account(
        rate.label, start, whole * (1 / KWH), whole * pue * (1 / KWH) + moved, amount,
        used.value / whole.value if whole.value else over_time, known,
        tuple(Slot(a, b, e, r) for a, b, e, r in zip(edges, edges[1:], parts, rates.tolist(), strict=False)),
        rated_kwh, None if rated_kwh is None else (rated_kwh * pue.value + moved.value) * over_time,
    )  # fmt: skip


def _weighed(whole: Quantity, parts: Sequence[Quantity], rates: Floats) -> Quantity:
    """Return energies times their rates.

    What the whole is unsure by counts at the mean rate, what the parts are unsure by only for how far the rates are
    from it: so a rate that never changes adds nothing to the run's own interval.
    """
    values = np.array([part.value for part in parts])
    mean = float(np.dot(values, rates) / values.sum()) if values.sum() > 0 else float(rates.mean())
    apart = add_quantities(p * (float(r) - mean) for p, r in zip(parts, rates, strict=True) if r != mean)
    return replace(whole * mean + apart, value=float(np.dot(values, rates)))


def _shares(spans: Floats) -> Floats:
    """Return which share of the time each span is; equal ones where there is no time."""
    return spans / spans.sum() if spans.sum() > 0 else np.full(spans.size, 1 / spans.size)


def _with_rate(amount: Quantity, rate: Rate, edges: Floats, kwh: Floats) -> tuple[Quantity, bool]:
    """Return the amount with what the rate is unsure by, and whether anybody states that; values err alike.

    `kwh` are what is paid for between the edges, overhead and moved data included.
    """
    label = rate.label
    source = f"rate:{label.name}:{label.zone}:{label.source}"
    tell = getattr(rate, "u_means", None)  # series tell it of each value
    each = tell(edges) if tell is not None else None
    if each is not None:
        u = float(np.dot(kwh, each))
    elif label.u_rel is not None:
        u = abs(amount.value) * label.u_rel
    else:
        return amount, False
    return replace(amount, terms={**amount.terms, source: amount.terms.get(source, 0.0) + u}), True


def summed(accounts: Sequence[tuple[str, Quantity]]) -> Quantity:
    """Add amounts of several runs, each with the run's id; they share gains, overhead and rates, and nothing else."""
    return add_quantities(amount.tagged(run, keep=SHARED) for run, amount in accounts)


def side_of(measured: MeasuredRun) -> str:
    """Return where a run was measured: `ac` (all hosts at the wall), `dc`, `parts`; `unknown` where nobody tells."""
    if not measured.resolved:
        told = find_accounted_side(measured)
        return "unknown" if told == JOB_SCOPE else told
    sides = {draw.side for draw in measured.draws}
    return "parts" if "parts" in sides else "dc" if "dc" in sides else "ac"
