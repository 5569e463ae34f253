"""Independent blocks: how long readings depend on each other, weights, and shares by the binomial of blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.plan.rack.draws import draw, wandering

from joulelab.core.errors import ConfigError
from joulelab.plan.rack.independent_blocks import (
    BURST_FACTOR,
    LEAST_BLOCK_S,
    MOST_LAGS,
    ReadingPool,
    bound_share,
    check_side,
    find_burst_time,
    find_correlation_time,
    find_seen_share,
    pool_readings,
)


@pytest.mark.parametrize("memory", [0.0, 0.8, 0.95])
def test_the_correlation_time_is_that_of_the_process(memory: float):
    draws = [draw(wandering(8000, memory, seed), run=str(seed)) for seed in range(4)]
    true_s = 2.0 * (1 + memory) / (1 - memory)
    assert find_correlation_time(draws) == pytest.approx(true_s, rel=0.25)


def test_a_gap_is_left_out_and_ends_no_correlation():
    whole = wandering(8000, 0.9, 3)
    holed = whole.copy()
    holed[1000:1500] = np.nan
    assert find_correlation_time([draw(holed)]) == pytest.approx(find_correlation_time([draw(whole)]), rel=0.2)
    pool = pool_readings([draw(holed)])
    assert pool.watts.size == 7500
    assert pool.observed_s == pytest.approx(15_000)


def test_nothing_that_moves_is_one_step_each():
    assert find_correlation_time([draw([500.0] * 40)]) == 2.0


def test_a_run_that_is_above_throughout_is_one_observation():
    rng = np.random.default_rng(1)
    cool, hot, alike = (
        draw(rng.normal(mean, 10, 500), run=f"{mean} {n}") for n, mean in enumerate((6000.0, 7000.0, 6000.0))
    )
    assert pool_readings([cool, hot]).blocks == 2
    assert pool_readings([cool, hot]).block_s == pytest.approx(1000.0, rel=0.01)  # a whole run
    assert pool_readings([cool, alike]).blocks == 2000 // LEAST_BLOCK_S


def test_different_work_is_no_chance_but_repeats_of_it_that_differ_are():
    rng = np.random.default_rng(1)

    def ran(mean: float, work: str, run: str):
        return draw(rng.normal(mean, 10, 500), run=run, work=work)

    small, large = ran(6000.0, "small", "1"), ran(7000.0, "large", "2")
    both = pool_readings([small, large])
    assert (both.blocks, both.runs, both.works) == (2000 // LEAST_BLOCK_S, 2, 2)
    again = pool_readings([small, large, ran(6200.0, "small", "3")])
    assert again.block_s == pytest.approx(
        1000.0, rel=0.02
    )  # repeats that differ: each of these runs is one observation
    assert again.blocks == 3  # two blocks are two thirds of the time; the highest powers may all be of that work
    assert (again.runs, again.works) == (3, 2)
    beside = pool_readings(
        [ran(6000.0, "a", "4"), ran(6200.0, "a", "5"), *(ran(7000.0, "b", f"{n}") for n in range(6, 20))]
    )
    assert beside.blocks == 16  # much of another work does not make these many: two in an eighth of the time


def test_bursts_make_blocks_as_long_as_they_last_for_every_percentile():
    """3 % of the time in bursts of 100 s on noise of which each reading is its own."""
    watts = np.random.default_rng(8).normal(7000, 60, 5000)
    quiet = pool_readings([draw(watts)])
    for start in (700, 2500, 4100):
        watts[start : start + 50] += 300
    assert quiet.block_s == LEAST_BLOCK_S  # without bursts nothing tells how long one lasts
    assert pool_readings([draw(watts)]).block_s > 100.0
    assert find_burst_time([draw(watts)], {7150.0: 0.03}) == BURST_FACTOR * find_burst_time(
        [draw(watts)], {7150.0: 0.3}
    )


def test_a_limit_makes_blocks_of_its_own():
    """On in half of the time for 400 s: being above that level lasts, the noise at the top does not."""
    rng = np.random.default_rng(4)
    on = np.arange(20_000) // 200 % 2 * (rng.random(100).repeat(200) < 0.9)
    watts = 2000 + 50 * on + rng.normal(0, 5, on.size) + 300 * (rng.random(on.size) < 0.2)
    assert pool_readings([draw(watts)], limit_w=2025.0).block_s > 2 * pool_readings([draw(watts)]).block_s


def test_long_fine_readings_are_taken_together_where_lengths_are_sought():
    watts = wandering(MOST_LAGS + 1, 0.99, 2)
    assert find_correlation_time([draw(watts, step_s=0.1)]) == pytest.approx(20.0, rel=0.3)


def test_a_set_without_the_hot_unit_is_judged_by_all_readings():
    pool = ReadingPool(np.array([9.0, 8.0, 3.0, 2.0, 1.0]), np.full(5, 0.2), np.array([0, 0, 1, 1, 1]), 2, 1.0, 5.0)
    assert set(pool.resample_power(0.1, np.random.default_rng(1), 50).tolist()) == {9.0, 3.0}


def test_hosts_of_one_run_share_their_blocks():
    series = wandering(2000, 0.9, 5)
    alone = pool_readings([draw(series)])
    eight = pool_readings([draw(series, host=f"n{k}") for k in range(8)])
    assert eight.blocks == alone.blocks
    assert eight.observed_s == alone.observed_s
    eight = pool_readings([draw(series, run=str(k)) for k in range(8)])
    assert eight.blocks == int(8 * 4000 / eight.block_s)
    assert (eight.block_s, eight.runs) == (alone.block_s, 8)


def test_blocks_never_cross_runs():
    pool = pool_readings([draw(np.arange(5.0), run="a"), draw(np.arange(5.0) + 10, run="b")])
    of_a, of_b = set(pool.unit[pool.watts < 10].tolist()), set(pool.unit[pool.watts >= 10].tolist())
    assert not of_a & of_b


def test_sides_are_not_mixed_and_nothing_is_told():
    with pytest.raises(ConfigError, match="behind the supplies"):
        check_side([draw([1.0]), draw([1.0], side="dc")])
    with pytest.raises(ConfigError, match="no power"):
        check_side([])
    with pytest.raises(ConfigError, match="no readings"):
        pool_readings([draw([math.nan] * 3)])


def test_shares_of_blocks_are_those_of_the_binomial():
    """Published limits of Clopper and Pearson for 5 of 100; nothing seen gives the rule of three."""
    assert bound_share(0.05, 100, 0.025) == pytest.approx((0.0164, 0.1128), abs=1e-4)
    assert bound_share(0.0, 1000, 0.05) == pytest.approx((0.0, 3 / 1000), abs=1e-5)
    assert bound_share(1.0, 10, 0.025) == pytest.approx((0.6915, 1.0), abs=1e-4)


@pytest.mark.parametrize("blocks", [400, 5000])
def test_the_share_seen_leads_back_to_the_true_one(blocks: int):
    low, high = (find_seen_share(0.01, blocks, 0.025, is_upper=upper) for upper in (True, False))
    assert low is not None
    assert high is not None
    assert low < 0.01 < high
    assert bound_share(low, blocks, 0.025)[1] == pytest.approx(0.01, rel=1e-4)
    assert bound_share(high, blocks, 0.025)[0] == pytest.approx(0.01, rel=1e-4)
    assert find_seen_share(0.01, 360, 0.025, is_upper=True) is None


def test_runs_are_weighted_by_time():
    short, long = draw([1000.0] * 10, run="s"), draw([2000.0] * 30, run="l")
    assert pool_readings([short, long]).find_share_above(1500.0) == pytest.approx(0.75)
    slow = draw([2000.0] * 3, run="l", step_s=20.0)
    assert pool_readings([short, slow]).find_share_above(1500.0) == pytest.approx(0.75)
