"""The simulated PDU, asked by net-snmp's own programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system

OUTLET_W = ".1.3.6.1.4.1.1718.4.1.8.3.1.7.1.1"


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pdu")
    with Truth.create(folder / "truth", Node(), profiles={"gpu": profile.constant(0.5)}) as made:
        yield made


@pytest.fixture(scope="module")
def snmpd():
    if not any(shutil.which("snmpd", path=p) for p in (None, "/usr/sbin")):
        pytest.skip("snmpd is not installed: apt install snmpd")


@pytest.fixture(scope="module")
def server(truth, snmpd, tmp_path_factory):
    with ServerProcess("pdu", truth.path, tmp_path_factory.mktemp("served") / "pdu") as served:
        yield served


def secret(server, key):
    return Path(server.served.entries["pdu1"][key]["file"]).read_text()


def ask(program, port, *words, login):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt install snmp")
    command = [program, "-m", "", "-Onq", *login, f"127.0.0.1:{port}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def v3(server):
    words = ["-v3", "-l", "authPriv", "-u", "meter", "-a", "SHA", "-A", secret(server, "password")]
    return [*words, "-x", "AES", "-X", secret(server, "privacy_password"), "-t", "30", "-r", "1"]


def test_snmpget_reads_the_truth_by_v3(truth, server):
    done = ask("snmpget", server.served.ports["snmp"], f"{OUTLET_W}.1", f"{OUTLET_W}.99", login=v3(server))
    first, second = done.stdout.splitlines()
    assert int(first.split()[1]) == pytest.approx(truth.power("outlet:1", monotonic_ns()), abs=1)
    assert "No Such" in second


def test_snmpwalk_reads_by_v2c_and_sees_only_the_device(server):
    credentials = json.loads((secret_folder(server) / "credentials.json").read_text())
    login = ["-v2c", "-c", credentials["community"]]
    done = ask("snmpwalk", server.served.ports["snmp"], ".1.3.6.1", login=login)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(".1")]
    assert len(names) > 40
    assert all(name.startswith((".1.3.6.1.2.1.1.", ".1.3.6.1.4.1.1718.4.")) for name in names)
    assert ask(
        "snmpget", server.served.ports["snmp"], f"{OUTLET_W}.1", login=["-v2c", "-c", "x", "-t", "1", "-r", "0"]
    ).returncode


def secret_folder(server):
    return Path(server.served.entries["pdu1"]["password"]["file"]).parent


def test_credentials_are_for_the_owner_only(server):
    folder = secret_folder(server)
    for name in ("credentials.json", "password", "privacy_password", "community", "snmpd.conf"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name


def test_the_entry_is_whole(truth, server):
    entry = server.served.entries["pdu1"]
    assert entry["meter"] == "snmp"
    assert entry["feeds"] == "node.ac"
    assert entry["outlets"] == list(range(1, len(truth.node.supply.cords) + 1))


def test_snmpd_dies_with_a_killed_server_and_both_return(truth, snmpd, tmp_path):
    with ServerProcess("pdu", truth.path, tmp_path / "pdu") as served:
        port, login = served.served.ports["snmp"], v3(served)
        daemon = int((tmp_path / "pdu" / "snmpd.pid").read_text())
        os.kill(served.pid, signal.SIGKILL)
        until(lambda: not is_running(daemon), "snmpd ends")
        served.kill()
        served.start()
        assert served.served.ports["snmp"] == port
        assert ask("snmpget", port, f"{OUTLET_W}.1", login=login).returncode == 0, "the same login still holds"


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("flaw", ["latency_s", "garble_at_s", "silent_at_s"])
def test_flaws_reach_the_client(truth, snmpd, tmp_path, flaw):
    flaws = {flaw: 0.3 if flaw == "latency_s" else 0, "login": "v2c"}
    with ServerProcess("pdu", truth.path, tmp_path / "pdu", flaws=flaws) as served:
        login = ["-v2c", "-c", secret(served, "community"), "-r", "0", "-t", "60" if flaw == "latency_s" else "1"]
        begin = time.monotonic()
        done = ask("snmpget", served.served.ports["snmp"], f"{OUTLET_W}.1", login=login)
        assert (done.returncode == 0) is (flaw == "latency_s")
        assert time.monotonic() - begin > 0.3
        assert flaw != "silent_at_s" or "Timeout" in done.stderr
