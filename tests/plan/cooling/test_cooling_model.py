"""The effect of another cooling: measured fans are scaled, others modelled, with the assumed ranges in the interval."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.plan.measured_runs import measured, node_run
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.plan.cooling.cooling_model import (
    BEYOND_SEEN,
    KINDS,
    SUPPLY_EFFICIENCIES,
    CoolingInput,
    CoolingSetting,
    FanReadings,
    compute_fan_factor,
    plan_cooling,
    read_fans,
    scale_fans,
)
from joulelab.store.run_reader import open_run
from joulelab.twin import profile
from joulelab.twin.model import H100, Cooling, Node
from joulelab.twin.nodefile import find_node
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.cooling.cooling_model import CoolingKind, CoolingOption, CoolingPlan

NS = 10**9
AIR = CoolingSetting("air", 25.0)
BMC = {"temperature_c": ("degC", 22.0), "fan1_speed_rpm": ("rpm", 6000.0), "fan2_speed_rpm": ("rpm", 8000.0)}


def read_run_fans(run: Path) -> FanReadings:
    result = measured(run).result
    with open_run(run) as opened:
        return read_fans(opened, result.start_ns, result.end_ns)


def plan_run(run: Path, node: Node | None = None, **given: Any) -> CoolingPlan:
    asked = {key: given.pop(key) for key in ("kinds", "inlets_c") if key in given}
    return plan_cooling(measured(run), read_run_fans(run), node, CoolingInput(**given), **asked)


def plan_model(node: Node | None = None, **given: Any) -> CoolingPlan:
    asked = {key: given.pop(key) for key in ("kinds", "inlets_c") if key in given}
    node = node or find_node("bnl-h100").node
    return plan_cooling(None, FanReadings(), node, CoolingInput(**given), **asked)


def find_option(plan: CoolingPlan, kind: str, inlet_c: float | None = None) -> CoolingOption:
    return next(o for o in plan.options if o.setting.kind == kind and inlet_c in (None, o.setting.inlet_c))


def test_the_law_is_that_of_the_twin() -> None:
    wide = {"fan_idle_w": 0.0, "fan_max_w": 1000.0, "rated_heat_w": 20_000.0}
    for kind in KINDS[:3]:
        for inlet_c in (15.0, 25.0, 30.0):
            twin = [
                Cooling(kind=k, inlet_c=c, **wide).fans_w(np.array([5000.0]), 1.0)[0]  # type: ignore[arg-type]
                for k, c in (("air", 25.0), (kind, inlet_c))
            ]
            assert compute_fan_factor(AIR, CoolingSetting(kind, inlet_c)) == pytest.approx(twin[1] / twin[0])


@every_row(
    ("then", "value", "sources"),
    [
        (AIR, 1.0, set()),
        (CoolingSetting("air", 35.0), 8.0, {"exhaust", "cube"}),
        (CoolingSetting("rear-door", 25.0), 1.1, {"door"}),
        (CoolingSetting("direct-to-chip", 25.0), 1 / 64, {"water", "cube"}),
        (CoolingSetting("immersion", 25.0), 0.0, set()),
    ],
)
def test_a_change_has_the_terms_of_its_assumptions(then: CoolingSetting, value: float, sources: set[str]) -> None:
    found = scale_fans(AIR, then)
    assert found.value == pytest.approx(value)
    assert set(found.terms) == {f"assumed:{name}" for name in sources}


def test_fans_and_inlet_are_read_from_the_run(tmp_path: Path) -> None:
    found = read_run_fans(node_run(tmp_path, gpu_w=300.0, cooling=BMC, fan_w=450.0))
    assert found.power_w is not None
    assert found.power_w.value == pytest.approx(450.0)
    assert found.power_w.u == pytest.approx(450.0 * 0.02 / np.sqrt(3))
    assert found.speed == pytest.approx(((6000.0**3 + 8000.0**3) / 2) ** (1 / 3))
    assert (found.highest_speed, found.unit, found.inlet_c) == (8000.0, "rpm", 22.0)
    # The temperature of a GPU is not that of the inlet.
    assert read_run_fans(node_run(tmp_path / "bare", gpu_w=300.0, gpu_c=45.0)) == FanReadings()


def test_a_speed_that_changes_counts_by_its_cubes(tmp_path: Path) -> None:
    found = read_run_fans(node_run(tmp_path, cooling={"fan1_speed": ("1", lambda s: 1.0 if s > 10 else 0.0)}))
    assert (found.unit, found.highest_speed) == ("1", 1.0)
    assert found.speed == pytest.approx(0.5 ** (1 / 3), rel=0.03)  # half of the time at full speed


def test_measured_fans_are_scaled_through_the_supplies(tmp_path: Path) -> None:
    plan = plan_run(node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=480.0), efficiency=0.96, inlet_c=25.0)
    door, chip, bath = (find_option(plan, kind) for kind in ("rear-door", "direct-to-chip", "immersion"))
    assert plan.fans_by == "measured"
    assert (plan.now.change_w.value, plan.now.change_w.expanded) == (0.0, 0.0)
    assert bath.fans_w.value == 0
    assert bath.change_w.value == pytest.approx(-500.0)  # at the wall
    assert bath.change_w.u == pytest.approx(480.0 * 0.02 / np.sqrt(3) / 0.96)
    assert bath.node_w.value == pytest.approx(5500.0)
    assert bath.highest_w == pytest.approx(5500.0)
    assert bath.year_kwh.value == pytest.approx(5500.0 * 8.766)
    assert door.change_w.value == pytest.approx(50.0)
    assert chip.fans_w.value == pytest.approx(480.0 / 64)
    assert chip.change_w.u > 0
    mild = find_option(plan, "air", 27.0)
    assert mild.change_w.value == pytest.approx(500.0 * ((20 / 18) ** 3 - 1))
    assert "assumed:exhaust" in mild.change_w.terms
    # The meter of the node is not part of a difference, and is part of the sum.
    assert not any(source.startswith("gain:pdu") for source in bath.change_w.terms)
    assert any(source.startswith("gain:pdu") for source in bath.node_w.terms)


def test_the_law_is_not_trusted_far_beyond_the_measured_fan_power(tmp_path: Path) -> None:
    run = node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=480.0)
    plan = plan_run(run, efficiency=0.96, inlet_c=25.0)
    warm = find_option(plan, "air", 32.0)
    assert (20 / 18) ** 3 < BEYOND_SEEN < (20 / 13) ** 3
    assert warm.change_w.value == pytest.approx(500.0 * ((20 / 13) ** 3 - 1))
    assert (warm.is_beyond_seen, warm.is_at_full_speed, warm.change_w.known) == (True, False, False)
    assert [one.setting for one in plan.options if one.is_beyond_seen] == [warm.setting]
    assert plan.notes[0].code == "cooling.beyond-seen"
    able = find_option(plan_run(run, efficiency=0.96, inlet_c=25.0, fan_max_w=1900.0), "air", 32.0)
    assert (able.is_beyond_seen, able.is_at_full_speed, able.change_w.known) == (False, False, True)
    assert able.change_w.value == pytest.approx(warm.change_w.value)


def test_a_speed_becomes_a_power_by_its_cube(tmp_path: Path) -> None:
    run = node_run(tmp_path, 6000.0, idle_w=6000.0, cooling=BMC)
    plan = plan_run(run, fan_max_w=900.0, fan_rpm=12_000.0)
    cubes = (0.5**3 + (8000 / 12_000) ** 3) / 2
    assert plan.now.fans_w.value == pytest.approx(900.0 * cubes)
    assert set(plan.now.fans_w.terms) == {"assumed:cube"}
    assert (plan.fans_by, plan.now.setting, plan.inlet_by) == ("speed", CoolingSetting("air", 22.0), "measured")
    modelled = plan_run(run, find_node("bnl-h100").node, fan_rpm=12_000.0)  # its power at full speed is the model's
    assert set(modelled.now.fans_w.terms) == {"assumed:cube", "assumed:fan-power"}
    assert find_option(modelled, "immersion").fans_w.expanded == 0


def test_fans_do_not_leave_their_range(tmp_path: Path) -> None:
    run = node_run(tmp_path, 6000.0, idle_w=6000.0, fan_w=480.0)
    plan = plan_run(run, fan_max_w=700.0, inlet_c=25.0, inlets_c=(27.0, 32.0))
    mild, warm = plan.options
    assert (mild.is_at_full_speed, warm.is_at_full_speed) == (False, True)
    assert warm.fans_w.value == pytest.approx(700.0)
    assert plan.notes[0].code == "cooling.full-speed"
    node = find_node("bnl-h100").node
    chip = find_option(plan_run(run, node, inlet_c=25.0), "direct-to-chip")
    assert chip.fans_w.value == pytest.approx(node.cooling.fan_idle_w)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_the_model_predicts_a_twin_with_that_cooling(tmp_path: Path, kind: CoolingKind) -> None:
    node = Node(gpus=(H100,) * 8, spread=0.0)
    then = replace(node, cooling=replace(node.cooling, kind=kind, inlet_c=28.0))
    walls = []
    for k, each in enumerate((node, then)):
        with Truth.create(tmp_path / f"t{k}", each, profiles={"gpu": profile.constant(0.8)}, start_ns=NS) as truth:
            walls.append(truth.power("node.ac", 5 * NS))
    plan = plan_model(node, power_w=walls[0], kinds=(kind,), inlets_c=(28.0,))
    (found,) = plan.options
    assert plan.fans_by == "model"
    assert found.node_w.value == pytest.approx(walls[1], rel=3e-3)
    assert abs(found.change_w.value - (walls[1] - walls[0])) < found.change_w.expanded  # type: ignore[operator]


def test_the_model_uses_the_course_and_not_the_mean(tmp_path: Path) -> None:
    node = find_node("bnl-h100").node
    varied = plan_run(node_run(tmp_path, lambda s: 8500.0 if s % 10 < 5 else 3000.0, seconds=40.0, idle_w=5750.0), node)
    flat = plan_model(node, power_w=varied.now.node_w.value)
    assert varied.now.fans_w.value > 1.2 * flat.now.fans_w.value


def test_without_a_run_the_node_is_at_the_calibrated_full_load() -> None:
    plan = plan_model()
    assert plan.now.node_w.value == pytest.approx(8460.0, rel=0.01)
    assert plan.now.setting == CoolingSetting("rear-door", 23.8)
    assert {"cooling.full-load", "cooling.model-inlet", "cooling.outside", "cooling.assumed"} <= {
        note.code for note in plan.notes
    }
    assert all(option.change_w.known for option in plan.options)


def test_a_node_behind_its_supplies_is_shown_at_the_wall(tmp_path: Path) -> None:
    run = node_run(tmp_path, 4800.0, idle_w=4800.0, scope="node.dc", fan_w=480.0)
    plan = plan_run(run, efficiency=0.96, inlet_c=25.0)
    assert plan.now.node_w.value == pytest.approx(5000.0)
    assert plan.now.highest_w == pytest.approx(5000.0)
    assert find_option(plan, "immersion").node_w.value == pytest.approx(4500.0)
    unknown = plan_run(run, inlet_c=25.0)
    assert unknown.now.node_w.value == pytest.approx(4800.0 / (sum(SUPPLY_EFFICIENCIES) / 2))
    assert "assumed:efficiency" in unknown.now.node_w.terms


def test_an_inlet_outside_of_class_a1_has_a_note() -> None:
    for inlet_c, expected in ((27.0, []), (34.0, ["34"]), (4.0, ["4"])):
        plan = plan_model(power_w=3000.0, inlets_c=(inlet_c,))
        assert [note.texts["inlet"] for note in plan.notes if note.code == "cooling.class"] == expected


def test_the_data_states_the_source_of_each_figure() -> None:
    data = json.loads(json.dumps(plan_model().to_json(), allow_nan=False))
    assert (data["model"], data["simulated"], data["inlet_by"]) == ("bnl-h100", None, "model")
    assert {option["fans_by"] for option in data["options"]} == {"model"}
    assert data["now"]["cooling"] == "rear-door"
    assert len(data["notes"]) == len(data["messages"])


@every_row(
    ("made", "given", "words"),
    [
        ({}, {}, "present inlet temperature is not known"),
        ({}, {"inlet_c": 22.0}, "no fan was measured"),
        ({"cooling": BMC}, {}, "--fan-max"),
        ({"cooling": BMC}, {"fan_max_w": 900.0}, "--fan-rpm"),
        ({"cooling": BMC}, {"fan_max_w": 900.0, "fan_rpm": 5000.0}, "faster than the full speed"),
        ({"fan_w": 480.0}, {"inlet_c": 22.0, "power_w": 7000.0}, "--power is for a node without a run"),
        ({"fan_w": 480.0}, {"inlet_c": 22.0, "inlets_c": (50.0,)}, "too warm"),
        ({"fan_w": 480.0}, {"inlet_c": 44.0}, "too warm"),
        ({"fan_w": 480.0}, {"inlet_c": 22.0, "kinds": ("air",)}, "nothing to compare"),
        ({"fan_w": 480.0}, {"inlet_c": 22.0, "kind": "immersion"}, "immersed node has no fans"),
        ({"fan_w": 0.0}, {"inlet_c": 22.0}, "draw no power"),
        ({"fan_w": 480.0}, {"inlet_c": 22.0, "fan_max_w": 200.0}, "the fans draw more than 200 W"),
        ({"fan_w": 9000.0}, {"inlet_c": 22.0}, "is off"),
        ({"fan_w": 480.0, "scope": "gpu:0"}, {"inlet_c": 22.0}, "measured only node1 gpu:0"),
    ],
)
def test_a_run_that_does_not_give_the_answer_is_refused(
    tmp_path: Path, made: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        plan_run(node_run(tmp_path, **made), **given)
    assert caught.value.next


def test_a_node_that_draws_far_more_than_its_model_is_another_node() -> None:
    with pytest.raises(ConfigError, match="not a bnl-h100"):
        plan_model(power_w=12_000.0)


def test_a_node_below_the_power_of_its_fans_is_off() -> None:
    with pytest.raises(ConfigError, match=r"a node of .* W is off"):
        plan_model(power_w=100.0)


def test_a_stated_full_power_of_fans_replaces_that_of_the_model() -> None:
    """A warmer inlet never needs less fan power, and fans follow their stated full power."""
    own = plan_model(inlets_c=(26.0,))
    node = find_node("bnl-h100").node
    stated = plan_model(inlets_c=(26.0,), fan_max_w=2 * node.cooling.fan_max_w)
    assert stated.now.fans_w.value == pytest.approx(2 * own.now.fans_w.value, rel=1e-6)
    small = plan_model(inlets_c=(26.0,), fan_max_w=100.0)
    assert small.options[0].change_w.value > 0


def test_an_immersed_node_has_one_row_for_all_inlets() -> None:
    plan = plan_model(kinds=("immersion", "air"), inlets_c=(27.0, 30.0))
    assert [one.setting.kind for one in plan.options] == ["immersion", "air", "air"]
