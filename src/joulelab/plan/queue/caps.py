"""Give the ways in which a job can be run: without a cap, or under one that makes it slower and its nodes draw less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.cap_response import CapPoint, CapResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.plan.queue.jobs import Job
    from joulelab.plan.queue.site import GivenCap, Site

    # Gives by how many standard uncertainties a source is wrong; None: everything is as it is believed.
    Drawn = Callable[[str], float] | None


@dataclass(frozen=True, slots=True)
class Step:
    """Hold one cap of a workload (W per GPU, None: without): ratios to what it is without a cap."""

    cap_w: float | None
    slowdown: Quantity
    node: Quantity
    highest: float


Curve = tuple[Step, ...]
FREE = Step(None, Quantity(1.0), Quantity(1.0), 1.0)
UNCAPPED: Curve = (FREE,)


def curve_of(response: CapResponse, slowdown: float) -> Curve:
    """Return the caps of a response that cost at most that share of time, from the lowest to no cap at all."""
    reference = response.points[-1]
    found = [
        Step(p.cap_w, p.slowdown, p.node_w / reference.node_w, p.highest_w / reference.highest_w)
        for p in response.points[:-1]
        if p.slowdown.value <= 1 + slowdown
    ]
    return (*found, FREE)


def given_response(caps: Sequence[GivenCap], accuracy: float | None, name: str) -> CapResponse:
    """Return what a plan file says of caps; it may be wrong by the share `accuracy` (k = 2). Raises ConfigError."""
    ordered = sorted(caps, key=lambda cap: cap.cap_w)
    if len(ordered) < 2 or ordered[-1].slowdown != 1:
        raise ConfigError(
            f"the caps of {name} need the highest one, with slowdown = 1, and a lower one", next="give both"
        )
    known = accuracy is not None

    def quantity(value: float, of: str, cap_w: float) -> Quantity:
        terms = {f"given:{name}:{of}:{cap_w:g}": value * (accuracy or 0) / 2}
        return Quantity(value, terms if accuracy else {}, known)

    points = tuple(
        CapPoint(
            each.cap_w, quantity(each.slowdown, "time", each.cap_w) if each is not ordered[-1] else Quantity(1.0),
            quantity(each.node_w, "power", each.cap_w), each.highest_w,
        )
        for each in ordered
    )  # fmt: skip
    return CapResponse(points, "model", "as the plan file says; where it is from is not known", name)


class Option(NamedTuple):
    """Hold one way to run a job: what is planned with, and what is drawn (W of all its nodes) and how long (s).

    `extra_w` is what it takes of the budget beside what its nodes draw unused, `planned_w` its mean power as believed.
    `free_s` is its time without a cap.
    """

    cap_w: float | None
    nodes: int
    planned_s: float
    planned_w: float
    extra_w: float
    time_s: float
    mean_w: float
    high_w: float
    free_s: float


def value_of(quantity: Quantity, drawn: Drawn) -> float:
    """Return a value as it is believed, or as it is where its sources are wrong by what was drawn."""
    if drawn is None:
        return quantity.value
    return quantity.value + sum(u * drawn(source) for source, u in quantity.terms.items())


def truths_of(curves: Mapping[str, Curve], drawn: Drawn) -> dict[str, list[tuple[float, float]]]:
    """Return slowdown and power ratio of every cap as drawn: a cap makes nothing faster, and no power is below 0."""
    return {
        name: [
            (max(value_of(s.slowdown, drawn), min(s.slowdown.value, 1.0)), max(value_of(s.node, drawn), 0.0))
            for s in curve
        ]
        for name, curve in curves.items()
    }


def options_of(
    job: Job,
    curve: Curve,
    truth: Sequence[tuple[float, float]],
    site: Site,
    drawn: Drawn,
) -> list[Option]:
    """Return a job under each cap of its curve, from the lowest; the budget is kept by what is believed."""
    node_w = max(value_of(job.node_w, drawn), 0.0)
    off = node_w / job.node_w.value if job.node_w.value else 1.0
    found = []
    for step, (slowdown, ratio) in zip(curve, truth, strict=True):
        believed_w = job.node_w.value * step.node.value
        high_w = believed_w if job.highest_w is None else max(job.highest_w * step.highest, believed_w)
        counted_w = believed_w if site.count == "mean" else high_w
        # A peak is off by as much as the mean is: they are of one meter, and of one cap.
        wrong = off * ratio / step.node.value if step.node.value else 1.0
        found.append(
            Option(
                step.cap_w, job.nodes, job.duration_s * step.slowdown.value, job.nodes * believed_w,
                # What draws less than an unused node leaves the budget as it is: it would be gone when the job ends.
                job.nodes * max(counted_w - site.rest_w, 0.0),
                job.duration_s * slowdown, job.nodes * node_w * ratio, job.nodes * high_w * wrong, job.duration_s,
            )
        )  # fmt: skip
    return found
