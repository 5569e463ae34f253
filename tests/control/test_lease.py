from __future__ import annotations

import os
from dataclasses import replace

import pytest
from tests.control.fake import Fake, VirtualTime, fails
from tests.rows import every_row

from joulelab.control import lease as lease_module
from joulelab.control.lease import CapLease, decide_restore, finish_journal, format_value, get_main_value, get_unit
from joulelab.control.state import CapJournal, DeviceBusy, StateFolder
from joulelab.core.errors import DeviceLost, ReadFailed

WHO = {"user": "alice", "pid": 7}
FOUND, OURS, DEFAULT, OTHER = ({"cap_w": w} for w in (300.0, 170.0, 350.0, 222.0))


@pytest.fixture
def gpu(files):
    return Fake(files, "GPU-0", "gpu:0")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let the pauses between two tries take no time."""
    virtual = VirtualTime()
    monkeypatch.setattr(lease_module, "time", virtual)
    return virtual


@pytest.fixture
def here(environ):
    return StateFolder(environ)


@every_row(
    ("now", "same_boot", "wanted"),
    [
        (FOUND, True, "as found"),
        (FOUND, False, "as found"),
        ({"cap_w": 300.4}, True, "restore"),  # ours, or somebody's: 300 W is what was found
        ({"cap_w": 300.4}, False, "restore"),
        (OURS, True, "restore"),
        (OURS, False, "restore"),
        (DEFAULT, True, "restore"),
        (DEFAULT, False, "leave"),
        (OTHER, True, "leave"),
        (OTHER, False, "leave"),
        ({}, True, "leave"),
        ({"other_w": 170.0}, True, "leave"),
    ],
)
def test_only_what_is_ours_or_was_forgotten_is_put_back(now, same_boot, wanted):
    assert decide_restore(now, found=FOUND, ours=[OURS], default=DEFAULT, same_boot=same_boot) == wanted


def test_every_value_that_we_may_have_set_is_ours():
    ours = [{"cap_w": 150.0}, OURS]
    assert decide_restore({"cap_w": 150.0}, found=FOUND, ours=ours, default=None, same_boot=True) == "restore"
    assert decide_restore(DEFAULT, found=FOUND, ours=ours, default=None, same_boot=True) == "leave"


def test_half_of_a_setting_is_ours_too():
    found = {"long_term_w": 200.0, "short_term_w": 240.0, "enabled": 0.0}
    ours = {"long_term_w": 120.0, "short_term_w": 144.0, "enabled": 1.0}
    for half in ({"long_term_w": 120.0}, {"short_term_w": 144.0}, {"enabled": 1.0}):
        assert decide_restore({**found, **half}, found=found, ours=[ours], default=None, same_boot=False) == "restore"
    other = {**ours, "short_term_w": 180.0}
    assert decide_restore(other, found=found, ours=[ours], default=None, same_boot=True) == "leave"


def test_free_clocks_are_a_setting_like_others():
    locked = {"lowest_hz": 2e8, "highest_hz": 1e9}
    assert decide_restore({}, found={}, ours=[locked], default={}, same_boot=True) == "as found"
    assert decide_restore(locked, found={}, ours=[locked], default={}, same_boot=True) == "restore"
    assert decide_restore({}, found=locked, ours=[{}], default=None, same_boot=False) == "restore"
    assert get_main_value({}) is None
    assert get_main_value(locked) == 1e9
    assert get_main_value({"odd": 1.0}) is None
    assert (format_value(1.41e9, "Hz"), format_value(None, "Hz"), format_value(None, "W")) == (
        "1410 MHz",
        "free clocks",
        "no cap",
    )
    assert (get_unit("clocks"), get_unit("power")) == ("Hz", "W")


def test_a_lease_sets_changes_and_puts_back(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    assert here.read_journal("GPU-0") is None
    lease.set({"cap_w": 170.0})
    assert files.get("GPU-0") == {"cap_w": 170.0}
    kept = here.read_journal("GPU-0")
    assert (kept.found, kept.set, kept.default, kept.pid) == (FOUND, [OURS], DEFAULT, os.getpid())
    lease.set({"cap_w": 150.0})
    assert here.read_journal("GPU-0").set == [OURS, {"cap_w": 150.0}]
    lease.set({"cap_w": 140.0})
    assert here.read_journal("GPU-0").set == [{"cap_w": 150.0}, {"cap_w": 140.0}]  # 170 W was surely replaced
    with pytest.raises(DeviceBusy):
        CapLease(gpu, here, WHO)
    outcome = lease.restore()
    assert (outcome.outcome, outcome.found, outcome.now) == ("restored", 300.0, 300.0)
    assert outcome.message == "gpu:0: back at 300 W, as found (it was at 140 W)"  # the log of caps has it, too
    assert (files.get("GPU-0"), here.list_devices()) == (FOUND, [])
    CapLease(gpu, here, WHO).restore()


def test_a_lease_that_set_nothing_puts_nothing_back(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    files.put("GPU-0", cap_w=250.0)
    assert lease.restore().outcome == "as found"
    assert files.get("GPU-0") == {"cap_w": 250.0}


def test_somebody_elses_change_is_left_and_said(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    files.put("GPU-0", cap_w=222.0)
    with fails("refused.changed-elsewhere") as caught:
        lease.set({"cap_w": 180.0})
    assert caught.value.why == "it shows 222 W, joulelab had set 170 W"
    outcome = lease.restore()
    assert (outcome.outcome, outcome.now) == ("left", 222.0)
    assert "gpu:0 stays at 222 W" in outcome.message
    assert (files.get("GPU-0"), here.list_devices()) == (OTHER, [])


def test_a_cap_that_fell_to_the_default_is_put_back_to_found(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    files.put("GPU-0", cap_w=350.0)
    lease.set({"cap_w": 180.0})  # and may be set again
    files.put("GPU-0", cap_w=350.0)
    assert lease.restore().outcome == "restored"
    assert files.get("GPU-0") == FOUND


def test_somebody_put_back_what_was_found(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    files.put("GPU-0", cap_w=300.0)
    outcome = lease.restore()
    assert (outcome.outcome, outcome.now) == ("as found", 300.0)
    assert here.list_devices() == []


def test_what_the_device_shows_instead_is_refused_and_undone(gpu, here, files):
    files.flaws("GPU-0", shift=7.0)
    lease = CapLease(gpu, here, WHO)
    with fails("refused.not-kept") as caught:
        lease.set(OURS)
    assert caught.value.why == "it shows 177 W after it took 170 W"
    files.flaws("GPU-0")
    assert lease.restore().outcome == "restored"
    assert (files.get("GPU-0"), here.list_devices()) == (FOUND, [])


def test_what_is_rounded_is_fine(gpu, here, files):
    files.flaws("GPU-0", shift=0.3)
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    assert lease.now == {"cap_w": 170.3}
    assert lease.restore().outcome == "restored"


def test_another_value_of_the_setting_than_the_main_one_is_told(here, files):
    files.add("powercap-0", {"long_term_w": 200.0, "short_term_w": 240.0}, default=None)
    package = Fake(files, "powercap-0", "cpu:0")
    lease = CapLease(package, here, WHO)
    package.get = lambda: {"long_term_w": 120.0, "short_term_w": 300.0}
    lease.found = package.get()
    with fails("refused.not-kept") as caught:
        lease.set({"long_term_w": 120.0, "short_term_w": 144.0})
    assert caught.value.why == "it shows {'long_term_w': 120.0, 'short_term_w': 300.0}"
    lease.restore()


def test_without_a_journal_there_is_no_cap(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    here.get_journal_path("GPU-0").mkdir()
    with fails("refused.state-not-writable"):
        lease.set(OURS)
    assert files.get("GPU-0") == FOUND
    assert lease.restore().outcome == "as found"


def test_a_restore_that_fails_is_tried_again_and_keeps_the_journal(gpu, here, files, clock):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", fail=2)
    assert lease.restore().outcome == "restored"
    assert clock.now == 2 * lease_module.RETRY_PAUSE_S
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", fail=3)
    outcome = lease.restore()
    assert (outcome.outcome, outcome.now) == ("failed", None)
    assert "gpu:0: flaw fail" in outcome.message
    assert here.list_devices() == ["GPU-0"]
    assert CapLease(gpu, here, WHO).finished.outcome == "restored"
    assert (files.get("GPU-0"), here.list_devices()) == (FOUND, [])


def test_a_device_that_does_not_go_back_keeps_the_journal(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", shift=-20.0)
    outcome = lease.restore()
    assert outcome.outcome == "failed"
    assert "it shows 280 W after it took 300 W" in outcome.message
    assert {"cap_w": 280.0} in here.read_journal("GPU-0").set
    files.flaws("GPU-0")
    CapLease(gpu, here, WHO).restore()
    assert (files.get("GPU-0"), here.list_devices()) == (FOUND, [])


def test_half_a_restore_is_told(here, files):
    files.add("powercap-0", {"long_term_w": 200.0, "short_term_w": 240.0}, default=None)
    package = Fake(files, "powercap-0", "cpu:0")
    found = {"long_term_w": 200.0, "short_term_w": 240.0}
    ours = {"long_term_w": 120.0, "short_term_w": 144.0}
    here.lock_device("powercap-0", {}, "cpu:0").close()
    package.set = lambda _: files.put("powercap-0", long_term_w=200.0, short_term_w=144.0)
    files.put("powercap-0", **ours)
    outcome = finish_journal(package, CapJournal("powercap-0", "cpu:0", "power", found, None, [ours]), here)
    assert outcome.outcome == "failed"
    assert "it shows {'long_term_w': 200.0, 'short_term_w': 144.0}" in outcome.message


def test_a_lost_gpu_keeps_the_journal_until_it_is_back(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", lost=True)
    with pytest.raises(DeviceLost):
        lease.set({"cap_w": 180.0})
    assert lease.restore().outcome == "failed"
    assert here.list_devices() == ["GPU-0"]
    with fails("refused.leftover-cap"):
        CapLease(gpu, here, WHO)
    files.flaws("GPU-0")
    lease = CapLease(gpu, here, WHO)
    assert lease.finished.outcome == "restored"
    assert lease.found == FOUND
    lease.restore()


def test_a_device_that_cannot_be_read_is_not_held(gpu, here, files):
    files.flaws("GPU-0", unread=True)
    with pytest.raises(ReadFailed):
        CapLease(gpu, here, WHO)
    files.flaws("GPU-0")
    CapLease(gpu, here, WHO).restore()


def test_a_damaged_journal_is_not_written_over(gpu, here):
    here.lock_device("GPU-0", {}, "gpu:0").close()
    here.get_journal_path("GPU-0").write_text("{")
    for _ in range(2):
        with fails("store.damaged"):
            CapLease(gpu, here, WHO)


def left(here, gpu, files, now, **changes):
    """Return what becomes of a journal that a killed keeper left, with a device that shows `now`."""
    here.lock_device("GPU-0", {}, "gpu:0").close()
    usual = CapJournal("GPU-0", "gpu:0", "power", FOUND, DEFAULT, [OURS])
    here.write_journal(replace(usual, **changes))
    files.put("GPU-0", **now)
    return CapLease(gpu, here, WHO)


@pytest.mark.parametrize(
    ("now", "changes", "outcome", "after"),
    [
        (FOUND, {}, "as found", FOUND),  # killed before it set, or after it restored
        (OURS, {}, "restored", FOUND),  # killed between set and read back
        (DEFAULT, {}, "restored", FOUND),
        (OTHER, {}, "left", OTHER),
        (OTHER, {"set": []}, "left", OTHER),
        (OURS, {"boot": "another"}, "restored", FOUND),
        (DEFAULT, {"boot": "another"}, "left", DEFAULT),
        (OTHER, {"boot": "another"}, "left", OTHER),
    ],
)
def test_the_next_keeper_finishes_what_is_left_over_before_it_reads(here, gpu, files, now, changes, outcome, after):
    lease = left(here, gpu, files, now, **changes)
    assert lease.finished.outcome == outcome
    assert lease.found == after
    if outcome == "left":
        assert ("the machine was restarted" in lease.finished.message) == ("boot" in changes)
    assert here.list_devices() == []
    lease.set({"cap_w": 160.0})
    assert lease.restore().outcome == "restored"
    assert files.get("GPU-0") == after


def test_a_journal_that_cannot_be_removed_is_told(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    path = here.get_journal_path("GPU-0")
    path.unlink()
    path.mkdir()
    outcome = lease.restore()
    assert outcome.outcome == "restored"
    assert "Is a directory" in outcome.message
    assert files.get("GPU-0") == FOUND


def test_a_change_is_undone_only_where_needed(gpu, here, files):
    lease = CapLease(gpu, here, WHO)
    lease.set(OURS)
    lease.undo(OURS)
    assert here.read_journal("GPU-0").set == [OURS]
    lease.set({"cap_w": 180.0})
    lease.undo(OURS)
    assert files.get("GPU-0") == OURS
    lease.restore()
