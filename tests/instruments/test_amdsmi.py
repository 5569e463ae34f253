"""AMD SMI against our stub of its Python package: not tried on hardware."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import time
from pathlib import Path

import pytest

from joulelab.instruments.amdsmi import Accumulator, count_nvidia_gpus

STUBS = Path(__file__).parents[1] / "stubs"
S = 1_000_000_000


@pytest.fixture
def amd(tmp_path, remote):
    def start(gpus, config=None, **more):
        describe(gpus, **more)
        return remote(
            "amdsmi", {"first": 0} | (config or {}), PYTHONPATH=str(STUBS), AMDSMI_STUB=str(tmp_path / "stub")
        )

    def describe(gpus, **more):
        (tmp_path / "new").write_text(json.dumps({"gpus": gpus} | more))
        (tmp_path / "new").replace(tmp_path / "stub")

    start.describe = describe
    return start


@pytest.mark.system
def test_reads_energy_power_and_state(amd):
    meter = amd([{"watts": 500}, {"watts": 90, "current": "N/A", "average": 90, "name": "AMD Instinct MI210"}])
    before, first, between = time.monotonic(), meter.read("gpu:0.power"), time.monotonic()
    time.sleep(0.2)
    again, last, after = time.monotonic(), meter.read("gpu:0.power"), time.monotonic()
    assert 0.9 * 500 * (again - between) < last[0] - first[0] < 1.1 * 500 * (after - before)
    assert last[1] == 500
    assert math.isnan(last[2])
    old = meter.read("gpu:1.power")
    assert math.isnan(old[1])
    assert old[2] == 90
    assert meter.read("gpu:0.state") == [0.8, 0.4, 3 << 30, 2.1e9, 1.3e9, 71, 750, 0]
    stream = meter.streams["gpu:1.power"]
    assert (stream.model, stream.channels[0].limits) == ("AMD Instinct MI210", (0, 750))
    assert stream.channels[0].accuracy.source == "unknown"
    assert "not tried on hardware" in stream.channels[0].accuracy.reference
    assert meter.opened["missing"] == []


@pytest.mark.system
def test_a_frozen_accumulator_is_no_energy(amd):
    meter = amd([{"watts": 300, "frozen": True, "energy_j": 124.7}])
    assert math.isnan(meter.read("gpu:0.power")[0])
    assert meter.read("gpu:0.power")[1] == 300
    assert "does not move" in meter.opened["missing"][0]["why"]


@pytest.mark.system
def test_what_is_not_there_is_nan_never_zero(amd):
    absent = {"energy": 2, "activity": 2, "clock": 3, "memory": 40, "processes": 2, "cap": 2}
    hidden = {"temperature_edge": 2, "temperature_hotspot": 2}
    meter = amd([{"watts": 0, "current": 0xFFFF, "average": 0, "errors": absent | hidden}])
    assert all(math.isnan(value) for value in meter.read("gpu:0.power"))
    assert all(math.isnan(value) for value in meter.read("gpu:0.state"))
    assert meter.events() == []
    assert meter.streams["gpu:0.power"].channels[0].limits is None


@pytest.mark.system
def test_the_edge_stands_in_for_the_hot_spot(amd):
    meter = amd([{"watts": 10, "errors": {"temperature_hotspot": 2}, "gfx": "N/A"}])
    row = meter.read("gpu:0.state")
    assert row[5] == 55
    assert math.isnan(row[0])


@pytest.mark.system
def test_tells_when_cap_and_processes_change(amd):
    meter = amd([{"watts": 10}])
    meter.read("gpu:0.state")
    assert [e["event"] for e in meter.events()] == ["process", "cap"]
    amd.describe([{"watts": 10, "pids": [9, 4], "cap_uw": 400_000_000}])
    meter.read("gpu:0.state")
    processes, cap = meter.events()
    assert processes["pids"] == [4, 9]
    assert cap["requested_w"] == 400


@pytest.mark.system
@pytest.mark.parametrize(("code", "error"), [(10, "Denied"), (31, "DeviceLost"), (30, "ReadFailed"), (9, "ReadFailed")])
def test_failures_are_typed(amd, code, error):
    meter = amd([{"watts": 10}])
    amd.describe([{"watts": 10, "errors": {"power": code, "activity": code}}])
    for stream in ("gpu:0.power", "gpu:0.state"):
        answer = meter.read(stream)
        assert answer["error"] == error
        assert answer["why"]
        assert answer["next"]
    amd.describe([{"watts": 10}])
    assert meter.read("gpu:0.power")[1] == 10


@pytest.mark.system
@pytest.mark.parametrize(("code", "error"), [(10, "Denied"), (34, "Unavailable")])
def test_a_library_that_does_not_start(amd, code, error):
    answer = amd([], init=code).opened
    assert (answer["error"], bool(answer["why"]), bool(answer["next"])) == (error, True, True)


@pytest.mark.system
def test_no_gpu_or_a_wrong_one(amd):
    assert amd([]).opened["error"] == "Unavailable"
    assert amd([{"watts": 1}], {"devices": [3]}).opened["error"] == "ConfigError"
    assert list(amd([{"watts": 1}] * 3, {"devices": [1], "first": 4}).streams) == ["gpu:5.power", "gpu:5.state"]


def test_numbers_come_after_those_of_nvidia(tmp_path):
    assert count_nvidia_gpus(tmp_path / "none") == 0
    for name in ("0000:17:00.0", "0000:ca:00.0"):
        (tmp_path / name).mkdir()
    assert count_nvidia_gpus(tmp_path) == 2


def test_an_accumulator_is_trusted_while_it_moves_forward():
    judge = Accumulator()
    assert math.isnan(judge.judge_count(10.0, 1, 0))  # not yet seen to move
    assert judge.judge_count(11.0, 2, S // 10) == 11.0
    assert judge.judge_count(11.0, 2, S) == 11.0
    assert math.isnan(judge.judge_count(11.0, 2, 2 * S))  # frozen
    assert judge.judge_count(12.0, 3, 3 * S) == 12.0
    assert math.isnan(judge.judge_count(5.0, 4, 4 * S))  # another device's count
    assert judge.judge_count(13.0, 5, 4 * S + 1) == 13.0
    assert judge.judge_count(1.0, 0, 5 * S) == 1.0  # a reset: its own clock began again
    assert math.isnan(judge.judge_count(math.nan, 6, 6 * S))


def test_a_lasting_fall_is_taken_for_a_reset():
    judge = Accumulator()
    judge.judge_count(100.0, 1, 0)
    judge.judge_count(101.0, 2, 1)
    answers = [judge.judge_count(1.0 + i, 3 + i, 2 + i) for i in range(5)]
    assert [math.isnan(a) for a in answers] == [True, True, True, False, False]


def test_the_stub_has_the_arguments_of_the_real_package():
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        pytest.skip("amdsmi is not installed")
    real = arguments(Path(spec.origin).with_name("amdsmi_interface.py"))
    ours = arguments(STUBS / "amdsmi" / "__init__.py")
    public = {name: args for name, args in ours.items() if name.startswith("amdsmi_")}
    assert len(public) == 14
    for name, args in public.items():
        assert real[name] == args, name


def arguments(path: Path) -> dict[str, list[str]]:
    tree = ast.parse(path.read_text())
    return {f.name: [a.arg for a in f.args.args] for f in tree.body if isinstance(f, ast.FunctionDef)}
