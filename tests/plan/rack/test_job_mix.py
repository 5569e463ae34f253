"""Jobs side by side: against sums enumerated by hand, with intervals, and as read from a plan."""

from __future__ import annotations

import itertools
import tomllib

import numpy as np
import pytest
from tests.plan.rack.draws import draw, wandering

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.core.toml_reading import Mistakes
from joulelab.plan.plan_tables import TomlTable
from joulelab.plan.rack.job_mix import MixJob, read_mix, simulate_mix
from joulelab.plan.rack.peaks import ASSUMED_SPREAD, Percentile, PercentileRefusal, compute_percentile


def given(found: Percentile | PercentileRefusal) -> Percentile:
    assert isinstance(found, Percentile)
    return found


def mix(text: str) -> tuple[MixJob, ...]:
    problems = Mistakes("plan.toml", text)
    jobs = read_mix([TomlTable(one, ("mix", n), problems) for n, one in enumerate(tomllib.loads(text)["mix"])])
    problems.check()
    return jobs


def test_the_sum_is_that_of_all_combinations():
    """Two jobs of one kind and one of another: every combination of readings is as probable."""
    rng = np.random.default_rng(3)
    a, b = rng.uniform(2000, 7000, 40), rng.uniform(1000, 3000, 30)  # over 20 min: blocks for a p90
    load = simulate_mix(
        [(MixJob("a", 3, count=2), [draw(a, step_s=60.0)]), (MixJob("b", 1), [draw(b, run="b", step_s=60.0)])]
    )
    sums = np.sort([3 * x + 3 * y + z for x, y, z in itertools.product(a, a, b)])
    assert load.nodes == 7
    assert load.maximum_w == pytest.approx(6 * a.max() + b.max())
    assert load.mean_w == pytest.approx(sums.mean(), rel=2e-3)
    for limit in (15_000.0, 30_000.0, 40_000.0):
        true = np.mean(sums > limit)
        assert load.compute_exceedance(limit).share == pytest.approx(true, abs=0.006)  # four sigma of the draws
    found = given(load.compute_percentile(0.9))
    assert found.value_w == pytest.approx(np.quantile(sums, 0.9), rel=0.002)


def test_one_job_is_so_many_times_its_node():
    series = wandering(2000, 0.5, 4)
    load, node = simulate_mix([(MixJob("a", 8), [draw(series)])]), given(compute_percentile([draw(series)], 0.9))
    found = given(load.compute_percentile(0.9))
    assert found.value_w == pytest.approx(8 * node.value_w, rel=1e-3)
    assert found.high_w == pytest.approx(8 * node.high_w, rel=3e-3)
    assert load.maximum_w == pytest.approx(8 * series.max())


@pytest.mark.system  # pure, and slow
def test_jobs_that_do_not_know_of_each_other_peak_less_than_one_large_job():
    series = draw(wandering(3000, 0.0, 5))
    apart, together = simulate_mix([(MixJob("a", 1, count=8), [series])]), simulate_mix([(MixJob("a", 8), [series])])
    assert given(apart.compute_percentile(0.99)).value_w < given(together.compute_percentile(0.99)).value_w
    assert apart.maximum_w == pytest.approx(together.maximum_w)


def test_what_the_data_cannot_support_is_refused_for_the_sum_too():
    load = simulate_mix(
        [(MixJob("a", 1), [draw(wandering(4000, 0.0, 6))]), (MixJob("b", 1), [draw([5.0, 6.0, 7.0], run="b")])]
    )
    found = load.compute_percentile(0.9)
    assert isinstance(found, PercentileRefusal)
    assert found.blocks <= 3


def test_above_all_maxima_is_not_never():
    load = simulate_mix([(MixJob("a", 2, count=3), [draw(wandering(1000, 0.0, 7))])])
    found = load.compute_exceedance(load.maximum_w)
    assert found.share == 0.0
    assert found.high == pytest.approx(1 - 0.05 ** (1 / found.blocks))
    assert load.compute_exceedance(0.0).share == pytest.approx(1.0)


def test_a_job_that_rests_idles():
    load = simulate_mix([(MixJob("a", 2, share=0.25, idle_w=100.0), [draw([1000.0] * 50)])])
    assert load.mean_w == pytest.approx(2 * (0.25 * 1000 + 0.75 * 100), rel=5e-3)
    assert load.compute_exceedance(300.0).share == pytest.approx(0.25, abs=0.01)
    measured = simulate_mix([(MixJob("a", 2, share=0.25), [draw([1000.0] * 50, idle_w=Quantity(100.0))])])
    assert measured.mean_w == pytest.approx(load.mean_w, rel=5e-3)
    with pytest.raises(ConfigError, match="idle power"):
        simulate_mix([(MixJob("a", 2, share=0.25), [draw([1000.0] * 50)])])


def test_gains_add_up_for_all_nodes_alike():
    hosts = [draw([watts] * 9, gain=0.03, host=f"n{watts}") for watts in (90.0, 100.0)]  # two that differ
    load = simulate_mix([(MixJob("a", 2), hosts)])
    assert load.plan_w == pytest.approx(200 * (1 + np.hypot(0.03, 10 / 95)))


def test_nodes_that_nobody_measured_differ_from_those_that_were():
    load = simulate_mix([(MixJob("a", 2), [draw([100.0] * 900, gain=None)])])
    assert load.plan_w == pytest.approx(200 * (1 + ASSUMED_SPREAD))
    found = given(load.compute_percentile(0.9))
    assert found.upper_w is None
    assert found.plan_w == pytest.approx(200 * (1 + ASSUMED_SPREAD), rel=1e-3)
    known = given(simulate_mix([(MixJob("a", 2), [draw([100.0] * 900, gain=0.03)])]).compute_percentile(0.9))
    assert known.plan_w == known.upper_w == pytest.approx(200 * (1 + np.hypot(0.03, ASSUMED_SPREAD)), rel=1e-3)


def test_what_may_be_drawn_above_what_was_read_raises_the_upper_end_of_exceeding():
    load = simulate_mix([(MixJob("a", 2), [draw(wandering(3000, 0.0, 7))])])
    read, wider = load.compute_exceedance(14_400.0), load.compute_exceedance(14_400.0, wider=1.02)
    assert (wider.share, wider.low, wider.wider) == (read.share, read.low, 1.02)
    assert wider.high == pytest.approx(load.compute_exceedance(14_400.0 / 1.02).high)
    assert wider.high > read.high


def test_a_mix_is_read():
    first = '[[mix]]\nname = "train"\nnodes = 4\nruns = ["r1", "r2"]\ncount = 2\nshare = 0.9\nidle_w = 2200\n'
    assert mix(first + '[[mix]]\nnodes = 1\nnode = "h100"') == (
        MixJob("train", 4, ("r1", "r2"), count=2, share=0.9, idle_w=2200.0),
        MixJob("job 2", 1, node="h100"),
    )
