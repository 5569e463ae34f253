"""Clock, temperature and fans go with power by one model: the C library, the BMCs and virtual time show the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from joulelab.core.clock import NS, monotonic_ns
from joulelab.twin import profile
from joulelab.twin.model import A100, FULL_RPM, H100, RTX6000, Cooling, Node
from joulelab.twin.servers._redfish_trees import RedfishFlaws, RedfishReadings
from joulelab.twin.servers.bmc import FLAWS, SimulatedBmc
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.twin.conftest import Twin

COLD = replace(RTX6000, sm_max_mhz=2000, sm_idle_mhz=300)
STATE = """
h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([[n.nvmlDeviceGetClockInfo(d, n.NVML_CLOCK_SM), n.nvmlDeviceGetTemperature(d, 0)] for d in h]))
"""


def test_a_clock_takes_its_square_of_the_dynamic_power() -> None:
    found = COLD.sm_mhz(np.array([18.0, 218, 218, 218, 218, 218]), np.array([18.0, 218, 68, 20, 10, 218]), 1.0)
    assert found == pytest.approx([2000, 2000, 1000, 300, 300, 2000])
    assert COLD.sm_mhz(218.0, 68.0, np.array([0.0, 0.01])) == pytest.approx([300, 1000])
    assert COLD.sm_mhz(10.0, 5.0, 1.0) == 300, "a cap below idle leaves nothing"
    for mhz in (700.0, 1300.0, 2000.0):  # held down by a lock or by a cap of what it then draws: the same
        assert COLD.sm_mhz(218.0, COLD.clocked_w(218.0, mhz), 1.0) == pytest.approx(mhz)
    assert COLD.clocked_w(218.0, 4000.0) == 218.0


def test_heat_goes_with_power_from_idle_to_full_load() -> None:
    assert COLD.compute_celsius(np.array([0.0, 18, 139, 260, 400])) == pytest.approx([32, 32, 55, 78, 78])


def test_a_board_has_the_spread_in_its_powers_alone() -> None:
    node = Node(gpus=(replace(A100, active_w=90.0),) * 3, spread=0.05)
    for gpu in range(3):
        board, more = node.get_board(gpu), node.draw_factor(gpu)
        assert (board.idle_w, board.max_w) == node.range_w(f"gpu:{gpu}")
        assert board.active_w == pytest.approx(90.0 * more)
        assert board.default_cap_w == 400
    assert Node(spread=0.05).get_board(1).active_w is None


@pytest.mark.system
@pytest.mark.parametrize("load", [0.0, 0.03, 0.6, 1.0])
def test_the_c_library_shows_what_the_model_says(make_twin: Callable[..., Twin], load: float) -> None:
    node = Node(gpus=(H100, RTX6000, A100, H100, RTX6000), packages=0, spread=0.06)
    # It has been so for long: temperatures are those of the last seconds.
    twin = make_twin(node, {"gpu": profile.constant(load)}, start_ns=monotonic_ns() - 60 * NS)
    caps = (700.0, 140.0, 100.0, 250.0, 100.0)
    for gpu, cap in enumerate(caps):
        twin.truth.set_cap(gpu, cap, monotonic_ns() - 30 * NS)
    shown = twin.run(STATE)
    for gpu, cap in enumerate(caps):
        board, wanted = node.get_board(gpu), float(node.draws_w(f"gpu:{gpu}", load))
        given = min(wanted, cap)
        assert shown[gpu][0] == pytest.approx(float(board.sm_mhz(wanted, given, load)), abs=0.51)
        assert shown[gpu][1] == pytest.approx(float(board.compute_celsius(given)), abs=0.51)


LOCKED = """
h = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceSetGpuLockedClocks(h, 210, 1050)
time.sleep(0.3)
read = lambda: [n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetCurrentClocksThrottleReasons(h)]
locked = read()
n.nvmlDeviceResetGpuLockedClocks(h)
n.nvmlDeviceSetApplicationsClocks(h, n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM), 1470)
time.sleep(0.3)
print(json.dumps([locked, read()]))
"""


@pytest.mark.system
def test_a_locked_clock_takes_power_of_any_load(make_twin: Callable[..., Twin]) -> None:
    twin = make_twin(Node(gpus=(RTX6000,), packages=0, spread=0.0), {"gpu": profile.constant(1.0)})
    a = monotonic_ns()
    locked, application = twin.run(LOCKED)
    assert locked == [round(1000 * (18 + 242 / 4)), 1050, 100, 2]
    assert application[:3] == [round(1000 * (18 + 242 * 0.49)), 1470, 100]
    assert twin.truth.power("gpu:0", monotonic_ns()) == pytest.approx(18 + 242 * 0.49)
    assert twin.truth.power("gpu:0", a) == 260


def test_bmcs_show_the_same_fans_and_temperatures(tmp_path: Path) -> None:
    node = Node(gpus=(H100, H100), packages=1, spread=0.06)
    profiles = {"gpu:0": profile.constant(0.5), "gpu:1": profile.constant(0.0)}
    with Truth.create(tmp_path / "truth", node, profiles=profiles, start_ns=monotonic_ns() - 60 * NS) as truth:
        fans_w = truth.power("fans", monotonic_ns())
        sensors = {sensor.name: sensor for sensor in SimulatedBmc(truth, FLAWS, b"")._list_sensors()}
        assert sensors["GPU1 Temp"].read() == pytest.approx(55)
        assert sensors["GPU2 Temp"].read() == pytest.approx(32), "at rest"
        assert sensors["Fan 3"].read() == pytest.approx(node.cooling.compute_rpm(fans_w))
        assert RedfishReadings(truth, RedfishFlaws()).fan_rpm(0) == round(node.cooling.compute_rpm(fans_w))


def test_fans_turn_by_the_cube_root_of_their_power() -> None:
    assert Cooling(fan_idle_w=20.0, fan_max_w=1000.0).compute_rpm(125.0) == pytest.approx(FULL_RPM / 2)
