"""Measure NVIDIA GPUs by NVML: energy counter and power fast, state (load, clocks, caps, processes) once a second.

Every GPU of the node is measured, whatever CUDA_VISIBLE_DEVICES hides from the workload: an event `devices` names each
GPU with its UUID and model, whether the workload sees it, and its MIG instances. See README.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import MeterError, Unavailable
from joulelab.core.spec import Meter, Spec, Stream
from joulelab.instruments.hooks import Missing
from joulelab.instruments.nvml.client import GRACE_HOPPER, Gpu, Nvml
from joulelab.instruments.nvml.generations import find_sensor, power_specs
from joulelab.instruments.nvml.read import (
    AVERAGE,
    ENERGY,
    GPU,
    GPU_FIELDS,
    INSTANT,
    MEMORY,
    MODULE,
    PowerReader,
    StateReader,
)
from joulelab.instruments.readers import Readers
from joulelab.instruments.settings import check_keys, choose_devices, devices, seconds, text
from joulelab.instruments.visible import is_order_known, list_cuda_scopes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUMMARY = "NVIDIA GPUs: energy counter, power, load, clocks, caps, processes (NVML)"
PRIVILEGE = "none"
TRIED = "the simulated node's library; modules and memory on functions of the tests; not on hardware"
CONFIG = {
    "period_s": "seconds between readings of energy and power (0.1)",
    "slow_period_s": "seconds between readings of the state (1)",
    "devices": "indices or UUIDs of the GPUs to measure (all)",
    "visible": "the workload's CUDA_VISIBLE_DEVICES, to record which GPUs it sees",
    "device_order": "the workload's CUDA_DEVICE_ORDER",
}

STATE = (
    Spec("load", "utilisation", "1"),
    Spec("memory_load", "utilisation", "1"),
    Spec("memory_used_b", "memory", "B"),
    Spec("sm_clock_hz", "clock", "Hz"),
    Spec("memory_clock_hz", "clock", "Hz"),
    Spec("temperature_c", "temperature", "degC"),
    Spec("cap_enforced_w", "cap", "W"),
    Spec("cap_requested_w", "cap", "W"),
    Spec("throttle", "throttle reasons", "1"),  # the bits of nvmlClocksEventReasons
    Spec("processes", "processes", "1"),
    Spec("workload_load", "utilisation", "1"),  # of the workload's processes, and of all others
    Spec("others_load", "utilisation", "1"),
    # Of the GPU's power; a state and not a scope: an average of 1 s of unknown accuracy would only add doubts to a run.
    Spec("memory_power_w", "power of memory", "W"),
)
_ENFORCED, _REQUESTED = 6, 7
_MODULE_WHY = "no accuracy of a module's power is published: taken from its GPU"


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open NVML. Raises Unavailable, Denied, ConfigError."""
    check_keys("nvml", config, CONFIG)
    nvml = Nvml()
    try:
        return NvmlMeter(nvml, config)
    except BaseException:
        nvml.close()
        raise


class NvmlMeter(Readers):
    """Read every GPU of the node; rows in J, W, Hz, B, degC, shares of 1."""

    def __init__(self, nvml: Nvml, config: Mapping[str, Any]) -> None:
        """Make readers and streams for the wanted GPUs. Raises Unavailable, ConfigError."""
        super().__init__()
        self._nvml = nvml
        self._period_s = seconds("nvml", config, "period_s", 0.1)
        self._slow_s = seconds("nvml", config, "slow_period_s", 1.0)
        wanted = devices("nvml", config)
        shown, order = text("nvml", config, "visible"), text("nvml", config, "device_order")
        gpus, failed = nvml.list_gpus()
        self._missing += [Missing.from_error(f"gpu:{index}", error) for index, error in failed.items()]
        if not gpus:
            what, why = "there is no NVIDIA GPU to measure", "; ".join(map(str, failed.values()))
            advice = "run nvidia-smi, or try the simulated node: joulelab twin -- joulelab meters"
            why = why or "the driver lists none"
            raise Unavailable(what, where="nvml", why=why, next=advice, code="unavailable.no-gpu")
        self._modules = number_modules(gpus)
        self._states: list[StateReader] = []
        for gpu in choose_devices("nvml", gpus, wanted):
            self._add_gpu(gpu)
        self._events.append(describe_devices(gpus, shown, order))

    def close(self) -> None:
        """Release NVML."""
        self._nvml.close()

    def set_workload(self, pid: int) -> None:
        """Separate the load of this process and its descendants from that of others; before, both are NaN."""
        for state in self._states:
            state.process_load.workload = pid

    def _add_gpu(self, gpu: Gpu) -> None:
        scope = f"gpu:{gpu.index}"
        sensor = find_sensor(gpu.architecture, gpu.capability, gpu.name, gpu.driver)
        plain = AVERAGE if sensor.plain_is_average else INSTANT
        power = PowerReader(self._nvml, gpu, plain, list_own_fields(gpu))
        parent = self._add_module(gpu) if gpu.superchip else None
        powers, states = (replace(s, parent=parent) for s in describe_streams(gpu, self._period_s, self._slow_s))
        if power.columns:
            self._put(powers, power.read)
        else:
            self._missing.append(Missing(scope, "it gives no power", "the device or driver does not support it"))
        state = StateReader(self._nvml, gpu, open_memory(self._nvml, gpu))
        self._states.append(state)
        self._put(states, lambda: self._read_state(scope, state))
        for mig in gpu.mig:
            why = "NVML gives a MIG instance the power of its whole GPU"
            name = f"{scope}/mig:{mig.index}"
            self._missing.append(Missing(name, "it has no power of its own", why, f"read {scope}"))

    def _read_state(self, scope: str, state: StateReader) -> Sequence[float]:
        """Read the state of one GPU and report when its processes or caps change."""
        row = state.read()
        if state.pids is not None:
            self._report_change("process", scope, pids=list(state.pids))
        requested_w, enforced_w = row[_REQUESTED], row[_ENFORCED]
        if not math.isnan(requested_w + enforced_w):
            self._report_change("cap", scope, requested_w=requested_w, enforced_w=enforced_w)
        return row

    def _add_module(self, gpu: Gpu) -> str | None:
        """Read the module of a superchip once, whichever of its GPUs comes first; return its scope."""
        scope = f"gpu:{gpu.index}"
        if GRACE_HOPPER not in gpu.name:
            why = "it is not published whether it counts the GPU or its module"
            self._missing.append(Missing(scope, "its energy counter is not read", why))
        if gpu.index not in self._modules:
            why = "the kernel does not show to which CPU its GPU belongs (numa_node)"
            self._missing.append(Missing(scope, "its module is not read", why))
            return None
        stream = describe_module(gpu, self._modules[gpu.index], self._period_s)
        if stream.name not in self._readers:
            module = open_module(self._nvml, gpu)
            if module is None:
                why = "the driver shows no power of the module above that of its GPU"
                self._missing.append(Missing(stream.scope, "it is not read", why))
            else:
                self._put(stream, module.read_above_zero)
        return stream.scope


def describe_streams(gpu: Gpu, period_s: float, slow_s: float) -> tuple[Stream, Stream]:
    """Return the streams of a GPU: energy and power, and its state."""
    scope = f"gpu:{gpu.index}"
    limits = (0.0, gpu.limit_w[1]) if gpu.limit_w else None
    specs = power_specs(find_sensor(gpu.architecture, gpu.capability, gpu.name, gpu.driver), gpu.name, limits)
    return (
        Stream(f"{scope}.power", "power", scope, period_s, specs, device=gpu.uuid, model=gpu.name),
        Stream(f"{scope}.state", "state", scope, slow_s, STATE, device=gpu.uuid, model=gpu.name),
    )


def describe_devices(gpus: Sequence[Gpu], shown: str | None, order: str | None) -> dict[str, Any]:
    """Return the event that names every GPU, and those that a workload sees."""
    scopes = list_cuda_scopes(gpus, shown)
    rows = [
        {
            "scope": f"gpu:{gpu.index}",
            "uuid": gpu.uuid,
            "model": gpu.name,
            "driver": gpu.driver,
            "visible": any(scope.split("/")[0] == f"gpu:{gpu.index}" for scope in scopes),
            "mig": [{"scope": f"gpu:{gpu.index}/mig:{m.index}", "uuid": m.uuid, "model": m.name} for m in gpu.mig],
        }
        for gpu in gpus
    ]
    known = {"visible": scopes, "order_known": is_order_known(gpus, shown, order)}
    return {"t": monotonic_ns(), "event": "devices", "meter": "nvml", "gpus": rows, **known}


# ---- superchips, and the memory of a GPU


def number_modules(gpus: Sequence[Gpu]) -> dict[int, int]:
    """Return the module of each GPU of a superchip, by the socket of its CPU; none if that is not known."""
    chips = [gpu for gpu in gpus if gpu.superchip]
    if len(chips) == 1:
        return {chips[0].index: chips[0].node or 0}
    return {gpu.index: gpu.node for gpu in chips if gpu.node is not None}


def list_own_fields(gpu: Gpu) -> dict[int, tuple[int, int]]:
    """Return the fields that are the GPU's own: all, except the counter of a superchip."""
    return {column: field for column, field in GPU_FIELDS.items() if column != ENERGY or not gpu.superchip}


def open_module(nvml: Nvml, gpu: Gpu) -> PowerReader | None:
    """Return a reader of the GPU's module: its counter (GH200 only) and powers; None if it shows none."""
    fields = {INSTANT: (186, MODULE), AVERAGE: (185, MODULE)}
    if GRACE_HOPPER in gpu.name:
        fields[ENERGY] = (83, GPU)
    module = PowerReader(nvml, gpu, None, fields)
    return (
        module if module.columns and _shows_more(module, PowerReader(nvml, gpu, None, list_own_fields(gpu))) else None
    )


def open_memory(nvml: Nvml, gpu: Gpu) -> PowerReader | None:
    """Return a reader of the average power of the GPU's memory; None if it shows none, or that of the GPU."""
    memory = PowerReader(nvml, gpu, None, {AVERAGE: (185, MEMORY)})
    whole = PowerReader(nvml, gpu, None, {AVERAGE: (185, GPU)})
    return memory if memory.columns and whole.columns and _shows_more(whole, memory) else None


def _shows_more(whole: PowerReader, part: PowerReader) -> bool:
    """Return whether a scope shows more than a part of it: a driver that ignores scopes shows the same for both."""
    try:
        pairs = list(zip(whole.read(), part.read(), strict=True))[INSTANT:]
    except MeterError:
        return False
    return all(more > less > 0 for more, less in pairs if not math.isnan(more + less))


def describe_module(gpu: Gpu, number: int, period_s: float) -> Stream:
    """Return the stream of a module; it contains its CPU and its GPUs."""
    channels = []
    for spec in power_specs(find_sensor(gpu.architecture, gpu.capability, gpu.name, gpu.driver), gpu.name, None):
        reference = f"{_MODULE_WHY} ({spec.accuracy.reference})"
        accuracy = replace(spec.accuracy, shared=f"nvml:module:{gpu.name}", reference=reference)
        channels.append(replace(spec, accuracy=accuracy))
    scope = f"module:{number}"
    return Stream(f"{scope}.power", "module", scope, period_s, tuple(channels), model=gpu.name)
