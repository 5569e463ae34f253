"""A job's energy beside our own meters: its coverage, its row, its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.codes import raises_code
from tests.slurm.fake import PM, T0, row

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.readings import Readings
from joulelab.core.clock import NS
from joulelab.instruments.slurm.archive import account_job
from joulelab.instruments.slurm.client import parse_accounting, parse_settings
from joulelab.instruments.slurm.energies import JobEnergy, KnownSteps, choose_energy, find_sampling, group_rows


def test_a_job_beside_our_own_meters_has_its_coverage_and_the_nodes_inside_its_row():
    """`feeds` counts for a node's plugin."""
    sampling = find_sampling(parse_settings(PM))
    (execution,) = group_rows(parse_accounting(row("1", 90, "00:01", "01:00") + row("1.0", 90)))["1"]
    energy = choose_energy(execution, sampling)
    assert (energy.joules, energy.times) == (90, (T0 + 1 * NS, T0 + 60 * NS))
    fetched, facts = account_job(
        execution, sampling, energy, ["a doubt"], {"feeds": "node.ac"}, KnownSteps("1", host="n1")
    )
    assert (facts["covers"], facts["nodes"], facts["holds"]) == (["node.ac"], ["n1"], ["n1"])
    assert "a doubt" in [event["what"] for event in fetched.events]
    for known in (KnownSteps("0", host="n1"), KnownSteps(launched=True)):  # our recorders' step, the workload's
        step = choose_energy(execution, sampling, known)
        assert (step.row, account_job(execution, sampling, step, known=known)[1]["holds"]) == (".0", [])
    with raises_code("read-failed.no-times"):
        account_job(execution, sampling, JobEnergy(None, reason="it is PENDING"))
    rapl = find_sampling({"AcctGatherEnergyType": "acct_gather_energy/rapl"})
    assert account_job(execution, rapl, energy, (), {"feeds": "node.ac"})[1]["covers"] == ["cpu", "dram"]


def looked_at(r: np.random.Generator, length_s: float, look_s: float) -> tuple[str, float]:
    """Return a row of sacct and the true energy (J) of a job that works between idle times, most at its end.

    A plugin counts from its last look before the job's start to its last before the end.
    """
    idle, load, peak_s = r.uniform(50, 400), r.uniform(500, 1200), 4.0
    peak, start, since = load * r.uniform(1.0, 1.5), r.uniform(0, 1), -r.uniform(0, look_s)

    def counter(t: float) -> float:
        work, end = np.clip(t, 0, length_s - peak_s), np.clip(t - (length_s - peak_s), 0, peak_s)
        return float(idle * (t - np.clip(t, 0, length_s)) + load * work + peak * end)

    last = since + math.floor((length_s - since) / look_s) * look_s
    joules = round((counter(last) - counter(since)) * (1 + r.normal(0, 0.005)))
    minute, second = divmod(math.floor(start + length_s), 60)  # Slurm cuts its times to seconds
    return row("1", joules, end=f"{minute:02d}:{second:02d}"), counter(length_s)


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("look_s", [10, 30, 60])
@pytest.mark.parametrize("length_s", [45, 85, 175, 900])
def test_an_interval_that_is_stated_holds_wherever_the_looks_fall(length_s, look_s):
    """With the power at work taken as the mean over the row, 85 s at 30 s and 175 s at 60 s were held too seldom."""
    r, sampling = (
        np.random.default_rng([length_s, look_s]),
        find_sampling(parse_settings(PM.replace("1 sec", f"{look_s} sec"))),
    )
    held, widths = [], []
    for _ in range(150):
        text, true = looked_at(r, length_s, look_s)
        (execution,) = group_rows(parse_accounting(text))["1"]
        energy = choose_energy(execution, sampling)
        if energy.joules is None:  # no look fell into it
            continue
        fetched, _ = account_job(execution, sampling, energy)
        t = np.array([t for t, _, _ in fetched.rows])
        spec = fetched.stream.channels[0]
        found = CounterCurve(
            Readings.from_rows(t, t, np.array([v[0] for *_, v in fetched.rows])), spec, name="slurm"
        ).energy(*t)
        assert found.value == pytest.approx(energy.joules, abs=1e-3)
        assert (found.expanded is None) == any("none is stated" in text for text in energy.doubts)
        if found.expanded is not None:
            held.append(abs(found.value - true) <= found.expanded)
            widths.append(found.expanded / true)
    assert bool(held) == (length_s >= 2 * look_s)
    if held:
        assert np.mean(held) >= 0.95
        assert np.mean(widths) < 0.12 + 2 * look_s / length_s  # and it is no wider than it must be


def test_a_job_below_two_looks_has_no_interval_whatever_is_stated():
    """The samples may have missed any part of it: a stated gain does not mend that."""
    sampling = find_sampling(parse_settings(PM.replace("1 sec", "30 sec")))
    for end, source in (("00:59", "unknown"), ("01:00", "calibrated")):
        (execution,) = group_rows(parse_accounting(row("1", 9000, end=end)))["1"]
        stated = {"gain": 0.01, "reference": "our own calibration"}
        fetched, _ = account_job(execution, sampling, choose_energy(execution, sampling), config=stated)
        accuracy = fetched.stream.channels[0].accuracy
        assert accuracy.source == source
        assert ("below two samples of the meter (30 s)" in accuracy.reference) == (source == "unknown")
        assert any("none is stated" in event["what"] for event in fetched.events) == (source == "unknown")
