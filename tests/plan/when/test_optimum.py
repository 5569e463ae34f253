"""The optimum against trying everything, and what must hold of any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.plan.when.brute import cheapest, cheapest_blocks

from joulelab.core.errors import ConfigError
from joulelab.plan.when.blocks import Restart, fill_blocks
from joulelab.plan.when.optimum import MOST_SLOTS, Modes, fill, hull

RATES = st.lists(st.integers(-3, 9).map(float), min_size=1, max_size=4)
SLOWER = st.lists(st.tuples(st.sampled_from((0.25, 0.5, 0.8, 0.9)), st.integers(2, 9).map(float)), max_size=2)
PAUSES = st.sampled_from((0.0, 1.0, 3.0, None))
WAITS = st.sampled_from((0.0, 1.0, 3.0))


def modes_of(slower: list[tuple[float, float]], pause_w: float | None) -> tuple[list[tuple[float, float]], Modes]:
    every = [*sorted(dict(slower).items()), (1.0, 10.0)]
    return every, Modes(np.array([m[0] for m in every]), np.array([m[1] for m in every]), pause_w)


@pytest.mark.system  # pure, and slow
@given(RATES, SLOWER, PAUSES, st.floats(0.02, 1.0), st.booleans(), WAITS)
@example([1.0, 5.0, 1.0], [], 3.0, 0.5, False, 0.0)
@example([0.0, 0.0, 0.0], [(0.5, 4.0)], 1.0, 0.7, False, 1.0)
@example([9.0, 2.0, 9.0], [(0.8, 6.0)], None, 0.2, False, 1.0)
@settings(max_examples=80, deadline=None)
def test_it_is_the_optimum(
    rates: list[float],
    slower: list[tuple[float, float]],
    pause_w: float | None,
    share: float,
    uneven: bool,
    wait_w: float,
) -> None:
    lengths = [2.0 + (k % 2 if uneven else 0) for k in range(len(rates))]
    every, modes = modes_of(slower, pause_w)
    work = share * sum(lengths)
    truth = cheapest(rates, lengths, work, every, pause_w, wait_w=wait_w)
    found = fill(np.array(rates), np.array(lengths), work, modes, wait_w=wait_w)
    assert found.cost == pytest.approx(truth, abs=1e-7)
    assert (found.seconds @ modes.speeds).sum() == pytest.approx(work)
    assert (found.seconds >= 0).all()
    assert (found.paused_s >= 0).all()
    assert (found.seconds.sum(axis=1) + found.paused_s <= np.array(lengths) + 1e-6).all()
    if wait_w in (0.0, pause_w) or pause_w is None:  # else pauses and waiting are not of one power
        power = found.seconds @ modes.powers_w + found.paused_s * (pause_w or wait_w)
        assert np.array(rates) @ power == pytest.approx(truth, abs=1e-6)
    mixed = ((found.seconds > 1e-6) & (found.seconds < np.array(lengths)[:, None] - 1e-6)).any(axis=1)
    assert mixed.sum() <= 1


def test_a_window_that_is_not_the_first_tried_is_found_among_many() -> None:
    """Bounds leave nothing out: all windows of a week of hours, solved one by one by cutting the slots."""
    draw = np.random.default_rng(5)
    rates = 10 + 5 * np.sin(np.arange(60) / 3) + draw.normal(0, 2, 60)
    lengths = np.full(60, 4.0)
    modes = Modes(np.array([0.6, 0.8, 1.0]), np.array([4.0, 6.0, 10.0]), 3.0)
    found = fill(rates, lengths, 60.0, modes)
    each = [fill(rates[a:b], lengths[a:b], 60.0, modes).cost for a in range(0, 60, 9) for b in range(a + 15, 61, 3)]
    assert found.cost <= min(each) + 1e-6
    within = fill(rates[found.first : found.last + 1], lengths[found.first : found.last + 1], 60.0, modes)
    assert within.cost == pytest.approx(found.cost, rel=1e-9)


def test_an_idle_node_makes_pauses_dear() -> None:
    rates, lengths = np.array([2.0, 9.0, 9.0, 9.0, 1.0]), np.full(5, 1.0)
    off = fill(rates, lengths, 2.0, modes_of([], 0.0)[1])
    idle = fill(rates, lengths, 2.0, modes_of([], 3.1)[1])
    assert off.cost == pytest.approx(30.0)
    assert (off.first, off.last) == (0, 4)
    assert idle.cost == pytest.approx(100.0)  # 30 + 27 x 3.1 would be more than to run through slots 3 and 4
    assert (idle.first, idle.last) == (3, 4)
    assert not idle.paused_s.any()


def test_the_price_is_that_of_a_second_more() -> None:
    draw = np.random.default_rng(2)
    rates, lengths = draw.uniform(1, 9, 12), np.full(12, 5.0)
    modes = Modes(np.array([0.5, 0.8, 1.0]), np.array([4.0, 6.5, 10.0]), 2.0)
    for work in (23.0, 23.3):  # where a step ends, and within one
        one, more = (fill(rates, lengths, w, modes) for w in (work, work + 0.001))
        assert (more.cost - one.cost) / 0.001 == pytest.approx(one.price, rel=1e-6)


def test_what_cannot_be_done_is_refused() -> None:
    modes = modes_of([], 0.0)[1]
    with pytest.raises(ConfigError, match="the deadline is too early"):
        fill(np.ones(3), np.ones(3), 3.1, modes)
    with pytest.raises(ConfigError, match="too many"):
        fill(np.ones(MOST_SLOTS + 1), np.ones(MOST_SLOTS + 1), 3.0, modes)
    with pytest.raises(ConfigError, match="the deadline is too early"):
        fill_blocks(np.ones(3), np.ones(3), 3.1, 10.0, 1.0, Restart(60))


def test_the_hull_leaves_out_what_two_others_do_better() -> None:
    speeds, powers = np.array([0.0, 0.5, 0.8, 1.0]), np.array([0.0, 8.0, 5.0, 10.0])
    assert hull(speeds, powers) == [0, 2, 3]
    assert hull(speeds, powers, upper=True) == [0, 1, 3]


@given(
    st.lists(st.integers(1, 9).map(float), min_size=1, max_size=7),
    st.floats(0.05, 1.0),
    st.sampled_from((0.0, 3.0)),
    st.sampled_from((0, 60, 300, 900, 1200)),
    st.sampled_from((0.0, 2000.0)),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_blocks_are_the_cheapest_of_all(
    rates: list[float], share: float, pause_w: float, again_s: int, again_j: float, waits: bool
) -> None:
    length = 900.0
    work = share * length * len(rates)
    found = fill_blocks(
        np.array(rates), np.full(len(rates), length), work, 10.0, pause_w, Restart(again_s, again_j), waits=waits
    )
    truth = cheapest_blocks(rates, length, work, 10.0, pause_w, again_s, again_j, waits=waits)
    assert found.cost == pytest.approx(truth)
    ran = found.running_s.sum() - found.restarts.sum() * again_s
    assert ran == pytest.approx(work)
    energy = found.running_s * 10.0 + found.paused_s * pause_w + found.restarts * again_j
    assert np.array(rates) @ energy == pytest.approx(truth)


def test_dear_restarts_make_few_blocks() -> None:
    rates = np.tile([1.0, 1.0, 4.0, 4.0], 6)
    blocks = [
        int(fill_blocks(rates, np.full(24, 900.0), 9000.0, 10.0, 0.0, Restart(t)).restarts.sum())
        for t in (0, 300, 1800)
    ]
    assert blocks == [4, 5, 0]  # a little time lost is made up in a block more


def test_slots_of_parts_of_a_second_do_not_add_up() -> None:
    """Each is 0.4 s more than whole: forty of them are 16 s, of which at most one is lost or won in each block."""
    rates = np.repeat([1.0, 5.0, 1.0, 5.0], 20)
    found = fill_blocks(rates, np.full(80, 60.4), 2300.0, 10.0, 0.0, Restart(60.0))
    assert found.restarts.sum() == 1
    assert found.running_s.sum() - 60.0 == pytest.approx(2300.0, abs=2.0)


def test_a_grid_that_is_too_fine_is_refused() -> None:
    with pytest.raises(ConfigError, match="too fine a grid"):
        fill_blocks(np.ones(3000), np.full(3000, 900.0), 2000 * 900.0, 10.0, 1.0, Restart(61))
