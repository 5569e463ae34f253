"""Find the figures of a model: its parameters and FLOP, and the loss and accuracy of one that tells classes apart.

FLOP are counted once, on the meta device, because counters of a live run miss what is fused. FLOP = 2 x MAC, of matrix
products, convolutions, attention and recurrent layers, as torch counts them. A batch of classes is inputs and the
numbers of their classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.workloads.training.training_task import Batch

META = torch.device("meta")
COLUMNS = ("class",)  # of a file of predictions


def _convolution_backward(
    grad: Sequence[int], inputs: Sequence[int], weight: Sequence[int], *settings: Any, **_: Any
) -> int:
    """Return the FLOP of a convolution's backward pass: as many as forward for each gradient that is asked for.

    torch's own count takes convolutions in groups (depthwise ones above all) for whole ones.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = settings
    once: int = conv_flop_count(inputs, weight, grad, transposed=transposed)
    return once * sum(map(int, wanted[:2]))


RULES = {torch.ops.aten.convolution_backward: _convolution_backward}


@dataclass(frozen=True, slots=True)
class Counts:
    """Hold a model's parameters, those that are trained, and its FLOP for a sample: forward, and with backward."""

    parameters: int
    trained: int
    forward: int
    training: int


def count_model(
    model: Callable[[], torch.nn.Module],
    example: Callable[[torch.device], Batch],
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor],
) -> Counts:
    """Count a model by its loss over a batch of one sample; nothing is computed for it."""
    with META:
        built = model()
        batch = example(META)
    parameters = list(built.parameters())
    built.eval()  # a batch of one has no statistics; no FLOP depend on it
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    counter = FlopCounterMode(display=False, custom_mapping=RULES)
    with counter, META:
        found = loss(built, batch)
        forward = int(counter.get_total_flops())
        if trained:
            found.backward()
    return Counts(sum(p.numel() for p in parameters), trained, forward, int(counter.get_total_flops()))


def make_class_example(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[torch.device], Batch]:
    """Return a function that makes a batch of one input of some shape."""
    return lambda device: (
        torch.zeros(1, *shape, dtype=dtype, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
    )


def compute_class_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross entropy."""
    return cross_entropy(model(batch[0]), batch[1])


def count_class_samples(batch: Batch) -> dict[str, float]:
    """Return the work in a batch."""
    return {"samples": len(batch[1])}


def list_classes(outputs: torch.Tensor, _batch: Batch) -> torch.Tensor:
    """Return the class of each sample that the model finds most likely, a row for each."""
    return outputs.argmax(1, keepdim=True)


def score_classes(outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
    """Return how many samples of a batch got their own class, and how many there are."""
    return {"correct": float((outputs.argmax(1) == batch[1]).sum()), "samples": len(batch[1])}


def compute_accuracy(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the share of samples that got their own class."""
    return {"accuracy": sums["correct"] / sums["samples"]}
