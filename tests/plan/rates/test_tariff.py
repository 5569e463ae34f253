"""Tariffs by the clock on the wall: days of 23 and 25 hours, rules that overlap, hours without a price."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.find_rate import find_rate
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.tariff import DemandCharge, Fee, Tariff, TariffRule

if TYPE_CHECKING:
    from pathlib import Path

BERLIN = ZoneInfo("Europe/Berlin")
LABEL = Label("price", "EUR/kWh", "city", time_zone="Europe/Berlin")
WEEK = (0, 1, 2, 3, 4)
NIGHT = TariffRule(0.2, "night", hours=((0, 360), (1320, 1440)))
CITY = Tariff(LABEL, rules=(NIGHT, TariffRule(0.3, "day", hours=((360, 1320),))))

WRITTEN = """
title = "City 2026"
unit = "ct/kWh"
time_zone = "Europe/Berlin"

[[rules]]
name = "peak"
price = 34
days = "mon-fri"
hours = "08:00-20:00"
months = "nov-feb"

[[rules]]
name = "day"
price = 30
days = "mon-fri"
hours = "08:00-20:00"
months = "mar-oct"

[[rules]]
name = "weekend"
price = 25
days = ["sat", "sun"]
hours = "08:00-20:00"

[[rules]]
name = "night"
price = 22
hours = "20:00-08:00"

[demand]
price_per_kw = 120
per = "year"

[fee]
price = 15
per = "month"
"""


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0, zone: ZoneInfo = BERLIN) -> float:
    return dt.datetime(year, month, day, hour, minute, tzinfo=zone).timestamp()


def written(folder: Path, text: str) -> Tariff:
    path = folder / "tariff.toml"
    path.write_text(text)
    found = find_rate(str(path))
    assert isinstance(found, Tariff)
    return found


@pytest.mark.parametrize(
    ("day", "hours", "night_h"),
    [((2026, 3, 28), 24, 8), ((2026, 3, 29), 23, 7), ((2026, 10, 25), 25, 9), ((2026, 10, 26), 24, 8)],
)
def test_days_of_23_and_25_hours_have_the_right_prices(day: tuple[int, int, int], hours: int, night_h: int) -> None:
    since, until = utc(*day), utc(day[0], day[1], day[2] + 1)
    assert until - since == hours * 3600
    assert CITY.means(np.array([since, until]))[0] == pytest.approx((night_h * 0.2 + 16 * 0.3) / hours)
    changes = CITY.changes(since, until)
    assert [dt.datetime.fromtimestamp(t, BERLIN).strftime("%H:%M") for t in changes] == ["06:00", "22:00"]


@every_row("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"])
def test_every_quarter_of_a_year_agrees_with_its_clock(zone: str) -> None:
    label = Label("price", "EUR/kWh", "x", time_zone=zone)
    rules = (
        TariffRule(1.0, "a", months=(0, 1, 11), days=WEEK, hours=((135, 1440),)),
        TariffRule(2.0, "b", months=(5, 6), hours=((600, 615), (1200, 1201))),
    )
    tariff = Tariff(label, 3.0, rules)
    clock = ZoneInfo(zone)
    edges = utc(2026, 1, 1, zone=clock) + 900.0 * np.arange(0, 4 * 24 * 366)
    exact = []
    for start in edges[:-1]:
        t = dt.datetime.fromtimestamp(start, clock)
        minute = t.hour * 60 + t.minute
        a = t.month in (1, 2, 12) and t.weekday() < 5
        b = t.month in (6, 7)
        if a:
            exact.append(1.0 if minute >= 135 else 3.0)
        elif b:
            exact.append(2.0 if 600 <= minute < 615 else (2.0 + 14 * 3.0) / 15 if minute == 1200 else 3.0)
        else:
            exact.append(3.0)
    np.testing.assert_allclose(tariff.means(edges), exact)


@pytest.mark.parametrize(("day", "held_s"), [((2026, 3, 29), 0), ((2026, 10, 25), 7200), ((2026, 10, 26), 3600)])
def test_the_hour_that_clocks_skip_or_show_twice_is_paid_as_often(day: tuple[int, int, int], held_s: int) -> None:
    tariff = Tariff(LABEL, 0.0, (TariffRule(1.0, "two", hours=((120, 180),)),))
    since, until = utc(*day), utc(day[0], day[1], day[2] + 1)
    assert tariff.means(np.array([since, until]))[0] * (until - since) == pytest.approx(held_s)
    edges = np.arange(since, until + 1, 60.0)
    assert set(tariff.means(edges)) <= {0.0, 1.0}  # no minute lies across


def test_a_tariff_begins_and_ends_in_the_middle_of_a_price() -> None:
    edges = np.array([utc(2026, 7, 1, 5, 30), utc(2026, 7, 1, 6, 30), utc(2026, 7, 1, 6, 30)])
    np.testing.assert_allclose(CITY.means(edges), [0.25, 0.3])
    np.testing.assert_allclose(CITY.means(edges[1:]), [0.3])
    assert CITY.means(edges[:1]).size == CITY.changes(edges[0], edges[0]).size == 0


def test_a_flat_tariff_never_changes() -> None:
    flat = Tariff(LABEL, 0.3)
    assert flat.changes(utc(2026, 1, 1), utc(2027, 1, 1)).size == 0
    np.testing.assert_array_equal(flat.means(np.array([utc(2026, 1, 1), utc(2027, 1, 1)])), [0.3])


def test_rules_that_overlap_are_named_with_their_hours() -> None:
    rules = (
        TariffRule(0.4, "peak", days=WEEK, hours=((480, 1200),)),
        TariffRule(0.5, "winter", (0, 1, 10, 11), hours=((1080, 1260),)),
    )
    with pytest.raises(ConfigError, match=r"'peak' and 'winter' overlap: mon 18:00 in jan"):
        Tariff(LABEL, 0.3, rules)


def test_hours_without_a_price_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no rule has a price for mon 00:00 in jan"):
        Tariff(LABEL, rules=(TariffRule(0.3, "day", hours=((360, 1320),)),))
    with pytest.raises(ConfigError, match=r"no rule has a price for sat 00:00 in jan"):
        Tariff(LABEL, rules=(TariffRule(0.3, "week", days=WEEK),))


def test_a_tariff_is_refused_outside_of_its_time() -> None:
    tariff = Tariff(LABEL, 0.3, since_s=utc(2026, 1, 1), until_s=utc(2027, 1, 1))
    assert tariff.means(np.array([utc(2026, 1, 1), utc(2027, 1, 1)])) == pytest.approx([0.3])
    with pytest.raises(ConfigError, match=r"city is valid from 2025-12-31 23:00 UTC to 2026-12-31 23:00 UTC"):
        tariff.means(np.array([utc(2025, 12, 31), utc(2026, 1, 2)]))


def test_a_written_tariff_is_read_with_its_unit_and_charges(tmp_path: Path) -> None:
    tariff = written(tmp_path, WRITTEN)
    assert tariff.label.unit == "EUR/kWh"
    assert tariff.label.time_zone == "Europe/Berlin"
    assert (tariff.demand, tariff.fee) == (DemandCharge(120.0, "year"), Fee(15.0, "month"))
    at = {
        (2026, 11, 16, 9): 0.34,
        (2026, 7, 1, 9): 0.30,
        (2026, 11, 15, 9): 0.25,
        (2026, 11, 16, 7): 0.22,
        (2026, 3, 2, 20): 0.22,
    }
    for time, price in at.items():
        start = utc(*time)
        assert tariff.means(np.array([start, start + 60])) == pytest.approx([price])


def test_a_price_for_all_other_hours_fills_what_rules_leave(tmp_path: Path) -> None:
    text = 'unit = "USD/kWh"\ntime_zone = "UTC"\nprice = 0.1\n[[rules]]\nprice = -0.02\nhours = "01:00-02:00"\n'
    tariff = written(tmp_path, text)
    day = utc(2026, 1, 1, zone=ZoneInfo("UTC"))
    assert tariff.means(np.array([day, day + 86400])) == pytest.approx([(23 * 0.1 - 0.02) / 24])


def test_dates_are_days_of_the_tariffs_own_clock(tmp_path: Path) -> None:
    text = (
        'unit = "EUR/kWh"\ntime_zone = "Europe/Berlin"\nprice = 0.1\nsince = 2026-04-01\nuntil = 2026-05-01T00:00:00Z\n'
    )
    tariff = written(tmp_path, text)
    assert (tariff.since_s, tariff.until_s) == (utc(2026, 4, 1), utc(2026, 5, 1, zone=ZoneInfo("UTC")))


@every_row(
    ("old", "new", "said"),
    [
        ('unit = "ct/kWh"', "", "has no unit"),
        ('unit = "ct/kWh"', 'unit = "g/kWh"', ":3: g/kWh is not a price"),
        ('unit = "ct/kWh"', 'unit = "euro"', ":3: 'euro' is not the unit"),
        ('time_zone = "Europe/Berlin"', "", "has no time zone"),
        ("Europe/Berlin", "Europe/Brlin", ":4: there is no time zone"),
        ('"mon-fri"', '"mon-fry"', "'mon-fry' is not one of the days"),
        ('"nov-feb"', '"nov-febtober,x"', "'x' is not one of the months"),
        ('"08:00-20:00"\nmonths = "nov', '"8-20"\nmonths = "nov', "'8-20' are not hours"),
        ('"20:00-08:00"', '"20:00-25:00"', "are not hours"),
        ('"20:00-08:00"', '"20:00-20:00"', "are not hours"),
        ("price = 22", 'price = "22"', "price is '22'"),
        ("price = 22", "", r"\[\[rules\]\] 4 has no price"),
        ("price = 22", "price = 1e12", "is not a rate"),
        ('title = "City 2026"', "since = 2026-05-01\nuntil = 2026-04-01", ":3: the tariff ends before it begins"),
        ("price_per_kw = 120", "", r"\[demand\] has no price_per_kw"),
        ('per = "year"', 'per = "week"', "per is 'week'"),
        ('title = "City 2026"', 'titel = "x"', "unknown key 'titel'"),
        ('hours = "20:00-08:00"', 'hours = "20:00-07:00"', "no rule has a price for mon 07:00 in jan"),
        ('hours = "20:00-08:00"', 'hours = "19:00-08:00"', "overlap: mon 19:00 in jan"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_written_tariff_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in WRITTEN
    with pytest.raises(ConfigError, match=said) as caught:
        written(tmp_path, WRITTEN.replace(old, new, 1))
    assert "tariff.toml" in str(caught.value)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, WRITTEN.replace("mon-fri", "foo").replace("per = ", "pr = "))
    assert str(caught.value).count("\n") >= 4


def test_a_tariff_without_a_price_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no price"):
        written(tmp_path, 'unit = "EUR/kWh"\n')
