"""Measure a simulated 8xH100 node by all its meters at once, over their real protocols, and compare with the truth.

For each seed a random load and random errors of every meter within what it states; then how often the truth at the
meter's own point lies in its interval. `--virtual N` does the same in virtual time, which is quick.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.wall_scenarios import Outcome, load, measure, outcomes
from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import monotonic_ns
from joulelab.report.messages import word_check
from joulelab.store.run_reader import open_run
from joulelab.twin.model import H100, Node
from joulelab.twin.servers.powercap import PowercapFlaws
from joulelab.twin.truth import Truth
from joulelab.twin.twin_server import TwinServer

SERVERS = {"analyzer": 0.001, "bmc": 0.05, "modbus": 0.01, "pdu": 0.01, "redfish": 0.05}  # and the gain they state
GPU_GAIN, RAPL_GAIN = 0.06, 0.05


def play(seed: int, seconds: float) -> None:
    """Be the workload: load the node that JOULELAB_TWIN names from now on."""
    with Truth(Path(os.environ["JOULELAB_TWIN"])) as truth:
        profiles = load(np.random.default_rng(seed), seconds - 1.0, lead_s=0.2)
        now = monotonic_ns()
        truth.append_profiles(profiles, now, seconds + 60)
    subprocess.run(["sleep", str(seconds)], check=True)


def served(seed: int, seconds: float, *, gains: bool) -> list[Outcome]:
    """Serve a node with drawn errors, run the workload on it, and compare."""
    rng = np.random.default_rng(10_000 + seed)

    def drawn(most: float) -> float:
        return float(rng.uniform(-most, most)) if gains else 0.0

    node = Node(gpus=(H100,) * 8, seed=seed).with_flaws(gain_error=drawn(GPU_GAIN))
    wall = {name: {"gain_error": drawn(gain), "phase_s": float(rng.uniform(0, 1))} for name, gain in SERVERS.items()}
    wall["analyzer"]["phase_s"] /= 10
    cpus = 1 + drawn(RAPL_GAIN)
    powercap = PowercapFlaws(gain={f"{kind}:{k}": cpus for kind in ("cpu", "dram") for k in (0, 1)})
    with tempfile.TemporaryDirectory() as folder, TwinServer(node, powercap=powercap, wall=wall) as twin:
        if twin.wall.missing:
            raise SystemExit("; ".join(str(error) for error in twin.wall.missing.values()))
        words = [sys.executable, "-m", "benchmarks.wall", "--play", str(seed), "--seconds", str(seconds)]
        run = [sys.executable, "-m", "joulelab", "run", "--runs", folder, "--idle", "5", "-q", "--", *words]
        here = Path(__file__).parents[1]  # of the workload, which is this module
        subprocess.run(run, env=os.environ | twin.environment, check=True, stdout=subprocess.DEVNULL, cwd=here)
        result = analyse_run(open_run(next(Path(folder).iterdir())))
        for check in result.checks:
            if check.name in ("silent meter", "gaps", "cords", "meters disagree", "source"):
                print(f"  seed {seed}: {check.name}: {word_check(check).text}")
        return outcomes(result, twin.truth, gains=gains)


def virtual(seed: int, seconds: float, *, gains: bool) -> list[Outcome]:
    """Do the same in virtual time."""
    with tempfile.TemporaryDirectory() as folder:
        result, truth = measure(Path(folder), seed, seconds, gains=gains)
        with truth:
            return outcomes(result, truth, gains=gains)


def main() -> int:
    """Print how often each figure covers the truth, and how wide it is; fail below 95 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--virtual", action="store_true", help="in virtual time, without servers")
    parser.add_argument("--no-gains", action="store_true", help="no errors of gain, so that these hide nothing")
    parser.add_argument("--play", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        play(options.play, options.seconds)
        return 0
    found: dict[str, list[Outcome]] = defaultdict(list)
    for seed in range(1, options.seeds + 1):
        one = (virtual if options.virtual else served)(seed, options.seconds, gains=not options.no_gains)
        for outcome in one:
            found[outcome.name].append(outcome)
        missed = [f"{o.name} {o.value:.0f} ± {o.expanded:.0f}, truth {o.true:.0f}" for o in one if not o.covered]
        print(f"seed {seed}: {len(one)} figures, outside: {json.dumps(missed)}", flush=True)
    print(f"{'figure':<40} {'cases':>5} {'inside':>7} {'median U':>9} {'median error':>13}")
    for name, rows in sorted(found.items()):
        inside = np.mean([o.covered for o in rows])
        width, error = (np.median([abs(x / o.true) for o in rows for x in [f(o)]]) for f in (_width, _error))
        print(f"{name:<40} {len(rows):>5} {inside:>7.1%} {width:>9.2%} {error:>13.2%}")
    every = [o.covered for name, rows in found.items() for o in rows]
    print(f"all figures: {np.mean(every):.1%} of {len(every)} inside")
    worst = min(np.mean([o.covered for o in rows]) for name, rows in found.items())
    return 0 if worst >= 0.95 else 1


def _width(o: Outcome) -> float:
    return o.expanded


def _error(o: Outcome) -> float:
    return o.value - o.true


if __name__ == "__main__":
    sys.exit(main())
