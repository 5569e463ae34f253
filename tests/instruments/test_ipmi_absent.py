"""The BMC's meter where there is no BMC, or one that knows nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from joulelab.core.errors import MeterError, ReadFailed
from joulelab.instruments import ipmi

pytestmark = pytest.mark.system

pytest.importorskip("pyghmi", reason="pip install 'joulelab[ipmi]'")


def test_nothing_there():
    config = {"address": "127.0.0.1:9", "user": "u", "password": "hunter2222", "timeout_s": 0.2}
    with pytest.raises(ReadFailed, match="does not answer") as caught:
        ipmi.open_meter(config)
    told = ipmi.diagnose(config, caught.value)
    assert "is closed" in told[0]
    nowhere = {**config, "address": "nosuchname.invalid"}
    with pytest.raises(ReadFailed, match="does not resolve") as caught:
        ipmi.open_meter(nowhere)
    assert "does not resolve" in ipmi.diagnose(nowhere, caught.value)[0]


def test_in_band_where_there_is_no_bmc():
    if shutil.which("ipmitool") is None:
        pytest.skip("apt install ipmitool")
    if Path("/dev/ipmi0").exists():
        pytest.skip("this machine has a BMC")
    with pytest.raises(MeterError) as caught:
        ipmi.open_meter({})
    assert caught.value.why
    assert caught.value.next
    assert any("LAN" in line for line in ipmi.diagnose({}, caught.value))


def test_in_band_a_bmc_that_knows_nothing():
    refusing = [sys.executable, "-S", "-c", "import sys; sys.stderr.write('rsp=0xc1): no'); sys.exit(1)"]
    with pytest.raises(ReadFailed, match="does not know the command"):
        ipmi.open_meter({"command": refusing})
