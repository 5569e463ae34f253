"""Measure NVIDIA GPUs by NVML: energy counter and power fast, state (load, clocks, caps, processes) once a second.

Every GPU of the node is measured, whatever CUDA_VISIBLE_DEVICES hides from the workload: an event `devices` names each
GPU with its UUID and model, whether the workload sees it, and its MIG instances. NVML gives a MIG instance the power of
its whole GPU, so instances have no stream of their own. The module of a superchip has one (`modules.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, Unavailable
from joulelab.core.spec import Meter, Spec, Stream
from joulelab.instruments.hooks import Missing
from joulelab.instruments.nvml.client import GRACE_HOPPER, Gpu, Nvml
from joulelab.instruments.nvml.generations import power_specs, sensor
from joulelab.instruments.nvml.modules import (
    describe_module,
    list_own_fields,
    number_modules,
    open_memory,
    open_module,
)
from joulelab.instruments.nvml.read import AVERAGE, INSTANT, PowerReader, StateReader
from joulelab.instruments.readers import Readers
from joulelab.instruments.settings import check_keys, devices, seconds, text
from joulelab.instruments.visible import order_known, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        self._period_s = seconds("nvml", config, "period_s", 0.1)
        self._slow_s = seconds("nvml", config, "slow_period_s", 1.0)
        wanted = devices("nvml", config)
        shown, order = text("nvml", config, "visible"), text("nvml", config, "device_order")
        super().__init__()
        self._nvml = nvml
        gpus, absent = nvml.gpus()
        self._missing += [Missing.from_error(f"gpu:{gone.index}", gone.error) for gone in absent]
        if not gpus:
            first = absent[0].error if absent else None
            raise Unavailable(
                "there is no NVIDIA GPU to measure",
                where="nvml",
                why=str(first) if first else "the driver lists none",
                next="run nvidia-smi, or try the simulated node: joulelab twin",
            )
        self._modules = number_modules(gpus)
        self._states: list[StateReader] = []
        for gpu in _chosen(gpus, wanted):
            self._add(gpu)
        self._events.append(devices_event(gpus, shown, order))

    def close(self) -> None:
        """Release NVML."""
        self._nvml.close()

    def set_workload(self, pid: int) -> None:
        """Tell the load of this process and its descendants apart from that of others; before, both are NaN."""
        for state in self._states:
            state.process_load.workload = pid

    def _add(self, gpu: Gpu) -> None:
        scope = f"gpu:{gpu.index}"
        found = sensor(gpu.architecture, gpu.capability, gpu.name, gpu.driver)
        plain = AVERAGE if found.plain_is_average else INSTANT
        power = PowerReader(self._nvml, gpu, plain, list_own_fields(gpu))
        parent = self._add_module(gpu) if gpu.superchip else None
        powers, states = (replace(s, parent=parent) for s in streams_of(gpu, self._period_s, self._slow_s))
        if power.columns:
            self._put(powers, power.read)
        else:
            self._missing.append(Missing(scope, "it gives no power", "the device or driver does not support it"))
        state = StateReader(self._nvml, gpu, open_memory(self._nvml, gpu))
        self._states.append(state)
        self._put(states, _Watched(scope, state, self._events_sink).read)
        for mig in gpu.mig:
            why = "NVML gives a MIG instance the power of its whole GPU"
            name = f"{scope}/mig:{mig.index}"
            self._missing.append(Missing(name, "it has no power of its own", why, f"read {scope}"))

    def _add_module(self, gpu: Gpu) -> str | None:
        """Read the module of a superchip once, whichever of its GPUs comes first; return its scope."""
        scope = f"gpu:{gpu.index}"
        if GRACE_HOPPER not in gpu.name:
            why = "nobody says whether it counts the GPU or its module"
            self._missing.append(Missing(scope, "its energy counter is not read", why))
        if gpu.index not in self._modules:
            why = "the kernel does not say which CPU its GPU belongs to (numa_node)"
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

    def _events_sink(self, event: dict[str, Any]) -> None:
        self._events.append(event)


def streams_of(gpu: Gpu, period_s: float, slow_s: float) -> tuple[Stream, Stream]:
    """Return the streams of a GPU: energy and power, and its state."""
    scope = f"gpu:{gpu.index}"
    limits = (0.0, gpu.limit_w[1]) if gpu.limit_w else None
    specs = power_specs(sensor(gpu.architecture, gpu.capability, gpu.name, gpu.driver), gpu.name, limits)
    return (
        Stream(f"{scope}.power", "power", scope, period_s, specs, device=gpu.uuid, model=gpu.name),
        Stream(f"{scope}.state", "state", scope, slow_s, STATE, device=gpu.uuid, model=gpu.name),
    )


class _Watched:
    """Read the state of one GPU and tell when its processes or caps change."""

    def __init__(self, scope: str, reader: StateReader, tell: Callable[[dict[str, Any]], None]) -> None:
        self._scope = scope
        self._reader = reader
        self._tell = tell
        self._pids: tuple[int, ...] | None = None
        self._caps: tuple[float, float] | None = None

    def read(self) -> Sequence[float]:
        row = self._reader.read()
        pids = self._reader.pids
        if pids is not None and pids != self._pids:
            self._pids = pids
            self._tell({"t": monotonic_ns(), "event": "process", "scope": self._scope, "pids": list(pids)})
        caps = row[_REQUESTED], row[_ENFORCED]
        if caps != self._caps and caps[0] == caps[0] and caps[1] == caps[1]:
            self._caps = caps
            event = {"event": "cap", "scope": self._scope, "requested_w": caps[0], "enforced_w": caps[1]}
            self._tell({"t": monotonic_ns()} | event)
        return row


def _chosen(gpus: Sequence[Gpu], wanted: Sequence[int | str] | None) -> list[Gpu]:
    if wanted is None:
        return list(gpus)
    chosen = []
    for name in wanted:
        found = [gpu for gpu in gpus if name in (gpu.index, gpu.uuid, str(gpu.index))]
        if not found:
            listed = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            raise ConfigError(f"there is no GPU {name!r}", where="meter nvml", next=f"valid: {listed}")
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def devices_event(gpus: Sequence[Gpu], shown: str | None, order: str | None) -> dict[str, Any]:
    """Return the event that names every GPU, and those that a workload sees."""
    scopes = visible(gpus, shown)
    rows = [
        {
            "scope": f"gpu:{gpu.index}",
            "uuid": gpu.uuid,
            "model": gpu.name,
            "visible": any(scope.split("/")[0] == f"gpu:{gpu.index}" for scope in scopes),
            "mig": [{"scope": f"gpu:{gpu.index}/mig:{m.index}", "uuid": m.uuid, "model": m.name} for m in gpu.mig],
        }
        for gpu in gpus
    ]
    return {
        "t": monotonic_ns(),
        "event": "devices",
        "meter": "nvml",
        "gpus": rows,
        "visible": scopes,
        "order_known": order_known(gpus, shown, order),
    }
