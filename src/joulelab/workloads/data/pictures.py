"""Hold small pictures in memory, whole: bytes, made into numbers when they are asked for."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import interpolate, pad
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

PAD = 4  # pixels by which a picture is moved at most


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Give pictures (channels x rows x columns, normalised) and labels; those to train on are moved and mirrored.

    With `pixels` they are enlarged to so many rows and columns when they are asked for.
    """

    def __init__(
        self,
        pixels: torch.Tensor,
        labels: torch.Tensor,
        mean: Sequence[float],
        deviation: Sequence[float],
        *,
        changed: bool = False,
    ) -> None:
        self._pixels, self._labels, self.changed, self.size = pixels, labels, changed, 0
        self._mean, self._deviation = (torch.tensor(values).view(-1, 1, 1) for values in (mean, deviation))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return a picture and its label."""
        picture = (self._pixels[index].float() / 255 - self._mean) / self._deviation
        if self.changed:
            picture = _move_picture(picture)
        if self.size:
            picture = resize_pictures(picture[None], self.size)[0]
        return picture, int(self._labels[index])

    def with_changes(self, *, changed: bool, size: int = 0) -> Pictures:
        """Return the same pictures, moved and mirrored or not, enlarged to a size unless it is 0."""
        other = copy.copy(self)
        other.changed, other.size = changed, size
        return other


def resize_pictures(pictures: torch.Tensor, size: int) -> torch.Tensor:
    """Return a batch of pictures with so many rows and columns."""
    return interpolate(pictures, (size, size), mode="bilinear", antialias=True)


def move_pictures(pictures: torch.Tensor) -> torch.Tensor:
    """Return a batch of pictures, each moved by a few pixels and mirrored half of the time, on their own device."""
    (count, _, rows, columns), device = pictures.shape, pictures.device
    down, right = torch.randint(0, 2 * PAD + 1, (2, count, 1), device=device)
    across = torch.arange(columns, device=device) + right
    across = torch.where(torch.rand(count, 1, device=device) < 0.5, across, across.flip(1))
    below = torch.arange(rows, device=device) + down
    which = torch.arange(count, device=device)[:, None, None]
    padded = pad(pictures, (PAD,) * 4).permute(0, 2, 3, 1)
    return padded[which, below[:, :, None], across[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _move_picture(picture: torch.Tensor) -> torch.Tensor:
    """Return a picture moved by a few pixels, mirrored half of the time; what is not there is the mean."""
    rows, columns = picture.shape[-2:]
    down, right, mirror = torch.randint(0, 2 * PAD + 1, (3,)).tolist()
    moved = pad(picture, (PAD,) * 4)[..., down : down + rows, right : right + columns]
    return moved.flip(-1) if mirror % 2 else moved
