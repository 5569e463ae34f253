"""Tuning by whole runs: which slots it runs, which it finds done, which caps it leaves out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.study.tuning.two_gpus import STATUS
from tests.study.tuning.whole_runs import COMMAND, ENERGY, Made, curve, shown, tuned, tuning

from joulelab.analysis.goals import Goal
from joulelab.core.errors import JoulelabError, MeterError, Refused
from joulelab.core.quantity import Quantity
from joulelab.report.messages import word_notes
from joulelab.report.tuning_tables import write_tuning_headline
from joulelab.study.folder import join_study
from joulelab.study.matrix import Workload
from joulelab.study.results import WorkPattern
from joulelab.study.slots import State, read_slot
from joulelab.study.tuning.grid import make_grid
from joulelab.study.tuning.search import Setting
from joulelab.study.tuning.tuning_result import Sample, is_hopeless
from joulelab.study.tuning.whole_runs import open_tuning_study

if TYPE_CHECKING:
    from pathlib import Path


def test_few_runs_find_a_good_cap_and_say_what_they_saved_and_cost(tmp_path: Path) -> None:
    executor = Made(curve)
    found = tuned(tmp_path / "s", executor, trials=6)
    assert executor.ran[0] == (260.0, "r01")
    assert len(executor.ran) <= 6
    best = min(curve(cap)[0] for cap in range(100, 261, 20))
    assert found.choice is not None
    assert curve(found.choice.cap_w or 0)[0] < 1.02 * best
    saved = curve(260)[0] - curve(found.choice.cap_w or 0)[0]
    assert found.saved is not None
    assert found.saved.value == pytest.approx(saved)
    # One run each: nobody knows whether the next would save as much.
    assert found.saved.expanded is None
    assert not found.is_saving_sure
    spent = sum(curve(cap)[0] for cap, _ in executor.ran)
    assert found.cost.energy_j == pytest.approx(spent)
    assert found.cost.more_j == pytest.approx(spent - len(executor.ran) * curve(found.choice.cap_w or 0)[0])
    text = shown(found)
    assert f"Best cap for energy: {found.choice.text}" in text
    flat = " ".join(text.split())
    assert "saved not sure: " in flat
    assert "runs pay" not in flat
    assert "than 260 W in single runs" in flat
    assert "one run each: the spread between runs is not included in these intervals" in flat
    assert f"joulelab cap {found.choice.cap_w:g} -- train" in text
    assert max(map(len, text.splitlines())) <= 100
    plain = found.to_json()
    assert plain["choice_w"] == found.choice.cap_w
    assert plain["cost"]["trials"] == len(executor.ran)


@pytest.mark.system  # pure, and slow
def test_what_was_run_before_counts_and_costs_nothing(tmp_path: Path) -> None:
    first = Made(curve)
    before = tuned(tmp_path / "s", first, trials=6)
    again = Made(curve)
    found = tuned(tmp_path / "s", again, trials=6)
    assert not again.ran
    assert found.choice == before.choice
    assert found.cost.trials == 0
    assert "nothing: all trials were there already" in shown(found)


def test_an_interrupted_tuning_goes_on_where_it_was(tmp_path: Path) -> None:
    cut = Made(curve)
    cut.stop_after = 2
    found = tuned(tmp_path / "s", cut, trials=5)
    assert not found.complete
    assert "type the same command to continue" in shown(found)
    assert "so far" in write_tuning_headline(found)
    rest = Made(curve)
    whole = tuned(tmp_path / "s", rest, trials=5)
    assert whole.complete
    assert rest.ran
    assert not set(cut.ran[:2]) & set(rest.ran)


def test_a_cap_under_which_the_command_fails_is_left_out_unless_it_is_the_reference(tmp_path: Path) -> None:
    found = tuned(tmp_path / "a", Made(lambda cap: curve(cap) if cap > 150 else None), trials=5)
    assert any("failed under" in note and "left out" in note for note in word_notes(found.notes))
    assert all((row.setting.cap_w or 0) > 150 for row in found.rows)
    with pytest.raises(JoulelabError, match="failed under 260 W, the reference of all settings"):
        tuned(tmp_path / "b", Made(lambda _: None))


def test_repeats_are_bounded_and_retried_slots_run_again(tmp_path: Path) -> None:
    executor = Made(curve)
    found = tuned(tmp_path / "s", executor, "180,260", trials=9, repeat_max=1)
    assert sorted(executor.ran) == [(180.0, "r01"), (260.0, "r01")]
    assert found.choice == Setting(180.0)
    failing, again = Made(lambda cap: curve(cap) if cap > 200 else None), Made(curve)
    tuned(tmp_path / "t", failing, "180,260")
    assert tuned(tmp_path / "t", again, "180,260", retry=True).choice == Setting(180.0)
    assert (180.0, "r01") in again.ran


def test_runs_that_are_too_short_to_measure_are_refused_with_the_time_they_need(tmp_path: Path) -> None:
    executor = Made(lambda cap: (19.2, 0.06))  # the edges of it are ± 2 J
    refused = r"run of 0\.06 s is too short.*± 10 % only.*at least 5 s"
    with pytest.raises(Refused, match=refused):
        tuned(tmp_path / "s", executor)
    assert executor.ran == [(260.0, "r01")]
    # Under a steady load the energy of 2 ms may be known well: it is too short nevertheless.
    steady = Made(lambda cap: (20000.0, 0.002))
    with pytest.raises(Refused, match=r"run of 0\.002 s is too short.*at least 5 s") as caught:
        tuned(tmp_path / "u", steady)
    assert caught.value.code == "refused.run-too-short"
    assert len(steady.ran) == 1
    slow = Made(lambda cap: (10.0, 60.0))  # as by a meter that is read once a minute
    with pytest.raises(Refused, match=r"at least 48[01] s"):
        tuned(tmp_path / "t", slow)


def test_without_a_meter_there_is_nothing_to_tune_by(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="no energy was measured"):
        tuned(tmp_path / "s", Made(lambda _: (0.0, 1.0)))


def test_a_sweep_keeps_its_plan_when_a_tune_joins_it(tmp_path: Path) -> None:
    grid = make_grid(STATUS, ["gpu:0"], "180,260")
    workload, file = Workload(COMMAND), tmp_path / "s" / "study.json"
    work = [WorkPattern.parse(r"tokens: (\d+)")]
    _, _, plan = open_tuning_study(tmp_path / "s", "s", workload, grid, {"idle_s": 2.0}, ENERGY, work)
    assert not (tmp_path / "s").exists()
    plan = replace(plan, repeats=7, until=0.01, repeat_max=9, per="tokens")
    swept = join_study(tmp_path / "s", "s", plan, 5)
    before = file.read_text()
    more = make_grid(STATUS, ["gpu:0"], "140,180,260")
    again, cells, plan = open_tuning_study(tmp_path / "s", "s", workload, more, {"period_s": 0.5}, Goal.parse("edp"))
    # Nothing is written yet: the tuning may be refused.
    assert file.read_text() == before
    assert len(again.read_cells()) == 2
    again = join_study(tmp_path / "s", "s", plan, None)
    assert {name for name in again.data if again.data[name] != json.loads(before).get(name)} == {
        "knobs", "cells", "settings", "goals"
    }  # fmt: skip
    assert (again.settings.idle_s, again.settings.period_s) == (2.0, 0.5)
    assert again.target == swept.target
    assert again.data["goals"] == ["energy", "edp"]
    assert {setting.cap_w for setting in cells} == {140.0, 180.0, 260.0}
    assert len(again.read_cells()) == 3
    assert all(read_slot(again.get_slot_folder(cell.key, 1)).state is State.FREE for cell in cells.values())


def test_a_tune_that_is_refused_by_runs_of_a_sweep_leaves_its_study_alone(tmp_path: Path) -> None:
    tuned(tmp_path / "s", Made(curve), "180,260")
    before = (tmp_path / "s" / "study.json").read_text()
    with pytest.raises(Refused, match="reports no accuracy"):
        tuned(tmp_path / "s", Made(curve), "140,180,260", goal=Goal.parse("energy@accuracy>=0.98"))
    assert (tmp_path / "s" / "study.json").read_text() == before
    assert len(list(tmp_path.glob("s/cells/*"))) == 2


def test_a_cap_without_significant_difference_from_the_highest_is_not_proposed(tmp_path: Path) -> None:
    executor = Made(lambda cap: (20000.0 + 0.5 * cap, 100.0 - 0.1 * cap))
    found = tuned(tmp_path / "s", executor, "140:260:30")
    assert len(executor.ran) == 2
    text = " ".join(shown(found).split())
    assert "2 trials for 5 caps: --trials 5 tries more of them" in text
    assert found.choice != Setting(260.0)
    assert found.to_apply == Setting(260.0)
    assert "no cap is proposed: no significant difference from 260 W" in text
    assert not found.next


def test_all_runs_of_a_sweep_count_in_the_choice(tmp_path: Path) -> None:
    swept = Made(curve)
    made = tuning(tmp_path / "s", swept, "140:260:40")
    made._write_plan()
    for setting, cell in made._cells.items():
        cap = setting.cap_w or 0.0
        for repeat in (1, 2, 3):
            swept.caps[cell.key] = cap
            swept.submit(made._study.get_slot_folder(cell.key, repeat))
    again = Made(curve)
    found = tuned(tmp_path / "s", again, "140:260:40", trials=3)
    assert not again.ran
    assert [row.n for row in found.rows] == [3, 3, 3, 3]


@pytest.mark.system  # pure, and slow
def test_a_cap_far_worse_than_the_best_is_not_tried_again_nor_any_below_it(tmp_path: Path) -> None:
    samples = [
        Sample(Setting(c), Quantity(e), Quantity(t)) for c, e, t in ((260, 10, 1), (200, 9, 1.05), (120, 14, 1.9))
    ]
    hopeless = [
        c for c in (100.0, 120.0, 140.0, 200.0, 260.0) if is_hopeless(ENERGY, samples, Setting(260.0), Setting(c))
    ]
    assert hopeless == [100.0, 120.0]
    limited = Goal.parse("energy@slowdown=5%")
    near = [Sample(Setting(260.0), Quantity(10.0), Quantity(1.0)), Sample(Setting(150.0), Quantity(8.0), Quantity(1.4))]
    assert is_hopeless(limited, near, Setting(260.0), Setting(150.0))
    assert not is_hopeless(ENERGY, near, Setting(260.0), Setting(150.0))
    assert not is_hopeless(ENERGY, [], Setting(260.0), Setting(150.0))
    executor = Made(lambda cap: (curve(cap)[0] * (5 if cap < 150 else 1), curve(cap)[1]))
    found = tuned(tmp_path / "s", executor, trials=12)
    assert max(sum(ran == cap for ran, _ in executor.ran) for cap in (100.0, 120.0, 140.0)) <= 1
    assert found.choice is not None
    assert (found.choice.cap_w or 0) > 150


def test_where_caps_are_not_enforced_none_is_chosen(tmp_path: Path) -> None:
    executor = Made(lambda cap: (20000.0 + cap, 100.0), holds=lambda cap: cap > 230, drew=lambda _: 231.0)
    found = tuned(tmp_path / "s", executor)
    assert found.choice is None
    assert (
        "caps are not enforced here, so none is chosen (cap not enforced: gpu:0: used 231 W on average"
        in found.problems[0]
    )
    assert {row.doubt for row in found.rows if (row.setting.cap_w or 0) <= 230} == {"not enforced"}
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
    assert (found.choice.cap_w or 0) > 130
    assert not found.problems
    assert all(row.gain is None for row in found.rows if row.doubt)
    assert any(row.doubt for row in found.rows) == any("and below" in note for note in word_notes(found.notes))


def pair_curve(cap: float, clock_hz: float) -> tuple[float, float]:
    """Return energy and time under a cap and a locked clock: whichever allows less power binds."""
    share = (clock_hz / 2100e6) ** 2
    energy, time_s = curve(min(cap, 60 + 200 * share))
    return energy, min(time_s, 100 / math.sqrt(share)) if 60 + 200 * share < cap else time_s


@pytest.mark.system  # pure, and slow
def test_caps_and_clocks_are_searched_together(tmp_path: Path) -> None:
    executor = Made(curve)
    executor.pair_curve = pair_curve
    found = tuned(tmp_path / "s", executor, "140:260:40", "1200:2100:300")
    assert executor.ran[0] == (Setting(260.0, 2100e6), "r01")
    every = [pair_curve(cap, mhz * 1e6)[0] for cap in range(140, 261, 40) for mhz in range(1200, 2101, 300)]
    assert len(executor.ran) <= len(every) // 4
    assert found.choice is not None
    assert found.choice.cap_w is not None
    assert found.choice.clock_hz is not None
    assert pair_curve(found.choice.cap_w, found.choice.clock_hz)[0] < 1.1 * min(every)
    # All gains are against the one reference, whatever the clock of a row.
    base = pair_curve(260.0, 2100e6)[0]
    for row in found.rows:
        own = pair_curve(row.setting.cap_w or 0.0, row.setting.clock_hz or 0.0)[0]
        assert row.gain is not None
        assert row.gain.value == pytest.approx(1 - own / base, abs=1e-9)
    text = shown(found)
    assert f"Best setting for energy: {found.choice.text}" in text
    assert f"joulelab cap --clock {found.choice.clock_hz / 1e6:g} {found.choice.cap_w:g} -- train" in text
    plain = found.to_json()
    assert (plain["choice_w"], plain["choice_clock_hz"]) == found.choice
    # The same command goes on with what was run.
    again = Made(curve)
    again.pair_curve = pair_curve
    assert tuned(tmp_path / "s", again, "140:260:40", "1200:2100:300").choice == found.choice
    assert not again.ran


def test_a_clock_alone_is_searched_too(tmp_path: Path) -> None:
    executor = Made(curve)
    executor.pair_curve = lambda _, clock_hz: pair_curve(260.0, clock_hz)
    found = tuned(tmp_path / "s", executor, None, "900:2100:300", trials=3)
    assert executor.ran[0] == (Setting(None, 2100e6), "r01")
    assert found.choice is not None
    assert found.noun == "clock"
    assert "MHz" in shown(found)


def test_a_setting_that_misses_the_quality_of_the_goal_is_not_the_best(tmp_path: Path) -> None:
    goal = Goal.parse("energy@accuracy>=0.98")
    executor = Made(curve, facts=lambda cap: {"accuracy": 0.99 if cap > 200 else 0.97})
    found = tuned(tmp_path / "s", executor, "140:260:40", goal=goal, trials=4)
    assert found.choice is not None
    assert (found.choice.cap_w or 0) > 200
    assert any("misses accuracy>=0.98" in note for note in word_notes(found.notes))
    missed = {row.setting.cap_w for row in found.rows if row.doubt == "misses quality"}
    assert missed == {cap for cap, _ in executor.ran if cap < 200}
    assert "interval over repeats" not in " ".join(shown(found).split())
    # Runs that cannot be chosen are trials as well.
    poor = Made(curve, facts=lambda cap: {"accuracy": 0.99 if cap > 250 else 0.97})
    found = tuned(tmp_path / "v", poor, goal=goal, trials=3)
    assert len(poor.ran) == 3
    assert (found.choice, found.next) == (Setting(260.0), "")
    assert "no other cap can be compared with it; the budget of 3 trials is used" in " ".join(shown(found).split())
    failing = Made(lambda cap: curve(cap) if cap > 250 else None)
    tuned(tmp_path / "w", failing, trials=3)
    assert len(failing.ran) == 3
    with pytest.raises(Refused) as caught:
        tuned(tmp_path / "t", Made(curve, facts=lambda _: {"mape": 3.0}), "140,260", goal=goal)
    assert (caught.value.code, "mape" in str(caught.value.why)) == ("refused.no-quality", True)
    with pytest.raises(Refused, match="misses accuracy"):
        tuned(tmp_path / "u", Made(curve, facts=lambda _: {"accuracy": 0.5}), "140,260", goal=goal)
