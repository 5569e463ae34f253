"""Print the energy error on the simulated node, through the real library and recorder, against the twin's truth."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from joulelab.analysis.analyse import analyse_run
from joulelab.store.run_reader import open_run
from joulelab.twin.flaws import Counter
from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.profile import Profile, burst, constant, ramp, square
from joulelab.twin.twin_server import TwinServer

LOADS: dict[str, Profile] = {
    "constant": constant(0.8),
    "square 0.35 s, duty 0.5": square(0.35, 0.5, 0.05, 0.95),
    "square 0.35 s, duty 0.3": square(0.35, 0.3, 0.05, 0.95),
    "square 2.7 s, duty 0.5": square(2.7, 0.5, 0.05, 0.95),
    "square 2.7 s, duty 0.3": square(2.7, 0.3, 0.05, 0.95),
    "ramp over 14 s": ramp(14.0),
    "burst of 1.5 s in idle": burst(6.0, 1.5),
}


def measure(environment: dict[str, str], runs: Path, seconds: float) -> Any:
    """Run `sleep` under joulelab on the twin and return the result."""
    command = [sys.executable, "-m", "joulelab", "run", "--quiet", "--runs", str(runs), "--", "sleep", f"{seconds}"]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    newest = max(runs.iterdir(), key=lambda p: p.name)
    return analyse_run(open_run(newest))


def phases(rng: np.random.Generator, node: Node) -> Node:
    """Return the node with meters that update at random moments, and without gain errors."""
    for i in range(len(node.gpus)):
        node = node.with_flaws(
            i,
            gain_error=0.0,
            counter=Counter.TRUE,
            counter_phase_s=float(rng.uniform(0, 0.1)),
            power_phase_s=float(rng.uniform(0, 0.1)),
        )
    return node


def on_twin(loads: list[Profile], seconds: float, seed: int) -> list[tuple[float, float, float]]:
    """Measure a node with one GPU per load; return (error, interval without the unseen bound, truth) in J for each."""
    rng = np.random.default_rng(seed)
    node = phases(rng, Node(gpus=(find_gpu_model("h100"),) * len(loads), packages=1))
    profiles = {f"gpu:{i}": load for i, load in enumerate(loads)}
    with tempfile.TemporaryDirectory() as folder, TwinServer(node, profiles=profiles) as twin:
        result = measure(twin.environment, Path(folder), seconds)
        found = []
        for i in range(len(loads)):
            scope = next(s for s in result.scopes if s.scope == f"gpu:{i}")
            truth = twin.truth.energy(f"gpu:{i}", result.start_ns, result.end_ns)
            found.append((scope.energy.value - truth, 2 * scope.energy.without("unseen", "gain").u, truth))
        return found


def main() -> None:
    """Measure every load with eight GPUs over 10 s, and one GPU over 1.55 s many times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"8 GPUs, {options.seconds:g} s, counter that integrates true power and steps every 100 ms")
    print("U is that of edges and sampling: without gain (none was drawn) and without the bound for loads in step")
    print(f"{'load':28s} {'error of the sum':>17s} {'worst GPU':>10s} {'U (k=2)':>9s} {'inside':>7s}")
    for name, load in LOADS.items():
        print(row(name, on_twin([load] * 8, options.seconds, options.seed)))
    print("one GPU, 1.55 s, 32 of them with meters at random moments")
    for name in ("constant", "square 0.35 s, duty 0.5", "square 2.7 s, duty 0.3"):
        print(row(name, on_twin([LOADS[name]] * 32, 1.55, options.seed), single=True))


def row(name: str, found: list[tuple[float, float, float]], *, single: bool = False) -> str:
    """Return one line of the table."""
    error, u, truth = (np.array(column) for column in zip(*found, strict=True))
    total = "" if single else f"{error.sum() / truth.sum():+.3%}"
    worst, width, inside = np.abs(error / truth).max(), np.median(u / truth), (np.abs(error) <= u).mean()
    return f"{name:28s} {total:>17s} {worst:10.3%} {width:9.2%} {inside:7.0%}"


if __name__ == "__main__":
    main()
