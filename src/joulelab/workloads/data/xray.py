"""Read chest X-rays: `train.csv` and `valid.csv` (image, label) beside a folder `imgs`, or draw a stand-in for them.

They are prepared as the study's text has it, or as its published code has it, which knows neither logarithm nor blur.
"""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.images import made_once, pillow, read_image, smooth, to_tensor, write_jpegs
from joulelab.workloads.data.source import (
    BROKEN,
    FILES,
    MEMORY,
    Data,
    Source,
    cache_folder,
    choose,
    name_of,
    unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

PUBLISHED = "ai-hero-health"
PARTS = ("train", "valid", "test")
IMAGES = "imgs"
LABELS = ("negative", "positive")
# How many of each label the study had.
KNOWN = {"train": (13696, 2088), "valid": (76, 74), "test": (221, 196)}
PAPER, REPOSITORY = "paper", "repository"
PREPARATIONS = (PAPER, REPOSITORY)
PIXELS, RESIZED = 224, 240
DEGREES, PAD = 30.0, 10
# The study's code has these two. They would be strange for X-rays as they are, and fit their logarithm.
MEAN, DEVIATION = 0.8180, 0.1748
# The study does not tell how much is blurred, and how often: half of all images, by up to this radius in pixels.
BLUR, BLURRED = 2.0, 0.5
# From 0...255 to 0...255 by the logarithm of one more.
LOGARITHM = tuple(round(255 * math.log1p(grey) / math.log(256)) for grey in range(256))
VERSION = 1  # of what synthetic X-rays are like
NOISE, QUALITY = 4.0, 90


@dataclass(frozen=True, slots=True)
class Preparation:
    """Say how an image becomes numbers: in whose way, how many pixels wide, and whether it may be decoded smaller."""

    way: str = PAPER
    pixels: int = PIXELS
    draft: bool = True

    @property
    def resized(self) -> int:
        """Return the width before cropping."""
        return round(self.pixels * RESIZED / PIXELS)


@dataclass(frozen=True, slots=True)
class StandIn:
    """Say how much a stand-in has: samples to train on, different images among them, pixels of its files."""

    samples: int = sum(KNOWN["train"])
    distinct: int = 1000
    file_pixels: int = 1024

    def count(self, part: str) -> int:
        """Return how many samples a part has."""
        return self.samples if part == "train" else min(sum(KNOWN[part]), max(self.samples // 4, 2))

    def drawn(self, part: str) -> int:
        """Return how many of them are different."""
        return min(self.distinct, self.count(part))


class Files(Dataset[tuple[Any, int]]):
    """Give images of files, prepared and normalised (1 x rows x columns), and 1 where positive."""

    def __init__(self, labelled: Sequence[tuple[Path, int]], preparation: Preparation, *, changed: bool) -> None:
        self.labelled, self._preparation, self._changed = labelled, preparation, changed

    def __len__(self) -> int:
        return len(self.labelled)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        file, label = self.labelled[index]
        width = self._preparation.resized if self._changed else self._preparation.pixels
        image = read_image(file, "L", at_least=(width, width) if self._preparation.draft else None)
        return normalised(prepared(image, self._preparation, changed=self._changed)), label


class Memory(Dataset[tuple[Any, int]]):
    """Give images that were drawn beforehand: to read and prepare them costs next to nothing."""

    def __init__(self, stand_in: StandIn, part: str, pixels: int) -> None:
        self._count = stand_in.count(part)
        drawn = np.stack([draw(part, number, pixels) for number in range(stand_in.drawn(part))])
        self._pixels = torch.from_numpy(drawn)[:, None]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        number = index % len(self._pixels)
        return normalised(self._pixels[number]), number % len(LABELS)


def load(asked: str, preparation: Preparation, stand_in: StandIn, *, environ: Mapping[str, str] = os.environ) -> Data:
    """Return X-rays from what `data` asks for, or their stand-in. Raises ConfigError."""
    chosen = choose(asked, (PUBLISHED,), environ=environ, otherwise=FILES)
    if chosen == MEMORY:
        train, valid, test = (Memory(stand_in, part, preparation.pixels) for part in PARTS)
        return Data(train, valid, test, Source(MEMORY, real=False, samples=stand_in.samples))
    if isinstance(chosen, str):
        folder = made_once(cache_folder(_cache_name(stand_in), environ), lambda empty: _write(empty, stand_in))
        name, real = FILES, False
        labelled = {part: _repeated(_labelled(folder, part), stand_in.count(part)) for part in PARTS}
    else:
        folder, real = chosen, True
        labelled = {part: _labelled(folder, part) for part in PARTS if part != "test" or _table(folder, part).is_file()}
        name = name_of(PUBLISHED, counts=_has_counts(labelled))
    sets = {part: Files(found, preparation, changed=part == "train") for part, found in labelled.items()}
    source = Source(name, real=real, samples=len(sets["train"]), where=str(folder))
    return Data(sets["train"], sets["valid"], sets.get("test"), source)


def prepared(image: Any, preparation: Preparation, *, changed: bool) -> Any:
    """Return a grey Pillow image as it is shown to the model; `changed` at random where it is trained on."""
    width = preparation.resized if changed else preparation.pixels
    if image.size != (width, width):
        image = image.resize((width, width), pillow().Image.Resampling.BILINEAR)
    if preparation.way == PAPER:
        image = image.point(LOGARITHM)  # of every image: what is trained and what is tested have to look alike
    return _changed(image, preparation) if changed else image


def _changed(image: Any, preparation: Preparation) -> Any:
    """Return an image blurred, mirrored, turned and cropped by chance, which torch's seed decides."""
    from PIL import ImageFilter, ImageOps

    blur, radius, mirror, turn, right, down = torch.rand(6).tolist()
    if preparation.way == PAPER and blur < BLURRED:
        image = image.filter(ImageFilter.GaussianBlur(radius * BLUR))
    if mirror < 0.5:
        image = ImageOps.mirror(image)
    image = image.rotate((2 * turn - 1) * DEGREES)
    if preparation.way == REPOSITORY:
        image = ImageOps.expand(image, PAD)
    room = image.size[0] - preparation.pixels + 1
    left, top = int(right * room), int(down * room)
    return image.crop((left, top, left + preparation.pixels, top + preparation.pixels))


def normalised(image: Any) -> Any:
    """Return a grey Pillow image, or its pixels, as numbers about 0."""
    pixels = image if isinstance(image, torch.Tensor) else to_tensor(image)
    return pixels.float().div_(255).sub_(MEAN).div_(DEVIATION)


def draw(part: str, number: int, pixels: int) -> NDArray[np.uint8]:
    """Draw image `number` of a part: a smooth grey field with noise, with fine patches in it where it is positive.

    Its label is `number` modulo 2.
    """
    own = np.random.default_rng((VERSION, PARTS.index(part), number))
    field = 60 + 110 * smooth(own, pixels, pixels, 5)
    if number % len(LABELS):
        field += 60 * (smooth(own, pixels, pixels, 24) - 0.5)
    field += NOISE * own.standard_normal((pixels, pixels), dtype=np.float32)
    whole: NDArray[np.uint8] = np.clip(field, 0, 255).astype(np.uint8)
    return whole


def _cache_name(stand_in: StandIn) -> str:
    counts = "-".join(str(stand_in.drawn(part)) for part in PARTS)
    return f"synthetic-xrays-{VERSION}-{counts}-{stand_in.file_pixels}-pixels"


def _write(folder: Path, stand_in: StandIn) -> None:
    """Write a stand-in in the published form."""
    for part in PARTS:
        names = [f"{part}-{number:05}.jpg" for number in range(stand_in.drawn(part))]

        def drawn(number: int, part: str = part) -> NDArray[np.uint8]:
            return draw(part, number, stand_in.file_pixels)

        write_jpegs(folder / IMAGES, names, drawn, quality=QUALITY)
        with open(_table(folder, part), "w", newline="") as opened:
            table = csv.writer(opened)
            table.writerow(("image", "label"))
            table.writerows((name, LABELS[number % len(LABELS)]) for number, name in enumerate(names))


def _repeated(labelled: list[tuple[Path, int]], count: int) -> list[tuple[Path, int]]:
    return [labelled[number % len(labelled)] for number in range(count)]


def _table(folder: Path, part: str) -> Path:
    return folder / f"{part}.csv"


def _labelled(folder: Path, part: str) -> list[tuple[Path, int]]:
    """Return a part's files, all of them there, with 1 where positive. Raises ConfigError."""
    table, images = _table(folder, part), folder / IMAGES
    try:
        there = {entry.name for entry in os.scandir(images)}
        with open(table, newline="", encoding="utf-8-sig") as opened:
            rows = [(row.get("image") or "", row.get("label") or "") for row in csv.DictReader(opened)]
    except BROKEN as error:
        advice = f"the folder has to hold train.csv, valid.csv and {IMAGES}"
        where = str(getattr(error, "filename", table))
        raise ConfigError("the X-rays cannot be read", where=where, why=unreadable(error), next=advice) from error
    for line, (image, label) in enumerate(rows, 2):
        if label not in LABELS:
            why = f"the label is {label!r}"
            raise ConfigError("this is no X-ray", where=f"{table}:{line}", why=why, next=f"{' or '.join(LABELS)}")
        if image not in there:
            raise ConfigError(f"there is no image {image!r}", where=f"{table}:{line}", next=f"put it into {images}")
    if not rows:
        raise ConfigError("there is no X-ray in it", where=str(table), next="its columns are image, label")
    return [(images / image, LABELS.index(label)) for image, label in rows]


def _has_counts(labelled: Mapping[str, Sequence[tuple[Path, int]]]) -> bool:
    """Return whether there are as many files of each label as in the study; we know no checksums of its files."""
    files = {part: [[file for file, found in rows if found == k] for k in (0, 1)] for part, rows in labelled.items()}
    return all(tuple(len(set(same)) for same in each) == KNOWN[part] for part, each in files.items())
