"""Hold a mix of jobs against a rack: what they draw together, and how often that is too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.planner.rack.extremes import Refusal, percent
from joulelab.planner.rack.fit import tightest
from joulelab.planner.rack.mix import load_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.planner.draws import Draw
    from joulelab.planner.rack.extremes import Exceeding, Percentile
    from joulelab.planner.rack.facility import Limit, Rack
    from joulelab.planner.rack.mix import Job


@dataclass(frozen=True, slots=True)
class Mixed:
    """Hold what a mix of jobs draws (W, all nodes together) and what the rack allows so many nodes.

    `percentiles` hold an answer or a refusal by name. `binding` is the tightest limit.
    """

    names: tuple[str, ...]
    nodes: int
    allowed_w: float
    binding: str
    mean_w: float
    maximum_w: float
    upper_w: float | None
    percentiles: dict[str, Percentile | Refusal]
    exceed: Exceeding
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "names": list(self.names),
            "percentiles": {name: one.to_json() for name, one in self.percentiles.items()},
            "exceed": self.exceed.to_json(),
            "notes": list(self.notes),
        }


def mixed_of(rack: Rack, limits: Sequence[Limit], jobs: Sequence[tuple[Job, Sequence[Draw]]]) -> Mixed | None:
    """Return a mix held against a rack, None where there is none. Raises ConfigError."""
    if not jobs:
        return None
    load = load_of(jobs)
    binding = tightest(limits, load.nodes)
    allowed_w = load.nodes * binding.most_w(load.nodes)
    confidence = rack.rules.confidence
    return Mixed(
        names=tuple(f"{job.count} x {job.name} on {job.nodes}" for job, _ in jobs), nodes=load.nodes,
        allowed_w=allowed_w, binding=binding.name, mean_w=load.mean_w, maximum_w=load.maximum_w, upper_w=load.upper_w,
        percentiles={percent(p / 100): load.percentile(p / 100, confidence=confidence) for p in rack.rules.percentiles},
        exceed=load.exceeding(allowed_w, confidence=confidence), notes=load.notes,
    )  # fmt: skip
