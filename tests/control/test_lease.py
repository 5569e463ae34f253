from __future__ import annotations

import os
from dataclasses import replace

import pytest
from tests.control.fake import Fake, VirtualTime

from joulelab.control import lease as lease_module
from joulelab.control.lease import Lease, finish, main_value, unit_of, value_text, verdict
from joulelab.control.state import InUse, Journal, State
from joulelab.core.errors import DeviceLost, ReadFailed, Refused, StoreError

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
    return State(environ)


@pytest.mark.parametrize(
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
    assert verdict(now, found=FOUND, ours=[OURS], default=DEFAULT, same_boot=same_boot) == wanted


def test_every_value_that_we_may_have_set_is_ours():
    ours = [{"cap_w": 150.0}, OURS]
    assert verdict({"cap_w": 150.0}, found=FOUND, ours=ours, default=None, same_boot=True) == "restore"
    assert verdict(DEFAULT, found=FOUND, ours=ours, default=None, same_boot=True) == "leave"


def test_half_of_a_setting_is_ours_too():
    found = {"long_term_w": 200.0, "short_term_w": 240.0, "enabled": 0.0}
    ours = {"long_term_w": 120.0, "short_term_w": 144.0, "enabled": 1.0}
    for half in ({"long_term_w": 120.0}, {"short_term_w": 144.0}, {"enabled": 1.0}):
        assert verdict({**found, **half}, found=found, ours=[ours], default=None, same_boot=False) == "restore"
    other = {**ours, "short_term_w": 180.0}
    assert verdict(other, found=found, ours=[ours], default=None, same_boot=True) == "leave"


def test_free_clocks_are_a_setting_like_others():
    locked = {"lowest_hz": 2e8, "highest_hz": 1e9}
    assert verdict({}, found={}, ours=[locked], default={}, same_boot=True) == "as found"
    assert verdict(locked, found={}, ours=[locked], default={}, same_boot=True) == "restore"
    assert verdict({}, found=locked, ours=[{}], default=None, same_boot=False) == "restore"
    assert main_value({}) is None
    assert main_value(locked) == 1e9
    assert main_value({"odd": 1.0}) is None
    assert (value_text(1.41e9, "Hz"), value_text(None, "Hz"), value_text(None, "W")) == (
        "1410 MHz",
        "free clocks",
        "no cap",
    )
    assert (unit_of("clocks"), unit_of("power")) == ("Hz", "W")


def test_a_lease_sets_changes_and_puts_back(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    assert here.read("GPU-0") is None
    lease.set({"cap_w": 170.0})
    assert files.get("GPU-0") == {"cap_w": 170.0}
    kept = here.read("GPU-0")
    assert (kept.found, kept.set, kept.default, kept.pid) == (FOUND, [OURS], DEFAULT, os.getpid())
    lease.set({"cap_w": 150.0})
    assert here.read("GPU-0").set == [OURS, {"cap_w": 150.0}]
    lease.set({"cap_w": 140.0})
    assert here.read("GPU-0").set == [{"cap_w": 150.0}, {"cap_w": 140.0}]  # 170 W was surely replaced
    with pytest.raises(InUse):
        Lease(gpu, here, WHO)
    outcome = lease.restore()
    assert (outcome.outcome, outcome.found, outcome.now) == ("restored", 300.0, 300.0)
    assert outcome.said == "gpu:0: back at 300 W, as found (it was at 140 W)"
    assert (files.get("GPU-0"), here.devices()) == (FOUND, [])
    Lease(gpu, here, WHO).restore()


def test_a_lease_that_set_nothing_puts_nothing_back(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    files.put("GPU-0", cap_w=250.0)
    assert lease.restore().outcome == "as found"
    assert files.get("GPU-0") == {"cap_w": 250.0}


def test_somebody_elses_change_is_left_and_said(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    files.put("GPU-0", cap_w=222.0)
    with pytest.raises(Refused, match=r"gpu:0: somebody else changed it \(it shows 222 W, we had set 170 W\)"):
        lease.set({"cap_w": 180.0})
    outcome = lease.restore()
    assert (outcome.outcome, outcome.now) == ("left", 222.0)
    assert outcome.said == "gpu:0 stays at 222 W: somebody else changed it (found 300 W, we had set 170 W)"
    assert (files.get("GPU-0"), here.devices()) == (OTHER, [])


def test_a_cap_that_fell_to_the_default_is_put_back_to_found(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    files.put("GPU-0", cap_w=350.0)
    lease.set({"cap_w": 180.0})  # and may be set again
    files.put("GPU-0", cap_w=350.0)
    assert lease.restore().outcome == "restored"
    assert files.get("GPU-0") == FOUND


def test_somebody_put_back_what_was_found(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    files.put("GPU-0", cap_w=300.0)
    outcome = lease.restore()
    assert (outcome.outcome, outcome.said) == ("as found", "gpu:0: 300 W, as found")
    assert here.devices() == []


def test_what_the_device_shows_instead_is_refused_and_undone(gpu, here, files):
    files.flaws("GPU-0", shift=7.0)
    lease = Lease(gpu, here, WHO)
    with pytest.raises(Refused, match=r"it does not keep 170 W \(it shows 177 W after it took 170 W\)"):
        lease.set(OURS)
    files.flaws("GPU-0")
    assert lease.restore().outcome == "restored"
    assert (files.get("GPU-0"), here.devices()) == (FOUND, [])


def test_what_is_rounded_is_fine(gpu, here, files):
    files.flaws("GPU-0", shift=0.3)
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    assert lease.now == {"cap_w": 170.3}
    assert lease.restore().outcome == "restored"


def test_another_value_of_the_setting_than_the_main_one_is_told(here, files):
    files.add("powercap-0", {"long_term_w": 200.0, "short_term_w": 240.0}, default=None)
    package = Fake(files, "powercap-0", "cpu:0")
    lease = Lease(package, here, WHO)
    package.get = lambda: {"long_term_w": 120.0, "short_term_w": 300.0}
    lease.found = package.get()
    with pytest.raises(Refused, match=r"it shows \{'long_term_w': 120.0, 'short_term_w': 300.0\}"):
        lease.set({"long_term_w": 120.0, "short_term_w": 144.0})
    lease.restore()


def test_without_a_journal_there_is_no_cap(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    here.path("GPU-0").mkdir()
    with pytest.raises(Refused, match="is not capped: what was found could not be written down"):
        lease.set(OURS)
    assert files.get("GPU-0") == FOUND
    assert lease.restore().outcome == "as found"


def test_a_restore_that_fails_is_tried_again_and_keeps_the_journal(gpu, here, files, clock):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", fail=2)
    assert lease.restore().outcome == "restored"
    assert clock.now == 2 * lease_module.PAUSE_S
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", fail=3)
    outcome = lease.restore()
    assert (outcome.outcome, outcome.now) == ("failed", None)
    assert outcome.said.startswith("gpu:0 is not back at 300 W: gpu:0: flaw fail")
    assert here.devices() == ["GPU-0"]
    assert Lease(gpu, here, WHO).finished.outcome == "restored"
    assert (files.get("GPU-0"), here.devices()) == (FOUND, [])


def test_a_device_that_does_not_go_back_keeps_the_journal(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", shift=-20.0)
    outcome = lease.restore()
    assert outcome.outcome == "failed"
    assert "it shows 280 W after it took 300 W" in outcome.said
    assert {"cap_w": 280.0} in here.read("GPU-0").set
    files.flaws("GPU-0")
    Lease(gpu, here, WHO).restore()
    assert (files.get("GPU-0"), here.devices()) == (FOUND, [])


def test_half_a_restore_is_told(here, files):
    files.add("powercap-0", {"long_term_w": 200.0, "short_term_w": 240.0}, default=None)
    package = Fake(files, "powercap-0", "cpu:0")
    found = {"long_term_w": 200.0, "short_term_w": 240.0}
    ours = {"long_term_w": 120.0, "short_term_w": 144.0}
    here.lock("powercap-0", {}, "cpu:0").close()
    package.set = lambda _: files.put("powercap-0", long_term_w=200.0, short_term_w=144.0)
    files.put("powercap-0", **ours)
    outcome = finish(package, Journal("powercap-0", "cpu:0", "power", found, None, [ours]), here)
    assert outcome.outcome == "failed"
    assert "it shows {'long_term_w': 200.0, 'short_term_w': 144.0}" in outcome.said


def test_a_lost_gpu_keeps_the_journal_until_it_is_back(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    files.flaws("GPU-0", lost=True)
    with pytest.raises(DeviceLost):
        lease.set({"cap_w": 180.0})
    assert lease.restore().outcome == "failed"
    assert here.devices() == ["GPU-0"]
    with pytest.raises(Refused, match="a cap that was left over is not put back yet"):
        Lease(gpu, here, WHO)
    files.flaws("GPU-0")
    lease = Lease(gpu, here, WHO)
    assert lease.finished.outcome == "restored"
    assert lease.found == FOUND
    lease.restore()


def test_a_device_that_cannot_be_read_is_not_held(gpu, here, files):
    files.flaws("GPU-0", unread=True)
    with pytest.raises(ReadFailed):
        Lease(gpu, here, WHO)
    files.flaws("GPU-0")
    Lease(gpu, here, WHO).restore()


def test_a_damaged_journal_is_not_written_over(gpu, here):
    here.lock("GPU-0", {}, "gpu:0").close()
    here.path("GPU-0").write_text("{")
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged"):
            Lease(gpu, here, WHO)


def left(here, gpu, files, now, **changes):
    """Return what becomes of a journal that a killed keeper left, with a device that shows `now`."""
    here.lock("GPU-0", {}, "gpu:0").close()
    usual = Journal("GPU-0", "gpu:0", "power", FOUND, DEFAULT, [OURS])
    here.write(replace(usual, **changes))
    files.put("GPU-0", **now)
    return Lease(gpu, here, WHO)


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
    if changes.get("boot") and outcome == "left":
        assert "the machine was started again since" in lease.finished.said
    assert here.devices() == []
    lease.set({"cap_w": 160.0})
    assert lease.restore().outcome == "restored"
    assert files.get("GPU-0") == after


def test_a_journal_that_cannot_be_removed_is_told(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    path = here.path("GPU-0")
    path.unlink()
    path.mkdir()
    outcome = lease.restore()
    assert outcome.outcome == "restored"
    assert "the journal could not be removed (Is a directory)" in outcome.said
    assert files.get("GPU-0") == FOUND


def test_a_change_is_undone_only_where_needed(gpu, here, files):
    lease = Lease(gpu, here, WHO)
    lease.set(OURS)
    lease.undo(OURS)
    assert here.read("GPU-0").set == [OURS]
    lease.set({"cap_w": 180.0})
    lease.undo(OURS)
    assert files.get("GPU-0") == OURS
    lease.restore()
