"""Build residual networks of bottleneck blocks: ResNet-152 for ImageNet's and for CIFAR's images, and smaller ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

DEPTHS_152 = (3, 8, 36, 3)
WIDEN = 4  # a block gives so many times the channels that it works on


class Block(nn.Module):
    """Add to its input what two narrow convolutions around a 3 x 3 one make of it."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = WIDEN * width
        self.change = nn.Sequential(
            *_convolution(inside, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outside, 1),
        )
        same = stride == 1 and inside == outside
        self.keep = nn.Identity() if same else nn.Sequential(*_convolution(inside, outside, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input with the change."""
        return torch.relu(self.keep(x) + self.change(x))


def resnet(
    classes: int, *, stem: str, depths: Sequence[int] = DEPTHS_152, width: int = 64, channels: int = 3
) -> nn.Module:
    """Return a residual network; `depths` are the blocks of its four stages, `width` the channels of the first.

    The stem `imagenet` shrinks images fourfold before the first block, `cifar` keeps their 32 x 32 pixels.
    """
    if stem == "cifar":
        layers = [*_convolution(channels, width, 3), nn.ReLU(inplace=True)]
    else:
        layers = [*_convolution(channels, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    inside = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            layers.append(Block(inside, width * 2**stage, 2 if stage and not block else 1))
            inside = WIDEN * width * 2**stage
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


def _convolution(inside: int, outside: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)]
