"""Read what a GPU shows beyond itself: the module of a superchip (Grace with its GPUs), and the GPU's memory.

On Grace Hopper the energy counter is the module's (ml-energy/zeus, pull request 172); on later superchips nobody says
whose it is, so it is not read. Both GPUs of a Grace Blackwell module show the same module: it is read once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.core.errors import MeterError
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.nvml.client import GRACE_HOPPER
from joulelab.instruments.nvml.generations import power_specs, sensor
from joulelab.instruments.nvml.read import AVERAGE, ENERGY, GPU, GPU_FIELDS, INSTANT, MEMORY, MODULE, PowerReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.nvml.client import Gpu, Nvml

_MODULE_WHY = "no accuracy of a module's power is published: taken from its GPU"


def number_modules(gpus: Sequence[Gpu]) -> dict[int, int]:
    """Return the module of each GPU of a superchip, by the socket of its CPU; none where that is not known."""
    chips = [gpu for gpu in gpus if gpu.superchip]
    if len(chips) == 1:
        return {chips[0].index: chips[0].node or 0}
    return {gpu.index: gpu.node for gpu in chips if gpu.node is not None}


def list_own_fields(gpu: Gpu) -> dict[int, tuple[int, int]]:
    """Return the fields that are the GPU's own: all, but for the counter of a superchip."""
    return {column: field for column, field in GPU_FIELDS.items() if column != ENERGY or not gpu.superchip}


def open_module(nvml: Nvml, gpu: Gpu) -> PowerReader | None:
    """Return a reader of the GPU's module: its counter (GH200 only) and powers; None where it shows none."""
    fields = {INSTANT: (186, MODULE), AVERAGE: (185, MODULE)}
    if GRACE_HOPPER in gpu.name:
        fields[ENERGY] = (83, GPU)
    reader = PowerReader(nvml, gpu, None, fields)
    return reader if reader.columns and _exceeds(reader, PowerReader(nvml, gpu, None, list_own_fields(gpu))) else None


def open_memory(nvml: Nvml, gpu: Gpu) -> PowerReader | None:
    """Return a reader of the average power of the GPU's memory; None where it shows none, or what the GPU shows."""
    memory = PowerReader(nvml, gpu, None, {AVERAGE: (185, MEMORY)})
    whole = PowerReader(nvml, gpu, None, {AVERAGE: (185, GPU)})
    return memory if memory.columns and whole.columns and _exceeds(whole, memory) else None


def _exceeds(whole: PowerReader, part: PowerReader) -> bool:
    """Return whether a scope shows more than a part of it: a driver that ignores scopes shows the same for both."""
    try:
        more, less = whole.read(), part.read()
    except MeterError:
        return False
    pairs = [(a, b) for a, b in zip(more[1:], less[1:], strict=True) if not math.isnan(a) and not math.isnan(b)]
    return all(a > b > 0 for a, b in pairs)


def describe_module(gpu: Gpu, number: int, period_s: float) -> Stream:
    """Return the stream of a module; it contains its CPU and its GPUs."""
    found = power_specs(sensor(gpu.architecture, gpu.capability, gpu.name, gpu.driver), gpu.name, None)
    channels = tuple(replace(spec, accuracy=_explain_module(spec, gpu)) for spec in found)
    scope = f"module:{number}"
    return Stream(f"{scope}.power", "module", scope, period_s, channels, model=gpu.name)


def _explain_module(spec: Spec, gpu: Gpu) -> Accuracy:
    reference = f"{_MODULE_WHY} ({spec.accuracy.reference})"
    return replace(spec.accuracy, shared=f"nvml:module:{gpu.name}", reference=reference)
