"""Time that `joulelab.measure()` adds at its start and at its end, beside CodeCarbon in the same loop.

On a served twin with eight H100, so that both find GPUs. CodeCarbon is installed into an environment of its own the
first time (`--peer PYTHON` names another interpreter that has it); without it, joulelab is measured alone.

    python -m benchmarks.measure_cost --count 10
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.profile import square
from joulelab.twin.twin_server import TwinServer

OURS = """
import time
t0 = time.perf_counter()
import joulelab
measure = joulelab.measure
t1 = time.perf_counter()
m = measure("x")
m.__enter__()
t2 = time.perf_counter()
time.sleep(1.0)
t3 = time.perf_counter()
m.__exit__(None, None, None)
print(t1 - t0, t2 - t1, time.perf_counter() - t3)
"""
PEER = """
import time
t0 = time.perf_counter()
from codecarbon import OfflineEmissionsTracker
t1 = time.perf_counter()
m = OfflineEmissionsTracker(country_iso_code="DEU", save_to_file=False, log_level="critical")
m.start()
t2 = time.perf_counter()
time.sleep(1.0)
t3 = time.perf_counter()
m.stop()
print(t1 - t0, t2 - t1, time.perf_counter() - t3)
"""
PEER_FOLDER = Path.home() / ".cache" / "joulelab-benchmarks"


def install_peer(package: str, *more: str) -> str | None:
    """Return an interpreter that has a package, and `more` beside it; None if it cannot be installed."""
    folder = PEER_FOLDER / package
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = subprocess.run([str(python), "-m", "pip", "install", "-qq", package, *more], check=False)
        if done.returncode:
            return None
    found = subprocess.run([str(python), "-c", f"import {package}"], check=False, capture_output=True)
    return None if found.returncode else str(python)


def time_once(python: str, code: str, environ: dict[str, str], folder: str) -> list[float]:
    """Return the times (s) of import, start and stop in one new process."""
    done = subprocess.run(
        [python, "-c", code], env=environ, cwd=folder, capture_output=True, text=True, check=True, timeout=120
    )
    return [float(word) for word in done.stdout.split()[-3:]]


def main() -> None:
    """Measure both in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--peer", default=None, help="interpreter that has CodeCarbon")
    options = parser.parse_args()
    tools = {"joulelab": (sys.executable, OURS)}
    peer = options.peer or install_peer("codecarbon")
    if peer:
        tools["codecarbon"] = (peer, PEER)
    times: dict[str, list[list[float]]] = {name: [] for name in tools}
    node = Node(gpus=(find_gpu_model("h100"),) * 8)
    profiles = {f"gpu:{k}": square(2.7, 0.5) for k in range(8)}
    with TwinServer(node, profiles=profiles) as twin, tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, **twin.environment, "JOULELAB_RUNS": folder}
        for _ in range(options.count):
            for name, (python, code) in tools.items():
                times[name].append(time_once(python, code, environ, folder))
    print(f"{options.count} times in turn, medians in s, load {os.getloadavg()[0]:.1f}")
    rows = {
        "import and start": lambda t: t[0] + t[1],
        "start": lambda t: t[1],
        "stop": lambda t: t[2],
    }
    for label, pick in rows.items():
        medians = {name: statistics.median(map(pick, found)) for name, found in times.items()}
        ratio = f", ratio {medians['joulelab'] / medians['codecarbon']:.2f}" if peer else ""
        print(f"{label:17}", ", ".join(f"{name} {value:.3f}" for name, value in medians.items()) + ratio)


if __name__ == "__main__":
    main()
