"""Hold small pictures in memory, whole: bytes, made into numbers when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

PAD = 4  # pixels by which a picture is moved at most


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Give pictures (channels x rows x columns, normalised) and labels; those to train on are moved and mirrored."""

    def __init__(
        self,
        pixels: torch.Tensor,
        labels: torch.Tensor,
        mean: Sequence[float],
        deviation: Sequence[float],
        *,
        changed: bool = False,
    ) -> None:
        self._pixels, self._labels, self._changed = pixels, labels, changed
        self._mean, self._deviation = (torch.tensor(values).view(-1, 1, 1) for values in (mean, deviation))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return a picture and its label."""
        picture = (self._pixels[index].float() / 255 - self._mean) / self._deviation
        return _moved(picture) if self._changed else picture, int(self._labels[index])


def _moved(picture: torch.Tensor) -> torch.Tensor:
    """Return a picture moved by a few pixels, mirrored half of the time; what is not there is the mean."""
    rows, columns = picture.shape[-2:]
    down, right, mirror = torch.randint(0, 2 * PAD + 1, (3,)).tolist()
    padded = torch.nn.functional.pad(picture, (PAD,) * 4)
    moved = padded[..., down : down + rows, right : right + columns]
    return moved.flip(-1) if mirror % 2 else moved
