"""Say what a power cap does to a job: how much longer it takes, and what the node draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.terms import Quantity
    from joulelab.planner.draws import Measured


@dataclass(frozen=True, slots=True)
class Point:
    """Hold one cap (W on each GPU): time as a ratio to that without caps, mean and highest power of a node (W)."""

    cap_w: float
    slowdown: Quantity
    node_w: Quantity
    highest_w: float
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """Hold what caps do, from the lowest to the highest; the last is the reference, without a cap of its own.

    `source` says whether it was measured (also on a twin) or is a model of other GPUs' measurements; `said` is for
    people: what it was made from, and what to doubt.
    """

    points: tuple[Point, ...]
    source: Literal["measured", "twin", "model"]
    said: str = ""

    @property
    def caps_w(self) -> tuple[float, ...]:
        """Return the caps there are points for, in W."""
        return tuple(p.cap_w for p in self.points)

    def at(self, cap_w: float) -> Point:
        """Return what a cap does, between the points by interpolation, its uncertainty included.

        Raises ConfigError outside of them: nothing is extrapolated.
        """
        raise NotImplementedError


def response_of(measured: Sequence[Measured]) -> Response:
    """Return what caps do from runs of one workload at several caps (a run without a cap is the reference).

    Time is per work where work was reported alike in all of them, else that of the run. Raises ConfigError where runs
    are of different workloads, or fewer than two caps were measured.
    """
    raise NotImplementedError


def modelled_response(node_w: Quantity, highest_w: float, *, gpus: int, gpu_w: float, model: str = "") -> Response:
    """Return what caps would do by the curve of other GPUs, with the error that it had on held-out workloads."""
    raise NotImplementedError
