"""Print how long the dashboard takes over many runs: start, list, search, filters, pages, and its memory.

A recorded run is copied under new names: its samples by hard links, what tells of it as files of its own. The server is
`joulelab dashboard` in a process of its own on loopback; each figure is of whole requests, over one connection.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import httpx

from benchmarks.studies import RECORDED, run_name, walk
from joulelab.analysis.results_file import load_result, write_result

if TYPE_CHECKING:
    from collections.abc import Iterator

REPEATS = 30
NAMES = ("resnet152", "llava-13b", "lstm", "vgg19", "burn", "xception")
HOSTS = 40


def fill(runs: Path, count: int) -> None:
    """Make so many runs with names, labels and hosts of their own, and what lists read of them."""
    result = load_result(RECORDED)
    meta = json.loads((RECORDED / "run.json").read_text())
    files = [Path(entry.path).relative_to(RECORDED) for entry in walk(RECORDED)]
    linked = [file for file in files if file.name not in ("run.json", "head.json", "results.json")]
    for number in range(count):
        run = runs / run_name(number)
        for folder in {run / file.parent for file in linked}:
            folder.mkdir(parents=True, exist_ok=True)
        for file in linked:
            os.link(RECORDED / file, run / file)
        name, host = NAMES[number % len(NAMES)], f"node{number % HOSTS:02d}"
        labels = {"batch": str(2 ** (number % 9)), "gpus": str(number % 8 + 1), "user": f"user{number % 23}"}
        command = ["python", f"{name}.py", "--seed", str(number)]
        told = {"id": run.name, "name": f"{name}-{number}", "labels": labels, "host": host, "command": command}
        (run / "run.json").write_text(json.dumps(meta | told))
        start = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(1_700_000_000 + 10 * number))
        scopes = tuple(replace(scope, host=host) for scope in result.scopes)
        groups = tuple(replace(group, hosts=(host,) * len(group.hosts)) for group in result.groups)
        own = replace(result, labels=labels, command=command, start_utc=start, scopes=scopes, groups=groups)
        write_result(run, replace(own, name=f"{name}-{number}"))


@contextmanager
def serving(runs: Path) -> Iterator[tuple[str, int, float]]:
    """Start the server; give its address, its process and when it was started."""
    words = [sys.executable, "-m", "joulelab", "serve", str(runs), "--port", "0"]
    begin = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0], process.pid, begin
    finally:
        process.terminate()
        process.wait(timeout=10)


def memory_mb(pid: int) -> tuple[float, float]:
    """Return what a process holds now and held at most, in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    now, most = (int(re.search(rf"{key}:\s+(\d+)", text)[1]) / 1000 for key in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now, most


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(client: httpx.Client, path: str, repeats: int = REPEATS) -> tuple[list[float], int]:
    """Return how long requests took (ms), sorted, and the bytes of an answer."""
    took, size = [], 0
    for _ in range(repeats):
        begin = time.perf_counter()
        answer = client.get(path)
        took.append((time.perf_counter() - begin) * 1e3)
        answer.raise_for_status()
        size = len(answer.content)
    return sorted(took), size


def show(what: str, took: list[float], size: int) -> None:
    """Print one line."""
    print(f"  {what:46s} {median(took):7.1f} ms   slowest {took[-1]:7.1f} ms   {size / 1e3:8.1f} kB", flush=True)


def start(client: httpx.Client, begin: float, count: int) -> None:
    """Print how long it takes until there is a list, and until all of it is read."""
    while True:
        try:
            client.get("/api/runs?size=1")
            break
        except httpx.ConnectError:
            time.sleep(0.01)
    print(f"  {'first answer after':46s} {time.monotonic() - begin:7.2f} s")
    slowest = 0.0
    while True:
        once = time.perf_counter()
        told = client.get("/api/runs?size=1").json()
        slowest = max(slowest, time.perf_counter() - once)
        if told["total"] == count and not told["waiting"] and told["runs"][0]["status"] != "reading":
            break
        time.sleep(0.02)
    print(
        f"  {'all runs read after':46s} {time.monotonic() - begin:7.2f} s   (slowest answer meanwhile {slowest:.3f} s)"
    )


def together(url: str, run: str) -> None:
    """Print how long the list takes while pages are made that nobody has asked for yet."""
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(4) as pool:
        ids = [each["id"] for each in client.get("/api/runs?size=100").json()["runs"]][1:41]
        pages = [pool.submit(httpx.get, f"{url}runs/{each}", timeout=60) for each in ids if each != run]
        took, size = timed(client, "/", 40)
        show("list while 40 pages are made", took, size)
        for page in pages:
            page.result()


def main() -> int:
    """Make the store, start the server, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args().runs
    # Beside the recorded run: hard links do not lead from one disk to another.
    with tempfile.TemporaryDirectory(prefix=".dashboard-", dir=RECORDED.parents[2]) as folder:
        runs = Path(folder) / "joulelab-runs"
        begin = time.monotonic()
        fill(runs, count)
        print(f"{count:,} runs (made in {time.monotonic() - begin:.1f} s)")
        with serving(runs) as (url, pid, begun), httpx.Client(base_url=url, timeout=60) as client:
            start(client, begun, count)
            last, one = run_name(count - 1), run_name(count // 2)
            asked = {
                "list, first page of 50": "/",
                "list, last page": f"/?page={-(-count // 50)}",
                "search, two words": "/?q=llava+user7",
                "search, nothing found": "/?q=nothingofthatname",
                "filter by label": "/?label=batch%3D64",
                "filter by host, status and day": "/?host=node07&status=ok&from=2023-11-14&to=2023-12-01",
                "sorted by energy": "/?sort=energy",
                "API, 50 runs": "/api/runs",
                "API, 500 runs": "/api/runs?size=500",
            }
            for what, path in asked.items():
                show(what, *timed(client, path))
            show("page of a run, first time", *timed(client, f"/runs/{last}", 1))
            show("page of a run, again", *timed(client, f"/runs/{last}"))
            timed(client, f"/api/runs/{one}/power?from=1&to=2", 1)
            show("zoomed into raw samples", *timed(client, f"/api/runs/{one}/power?from=1&to=2"))
            together(url, last)
            print("  memory: {:.0f} MB now, {:.0f} MB at most".format(*memory_mb(pid)))
            used, once = cpu_s(pid), time.monotonic()
            time.sleep(10)
            print(f"  idle: {(cpu_s(pid) - used) / (time.monotonic() - once) * 100:.1f} % of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
