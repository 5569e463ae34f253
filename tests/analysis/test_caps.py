"""Each doubt of the referee about caps: raised where it should be, and only there."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.doubts import SECONDS, T, checks, only, steady
from tests.analysis.folders import Folder, counter, gpu, state

from joulelab.report.messages import word_check


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def capped(folder, enforced, requested, watts=300.0):
    values = [np.broadcast_to(v, SECONDS.shape) for v in (enforced, requested)]
    return steady(folder, watts).add("nvml", state(0, "cap_enforced_w", "cap_requested_w"), SECONDS, *values)


def test_a_cap_that_is_not_what_was_asked_for(folder):
    capped(folder, 350.0, 400.0)
    found = only(folder, "cap")
    assert (found.code, found.status, found.scope) == ("cap.differs", "warning", "gpu:0")
    assert found.numbers == {"enforced_w": 350.0, "requested_w": 400.0, "share": 1.0}


def test_a_cap_that_was_changed(folder):
    moved = np.where(SECONDS > 10, 350.0, 400.0)
    capped(folder, moved, moved)
    amd = steady(Folder(folder.path.parent)).add("amdsmi", state(0, "cap_requested_w"), SECONDS, moved)
    for found in (only(folder, "cap"), only(amd, "cap")):
        assert (found.code, found.scope, found.numbers) == ("cap.changed", "gpu:0", {"low_w": 350.0, "high_w": 400.0})


@pytest.mark.parametrize(("watts", "told"), [(300.0, False), (312.0, False), (330.0, True)])
def test_a_cap_that_is_not_kept(folder, watts, told):
    capped(folder, 300.0, 300.0, watts)
    found = checks(folder, "cap-not-enforced")
    assert [(c.status, c.scope) for c in found] == ([("failed", "gpu:0")] if told else [])
    assert [c.numbers for c in found] == ([pytest.approx({"mean_w": 330.0, "cap_w": 300.0})] if told else [])


def test_the_cap_is_compared_with_the_mean_over_time_not_over_readings(folder):
    """250 quick readings at the start, above the cap; ten seconds below it."""
    t = np.sort(np.concatenate((T, np.arange(5.0, 5.5, 0.002))))
    watts = np.where((t > 4.9) & (t < 5.6), 600.0, 200.0)
    folder.add("nvml", gpu(0), t, np.concatenate(([0.0], np.cumsum(watts[:-1] * np.diff(t)))), watts)
    folder.add("nvml", state(0, "cap_enforced_w"), SECONDS, np.full(SECONDS.size, 300.0))
    assert not checks(folder, "cap-not-enforced")


def test_a_cap_on_a_device_without_power_or_a_run_without_length(folder):
    folder.add("amdsmi", counter("gpu:0"), T, 900 * T)
    folder.add("amdsmi", state(0, "cap_enforced_w"), SECONDS, np.full(SECONDS.size, 300.0))
    assert not checks(folder, "cap-not-enforced")
    empty = capped(Folder(folder.path.parent), 300.0, 300.0, 900.0).close(5.5, 5.5)
    assert not checks(empty, "cap-not-enforced")


# Caps that the run itself asked for.


def asked(folder, watts=170.0, second=4.0, **more):
    known = {"scope": "gpu:0", "asked": watts, "requested": watts, "found": 250.0, "default": 260.0, "unit": "W"}
    return folder.event(second, "cap-set", **(known | more))


def test_a_cap_that_stays_is_not_doubted(folder):
    asked(capped(folder, 170.0, 170.0, 160.0))
    assert not checks(folder, "cap")


def test_a_cap_that_vanishes_is_marked(folder):
    fallen = np.where(SECONDS > 10, 260.0, 170.0)
    asked(capped(folder, fallen, fallen, 160.0))
    found = only(folder, "cap")
    assert (found.code, found.status, found.scope) == ("cap.vanished", "failed", "gpu:0")
    assert found.numbers == {"cap_w": 170.0, "shown_w": 260.0}
    assert "nvidia-smi -pm 1" in word_check(found).next


def test_a_cap_that_somebody_else_changed_is_marked(folder):
    moved = np.where(SECONDS > 10, 200.0, 170.0)
    asked(capped(folder, moved, moved, 160.0), default=None)
    found = only(folder, "cap")
    assert (found.code, found.status) == ("cap.overridden", "failed")
    assert found.numbers == {"cap_w": 170.0, "shown_w": 200.0}


def test_caps_that_tuning_changes_are_its_own(folder):
    moved = np.where(SECONDS > 10, 200.0, 170.0)
    asked(asked(capped(folder, moved, moved, 160.0)), 200.0, 10.0)
    assert not checks(folder, "cap")
    other = capped(Folder(folder.path.parent), moved, moved, 160.0)
    asked(asked(other), 210.0, 10.0)
    assert (only(other, "cap").code, only(other, "cap").numbers["cap_w"]) == ("cap.overridden", 210.0)


def test_an_enforced_cap_below_the_one_asked_for_fails(folder):
    asked(capped(folder, 150.0, 170.0, 140.0))
    found = only(folder, "cap")
    assert (found.code, found.status) == ("cap.differs", "failed")
    assert found.numbers == {"enforced_w": 150.0, "requested_w": 170.0, "share": 1.0}


def test_locked_clocks_are_no_cap(folder):
    asked(capped(folder, 260.0, 260.0, 140.0), 1.2e9, unit="Hz")
    assert not checks(folder, "cap")


def test_a_keeper_that_died_is_told_and_its_blink_forgiven(folder):
    blink = np.where((SECONDS > 9) & (SECONDS < 10), 250.0, 170.0)
    run = asked(capped(folder, blink, blink, 160.0)).event(9.4, "keeper-died").event(9.9, "keeper-started")
    assert not checks(run, "cap")
    assert only(run, "keeper").numbers == {"away_s": pytest.approx(0.5)}


def test_what_was_found_is_no_cap_of_ours_but_while_the_keeper_is_away(folder):
    later = np.where(SECONDS > 12, 250.0, 170.0)
    run = asked(capped(folder, later, later, 160.0)).event(7.0, "keeper-died").event(7.5, "keeper-started")
    assert (only(run, "cap").code, only(run, "cap").numbers["shown_w"]) == ("cap.overridden", 250.0)


def test_a_keeper_that_nobody_replaces_leaves_the_caps_not_in_force(folder):
    gone = np.where(SECONDS > 9, 250.0, 170.0)
    run = asked(capped(folder, gone, gone, 160.0)).event(9.1, "keeper-died").event(9.2, "keeper-died")
    assert [(c.code, c.status) for c in checks(run, "cap")] == [("cap.keeper-died", "failed")]
    assert not checks(run, "keeper")


def test_caps_that_a_signal_released_are_not_blamed_on_others(folder):
    gone = np.where(SECONDS > 9, 250.0, 170.0)
    run = asked(capped(folder, gone, gone, 160.0)).event(9.1, "caps-released", why="SIGTERM")
    assert [(c.code, c.status) for c in checks(run, "cap")] == [("cap.released", "failed")]


def test_a_keeper_that_dies_after_the_end_matters_to_nobody(folder):
    run = asked(capped(folder, 170.0, 170.0, 160.0)).event(16.0, "keeper-died").event(17.0, "keeper-started")
    other = asked(capped(Folder(folder.path.parent), 170.0, 170.0, 160.0)).event(16.0, "keeper-died")
    assert not checks(run, "cap")
    assert not checks(other, "cap")
    assert not checks(other, "keeper")


def test_a_lower_cap_for_a_while_is_seen(folder):
    low = np.where((SECONDS > 8) & (SECONDS < 10), 110.0, 170.0)
    asked(capped(folder, low, 170.0, 100.0))
    assert only(folder, "cap.differs").numbers == {"enforced_w": 110.0, "requested_w": 170.0, "share": 0.2}


def test_a_cap_without_readings_is_not_judged(folder):
    asked(steady(folder, 160.0))
    assert not checks(folder, "cap")


@pytest.mark.parametrize(
    ("outcome", "codes"),
    [("restored", []), ("as found", []), ("left", ["cap.left"]), ("failed", ["cap.not-restored"])],
)
def test_what_was_not_put_back_is_marked(folder, outcome, codes):
    told = {"scope": "gpu:0", "outcome": outcome, "said": "gpu:0: as it is"}
    asked(capped(folder, 170.0, 170.0, 160.0)).event(15.1, "cap-restored", **told)
    found = [(c.code, c.status, c.scope, word_check(c).text) for c in checks(folder, "cap")]
    frame = "could not be restored" if outcome == "failed" else "was not restored"
    text = f"the original cap {frame}: gpu:0: as it is"
    assert found == [(code, "warning", "gpu:0", text) for code in codes]
