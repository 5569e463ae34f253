"""A node measured by everything at once: the truth lies in the interval of every meter, of rest and supply."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from benchmarks.wall import served, virtual


@pytest.mark.parametrize("gains", [True, False])
@pytest.mark.parametrize("seeds", [2, pytest.param(6, marks=pytest.mark.campaign)])
def test_in_virtual_time(seeds, gains):
    """A few seeds here; `python -m benchmarks wall` draws as many as one likes."""
    found = [o for seed in range(1, seeds + 1) for o in virtual(seed, 12.0, gains=gains)]
    names = {o.name for o in found}
    assert {
        "rest of node.ac",
        "rest of node.dc",
        "supply efficiency",
        "node.ac pdu1 power_w",
        "gpu nvml energy_j",
    } <= names
    inside = [o.covered for o in found]
    assert len(inside) > 40 * seeds
    assert np.mean(inside) >= 0.95


@pytest.mark.campaign  # the BMC shows ten updates, each a second apart
@pytest.mark.no_cover  # each protocol is traced by the tests of its own
@pytest.mark.skipif(shutil.which("snmpd") is None, reason="no snmpd: apt-get install snmpd")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: apt-get install gcc libc6-dev")
def test_over_the_real_protocols():
    """NVML, RAPL, IPMI, Redfish, SNMP, Modbus and the analyzer in one run, each held against its own point."""
    found = served(3, 10.0, gains=True)  # the BMC shows ten updates then, from which it is judged
    meters = {name.split()[1] for name in (o.name for o in found) if name.split()[0] in ("node.ac", "node.dc", "gpu")}
    assert {"nvml", "analyzer", "bmc", "redfish", "pdu1", "modbus1"} <= meters
    assert {"rest of node.ac", "supply efficiency", "psu bmc power_w", "outlet pdu1 power_w"} <= {o.name for o in found}
    inside = [o.covered for o in found]
    assert np.mean(inside) >= 0.95, [o for o in found if not o.covered]
