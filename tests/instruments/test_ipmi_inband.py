"""In-band, ipmitool is run once per command; here small scripts take its place."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from joulelab.core.errors import JoulelabError, MeterError, ReadFailed
from joulelab.instruments import ipmi
from joulelab.instruments.ipmi.client import Bmc, InBandLink, parse_complaint

pytestmark = pytest.mark.system


def tool(code: str, timeout_s: float = 60.0) -> Bmc:
    return Bmc(InBandLink([sys.executable, "-S", "-c", f"import sys, time\n{code}"]), timeout_s)


def test_the_bytes_go_out_and_come_back():
    echo = tool("assert sys.argv[1] == 'raw'; print('', *(w.removeprefix('0x') for w in sys.argv[2:]))")
    assert echo.send_request(0x2C, 0x02, b"\xdc\x01") == (0, b"\x2c\x02\xdc\x01")
    echo.close()


REFUSED = "Unable to send RAW command (channel=0x0 netfn=0x2c lun=0x0 cmd=0x2 rsp=0xc1): Invalid command"


def test_a_completion_code_is_passed_on():
    refusing = tool(f"sys.stderr.write({REFUSED!r}); sys.exit(1)")
    assert refusing.send_request(0x2C, 2) == (0xC1, b"")
    with pytest.raises(ReadFailed, match="does not know the command"):
        refusing.request_data(0x2C, 2)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Could not open device at /dev/ipmi0 or /dev/ipmi/0: No such file or directory", "unavailable.no-device"),
        ("Could not open device at /dev/ipmi0 or /dev/ipmi/0: Permission denied", "denied.device"),
        ("Error: Unable to establish IPMI v2 / RMCP+ session", "read-failed.ipmitool"),
        ("rsp=0x00): what", "read-failed.ipmitool"),
        ("", "read-failed.ipmitool"),
    ],
)
def test_complaints_are_errors(text, code):
    with pytest.raises(MeterError) as caught:
        parse_complaint(text, "BMC")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("script", "timeout_s", "code"),
    [
        ("sys.stderr.write('(rsp=0xd4): x'); sys.exit(1)", 60.0, "denied.privilege"),
        ("print('hello')", 60.0, "read-failed.malformed"),
        ("time.sleep(600)", 0.3, "read-failed.no-answer"),
        ("time.sleep(600)", -1.0, "read-failed.no-answer"),
    ],
)
def test_failures_are_told_apart(script, timeout_s, code):
    with pytest.raises(MeterError) as caught:
        tool(script, timeout_s).request_data(0x3A, 0x32)
    assert caught.value.code == code


def test_without_ipmitool():
    with pytest.raises(JoulelabError) as caught:
        ipmi.open_meter({"command": ["/nonexistent/ipmitool"]})
    assert caught.value.code == "missing-dependency.ipmitool"


def test_where_there_is_no_bmc():
    if shutil.which("ipmitool") is None:
        pytest.skip("apt install ipmitool")
    if Path("/dev/ipmi0").exists():
        pytest.skip("this machine has a BMC")
    with pytest.raises(MeterError) as caught:
        ipmi.open_meter({})
    assert caught.value.code == "unavailable.no-device"
    assert caught.value.next
    assert "Over LAN" in ipmi.diagnose({}, caught.value)[0]
