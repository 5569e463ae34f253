from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict

import pytest
from tests.control.fake import VirtualTime, fails, open_setters

from joulelab.control import keeper as keeper_module
from joulelab.control import lease as lease_module
from joulelab.control.keeper import Keeper
from joulelab.control.protocol import CapRequest, KeeperRequest, rebuild_error
from joulelab.control.setters import SetterInventory
from joulelab.control.state import CapJournal, StateFolder, advise_manual_reset
from joulelab.core.errors import Refused, StoreError
from joulelab.core.setting import GET_PERMISSION
from joulelab.instruments.nvml.setter import LOCK_CLOCKS

WHO = {"user": "alice", "pid": 7}
ABSENT = [("nvml", "nvml: no driver")]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let pauses take no time."""
    virtual = VirtualTime()
    monkeypatch.setattr(keeper_module, "time", virtual)
    monkeypatch.setattr(lease_module, "time", virtual)
    return virtual


@pytest.fixture
def make(environ):
    """Return a maker of keepers, as each process would have its own."""

    def keeper(**options):
        def open_all():
            opened = open_setters(environ)
            return SetterInventory(opened.setters, opened.missing, absent=ABSENT)

        return Keeper(StateFolder(environ), open_all, options.pop("who", WHO), **options)

    return keeper


@pytest.fixture
def keeper(make):
    one = make()
    yield one
    one.release_caps()


def wishes(*named):
    return [CapRequest(*one) for one in named]


def ask(keeper, do, *named, **fields):
    """Return an answer, or raise what it tells."""
    answer = keeper.answer_request(KeeperRequest(do, 5, caps=wishes(*named), **fields))
    assert answer["id"] == 5
    if answer["is"] == "refused":
        raise rebuild_error(answer["error"])
    return answer


def test_caps_are_set_and_put_back(keeper, files):
    told = ask(keeper, "set", ("gpu:0", 170.0), ("GPU-1", 0.5, "share"))["caps"]
    first = {"scope": "gpu:0", "device": "GPU-0", "model": "fake", "kind": "power", "asked": 170.0, "requested": 170.0}
    assert told[0] == {**first, "enforced": 170.0, "found": 300.0, "default": 350.0, "unit": "W"}
    assert (told[1]["asked"], told[1]["requested"], told[1]["found"]) == (175.0, 175.0, 320.0)
    assert ask(keeper, "set", ("GPU-0", 160.0))["caps"][0]["found"] == 300.0
    assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 160.0}, {"cap_w": 175.0})
    released = ask(keeper, "release")
    assert released["is"] == "released"
    assert [(o["device"], o["outcome"], o["now"]) for o in released["devices"]] == [
        ("GPU-1", "restored", 320.0),
        ("GPU-0", "restored", 300.0),
    ]
    assert ask(keeper, "release")["devices"] == []


def test_clocks_are_another_thing_of_the_same_gpu(keeper, files):
    files.add("GPU-0.clocks", {}, default={})
    told = ask(keeper, "set", ("gpu:0", 170.0), ("gpu:0", 1.2e9, "Hz"))["caps"]
    assert [(c["device"], c["kind"], c["unit"], c["found"]) for c in told] == [
        ("GPU-0", "power", "W", 300.0),
        ("GPU-0.clocks", "clocks", "Hz", None),
    ]
    ask(keeper, "set", ("GPU-0", 1.1e9, "Hz"))
    assert files.get("GPU-0.clocks")["highest_hz"] == 1.1e9
    keeper.release_caps()
    assert files.get("GPU-0.clocks") == {}


@pytest.mark.parametrize(
    ("named", "code", "said"),
    [
        ([("gpu:0", 99.0)], "refused.out-of-range", "100 to 400 W"),
        ([("gpu:0", 401.0)], "refused.out-of-range", "401 W"),
        ([("gpu:0", 2.0, "share")], "refused.out-of-range", "700 W"),
        ([("gpu:0", 150.0), ("GPU-0", 160.0)], "config.duplicate-device", "gpu:0"),
        ([("gpu:3", 150.0)], "config.unknown-device", "did you mean"),
        ([("gpu:9", 150.0)], "refused.not-supported", "(it is out); joulelab cap status"),
        ([("gpu:0", 1e9, "Hz")], "refused.not-supported", "clocks; joulelab cap status"),
        ([("gpu:3", 1e9, "Hz")], "config.unknown-device", "(it is out; nvml: no driver)"),
        ([("\x1b[2Jgpu", 150.0)], "config.unknown-device", "there is no '"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(keeper, files, named, code, said):
    with fails(code) as caught:
        ask(keeper, "set", *named)
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert (files.get("GPU-0"), keeper.leases) == ({"cap_w": 300.0}, {})


def test_a_share_needs_a_default(keeper, files):
    files.add("GPU-2", {"cap_w": 300.0}, default=None)
    with fails("refused.no-default"):
        ask(keeper, "set", ("gpu:2", 0.5, "share"))


def test_one_refusal_puts_the_others_back(keeper, files):
    files.flaws("GPU-1", refuse=True)
    with pytest.raises(Refused, match="gpu:1: flaw refuse"):
        ask(keeper, "set", ("gpu:0", 170.0), ("gpu:1", 170.0))
    assert (files.get("GPU-0"), files.get("GPU-1")) == ({"cap_w": 300.0}, {"cap_w": 320.0})
    assert (keeper.leases, keeper.state.list_devices()) == ({}, [])
    files.flaws("GPU-1")
    ask(keeper, "set", ("gpu:0", 170.0))
    files.flaws("GPU-1", refuse=True)
    with pytest.raises(Refused):
        ask(keeper, "set", ("gpu:0", 150.0), ("gpu:1", 170.0))
    assert files.get("GPU-0") == {"cap_w": 170.0}  # held before: it stays what it was
    assert list(keeper.leases) == ["GPU-0"]


def test_what_cannot_be_undone_is_told(keeper, files):
    ask(keeper, "set", ("gpu:0", 170.0))
    files.flaws("GPU-0", lost=True)
    files.flaws("GPU-1", refuse=True)
    keeper.leases["GPU-0"].setter.limits = keeper._open_setters().setters[1].limits
    with fails("device-lost") as caught:
        ask(keeper, "set", ("gpu:0", 160.0), ("gpu:1", 170.0))
    assert caught.value.why == "gpu:0 is not back at its former cap: gpu:0: flaw lost; try again"
    files.flaws("GPU-0")
    keeper.release_caps()

    found = keeper._open_setters()
    keeper._open_setters = lambda: found

    def be_changed_and_refuse(_):
        files.put("GPU-0", cap_w=222.0)
        raise Refused("no", where="gpu:1")

    found.setters[1].set = be_changed_and_refuse
    with pytest.raises(Refused, match=r"gpu:0: gpu:0 stays at 222 W"):
        ask(keeper, "set", ("gpu:0", 160.0), ("gpu:1", 170.0))


def test_a_bug_in_a_setter_leaves_no_cap(keeper, files):
    files.flaws("GPU-1", bug=True)
    with pytest.raises(RuntimeError):
        ask(keeper, "set", ("gpu:0", 170.0), ("gpu:1", 170.0))
    assert (files.get("GPU-0"), keeper.leases) == ({"cap_w": 300.0}, {})


def test_who_has_no_permission_is_told_both_ways(make, files):
    files.flaws("GPU-0", deny=True)
    for options, advice in (({}, GET_PERMISSION), ({"denied_advice": "be root"}, "be root")):
        with fails("denied") as caught:
            ask(make(user=1000, **options), "set", ("gpu:0", 170.0))
        assert caught.value.next == advice


def test_root_is_not_told_to_be_root(make, files):
    files.flaws("GPU-0", deny=True)
    with fails("denied") as caught:
        ask(make(denied_advice="run as root", user=0), "set", ("gpu:0", 170.0))
    assert caught.value.next == keeper_module.ROOT_DENIED


def test_a_gpu_that_takes_no_cap_says_so_and_names_no_other(make, files):
    files.add("GPU-2.clocks", {}, default={})
    for name in ("gpu:2", "GPU-2"):
        with fails("refused.not-supported") as caught:
            ask(make(), "set", (name, 170.0))
        assert (caught.value.why, caught.value.next) == (None, LOCK_CLOCKS)
    one = make()
    found = one._open_setters()
    found.missing.append(("gpu:2", f"not supported; {LOCK_CLOCKS}"))
    one._open_setters = lambda: found
    with pytest.raises(Refused) as error:
        ask(one, "set", ("gpu:2", 170.0))
    assert str(error.value).count("--clock") == 1
    assert "did you mean" not in str(error.value)


def test_refusals_that_no_later_try_changes_are_told_as_such(make, files):
    one = make()
    files.flaws("GPU-1", refuse=True)
    for value, device, final in ((99.0, "gpu:0", True), (170.0, "gpu:1", False), (170.0, "gpu:7", False)):
        answer = one.answer_request(KeeperRequest("set", 1, caps=wishes((device, value))))
        assert answer["error"]["final"] is final


def test_a_second_client_is_refused_and_told_who(keeper, make, files):
    ask(keeper, "set", ("gpu:0", 170.0), who={"command": "train\x1b[2J", "run": "r1", "user": "root", "pid": 1})
    other = make(who={"user": "bob", "pid": 8})
    answer = other.answer_request(KeeperRequest("set", 1, caps=wishes(("gpu:0", 200.0))))
    assert answer["error"]["held"]
    assert re.fullmatch(r"held by alice \(pid 7, `train \[2J`, since .* UTC\)", answer["error"]["what"])
    with fails("refused.device-busy"):
        ask(other, "set", ("gpu:1", 200.0), ("gpu:0", 200.0))
    assert files.get("GPU-1") == {"cap_w": 320.0}
    assert not other.leases
    device = other.read_status()["devices"][0]
    assert device["holder"].startswith("alice (pid 7, `train [2J`")
    assert keeper.state.read_journal("GPU-0").who["run"] == "r1"


def test_a_rule_may_refuse(make, files):
    def check(setter, value, limits):
        if value < 0.8 * limits.default:
            raise Refused("too low for you", where=setter.scope)

    with pytest.raises(Refused, match="gpu:0: too low for you"):
        ask(make(check_permission=check), "set", ("gpu:0", 170.0))
    one = make(check_permission=check)
    ask(one, "set", ("gpu:0", 300.0))
    one.release_caps()


def test_status_tells_everything_and_takes_nothing(keeper, make, files):
    told = ask(keeper, "status")
    names = {
        "scope": "gpu:0",
        "device": "GPU-0",
        "model": "fake",
        "kind": "power",
        "unit": "W",
        "lowest": 100.0,
        "highest": 400.0,
    }
    assert told["devices"][0] == {
        **names, "default": 350.0, "requested": 300.0, "enforced": 300.0, "holder": None, "leftover": None
    }  # fmt: skip
    assert told["missing"] == [["gpu:9", "it is out"]]
    assert not keeper.state.path.exists()


def test_status_shows_what_was_left_behind_and_what_is_wrong(keeper, files):
    keeper.state.lock_device("GPU-0", {}, "gpu:0").close()
    keeper.state.write_journal(
        CapJournal("GPU-0", "gpu:0", "power", {"cap_w": 300.0}, None, [{"cap_w": 170.0}], who=WHO, utc="then")
    )
    keeper.state.get_journal_path("GPU-1").write_text("{")
    first, second = ask(keeper, "status")["devices"]
    journal = str(keeper.state.get_journal_path("GPU-0"))
    known = {"found": 300.0, "set": [170.0], "who": WHO, "utc": "then", "journal": journal}
    assert first["leftover"] == {**known, "is_restored": True}  # only the journal is left
    assert "GPU-1.json: the journal is damaged" in second["leftover"]["problem"]
    files.put("GPU-0", cap_w=170.0)
    assert ask(keeper, "status")["devices"][0]["leftover"] == {**known, "is_restored": False}
    files.flaws("GPU-0", lost=True)
    files.add("GPU-2", {"cap_w": 300.0}, lost=True)
    told = ask(keeper, "status")
    assert [d["scope"] for d in told["devices"]] == ["gpu:1"]
    assert told["missing"][1:] == [
        ["gpu:0", "gpu:0: flaw lost; try again; a cap was left behind on it"],
        ["gpu:2", "gpu:2: flaw lost; try again"],
    ]


def test_a_cap_that_is_not_enforced_is_told_after_a_moment(keeper, files, clock):
    files.flaws("GPU-0", loose=True)
    (told,) = ask(keeper, "set", ("gpu:0", 170.0))["caps"]
    assert (told["requested"], told["enforced"]) == (170.0, 400.0)
    assert clock.now >= keeper_module.ENFORCE_WAIT_S


def test_left_over_journals_are_finished_where_the_device_is_free(make, environ, files):
    here = StateFolder(environ)
    usual = {"kind": "power", "found": {"cap_w": 300.0}, "default": None, "set": [{"cap_w": 170.0}]}
    for device in ("GPU-0", "GPU-1", "GPU-7"):
        here.lock_device(device, {}, device).close()
        here.write_journal(CapJournal(device, device.lower().replace("-", ":"), **usual))
    here.get_journal_path("GPU-8").write_text("{")
    files.put("GPU-0", cap_w=170.0)
    held = here.lock_device("GPU-1", WHO, "gpu:1")
    told = {o["device"]: o for o in ask(make(), "restore")["devices"]}
    assert {device: one["outcome"] for device, one in told.items()} == {
        "GPU-0": "restored",
        "GPU-7": "failed",
        "GPU-8": "failed",
    }
    assert told["GPU-7"]["scope"] == "gpu:7"
    said = told["GPU-7"]["said"]
    assert f"gpu:7 (GPU-7) is not there now; {keeper_module.CHECK_BUS}" in said
    assert "300 W; remove /" in said
    assert advise_manual_reset(here.get_journal_path("GPU-8")) in told["GPU-8"]["said"]
    assert files.get("GPU-0") == {"cap_w": 300.0}
    held.close()
    assert ask(make(), "restore", devices=["GPU-0"])["devices"] == []
    (one,) = ask(make(), "restore", devices=["GPU-1"])["devices"]
    assert one["outcome"] == "left"
    assert here.list_devices() == ["GPU-7", "GPU-8"]


def test_a_journal_that_is_finished_meanwhile_is_nothing_to_tell(make, environ):
    here = StateFolder(environ)
    here.lock_device("GPU-0", {}, "gpu:0").close()
    keeper = make()
    keeper.state.list_devices = lambda: ["GPU-0"]
    assert keeper.restore_leftovers() == []


def test_where_nothing_can_be_written_a_restore_says_so(make, environ, tmp_path):
    here = StateFolder(environ)
    here.path.mkdir(parents=True)
    here.get_journal_path("GPU-0").write_text("{")
    (here.path / "GPU-0.lock").mkdir()
    (told,) = make().restore_leftovers()
    assert told.outcome == "failed"
    assert "Is a directory" in told.message
    with pytest.raises(StoreError):
        here.read_journal("GPU-0")


UNUSABLE = [
    {"found": {}},
    {"found": {"odd_w": 3.0}},
    {"found": {"cap_w": float("nan")}},
    {"kind": "heat"},
    {"device": "GPU-1"},
    {"who": 3},
    {"set": 3},
    {"scope": None},
]


@pytest.mark.parametrize("wrong", UNUSABLE, ids=str)
def test_one_unusable_journal_keeps_no_other_device_capped(make, environ, files, wrong):
    here = StateFolder(environ)
    usual = {"kind": "power", "found": {"cap_w": 300.0}, "default": None, "set": [{"cap_w": 170.0}]}
    here.lock_device("GPU-1", {}, "gpu:1").close()
    here.write_journal(CapJournal("GPU-1", "gpu:1", **usual))
    here.get_journal_path("GPU-0").write_text(json.dumps({**asdict(CapJournal("GPU-0", "gpu:0", **usual)), **wrong}))
    for device in ("GPU-0", "GPU-1"):
        files.put(device, cap_w=170.0)
    told = {o["device"]: o for o in ask(make(), "restore")["devices"]}
    assert {device: one["outcome"] for device, one in told.items()} == {"GPU-0": "failed", "GPU-1": "restored"}
    assert advise_manual_reset(here.get_journal_path("GPU-0")) in told["GPU-0"]["said"]
    assert files.get("GPU-1") == {"cap_w": 300.0}
    assert here.list_devices() == ["GPU-0"]


def test_free_clocks_may_be_what_was_found(make, environ, files):
    files.add("GPU-0.clocks", {"lowest_hz": 2e8, "highest_hz": 1e9}, default={})
    here = StateFolder(environ)
    here.lock_device("GPU-0.clocks", {}, "gpu:0").close()
    here.write_journal(CapJournal("GPU-0.clocks", "gpu:0", "clocks", {}, {}, [{"lowest_hz": 2e8, "highest_hz": 1e9}]))
    assert [o["outcome"] for o in ask(make(), "restore")["devices"]] == ["restored"]
    assert files.get("GPU-0.clocks") == {}


def test_a_surprise_on_one_device_keeps_no_other_from_being_put_back(make, environ, files):
    keeper = make()
    ask(keeper, "set", ("gpu:0", 170.0), ("gpu:1", 170.0))
    files.flaws("GPU-1", bug=True)
    told = {o["device"]: o for o in ask(keeper, "release")["devices"]}
    assert (told["GPU-0"]["outcome"], told["GPU-1"]["outcome"]) == ("restored", "failed")
    assert "gpu:1 is not back at 320 W: RuntimeError('a bug')" in told["GPU-1"]["said"]
    other = make()
    other.state.read_journal = lambda _: 1 / 0
    (told,) = ask(other, "restore")["devices"]
    assert "ZeroDivisionError" in told["said"]
    assert advise_manual_reset(other.state.get_journal_path("GPU-1")) in told["said"]
    files.flaws("GPU-1")
    assert [o["outcome"] for o in ask(make(), "restore")["devices"]] == ["restored"]


def test_status_names_devices_that_are_gone_with_a_cap_left_behind(keeper, make, files):
    here = keeper.state
    usual = {"found": {"cap_w": 300.0}, "default": None, "set": [{"cap_w": 170.0}]}
    for device, scope in (("GPU-7", "gpu:7"), ("powercap-1", "cpu:1")):
        here.lock_device(device, {}, scope).close()
        here.write_journal(CapJournal(device, scope, "power", **usual))
    lock = here.lock_device("GPU-6", WHO, "gpu:6")
    here.write_journal(CapJournal("GPU-6", "gpu:6", "power", **usual))
    here.get_journal_path("GPU-8").write_text("{")
    missing = dict(ask(make(), "status")["missing"])
    lock.close()
    assert missing["gpu:7"].startswith("gpu:7 (GPU-7) is not there now, and a cap was left behind on it")
    assert missing["gpu:7"].endswith("300 W")
    assert ["bus" in missing[scope] for scope in ("gpu:7", "cpu:1")] == [True, False]
    assert "held by alice (pid 7)" in missing["gpu:6"]
    assert "the journal is damaged" in missing["GPU-8"]
    one = make()
    one.state.list_devices = lambda: ["GPU-5"]
    assert ["GPU-5", "it was restored just now"] in one.read_status()["missing"]


def test_keepers_with_two_state_folders_leave_no_cap(environ, files, tmp_path):
    """Two containers without the mount of the state once ended at the cap of the first, and no journal told of it."""

    def make_keeper(name):
        here = StateFolder({**environ, "JOULELAB_STATE": str(tmp_path / name)})
        found = SetterInventory(open_setters(environ).setters)
        return Keeper(here, lambda: found, {"user": name})

    one, two = make_keeper("one"), make_keeper("two")
    ask(one, "set", ("gpu:0", 170.0))
    with fails("refused.device-busy"):
        ask(two, "set", ("gpu:0", 150.0))
    one.release_caps()
    assert ask(two, "set", ("gpu:0", 150.0))["caps"][0]["found"] == 300.0
    two.release_caps()
    assert files.get("GPU-0") == {"cap_w": 300.0}
    # The first one is killed: its journal stays, and its lock goes.
    ask(one, "set", ("gpu:0", 170.0))
    one.leases["GPU-0"]._lock.close()
    with fails("refused.leftover-elsewhere"):
        ask(two, "set", ("gpu:0", 150.0))
    # `cap restore` of the other folder once answered that no cap was left behind.
    assert [one["leftover"]["set"] for one in two.read_status()["devices"] if one["leftover"]] == [[170.0]]
    assert [outcome.outcome for outcome in two.restore_leftovers()] == ["restored"]
    assert files.get("GPU-0") == {"cap_w": 300.0}
    assert make_keeper("one").restore_leftovers() == []
    assert two.restore_leftovers() == []
    assert ask(two, "set", ("gpu:0", 150.0))["caps"][0]["found"] == 300.0
    two.release_caps()
    assert files.get("GPU-0") == {"cap_w": 300.0}
    # The first one is killed, and its folder goes with its container: no keeper can restore it, but all name it.
    one = make_keeper("one")
    ask(one, "set", ("gpu:0", 170.0))
    one.leases["GPU-0"]._lock.close()
    shutil.rmtree(tmp_path / "one")
    (failed,) = two.restore_leftovers()
    assert (failed.outcome, f"noted it in {tmp_path / 'one'}" in failed.message) == ("failed", True)
