"""Burn: what it is asked for, what it finds, stress-ng beside it, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.rows import every_row
from tests.workloads.books import LIMIT_S, environment, is_gone, wait_for

from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import merge_parameters
from joulelab.workloads import burn
from joulelab.workloads.burning import crew, host
from joulelab.workloads.burning.burn_worker import ROUND_S, Rounds
from joulelab.workloads.burning.engines import count_buffers, open_engine
from joulelab.workloads.burning.settings import Memory, Settings, has_gpu, read

if TYPE_CHECKING:
    from pathlib import Path

BURN = [sys.executable, "-m", "joulelab.workloads.burn"]
needs_stress_ng = pytest.mark.skipif(shutil.which("stress-ng") is None, reason="apt install stress-ng")


def asked(gpu: bool = False, **given: str) -> Settings:
    return read(merge_parameters("burn", burn.PARAMETERS, given, burn.PRESETS), gpu=gpu)


@every_row(
    ("given", "gpu", "found"),
    [
        ({}, False, ("numpy", "cpu", 512, Memory(bytes=64_000_000))),
        ({}, True, ("torch", "cuda", 8192, Memory(share=0.9))),
        ({"backend": "numpy"}, True, ("numpy", "cpu", 512, Memory(bytes=64_000_000))),
        ({"preset": "paper"}, False, ("torch", "cuda", 8192, Memory(share=0.9))),
        ({"backend": "torch", "size": "64", "memory": "2.5%"}, False, ("torch", "cpu", 64, Memory(share=0.025))),
        ({"memory": "2GB"}, False, ("numpy", "cpu", 512, Memory(bytes=2_000_000_000))),
    ],
)
def test_what_is_not_given_follows_from_the_device(given: dict[str, str], gpu: bool, found: tuple[Any, ...]) -> None:
    settled = asked(gpu, **given)
    assert (settled.backend, settled.device, settled.size, settled.memory) == found


@every_row(
    ("given", "why"),
    [
        ({"device": "gpu"}, "device is 'gpu'; give one of: auto, cpu, cuda"),
        ({"backend": "numpy", "device": "cuda"}, "numpy has no GPU"),
        ({"dtype": "fp8"}, "dtype is 'fp8'; give one of: auto, fp16"),
        ({"dtype": "fp16"}, "numpy has no fp16.*backend=torch"),
        ({"dtype": "tf32", "backend": "torch"}, "CPUs have no tf32"),
        ({"memory": "99%"}, "up to 98%"),
        ({"memory": "much"}, "memory is 'much'"),
        ({"host": "stres-ng"}, "host is 'stres-ng'; give one of: no, stress-ng"),
        ({"host_memory": "1"}, "from 0 to 0.95"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        asked(**given)


def test_a_gpu_is_seen_by_its_device_file_unless_it_is_hidden(tmp_path: Path) -> None:
    assert not has_gpu({}, tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu({}, tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpu({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path)
    assert not has_gpu({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)


def test_the_buffers_fill_the_memory_beside_the_factors_and_the_first_product() -> None:
    assert count_buffers(Memory(share=0.9), 80_000_000_000, 8192, "fp16") == 533
    assert count_buffers(Memory(bytes=64_000_000), 10**9, 1024, "fp32") == 12
    with pytest.raises(ConfigError, match=r"4 matrices of size 1024 in fp64 need 33.6 MB"):
        count_buffers(Memory(bytes=20_000_000), 10**9, 1024, "fp64")
    with pytest.raises(ConfigError, match="2000 MB are not free"):
        count_buffers(Memory(bytes=2 * 10**9), 10**9, 1024, "fp64")


ENGINES = [("numpy", "fp32"), ("numpy", "auto"), ("torch", "auto"), ("torch", "bf16"), ("torch", "fp64")]


@pytest.mark.parametrize(("backend", "dtype"), ENGINES)
@pytest.mark.system
def test_a_flipped_bit_is_found(backend: str, dtype: str) -> None:
    pytest.importorskip(backend)
    engine = open_engine(asked(backend=backend, device="cpu", dtype=dtype, size="48", memory="256kB"), 0)
    rounds = Rounds(engine, share=0.2, now=lambda: 0.0)
    for _ in range(20):
        rounds.burn()
    count = len(engine.buffers)
    assert rounds.length == count  # grown to all that there are
    assert (rounds.wrong, rounds.compared > count) == (0, True)
    multiply = engine.multiply

    def flipped(slot: int) -> None:
        multiply(slot)
        if slot == 3:
            bits = engine.buffers[slot].view(engine._bits)  # type: ignore[attr-defined]
            bits[5, 7] ^= 1

    engine.multiply = flipped  # type: ignore[method-assign]
    for _ in range(count):
        rounds.burn()
    assert 1 <= rounds.wrong < count  # each time that its turn came


def test_rounds_are_as_long_as_they_should_be() -> None:
    class Slow:
        """Take 0.05 s for each product."""

        buffers = [None] * 100
        taken = 0.0

        def multiply(self, slot: int) -> None:
            self.taken += 0.05

        def compare(self, slot: int) -> None:
            pass

        def wrong(self) -> int:
            return 0

    engine = Slow()
    rounds = Rounds(engine, 0.0, lambda: engine.taken)  # type: ignore[arg-type]
    lengths = [rounds.burn() for _ in range(5)]
    assert lengths[:2] == [1, 2]
    assert all(abs(n * 0.05 - ROUND_S) <= 0.05 for n in lengths[2:])
    assert rounds.compared == 0


@pytest.mark.system
def test_without_a_gpu_none_is_burnt() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"there is no GPU .*give device=cpu"):
        crew.count(asked(preset="paper"))


def test_tasks_fill_a_share_of_the_hosts_memory() -> None:
    node = 1_500_000_000_000
    side = host.size(256, 0.87, node, node)
    assert side is not None
    assert 256 * 12 * side**3 == pytest.approx(0.87 * node, rel=0.005)
    assert host.size(256, 0.0, node, 0) is None
    with pytest.raises(ConfigError, match=r"1305.0 GB, and 1000.0 GB are free\); give host_memory=0.63 or less"):
        host.size(256, 0.87, node, 10**12)
    with pytest.raises(ConfigError, match=r"2 tasks of matrix-3d cannot fill 1305.0 GB; give tasks from 102"):
        host.size(2, 0.87, node, node)


def test_a_control_group_has_less_memory_than_the_host(tmp_path: Path) -> None:
    own = tmp_path / "job" / "step"
    own.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/job/step\n")
    (own / "memory.max").write_text("max\n")
    (tmp_path / "job" / "memory.max").write_text("1000000\n")
    (tmp_path / "job" / "memory.current").write_text("400000\n")
    assert host.memory(tmp_path / "self", tmp_path) == (1_000_000, 600_000)
    assert host.memory(tmp_path / "none", tmp_path)[0] == psutil.virtual_memory().total


def test_what_stress_ng_says_is_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.yaml"
    assert host.parse(file) == {}
    text = "metrics:\n    - stressor: matrix-3d\n      bogo-ops: 417\n      bogo-ops-per-second-real-time: 273.4\n...\n"
    file.write_text(text)
    assert host.parse(file) == {"host_bogo_ops": 417, "host_bogo_ops_per_s": 273.4}


@needs_stress_ng
@pytest.mark.system
def test_node_control_burns_beside_stress_ng_and_tells(tmp_path: Path) -> None:
    (tmp_path / "here" / "marks").mkdir(parents=True)
    environ = environment(tmp_path) | {"JOULELAB_RUN": str(tmp_path), "JOULELAB_HOST": "here"}
    words = [*BURN, "seconds=1", "processes=2", "size=32", "host=stress-ng", "tasks=2", "host_memory=0.001"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for file in tmp_path.glob("here/marks/*.jsonl") for line in file.read_text().splitlines()]
    facts: dict[str, Any] = {}
    for line in lines:
        facts |= line.get("facts", {})
    assert (facts["processes"], facts["device"], facts["wrong"], facts["host_tasks"]) == (2, "cpu", 0, 2)
    assert facts["host_bogo_ops"] > 0
    assert facts["host_seconds"] >= 1
    assert facts["host_memory_bytes"] >= 0.9 * 0.001 * host.memory()[0] * 0.99
    done_work: dict[str, float] = {}
    for line in (line for line in lines if line["mark"] == "work"):
        for key, amount in line["amounts"].items():
            done_work[key] = done_work.get(key, 0.0) + amount
    assert f"products: {done_work['products']:.0f}\n" in done.stdout
    assert done_work["FLOP"] == done_work["products"] * 2 * 32**3
    names = [line["name"] for line in lines if line["mark"] == "begin"]
    assert names.count("burn") == 1  # that of the first process
    assert "set-up" in names


def tree(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@needs_stress_ng
@pytest.mark.no_cover
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.system
def test_all_of_it_ends_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    words = [*BURN, "seconds=600", "processes=1", "size=32", "host=stress-ng", "tasks=2"]
    burning = subprocess.Popen(words, env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: len(tree(burning.pid)) == 4, "a process, stress-ng and its tasks")
    pids = tree(burning.pid)
    os.kill(burning.pid, number)
    out, _ = burning.communicate(timeout=LIMIT_S)
    assert burning.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert out == ""
    wait_for(lambda: all(is_gone(pid) for pid in pids), "the end of all of them")


@pytest.mark.no_cover
@pytest.mark.system
def test_what_a_process_cannot_do_is_told(tmp_path: Path) -> None:
    words = [*BURN, "memory=1MB", "processes=1"]
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "not all processes could be started (1.0 MB hold no product" in done.stderr


def test_wrong_words_are_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert burn.main(["size=0"]) == 2
    assert "joulelab: burn: size is '0'" in capsys.readouterr().err
