"""Multiply two matrices into many buffers, and hold products against the first, bit by bit; in numpy or in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from joulelab.core.errors import ConfigError
from joulelab.workloads.burning.settings import AUTO, CUDA, TORCH

if TYPE_CHECKING:
    from joulelab.workloads.burning.settings import Memory, Settings

# Beside the buffers there are the two factors and the first product.
OTHERS = 3
BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4, "fp64": 8}


class Engine(Protocol):
    """Own the matrices; `buffers` are as many as fill the memory. All but `wrong` may only be queued."""

    device: str
    dtype: str
    buffers: list[Any]

    def multiply(self, slot: int) -> None:
        """Write the product into a buffer."""

    def compare(self, slot: int) -> None:
        """Count a buffer that is not the first product in every bit."""

    def wrong(self) -> int:
        """Wait for all that is queued, and return how many compared products were wrong so far."""


def open_engine(asked: Settings, number: int) -> Engine:
    """Return the engine of one process, the `number`-th. Raises ConfigError where the memory is too small."""
    return TorchEngine(asked, number) if asked.backend == TORCH else NumpyEngine(asked)


def count_buffers(memory: Memory, free: int, size: int, dtype: str) -> int:
    """Return how many products fit beside the others. Raises ConfigError where none does."""
    each = size * size * BYTES[dtype]
    budget = memory.of(free)
    if budget > free:
        raise ConfigError(
            f"{budget / 1e6:.0f} MB are not free", why=f"{free / 1e6:.0f} MB are", next="give less memory"
        )
    if budget // each <= OTHERS:
        why = f"{OTHERS + 1} matrices of size {size} in {dtype} need {(OTHERS + 1) * each / 1e6:.1f} MB"
        raise ConfigError(f"{budget / 1e6:.1f} MB hold no product", why=why, next="give more memory or a smaller size")
    return budget // each - OTHERS


class NumpyEngine:
    """Multiply on a CPU; nothing is queued."""

    def __init__(self, asked: Settings) -> None:
        import numpy as np
        import psutil

        self._np, self._wrong, self.device = np, 0, "cpu"
        self.dtype = "fp64" if asked.dtype == AUTO else asked.dtype
        kind = np.float32 if self.dtype == "fp32" else np.float64
        self._bits = np.uint32 if self.dtype == "fp32" else np.uint64
        self.free = psutil.virtual_memory().available
        count = count_buffers(asked.memory, self.free, asked.size, self.dtype)
        self._a, self._b = np.random.default_rng(0).random((2, asked.size, asked.size)).astype(kind)
        self.buffers = [np.full((asked.size, asked.size), 0, kind) for _ in range(count)]
        self._right = (self._a @ self._b).view(self._bits)

    def multiply(self, slot: int) -> None:
        """Write the product into a buffer."""
        self._np.matmul(self._a, self._b, out=self.buffers[slot])

    def compare(self, slot: int) -> None:
        """Count a buffer that is not the first product in every bit."""
        self._wrong += not self._np.array_equal(self.buffers[slot].view(self._bits), self._right)

    def wrong(self) -> int:
        """Return how many were wrong."""
        return self._wrong


class TorchEngine:
    """Multiply on a GPU, or on a CPU by the same code; the count of wrong products stays on the device."""

    def __init__(self, asked: Settings, number: int) -> None:
        import torch

        self._torch = torch
        place = torch.device(CUDA, number) if asked.device == CUDA else torch.device("cpu")
        self.device, self.free = self._on(place)
        self.dtype = self._own(place) if asked.dtype == AUTO else asked.dtype
        # fp32 matrices stay fp32 in memory; tf32 is how tensor cores multiply them.
        torch.set_float32_matmul_precision("high" if self.dtype == "tf32" else "highest")
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}.get(self.dtype, torch.float32)
        self._bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[BYTES[self.dtype]]
        count = count_buffers(asked.memory, self.free, asked.size, self.dtype)
        shape, source = (asked.size, asked.size), torch.Generator(device=place).manual_seed(0)
        self._a, self._b = (torch.rand(shape, generator=source, dtype=kind, device=place) - 0.5 for _ in range(2))
        self.buffers = [torch.full(shape, 0, dtype=kind, device=place) for _ in range(count)]
        self._right = torch.mm(self._a, self._b).view(self._bits)
        self._wrong = torch.zeros((), dtype=torch.int64, device=place)

    def multiply(self, slot: int) -> None:
        """Queue a product."""
        self._torch.mm(self._a, self._b, out=self.buffers[slot])

    def compare(self, slot: int) -> None:
        """Queue a comparison; its outcome is added on the device."""
        self._wrong += (self.buffers[slot].view(self._bits) != self._right).any()

    def wrong(self) -> int:
        """Wait for the device, and return how many were wrong."""
        return int(self._wrong.item())

    def _on(self, place: Any) -> tuple[str, int]:
        """Return a device's name and the bytes that are free there."""
        if place.type == CUDA:
            self._torch.cuda.set_device(place)
            return str(self._torch.cuda.get_device_name(place)), int(self._torch.cuda.mem_get_info(place)[0])
        import psutil

        return "cpu", psutil.virtual_memory().available

    def _own(self, place: Any) -> str:
        """Return the type that a device multiplies on its tensor cores, nearest to fp32; fp32 where it has none."""
        if place.type != CUDA:
            return "fp32"
        if self._torch.version.hip:
            return "bf16"
        major = self._torch.cuda.get_device_capability(place)[0]
        return "tf32" if major >= 8 else "fp16" if major == 7 else "fp32"
