"""The data as published, in small files of the same form, divided as the studies did."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from joulelab.core.errors import ConfigError
from joulelab.workloads.commands import split_command
from joulelab.workloads.data import load, xray

FIRST = dt.datetime(2018, 3, 1, tzinfo=dt.UTC)
LAST = dt.datetime(2018, 4, 16, tzinfo=dt.UTC)
ENDS = {"train": "2018-03-16", "valid": "2018-03-31", "test": "2018-04-15"}


def write_country(file: Path, minutes: int, left_out: tuple[str, ...] = (), **loads: str) -> None:
    """Write a country's file: 1000 MW and its hour of the day, a bit more in each later reading of an hour."""
    rows, at, step = ["start,end,load"], FIRST, dt.timedelta(minutes=minutes)
    while at < LAST:
        stamp = f"{at:%Y-%m-%d %H:%M:%S}+00:00"
        if f"{at:%Y-%m-%d %H}" not in left_out:
            rows.append(f"{stamp},{at + step},{loads.get(f'at_{at:%d%H%M}', 1000 + at.hour + at.minute)}")
        at += step
    file.write_text("\n".join(rows) + "\n \n\n")  # blank lines at the end are no readings


def test_quarters_become_hourly_means_and_each_part_has_its_years(tmp_path: Path) -> None:
    raw, made = tmp_path / "raw", tmp_path / "made"
    raw.mkdir(), made.mkdir()
    for name, minutes in (("de", 15), ("fr", 60), ("lu", 60)):
        write_country(raw / f"{name}.csv", minutes)
    rows = load.split_countries(raw, made, without=["lu"], ends=ENDS)
    assert rows == [
        {"country": name, "train": 15 * 24, "valid": 15 * 24, "test": 15 * 24, "filled": 0} for name in ("de", "fr")
    ]
    parts = load.read_tables(made)
    assert [one.country for one in parts["valid"]] == ["de", "fr"]
    assert parts["train"][0].first == "2018-03-01 00:00:00"
    assert (parts["test"][0].first, parts["test"][0].last) == ("2018-03-31 00:00:00", "2018-04-14 23:00:00")
    # The mean of 0, 15, 30 and 45 minutes is 22.5 more.
    np.testing.assert_allclose(parts["train"][0].mw[:3], [1022.5, 1023.5, 1024.5])
    np.testing.assert_allclose(parts["train"][1].mw[:3], [1000, 1001, 1002])


def test_hours_without_a_reading_are_filled_from_the_days_before(tmp_path: Path) -> None:
    file = tmp_path / "de.csv"
    # NaN, nothing and 0 are no readings; the hour that summer time leaves out is missing in the file.
    gaps = {"at_100500": "nan", "at_110600": "", "at_120700": "0.0", "at_050000": "1100", "at_040000": "1040"}
    write_country(file, 60, left_out=("2018-03-25 02", "2018-03-06 00"), **gaps)
    first_hour, mw = load.read_country_file(file)
    assert first_hour == FIRST.timestamp() / 3600
    day = 24
    assert [math.isnan(mw[k]) for k in (9 * day + 5, 10 * day + 6, 11 * day + 7, 5 * day, 0)] == [True] * 4 + [False]
    is_filled = load.fill_hours(mw, file, first_hour)
    assert is_filled.sum() == 3 * 2 + 2  # three hours in March and in April, the hour of summer time and another
    assert mw[9 * day + 5] == 1005
    assert mw[5 * day] == np.mean([1100, 1040, 1000, 1000])
    assert not np.isnan(mw).any()


def test_the_first_day_is_filled_from_the_next_ones() -> None:
    mw = np.arange(24.0 * 3)
    mw[[0, 1, 24]] = np.nan
    load.fill_hours(mw, Path("de.csv"), 0)
    assert mw[0] == 48
    assert mw[1] == np.mean([25, 49])
    assert mw[24] == 48  # hour 0 has been filled before
    with pytest.raises(ConfigError, match=r"de.csv: .*too many gaps \(1970-01-02 01:00:00 has .*--without de"):
        load.fill_hours(np.full(30, np.nan), Path("de.csv"), 25)


def test_an_hour_before_2015_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_country(tmp_path / "de.csv", 60, left_out=("2018-03-01 05",))
    monkeypatch.setattr(load, "BEGIN", "2018-03-01 09:00")  # as if the file began nine hours before 2015
    made = tmp_path / "made"
    made.mkdir()
    assert load.split_countries(tmp_path, made, ends=ENDS)[0] == {
        "country": "de", "train": 15 * 24 - 9, "valid": 15 * 24, "test": 15 * 24, "filled": 0,
    }  # fmt: skip
    assert load.read_tables(made)["train"][0].first == "2018-03-01 09:00:00"


@pytest.mark.parametrize(("words", "left"), [([], ["lu"]), (["--without", "at"], ["at", "lu"]), (["--luxembourg"], [])])
def test_luxembourg_stays_out_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], left: list[str]
) -> None:
    asked: list[str] = []
    rows = [{"country": "de", "train": 1}]
    monkeypatch.setattr(load, "split_countries", lambda _folder, _to, without: asked.extend(without) or rows)
    done = CliRunner().invoke(split_command, ["load", str(tmp_path), str(tmp_path / "made"), *words])
    assert (done.exit_code, asked) == (0, left), done.output


def test_a_file_that_is_too_short_or_has_too_many_gaps_is_named_with_the_way_out(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    with pytest.raises(ConfigError, match="no country's file"):
        load.split_countries(tmp_path, made)
    hours = [f"{dt.datetime(2017, 12, 1, tzinfo=dt.UTC) + dt.timedelta(hours=k)},x,{5 + k % 3}" for k in range(800)]
    (tmp_path / "at.csv").write_text("\n".join(["start,end,load", *hours]))
    with pytest.raises(ConfigError, match=r"at.csv: .*the valid data ends before 2019-01-01; the.* 800 .*--without at"):
        load.split_countries(tmp_path, made)
    (tmp_path / "at.csv").write_text("start,end,load\nnoon,x,5\n")
    with pytest.raises(ConfigError, match=r"at.csv:2: the time is neither a date nor a number"):
        load.split_countries(tmp_path, made)
    write_country(tmp_path / "at.csv", 60, left_out=tuple(f"2018-03-20 {hour:02}" for hour in range(24)))
    with pytest.raises(ConfigError, match=r"too many gaps \(7% of the hours of the valid data"):
        load.split_countries(tmp_path, made, ends=ENDS)
    assert not list(made.iterdir())


def write_covidx(folder: Path, **tables: str) -> None:
    """Write a folder in Kaggle's form: for each table letters of sources, large where an image is positive."""
    for part, letters in tables.items():
        (folder / part).mkdir(parents=True)
        lines = []
        for number, letter in enumerate(letters):
            name = f"{part}-{number}.png"
            (folder / part / name).touch()
            lines.append(f"patient {number} {name} {'positive' if letter.isupper() else 'negative'} {letter.lower()}")
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n\n")


def test_no_source_of_x_rays_is_in_training_and_test_data(tmp_path: Path) -> None:
    write_covidx(tmp_path / "raw", train="r" * 40 + "S" * 30 + "cC" * 5 + "A", test="rrSSa")
    made = tmp_path / "made"
    made.mkdir()
    rows = xray.split_covidx(tmp_path / "raw", made)
    # r and S have one label; of a and c, a comes nearer to the study's share of 1.6 % and 8.3 %.
    assert [tuple(row.values()) for row in rows] == [
        ("train", 43, 34, "13696 + 2088", "c, r, s"),
        ("valid", 4, 3, "76 + 74", rows[1]["sources"]),
        ("test", 1, 1, "221 + 196", "a"),
    ]
    tables = {part: xray._read_table(made, part) for part in xray.PARTS}
    assert [len(table) for table in tables.values()] == [77, 7, 2]
    names = [file.name for table in tables.values() for file, _ in table]
    assert len(set(names)) == len(names)
    assert all(file.resolve().parent.parent == tmp_path / "raw" for table in tables.values() for file, _ in table)


def test_what_is_wrong_in_kaggles_form_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*as COVIDx CXR-2 on Kaggle"):
        xray.split_covidx(tmp_path, tmp_path)
    write_covidx(tmp_path, train="rR", test="rR")
    with pytest.raises(ConfigError, match="cannot be divided by their sources"):
        xray.split_covidx(tmp_path, tmp_path)
    (tmp_path / "test.txt").write_text("1 test-0.png perhaps s\n")
    with pytest.raises(ConfigError, match=r"test.txt:1: this is not an X-ray \(1 test-0.png perhaps s\)"):
        xray.split_covidx(tmp_path, tmp_path)
    (tmp_path / "test.txt").write_text("1 gone.png positive s\n")
    with pytest.raises(ConfigError, match=r"test.txt:1: there is no image 'gone.png'"):
        xray.split_covidx(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="this is Kaggle's form: joulelab workload split xrays"):
        xray._read_table(tmp_path, "train")
