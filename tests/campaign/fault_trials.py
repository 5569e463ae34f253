"""Run commands while calls of the disk fail or wait, folders vanish and the wall clock jumps.

The workload must not notice; a loss must be stated; a figure is right or has a warning.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.campaign import square_meter
from tests.campaign.families import clear_family, kill_at_once, list_family
from tests.cli.entry import JOULELAB
from tests.recorder.driving import rows_of
from tests.waiting import until

from joulelab.core.clock import NS
from joulelab.core.errors import JoulelabError
from joulelab.store.run_folder import list_runs

if TYPE_CHECKING:
    import random

    from tests.campaign.campaign_counts import CampaignCounts

SOURCE = Path(__file__).with_name("fault_shim.c")
METER = Path(square_meter.__file__)
CALLS = ("write", "sync", "rename", "open", "truncate")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)
ALWAYS = 1_000_000
CODE = 7  # of the workload
OUTPUT = "worked\n"
GAP_S = 0.6  # samples are written twice a second: a longer gap is a loss


@functools.cache
def build_shim() -> Path:
    """Compile the library that makes calls fail; skip where there is no compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("the library that makes disks fail is built with gcc: apt install gcc")
    target = Path(tempfile.mkdtemp(prefix="shim-")) / "fault_shim.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", target, SOURCE, "-ldl"], check=True)
    return target


@dataclass(frozen=True)
class Rule:
    """Let calls number `first` and on of each process wait and fail, `count` of them."""

    call: str
    first: int = 1
    count: int = ALWAYS
    error: int = 0
    delay_ms: int = 0

    def __str__(self) -> str:
        return f"{self.call} {self.first} {self.count} {self.error} {self.delay_ms}"


@dataclass
class FaultRun:
    """Run a command under `joulelab run` with faults. `switch`: rules hold only while a file is there."""

    folder: Path
    rules: tuple[Rule, ...] = ()
    seconds: float = 1.0
    switch: bool = False
    before: dict[str, str] = field(default_factory=dict)  # further variables

    def start(self) -> None:
        """Start it."""
        self.folder.mkdir(parents=True)
        self.runs = self.folder / "runs"
        self.switch_file, self.clock_file = self.folder / "switch", self.folder / "clock"
        self.clock_file.write_bytes(struct.pack("<q", 0))
        self.output, self.errors = self.folder / "result.json", self.folder / "errors.txt"
        environ = os.environ | {
            "LD_PRELOAD": str(build_shim()),
            "SHIM_FOLDER": str(self.runs),
            "SHIM_RULES": ";".join(map(str, self.rules)),
            "SHIM_CLOCK": str(self.clock_file),
            **({"SHIM_WHILE": str(self.switch_file)} if self.switch else {}),
            **self.before,
        }
        words = ["run", "--runs", str(self.runs), "--meter", str(METER), "--output", str(self.output), "--"]
        workload = ["sh", "-c", f"echo worked; sleep {self.seconds}; exit {CODE}"]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*JOULELAB, *words, *workload],
                env=environ,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,
            )

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock this far from the true one."""
        with self.clock_file.open("r+b") as file:
            file.write(struct.pack("<q", round(seconds * NS)))

    def wait_for_samples(self) -> Path:
        """Wait until samples are on the disk; return the run folder."""
        until(lambda: self.read_times_ns() or self.process.poll() is not None, "samples")
        (run,) = list_runs(self.runs)
        return run

    def read_times_ns(self) -> list[int]:
        """Return the times of all samples on the disk."""
        journals = self.runs.glob("*/*/square_meter.power.*.journal")
        return sorted(int(row[2]) for path in journals for row in rows_of(path))

    def end(self) -> None:
        """Wait for its end."""
        members = list_family(self.process.pid)
        try:
            self.stdout, _ = self.process.communicate(timeout=180)
        finally:
            kill_at_once(list_family(self.process.pid))
            self.left = clear_family(members)

    @property
    def text(self) -> str:
        """Return what it printed on standard error."""
        return self.errors.read_text()

    @property
    def result(self) -> dict[str, Any]:
        """Return its result, empty if it could not be written."""
        with contextlib.suppress(OSError, ValueError):
            data: dict[str, Any] = json.loads(self.output.read_text())
            return data
        return {}


def judge_fault(trial: FaultRun) -> list[str]:
    """Return which promises a run with faults breaks."""
    found = []
    if (trial.process.returncode, trial.stdout) != (CODE, OUTPUT):
        found.append(f"the workload was touched: exit {trial.process.returncode}, output {trial.stdout!r}")
    if "Traceback" in trial.text:
        found.append(f"crash: {trial.text[-300:]}")
    found += [f"process {one.pid} is left" for one in trial.left]
    first = trial.result
    stated = bool(first.get("problems")) or "not recorded" in trial.text or _has_warning(first)
    found += _judge_figure(first, stated=stated, when="at its end")
    found += _judge_later(trial, stated=stated)
    return found


def _judge_later(trial: FaultRun, *, stated: bool) -> list[str]:
    """Return what is silently wrong when the run is read later, by a process without faults."""
    from joulelab.analysis.results_file import load_result
    from joulelab.report.result_json import describe_result

    runs, taken = list_runs(trial.runs), trial.read_times_ns()  # before the journals of a killed run are sealed
    if not runs:  # a folder may vanish when the run has ended and its figure, which was judged, is printed
        is_after_end = trial.result.get("energy") is not None
        return [] if stated or is_after_end else ["there is no run, and nothing states it"]
    try:
        later = describe_result(load_result(runs[0]))
    except JoulelabError:
        return [] if stated else ["the run is refused later, and its end did not state it"]
    found = _judge_figure(later, stated=_has_warning(later), when="later")
    start_ns, end_ns = later["start_ns"], later["end_ns"]
    times = [start_ns, *(t for t in taken if start_ns < t < end_ns), end_ns]
    gap_s = max(b - a for a, b in itertools.pairwise(times)) / NS
    if gap_s > GAP_S and not (stated or _has_warning(later)):
        found.append(f"{gap_s:.1f} s of samples are lost, and nothing states it")
    return found


def _has_warning(result: dict[str, Any]) -> bool:
    return any(check["status"] in ("warning", "failed") for check in result.get("checks", ()))


def _judge_figure(result: dict[str, Any], *, stated: bool, when: str) -> list[str]:
    energy = result.get("energy") or {}
    if energy.get("value") is None:
        return [] if stated else [f"no figure {when}, and nothing states it"]
    true_j = square_meter.compute_true_energy_j(result["start_ns"], result["end_ns"])
    error_j = abs(energy["value"] - true_j)
    if error_j <= (energy["expanded"] or 0.0):
        return []
    return [] if stated else [f"{energy['value']:.0f} J {when}, {true_j:.0f} J is true, and nothing states it"]


def count_figure(result: dict[str, Any], counts: CampaignCounts, what: str) -> None:
    """Count whether the true energy is inside the interval of a result."""
    value_j, expanded_j = result["energy"]["value"], result["energy"]["expanded"]
    if value_j is None or expanded_j is None:
        return
    true_j = square_meter.compute_true_energy_j(result["start_ns"], result["end_ns"])
    counts.energies += 1
    if abs(value_j - true_j) > expanded_j:
        counts.energies_outside += 1
        checks = ", ".join(check["code"] for check in result["checks"])
        figure = f"{value_j:.1f} ± {expanded_j:.1f} J, true {true_j:.1f} J in {result['duration_s']:.2f} s"
        counts.outside.append(f"{what}: {figure}; {checks}; {result.get('problems', '')}")


class FaultTrials:
    """Draw faults: failing and slow calls for ever or for a while, a folder that vanishes, steps of the clock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __enter__(self) -> Self:
        build_shim()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Run a command with faults and judge it."""
        self._count += 1
        rules = tuple(self._draw_rule(draw) for _ in range(draw.randint(1, 2)))
        kind = draw.choice(("from the start", "from the start", "for a while", "vanish", "clock"))
        if kind in ("vanish", "clock"):
            rules = ()
        trial = FaultRun(self._folder / str(self._count), rules, draw.uniform(0.2, 2.0), switch=kind == "for a while")
        trial.start()
        try:
            self._disturb(trial, kind, draw)
        finally:
            trial.end()
        problems = judge_fault(trial)
        counts.faults += 1
        counts.faults_silent += bool(problems)
        counts.crashes += any(problem.startswith("crash") for problem in problems)
        counts.processes_left += len(trial.left)
        what = f"{kind} {'; '.join(map(str, rules))}"
        counts.problems += [f"{what}: {problem}" for problem in problems]
        if not problems and trial.result.get("energy"):
            count_figure(trial.result, counts, what)
        shutil.rmtree(trial.folder, ignore_errors=True)

    def _draw_rule(self, draw: random.Random) -> Rule:
        is_slow = draw.random() < 0.3
        first, count = draw.choice((1, 1, 2, 3, 5, 10, 30)), draw.choice((1, 2, 5, ALWAYS))
        if is_slow:
            return Rule(draw.choice(("write", "sync")), first, min(count, 5), delay_ms=draw.choice((300, 1000, 3000)))
        return Rule(draw.choice(CALLS), first, count, draw.choice(ERRORS))

    def _disturb(self, trial: FaultRun, kind: str, draw: random.Random) -> None:
        """Do what happens while the command runs."""
        if kind == "from the start":
            return
        with contextlib.suppress(AssertionError, ValueError):  # it may have ended
            run = trial.wait_for_samples()
            time.sleep(draw.uniform(0.0, 0.5))
            if kind == "vanish":
                shutil.rmtree(run, ignore_errors=True)
            elif kind == "clock":
                trial.step_clock(draw.choice((-86400, -7200, -3, 3, 7200, 86400)))
                time.sleep(draw.uniform(0.0, 0.5))
                trial.step_clock(draw.choice((-7200, 0, 7200)))
            else:
                trial.switch_file.touch()
                time.sleep(draw.uniform(0.0, 1.0))
                trial.switch_file.unlink()
