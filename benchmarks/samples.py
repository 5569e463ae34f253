"""Print what the energy of an interval costs over many samples, as a ratio to a plain numpy sum of the columns."""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.core.spec import Accuracy, Spec

ACCURACY = Accuracy("assumed", 0.05, 0.0, 0.001, "bench", "")


def columns(count: int) -> tuple[Readings, Readings]:
    """Return a power and a counter with `count` readings at 10 Hz."""
    rng = np.random.default_rng(0)
    t0 = np.arange(count, dtype=np.int64) * 100_000_000 + rng.integers(0, 2_000_000, count)
    t1 = t0 + 20_000
    power = 500.0 + 100.0 * rng.standard_normal(count)
    counter = np.cumsum(power)
    counter *= 0.1
    return Readings(t0, t1, power), Readings(t0, t1, counter)


def timed(work: object) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - begin


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000_000)
    count = parser.parse_args().count
    power, counter = columns(count)
    a, b = int(power.t0_ns[count // 10]) + 7, int(power.t0_ns[-count // 10]) + 7
    power_spec = Spec("power_w", "power", "W", "power", 0.1, 0.1, accuracy=ACCURACY)
    counter_spec = Spec("energy_j", "energy", "J", "counter", 0.1, accuracy=ACCURACY)
    plain = timed(lambda: [float(c.sum()) for c in (power.t0_ns, power.t1_ns, power.value)])
    from_counter = timed(lambda: CounterCurve(counter, counter_spec, name="c").energy(a, b))
    curves: list[PowerCurve] = []
    from_power = timed(lambda: curves.append(PowerCurve(power, power_spec, name="p")))
    again = timed(lambda: curves[0].energy(a, b))
    print(f"{count:,} samples; plain numpy sum over the three columns: 1 (= {plain:.3f} s CPU)")
    print(f"energy of an interval by counter, from the columns on:  {from_counter / plain:8.2f}")
    print(f"energy of an interval by power, from the columns on:    {(from_power + again) / plain:8.2f}")
    print(f"energy of each further interval by power:               {again / plain:8.5f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak:.1f} GB for {count * 32 / 1e9:.1f} GB of columns")


if __name__ == "__main__":
    main()
