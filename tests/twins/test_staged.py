"""A modelled workload in real time: the same times, powers and marks as in virtual time, under the caps in force."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.twins import nodefile, staged
from joulelab.twins.job import Stop
from joulelab.twins.jobs import folder_of
from joulelab.twins.progress import Ask
from joulelab.twins.staged import Staged
from joulelab.twins.timeline import Timeline, When, lay_out
from joulelab.twins.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Iterator

NS = 10**9
SRC = Path(__file__).parents[2] / "src"
SCALE = 0.02
TEXT = """
spread = 0.03
[[gpu]]
model = "rtx6000"
count = 3
active_w = 70
cold = 0.1
warm_up_s = 10
[cpu]
idle_w = 40
awake_w = 60
max_w = 120
[workloads.birds]
parameters = { epochs = 2, images = 1000 }
time_scatter = 0.1
power_scatter = 0.1
[[workloads.birds.stages]]
name = "set-up"
seconds = 5
cpu = 0.5
[[workloads.birds.stages]]
name = "epoch"
each = "epoch"
samples = "images"
rate = 50
busy = 0.95
intensity = 0.9
cpu = 0.3
memory = 0.4
flutter = 0.05
flutter_s = 2.0
[[workloads.birds.stages]]
name = "epoch"
each = "epoch"
seconds = 1.5
[[workloads.birds.stages]]
each = "epoch"
seconds = 1.5
[[workloads.birds.stages]]
name = "save"
seconds = 3
"""
FOUND = nodefile.parsed(TEXT, "test")
BIRDS = FOUND.workloads["birds"]


@pytest.fixture
def truth(tmp_path: Path) -> Iterator[Truth]:
    with Truth.create(tmp_path / "truth", FOUND.node) as made:
        folder_of(made).mkdir()
        staged.keep(made.path, FOUND.workloads)
        yield made


@dataclass
class Seen:
    """What a job told, and when (s since its begin)."""

    begin_ns: int = 0
    end_ns: int = 0
    stages: int = 0
    phases: list[tuple[str, int | None]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    samples: float = 0.0
    reports: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / NS


def run(truth: Truth, ask: Ask, *, scale: float = SCALE, seed: int = 3, stop: Stop | None = None) -> Seen:
    seen = Seen()

    def report(samples: float) -> None:
        seen.samples += samples
        seen.reports += 1

    @contextlib.contextmanager
    def phase(name: str, n: int | None):
        begin_ns = time.monotonic_ns()
        yield
        seen.phases.append((name, n))
        seen.times.append((begin_ns, time.monotonic_ns()))

    options: dict[str, Any] = {"report": report, "phase": phase, "say": seen.lines.append, "stop": stop or Stop()}
    done = Staged(truth, BIRDS, ask, scale=scale, seed=seed, **options).run()
    seen.begin_ns, seen.end_ns, seen.stages = done.begin_ns, done.end_ns, done.steps
    return seen


def test_parameters_that_the_model_does_not_have_are_refused(truth: Truth) -> None:
    with pytest.raises(ConfigError, match="job: the model of the workload has no parameter 'foo'"):
        run(truth, Ask({"foo": 1.0}, (0,)))
    with pytest.raises(ConfigError, match="images is inf"):
        run(truth, Ask({"images": math.inf}, (0,)))
    with pytest.raises(ConfigError, match="scale is inf"):
        run(truth, Ask({}, (0,)), scale=math.inf)


def same(truth: Truth, seen: Seen, virtual: Timeline) -> None:
    """Hold a run in real time against the same in virtual time."""
    whole_s = (virtual.end_ns - virtual.start_ns) / NS
    assert seen.seconds / SCALE == pytest.approx(whole_s, rel=0.03)
    for point in ("node.ac", "node.dc", "fans", "gpu:0", "gpu:2", "cpu:0", "core:1", "dram:0", "host", "outlet:1"):
        true = virtual.energy(point, virtual.start_ns, virtual.end_ns)
        assert truth.energy(point, seen.begin_ns, seen.end_ns) / SCALE == pytest.approx(true, rel=0.03), point
    assert seen.samples == sum(span.samples for span in virtual.spans)
    # Stages of one name and epoch that follow each other are one phase, in virtual time too.
    groups = [list(spans) for _, spans in itertools.groupby(virtual.spans, lambda span: (span.name, span.epoch))]
    marked = [spans for spans in groups if spans[0].name]
    assert seen.phases == [(spans[0].name, spans[0].epoch) for spans in marked]
    for spans, (a_ns, b_ns) in zip(marked, seen.times, strict=True):
        for marked_ns, true_ns in ((a_ns, spans[0].start_ns), (b_ns, spans[-1].end_ns)):
            late_s = (marked_ns - seen.begin_ns - SCALE * true_ns) / NS
            assert -0.02 < late_s < 0.15, spans[0]  # marks wait for their process on a busy machine, the power does not
    share, curve = virtual.curve("node.ac")
    for span in virtual.spans:
        middle_ns = (span.start_ns + span.end_ns) // 2
        watts = truth.power("node.ac", seen.begin_ns + round(SCALE * middle_ns))
        assert watts == pytest.approx(share * float(curve.watts(np.array([middle_ns]))[0]), rel=0.03), span


@pytest.mark.parametrize(
    ("gpus", "caps"),
    [((0, 1), {}), ((0, 1), {0: 130.0, 1: 180.0}), ((2,), {2: 110.0}), ((), {})],
    ids=["free", "capped", "one", "cpus"],
)
def test_real_and_virtual_time_are_the_same(truth: Truth, gpus: tuple[int, ...], caps: dict[int, float]) -> None:
    for gpu, cap_w in caps.items():
        truth.set_cap(gpu, cap_w)
    virtual = lay_out(FOUND.node, BIRDS, Ask({}, gpus, caps), When(0), 3)
    for tries_left in (2, 1, 0):  # a machine that holds this process up for more than 0.1 s makes the job late
        seen = run(truth, Ask({}, gpus))
        try:
            same(truth, seen, virtual)
            break
        except AssertionError:
            if not tries_left:
                raise
    assert seen.reports > 6  # of two epochs
    for leaf in FOUND.node.leaves():  # and nothing is left of it
        assert truth.power(leaf, time.monotonic_ns() + NS) == FOUND.node.range_w(leaf)[0]


def test_a_cap_that_is_set_meanwhile_slows_what_is_left(truth: Truth) -> None:
    quiet = replace(BIRDS, time_scatter=0.0, stages=tuple(replace(s, seconds=0.0) for s in BIRDS.stages))
    free, capped = (lay_out(FOUND.node, quiet, Ask({}, (0,), caps), When(0), 1) for caps in ({}, {0: 100.0}))
    half = SCALE * free.end_ns / NS / 2
    timer = threading.Timer(half, truth.set_cap, (0, 100.0))
    timer.start()
    options: dict[str, Any] = {"report": lambda **_: None, "say": lambda _: None, "stop": Stop()}
    options["phase"] = lambda *_: contextlib.nullcontext()
    done = Staged(truth, quiet, Ask({}, (0,)), scale=SCALE, seed=1, **options).run()
    timer.join()
    took = (done.end_ns - done.begin_ns) / NS
    assert capped.end_ns > 1.8 * free.end_ns
    assert took == pytest.approx(half + SCALE * capped.end_ns / NS / 2, rel=0.12)


def test_locked_clocks_slow_it(truth: Truth) -> None:
    before = run(truth, Ask({"epochs": 1}, (0,)))
    with truth._editing(0) as state:
        state["sm_lock_max_mhz"] = 1050
    after = run(truth, Ask({"epochs": 1}, (0,)))
    assert after.seconds > 1.3 * before.seconds
    middle = (after.times[1][0] + after.times[1][1]) // 2
    assert truth.power("gpu:0", middle) < 100


def test_a_signal_ends_it_and_all_idles(truth: Truth) -> None:
    stop = Stop()
    timer = threading.Timer(0.5, stop.note, (signal.SIGTERM,))
    timer.start()
    seen = run(truth, Ask({}, (0, 1)), scale=0.05, stop=stop)
    timer.join()
    assert seen.seconds == pytest.approx(0.5, abs=0.1)
    assert (seen.stages, seen.lines) == (1, ["set-up"])
    assert truth.power("gpu:0", time.monotonic_ns() + NS) == FOUND.node.range_w("gpu:0")[0]
    assert list(folder_of(truth).glob("*.json")) == []


def call(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(SRC)} | environment
    line = [sys.executable, "-m", "joulelab.twins.job", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.system
def test_as_a_process_of_its_own(truth: Truth) -> None:
    environment = {"JOULELAB_TWIN": str(truth.path)}
    words = ("--workload", "birds", "--scale", "0.005", "--seed", "3")
    done = call(environment, *words, "--gpus", "2", "--set", "epochs=1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:-1] == ["set-up", "epoch 1 samples: 1000", "epoch 1", "stage 1", "save"]
    assert lines[-1].startswith("finished 5 steps in 0.")
    assert truth.last("gpu:0")[1] == FOUND.node.range_w("gpu:0")[0]
    assert "epoch 2 samples" in call(environment, *words, "--gpus", "0").stdout
    wrong = call(environment, "--workload", "bird")
    assert (wrong.returncode, "did you mean 'birds'" in wrong.stderr) == (2, True)


def test_what_is_wrong_is_refused(truth: Truth, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not above 0"):
        run(truth, Ask({}, (0,)), scale=0.0)
    with pytest.raises(ConfigError, match="joulelab twin NODE --idle"):
        staged.model_of(tmp_path / "elsewhere" / "truth", "birds")
