"""Tuning inside a run: windows, drift, caps that are refused or not kept to, and what goes wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.study.tuning.inside import TRUE, Capped, events, measured, online, recorded, scaled, shown, unheld

from joulelab.control.client import HeldCap
from joulelab.core.clock import NS
from joulelab.core.errors import Denied, Refused
from joulelab.run.recording import RunRecording
from joulelab.run.run_options import RunOptions
from joulelab.study.tuning.online import summarise_online

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than anybody needs to."""
    monkeypatch.setattr("joulelab.study.tuning.online.POLL_S", 0.03)


@pytest.mark.system
def test_caps_that_are_denied_end_the_tuning_and_nothing_else(tmp_path: Path) -> None:
    tuning = online()
    capped = Capped(lambda _: Denied("no", where="gpu:0", next="run as root"))
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.problem)
    assert "tune-failed" in events(recording)
    assert recording.problems == ["tuning failed: gpu:0: no; run as root"]
    assert not capped.wishes
    told = summarise_online(tuning, recording.run, "CMD")
    assert told.choice is None
    assert told.problems == ("tuning failed: gpu:0: no; run as root",)


@pytest.mark.system
def test_without_a_meter_tuning_goes_back_to_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.study.tuning.online.COVER_NS", NS // 10)
    tuning = online()
    capped = Capped(lambda _: None)
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.problem and len(capped.wishes) > 1)
    assert "no power meter was read often enough" in recording.problems[0]
    assert [w[0].value for w in capped.wishes] == [260.0, 250.0]
    assert any("enforces 234 W where 260 W were requested" in note for note in tuning.state.notes)


@pytest.mark.system
def test_a_cap_that_the_device_refuses_is_left_out(tmp_path: Path) -> None:
    tuning = online(trials=4)
    measured(tuning, lambda cap, _: TRUE[cap])
    capped = Capped(lambda watts: Refused("out of range") if watts == 100 else None)
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert tuning.state.choice is not None
    assert tuning.state.choice.setting.cap_w == 180
    assert 100.0 not in {w[0].value for w in capped.wishes}
    assert "tune-choice" in events(recording)


@pytest.mark.system
def test_the_first_window_counts_when_two_agree_and_no_work_stood_still(tmp_path: Path) -> None:
    tuning = online(trials=3)
    # Two windows with a pause, then a warm-up that becomes faster and faster.
    made = measured(tuning, lambda cap, n: scaled(cap, max(1.5 - 0.1 * n, 1.0)), pauses=2)
    recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert tuning.state.windows[0] is made[6]
    assert tuning.state.windows[0].time_per.value == pytest.approx(1.0, rel=1e-3)


@pytest.mark.system
def test_a_workload_that_never_becomes_steady_is_tuned_with_a_note(tmp_path: Path) -> None:
    tuning = online(trials=2)
    measured(tuning, lambda cap, n: scaled(cap, 1.5 if n % 2 and n < 12 else 1.0))
    recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert any("did not become steady" in note for note in tuning.state.notes)


@pytest.mark.system
def test_a_workload_that_changed_by_itself_is_found_out_by_coming_back(tmp_path: Path) -> None:
    tuning = online(trials=3)
    made = measured(tuning, lambda cap, n: scaled(cap, 1.0 + 0.05 * max(n - 1, 0)))
    recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert made[-1].setting.cap_w in (180.0, 260.0)
    assert tuning.state.revisits == 1
    assert tuning.state.drift is not None
    assert tuning.state.drift[0] > 1.04
    assert any("the workload itself changed" in note for note in tuning.state.notes)
    assert tuning.state.choice is not None
    assert tuning.state.choice.setting.cap_w == 180


@pytest.mark.system
def test_clocks_that_were_not_locked_get_their_highest_value_when_tuning_fails(tmp_path: Path) -> None:
    tuning, capped = online(), Capped(lambda _: None)
    recording = RunRecording(RunOptions(runs=tmp_path), ["true"], os.environ)
    tuning._recording, tuning._capping = recording, capped  # type: ignore[assignment]
    tuning._held = [
        HeldCap("gpu:0", "GPU-0.clocks", "GPU", "clocks", 900e6, 900e6, None, None, 2100e6, "Hz"),
        HeldCap("gpu:0", "GPU-0", "GPU", "power", 180.0, 180.0, 180.0, 250.0, 260.0, "W"),
    ]
    tuning._give_up("a meter failed")
    recording.close({"outcome": "exit", "exit_code": 0})
    assert [(request.value, request.unit) for request in capped.wishes[0]] == [(2100e6, "Hz"), (250.0, "W")]


def test_a_run_that_is_not_recorded_is_not_tuned(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tuning = online()
    recording = RunRecording(RunOptions(runs=tmp_path / "file"), ["true"], os.environ)
    tuning.begin(recording, Capped(lambda _: None))  # type: ignore[arg-type]
    tuning.end()
    assert summarise_online(tuning, None, "CMD").problems == (
        "tuning failed: nothing is recorded, so nothing can be tuned",
    )


@pytest.mark.system
def test_where_caps_are_not_enforced_none_is_chosen(tmp_path: Path) -> None:
    tuning = online(trials=4)
    measured(tuning, lambda cap, _: (500.0 - 0.1 * (260 - cap), 1.0))
    unheld(tuning, lambda _: 250.0, lambda cap: cap > 250)
    capped = Capped(lambda _: None)
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.problem and len(capped.wishes) > 2)
    assert tuning.state.choice is None
    told = summarise_online(tuning, recording.run, "CMD")
    assert told.choice is None
    assert "caps are not enforced here" in told.problems[0]
    assert [row.doubt for row in told.rows] == ["", "not enforced"]
    assert "not enforced" in shown(told)
    assert capped.wishes[-1][0].value == 250  # as it was found


@pytest.mark.system
def test_a_cap_below_what_the_gpu_can_do_is_left_out_and_others_count(tmp_path: Path) -> None:
    tuning = online(trials=4)
    measured(tuning, lambda cap, _: TRUE[cap])
    unheld(tuning, lambda cap: max(cap, 130.0), lambda cap: cap > 130)
    recording = recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert tuning.state.choice is not None
    assert tuning.state.choice.setting.cap_w == 180
    told = summarise_online(tuning, recording.run, "CMD")
    assert any("100 W and below are left out" in note for note in told.notes) == bool(tuning.state.unheld)
    assert {row.setting.cap_w: row.doubt for row in told.rows}.get(100.0, "not enforced") == "not enforced"
