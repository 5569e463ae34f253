"""Print by regime how often the truth lies in the interval, and how wide the interval is beside the error.

    python -m benchmarks coverage                       all regimes, with a table by kind of load
    python -m benchmarks coverage --regime idle         one regime

Gain and offset are zero on both sides. The ratio is the median half-width (k = 2) over the root mean square error: 2 is
as narrow as an interval of 95 % can be if errors are normally distributed.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.loads import list_kinds, read_real_logs
from benchmarks.regimes import REGIMES, Outcome, measure_regime

if TYPE_CHECKING:
    from collections.abc import Iterable

SEED, COUNT = 19, 250  # fixed on 17 November 2026, before the method was changed
LEAST_INSIDE, MOST_RATIO, LEAST_KINDS = 0.95, 4.0, 0.8


def format_row(name: str, outcomes: Iterable[Outcome]) -> str:
    """Return count, share inside, median half-width, root mean square error, their ratio, and unknown intervals."""
    rows = list(outcomes)
    known = [o for o in rows if o.known]
    inside, width, rms, ratio = summarise(known)
    without = f"  {len(rows) - len(known)} without an interval" if len(rows) > len(known) else ""
    return f"{name:30s} {len(known):6d} {inside:8.1%} {width:10.3%} {rms:10.3%} {ratio:7.1f}{without}"


def summarise(known: list[Outcome]) -> tuple[float, float, float, float]:
    """Return share inside, median half-width, root mean square error, and the ratio of the last two."""
    inside = float(np.mean([o.is_inside for o in known]))
    width = float(np.median([o.width for o in known]))
    rms = float(np.sqrt(np.mean([o.error**2 for o in known])))
    return inside, width, rms, width / rms if rms else np.inf


def print_regime(regime: str, outcomes: list[Outcome]) -> bool:
    """Print a regime and its kinds of load; return whether it keeps the promise."""
    inside, _, _, ratio = summarise([o for o in outcomes if o.known])
    print(format_row(regime, outcomes))
    kept = []
    for kind in list_kinds():
        part = [o for o in outcomes if o.kind == kind]
        own_inside, _, _, own_ratio = summarise([o for o in part if o.known])
        kept.append(own_ratio <= MOST_RATIO and own_inside >= LEAST_INSIDE)
        print(format_row(f"    {kind}", part))
    share = float(np.mean(kept))
    holds = inside >= LEAST_INSIDE and ratio <= MOST_RATIO and share >= LEAST_KINDS
    verdict = "holds" if holds else "MISSED"
    print(f"    {verdict}: {inside:.1%} inside, ratio {ratio:.1f}, {share:.0%} of the kinds keep both", flush=True)
    return holds


def main() -> int:
    """Run the regimes and print their tables; return 1 if one misses the promise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="drawn loads of each kind and regime")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--regime", choices=list(REGIMES), action="append")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    regimes = options.regime or list(REGIMES)
    if not read_real_logs():
        print("no ../shared/data/h100-node-power: without loads of real logs")
    print(f"{'':30s} {'count':>6s} {'inside':>8s} {'median U':>10s} {'rms error':>10s} {'U/rms':>7s}")
    with ProcessPoolExecutor(options.workers) as pool:
        found = pool.map(partial(measure_regime, count=options.count, seed=options.seed), regimes)
        held = [print_regime(regime, outcomes) for regime, outcomes in zip(regimes, found, strict=True)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
