"""Describe a training: its model, data, loss and measure of quality. What is the same for all is in the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from joulelab.workloads.data.source import Data

Batch = Any  # whatever the data is collated to: a tensor, or tuples, lists and mappings of tensors


@dataclass(frozen=True, slots=True)
class Task:
    """Hold what one training consists of.

    `model` builds it, on the meta device too, where FLOP are counted by `example`, a batch of one sample. `optimizer`
    takes the model and the number of steps; its schedule goes on with each step. `batch` is that of all ranks together.
    `amounts` is the work in a batch. `score` gives sums over a batch, `quality` figures from the sums of all batches.
    A model with `sharded` parts is divided over the ranks (FSDP); others are copied (DDP).
    """

    model: Callable[[], torch.nn.Module]
    data: Data
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor]
    optimizer: Callable[[torch.nn.Module, int], tuple[torch.optim.Optimizer, Any]]
    example: Callable[[torch.device], Batch]
    amounts: Callable[[Batch], Mapping[str, float]]
    score: Callable[[torch.nn.Module, Batch], Mapping[str, float]]
    quality: Callable[[Mapping[str, float]], Mapping[str, float]]
    batch: int
    epochs: int
    predict_on: Literal["train", "valid", "test"] = "test"
    predict_times: int = 1
    sharded: tuple[type[torch.nn.Module], ...] = ()
    drop_last: bool = False
    collate: Callable[[list[Any]], Batch] | None = None
    prefetch: int | None = None
    facts: Mapping[str, str | float] = field(default_factory=dict)
