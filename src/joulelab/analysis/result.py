"""Hold the result of one run: plain data from which every table, page and JSON is made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from joulelab.analysis.gaps import Gap
from joulelab.analysis.rated import RatedResult
from joulelab.analysis.statistics import PowerStatistics
from joulelab.analysis.work import kinds_with_figure
from joulelab.core.quantity import Quantity

if TYPE_CHECKING:
    from joulelab.analysis.alignment import Lag
    from joulelab.analysis.phases import Fact

CheckStatus = Literal["ok", "note", "warning", "failed"]
RESULT_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Check:
    """Hold one doubt about a run: how a check ended, why, and the next command to type.

    `code` does not change when the words do: the check, and after a dot its case (`cap.vanished`). `scope` is the part
    of the run that it is about: scopes, a meter, a host or a file. `numbers` are those of the message, in SI units.
    """

    code: str
    status: CheckStatus
    message: str
    next: str = ""
    scope: str = ""
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the check in words: `not read`."""
        return self.code.partition(".")[0].replace("-", " ").replace("gpus", "GPUs")


@dataclass(frozen=True, slots=True)
class Reading:
    """Hold one channel's energy of a scope: which meter said it and how it was found."""

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
class ScopeResult:
    """Hold what one scope used: energy (J), mean power (W), statistics; `others` are other channels of the scope."""

    scope: str
    host: str
    parent: str | None
    device: str
    model: str
    reading: Reading
    mean_w: Quantity
    statistics: PowerStatistics | None
    net: Quantity | None
    idle_w: Quantity | None
    others: tuple[Reading, ...] = ()

    @property
    def energy(self) -> Quantity:
        """Return the energy in J."""
        return self.reading.energy

    @property
    def estimate(self) -> bool:
        """Return whether it is an estimate, not a measurement."""
        return self.reading.estimate


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Hold a sum over scopes that counts nothing twice: all GPUs, all packages, everything measured, or the rest.

    `hosts` are those of `scopes`, one for each.
    """

    name: str
    scopes: tuple[str, ...]
    energy: Quantity
    mean_w: Quantity
    net: Quantity | None
    estimate: bool = False
    statistics: PowerStatistics | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Hold two meters of one scope: the one believed, another, other less believed (J), and the verdict.

    `agree` and `differ` are against their combined expanded uncertainty; `cannot tell` where one is unknown. `over` is
    the stretch they are of (s from the workload's start), where it is not the workload.
    """

    host: str
    scope: str
    best: Reading
    other: Reading
    difference: Quantity
    verdict: str
    over: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class CapResult:
    """Hold a cap that the run set: the last value asked for, what was found before, in `unit` (W or Hz), and its end.

    `outcome` is restored, as found, left (somebody else had changed it) or failed; empty while it is set.
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
    """Hold one phase: its interval, energy by group and of everything `measured` (J), work done, the host it is of.

    Steps are phases from number `n` to number `last`, which others do not have. `parent` is the `number` of the phase
    around it, `stretch` the place among a result's stretches of the one that steps are in.
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

    @property
    def rates(self) -> dict[str, float]:
        """Return the work done in it per second."""
        return {kind: done / self.duration_s for kind, done in self.work.items()} if self.duration_s > 0 else {}


@dataclass(frozen=True, slots=True)
class Result:
    """Hold everything that is printed of a run; `stretches` are steps that follow each other, together.

    `twin` names the twin that a run is of, in virtual time or served: nothing of it was measured. `rated` is what
    runtime x rated power would have said.
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
    comparisons: tuple[Comparison, ...] = ()
    ratios: dict[str, Quantity] = field(default_factory=dict)
    caps: tuple[CapResult, ...] = ()
    facts: dict[str, Fact] = field(default_factory=dict)
    stretches: tuple[PhaseResult, ...] = ()
    twin: str = ""
    rated: RatedResult = field(default_factory=RatedResult)

    @property
    def duration_s(self) -> float:
        """Return how long the workload took, in s."""
        return (self.end_ns - self.start_ns) * 1e-9

    @property
    def energy(self) -> Quantity | None:
        """Return the energy of everything measured (J), None where there is no power meter."""
        return next((g.energy for g in self.groups if g.name == "measured"), None)

    @property
    def is_damaged(self) -> bool:
        """Return whether a file of the run cannot be read or is missing."""
        return any(check.name == "damaged" for check in self.checks)

    @property
    def bound_check(self) -> Check | None:
        """Return the check that tells how far the energy can be off beyond its interval, None where it cannot."""
        if self.energy is None or "unseen" not in self.energy.budget():
            return None
        return next((c for c in self.checks if c.name == "unseen"), None)

    def group(self, name: str) -> GroupResult | None:
        """Return a group by name: `gpu`, `cpu`, `dram`, `measured`, `rest of node.ac`."""
        return next((g for g in self.groups if g.name == name), None)

    def per_work(self) -> dict[str, Quantity]:
        """Return joules per unit of each kind of work reported that the whole run can be divided by."""
        energy, done = self.energy, self.work
        if energy is None:
            return {}
        return {n: energy.scaled(1 / done[n]) for n in kinds_with_figure(done) if done[n] > 0}

    def to_json(self) -> dict[str, Any]:
        """Return plain data with quantities as value, expanded uncertainty and budget; NaN becomes null."""
        plain = {k: _plain(getattr(self, k)) for k in self.__dataclass_fields__}
        plain |= {
            "schema": RESULT_SCHEMA,
            "duration_s": self.duration_s,
            "energy": _plain(self.energy),
            "per_work": _plain(self.per_work()),
            "rates": _plain({n: a / self.duration_s for n, a in self.work.items()} if self.duration_s > 0 else {}),
        }
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Quantity):
        return _plain(value.to_json() | {"expanded_if_seen": value.without("unseen", "in-step").expanded})
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, PhaseResult):
        fields = {k: _plain(getattr(value, k)) for k in value.__dataclass_fields__}
        return fields | {"rates": _plain(value.rates)}
    if isinstance(value, RatedResult):
        return _plain(value.to_json())
    if isinstance(value, Check):
        return {"name": value.name} | _plain(asdict(value))
    if isinstance(value, (PowerStatistics, Gap)):
        return _plain(asdict(value))
    if hasattr(value, "__dataclass_fields__"):
        return {k: _plain(getattr(value, k)) for k in value.__dataclass_fields__}
    return value
