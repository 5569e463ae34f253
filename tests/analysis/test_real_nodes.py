"""Nodes of 8 H100 in training, logged every 2 s: thinned to what a PDU gives, the energy of the full log stays inside.

Power logs published with MLPerf Training v4.0 (Apache-2.0), kept outside of the project.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.loads import REAL_LOGS, read_real_logs
from benchmarks.thinned_logs import DESCRIBED, ROW_S, STEPS_S, Case, list_cases, make_log_curve, stamp_second

pytestmark = pytest.mark.skipif(not REAL_LOGS.is_dir(), reason=f"no {REAL_LOGS}: real logs are not part of the project")


def share_inside(cases: list[Case]) -> float:
    return float(np.mean([case.is_inside for case in cases]))


@pytest.mark.parametrize(
    ("steps_s", "described"),
    [
        pytest.param((30.0, 60.0, 120.0), ("limits",), marks=pytest.mark.system),
        pytest.param(STEPS_S, tuple(DESCRIBED), marks=pytest.mark.campaign),
    ],
)
def test_the_energy_of_the_full_log_stays_inside(steps_s, described):
    """In 95 % of all offsets, and in 90 % of those of each job."""
    cases = list(list_cases(steps_s, described))
    assert share_inside(cases) >= 0.95
    for job in {case.job for case in cases}:
        part = [case for case in cases if case.job == job]
        assert share_inside(part) >= 0.9, job
        if job.startswith("1node"):  # the others lasted for four minutes: two to eight readings
            assert np.median([case.width for case in part]) < 0.2, job


def test_a_whole_run_at_full_rate_is_known_to_two_per_cent_gaps_and_all():
    long = [(name, t, watts) for name, t, watts in read_real_logs() if t[-1] - t[0] > 600]
    assert len(long) == 14
    for name, t, watts in long:
        full = make_log_curve(t, watts, "limits", ROW_S)
        energy = full.energy(*(stamp_second(x) for x in (max(0.0, float(t[0])), float(t[-1]))))
        assert 2 * energy.u < 0.02 * energy.value, name
