"""Print how long plans, reports and lists take over many cells and runs, each against plain reading of the same files.

A recorded run is copied under new names: its samples by hard links, what tells of it as files of their own. Each
figure is a command in a process of its own, so the start of the interpreter is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.results_file import HEAD_FILE, RESULT_FILE, load_result, write_result
from joulelab.core.process_identity import identify_process
from joulelab.study.folder import Plan, Settings, Study, join_study
from joulelab.study.knobs import Knob
from joulelab.study.matrix import Workload, make_cells
from joulelab.study.slots import CLAIM, NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECORDED = Path(__file__).parents[1] / "examples" / "runs" / "20261118-015240-beb3"
COMMAND = ("true", "--batch", "{batch}", "--rate", "{rate}")
SPREAD = 0.01  # relative, of the energies and times of repeats
UNREAD = 100  # one run of so many has no results yet
QUERIES = {
    "runs": "SELECT host, outcome, count(*), avg(duration_s) FROM runs GROUP BY ALL",
    "energies": "SELECT scope, count(*), avg(energy_j), max(mean_w) FROM energies WHERE counted GROUP BY scope",
    "phases": "SELECT phase, count(*), avg(duration_s), sum(energy_j) FROM phases GROUP BY phase",
    "runs and energies": (
        "SELECT name, sum(energy_j) FROM runs JOIN energies USING (run) WHERE duration_s > 1 GROUP BY name"
    ),
}


@dataclass(frozen=True)
class Ground:
    """Hold where things are made, and what the bare start of a command takes there (s)."""

    folder: Path
    start_s: float

    def time(self, what: str, words: Sequence[str], read: Path | None = None, names: Sequence[str] = ()) -> float:
        """Time a command; print it beside the plain reading of all files of some names under a folder."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = command(words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        against = ""
        if read is not None:
            plain = reading(read, names)
            against = f"{(took - self.start_s) / plain:8.1f} x plain reading of {', '.join(names)} ({plain:.2f} s)"
        print(f"  {what:44s} {took:6.2f} s (CPU {cpu:5.2f} s) {against}", flush=True)
        return took


def command(words: Sequence[str]) -> float:
    """Return how long a command of joulelab takes. Raises CalledProcessError."""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "joulelab", *words], check=False, capture_output=True, text=True)
    took = time.monotonic() - begin
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr[-1000:]}")
    return took


def reading(folder: Path, names: Sequence[str]) -> float:
    """Return how long it takes to list a tree and to read its files of these names, and do nothing with them."""
    begin = time.monotonic()
    for file in walk(folder):
        if file.name in names:
            with open(file.path, "rb") as opened:
                opened.read()
    return time.monotonic() - begin


def walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Give every file under a folder."""
    left = [str(folder)]
    while left:
        for entry in os.scandir(left.pop()):
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)
            else:
                yield entry


class Copies:
    """Make runs out of a recorded one; what decides whether results are valid is the same in all of them."""

    def __init__(self, folder: Path) -> None:
        self.run = Path(shutil.copytree(RECORDED, folder / RECORDED.name))
        # Whole seconds, as git does not keep more either.
        for file in walk(self.run):
            os.utime(file.path, ns=(0, 1_790_000_000 * 10**9))
        for cache in (RESULT_FILE, HEAD_FILE):
            (self.run / cache).unlink(missing_ok=True)
        self.result = load_result(self.run)
        self.meta = (self.run / "run.json").read_text()
        self.kept = [p.name for p in self.run.iterdir() if p.name in (RESULT_FILE, HEAD_FILE)]

    def make(self, folder: Path, name: str, *, results: bool) -> Path:
        """Make a run of that name in a folder."""
        run = folder / name
        for there, _, files in os.walk(self.run):
            to = run / Path(there).relative_to(self.run)
            to.mkdir(parents=True)
            for file in files:
                if to != run or file == "end.json":
                    os.link(f"{there}/{file}", to / file)
        (run / "run.json").write_text(self.meta.replace(self.run.name, name))
        os.utime(run / "run.json", ns=(0, 1_790_000_000 * 10**9))
        for file in self.kept if results else ():
            shutil.copyfile(self.run / file, run / file)
        return run


def run_name(number: int) -> str:
    """Return the name of a run: one every 10 s."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(1_700_000_000 + 10 * number))
    return f"{stamp}-{number % 65536:04x}"


def plans(ground: Ground, count: int) -> None:
    """List a matrix of so many cells, before anything is there, and when the cells are."""
    side = round(count**0.5)
    print(f"a plan of {side * side:,} cells x 3 repeats = {3 * side * side:,} slots")
    ranges = ["--set", f"batch=1:{side}:1", "--set", f"rate=1:{side}:1"]
    words = ["sweep", "--studies", str(ground.folder), "--name", "plan", "--dry-run", *ranges, "--", *COMMAND]
    ground.time("listed, nothing is there", words)
    begin = time.monotonic()
    make_plan(ground.folder, "plan", side)
    print(f"  {'the folders of its cells are made (safe on disk)':44s} {time.monotonic() - begin:6.2f} s")
    ground.time("listed, the cells are there", words, ground.folder / "plan", ["cell.json"])


def make_plan(folder: Path, name: str, side: int) -> Study:
    """Make the folder of a study of side x side cells."""
    knobs = [Knob.parse(knob, f"1:{side}:1") for knob in ("batch", "rate")]
    made = make_cells(Workload(COMMAND), knobs, 3)
    plan = Plan(made, 3, settings=Settings(), goals=("energy", "edp"), reference={"batch": 1, "rate": 1})
    return join_study(folder / name, name, plan, 7)


def reports(ground: Ground, copies: Copies, count: int) -> None:
    """Report a study whose every slot is done: as text and CSV, and as JSON."""
    side = round(count**0.5)
    study = make_plan(ground.folder, "done", side)
    rng = np.random.default_rng(0)
    made = dict(study.read_cells())
    for number, key in enumerate(made):
        for repeat in (1, 2, 3):
            finish(study, copies, key, repeat, run_name(3 * number + repeat), rng)
    read = ["cell.json", "claim.json", "slot.json", "end.json", RESULT_FILE]
    print(f"a study of {len(made):,} cells x 3 repeats, all done")
    words = ["sweep", "--studies", str(ground.folder), "--name", "done", "--report", "--no-figures"]
    ground.time("report: text, results.csv, slots.csv", words, study.folder, read)
    ground.time("report: the same with --json", [*words, "--json"], study.folder, read)


def finish(study: Study, copies: Copies, key: str, repeat: int, name: str, rng: np.random.Generator) -> None:
    """Fill a slot as if it had been run, with an energy and a time of its own."""
    slot = study.get_slot_folder(key, repeat)
    slot.mkdir()
    run = copies.make(slot, name, results=False)
    factor, longer = np.exp(SPREAD * rng.standard_normal(2))
    result = copies.result
    groups = [replace(g, energy=replace(g.energy, value=g.energy.value * factor * longer)) for g in result.groups]
    end_ns = result.start_ns + round((result.end_ns - result.start_ns) * longer)
    write_result(run, replace(result, run=name, groups=tuple(groups), end_ns=end_ns))
    _write(slot / CLAIM, identify_process() | {"mono_ns": 1, "utc_ns": 1, "pid": 1, "ticks": 1})
    _write(slot / NOTES, {"schema": 1, "took_s": 12.5, "cooled": None, "gpus": ["gpu:0"]})
    for output in ("out.txt", "err.txt"):
        (slot / output).write_text("samples: 640\n")


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1))


def stores(ground: Ground, copies: Copies, count: int) -> None:
    """List and query a store of so many runs, of which some have not been worked out."""
    runs = ground.folder / "runs"
    runs.mkdir()
    for number in range(count):
        copies.make(runs, run_name(number), results=number % UNREAD != 0)
    print(f"a store of {count:,} runs; {len(range(0, count, UNREAD))} have no results yet")
    here = ["--runs", str(runs)]
    metas = ["run.json", "end.json"]
    for name, sql in QUERIES.items():
        if name == "runs":
            ground.time(f"query: {name}", ["query", sql, *here], runs, metas)
    ground.time("ls", ["ls", *here])
    cached = [copies.kept[-1]]
    ground.time("ls --all, first", ["ls", "--all", *here], runs, cached)
    ground.time("ls --all, again", ["ls", "--all", *here], runs, cached)
    ground.time("ls --all --json", ["ls", "--all", "--json", *here], runs, cached)
    for name, sql in QUERIES.items():
        names = metas if name == "runs" else cached if "runs" not in name else [*metas, *cached]
        ground.time(f"query: {name}", ["query", sql, *here], runs, names)


def main() -> None:
    """Make each, and print what the commands take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=10_000, help="of the plan")
    parser.add_argument("--done", type=int, default=1_000, help="cells of the study that is done")
    parser.add_argument("--runs", type=int, default=10_000, help="of the store")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        start_s = min(command(["--version"]) for _ in range(3))
        print(f"a command that does nothing: {start_s:.2f} s; it is left out where a ratio is given")
        ground = Ground(folder, start_s)
        (folder / "first").mkdir()
        copies = Copies(folder / "first")
        if options.cells:
            plans(ground, options.cells)
        if options.done:
            reports(ground, copies, options.done)
        if options.runs:
            stores(ground, copies, options.runs)


if __name__ == "__main__":
    main()
