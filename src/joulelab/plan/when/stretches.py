"""Say in words of time what a way to run a job is: run from here to there at this cap, pause until then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulelab.plan.when.baselines import Way
    from joulelab.plan.when.job import Job
    from joulelab.plan.when.slots import Slots

LEAST_S = 1.0  # shorter stretches are rounding


@dataclass(frozen=True, slots=True)
class Stretch:
    """Hold what is done from when to when (s since 1970), at which cap (W on each GPU, None: without one)."""

    since_s: float
    until_s: float
    does: Literal["run", "pause"]
    cap_w: float | None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"since_utc_s": self.since_s, "until_utc_s": self.until_s, "does": self.does, "cap_w": self.cap_w}


def stretches_of(way: Way, job: Job, slots: Slots) -> list[Stretch]:
    """Return what is done from the job's start to its end, neighbours that are alike joined."""
    found: list[Stretch] = []
    for one in _pieces(way, job, slots):
        last = found[-1] if found else None
        if last and (last.does, last.cap_w) == (one.does, one.cap_w) and abs(last.until_s - one.since_s) < LEAST_S:
            found[-1] = Stretch(last.since_s, one.until_s, last.does, last.cap_w)
        elif one.until_s - one.since_s >= LEAST_S:
            found.append(one)
    return found


def _pieces(way: Way, job: Job, slots: Slots) -> Iterator[Stretch]:
    """Give what is done in each slot: what went on before goes on first, a pause comes last."""
    before: int | None = None
    for t in range(len(slots.values)):
        since, end = max(float(slots.edges_s[t]), way.start_s), min(float(slots.edges_s[t + 1]), way.end_s)
        if end <= since:
            continue
        used = [k for k in range(len(job.modes)) if way.modes_s[t, k] >= LEAST_S]
        used.sort(key=lambda k: (k != before, -k))
        # What is left of the slot is a pause; the first slot of a job that starts in it has none.
        for k in used:
            until = min(since + float(way.modes_s[t, k]), end)
            yield Stretch(since, until, "run", job.modes[k].cap_w)
            since, before = until, k
        if end - since >= LEAST_S:
            yield Stretch(since, end, "pause", None)
            before = None
