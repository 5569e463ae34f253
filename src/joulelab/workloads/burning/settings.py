"""Read what `burn` is asked for; nothing heavy is imported here."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.run.workload_registry import read_number, read_whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUTO, CPU, CUDA, NUMPY, TORCH, STRESS_NG = "auto", "cpu", "cuda", "numpy", "torch", "stress-ng"
DTYPES = ("fp16", "bf16", "tf32", "fp32", "fp64")
OF_NUMPY = ("fp32", "fp64")
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
ON_CPU_BYTES, GPU_SHARE = 64_000_000, 0.9
SIZES = {CPU: 512, CUDA: 8192}
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Memory:
    """Say how much memory one process fills: a `share` of what is free, or so many `bytes`."""

    share: float = 0.0
    bytes: int = 0

    def of(self, free: int) -> int:
        """Return bytes where so many are free."""
        return self.bytes or int(free * self.share)


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold what is asked for; `processes` 0 is one for each CPU or GPU, `dtype` auto is the device's own."""

    seconds: float
    processes: int
    size: int
    backend: str
    device: str
    dtype: str
    memory: Memory
    check: float
    host: str
    tasks: int
    host_memory: float


def has_gpu(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Return whether a program started here could use a GPU (NVIDIA or AMD); no library is asked."""
    if any(environ.get(name) in ("", "-1", "NoDevFiles") for name in VISIBLE):
        return False
    return any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists()


def read(parameters: Mapping[str, str], *, gpu: bool) -> Settings:
    """Return what is asked for, on the GPUs where there is a `gpu` and nothing else is asked. Raises ConfigError."""
    backend = _one_of(parameters, "backend", (AUTO, NUMPY, TORCH))
    device = _one_of(parameters, "device", (AUTO, CPU, CUDA))
    if device == AUTO:
        device = CUDA if gpu and backend != NUMPY else CPU
    if backend == AUTO:
        backend = TORCH if device == CUDA else NUMPY
    if (backend, device) == (NUMPY, CUDA):
        raise ConfigError("numpy has no GPU", why="device is cuda", next="give backend=torch or device=cpu")
    return Settings(
        seconds=read_number(parameters, "seconds", least=0.01, most=86400 * 7),
        processes=read_whole_number(parameters, "processes", least=0, most=4096),
        size=SIZES[device]
        if parameters["size"] == AUTO
        else read_whole_number(parameters, "size", least=2, most=32768),
        backend=backend,
        device=device,
        dtype=_dtype(parameters, backend, device),
        memory=_memory(parameters["memory"], device),
        check=read_number(parameters, "check", least=0.0, most=1.0),
        host=_one_of(parameters, "host", ("no", STRESS_NG)),
        tasks=read_whole_number(parameters, "tasks", least=1, most=65536),
        host_memory=read_number(parameters, "host_memory", least=0.0, most=0.95),
    )


def check_installed(asked: Settings) -> None:
    """Refuse what needs something that is not installed. Raises MissingDependency."""
    import importlib.util

    if asked.backend == TORCH and importlib.util.find_spec("torch") is None:
        then = "pip install 'joulelab[torch]', or give backend=numpy and device=cpu"
        raise MissingDependency("burn cannot be run", why="torch is not installed", next=then)
    if asked.host == STRESS_NG and shutil.which(STRESS_NG, path=os.environ.get("PATH", os.defpath)) is None:
        then = "install the package stress-ng of your system, or give host=no"
        raise MissingDependency("burn cannot be run", why="stress-ng is not installed", next=then)


def _one_of(parameters: Mapping[str, str], key: str, valid: Sequence[str]) -> str:
    if parameters[key] not in valid:
        raise ConfigError(f"{key} is {parameters[key]!r}", next=f"give one of: {', '.join(valid)}")
    return parameters[key]


def _dtype(parameters: Mapping[str, str], backend: str, device: str) -> str:
    dtype = _one_of(parameters, "dtype", (AUTO, *DTYPES))
    if dtype == "tf32" and device == CPU:
        raise ConfigError("CPUs have no tf32", why="device is cpu", next="give dtype=fp32")
    if backend == NUMPY and dtype not in (AUTO, *OF_NUMPY):
        raise ConfigError(f"numpy has no {dtype}", next=f"give dtype={' or '.join(OF_NUMPY)}, or backend=torch")
    return dtype


def _memory(text: str, device: str) -> Memory:
    """Return the memory of one process: `90%` of what is free, `64MB`, or what is usual for the device."""
    if text == AUTO:
        return Memory(share=GPU_SHARE) if device == CUDA else Memory(bytes=ON_CPU_BYTES)
    found = re.fullmatch(r"(\d{1,9}(?:\.\d*)?)\s*(%|kB|MB|GB|TB)", text.strip())
    value = float(found[1]) if found else 0.0
    if found is None or value <= 0 or (found[2] == "%" and value > 98):
        raise ConfigError(
            f"memory is {text!r}", next="give a share of the free memory up to 98%, or an amount: 90%, 64MB"
        )
    return Memory(share=value / 100) if found[2] == "%" else Memory(bytes=int(value * UNITS[found[2]]))
