"""Hold the result of one run: plain data for every table, page and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping  # noqa: TC003 results.json is decoded by the types of fields
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from joulelab.analysis.marked_phases import list_figure_kinds
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.core.text import finite_or_none
from joulelab.site.footprint import Footprint, Site, choose_site, compute_footprint

Fact = str | int | float | bool
CheckStatus = Literal["ok", "note", "warning", "failed"]
RESULT_SCHEMA = 1
IDLE_LOAD = 0.01  # a device that never was busier than this did nothing
WIDEST_EFFICIENCY = 0.1  # expanded uncertainty up to which an efficiency is a figure


@dataclass(frozen=True, slots=True)
class Check:
    """Hold one doubt about a run as data; `report/messages` has the sentence and the next step of each code.

    `code` does not change when the words do: the check, and after a dot its case (`cap.vanished`). `scope` is the part
    of the run that it is about: scopes, a meter, a host or a file. `numbers` are in SI units, `texts` are names (a
    meter, a channel) and texts that the run stores.
    """

    code: str
    status: CheckStatus
    scope: str = ""
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the check: `not read`."""
        return self.code.partition(".")[0].replace("-", " ").replace("gpus", "GPUs")

    def __str__(self) -> str:
        """Return the check as text: `too short: gpu:0: the run is too short for nvml ...`."""
        from joulelab.report.messages import word_check

        return f"{self.name}: {word_check(self).text}"


@dataclass(frozen=True, slots=True)
class ChannelEnergy:
    """Hold the energy of a scope that one channel measured, with its meter, accuracy and coverage."""

    meter: str
    channel: str
    kind: str
    energy: Quantity
    accuracy: str
    reference: str
    estimate: bool
    readings: int
    coverage: float


@dataclass(frozen=True, slots=True)
class PowerStatistics:
    """Hold time-weighted statistics of power in W; `window_s` is the averaging time of a reading."""

    median: float
    p5: float
    p95: float
    p99: float
    maximum: float
    minimum: float
    window_s: float | None

    def include_mean(self, mean_w: float) -> PowerStatistics:
        """Return statistics in which maximum and minimum hold the mean: the few readings of a short run may not."""
        return replace(self, maximum=max(self.maximum, mean_w), minimum=min(self.minimum, mean_w))


@dataclass(frozen=True, slots=True)
class ScopeResult:
    """Hold energy (J), mean power (W) and statistics of one scope; `others` are its other channels."""

    scope: str
    host: str
    parent: str | None
    device: str
    model: str
    reading: ChannelEnergy
    mean_w: Quantity
    statistics: PowerStatistics | None
    net: Quantity | None
    idle_w: Quantity | None
    others: tuple[ChannelEnergy, ...] = ()

    @property
    def energy(self) -> Quantity:
        """Return the energy in J."""
        return self.reading.energy

    @property
    def estimate(self) -> bool:
        """Return whether the energy is estimated, not measured."""
        return self.reading.estimate


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Hold a sum of scopes without double counting: all GPUs, all packages, everything measured, or the rest.

    `hosts` has the host of each scope.
    """

    name: str
    scopes: tuple[str, ...]
    energy: Quantity
    mean_w: Quantity
    net: Quantity | None
    estimate: bool = False
    statistics: PowerStatistics | None = None
    hosts: tuple[str, ...] = ()

    @property
    def is_resolved(self) -> bool:
        """Return whether the energy is at least as large as its interval: a small difference of sums may not be."""
        return self.energy.is_resolved


@dataclass(frozen=True, slots=True)
class MeterComparison:
    """Hold the comparison of another meter of a scope with the best one: both energies, other - best (J), verdict.

    The verdict is `agree` or `differ` by their combined expanded uncertainty, `cannot tell` where one is unknown.
    `over` is the compared time (s from the workload's start) if it is not the workload.
    """

    host: str
    scope: str
    best: ChannelEnergy
    other: ChannelEnergy
    difference: Quantity
    verdict: str
    over: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class CapResult:
    """Hold a cap that the run set: the last requested value and the original one, in `unit` (W or Hz), and its end.

    `outcome` is restored, as found, left (another program had changed it) or failed; empty while the cap is set.
    """

    host: str
    scope: str
    asked: float
    found: float | None
    unit: str
    changes: int
    outcome: str


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """Hold one phase: its time span, energy (J) by group and of everything `measured`, its work and host.

    A phase of steps covers the numbers `n` to `last`; other phases have no `last`. `parent` is the `number` of the
    phase around it, `stretch` the index of its stretch of steps in the result. `gpu_loads` is the mean load (share of
    one) in this phase of each GPU that the run used, where it is known. `facts` are those that were reported inside it,
    and in no phase inside of it.
    """

    title: str
    name: str
    n: int | None
    start_s: float
    duration_s: float
    energy: dict[str, Quantity]
    work: dict[str, float]
    depth: int = 0
    open_end: bool = False
    host: str = ""
    last: int | None = None
    number: int = 0
    parent: int | None = None
    stretch: int | None = None
    gpu_loads: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """Return its end, in s from the start of the run."""
        return self.start_s + self.duration_s

    @property
    def gpu_load(self) -> float | None:
        """Return the mean load (share of one) of the GPUs that the run used, None if it is not known."""
        return average_loads(self.gpu_loads.values())

    @property
    def rates(self) -> dict[str, float]:
        """Return the work done per second in this phase."""
        return {kind: done / self.duration_s for kind, done in self.work.items()} if self.duration_s > 0 else {}


@dataclass(frozen=True, slots=True)
class WorkChannel:
    """Hold work that a meter counted: the kind of work (`name`), its amount over the run and by number of a phase.

    `restarts` of its source are known; what it counted between the readings around them, `lost_s` in all, is not.
    """

    name: str
    unit: str
    host: str
    meter: str
    scope: str
    total: Quantity
    phases: dict[str, Quantity] = field(default_factory=dict)
    restarts: int = 0
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """Hold the load of one GPU during the workload: time-weighted mean without gaps, and maximum (shares of one)."""

    host: str
    scope: str
    mean: float
    maximum: float

    @property
    def is_used(self) -> bool:
        """Return whether the GPU did something."""
        return self.maximum >= IDLE_LOAD


def average_loads(loads: Iterable[float]) -> float | None:
    """Return the mean over GPUs, None without any."""
    known = list(loads)
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Gap:
    """Hold a time without readings (monotonic ns; `to_ns` None = to the end of the record), with the reason."""

    meter: str
    stream: str
    from_ns: int
    to_ns: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Lag:
    """Hold the lag (s) of a stream behind a reference, its standard uncertainty, and whether it was corrected.

    `why` is a code for an estimate that is poor or was not needed (see `slow_meters.LagEstimate`), with its `numbers`;
    `correlation` is the one at the lag. `lag_s` is in excess of the lag in its `Spec`, `total_s` includes it. A meter
    that does not follow the load is `doubted`.
    """

    host: str
    meter: str
    stream: str
    scope: str
    against: str
    lag_s: float
    u_s: float
    correlation: float
    applied: bool
    why: str = ""
    doubted: bool = False
    total_s: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_resolved(self) -> bool:
        """Return whether the estimate is good, and the total lag differs from zero by more than its interval."""
        return self.why in ("", "no-lag") and math.isfinite(self.u_s) and abs(self.total_s) > 2 * self.u_s


@dataclass(frozen=True, slots=True)
class RatedDevice:
    """Hold the rated power of one scope (W) and its source."""

    host: str
    scope: str
    watts: float
    source: str


@dataclass(frozen=True, slots=True)
class RatedResult:
    """Hold the energy (J) of devices by rated power x time, and its ratio to their `measured` energy (J).

    `unknown` are measured scopes without a known rated power, `unused` are measured GPUs that were hidden from the
    workload: neither is included.
    """

    devices: tuple[RatedDevice, ...] = ()
    duration_s: float = 0.0
    measured: Quantity | None = None
    unknown: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def watts(self) -> float:
        """Return the rated power of all these devices together, in W."""
        return sum(device.watts for device in self.devices)

    @property
    def energy_j(self) -> float:
        """Return rated power x time, in J."""
        return self.watts * self.duration_s

    @property
    def families(self) -> str:
        """Return the kinds of devices: `gpu`, `gpu + cpu`."""
        return " + ".join(dict.fromkeys(find_family(device.scope) for device in self.devices))

    @property
    def ratio(self) -> Quantity | None:
        """Return the energy by rated power divided by the measured energy, None if either is unknown."""
        if self.measured is None or self.measured.value <= 0:
            return None
        return Quantity(self.energy_j) / self.measured

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        known = bool(self.devices)
        return {
            "rated_w": self.watts if known else None,
            "energy_j": self.energy_j if known else None,
            "measured": None if self.measured is None else self.measured.to_json(),
            "ratio": None if self.ratio is None else self.ratio.to_json(),
            "devices": [
                {"host": d.host, "scope": d.scope, "rated_w": d.watts, "source": d.source} for d in self.devices
            ],
            "unknown": list(self.unknown),
            "unused": list(self.unused),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """Hold all figures of a run; `stretches` are steps that follow each other without a gap, as one phase each.

    `twin` names the simulated node of a run, in virtual time or served. `rated` is the energy by rated power x time.
    `busiest` is the highest load (share of one) of each GPU of the first host with enough readings of its load;
    `gpu_loads` are mean and maximum of all GPUs whose mean load is known. `site` is the place whose price and carbon
    intensity apply: the one that the run recorded. `work_channels` are counters of work that a meter recorded;
    `work` has them, too, if no process reported that kind of work.
    """

    run: str
    name: str | None
    host: str
    command: list[str]
    state: str
    outcome: str
    exit_code: int | None
    signal: int | None
    start_utc: str
    start_ns: int
    end_ns: int
    scopes: tuple[ScopeResult, ...]
    groups: tuple[GroupResult, ...]
    phases: tuple[PhaseResult, ...]
    work: dict[str, float]
    load: dict[str, float]
    gaps: tuple[Gap, ...]
    checks: tuple[Check, ...]
    missing: tuple[dict[str, str], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    lags: tuple[Lag, ...] = ()
    comparisons: tuple[MeterComparison, ...] = ()
    ratios: dict[str, Quantity] = field(default_factory=dict)
    caps: tuple[CapResult, ...] = ()
    facts: dict[str, Fact] = field(default_factory=dict)
    stretches: tuple[PhaseResult, ...] = ()
    twin: str = ""
    rated: RatedResult = field(default_factory=RatedResult)
    busiest: dict[str, float] = field(default_factory=dict)
    gpu_loads: tuple[GpuLoad, ...] = ()
    site: Site | None = None
    work_channels: tuple[WorkChannel, ...] = ()

    @property
    def duration_s(self) -> float:
        """Return the duration of the workload, in s."""
        return (self.end_ns - self.start_ns) * 1e-9

    @property
    def energy(self) -> Quantity | None:
        """Return the energy of everything measured (J), None where there is no power meter."""
        return next((g.energy for g in self.groups if g.name == "measured"), None)

    @property
    def footprint(self) -> Footprint | None:
        """Return kWh, cost and CO2e of everything measured, None where there is no power meter."""
        return None if self.energy is None else compute_footprint(self.energy, self.site)

    def with_site(self, site: Site | None) -> Result:
        """Return the result at its site, or at the one that is set now if the run recorded none."""
        return replace(self, site=choose_site(self.site, site))

    @property
    def gpu_load(self) -> float | None:
        """Return the mean load (share of one) of the GPUs that did something, None if it is not known."""
        return average_loads(load.mean for load in self.gpu_loads if load.is_used)

    @property
    def is_damaged(self) -> bool:
        """Return whether a file of the run is unreadable or missing."""
        return any(check.name == "damaged" for check in self.checks)

    @property
    def bound_check(self) -> Check | None:
        """Return the check about energy that sensors may have missed, None if there is none."""
        if self.energy is None or "unseen" not in self.energy.budget():
            return None
        return next((c for c in self.checks if c.name == "unseen"), None)

    def group(self, name: str) -> GroupResult | None:
        """Return a group by name: `gpu`, `cpu`, `dram`, `measured`, `rest of node.ac`."""
        return next((g for g in self.groups if g.name == name), None)

    def phase_energy(self, phase: PhaseResult) -> Quantity | None:
        """Return the energy of everything measured in a phase (J), None if it was not computed."""
        whole, energy = self.group("measured"), phase.energy.get("measured")
        if energy is None and phase.energy and whole is not None:
            counted = dict.fromkeys(find_family(scope) for scope in whole.scopes)
            energy = add_quantities(phase.energy[name] for name in counted if name in phase.energy)
        return energy

    def per_work(self) -> dict[str, Quantity]:
        """Return joules per unit of work, for each kind of work that the energy of a whole run may be divided by."""
        energy, done = self.energy, self.work
        if energy is None:
            return {}
        return {n: self._divide_by_work(energy, n) for n in list_figure_kinds(done) if done[n] > 0}

    def _divide_by_work(self, energy: Quantity, kind: str) -> Quantity:
        """Return an energy per unit of work; the error of the count is known if a meter counted it."""
        counted = add_quantities(c.total for c in self.work_channels if c.name == kind)
        return energy / counted if counted.value == self.work[kind] else energy * (1 / self.work[kind])

    @property
    def rates(self) -> dict[str, float]:
        """Return the work done per second."""
        return {n: a / self.duration_s for n, a in self.work.items()} if self.duration_s > 0 else {}

    def to_json(self) -> dict[str, Any]:
        """Return plain data with quantities as value, expanded uncertainty and budget; NaN becomes null."""
        plain = {k: make_plain(getattr(self, k)) for k in self.__dataclass_fields__}
        named = ("duration_s", "energy", "rates", "gpu_load")
        plain |= {"schema": RESULT_SCHEMA, **{k: make_plain(getattr(self, k)) for k in named}}
        for name, ratio in self.ratios.items():
            plain["ratios"][name]["is_resolved"] = is_efficiency_resolved(ratio)
        footprint = None if self.footprint is None else make_plain(self.footprint.to_json())
        return plain | {"per_work": make_plain(self.per_work()), "footprint": footprint}


def is_efficiency_resolved(efficiency: Quantity) -> bool:
    """Return whether an efficiency (of a power supply) is between 0 and 1, and it or the loss is well known."""
    value, expanded = efficiency.value, efficiency.expanded
    return 0 <= value <= 1 and (expanded is None or expanded <= max(WIDEST_EFFICIENCY, 1 - value))


def make_plain(value: Any) -> Any:
    """Turn a part of a result into plain data for JSON; NaN becomes None."""
    if isinstance(value, Quantity):
        return make_plain(value.to_json() | {"expanded_if_seen": value.without("unseen", "in-step").expanded})
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, dict):
        return {k: make_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_plain(v) for v in value]
    if isinstance(value, PhaseResult):
        fields = {k: make_plain(getattr(value, k)) for k in value.__dataclass_fields__}
        return fields | {"rates": make_plain(value.rates), "gpu_load": value.gpu_load}
    if isinstance(value, RatedResult):
        return make_plain(value.to_json())
    if isinstance(value, Check):
        return {"name": value.name} | make_plain(asdict(value))
    if isinstance(value, (PowerStatistics, Gap)):
        return make_plain(asdict(value))
    if hasattr(value, "__dataclass_fields__"):
        marks = {"is_resolved": value.is_resolved} if isinstance(value, (GroupResult, Lag)) else {}
        return {k: make_plain(getattr(value, k)) for k in value.__dataclass_fields__} | marks
    return value
