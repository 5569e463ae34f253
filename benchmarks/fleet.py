"""Backfill an hour of a fleet into one VictoriaMetrics, read a 64-node job back as a run; print time, memory, truth.

The fleet is made from twins (fleet_model.py): its true energy is known. Everything is on loopback and in a temporary
folder; nothing is left behind. `--coverage N` draws N small fleets instead and counts how often the truth lies in the
interval that the run states.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.fleet_model import NS, Fleet, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = "victoria-metrics"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, int, psutil.Process]]:
    """Start VictoriaMetrics with an empty store; give its host, port and process, and end it by its pid."""
    program = shutil.which(SERVER)
    if program is None:
        sys.exit(f"{SERVER} is not installed: apt install {SERVER}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    words = [program, f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen([*words, "-retentionPeriod=1y"], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        while not _is_up(port):
            if child.poll() is not None or time.monotonic() > until:
                sys.exit((folder / "log").read_text())
            time.sleep(0.05)
        yield "127.0.0.1", port, psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def backfill(fleet: Fleet, host: str, port: int) -> tuple[int, float, float]:
    """Import a fleet's telemetry; return samples, and the seconds that making and importing them took."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    samples, made_s, put_s = 0, 0.0, 0.0
    try:
        at = time.monotonic()
        for scraped in fleet.telemetry():
            body = scraped.victoria()
            samples, made_s, at = samples + scraped.samples, made_s + time.monotonic() - at, time.monotonic()
            _ask(connection, "POST", "/api/v1/import", body)
            put_s, at = put_s + time.monotonic() - at, time.monotonic()
        _ask(connection, "GET", "/internal/force_flush", None)
        return samples, made_s, put_s + time.monotonic() - at
    finally:
        connection.close()


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None) -> None:
    connection.request(method, path, body)
    answer = connection.getresponse()
    answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{path}: {answer.status}")


def read_back(address: str, job: str, runs: Path) -> dict[str, Any]:
    """Import a job as a run and analyse it, as the command does; return what came of it, with times (s)."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.run.run_import import ImportRequest, import_archives, make_archive_request
    from joulelab.store.run_reader import open_run

    at, cpu = time.monotonic(), time.process_time()
    asked = make_archive_request("prometheus", "prometheus", {"address": address, "preset": "joulelab", "job": job}, {})
    done = import_archives(runs, [asked], ImportRequest("prometheus", ["joulelab", "import", "prometheus", job]))
    imported_s, at = time.monotonic() - at, time.monotonic()
    imported_cpu_s, cpu = time.process_time() - cpu, time.process_time()
    with open_run(done.run) as run:
        result = analyse_run(run)
    groups = {g.name: (g.energy.value, g.energy.expanded, g.energy.budget()) for g in result.groups}
    return {
        "run": str(done.run),
        "told": list(done.remarks),
        "problems": list(done.problems),
        "import_s": imported_s,
        "import_cpu_s": imported_cpu_s,
        "analysis_s": time.monotonic() - at,
        "analysis_cpu_s": time.process_time() - cpu,
        "interval": (result.start_ns, result.end_ns),
        "hosts": len({s.host for s in result.scopes}),
        "scopes": len(result.scopes),
        "readings": sum(s.reading.readings for s in result.scopes),
        "groups": {name: groups[name] for name in ("gpu", "node.ac") if name in groups},
    }


def timed(words: list[str]) -> tuple[float, float, float, str]:
    """Run a program; return its seconds, those of CPU, its peak memory in MB, and what it printed."""
    begin = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        out = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(words)} failed: {child.returncode}")
    return time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, out


def begin_ns(span_s: float) -> int:
    """Return when a fleet's hour begins: it is over by now."""
    return (time.time_ns() // NS - round(span_s) - 600) // 60 * 60 * NS


def compared(fleet: Fleet, found: dict[str, Any]) -> list[tuple[str, float, float, float, bool]]:
    """Return by family the true energy of the job, what the run says, its interval (J), and whether that holds it."""
    job = fleet.jobs[0]
    true = fleet.true_j(job, job.start_ns, job.end_ns)
    rows = []
    for name, (value, expanded, _) in found["groups"].items():
        rows.append((name, true[name], value, expanded, abs(value - true[name]) <= expanded))
    return rows


def whole(options: argparse.Namespace, folder: Path) -> None:
    """Print the table of one large fleet."""
    plan = Plan(options.nodes, begin_ns(3600.0), job_nodes=min(64, options.nodes), seed=options.seed)
    fleet = Fleet(plan)
    command = [sys.executable, "-m", "joulelab"]
    with served(folder) as (host, port, server):
        samples, made_s, put_s = backfill(fleet, host, port)
        peak = server.memory_full_info().rss
        address, job = f"http://{host}:{port}", fleet.jobs[0].number
        read = [sys.executable, "-m", "benchmarks.fleet", "--read", address, job, str(folder / "apart")]
        _, _, read_mb, out = timed(read)
        found = json.loads(out)
        runs = ["--runs", str(folder / "runs")]
        given = ["import", "prometheus", job, f"address={address}"]
        *imported, printed = timed([*command, *given, *runs])
        *shown, _ = timed([*command, "show", *runs])
        peak_mb = max(peak, server.memory_full_info().rss, _peak(server.pid)) / 1e6
        stored = sum(f.stat().st_size for f in (folder / "data").rglob("*") if f.is_file()) / 1e6
    series = sum(len(s.series) for s in [fleet.scraped(0)]) * options.nodes
    print(f"{options.nodes} nodes, 1 h at 15 s, about {series:,} series, {samples:,} samples, {len(fleet.jobs)} jobs")
    print(f"made from twins in {made_s:.1f} s; backfilled in {put_s:.1f} s ({samples / put_s / 1e6:.2f} M samples/s)")
    print(f"{SERVER}: peak memory {peak_mb:.0f} MB, {stored:.0f} MB on disk")
    for text in found["told"]:
        print(text)
    print(f"{'':34s} {'s':>8s} {'CPU s':>8s} {'peak MB':>8s}")
    print(f"{'read into a run, sealed':34s} {found['import_s']:8.2f} {found['import_cpu_s']:8.2f}")
    print(f"{'analysis':34s} {found['analysis_s']:8.2f} {found['analysis_cpu_s']:8.2f} {read_mb:8.0f}")
    for name, of in (("joulelab import prometheus JOB", imported), ("joulelab show", shown)):
        print(f"{name:34s} {of[0]:8.2f} {of[1]:8.2f} {of[2]:8.0f}")
    print(f"{found['hosts']} hosts, {found['scopes']} scopes, {found['readings']:,} readings in the job")
    print(f"{'':10s} {'true kWh':>10s} {'run says':>10s} {'± (k=2)':>9s} {'off':>8s}  in the interval")
    for name, true, value, expanded, holds in compared(fleet, found):
        print(
            f"{name:10s} {true / 3.6e6:10.3f} {value / 3.6e6:10.3f} {expanded / 3.6e6:9.3f} {value / true - 1:8.2%}  "
            f"{'yes' if holds else 'NO'}"
        )
    if options.verbose:
        print(printed)


def _peak(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def coverage(count: int, folder: Path, nodes: int = 6, job_nodes: int = 3) -> None:
    """Print how often the truth lies in the interval, over drawn small fleets on one server."""
    base = Plan(nodes, begin_ns(1500.0), 1500.0, job_nodes=job_nodes, job_s=600.0, abrupt=True)
    kinds = {
        "gain drawn, one for all of a kind": replace(base, shared=1.0),
        "gain drawn, each device its own": replace(base, shared=0.0),
        "gain 0, three nodes": replace(base, gains=(0.0, 0.0)),
        "gain 0, one node": replace(base, gains=(0.0, 0.0), job_nodes=1),
    }
    print(f"{'':44s} {'count':>6s} {'covered':>8s} {'median U':>9s} {'median off':>11s}")
    for number, (name, plan) in enumerate(kinds.items(), 1):
        rows: dict[str, list[tuple[bool, float, float]]] = {}
        with tempfile.TemporaryDirectory(dir=folder) as own, served(Path(own)) as (host, port, _):
            for seed in range(1, count + 1):
                drawn = replace(plan, seed=seed, name=f"fleet{number}-{seed}-", first_job=10_000 * number + 100 * seed)
                fleet = Fleet(drawn)
                backfill(fleet, host, port)
                found = read_back(f"http://{host}:{port}", fleet.jobs[0].number, Path(own) / "runs")
                for family, true, value, expanded, holds in compared(fleet, found):
                    rows.setdefault(family, []).append((holds, expanded / true, abs(value / true - 1)))
        for family, some in rows.items():
            held, widths, offs = (sorted(column) for column in zip(*some, strict=True))
            middle = len(some) // 2
            share = sum(held) / len(some)
            print(f"{name + ': ' + family:44s} {len(some):6d} {share:8.0%} {widths[middle]:9.3%} {offs[middle]:11.3%}")


def main() -> None:
    """Print the table, or the coverage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coverage", type=int, default=0, metavar="N")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--read", nargs=3, metavar=("ADDRESS", "JOB", "RUNS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read_back(options.read[0], options.read[1], Path(options.read[2]))))
        return
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        if options.coverage:
            coverage(options.coverage, Path(folder))
        else:
            whole(options, Path(folder))


if __name__ == "__main__":
    main()
