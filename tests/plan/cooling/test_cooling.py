"""What another cooling changes: measured fans are scaled, others modelled, each marked as which."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.plan.measured_runs import GAIN, measured, node_run

from joulelab.core.errors import ConfigError
from joulelab.plan.cooling.blowing import BEYOND_SEEN, ModelledFans, full_load_w
from joulelab.plan.cooling.decide import Given, plan_cooling
from joulelab.plan.cooling.fans import KINDS, Law, Seen, Setting, change, seen_of
from joulelab.plan.cooling.pooled import load_of
from joulelab.plan.cooling.supplies import Supplies
from joulelab.plan.rack.spread import ASSUMED as SPREAD
from joulelab.store.run_reader import open_run
from joulelab.twin import power_curves, profile
from joulelab.twin.model import H100, Cooling, Node
from joulelab.twin.nodefile import find_node
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.cooling.decide import CoolingPlan, Option
    from joulelab.plan.cooling.fans import CoolingKind
    from joulelab.plan.measured_runs import MeasuredRun

NS = 10**9
UP = (1 + 2 * GAIN / 3**0.5) * (1 + SPREAD)  # what a meter's gain and other nodes add to a highest power (k = 2)
AIR = Setting("air", 25.0)
BMC = {"temperature_c": ("degC", 22.0), "fan1_speed_rpm": ("rpm", 6000.0), "fan2_speed_rpm": ("rpm", 8000.0)}


def seen(run: Path) -> tuple[MeasuredRun, Seen]:
    one = measured(run)
    with open_run(run) as opened:
        return one, seen_of(opened, one.result.start_ns, one.result.end_ns)


def planned(run: Path, node: Node | None = None, **more: Any) -> CoolingPlan:
    one, saw = seen(run)
    asked = {key: more.pop(key) for key in ("kinds", "inlets_c") if key in more}
    return plan_cooling([one], [saw], node, Given(**more), **asked)


def option(plan: CoolingPlan, kind: str, inlet_c: float | None = None) -> Option:
    return next(o for o in plan.options if o.setting.kind == kind and inlet_c in (None, o.setting.inlet_c))


def test_the_law_is_that_of_the_twin() -> None:
    wide = {"fan_idle_w": 0.0, "fan_max_w": 1000.0, "rated_heat_w": 20_000.0}
    for kind in KINDS[:3]:
        for inlet_c in (15.0, 25.0, 30.0):
            twin = [
                Cooling(kind=k, inlet_c=c, **wide).fans_w(np.array([5000.0]), 1.0)[0]  # type: ignore[arg-type]
                for k, c in (("air", 25.0), (kind, inlet_c))
            ]
            assert Law().factor(AIR, Setting(kind, inlet_c)) == pytest.approx(twin[1] / twin[0])


@pytest.mark.parametrize(
    ("then", "value", "sources"),
    [
        (AIR, 1.0, set()),
        (Setting("air", 35.0), 8.0, {"exhaust", "cube"}),
        (Setting("rear-door", 25.0), 1.1, {"door"}),
        (Setting("direct-to-chip", 25.0), 1 / 64, {"water", "cube"}),
        (Setting("immersion", 25.0), 0.0, set()),
    ],
)
def test_a_change_has_the_terms_of_what_it_rests_on(then: Setting, value: float, sources: set[str]) -> None:
    found = change(AIR, then)
    assert found.value == pytest.approx(value)
    assert set(found.terms) == {f"assumed:{name}" for name in sources}


def test_air_as_warm_as_the_exhaust_carries_nothing_off() -> None:
    with pytest.raises(ConfigError, match="an inlet of 44 °C is too warm"):
        change(AIR, Setting("air", 44.0))
    with pytest.raises(ConfigError, match="immersed"):
        change(Setting("immersion", 25.0), AIR)


def test_fans_and_inlet_are_read_from_what_was_recorded(tmp_path: Path) -> None:
    _, found = seen(node_run(tmp_path, gpu_w=300.0, cooling=BMC, fan_w=450.0))
    assert found.power_w is not None
    assert found.power_w.value == pytest.approx(450.0)
    assert found.power_w.u == pytest.approx(450.0 * 0.02 / np.sqrt(3))
    assert found.speed == pytest.approx(((6000.0**3 + 8000.0**3) / 2) ** (1 / 3))
    assert (found.highest_speed, found.is_rpm, found.inlet_c) == (8000.0, True, 22.0)
    _, nothing = seen(node_run(tmp_path / "bare", gpu_w=300.0, gpu_c=45.0))  # a GPU's own temperature is no inlet
    assert nothing == Seen()


def test_a_speed_that_changes_counts_by_its_cubes(tmp_path: Path) -> None:
    _, found = seen(node_run(tmp_path, cooling={"fan1_speed": ("1", lambda s: 1.0 if s > 10 else 0.0)}))
    assert not found.is_rpm
    assert found.speed == pytest.approx(0.5 ** (1 / 3), rel=0.03)  # half of the time at full speed
    assert found.highest_speed == 1.0


def test_runs_weigh_by_their_time_however_often_they_were_read(tmp_path: Path) -> None:
    slow = measured(node_run(tmp_path / "a", 8000.0, idle_w=8000.0, seconds=100.0, step_s=5.0))
    fast = measured(node_run(tmp_path / "b", 4000.0, idle_w=4000.0, seconds=100.0, step_s=0.5))
    load = load_of([slow, fast], Supplies(None, 1.0))
    assert load.mean_w.value == pytest.approx(6000.0)
    assert float(np.mean(load.course_w)) == pytest.approx(6000.0, rel=0.02)


def test_measured_fans_are_scaled_through_the_supplies(tmp_path: Path) -> None:
    plan = planned(node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=480.0), efficiency=0.96, inlet_c=25.0)
    door, chip, bath = (option(plan, kind) for kind in ("rear-door", "direct-to-chip", "immersion"))
    assert {o.by for o in plan.options} == {"measured"}
    assert (plan.now.change_w.value, plan.now.change_w.expanded) == (0.0, 0.0)
    assert bath.fans_w.value == 0
    assert bath.change_w.value == pytest.approx(-500.0)  # at the wall
    assert bath.change_w.u == pytest.approx(480.0 * 0.02 / np.sqrt(3) / 0.96)  # the fans' meter, at the wall
    assert bath.node_w.value == pytest.approx(5500.0)
    assert door.change_w.value == pytest.approx(50.0)
    assert chip.fans_w.value == pytest.approx(480.0 / 64)
    assert chip.change_w.known
    assert chip.change_w.u > 0
    assert bath.highest_w == pytest.approx(5500.0)
    mild = option(plan, "air", 27.0)
    assert mild.change_w.value == pytest.approx(500.0 * ((20 / 18) ** 3 - 1))
    assert "assumed:exhaust" in mild.change_w.terms


def test_the_law_is_not_trusted_far_beyond_what_was_seen(tmp_path: Path) -> None:
    run = node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=480.0)
    told: dict[str, Any] = {"efficiency": 0.96, "inlet_c": 25.0, "supply_w": 65_000.0}
    plan = planned(run, **told)
    warm, others = option(plan, "air", 32.0), [o for o in plan.options if o.setting.inlet_c != 32.0]
    assert (20 / 18) ** 3 < BEYOND_SEEN < (20 / 13) ** 3
    assert warm.change_w.value == pytest.approx(500.0 * ((20 / 13) ** 3 - 1))
    assert (warm.beyond_seen, warm.full_speed, warm.change_w.known) == (True, False, False)
    assert warm.upper_w > 6000.0 + warm.change_w.value + 2 * warm.change_w.u  # nodes are not counted by less
    assert not any(o.beyond_seen for o in others)
    assert [text for text in plan.warnings if "over 1.5 times what was seen" in text and "air at 32" in text]
    able = option(planned(run, **told, fan_max_w=1900.0), "air", 32.0)
    assert (able.beyond_seen, able.full_speed, able.change_w.known) == (False, False, True)
    assert able.change_w.value == pytest.approx(warm.change_w.value)


def test_the_gain_of_the_nodes_meter_is_not_in_the_change(tmp_path: Path) -> None:
    plan = planned(node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=480.0), efficiency=0.96)
    bath = option(plan, "immersion")
    assert not any(source.startswith("gain:pdu") for source in bath.change_w.terms)
    assert any(source.startswith("gain:pdu") for source in bath.node_w.terms)


def test_a_speed_becomes_a_power_by_its_cube(tmp_path: Path) -> None:
    run = node_run(tmp_path, 6000.0, idle_w=6000.0, cooling=BMC)
    plan = planned(run, fan_max_w=900.0, fan_rpm=12_000.0)
    cubes = (0.5**3 + (8000 / 12_000) ** 3) / 2
    assert plan.now.fans_w.value == pytest.approx(900.0 * cubes)
    assert plan.now.fans_w.known
    assert plan.now.fans_w.u > 0
    assert plan.now.setting == Setting("air", 22.0)
    assert "speed was measured" in plan.notes[0]
    assert any("90 to 97 % efficient, assumed" in note for note in plan.notes)
    modelled = planned(run, find_node("bnl-h100").node, fan_rpm=12_000.0)
    assert (plan.now.by, modelled.now.by) == ("speed", "model")
    assert option(modelled, "immersion").fans_w.expanded == 0  # there are none
    assert not modelled.now.fans_w.known  # nobody states what those of a model take
    with pytest.raises(ConfigError, match="--fan-rpm"):
        planned(run, fan_max_w=900.0)
    with pytest.raises(ConfigError, match="--fan-max"):
        planned(run)


def test_fans_do_not_leave_the_range_that_is_known(tmp_path: Path) -> None:
    run = node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=480.0)
    plan = planned(run, fan_max_w=700.0, inlet_c=25.0, inlets_c=(27.0, 32.0))
    mild, warm = plan.options
    assert not mild.full_speed
    assert warm.full_speed
    assert warm.fans_w.value == 700.0
    assert any("fans at full speed do not carry" in text for text in plan.warnings)
    node = find_node("bnl-h100").node
    assert option(planned(run, node, inlet_c=25.0), "direct-to-chip").fans_w.value == node.cooling.fan_idle_w


@pytest.mark.parametrize("kind", KINDS[:3])
def test_the_model_says_what_a_twin_with_that_cooling_takes(tmp_path: Path, kind: CoolingKind) -> None:
    node = Node(gpus=(H100,) * 8, spread=0.0)
    then = replace(node, cooling=replace(node.cooling, kind=kind, inlet_c=28.0))
    walls = []
    for k, each in enumerate((node, then)):
        with Truth.create(tmp_path / f"t{k}", each, profiles={"gpu": profile.constant(0.8)}, start_ns=NS) as truth:
            walls.append(truth.power("node.ac", 5 * NS))
    given = Given(power_w=walls[0])
    plan = plan_cooling([], [], node, given, kinds=(kind,), inlets_c=(28.0,))
    (found,) = plan.options
    assert found.by == "model"
    assert found.node_w.value == pytest.approx(walls[1], rel=2e-3)  # its curve has knots 5 % of full load apart
    assert not found.change_w.known
    assert plan.model == "twin"


def test_the_model_goes_by_the_course_and_not_by_the_mean(tmp_path: Path) -> None:
    node = find_node("bnl-h100").node
    one = measured(node_run(tmp_path, lambda s: 8500.0 if s % 10 < 5 else 3000.0, seconds=40.0, idle_w=5750.0))
    supplies = Supplies(node, None)
    load = load_of([one], supplies)
    now = Setting(node.cooling.kind, node.cooling.inlet_c)
    found = ModelledFans(node, now, load, supplies).under(now).fans_w.value
    even = replace(load, course_w=np.array([load.mean_w.value]))
    flat = ModelledFans(node, now, even, supplies).under(now).fans_w.value
    assert found > 1.2 * flat


def test_full_load_is_that_of_the_calibrated_burn() -> None:
    node = find_node("bnl-h100").node
    assert full_load_w(node, Supplies(node, None)) == pytest.approx(8460.0, rel=0.01)
    heat = sum(
        min(node.range_w(leaf)[1], 700.0 if leaf.startswith("gpu") else 1e9)
        for leaf in power_curves.list_heating_leaves(node.list_leaves())
    )
    plan = plan_cooling([], [], node, Given(), kinds=("immersion",))
    assert plan.options[0].node_w.value == pytest.approx(float(np.interp(heat, *node.to_ac())), rel=1e-3)
    better = plan_cooling([], [], node, Given(efficiency=0.99), kinds=("immersion",))
    assert better.options[0].node_w.value == pytest.approx(heat / 0.99)


def test_a_node_behind_its_supplies_is_shown_at_the_wall(tmp_path: Path) -> None:
    plan = planned(node_run(tmp_path, 4800.0, idle_w=4800.0, scope="node.dc", fan_w=480.0), efficiency=0.96)
    assert plan.now.node_w.value == pytest.approx(5000.0)
    assert plan.now.highest_w == pytest.approx(5000.0)
    assert option(plan, "immersion").node_w.value == pytest.approx(4500.0)


def test_a_rack_a_year_and_a_facility(tmp_path: Path) -> None:
    run = node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=960.0, options={"node": {"rated_w": 10_000.0}})
    pue = {"air": 1.5, "immersion": 1.1}
    plan = planned(run, efficiency=0.96, use=0.5, supply_w=36_000.0, margin=0.1, pue=pue)
    bath = option(plan, "immersion")
    assert (plan.now.nodes, bath.nodes) == (5, 6)
    assert (plan.now.highest_w, plan.now.upper_w) == (pytest.approx(6000.0), pytest.approx(6000.0 * UP))
    assert any(f"nodes are by {UP:.3f} times the highest reading" in note for note in plan.notes)
    assert bath.kwh.value == pytest.approx(5000.0 * 4383.0 / 1000)
    assert bath.facility_kwh is not None
    assert bath.facility_kwh.value == pytest.approx(1.1 * bath.kwh.value)
    assert option(plan, "rear-door").facility_kwh is None
    assert plan.rated_kwh == pytest.approx(43_830.0)


@pytest.mark.parametrize(
    ("inlet_c", "said"),
    [(27.0, None), (34.0, "class A2 is needed"), (38.0, "class A3 is needed"), (4.0, "no class of ASHRAE")],
)
def test_inlets_outside_of_a_class_are_warned_of(inlet_c: float, said: str | None) -> None:
    plan = plan_cooling([], [], find_node("bnl-h100").node, Given(power_w=3000.0), inlets_c=(inlet_c,))
    texts = [text for text in plan.warnings if "ASHRAE" in text]
    assert len(texts) == (said is not None)
    assert said is None or said in texts[0]


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no fan was measured"):
        planned(node_run(tmp_path / "a"))
    with pytest.raises(ConfigError, match="there is no node to cool"):
        plan_cooling([], [], None, Given())
    with pytest.raises(ConfigError, match="--power is for a node without runs"):
        planned(node_run(tmp_path / "b", fan_w=480.0), power_w=7000.0)
    with pytest.raises(ConfigError, match="too warm"):
        plan_cooling([], [], find_node("bnl-h100").node, Given(), inlets_c=(50.0,))


def test_plain_data_says_where_each_figure_is_from(tmp_path: Path) -> None:
    plan = plan_cooling([], [], find_node("bnl-h100").node, Given())
    told = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert (told["model"], told["simulated"]) == ("bnl-h100", None)
    assert {o["fans_by"] for o in told["options"]} == {"model"}
    assert all(o["change_w"]["expanded"] is None for o in told["options"])
    assert told["now"]["cooling"] == "rear-door"
    assert told["now"]["highest_upper_w"] == told["now"]["highest_w"]
    assert told["now"]["fans_beyond_seen"] is False
    counted = plan_cooling([], [], find_node("bnl-h100").node, Given(supply_w=70_000.0))
    assert any("nothing was measured of peaks" in note for note in counted.notes)
