"""What tuning by whole runs tells: figures, intervals, notes, and how they are shown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from tests.study.tuning.whole_runs import ENERGY, Made, curve, noisy, shown, swept, tuned

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.core.quantity import Quantity
from joulelab.report.messages import word_notes
from joulelab.report.tuning_tables import write_tuning_headline
from joulelab.study.folder import open_study
from joulelab.study.results import gather_results
from joulelab.study.tuning.grid import Grid
from joulelab.study.tuning.search import Setting
from joulelab.study.tuning.tuning_result import Sample, TuningResult, average_samples

if TYPE_CHECKING:
    from pathlib import Path


def test_work_is_what_energy_and_time_are_counted_by_where_it_differs(tmp_path: Path) -> None:
    same = tuned(tmp_path / "a", Made(curve, lambda _: {"samples": 1000.0}), "180,260")
    assert same.unit == ""
    found = tuned(tmp_path / "s", Made(curve, lambda cap: {"samples": 1000.0 + cap}), "180,260")
    assert found.unit == "samples"
    row = found.find_row(Setting(260.0))
    assert row is not None
    assert row.energy.value == pytest.approx(curve(260)[0] / 1260)
    assert found.saved is not None
    assert found.saved.value == pytest.approx(curve(260)[0] - curve(180)[0] / 1180 * 1260)
    assert "energy and time are per sample" in " ".join(shown(found).split())


def test_rows_without_the_reference_compare_nothing() -> None:
    found = average_samples(ENERGY, [Sample(Setting(180.0), Quantity(5.0), Quantity(1.0))], Setting(260.0), {})
    assert (found[0].label, found[0].gain) == ("180 W", None)
    nothing = TuningResult(ENERGY, "online", (), Setting(260.0), problems=("no work was reported",))
    text = shown(nothing)
    assert "No cap was chosen for energy." in text
    assert "no work was reported" in text


def test_windows_that_differ_more_than_they_say_are_believed_less() -> None:
    near = [Sample(Setting(260.0), Quantity(e, {"edge:x": 0.1}), Quantity(1.0, {"rate:1": 0.01})) for e in (10.0, 10.1)]
    far = [Sample(Setting(260.0), Quantity(e, {"edge:x": 0.1}), Quantity(1.0, {"rate:1": 0.01})) for e in (9.0, 11.0)]
    (close,), (wide,) = (
        average_samples(ENERGY, near, Setting(100.0), {}),
        average_samples(ENERGY, far, Setting(100.0), {}),
    )
    assert close.energy.u == pytest.approx(0.1 / math.sqrt(2))
    assert wide.energy.u == pytest.approx(1.0)


def test_a_tuning_inside_a_run_says_when_it_would_have_paid() -> None:
    grid = Grid(("gpu:0",), {})
    assert grid.scopes == ("gpu:0",)
    samples = [
        Sample(Setting(260.0), Quantity(10.0), Quantity(0.1)),
        Sample(Setting(180.0), Quantity(9.0), Quantity(0.11)),
    ]
    found = TuningResult(
        Goal.parse("edp"),
        "online",
        average_samples(Goal.parse("edp"), samples, Setting(260.0), {}),
        Setting(260.0),
        unit="steps",
        choice=Setting(180.0),
        tied=(Setting(260.0),),
        saved=Quantity(-100.0, {"edge:x": 1.0}),
        slower=Quantity(3.0, {"rate:x": 0.1}),
        over="in this run",
    )
    text = " ".join(shown(found).split())
    assert "spent 100 ± 2 J more in this run, 3.0 ± 0.2 s longer, against 260 W all the time" in text
    assert "11.00 s more of it would have paid for the windows" in text
    assert "~ no significant difference" in text


def test_what_a_tuning_cannot_resolve_is_in_words() -> None:
    samples = [
        Sample(Setting(260.0), Quantity(10.0), Quantity(0.1)),
        Sample(Setting(180.0), Quantity(9.0, {"edge:y": 2.0}), Quantity(0.1)),
    ]
    found = TuningResult(
        ENERGY,
        "online",
        average_samples(ENERGY, samples, Setting(260.0), {}),
        Setting(260.0),
        choice=Setting(180.0),
        saved=Quantity(-10.0, {"edge:x": 9.0}),
        slower=Quantity(3.0, {"rate:x": 2.0}),
        over="in this run",
    )
    assert "saved not resolved, change of time not resolved, against 260 W" in " ".join(shown(found).split())
    assert "change of energy not resolved" in write_tuning_headline(found)


def test_a_tuning_tells_the_figures_that_a_sweep_of_the_same_slots_tells(tmp_path: Path) -> None:
    swept(tmp_path / "s", {260.0: 3, 220.0: 3, 180.0: 3, 140.0: 1})
    found = tuned(tmp_path / "s", Made(lambda cap: noisy(cap, 1)), "140:260:40", trials=3, repeat_max=3)
    summary = summarise_cells(gather_results(open_study(tmp_path / "s")).cells, goals=[ENERGY])
    by_cap = {cell.knobs["cap"]: cell for cell in summary.cells}
    assert [row.setting.cap_w for row in found.rows] == [260.0, 220.0, 180.0, 140.0]
    for row in found.rows:
        cell = by_cap[row.setting.cap_w]
        assert (row.n, row.energy, row.time, row.gain, row.loss) == (
            cell.n,
            cell.energy,
            cell.time,
            cell.gain,
            cell.loss,
        )
    # The one run has the spread of the others: a gain of it is not as narrow as the meter alone.
    single = found.find_row(Setting(140.0))
    assert single is not None
    assert single.n == 1
    assert single.gain is not None
    assert (single.gain.expanded or 0) > 0.015
    assert not any("one run" in note for note in word_notes(found.notes))
    assert any("pooled" in note for note in word_notes(found.notes))


def test_a_saving_is_sure_when_runs_were_repeated_and_it_is_beyond_their_spread(tmp_path: Path) -> None:
    swept(tmp_path / "s", {260.0: 4, 180.0: 4}, "180,260")
    found = tuned(tmp_path / "s", Made(curve), "180,260", trials=3)
    assert found.choice == Setting(180.0)
    assert found.is_saving_sure
    text = " ".join(shown(found).split())
    assert "not sure" not in text
    assert "no significant difference" not in text
    assert "± " in text.partition("J per run, ")[2].partition(" longer")[0]
    swept(tmp_path / "t", {260.0: 2, 220.0: 1}, "220,260")
    partly = tuned(tmp_path / "t", Made(curve), "220,260", trials=2, repeat_max=2)
    assert [row.n for row in partly.rows] == [2, 1]
    assert any(note.startswith("one run of 220 W: the spread between runs") for note in word_notes(partly.notes))


def test_all_figures_of_a_choice_are_those_of_the_table(tmp_path: Path) -> None:
    found = tuned(tmp_path / "s", Made(curve), trials=5)
    best = found.find_row(found.choice)
    assert best is not None
    assert best.gain is not None
    assert "%" not in found.why.replace("0.1%", "")
    assert f"{best.gain.value * 100:.1f} % less energy" in write_tuning_headline(found)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_column_is_cut_off(tmp_path: Path, width: int) -> None:
    swept(tmp_path / "s", {260.0: 3, 220.0: 3, 180.0: 3}, "180:260:40")
    found = tuned(tmp_path / "s", Made(curve), "180:260:40", trials=3, goal=Goal.parse("edp"))
    text = shown(found, width)
    assert "…" not in text
    assert "best" in text
    assert len([row for row in text.splitlines() if row.startswith("cap ")]) == (2 if width == 60 else 1)


def test_long_times_are_told_in_minutes_with_their_interval() -> None:
    samples = [
        Sample(Setting(260.0), Quantity(10.0), Quantity(0.1)),
        Sample(Setting(180.0), Quantity(9.0), Quantity(0.11)),
    ]
    found = TuningResult(
        ENERGY,
        "online",
        average_samples(ENERGY, samples, Setting(260.0), {}),
        Setting(260.0),
        choice=Setting(180.0),
        saved=Quantity(5e4, {"edge:x": 100.0}),
        slower=Quantity(300.0, {"rate:x": 10.0}),
        over="in this run",
    )
    assert "300 ± 20 s longer" in " ".join(shown(found).split())
