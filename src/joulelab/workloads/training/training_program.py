"""Describe the stages of a training, as `loop.py` goes through them, for those who need them without running it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.study.program import LOADERS, Program, ProgramStage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.program import Each, Number


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
