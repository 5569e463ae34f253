"""The BMC's meter against another implementation of IPMI: OpenIPMI's simulator, which knows sensors and no DCMI."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess

import pytest
from tests.waiting import until

from joulelab.core.errors import Denied, ReadFailed
from joulelab.instruments import ipmi
from joulelab.twin.servers import bmc as sdr

pytestmark = pytest.mark.system

pytest.importorskip("pyghmi", reason="pip install 'joulelab[ipmi]'")

pytestmark = pytest.mark.system

COUNT = 95


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    program = shutil.which("ipmi_sim")
    if program is None:
        pytest.skip("apt install openipmi")
    directory = tmp_path_factory.mktemp("sim")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sensor = sdr.BmcSensor(number=1, name="System Power", entity=(7, 1), type=11, unit=6, m=4, read=lambda: 0.0)
    record = " ".join(f"0x{byte:02x}" for byte in sensor.make_record(1))
    (directory / "power.emu").write_text(
        "mc_setbmc 0x20\n"
        "mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x03 0x0002a2 0x0001 persist_sdr\n"
        f"main_sdr_add 0x20 {record}\n"
        "sensor_add 0x20 0 1 11 1\n"
        f"sensor_set_value 0x20 0 1 {COUNT} 0\n"
        "mc_enable 0x20\n"
    )
    (directory / "lan.conf").write_text(
        'name "sim"\nset_working_mc 0x20\nstartlan 1\n'
        f"addr 127.0.0.1 {port}\npriv_limit admin\nallowed_auths_admin none md5\n"
        "guid 0102030405060708090a0b0c0d0e0f10\nendlan\n"
        'user 2 true "watcher" "s3cret" admin 10 none md5\n'
    )
    words = [program, "-c", "lan.conf", "-f", "power.emu", "-s", str(directory), "-n"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, cwd=directory, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def config(address: str, **more):
    return {"address": address, "user": "watcher", "password": "s3cret", "privilege": "administrator", **more}


def opened(address: str, **more):
    """Open the meter as soon as the simulator is up."""

    def attempt():
        with contextlib.suppress(ReadFailed):
            return ipmi.open_meter(config(address, **more))

    return until(attempt, "the simulator is up", within_s=120)


@pytest.mark.parametrize("cipher", [3, None])
def test_its_sensor_is_found_and_scaled(address, cipher):
    meter = opened(address, **({"cipher": cipher} if cipher else {}))
    (stream,) = meter.streams()
    assert (stream.name, stream.scope) == ("sensor:System Power", "node.ac")
    assert meter.read(stream) == (4.0 * COUNT,)
    assert "read-failed.refused" in [m.code for m in meter.missing()], "it knows no DCMI"
    meter.close()


@pytest.mark.parametrize(
    ("change", "code"), [({"password": "nope"}, "denied.password"), ({"user": "nobody"}, "denied.user")]
)
def test_wrong_logins(address, change, code):
    opened(address).close()
    with pytest.raises(Denied) as caught:
        ipmi.open_meter(config(address, **change))
    assert caught.value.code == code
