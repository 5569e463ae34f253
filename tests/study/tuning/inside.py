"""Tune inside of runs whose meters, caps and workload are as a test wants them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.store.make import START_NS, close_run, gpus, make_run, write_rows
from tests.study.tuning.marks import line, write
from tests.study.tuning.two_gpus import STATUS

from joulelab.analysis.goals import Goal
from joulelab.control.client import CapRequest, HeldCap
from joulelab.core.clock import NS
from joulelab.core.marks import MarkWriter
from joulelab.core.quantity import Quantity
from joulelab.core.spec import Accuracy, Spec
from joulelab.report.terminal import write_blocks
from joulelab.report.tuning_tables import lay_out_tuning
from joulelab.run.recording import RunRecording
from joulelab.run.run_options import RunOptions
from joulelab.store.documents import read_lines
from joulelab.study.tuning.grid import make_grid
from joulelab.study.tuning.online import OnlineTuning
from joulelab.study.tuning.search import Setting
from joulelab.study.tuning.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulelab.core.errors import JoulelabError
    from joulelab.study.tuning.tuning_result import TuningResult

GRID = make_grid(STATUS, ["gpu:0", "gpu:1"], "100,180,260")
ENERGY = Goal.parse("energy")


def window(cap: float, at_s: float, *, energy: float, time_s: float = 5.0, work: float = 100.0) -> Window:
    terms = {"gain:nvml": 0.05 * energy, "edge:x": 0.002 * energy, "unseen:x": 0.1 * energy}
    start = round(at_s * NS)
    return Window(
        Setting(float(cap)), start, start + round(time_s * NS), work, Quantity.from_terms(energy, terms), 0.002
    )


def online(**more: float) -> OnlineTuning:
    return OnlineTuning(GRID, ENERGY, window_s=0.2, settle_s=0.0, **more)  # type: ignore[arg-type]


class Capped:
    """Stand for the caps of a run: take what is wished, or refuse it."""

    def __init__(self, refuse: Callable[[float], JoulelabError | None]) -> None:
        self.wishes: list[list[CapRequest]] = []
        self._refuse = refuse

    def set(self, wishes: Sequence[CapRequest]) -> list[HeldCap]:
        error = self._refuse(wishes[0].value)
        if error is not None:
            raise error
        self.wishes.append(list(wishes))
        asked = [w.value for w in wishes]
        return [
            HeldCap(w.device, w.device, "GPU", "power", a, a, 0.9 * a, 250.0, 260.0, "W")
            for w, a in zip(wishes, asked, strict=True)
        ]

    def serve(self) -> None:
        """Hear nothing."""


def recorded(tmp_path: Path, capped: Capped, tuning: OnlineTuning, until: Callable[[], object]) -> RunRecording:
    """Tune a run without meters whose work is reported all the time, until something is the case."""
    recording = RunRecording(RunOptions(runs=tmp_path), ["true"], os.environ)
    writer = MarkWriter(recording.folder / "marks")
    tuning.begin(recording, capped)  # type: ignore[arg-type]
    end = time.monotonic() + 120
    while not until():
        writer.work({"steps": 1})
        writer.flush()
        assert time.monotonic() < end
        time.sleep(0.02)
    tuning.end()
    writer.close()
    recording.close({"outcome": "exit", "exit_code": 0})
    return recording


def events(recording: RunRecording) -> list[str]:
    return [str(e["event"]) for e in read_lines(recording.folder / "events.run.jsonl")[0]]


def measured(
    tuning: OnlineTuning, told: Callable[[float, int], tuple[float, float]], *, pauses: int = 0
) -> list[Window]:
    """Let windows have energy (J) and time (s) per work by their cap and number, as meters would tell them.

    Work stands still in the first windows. All windows are returned, as they are made.
    """
    made: list[Window] = []

    def window(setting: Setting) -> Window:
        cap = setting.cap_w or 0.0
        assert tuning.log is not None
        a = tuning._wait_for_report(0)
        b = tuning._wait_for_report(a)
        work = tuning.log.count_work(a, b)
        energy, time_s = told(cap, len(made))
        span = round(work * time_s * NS)
        paused = len(made) < pauses
        made.append(Window(setting, a, a + span, work, Quantity(energy * work, {"edge:x": 0.001}), 0.001, paused))
        return made[-1]

    tuning._measure_window = window  # type: ignore[method-assign]
    return made


TRUE = {260.0: (500.0, 1.0), 180.0: (384.0, 1.08), 100.0: (520.0, 2.6)}


def scaled(cap: float, by: float) -> tuple[float, float]:
    energy, time_s = TRUE[cap]
    return energy * by, time_s * by


LONG_S, PERIOD_S = 60, 0.1
COUNTER = Spec("energy_j", "energy", "J", kind="counter", update_s=0.02, accuracy=Accuracy("assumed", gain=0.05))
LIMIT = Spec("cap_enforced_w", "power", "W", kind="state")


def long_run(folder: Path, watts: Callable[[float], float], enforced: float | None = None) -> Path:
    """Make a run of a minute on one GPU that draws some power; the cap that it enforces may be told."""
    run = make_run(folder)
    energy, rows = 0.0, []
    for k in range(round(LONG_S / PERIOD_S)):
        t = START_NS + round(k * PERIOD_S * NS)
        values = [energy, *([] if enforced is None else [enforced])]
        rows.append((0, t, t + 100_000, values))
        energy += watts(k * PERIOD_S) * PERIOD_S
    channels = (COUNTER,) if enforced is None else (COUNTER, LIMIT)
    write_rows(run, gpus(1, channels), rows)
    close_run(run, end_ns=START_NS + LONG_S * NS)
    return run


def worked(folder: Path, rate: Callable[[float], float]) -> None:
    """Report work every tenth of a second, for a minute."""
    for t in range(LONG_S - 1):
        stamps = [t + (k + 1) / 10 for k in range(10)]
        done = sum(rate(s) / 10 for s in stamps)
        start = START_NS / NS
        write(folder, "1", line(start + t + 1, start + t, done, count=10, at_s=[start + s for s in stamps]))


def shown(told: TuningResult) -> str:
    return write_blocks(lay_out_tuning(told, width=80), 80)


def unheld(tuning: OnlineTuning, drew: Callable[[float], float], holds: Callable[[float], bool]) -> None:
    """Let GPUs draw some power (W) under a cap, and keep to it or not."""
    made = tuning._measure_window

    def window(setting: Setting) -> Window:
        cap = setting.cap_w or 0.0
        return replace(made(setting), gpu_w=drew(cap), unheld="" if holds(cap) else f"gpu:0 drew {drew(cap):.0f} W")

    tuning._measure_window = window  # type: ignore[method-assign]
