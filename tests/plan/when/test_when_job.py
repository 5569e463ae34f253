"""Jobs from one run, repeats, runs at several caps, and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.plan.cost.test_accounted import job as make_accounted_run
from tests.plan.measured_runs import measured, node_run
from tests.plan.when.problems import make_given_job

from joulelab.core.errors import ConfigError
from joulelab.plan.when.when_job import IDLE_SHARE, JobFigures, make_job

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.when.when_job import ShiftableJob


def list_codes(job: ShiftableJob) -> list[str]:
    return [note.code for note in job.notes]


def test_the_job_is_the_mean_of_its_repeats_and_their_spread_is_in_the_interval(tmp_path: Path) -> None:
    drawn = ((6800.0, 58.0, 1900.0), (7200.0, 62.0, 2100.0), (7000.0, 60.0, 2000.0))
    runs = [measured(node_run(tmp_path, w, seconds=s, idle_w=idle)) for w, s, idle in drawn]
    job, alone = make_job(runs, JobFigures()), make_job(runs[:1], JobFigures())
    mean_j = np.mean([run.energies([0.0, run.result.duration_s])[0].value for run in runs])
    assert job.work_s == pytest.approx(60.0)
    assert job.full.power.value * job.work_s == pytest.approx(mean_j)
    assert sum(job.course_j) == pytest.approx(mean_j)
    each = [run.draws[0].idle_w for run in runs]
    assert job.idle.value == pytest.approx(np.mean([q.value for q in each if q is not None]))
    assert job.idle_source == "measured"
    # A mean of three whose energies differ by 11 %: that is more than the meter's 1 %.
    assert job.full.power.u / job.full.power.value > 2 * alone.full.power.u / alone.full.power.value
    assert "when.mean-of-runs" in list_codes(job)
    assert "when.one-run" in list_codes(alone)


def test_runs_at_several_caps_are_the_modes(tmp_path: Path) -> None:
    paths = [
        node_run(tmp_path, watts, seconds=seconds, cap=cap, gpu_w=400.0)
        for watts, seconds, cap in ((7000.0, 60.0, None), (5000.0, 66.0, 500.0), (3800.0, 90.0, 300.0))
    ]
    runs = [measured(path) for path in paths]
    job = make_job(runs, JobFigures(nodes=2))
    assert [mode.cap_w for mode in job.modes] == [300.0, 500.0, None]
    assert [mode.slowdown.value for mode in job.modes] == pytest.approx([1.5, 1.1, 1.0], rel=1e-6)
    assert job.modes[1].power.value == pytest.approx(2 * 5000.0, rel=0.02)
    assert (job.caps_source, job.idle.value) == ("measured", pytest.approx(4000.0, rel=0.02))
    assert "when.other-nodes" in list_codes(job)
    with pytest.raises(ConfigError, match="effect of a cap of 200 W is not known"):
        make_job(runs, JobFigures(caps_w=(200.0,)))


def test_repeats_at_other_caps_show_the_spread_between_runs(tmp_path: Path) -> None:
    free = measured(node_run(tmp_path, 7000.0, seconds=60.0, gpu_w=400.0))
    watts = (4700.0, 5300.0, 5000.0, 5200.0, 4800.0)
    capped = [measured(node_run(tmp_path, w, seconds=66.0, cap=500.0, gpu_w=400.0)) for w in watts]
    job = make_job([*capped, free], JobFigures())
    assert "when.one-run" not in list_codes(job)
    assert job.full.power.u > 0.025 * job.full.power.value


def test_a_cap_at_the_limit_of_the_gpus_is_none(tmp_path: Path) -> None:
    runs = [measured(node_run(tmp_path, 7000.0, seconds=60.0, cap=cap, gpu_w=400.0)) for cap in (700.0, None)]
    assert make_job(runs, JobFigures(gpus=8)).caps_source == "model"
    with pytest.raises(ConfigError, match="the effect of caps is not known"):
        make_job(runs[:1], JobFigures(caps_w=(500.0,)))


def test_runs_of_other_work_are_refused(tmp_path: Path) -> None:
    runs = [
        measured(node_run(tmp_path, 7000.0, facts=facts, command=["python", file]))
        for facts, file in (({"batch": 8}, "a.py"), ({"batch": 16}, "a.py"), ({"batch": 8}, "b.py"))
    ]
    for other in runs[1:]:
        with pytest.raises(ConfigError, match="not repeats of one job"):
            make_job([runs[0], other], JobFigures())


@pytest.mark.parametrize(("scope", "code"), [("node.dc", "when.side-dc"), ("gpu:0", "when.side-parts")])
def test_a_job_that_was_not_measured_at_the_wall_has_a_note(tmp_path: Path, scope: str, code: str) -> None:
    run = measured(node_run(tmp_path, 600.0, scope=scope))
    assert code in list_codes(make_job([run], JobFigures()))
    assert code not in list_codes(make_job([run], JobFigures(power_w=900.0)))


def test_a_run_that_was_only_accounted_for_is_spread_evenly_over_its_nodes(tmp_path: Path) -> None:
    job = make_job([make_accounted_run(tmp_path, model="slurm pm_counters")], JobFigures())
    assert (job.nodes, job.work_s, job.full.power.value) == (4, pytest.approx(12.0), pytest.approx(500.0))
    assert (job.course_j, job.idle_source) == (pytest.approx((6000.0,)), "assumed")
    assert {"runs.even-spread", "when.side-dc"} <= set(list_codes(job))
    with pytest.raises(ConfigError, match="not repeats of one job"):
        make_job([make_accounted_run(tmp_path), make_accounted_run(tmp_path, 2)], JobFigures())


def test_an_idle_power_that_was_not_measured_is_assumed() -> None:
    job = make_given_job(idle_w=None)
    assert (job.idle_source, job.idle.value, job.idle.known) == ("assumed", pytest.approx(IDLE_SHARE * 7000.0), False)
    assert "when.idle-assumed" in list_codes(job)
    assert "when.idle-above-work" in list_codes(make_given_job(idle_w=9000.0))
    assert make_given_job(idle_w=0.0).idle.value == 0.0


def test_figures_that_are_no_job_are_refused() -> None:
    with pytest.raises(ConfigError, match="no job to plan"):
        make_given_job(power_w=None)
    with pytest.raises(ConfigError, match="the effect of caps is not known"):
        make_given_job(caps_w=(300.0,))
