"""Jobs from several runs: the mean of repeats with how much they differ; and those that a cluster accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.plan.cost.test_accounted import job as accounted
from tests.plan.measured_runs import measured, node_run
from tests.plan.when.problems import HOUR_S, daily, slots

from joulelab.core.errors import ConfigError
from joulelab.plan.when.baselines import gain, ways_of
from joulelab.plan.when.job import Wanted, job_of
from joulelab.plan.when.repeats import ONE_RUN, repeats_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_job_is_the_mean_of_its_repeats_and_their_spread_is_in_the_interval(tmp_path: Path) -> None:
    drawn = ((6800.0, 58.0, 1900.0), (7200.0, 62.0, 2100.0), (7000.0, 60.0, 2000.0))
    runs = [measured(node_run(tmp_path, w, seconds=s, idle_w=idle)) for w, s, idle in drawn]
    one = job_of(runs, Wanted())
    mean_j = np.mean([run.energies([0.0, run.result.duration_s])[0].value for run in runs])
    assert one.work_s == pytest.approx(60.0)
    assert mean_j == pytest.approx(7000.0 * 60.0, rel=0.01)
    assert one.full.power.value * one.work_s == pytest.approx(mean_j)
    assert sum(one.course_j) == pytest.approx(mean_j)
    assert one.idle.value == pytest.approx(np.mean([run.draws[0].idle_w.value for run in runs]))  # type: ignore[union-attr]
    assert one.idle_from == "measured"
    alone = job_of(runs[:1], Wanted())
    # A mean of three whose energies differ by 11 %: that is more than the meter's 1 %.
    assert one.full.power.expanded is not None
    assert alone.full.power.expanded is not None
    assert one.full.power.expanded / one.full.power.value > 2 * alone.full.power.expanded / alone.full.power.value
    assert any("the mean of 3 runs" in note for note in one.notes)
    assert ONE_RUN in alone.notes
    by = {way.name: way for way in ways_of(job_of(runs, Wanted(HOUR_S)), slots(daily(2), 24.0))}
    share = gain(by["start"], by["now"])
    assert share is not None
    assert share.expanded == pytest.approx(0.0, abs=1e-9)  # whichever of them it is, it is the same at both times


def test_repeats_at_other_caps_tell_how_much_runs_differ(tmp_path: Path) -> None:
    free = measured(node_run(tmp_path, 7000.0, seconds=60.0, gpu_w=400.0))
    capped = [
        measured(node_run(tmp_path, w, seconds=66.0, cap=500.0, gpu_w=400.0))
        for w in (4700.0, 5300.0, 5000.0, 5200.0, 4800.0)
    ]
    found = repeats_of([*capped, free])
    assert [run.result.run for run in found.runs] == [free.result.run]
    assert (found.spread, found.said, found.levels) == (True, "", 2)
    assert found.energy.expanded is not None
    assert found.energy.expanded > 0.05 * found.energy.value


def test_a_cap_at_the_limit_of_the_gpus_is_none(tmp_path: Path) -> None:
    """Then all runs are repeats, and what caps do is not measured."""
    runs = [measured(node_run(tmp_path, 7000.0, seconds=60.0, cap=cap, gpu_w=400.0)) for cap in (700.0, None)]
    found = repeats_of(runs)
    assert (found.levels, len(found.runs)) == (1, 2)
    one = job_of(runs, Wanted(gpus=8))
    assert one.caps_from == "model"
    with pytest.raises(ConfigError, match="what caps do is not known"):
        job_of(runs[:1], Wanted(caps_w=(500.0,)))


def test_runs_that_are_no_repeats_are_refused(tmp_path: Path) -> None:
    runs = [
        measured(node_run(tmp_path, 7000.0, facts=facts, command=["python", file]))
        for facts, file in (({"batch": 8}, "a.py"), ({"batch": 16}, "a.py"), ({"batch": 8}, "b.py"))
    ]
    for other, why in ((runs[1], "facts: {'batch': 8}, {'batch': 16}"), (runs[2], r"workload: python a\.py")):
        with pytest.raises(ConfigError, match=f"no repeats of one job.*{why}"):
            job_of([runs[0], other], Wanted())


def test_an_idle_power_that_one_of_them_does_not_tell_is_not_known(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, 7000.0))
    assert repeats_of([run]).idle is not None
    assert repeats_of([accounted(tmp_path)]).idle is None


def test_a_run_that_was_only_accounted_for_is_spread_evenly_over_its_nodes(tmp_path: Path) -> None:
    one = job_of([accounted(tmp_path, model="slurm pm_counters")], Wanted(rated_w=1000.0))
    assert (one.nodes, one.work_s, one.full.power.value) == (4, pytest.approx(12.0), pytest.approx(500.0))
    assert (one.course_j, one.rated_w, one.idle_from) == (pytest.approx((6000.0,)), 4000.0, "assumed")
    said = " ".join(one.notes)
    assert "spread evenly" in said
    assert "behind the supplies" in said
    half = job_of([accounted(tmp_path)], Wanted(nodes=2))
    assert half.full.power.value == pytest.approx(250.0)
    assert "which side" in " ".join(half.notes)
    modelled = job_of([accounted(tmp_path, model="slurm pm_counters")], Wanted(gpus=2, gpu_w=60.0))
    assert modelled.caps_from == "model"
    with pytest.raises(ConfigError, match="needs the GPUs and the power of whole nodes"):
        job_of([accounted(tmp_path)], Wanted(gpus=2, gpu_w=60.0, caps_w=(50.0,)))  # perhaps of parts of them


def test_an_accounting_that_tells_no_nodes_or_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not tell on how many nodes"):
        job_of([accounted(tmp_path, None)], Wanted())
    with pytest.raises(ConfigError, match=r"no repeats of one job.*nodes: 4, 2"):
        job_of([accounted(tmp_path), accounted(tmp_path, 2)], Wanted())


@pytest.mark.parametrize(("scope", "said"), [("node.dc", "behind the supplies"), ("gpu:0", "only parts of the nodes")])
def test_it_is_said_where_a_job_was_not_measured_at_the_wall(tmp_path: Path, scope: str, said: str) -> None:
    one = job_of([measured(node_run(tmp_path, 600.0, scope=scope))], Wanted())
    assert said in " ".join(one.notes)
    given = job_of([measured(node_run(tmp_path, 600.0, scope=scope))], Wanted(power_w=900.0))
    assert said not in " ".join(given.notes)
