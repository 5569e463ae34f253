"""Jobs from real logs of 8xH100 nodes: what they draw idle, and what that makes of pauses.

Power logs of MLPerf Training v4.0 (Apache-2.0), kept outside of the project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.analysis.test_real_import import ONE_NODE, imported, needs_nodes, node_log, rows
from tests.plan.measured_runs import measured
from tests.plan.when.problems import HOUR_S, make_daily_rate, make_slots

from joulelab.plan.when.when_job import IDLE_SHARE, JobFigures, make_job
from joulelab.plan.when.when_ways import PlanTerms, choose_way, compute_saving, list_ways

if TYPE_CHECKING:
    from pathlib import Path

IDLE_BELOW_W, WORK_ABOVE_W = 2300.0, 6000.0


def idle_w() -> float:
    """Return what nodes draw before and after the job of eight nodes."""
    sides = [some[:, 1] for (_, side), some in rows("8node_resnet_0").items() if side == "ac_w"]
    return float(np.median(np.concatenate([watts[watts < IDLE_BELOW_W] for watts in sides])))


@needs_nodes
def test_an_idle_node_draws_31_percent_of_one_that_trains() -> None:
    means = []
    for name in ONE_NODE:
        watts = next(some[:, 1] for (_, side), some in rows(name).items() if side == "ac_w")
        means.append(float(watts[watts > WORK_ABOVE_W].mean()))
    shares = [idle_w() / mean for mean in means]
    assert max(shares) - 0.02 < IDLE_SHARE < min(shares) + 0.02


@pytest.mark.system  # pure, and slow
@needs_nodes
def test_pauses_pay_only_if_the_node_is_off(tmp_path: Path) -> None:
    made, _ = imported(tmp_path / "runs", node_log(ONE_NODE[0]))
    job = make_job([measured(made.run)], JobFigures(duration_s=40 * HOUR_S, idle_w=idle_w()))
    ways = {way.name: way for way in list_ways(job, make_slots(make_daily_rate(7), 168.0), PlanTerms())}
    saving = compute_saving(ways["pauses-off"], ways["now"])
    assert saving is not None
    assert saving.value == pytest.approx(0.425, abs=0.01)  # of this made-up series, whatever the node draws
    assert not ways["pauses"].pauses
    assert choose_way(tuple(ways.values()), job).name == "start"
