"""Print how intervals change with a constant of analysis: how often they hold the truth, and how wide they are.

    python -m benchmarks.constants            Markdown, for docs/explanation/analysis.md

Edges, gaps and partial sensors by 600 drawn scenarios of one device, slow meters by 12 drawn nodes; no errors of gain,
which would hide the rest.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios import campaign
from benchmarks.wall import virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS, WALL_SEEDS, WALL_SECONDS = (1, 7, 23), range(1, 13), 20.0
OF_ONE_DEVICE = (
    *("counter.TICK_DRIFT", "counter.HIDES_ALL_S", "counter.SHARP_SHARE", "power.GAP_STEPS", "power.GAP_LIKE_REST"),
    *("power.GAP_UNKNOWN", "power.FEW_READINGS", "power.EDGE_READINGS", "unseen.BEYOND_MEANS", "unseen.RIPPLE"),
    *("unseen.REPEAT_CORRELATION", "unseen.FEWEST_STEPS", "unseen.STEPS_PER_BLOCK", "unseen.GRID_DRIFT"),
    "unseen.IN_STEP_EVIDENCE",
)
OF_NODES = (
    *("slow_meters.LONGEST_LAG_S", "slow_meters.LAG_REACH", "slow_meters.FEWEST_LAG_READINGS", "slow_meters.SAME_LOAD"),
    *("slow_meters.RIVAL_FACTOR", "slow_meters.RIVAL_SHARE", "slow_meters.EXPLAINED_SHARE", "slow_meters.SLOPE_DRIFT"),
    *("slow_meters.FAIR_MEAN", "slow_meters.FEWEST_GUIDED", "joining.SLOW_FACTOR", "joining.GUIDE_COVERAGE"),
)
FACTORS = (0.6, 1.6)
Figures = tuple[float, float]


def measure_devices() -> Figures:
    """Return the share of scenarios inside the interval, and the median relative width (k = 2)."""
    found = [o for seed in SEEDS for o in campaign(200, 0.0, seed) if not o.blind]
    return float(np.mean([o.covered for o in found])), float(np.median([o.width for o in found]))


def measure_nodes() -> Figures:
    """Return the same for the meters around nodes."""
    every = [o for seed in WALL_SEEDS for o in virtual(seed, WALL_SECONDS, gains=False)]
    found = [o for o in every if o.name.startswith(("node.", "outlet"))]
    return float(np.mean([o.covered for o in found])), float(np.median([o.expanded / o.true for o in found]))


@contextmanager
def replace_constant(name: str, factor: float) -> Iterator[str]:
    """Multiply a constant in all modules of analysis that use it; give the value it has then."""
    module, _, constant = name.partition(".")
    value = getattr(importlib.import_module(f"joulelab.analysis.{module}"), constant)
    other = type(value)(value * factor)
    users = [m for key, m in sys.modules.items() if key.startswith("joulelab.analysis.") and hasattr(m, constant)]
    for user in users:
        setattr(user, constant, other)
    try:
        yield f"{other:g}"
    finally:
        for user in users:
            setattr(user, constant, value)


def print_table(names: tuple[str, ...], measure: Callable[[], Figures]) -> None:
    """Print a row for each constant: the figures with its value times each of the factors."""
    inside, width = measure()
    print(f"\nAs it is: {inside:.1%} inside, median width {width:.2%}.\n")
    head = " | ".join(f"x {factor:g} | inside | width" for factor in FACTORS)
    print(f"| constant | {head} |\n|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        cells = []
        for factor in FACTORS:
            with replace_constant(name, factor) as value:
                inside, width = measure()
            cells.append(f"{value} | {inside:.1%} | {width:.2%}")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print both tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print_table(OF_ONE_DEVICE, measure_devices)
    print_table(OF_NODES, measure_nodes)


if __name__ == "__main__":
    main()
