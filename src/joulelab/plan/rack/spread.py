"""Say how much nodes of one kind differ: what one node drew is not quite what the next one draws at the same work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.analysis.statistics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.measured_runs import HostTrace

ASSUMED = 0.02
SOURCE = (
    "twice what a node may differ from the mean of eight H100 nodes in one job (1.0 %, k = 2), by the logs that "
    "Sustainable Metal Cloud published with MLPerf Training v4.0"
)
LEAST_HOSTS = 3  # of two the spread itself is hardly known
TWO_SIGMA = math.erfc(math.sqrt(2))  # what is outside of k = 2


@dataclass(frozen=True, slots=True)
class Spread:
    """Hold how much nodes differ in their highest power, relative, k = 2.

    `value` is how far one node may be from the mean of those measured, Student's t counted for few; `above` how far
    from the highest of them, upwards: 0 where that is high enough for any. `hosts` did the same work. An `assumed`
    spread is not from the runs.
    """

    value: float
    above: float
    hosts: int
    source: Literal["measured", "assumed"]
    said: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def spread_of(draws: Sequence[HostTrace]) -> Spread:
    """Return how much nodes differ by hosts that did the same work: those of one run, else those of runs of one name.

    An assumed figure stands in where fewer than three hosts can be compared.
    """
    groups = _groups(draws)
    hosts = max((g.size for g in groups), default=1)
    if hosts < LEAST_HOSTS:
        return _assumed(draws, groups, hosts)
    # Hosts of a second run are the same ones again: they make no more freedom.
    variance = sum(float(((g / g.mean() - 1) ** 2).sum()) for g in groups) / sum(g.size - 1 for g in groups)
    value = t_quantile(TWO_SIGMA, hosts - 1) * math.sqrt(variance * (1 + 1 / hosts))
    largest = max(groups, key=lambda g: g.size)
    above = max(float(largest.mean() / largest.max()) * (1 + value) - 1, 0.0)
    said = f"highest powers of {hosts} hosts at the same work; another one is within {value:.1%} of their mean (k = 2)"
    return Spread(value, above, hosts, "measured", said)


def _assumed(draws: Sequence[HostTrace], groups: Sequence[np.ndarray], hosts: int) -> Spread:
    """Return the assumed spread, or what two hosts differ by where that is more."""
    seen = max((float(np.ptp(g) / g.mean()) for g in groups), default=0.0)
    value = max(ASSUMED, seen)
    every = len({d.host for d in draws})
    why = (
        "two hosts were compared" if hosts > 1
        else "one host was measured" if every < 2
        else "no two hosts did the same work"
    )  # fmt: skip
    basis = SOURCE if value == ASSUMED else "what the two differ by"
    return Spread(value, value, hosts, "assumed", f"{why}: nodes are assumed to differ by {value:.1%} ({basis})")


def _groups(draws: Sequence[HostTrace]) -> list[np.ndarray]:
    """Return the highest powers (W) of hosts that did the same work, for each work that two and more did."""
    for key in ("run", "name"):
        found: dict[str, dict[str, float]] = {}
        for d in draws:
            work = getattr(d, key)
            if work and np.isfinite(d.high_w).any():
                of_work = found.setdefault(work, {})
                of_work[d.host] = max(of_work.get(d.host, 0.0), d.highest_w)
        groups = [np.array(list(hosts.values())) for hosts in found.values() if len(hosts) > 1]
        if groups:
            return groups
    return []
