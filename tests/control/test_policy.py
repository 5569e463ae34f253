from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.control.fake import Fake, Files, fails
from tests.rows import every_row

from joulelab.control.policy import AllowRule, CapPolicy, read_policy
from joulelab.core.errors import Refused
from joulelab.core.setting import SettingLimits

LIMITS = SettingLimits(100.0, 400.0, 350.0, "W")
ALICE, BOB = 12345, 12346
GROUP = 54321


@pytest.fixture
def setters(tmp_path):
    files = Files(tmp_path / "devices")
    named = (("GPU-0", "gpu:0"), ("GPU-1", "gpu:1"), ("powercap-0", "cpu:0"), ("GPU-0.clocks", "gpu:0"))
    return {device: Fake(files, device, scope) for device, scope in named}


def allowed(policy, uid, setter, value, limits=LIMITS, gids=()):
    try:
        policy.check_request(uid, gids, setter, value, limits)
    except Refused:
        return False
    return True


def test_root_may_everything_and_strangers_nothing(setters):
    policy = CapPolicy([])
    assert policy.knows_user(0, [])
    assert allowed(policy, 0, setters["GPU-0"], 100.0)
    assert not policy.knows_user(ALICE, [GROUP])
    assert not allowed(policy, ALICE, setters["GPU-0"], 350.0)


def test_users_groups_and_everybody(setters):
    policy = CapPolicy([AllowRule(users=[ALICE]), AllowRule(groups=[GROUP], devices=["cpu:*"])])
    assert policy.knows_user(ALICE, [])
    assert not policy.knows_user(BOB, [1])
    assert policy.knows_user(BOB, [1, GROUP])
    assert allowed(policy, BOB, setters["powercap-0"], 200.0, gids=[GROUP])
    assert not allowed(policy, BOB, setters["GPU-0"], 200.0, gids=[GROUP])
    assert CapPolicy([AllowRule(users=["*"])]).knows_user(BOB, [])
    assert CapPolicy([AllowRule(users=["root"], groups=["root"])]).knows_user(BOB, [0])


def test_devices_by_scope_uuid_and_pattern(setters):
    policy = CapPolicy([AllowRule(users=[ALICE], devices=["gpu:1", "powercap-*"])])
    assert [allowed(policy, ALICE, s, 200.0) for s in setters.values()] == [False, True, True, False]


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ({}, (100.0, 400.0), ()),
        ({"lowest_w": 150.0, "highest_w": 300.0}, (150.0, 300.0), (149.0, 301.0)),
        ({"lowest_share": 0.5, "highest_share": 0.8}, (175.0, 280.0), (174.0, 281.0)),
        ({"lowest_share": 0.5}, (175.0, 400.0), (174.0,)),
        ({"highest_share": 0.8}, (100.0, 280.0), (281.0,)),
        ({"lowest_w": 200.0, "highest_share": 1.0}, (200.0, 350.0), (199.0, 351.0)),
    ],
)
def test_ranges(setters, entry, inside, outside):
    policy = CapPolicy([AllowRule(users=[ALICE], **entry)])
    assert [allowed(policy, ALICE, setters["GPU-0"], value) for value in inside] == [True] * len(inside)
    assert [allowed(policy, ALICE, setters["GPU-0"], value) for value in outside] == [False] * len(outside)


def test_shares_of_an_unknown_default_allow_nothing(setters):
    limits = SettingLimits(100.0, 400.0, None, "W")
    policy = CapPolicy([AllowRule(users=[ALICE], lowest_share=0.5), AllowRule(users=[BOB], highest_share=2.0)])
    assert not allowed(policy, ALICE, setters["GPU-0"], 200.0, limits)
    assert not allowed(policy, BOB, setters["GPU-0"], 200.0, limits)


def test_a_refusal_says_what_is_allowed(setters):
    policy = CapPolicy([AllowRule(users=[ALICE], lowest_w=150.0, highest_w=300.0)], where="capd.toml")
    with fails("refused.value-not-allowed") as caught:
        policy.check_request(ALICE, [], setters["GPU-0"], 320.0, LIMITS)
    assert (caught.value.where, caught.value.why) == ("gpu:0", "capd.toml allows 150 to 300 W")
    with fails("refused.clocks-not-allowed"):
        policy.check_request(ALICE, [], setters["GPU-0.clocks"], 1e9, LIMITS)
    with fails("refused.device-not-allowed"):
        policy.check_request(BOB, [], setters["GPU-0"], 200.0, LIMITS)


def test_clocks_have_to_be_allowed(setters):
    clocks = SettingLimits(2e8, 2e9, 2e9, "Hz")
    for entry, may in (
        (AllowRule(users=[ALICE], lowest_w=300.0), False),
        (AllowRule(users=[ALICE], clocks=True), True),
    ):
        assert allowed(CapPolicy([entry]), ALICE, setters["GPU-0.clocks"], 1e9, clocks) == may


def written(tmp_path, text):
    path = tmp_path / "capd.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


@every_row(
    ("text", "code", "said"),
    [
        ("[[allow]\n", "config.not-toml", "correct that line"),
        ("[[alow]]\nusers = [1]\n", "config.unknown-key", ":1: unknown key 'alow'"),
        ("[[allow]]\nusers = [1]\nlowest = 3\n", "config.unknown-key", "did you mean 'lowest_w'?"),
        ("[[allow]]\nusers = 'alice'\n", "config.wrong-value", ":2: users is 'alice'; give a list"),
        ("[[allow]]\nusers = [1]\nlowest_w = '3'\n", "config.wrong-value", ":3: lowest_w is '3'; give a number"),
        ("[[allow]]\nusers = [true]\n", "config.wrong-value", ":2: users is [True]"),
        ("allow = 3\n", "config.wrong-value", ":1: allow is 3; write each as a table"),
        ("[[allow]]\nuser = [1]\nclocks = 1\n", "config.several", ":3: clocks is 1; give true or false"),
        ("[[allow]]\ndevices = ['gpu:0']\n", "config.no-users", "allow[0]"),
        ("[[allow]]\nusers = ['rooot']\n", "config.unknown-user", "did you mean 'root'?"),
        ("[[allow]]\nusers = ['" + "q" * 40 + "']\n", "config.unknown-user", "name a user of this machine"),
        ("[[allow]]\ngroups = ['rooot']\n", "config.unknown-group", "did you mean 'root'?"),
        ("[[allow]]\nusers = ['a\\u0000b']\n", "config.unknown-user", "allow[0]"),
        ("[[allow]]\nusers = [1]\nlowest_w = -3\n", "config.bad-range", "lowest_w is -3"),
        ("[[allow]]\nusers = [1]\nhighest_share = inf\n", "config.bad-range", "highest_share is inf"),
        ("[[allow]]\nusers = [1]\nlowest_share = 50\n", "config.bad-range", "lowest_share is 50 (more than 5)"),
        ("[[allow]]\nusers = [-1]\n", "config.unknown-user", "0 to 4294967294"),
        ("[[allow]]\nusers = [4294967295]\n", "config.unknown-user", "4294967295"),
        ("[[allow]]\ngroups = [-1]\n", "config.unknown-group", "-1"),
        ("[[allow]]\nusers = [1]\nlowest_w = 300\nhighest_w = 200\n", "config.bad-range", "300 > 200"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_nearest_right_one(tmp_path, text, code, said):
    with fails(code) as caught:
        read_policy(written(tmp_path, text))
    assert said in str(caught.value)


def test_a_configuration_that_is_no_text_or_not_there(tmp_path):
    with fails("config.unreadable"):
        read_policy(tmp_path / "none.toml")
    path = written(tmp_path, "")
    path.write_bytes(b"\xff")
    with fails("config.not-toml"):
        read_policy(path)


def test_a_configuration_that_others_can_write_is_not_trusted(tmp_path):
    path = written(tmp_path, "")
    assert not read_policy(path).knows_user(ALICE, [])
    path.chmod(0o666)
    with fails("config.untrusted"):
        read_policy(path)
    if os.getuid() == 0:
        path.chmod(0o644)
        os.chown(path, ALICE, 0)
        with fails("config.untrusted") as caught:
            read_policy(path)
        assert caught.value.next.startswith("sudo chown root")


def test_the_example_is_right(tmp_path):
    text = (Path(__file__).parents[2] / "packaging" / "capd.toml").read_text()
    assert read_policy(written(tmp_path, text)).knows_user(1000, [])
