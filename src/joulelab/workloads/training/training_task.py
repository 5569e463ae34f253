"""Describe a training: its model, data, loss and measure of quality. What is the same for all is in the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from joulelab.workloads.data.source import Data

Batch = Any  # whatever the data is collated to: a tensor, or tuples, lists and mappings of tensors


def forward_inputs(model: torch.nn.Module, batch: Batch) -> Any:
    """Return what a model makes of the first part of a batch."""
    return model(batch[0])


@dataclass(frozen=True, slots=True)
class Task:
    """Hold what one training consists of.

    `model` builds it, on the meta device too, where FLOP are counted by `example`, a batch of one sample. `optimizer`
    takes the model and the number of steps; its schedule goes on with each step. `batch` is that of all ranks together,
    `test_batch` that of each rank in validation and prediction (0: its share of `batch`).
    `amounts` is the work in a batch. `forward` gives outputs, `score` sums over a batch of them, `quality` figures from
    the sums of all batches; the first figure is the one that `target` and `patience` look at. `rows` makes of outputs
    what is written to a file of predictions, a row for each sample with a value for each of `columns`.

    A model with `sharded` parts is divided over the ranks (FSDP); others are copied (DDP). With `fill`, the model is
    built and divided without values, and `fill` gives each rank the values of its part. Gradients are clipped to the
    norm `clip`, unless it is 0. With `waits`, all ranks wait for each other and for the device after each step.
    """

    model: Callable[[], torch.nn.Module]
    data: Data
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor]
    optimizer: Callable[[torch.nn.Module, int], tuple[torch.optim.Optimizer, Any]]
    example: Callable[[torch.device], Batch]
    amounts: Callable[[Batch], Mapping[str, float]]
    score: Callable[[Any, Batch], Mapping[str, float]]
    quality: Callable[[Mapping[str, float]], Mapping[str, float]]
    batch: int
    epochs: int
    test_batch: int = 0
    forward: Callable[[torch.nn.Module, Batch], Any] = forward_inputs
    rows: Callable[[Any, Batch], torch.Tensor] | None = None
    columns: tuple[str, ...] = ()
    is_lower_better: bool = False
    predict_on: Literal["train", "valid", "test"] = "test"
    predict_times: int = 1
    sharded: tuple[type[torch.nn.Module], ...] = ()
    fill: Callable[[torch.nn.Module], None] | None = None
    clip: float = 0.0
    waits: bool = False
    drop_last: bool = False
    collate: Callable[[list[Any]], Batch] | None = None
    prefetch: int | None = None
    facts: Mapping[str, str | float] = field(default_factory=dict)
