"""What moves a served twin: a load, a script; in virtual time, and in the thread it has when served."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from tests.twin.virtual_clock import START
from tests.waiting import until

from joulelab.twin import profile
from joulelab.twin.model import H100, Cpu, Node
from joulelab.twin.truth import Truth
from joulelab.twin.twin_driver import LoadDriver, ScriptDriver, read_machine_load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NS = 10**9
NODE = Node(gpus=(H100,), packages=1, spread=0.0)


class Clock:
    """Virtual time (ns)."""

    def __init__(self) -> None:
        self.t_ns = START

    def __call__(self) -> int:
        return self.t_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def truth(tmp_path: Path) -> Iterator[Truth]:
    with Truth.create(tmp_path / "truth", NODE, start_ns=START) as made:
        yield made


def test_the_twin_follows_a_load(truth: Truth, clock: Clock) -> None:
    loads = [0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0]
    driver = LoadDriver(truth, load=lambda: loads[clock.t_ns // NS - START // NS], period_s=1.0, now=clock)
    for _ in range(len(loads) - 1):
        clock.t_ns += NS
        assert driver.step() == 1.0
    assert truth.power("gpu:0", START) == 70
    assert truth.power("gpu:0", START + 4 * NS) == pytest.approx(70 + 630 / 2)
    assert truth.power("cpu:0", clock.t_ns + NS) == pytest.approx(350)
    assert truth.power("core:0", clock.t_ns + NS) < 350
    # What does not change is not written: two changes of load, and the first value.
    assert int(truth._leaves[0]["segments"]) == 4


def test_a_written_past_never_changes(truth: Truth, clock: Clock) -> None:
    values = itertools.count()
    driver = LoadDriver(truth, load=lambda: (next(values) % 7) / 7, period_s=0.005, now=clock)
    readings = []
    for number in range(100):
        clock.t_ns += 3_000_000
        readings.append((clock.t_ns, truth.energy("gpu:0", START, clock.t_ns)))
        if number % 2:
            driver.step()
    for now, joules in readings:
        assert truth.energy("gpu:0", START, now) == joules


@pytest.mark.system
def test_a_driver_steps_by_itself_until_it_is_left(tmp_path: Path) -> None:
    values = itertools.count()
    with Truth.create(tmp_path / "t", NODE) as truth:
        with LoadDriver(truth, load=lambda: next(values) % 2, period_s=0.001):
            until(lambda: int(truth._leaves[0]["segments"]) > 5)
        written = int(truth._leaves[0]["segments"])
        time.sleep(0.05)
        assert int(truth._leaves[0]["segments"]) == written


def test_a_full_file_slows_the_driver(tmp_path: Path) -> None:
    values = iter([0.1, 0.9] * 100)
    with Truth.create(tmp_path / "small", NODE, room=7) as truth:
        driver = LoadDriver(truth, load=lambda: next(values), period_s=1.0)
        waits = [driver.step() for _ in range(4)]
        assert waits == [1.0, 1.0, 2.0, 2.0]


def test_the_machine_has_a_load() -> None:
    read_machine_load()
    assert 0 <= read_machine_load() <= 1


def test_a_script_goes_on(tmp_path: Path, clock: Clock) -> None:
    profiles = {"gpu": profile.square(0.05, 0.5, 100, 500, unit="W"), "cpu": profile.ramp(30.0)}
    with Truth.create(tmp_path / "t", NODE, profiles=profiles, horizon_s=0.2, start_ns=START) as truth:
        assert ScriptDriver.is_needed(profiles, 0.2)
        driver = ScriptDriver(truth, profiles, written_s=0.2, chunk_s=0.2, now=clock)
        for _ in range(20):
            clock.t_ns += round(driver.step() * NS)
        end = START + NS // 2
        assert clock.t_ns >= end
        assert truth.energy("gpu:0", START, end) == pytest.approx(150, rel=1e-6)
        assert truth.power("cpu:0", end) == pytest.approx(90 + 260 * 0.5 / 30, rel=1e-6)
    assert not ScriptDriver.is_needed({"gpu": profile.burst(1, 2)})
    assert ScriptDriver.is_needed({"gpu": profile.burst(1000, 2)})


@pytest.mark.system
def test_a_driver_says_why_it_stopped(tmp_path: Path) -> None:
    profiles = {"gpu": profile.square(0.001)}
    with Truth.create(tmp_path / "t", NODE, profiles=profiles, horizon_s=0.01, room=10) as truth:
        with ScriptDriver(truth, profiles, written_s=0.01, chunk_s=0.1) as driver:
            until(lambda: driver.error)
        assert "no room" in str(driver.error)


SLEEPY = Node(gpus=(H100,), packages=1, spread=0.0, cpu=Cpu(idle_w=40, awake_w=100, max_w=200, core_idle_w=10))


def test_a_package_sleeps_without_a_load(tmp_path: Path) -> None:
    profiles = {"cpu": profile.burst(1, 2, high=0.5), "gpu": profile.constant(0.0)}
    with Truth.create(tmp_path / "t", SLEEPY, profiles=profiles) as truth:
        at = [truth.start_ns + round(s * NS) for s in (0.5, 2, 5)]
        assert [truth.power("cpu:0", t) for t in at] == [40, 150, 40]
        assert [truth.power("core:0", t) for t in at] == pytest.approx([10, 10 + 0.85 * 110, 10])
        assert [truth.power("dram:0", t) for t in at] == [14, 37, 14]
    given = {"cpu": profile.burst(1, 2, low=40, high=70, unit="W")}
    with Truth.create(tmp_path / "w", SLEEPY, profiles=given) as truth:
        at = [truth.start_ns + round(s * NS) for s in (0.5, 2, 5)]
        assert [truth.power("cpu:0", t) for t in at] == pytest.approx([40, 70, 40])
        assert [truth.power("dram:0", t) for t in at] == [14, 14, 14]
    level = iter([0.0, 0.0, 0.5, 0.0])
    with Truth.create(tmp_path / "l", SLEEPY) as truth:
        driver = LoadDriver(truth, load=lambda: next(level), period_s=1.0)
        seen = []
        for _ in range(3):
            driver.step()
            seen.append(truth.read_last("cpu:0")[1])
        assert seen == [40, 150, 40]
