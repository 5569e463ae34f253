"""Print how many updates of an analyzer are missed or read twice at 10 Hz, over socket and VXI-11, and the CPU cost."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from joulelab.twin.model import Node
from joulelab.twin.profile import square
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

LIMIT = 0.005
# A process of its own reads as the recorder does: its CPU is what the meter costs, not what the twin does.
READER = """
import json, sys, time
from joulelab.instruments import analyzer
config, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
meter = analyzer.open_meter(config)
stream = meter.streams()[0]
names = [c.name for c in stream.channels]
first = meter.read(stream)
base = (first[names.index("missed")], first[names.index("duplicate")])
begin, cpu = time.monotonic(), time.process_time()
rows, times, power = 0, [begin], 0.0
while time.monotonic() - begin < seconds:
    row = meter.read(stream)
    times.append(time.monotonic())
    power += row[0] * (times[-1] - times[-2])
    rows += 1
took, spent = times[-1] - begin, time.process_time() - cpu
steps = sorted(b - a for a, b in zip(times, times[1:]))
print(json.dumps({
    "rows": rows, "took": took, "missed": row[names.index("missed")] - base[0],
    "duplicate": row[names.index("duplicate")] - base[1], "cpu": 1000 * spent / took,
    "median": 1000 * steps[len(steps) // 2], "p99": 1000 * steps[int(len(steps) * 0.99)], "worst": 1000 * steps[-1],
    "integral": power, "counter": row[1] - first[1],
}))
meter.close()
"""


def measure(config: dict[str, Any], seconds: float) -> dict[str, float]:
    """Return what a reader in a process of its own saw."""
    words = [sys.executable, "-c", READER, json.dumps(config), str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=seconds + 60, env=os.environ)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> int:
    """Measure both transports one after the other; return 1 where more than 0.5 % went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--short", action="store_true", help="6 s each")
    options = parser.parse_args()
    seconds = 6.0 if options.short else options.seconds
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        truth = Path(folder) / "truth"
        load = {"gpu": square(7.0, 0.6, 0.2, 0.9)}
        with (
            Truth.create(truth, Node(), profiles=load, horizon_s=2 * seconds + 120),
            ServerProcess("analyzer", truth, Path(folder) / "analyzer") as server,
        ):
            time.sleep(1)
            for name in ("socket", "vxi11"):
                entry = dict(server.served.entries["analyzer"]) | {"resource": server.served.facts[name]}
                del entry["meter"]
                seen = measure(entry, seconds)
                updates = seen["took"] / 0.1
                share = (seen["missed"] + seen["duplicate"]) / updates
                failed |= share >= LIMIT or abs(seen["rows"] + seen["missed"] - updates) > 2
                print(
                    f"{name:7} {seen['rows']:.0f} rows in {seen['took']:.2f} s ({updates:.1f} updates): "
                    f"missed {seen['missed']:.0f}, twice {seen['duplicate']:.0f} = {100 * share:.2f} %; "
                    f"step {seen['median']:.1f} ms, 99 % {seen['p99']:.1f} ms, worst {seen['worst']:.1f} ms; "
                    f"CPU {seen['cpu']:.2f} ms/s; sampled {seen['integral']:.0f} J, integrated {seen['counter']:.0f} J",
                    flush=True,
                )
    print(f"limit {100 * LIMIT:g} %: {'exceeded' if failed else 'kept'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
