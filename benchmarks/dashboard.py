"""Print how long the dashboard takes over 100 000 runs: building the index, lists, searches, filters, orders, memory.

Each run is a folder of its own with `run.json`, `end.json`, `head.json` and links to the samples of one recorded run.
The server is `joulelab dashboard` in a process of its own on loopback, with the index that it built itself; each
figure is of whole requests over one connection. The store is deleted at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from benchmarks.studies import RECORDED, run_name
from joulelab.analysis.results_file import RESULT_FILE, load_result, write_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulelab.analysis.result import Result

REPEATS = 40
LIMIT_MS = 200.0  # p95 of lists, searches and filters
NAMES = ("resnet152", "llava-13b", "lstm", "vgg19", "burn", "xception")
HOSTS = 40
SAMPLES = ("end.json", "vm/events.0.jsonl", "vm/nvml.power.parquet")  # linked, the same in every run
OPENED = 50  # runs at the end of the store whose pages are opened: they have all samples
SORTS = ("start", "name", "status", "time", "energy", "work", "host")


def fill_store(store: Path, count: int) -> Result:
    """Make runs with names, labels and hosts of their own and their heads; return the result that they are made of."""
    result = load_result(RECORDED)
    shutil.copytree(RECORDED, store.parent / "recorded")
    for number in range(count):
        add_run(store, number, result, is_whole=number >= count - OPENED)
    return result


def add_run(store: Path, number: int, result: Result, *, is_whole: bool = False) -> None:
    """Make one run, with all samples if `is_whole`; it appears in the store when it is complete."""
    recorded, run = store.parent / "recorded", store.parent / "making" / run_name(number)
    (run / "vm" / "marks").mkdir(parents=True)
    for file in [*recorded.glob("vm/**/*.*"), recorded / "end.json"] if is_whole else map(recorded.joinpath, SAMPLES):
        try:
            os.link(file, run / file.relative_to(recorded))
        except OSError:  # a file system allows only so many links of one file
            shutil.copyfile(file, run / file.relative_to(recorded))
    name, host = NAMES[number % len(NAMES)], f"node{number % HOSTS:02d}"
    labels = {"batch": str(2 ** (number % 9)), "gpus": str(number % 8 + 1), "user": f"user{number % 23}"}
    command = ["python", f"{name}.py", "--seed", str(number)]
    told = {"id": run.name, "name": f"{name}-{number}", "labels": labels, "host": host, "command": command}
    (run / "run.json").write_text(json.dumps(json.loads((recorded / "run.json").read_text()) | told))
    start = time.strftime("%Y-%m-%dT%H:%M:%S.000+00:00", time.gmtime(1_700_000_000 + 10 * number))
    scopes = tuple(replace(scope, host=host) for scope in result.scopes)
    groups = tuple(
        replace(group, hosts=(host,) * len(group.hosts), energy=group.energy * (0.5 + number * 0.61803 % 1))
        for group in result.groups
    )
    end_ns = result.start_ns + int(result.duration_s * 1e9 * (0.5 + number * 0.41421 % 1))
    own = replace(result, labels=labels, command=command, start_utc=start, scopes=scopes, groups=groups, phases=())
    write_result(run, replace(own, name=f"{name}-{number}", end_ns=end_ns))
    (run / RESULT_FILE).unlink()  # lists read the head only; the page of a run analyses it
    store.mkdir(exist_ok=True)
    run.rename(store / run.name)


@contextmanager
def serving(runs: Path) -> Iterator[tuple[str, int, float]]:
    """Start the server; give its address, its process and when it was started."""
    words = [sys.executable, "-m", "joulelab", "dashboard", str(runs), "--port", "0"]
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


def time_requests(
    client: httpx.Client, path: str, repeats: int = REPEATS, pause_s: float = 0.0
) -> tuple[list[float], int]:
    """Return how long requests took (ms), sorted, and the bytes of an answer."""
    took, size = [], 0
    for _ in range(repeats):
        time.sleep(pause_s)
        begin = time.perf_counter()
        answer = client.get(path)
        took.append((time.perf_counter() - begin) * 1e3)
        answer.raise_for_status()
        size = len(answer.content)
    return sorted(took), size


def print_times(what: str, took: list[float], size: int) -> float:
    """Print one line, and return the 95th percentile (ms)."""
    p50, p95 = (took[min(int(share * len(took)), len(took) - 1)] for share in (0.5, 0.95))
    print(f"  {what:44s} {p50:7.1f} ms {p95:7.1f} ms {took[-1]:7.1f} ms {size / 1e3:8.1f} kB", flush=True)
    return p95


def wait_for_index(client: httpx.Client, begin: float, count: int) -> None:
    """Print how long it takes until there is a list, and until every run is in the index."""
    while True:
        try:
            client.get("/api/runs?size=1")
            break
        except httpx.ConnectError:
            time.sleep(0.01)
    print(f"  {'first answer after':44s} {time.monotonic() - begin:7.2f} s")
    took = []
    while True:
        once = time.perf_counter()
        told = client.get("/api/runs?size=1").json()
        took.append((time.perf_counter() - once) * 1e3)
        if told["total"] == count and not told["waiting"] and told["runs"][0]["status"] != "reading":
            break
        time.sleep(1.0)
    print(f"  {'index of all runs built after':44s} {time.monotonic() - begin:7.2f} s")
    print_times("one run of the API while it is built", sorted(took), 0)


def time_lists(client: httpx.Client, count: int, title: str, pause_s: float = 0.0) -> float:
    """Print times of lists, searches, filters and orders; return the slowest 95th percentile (ms)."""
    repeats = 10 if pause_s else REPEATS
    asked = {
        "list, first page of 50": "/",
        "list, last page": f"/?page={-(-count // 50)}",
        "search, a word in every name of one kind": "/?q=llava",
        "search, two words": "/?q=llava+user7",
        "search, one run": f"/?q={NAMES[(count // 3) % len(NAMES)]}-{count // 3}",
        "search, two letters": "/?q=7b",
        "search, nothing found": "/?q=nothingofthatname",
        "filter by label": "/?label=batch%3D64",
        "filter by host, status and day": "/?host=node07&status=ok&from=2023-11-14&to=2023-12-01",
        "search and filter, sorted by energy": "/?q=lstm&label=gpus%3D3&sort=energy",
        **{f"sorted by {by}, rising": f"/?sort={by}&order=up" for by in SORTS},
        "API, 50 runs": "/api/runs",
        "API, 500 runs": "/api/runs?size=500",
    }
    print(f"  {title:44s} {'p50':>10s} {'p95':>10s} {'slowest':>10s}")
    return max(print_times(what, *time_requests(client, path, repeats, pause_s)) for what, path in asked.items())


@contextmanager
def arriving(store: Path, first: int, result: Result) -> Iterator[None]:
    """Let a run arrive each half second."""
    over = threading.Event()

    def add_runs() -> None:
        number = first
        while not over.wait(0.5):
            add_run(store, number, result)
            number += 1

    thread = threading.Thread(target=add_runs)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def time_beside_pages(url: str, run: str) -> None:
    """Print how long the list takes while pages are made that nobody has asked for yet."""
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(4) as pool:
        ids = [each["id"] for each in client.get("/api/runs?size=100").json()["runs"]][1:21]
        pages = [pool.submit(httpx.get, f"{url}runs/{each}", timeout=60) for each in ids if each != run]
        print_times("list while 20 pages are made", *time_requests(client, "/"))
        for page in pages:
            page.result()


def main() -> int:
    """Make the store, start the server, print; return 1 if a 95th percentile is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000, help="about 20 kB of disk each")
    parser.add_argument("--store", type=Path, help="make the store in this folder and keep it, or use the one there")
    given = parser.parse_args()
    count = given.runs
    with contextlib.ExitStack() as ended:
        folder = given.store or ended.enter_context(tempfile.TemporaryDirectory(prefix="joulelab-dashboard-"))
        store = Path(folder) / "joulelab-runs"
        begin = time.monotonic()
        result = load_result(RECORDED) if store.exists() else fill_store(store, count)
        count = len(list(store.iterdir()))
        print(f"{count:,} runs (made in {time.monotonic() - begin:.1f} s)", flush=True)
        with serving(store) as (url, pid, begun), httpx.Client(base_url=url, timeout=60) as client:
            wait_for_index(client, begun, count)
            slowest = time_lists(client, count, "nothing changes")
            with arriving(store, count, result):
                slowest = max(slowest, time_lists(client, count, "two runs arrive each second", 0.25))
            last = run_name(count - 1)
            print_times("page of a run, first time", *time_requests(client, f"/runs/{last}", 1))
            print_times("page of a run, again", *time_requests(client, f"/runs/{last}"))
            time_beside_pages(url, last)
            print("  memory: {:.0f} MB now, {:.0f} MB at most".format(*memory_mb(pid)))
            used, once = cpu_s(pid), time.monotonic()
            time.sleep(20)
            print(f"  idle: {(cpu_s(pid) - used) / (time.monotonic() - once) * 100:.1f} % of a core")
    print(f"slowest 95th percentile of lists: {slowest:.0f} ms (limit {LIMIT_MS:.0f} ms)")
    return int(slowest > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
