"""Run every benchmark: `python -m benchmarks`, or some of them by name; `--short` where minutes matter."""

from __future__ import annotations

import argparse
import subprocess
import sys

SHORT = {
    "coverage": ["--count", "20"],
    "thinned_logs": [],
    "job_shares": [],
    "plain_runs": ["--count", "5"],
    "accuracy": ["--seconds", "10"],
    "cost": ["--seconds", "5"],
    "measure_cost": ["--count", "3"],
    "samples": ["--count", "10000000"],
    "analyzer": ["--short"],
    "pdus": ["--seconds", "10"],
    "wall": ["--virtual", "--seeds", "20"],
    "constants": [],
    "calibrate_twins": [],
    "calibrate": ["--count", "5"],
    "tune": [],
    "report": ["--epochs", "10"],
    "callbacks": ["--steps", "60", "--repeats", "10", "--seconds", "15"],
    "agent": ["--seconds", "10"],
    "fleet": ["--nodes", "100"],
    "studies": ["--cells", "2500", "--done", "225", "--runs", "1000"],
    "dashboard": ["--runs", "1000"],
    "energy_gate": ["--trials", "10", "--drawn", "500"],
    "plan_rack": ["--count", "20"],
    "plan_when": [],
    "plan_queue": ["--cases", "5", "--jobs", "2000"],
    "serving": ["--scenarios", "10"],
    "serving_http": ["--scenarios", "1"],
}


def main() -> int:
    """Run the benchmarks one after another, each in a process of its own; return the worst exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(SHORT)} (all)")
    parser.add_argument("--short", action="store_true")
    options, given = parser.parse_known_args()
    if wrong := set(options.names) - set(SHORT):
        parser.error(f"there is no benchmark {', '.join(sorted(wrong))}; there are {', '.join(SHORT)}")
    worst = 0
    for name in options.names or SHORT:
        print(f"\n== {name}", flush=True)
        extra = given or (SHORT[name] if options.short else [])
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *extra], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
