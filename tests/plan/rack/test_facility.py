"""Racks from plan files: what each limit allows, and what is refused with its line."""

from __future__ import annotations

import math
import tomllib

import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.plan_tables import Mistakes, TomlTable
from joulelab.plan.rack.facility import Rack, limits_of, read_rack

PDU = "{ volts = 208, amps = 50 }"  # three phases: 18,013 VA


def rack(text: str) -> Rack:
    whole = f"[rack]\n{text}"
    problems = Mistakes("plan.toml", whole)
    found = read_rack(TomlTable(tomllib.loads(whole), (), problems).table("rack"))
    problems.check()
    return found


def watts(text: str) -> dict[str, float]:
    return {limit.name: limit.watts for limit in limits_of(rack(text), 8.0)}


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        rack(text)
    return str(error.value)


def test_margin_and_others_are_taken_off_the_supply():
    assert watts("supply_w = 70000\nmargin = 0.27\nothers_w = 500") == {"supply": pytest.approx(50_600)}


def test_breakers_carry_eighty_percent_for_long_unless_said_otherwise():
    rating = 2 * math.sqrt(3) * 208 * 50
    text = f"feeds = [{PDU}, {PDU}]\npower_factor = 0.95"
    assert watts(text) == {"breakers": pytest.approx(rating * 0.95 * 0.8)}
    assert watts(f"{text}\ncontinuous = 1.0")["breakers"] == pytest.approx(rating * 0.95)
    assert any("80 %" in said for said in rack(text).said)
    assert not any("80 %" in said for said in rack(f"{text}\ncontinuous = 1.0").said)


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
    found = {limit.name: limit for limit in limits_of(rack(f"feeds = [{PDU}]\nnode_phases = 1"))}
    whole = found["breakers"].watts
    assert found["breakers"].most_w(4) == pytest.approx(whole / 4)
    # Four nodes on three phases: two of them share one.
    assert found["phase"].most_w(4) == pytest.approx(whole / 3 / 2)
    assert found["phase"].most_w(6) == pytest.approx(whole / 6)


def test_one_feed_of_three_phases_among_others_fills_its_fullest_phase():
    one = "{ volts = 230, amps = 32, phases = 1 }"
    found = {limit.name: limit for limit in limits_of(rack(f"feeds = [{PDU}, {one}]\nnode_phases = 1"))}
    assert found["phase"].watts == pytest.approx(found["breakers"].watts)
    assert found["phase"].most_w(4) == pytest.approx(found["breakers"].watts / 3 / 2)
    # The side with three phases may be the one that is left, though it is not the weaker one.
    lost = {x.name: x for x in limits_of(rack(f'feeds = [{PDU}, {one}]\nnode_phases = 1\nredundancy = "A/B"'))}
    assert lost["feed lost"].watts == pytest.approx(230 * 32 * 0.8)
    assert lost["phase"].watts == pytest.approx(math.sqrt(3) * 208 * 50 * 0.8)


def test_phases_of_nodes_say_nothing_where_every_feed_has_one():
    one = "{ volts = 230, amps = 32, phases = 1 }"
    told = rack(f"feeds = [{one}]\nnode_phases = 1")
    assert [limit.name for limit in limits_of(told)] == ["breakers"]
    assert any("node_phases says nothing here" in said for said in told.said)
    assert not any("phases" in said for said in rack(f"feeds = [{one}]").said)
    assert any("all phases evenly" in said for said in rack(f"feeds = [{PDU}, {one}]").said)


def test_between_lines_currents_meet_at_sixty_degrees():
    (*_, phase) = limits_of(rack(f"feeds = [{PDU}]\nnode_phases = 2\ncontinuous = 1.0"))
    assert phase.name == "phase"
    assert phase.most_w(1) == pytest.approx(208 * 50)
    assert phase.most_w(2) == pytest.approx(208 * 50 / math.sqrt(3))
    assert phase.most_w(3) == pytest.approx(math.sqrt(3) * 208 * 50 / 3)
    # Brute force: phasors of the pairs' currents in the line that two of them meet in.
    pairs = [complex(math.cos(a), math.sin(a)) for a in (0.0, -2 * math.pi / 3, 2 * math.pi / 3)]
    for nodes in range(1, 13):
        counts = [(nodes + k) // 3 for k in (2, 1, 0)]
        lines = [abs(counts[k] * pairs[k] - counts[k - 1] * pairs[k - 1]) for k in range(3)]
        assert phase.most_w(nodes) == pytest.approx(208 * 50 / max(lines))


def test_height_and_outlets_are_room_not_watts():
    limits = {
        limit.name: limit
        for limit in limits_of(rack("supply_w = 1e5\nheight_u = 42\nothers_u = 3\noutlets = 24\nnode_outlets = 6"), 8.0)
    }
    assert limits["height"].most_w(4) == math.inf
    assert limits["height"].most_w(5) == 0
    assert limits["outlets"].room == 4


def test_others_heat_too():
    assert watts("supply_w = 70000\ncooling_w = 40000\nothers_w = 1000")["cooling"] == 39_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("margin = 0.2", "a rack without a supply"),
        ("feeds = []", "a rack without a supply"),
        ("supply_w = -5", "plan.toml:2: supply_w is -5"),
        ("supply_w = 70000\nmargin = 1.0", "plan.toml:3: margin is 1"),
        ("supply_w = 70000\nmargin = -0.1", "margin is -0.1"),
        ("supply_w = 70000\nothers_w = -1", "others_w is -1"),
        (f'feeds = [{PDU}]\nredundancy = "A/B"', "plan.toml:3: A/B needs two feeds (there is one)"),
        ('supply_w = 70000\nredundancy = "A/B"', "A/B needs two feeds (there are none)"),
        (f'feeds = [{PDU}]\nredundancy = "2N"', "redundancy is '2N'"),
        (f"supply_w = 30000\nfeeds = [{PDU}]", "the feeds cannot give 30000 W (all of them are rated at 18013 VA)"),
        ("feeds = [{ volts = 208 }]", "a feed without amps"),
        ("feeds = [{ volts = 208, amps = 50, phases = 2 }]", "phases is 2"),
        ("feeds = 7", "feeds is 7"),
        (f"feeds = [{PDU}]\ncontinuous = 1.2", "continuous is 1.2"),
        (f"feeds = [{PDU}]\nnode_phases = 4", "node_phases is 4"),
        ("supply_w = 1000\nothers_w = 1000", "nothing is left for nodes"),
        ("supply_w = 1000\nsuply_w = 3", "unknown key 'suply_w'"),
        ("supply_w = 1000\n[rack.rules]\npercentiles = [100]", "there is no percentile 100"),
        ("supply_w = 1000\n[rack.rules]\npercentiles = ['x']", "percentiles is ['x']"),
        ("supply_w = 1000\n[rack.rules]\nconfidence = 0.1", "confidence is 0.1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text, said):
    assert said in refusal(text)


def test_all_problems_are_told_at_once():
    told = refusal("margin = 2\nothers_w = -1\ncooling_w = 0")
    assert len(told.splitlines()) == 4


def test_a_supply_rounded_up_does_not_contradict_its_feeds():
    assert rack(f"supply_w = 18100\nfeeds = [{PDU}]").capacity_w == pytest.approx(math.sqrt(3) * 208 * 50 * 0.8)


def test_what_nodes_leave_free():
    assert rack("supply_w = 70000\nmargin = 0.27").free(6, 8480.0) == pytest.approx(0.27314, abs=1e-5)
