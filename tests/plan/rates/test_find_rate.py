"""Rates by the text that people write for them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.find_rate import check_same_kind, compare_labels, find_rate, is_varying
from joulelab.plan.rates.rate import Constant, Label, Steps
from joulelab.plan.rates.tariff import Tariff

CSV = "# kind: marginal\n# unit: g/kWh\ntime,value\n2026-11-01T00:00Z,300\n2026-11-01T01:00Z,310\n"


@every_row(
    ("spec", "want", "value", "kind", "unit"),
    [
        ("380", None, 380.0, "average", "g/kWh"),
        (" 380 ", "carbon", 380.0, "average", "g/kWh"),
        ("380", "marginal", 380.0, "marginal", "g/kWh"),
        ("0.38kg/kWh", "average", 380.0, "average", "g/kWh"),
        ("1000 lb/MWh", "average", 453.59237, "average", "g/kWh"),
        ("0.32EUR", "price", 0.32, "price", "EUR/kWh"),
        ("-5 EUR/MWh", None, -0.005, "price", "EUR/kWh"),
        ("32ct", "price", 0.32, "price", "EUR/kWh"),
        ("0", None, 0.0, "average", "g/kWh"),
        ("table:DE:2023", "carbon", 381.0, "average", "g/kWh"),
        ("table:Germany", "carbon", 381.0, "average", "g/kWh"),
    ],
)
def test_figures_and_rows_of_the_table(spec: str, want: Any, value: float, kind: str, unit: str) -> None:
    rate = find_rate(spec, want=want)
    assert isinstance(rate, Constant)
    assert rate.value == pytest.approx(value)
    assert (rate.label.kind, rate.label.unit, is_varying(rate)) == (kind, unit, False)


@every_row(
    ("spec", "want", "words"),
    [
        ("0.3", "price", "has no currency"),
        ("0.3EUR", "carbon", "is a price, but a carbon intensity is needed"),
        ("380g", "price", "is average carbon, but a price is needed"),
        ("table:DE", "marginal", "is average carbon, but marginal carbon is needed"),
        ("a.csv", "average", "is marginal carbon, but average carbon is needed"),
        ("-380", None, "is negative"),
        ("380 potatoes", None, "'potatoes' is not the unit"),
        ("cheap", None, "'cheap' is not a rate; write it as 380"),
        ("", None, "is not a rate"),
        ("1e999", None, "too large"),
        ("a\0.csv", None, "is not a rate"),
        ("z" * 300, None, "is not a rate"),
        ("z" * 5000, None, "is not a rate"),
        ("none.csv", None, "cannot read the series"),
        ("none.toml", None, "no such tariff"),
        ("none.json", None, "no longer read"),
        ("annual.toml", None, "name a zone of it: table:"),
        ("described.toml", None, r"no longer read.*at the top of x\.csv"),
        ("table:", None, "needs a zone"),
        ("table:XX", None, "no carbon intensity is known for the zone 'XX'"),
        ("table:DE:x", None, "neither a year nor direct or lifecycle"),
        ("kept:em-DE", None, r"plan rates fetch em:DE --to de\.csv"),
        ("em", None, "no zone is given"),
        ("em:D/E", None, "is not a zone"),
        ("em:DE:x", None, "has no 'x' emissions"),
        ("gb", None, "'gb' was removed.*CSV file"),
        ("watttime:CAISO_NORTH", "marginal", "'watttime' was removed.*CSV file"),
        ("entsoe:DE-LU", "price", "'entsoe' was removed.*CSV file"),
    ],
)
def test_other_texts_are_refused_with_a_next_step(tmp_path: Path, spec: str, want: Any, words: str) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "annual.toml").write_text("[[zones]]\n")
    (tmp_path / "described.toml").write_text('file = "x.csv"\n')
    with pytest.raises(ConfigError, match=words) as caught:
        find_rate(spec, want=want, folder=tmp_path)
    assert caught.value.next


def test_files_are_found_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "values").write_text(CSV)
    (tmp_path / "t.toml").write_text('unit = "EUR/kWh"\nprice = 0.3\n')
    (tmp_path / "mine.toml").write_text(
        '[[zones]]\nzone = "X"\nyear = 2024\ng_per_kwh = 9\nkind = "average"\ncovers = "direct"\nsource = "us"\n'
    )
    assert all(isinstance(find_rate(name, folder=tmp_path), Steps) for name in ("a.csv", "values"))
    flat = find_rate("t.toml", folder=tmp_path, want="price")
    assert isinstance(flat, Tariff)
    assert not is_varying(flat)
    assert is_varying(find_rate("a.csv", folder=tmp_path))
    assert find_rate("table:mine.toml:X", folder=tmp_path).means(np.array([0.0, 1.0])) == [9]
    assert find_rate("em:DE:direct").label.covers == "direct"  # nothing is asked yet


def test_kinds_and_units_are_never_mixed() -> None:
    average, marginal = Label("average", "g/kWh", "a"), Label("marginal", "g/kWh", "m")
    check_same_kind([average, average])
    check_same_kind([])
    with pytest.raises(ConfigError, match="a is average and m is marginal: the two are never mixed"):
        check_same_kind([average, average, marginal])
    with pytest.raises(ConfigError, match="currencies are not converted"):
        check_same_kind([Label("price", "EUR/kWh", "a"), Label("price", "USD/kWh", "b")])
    direct = replace(average, covers="direct")
    assert compare_labels([direct, direct]) == compare_labels([]) == []
    assert [note.code for note in compare_labels([direct, average])] == ["rates.covers-differ"]
    assert [note.code for note in compare_labels([direct, replace(direct, issued_utc_s=1.0)])] == [
        "rates.some-forecasts"
    ]


def test_examples_of_the_documentation_are_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "plan-rates.md").read_text()
    blocks = dict(re.findall(r"^## (A [a-z ]+)\n.*?```(?:toml)?\n(.*?)```", text, re.DOTALL | re.MULTILINE))
    (tmp_path / "a.csv").write_text(blocks["A series from a file"])
    (tmp_path / "a.toml").write_text(blocks["A tariff"])
    assert find_rate("a.csv", want="average", folder=tmp_path).label.zone == "DE"
    tariff = find_rate("a.toml", want="price", folder=tmp_path)
    assert isinstance(tariff, Tariff)
    assert len(tariff.rules) == 3
