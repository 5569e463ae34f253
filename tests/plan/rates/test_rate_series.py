"""Series from people's files: they state what they are, and nothing in them is guessed."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.rate_series import read_series, write_series

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.rates.rate import Steps

HEAD = "# kind: average\n# unit: g/kWh\n"
ROWS = "time,value\n2026-11-01T00:00Z,300\n2026-11-01T01:00Z,310.5\n2026-11-01T02:00Z,320\n"
LOCAL = "# kind: average\n# unit: g/kWh\n# time_zone: Europe/Berlin\n# step: 1h\ntime,value\n"


def utc(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def read(folder: Path, text: str, **more: str) -> Steps:
    (folder / "a.csv").write_text(text)
    return read_series(folder / "a.csv", **more)


def test_a_file_states_what_it_holds(tmp_path: Path) -> None:
    head = (
        HEAD + "# zone: DE\n# covers: lifecycle\n# source: a service: theirs\n# licence: CC BY\n# u_rel: 5%\n# remark\n"
    )
    steps = read(tmp_path, head + "# issued: 2026-10-31T12:00Z\n" + ROWS)
    label = steps.label
    assert (label.kind, label.unit, label.zone, label.covers) == ("average", "g/kWh", "DE", "lifecycle")
    assert (label.source, label.licence, label.u_rel, label.name) == ("a service: theirs", "CC BY", 0.05, "a.csv")
    assert (label.resolution_s, label.issued_utc_s) == (3600, utc("2026-10-31T12:00Z"))
    np.testing.assert_array_equal(steps.start_s, utc("2026-11-01T00:00Z") + 3600 * np.arange(3))
    np.testing.assert_array_equal(steps.values, [300, 310.5, 320])
    assert steps.end_s == utc("2026-11-01T03:00Z")


def test_units_are_converted_and_prices_may_be_negative(tmp_path: Path) -> None:
    steps = read(tmp_path, "# kind: marginal\n# unit: lb/MWh\n" + ROWS)
    np.testing.assert_allclose(steps.values, np.array([300, 310.5, 320]) * 0.45359237)
    price = read(tmp_path, "# unit: EUR/MWh\n" + ROWS.replace("310.5", "-12"))
    assert (price.label.kind, price.label.unit) == ("price", "EUR/kWh")
    np.testing.assert_allclose(price.values, [0.3, -0.012, 0.32])


def test_missing_values_and_hours_are_gaps_and_a_written_series_reads_back(tmp_path: Path) -> None:
    steps = read(tmp_path, HEAD + ROWS.replace("310.5", "n/a") + "2026-11-01T05:00Z,350\n")
    hour = utc("2026-11-01T00:00Z")
    assert steps.gaps() == [(hour + 3600, hour + 7200), (hour + 3 * 3600, hour + 5 * 3600)]
    again = read(tmp_path, write_series(steps))
    np.testing.assert_array_equal(again.values, steps.values)
    np.testing.assert_array_equal(again.start_s, steps.start_s)
    assert (again.end_s, again.label.kind, again.label.unit) == (steps.end_s, "average", "g/kWh")


@every_row(
    ("old", "new", "words"),
    [
        ("310.5", "-1", r"a.csv:5: -1 g/kWh is negative"),
        ("310.5", "lots", r"a.csv:5: 'lots' is not a number"),
        ("310.5", "inf", r"a.csv:5: 'inf' is not a number"),
        ("T02:00Z", "T01:00Z", r"a.csv:6: 2026-11-01 01:00 UTC occurs twice"),
        ("T02:00Z", "T00:30Z", r"a.csv:6: 2026-11-01 00:30 UTC comes after"),
        ("T02:00Z", "T02:20Z", r"a.csv:6: the times are not even"),
        ("T01:00Z", "T01:00", r"a.csv:5: 2026-11-01T01:00 has no offset"),
        ("2026-11-01T01:00Z", "yesterday", r"a.csv:5: 'yesterday' is not a time"),
        (",310.5", "", r"a.csv:5: the line has 1 columns of 2"),
        ("time,value", "a,b", r"a.csv:3: the column of the time is not known"),
        ("# unit: g/kWh", "# unit: g/mile", r"a.csv: 'g/mile' is not the unit"),
        ("# unit: g/kWh\n", "", r"does not state its unit.*# unit: g/kWh"),
        ("# kind: average\n", "", r"average or marginal intensities.*# kind: average"),
        ("# kind: average", "# kind: price", r"kind is price, but g/kWh is carbon"),
        ("# kind: average", "# kind: mean", r"a.csv: kind is 'mean'"),
        ("# kind: average", "# kind: average\n# covers: all", r"covers is 'all'"),
        ("# kind: average", "# kind: average\n# time_column: zeit", r"there is no column 'zeit'"),
        ("# kind: average", "# kind: average\n# step: 2h", r"a.csv:6: it begins before the value above ends"),
        ("# kind: average", "# kind: average\n# end: 2026-11-01T01:00Z", r"a.csv:7: the value ends at"),
        ("# kind: average", "# kind: average\n# u_rel: 7", r"u_rel is '7'"),
        ("# kind: average", "# kind: average\n# time_zone: Mars/Base", r"no time zone 'Mars/Base'"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in HEAD + ROWS
    with pytest.raises(ConfigError, match=words) as caught:
        read(tmp_path, (HEAD + ROWS).replace(old, new, 1))
    assert caught.value.next


def test_files_without_a_series_are_refused(tmp_path: Path) -> None:
    for text, words in (
        (HEAD, "no values"),
        (HEAD + "time,value\n", "no values"),
        (HEAD + ROWS[:33], "the duration of the only value"),
    ):
        with pytest.raises(ConfigError, match=words):
            read(tmp_path, text)
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "fifo.csv")
    for name, words in (("none.csv", "cannot read"), ("b.csv", "not UTF-8"), ("fifo.csv", "not a regular file")):
        with pytest.raises(ConfigError, match=words):
            read_series(tmp_path / name)
    (tmp_path / "a.toml").write_text('unit = "g/kWh"\n')
    with pytest.raises(ConfigError, match=r"a\.toml beside it is no longer read"):
        read(tmp_path, ROWS)


def test_local_times_become_utc_over_a_change_of_clocks(tmp_path: Path) -> None:
    steps = read(tmp_path, LOCAL + "2026-03-29 01:00,1\n2026-03-29 03:00,2\n")
    assert list(steps.start_s) == [utc("2026-03-29T00:00Z"), utc("2026-03-29T01:00Z")]
    for time, words in (("2026-03-29 02:30", "does not exist"), ("2026-10-25 02:30", "occurs twice")):
        with pytest.raises(ConfigError, match=rf"a.csv:6: {time} {words} in Europe/Berlin"):
            read(tmp_path, LOCAL + f"{time},1\n")
    steps = read(tmp_path, LOCAL + "2026-10-25T02:30+02:00,1\n2026-10-25T02:30+01:00,2\n")
    assert list(steps.start_s) == [utc("2026-10-25T00:30Z"), utc("2026-10-25T01:30Z")]


def test_a_time_zone_may_come_from_outside_or_the_column(tmp_path: Path) -> None:
    rows = "time,value\n2026-07-01 00:00,1\n2026-07-01 01:00,1\n"
    assert read(tmp_path, HEAD + rows, zone="Asia/Tokyo").since_s == utc("2026-06-30T15:00Z")
    assert read(tmp_path, HEAD + rows.replace("time", "Datetime (UTC)", 1)).since_s == utc("2026-07-01T00:00Z")


def test_uneven_steps_need_their_ends(tmp_path: Path) -> None:
    rows = "start,end,value\n2026-11-01T00:00Z,2026-11-01T00:10Z,1\n2026-11-01T00:10Z,2026-11-01T02:00Z,2\n"
    held = "# end: 2026-11-01T02:00Z\ntime,value\n2026-11-01T00:00Z,1\n2026-11-01T00:10Z,2\n"
    for text in (rows, held):
        steps = read(tmp_path, HEAD + text)
        assert steps.means(np.array([steps.since_s, steps.end_s])) == pytest.approx([(10 + 2 * 110) / 120])
    semicolons = "Time;Value;Rest\n2026-11-01T00:00Z;1,5;\n2026-11-01T01:00Z;2.5;\n"
    np.testing.assert_array_equal(read(tmp_path, HEAD + semicolons).values, [1.5, 2.5])


def test_a_column_of_uncertainties_is_refused(tmp_path: Path) -> None:
    text = "# kind: average\n# unit: g/kWh\n# u_column: u\n# step: 1h\ntime,value,u\n2026-11-01T00:00Z,100,5\n"
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(ConfigError, match="u_column is no longer read; write one uncertainty"):
        read_series(tmp_path / "s.csv")
