"""Tune by whole runs that are done at once: an executor that makes them from a curve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tests.study.bench import place, store_trial
from tests.study.tuning.two_gpus import STATUS

from joulelab.analysis.goals import Goal
from joulelab.analysis.result import Check
from joulelab.core.quantity import Quantity
from joulelab.report.terminal import write_blocks
from joulelab.report.tuning_tables import lay_out_tuning
from joulelab.store.run_folder import list_runs
from joulelab.study.drive import StopRequest
from joulelab.study.executors import SlotEnd
from joulelab.study.matrix import Workload
from joulelab.study.results import MEASURED, SlotTrial
from joulelab.study.tuning.grid import make_grid
from joulelab.study.tuning.whole_runs import RunTuning, open_tuning_study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.study.tuning.tuning_result import TuningResult

ENERGY = Goal.parse("energy")
COMMAND = ("train", "--secret", "x")


class Made:
    """Stand for an executor: slots are done at once, with the energy and time that a curve gives; one may fail."""

    at_once = 1

    def __init__(
        self,
        curve: Callable[[float], tuple[float, float] | None],
        work: Callable[[float], Mapping[str, float]] = lambda _: {},
        *,
        holds: Callable[[float], bool] = lambda _: True,
        drew: Callable[[float], float] = lambda cap: cap,
        facts: Callable[[float], Mapping[str, float]] = lambda _: {},
    ) -> None:
        self.caps: dict[str, Any] = {}  # a cap by key of the cell, or a setting with a clock
        self.pair_curve: Callable[[float, float], tuple[float, float]] | None = None
        self._facts = facts
        self._curve = curve
        self._work, self._holds, self._drew = work, holds, drew
        self._ended: list[SlotEnd] = []
        self.ran: list[tuple[Any, str]] = []
        self.stop_after = math.inf
        self.stop: StopRequest | None = None

    def submit(self, slot: Path) -> None:
        cap = self.caps[slot.parent.name]
        self.ran.append((cap, slot.name))
        if len(self.ran) > self.stop_after and self.stop is not None:
            self.stop.number = 2
        gave = self._curve(cap) if self.pair_curve is None else self.pair_curve(*cap)
        end = {"outcome": "exit", "exit_code": int(gave is None), "signal": None, "start_ns": 0, "end_ns": 1}
        place(slot, {"pid": 0}, end)
        if gave is not None:
            energy, time_s = gave
            (run,) = list_runs(slot)
            whole = {} if energy <= 0 else {MEASURED: Quantity(energy, {"gain:nvml": 0.05 * energy, "edge:x": 1.0})}
            told = SlotTrial(
                run=run.name, time_s=time_s, start_utc="", meters={}, work=self._work(cap), busiest={},
                facts=self._facts(cap),
                energies={**whole, "gpu:0": Quantity((self._drew(cap) if self.pair_curve is None else 1.0) * time_s)},
                uncapped=() if self.pair_curve is not None or self._holds(cap) else (self._doubt(cap),),
            )  # fmt: skip
            store_trial(slot, told)
        self._ended.append(SlotEnd(slot, {"is": "ended"}))

    def _doubt(self, cap: float) -> Check:
        return Check("cap-not-enforced", "failed", "gpu:0", {"mean_w": self._drew(cap), "cap_w": cap})

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, slot: Path) -> None:
        """Nothing runs."""

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:
        """Nothing is elsewhere."""

    def close(self) -> None:
        """Nothing is held."""


def curve(cap: float) -> tuple[float, float]:
    """Return energy (J) and time (s) of a run: a GPU that draws what its cap allows and slows down below it."""
    time_s = 100 * (1 + 0.035 * ((cap / 260) ** -4 - 1))
    return (cap + 60) * time_s, time_s


def tuning(
    folder: Path, executor: Made, text: str | None = "100:260:20", clock: str | None = None, **more: Any
) -> RunTuning:
    grid = make_grid(STATUS, ["gpu:0"], text, clock)
    study, cells, plan = open_tuning_study(folder, "s", Workload(COMMAND), grid, {}, more.get("goal", ENERGY))
    executor.caps = {cell.key: setting.cap_w if clock is None else setting for setting, cell in cells.items()}
    said: list[str] = []
    chosen = {"goal": ENERGY, "on_event": lambda _: None, "notify": said.append, **more}
    return RunTuning(study, cells, plan, grid, chosen.pop("goal"), executor=executor, **chosen)


def tuned(
    folder: Path, executor: Made, text: str | None = "100:260:20", clock: str | None = None, **more: Any
) -> TuningResult:
    made = tuning(folder, executor, text, clock, **more)
    with StopRequest() as stop:
        executor.stop = stop
        made.run(stop)
    return made.make_result("train")


def shown(found: TuningResult, width: int = 80) -> str:
    return write_blocks(lay_out_tuning(found, width=width), width)


def noisy(cap: float, k: int) -> tuple[float, float]:
    """Return a run of the curve that is up to 2 % off, the same each time."""
    energy, time_s = curve(cap)
    off = 1 + 0.02 * math.sin(7 * k + cap)
    return energy * off, time_s * off


def swept(folder: Path, repeats: Mapping[float, int], text: str = "140:260:40") -> None:
    """Run slots as a sweep would."""
    count = iter(range(1000))
    executor = Made(lambda cap: noisy(cap, next(count)))
    made = tuning(folder, executor, text)
    made._write_plan()
    for setting, cell in made._cells.items():
        cap = setting.cap_w or 0.0
        for repeat in range(1, repeats.get(cap, 0) + 1):
            executor.caps[cell.key] = cap
            executor.submit(made._study.get_slot_folder(cell.key, repeat))
