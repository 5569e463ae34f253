"""Print how intervals change with a constant of analysis: how often they hold the truth, and how wide they are.

    python -m benchmarks.constants            Markdown, for docs/explanation/analysis.md

Each constant by the regime of `benchmarks.regimes` that it is about, with the first draws of `benchmarks.coverage`;
lags by 12 drawn nodes. No errors of gain and offset, which would hide the rest.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.coverage import SEED, summarise
from benchmarks.regimes import measure_regime
from benchmarks.wall import virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 60  # drawn loads of each kind
WALL_SEEDS, WALL_SECONDS = range(1, 13), 20.0
BY_REGIME = {
    "counter": ("counter.TICK_DRIFT", "counter.REFINING_KNOTS"),
    "partial sensor": (
        *("power.MISSED_WAY_S", "power.BEAT_PART", "unseen.FEWEST_CROSSINGS", "unseen.SHARP_CROSSING"),
        *("unseen.SHORTEST_BEAT", "unseen.GRID_DRIFT"),
    ),
    "slow meter alone": ("power.MISSED_STEPS", "power.IDLE_SHARE"),
    "slow meter guided": (
        *("slow_meters.EXPLAINED_SHARE", "slow_meters.FITTED_NUMBERS", "slow_meters.SLOPE_DRIFT"),
        *("slow_meters.FEWEST_GUIDED", "slow_meters.FAIR_MEAN", "joining.SLOW_FACTOR"),
    ),
    "edges": ("power.EDGE_READINGS", "power.WINDOW_EDGE", "power.FEW_READINGS", "unseen.RIPPLE"),
    "gaps": ("power.GAP_STEPS", "power.GAP_DOUBT", "unseen.BEYOND_MEANS"),
}
OF_ONE_DEVICE = tuple(name for names in BY_REGIME.values() for name in names)
OF_NODES = (
    *("slow_meters.LONGEST_LAG_S", "slow_meters.LAG_REACH", "slow_meters.FEWEST_LAG_READINGS", "slow_meters.SAME_LOAD"),
    *("slow_meters.RIVAL_FACTOR", "slow_meters.RIVAL_SHARE", "joining.GUIDE_COVERAGE"),
)
FACTORS = (0.6, 1.6)


def judge_regime(regime: str) -> str:
    """Return the share inside the interval, and the median relative half-width (k = 2)."""
    inside, width, *_ = summarise([o for o in measure_regime(regime, COUNT, SEED) if o.known])
    return f"{inside:.1%} | {width:.3%}".replace("%", " %")


def judge_nodes() -> str:
    """Return the same for the meters around nodes."""
    every = [o for seed in WALL_SEEDS for o in virtual(seed, WALL_SECONDS, gains=False)]
    found = [o for o in every if o.name.startswith(("node.", "outlet"))]
    inside, width = np.mean([o.covered for o in found]), np.median([o.expanded / o.true for o in found])
    return f"{inside:.1%} | {width:.3%}".replace("%", " %")


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


def print_table(title: str, names: tuple[str, ...], judge: Callable[[], str]) -> None:
    """Print a row for each constant: the figures with its value times each of the factors."""
    print(f"\n{title}, as it is: {judge().replace(' | ', ' inside, median U ')}.\n")
    head = " | ".join(f"x {factor:g} | inside | median U" for factor in FACTORS)
    print(f"| constant | {head} |\n|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        cells = []
        for factor in FACTORS:
            with replace_constant(name, factor) as value:
                cells.append(f"{value} | {judge()}")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a table for each regime, and one for nodes."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for regime, names in BY_REGIME.items():
        print_table(f"Regime {regime}", names, partial(judge_regime, regime))
    print_table(f"Meters around {len(WALL_SEEDS)} nodes", OF_NODES, judge_nodes)


if __name__ == "__main__":
    main()
