"""The simulated BMC as other software sees it: ipmitool, FreeIPMI and pyghmi."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers.bmc import BmcFlaws
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system

pytest.importorskip("pyghmi", reason="pip install 'joulelab[ipmi]'")


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "truth"
    start = monotonic_ns() - 30 * NS
    with Truth.create(path, Node(), profiles={"gpu": profile.constant(0.5)}, start_ns=start) as made:
        yield made


@pytest.fixture(scope="module")
def bmc(truth, tmp_path_factory):
    with ServerProcess("bmc", truth.path, tmp_path_factory.mktemp("bmc")) as server:
        yield server


def call(*words: str, home: Path | None = None, fails: bool = False) -> str:
    if shutil.which(words[0]) is None:
        pytest.skip("apt install ipmitool freeipmi-tools")
    env = os.environ | ({"HOME": str(home)} if home else {}) | {"LC_ALL": "C"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    assert (done.returncode != 0) is fails, done.stderr
    return done.stdout + (done.stderr if fails else "")


def password(server: ServerProcess) -> str:
    return Path(server.served.entries["bmc"]["password"]["file"]).read_text()


def ipmitool(server: ServerProcess, *words: str, cipher: int = 3, user: str = "USERID", **options) -> str:
    port = str(server.served.ports["ipmi"])
    login = ("-I", "lanplus", "-C", str(cipher), "-H", "127.0.0.1", "-p", port, "-U", user, "-P", password(server))
    return call("ipmitool", *login, *words, **options)


def freeipmi(server: ServerProcess, program: str, *words: str, cipher: int = 3, home: Path | None = None) -> str:
    host = f"127.0.0.1:{server.served.ports['ipmi']}"
    login = ("-D", "LAN_2_0", "-h", host, "-u", "USERID", "-p", password(server), "-l", "ADMIN", "-I", str(cipher))
    return call(program, *login, *words, home=home)


def test_ipmitool_reads_dcmi_power(truth, bmc):
    for cipher in (3, 17):
        shown = ipmitool(bmc, "dcmi", "power", "reading", cipher=cipher)
        watts = int(re.search(r"Instantaneous power reading:\s+(\d+) Watts", shown)[1])
        assert watts == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=1)
        assert "activated" in shown


def test_ipmitool_reads_the_sensor_records(truth, bmc):
    rows = [[cell.strip() for cell in line.split("|")] for line in ipmitool(bmc, "sdr").splitlines()]
    shown = {row[0]: row[1] for row in rows}
    total = sum(int(shown[f"PSU{n} Input Power"].split()[0]) for n in range(1, 5))
    assert total == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=4 * 12)
    assert all(row[2] == "ok" for row in rows)
    fans = truth.node.cooling
    assert float(shown["Inlet Temp"].split()[0]) == fans.inlet_c
    speed = 13_000 * (truth.power("fans", monotonic_ns()) / fans.fan_max_w) ** (1 / 3)
    assert shown["Fan 6"].endswith("RPM")
    assert float(shown["Fan 6"].split()[0]) == pytest.approx(speed, abs=61)
    assert "GPU8 Temp" in shown


def test_ipmitool_reads_a_sensor_by_name(truth, bmc):
    name, watts = ipmitool(bmc, "sensor", "reading", "Sys Power").split("|")
    assert name.strip() == "Sys Power"
    assert float(watts) == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=40)


def test_ipmitool_reads_xcc_energy_raw(truth, bmc):
    before = monotonic_ns()
    data = bytes.fromhex(ipmitool(bmc, "raw", "0x3a", "0x32", "4", "2", "0", "0", "0").replace(" ", "").strip())
    assert len(data) == 14
    joules = int.from_bytes(data[2:6], "little")
    low = truth.energy("node.dc", truth.start_ns, before - NS)
    assert low - 1 <= joules <= truth.energy("node.dc", truth.start_ns, monotonic_ns())


def test_ipmitool_finds_the_cipher_suites_by_itself(bmc):
    port = str(bmc.served.ports["ipmi"])
    login = ("-I", "lanplus", "-H", "127.0.0.1", "-p", port, "-U", "USERID", "-P", password(bmc))
    shown = call("ipmitool", *login, "raw", "0x2c", "0x01", "0xdc", "0x01")
    assert shown.split()[:4] == ["dc", "01", "05", "02"]


def test_it_answers_a_ping(bmc):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.settimeout(60)
        there.sendto(bytes.fromhex("0600ff06000011be80070000"), ("127.0.0.1", bmc.served.ports["ipmi"]))
        answer = there.recv(100)
    assert (answer[8], answer[9]) == (0x40, 0x07)
    assert answer[20] & 0x80  # IPMI is supported


def test_it_survives_nonsense(bmc):
    draw = random.Random(5)
    address = ("127.0.0.1", bmc.served.ports["ipmi"])
    begin = b"\x06\x00\xff\x07\x06"
    suite = b"".join(bytes([kind, 0, 0, 8, 1, 0, 0, 0]) for kind in range(3))
    opening = begin + b"\x10" + bytes(8) + b"\x20\x00" + b"\x01\x00\x00\x00abcd" + suite
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        for number in range(600):
            if number % 10 == 0:  # some of it meets a session
                there.sendto(opening, address)
            kind = draw.choice(
                [b"", begin[:4], *(begin + bytes([k]) for k in (0x00, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0xC0))]
            )
            there.sendto(kind + draw.randbytes(draw.randrange(80)), address)
    assert "Lenovo" in ipmitool(bmc, "mc", "info")


def test_wrong_logins_fail(bmc):
    assert "Unable to establish" in ipmitool(bmc, "mc", "info", user="nobody", fails=True)
    assert "Unable to establish" in ipmitool(bmc, "-P", "wrong", "mc", "info", fails=True)


def test_freeipmi_reads_dcmi_power(truth, bmc):
    for cipher in (3, 17):
        shown = freeipmi(bmc, "ipmi-dcmi", "--get-system-power-statistics", cipher=cipher)
        watts = int(re.search(r"Current Power\s+: (\d+) Watts", shown)[1])
        assert watts == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=1)
        assert re.search(r"Power Measurement\s+: Active", shown)


def test_freeipmi_reads_the_sensors(bmc, tmp_path):
    shown = freeipmi(bmc, "ipmi-sensors", "--quiet-cache", home=tmp_path)
    assert re.search(r"PSU4 Input Power .*\| W ", shown)
    assert re.search(r"PSU1 Status .*Presence detected", shown)


def test_freeipmi_as_slurm_calls_it(bmc):
    """The XCC plugin of Slurm, brought to LAN: administrator, cipher 3, with this workaround."""
    shown = freeipmi(bmc, "ipmi-raw", "-W", "opensesspriv", "0", "0x3a", "0x32", "4", "2", "0", "0", "0")
    assert len(shown.split("rcvd:")[1].split()) == 16  # command, completion code, and 14 bytes


def test_the_longer_form_is_40_bytes_to_slurm(truth, tmp_path):
    with ServerProcess("bmc", truth.path, tmp_path / "b", flaws={"xcc": "power"}) as server:
        shown = freeipmi(server, "ipmi-raw", "0", "0x3a", "0x32", "4", "2", "0", "0", "0")
        data = bytes.fromhex("".join(shown.split("rcvd:")[1].split()))
    assert len(data) == 40
    count = int.from_bytes(data[2:4], "little")
    watts = int.from_bytes(data[4:8], "little") / count
    assert watts == pytest.approx(truth.power("node.dc", monotonic_ns()), abs=1)


def test_the_password_is_kept_in_a_file_of_ones_own(bmc):
    path = Path(bmc.served.entries["bmc"]["password"]["file"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() not in repr(bmc.served)


def test_it_returns_on_its_port_with_its_password(truth, tmp_path):
    with ServerProcess("bmc", truth.path, tmp_path / "b") as server:
        before, port = password(server), server.served.ports["ipmi"]
        server.kill()
        server.start()
        assert (password(server), server.served.ports["ipmi"]) == (before, port)
        assert "Lenovo" in ipmitool(server, "mc", "info")


@pytest.mark.parametrize("wrong", [{"xcc": "both"}, {"modulus_j": 2.0**33}, {"period_s": -1}])
def test_wrong_flaws_are_refused(wrong):
    with pytest.raises(ConfigError):
        BmcFlaws(**wrong)
