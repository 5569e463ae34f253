"""A modelled workload on a served twin: times, powers and marks are those laid out, under the caps in force."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.twin.virtual_clock import START, VirtualStop

from joulelab.core.errors import ConfigError
from joulelab.twin import job_notes, nodefile
from joulelab.twin.job import JobContext, StagedRun
from joulelab.twin.job_notes import find_jobs_folder
from joulelab.twin.timeline import RunTimes, Span, Timeline, lay_out_run
from joulelab.twin.truth import Truth
from joulelab.twin.workload_progress import RunRequest, WorkloadModel

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
FOUND = nodefile.parse_node(TEXT, "test")
BIRDS = FOUND.workloads["birds"]


@pytest.fixture
def truth(tmp_path: Path) -> Iterator[Truth]:
    with Truth.create(tmp_path / "truth", FOUND.node, start_ns=START) as made:
        find_jobs_folder(made).mkdir()
        job_notes.write_models(made.path, FOUND.workloads)
        yield made


@pytest.fixture
def clock() -> VirtualStop:
    return VirtualStop()


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


def run(
    truth: Truth, clock: VirtualStop, ask: RunRequest, *, scale: float = SCALE, model: WorkloadModel = BIRDS
) -> Seen:
    seen = Seen()

    def report(samples: float) -> None:
        seen.samples += samples
        seen.reports += 1

    @contextlib.contextmanager
    def phase(name: str, n: int | None):
        begin_ns = clock.now()
        yield
        seen.phases.append((name, n))
        seen.times.append((begin_ns, clock.now()))

    context = JobContext(report, phase, seen.lines.append, clock, clock.now)
    done = StagedRun(truth, model, ask, context, scale=scale, seed=3).run()
    seen.begin_ns, seen.end_ns, seen.stages = done.begin_ns, done.end_ns, done.steps
    return seen


def test_parameters_that_the_model_does_not_have_are_refused(truth: Truth, clock: VirtualStop) -> None:
    with pytest.raises(ConfigError, match="job: the model of the workload has no parameter 'foo'"):
        run(truth, clock, RunRequest({"foo": 1.0}, (0,)))
    with pytest.raises(ConfigError, match="images is inf"):
        run(truth, clock, RunRequest({"images": math.inf}, (0,)))
    with pytest.raises(ConfigError, match="scale is inf"):
        run(truth, clock, RunRequest({}, (0,)), scale=math.inf)


def marked_spans(timeline: Timeline) -> list[list[Span]]:
    """Return the stages that have a name; those of one name and epoch that follow each other are one phase."""
    groups = [list(spans) for _, spans in itertools.groupby(timeline.spans, lambda span: (span.name, span.epoch))]
    return [spans for spans in groups if spans[0].name]


@pytest.mark.parametrize(
    ("gpus", "caps"),
    [((0, 1), {}), ((0, 1), {0: 130.0, 1: 180.0}), ((2,), {2: 110.0}), ((), {})],
    ids=["free", "capped", "one", "cpus"],
)
def test_a_served_run_and_a_laid_out_one_are_the_same(
    truth: Truth, clock: VirtualStop, gpus: tuple[int, ...], caps: dict[int, float]
) -> None:
    for gpu, cap_w in caps.items():
        truth.set_cap(gpu, cap_w, START)
    laid_out = lay_out_run(FOUND.node, BIRDS, RunRequest({}, gpus, caps), RunTimes(0), 3)
    seen = run(truth, clock, RunRequest({}, gpus))
    assert seen.seconds / SCALE == pytest.approx((laid_out.end_ns - laid_out.start_ns) / NS)
    for point in ("node.ac", "node.dc", "fans", "gpu:0", "gpu:2", "cpu:0", "core:1", "dram:0", "host", "outlet:1"):
        true = laid_out.energy(point, laid_out.start_ns, laid_out.end_ns)
        assert truth.energy(point, seen.begin_ns, seen.end_ns) / SCALE == pytest.approx(true, rel=1e-4), point
    assert seen.samples == sum(span.samples for span in laid_out.spans)
    assert seen.reports > 6  # of two epochs
    marked = marked_spans(laid_out)
    assert seen.phases == [(spans[0].name, spans[0].epoch) for spans in marked]
    for spans, (a_ns, b_ns) in zip(marked, seen.times, strict=True):
        for marked_ns, true_ns in ((a_ns, spans[0].start_ns), (b_ns, spans[-1].end_ns)):
            assert marked_ns - seen.begin_ns == pytest.approx(SCALE * true_ns, abs=1e4), spans[0]
    share, curve = laid_out.curve("node.ac")
    for span in laid_out.spans:
        inside_ns = (11 * span.start_ns + 9 * span.end_ns) // 20  # not where a flutter changes
        watts = truth.power("node.ac", seen.begin_ns + round(SCALE * inside_ns))
        assert watts == pytest.approx(share * float(curve.watts(np.array([inside_ns]))[0]), rel=1e-6), span
    for leaf in FOUND.node.list_leaves():  # and nothing is left of it
        assert truth.power(leaf, clock.now() + NS) == FOUND.node.range_w(leaf)[0]


def test_a_run_that_is_held_up_goes_through_all_stages_later(truth: Truth) -> None:
    clock = VirtualStop(0, 2_000_000, 0, 300_000_000)  # a busy machine
    laid_out = lay_out_run(FOUND.node, BIRDS, RunRequest({}, (0, 1)), RunTimes(0), 3)
    seen = run(truth, clock, RunRequest({}, (0, 1)))
    assert seen.seconds >= SCALE * (laid_out.end_ns - laid_out.start_ns) / NS
    assert seen.samples == sum(span.samples for span in laid_out.spans)
    assert seen.phases == [(spans[0].name, spans[0].epoch) for spans in marked_spans(laid_out)]
    assert truth.power("gpu:0", clock.now() + NS) == FOUND.node.range_w("gpu:0")[0]


def test_a_cap_that_is_set_meanwhile_slows_what_is_left(truth: Truth, clock: VirtualStop) -> None:
    quiet = replace(BIRDS, time_scatter=0.0, stages=tuple(replace(s, seconds=0.0) for s in BIRDS.stages))
    free, capped = (
        lay_out_run(FOUND.node, quiet, RunRequest({}, (0,), caps), RunTimes(0), 1) for caps in ({}, {0: 100.0})
    )
    half = SCALE * free.end_ns / NS / 2
    clock.plan(START + round(half * NS), lambda: truth.set_cap(0, 100.0, clock.now()))
    seen = run(truth, clock, RunRequest({}, (0,)), model=quiet)
    assert capped.end_ns > 1.8 * free.end_ns
    # What is announced already, 0.1 s ahead, goes on as it was.
    assert seen.seconds == pytest.approx(half + SCALE * capped.end_ns / NS / 2, abs=0.1)


def test_locked_clocks_slow_it(truth: Truth, clock: VirtualStop) -> None:
    before = run(truth, clock, RunRequest({"epochs": 1}, (0,)))
    truth.lock_clock(0, 1050, clock.now())
    after = run(truth, clock, RunRequest({"epochs": 1}, (0,)))
    assert after.seconds > 1.3 * before.seconds
    middle = (after.times[1][0] + after.times[1][1]) // 2
    assert truth.power("gpu:0", middle) < 100


def test_a_cap_of_the_cpus_slows_a_run_on_them_as_in_virtual_time(truth: Truth, clock: VirtualStop) -> None:
    for package in range(2):
        truth.set_cpu_cap(package, 62.0, clock.now())
    seen = run(truth, clock, RunRequest({}))
    laid = lay_out_run(FOUND.node, BIRDS, RunRequest({}, cpu_caps={0: 62.0, 1: 62.0}), RunTimes(), 3)
    free = lay_out_run(FOUND.node, BIRDS, RunRequest({}), RunTimes(), 3)
    assert seen.seconds == pytest.approx(SCALE * (laid.end_ns - laid.start_ns) / NS, rel=1e-3)
    assert laid.end_ns > free.end_ns
    joules = truth.energy("cpu:1", seen.begin_ns, seen.end_ns)
    assert joules == pytest.approx(SCALE * laid.energy("cpu:1", laid.start_ns, laid.end_ns), rel=1e-3)


def test_a_signal_ends_it_and_all_idles(truth: Truth, clock: VirtualStop) -> None:
    clock.plan(START + NS // 2, lambda: clock.note_signal(signal.SIGTERM))
    seen = run(truth, clock, RunRequest({}, (0, 1)), scale=0.05)
    assert seen.end_ns == START + NS // 2
    assert (seen.stages, seen.lines) == (1, ["set-up"])
    assert truth.power("gpu:0", clock.now() + NS) == FOUND.node.range_w("gpu:0")[0]
    assert list(find_jobs_folder(truth).glob("*.json")) == []


def call(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(SRC)} | environment
    line = [sys.executable, "-m", "joulelab.twin.job", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.system
def test_as_a_process_of_its_own(truth: Truth) -> None:
    environment = {"JOULELAB_TWIN": str(truth.path)}
    words = ("--workload", "birds", "--scale", "0.005", "--seed", "3")
    done = call(environment, *words, "--gpus", "2", "--set", "epochs=1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:-1] == ["set-up", "epoch 1 samples: 1000", "epoch 1", "stage 1", "save"]
    assert lines[-1].startswith("finished 5 steps in ")
    assert truth.read_last("gpu:0")[1] == FOUND.node.range_w("gpu:0")[0]
    assert "epoch 2 samples" in call(environment, *words, "--gpus", "0").stdout
    wrong = call(environment, "--workload", "bird")
    assert (wrong.returncode, "did you mean 'birds'" in wrong.stderr) == (2, True)


def test_what_is_wrong_is_refused(truth: Truth, clock: VirtualStop, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not above 0"):
        run(truth, clock, RunRequest({}, (0,)), scale=0.0)
    with pytest.raises(ConfigError, match="joulelab twin NODE --idle"):
        job_notes.find_model(tmp_path / "elsewhere" / "truth", "birds")
