"""Print how long the report of a day-long run takes: eight GPUs, CPUs and wall meters at 10 Hz, made on a twin.

`python -m benchmarks.report` makes the run in virtual time (a workload of 24 h on bnl-h100), seals it, and times each
step of its report; with chromium there, it also opens the page and says how long the browser stood still.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.power_profile import make_profile
from joulelab.report.charts.power_chart import encode_power_chart, make_power_chart
from joulelab.report.run_tables import describe_rated
from joulelab.store.documents import read_json
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run
from joulelab.twin.flaws import MountedMeter
from joulelab.twin.nodefile import find_node
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual.meters import Bench, read_meters
from joulelab.twin.virtual.run_writing import RunDescription, write_run
from joulelab.twin.workload_progress import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable

TWIN, WORKLOAD = "bnl-h100", "resnet152-cifar10"
EPOCHS = 185.0  # of this workload in a day
IDLE_S, TAIL_S = 60.0, 75.0
PERIOD_S = 0.1
START_NS = 1_750_000_000 * 1_000_000_000
MOST_S, MOST_B = 10.0, 8e6  # what a report may take, and how large its page may be


def make_run(runs: Path, epochs: float) -> Path:
    """Write a run in virtual time: NVML, RAPL and an analyzer ten times a second, a PDU once a minute."""
    described = find_node(TWIN)
    meters = {
        "nvml": replace(described.meters["nvml"], ask_s=PERIOD_S),
        "rapl": MountedMeter(family="rapl", ask_s=PERIOD_S, gain_sd=0.02),
        "analyzer": MountedMeter(family="analyzer", ask_s=PERIOD_S),
        "pdu": described.meters["pdu"],
    }
    model = described.workloads[WORKLOAD]
    ask = RunRequest({**model.parameters, "epochs": epochs}, tuple(range(len(described.node.gpus))), {})
    timeline = lay_out_run(described.node, model, ask, RunTimes(START_NS, IDLE_S, TAIL_S), 1)
    bench = Bench(timeline, ask, 1, PERIOD_S)
    about = RunDescription(
        "a day", {}, ["resnet152-cifar10"], described.node.name, {"name": TWIN}, {"period_s": PERIOD_S}
    )
    run = write_run(runs, about, timeline, read_meters(bench, meters), [])
    seal_run(run)
    return run


def timed(what: str, work: Callable[[], Any]) -> tuple[Any, float]:
    """Do something; print and return how long it took (s)."""
    gc.collect()
    begin, used = time.perf_counter(), time.process_time()
    found = work()
    took = time.perf_counter() - begin
    print(f"  {what:28s} {took:7.2f} s (CPU {time.process_time() - used:5.2f} s)", flush=True)
    return found, took


def report(run: Path) -> tuple[str, float, dict[str, Any]]:
    """Make the report of a run step by step; return the page, how long all took (s), and the profile's data."""
    from joulelab.report.page.document import write_offline_page  # here: what the page needs is loaded within its time
    from joulelab.report.page.run_page import make_run_report

    with open_run(run) as opened:
        result, first = timed("analysis", lambda: analyse_run(opened))
        profile, second = timed("power over time", lambda: make_profile(opened))
    page, third = timed("page", lambda: make_run_report(result, run, profile).make_page())
    text, fourth = timed("one file", lambda: write_offline_page(page))
    assert profile is not None
    finest = profile.grid.step_s
    print(
        f"  {len(profile.traces)} traces, {profile.grid.count} buckets of {finest:.3g} s, {profile.grid.levels} levels"
    )
    print(f"  {describe_rated(result.rated)}")
    return text, first + second + third + fourth, encode_power_chart(make_power_chart(profile, result))


def stalls(page: Path) -> None:
    """Open a page in chromium, zoom in and out, and print how long it stood still. Needs playwright and chromium."""
    try:
        from playwright.sync_api import sync_playwright
        from tests.browser.conftest import CHROMIUM, Stalls
    except ImportError as error:
        print(f"  not opened in a browser: {error}")
        return
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        print("  not opened in a browser: no chromium here")
        return
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1200, "height": 900})
        watch = Stalls(shown)
        begin = time.perf_counter()
        shown.goto(page.as_uri())
        shown.wait_for_selector("figure.profile canvas")
        print(f"  {'opened':28s} {time.perf_counter() - begin:7.2f} s, longest stall {watch.longest():.0f} ms")
        watch.reset()
        place = shown.locator("figure.profile .over").first
        place.scroll_into_view_if_needed()
        place.hover()
        for turn in (-400, -400, -400, -400, 400, 400):
            shown.mouse.wheel(0, turn)
        shown.keyboard.press("0")
        print(f"  {'zoomed':28s} longest stall {watch.longest():.0f} ms")
        browser.close()


def main() -> int:
    """Make the run unless one is given, and time its report; return 1 where it is too slow or its page too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=EPOCHS, help="of the workload: 185 are a day")
    parser.add_argument("--runs", type=Path, help="keep the run in this folder, and use one that is there already")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = given.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        found = next(iter(sorted(p for p in runs.iterdir() if (p / "run.json").exists())), None)
        run = found or timed("made in virtual time", lambda: make_run(runs, given.epochs))[0]
        with open_run(run) as opened:
            rows = sum(table.rows for table in opened.tables())
        print(f"  {rows} rows of readings, {read_json(run / 'run.json')['id']}")
        text, took, data = report(run)
        page = Path(folder) / "page.html"
        page.write_text(text, encoding="utf-8")
        size = page.stat().st_size
        series = sum(len(part) for s in data["series"] for key in ("mean", "low", "high") for part in s[key])
        print(f"  {'report':28s} {took:7.2f} s, page {size / 1e6:.2f} MB, of it readings {series / 1e6:.2f} MB")
        stalls(page)
    return int(took > MOST_S or size > MOST_B)


if __name__ == "__main__":
    sys.exit(main())
