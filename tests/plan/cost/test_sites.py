"""Sites and purchase: plan files that are read or refused, rates that may not be mixed, kinds of nodes compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.cost.sites import (
    HOURS_PER_YEAR,
    PlanSite,
    find_break_even,
    find_site_rates,
    make_configured_site,
    read_pue,
    read_start,
    share_purchase,
)
from joulelab.plan.plan_file import read_plan_file
from joulelab.plan.plan_tables import NodeKind
from joulelab.plan.rates.find_rate import find_rate
from joulelab.site.footprint import Site

if TYPE_CHECKING:
    from pathlib import Path

PLAN = """
title = "where to train"
[nodes.dgx]
price = 300000
lifetime_years = 5
use = 0.8
embodied_kg = 1500
[[sites]]
name = "north"
intensity = 30
tariff = "0.10EUR"
pue = 1.1
[[sites]]
name = "home"
intensity = "380"
tariff = "0.32EUR"
pue = 1.4
pue_u = 0.03
currency = "EUR"
[[work]]
name = "one epoch"
amount = { tokens = 1e9 }
nodes = 8
cap_w = 500
[[work]]
gpu_hours = 5000
"""


def test_a_plan_is_read(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    plan = read_plan_file(tmp_path / "plan.toml")
    north, home = plan.sites
    assert (north.intensity, north.folder, north.overhead) == ("30", tmp_path, Quantity(1.1))
    assert home.overhead == Quantity(1.4, {"pue:home": 0.03})
    first, second = plan.work
    assert (first.unit, first.amount, first.nodes, first.cap_w) == ("tokens", 1e9, 8, 500.0)
    assert (second.name, second.unit, second.amount) == ("work 2", "gpu_hours", 5000.0)
    rates = find_site_rates(plan.sites)
    assert [[rate.label.unit for rate in found] for found in rates.values()] == [["EUR/kWh"] * 2, ["g/kWh"] * 2]


@every_row(
    ("old", "new", "words"),
    [
        ("pue = 1.1", "pue = 0.9", "plan.toml:12: pue is 0.9; give a number from 1 to 10"),
        ("pue = 1.1", "pue = 50", "give a number from 1 to 10"),
        ("pue = 1.1", "pue_u = 0.1", "pue_u needs pue"),
        ('name = "north"', 'name = "home"', "two sites are called 'home'"),
        ('name = "north"\n', "", "[[sites]] 1 has no name"),
        ("pue = 1.1", "data_gb = 500", "data_gb is no longer used; delete it; add the energy of moving data"),
        ("pue = 1.1", "budget_w = 500", "budget_w is no longer used; delete it; check it with joulelab plan rack"),
        ("pue = 1.1", 'folder = "x"', "unknown key 'folder'"),
        ("intensity = 30", "intensity = true", "intensity is true; write 380 or table:DE"),
        ("intensity = 30", "intensty = 30", "unknown key 'intensty'"),
        ("gpu_hours = 5000", "gpu_hours = 0", "gpu_hours is 0"),
        ("gpu_hours = 5000", "", "the work has no amount"),
        ("gpu_hours = 5000", "gpu_hours = 5000\nrepeats = 2", "the work has gpu_hours and repeats"),
        ("amount = { tokens = 1e9 }", "amount = { tokens = 1, samples = 2 }", "write it as amount = { tokens = 1e9 }"),
        ("amount = { tokens = 1e9 }", "amount = { tokens = -1 }", "give an amount above 0"),
        ('name = "one epoch"', 'name = "work 2"', "two works are called 'work 2'"),
        ("nodes = 8", "nodes = 0", "give a whole number of at least 1"),
        ('title = "where to train"', 'titel = "x"', "unknown key 'titel'"),
    ],
)
def test_mistakes_of_a_plan_are_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in PLAN
    (tmp_path / "plan.toml").write_text(PLAN.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_plan_file(tmp_path / "plan.toml")
    assert words in str(caught.value)


def test_rates_that_may_not_be_in_one_table_are_refused(tmp_path: Path) -> None:
    euro, dollar = PlanSite("a", tariff="0.3EUR"), PlanSite("b", tariff="0.3USD")
    with pytest.raises(ConfigError, match="currencies are not converted"):
        find_site_rates([euro, dollar])
    with pytest.raises(ConfigError, match="b has no tariff, but other sites have one; add tariff"):
        find_site_rates([euro, PlanSite("b", intensity="30")])
    with pytest.raises(ConfigError, match="the site's currency is CHF"):
        find_site_rates([PlanSite("c", tariff="0.3EUR", currency="CHF")])
    for kind in ("average", "marginal"):
        rows = "2026-01-01T00:00Z,100\n2026-01-01T01:00Z,200\n"
        (tmp_path / f"{kind}.csv").write_text(f"# kind: {kind}\n# unit: g/kWh\ntime,value\n{rows}")
    sites = [PlanSite(kind, intensity=f"{kind}.csv", folder=tmp_path) for kind in ("average", "marginal")]
    with pytest.raises(ConfigError, match="never mixed"):
        find_site_rates(sites)
    assert find_site_rates([PlanSite("a")]) == {}


def test_the_configured_site_has_rates_of_its_own() -> None:
    site = make_configured_site(Site("DE", "Germany", 381.0, 2023, "lifecycle", price=0.3, currency="EUR", pue=1.2))
    rates = find_site_rates([site])
    assert [rate.label.name for found in rates.values() for rate in found] == ["0.3 EUR/kWh", "Germany 2023"]
    assert site.pue == 1.2
    assert make_configured_site(Site("DE", "Germany", 381.0)).pue is None


def test_typed_values_are_read_or_refused(tmp_path: Path) -> None:
    assert read_pue("1.3") == Quantity(1.3)
    assert read_pue("1.3+-0.1") == Quantity(1.3, {"pue:given": 0.05})
    for text in ("0.9", "much", "1.3±x", "nan", "11", "1.3±-1"):
        with pytest.raises(ConfigError, match="is not a PUE"):
            read_pue(text)
    flat = find_rate("380")
    assert read_start("2026-11-17T08:00+01:00", [flat])[0] == read_start("2026-11-17 07:00", [flat])[0]
    rows = "2023-11-14T22:00Z,1\n2023-11-14T23:00Z,2\n"
    (tmp_path / "b.csv").write_text(f"# kind: average\n# unit: g/kWh\n# time_zone: Europe/Berlin\ntime,value\n{rows}")
    berlin = find_rate(str(tmp_path / "b.csv"))
    at_s, words = read_start("2023-11-14T23:30", [berlin])
    assert (at_s, words) == (
        read_start("2023-11-14T22:30Z", [berlin])[0],
        "2023-11-14 22:30 UTC (23:30 in Europe/Berlin)",
    )
    with pytest.raises(ConfigError, match="the rates are in Europe/Berlin, UTC"):
        read_start("2023-11-14T23:30", [berlin, flat])
    with pytest.raises(ConfigError, match="occurs twice"):
        read_start("2023-10-29T02:30", [berlin])
    with pytest.raises(ConfigError, match="is not a time"):
        read_start("soon", [flat])


def test_a_purchase_is_shared_by_hours_of_use() -> None:
    kind = NodeKind("dgx", price=300_000.0, lifetime_years=5.0, use=0.8, embodied_kg=1500.0)
    hours = Quantity(100.0, {"time": 10.0})
    money, carbon = share_purchase(kind, "cost", hours), share_purchase(kind, "carbon", hours)
    assert money is not None
    assert carbon is not None
    each = 300_000 / (5 * HOURS_PER_YEAR * 0.8)
    assert money.per_node_hour == pytest.approx(each)
    assert (money.amount.value, money.amount.u) == (pytest.approx(100 * each), pytest.approx(10 * each))
    assert carbon.amount.value == pytest.approx(100 * 1.5e6 / (5 * HOURS_PER_YEAR * 0.8))
    for other in (NodeKind("a", price=1.0), NodeKind("a", lifetime_years=5.0), None):
        assert share_purchase(other, "cost", hours) is None


def test_break_even_is_the_rate_at_which_both_are_equal() -> None:
    old = ("old", Quantity(10.0, {"gain:a": 0.1}), Quantity(2.0))
    new = ("new", Quantity(6.0, {"gain:b": 0.1}), Quantity(4.0))
    for even in (find_break_even("cost", "x", old, new), find_break_even("cost", "x", new, old)):
        assert even.rate is not None
        assert even.rate.value == pytest.approx(0.5)  # 10 x 0.5 + 2 = 6 x 0.5 + 4
        assert even.saver == "new"
        assert even.rate.u == pytest.approx(0.5 * (0.02**0.5) / 4)
    for other, ahead in (
        (("cheap", Quantity(5.0), Quantity(1.0)), "cheap"),
        (("same", Quantity(10.0), Quantity(3.0)), "old"),
    ):
        even = find_break_even("cost", "x", old, other)
        assert (even.rate, even.ahead) == (None, ahead)
