"""Cost of joulelab for runs that do not use a new feature: start-up and recorder of two checkouts, in turn.

    python -m benchmarks.unused_cost --before /tmp/before --after . [--rounds 15] [--seconds 10]

Each round measures both checkouts, the second one first in every other round; the first round only warms up. Both run
the same interpreter with the packages of its environment, and find the same eight simulated H100. Times are those of
the CPU, user and system, because they depend less on what else the machine does; the ratio is the median of the ratios
of single rounds, with their quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.cost import read_cpu_ns
from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.profile import square
from joulelab.twin.twin_server import TwinServer

Figures = dict[str, float]
PYTHON = sys.executable
STEADY_S = 2.0  # after the start of a recorder, until its cost is that of a long run
LONGEST_START_S = 60.0


def measure_cpu_ms(words: list[str], environ: dict[str, str]) -> float:
    """Return the CPU time (ms) of a command and of all processes that it waited for."""
    process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed: exit {process.returncode}")
    return 1e3 * (used.ru_utime + used.ru_stime)


def find_recorder(owner: int) -> int:
    """Return the process id of a run's recorder as soon as its workload runs."""
    until = time.monotonic() + LONGEST_START_S
    while time.monotonic() < until:
        lines = {child.pid: " ".join(child.cmdline()) for child in psutil.Process(owner).children()}
        found = [pid for pid, line in lines.items() if "joulelab.recorder" in line]
        if found and any(line.startswith("sleep ") for line in lines.values()):
            return found[0]
        time.sleep(0.05)
    raise SystemExit("the run has no recorder")


def measure_recorder(environ: dict[str, str], folder: str, seconds: float) -> tuple[float, float]:
    """Return the CPU time (ms per s) of the recorder and of the supervisor of a run that sleeps."""
    length = str(seconds + 2 * STEADY_S)  # the run ends after its recorder was watched
    words = [PYTHON, "-m", "joulelab", "run", "-q", "--runs", folder, "--", "sleep", length]
    with subprocess.Popen(words, env=environ) as run:
        recorder = find_recorder(run.pid)
        time.sleep(STEADY_S)
        begin, before = time.monotonic(), (read_cpu_ns(recorder), read_cpu_ns(run.pid))
        time.sleep(seconds)
        after, took = (read_cpu_ns(recorder), read_cpu_ns(run.pid)), time.monotonic() - begin
    return (after[0] - before[0]) * 1e-6 / took, (after[1] - before[1]) * 1e-6 / took


def measure_checkout(environ: dict[str, str], seconds: float) -> Figures:
    """Return the figures of one checkout in one round."""
    with tempfile.TemporaryDirectory() as folder:
        words = [PYTHON, "-m", "joulelab", "run", "-q", "--runs", folder, "--", "true"]
        found = {
            "import joulelab, ms": measure_cpu_ms([PYTHON, "-c", "import joulelab"], environ),
            "joulelab run -q -- true, ms": measure_cpu_ms(words, environ),
        }
        recorder, supervisor = measure_recorder(environ, folder, seconds)
    return {**found, "recorder, ms/s": recorder, "supervisor, ms/s": supervisor}


def find_environment(checkout: Path, served: dict[str, str]) -> dict[str, str]:
    """Return an environment in which joulelab is that of a checkout; exit if it is another."""
    source = (checkout / "src").resolve()
    environ = {**os.environ, **served, "PYTHONPATH": str(source)}
    words = [PYTHON, "-c", "import joulelab; print(joulelab.__file__)"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    if not Path(done.stdout.strip()).is_relative_to(source):
        raise SystemExit(f"{checkout} is no checkout of joulelab: {done.stdout.strip()} is imported")
    return environ


def print_figures(rounds: dict[str, list[Figures]]) -> None:
    """Print the median of each figure, before and after, and the ratio with its quartiles."""
    print(f"{'CPU time, medians':30s}{'before':>10s}{'after':>10s}{'ratio':>8s}   quartiles")
    for name in rounds["before"][0]:
        sides = {side: [each[name] for each in found] for side, found in rounds.items()}
        medians = "".join(f"{statistics.median(values):10.2f}" for values in sides.values())
        if not all(sides["before"]):  # a process that only sleeps
            print(f"{name:30s}{medians}       -")
            continue
        ratios = [b / a for a, b in zip(sides["before"], sides["after"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"{name:30s}{medians}{middle:8.3f}   {low:.3f} to {high:.3f}")


def main() -> None:
    """Measure both checkouts in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout without the feature")
    parser.add_argument("--after", type=Path, default=Path(), help="a checkout with it (this folder)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=10.0, help="time in which a recorder is watched")
    options = parser.parse_args()
    rounds: dict[str, list[Figures]] = {"before": [], "after": []}
    profiles = {f"gpu:{k}": square(2.7, 0.5) for k in range(8)}
    with TwinServer(Node(gpus=(find_gpu_model("h100"),) * 8), profiles=profiles) as twin:
        environs = {side: find_environment(getattr(options, side), twin.environment) for side in rounds}
        for number in range(-1, options.rounds):
            for side in list(rounds) if number % 2 else list(reversed(rounds)):
                found = measure_checkout(environs[side], options.seconds)
                rounds[side] += [found] if number >= 0 else []
    print(f"{options.rounds} rounds in turn, {options.seconds:g} s each, load {os.getloadavg()[0]:.1f}")
    print_figures(rounds)


if __name__ == "__main__":
    main()
