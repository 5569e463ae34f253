"""Forecast a week of load from the week before: one LSTM layer and one linear layer, as the HoreKa study has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

UNITS = 48
# How the cell state begins; the study's code draws it anew for each batch.
RANDOM, ZERO = "random", "zero"
CELLS = (RANDOM, ZERO)


class LoadForecaster(nn.Module):
    """Give for each hour of a week the load of the same hour of the next week."""

    def __init__(self, units: int = UNITS, cell: str = RANDOM) -> None:
        super().__init__()
        self.cell = cell
        self.lstm = nn.LSTM(1, units, batch_first=True)
        self.head = nn.Linear(units, 1)

    def forward(self, past: Tensor) -> Tensor:
        """Return forecasts of the shape (samples, hours, 1) that `past` has."""
        hidden = torch.zeros(1, len(past), self.lstm.hidden_size, device=past.device, dtype=past.dtype)
        # The draw is torch's own: the seed of a training fixes it.
        cell = torch.randn_like(hidden) if self.cell == RANDOM else torch.zeros_like(hidden)
        out, _ = self.lstm(past, (hidden, cell))
        forecast: Tensor = self.head(out)
        return forecast
