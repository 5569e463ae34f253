"""Kill parts of `joulelab run` at random times in random ways, and see what is left of the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.campaign import square_meter
from tests.campaign.families import clear_family, is_alive, kill_at_once, list_family, read_words
from tests.cli.entry import JOULELAB
from tests.recorder.driving import rows_of
from tests.waiting import until

from joulelab.analysis.results_file import load_result
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError
from joulelab.store.run_folder import list_runs

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    import psutil
    from tests.campaign.campaign_counts import CampaignCounts

METER = Path(square_meter.__file__)
WORKLOAD = ["sleep", "600.125"]
LONGEST_S = 2.0  # a kill comes at most so long after the start, or after the first samples are on the disk


class RunTrial:
    """Hold one `joulelab run` with its processes."""

    def __init__(self, folder: Path, number: int) -> None:
        self.runs = folder / f"runs{number}"
        self.log = folder / f"errors{number}.txt"
        words = ["run", "--runs", str(self.runs), "--meter", str(METER), "--", *WORKLOAD]
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [*JOULELAB, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, process_group=0
            )

    @property
    def run(self) -> Path | None:
        """Return the run folder, None before it is there."""
        return next(iter(list_runs(self.runs)), None)

    def list_members(self, word: str = "") -> list[psutil.Process]:
        """Return all processes of the run, or those whose command has a word."""
        return [one for one in list_family(self.process.pid) if not word or word in read_words(one)]

    def list_recorders(self) -> list[psutil.Process]:
        """Return the recorder, if there is one."""
        return self.list_members("joulelab.recorder")

    def list_workload(self) -> list[psutil.Process]:
        """Return the workload, if it runs; the command of the supervisor ends with the same words."""
        return [one for one in self.list_members() if read_words(one) == WORKLOAD]

    def end_workload(self) -> bool:
        """Kill the workload, which may start late; return whether joulelab has ended."""
        kill_at_once(self.list_workload())
        return self.process.poll() is not None

    def read_times_ns(self) -> list[int]:
        """Return the times of all samples on the disk."""
        journals = self.run.glob("*/square_meter.power.*.journal") if self.run else ()
        return sorted(int(row[2]) for path in journals for row in rows_of(path))


def _kill(choose: Callable[[RunTrial], list[psutil.Process]], *, stop_first: bool = False) -> Callable[..., None]:
    return lambda trial, _: kill_at_once(choose(trial), stop_first=stop_first)


def _kill_some(trial: RunTrial, draw: random.Random) -> None:
    members = trial.list_members()
    kill_at_once(draw.sample(members, draw.randint(1, len(members))) if members else [])


def _kill_recorders(trial: RunTrial, draw: random.Random) -> None:
    """Kill the recorder, and once or twice the one that takes its place."""
    for _ in range(draw.randint(1, 3)):
        kill_at_once(trial.list_recorders())
        time.sleep(draw.uniform(0.0, 1.0))


def _send(number: int) -> Callable[..., None]:
    return lambda trial, _: trial.process.send_signal(number)


def _kill_group(trial: RunTrial, _: random.Random) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(trial.process.pid, signal.SIGKILL)


WAYS: dict[str, Callable[[RunTrial, random.Random], None]] = {
    "supervisor -9": _kill(lambda trial: trial.list_members()[:1]),
    "recorder -9": _kill(RunTrial.list_recorders),
    "recorders -9": _kill_recorders,
    "workload -9": _kill(RunTrial.list_workload),
    "supervisor and recorder -9": _kill(lambda trial: trial.list_members()[:1] + trial.list_recorders()),
    "some -9": _kill_some,
    "all -9": _kill(RunTrial.list_members),
    "power loss": _kill(RunTrial.list_members, stop_first=True),
    "group -9": _kill_group,
    "SIGTERM": _send(signal.SIGTERM),
    "SIGINT": _send(signal.SIGINT),
    "SIGHUP": _send(signal.SIGHUP),
}


class RunKills:
    """Run kill trials of runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Start a run, strike, and judge what is left."""
        self._count += 1
        way = draw.choice(list(WAYS))
        trial = RunTrial(self._folder, self._count)
        known: list[psutil.Process] = []
        try:
            if draw.random() < 0.8:  # most when there are samples, some while it starts
                until(lambda: trial.read_times_ns() or trial.process.poll() is not None, "samples")
            time.sleep(draw.uniform(0.0, LONGEST_S))
            known = trial.list_members()
            recorders = trial.list_recorders()
            struck_ns = monotonic_ns()
            WAYS[way](trial, draw)
            counts.kills[f"run: {way}"] += 1
            known += trial.list_members()
            workload = [one for one in known if read_words(one) == WORKLOAD]
            time.sleep(draw.uniform(0.1, 0.5))
            hit = any(not is_alive(one) for one in recorders)
            known += trial.list_members()
            # A workload outlives a supervisor that was killed, and ends here; what is left of joulelab ends with it.
            kill_at_once(workload)
            with contextlib.suppress(AssertionError):
                until(trial.end_workload, within_s=60)
            left = clear_family([*known, *trial.list_members()])
            counts.processes_left += len(left)
            counts.problems += [f"{way}: process {one.pid} is left" for one in left]
            self._judge(trial, way, struck_ns if hit else None, counts)
        finally:
            kill_at_once([*known, *trial.list_members()])
            trial.process.wait(60)

    def _judge(self, trial: RunTrial, way: str, struck_ns: int | None, counts: CampaignCounts) -> None:
        text = trial.log.read_text()
        # Python prints one of its own if Ctrl-C comes while it starts, before it runs any code of ours.
        if "Traceback" in text and "/joulelab/" in text:
            counts.crashes += 1
            counts.problems.append(f"{way}: {text[-200:]}")
        times = trial.read_times_ns()
        before = [t for t in times if struck_ns is None or t <= struck_ns]
        if struck_ns is not None and before:
            counts.lost_s.append(max(0.0, (struck_ns - before[-1]) / NS - square_meter.PERIOD_S))
        if trial.run is not None and len(times) > 2 * square_meter.DEVICES:
            count_energy(trial.run, counts, way, times)


def count_energy(run: Path, counts: CampaignCounts, what: str, times_ns: list[int]) -> None:
    """Compare the energy of a run with the true one; a run that is refused has none, which is no mistake.

    `times_ns` are those of its samples.
    """
    try:
        result = load_result(run)
    except JoulelabError:
        return
    except Exception as error:
        counts.crashes += 1
        counts.problems.append(f"{what}: {type(error).__name__}: {error}")
        return
    energy = result.energy
    if energy is None or energy.expanded is None:
        return
    true_j = square_meter.compute_true_energy_j(result.start_ns, result.end_ns)
    counts.energies += 1
    if abs(energy.value - true_j) > energy.expanded:
        counts.energies_outside += 1
        figure = f"{energy.value:.1f} ± {energy.expanded:.1f} J, true {true_j:.1f} J in {result.duration_s:.2f} s"
        late_s, early_s = (times_ns[0] - result.start_ns) / NS, (result.end_ns - times_ns[-1]) / NS
        read = f"first sample {late_s:.2f} s after its start, last {early_s:.2f} s before its end"
        counts.outside.append(f"{what}: {figure}; {read}")
