"""Describe a training: model, data, loss and quality, when it ends, its stages for twins. torch is not imported.

What is the same for all trainings is in `loop.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab.study.program import LOADERS, Program, ProgramStage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from joulelab.study.program import Each, Number
    from joulelab.workloads.data.source import Data
    from joulelab.workloads.training.ranks import Ranks

Batch = Any  # whatever the data is collated to: a tensor, or tuples, lists and mappings of tensors


def forward_inputs(model: torch.nn.Module, batch: Batch) -> Any:
    """Return what a model makes of the first part of a batch."""
    return model(batch[0])


@dataclass(frozen=True, slots=True)
class Task:
    """Hold what one training consists of.

    `model` builds it, on the meta device too, where FLOP are counted by `example`, a batch of one sample. `optimizer`
    takes the model and the number of steps; its schedule goes on with each step. `batch` is that of all ranks together,
    `test_batch` that of each rank in validation and prediction (0: its share of `batch`).
    `amounts` is the work in a batch. `forward` gives outputs, `score` sums over a batch of them, `quality` figures from
    the sums of all batches; the first figure is the one that `target` and `patience` look at. `rows` makes of outputs
    what is written to a file of predictions, a row for each sample with a value for each of `columns`.

    A model with `sharded` parts is divided over the ranks (FSDP); others are copied (DDP). With `fill`, the model is
    built and divided without values, and `fill` gives each rank the values of its part. Gradients are clipped to the
    norm `clip`, unless it is 0. With `waits`, all ranks wait for each other and for the device after each step.
    """

    model: Callable[[], torch.nn.Module]
    data: Data
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor]
    optimizer: Callable[[torch.nn.Module, int], tuple[torch.optim.Optimizer, Any]]
    example: Callable[[torch.device], Batch]
    amounts: Callable[[Batch], Mapping[str, float]]
    score: Callable[[Any, Batch], Mapping[str, float]]
    quality: Callable[[Mapping[str, float]], Mapping[str, float]]
    batch: int
    epochs: int
    test_batch: int = 0
    forward: Callable[[torch.nn.Module, Batch], Any] = forward_inputs
    rows: Callable[[Any, Batch], torch.Tensor] | None = None
    columns: tuple[str, ...] = ()
    is_lower_better: bool = False
    predict_on: Literal["train", "valid", "test"] = "test"
    predict_times: int = 1
    sharded: tuple[type[torch.nn.Module], ...] = ()
    fill: Callable[[torch.nn.Module], None] | None = None
    clip: float = 0.0
    waits: bool = False
    drop_last: bool = False
    collate: Callable[[list[Any]], Batch] | None = None
    prefetch: int | None = None
    facts: Mapping[str, str | float] = field(default_factory=dict)


class Limits:
    """Count steps and time; `reached` names the limit that ended it, empty while there is none. 0 is no limit."""

    def __init__(
        self, max_steps: int, max_seconds: float, ranks: Ranks, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_steps, self.max_seconds = max_steps, max_seconds
        self.reached = ""
        self._ranks, self._now = ranks, now
        self._steps, self._began = 0, now()

    def start_clock(self) -> None:
        """Let the time begin now."""
        self._began = self._now()

    def count_step(self) -> bool:
        """Count a step; return whether it was the last, on all ranks at the same step."""
        self._steps += 1
        if self.max_steps and self._steps >= self.max_steps:
            self.reached = "max_steps"
        elif self.max_seconds and self._ranks.is_any(self._now() - self._began >= self.max_seconds):
            self.reached = "max_seconds"
        return bool(self.reached)


class Goal:
    """Compare the quality after each epoch with a target, and with the best so far; `reached` names what ended it.

    A target of 0 is none, a patience of 0 waits for ever.
    """

    def __init__(self, target: float, patience: int, *, is_lower_better: bool = False) -> None:
        self.reached = ""
        self._sign = -1.0 if is_lower_better else 1.0
        self._target, self._patience = target, patience
        self._best, self._waited = float("-inf"), 0

    def is_set(self) -> bool:
        """Return whether there is a target or a patience."""
        return bool(self._target or self._patience)

    def take_quality(self, quality: float) -> bool:
        """Take the quality after one more epoch; return whether the training ends with it."""
        value = self._sign * quality
        self._waited = 0 if value > self._best else self._waited + 1
        self._best = max(self._best, value)
        if self._target and value >= self._sign * self._target:
            self.reached = "target"
        elif self._patience and self._waited >= self._patience:
            self.reached = "patience"
        return bool(self.reached)


def describe_training(
    train: Number,
    *,
    batch: Number = "batch",
    device_batch: Number = 0.0,
    test_batch: Number = 0.0,
    valid: tuple[Number, Number] | None = None,
    predict: tuple[Number, Number] | None = None,
    test: Number | None = None,
    has_loaders: bool = True,
    writes: bool = False,
    amounts: Mapping[str, float] | None = None,
) -> Program:
    """Return the program of a training on `train` samples in steps of `batch`, or of `device_batch` on each device.

    Validation and prediction have steps of `test_batch` on each device, where it is given, else those of the training.
    `valid` and `predict` are samples and how often they come; `test` are the samples of a test after a prediction on
    other data, unless its parameter `test` is `no`. With `has_loaders`, loading processes start as worker_starts says.
    With `writes`, predictions are written to a file.
    """
    stages = [ProgramStage(name="set-up"), ProgramStage(name="warm-up")]
    training = ProgramStage(name="epoch", batch=0.0 if device_batch else batch, device_batch=device_batch)
    testing = ProgramStage(name="test", device_batch=test_batch) if test_batch else training

    def add(name: str, samples: Number, copies: Number, each: Each) -> None:
        starts = 1.0 if each == "epoch" else copies
        loading = ProgramStage(name=name, part=LOADERS, each=each, when="worker_starts", samples=starts)
        step = training if name == "epoch" else testing
        handling = replace(step, name=name, each=each, samples=samples, copies=copies)
        stages.extend([loading, handling] if has_loaders else [handling])

    add("epoch", train, 1.0, "epoch")
    if valid is not None:
        add("validation", *valid, "epoch")
    if predict is not None:
        add("predict", *predict, "run")
        if writes:
            stages.append(ProgramStage(name="write", samples=predict[0], copies=predict[1]))
        if test is not None:
            when = predict[1] if isinstance(predict[1], str) else ""
            stages.append(replace(testing, name="test", when=when, samples=test, copies="test"))
    stages.append(ProgramStage(name="save"))
    return Program(tuple(stages), amounts=amounts or {})


def describe_notebook(program: Program, *, first_test: ProgramStage | None = None) -> Program:
    """Return the program of a training as a notebook: data is looked at, results are drawn, nothing is saved.

    `first_test` is a test of the model before it is trained.
    """
    kept = [stage for stage in program.stages if stage.name not in ("write", "save")]
    first, *rest = [replace(stage, copies=1.0) if stage.name == "test" else stage for stage in kept]
    before = [ProgramStage(name="exploration"), *([first_test] if first_test else [])]
    return replace(program, stages=(first, *before, *rest, ProgramStage(name="", part="plots")))
