"""Count the samples and tokens of a batch by the shapes of its tensors; no framework is imported for that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

SampleCount = int | Callable[[Any], float] | None
SAMPLE_DEPTH = 3  # how deep a batch of an unknown loop is searched
TENSOR_DEPTH = 4  # how deep a batch of a trainer is searched for its first tensor
UNSURE = -1  # a length that may not be the batch size: the channels of an image, the tokens of a text
CHANNELS = (1, 3, 4)
TEXT_KEY = "input_ids"  # the key of texts in a batch


# Any loop: `track` must not guess ------------------------------------------------------------------------------------


def count_samples(batch: object, count: SampleCount = None) -> float | None:
    """Return the samples of a batch: by `count` if given, else the common length of its tensors; None if unsure."""
    if count is not None:
        return float(count(batch)) if callable(count) else count
    lengths = _list_lengths(batch, SAMPLE_DEPTH)
    length = lengths.pop() if len(lengths) == 1 else UNSURE
    return None if length == UNSURE else length


def _list_lengths(part: object, depth: int, *, alone: bool = True) -> set[int]:
    """Return the lengths in a part of a batch. Called for every batch, so shapes come first."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        if not len(shape):
            return set()
        # Among other parts, three dimensions may be a single image.
        is_image = not alone and len(shape) == 3 and shape[0] in CHANNELS
        return {UNSURE} if is_image else {int(shape[0])}
    if isinstance(part, (list, tuple)):
        return _list_sequence_lengths(part, depth)
    return _list_all_lengths(part.values(), depth) if isinstance(part, Mapping) else set()


def _list_sequence_lengths(parts: list[Any] | tuple[Any, ...], depth: int) -> set[int]:
    found = _list_all_lengths(parts, depth)
    if parts and not hasattr(parts[0], "shape") and all(isinstance(p, (list, tuple, Mapping)) for p in parts):
        # Samples that were not stacked, or stacks in groups.
        return {UNSURE} if found else {len(parts)}
    # A tuple of plain values is one sample, a list of them is many.
    return found or ({len(parts)} if parts and isinstance(parts, list) else set())


def _list_all_lengths(parts: Iterable[object], depth: int) -> set[int]:
    found: set[int] = set()
    if depth:
        for part in parts:
            found |= _list_lengths(part, depth - 1, alone=False)
    return found


# A trainer: its batches are stacked ----------------------------------------------------------------------------------


class BatchCounter:
    """Count the samples of batches by the length of their first tensor, and the tokens (with padding) of `input_ids`.

    Called at every step, so it remembers where the first batch has its tensor. Batches of another type, or without a
    tensor in that place, are searched again.
    """

    def __init__(self) -> None:
        self._type: type | None = None
        self._path: tuple[Any, ...] = ()

    def __call__(self, batch: Any) -> dict[str, float]:
        """Return the work of a batch by kind; empty without a tensor."""
        if type(batch) is self._type:
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):  # it has another form
                return self._count_at_path(batch)
        path = _find_tensor(batch, TENSOR_DEPTH)
        if path is None:
            self._type = None
            return {}
        self._type, self._path = type(batch), path
        return self._count_at_path(batch)

    def _count_at_path(self, batch: Any) -> dict[str, float]:
        for key in self._path:
            batch = batch[key]
        size, *more = batch.shape
        if self._path == (TEXT_KEY,) and len(more) == 1:
            return {"samples": int(size), "tokens": int(size) * int(more[0])}
        return {"samples": int(size)}


def _find_tensor(batch: Any, depth: int) -> tuple[Any, ...] | None:
    """Return the keys that lead to the first tensor of a batch, or to its texts; None without a tensor."""
    if _read_shape(batch):
        return ()
    if depth == TENSOR_DEPTH and isinstance(batch, Mapping) and _read_shape(batch.get(TEXT_KEY)):
        return (TEXT_KEY,)
    is_mapping = isinstance(batch, Mapping)
    parts = batch.items() if is_mapping else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    found = ((key, _find_tensor(part, depth - 1)) for key, part in parts) if depth else ()
    return next(((key, *path) for key, path in found if path is not None), None)


def _read_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor or array as plain numbers; empty for a scalar or anything else."""
    shape = getattr(value, "shape", None)
    return tuple(int(n) for n in shape) if shape is not None and len(shape) else ()
