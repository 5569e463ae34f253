"""Hold a rate that is the same at all times: a figure that somebody gave, or the mean of a year."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.plan.rates.rate import check_size
from joulelab.plan.rates.steps import check_edges

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats
    from joulelab.plan.rates.rate import Label


@dataclass(frozen=True, slots=True)
class Constant:
    """Give one value (in the label's unit) for all times. Raises ConfigError for one that no rate has."""

    value: float
    label: Label

    def __post_init__(self) -> None:
        check_size([self.value], self.label)

    def changes(self, since_s: float, until_s: float) -> Floats:  # noqa: ARG002 it never changes
        """Return no time."""
        return np.empty(0)

    def means(self, edges_s: Floats) -> Floats:
        """Return the value between each two of ascending times. Raises ConfigError where they do not ascend."""
        edges = check_edges(edges_s)
        return np.full(max(edges.size - 1, 0), self.value)
