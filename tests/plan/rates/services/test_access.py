from __future__ import annotations

import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.services import SERVICES
from joulelab.plan.rates.services.access import access_of, settings_file

SECRET = "s3cr3t-of-the-test"
KNOWN = [one.ABOUT for one in SERVICES.values()]


def access(word, environ):
    return access_of(SERVICES[word].ABOUT, environ, KNOWN)


def written(tmp_path, text):
    (tmp_path / "rates.toml").write_text(text)
    return {"JOULELAB_RATES": str(tmp_path / "rates.toml"), "HOME": str(tmp_path)}


def test_from_the_usual_variables(tmp_path):
    found = access("em", {"HOME": str(tmp_path), "ELECTRICITY_MAPS_TOKEN": SECRET})
    assert found.secrets == {"token": SECRET}
    assert found.address == "https://api.electricitymaps.com"
    assert SECRET not in repr(found)


def test_from_the_users_file_by_variable_and_by_file(tmp_path):
    folder = tmp_path / ".config" / "joulelab"
    folder.mkdir(parents=True)
    (folder / "key").write_text(SECRET)
    (folder / "key").chmod(0o644)
    (folder / "rates.toml").write_text('[em]\ntoken = { file = "key" }\n')
    environ = {"HOME": str(tmp_path), "ME": SECRET, "ELECTRICITY_MAPS_TOKEN": "not this one"}
    assert settings_file(environ) == folder / "rates.toml"
    found = access("em", environ)
    assert found.secrets == {"token": SECRET}
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith(f"{folder / 'key'} can be read by others")
    (folder / "rates.toml").write_text('[em]\ntoken = { env = "ME" }\n')
    assert access("em", environ).secrets == {"token": SECRET}


def test_a_missing_key_says_how_to_give_it(tmp_path):
    with pytest.raises(ConfigError, match=r"needs a key \(token\).*export ELECTRICITY_MAPS_TOKEN"):
        access("em", {"HOME": str(tmp_path)})


@pytest.mark.parametrize("word", ["gb", "watttime", "entsoe"])
def test_a_table_of_a_removed_service_says_what_to_use_instead(tmp_path, word):
    with pytest.raises(ConfigError, match=rf"rates.toml:1.*\[{word}\].* was removed.*delete it.*FILE\.csv.*em:ZONE"):
        access("em", written(tmp_path, f'[{word}]\naddress = "https://x"\n[em]\ntoken = {{ env = "HOME" }}\n'))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'[em]\ntoken = "{SECRET}"\n', "plain text"),
        ('[em]\ntoken = { file = "nowhere" }\n', "cannot read"),
        ('[em]\ntoken = { env = "NOT_SET" }\n', "NOT_SET is not set"),
        ('[em]\ntoken = { vault = "x" }\n', "unknown source 'vault'"),
        ('[em]\ntokens = { env = "X" }\n[ems]\n', r"unknown key 'ems'"),
        ("em = 3\n", "write it as a table"),
        ('[em]\naddress = ""\n', "not empty"),
        ('[em]\naddress = "api.example.org"\ntoken = { env = "HOME" }\n', "is no address"),
        ('[em]\naddress = "http://api.example.org"\ntoken = { env = "HOME" }\n', "open line"),
        ("[em\n", "not a TOML file"),
    ],
)
def test_a_file_that_is_wrong(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        access("em", written(tmp_path, text))
    assert SECRET not in str(caught.value)
    assert "rates.toml" in str(caught.value)


def test_a_named_file_has_to_be_there(tmp_path):
    with pytest.raises(ConfigError, match="no such file of services"):
        access("em", {"JOULELAB_RATES": str(tmp_path / "rates.toml")})


def test_a_key_that_could_break_a_header(tmp_path):
    with pytest.raises(ConfigError, match="signs that no key has") as caught:
        access("em", {"HOME": str(tmp_path), "ELECTRICITY_MAPS_TOKEN": "abcd\r\nX-Evil: 1"})
    assert "Evil" not in str(caught.value)


def test_a_server_of_ones_own(tmp_path):
    environ = written(tmp_path, '[em]\naddress = "http://127.0.0.1:81"\n')
    assert access("em", environ | {"ELECTRICITY_MAPS_TOKEN": SECRET}).address == "http://127.0.0.1:81"


def test_from_the_keyring(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("joulelab.instruments.keyring.secret", lambda *place: asked.append(place) or SECRET)
    found = access("em", written(tmp_path, '[em]\ntoken = { keyring = "maps/me" }\n'))
    assert found.secrets == {"token": SECRET}
    assert asked == [("maps", "me")]
