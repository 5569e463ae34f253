from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.waiting import until

from joulelab.core.errors import ConfigError
from joulelab.twins import profile
from joulelab.twins.model import Node
from joulelab.twins.servers.powercap import PowercapFlaws, PowercapServer
from joulelab.twins.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterator

NS = 10**9
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def truth(tmp_path: Path) -> Iterator[Truth]:
    node = Node(gpus=(), packages=2, psys=True)
    with Truth.create(tmp_path / "truth", node, profiles={"cpu": profile.square(0.2, 0.5)}) as made:
        yield made


def test_the_tree_looks_like_the_kernels(truth: Truth, tmp_path: Path) -> None:
    with PowercapServer(truth, tmp_path / "tree"):
        zones = {p.name: (p / "name").read_text().strip() for p in (tmp_path / "tree").glob("intel-rapl:*")}
        assert zones == {
            "intel-rapl:0": "package-0",
            "intel-rapl:0:0": "core",
            "intel-rapl:0:1": "dram",
            "intel-rapl:1": "package-1",
            "intel-rapl:1:0": "core",
            "intel-rapl:1:1": "dram",
            "intel-rapl:2": "psys",
        }
        package = tmp_path / "tree" / "intel-rapl:0"
        assert (package / "intel-rapl:0:1" / "energy_uj").samefile(tmp_path / "tree" / "intel-rapl:0:1" / "energy_uj")
        assert (package / "max_energy_range_uj").read_text() == "262143328850\n"
        assert (package / "constraint_0_name").read_text() == "long_term\n"
        assert (package / "constraint_0_power_limit_uw").read_text() == "350000000\n"
        assert (package / "enabled").read_text() == "1\n"


@pytest.mark.system
def test_energies_are_true_and_in_place(truth: Truth, tmp_path: Path) -> None:
    flaws = PowercapFlaws(period_s=0.005, gain={"cpu:1": 1.1})
    with PowercapServer(truth, tmp_path / "tree", flaws):
        fds = {p: os.open(tmp_path / "tree" / z / "energy_uj", os.O_RDONLY) for p, z in _ZONES.items()}
        readings: list[tuple[str, int, int, int]] = []
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            for point, fd in fds.items():
                before = time.monotonic_ns()
                value = int(os.pread(fd, 64, 0))
                readings.append((point, before, time.monotonic_ns(), value))
            time.sleep(0.002)
        for fd in fds.values():
            os.close(fd)
    for point, before, after, value in readings:
        gain = 1.1 if point == "cpu:1" else 1.0
        # The value is that of a moment at most a few updates ago (the machine may be busy).
        low, high = (gain * 1e6 * truth.energy(point, truth.start_ns, t) for t in (before - NS // 5, after))
        assert low - 2 <= value <= high + 2, point
    assert len({value for point, _, _, value in readings if point == "cpu:0"}) > 20


_ZONES = {
    "cpu:0": "intel-rapl:0",
    "core:0": "intel-rapl:0:0",
    "dram:0": "intel-rapl:0:1",
    "cpu:1": "intel-rapl:1",
    "psys": "intel-rapl:2",
}


def test_the_counter_wraps(truth: Truth, tmp_path: Path) -> None:
    flaws = PowercapFlaws(period_s=0.002, range_uj=4_000_000, base_uj=3_900_000)
    with PowercapServer(truth, tmp_path / "tree", flaws) as server:
        path = tmp_path / "tree" / "intel-rapl:0" / "energy_uj"
        total, last, began = 0, int(path.read_text()), time.monotonic_ns()
        inode = path.stat().st_ino
        wraps = 0
        while time.monotonic_ns() - began < 0.15 * NS:
            value = int(path.read_text())
            assert 0 <= value <= 4_000_000
            wraps += value < last
            total += (value - last) % 4_000_001
            last = value
        ended = time.monotonic_ns()
        assert path.stat().st_ino == inode
        assert server.energy_uj("cpu:0", truth.start_ns) == 3_900_000
    assert wraps >= 2
    assert total / 1e6 == pytest.approx(truth.energy("cpu:0", began, ended), abs=0.05 * 350 + 1)


@pytest.mark.system
def test_refused_and_vanished(truth: Truth, tmp_path: Path) -> None:
    with PowercapServer(truth, tmp_path / "tree", PowercapFlaws(refuse=True)) as server:
        path = tmp_path / "tree" / "intel-rapl:0" / "energy_uj"
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        server.vanish("cpu:0")
        assert not path.exists()
        time.sleep(0.03)
        assert server._thread.is_alive()


def test_wrong_flaws_are_refused(truth: Truth, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cpu:0"):
        PowercapServer(truth, tmp_path / "tree", PowercapFlaws(gain={"cpu0": 1.0}))
    with pytest.raises(ConfigError):
        PowercapFlaws(period_s=0)


@pytest.mark.system
@pytest.mark.parametrize("how", ["terminate", "close"])
def test_as_a_process_of_its_own(truth: Truth, tmp_path: Path, how: str) -> None:
    words = [sys.executable, "-m", "joulelab.twins.servers.powercap", str(truth.path), str(tmp_path / "tree")]
    path = tmp_path / "tree" / "intel-rapl:0" / "energy_uj"
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SRC)}) as child:
        until(lambda: path.exists() and path.read_text())
        first = int(path.read_text())
        until(lambda: int(path.read_text()) > first)
        assert child.stdin is not None
        child.terminate() if how == "terminate" else child.stdin.close()
        assert child.wait(30) == 0
