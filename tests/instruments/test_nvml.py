"""NVML against the simulated node's library, in another process."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from joulelab.core.clock import monotonic_ns
from joulelab.twin import profile
from joulelab.twin.flaws import HOPPER, Counter
from joulelab.twin.model import A100, H100, RTX3090, RTX6000, V100, Node
from joulelab.twin.truth_file import Instance, Process

pytestmark = pytest.mark.system

MIXED = Node(gpus=(H100, A100, V100, RTX6000, RTX3090), spread=0.0)
LOAD = {"gpu": profile.constant(0.5)}


def test_reads_energy_power_and_state_of_mixed_models(twin, remote):
    server = twin(MIXED, profiles=LOAD)
    meter = remote("nvml", {}, **server.environment)
    before, first, between = monotonic_ns(), [meter.read(f"gpu:{i}.power") for i in range(5)], monotonic_ns()
    time.sleep(1.0)
    again, last, after = monotonic_ns(), [meter.read(f"gpu:{i}.power") for i in range(5)], monotonic_ns()
    for i in range(5):
        true_w = server.truth.energy(f"gpu:{i}", before, after) / (after - before) * 1e9
        least, most = (server.truth.energy(f"gpu:{i}", *times) for times in ((between, again), (before, after)))
        # A counter stands still between its updates.
        assert least - 0.15 * true_w <= last[i][0] - first[i][0] <= most + 0.15 * true_w, i
        assert last[i][1] == pytest.approx(true_w, rel=0.01)
        has_average = i in (0, 4)  # Hopper and GA10x; the others have none
        assert math.isfinite(last[i][2]) == has_average
        row = meter.read(f"gpu:{i}.state")
        load, _, memory, sm_hz, _, heat, enforced_w, requested_w, throttle, processes, *shares = row
        assert load == pytest.approx(0.5, abs=0.02)
        assert enforced_w == requested_w == MIXED.gpus[i].default_cap_w
        assert 1e8 < sm_hz < 3e9
        assert 20 < heat < 100
        assert (memory, throttle, processes) == (0, 0, 0)
        assert all(map(math.isnan, shares))  # before there is a workload
    assert {s.model for s in meter.streams.values()} == {gpu.name for gpu in MIXED.gpus}
    assert {s.device for s in meter.streams.values()} == {server.truth.uuid(i) for i in range(5)}
    assert meter.streams["gpu:0.power"].channels[0].limits == (0, 700)
    assert [meter.streams[f"gpu:{i}.power"].channels[1].seen for i in range(5)] == [0.25, 0.25, 0.5, 0.2, 0.8]


def test_without_a_counter_only_power_is_read(twin, remote):
    server = twin(Node(gpus=(V100,)).with_flaws(counter=Counter.NONE), profiles=LOAD)
    energy_j, instant_w, _ = remote("nvml", {}, **server.environment).read("gpu:0.power")
    assert math.isnan(energy_j)
    assert instant_w > 50


def test_tells_when_caps_and_processes_change(twin, remote):
    server = twin(Node(gpus=(A100, A100)))
    meter = remote("nvml", {"visible": server.truth.uuid(1)}, **server.environment)
    meter.read("gpu:0.state")
    devices, processes, cap = meter.events()
    assert devices["event"] == "devices"
    assert [gpu["visible"] for gpu in devices["gpus"]] == [False, True]
    assert processes | {"t": 0} == {"t": 0, "event": "process", "scope": "gpu:0", "pids": []}
    assert cap | {"t": 0} == {"t": 0, "event": "cap", "scope": "gpu:0", "requested_w": 400, "enforced_w": 400}
    meter.read("gpu:0.state")
    assert meter.events() == []
    server.truth.set_cap(0, 250)
    server.truth.set_processes(0, [Process(pid=4242, memory_bytes=1 << 30), Process(pid=17, memory_bytes=1 << 20)])
    row = meter.read("gpu:0.state")
    assert (row[2], row[6], row[7], row[9]) == ((1 << 30) + (1 << 20), 250, 250, 2)
    processes, cap = meter.events()
    assert processes["pids"] == [17, 4242]
    assert (cap["requested_w"], cap["enforced_w"]) == (250, 250)
    server.truth.change_flaws(0, outside_cap_w=200.0, outside_cap_at_s=0.0)
    meter.read("gpu:0.state")
    (cap,) = meter.events()
    assert (cap["requested_w"], cap["enforced_w"]) == (250, 200)


def test_more_processes_than_there_was_room_for(twin, remote):
    server = twin(Node(gpus=(A100,)))
    meter = remote("nvml", {}, **server.environment)
    count = 40
    server.truth.set_processes(0, [Process(pid=100 + i, memory_bytes=1) for i in range(count)])
    assert meter.read("gpu:0.state")[9] == count


def test_a_lost_gpu_is_lost_alone_and_may_come_back(twin, remote):
    server = twin(Node(gpus=(H100, H100)), profiles=LOAD)
    meter = remote("nvml", {}, **server.environment)
    server.truth.change_flaws(1, lost_at_s=0.0)
    for stream in ("gpu:1.power", "gpu:1.state", "gpu:1.power"):
        answer = meter.read(stream)
        assert answer["error"] == "DeviceLost"
        assert "gpu:1" in answer["what"] or "GPU-" in answer["what"]
        assert answer["why"]
        assert answer["next"]
    assert meter.read("gpu:0.power")[0] > 0
    server.truth.change_flaws(1, lost_at_s=None)
    assert meter.read("gpu:1.power")[0] > 0
    assert meter.read("gpu:1.state")[0] > 0


def test_failed_readings_are_errors_and_then_work_again(twin, remote):
    server = twin(Node(gpus=(H100,)), profiles=LOAD)
    meter = remote("nvml", {}, **server.environment)
    server.truth.change_flaws(0, fail_at_s=0.0, fail_for_s=1e6)
    assert meter.read("gpu:0.power")["error"] == "ReadFailed"
    assert meter.read("gpu:0.state")["error"] == "ReadFailed"
    server.truth.change_flaws(0, fail_at_s=None)
    assert meter.read("gpu:0.power")[0] > 0


def test_a_gpu_that_is_lost_from_the_start_is_told(twin, remote):
    server = twin(Node(gpus=(H100, H100)).with_flaws(1, lost_at_s=0.0))
    meter = remote("nvml", {}, **server.environment)
    assert {s.scope for s in meter.streams.values()} == {"gpu:0"}
    (missing,) = meter.opened["missing"]
    assert missing["scope"] == "gpu:1"


def test_refused_processes_are_not_zero_processes(twin, remote):
    server = twin(Node(gpus=(H100,)).with_flaws(refuse_processes=True))
    meter = remote("nvml", {}, **server.environment)
    assert math.isnan(meter.read("gpu:0.state")[9])
    assert [e["event"] for e in meter.events()] == ["devices", "cap"]


def test_mig_instances_have_no_power_of_their_own(twin, remote):
    server = twin(Node(gpus=(A100, H100)))
    server.truth.set_instances(0, [Instance(gpu_instance=7), Instance(gpu_instance=8)])
    meter = remote("nvml", {"visible": f"MIG-{server.truth.uuid(0)}/8/0"}, **server.environment)
    assert {s.scope for s in meter.streams.values()} == {"gpu:0", "gpu:1"}
    assert [m["scope"] for m in meter.opened["missing"]] == ["gpu:0/mig:0", "gpu:0/mig:1"]
    event = meter.events()[0]
    assert event["visible"] == ["gpu:0/mig:1"]
    assert [gpu["visible"] for gpu in event["gpus"]] == [True, False]
    assert [mig["scope"] for mig in event["gpus"][0]["mig"]] == ["gpu:0/mig:0", "gpu:0/mig:1"]
    assert math.isnan(meter.read("gpu:0.state")[0])  # load is not told while MIG is on


def test_devices_are_chosen_by_index_and_uuid(twin, remote):
    server = twin(Node(gpus=(H100,) * 3))
    config = {"devices": [2, server.truth.uuid(0)], "period_s": 0.02}
    meter = remote("nvml", config, **server.environment)
    assert list(meter.streams) == ["gpu:2.power", "gpu:2.state", "gpu:0.power", "gpu:0.state"]
    assert meter.streams["gpu:2.power"].period_s == 0.02
    wrong = remote("nvml", {"devices": [7]}, **server.environment).opened
    assert wrong["error"] == "ConfigError"
    assert server.truth.uuid(1) in wrong["next"]


def test_without_a_driver_it_says_how_to_try_a_simulated_node(remote):
    answer = remote("nvml", {}, LD_LIBRARY_PATH="").opened
    if "error" not in answer:
        pytest.skip("this machine has an NVIDIA GPU")
    assert answer["error"] == "Unavailable"
    assert "joulelab twin" in answer["next"]


def test_a_superchip_shows_its_module_and_the_memory_of_its_gpu(twin, remote):
    chip = replace(H100, name="NVIDIA GH200 480GB", flaws=replace(HOPPER, module_w=250.0, memory_share=0.2))
    server = twin(Node(gpus=(chip,), spread=0.0), profiles=LOAD)
    meter = remote("nvml", {}, **server.environment)
    time.sleep(1.2)  # a whole window of the average
    first, start = meter.read("module:0.power"), monotonic_ns()
    time.sleep(1.0)
    last, took_s = meter.read("module:0.power"), (monotonic_ns() - start) / 1e9
    energy_j, instant_w, average_w = meter.read("gpu:0.power")
    assert math.isnan(energy_j)
    assert last[1] - instant_w == pytest.approx(250, abs=0.1)
    assert last[2] - average_w == pytest.approx(250, abs=0.1)
    assert last[0] - first[0] == pytest.approx(last[1] * took_s, rel=0.25)
    assert meter.read("gpu:0.state")[12] == pytest.approx(0.2 * average_w, abs=0.1)
    assert {name: s.parent for name, s in meter.streams.items()} == {
        "module:0.power": None,
        "gpu:0.power": "module:0",
        "gpu:0.state": "module:0",
    }
