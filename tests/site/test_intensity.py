"""Carbon intensities: every row has source and year, countries are found by code and name, own figures win."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.site.intensity import list_countries, load_intensity_table, name_zone, read_own_text

if TYPE_CHECKING:
    from pathlib import Path

ROW = '[[zones]]\nzone = "XX"\nyear = 2024\ng_per_kwh = 100\nkind = "average"\ncovers = "direct"\nsource = "us"\n'


def test_every_row_has_a_source_and_a_plausible_year_and_value() -> None:
    table = load_intensity_table()
    assert (len(table.country_rows), len(list_countries())) == (213, 213)
    for row in (*table.rows, *table.country_rows.values()):
        assert row.kind == "average"
        assert re.search(r"[A-Za-z]{3}", row.source)
        assert 2009 <= row.year <= 2030
        assert 10 < row.g_per_kwh < 1400 or row.zone == "CF"  # 0 in the source: refused below
    assert {row.zone for row in table.rows if row.zone != "WORLD"} <= {one.iso2 for one in list_countries()}


def test_codes_of_countries_are_those_of_the_time_zone_database() -> None:
    """Compare our codes with another list of ISO 3166, which most Linux systems have."""
    from pathlib import Path

    listed = Path("/usr/share/zoneinfo/iso3166.tab")
    if not listed.exists():
        pytest.skip("needs /usr/share/zoneinfo/iso3166.tab")
    lines = [line.split("\t") for line in listed.read_text().splitlines() if not line.startswith("#")]
    first_words = {code: name.split()[0].strip("(),") for code, name in lines}
    ours = {one.iso2: (one.name, *one.other_names) for one in list_countries()}
    assert set(ours) <= set(first_words)
    unlike = {code for code, names in ours.items() if not any(first_words[code][:4] in name for name in names)}
    # The other list writes: Congo (Dem. Rep.), Korea (North), Réunion, St Helena ..., Virgin Islands (UK).
    assert unlike <= {"CD", "KP", "CI", "RE", "SH", "KN", "LC", "PM", "VC", "VG", "VI", "SZ", "ST", "BS"}


def test_figures_of_agencies_are_theirs() -> None:
    table = load_intensity_table()
    assert table.find_row("DE", 2024).g_per_kwh == 363  # Umweltbundesamt
    assert table.find_row("FR", covers="direct").g_per_kwh == 32  # RTE
    assert table.find_row("US", 2023).g_per_kwh == pytest.approx(1532e6 / 4183271, abs=0.5)  # EIA: Mt by GWh
    assert table.find_row("US", 2022).g_per_kwh == pytest.approx(1650e6 / 4230672, abs=0.5)


@every_row(
    ("written", "zone"),
    [
        ("DE", "DE"),
        ("deu", "DE"),
        (" Germany ", "DE"),
        ("UK", "GB"),
        ("united kingdom", "GB"),
        ("Türkiye", "TR"),
        ("Côte d’Ivoire", "CI"),
        ("World", "WORLD"),
        ("Deutschland", "DE"),
        ("osterreich", "AT"),
        ("Schweiz", "CH"),
        ("España", "ES"),
        ("Sverige", "SE"),
        ("日本", "JP"),
    ],
)
def test_a_zone_is_found_by_code_and_name(written: str, zone: str) -> None:
    assert load_intensity_table().find_row(written).zone == zone


def test_own_figures_win_and_both_are_listed() -> None:
    table = load_intensity_table()
    found = table.find_row("DE")
    assert (found.g_per_kwh, found.year, found.covers, found in table.rows) == (381, 2023, "lifecycle", True)
    assert [row.g_per_kwh for row in table.list_rows("Germany")][-1] == 380.95  # of the countries
    assert table.find_row("DE", covers="direct").year == 2024
    # The own table has only direct emissions of the US: they win, and lifecycle ones are found when named.
    assert (table.find_row("US").covers, table.find_row("US").g_per_kwh) == ("direct", 366)
    assert table.find_row("US", covers="lifecycle") == table.country_rows["US"]
    assert table.find_row("Iceland") == table.country_rows["IS"]


@every_row(
    ("zone", "year", "covers", "code", "advice"),
    [
        ("Germny", None, None, "config.unknown-zone", "did you mean DE (Germany)?"),
        ("Deutschlnd", None, None, "config.unknown-zone", "did you mean DE (Germany)?"),
        ("Emirates", None, None, "config.unknown-zone", "did you mean AE (United Arab Emirates)?"),
        ("D", None, None, "config.unknown-zone", "joulelab site --list"),
        ("", None, None, "config.unknown-zone", "joulelab site --list"),
        ("DE", 1990, None, "config.no-such-intensity", "2023 direct, 2023 lifecycle, 2024 direct"),
        ("CF", None, None, "config.zero-intensity", "joulelab site --intensity"),
        ("IS", None, "direct", "config.no-such-intensity", "2022 lifecycle"),
    ],
)
def test_an_unknown_figure_is_refused_with_a_suggestion(
    zone: str, year: int | None, covers: str | None, code: str, advice: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_intensity_table().find_row(zone, year, covers)
    assert caught.value.code == code
    assert advice in (caught.value.next or "")


def test_a_name_that_is_not_close_is_not_corrected() -> None:
    for zone in ("Bavaria", "Texas", "us-east-1", "EN", "Karlsruhe", "D"):
        with pytest.raises(ConfigError) as caught:
            load_intensity_table().find_row(zone)
        assert "did you mean" not in (caught.value.next or ""), zone


def test_zones_are_searched_by_a_part_of_their_names() -> None:
    table = load_intensity_table()
    assert {row.zone for row in table.search_rows("united")} == {"AE", "GB", "US", "VI"}
    assert {row.zone for row in table.search_rows("DE")} == {"DE"}
    assert len(table.search_rows()) == len(table.rows) + 213
    assert table.search_rows("nowhere") == []
    assert (name_zone("gb"), name_zone("my-city")) == ("United Kingdom", "my-city")


def test_a_copy_that_somebody_edited_is_a_table_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('prefer = "direct"\n' + ROW + ROW.replace("2024", "2025").replace("direct", "lifecycle"))
    table = load_intensity_table(path)
    assert table.find_row("xx").year == 2024
    assert table.find_row("XX", 2025).covers == "lifecycle"
    with pytest.raises(ConfigError, match="it has XX"):
        table.find_row("DE")
    path.write_text(read_own_text())
    assert load_intensity_table(path).rows == load_intensity_table().rows


@every_row(
    ("old", "new", "line", "code"),
    [
        ("g_per_kwh = 100", "g_per_kwh = -1", 4, "config.wrong-value"),
        ("g_per_kwh = 100", 'g_per_kwh = "100"', 4, "config.wrong-value"),
        ("g_per_kwh = 100\n", "", 1, "config.missing-key"),
        ('source = "us"\n', "", 1, "config.missing-key"),
        ('"average"', '"mean"', 5, "config.wrong-value"),
        ('"direct"', '"all"', 6, "config.wrong-value"),
        ("year = 2024", "year = 24", 3, "config.wrong-value"),
        ('source = "us"', 'source = "us"\nyaer = 2024', 8, "config.unknown-key"),
        ("[[zones]]", "[[zone]]", 1, "config.unknown-key"),
        (ROW, ROW + ROW, 8, "config.duplicate"),
        (ROW, "", 0, "config.empty"),
        (ROW, 'prefer = "both"\n' + ROW, 1, "config.wrong-value"),
        (ROW, "zones = ", 1, "config.not-toml"),
    ],
)
def test_mistakes_in_a_table_are_refused_with_their_line(
    tmp_path: Path, old: str, new: str, line: int, code: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ROW.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_intensity_table(path)
    assert caught.value.code == code
    assert caught.value.where == (f"{path}:{line}" if line else str(path))


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_intensity_table(tmp_path / "none.toml")
    assert caught.value.code == "config.unreadable"
