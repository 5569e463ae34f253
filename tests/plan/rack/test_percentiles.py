"""The highest reading and percentiles: against known distributions, refused where the data cannot support them."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from benchmarks.plan_rack import LOADS, campaign, square, steady, telegraph
from tests.plan.rack.draws import draw, wandering

from joulelab.plan.rack.independent_blocks import LEAST_BLOCK_S, find_seen_share, pool_readings
from joulelab.plan.rack.job_mix import MixJob, simulate_mix
from joulelab.plan.rack.peaks import (
    SEED,
    Percentile,
    PercentileRefusal,
    compute_exceedance,
    compute_percentile,
    find_peak,
)

pytestmark = pytest.mark.system  # pure, and slow


def given(found: Percentile | PercentileRefusal) -> Percentile:
    assert isinstance(found, Percentile)
    return found


def test_the_maximum_says_where_and_how_it_was_read():
    draws = [draw([5.0, 7.0, np.nan]), draw([9.0, 6.0, 3.0], run="b", gain=0.02, window_s=2.0, twin="bnl")]
    peak = find_peak(draws)
    assert (peak.value_w, peak.run, peak.at_s, peak.readings) == (9.0, "b", 1.0, 5)
    assert peak.upper_w == pytest.approx(9.18)
    assert peak.plan_w == peak.upper_w


def test_what_is_known_of_one_meter_counts_beside_one_that_nobody_knows():
    hot = draw(np.append(wandering(500, 0.0, 1), 9000.0), gain=0.05)
    cool = draw(wandering(500, 0.0, 2, mean=3000.0), run="b", work="other", gain=None)
    for found in (find_peak, lambda draws: given(compute_percentile(draws, 0.8))):
        assert found([hot, cool]).upper_w > 1.04 * found([hot, cool]).value_w


def test_a_meter_nobody_knows_gives_no_upper_figure():
    peak = find_peak([draw([5.0], gain=None), draw([4.0], run="b", gain=None)])
    assert peak.upper_w is None
    assert peak.plan_w == 5.0
    assert given(compute_percentile([draw(wandering(500, 0.0, 1), gain=None)], 0.9)).upper_w is None


def test_a_cooler_run_by_a_worse_meter_may_be_the_upper_figure():
    assert find_peak([draw([100.0]), draw([99.0], run="b", gain=0.05)]).upper_w == pytest.approx(103.95)


def test_a_percentile_is_that_of_the_readings():
    watts = np.random.default_rng(2).permutation(np.arange(1.0, 1001.0).repeat(5))
    found = given(compute_percentile([draw(watts)], 0.95))
    assert found.value_w == 950.0
    assert found.low_w < 950.0 < found.high_w
    assert found.plan_w == found.upper_w == pytest.approx(found.high_w)
    assert found.high_w < 1000.0
    assert found.is_supported
    assert found == compute_percentile([draw(watts)], 0.95)


def test_the_gain_of_the_meter_widens_the_upper_end():
    series = wandering(3000, 0.0, 4)
    plain, doubted = (given(compute_percentile([draw(series, gain=g)], 0.95)) for g in (0.0, 0.01))
    assert doubted.high_w == plain.high_w
    assert doubted.plan_w == pytest.approx(plain.value_w + np.hypot(plain.high_w - plain.value_w, 0.01 * plain.value_w))


def test_the_interval_is_no_narrower_than_the_binomial_of_blocks():
    draws = [draw(wandering(4000, 0.9, 12))]
    found, pool = given(compute_percentile(draws, 0.9)), pool_readings(draws)
    seen, often = (find_seen_share(0.1, pool.blocks, 0.025, is_upper=upper) for upper in (True, False))
    assert seen is not None
    assert often is not None
    assert found.high_w >= pool.find_power(seen)
    assert found.low_w <= pool.find_power(often)
    drawn = np.quantile(pool.resample_power(0.1, np.random.default_rng(SEED)), (0.025, 0.975))
    assert found.low_w <= drawn[0]
    assert found.high_w >= drawn[1]
    many = given(simulate_mix([(MixJob("a", 3), draws)]).compute_percentile(0.9))
    assert many.blocks == found.blocks
    assert many.high_w >= 3 * pool.find_power(seen) * (1 - 1e-3)  # by Monte Carlo
    assert many.low_w <= 3 * pool.find_power(often) * (1 + 1e-3)


def test_too_few_blocks_are_refused_with_the_hours_it_takes():
    found = compute_percentile([draw(wandering(3000, 0.9, 5))], 0.999)
    assert isinstance(found, PercentileRefusal)
    assert found.needed == 1000
    assert found.blocks < 1000
    assert found.hours == pytest.approx(3000 * 2 / 3600)
    assert found.hours_needed == pytest.approx(found.hours * 1000 / found.blocks)


def test_where_runs_differ_it_takes_more_runs():
    draws = [draw(wandering(600, 0.0, n, mean=6000.0 + 300 * n), run=str(n)) for n in range(4)]
    found = compute_percentile(draws, 0.9)
    assert isinstance(found, PercentileRefusal)
    assert found.blocks < 8
    assert found.runs_needed == 10
    short = compute_percentile([draw(wandering(30, 0.0, n), run=str(n)) for n in range(4)], 0.9)
    assert isinstance(short, PercentileRefusal)
    assert short.blocks == 4  # runs of a minute: longer ones would do as well
    assert short.hours_needed == pytest.approx(10 * 60 / 3600)
    brief = compute_percentile([draw(wandering(13, 0.0, 1))], 0.9)
    assert isinstance(brief, PercentileRefusal)
    assert brief.hours_needed == pytest.approx(10 * LEAST_BLOCK_S / 3600)  # not ten times 26 s


def test_a_higher_percentile_never_needs_less_data():
    """A few bursts in a long run: of the rarest power too little is seen to tell how long it lasts."""
    watts = wandering(20_000, 0.0, 3)
    for start in (3000, 9000, 15_000):
        watts[start : start + 100] += 400 + np.random.default_rng(start).normal(0, 60, 100)
    found = [compute_percentile([draw(watts)], p) for p in (0.9, 0.99, 0.999)]
    assert len({one.block_s for one in found}) == 1
    assert isinstance(found[-1], PercentileRefusal)
    assert [isinstance(one, PercentileRefusal) for one in found] == sorted(
        isinstance(one, PercentileRefusal) for one in found
    )


def test_the_hours_it_takes_are_enough():
    short = compute_percentile([draw(wandering(2000, 0.9, 6))], 0.99)
    assert isinstance(short, PercentileRefusal)
    size = int(1.3 * short.hours_needed * 1800)
    given(compute_percentile([draw(wandering(size, 0.9, 6))], 0.99))


def test_between_refused_and_supported_the_upper_end_is_the_maximum_and_owned_up_to():
    series = wandering(6000, 0.0, 7)
    found = given(compute_percentile([draw(series)], 0.99))
    assert found.blocks == 200
    assert not found.is_supported
    assert found.high_w == series.max()
    assert found.reached == pytest.approx(1 - 0.99**found.blocks)


def test_never_seen_is_not_never():
    found = compute_exceedance([draw(wandering(3000, 0.0, 1))], 9000.0)
    assert (found.share, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(1 - 0.05 ** (1 / found.blocks))
    assert found.high == pytest.approx(3 / found.blocks, rel=0.02)


def test_power_that_may_be_above_what_was_read_raises_the_upper_end_alone():
    draws = [draw(wandering(3000, 0.0, seed), run=str(seed)) for seed in range(3)]
    read, wider = compute_exceedance(draws, 7150.0), compute_exceedance(draws, 7150.0, wider=1.02)
    assert (wider.share, wider.low) == (read.share, read.low)
    assert wider.high == pytest.approx(compute_exceedance(draws, 7150.0 / 1.02).high)
    assert wider.high > read.high
    unseen = compute_exceedance(draws, 9000.0, wider=1.02)
    assert unseen.high == compute_exceedance(draws, 9000.0).high  # not seen with it either


def test_how_often_a_power_is_exceeded():
    limit = 7000 + 60 * NormalDist().inv_cdf(0.9)
    found = compute_exceedance([draw(wandering(6000, 0.5, 2), twin="bnl")], limit)
    assert found.share == pytest.approx(0.1, abs=0.02)
    assert found.low < 0.1 < found.high
    assert compute_exceedance([draw([5.0] * 20)], 1.0).share == pytest.approx(1.0)


@pytest.mark.parametrize(
    "load", [steady(0.8), square(30, 0.5), telegraph(20, 20, "on/off")], ids=lambda load: load.name
)
def test_the_truth_lies_in_the_interval(load):
    """A small form of benchmarks/plan_rack.py."""
    tally, held = campaign(load, 0.9, count=5, runs=3, size=300, seed=2)
    assert tally.supported + tally.few == 5
    assert tally.inside >= 4
    assert held >= 4 / 5


@pytest.mark.campaign
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_truth_lies_in_nine_of_ten_intervals_and_more(load):
    tally, held = campaign(load, 0.95, count=60, runs=5, size=600, seed=11)
    assert tally.inside >= 0.9 * (tally.supported + tally.few)
    assert tally.upper >= 0.9 * tally.supported
    assert held >= 0.9
