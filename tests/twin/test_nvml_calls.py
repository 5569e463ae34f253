"""What the C library tells beyond power and energy, and how it is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from joulelab.core.errors import JoulelabError, MissingDependency
from joulelab.twin import profile
from joulelab.twin.model import A100, H100, RTX3090, RTX6000, V100, Node
from joulelab.twin.servers import nvml
from joulelab.twin.truth_file import Instance, Process

from .conftest import Twin

pytestmark = pytest.mark.system

Make = Callable[..., Twin]


def test_who_the_gpus_are(make_twin: Make) -> None:
    node = Node(gpus=(H100, A100, V100, RTX6000, RTX3090), packages=0)
    twin = make_twin(node, {"gpu": profile.constant(0.5)})
    found = twin.run("""
        out = []
        for i in range(n.nvmlDeviceGetCount()):
            h = n.nvmlDeviceGetHandleByIndex(i)
            bus = n.nvmlDeviceGetPciInfo(h).busId
            same = [n.nvmlDeviceGetIndex(g) for g in (n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h)),
                n.nvmlDeviceGetHandleByPciBusId(bus), n.nvmlDeviceGetHandleByPciBusId(bus[4:]),
                n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h)),
                n.nvmlDeviceGetHandleByUUIDV(n.nvmlDeviceGetUUID(h).encode(), n.NVML_UUID_TYPE_ASCII))]
            out.append({"name": n.nvmlDeviceGetName(h), "arch": n.nvmlDeviceGetArchitecture(h), "same": same,
                "compute": n.nvmlDeviceGetCudaComputeCapability(h), "bus": bus, "uuid": n.nvmlDeviceGetUUID(h),
                "memory": n.nvmlDeviceGetMemoryInfo(h).total, "v2": n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).total,
                "celsius": [n.nvmlDeviceGetTemperature(h, 0), n.nvmlDeviceGetTemperatureV(h, 0)],
                "clocks": n.nvmlDeviceGetSupportedGraphicsClocks(h, n.nvmlDeviceGetSupportedMemoryClocks(h)[0])[:2]})
        print(json.dumps(out))
    """)
    for gpu, (preset, seen) in enumerate(zip(node.gpus, found, strict=True)):
        assert (seen["name"], seen["arch"], tuple(seen["compute"])) == (
            preset.name,
            preset.architecture,
            preset.compute,
        )
        assert seen["same"] == [gpu] * 5
        assert seen["uuid"] == twin.truth.uuid(gpu)
        assert seen["memory"] == seen["v2"] == preset.memory_bytes
        assert seen["celsius"][0] == seen["celsius"][1]
        assert 32 <= seen["celsius"][0] <= 78
        assert seen["clocks"] == [preset.sm_max_mhz, preset.sm_max_mhz - 15]
    assert len({seen["bus"] for seen in found}) == len({seen["uuid"] for seen in found}) == 5


def test_processes_and_mig(make_twin: Make) -> None:
    twin = make_twin(Node(gpus=(H100,) * 3, packages=0).with_flaws(1, refuse_processes=True))
    mine = Process(pid=4321, memory_bytes=3 << 30, load=40)
    twin.truth.set_processes(0, [mine, Process(pid=99, memory_bytes=1 << 20, kind="graphics")])
    twin.truth.set_instances(2, [Instance(gpu_instance=7), Instance(gpu_instance=8)])
    twin.truth.set_processes(2, [Process(pid=5, memory_bytes=1 << 30, gpu_instance=8, compute_instance=0)])
    found = twin.run("""
        h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        def refused(f, *a):
            try: return f(*a) and None
            except n.NVMLError as error: return error.value
        def pids(d): return [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(d)]
        parts = [n.nvmlDeviceGetMigDeviceHandleByIndex(h[2], i) for i in range(2)]
        print(json.dumps({
            "compute": pids(h[0]), "graphics": [p.pid for p in n.nvmlDeviceGetGraphicsRunningProcesses(h[0])],
            "used": n.nvmlDeviceGetMemoryInfo(h[0], n.nvmlMemory_v2).used,
            "load": [(s.pid, s.smUtil) for s in n.nvmlDeviceGetProcessUtilization(h[0], 0)],
            "details": [p.pid for p in n.nvmlDeviceGetRunningProcessDetailList(h[0], n.nvmlProcessDetailList_v1, 0)],
            "refused": refused(pids, h[1]), "no samples": refused(n.nvmlDeviceGetProcessUtilization, h[2], 1 << 62),
            "mode": [n.nvmlDeviceGetMigMode(d)[0] for d in h], "count": n.nvmlDeviceGetMaxMigDeviceCount(h[0]),
            "parts": [pids(p) for p in parts], "ids": [n.nvmlDeviceGetGpuInstanceId(p) for p in parts],
            "power": refused(n.nvmlDeviceGetPowerUsage, parts[0]),
            "third": refused(n.nvmlDeviceGetMigDeviceHandleByIndex, h[2], 2),
            "name": n.nvmlDeviceGetName(parts[0]), "sms": n.nvmlDeviceGetAttributes_v2(parts[1]).multiprocessorCount,
            "parent": n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[1])),
            "found": n.nvmlDeviceIsMigDeviceHandle(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(parts[1]))).value,
            "whole load": refused(n.nvmlDeviceGetUtilizationRates, h[2])}))
    """)
    assert found["compute"] == [[4321, 3 << 30]]
    assert found["graphics"] == [99]
    assert found["used"] == (3 << 30) + (1 << 20)
    assert found["load"] == [[4321, 40], [99, 0]]
    assert found["details"] == [4321]
    assert (found["refused"], found["no samples"], found["third"], found["power"], found["whole load"]) == (
        4,
        6,
        6,
        3,
        3,
    )
    assert (found["mode"], found["count"]) == ([0, 0, 1], 7)
    assert (found["parts"], found["ids"]) == ([[], [[5, 1 << 30]]], [7, 8])
    assert found["name"] == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert (found["sms"], found["parent"], bool(found["found"])) == (16, 2, True)


def test_settings_persist_and_unknown_calls_do_not_exist(make_twin: Make) -> None:
    twin = make_twin(Node(gpus=(A100, RTX3090), packages=0, spread=0.0), {"gpu": profile.constant(1)})
    twin.run("""
        h = n.nvmlDeviceGetHandleByIndex(0)
        n.nvmlDeviceSetPersistenceMode(h, 0)
        n.nvmlDeviceSetGpuLockedClocks(h, 600, 900)
        print(0)
    """)
    found = twin.run("""
        def refused(f, *a):
            try: return f(*a) and None
            except n.NVMLError as error: return type(error).__name__
        h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        clocks = [n.nvmlDeviceGetClockInfo(d, n.NVML_CLOCK_SM) for d in h]
        n.nvmlDeviceResetGpuLockedClocks(h[0])
        print(json.dumps({"persistence": n.nvmlDeviceGetPersistenceMode(h[0]), "clocks": clocks,
            "after": n.nvmlDeviceGetClockInfo(h[0], n.NVML_CLOCK_SM), "fan": refused(n.nvmlDeviceGetFanSpeed, h[0]),
            "fan of the other": n.nvmlDeviceGetFanSpeed(h[1]), "ecc": refused(n.nvmlDeviceGetEccMode, h[1]),
            "state": [n.nvmlDeviceGetPerformanceState(d) for d in h],
            "unknown": refused(n.nvmlDeviceGetNvLinkState, h[0], 0),
            "field": [v.nvmlReturn for v in n.nvmlDeviceGetFieldValues(h[0], [(186, 2), 140, 185, 186])],
            "average": n.nvmlDeviceGetFieldValues(h[1], [185])[0].nvmlReturn}))
        n.nvmlShutdown()
        assert refused(n.nvmlDeviceGetCount) == "NVMLError_Uninitialized"
    """)
    assert found["persistence"] == 0
    assert found["clocks"] == [900, 2100]
    assert found["after"] == 1410
    assert found["fan"] == found["ecc"] == "NVMLError_NotSupported"
    assert found["fan of the other"] > 30
    assert found["state"] == [0, 0]
    assert found["unknown"] == "NVMLError_FunctionNotFound"
    assert found["field"] == [3, 3, 3, 0]
    assert found["average"] == 0


@pytest.mark.parametrize("content", [None, b"", bytes(9000)])
def test_without_a_truth_file_there_is_no_driver(make_twin: Make, tmp_path: Path, content: bytes | None) -> None:
    twin = make_twin(Node(gpus=()))
    path = tmp_path / "none"
    if content is not None:
        path.write_bytes(content)
    twin.environment = dict(twin.environment) | {"JOULELAB_TWIN": str(path)}
    child = twin.start("")
    assert "NVMLError_DriverNotLoaded" in child.communicate()[1]


def test_nvitop_accepts_it(make_twin: Make) -> None:
    pytest.importorskip("nvitop", reason="nvitop is not installed")
    twin = make_twin(Node(gpus=(H100, RTX3090), packages=0, spread=0.0), {"gpu": profile.constant(1.0)})
    found = twin.run("""
        import contextlib, io, sys
        from nvitop import Device
        from nvitop.cli import main
        devices = Device.all()
        out = [[d.name(), d.power_usage(), d.memory_total(), d.power_limit(), d.gpu_utilization()] for d in devices]
        sys.argv = ["nvitop", "--once", "--no-unicode"]
        text, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(errors):
            with contextlib.suppress(SystemExit): main()
        print(json.dumps([out, text.getvalue(), errors.getvalue()]))
    """)
    devices, text, errors = found
    assert devices[0] == ["NVIDIA H100 80GB HBM3", 700_000, H100.memory_bytes, 700_000, 100]
    assert "H100 80GB HBM3" in text
    assert "350W / 350W" in text
    assert errors == ""


def test_no_compiler_is_explained(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="apt install gcc"):
        nvml.find_compiler({"PATH": str(tmp_path)})


def test_a_failing_compiler_is_explained(tmp_path: Path) -> None:
    with pytest.raises(JoulelabError, match="compiler failed"):
        nvml.build_library(tmp_path / "cache", "/bin/false")
    assert not list((tmp_path / "cache").rglob("*.so*"))


def test_the_library_is_built_once(library: Path, tmp_path: Path) -> None:
    assert nvml.build_library(library.parents[1], "/nonexistent") == library
    assert nvml.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "joulelab" / "twins"
    assert nvml.cache_directory({"XDG_CACHE_HOME": "relative"}).is_relative_to(Path.home())
