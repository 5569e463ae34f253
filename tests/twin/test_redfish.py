from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from dataclasses import replace

import pytest

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.twin import profile
from joulelab.twin.model import H100, Node
from joulelab.twin.servers import redfish
from joulelab.twin.servers._redfish_trees import VENDORS, RedfishReadings, build_tree
from joulelab.twin.truth import Truth

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="curl is not installed: apt install curl")


@pytest.fixture
def truth(tmp_path):
    start = monotonic_ns() - 100 * NS
    gpus = {"gpu": profile.constant(0.5)}
    with Truth.create(tmp_path / "truth", Node(gpus=(H100,)), profiles=gpus, start_ns=start) as made:
        yield made


@pytest.fixture
def serve(truth, tmp_path):
    with contextlib.ExitStack() as stack:

        def start(**flaws):
            return stack.enter_context(redfish.serve(truth, tmp_path, replace(redfish.FLAWS, **flaws), 0))

        yield start


def curl(served, path, *options):
    """Return status, headers and body, with a client that shares nothing with ours."""
    place = f"https://127.0.0.1:{served.ports['redfish']}{path}"
    command = [CURL, "--silent", "--globoff", "--include", "--max-time", "120", *options, place]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    head, _, body = done.stdout.partition("\n\n")
    status, *lines = head.splitlines() or [f"HTTP/1.1 {-done.returncode}"]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status.split()[1]), headers, body


def trusted(served):
    return ("--cacert", served.facts["certificate"])


def account(served, tmp_path):
    return (*trusted(served), "--user", f"{redfish.USER}:{(tmp_path / 'password').read_text()}")


@pytest.mark.system
def test_curl_logs_in_reads_and_logs_out(serve, truth, tmp_path):
    served = serve()
    assert curl(served, "/redfish/v1/")[0] == -60  # a certificate that nobody has vouched for
    status, _, body = curl(served, "/redfish/v1/", *trusted(served))
    root = json.loads(body)
    assert (status, root["RedfishVersion"]) == (200, "1.18.0")
    assert curl(served, root["Chassis"]["@odata.id"], *trusted(served))[0] == 401
    said = json.dumps({"UserName": redfish.USER, "Password": (tmp_path / "password").read_text()})
    sessions = root["Links"]["Sessions"]["@odata.id"]
    status, headers, _ = curl(served, sessions, *trusted(served), "--data", said)
    assert status == 201
    key = (*trusted(served), "--header", f"X-Auth-Token: {headers['x-auth-token']}")
    chassis = json.loads(curl(served, root["Chassis"]["@odata.id"], *key)[2])["Members"][0]["@odata.id"]
    node = json.loads(curl(served, chassis, *key)[2])
    metrics = json.loads(curl(served, node["EnvironmentMetrics"]["@odata.id"], *key)[2])
    assert metrics["PowerWatts"]["Reading"] == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=0.51)
    assert curl(served, headers["location"], *key, "--request", "DELETE")[0] == 204
    assert curl(served, chassis, *key)[0] == 401
    assert curl(served, sessions, *trusted(served), "--data", "{}")[0] == 400
    assert curl(served, sessions, *trusted(served), "--data", said.replace("reader", "nobody"))[0] == 401


@pytest.mark.system
def test_basic_expand_and_what_is_not_there(serve, tmp_path):
    served = serve()
    key = account(served, tmp_path)
    status, _, body = curl(served, "/redfish/v1/Chassis/HGX_GPU_SXM_1/Sensors?$expand=.($levels=1)", *key)
    assert status == 200
    rows = {row["Id"]: row for row in json.loads(body)["Members"]}
    assert rows["HGX_GPU_SXM_1_Energy_0"]["ReadingType"] == "EnergyJoules"
    assert rows["HGX_GPU_SXM_1_Power_0"]["ReadingTime"].endswith("Z")
    assert curl(served, "/redfish/v1/Chassis/nothing", *key)[0] == 404
    assert curl(served, "/redfish/v1/Chassis", *key, "--data", "{}")[0] == 405
    wrong = (*trusted(served), "--user", "reader:no")
    assert curl(served, "/redfish/v1/Chassis", *wrong)[0] == 401


@pytest.mark.system
def test_flaws_show(serve, tmp_path):
    refused = serve(refuse=True)
    assert curl(refused, "/redfish/v1/Chassis", *account(refused, tmp_path))[0] == 401
    failing = serve(error_share=1.0)
    assert curl(failing, "/redfish/v1/Chassis", *account(failing, tmp_path))[0] == 500
    silent = serve(drop_share=1.0)
    assert curl(silent, "/redfish/v1/", *trusted(silent), "--max-time", "0.5")[0] == -28
    garbled = serve(garble_at_s=0.0)
    bodies = {curl(garbled, "/redfish/v1/", *trusted(garbled))[2] for _ in range(4)}
    assert not any("RedfishVersion" in body for body in bodies)
    late = serve(latency_s=0.3)
    begin = time.monotonic()
    assert curl(late, "/redfish/v1/", *trusted(late))[0] == 200
    assert time.monotonic() - begin >= 0.3
    with pytest.raises(ConfigError, match="did you mean 'dell'"):
        replace(redfish.FLAWS, vendor="del")


@pytest.mark.parametrize("vendor", VENDORS)
def test_every_link_of_every_maker_leads_somewhere(truth, vendor):
    served = build_tree(vendor, RedfishReadings(truth, replace(redfish.FLAWS, vendor=vendor)))

    def links(found):
        if isinstance(found, dict):
            for key, value in found.items():
                if key in ("@odata.id", "DataSourceUri", "Members@odata.nextLink"):
                    yield value
                yield from links(value)
        elif isinstance(found, list):
            for value in found:
                yield from links(value)

    for path, body in served.items():
        shown = json.loads(json.dumps(body()))
        for target in links(shown):
            plain = target.split("#")[0].rstrip("/")
            assert plain in served or plain.startswith("/redfish/v1/SessionService"), (path, target)


def test_updates_windows_steps_wrap_and_reset(truth):
    flaws = replace(redfish.FLAWS, period_s=5.0, quantum_w=10.0, quantum_j=3600.0, modulus_j=7200.0, base_j=0.0)
    shown = RedfishReadings(truth, flaws)
    assert shown.read_watts("node.ac") % 10 == 0
    assert shown.read_joules("node.ac") in (0.0, 3600.0)
    assert shown.read_kwh("node.ac") in (0.0, 0.001)
    assert shown.format_interval() == "PT5S"
    fresh = RedfishReadings(truth, replace(redfish.FLAWS, reset_at_s=99.0))
    assert fresh.read_joules("node.ac") < 1e6
