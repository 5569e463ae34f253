"""Repeat cells until their mean energy is precise: a fake executor, energies by cell and repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.rows import every_row
from tests.study.bench import make_study, place, store_trial
from tests.study.virtual_study import write

from joulelab.analysis.cell_comparison import make_sample
from joulelab.analysis.statistics import t_quantile
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.report.study_summary import summarise_study
from joulelab.study.drive import Driver, Outcome, StopRequest, list_planned_slots
from joulelab.study.executors import SlotEnd
from joulelab.study.folder import Plan, PrecisionTarget, join_study, parse_precision
from joulelab.study.knobs import Knob
from joulelab.study.matrix import Workload, make_cells
from joulelab.study.precision import CellPrecision, judge_precision, list_precision_notes
from joulelab.study.results import PhaseTrial, SlotTrial
from joulelab.study.study_file import read_study, write_sweep
from joulelab.twin.virtual import run_twin_study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.study.folder import Study

GONE = {"ticks": 1}
DONE = {"outcome": "exit", "exit_code": 0, "start_ns": 10, "end_ns": 20}


class FakeExecutor:
    """Run slots at once: `energy(n, repeat)` is their energy in J, None for none, "fails" for a failure."""

    at_once = 2

    def __init__(self, study: Study, energy: Callable[[int, int], Any]) -> None:
        self._cells, self._energy = study.read_cells(), energy
        self._slots: list[Path] = []
        self._cancelled: list[SlotEnd] = []
        self.started: list[tuple[int, int]] = []
        self.stop_after = 10_000

    def submit(self, slot: Path) -> None:
        self._slots.append(slot)

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd]:
        slots, self._slots = self._slots, []
        ended, self._cancelled = self._cancelled, []
        return ended + [self._run(slot) for slot in slots]

    def _run(self, slot: Path) -> SlotEnd:
        n, repeat = int(self._cells[slot.parent.name].knobs["n"].value), int(slot.name[1:])
        if len(self.started) >= self.stop_after:
            raise ConfigError("stopped by the test", where="test")
        self.started.append((n, repeat))
        energy = self._energy(n, repeat)
        place(slot, GONE, DONE | {"exit_code": int(energy == "fails")})
        if energy != "fails":
            energies = {} if energy is None else {"measured": Quantity(float(energy), {})}
            store_trial(slot, SlotTrial("", 1.0, "", energies, {}, {}))
        return SlotEnd(slot, {"is": "ended"})

    def cancel(self, slot: Path) -> None:
        self._cancelled.append(SlotEnd(slot, None, "", "cancelled"))

    def is_over(self, claim: Mapping[str, Any]) -> bool | None: ...

    def close(self) -> None: ...


def drive(
    folder: Path, energy: Callable[[int, int], Any], *, stop_after: int = 10_000, **target: Any
) -> tuple[Study, FakeExecutor, Outcome]:
    cells = make_cells(Workload(("true", "{n}")), [Knob.parse("n", "1,2,3")])
    plan = Plan(cells, repeats=3, goals=("energy",), **{"until": 0.01, "repeat_max": 8} | target)
    study = join_study(folder, folder.name, plan, seed=1)
    executor = FakeExecutor(study, energy)
    executor.stop_after = stop_after
    by_key = {cell.key: cell for cell in plan.cells}
    driver = Driver(study, by_key, plan.repeats, executor, lambda _: None, target=plan.target)
    with StopRequest() as stop:
        return study, executor, driver.run(stop)


def scatter(n: int, repeat: int) -> float:
    """Give a steady cell, one that settles after some repeats, and one that never does."""
    return {1: 100.0 + 0.01 * repeat, 2: 100.0 + (1.5 if repeat == 1 else 0.0), 3: 100.0 + 20.0 * (repeat % 2)}[n]


def count_repeats(executor: FakeExecutor) -> dict[int, int]:
    return {n: sum(cell == n for cell, _ in executor.started) for n in (1, 2, 3)}


def test_cells_are_repeated_until_they_are_precise_or_the_maximum_is_reached(tmp_path: Path) -> None:
    study, executor, outcome = drive(tmp_path / "s", scatter)
    assert count_repeats(executor) == {1: 3, 2: 5, 3: 8}
    assert outcome.done == outcome.total == 16
    verdicts = {
        int(study.read_cells()[one.cell].knobs["n"].value): (one.verdict, one.repeats) for one in outcome.precision
    }
    assert verdicts == {1: ("reached", 3), 2: ("reached", 5), 3: ("maximum", 8)}
    # Block after block: no cell begins a repeat before all that need the one before have had it.
    repeats = [repeat for _, repeat in executor.started]
    assert repeats == sorted(repeats)
    assert len(list_planned_slots(study, list(study.read_cells()), 3, max_repeats=8)) == 16


def test_the_same_command_runs_nothing_more_and_an_interrupted_one_continues(tmp_path: Path) -> None:
    _, first, outcome = drive(tmp_path / "s", scatter, stop_after=11)
    assert outcome.error is not None
    _, second, outcome = drive(tmp_path / "s", scatter)
    assert len({*first.started, *second.started}) == len(first.started) + len(second.started) == 16
    assert outcome.done == outcome.total == 16
    _, third, outcome = drive(tmp_path / "s", scatter)
    assert third.started == []
    assert [one.verdict for one in outcome.precision].count("reached") == 2
    # A higher maximum, or a stricter target, adds repeats to those that lack them.
    _, fourth, _ = drive(tmp_path / "s", scatter, repeat_max=9)
    assert fourth.started == [(3, 9)]
    _, fifth, _ = drive(tmp_path / "s", scatter, until=0.005)
    assert count_repeats(fifth) == {1: 0, 2: 3, 3: 0}


def test_a_cell_that_only_fails_or_has_no_energy_is_not_repeated_further(tmp_path: Path) -> None:
    def energy(n: int, repeat: int) -> Any:
        return {1: 100.0, 2: "fails", 3: None}[n]

    study, executor, outcome = drive(tmp_path / "s", energy)
    assert count_repeats(executor) == {1: 3, 2: 3, 3: 3}
    assert sorted(one.verdict for one in outcome.precision) == ["failed", "no-energy", "reached"]
    results, summary = summarise_study(study)
    codes = [note.code for note in summary.notes if note.code.startswith("precision")]
    assert codes == ["precision-reached", "precision-missed.no-energy", "precision-missed.failed"]
    assert {one.verdict for one in results.precision} == {"failed", "no-energy", "reached"}


def test_a_failed_repeat_is_made_up_for(tmp_path: Path) -> None:
    _, executor, outcome = drive(
        tmp_path / "s", lambda n, repeat: "fails" if (n, repeat) == (1, 2) else 100 + repeat / 9
    )
    assert count_repeats(executor)[1] == 4
    assert {one.verdict for one in outcome.precision} == {"reached"}
    assert outcome.failed == 1


def test_the_note_on_a_missed_precision_counts_the_repeats_that_have_an_energy() -> None:
    found = [CellPrecision("a", 3, 0.02, "maximum"), CellPrecision("b", 4, 0.01, "maximum")]
    (note,) = list_precision_notes(found, {"a": "A", "b": "B"}, PrecisionTarget(0.003, 5))
    assert note.numbers == {
        "cells": 2, "share": 0.003, "missed": 2, "repeats": 5, "worst_share": 0.02, "fewest": 3, "most": 4,
    }  # fmt: skip


def test_the_least_precise_phase_of_the_scope_counts() -> None:
    def trial(steady: float, wild: float) -> SlotTrial:
        phases = {
            name: PhaseTrial({"gpu": Quantity(value, {}), "measured": Quantity(1.0, {})}, 1.0)
            for name, value in (("a", steady), ("b", wild))
        }
        return SlotTrial("", 1.0, "", {"gpu": Quantity(steady, {})}, {}, {}, phases=phases)

    trials = [trial(100.0, 100.0), trial(100.1, 110.0), trial(99.9, 90.0)]
    target = PrecisionTarget(0.01, scope="gpu")
    assert judge_precision("k", (), trials, 3, target).verdict == "reached"
    found = judge_precision("k", ("a", "b"), trials, 3, target)
    assert (found.verdict, found.share) == ("unfinished", pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3))
    assert judge_precision("k", ("a", "b"), trials, 3, PrecisionTarget(0.01)).verdict == "reached"
    assert judge_precision("k", ("c",), trials, 3, target).verdict == "no-energy"
    assert judge_precision("k", (), trials[:1], 1, target).share is None


@every_row("text", ["1", "0%", "100%", "-1%", "nan%", "x%", 1, ""])
def test_a_precision_is_a_percentage(text: Any) -> None:
    assert parse_precision(" 0.5% ") == pytest.approx(0.005)
    with pytest.raises(ConfigError, match="write a percentage: 1%"):
        parse_precision(text)


def test_too_few_repeats_are_refused(tmp_path: Path) -> None:
    cells = list(make_study(tmp_path / "s", "true").read_cells().values())
    with pytest.raises(ConfigError, match="2 repeats are too few"):
        Plan(cells, repeats=2, until=0.01)
    with pytest.raises(ConfigError, match="maximum of 4 repeats is below the first 5"):
        Plan(cells, repeats=5, until=0.01, repeat_max=4)


def test_a_study_file_has_what_a_sweep_was_given(tmp_path: Path) -> None:
    cells = make_cells(Workload(("true", "{n}")), [Knob.parse("n", "1,2")])
    plan = Plan(cells, repeats=4, goals=("energy",), until=0.005, repeat_max=9)
    (tmp_path / "s.toml").write_text(write_sweep(plan, "s"))
    found = read_study(tmp_path / "s.toml").plan
    assert (found.repeats, found.until, found.repeat_max, found.max_repeats) == (4, 0.005, 9, 9)
    (tmp_path / "s.toml").write_text((tmp_path / "s.toml").read_text().replace("repeats = 4", "repeats = 2"))
    with pytest.raises(ConfigError, match="2 repeats are too few"):
        read_study(tmp_path / "s.toml")


@pytest.mark.campaign  # the tests above do the same with a fake executor
def test_a_study_on_a_twin_is_repeated_until_it_is_precise(tmp_path: Path) -> None:
    file = write(tmp_path, repeats=3, top='until = "2%"\nrepeat_max = 12', caps="[150, 200, 260]")
    study = run_twin_study(file, str(tmp_path / "node.toml"), tmp_path / "out")
    results, summary = summarise_study(study)
    repeats = {one.cell: one.repeats for one in results.precision}
    assert {one.verdict for one in results.precision} <= {"reached", "maximum"}
    assert len(set(repeats.values())) > 1, repeats
    for one in results.precision:
        sample = summary.statistics[one.cell]["energy"]
        assert one.share == pytest.approx(sample.half_width / sample.mean)
        assert (one.share <= 0.02) == (one.verdict == "reached")
        assert one.repeats == len(list((study.folder / "cells" / one.cell).glob("r[0-9][0-9]/*/end.json"))) <= 12
        if one.repeats > 3:  # without its last repeat it was not precise enough
            assert make_sample(sample.values[:-1]).half_width > 0.02 * make_sample(sample.values[:-1]).mean
    before = {path: path.stat().st_mtime_ns for path in study.folder.rglob("end.json")}
    run_twin_study(file, str(tmp_path / "node.toml"), tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in study.folder.rglob("end.json")} == before
    print(sorted(repeats.values()), [f"{one.share:.2%} {one.verdict}" for one in results.precision])


@pytest.mark.parametrize(("count", "within"), [(1000, 0.03), pytest.param(8000, 0.01, marks=pytest.mark.campaign)])
@pytest.mark.parametrize(("scatter_share", "coverage"), [(0.5, 0.95), (1.0, 0.92), (2.0, 0.90)])
def test_intervals_hold_the_mean_about_as_often_as_documented(
    scatter_share: float, coverage: float, count: int, within: float
) -> None:
    """The figures are those of docs/how-to/sweep.md."""
    target, first, most = 0.01, 3, 20
    drawn = 1 + target * scatter_share * np.random.default_rng(5).standard_normal((count, most))
    held = np.zeros(count, dtype=bool)
    unfinished = np.ones(count, dtype=bool)
    for n in range(first, most + 1):
        mean, deviation = drawn[:, :n].mean(axis=1), drawn[:, :n].std(axis=1, ddof=1)
        half = t_quantile(0.05, n - 1) * deviation / n**0.5
        ends = unfinished & ((half <= target * mean) | (n == most))
        held[ends] = np.abs(mean - 1)[ends] <= half[ends]
        unfinished &= ~ends
    assert held.mean() == pytest.approx(coverage, abs=within)
