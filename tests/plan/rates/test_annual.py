"""The annual table: every row of ours has a source, and people's copies are read strictly."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.annual import from_words, own_table, read_annual

if TYPE_CHECKING:
    from pathlib import Path

ROW = '[[zones]]\nzone = "XX"\nyear = 2024\ng_per_kwh = 100\nkind = "average"\ncovers = "direct"\nsource = "us"\n'


def test_every_row_of_ours_names_its_source_and_year() -> None:
    table = read_annual()
    assert len(table.rows) == len(tomllib.loads(own_table())["zones"]) > 15
    for row in table.rows:
        assert row.kind == "average"
        assert re.search(r"[A-Za-z]{3}", row.source)
        assert 2015 <= row.year <= 2030
        assert 0 < row.g_per_kwh < 1200
        rate = row.rate()
        assert rate.label.source == row.source
        assert f"mean of the year {row.year}" in rate.label.notes[0]


def test_figures_of_agencies_are_theirs() -> None:
    table = read_annual()
    assert table.find("DE", 2024).g_per_kwh == 363  # Umweltbundesamt
    assert table.find("FR", covers="direct").g_per_kwh == 32  # RTE
    assert table.find("US", 2023).g_per_kwh == pytest.approx(1532e6 / 4183271, abs=0.5)  # EIA: Mt by GWh
    assert table.find("US", 2022).g_per_kwh == pytest.approx(1650e6 / 4230672, abs=0.5)


def test_a_zone_without_a_year_is_the_newest_of_what_is_preferred(tmp_path: Path) -> None:
    assert (read_annual().find("de").year, read_annual().find("de").covers) == (2023, "lifecycle")
    assert read_annual().find("DE", covers="direct").year == 2024
    path = tmp_path / "mine.toml"
    path.write_text('prefer = "direct"\n' + ROW + ROW.replace("2024", "2025").replace("direct", "lifecycle"))
    assert read_annual(path).find("XX").year == 2024
    assert read_annual(path).find("XX", 2025).covers == "lifecycle"


def test_words_of_a_spec(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(ROW + "u_rel = 0.05\n")
    rate = from_words(["mine.toml", "xx"], tmp_path)
    assert (rate.value, rate.label.u_rel, rate.label.zone) == (100, 0.05, "XX")
    assert from_words(["DE", "2022"], tmp_path).value == from_words(["DE", "2022", "direct"], tmp_path).value == 433
    for words, said in (
        (["QQ"], "has no zone 'QQ'"),
        (["DE", "1990"], "no 1990 for DE; it has 2022 direct"),
        (["DE", "2024", "lifecycle"], "no 2024 lifecycle for DE"),
        (["DE", "soon"], "'soon' is neither a year"),
        ([""], "no zone is named"),
        (["mine.toml"], "no zone is named"),
        (["none.toml", "DE"], "no such table of intensities"),
    ):
        with pytest.raises(ConfigError, match=said):
            from_words(words, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("g_per_kwh = 100", "g_per_kwh = -1", ":4: g_per_kwh is -1"),
        ("g_per_kwh = 100", 'g_per_kwh = "100"', ":4: g_per_kwh is '100'"),
        ("g_per_kwh = 100\n", "", "a row has no g_per_kwh"),
        ('source = "us"\n', "", "a row has no source"),
        ('"average"', '"mean"', ":5: kind is 'mean'"),
        ('"direct"', '"all"', ":6: covers is 'all'"),
        ("year = 2024", "yaer = 2024", "unknown key 'yaer'"),
        ("[[zones]]", "[[zone]]", "unknown key 'zone'"),
        (ROW, ROW + ROW, ":8: XX 2024 direct is there twice"),
        (ROW, "", "has no rows"),
        (ROW, 'prefer = "both"\n' + ROW, ":1: prefer is 'both'"),
    ],
)
def test_a_copy_is_read_strictly(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ROW.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        read_annual(path)
