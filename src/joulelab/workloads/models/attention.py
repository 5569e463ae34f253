"""Attend over the patches of an X-ray, or over the hours of a week: the models of the HoreKa study's outlook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor

# ViT-S/16: about as many parameters and FLOP as the study's VGG-19.
PATCH, WIDTH, LAYERS, HEADS = 16, 384, 12, 6
FORECAST_LAYERS, FORECAST_HEADS = 2, 4


class AttentionBlock(nn.Module):
    """Mix tokens by self-attention, then each by itself; both add to what comes in (samples x tokens x width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_before, self.norm_between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        samples, count, width = tokens.shape
        parts = self.query_key_value(self.norm_before(tokens)).view(samples, count, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(tokens.shape)
        tokens = tokens + self.projection(mixed)
        out: Tensor = tokens + self.inner(self.norm_between(tokens))
        return out


class VisionTransformer(nn.Module):
    """Classify grey images by their patches; their mean is taken at the end, as the study's VGG-19 does.

    `divisor` makes all layers thinner.
    """

    def __init__(self, classes: int = 2, pixels: int = 224, divisor: int = 1) -> None:
        super().__init__()
        width = WIDTH // divisor
        self.patches = nn.Conv2d(1, width, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(1, (pixels // PATCH) ** 2, width))
        self.blocks = nn.Sequential(*(AttentionBlock(width, HEADS) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score per class for images of the shape (samples, 1, pixels, pixels)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return scores


class AttentionForecaster(nn.Module):
    """Give for each hour of a week the load of the same hour of the next week, from all hours of the week.

    It learns the change from one week to the next: untrained, it repeats the week.
    """

    def __init__(self, width: int, hours: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(1, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, hours, width))
        self.blocks = nn.Sequential(*(AttentionBlock(width, FORECAST_HEADS) for _ in range(FORECAST_LAYERS)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, past: Tensor) -> Tensor:
        """Return forecasts of the shape (samples, hours, 1) that `past` has."""
        change: Tensor = self.head(self.norm(self.blocks(self.embedding(past) + self.places)))
        return past + change
