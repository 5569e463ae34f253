"""Hold a mix of jobs against a rack: what they draw together, and how often that is too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.plan.rack.extremes import Refusal, percent
from joulelab.plan.rack.fit import EXACT, tightest
from joulelab.plan.rack.guarantee import ACCURACY, PEAKS
from joulelab.plan.rack.hidden import widened
from joulelab.plan.rack.mix import load_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.measured_runs import HostTrace
    from joulelab.plan.rack.extremes import Exceeding, Percentile
    from joulelab.plan.rack.facility import Limit, Rack
    from joulelab.plan.rack.mix import Job


@dataclass(frozen=True, slots=True)
class Mixed:
    """Hold what a mix of jobs draws (W, all nodes together) and what the rack allows so many nodes.

    `maximum_w` is the sum of the highest readings, `upper_w` what that may be by all that is known of meters, hidden
    peaks and other nodes; `lacks` says what nobody knows. `percentiles` hold an answer or a refusal by name. `binding`
    is the tightest limit.
    """

    names: tuple[str, ...]
    nodes: int
    allowed_w: float
    binding: str
    mean_w: float
    maximum_w: float
    upper_w: float
    lacks: tuple[str, ...]
    percentiles: dict[str, Percentile | Refusal]
    exceed: Exceeding
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Return whether it fits by all that is known: what may be drawn, not only what was read."""
        return self.upper_w <= self.allowed_w * (1 + EXACT)

    @property
    def fits_as_read(self) -> bool:
        """Return whether the sum of the highest readings fits."""
        return self.maximum_w <= self.allowed_w * (1 + EXACT)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "names": list(self.names),
            "fits": self.fits,
            "fits_as_read": self.fits_as_read,
            "lacks": list(self.lacks),
            "percentiles": {name: one.to_json() for name, one in self.percentiles.items()},
            "exceed": self.exceed.to_json(),
            "notes": list(self.notes),
        }


def mixed_of(rack: Rack, limits: Sequence[Limit], jobs: Sequence[tuple[Job, Sequence[HostTrace]]]) -> Mixed | None:
    """Return a mix held against a rack, None where there is none. Raises ConfigError."""
    if not jobs:
        return None
    load = load_of(jobs)
    binding = tightest(limits, load.nodes)
    allowed_w = load.nodes * binding.most_w(load.nodes)
    confidence = rack.rules.confidence
    hidden = [widened(draws).factor for _, draws in jobs]
    wider = max((one for one in hidden if one is not None), default=1.0)
    unknown = any(d.gain is None for _, draws in jobs for d in draws)
    lacks = [*([ACCURACY] if unknown else []), *([PEAKS] if None in hidden else [])]
    return Mixed(
        names=tuple(f"{job.count} x {job.name} on {job.nodes}" for job, _ in jobs), nodes=load.nodes,
        allowed_w=allowed_w, binding=binding.name, mean_w=load.mean_w, maximum_w=load.maximum_w,
        upper_w=load.plan_w * wider, lacks=tuple(lacks),
        percentiles={percent(p / 100): load.percentile(p / 100, confidence=confidence) for p in rack.rules.percentiles},
        exceed=load.exceeding(allowed_w, confidence=confidence, wider=load.plan_w * wider / load.maximum_w),
        notes=load.notes,
    )  # fmt: skip
