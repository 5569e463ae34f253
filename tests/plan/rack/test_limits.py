"""Racks from plan files: the power of each limit, the nodes that fit, and the limit that binds."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import Mistakes
from joulelab.plan.plan_tables import TomlTable
from joulelab.plan.rack.limits import Feed, Rack, allow_node_power, find_limits, fit_nodes, read_rack

PDU = "{ volts = 208, amps = 50 }"  # three phases: 18,013 VA
BNL = find_limits(Rack(supply_w=70_000.0, margin=0.27))


def rack(text: str) -> Rack:
    whole = f"[rack]\n{text}"
    problems = Mistakes("plan.toml", whole)
    found = read_rack(TomlTable(tomllib.loads(whole)["rack"], ("rack",), problems))
    problems.check()
    return found


def watts(text: str) -> dict[str, float]:
    return {limit.name: limit.watts for limit in find_limits(rack(text), 8.0)}


def test_margin_and_others_are_taken_off_the_supply():
    assert watts("supply_w = 70000\nmargin = 0.27\nothers_w = 500") == {"supply": pytest.approx(50_600)}


def test_breakers_carry_eighty_percent_for_long_unless_said_otherwise():
    rating = 2 * math.sqrt(3) * 208 * 50
    text = f"feeds = [{PDU}, {PDU}]\npower_factor = 0.95"
    assert watts(text) == {"breakers": pytest.approx(rating * 0.95 * 0.8)}
    assert watts(f"{text}\ncontinuous = 1.0")["breakers"] == pytest.approx(rating * 0.95)


def test_with_a_and_b_the_rest_after_losing_the_largest_carries_all():
    feeds = f'feeds = [{PDU}, {{ volts = 208, amps = 30 }}]\nredundancy = "A/B"'
    assert watts(feeds)["feed lost"] == pytest.approx(math.sqrt(3) * 208 * 30 * 0.8)
    assert rack(feeds).capacity_w == pytest.approx(math.sqrt(3) * 208 * 30 * 0.8)


def test_feeds_of_one_side_are_lost_together():
    feed = "{{ volts = 208, amps = 50, side = '{}' }}"
    feeds = ", ".join(feed.format(side) for side in "AABB")
    one = math.sqrt(3) * 208 * 50 * 0.8
    assert watts(f'feeds = [{feeds}]\nredundancy = "A/B"')["feed lost"] == pytest.approx(2 * one)


def test_single_phase_feeds_have_no_root_of_three():
    assert watts("feeds = [{ volts = 230, amps = 32, phases = 1 }]")["breakers"] == pytest.approx(230 * 32 * 0.8)


def test_on_single_phases_the_fullest_phase_binds():
    found = {limit.name: limit for limit in find_limits(rack(f"feeds = [{PDU}]\nnode_phases = 1"))}
    whole = found["breakers"].watts
    assert found["breakers"].allow_node_power(4) == pytest.approx(whole / 4)
    # Four nodes on three phases: two of them share one.
    assert found["phase"].allow_node_power(4) == pytest.approx(whole / 3 / 2)
    assert found["phase"].allow_node_power(6) == pytest.approx(whole / 6)


def test_one_feed_of_three_phases_among_others_fills_its_fullest_phase():
    one = "{ volts = 230, amps = 32, phases = 1 }"
    found = {limit.name: limit for limit in find_limits(rack(f"feeds = [{PDU}, {one}]\nnode_phases = 1"))}
    assert found["phase"].watts == pytest.approx(found["breakers"].watts)
    assert found["phase"].allow_node_power(4) == pytest.approx(found["breakers"].watts / 3 / 2)
    # The side with three phases may be the one that is left, though it is not the weaker one.
    lost = {x.name: x for x in find_limits(rack(f'feeds = [{PDU}, {one}]\nnode_phases = 1\nredundancy = "A/B"'))}
    assert lost["feed lost"].watts == pytest.approx(230 * 32 * 0.8)
    assert lost["phase"].watts == pytest.approx(math.sqrt(3) * 208 * 50 * 0.8)


def test_between_lines_currents_meet_at_sixty_degrees():
    (*_, phase) = find_limits(rack(f"feeds = [{PDU}]\nnode_phases = 2\ncontinuous = 1.0"))
    assert phase.name == "phase"
    assert phase.allow_node_power(1) == pytest.approx(208 * 50)
    assert phase.allow_node_power(2) == pytest.approx(208 * 50 / math.sqrt(3))
    assert phase.allow_node_power(3) == pytest.approx(math.sqrt(3) * 208 * 50 / 3)
    # Brute force: phasors of the pairs' currents in the line that two of them meet in.
    pairs = [complex(math.cos(a), math.sin(a)) for a in (0.0, -2 * math.pi / 3, 2 * math.pi / 3)]
    for nodes in range(1, 13):
        counts = [(nodes + k) // 3 for k in (2, 1, 0)]
        lines = [abs(counts[k] * pairs[k] - counts[k - 1] * pairs[k - 1]) for k in range(3)]
        assert phase.allow_node_power(nodes) == pytest.approx(208 * 50 / max(lines))


def test_height_and_outlets_are_room_not_watts():
    limits = {
        limit.name: limit
        for limit in find_limits(
            rack("supply_w = 1e5\nheight_u = 42\nothers_u = 3\noutlets = 24\nnode_outlets = 6"), 8.0
        )
    }
    assert limits["height"].allow_node_power(4) == math.inf
    assert limits["height"].allow_node_power(5) == 0
    assert limits["outlets"].room == 4


def test_others_heat_too():
    assert watts("supply_w = 70000\ncooling_w = 40000\nothers_w = 1000")["cooling"] == 39_000


def test_a_supply_rounded_up_does_not_contradict_its_feeds():
    assert rack(f"supply_w = 18100\nfeeds = [{PDU}]").capacity_w == pytest.approx(math.sqrt(3) * 208 * 50 * 0.8)


def test_what_nodes_leave_free():
    assert rack("supply_w = 70000\nmargin = 0.27").compute_free_share(6, 8480.0) == pytest.approx(0.27314, abs=1e-5)


def test_two_feeds_without_names_are_two():
    """Equal feeds without name and side: one of them is left when the other is lost."""
    found = {limit.name: limit.watts for limit in find_limits(rack(f'feeds = [{PDU}, {PDU}]\nredundancy = "A/B"'))}
    assert found["feed lost"] == pytest.approx(found["breakers"] / 2)
    assert found["feed lost"] == pytest.approx(math.sqrt(3) * 208 * 50 * 0.8)


def test_the_published_rack_takes_five_by_nameplate_and_six_by_what_was_measured():
    assert fit_nodes(BNL, 10_200.0).nodes == 5
    assert fit_nodes(BNL, 8_480.0).nodes == 6
    assert fit_nodes(BNL, 8_480.0).binding.name == "supply"


def test_the_limit_that_keeps_out_one_more_binds():
    rack = Rack(supply_w=70_000.0, margin=0.27, cooling_w=45_000.0, height_u=48.0)
    assert fit_nodes(find_limits(rack, 8.0), 8_480.0).binding.name == "cooling"
    assert fit_nodes(find_limits(rack, 10.0), 8_480.0).binding.name == "height"
    assert fit_nodes(find_limits(rack, 10.0), 8_480.0).nodes == 4


def test_a_node_that_fits_to_the_watt_fits():
    limits = find_limits(Rack(supply_w=60_000.0))
    assert fit_nodes(limits, 10_000.0).nodes == 6
    assert fit_nodes(limits, 10_000.1).nodes == 5


def test_none_fits_where_one_is_too_much():
    assert fit_nodes(BNL, 60_000.0).nodes == 0


@every_row("node_w", [0.0, -1.0, float("nan"), float("inf"), 0.001])
def test_what_is_no_node_is_refused(node_w):
    with pytest.raises(ConfigError):
        fit_nodes(BNL, node_w)


@pytest.mark.system  # pure, and slow
@settings(max_examples=40)
@given(st.floats(100, 20_000), st.sampled_from([1, 2, 3]), st.floats(0, 0.5), st.integers(10, 200), st.integers(2, 4))
def test_what_fits_keeps_every_limit_and_one_more_does_not(node_w, node_phases, margin, amps, feeds):
    rack = Rack(
        feeds=tuple(Feed(400.0, float(amps)) for n in range(feeds)), redundancy="A/B", node_phases=node_phases,
        margin=margin, cooling_w=50_000.0,
    )  # fmt: skip
    limits = find_limits(rack)
    found = fit_nodes(limits, node_w)
    assert found.nodes == 0 or all(node_w <= limit.allow_node_power(found.nodes) * (1 + 1e-6) for limit in limits)
    assert node_w > found.binding.allow_node_power(found.nodes + 1)
    assert allow_node_power(limits, found.nodes + 1) < node_w
    if found.nodes:
        assert rack.compute_free_share(found.nodes, node_w) >= margin - 1e-6
