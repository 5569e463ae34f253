"""Draw studies of which the truth is known, and count how often statistics of repeats are right.

`python -m tests.analysis.simulated` prints the figures that docs/explanation/statistics.md has.
"""

from __future__ import annotations

import random
import sys

from joulelab.analysis.cell_comparison import RepeatSample, compare_cells, make_sample
from joulelab.analysis.statistics import find_outliers

NUMBERS = (3, 5, 10)
TOLD_APART = ("more", "less")
NOISE = (0.01, 0.03)  # relative deviations of the two cells of a pair: they are not alike


def drawn(draw: random.Random, n: int, mean: float = 100.0, noise: float = 0.02) -> RepeatSample:
    return make_sample([draw.gauss(mean, noise * mean) for _ in range(n)], 0.0)


def coverage(n: int, times: int, ratio: float = 1.2, seed: int = 1) -> dict[str, float]:
    """Return how often the intervals of a mean, a difference and a ratio hold the truth."""
    draw = random.Random(seed * 1000 + n)
    held = dict.fromkeys(("mean", "difference", "ratio"), 0)
    for _ in range(times):
        a, b = drawn(draw, n, 100.0 * ratio, NOISE[0]), drawn(draw, n, 100.0, NOISE[1])
        (pair,) = compare_cells({"a": a, "b": b}, [("a", "b")])
        truth = {"mean": 100.0 * ratio, "difference": 100.0 * (ratio - 1), "ratio": ratio}
        found = {"mean": a.interval, "difference": pair.difference_interval, "ratio": pair.ratio_interval}
        for name, bounds in found.items():
            assert bounds is not None
            held[name] += bounds[0] <= truth[name] <= bounds[1]
    return {name: count / times for name, count in held.items()}


def family_error(n: int, times: int, lines: int = 4, cells: int = 3, seed: int = 2) -> tuple[float, float]:
    """Return in which share of studies of equal cells some pair is told apart, corrected and uncorrected."""
    draw = random.Random(seed * 1000 + n)
    wrong = plain = 0
    for _ in range(times):
        samples, pairs = {}, []
        for line in range(lines):
            keys = [f"{line}-{k}" for k in range(cells)]
            samples |= {key: drawn(draw, n, noise=draw.choice(NOISE)) for key in keys}
            pairs += [(b, a) for k, b in enumerate(keys) for a in keys[:k]]
        found = compare_cells(samples, pairs)
        wrong += any(p.verdict in TOLD_APART for p in found)
        plain += any(p.p is not None and p.p <= 0.05 for p in found)
    return wrong / times, plain / times


def false_marks(n: int, times: int, seed: int = 3) -> float:
    """Return in which share of cells of normal repeats one is marked."""
    draw = random.Random(seed * 1000 + n)
    return sum(bool(find_outliers([draw.gauss(100.0, 2.0) for _ in range(n)])) for _ in range(times)) / times


def found_marks(n: int, times: int, deviations: float = 10.0, seed: int = 4) -> float:
    """Return how often a repeat that is so many deviations off is marked."""
    draw = random.Random(seed * 1000 + n)
    odd = [[100.0 + 2.0 * deviations, *(draw.gauss(100.0, 2.0) for _ in range(n - 1))] for _ in range(times)]
    return sum(0 in find_outliers(values) for values in odd) / times


def settled(n: int, share: float, times: int, seed: int = 5) -> tuple[int, float]:
    """Return the repeats that are named for cells exactly `share` apart with a deviation of 2 %, and how often they do.

    What is named is worked out from what the cells truly are; those seen of n repeats scatter around it.
    """
    truth = {"a": RepeatSample(n, 100.0 * (1 + share), 2.0, meter=0.0), "b": RepeatSample(n, 100.0, 2.0, meter=0.0)}
    (pair,) = compare_cells(truth, [("a", "b")])
    assert pair.more_repeats is not None
    draw = random.Random(seed)
    done = 0
    for _ in range(times):
        values = {"a": 100.0 * (1 + share), "b": 100.0}
        cells = {
            key: make_sample([draw.gauss(mean, 2.0) for _ in range(n + pair.more_repeats)], 0.0)
            for key, mean in values.items()
        }
        done += compare_cells(cells, [("a", "b")])[0].verdict in TOLD_APART
    return pair.more_repeats, done / times


def main(times: int = 20_000) -> None:
    """Print the figures."""
    for n in NUMBERS:
        for ratio in (1.2, 80.0):
            found = coverage(n, times, ratio)
            print(f"n {n:2} ratio {ratio:4}: " + ", ".join(f"{name} {share:.1%}" for name, share in found.items()))
    for n in NUMBERS:
        corrected, plain = family_error(n, times // 4)
        print(f"n {n:2}: 12 comparisons of equal cells, some told apart: {corrected:.1%}; uncorrected {plain:.1%}")
    for n in (3, 4, 5, 6, 8, 10, 15, 20):
        print(f"n {n:2}: marked by chance {false_marks(n, times):.1%}, ten deviations off {found_marks(n, times):.0%}")
    for n, share in ((3, 0.02), (3, 0.03), (5, 0.02), (5, 0.01)):
        more, often = settled(n, share, times // 10)
        print(f"n {n:2}, {share:.0%} apart at 2 % scatter: {more} more repeats settle it in {often:.0%}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
