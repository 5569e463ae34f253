"""The attention models for both use cases of the HoreKa study: counted by hand, learning, chosen by `model`."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import merge_parameters
from joulelab.workloads import lstm_load, vgg19bn_xray
from joulelab.workloads.models.attention import AttentionForecaster, VisionTransformer
from joulelab.workloads.training.model_figures import count_model

pytestmark = pytest.mark.system

torch.set_num_threads(1)  # several wait for each other where other tests run too


def count_blocks(width: int, tokens: int, layers: int) -> tuple[int, int]:
    """Return parameters and FLOP of attention blocks: 12 matrices of width x width, two products of tokens x tokens."""
    parameters = 12 * width**2 + 13 * width  # 3 + 1 + 8 matrices, biases of 3 + 1 + 5 widths, two norms
    flop = 2 * tokens * 12 * width**2 + 2 * (2 * tokens**2 * width)
    return layers * parameters, layers * flop


def test_the_vision_transformer_has_the_parameters_and_flop_of_its_layers() -> None:
    given = {"model": "vit", "data": "synthetic-memory", "train_samples": "2"}
    task = vgg19bn_xray.task(merge_parameters("vgg19bn-xray", vgg19bn_xray.PARAMETERS, given))
    width, tokens = 384, 14 * 14
    parameters, flop = count_blocks(width, tokens, layers=12)
    patches = 2 * tokens * 16 * 16 * width
    parameters += (16 * 16 + 1) * width + tokens * width + 2 * width + 2 * (width + 1)
    flop += patches + 2 * width * 2
    assert (parameters, flop) == (21_469_058, 9_070_216_704)
    counts = count_model(task.model, task.example, task.loss)
    assert (counts.parameters, counts.forward) == (parameters, flop)
    assert counts.training == 3 * flop - patches  # no gradient of the images themselves
    assert task.facts["model"] == "vit"


def test_the_forecaster_has_the_parameters_and_flop_of_its_layers() -> None:
    given = {"model": "attention", "data": "synthetic-memory", "countries": "1", "hours": "400"}
    task = lstm_load.task(merge_parameters("lstm-load", lstm_load.PARAMETERS, given))
    width, hours = 48, 168
    parameters, flop = count_blocks(width, hours, layers=2)
    parameters += 2 * width + hours * width + 2 * width + width + 1
    flop += 2 * (2 * hours * width)
    assert (parameters, flop) == (64_849, 29_449_728)
    counts = count_model(task.model, task.example, task.loss)
    assert (counts.parameters, counts.forward) == (parameters, flop)
    assert counts.training == 3 * flop - 2 * hours * width  # no gradient of the week itself


def test_the_vision_transformer_learns_which_side_is_bright() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(2, 64, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(40):
        labels = torch.randint(0, 2, (16,))
        slope = (2 * labels - 1).view(-1, 1, 1, 1) * torch.linspace(-1, 1, 64)
        loss = cross_entropy(model(0.5 * torch.randn(16, 1, 64, 64) + slope), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_the_forecaster_repeats_the_week_until_it_learns_to_do_better() -> None:
    torch.manual_seed(0)
    model = AttentionForecaster(16, 168)
    past = torch.rand(8, 168, 1)
    assert torch.equal(model(past), past)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        past = torch.rand(8, 168, 1)
        loss = mse_loss(model(past), 0.5 * past + 0.25 * past.mean(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(
    ("workload", "wrong", "why"),
    [
        (vgg19bn_xray, {"model": "vit", "pixels": "122"}, "give a multiple of 16"),
        (vgg19bn_xray, {"model": "vit", "divisor": "3"}, "a power of 2"),
        (vgg19bn_xray, {"model": "resnet"}, "give one of: vgg, vit"),
        (lstm_load, {"model": "attention", "units": "50"}, "give a multiple of 4"),
        (lstm_load, {"model": "gru"}, "give one of: lstm, attention"),
    ],
)
def test_sizes_that_attention_cannot_have_are_refused(workload: object, wrong: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        workload.command(merge_parameters(workload.NAME, workload.PARAMETERS, wrong))  # type: ignore[attr-defined]
