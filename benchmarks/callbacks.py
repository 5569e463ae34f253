"""Print what marks, callbacks, trackers and the live view cost a training, against a step of 10 ms."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import joulelab
from joulelab.core.clock import monotonic_ns
from joulelab.integrations.training import TrainingMeasurement
from joulelab.run import marking
from joulelab.run.live import LiveReader, import_live_modules
from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.profile import square
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP_S = 0.010
ROW = 1000
PARTS = 12
BATCH = (np.zeros((64, 32)), np.zeros(64))
RNG = np.random.default_rng(0)
INPUTS, TARGETS = RNG.standard_normal((96, 256)), RNG.standard_normal((96, 10))


class Net:
    """A small network in numpy; a step of its training is always the same work."""

    def __init__(self) -> None:
        self.first, self.second = RNG.standard_normal((256, 256)) / 16, RNG.standard_normal((256, 10)) / 16

    def step(self) -> None:
        """Take a step: about 10 ms of one core."""
        for _ in range(PARTS):
            self.part()

    def part(self) -> None:
        """Take a part of it."""
        hidden = np.maximum(INPUTS @ self.first, 0)
        error = (hidden @ self.second - TARGETS) / len(INPUTS)
        back = (error @ self.second.T) * (hidden > 0)
        self.second -= 0.01 * hidden.T @ error
        self.first -= 0.01 * INPUTS.T @ back


def in_steps(call: Callable[[], object], steps: int) -> list[float]:
    """Return the CPU seconds of a call at the end of each of some steps."""
    spent: list[float] = []
    net, until = Net(), time.perf_counter()
    for _ in range(steps):
        until = max(until, time.perf_counter()) + STEP_S
        while time.perf_counter() < until:  # so that the call finds caches as a training leaves them
            net.part()
        begin = time.thread_time()
        call()
        spent.append(time.thread_time() - begin)
    return spent


def in_a_row(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call among many."""
    begin = time.thread_time()
    for _ in range(ROW):
        call()
    return (time.thread_time() - begin) / ROW


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Write marks to a folder, as in a run."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "host" / "marks"
        marks.mkdir(parents=True)
        marking.attach_writer(marks, 0)
        try:
            yield
        finally:
            marking.detach_writer()


def in_phase() -> None:
    """Begin and end a phase."""
    with joulelab.phase("part"):
        pass


def hugging_face() -> Callable[[], object] | None:
    """Return what a step of the Trainer calls: the hook of the model's forward pass, and the end of the step."""
    try:
        import torch
        from transformers import TrainerControl, TrainerState, TrainingArguments

        from joulelab.integrations.huggingface import JoulelabCallback
    except ImportError:
        return None
    arguments, state = TrainingArguments(output_dir=tempfile.gettempdir(), use_cpu=True), TrainerState()
    hooked, model, control = JoulelabCallback(log="none"), torch.nn.Identity(), TrainerControl()
    hooked.on_train_begin(arguments, state, control, model=model)
    (hook,) = model._forward_pre_hooks.values()  # noqa: SLF001 - as torch calls it
    batch = {"input_ids": torch.zeros(8, 64), "attention_mask": torch.zeros(8, 64), "labels": torch.zeros(8, 64)}

    def step() -> None:
        hook(model, (), batch)
        hooked.on_step_end(arguments, state, control)

    return step


def lightning() -> Callable[[], object] | None:
    """Return what Lightning calls at a step, with a trainer of its own; None where it is not installed."""
    try:
        import lightning.pytorch as pl
        import torch

        from joulelab.integrations.lightning import JoulelabCallback
    except ImportError:
        return None
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    done = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
    hooked, batch = JoulelabCallback(log="none"), {"x": torch.zeros(64, 32), "y": torch.zeros(64)}
    hooked.on_train_start(trainer, None)

    def step() -> None:
        hooked.on_train_batch_start(trainer, None, batch, 0)
        done.completed += 1
        hooked.on_train_batch_end(trainer, None, None, batch, 0)

    return step


def keras() -> Callable[[], object] | None:
    """Return what Keras calls at a step, with a model that counts samples; None where it is not installed."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        import keras as framework

        from joulelab.integrations.keras import JoulelabCallback
    except ImportError:
        return None
    model = framework.Sequential([framework.Input((4,)), framework.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model._loss_tracker.update_state(0.0, sample_weight=64)  # noqa: SLF001 - as its train_step does
    hooked = JoulelabCallback(log="none")
    hooked.set_model(model)
    hooked.on_train_begin()
    return lambda: hooked.on_train_batch_end(0)


def calls(steps: int) -> None:
    """Print the cost of each call at the end of a step, while marks are written."""
    training = TrainingMeasurement(log="none")
    print("CPU of a call, recorded, as a share of 10 ms: one after another; at the end of steps of 10 ms (cold caches)")
    with recorded(), joulelab.phase("epoch", 1):
        training.begin_training("train")
        batches = iter(joulelab.track([BATCH] * (steps + ROW + 2), show=False))
        next(batches)
        cases: dict[str, Callable[[], object] | None] = {
            "nothing": lambda: None,
            "json.dumps of two numbers": lambda: json.dumps({"samples": 64, "tokens": 512}),
            "work(samples=64)": lambda: joulelab.work(samples=64),
            "step(samples=64)": lambda: joulelab.step(samples=64),
            "with phase(...)": in_phase,
            "a batch of track(loader)": lambda: next(batches),
            "a callback's step": lambda: training.report_step({"samples": 64}),
            "the callback of Hugging Face": hugging_face(),
            "the callback of Lightning": lightning(),
            "the callback of Keras": keras(),
        }
        for name, call in cases.items():
            if call is None:
                print(f"  {name:30s} not installed")
                continue
            mean = statistics.fmean(in_steps(call, steps))
            verdict = "" if mean < 0.01 * STEP_S else "  MORE THAN 1 %"
            print(f"  {name:30s} {in_a_row(call) / STEP_S:8.3%} {mean / STEP_S:8.3%}{verdict}", flush=True)
        batches.close()
        training.end_training()


def bare(steps: int) -> None:
    """Train without joulelab."""
    net = Net()
    for _batch in [BATCH] * steps:
        net.step()


def marked(steps: int) -> None:
    """Train with every verb in every step, nothing recorded."""
    net = Net()
    with joulelab.phase("epoch", 1):
        for _batch in [BATCH] * steps:
            with joulelab.phase("part"):
                net.step()
            joulelab.work(tokens=64)
            joulelab.step(samples=64)


def written(steps: int) -> None:
    """Train with every verb in every step, and write the marks."""
    with recorded():
        marked(steps)


def tracked(steps: int) -> None:
    """Train in a tracked loop that nobody records, as on a rank other than the first."""
    net = Net()
    for _batch in joulelab.track([BATCH] * steps, show=False):
        net.step()


def compare(repeats: int, steps: int) -> None:
    """Print trainings without recording as ratios to the same without joulelab, interleaved."""
    kinds = {"without": bare, "again": bare, "verbs": marked, "track": tracked, "written": written}
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    os.environ["LOCAL_RANK"] = "1"
    for repeat in range(repeats + 1):
        names = list(kinds)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            begin = time.thread_time()
            kinds[name](steps)
            if repeat:  # the first is for the caches
                spent[name].append(time.thread_time() - begin)
    del os.environ["LOCAL_RANK"]
    step = statistics.median(spent["without"]) / steps
    print(f"\nCPU of a training, {repeats} repeats of {steps} steps of {step * 1e3:.1f} ms, interleaved")
    print("  ratio to the same without joulelab: of the least of each; median and quartiles of pairs")
    labels = {
        "again": "without joulelab, again",
        "verbs": "phase, work, step, not recorded",
        "track": "track(loader), not recorded",
        "written": "phase, work, step, recorded",
    }
    for name, label in labels.items():
        ratios = [a / b for a, b in zip(spent[name], spent["without"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        least = min(spent[name]) / min(spent["without"])
        print(f"  {label:34s} {least:8.4f} {middle:8.4f}   {low:8.4f} to {high:.4f}", flush=True)


def watch(seconds: float) -> None:
    """Print what the live view of a simulated node of eight GPUs costs."""
    node = Node(gpus=(find_gpu_model("h100"),) * 8)
    profiles = {f"gpu:{i}": square(2.7, 0.5) for i in range(8)}
    with tempfile.TemporaryDirectory() as runs, TwinServer(node, profiles=profiles) as twin:
        kept = {name: os.environ.get(name) for name in twin.environment}
        os.environ.update(twin.environment)
        import_live_modules()
        options: dict[str, Any] = {"runs": runs, "meters": ["nvml", "rapl"]}
        with joulelab.measure("bench", **options):
            writer = marking.writer()
            assert writer is not None
            with LiveReader(writer.folder.parent, monotonic_ns(), every_s=0.5) as live:
                time.sleep(seconds)
                took = time.monotonic() - live.begun
        os.environ.update({name: value for name, value in kept.items() if value is not None})
    print(f"\nthe live view of eight simulated GPUs, {took:.0f} s")
    print(f"  {live.reads} readings, {live.spent_s / max(live.reads, 1) * 1e3:.1f} ms each")
    print(f"  {live.spent_s / took:.3%} of a core")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    calls(given.steps)
    compare(given.repeats, 30)
    watch(given.seconds)


if __name__ == "__main__":
    main()
