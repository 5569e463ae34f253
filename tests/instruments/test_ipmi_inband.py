"""In-band, ipmitool is run once per command; here its part is played by small scripts."""

from __future__ import annotations

import sys

import pytest

from joulelab.core.errors import Denied, MissingDependency, ReadFailed, Unavailable
from joulelab.instruments.ipmi import client as ipmi
from joulelab.instruments.ipmi.inband import InBand

pytestmark = pytest.mark.system


def tool(code: str) -> InBand:
    return InBand([sys.executable, "-S", "-c", f"import sys, time\n{code}"])


def test_the_bytes_go_out_and_come_back():
    echo = tool("assert sys.argv[1] == 'raw'; print('', *(w.removeprefix('0x') for w in sys.argv[2:]))")
    assert echo.raw(0x2C, 0x02, b"\xdc\x01", ipmi.deadline(60)) == (0, b"\x2c\x02\xdc\x01")
    echo.close()


REFUSED = "Unable to send RAW command (channel=0x0 netfn=0x2c lun=0x0 cmd=0x2 rsp=0xc1): Invalid command"


def test_a_completion_code_is_told():
    refusing = tool(f"sys.stderr.write({REFUSED!r}); sys.exit(1)")
    assert refusing.raw(0x2C, 2, b"", ipmi.deadline(60)) == (0xC1, b"")
    with pytest.raises(ReadFailed, match="does not know the command"):
        ipmi.ask(refusing, 0x2C, 2, b"", ipmi.deadline(60))


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("Could not open device at /dev/ipmi0 or /dev/ipmi/0: No such file or directory", Unavailable, "modprobe"),
        ("Could not open device at /dev/ipmi0 or /dev/ipmi/0: Permission denied", Denied, "permission denied"),
        ("Error: Unable to establish IPMI v2 / RMCP+ session", ReadFailed, "log in"),
        ("rsp=0x00): what", ReadFailed, "neither"),
        ("", ReadFailed, "neither"),
    ],
)
def test_complaints_in_own_words(said, kind, words):
    with pytest.raises(kind, match=words):
        tool(f"sys.stderr.write({said!r}); sys.exit(1)").raw(0x06, 1, b"", ipmi.deadline(60))


def test_insufficient_privilege_is_denied():
    with pytest.raises(Denied, match="privilege"):
        ipmi.ask(tool("sys.stderr.write('(rsp=0xd4): x'); sys.exit(1)"), 0x3A, 0x32, b"", ipmi.deadline(60))


def test_nonsense_is_no_answer():
    with pytest.raises(ReadFailed, match="malformed"):
        tool("print('hello')").raw(0x06, 1, b"", ipmi.deadline(60))


def test_one_that_hangs_is_given_up():
    with pytest.raises(ReadFailed, match="in time"):
        tool("time.sleep(600)").raw(0x06, 1, b"", ipmi.deadline(0.3))
    with pytest.raises(ReadFailed, match="in time"):
        tool("").raw(0x06, 1, b"", ipmi.deadline(-1))


def test_without_ipmitool():
    with pytest.raises(MissingDependency, match="install ipmitool"):
        InBand(["/nonexistent/ipmitool"]).raw(0x06, 1, b"", ipmi.deadline(60))
