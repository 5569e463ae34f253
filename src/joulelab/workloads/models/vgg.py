"""Classify images by VGG-19 with batch norm, an average pool and one linear layer, as the HoreKa study has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

# Channels of the convolutions between two pools.
STAGES = ((64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512))
POOL = 2


class VGG19(nn.Module):
    """Hold the model: `pool_stride` is 3 in the study's code and 2 in textbooks, `divisor` makes all layers thinner."""

    def __init__(self, classes: int = 2, channels: int = 1, pool_stride: int = 3, divisor: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in STAGES:
            for full in stage:
                width = full // divisor
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(POOL, pool_stride))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score per class for images of the shape (samples, channels, height, width)."""
        # A mean is the same as the adaptive pool, which has no deterministic way back on GPUs.
        scores: Tensor = self.head(self.features(images).mean((2, 3)))
        return scores


def least_size(pool_stride: int) -> int:
    """Return the least height and width in pixels that all the pools leave something of."""
    size = 1
    for _ in STAGES:
        size = (size - 1) * pool_stride + POOL
    return size
