"""Series from people's files: what they are must be said, and nothing in them is guessed."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.description import described_by, side_text
from joulelab.plan.rates.find import read_file
from joulelab.plan.rates.series_file import read_series
from joulelab.plan.rates.steps import Steps

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "# kind: average\n# unit: g/kWh\n"
ROWS = "time,value\n2026-11-01T00:00Z,300\n2026-11-01T01:00Z,310.5\n2026-11-01T02:00Z,320\n"


def utc(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def read(folder: Path, text: str, name: str = "a.csv", **more: str) -> Steps:
    path = folder / name
    path.write_text(text)
    return read_series(path, **more)


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    head = (
        HEAD
        + "# zone: DE\n# covers: lifecycle\n# source: a service: of theirs\n# licence: CC BY\n# u_rel: 5%\n# a remark\n"
    )
    steps = read(tmp_path, head + "# issued: 2026-10-31T12:00Z\n" + ROWS)
    label = steps.label
    assert (label.kind, label.unit, label.zone, label.covers) == ("average", "g/kWh", "DE", "lifecycle")
    assert (label.source, label.licence, label.u_rel, label.name) == ("a service: of theirs", "CC BY", 0.05, "a.csv")
    assert (label.resolution_s, label.issued_utc_s) == (3600, utc("2026-10-31T12:00Z"))
    np.testing.assert_array_equal(steps.start_s, utc("2026-11-01T00:00Z") + 3600 * np.arange(3))
    np.testing.assert_array_equal(steps.values, [300, 310.5, 320])
    assert steps.end_s == utc("2026-11-01T03:00Z")


def test_units_are_turned_into_ours(tmp_path: Path) -> None:
    steps = read(tmp_path, ROWS.replace("time", "# kind: marginal\n# unit: lb/MWh\ntime", 1))
    assert steps.label.kind == "marginal"
    np.testing.assert_allclose(steps.values, np.array([300, 310.5, 320]) * 0.45359237)


def test_prices_need_no_kind_and_may_be_negative(tmp_path: Path) -> None:
    steps = read(tmp_path, "# unit: EUR/MWh\n" + ROWS.replace("310.5", "-12"))
    assert (steps.label.kind, steps.label.unit) == ("price", "EUR/kWh")
    np.testing.assert_allclose(steps.values, [0.3, -0.012, 0.32])


def test_intensities_must_say_whether_they_are_average_or_marginal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="average or marginal"):
        read(tmp_path, "# unit: g/kWh\n" + ROWS)
    with pytest.raises(ConfigError, match="which unit"):
        read(tmp_path, "# kind: average\n" + ROWS)
    with pytest.raises(ConfigError, match="kind is price, but g/kWh is carbon"):
        read(tmp_path, "# unit: g/kWh\n# kind: price\n" + ROWS)


def test_a_file_beside_it_may_say_it_but_not_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('kind = "average"\nunit = "g/kWh"\nzone = "FR"\nu_rel = 0.1\n')
    label = read(tmp_path, ROWS).label
    assert (label.zone, label.u_rel) == ("FR", 0.1)
    assert read(tmp_path, HEAD + ROWS).label.zone == "FR"
    with pytest.raises(ConfigError, match="zone is said twice: FR and DE"):
        read(tmp_path, "# zone: DE\n" + ROWS)


@pytest.mark.parametrize("text", ['unit = "EUR/kWh"\nprice = 0.3\n', 'file = "b.csv"\nzone = "FR"\n', "[[zones]]\n"])
def test_a_file_beside_it_may_be_of_something_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    assert read(tmp_path, HEAD + ROWS).label.zone == ""


def test_toml_may_name_the_file_of_values(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("when;CO2;€\n01;300;1\n".replace("01;", "2026-11-01 00:00;"))
    text = 'file = "data/x.csv"\ntitle = "mine"\nkind = "average"\nunit = "g/kWh"\nvalue_column = "CO2"\n'
    text += 'time_column = "when"\ntime_zone = "Europe/Berlin"\nstep = "15min"\nissued = 2026-10-31T00:00:00Z\n'
    (tmp_path / "mine.toml").write_text(text)
    steps = read_file(tmp_path / "mine.toml")
    assert isinstance(steps, Steps)
    assert (steps.since_s, steps.end_s) == (utc("2026-10-31T23:00Z"), utc("2026-10-31T23:15Z"))
    assert (steps.label.name, steps.label.time_zone) == ("mine", "Europe/Berlin")


def test_a_wrong_description_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('kind = "average"\nunits = "g/kWh"\n')
    with pytest.raises(ConfigError, match=r"a.toml:2: unknown key 'units' .*'unit'"):
        read(tmp_path, ROWS)


def test_what_is_missing_is_a_gap(tmp_path: Path) -> None:
    rows = ROWS.replace("310.5", "") + "2026-11-01T05:00Z,350\n2026-11-01T06:00Z,n/a\n"
    steps = read(tmp_path, HEAD + rows)
    hour = utc("2026-11-01T00:00Z")
    assert steps.gaps() == [
        (hour + 3600, hour + 7200),
        (hour + 3 * 3600, hour + 5 * 3600),
        (hour + 6 * 3600, hour + 7 * 3600),
    ]
    assert steps.means(np.array([hour + 5 * 3600, hour + 6 * 3600])) == pytest.approx([350])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("310.5", "-1", r"a.csv:5: -1 g/kWh: a carbon intensity cannot be below 0"),
        ("310.5", "lots", r"a.csv:5: 'lots' is no number"),
        ("310.5", "inf", r"a.csv:5: 'inf' is no number"),
        ("T02:00Z", "T01:00Z", r"a.csv:6: 2026-11-01 01:00 UTC is there twice \(before at .*a.csv:5\)"),
        ("T02:00Z", "T00:30Z", r"a.csv:6: 2026-11-01 00:30 UTC comes after"),
        ("T02:00Z", "T02:20Z", r"a.csv:6: times are not evenly apart"),
        ("T01:00Z", "T01:00", r"a.csv:5: .*times say no offset"),
        ("2026-11-01T01:00Z", "yesterday", r"a.csv:5: 'yesterday' is no time"),
        (",310.5", "", r"a.csv:5: the line has 1 columns of 2"),
        ("time,value", "time,foo,bar", r"a.csv:3: it is not clear which column holds the value"),
        ("time,value", "a,b", r"a.csv:3: it is not clear which column holds the time"),
        ("# unit: g/kWh", "# unit: g/mile", r"a.csv: 'g/mile' is no unit"),
        ("# kind: average", "# kind: mean", r"a.csv: kind is 'mean'"),
        ("# kind: average", "# kind: average\n# time_column: zeit", r"there is no column 'zeit'"),
        ("# kind: average", "# kind: average\n# step: 2h", r"a.csv:6: it begins at .* before the value above ends"),
        ("# kind: average", "# kind: average\n# u_rel: 7", r"u_rel is '7'"),
        ("# kind: average", "# kind: average\n# time_zone: Mars/Base", r"no time zone 'Mars/Base'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = HEAD + ROWS
    assert old in text
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text.replace(old, new, 1))


@pytest.mark.timeout(30)  # it would be waited for, for ever
def test_a_fifo_is_no_series(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "values.csv")
    with pytest.raises(ConfigError, match="it is a FIFO, not a regular file"):
        read_series(tmp_path / "values.csv")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the series"):
        read_series(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="has no values"):
        read(tmp_path, HEAD)
    with pytest.raises(ConfigError, match="has no values"):
        read(tmp_path, HEAD + "time,value\n")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_series(tmp_path / "b.csv")
    with pytest.raises(ConfigError, match="how long the value holds"):
        read(tmp_path, HEAD + "time,value\n2026-11-01T00:00Z,300\n")


LOCAL = "# kind: average\n# unit: g/kWh\n# time_zone: Europe/Berlin\n# step: 1h\ntime,value\n"


def test_local_times_become_utc_over_a_change_of_clocks(tmp_path: Path) -> None:
    steps = read(tmp_path, LOCAL + "2026-03-29 01:00,1\n2026-03-29 03:00,2\n")
    assert list(steps.start_s) == [utc("2026-03-29T00:00Z"), utc("2026-03-29T01:00Z")]


@pytest.mark.parametrize(
    ("time", "said"), [("2026-03-29 02:30", "does not exist"), ("2026-10-25 02:30", "is there twice")]
)
def test_local_times_that_are_not_there_or_twice_are_refused(tmp_path: Path, time: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"a.csv:6: {time} {said} in Europe/Berlin"):
        read(tmp_path, LOCAL + f"{time},1\n")


def test_an_offset_makes_them_right(tmp_path: Path) -> None:
    steps = read(tmp_path, LOCAL + "2026-10-25T02:30+02:00,1\n2026-10-25T02:30+01:00,2\n")
    assert list(steps.start_s) == [utc("2026-10-25T00:30Z"), utc("2026-10-25T01:30Z")]


def test_a_zone_may_come_from_outside_or_the_column(tmp_path: Path) -> None:
    rows = "time,value\n2026-07-01 00:00,1\n2026-07-01 01:00,1\n"
    assert read(tmp_path, HEAD + rows, zone="Asia/Tokyo").since_s == utc("2026-06-30T15:00Z")
    assert read(tmp_path, HEAD + rows.replace("time", "Datetime (UTC)", 1)).since_s == utc("2026-07-01T00:00Z")
    assert read(tmp_path, HEAD + f"time,value\n{int(utc('2026-07-01T00:00Z'))},1\n1782867600,1\n").since_s == utc(
        "2026-07-01T00:00Z"
    )


def test_uneven_steps_need_their_ends(tmp_path: Path) -> None:
    rows = "start,end,value\n2026-11-01T00:00Z,2026-11-01T00:10Z,1\n2026-11-01T00:10Z,2026-11-01T02:00Z,2\n"
    steps = read(tmp_path, HEAD + rows)
    assert steps.means(np.array([steps.since_s, steps.end_s])) == pytest.approx([(10 + 2 * 110) / 120])
    held = "# end: 2026-11-01T02:00Z\ntime,value\n2026-11-01T00:00Z,1\n2026-11-01T00:10Z,2\n"
    np.testing.assert_array_equal(
        read(tmp_path, HEAD + held).means(np.array([steps.since_s, steps.end_s])), [230 / 120]
    )
    with pytest.raises(ConfigError, match=r"a.csv:4: it ends at .* before it begins"):
        read(tmp_path, HEAD + rows.replace("T00:10Z,1", "T00:00Z,1"))
    with pytest.raises(ConfigError, match=r"a.csv:5: it begins at .* before the value above ends"):
        read(tmp_path, HEAD + rows.replace("T00:10Z,1", "T00:11Z,1"))


def test_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    steps = read(tmp_path, HEAD + "Time;Value;Rest\n2026-11-01T00:00Z;1,5;\n2026-11-01T01:00Z;2.5;\n")
    np.testing.assert_array_equal(steps.values, [1.5, 2.5])


def test_uncertainties_have_the_unit_of_the_values(tmp_path: Path) -> None:
    rows = "time,value,u\n2026-11-01T00:00Z,100,10\n2026-11-01T01:00Z,200,\n2026-11-01T03:00Z,200,20\n"
    steps = read(tmp_path, "# kind: average\n# unit: kg/kWh\n# u_column: u\n" + rows)
    assert steps.u is not None
    np.testing.assert_array_equal(steps.u, [10_000, np.nan, np.nan, 20_000])
    with pytest.raises(ConfigError, match=r"a\.csv:5: -1: a standard uncertainty cannot be below 0"):
        read(tmp_path, HEAD + "# u_column: u\n" + "time,value,u\n2026-11-01T00:00Z,100,-1\n2026-11-01T01:00Z,200,2\n")


SDK = {
    "Description": "made up",
    "License": "MIT",
    "Emissions": [
        {"Location": "here", "Time": "2026-11-01T00:00:00+00:00", "Rating": 60, "Duration": "01:00:00"},
        {"Location": "there", "Time": "2026-11-01T00:00:00+00:00", "Rating": "70.5", "Duration": "1.00:00:00"},
        {"Location": "here", "Time": "2026-11-01T01:00:00+00:00", "Rating": 80, "Duration": "08:00:00"},
    ],
}


def test_the_form_of_the_carbon_aware_sdk_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('kind = "marginal"\nzone = "here"\n')
    steps = read(tmp_path, json.dumps(SDK), "a.json")
    assert (steps.label.kind, steps.label.unit, steps.label.zone, steps.label.licence) == (
        "marginal",
        "g/kWh",
        "here",
        "MIT",
    )
    assert steps.means(np.array([steps.since_s, steps.end_s])) == pytest.approx([(60 + 8 * 80) / 9])
    (tmp_path / "a.toml").write_text('kind = "marginal"\nzone = "there"\n')
    assert read(tmp_path, json.dumps(SDK), "a.json").end_s == utc("2026-11-02T00:00Z")


def test_json_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it holds 2 places: here, there"):
        read(tmp_path, json.dumps(SDK), "a.json")
    alone = SDK | {"Emissions": [SDK["Emissions"][0]]}
    with pytest.raises(ConfigError, match=r"average or marginal.*write kind = \"average\" into a.toml"):
        read(tmp_path, json.dumps(alone), "a.json")
    (tmp_path / "a.toml").write_text('kind = "average"\n')
    assert read(tmp_path, json.dumps(alone), "a.json").label.zone == "here"
    for text, said in (("{", "not JSON"), ('{"a": 1}', "Carbon Aware"), ("[1]", "Carbon Aware"), ("[]", "no values")):
        with pytest.raises(ConfigError, match=said):
            read(tmp_path, text, "a.json")
    wrong = SDK | {"Emissions": [SDK["Emissions"][0] | {"Duration": "an hour"}]}
    with pytest.raises(ConfigError, match="entry 1: 'an hour' is no duration"):
        read(tmp_path, json.dumps(wrong), "a.json")


def test_what_is_said_on_the_command_line_can_be_kept_beside_the_values(tmp_path: Path) -> None:
    words = {"kind": "marginal", "unit": "lb/MWh", "title": 'the "best"', "step": "5min", "end": "2026-11-01T04:00Z"}
    (tmp_path / "a.toml").write_text(side_text("a.csv", words))
    by_side = read(tmp_path, ROWS)
    by_words = read(tmp_path, ROWS, told=described_by(words))
    assert by_side.label == by_words.label
    assert by_side.end_s == by_words.end_s == utc("2026-11-01T04:00Z")
    with pytest.raises(ConfigError, match="covers is 'all'"):
        side_text("a.csv", {"covers": "all"})
    with pytest.raises(ConfigError, match="zone is empty"):
        described_by({"zone": " "})
