"""What the agent costs: CPU, memory and scrapes of `joulelab agent` on a twin of 8 GPUs with wall meters.

python -m benchmarks agent --seconds 30

Its CPU time is compared with that of the recorder (`joulelab run`) on the same twin at its own 10 Hz.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.twin_server import TwinServer

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
HERTZ = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print what the agent and the recorder cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    with TwinServer(Node(), profiles={"gpu": profile.constant(0.7)}, wall={"pdu": {}, "bmc": {}}) as twin:
        environ = os.environ | twin.environment
        print("8 x H100, 2 CPUs, PDU (SNMP), BMC (IPMI); percent of one core")
        for every in ("1s", "5s"):
            agent(environ, every, seconds)
        recorder(environ, seconds)


def agent(environ: dict[str, str], every: str, seconds: float) -> None:
    """Run the agent for a while, scraped each second, which is fifteen times as often as usual."""
    words = [sys.executable, "-m", "joulelab", "agent", "--listen", "127.0.0.1:0", "--every", every, "--json"]
    with subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    ) as child:
        assert child.stdout is not None
        url = json.loads(child.stdout.readline())["url"]
        time.sleep(6)  # meters open, libraries load
        idle = cpu_s(child.pid)
        began = time.monotonic()
        time.sleep(seconds)
        quiet = (cpu_s(child.pid) - idle) / (time.monotonic() - began)
        took, size = [], 0
        before = cpu_s(child.pid)
        for _ in range(20):
            start = time.monotonic()
            with OPENER.open(url, timeout=10) as answer:
                text = answer.read()
            took.append(time.monotonic() - start)
            size = len(text)
        each = (cpu_s(child.pid) - before) / len(took)
        lines = sum(1 for line in text.splitlines() if not line.startswith(b"#"))
        memory = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        child.terminate()
    print(f"agent --every {every:3}  {100 * quiet:5.2f} % without scrapes, {100 * (quiet + each / 15):5.2f} % at 15 s")
    middle = 1000 * statistics.median(took)
    print(f"  a scrape: {middle:.1f} ms (CPU {1000 * each:.1f} ms), {lines} series, {size / 1000:.0f} kB", end="")
    print(f"; memory {memory / 1e6:.0f} MB")


def recorder(environ: dict[str, str], seconds: float) -> None:
    """Run the recorder for as long, at 10 Hz."""
    with tempfile.TemporaryDirectory() as runs:
        words = [sys.executable, "-m", "joulelab", "run", "--runs", runs, "--", "sleep", str(seconds + 8)]
        with subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            time.sleep(6)
            pid = recorder_of(child.pid)
            before, began = cpu_s(pid), time.monotonic()
            time.sleep(seconds - 2)
            share = (cpu_s(pid) - before) / (time.monotonic() - began)
            child.wait()
    print(f"recorder at 0.1 s  {100 * share:5.2f} %")


def recorder_of(pid: int) -> int:
    """Return the child of a process that is the recorder."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid and b"joulelab.recorder" in words:
            return int(folder.name)
    raise RuntimeError("there is no recorder")


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


if __name__ == "__main__":
    main()
