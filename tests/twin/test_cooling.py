"""Fans follow the heat: its cube, the air's temperature, what water takes; never below rest or above full speed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.twin import power_curves, profile
from joulelab.twin.model import H100, Cooling, Node
from joulelab.twin.truth import Truth

NS = 10**9
FULL_W = 10_000.0
AIR = Cooling(fan_idle_w=20.0, fan_max_w=1000.0)


def fans(cooling: Cooling, *heat_w: float) -> list[float]:
    return list(cooling.fans_w(np.array(heat_w), FULL_W))


def test_their_power_goes_with_the_cube_of_the_heat() -> None:
    assert fans(AIR, 5000, 8000, 10_000) == pytest.approx([125, 512, 1000])
    assert fans(AIR, 0, 1000, 20_000) == pytest.approx([20, 20, 1000])  # at rest, and at full speed
    assert fans(replace(AIR, rated_heat_w=5000), 2500) == pytest.approx([125])


def test_warm_air_carries_less_off() -> None:
    cold, usual, warm = (fans(replace(AIR, inlet_c=inlet_c), 5000)[0] for inlet_c in (15, 25, 35))
    assert (cold, usual, warm) == pytest.approx((125 * (2 / 3) ** 3, 125, 1000))
    assert fans(replace(AIR, inlet_c=20, exhaust_c=50), 5000) == pytest.approx([125 * (25 / 30) ** 3])


def test_a_door_is_harder_to_blow_through_and_water_takes_most() -> None:
    air, door, chip = (fans(replace(AIR, kind=kind), 8000)[0] for kind in ("air", "rear-door", "direct-to-chip"))
    assert door == pytest.approx(1.1 * air)
    assert chip == pytest.approx(max(air / 64, 20))
    assert fans(replace(AIR, kind="direct-to-chip"), 2 * FULL_W) == pytest.approx([125])


def test_speed_is_the_cube_root_of_power() -> None:
    assert [AIR.compute_speed(watts) for watts in (125, 1000, 2000)] == pytest.approx([0.5, 1, 1])
    assert Cooling(fan_idle_w=0, fan_max_w=0).compute_speed(0.0) == 0


@pytest.mark.parametrize("kind", ["air", "rear-door", "direct-to-chip"])
def test_a_node_takes_what_its_leaves_and_fans_take(kind: str) -> None:
    node = Node(gpus=(H100,) * 8, spread=0.0, cooling=Cooling(kind=kind, inlet_c=22))  # type: ignore[arg-type]
    heat, dc = node.to_dc()
    full = sum(node.range_w(leaf)[1] for leaf in power_curves.list_heating_leaves(node.list_leaves()))
    assert dc - heat == pytest.approx(node.cooling.fans_w(heat, full))
    assert all(b > a for a, b in itertools.pairwise(dc))


def test_a_cap_slows_the_fans_of_a_served_node(tmp_path) -> None:
    node = Node(gpus=(H100,) * 8, spread=0.0)
    with Truth.create(tmp_path / "t", node, profiles={"gpu": profile.constant(1.0)}, start_ns=NS) as truth:
        before = truth.power("fans", 5 * NS)
        for gpu in range(8):
            truth.set_cap(gpu, 350.0, 3 * NS)
        after = truth.power("fans", 5 * NS)
        heat = sum(truth.power(leaf, 5 * NS) for leaf in power_curves.list_heating_leaves(node.list_leaves()))
        full = sum(node.range_w(leaf)[1] for leaf in power_curves.list_heating_leaves(node.list_leaves()))
        # A curve between knots 5 % of the full load apart.
        assert after == pytest.approx(float(node.cooling.fans_w(np.array([heat]), full)[0]), rel=0.02)
        assert after < 0.6 * before
        assert truth.power("fans", 2 * NS) == before


@pytest.mark.parametrize(
    "wrong",
    [{"fan_idle_w": 9.0, "fan_max_w": 8.0}, {"fan_idle_w": -1.0}, {"inlet_c": 45.0}, {"rated_heat_w": 0.0}],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="cooling"):
        Cooling(**wrong)  # type: ignore[arg-type]
