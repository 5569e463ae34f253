"""Simulated jobs on a twin: time under a cap follows the formula, power is clipped, work adds up, nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.twin.virtual_clock import START, VirtualStop
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.twin import job as jobs
from joulelab.twin import profile
from joulelab.twin.job import Job, JobContext, JobRunner
from joulelab.twin.job_notes import CPU_SHARE, JobBoard, JobDemand, JobEnd, find_jobs_folder
from joulelab.twin.model import H100, RTX3090, RTX6000, V100, Node
from joulelab.twin.truth import Truth
from joulelab.twin.twin_driver import JobDriver
from joulelab.twin.twin_server import TwinServer

NS = 10**9
NODE = Node(gpus=(RTX6000,) * 4, packages=2, spread=0.0)
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def truth(tmp_path):
    with Truth.create(tmp_path / "truth", NODE, start_ns=START) as made:
        find_jobs_folder(made).mkdir()
        yield made


@pytest.fixture
def clock():
    return VirtualStop()


@dataclass
class Seen:
    """What a job told."""

    done: JobEnd | None = None
    work: dict[str, float] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.done.end_ns - self.done.begin_ns) / NS


def run(truth: Truth, clock: VirtualStop, *, during: Any = None, **options: Any) -> Seen:
    seen = Seen()

    def report(**amounts: float) -> None:
        if during is not None:
            during(seen)
        for name, amount in amounts.items():
            seen.work[name] = seen.work.get(name, 0) + amount

    @contextlib.contextmanager
    def phase(name: str):
        seen.phases.append(f"+{name}")
        yield
        seen.phases.append(f"-{name}")

    options = {"gpus": (0,), "work": 10, "speed": 40.0} | options
    context = JobContext(report, phase, seen.lines.append, clock, clock.now)
    seen.done = JobRunner(truth, Job(**options), context).run()
    return seen


def energy(truth: Truth, point: str, seen: Seen) -> float:
    return truth.energy(point, seen.done.begin_ns, seen.done.end_ns)


@pytest.mark.parametrize("cap_w", [260, 200, 110])
def test_time_under_a_cap_follows_the_formula_and_power_is_clipped(truth, clock, cap_w):
    truth.set_cap(0, cap_w, START)
    seen = run(truth, clock)
    factor = 1 + 0.035 * ((cap_w / 260) ** -4 - 1)
    assert seen.seconds == pytest.approx(0.25 * factor)
    assert energy(truth, "gpu:0", seen) == pytest.approx(cap_w * seen.seconds)
    assert truth.power("gpu:0", seen.done.begin_ns - 1) == 18
    assert truth.power("gpu:0", seen.done.end_ns) == 18
    assert energy(truth, "gpu:1", seen) == pytest.approx(18 * seen.seconds)


def test_a_job_that_is_held_up_works_on_and_does_no_more_than_its_work(truth):
    clock = VirtualStop(0, 3_000_000, 250_000_000, 70_000_000)  # a busy machine
    seen = run(truth, clock, work=40)
    assert seen.work["steps"] == 40
    assert 1.0 <= seen.seconds <= 1.0 + 0.25
    assert energy(truth, "gpu:0", seen) == pytest.approx(260 * seen.seconds)
    assert truth.power("gpu:0", clock.now() + NS) == 18


def test_work_adds_up(truth, clock):
    seen = run(truth, clock, work=37, batch=16, speed=400.0)
    assert seen.work == {"steps": 37, "samples": 37 * 16}
    assert seen.done.steps == 37
    assert re.fullmatch(r"step 37 samples: 592 loss 0\.\d\d", seen.lines[-1])
    numbers = [int(line.split()[1]) for line in seen.lines]
    assert numbers == sorted(set(numbers))


def test_a_cap_that_is_set_meanwhile_takes_effect(truth, clock):
    clock.plan(START + 220_000_000, lambda: truth.set_cap(0, 100, clock.now()))  # after half of the work
    seen = run(truth, clock, work=20, speed=50.0)
    factor = 1 + 0.035 * ((100 / 260) ** -4 - 1)
    assert seen.seconds == pytest.approx(0.2 + 0.2 * factor, abs=0.02)  # to one tick
    assert truth.power("gpu:0", seen.done.end_ns - 1) == 100


def test_a_cap_that_is_not_enforced_slows_nothing(tmp_path, clock):
    with Truth.create(tmp_path / "t", NODE.with_flaws(0, unenforced_caps=True), start_ns=START) as truth:
        find_jobs_folder(truth).mkdir()
        truth.set_cap(0, 100, START)
        seen = run(truth, clock)
        assert seen.seconds == pytest.approx(0.25)
        assert energy(truth, "gpu:0", seen) == pytest.approx(260 * seen.seconds)


def test_locked_clocks_take_power_and_speed(truth, clock):
    truth.lock_clock(0, 1470, START)  # 70 % of 2100
    seen = run(truth, clock)
    watts = 18 + 242 * 0.49
    assert seen.seconds == pytest.approx(0.25 * RTX6000.compute_stretch(watts / 260))
    assert energy(truth, "gpu:0", seen) == pytest.approx(watts * seen.seconds)


def test_clocks_that_are_locked_meanwhile(truth, clock):
    clock.plan(START + 220_000_000, lambda: truth.lock_clock(0, 1050, clock.now()))
    seen = run(truth, clock, work=20, speed=50.0)
    watts = 18 + 242 / 4
    assert RTX6000.compute_stretch(watts / 260) > 2, "a cap of that power would slow it more than half the clock can"
    assert seen.seconds == pytest.approx(0.2 + 0.2 * 2, abs=0.02)  # to one tick
    assert truth.power("gpu:0", seen.done.end_ns - 1) == pytest.approx(watts)


def test_several_gpus_share_the_work(truth, clock):
    truth.set_cap(3, 150, START)
    fast, slow = (run(truth, clock, gpus=gpus, scaling=0.9, work=20) for gpus in ((0, 1), (2, 3)))
    assert fast.seconds == pytest.approx(20 / (40 * 2 * 0.9))
    # The slowest holds up the others.
    assert slow.seconds == pytest.approx(fast.seconds * RTX6000.compute_stretch(150 / 260))
    middle = (fast.done.begin_ns + fast.done.end_ns) // 2
    host, cpu = NODE.host, NODE.cpu
    assert truth.power("host", middle) == pytest.approx(host.idle_w + (host.max_w - host.idle_w) / 2)
    assert truth.power("cpu:0", middle) == pytest.approx(cpu.idle_w + CPU_SHARE * (cpu.max_w - cpu.idle_w))
    assert truth.power("cpu:1", middle) == cpu.idle_w


def test_load_noise_slowdown_and_warm_up(truth, clock):
    seen = run(truth, clock, load=0.5, slowdown=(0.1, 2.0), warm_up_s=0.1, phases=(("train", 3.0), ("predict", 1.0)))
    assert energy(truth, "gpu:0", seen) == pytest.approx((18 + 121) * seen.seconds)
    assert truth.power("gpu:0", seen.done.begin_ns - NS // 20) == pytest.approx(18 + 242 / 4)
    assert seen.phases == ["+warm-up", "-warm-up", "+train", "-train", "+predict", "-predict"]
    truth.set_cap(0, 100, clock.now())
    slower = 1 + 0.1 * ((100 / 139) ** -2 - 1)
    assert run(truth, clock, load=0.5, slowdown=(0.1, 2.0)).seconds == pytest.approx(0.25 * slower)
    truth.set_cap(0, 260, clock.now())
    first, again = (run(truth, clock, noise=0.3, seed=3).seconds for _ in range(2))
    assert first == pytest.approx(again)
    assert abs(first / 0.25 - 1) > 0.02


def test_a_signal_ends_it_and_its_gpus_idle(truth, clock):
    seen = run(truth, clock, work=1000, during=lambda _: clock.note_signal(signal.SIGTERM))
    assert seen.done.signal == signal.SIGTERM
    assert 0 < seen.done.steps < 1000
    assert truth.power("gpu:0", clock.now() + NS) == 18
    assert list(find_jobs_folder(truth).glob("*.json")) == []
    early = run(truth, clock, warm_up_s=30.0)
    assert early.done.steps == 0


def test_slowdowns_go_by_model():
    assert [gpu.slowdown for gpu in (RTX6000, V100, RTX3090, H100)] == [
        (0.035, 4.0), (0.060, 3.4), (0.026, 5.2), (0.040, 4.2),
    ]  # fmt: skip
    assert RTX6000.compute_stretch(0.5) == pytest.approx(1 + 0.035 * (2**4 - 1))
    assert RTX6000.compute_stretch(1.2) == 1


@pytest.mark.parametrize(
    ("environ", "count", "gpus"),
    [
        ({}, None, (0,)),
        ({}, 3, (0, 1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, None, (3, 1)),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, 1, (3,)),
        ({"CUDA_VISIBLE_DEVICES": "uuid"}, None, (2,)),
    ],
)
def test_gpus_are_those_that_are_visible(truth, environ, count, gpus):
    environ = {key: value.replace("uuid", truth.uuid(2)) for key, value in environ.items()}
    assert jobs.find_visible_gpus(truth, environ, count) == gpus


def test_wrong_jobs_are_refused(truth, tmp_path):
    with pytest.raises(ConfigError, match="there is no GPU '9'"):
        jobs.find_visible_gpus(truth, {"CUDA_VISIBLE_DEVICES": "9"}, None)
    with pytest.raises(ConfigError, match="5 GPUs are wanted, 4 are visible"):
        jobs.find_visible_gpus(truth, {}, 5)
    for wrong in ({"load": 0.0}, {"work": 0}, {"scaling": 2.0}, {"phases": (("a", 0.0),)}):
        with pytest.raises(ConfigError, match="out of range"):
            Job(**{"gpus": (0,)} | wrong)
    (tmp_path / "driven").mkdir()
    with Truth.create(tmp_path / "driven" / "t") as moved, pytest.raises(ConfigError, match="--idle"):
        JobBoard(moved)


def test_jobs_on_one_gpu_show_the_load_of_their_own_power(truth):
    idle_w, max_w = truth.node.range_w("gpu:0")
    board, folder = JobBoard(truth), find_jobs_folder(truth)
    loads = lambda: truth._get_gpu(0)["state"]["process"]["load"]  # noqa: E731
    board.put_demand(JobDemand({0: idle_w + 0.6 * (max_w - idle_w)}), START)
    assert loads()[0] == 0xFFFFFFFF  # alone, it has the load of the GPU
    (folder / "other.json").write_text((folder / f"{os.getpid()}.json").read_text())
    board.put_demand(JobDemand({0: idle_w + 0.25 * (max_w - idle_w)}), START + 1)
    assert sorted(loads()[:2].tolist()) == [25, 60]


def start(environment, *words):
    env = os.environ | {"PYTHONPATH": str(SRC)} | dict(environment)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "joulelab.twin.job", *words], env=env, stdout=pipe, stderr=pipe, text=True
    )


@pytest.mark.system
def test_as_a_process_of_its_own(truth):
    environment = {"JOULELAB_TWIN": str(truth.path), "CUDA_VISIBLE_DEVICES": "2"}
    with start(environment, "--work", "8", "--speed", "80", "--slowdown", "0.1,2", "--phases", "a=2,b") as child:
        out, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    took = re.fullmatch(r"finished 8 steps in (\d+\.\d+) s", out.splitlines()[-1])
    assert float(took[1]) >= 0.1
    assert truth.read_last("gpu:2")[1] == 18
    for words, said in ((["--gpus", "9"], "are visible"), (["--work", "0"], "out of range")):
        with start(environment, *words) as child:
            assert said in child.communicate(timeout=120)[1]
        assert child.returncode == 2
    with start({"JOULELAB_TWIN": ""}) as child:
        assert "joulelab twin 8xrtx6000 --idle" in child.communicate(timeout=120)[1]


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_dies_of_the_signal_that_ended_it(truth, number):
    with start({"JOULELAB_TWIN": str(truth.path)}, "--work", "100000") as child:
        child.stdout.readline()
        assert truth.read_last("gpu:0")[1] == 260
        child.send_signal(number)
        child.communicate(timeout=120)
    assert child.returncode == -number
    assert truth.read_last("gpu:0")[1] == 18


@pytest.mark.system
def test_two_jobs_at_once_and_one_that_is_killed(tmp_path):
    with TwinServer(NODE, directory=tmp_path) as server:
        truth = server.truth
        long = ("--work", "100000", "--speed", "50")
        with (
            start(server.environment | {"CUDA_VISIBLE_DEVICES": "0"}, *long) as first,
            start(server.environment | {"CUDA_VISIBLE_DEVICES": "1"}, *long) as second,
        ):
            for child in (first, second):
                child.stdout.readline()
            assert [truth.read_last(f"gpu:{gpu}")[1] for gpu in range(3)] == [260, 260, 18]
            full = NODE.host.idle_w + (NODE.host.max_w - NODE.host.idle_w) / 2
            assert truth.read_last("host")[1] == pytest.approx(full)
            first.kill()
            until(lambda: truth.read_last("gpu:0")[1] == 18)  # the server sees that it is gone
            assert truth.read_last("gpu:1")[1] == 260
            until(lambda: truth.read_last("host")[1] < full - 1)
            second.terminate()
            for child in (first, second):
                child.communicate(timeout=120)
        assert truth.read_last("host")[1] == NODE.host.idle_w


@pytest.mark.system
def test_the_next_job_finds_what_a_killed_one_left(truth):
    with start({"JOULELAB_TWIN": str(truth.path)}, "--work", "100000") as child:
        child.stdout.readline()
        child.kill()
        child.communicate(timeout=120)
    assert truth.read_last("gpu:0")[1] == 260
    (find_jobs_folder(truth) / "1.json").write_text("{")  # killed while it wrote
    run(truth, VirtualStop(t_ns=monotonic_ns()), gpus=(1,), work=2)
    assert truth.read_last("gpu:0")[1] == 18
    assert list(find_jobs_folder(truth).glob("*.json")) == []
    JobDriver(truth).step()


def no_compiler() -> Path:
    raise MissingDependency("no NVML", why="no C compiler")


def test_a_twin_that_profiles_move_takes_no_jobs(tmp_path):
    profiles = {"gpu": profile.constant(0.5)}
    with TwinServer(NODE, profiles=profiles, directory=tmp_path, library=no_compiler) as server:
        assert server.driver is None
        with pytest.raises(ConfigError, match="takes no jobs"):
            JobBoard(server.truth)
