"""Rates by what people write for them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.asked import Asked, is_whole
from joulelab.plan.rates.constant import Constant
from joulelab.plan.rates.find import caveats, check_same, rate_of
from joulelab.plan.rates.kept import Origin, keep
from joulelab.plan.rates.look import look_at
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.services import label_of
from joulelab.plan.rates.steps import Steps
from joulelab.plan.rates.tariff import Tariff

CSV = "# kind: marginal\n# unit: g/kWh\ntime,value\n2026-11-01T00:00Z,300\n2026-11-01T01:00Z,310\n"
NOW_S = 1_794_000_000.0


@pytest.mark.parametrize(
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
        ("1e2", None, 100.0, "average", "g/kWh"),
        ("0", None, 0.0, "average", "g/kWh"),
    ],
)
def test_figures(spec: str, want: Any, value: float, kind: str, unit: str) -> None:
    rate = rate_of(spec, want=want)
    assert isinstance(rate, Constant)
    assert rate.value == pytest.approx(value)
    assert (rate.label.kind, rate.label.unit) == (kind, unit)


@pytest.mark.parametrize(
    ("spec", "want", "said"),
    [
        ("0.3", "price", "no currency is given"),
        ("0.3EUR", "carbon", "is a price, where a carbon intensity is asked for"),
        ("0.3EUR", "average", "is a price, where average carbon is asked for"),
        ("380g", "price", "is average carbon, where a price is asked for"),
        ("table:DE", "marginal", "is average carbon, where marginal carbon is asked for"),
        ("a.csv", "average", "is marginal carbon, where average carbon is asked for"),
        ("-380", None, "cannot be below 0"),
        ("380 potatoes", None, "'potatoes' is no unit"),
        ("cheap", None, "'cheap' is no rate; write it as 380"),
        ("", None, "is no rate"),
        ("1e999", None, "too large"),
        ("a\0.csv", None, "is no rate"),
        ("z" * 300, None, "is no rate"),
        ("z" * 5000, None, "is no rate"),
        ("none.csv", None, "cannot read the series"),
        ("2026.csv", None, "cannot read the series"),
        ("none.toml", None, "no such tariff"),
        ("annual.toml", None, "name a zone of it: table:"),
        ("kept:foo", None, "kept"),
        ("em", None, "no zone"),
        ("em:DE:direct:x", None, "says too much"),
        ("em:DE:x", None, "does not tell x"),
        ("gb", None, r"'gb' \(GB Carbon Intensity API\) was removed; use a CSV file .*FILE\.csv.*em:ZONE"),
        ("watttime:CAISO_NORTH", "marginal", "WattTime.* was removed; use a CSV file"),
        ("entsoe:DE-LU", "price", "ENTSO-E.* was removed; use a CSV file"),
    ],
)
def test_what_is_no_such_rate_is_refused(tmp_path: Path, spec: str, want: Any, said: str) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "annual.toml").write_text("[[zones]]\n")
    with pytest.raises(ConfigError, match=said):
        rate_of(spec, want=want, folder=tmp_path, kept=tmp_path / "kept")


def test_files_are_found_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "values").write_text(CSV)
    (tmp_path / "t.toml").write_text('unit = "EUR/kWh"\nprice = 0.3\n')
    (tmp_path / "mine.toml").write_text(
        '[[zones]]\nzone = "X"\nyear = 2024\ng_per_kwh = 9\nkind = "average"\ncovers = "direct"\nsource = "us"\n'
    )
    assert isinstance(rate_of("a.csv", folder=tmp_path), Steps)
    assert isinstance(rate_of("values", folder=tmp_path), Steps)
    assert isinstance(rate_of(str(tmp_path / "a.csv")), Steps)
    assert isinstance(rate_of("t.toml", folder=tmp_path, want="price"), Tariff)
    assert rate_of("table:mine.toml:X", folder=tmp_path).means(np.array([0.0, 1.0])) == [9]


def test_kinds_and_units_are_never_mixed() -> None:
    average, marginal = Label("average", "g/kWh", "a"), Label("marginal", "g/kWh", "m")
    check_same([average, average])
    check_same([])
    with pytest.raises(ConfigError, match="a is average and m is marginal: the two are never mixed"):
        check_same([average, average, marginal])
    with pytest.raises(ConfigError, match="currencies are not converted"):
        check_same([Label("price", "EUR/kWh", "a"), Label("price", "USD/kWh", "b")])


def test_rates_that_tell_different_things_get_words() -> None:
    one = Label("average", "g/kWh", "a", covers="direct")
    assert caveats([one, one]) == caveats([]) == ()
    (told,) = caveats([one, replace(one, name="b", covers="lifecycle")])
    assert "direct: a; lifecycle: b" in told
    assert "forecasts" in caveats([one, replace(one, issued_utc_s=1.0)])[0]
    assert "hour" in caveats([one, replace(one, resolution_s=3600.0)])[0]


class Service:
    """Be a service that knows the hours before NOW_S and forecasts those after it."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float, bool]] = []

    def __call__(
        self, service: str, zone: str, since_s: float, until_s: float, *, forecast: bool, covers: str, folder: Path
    ) -> Steps:
        self.asked.append((since_s, until_s, forecast))
        label = replace(label_of(service, zone, covers), issued_utc_s=NOW_S if forecast else None)
        starts = np.arange(since_s // 3600 * 3600, until_s, 3600.0)
        return Steps(label, starts, np.full(starts.size, 5.0 if forecast else 3.0), float(starts[-1]) + 3600.0)


def asked(folder: Path, service: Service) -> Asked:
    return Asked("em", "DE", "", folder, ask=service, now=lambda: NOW_S)


def test_a_service_is_asked_once_and_only_when_it_is_used(tmp_path: Path) -> None:
    service = Service()
    rate = asked(tmp_path, service)
    assert (rate.label.kind, rate.label.covers, rate.label.issued_utc_s) == ("average", "lifecycle", None)
    assert service.asked == []
    past = NOW_S - 86400
    assert rate.changes(past, past + 7200).size in (1, 2)
    assert rate.means(np.array([past, past + 3600, past + 7200])) == pytest.approx([3, 3])
    assert service.asked == [(past, past + 7200, False)]
    assert rate.means(np.array([NOW_S, NOW_S + 7200])) == pytest.approx([5])
    assert service.asked[1:] == [(NOW_S, NOW_S + 7200, True)]
    assert rate.label.issued_utc_s == NOW_S


def test_what_is_kept_is_not_asked_for_again(tmp_path: Path) -> None:
    service = Service()
    starts = NOW_S - 86400 + 3600.0 * np.arange(6)
    values = np.array([1.0, 1, 1, np.nan, 1, 1])
    kept = Steps(label_of("em", "DE"), starts, values, float(starts[-1]) + 3600)
    keep(kept, Origin("em", "em-DE", NOW_S), tmp_path)
    rate = asked(tmp_path, service)
    assert rate.means(starts[[0, 3]]) == pytest.approx([1])
    assert service.asked == []
    assert rate.means(starts[[0, 4]]) == pytest.approx([3])  # kept, but with a gap
    assert len(service.asked) == 1
    assert is_whole(kept, starts[0], starts[3])
    assert not is_whole(kept, starts[0] - 1, starts[3])
    assert not is_whole(kept, starts[4], starts[5] + 3601)


def test_specs_name_services(tmp_path: Path) -> None:
    assert rate_of("em:DE:direct", kept=tmp_path).label.covers == "direct"
    with pytest.raises(ConfigError, match="is average carbon, where marginal"):
        rate_of("em:DE", want="marginal", kept=tmp_path)
    assert look_at(rate_of("em:DE", kept=tmp_path)).form == "service"


def test_kept_series_are_found_by_name(tmp_path: Path) -> None:
    steps = Service()("em", "DE", NOW_S, NOW_S + 7200, forecast=True, covers="", folder=tmp_path)
    name = keep(steps, Origin("em", "em-DE", NOW_S), tmp_path).name
    for spec in (f"kept:{name}", "kept:em-DE/forecast"):
        found = rate_of(spec, want="average", kept=tmp_path)
        assert isinstance(found, Steps)
        np.testing.assert_array_equal(found.values, steps.values)


def test_what_was_kept_of_a_removed_service_can_still_be_used(tmp_path: Path) -> None:
    label = Label("average", "g/kWh", "gb:GB", zone="GB", covers="direct", source="GB Carbon Intensity API")
    keep(Steps(label, np.array([NOW_S]), np.array([150.0]), NOW_S + 1800), Origin("gb", "gb-GB", NOW_S), tmp_path)
    assert rate_of("kept:gb-GB", kept=tmp_path).means(np.array([NOW_S, NOW_S + 1800])) == [150]


def test_examples_of_the_documentation_are_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "plan-rates.md").read_text()
    blocks = dict(re.findall(r"^## (A [a-z ]+)\n.*?```(?:toml)?\n(.*?)```", text, re.DOTALL | re.MULTILINE))
    (tmp_path / "a.csv").write_text(blocks["A series from a file"])
    (tmp_path / "a.toml").write_text(blocks["A tariff"])
    assert len(rate_of("a.csv", want="average", folder=tmp_path).label.source) > 10
    tariff = rate_of("a.toml", want="price", folder=tmp_path)
    assert len(look_at(tariff).rules) == 3
