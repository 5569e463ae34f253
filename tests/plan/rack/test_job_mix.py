"""Jobs side by side: against sums enumerated by hand, with intervals, and as read from a plan."""

from __future__ import annotations

import itertools
import tomllib

import numpy as np
import pytest
from tests.plan.rack.draws import draw, wandering

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.plan_tables import Mistakes, TomlTable
from joulelab.plan.rack.peaks import Percentile, PercentileRefusal, compute_percentile
from joulelab.plan.rack.job_mix import MixJob, find_joint_peak, simulate_mix, read_mix
from joulelab.plan.rack.peaks import ASSUMED_SPREAD, Spread


def given(found: Percentile | PercentileRefusal) -> Percentile:
    assert isinstance(found, Percentile)
    return found


def mix(text: str) -> tuple[MixJob, ...]:
    problems = Mistakes("plan.toml", text)
    jobs = read_mix(TomlTable(tomllib.loads(text), (), problems).tables("mix"))
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
    assert load.mean_w == pytest.approx(sums.mean(), abs=3 * load.step_w)
    for limit in (15_000.0, 30_000.0, 40_000.0):
        true = np.mean(sums > limit)
        # Rounded up by at most a step a job: never less, and no more than that.
        assert true - 1e-9 <= load.compute_exceedance(limit).share <= np.mean(sums > limit - 3 * load.step_w) + 1e-9
    found = given(load.compute_percentile(0.9))
    assert found.value_w == pytest.approx(np.quantile(sums, 0.9), rel=0.002)


def test_one_job_is_so_many_times_its_node():
    series = wandering(2000, 0.5, 4)
    load, node = simulate_mix([(MixJob("a", 8), [draw(series)])]), given(compute_percentile([draw(series)], 0.9))
    found = given(load.compute_percentile(0.9))
    assert found.value_w == pytest.approx(8 * node.value_w, rel=1e-3)
    assert found.high_w == pytest.approx(8 * node.high_w, rel=3e-3)
    assert load.maximum_w == pytest.approx(8 * series.max())


def test_blocks_are_drawn_again_for_the_interval():
    load = simulate_mix([(MixJob("a", 2), [draw(wandering(300, 0.5, 4))])])
    assert np.ptp(load.drawn[:, int(2 * 7000 / load.step_w)]) > 0.02
    assert load.drawn[:, 0] == pytest.approx(1.0)


@pytest.mark.system  # pure, and slow
def test_jobs_that_do_not_know_of_each_other_peak_less_than_one_large_job():
    series = draw(wandering(3000, 0.0, 5))
    apart, together = simulate_mix([(MixJob("a", 1, count=8), [series])]), simulate_mix([(MixJob("a", 8), [series])])
    assert given(apart.compute_percentile(0.99)).value_w < given(together.compute_percentile(0.99)).value_w
    assert apart.maximum_w == pytest.approx(together.maximum_w)
    assert any("independent" in note for note in apart.notes)


def test_what_the_data_cannot_support_is_refused_for_the_sum_too():
    load = simulate_mix(
        [(MixJob("a", 1), [draw(wandering(4000, 0.0, 6))]), (MixJob("b", 1), [draw([5.0, 6.0, 7.0], run="b")])]
    )
    found = load.compute_percentile(0.9)
    assert isinstance(found, PercentileRefusal)
    assert found.blocks <= 3
    with pytest.raises(ConfigError):
        load.compute_percentile(1.0)


def test_above_all_maxima_is_not_never():
    load = simulate_mix([(MixJob("a", 2, count=3), [draw(wandering(1000, 0.0, 7))])])
    found = load.compute_exceedance(load.maximum_w)
    assert found.share == 0.0
    assert found.high == pytest.approx(1 - 0.05 ** (1 / found.blocks))
    assert load.compute_exceedance(0.0).share == pytest.approx(1.0)


def test_a_job_that_rests_idles():
    load = simulate_mix([(MixJob("a", 2, share=0.25, idle_w=100.0), [draw([1000.0] * 50)])])
    assert load.mean_w == pytest.approx(2 * (0.25 * 1000 + 0.75 * 100), rel=1e-3)
    assert load.compute_exceedance(300.0).share == pytest.approx(0.25)
    measured = simulate_mix([(MixJob("a", 2, share=0.25), [draw([1000.0] * 50, idle_w=Quantity(100.0))])])
    assert measured.mean_w == pytest.approx(load.mean_w)
    with pytest.raises(ConfigError, match="while it rests"):
        simulate_mix([(MixJob("a", 2, share=0.25), [draw([1000.0] * 50)])])


def test_gains_add_up_for_all_nodes_alike():
    load = simulate_mix(
        [(MixJob("a", 2), [draw([100.0] * 9, gain=0.03)])], spread=Spread(0.05, 0.04, 3, "measured", "as told")
    )
    assert load.plan_w == pytest.approx(210.0)  # 3 % and 4 % that do not know of each other
    assert "as told" in load.notes


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
    with pytest.raises(ConfigError, match="by a factor"):
        load.compute_exceedance(14_400.0, wider=0.5)


def test_how_far_hosts_peak_together_is_measured_and_said():
    x, y = draw([1.0, 9.0, 3.0], host="x"), draw([8.0, 1.0, 2.0], host="y")
    found = find_joint_peak([x, y])
    assert found is not None
    assert (found.peak_of_sum_w, found.sum_of_peaks_w) == (10.0, 17.0)
    assert found.ratio == pytest.approx(10 / 17)
    assert find_joint_peak([x]) is None
    assert find_joint_peak([x, draw([np.nan] * 2 + [1.0], host="z"), draw([1.0, np.nan, np.nan], host="q")]) is None
    with pytest.raises(ConfigError, match="different runs"):
        find_joint_peak([x, draw([1.0], run="b")])
    assert any("58.8% of the sum of peaks" in note for note in simulate_mix([(MixJob("a", 2), [x, y])]).notes)


def test_a_mix_is_read():
    first = '[[mix]]\nname = "train"\nnodes = 4\nruns = ["r1", "r2"]\ncount = 2\nshare = 0.9\nidle_w = 2200\n'
    assert mix(first + '[[mix]]\nnodes = 1\nnode = "h100"') == (
        MixJob("train", 4, ("r1", "r2"), count=2, share=0.9, idle_w=2200.0),
        MixJob("job 2", 1, node="h100"),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('nodes = 0\nruns = "r"', "nodes is 0"),
        ('runs = "r"', "has no nodes"),
        ("nodes = 2", "has no runs"),
        ('nodes = 2\nruns = "r"\nshare = 1.5', "share is 1.5"),
        ('nodes = 2\nruns = "r"\nshares = 1', "unknown key 'shares'"),
        ('nodes = 2\nruns = "r"\ncount = -1', "count is -1"),
    ],
)
def test_a_mix_that_is_wrong_is_told(text: str, told: str):
    with pytest.raises(ConfigError, match=told):
        mix(f"[[mix]]\n{text}")
