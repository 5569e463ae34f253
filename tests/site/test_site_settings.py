"""[site]: zone or own intensity, price, PUE; and what an energy costs there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.core.toml_reading import Mistakes
from joulelab.site.footprint import Site, compute_footprint, restore_site
from joulelab.site.site_settings import merge_site_values, parse_price, read_site

ONE_KWH = Quantity(3.6e6, {"gain:a": 0.03 * 3.6e6})


def test_a_zone_gives_intensity_source_and_year() -> None:
    site = read_site({"zone": "germany", "price": "0.30 EUR", "pue": 1.2})
    assert site is not None
    assert (site.zone, site.name, site.g_per_kwh, site.year, site.covers) == ("DE", "Germany", 381, 2023, "lifecycle")
    assert (site.price, site.currency, site.pue) == (0.3, "EUR", 1.2)
    assert "Our World in Data" in site.source
    recorded = restore_site(site.to_json() | {"key_of_a_newer_version": 1})
    assert recorded == replace(site, is_recorded=True)


@every_row("values", [None, {}, "DE", {"price": "0.3"}, {"pue": None}, {"year": True}, {"zone": 3}])
def test_a_damaged_record_of_a_site_is_no_site(values: object) -> None:
    assert restore_site(values) is None


def test_an_own_intensity_keeps_its_source_and_year() -> None:
    site = read_site({"intensity": 25, "source": "our supplier", "year": 2025, "zone": "DE"})
    assert site is not None
    assert (site.g_per_kwh, site.source, site.year, site.name) == (25, "our supplier", 2025, "Germany")


def test_nothing_is_guessed() -> None:
    assert read_site({}) is None
    bare = read_site({"pue": 1.3})
    assert bare is not None
    assert bare.is_empty
    only_price = read_site({"price": "0.30 EUR"})
    assert only_price is not None
    found = compute_footprint(ONE_KWH, only_price)
    assert found.cost is not None
    assert found.co2e_kg is None
    assert compute_footprint(ONE_KWH, Site(g_per_kwh=381.0)).cost is None


@every_row(
    ("text", "price"),
    [
        ("0.30EUR", (0.30, "EUR")),
        ("0.30 eur/kWh", (0.30, "EUR")),
        ("30 ct", (0.30, "EUR")),
        ("95 EUR/MWh", (0.095, "EUR")),
        ("$0.12", (0.12, "USD")),
        ("0.12 $", (0.12, "USD")),
        ("0 EUR", (0.0, "EUR")),
    ],
)
def test_prices_have_a_currency(text: str, price: tuple[float, str]) -> None:
    found, currency = parse_price(text)
    assert found == pytest.approx(price[0])
    assert currency == price[1]


@every_row("text", ["0.30", "0,30EUR", "-1EUR", "EUR", "", "0.3 blah", "0.3 EUR/J", "1e9 EUR", "9999999EUR"])
def test_other_prices_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_price(text)
    assert caught.value.code == "config.no-price"
    assert "0.30EUR" in (caught.value.next or "")


@every_row(
    ("values", "code", "key"),
    [
        ({"zone": "Germny"}, "config.unknown-zone", "zone"),
        ({"zone": "DE", "year": 1995}, "config.no-such-intensity", "zone"),
        ({"zone": "DE", "covers": "all"}, "config.wrong-value", "covers"),
        ({"zone": "DE", "source": "x"}, "config.two-sources", "zone"),
        ({"price": "0.30"}, "config.no-price", "price"),
        ({"price": 0.3}, "config.wrong-value", "price"),
        ({"pue": 0.9}, "config.wrong-value", "pue"),
        ({"pue": 12}, "config.wrong-value", "pue"),
        ({"intensity": 380}, "config.no-source", "intensity"),
        ({"intensity": 380, "source": "x"}, "config.no-source", "intensity"),
        ({"intensity": -1, "source": "x", "year": 2025}, "config.wrong-value", "intensity"),
        ({"year": 2023}, "config.no-zone", "zone"),
        ({"plue": 1.2}, "config.unknown-key", "plue"),
    ],
)
def test_wrong_values_are_refused_with_their_line(values: dict[str, object], code: str, key: str) -> None:
    text = "[site]\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items())
    mistakes = Mistakes("joulelab.toml", text)
    assert read_site(values, mistakes) is None
    assert [error.code for error in mistakes.errors] == [code]
    line = 2 + list(values).index(key) if key in values else 1
    assert mistakes.errors[0].where == f"joulelab.toml:{line}"
    with pytest.raises(ConfigError) as caught:
        read_site(values)
    assert (caught.value.code, caught.value.where) == (code, None)


def test_a_stronger_file_replaces_the_intensity_as_a_whole() -> None:
    weaker = {"intensity": 380, "source": "x", "year": 2020, "price": "0.30 EUR", "pue": 1.2}
    assert merge_site_values(weaker, {"zone": "FR"}) == {"zone": "FR", "price": "0.30 EUR", "pue": 1.2}
    assert merge_site_values(weaker, {"pue": 1.1}) == {**weaker, "pue": 1.1}


def test_cost_and_co2e_are_those_of_the_energy_with_pue() -> None:
    site = read_site({"zone": "DE", "price": "0.30 EUR", "pue": 1.2})
    assert site is not None
    found = compute_footprint(ONE_KWH, site)
    assert found.cost is not None
    assert found.co2e_kg is not None
    assert found.kwh.value == pytest.approx(1.0)  # as measured, without PUE
    assert found.cost.value == pytest.approx(0.36)
    assert found.co2e_kg.value == pytest.approx(0.4572)
    assert found.cost.relative == found.co2e_kg.relative == pytest.approx(0.06)
    assert found.to_json()["cost"] == {"value": found.cost.value, "expanded": found.cost.expanded}
    assert found.to_json()["currency"] == "EUR"


def test_an_uncertain_intensity_widens_only_co2e() -> None:
    found = compute_footprint(ONE_KWH, Site(zone="DE", g_per_kwh=400.0, u_rel=0.04, price=0.3, currency="EUR"))
    assert found.co2e_kg is not None
    assert found.cost is not None
    assert found.co2e_kg.relative == pytest.approx(2 * (0.03**2 + 0.04**2) ** 0.5)
    assert found.cost.relative == pytest.approx(0.06)


def test_an_energy_of_unknown_accuracy_has_no_interval() -> None:
    found = compute_footprint(Quantity(3.6e6, known=False), Site(price=0.3, currency="EUR"))
    assert found.to_json()["cost"] == {"value": pytest.approx(0.3), "expanded": None}
