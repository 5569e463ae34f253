"""What tuning inside a run tells at its end: savings, less what the workload changed by itself; what was metered."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.store.make import START_NS, write_rows
from tests.study.tuning.inside import ENERGY, GRID, LONG_S, long_run, online, shown, window, worked

from joulelab.core.clock import NS
from joulelab.core.spec import Spec, Stream
from joulelab.study.tuning.online import OnlineTuning, summarise_online
from joulelab.study.tuning.search import Choice, Setting
from joulelab.study.tuning.windows import Window, WorkLog, find_scopes, read_scopes, sum_energy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_windows_of_a_workload_that_changed_by_itself_are_corrected(tmp_path: Path) -> None:
    tuning = online()
    tuning.state.windows = [
        window(260, 0, energy=1000),
        window(180, 50, energy=900, time_s=5.5),
        window(260, 100, energy=1210, time_s=6.05),
    ]
    tuning.state.drift = (1.21, 1.21)
    first, middle, last = tuning.correct_windows()
    assert first.energy_per.value == pytest.approx(10)
    assert last.energy_per.value == pytest.approx(10)
    assert last.time_per.value == pytest.approx(0.05)
    assert middle.energy_per.value == pytest.approx(9 / 1.1)
    assert middle.time_per.value == pytest.approx(0.055 / 1.1)
    # Nobody knows when it happened: it may have been before the window, or after it.
    assert 0.5 * math.log(1.21) < 2 * middle.time_per.u / middle.time_per.value < math.log(1.21)
    assert "drift" not in first.time_per.budget()
    # The two are made equal, so they are worth one.
    row = summarise_online(tuning, None, "CMD").find_row(Setting(260.0))
    assert row is not None
    assert row.time.u / row.time.value == pytest.approx(0.002)
    tuning.state.notes.append("it changed")
    told = summarise_online(tuning, None, "CMD")
    assert told.choice == Setting(180.0)
    assert not told.complete
    assert "it changed" in told.notes
    assert told.find_row(Setting(260.0)).n == 2  # type: ignore[union-attr]
    assert "unseen" not in told.find_row(Setting(180.0)).energy.budget()  # type: ignore[union-attr]


def test_equal_windows_agree_and_what_they_share_cancels() -> None:
    tuning = online()
    tuning.state.windows = [window(260, 0, energy=1000), window(180, 50, energy=800, time_s=5.25)]
    tuning.state.choice = Choice(Setting(180.0), (), 2, "because", 0.8, 1.05)
    row = summarise_online(tuning, None, "python train.py").find_row(Setting(180.0))
    assert row is not None
    assert row.gain is not None
    assert row.gain.value == pytest.approx(0.2)
    assert (row.gain.expanded or 1) < 0.012
    assert row.loss is not None
    assert row.loss.value == pytest.approx(0.05)


def driven(tmp_path: Path, rate: Callable[[float], float], *at_s: tuple[float, float]) -> tuple[OnlineTuning, Path]:
    """Return a tuning of a job that draws 300 W under any cap; windows of 5 s under caps, the last cap is chosen."""
    tuning = OnlineTuning(GRID, ENERGY, window_s=5.0, settle_s=1.0)
    run = long_run(tmp_path, lambda _: 300.0)
    (tmp_path / "marks").mkdir()
    worked(tmp_path / "marks", rate)
    tuning.log = WorkLog(tmp_path / "marks")
    tuning.log.read_marks()
    for cap, t in at_s:
        a, b = START_NS + round(t * NS), START_NS + round((t + 5) * NS)
        work = tuning.log.count_work(a, b)
        energy = sum_energy(read_scopes(run, a, b), [(a, b)], ["gpu:0"])
        assert energy is not None
        tuning.state.windows.append(Window(Setting(cap), a, b, work, energy, 0.002))
        tuning.state.stays.append((Setting(cap), a - NS))
    tuning.state.scopes = ["gpu:0"]
    if at_s[-1][0] == 260:
        tuning._revisit()
    tuning.state.choice = Choice(Setting(at_s[-1][0]), (), len(at_s), "because", 1.0, 1.0)
    tuning.state.chosen_ns = tuning.state.windows[-1].to_ns
    return tuning, run


WINDOWS = ((260.0, 1.0), (180.0, 10.0), (100.0, 20.0), (180.0, 30.0), (260.0, 40.0))


@pytest.mark.parametrize(
    "rate",
    [
        lambda s: 100 * (1 - 0.004 * s),
        lambda s: 100.0 if s < 8 else 88.0,
        lambda s: 100.0 if s < 38 else 88.0,
        lambda s: 100 * (1 - 0.004 * min(s, 45)),
    ],
    ids=["on and on", "at once, early", "at once, late", "until the choice"],
)
def test_what_the_workload_changes_by_itself_is_neither_saved_nor_spent(
    tmp_path: Path, rate: Callable[[float], float]
) -> None:
    tuning, run = driven(tmp_path, rate, *WINDOWS)
    assert tuning.state.drift is not None
    told = summarise_online(tuning, run, "CMD")
    assert told.saved is not None
    assert told.slower is not None
    assert abs(told.saved.value) < (told.saved.expanded or 0) < 0.15 * 300 * LONG_S
    assert abs(told.slower.value) < (told.slower.expanded or 0) < 0.15 * LONG_S
    assert not told.is_saving_sure
    for row in told.rows:
        assert row.gain is not None
        assert abs(row.gain.value) <= (row.gain.expanded or 0)


def test_a_change_after_the_choice_is_told_and_not_charged(tmp_path: Path) -> None:
    tuning, run = driven(tmp_path, lambda s: 100.0 if s < 46.05 else 60.0, *WINDOWS)
    assert tuning.state.drift is None
    told = summarise_online(tuning, run, "CMD")
    assert any("the workload itself changed after the choice: +66" in note for note in told.notes)
    assert told.saved is not None
    assert abs(told.saved.value) < 0.01 * 300 * LONG_S


def test_what_a_better_cap_saves_is_told_with_its_interval(tmp_path: Path) -> None:
    tuning, run = driven(tmp_path, lambda _: 100.0, (260.0, 1.0), (180.0, 10.0))
    # As if 260 W took a tenth more of both.
    first = tuning.state.windows[0]
    tuning.state.windows[0] = replace(first, work=first.work / 1.1)
    told = summarise_online(tuning, run, "CMD")
    assert told.is_saving_sure
    assert told.saved is not None
    assert told.saved.value == pytest.approx(0.1 * 300 * 58, rel=0.03)
    assert told.slower is not None
    assert told.slower.value == pytest.approx(-0.1 * 58, rel=0.03)
    text = " ".join(shown(told).split())
    assert "J in this run, 5.8" in text
    assert " ± 0." in text.partition("J in this run, ")[2].partition(" shorter")[0]
    assert "energy of gpu:0" in text


def test_meters_that_are_read_too_seldom_are_not_compared_and_that_is_said(tmp_path: Path) -> None:
    run = long_run(tmp_path, lambda _: 200.0)
    node = Stream("node", "slow", "node.ac", 5.0, (Spec("power_w", "power", "W", kind="power", update_s=5.0),))
    slow = [(0, t := START_NS + k * 5 * NS, t + 1000, [400.0]) for k in range(12)]
    write_rows(run, [node], slow, meter="pdu")
    scopes, everything = find_scopes(run, START_NS + 10 * NS, START_NS + 12 * NS)
    assert (scopes, everything) == (["gpu:0"], False)
    tuning = online()
    tuning.state.windows = [window(260, 0, energy=1000), window(180, 50, energy=900)]
    tuning.state.scopes, tuning.state.everything = scopes, everything
    text = " ".join(shown(summarise_online(tuning, None, "CMD")).split())
    assert "energy of gpu:0" in text
    assert "other meters are read too seldom" in text
