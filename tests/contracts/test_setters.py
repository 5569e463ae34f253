"""Every setter that is found keeps the contract: on a simulated node, and where there is nothing to set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulelab.control import setters
from joulelab.twin.model import A100, RTX6000, Node
from joulelab.twin.twin_server import TwinServer

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
TWIN = ("LD_LIBRARY_PATH", "JOULELAB_TWIN", "JOULELAB_POWERCAP", "JOULELAB_STATE")
BARE = {key: value for key, value in os.environ.items() if key not in TWIN}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Serve what setters set: a simulated node, and stubs of libraries that need hardware."""
    stub = tmp_path_factory.mktemp("amd") / "stub"
    stub.write_text(json.dumps({"gpus": [{"watts": 300}, {"watts": 90, "caps_uw": [300_000_000, 750_000_000]}]}))
    with TwinServer(Node(gpus=(RTX6000, A100))) as server:
        yield server, server.environment | {"AMDSMI_STUB": str(stub)}


def check(name: str, environment: dict[str, str], *path: Path):
    command = [sys.executable, str(ROOT / "tests" / "contracts" / "check_setter.py"), name]
    env = BARE | {"PYTHONPATH": os.pathsep.join(str(p) for p in (*path, ROOT / "src"))} | environment
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", setters.list_families())
def test_on_a_simulated_node(node, name):
    server, environment = node
    if name == "nvml" and server.missing is not None:
        pytest.skip(str(server.missing))
    assert check(name, environment, ROOT / "tests" / "stubs").get("setters", 0) > 0


@pytest.mark.parametrize("name", setters.list_families())
def test_where_there_is_nothing_to_set(name, tmp_path):
    if any(map(os.path.exists, ("/proc/driver/nvidia/version", "/dev/kfd"))):
        pytest.skip("this machine has GPUs, whose caps are left alone")
    answer = check(name, {"JOULELAB_POWERCAP": str(tmp_path), "LD_LIBRARY_PATH": "", "AMDSMI_STUB": "none"})
    assert answer["error"] == "Unavailable"
