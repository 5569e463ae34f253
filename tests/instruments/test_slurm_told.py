"""A job's energy as it is added to a run of ours: what it covers, which row, whose record that holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.slurm.fake import PM, T0, row

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.readings import Readings
from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed
from joulelab.instruments.slurm.client import parse_accounting, parse_settings
from joulelab.instruments.slurm.plugins import sampling_of
from joulelab.instruments.slurm.rows import Energy, Known, energy_of, grouped, total_of
from joulelab.instruments.slurm.told import account


def test_a_job_beside_our_own_meters_says_what_it_covers_and_whose_record_it_holds():
    """What `feeds` says counts for a node's plugin; a total over components has the times of all."""
    sampling = sampling_of(parse_settings(PM))
    first, second = (
        grouped(parse_accounting(row(f"{n}", 90 * n, f"00:0{n}", "01:00") + row(f"{n}.0", 90))) for n in (1, 2)
    )
    components = [first["1"][0], second["2"][0]]
    energy = total_of([energy_of(component, sampling) for component in components])
    assert (energy.joules, energy.times) == (270, (T0 + 1 * NS, T0 + 60 * NS))
    fetched, facts = account(components, sampling, energy, ["a doubt"], {"feeds": "node.ac"}, Known("1", host="n1"))
    assert (facts["covers"], facts["nodes"], facts["holds"]) == (["node.ac"], ["n1"], ["n1"])
    assert "a doubt" in [event["what"] for event in fetched.events]
    step = energy_of(components[0], sampling, Known("0", host="n1"))
    assert (step.row, account(components[:1], sampling, step, known=Known("0", host="n1"))[1]["holds"]) == (".0", [])
    workload = energy_of(components[0], sampling, Known(launched=True))
    assert (workload.row, account(components[:1], sampling, workload)[1]["holds"]) == (".0", [])
    with pytest.raises(ReadFailed, match="has no times"):
        account(components, sampling, Energy(None, reason="it is PENDING"))
    rapl = sampling_of({"AcctGatherEnergyType": "acct_gather_energy/rapl"})
    assert account(components, rapl, energy, (), {"feeds": "node.ac"})[1]["covers"] == ["cpu", "dram"]


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
        sampling_of(parse_settings(PM.replace("1 sec", f"{look_s} sec"))),
    )
    held, widths = [], []
    for _ in range(150):
        text, true = looked_at(r, length_s, look_s)
        (component,) = grouped(parse_accounting(text))["1"]
        energy = energy_of(component, sampling)
        if energy.joules is None:  # no look fell into it
            continue
        fetched, _ = account([component], sampling, energy)
        t = np.array([t for t, _, _ in fetched.rows])
        spec = fetched.stream.channels[0]
        found = CounterCurve(
            Readings.from_rows(t, t, np.array([v[0] for *_, v in fetched.rows])), spec, name="slurm"
        ).energy(*t)
        assert found.value == pytest.approx(energy.joules, abs=1e-3)
        assert (found.expanded is None) == any("no interval is stated" in text for text in energy.doubts)
        if found.expanded is not None:
            held.append(abs(found.value - true) <= found.expanded)
            widths.append(found.expanded / true)
    assert bool(held) == (length_s >= 2 * look_s)
    if held:
        assert np.mean(held) >= 0.95
        assert np.mean(widths) < 0.12 + 2 * look_s / length_s  # and it is no wider than it must be


def test_a_job_below_two_looks_has_no_interval_whatever_is_stated():
    """Nobody knows how much of it the looks saw: a stated gain does not mend that."""
    sampling = sampling_of(parse_settings(PM.replace("1 sec", "30 sec")))
    for end, source in (("00:59", "unknown"), ("01:00", "calibrated")):
        (component,) = grouped(parse_accounting(row("1", 9000, end=end)))["1"]
        stated = {"gain": 0.01, "reference": "our own calibration"}
        fetched, _ = account([component], sampling, energy_of(component, sampling), config=stated)
        accuracy = fetched.stream.channels[0].accuracy
        assert accuracy.source == source
        assert ("below two looks of 30 s" in accuracy.reference) == (source == "unknown")
        assert any("no interval is stated" in event["what"] for event in fetched.events) == (source == "unknown")
