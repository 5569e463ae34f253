"""Every meter that is found keeps the contract: on a simulated node, and where there is nothing to read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.instruments.test_cray import tree
from tests.instruments.test_hwmon import grace

from joulelab import instruments as meters
from joulelab.twin import profile, twin_server
from joulelab.twin.model import A100, H100, Host, Node
from joulelab.twin.twin_server import TwinServer

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
TWIN = ("LD_LIBRARY_PATH", "JOULELAB_TWIN", "JOULELAB_POWERCAP", "JOULELAB_CONFIG")
BARE = {k: v for k, v in os.environ.items() if k not in TWIN and not k.startswith("COVERAGE")}
WALL = ("analyzer", "ipmi", "modbus", "plug", "prometheus", "redfish", "snmp")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Serve what meters read: a simulated node, and stubs of libraries that need hardware."""
    stub = tmp_path_factory.mktemp("amd") / "stub"
    stub.write_text(json.dumps({"gpus": [{"watts": 300}, {"watts": 90, "frozen": True}]}))
    trees = {"TEST_HWMON": grace(tmp_path_factory.mktemp("hwmon")), "TEST_CRAY": tree(tmp_path_factory.mktemp("cray"))}
    small = Node(gpus=(H100, A100), host=Host(max_w=500))  # small enough for a plug
    every = {name: {} for name in twin_server.list_servers()}
    with TwinServer(small, profiles={"gpu": profile.constant(0.5)}, wall=every) as server:
        yield server, server.environment | {"AMDSMI_STUB": str(stub)} | {k: str(v) for k, v in trees.items()}


def check(name: str, environment: dict[str, str], *path: Path):
    command = [sys.executable, str(ROOT / "tests" / "contracts" / "check_meter.py"), name]
    env = BARE | {"PYTHONPATH": os.pathsep.join(str(p) for p in (*path, ROOT / "src"))} | environment
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# A twin has no Slurm: tests/instruments/test_slurm_cluster.py starts a real one.
# An inference server is no part of a node: tests/instruments/test_inference.py reads one.
@pytest.mark.parametrize("name", [name for name in meters.list_meters() if name not in ("slurm", "inference")])
def test_on_a_simulated_node(node, name):
    server, environment = node
    if name == "nvml" and server.missing is not None:
        pytest.skip(str(server.missing))
    served = {entry["meter"] for s in server.wall.servers.values() for entry in s.served.entries.values()}
    if name in WALL and name not in served:
        pytest.skip("; ".join(str(error) for error in server.wall.missing.values()))
    found = check(name, environment, ROOT / "tests" / "stubs")
    assert found.get("streams"), explain_unserved(name, found)


def explain_unserved(name: str, found: dict[str, str]) -> str:
    """Say why a meter was not read here, and what to do about it."""
    return (
        f"the meter {name} opened nothing on the simulated node ({found.get('error', 'no stream')}). Let the node serve"
        f" it (src/joulelab/twin; one at the wall: twin/wall.py, and {name!r} in WALL above), or a stub of its library"
        f" in tests/stubs. If neither can be, except it in the list above, and say there which test reads it"
    )


def test_a_meter_that_the_node_does_not_serve_is_told_what_to_do():
    text = explain_unserved("wattfile", {"error": "Unavailable"})
    assert re.search(r"the meter wattfile opened nothing .*\(Unavailable\).*tests/stubs", text)


EXAMPLE = re.search(r"```python\n(.*?)```", Path(meters.__file__).with_name("README.md").read_text(), re.DOTALL)


def test_the_example_of_the_documentation_keeps_the_contract(tmp_path):
    (tmp_path / "power1_input").write_text("12500000\n")
    (tmp_path / "wattfile.py").write_text(EXAMPLE[1])
    run = """
import sys
from tests.contracts import check_meter
import wattfile
check_meter.check_module(wattfile)
check_meter.check_wrong_key(wattfile)
check_meter.check_error(check_meter.attempt(lambda: wattfile.open_meter({"path": "/nowhere"})))
meter = wattfile.open_meter({"path": sys.argv[1], "slow_period_s": 2.0})
check_meter.check_streams(list(meter.streams()))
check_meter.check_rows(meter)
(stream,) = meter.streams()
assert (stream.period_s, meter.read(stream)) == (2.0, (12.5,))
meter.close()
"""
    env = BARE | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "src")))}
    command = [sys.executable, "-c", run, str(tmp_path / "power1_input")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", meters.list_meters())
def test_where_it_is(name):
    check(name, {})


FIND = (
    "import sys, time; a = time.process_time(); import joulelab.instruments as m;"
    "m.find_meter('nvml'); m.find_meter('rapl');"
    "print(time.process_time() - a, sorted({'numpy', 'duckdb', 'pynvml', 'psutil', 'amdsmi'} & set(sys.modules)))"
)


def find_meters() -> tuple[float, str]:
    """Return the CPU time (s) that a process needs to find meters, and which heavy modules it imports."""
    env = BARE | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", FIND], capture_output=True, text=True, env=env, check=True)
    seconds, heavy = done.stdout.split(None, 1)
    return float(seconds), heavy.strip()


def test_finding_meters_imports_nothing_heavy():
    assert find_meters()[1] == "[]"


@pytest.mark.campaign
def test_finding_meters_is_quick():
    assert min(find_meters()[0] for _ in range(3)) < 0.25
