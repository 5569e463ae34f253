"""Secrets come from the environment, a file or the keyring, and are shown nowhere."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import keyring
import pytest
from keyring.backends.null import Keyring

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.instruments import keyring as transport
from joulelab.run.config.meter_choice import choose_meters, hide_secrets, mask_secrets, resolve_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.run.config.conftest import Places

    from joulelab.run.config.configuration import MeterEntry

SECRET = "s3cret-of-mine"


def entry(places: Places, password: str, key: str = "password") -> MeterEntry:
    places.write("project", f'[meters.pdu-1]\nmeter = "INSTRUMENT"\naddress = "x"\n{key} = {password}\n')
    config = places.load()
    config.check()
    return config.entries[0]


def test_from_the_environment(places: Places) -> None:
    found, warnings = resolve_secrets(entry(places, '{ env = "PW" }'), {"PW": SECRET})
    assert (found["password"], warnings) == (SECRET, [])


def test_from_a_file_beside_the_configuration(places: Places) -> None:
    path = places.project.parent / "pw"
    path.write_text(f"  {SECRET}\n")
    path.chmod(0o600)
    assert resolve_secrets(entry(places, '{ file = "pw" }'), {}) == ({"address": "x", "password": SECRET}, [])
    path.chmod(0o640)
    _, (warning,) = resolve_secrets(entry(places, '{ file = "pw" }'), {})
    assert f"chmod 600 {path}" in warning
    assert SECRET not in warning


def test_from_a_file_at_home(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(places.project.parent))
    path = places.project.parent / ".pw"
    path.write_text(SECRET)
    path.chmod(0o600)
    assert resolve_secrets(entry(places, '{ file = "~/.pw" }'), {})[0]["password"] == SECRET


class Ring(Keyring):
    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def get_password(self, service: str, username: str) -> str | None:
        if self.fails:
            raise keyring.errors.KeyringLocked(SECRET)
        return SECRET if (service, username) == ("rack/pdu", "admin") else None


@pytest.fixture
def ring() -> Iterator[Any]:
    before = keyring.get_keyring()
    yield keyring.set_keyring
    keyring.set_keyring(before)


@pytest.mark.system
def test_from_the_keyring(places: Places, ring: Any) -> None:
    ring(Ring())
    assert resolve_secrets(entry(places, '{ keyring = "rack/pdu/admin" }'), {})[0]["password"] == SECRET
    with pytest.raises(ConfigError, match=r"keyring set rack root"):
        resolve_secrets(entry(places, '{ keyring = "rack/root" }'), {})
    with pytest.raises(ConfigError, match="not an entry of a keyring"):
        resolve_secrets(entry(places, '{ keyring = "rack" }'), {})
    ring(Ring(fails=True))
    with pytest.raises(ConfigError, match="does not answer") as raised:
        resolve_secrets(entry(places, '{ keyring = "rack/root" }'), {})
    assert SECRET not in str(raised.value)


def test_without_the_package_it_says_what_to_install(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "keyring", None)
    with pytest.raises(MissingDependency, match=r"joulelab\[keyring\]"):
        transport.secret("a", "b")
    with pytest.raises(ConfigError, match=r"joulelab.toml:4, password: .*joulelab\[keyring\]"):
        resolve_secrets(entry(places, '{ keyring = "rack/root" }'), {})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (f'"{SECRET}"', 'env = "PDU_1_PASSWORD"'),
        ("7", "a secret is given in plain text"),
        ('{ env = "PW" }', "the variable PW is not set"),
        ('{ file = "/nowhere/pw" }', "cannot read /nowhere/pw"),
        ('{ file = "empty" }', "is empty"),
        ('{ file = "fifo" }', "it is a FIFO, not a regular file"),
        ('{ file = "noise" }', "is not text"),
        ('{ fil = "x" }', "did you mean 'file'?"),
        ("{ }", "has exactly one source"),
        ('{ env = "A", file = "b" }', "has exactly one source"),
        ("{ env = 7 }", "has exactly one source"),
    ],
)
def test_mistakes_name_the_place_and_the_way_out(places: Places, value: str, said: str) -> None:
    os.mkfifo(places.project.parent / "fifo")  # it would be waited for
    (places.project.parent / "empty").write_text(" \n")
    (places.project.parent / "noise").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError) as raised:
        resolve_secrets(entry(places, value), {"PW": ""})
    assert str(raised.value).startswith(f"{places.project}:4, password: ")
    assert said in str(raised.value)
    assert raised.value.next
    assert SECRET not in str(raised.value)


def test_the_community_that_everybody_knows_may_be_plain_text(places: Places) -> None:
    assert resolve_secrets(entry(places, '"public"', "community"), {})[0]["community"] == "public"
    with pytest.raises(ConfigError, match="plain text"):
        resolve_secrets(entry(places, '"private"', "community"), {})


def test_secrets_are_shown_by_their_source_only(places: Places) -> None:
    one = entry(places, '{ env = "PW" }')
    assert mask_secrets(one) == {"address": "x", "password": "*** (env PW)"}
    assert mask_secrets(entry(places, f'"{SECRET}"'))["password"] == "***"
    settings, _ = resolve_secrets(one, {"PW": SECRET})
    assert hide_secrets(f"a {SECRET} b", one, settings) == "a *** b"
    assert hide_secrets("abc", one, {"password": "ab"}) == "abc"


def test_a_secret_for_a_server_that_is_not_checked_is_warned_about(places: Places) -> None:
    one = entry(places, '{ env = "PW" }')
    for settings, warns in (({"verify": False}, 1), ({"verify": False, "fingerprint": "ab"}, 0), ({"verify": True}, 0)):
        checked = dataclasses.replace(one, settings={**one.settings, **settings})
        assert len(resolve_secrets(checked, {"PW": SECRET})[1]) == warns, settings


def test_nothing_that_is_handed_on_shows_secrets_when_printed(places: Places) -> None:
    from pathlib import Path

    from joulelab.recorder.plan import MeterPlan, Plan
    from joulelab.run.run_options import RunOptions

    entry(places, '{ env = "PW" }')
    config = places.load()
    chosen = choose_meters(config, {"PW": SECRET})
    (item,) = chosen.also
    assert item["config"]["password"] == SECRET
    options = RunOptions(runs=Path()).with_meters(chosen)
    plan = Plan(Path(), "h", 1, also=options.also)
    assert plan.hidden() == (SECRET,)
    meter = MeterPlan("m", "m", item["config"])
    for thing in (config, chosen, options, plan, meter, config.entries[0], options.to_json()):
        assert SECRET not in repr(thing)
    assert options.to_json()["configured"][0]["name"] == "pdu-1"
