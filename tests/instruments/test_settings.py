from __future__ import annotations

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.instruments import settings


def test_a_wrong_key_names_the_nearest():
    with pytest.raises(ConfigError, match="meter x: unknown key 'perod_s'; did you mean 'period_s'"):
        settings.check_keys("x", {"perod_s": 1}, {"period_s": "", "devices": ""})
    with pytest.raises(ConfigError, match="valid: period_s"):
        settings.check_keys("x", {"zzzzzz": 1}, {"period_s": ""})


def test_a_key_of_the_first_edition_is_refused_with_what_to_do_instead():
    with pytest.raises(ConfigError, match=r"'inlets' is not a setting any more; read .* by SNMP") as caught:
        settings.check_keys("x", {"inlets": [1]}, {"outlets": ""})
    assert caught.value.code == "config.removed-key"


@every_row("value", [0, -1, "1", True, float("nan"), float("inf"), None])
def test_seconds_are_positive_numbers(value):
    with pytest.raises(ConfigError, match="period_s is"):
        settings.seconds("x", {"period_s": value}, "period_s", 1.0)


def test_values_and_defaults():
    assert settings.seconds("x", {}, "period_s", 0.1) == 0.1
    assert settings.seconds("x", {"period_s": 2}, "period_s", 0.1) == 2.0
    assert settings.text("x", {"root": "/a"}, "root", "/b") == "/a"
    assert settings.text("x", {}, "root") is None
    assert settings.devices("x", {}) is None
    assert settings.devices("x", {"devices": [0, "GPU-1"]}) == (0, "GPU-1")


@pytest.mark.parametrize("value", ["0", 0, [True], [1.5]])
def test_devices_are_a_list(value):
    with pytest.raises(ConfigError, match="devices is"):
        settings.devices("x", {"devices": value})


def test_text_is_text():
    with pytest.raises(ConfigError, match="give a string"):
        settings.text("x", {"root": 3}, "root")
