"""How many nodes fit: the published rack, limits that bind, and power that is stranded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.plan.rack.facility import Feed, Rack, limits_of
from joulelab.plan.rack.fit import allowed_w, fit, stranded_w

BNL = limits_of(Rack(supply_w=70_000.0, margin=0.27))


def test_the_published_rack_takes_five_by_nameplate_and_six_by_what_was_measured():
    assert fit(BNL, 10_200.0).nodes == 5
    assert fit(BNL, 8_480.0).nodes == 6
    assert fit(BNL, 8_480.0).binding.name == "supply"
    assert stranded_w(BNL, 5, 8_480.0) == pytest.approx(51_100 - 42_400)
    assert stranded_w(BNL, 6, 8_480.0) == pytest.approx(220)


def test_the_limit_that_keeps_out_one_more_binds():
    rack = Rack(supply_w=70_000.0, margin=0.27, cooling_w=45_000.0, height_u=48.0)
    assert fit(limits_of(rack, 8.0), 8_480.0).binding.name == "cooling"
    assert fit(limits_of(rack, 10.0), 8_480.0).binding.name == "height"
    assert fit(limits_of(rack, 10.0), 8_480.0).nodes == 4


def test_a_node_that_fits_to_the_watt_fits():
    limits = limits_of(Rack(supply_w=60_000.0))
    assert fit(limits, 10_000.0).nodes == 6
    assert fit(limits, 10_000.1).nodes == 5


def test_none_fits_where_one_is_too_much():
    assert fit(BNL, 60_000.0).nodes == 0


@pytest.mark.parametrize("node_w", [0.0, -1.0, float("nan"), float("inf"), 0.001])
def test_what_is_no_node_is_refused(node_w):
    with pytest.raises(ConfigError):
        fit(BNL, node_w)


@pytest.mark.system  # pure, and slow
@settings(max_examples=40)
@given(st.floats(100, 20_000), st.sampled_from([1, 2, 3]), st.floats(0, 0.5), st.integers(10, 200), st.integers(2, 4))
def test_what_fits_keeps_every_limit_and_one_more_does_not(node_w, node_phases, margin, amps, feeds):
    rack = Rack(
        feeds=tuple(Feed(str(n), 400.0, float(amps)) for n in range(feeds)), redundancy="A/B", node_phases=node_phases,
        margin=margin, cooling_w=50_000.0,
    )  # fmt: skip
    limits = limits_of(rack)
    found = fit(limits, node_w)
    assert found.nodes == 0 or all(node_w <= limit.most_w(found.nodes) * (1 + 1e-6) for limit in limits)
    assert node_w > found.binding.most_w(found.nodes + 1)
    assert allowed_w(limits, found.nodes + 1) < node_w
    if found.nodes:
        assert rack.free(found.nodes, node_w) >= margin - 1e-6
