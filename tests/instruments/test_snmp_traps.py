"""Traps and informs sent by net-snmp's own programs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest
from tests.waiting import until

from joulelab.core.errors import Unavailable
from joulelab.instruments.snmp.traps import receiver
from joulelab.instruments.snmp.usm import Community, User

pytestmark = pytest.mark.system

pytest.importorskip("pysnmp", reason="pip install 'joulelab[snmp]'")
OID = ".1.3.6.1.4.1.1718.4.0.1"


@pytest.fixture
def port():
    if shutil.which("snmptrap") is None:
        pytest.skip("snmptrap is not installed: apt install snmp")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def send(tmp_path, *words, program="snmptrap"):
    environ = os.environ | {"SNMP_PERSISTENT_DIR": str(tmp_path), "MIBS": ""}
    return subprocess.run([program, "-m", "", *words], env=environ, capture_output=True, text=True, timeout=120)


def wait(heard, count=1):
    until(lambda: len(heard) >= count, "traps")
    return heard


def is_free(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        try:
            free.bind(("", port))
        except OSError:
            return False
    return True


def test_versions_one_and_two_and_informs_are_heard_each_by_its_listener(port, tmp_path):
    first, second = [], []
    left = receiver().listen(port, "127.0.0.1", Community("one"), b"", first.append)
    right = receiver().listen(port, "127.0.0.1", Community("two"), b"", second.append)
    try:
        to = f"127.0.0.1:{port}"
        send(tmp_path, "-v1", "-c", "one", to, ".1.3.6.1.4.1.318", "127.0.0.1", "6", "42", "", ".1.3.6.1.9.1", "s", "x")
        assert wait(first)[0].oid == "1.3.6.1.4.1.318.0.42"
        assert first[0].values["1.3.6.1.9.1"] == "x"
        assert "one" not in first[0].values.values()  # pysnmp adds the community to a trap of version 1
        assert "1.3.6.1.6.3.18.1.4.0" not in first[0].values
        binary = [".1.3.6.1.9.2", "x", "ff00"]
        done = send(tmp_path, "-v2c", "-c", "two", "-t", "5", to, "", OID, *binary, program="snmpinform")
        assert done.returncode == 0, "an inform is acknowledged"
        trap = wait(second)[0]
        assert (trap.source, trap.oid, trap.values) == ("127.0.0.1", OID[1:], {"1.3.6.1.9.2": "0xff00"})
        send(tmp_path, "-v2c", "-c", "wrong", to, "", OID)
        send(tmp_path, "-v2c", "-c", "two", to, "", OID)
        assert len(wait(second, 2)) == 2
        assert len(first) == 1
    finally:
        receiver().leave(left)
        receiver().leave(right)
        receiver().leave(right)
    until(lambda: is_free(port), "the port is let go")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", port))
        with pytest.raises(Unavailable, match=f"port {port}"):
            receiver().listen(port, "127.0.0.1", Community("one"), b"", first.append)


def test_a_trap_of_version_three_needs_the_right_keys(port, tmp_path):
    heard = []
    engine = "80001f880411223344"
    user = User("reader", "SHA256", "a password", "AES", "another one")
    listener = receiver().listen(port, "127.0.0.1", user, bytes.fromhex(engine), heard.append)
    try:
        login = ["-v3", "-e", f"0x{engine}", "-u", "reader", "-l", "authPriv", "-a", "SHA-256", "-x", "AES"]
        to = [f"127.0.0.1:{port}", "", OID]
        send(tmp_path, *login, "-A", "a wrong one", "-X", "another one", *to)
        send(tmp_path, *login, "-A", "a password", "-X", "another one", *to)
        assert [trap.oid for trap in wait(heard)] == [OID[1:]]
    finally:
        receiver().leave(listener)
