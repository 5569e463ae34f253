"""Tuning by whole runs: which slots it runs, which it finds done, what it tells."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.study.bench import place
from tests.study.tuning.two_gpus import STATUS

from joulelab.analysis.goal import Goal
from joulelab.analysis.metrics import summarise
from joulelab.analysis.terms import Quantity
from joulelab.core.errors import JoulelabError, MeterError
from joulelab.report.console import make_console
from joulelab.report.tune import headline, print_tuned
from joulelab.store.folder import list_runs
from joulelab.study.drive import Stop
from joulelab.study.executors import Ended
from joulelab.study.folder import open_study
from joulelab.study.matrix import Workload
from joulelab.study.results import gather
from joulelab.study.slots import State, look
from joulelab.study.trial import MEASURED, SlotTrial, keep
from joulelab.study.tuning.grid import Grid, make_grid
from joulelab.study.tuning.runs import Tuning, open_plan
from joulelab.study.tuning.tuned import Sample, Tuned, is_hopeless, rows
from joulelab.study.work import WorkPattern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

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
    ) -> None:
        self.caps: dict[str, float] = {}
        self._curve = curve
        self._work, self._holds, self._drew = work, holds, drew
        self._ended: list[Ended] = []
        self.ran: list[tuple[float, str]] = []
        self.stop_after = math.inf
        self.stop: Stop | None = None

    def submit(self, slot: Path) -> None:
        cap = self.caps[slot.parent.name]
        self.ran.append((cap, slot.name))
        if len(self.ran) > self.stop_after and self.stop is not None:
            self.stop.number = 2
        gave = self._curve(cap)
        end = {"outcome": "exit", "exit_code": int(gave is None), "signal": None, "start_ns": 0, "end_ns": 1}
        place(slot, {"pid": 0}, end)
        if gave is not None:
            energy, time_s = gave
            (run,) = list_runs(slot)
            whole = {} if energy <= 0 else {MEASURED: Quantity(energy, {"gain:nvml": 0.05 * energy, "edge:x": 1.0})}
            told = SlotTrial(
                run=run.name, time_s=time_s, start_utc="", meters={}, work=self._work(cap), busiest={},
                energies={**whole, "gpu:0": Quantity(self._drew(cap) * time_s)},
                uncapped=() if self._holds(cap) else (f"gpu:0: {self._drew(cap):.0f} W above the cap",),
            )  # fmt: skip
            keep(slot, told)
        self._ended.append(Ended(slot, {"is": "ended"}))

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, slot: Path) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


def curve(cap: float) -> tuple[float, float]:
    """Return energy (J) and time (s) of a run: a GPU that draws what its cap allows and slows down below it."""
    time_s = 100 * (1 + 0.035 * ((cap / 260) ** -4 - 1))
    return (cap + 60) * time_s, time_s


def tuning(folder: Path, executor: Made, text: str = "100:260:20", **more: Any) -> Tuning:
    grid = make_grid(STATUS, ["gpu:0"], text)
    study, cells = open_plan(folder, "s", Workload(COMMAND), grid, {}, more.get("goal", ENERGY))
    executor.caps = {cell.key: cap for cap, cell in cells.items()}
    said: list[str] = []
    chosen = {"goal": ENERGY, "tell": lambda _: None, "say": said.append, **more}
    return Tuning(study, cells, grid, chosen.pop("goal"), executor=executor, **chosen)


def tuned(folder: Path, executor: Made, text: str = "100:260:20", **more: Any) -> Tuned:
    made = tuning(folder, executor, text, **more)
    with Stop() as stop:
        executor.stop = stop
        made.run(stop)
    return made.tuned("train")


def shown(found: Tuned, width: int = 80) -> str:
    file = io.StringIO()
    print_tuned(make_console(file, width), found)
    return file.getvalue()


def test_few_runs_find_a_good_cap_and_say_what_they_saved_and_cost(tmp_path: Path) -> None:
    executor = Made(curve)
    found = tuned(tmp_path / "s", executor, trials=6)
    assert executor.ran[0] == (260.0, "r01")
    assert len(executor.ran) <= 6
    best = min(curve(cap)[0] for cap in range(100, 261, 20))
    assert found.choice is not None
    assert curve(found.choice)[0] < 1.02 * best
    saved = curve(260)[0] - curve(found.choice)[0]
    assert found.saved is not None
    assert found.saved.value == pytest.approx(saved)
    # One run each: nobody knows whether the next would save as much.
    assert found.saved.expanded is None
    assert not found.sure
    spent = sum(curve(cap)[0] for cap, _ in executor.ran)
    assert found.price.energy_j == pytest.approx(spent)
    assert found.price.more_j == pytest.approx(spent - len(executor.ran) * curve(found.choice)[0])
    text = shown(found)
    assert f"Best cap for energy: {found.choice:g} W" in text
    flat = " ".join(text.split())
    assert "saved not sure: " in flat
    assert "runs pay" not in flat
    assert "than 260 W in single runs" in flat
    assert "one run each: how much runs differ by themselves is not in these intervals" in flat
    assert f"joulelab cap {found.choice:g} -- train" in text
    assert max(map(len, text.splitlines())) <= 100
    plain = found.to_json()
    assert plain["choice_w"] == found.choice
    assert plain["cost"]["trials"] == len(executor.ran)


def test_what_was_run_before_counts_and_costs_nothing(tmp_path: Path) -> None:
    first = Made(curve)
    before = tuned(tmp_path / "s", first, trials=6)
    again = Made(curve)
    found = tuned(tmp_path / "s", again, trials=6)
    assert not again.ran
    assert found.choice == before.choice
    assert found.price.trials == 0
    assert "nothing: all trials were there already" in shown(found)


def test_an_interrupted_tuning_goes_on_where_it_was(tmp_path: Path) -> None:
    cut = Made(curve)
    cut.stop_after = 2
    found = tuned(tmp_path / "s", cut, trials=5)
    assert not found.complete
    assert "type the same command to go on" in shown(found)
    assert "so far" in headline(found)
    rest = Made(curve)
    whole = tuned(tmp_path / "s", rest, trials=5)
    assert whole.complete
    assert rest.ran
    assert not set(cut.ran[:2]) & set(rest.ran)


def test_a_cap_under_which_the_command_fails_is_left_out_unless_it_is_the_reference(tmp_path: Path) -> None:
    found = tuned(tmp_path / "a", Made(lambda cap: curve(cap) if cap > 150 else None), trials=5)
    assert any("failed under" in note and "left out" in note for note in found.notes)
    assert all(row.cap > 150 for row in found.rows)
    with pytest.raises(JoulelabError, match="failed under 260 W, which all is compared with"):
        tuned(tmp_path / "b", Made(lambda _: None))


def test_repeats_are_bounded_and_retried_slots_run_again(tmp_path: Path) -> None:
    executor = Made(curve)
    found = tuned(tmp_path / "s", executor, "180,260", trials=9, repeat_max=1)
    assert sorted(executor.ran) == [(180.0, "r01"), (260.0, "r01")]
    assert found.choice == 180
    failing, again = Made(lambda cap: curve(cap) if cap > 200 else None), Made(curve)
    tuned(tmp_path / "t", failing, "180,260")
    assert tuned(tmp_path / "t", again, "180,260", retry=True).choice == 180
    assert (180.0, "r01") in again.ran


def test_work_is_what_energy_and_time_are_counted_by_where_it_differs(tmp_path: Path) -> None:
    same = tuned(tmp_path / "a", Made(curve, lambda _: {"samples": 1000.0}), "180,260")
    assert same.unit == ""
    found = tuned(tmp_path / "s", Made(curve, lambda cap: {"samples": 1000.0 + cap}), "180,260")
    assert found.unit == "samples"
    row = found.row(260)
    assert row is not None
    assert row.energy.value == pytest.approx(curve(260)[0] / 1260)
    assert found.saved is not None
    assert found.saved.value == pytest.approx(curve(260)[0] - curve(180)[0] / 1180 * 1260)
    assert "energy and time are per sample" in " ".join(shown(found).split())


def test_without_a_meter_there_is_nothing_to_tune_by(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="no energy was measured"):
        tuned(tmp_path / "s", Made(lambda _: (0.0, 1.0)))


def test_a_sweep_keeps_its_plan_when_a_tune_joins_it(tmp_path: Path) -> None:
    grid = make_grid(STATUS, ["gpu:0"], "180,260")
    workload = Workload(COMMAND)
    work = [WorkPattern.parse(r"tokens: (\d+)")]
    study, _ = open_plan(tmp_path / "s", "s", workload, grid, {"idle_s": 2.0}, ENERGY, work)
    study.data["repeats"] = 7
    (tmp_path / "s" / "study.json").write_text(json.dumps(study.data))
    more = make_grid(STATUS, ["gpu:0"], "140,180,260")
    again, cells = open_plan(tmp_path / "s", "s", workload, more, {"period_s": 0.5}, Goal.parse("edp"))
    assert again.data["repeats"] == 7
    assert (again.settings.idle_s, again.settings.period_s) == (2.0, 0.5)
    assert again.data["goals"] == ["energy", "edp"]
    assert again.data["work"] == [work[0].to_json()]
    assert set(cells) == {140.0, 180.0, 260.0}
    assert len(again.cells()) == 3
    assert all(look(again.slot(cell.key, 1)).state is State.FREE for cell in cells.values())


def test_rows_without_the_reference_compare_nothing() -> None:
    found = rows(ENERGY, [Sample(180.0, Quantity(5.0), Quantity(1.0))], 260.0, {})
    assert (found[0].shown, found[0].gain) == ("180 W", None)
    nothing = Tuned(ENERGY, "online", (), 260.0, problems=("no work was reported",))
    text = shown(nothing)
    assert "No cap was chosen for energy." in text
    assert "no work was reported" in text


def test_windows_that_differ_more_than_they_say_are_believed_less() -> None:
    near = [Sample(260.0, Quantity(e, {"edge:x": 0.1}), Quantity(1.0, {"rate:1": 0.01})) for e in (10.0, 10.1)]
    far = [Sample(260.0, Quantity(e, {"edge:x": 0.1}), Quantity(1.0, {"rate:1": 0.01})) for e in (9.0, 11.0)]
    (close,), (wide,) = rows(ENERGY, near, 100.0, {}), rows(ENERGY, far, 100.0, {})
    assert close.energy.u == pytest.approx(0.1 / math.sqrt(2))
    assert wide.energy.u == pytest.approx(1.0)


def test_a_tuning_inside_a_run_says_when_it_would_have_paid() -> None:
    grid = Grid(("gpu:0",), {})
    assert grid.scopes == ("gpu:0",)
    samples = [Sample(260.0, Quantity(10.0), Quantity(0.1)), Sample(180.0, Quantity(9.0), Quantity(0.11))]
    found = Tuned(
        Goal.parse("edp"), "online", rows(Goal.parse("edp"), samples, 260.0, {}), 260.0, unit="steps", choice=180.0,
        tied=(260.0,), saved=Quantity(-100.0, {"edge:x": 1.0}), slower=Quantity(3.0, {"rate:x": 0.1}),
        over="in this run",
    )  # fmt: skip
    text = " ".join(shown(found).split())
    assert "spent 100.0 ± 2.0 J more in this run, 3.00 ± 0.20 s longer, against 260 W all the time" in text
    assert "11.00 s more of it would have paid for the windows" in text
    assert "~ cannot be told apart" in text


def test_all_runs_of_a_sweep_count_in_the_choice(tmp_path: Path) -> None:
    swept = Made(curve)
    made = tuning(tmp_path / "s", swept, "140:260:40")
    for cap, cell in made._cells.items():
        for repeat in (1, 2, 3):
            swept.caps[cell.key] = cap
            swept.submit(made._study.slot(cell.key, repeat))
    again = Made(curve)
    found = tuned(tmp_path / "s", again, "140:260:40", trials=3)
    assert not again.ran
    assert [row.n for row in found.rows] == [3, 3, 3, 3]


def test_a_cap_far_worse_than_the_best_is_not_tried_again_nor_any_below_it(tmp_path: Path) -> None:
    samples = [Sample(c, Quantity(e), Quantity(t)) for c, e, t in ((260, 10, 1), (200, 9, 1.05), (120, 14, 1.9))]
    hopeless = [c for c in (100.0, 120.0, 140.0, 200.0, 260.0) if is_hopeless(ENERGY, samples, 260.0, c)]
    assert hopeless == [100.0, 120.0]
    limited = Goal.parse("energy@slowdown=5%")
    near = [Sample(260.0, Quantity(10.0), Quantity(1.0)), Sample(150.0, Quantity(8.0), Quantity(1.4))]
    assert is_hopeless(limited, near, 260.0, 150.0)
    assert not is_hopeless(ENERGY, near, 260.0, 150.0)
    assert not is_hopeless(ENERGY, [], 260.0, 150.0)
    executor = Made(lambda cap: (curve(cap)[0] * (5 if cap < 150 else 1), curve(cap)[1]))
    found = tuned(tmp_path / "s", executor, trials=12)
    assert max(sum(ran == cap for ran, _ in executor.ran) for cap in (100.0, 120.0, 140.0)) <= 1
    assert found.choice is not None
    assert found.choice > 150


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
    for cap, cell in made._cells.items():
        for repeat in range(1, repeats.get(cap, 0) + 1):
            executor.caps[cell.key] = cap
            executor.submit(made._study.slot(cell.key, repeat))


def test_a_tuning_tells_the_figures_that_a_sweep_of_the_same_slots_tells(tmp_path: Path) -> None:
    swept(tmp_path / "s", {260.0: 3, 220.0: 3, 180.0: 3, 140.0: 1})
    found = tuned(tmp_path / "s", Made(lambda cap: noisy(cap, 1)), "140:260:40", trials=3, repeat_max=3)
    summary = summarise(gather(open_study(tmp_path / "s")).cells, goals=[ENERGY])
    by_cap = {cell.knobs["cap"]: cell for cell in summary.cells}
    assert [row.cap for row in found.rows] == [260.0, 220.0, 180.0, 140.0]
    for row in found.rows:
        cell = by_cap[row.cap]
        assert (row.n, row.energy, row.time, row.gain, row.loss) == (
            cell.n, cell.energy, cell.time, cell.gain, cell.loss,
        )  # fmt: skip
    # The one run has the spread of the others: a gain of it is not as narrow as the meter alone.
    single = found.row(140)
    assert single is not None
    assert single.n == 1
    assert single.gain is not None
    assert (single.gain.expanded or 0) > 0.015
    assert not any("one run" in note for note in found.notes)
    assert any("pooled" in note for note in found.notes)


def test_a_saving_is_sure_when_runs_were_repeated_and_it_is_beyond_their_spread(tmp_path: Path) -> None:
    swept(tmp_path / "s", {260.0: 4, 180.0: 4}, "180,260")
    found = tuned(tmp_path / "s", Made(curve), "180,260", trials=3)
    assert found.choice == 180
    assert found.sure
    text = " ".join(shown(found).split())
    assert "not sure" not in text
    assert "cannot be told apart" not in text
    assert "± " in text.partition("J per run, ")[2].partition(" longer")[0]
    swept(tmp_path / "t", {260.0: 2, 220.0: 1}, "220,260")
    partly = tuned(tmp_path / "t", Made(curve), "220,260", trials=2, repeat_max=2)
    assert [row.n for row in partly.rows] == [2, 1]
    assert any(note.startswith("one run of 220 W: how much runs differ") for note in partly.notes)


def test_all_figures_of_a_choice_are_those_of_the_table(tmp_path: Path) -> None:
    found = tuned(tmp_path / "s", Made(curve), trials=5)
    best = found.row(found.choice)
    assert best is not None
    assert best.gain is not None
    assert "%" not in found.why.replace("0.1%", "")
    assert f"{best.gain.value * 100:.1f} % less energy" in headline(found)


def test_where_caps_are_not_enforced_none_is_chosen(tmp_path: Path) -> None:
    executor = Made(lambda cap: (20000.0 + cap, 100.0), holds=lambda cap: cap > 230, drew=lambda _: 231.0)
    found = tuned(tmp_path / "s", executor)
    assert found.choice is None
    assert "caps are not enforced here, so none is chosen (gpu:0: 231 W above the cap)" in found.problems[0]
    assert {row.doubt for row in found.rows if row.cap <= 230} == {"not enforced"}
    assert len(executor.ran) <= 5
    text = shown(found)
    assert "No cap was chosen" in text
    assert "joulelab cap 1" not in text
    # What was run before is doubted as well.
    again = Made(curve)
    assert tuned(tmp_path / "s", again, trials=5).choice is None
    reference = Made(curve, holds=lambda _: False, drew=lambda _: 300.0)
    assert tuned(tmp_path / "t", reference).choice is None
    assert len(reference.ran) == 1


def test_a_cap_below_what_the_gpus_can_do_is_left_out_and_others_count(tmp_path: Path) -> None:
    executor = Made(curve, holds=lambda cap: cap > 130, drew=lambda cap: max(cap, 130.0))
    found = tuned(tmp_path / "s", executor, trials=6)
    assert found.choice is not None
    assert found.choice > 130
    assert not found.problems
    assert all(row.gain is None for row in found.rows if row.doubt)
    assert any(row.doubt for row in found.rows) == any("and below are left out" in note for note in found.notes)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_column_is_cut_off(tmp_path: Path, width: int) -> None:
    swept(tmp_path / "s", {260.0: 3, 220.0: 3, 180.0: 3}, "180:260:40")
    found = tuned(tmp_path / "s", Made(curve), "180:260:40", trials=3, goal=Goal.parse("edp"))
    text = shown(found, width)
    assert "…" not in text
    assert "best" in text
    assert len([row for row in text.splitlines() if row.startswith("cap ")]) == (2 if width == 60 else 1)


def test_long_times_are_told_in_minutes_with_their_interval() -> None:
    samples = [Sample(260.0, Quantity(10.0), Quantity(0.1)), Sample(180.0, Quantity(9.0), Quantity(0.11))]
    found = Tuned(
        ENERGY, "online", rows(ENERGY, samples, 260.0, {}), 260.0, choice=180.0, saved=Quantity(5e4, {"edge:x": 100.0}),
        slower=Quantity(300.0, {"rate:x": 10.0}), over="in this run",
    )  # fmt: skip
    assert "5 min 00 s ± 20.00 s longer" in " ".join(shown(found).split())
