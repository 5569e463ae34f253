"""Print how often the truth lies within k = 2 and within the bound, with drawn gains and with gain zero."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios import Outcome, campaign

if TYPE_CHECKING:
    from collections.abc import Iterable


def line(name: str, outcomes: Iterable[Outcome]) -> str:
    """Return one row: count, coverage by interval and by bound, median half-width, median error."""
    rows = list(outcomes)
    if not rows:
        return f"{name:28s}       0"
    covered, held = np.mean([o.covered for o in rows]), np.mean([o.held for o in rows])
    width = np.median([o.width for o in rows])
    error = np.median([abs(o.error_j) / o.true_j for o in rows])
    return f"{name:28s} {len(rows):7d} {covered:9.1%} {held:9.1%} {width:14.2%} {error:14.2%}"


def main() -> None:
    """Run the campaigns and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    for gain in (0.05, 0.0):
        outcomes = campaign(options.count, gain, options.seed)
        print(f"\ngain within ±{gain:.0%} on both sides, seed {options.seed}")
        print(f"{'':28s} {'count':>7s} {'covered':>9s} {'in bound':>9s} {'median U (k=2)':>14s} {'median error':>14s}")
        print(line("all", outcomes))
        print(line("not in step, or evident", (o for o in outcomes if not o.blind)))
        print(line("in step, without evidence", (o for o in outcomes if o.blind)))
        for field in ("load", "meter", "channel", "gap"):
            for value in sorted({str(getattr(o, field)) for o in outcomes}):
                print(line(f"  {field}: {value}", (o for o in outcomes if str(getattr(o, field)) == value)))


if __name__ == "__main__":
    main()
