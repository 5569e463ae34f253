"""Print what recording costs on the simulated node: CPU per second, memory, late readings, start-up and delay."""

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

import psutil

from joulelab.twin.model import Node, preset
from joulelab.twin.profile import square
from joulelab.twin.twin_server import TwinServer

NVML = {"meter": "nvml"}
HOST = {"meter": "host"}


def start_recorder(folder: Path, meters: list[dict[str, Any]], period_s: float, env: dict[str, str]) -> Any:
    """Start a recorder that belongs to this process and wait until it is ready."""
    command = [sys.executable, "-m", "joulelab.recorder"]
    pipe = subprocess.PIPE
    recorder = subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, **env})
    plan = {"host_dir": str(folder), "host": "bench", "owner_pid": os.getpid(), "meters": meters, "period_s": period_s}
    assert recorder.stdin is not None
    assert recorder.stdout is not None
    recorder.stdin.write(json.dumps(plan).encode() + b"\n")
    recorder.stdin.flush()
    json.loads(recorder.stdout.readline())
    return recorder


def stop_recorder(recorder: Any) -> None:
    """Ask it to finish and wait."""
    recorder.stdin.write(b'{"do":"finish","tail_s":0.1,"id":1}\n')
    recorder.stdin.flush()
    recorder.stdout.read()
    recorder.wait(10)
    recorder.stdin.close()
    recorder.stdout.close()


def steady(meters: list[dict[str, Any]], period_s: float, env: dict[str, str], seconds: float) -> dict[str, float]:
    """Return CPU in ms per s, memory in MB, and the shares of late and missed ticks."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = start_recorder(Path(folder), meters, period_s, env)
        process = psutil.Process(recorder.pid)
        time.sleep(2)
        begin = time.monotonic()
        cpu_ns = _schedstat(recorder.pid)
        time.sleep(seconds)
        spent, took = (_schedstat(recorder.pid) - cpu_ns) * 1e-6, time.monotonic() - begin
        memory = process.memory_info().rss / 1e6
        stop_recorder(recorder)
        events = [json.loads(line) for line in (Path(folder) / "events.0.jsonl").read_text().splitlines()]
    late = [e for e in events if e["event"] == "late"]
    ticks = max(sum(e["ticks"] + e["missed"] for e in late), 1)
    return {
        "cpu": spent / took,
        "memory": memory,
        "late": sum(e["count"] for e in late) / ticks,
        "missed": sum(e["missed"] for e in late) / ticks,
        "ticks": ticks,
        "worst": max((e["worst_ns"] for e in late), default=0) * 1e-6,
    }


def _schedstat(pid: int) -> int:
    """Return the CPU time of all threads of a process in ns."""
    return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def cpu_of(command: list[str], repeats: int = 7) -> float:
    """Return the least CPU seconds (user + system) of a command over some repeats."""
    best = float("inf")
    for _ in range(repeats):
        before = os.times()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best, used)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    node = Node(gpus=(preset("h100"),) * 8)
    profiles = {f"gpu:{i}": square(2.7, 0.5) for i in range(8)}
    with TwinServer(node, profiles=profiles) as twin:
        env = twin.environment
        print(f"recorder on 8 simulated GPUs, {seconds:g} s each")
        heads = ("CPU ms/s", "MB", "late", "missed", "of ticks", "worst ms")
        print(f"{'meters':28s}" + "".join(f"{h:>10s}" for h in heads))
        for name, meters, period in (
            ("NVML, 10 Hz", [NVML], 0.1),
            ("NVML and host load, 10 Hz", [NVML, HOST], 0.1),
            ("NVML, 100 Hz", [NVML], 0.01),
        ):
            r = steady(meters, period, env, seconds)
            cells = f"{r['cpu']:10.2f}{r['memory']:10.1f}{r['late']:10.2%}{r['missed']:10.2%}"
            print(f"{name:28s}{cells}{r['ticks']:10.0f}{r['worst']:10.1f}")
        delays(env)
    starts()


def delays(env: dict[str, str]) -> None:
    """Print how much longer a command takes under joulelab."""
    print("\ncommand under joulelab run, wall seconds (the command alone: 1 and 10)")
    for seconds in ("1", "10"):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            command = [sys.executable, "-m", "joulelab", "run", "--runs", folder, "--", "sleep", seconds]
            subprocess.run(command, env={**os.environ, **env}, check=True, stderr=subprocess.DEVNULL)
            print(f"sleep {seconds:3s} {time.monotonic() - begin:6.2f}")


def starts() -> None:
    """Print what starting costs above the bare interpreter."""
    bare = cpu_of([sys.executable, "-c", "pass"])
    print(f"\nCPU seconds above the bare interpreter ({bare:.3f} s)")
    print(f"import joulelab    {cpu_of([sys.executable, '-c', 'import joulelab']) - bare:6.3f}")
    print(f"joulelab --help    {cpu_of([sys.executable, '-m', 'joulelab', '--help']) - bare:6.3f}")


if __name__ == "__main__":
    main()
