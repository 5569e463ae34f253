"""Print what recording costs on the simulated node: CPU per second, memory, late readings, start-up and delay.

perun runs in the same run, at the same rate, on the same simulated library: `--peer PYTHON` names an interpreter that
has it; otherwise it is installed into an environment of its own the first time. New channels (memory power, the load of
processes) have a row of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure_cost import install_peer
from joulelab.twin.flaws import HOPPER
from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.profile import square
from joulelab.twin.truth_file import Process
from joulelab.twin.twin_server import TwinServer

NVML = {"meter": "nvml"}
HOST = {"meter": "host"}


def start_recorder(
    folder: Path, meters: list[dict[str, Any]], period_s: float, env: dict[str, str], **more: Any
) -> Any:
    """Start a recorder that belongs to this process and wait until it is ready."""
    command = [sys.executable, "-m", "joulelab.recorder"]
    pipe = subprocess.PIPE
    recorder = subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, **env})
    plan = {"host_dir": str(folder), "host": "bench", "owner_pid": os.getpid(), "meters": meters, "period_s": period_s}
    plan |= more
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


def run_recorder(
    meters: list[dict[str, Any]], period_s: float, env: dict[str, str], seconds: float, **more: Any
) -> dict[str, float]:
    """Return CPU in ms per s, memory in MB, and the shares of late and missed ticks."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = start_recorder(Path(folder), meters, period_s, env, **more)
        process = psutil.Process(recorder.pid)
        time.sleep(2)
        begin = time.monotonic()
        cpu_ns = read_cpu_ns(recorder.pid)
        time.sleep(seconds)
        spent, took = (read_cpu_ns(recorder.pid) - cpu_ns) * 1e-6, time.monotonic() - begin
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


def read_cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process in ns."""
    return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def run_peer(python: str, env: dict[str, str], seconds: float) -> dict[str, float]:
    """Return CPU in ms per s and memory in MB of perun's processes at 10 Hz, beside a script that sleeps."""
    with tempfile.TemporaryDirectory() as folder:
        # The key has had two names.
        (Path(folder) / ".perun.ini").write_text("[monitor]\nsampling_rate = 0.1\nsampling_period = 0.1\n")
        (Path(folder) / "wait.py").write_text(f"import time\ntime.sleep({seconds + 15})\n")
        command = [python, "-c", "from perun.api.cli import cli; cli()", "monitor", "wait.py"]
        quiet = subprocess.DEVNULL
        perun = subprocess.Popen(command, cwd=folder, env={**os.environ, **env}, stdout=quiet, stderr=quiet)
        time.sleep(8)  # its imports, and what it starts only to look for devices
        family = [psutil.Process(perun.pid), *psutil.Process(perun.pid).children(recursive=True)]
        begin, before = time.monotonic(), {process.pid: read_cpu_ns(process.pid) for process in family}
        time.sleep(seconds)
        lasting = [process for process in family if process.is_running()]
        spent_ns, took = sum(read_cpu_ns(p.pid) - before[p.pid] for p in lasting), time.monotonic() - begin
        memory = sum(process.memory_info().rss for process in lasting) / 1e6
        perun.wait()
    return {"cpu": spent_ns * 1e-6 / took, "memory": memory}


def measure_cpu_s(command: list[str], repeats: int = 7) -> float:
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
    parser.add_argument("--peer", default=None, help="interpreter that has perun")
    options = parser.parse_args()
    seconds, gpu = options.seconds, find_gpu_model("h100")
    peer = options.peer or install_peer("perun", "nvidia-ml-py")
    more = replace(gpu, flaws=replace(HOPPER, memory_share=0.2))
    profiles = {f"gpu:{i}": square(2.7, 0.5) for i in range(8)}
    print(f"recorder on 8 simulated GPUs, {seconds:g} s each, load {os.getloadavg()[0]:.1f}")
    heads = ("CPU ms/s", "MB", "late", "missed", "of ticks", "worst ms")
    print(f"{'meters':32s}" + "".join(f"{h:>10s}" for h in heads))
    with TwinServer(Node(gpus=(gpu,) * 8), profiles=profiles) as twin:
        env = twin.environment
        for index in range(8):  # real GPUs have memory in use, and perun reads it only then
            twin.truth.set_processes(index, [Process(pid=os.getpid(), memory_bytes=1 << 30)])
        usual = print_row("NVML, 10 Hz", [NVML], 0.1, env, seconds)
        both = print_row("NVML and host load, 10 Hz", [NVML, HOST], 0.1, env, seconds)
        if peer:
            perun = run_peer(peer, env, seconds)
            print(f"{'perun, 10 Hz':32s}{perun['cpu']:10.2f}{perun['memory']:10.1f}")
            shares = usual["cpu"] / perun["cpu"], both["cpu"] / perun["cpu"]
            print(f"joulelab / perun: {shares[0]:.2f} NVML, {shares[1]:.2f} with host load")
        print_row("NVML, 100 Hz", [NVML], 0.01, env, seconds)
        print_delays(env)
    with (
        TwinServer(Node(gpus=(more,) * 8), profiles=profiles) as twin,
        subprocess.Popen(["sleep", "600"]) as workload,
    ):
        print("\nwith a workload: its processes, the load of processes on each GPU, power of memory")
        pid = {"workload_pid": workload.pid}
        print_row("NVML and host load, 10 Hz", [NVML, HOST], 0.1, twin.environment, seconds, **pid)
        workload.kill()
    print_starts()


def print_row(
    name: str, meters: list[dict[str, Any]], period_s: float, env: dict[str, str], seconds: float, **more: Any
) -> dict[str, float]:
    """Run a recorder, print its row and return it."""
    r = run_recorder(meters, period_s, env, seconds, **more)
    cells = f"{r['cpu']:10.2f}{r['memory']:10.1f}{r['late']:10.2%}{r['missed']:10.2%}"
    print(f"{name:32s}{cells}{r['ticks']:10.0f}{r['worst']:10.1f}", flush=True)
    return r


def print_delays(env: dict[str, str]) -> None:
    """Print how much longer a command takes under joulelab."""
    print("\ncommand under joulelab run, wall seconds (the command alone: 1 and 10)")
    for seconds in ("1", "10"):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            command = [sys.executable, "-m", "joulelab", "run", "--runs", folder, "--", "sleep", seconds]
            subprocess.run(command, env={**os.environ, **env}, check=True, stderr=subprocess.DEVNULL)
            print(f"sleep {seconds:3s} {time.monotonic() - begin:6.2f}")


def print_starts() -> None:
    """Print what starting costs above the bare interpreter."""
    bare = measure_cpu_s([sys.executable, "-c", "pass"])
    print(f"\nCPU seconds above the bare interpreter ({bare:.3f} s)")
    print(f"import joulelab    {measure_cpu_s([sys.executable, '-c', 'import joulelab']) - bare:6.3f}")
    print(f"joulelab --help    {measure_cpu_s([sys.executable, '-m', 'joulelab', '--help']) - bare:6.3f}")


if __name__ == "__main__":
    main()
