"""Sites, purchase and plan files: what is read, what is refused, what kinds of nodes are worth beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.cost.purchase import HOURS_PER_YEAR, Option, break_even, share_of
from joulelab.plan.cost.sites import Site, fits, notes_of, rates_of
from joulelab.plan.plan_file import read_plan_file
from joulelab.plan.plan_tables import NodeKind

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
data_gb = 500
kwh_per_gb = 0.02
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


def read(folder: Path, text: str) -> str:
    """Return what is wrong with a plan, empty where nothing is."""
    (folder / "plan.toml").write_text(text)
    try:
        read_plan_file(folder / "plan.toml")
    except ConfigError as error:
        return str(error)
    return ""


def test_a_plan_is_read(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    plan = read_plan_file(tmp_path / "plan.toml")
    assert plan.title == "where to train"
    north, home = plan.sites
    assert (north.intensity, north.folder) == ("30", tmp_path)
    assert north.moved_kwh == Quantity(10.0)
    assert home.overhead == Quantity(1.4, {"pue:home": 0.03})
    assert home.moved_kwh is None
    first, second = plan.work
    assert (first.unit, first.amount, first.nodes, first.cap_w) == ("tokens", 1e9, 8, 500.0)
    assert (second.name, second.unit, second.amount) == ("work 2", "gpu_hours", 5000.0)
    assert [rate.label.unit for rate in rates_of(plan.sites, "cost")] == ["EUR/kWh", "EUR/kWh"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pue = 1.1", "pue = 0.9", "plan.toml:12: pue is 0.9 (a site takes at least"),
        ('name = "north"', 'name = "home"', "there are two sites 'home'"),
        ('name = "north"\n', "", "a site has no name"),
        ("data_gb = 500\n", "", "kwh_per_gb says nothing without data_gb"),
        ("pue = 1.4\n", "", "pue_u says nothing without pue"),
        ("gpu_hours = 5000", "gpu_hours = -1", "give a number above 0"),
        ("gpu_hours = 5000", "gpu_hours = 5000\nnode_hours = 3", "work says gpu_hours and node_hours"),
        ("gpu_hours = 5000", "", "work says no amount"),
        ("amount = { tokens = 1e9 }", "amount = { tokens = 1, samples = 2 }", "an amount is of one unit"),
        ("nodes = 8", "nodes = 0", "give a whole number of at least 1"),
        ("intensity = 30", "intensty = 30", "unknown key 'intensty'"),
        ('title = "where to train"', 'titel = "x"', "unknown key 'titel'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PLAN
    assert said in read(tmp_path, PLAN.replace(old, new, 1))


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = PLAN.replace("pue = 1.1", "pue = 0.9").replace("gpu_hours = 5000", "gpu_hours = 0")
    assert len(read(tmp_path, text).splitlines()) == 2


def test_rates_that_may_not_stand_together_are_refused() -> None:
    euro, dollar = Site("a", tariff="0.3EUR"), Site("b", tariff="0.3USD")
    with pytest.raises(ConfigError, match="currencies are not converted"):
        rates_of([euro, dollar], "cost")
    with pytest.raises(ConfigError, match="a has no intensity; give --intensity"):
        rates_of([euro], "carbon")
    with pytest.raises(ConfigError, match="the site's currency is CHF"):
        rates_of([Site("c", tariff="0.3EUR", currency="CHF")], "cost")
    with pytest.raises(ConfigError, match="there is no site"):
        rates_of([], "cost")


def test_average_and_marginal_are_never_mixed(tmp_path: Path) -> None:
    for kind in ("average", "marginal"):
        rows = "2026-01-01T00:00Z,100\n2026-01-01T01:00Z,200\n"
        (tmp_path / f"{kind}.csv").write_text(f"# kind: {kind}\n# unit: g/kWh\ntime,value\n{rows}")
    sites = [Site(kind, intensity=f"{kind}.csv", folder=tmp_path) for kind in ("average", "marginal")]
    with pytest.raises(ConfigError, match="never mixed"):
        rates_of(sites, "carbon")


def test_what_is_not_included_is_said() -> None:
    assert "no PUE was given" in notes_of(Site("a"))[0]
    assert notes_of(Site("a", pue=1.3)) == ["PUE 1.3 is taken as exact"]
    assert "no kwh_per_gb was given" in notes_of(Site("a", pue=1.3, pue_u=0.1, data_gb=5.0))[0]
    assert fits(Site("a"), 1e6) is None
    assert fits(Site("a", pue=1.5, budget_w=1500.0), 1000.0) is True
    assert fits(Site("a", pue=1.6, budget_w=1500.0), 1000.0) is False


def test_a_purchase_is_shared_by_hours_of_use() -> None:
    kind = NodeKind("dgx", price=300_000.0, lifetime_years=5.0, use=0.8, embodied_kg=1500.0)
    hours = Quantity(100.0, {"time": 10.0})
    money, carbon = share_of(kind, "cost", hours), share_of(kind, "carbon", hours)
    assert money is not None
    assert carbon is not None
    each = 300_000 / (5 * HOURS_PER_YEAR * 0.8)
    assert money.per_node_hour == pytest.approx(each)
    assert money.amount.value == pytest.approx(100 * each)
    assert money.amount.u == pytest.approx(10 * each)
    assert carbon.amount.value == pytest.approx(100 * 1.5e6 / (5 * HOURS_PER_YEAR * 0.8))
    assert share_of(NodeKind("a", price=1.0), "cost", hours) is None  # no lifetime
    assert share_of(NodeKind("a", lifetime_years=5.0), "cost", hours) is None
    assert share_of(None, "cost", hours) is None
    always = share_of(NodeKind("a", price=1.0, lifetime_years=5.0), "cost", hours)
    assert always is not None
    assert "no `use` was given" in always.said


def test_break_even_is_the_rate_at_which_both_are_equal() -> None:
    old = Option("old", Quantity(10.0, {"gain:a": 0.1}), Quantity(2.0))
    new = Option("new", Quantity(6.0, {"gain:b": 0.1}), Quantity(4.0))
    for even in (break_even(old, new), break_even(new, old)):
        assert even.rate is not None
        assert even.rate.value == pytest.approx(0.5)
        assert 10 * 0.5 + 2 == 6 * 0.5 + 4
        assert even.saver == "new"
        assert even.rate.u == pytest.approx(0.5 * (0.02**0.5) / 4)
    cheap = Option("cheap", Quantity(5.0), Quantity(1.0))
    assert (break_even(old, cheap).rate, break_even(old, cheap).ahead) == (None, "cheap")
    same = Option("same", Quantity(10.0), Quantity(3.0))
    assert (break_even(old, same).rate, break_even(old, same).ahead) == (None, "old")
    assert break_even(same, old).ahead == "old"
