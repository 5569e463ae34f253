"""A job's energy as it is added to a run of ours: what it covers, which row, whose record that holds."""

from __future__ import annotations

import pytest
from tests.slurm.fake import PM, T0, row

from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed
from joulelab.meters.slurm.plugins import sampling_of
from joulelab.meters.slurm.rows import Energy, Known, energy_of, grouped, total_of
from joulelab.meters.slurm.told import account
from joulelab.transports.slurm import parse_accounting, parse_settings


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
