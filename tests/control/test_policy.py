from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.control.fake import Fake, Files

from joulelab.control.policy import Allow, Policy, load
from joulelab.core.errors import ConfigError, Refused
from joulelab.core.setting import Limits

LIMITS = Limits(100.0, 400.0, 350.0, "W")
ALICE, BOB = 12345, 12346
GROUP = 54321


@pytest.fixture
def setters(tmp_path):
    files = Files(tmp_path / "devices")
    named = (("GPU-0", "gpu:0"), ("GPU-1", "gpu:1"), ("powercap-0", "cpu:0"), ("GPU-0.clocks", "gpu:0"))
    return {device: Fake(files, device, scope) for device, scope in named}


def allowed(policy, uid, setter, value, limits=LIMITS, gids=()):
    try:
        policy.check(uid, gids, setter, value, limits)
    except Refused:
        return False
    return True


def test_root_may_everything_and_strangers_nothing(setters):
    policy = Policy([])
    assert policy.knows(0, [])
    assert allowed(policy, 0, setters["GPU-0"], 100.0)
    assert not policy.knows(ALICE, [GROUP])
    assert not allowed(policy, ALICE, setters["GPU-0"], 350.0)


def test_users_groups_and_everybody(setters):
    policy = Policy([Allow(users=[ALICE]), Allow(groups=[GROUP], devices=["cpu:*"])])
    assert policy.knows(ALICE, [])
    assert not policy.knows(BOB, [1])
    assert policy.knows(BOB, [1, GROUP])
    assert allowed(policy, BOB, setters["powercap-0"], 200.0, gids=[GROUP])
    assert not allowed(policy, BOB, setters["GPU-0"], 200.0, gids=[GROUP])
    assert Policy([Allow(users=["*"])]).knows(BOB, [])
    assert Policy([Allow(users=["root"], groups=["root"])]).knows(BOB, [0])


def test_devices_by_scope_uuid_and_pattern(setters):
    policy = Policy([Allow(users=[ALICE], devices=["gpu:1", "powercap-*"])])
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
    policy = Policy([Allow(users=[ALICE], **entry)])
    assert [allowed(policy, ALICE, setters["GPU-0"], value) for value in inside] == [True] * len(inside)
    assert [allowed(policy, ALICE, setters["GPU-0"], value) for value in outside] == [False] * len(outside)


def test_shares_of_an_unknown_default_allow_nothing(setters):
    limits = Limits(100.0, 400.0, None, "W")
    policy = Policy([Allow(users=[ALICE], lowest_share=0.5), Allow(users=[BOB], highest_share=2.0)])
    assert not allowed(policy, ALICE, setters["GPU-0"], 200.0, limits)
    assert not allowed(policy, BOB, setters["GPU-0"], 200.0, limits)


def test_a_refusal_says_what_is_allowed(setters):
    policy = Policy([Allow(users=[ALICE], lowest_w=150.0, highest_w=300.0)], where="capd.toml")
    with pytest.raises(Refused, match=r"gpu:0: you may not set 320 W \(capd.toml allows 150 to 300 W\)"):
        policy.check(ALICE, [], setters["GPU-0"], 320.0, LIMITS)


def test_clocks_have_to_be_allowed(setters):
    clocks = Limits(2e8, 2e9, 2e9, "Hz")
    for entry, may in ((Allow(users=[ALICE], lowest_w=300.0), False), (Allow(users=[ALICE], clocks=True), True)):
        assert allowed(Policy([entry]), ALICE, setters["GPU-0.clocks"], 1e9, clocks) == may


def written(tmp_path, text):
    path = tmp_path / "capd.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[allow]\n", "not a TOML file"),
        ("[[alow]]\nusers = [1]\n", "unknown key 'alow'; did you mean 'allow'?"),
        ("[[allow]]\nusers = [1]\nlowest = 3\n", r"allow\[0\]: unknown key 'lowest'; did you mean 'lowest_w'?"),
        ("[[allow]]\nusers = 'alice'\n", r"users: a value is of the wrong kind \(Expected `array`, got `str`\)"),
        ("[[allow]]\nusers = [1]\nlowest_w = '3'\n", "wrong kind"),
        ("[[allow]]\nusers = [true]\n", "wrong kind"),
        ("allow = 3\n", "wrong kind"),
        ("[[allow]]\ndevices = ['gpu:0']\n", r"allow\[0\]: it names nobody"),
        ("[[allow]]\nusers = ['rooot']\n", "there is no user 'rooot'; did you mean 'root'?"),
        ("[[allow]]\nusers = ['" + "q" * 40 + "']\n", "name a user of this machine"),
        ("[[allow]]\ngroups = ['rooot']\n", "there is no group 'rooot'; did you mean 'root'?"),
        ("[[allow]]\nusers = ['a\\u0000b']\n", "there is no user"),
        ("[[allow]]\nusers = [1]\nlowest_w = -3\n", "lowest_w is -3; give a number, 0 or more"),
        ("[[allow]]\nusers = [1]\nhighest_share = inf\n", "highest_share is inf"),
        (
            "[[allow]]\nusers = [1]\nlowest_share = 50\n",
            r"lowest_share is 50 \(more than 5\); give a share of the default",
        ),
        ("[[allow]]\nusers = [-1]\n", r"allow\[0\]: there is no user -1; give a number from 0 to 4294967294"),
        ("[[allow]]\nusers = [4294967295]\n", "there is no user 4294967295"),
        ("[[allow]]\ngroups = [-1]\n", "there is no group -1"),
        ("[[allow]]\nusers = [1]\nlowest_w = 300\nhighest_w = 200\n", r"lowest_w is above highest_w \(300 > 200\)"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_nearest_right_one(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        load(written(tmp_path, text))


def test_a_configuration_that_is_no_text_or_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")
    path = written(tmp_path, "")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load(path)


def test_a_configuration_that_others_can_write_is_not_trusted(tmp_path):
    path = written(tmp_path, "")
    assert not load(path).knows(ALICE, [])
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="cannot be trusted"):
        load(path)
    if os.getuid() == 0:
        path.chmod(0o644)
        os.chown(path, ALICE, 0)
        with pytest.raises(ConfigError, match=r"cannot be trusted \(others than root can write it\); sudo chown root"):
            load(path)


def test_the_example_is_right(tmp_path):
    text = (Path(__file__).parents[2] / "packaging" / "capd.toml").read_text()
    assert load(written(tmp_path, text)).knows(1000, [])
