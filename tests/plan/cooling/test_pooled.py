"""Runs taken together: by their time, with what readings hide, and refused where they do not tell what a node draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.plan.cost.test_accounted import job
from tests.plan.measured_runs import GAIN, measured, node_run

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.cooling.decide import Given, plan_cooling
from joulelab.plan.cooling.fans import Seen
from joulelab.plan.cooling.pooled import flat_load, load_of, own_of, pooled
from joulelab.plan.cooling.supplies import ASSUMED, EFFICIENCY, Supplies
from joulelab.plan.rack.guarantee import EFFICIENCIES
from joulelab.plan.rack.spread import ASSUMED as SPREAD
from joulelab.twin.nodefile import find_node

if TYPE_CHECKING:
    from pathlib import Path

UP = (1 + 2 * GAIN / 3**0.5) * (1 + SPREAD)
KNOWN = Supplies(None, 0.96)


def test_fans_of_several_runs_weigh_by_their_time() -> None:
    seen = [Seen(Quantity(300.0, {"a": 3.0}), 400.0, inlet_c=20.0), Seen(Quantity(600.0, {"b": 6.0}), 900.0)]
    found, said = pooled(seen, [300.0, 100.0])
    assert found.power_w is not None
    assert found.power_w.value == pytest.approx(375.0)
    assert found.power_w.terms == {"a": pytest.approx(2.25), "b": pytest.approx(1.5)}
    assert (found.highest_w, found.inlet_c, said) == (900.0, 20.0, "")


def test_speeds_are_pooled_by_their_cubes_and_never_across_units() -> None:
    seen = [
        Seen(speed=6000.0, highest_speed=7000.0, is_rpm=True),
        Seen(speed=9000.0, highest_speed=9500.0, is_rpm=True),
    ]
    found, said = pooled([*seen, Seen(speed=0.9, highest_speed=1.0)], [100.0, 100.0, 50.0])
    assert found.speed == pytest.approx(((6000.0**3 + 9000.0**3) / 2) ** (1 / 3))
    assert (found.highest_speed, found.is_rpm) == (9500.0, True)
    assert "fans were measured in 2 of 3 runs" in said
    shares, _ = pooled([seen[0], Seen(speed=0.9, highest_speed=1.0)], [100.0, 300.0])
    assert (shares.speed, shares.highest_speed, shares.is_rpm) == (pytest.approx(0.9), 1.0, False)


def test_a_run_that_saw_no_fans_is_taken_at_the_mean_of_the_others() -> None:
    seen = [Seen(Quantity(300.0), 400.0), Seen()]
    whole, said = pooled(seen, [100.0, 100.0])
    assert "in 1 of 2 runs: the others are taken as these" in said
    assert [one.highest_w for one in own_of(seen, whole, 2)] == [400.0, 300.0]
    turning = [Seen(speed=0.5, highest_speed=0.8), Seen(speed=6000.0, highest_speed=7000.0, is_rpm=True), Seen()]
    whole, _ = pooled(turning, [300.0, 100.0, 100.0])
    assert [one.highest_speed for one in own_of(turning, whole, 3)] == [0.8, pytest.approx(0.5), pytest.approx(0.5)]
    assert own_of([], Seen(), 1) == [Seen()]
    assert pooled([], []) == (Seen(), "")


def test_all_runs_tell_of_the_fans_and_each_of_its_own_highest_power(tmp_path: Path) -> None:
    calm = measured(node_run(tmp_path / "a", 4000.0, idle_w=4000.0, seconds=300.0))
    busy = measured(node_run(tmp_path / "b", 6000.0, idle_w=6000.0, seconds=100.0))
    saw = [Seen(Quantity(200.0), 200.0), Seen(Quantity(600.0), 600.0)]
    plan = plan_cooling([calm, busy], saw, None, Given(efficiency=1.0), kinds=("immersion",))
    assert plan.now.fans_w.value == pytest.approx(300.0)
    assert plan.now.highest_w == pytest.approx(6000.0)
    assert plan.options[0].highest_w == pytest.approx(5400.0)  # 3800 W of the calm one


def test_the_highest_is_raised_by_the_gain_and_by_what_readings_hide(tmp_path: Path) -> None:
    def spiked(s: float) -> float:
        return 8000.0 if 100 <= s < 101 else 4000.0

    slow = measured(node_run(tmp_path / "a", 4000.0, idle_w=4000.0, seconds=300.0, step_s=10.0))
    fast = measured(node_run(tmp_path / "b", spiked, idle_w=4000.0, seconds=300.0, step_s=1.0))
    (alone,) = load_of([slow], KNOWN).highest
    assert (alone.read_w, alone.gain, alone.hidden) == (pytest.approx(4000.0), True, True)
    assert alone.upper_w == pytest.approx(4000.0 * UP * 1.03, rel=1e-3)  # as others published
    both = load_of([slow, fast], KNOWN)
    assert both.highest[0].upper_w > 1.5 * alone.upper_w  # as the finer run showed
    assert both.read_w == pytest.approx(8000.0, rel=0.01)
    blind = load_of([measured(node_run(tmp_path / "c", seconds=600.0, step_s=120.0, gain=None))], KNOWN)
    assert [(one.gain, one.hidden) for one in blind.highest] == [(False, False)]


def test_what_is_not_in_the_count_of_nodes_is_said(tmp_path: Path) -> None:
    one = measured(node_run(tmp_path, idle_w=6000.0, seconds=600.0, step_s=120.0, gain=None))
    plan = plan_cooling([one], [Seen(Quantity(300.0), 300.0)], None, Given(efficiency=0.96, supply_w=60_000.0))
    notes = " ".join(plan.notes)
    assert "nobody states the meter's accuracy: it is not in the count of nodes" in notes
    assert "nobody knows what such slow readings hide" in notes


def test_behind_supplies_that_nobody_describes_the_worst_of_them_counts(tmp_path: Path) -> None:
    one = measured(node_run(tmp_path, 4800.0, idle_w=4800.0, scope="node.dc"))
    load = load_of([one], Supplies(None, None))
    assert load.mean_w.value == pytest.approx(4800.0 / EFFICIENCY)
    assert abs(load.mean_w.terms[ASSUMED]) == pytest.approx(load.mean_w.value * 0.035 / EFFICIENCY / 3**0.5)
    assert load.read_w == pytest.approx(4800.0 / EFFICIENCY)
    assert load.upper_w == pytest.approx(4800.0 * UP / EFFICIENCIES[0])
    assert ASSUMED not in load_of([one], KNOWN).mean_w.terms
    node = find_node("bnl-h100").node
    modelled = load_of([one], Supplies(node, None)).mean_w
    assert modelled.value == pytest.approx(float(np.interp(4800.0, *node.to_ac())), rel=1e-3)
    assert not modelled.known  # nobody states how good a model of supplies is


def test_a_change_and_the_node_share_what_is_assumed_of_the_supplies() -> None:
    supplies = Supplies(None, None)
    less = supplies.more(6000.0, Quantity(-480.0))
    whole = supplies.mean_at_wall(Quantity(5000.0))
    assert (whole + less).u == pytest.approx(abs(whole.u - less.u))  # both are off alike
    assert supplies.more(6000.0, Quantity(0.0)).expanded == 0


def test_runs_that_do_not_tell_what_a_node_draws_are_refused(tmp_path: Path) -> None:
    wall = measured(node_run(tmp_path / "a"))
    behind = measured(node_run(tmp_path / "b", scope="node.dc"))
    with pytest.raises(ConfigError, match="some runs were measured at the wall, some behind"):
        load_of([wall, behind], KNOWN)
    with pytest.raises(ConfigError, match=r"has gpu:0 only.*give --node and --power") as caught:
        load_of([wall, measured(node_run(tmp_path / "c", scope="gpu:0"))], KNOWN)
    assert caught.value.where is not None
    with pytest.raises(ConfigError, match=r"what a node draws cannot be told from run .*accounted"):
        load_of([job(tmp_path / "d")], KNOWN)
    assert not flat_load(7000.0).mean_w.known
