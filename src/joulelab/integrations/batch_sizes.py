"""Tell how many samples a batch holds, by the shapes of what is in it; no framework is imported for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

SampleCount = int | Callable[[Any], float] | None
SAMPLE_DEPTH = 3  # how far a batch is looked into
UNSURE = -1  # a length that may be that of something else: the channels of an image, the tokens of a text
CHANNELS = (1, 3, 4)


def count_samples(batch: object, count: SampleCount = None) -> float | None:
    """Return the samples in a batch: what `count` says, or what the lengths of its tensors agree on; else None."""
    if count is not None:
        return float(count(batch)) if callable(count) else count
    sizes = _list_lengths(batch, SAMPLE_DEPTH)
    size = sizes.pop() if len(sizes) == 1 else UNSURE
    return None if size == UNSURE else size


def _list_lengths(part: object, deep: int, *, alone: bool = True) -> set[int]:
    """Return the lengths that are found in a part of a batch. Called for every batch, so it looks at shapes first."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return _read_length(shape, alone=alone)
    if isinstance(part, (list, tuple)):
        return _list_sequence_lengths(part, deep)
    return _list_all_lengths(part.values(), deep) if isinstance(part, Mapping) else set()


def _read_length(shape: Any, *, alone: bool) -> set[int]:
    """Return a tensor's length; among others, one of three dimensions may be a single image."""
    if not len(shape):
        return set()
    return {UNSURE} if not alone and len(shape) == 3 and shape[0] in CHANNELS else {int(shape[0])}


def _list_sequence_lengths(parts: list[Any] | tuple[Any, ...], deep: int) -> set[int]:
    found = _list_all_lengths(parts, deep)
    if parts and not hasattr(parts[0], "shape") and all(isinstance(p, (list, tuple, Mapping)) for p in parts):
        # Samples that nobody has stacked, or stacks that came in groups.
        return {UNSURE} if found else {len(parts)}
    # A tuple of plain values is one sample, a list of them is many.
    return found or ({len(parts)} if parts and isinstance(parts, list) else set())


def _list_all_lengths(parts: Iterable[object], deep: int) -> set[int]:
    found: set[int] = set()
    if deep:
        for part in parts:
            found |= _list_lengths(part, deep - 1, alone=False)
    return found
