"""Judge a model that tells classes apart; a batch is inputs and the numbers of their classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.workloads.training.training_task import Batch

COLUMNS = ("class",)  # of a file of predictions


def example(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[torch.device], Batch]:
    """Return a function that makes a batch of one input of some shape."""
    return lambda device: (
        torch.zeros(1, *shape, dtype=dtype, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
    )


def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross entropy."""
    return cross_entropy(model(batch[0]), batch[1])


def amounts(batch: Batch) -> dict[str, float]:
    """Return the work in a batch."""
    return {"samples": len(batch[1])}


def list_classes(outputs: torch.Tensor, _batch: Batch) -> torch.Tensor:
    """Return the class of each sample that the model finds most likely, a row for each."""
    return outputs.argmax(1, keepdim=True)


def score(outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
    """Return how many samples of a batch got their own class, and how many there are."""
    return {"correct": float((outputs.argmax(1) == batch[1]).sum()), "samples": len(batch[1])}


def quality(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the share of samples that got their own class."""
    return {"accuracy": sums["correct"] / sums["samples"]}
