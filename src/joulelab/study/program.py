"""Describe what a reference workload does: its stages, the samples and batches in them, loading processes, saving.

A workload publishes it as `PROGRAM`. Twins read it from there: a node file holds only times, rates and loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 - fields of types that are converted
from dataclasses import dataclass, field
from typing import Literal

from joulelab.run.workload_registry import find_workload, list_workloads

Each = Literal["run", "epoch"]
Number = float | str  # a text names one of the workload's parameters, or one of a program's amounts
NAMING = ("seconds", "samples", "copies", "batch", "device_batch")  # keys of a stage that may do so
LOADERS = "loaders"  # the part of a stage in which loading processes start; its samples are the number of starts
# Words of parameters that switch a stage on or off.
FLAGS: Mapping[str, float] = {
    "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "each-epoch": 1.0, "once": 0.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStage:
    """Describe a stretch of a program, once in a run or once in each epoch.

    `name` is the phase that it marks; `part` tells stretches of one phase apart. `when` names a parameter that has to
    be above 0 (`"host_memory"`), or not (`"!host_memory"`). It handles `samples` as often as `copies` says, in steps of
    `batch` samples of all devices together or of `device_batch` samples of each, or lasts for `seconds`.
    """

    name: str
    part: str = ""
    each: Each = "run"
    when: str = ""
    seconds: Number = 0.0
    samples: Number = 0.0
    copies: Number = 1.0
    batch: Number = 0.0
    device_batch: Number = 0.0

    def list_given(self) -> dict[str, Number]:
        """Return the keys with another value than the default, without those that name it."""
        plain = ProgramStage(name="")
        keys = ("each", "when", *NAMING)
        return {key: getattr(self, key) for key in keys if getattr(self, key) != getattr(plain, key)}


@dataclass(frozen=True, slots=True)
class Program:
    """Hold the stages of a program in their order, and how often an epoch comes.

    `amounts` are numbers of its data that no parameter gives, as they are with the published data.
    """

    stages: tuple[ProgramStage, ...]
    epochs: Number = "epochs"
    amounts: Mapping[str, float] = field(default_factory=dict)

    def list_names(self) -> set[str]:
        """Return the parameters and amounts that the stages name."""
        named = [getattr(stage, key) for stage in self.stages for key in NAMING] + [self.epochs]
        return {text for text in named if isinstance(text, str)} | {
            stage.when.removeprefix("!") for stage in self.stages if stage.when
        }


def find_program(name: str) -> tuple[Program, dict[str, float]] | None:
    """Return the program of a reference workload and the numbers that it depends on; None where it publishes none."""
    if name not in list_workloads():
        return None
    module = find_workload(name)
    program: Program | None = getattr(module, "PROGRAM", None)
    if program is None:
        return None
    usual = {key: default for key, (default, _) in module.PARAMETERS.items() if key in program.list_names()}
    return program, {**program.amounts, **read_numbers(usual)}


def read_numbers(texts: Mapping[str, str]) -> dict[str, float]:
    """Return the parameters that are finite numbers, or words that switch something on or off."""
    found: dict[str, float] = {}
    for name, text in texts.items():
        try:
            number = FLAGS[text.lower()] if text.lower() in FLAGS else float(text)
        except ValueError:
            continue
        if math.isfinite(number):
            found[name] = number
    return found


def list_marked_phases(name: str, parameters: Mapping[str, str]) -> list[str]:
    """Return the phases that a reference workload marks with these parameters; none where it publishes no program."""
    found = find_program(name)
    return [] if found is None else list_phases(found[0], {**found[1], **read_numbers(parameters)})


def list_phases(program: Program, numbers: Mapping[str, float]) -> list[str]:
    """Return the phases that a program marks with these parameters and amounts, each once, in their order."""

    def read(number: Number) -> float:
        return numbers[number] if isinstance(number, str) else number

    def has_work(stage: ProgramStage) -> bool:
        is_on = not stage.when or (read(stage.when.removeprefix("!")) > 0) != stage.when.startswith("!")
        amount = read(stage.samples) * read(stage.copies)
        return is_on and (amount > 0 or stage.samples == 0) and (stage.each == "run" or read(program.epochs) > 0)

    return list(dict.fromkeys(stage.name for stage in program.stages if stage.name and has_work(stage)))
