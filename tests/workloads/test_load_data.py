"""Hourly load as weeks: the published tables, the real substitute, the stand-in."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from joulelab.core.errors import ConfigError
from joulelab.workloads.data import load
from joulelab.workloads.data.load import (
    SPAN,
    WEEK,
    CountryLoad,
    WeekPairs,
    collate_weeks,
    make_load,
    open_load,
    write_tables,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def ramp(hours: int, low: float, width: float) -> CountryLoad:
    return CountryLoad("A", np.linspace(low, low + width, hours, dtype=np.float32))


def in_mw(hours: Any, scale: Any) -> Any:
    return hours[..., 0] * scale[1] + scale[0]


def test_weeks_follow_each_other_and_never_cross_countries() -> None:
    loads = [ramp(SPAN + 10, 100.0, 50.0), ramp(SPAN + 3, 4000.0, 1000.0)]
    weeks = WeekPairs(loads)
    assert len(weeks) == 10 + 3
    for number, load_of, begin in ((0, 0, 0), (9, 0, 9), (10, 1, 0), (12, 1, 2)):
        past, future, scale = weeks[number]
        assert past.shape == future.shape == (WEEK, 1)
        whole = loads[load_of].mw[begin : begin + SPAN]
        np.testing.assert_allclose(in_mw(past, scale), whole[:WEEK], rtol=1e-5)
        np.testing.assert_allclose(in_mw(future, scale), whole[WEEK:], rtol=1e-5)
    with pytest.raises(IndexError):
        weeks[13]


def test_a_batch_is_gathered_at_once_and_is_the_same_as_one_by_one() -> None:
    weeks = WeekPairs(make_load(2, 400, 0)["train"])
    rows = [3, 100, 7]
    whole, single = weeks.__getitems__(rows), collate_weeks([weeks[row] for row in rows])
    assert all(torch.equal(a, b) for a, b in zip(whole, single, strict=True))
    assert collate_weeks(whole) is whole
    seen = [len(past) for past, _, _ in DataLoader(Subset(weeks, range(10)), 4, collate_fn=collate_weeks)]
    assert seen == [4, 4, 2]


def test_a_stand_in_repeats_days_and_weeks_and_is_the_same_for_a_seed() -> None:
    parts = make_load(3, 2000, 1)
    assert {part: [len(one.mw) for one in found] for part, found in parts.items()} == {
        "train": [2000] * 3,
        "valid": [500] * 3,
        "test": [500] * 3,
    }
    mw = parts["train"][0].mw
    assert mw.min() > 1000
    assert np.abs(mw[WEEK:] / mw[:-WEEK] - 1).mean() < 0.1
    assert np.abs(mw[12:] / mw[:-12] - 1).mean() > 0.15
    np.testing.assert_array_equal(mw, make_load(3, 2000, 1)["train"][0].mw)
    assert len(make_load(1, 40000, 0)["test"][0].mw) == 8760
    data = open_load("auto", countries=3, hours=2000, environ={})
    assert (data.source.name, data.source.real, data.source.samples) == ("synthetic-memory", False, 3 * (2000 - SPAN))
    assert len(data.train) == data.source.samples


def test_synthetic_files_have_the_published_form_and_are_kept(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    data = open_load("synthetic-files", countries=2, hours=400, seed=5, environ=environ)
    memory = open_load("synthetic-memory", countries=2, hours=400, seed=5)
    assert (data.source.name, data.source.real) == ("synthetic-files", False)
    for part in ("train", "valid", "test"):
        ours, theirs = getattr(data, part), getattr(memory, part)
        assert len(ours) == len(theirs)
        assert torch.allclose(ours[0][0], theirs[0][0])
    kept = [file.stat().st_mtime_ns for file in tmp_path.rglob("train.csv")]
    open_load("synthetic-files", countries=2, hours=400, seed=5, environ=environ)
    assert [file.stat().st_mtime_ns for file in tmp_path.rglob("train.csv")] == kept


def test_a_folder_is_named_as_published_only_if_it_is(tmp_path: Path) -> None:
    folder = tmp_path / load.PUBLISHED
    folder.mkdir()
    write_tables(folder, make_load(2, 400, 0))
    data = open_load("auto", environ={"JOULELAB_DATA": str(tmp_path)})
    assert (data.source.name, data.source.real) == ("folder in the form of ai-hero-energy", True)
    assert data.source.where == str(folder)
    (folder / "test.csv").unlink()  # the study kept it to itself
    assert open_load(str(folder)).test is None
    train = [
        CountryLoad(str(k), np.zeros(35064, np.float32), "2014-01-01 00:00:00", "2017-12-31 23:00:00")
        for k in range(15)
    ]
    valid = [CountryLoad("0", np.zeros(8760, np.float32), "2018-01-01 00:00:00", "2018-12-31 23:00:00")]
    assert load.has_study_counts({"train": train, "valid": valid})
    assert load.name_data(load.PUBLISHED, counts=True) == "ai-hero-energy (by its counts)"
    assert not load.has_study_counts({"train": train, "valid": valid, "test": valid})
    assert not load.has_study_counts({"train": train[:14], "valid": valid})


HEAD = "Load [MW],Time [s],Country\n"
HOURS = [f"{k},2014-01-{1 + k // 24:02} {k % 24:02}:00:00,DE\n" for k in range(400)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Load [MWh],Time [s],Country\n", r"no column 'Load \[MW\]' \(it has: Load \[MWh\]"),
        ("", "no column"),
        (HEAD, "there is no load in it"),
        (HEAD + "much,2014-01-01 00:00:00,DE\n", r"train.csv:2: this is not an hour of load \(could not convert"),
        (HEAD + "1\n", r"train.csv:2: this is not an hour of load \(it has 1 columns"),
        (HEAD + "nan,2014-01-01 00:00:00,DE\n", "train.csv:2: the load is not a number"),
        ("".join((HEAD, *HOURS, HOURS[3])), "train.csv:402: its hours are not in order"),
        ("".join((HEAD, *HOURS[:5], *HOURS[6:])), r"train.csv:7: hours are missing.*'2014-01-01 06:00:00' comes after"),
        (HEAD + "".join(f"{k},{k + k // 300},DE\n" for k in range(400)), "train.csv:302: hours are missing"),
        (HEAD + "1,2014-01-01 00:00:00,DE\n2,2014-01-01 00:30:00,DE\n", "train.csv:3.*one row for each hour"),
        (HEAD + "1,noon,DE\n", r"train.csv:2: the time is neither a date nor a number \(it is 'noon'\)"),
        (HEAD + "-1,2014-01-01 00:00:00,DE\n", "train.csv:2: the load is -1 MW"),
        (HEAD + f"1,{'2' * 200_000},DE\n", r"train.csv: the load cannot be read \(field larger than"),
        ("".join((HEAD, *HOURS[:200])), r"too few hours \(DE has 200\)"),
        (HEAD + "".join(f"5,{k:04},DE\n" for k in range(400)), "the load never changes"),
    ],
)
def test_what_is_wrong_in_a_table_is_told_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(ConfigError, match=why):
        open_load(str(tmp_path))


def test_a_table_that_is_no_utf_8_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("".join((HEAD, *HOURS)))
    (tmp_path / "valid.csv").write_text("".join((HEAD, *HOURS)), encoding="utf-16")
    with pytest.raises(ConfigError, match=r"valid.csv: the load cannot be read \(it is no text in UTF-8: byte 0xff\)"):
        open_load(str(tmp_path))


def test_a_folder_without_tables_is_refused_and_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        open_load(str(tmp_path))
    with pytest.raises(ConfigError, match=r"no such folder.*victoria"):
        open_load("victora")


@pytest.mark.skipif(importlib.util.find_spec("statsmodels") is None, reason="statsmodels is not installed")
def test_real_load_comes_from_statsmodels() -> None:
    data = open_load("victoria")
    assert (data.source.name, data.source.real, data.source.samples) == ("victoria-load-2012", True, 2400 - SPAN)
    assert len(data.valid) == len(data.test) == 600 - SPAN
    past, future, scale = data.train[0]
    assert in_mw(past, scale)[0] == pytest.approx(7926.529, abs=0.01)
    assert 0 <= future.min() <= future.max() <= 1


def test_where_real_load_is_not_found_it_is_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not_there, whose tests carry it, is not installed\); pip install 'statsm"):
        load.find_victoria("not_there")
    with pytest.raises(ConfigError, match="json has no tsa"):
        load.find_victoria("json")
    other = tmp_path / "other.csv"
    other.write_text("ds,y\n" + "".join(f"{k:04},{k}\n" for k in range(400)))
    with pytest.raises(ConfigError, match=r"not the load of Victoria \(it has 400 hours"):
        load.read_victoria(other)
