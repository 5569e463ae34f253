from __future__ import annotations

from tests.control.fake import fails
from tests.rows import every_row

from joulelab.core.setting import SetterFamily, SettingLimits, is_same_setting


@every_row(
    ("a", "b", "equal"),
    [
        ({"cap_w": 170.0}, {"cap_w": 170.4}, True),
        ({"cap_w": 170.0}, {"cap_w": 170.6}, False),
        ({"cap_w": 1000.0}, {"cap_w": 1002.9}, True),
        ({"cap_w": 1000.0}, {"cap_w": 1004.0}, False),
        ({"lowest_hz": 1e9, "highest_hz": 1e9}, {"lowest_hz": 1e9, "highest_hz": 1.0009e9}, True),
        ({"lowest_hz": 1e9, "highest_hz": 1e9}, {"lowest_hz": 1e9, "highest_hz": 1.002e9}, False),
        ({"long_term_w": 9.0, "enabled": 1.0}, {"long_term_w": 9.0, "enabled": 0.0}, False),
        ({"long_term_w": 9.0, "enabled": 1.0}, {"long_term_w": 9.1, "enabled": 1.0}, True),
        ({}, {}, True),
        ({}, {"highest_hz": 1e9, "lowest_hz": 1e9}, False),
    ],
)
def test_settings_are_equal_within_what_devices_round_to(a, b, equal):
    assert is_same_setting(a, b) is is_same_setting(b, a) is equal


def test_a_range_is_told_in_units_that_people_use():
    watts, clocks = SettingLimits(100, 260, 260, "W"), SettingLimits(210e6, 2.1e9, None, "Hz")
    assert (watts.text, clocks.text) == ("100 to 260 W", "210 to 2100 MHz")
    for value in (100, 99.9995, 260, 260.0005):
        watts.check_value(value, "gpu:0")
    with fails("refused.out-of-range") as caught:
        watts.check_value(99, "gpu:0")
    assert "100 to 260 W" in caught.value.why
    with fails("refused.out-of-range") as caught:
        clocks.check_value(3e9, "gpu:0")
    assert "3000 MHz" in caught.value.what


def test_what_was_opened_is_closed_once():
    closed = []
    with SetterFamily(on_close=lambda: closed.append(1)) as opened:
        assert closed == []
    opened.close()
    assert closed == [1]
    SetterFamily().close()
