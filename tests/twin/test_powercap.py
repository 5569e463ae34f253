from __future__ import annotations

import contextlib
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
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers.powercap import PowercapFlaws, PowercapServer
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterator

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def truth(tmp_path: Path) -> Iterator[Truth]:
    node = Node(gpus=(), packages=2, psys=True)
    with Truth.create(tmp_path / "truth", node, profiles={"cpu": profile.square(0.2, 0.5)}) as made:
        yield made


class Clock:
    """Virtual time (ns)."""

    def __init__(self, truth: Truth) -> None:
        self.t_ns = truth.start_ns

    def __call__(self) -> int:
        return self.t_ns


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


def test_a_limit_that_is_written_caps_the_package_and_its_cores(tmp_path: Path) -> None:
    node = Node(gpus=(), packages=2)
    with Truth.create(tmp_path / "truth", node, profiles={"cpu": profile.constant(1.0)}) as truth:
        clock = Clock(truth)
        flaws = PowercapFlaws(period_s=3600)
        with PowercapServer(truth, tmp_path / "tree", flaws, now=clock) as server:
            limit = tmp_path / "tree" / "intel-rapl:0" / "constraint_0_power_limit_uw"
            shown = [truth.power("cpu:0", clock.t_ns)]
            for text in ("200000000\n", "1000000\n", "", "350000000\n"):
                limit.write_text(text)
                clock.t_ns += 10**9
                server.update_files()
                shown.append(truth.power("cpu:0", clock.t_ns))
            lowest = 90 + 260 / 16  # at a quarter of the clock
            assert shown == pytest.approx([350, 200, lowest, lowest, 350]), (
                "a file that is being written changes nothing"
            )
            at_200 = truth.start_ns + 10**9
            assert truth.power("core:0", at_200) == pytest.approx(25 + 0.85 * (200 - 90))
            assert truth.power("cpu:1", at_200) == 350
            assert truth.energy("cpu:0", truth.start_ns, clock.t_ns) == pytest.approx(350 + 200 + 2 * lowest)
            limit.write_text("120000000\n")
            (limit.parent / "enabled").write_text("0\n")
            server.update_files()
            assert truth.power("cpu:0", clock.t_ns) == 350, "limits that are off"


def test_energies_are_true_and_in_place(truth: Truth, tmp_path: Path) -> None:
    clock, flaws = Clock(truth), PowercapFlaws(period_s=3600, gain={"cpu:1": 1.1})
    with PowercapServer(truth, tmp_path / "tree", flaws, now=clock) as server, contextlib.ExitStack() as stack:
        files = {p: stack.enter_context((tmp_path / "tree" / z / "energy_uj").open("rb")) for p, z in _ZONES.items()}
        for _ in range(100):
            clock.t_ns += 5_000_000
            server.update_files()
            for point, file in files.items():
                gain = 1.1 if point == "cpu:1" else 1.0
                true = gain * 1e6 * truth.energy(point, truth.start_ns, clock.t_ns)
                assert int(os.pread(file.fileno(), 64, 0)) == pytest.approx(true, abs=1), point


@pytest.mark.system
def test_whoever_reads_meanwhile_meets_whole_numbers_that_only_grow(truth: Truth, tmp_path: Path) -> None:
    with PowercapServer(truth, tmp_path / "tree", PowercapFlaws(period_s=0.001)):
        path, values = tmp_path / "tree" / "intel-rapl:0" / "energy_uj", [0]

        def read() -> bool:
            value = int(path.read_text())
            assert values[-1] <= value <= 1e6 * truth.energy("cpu:0", truth.start_ns, time.monotonic_ns()) + 2
            values.append(value)
            return len(set(values)) > 20

        until(read, most_s=0.002)


_ZONES = {
    "cpu:0": "intel-rapl:0",
    "core:0": "intel-rapl:0:0",
    "dram:0": "intel-rapl:0:1",
    "cpu:1": "intel-rapl:1",
    "psys": "intel-rapl:2",
}


def test_the_counter_wraps(truth: Truth, tmp_path: Path) -> None:
    clock, flaws = Clock(truth), PowercapFlaws(period_s=3600, range_uj=4_000_000, base_uj=3_900_000)
    with PowercapServer(truth, tmp_path / "tree", flaws, now=clock) as server:
        path = tmp_path / "tree" / "intel-rapl:0" / "energy_uj"
        total, last, inode = 0, int(path.read_text()), path.stat().st_ino
        assert last == 3_900_000
        wraps = 0
        for _ in range(75):
            clock.t_ns += 2_000_000
            server.update_files()
            value = int(path.read_text())
            assert 0 <= value <= 4_000_000
            wraps += value < last
            total += (value - last) % 4_000_001
            last = value
        assert path.stat().st_ino == inode
    true = truth.energy("cpu:0", truth.start_ns, clock.t_ns)
    assert wraps == (3.9 + true) // 4
    assert total / 1e6 == pytest.approx(true, abs=1e-5)


def test_refused_and_vanished(truth: Truth, tmp_path: Path) -> None:
    with PowercapServer(truth, tmp_path / "tree", PowercapFlaws(refuse=True)) as server:
        path = tmp_path / "tree" / "intel-rapl:0" / "energy_uj"
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        server.remove_energy("cpu:0")
        assert not path.exists()
        server.update_files()  # goes on
        assert not path.exists()


def test_wrong_flaws_are_refused(truth: Truth, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cpu:0"):
        PowercapServer(truth, tmp_path / "tree", PowercapFlaws(gain={"cpu0": 1.0}))
    with pytest.raises(ConfigError):
        PowercapFlaws(period_s=0)


@pytest.mark.system
@pytest.mark.parametrize("how", ["terminate", "close"])
def test_as_a_process_of_its_own(truth: Truth, tmp_path: Path, how: str) -> None:
    words = [sys.executable, "-m", "joulelab.twin.servers.powercap", str(truth.path), str(tmp_path / "tree")]
    path = tmp_path / "tree" / "intel-rapl:0" / "energy_uj"
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SRC)}) as child:
        until(lambda: path.exists() and path.read_text())
        first = int(path.read_text())
        until(lambda: int(path.read_text()) > first)
        assert child.stdin is not None
        child.terminate() if how == "terminate" else child.stdin.close()
        assert child.wait(120) == 0
