"""Read birds: `train`, `valid` and `test`, each with a folder of images for each species, or draw a stand-in for them.

The study took 69 of the 450 species of a set that Kaggle had, and 10000 of their training images; which ones is not
published. So no folder can be told to be the study's: its name is always that of the form.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.images import (
    DrawnImages,
    ImageFiles,
    draw_field,
    import_pillow,
    list_images,
    make_once,
    read_image,
    to_tensor,
    write_jpegs,
)
from joulelab.workloads.data.source import FILES, MEMORY, Data, Source, choose_source, get_cache_folder, name_data

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

FOLDER = "birds-450"
PARTS = ("train", "valid", "test")
# Goes up with every change to what is drawn: folders of other versions are not used again.
VERSION = 1
# In memory, further images of a class are the same again: 10000 of 299 pixels would be 2.7 GB on each rank.
MOST_IN_MEMORY = 8
# So that a file has about 22 kB at 224 pixels, as the photographs are assumed to have.
NOISE, QUALITY = 9.0, 90


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much there is: classes, images to train on, images of a class to validate and to test, their pixels.

    `pixels` are those of an image as it is trained on, `file_pixels` those of a synthetic file.
    """

    classes: int
    images: int
    held_out: int
    pixels: int
    file_pixels: int

    def count(self, part: str) -> int:
        """Return how many synthetic images a part has."""
        return self.images if part == "train" else self.classes * self.held_out


def read_bird(file: Path, pixels: int) -> Any:
    """Return an image as uint8 pixels, 3 x rows x columns."""
    size = (pixels, pixels)
    image = read_image(file, "RGB", at_least=size)
    return to_tensor(image if image.size == size else image.resize(size, import_pillow().Image.Resampling.BILINEAR))


def open_birds(asked: str, sizes: Sizes, *, environ: Mapping[str, str] = os.environ) -> Data:
    """Return birds from what `data` asks for, or their stand-in. Raises ConfigError."""
    chosen = choose_source(asked, (FOLDER,), environ=environ, otherwise=FILES)
    if chosen == MEMORY:
        drawn = [_draw_part(part, sizes) for part in PARTS]
        return Data(drawn[0], drawn[1], drawn[2], Source(MEMORY, real=False, samples=sizes.images))
    if isinstance(chosen, str):
        counts = f"{sizes.classes}-classes-{sizes.images}-{sizes.held_out}"
        folder = get_cache_folder(f"synthetic-birds-{VERSION}-{counts}-{sizes.file_pixels}-pixels", environ)
        make_once(folder, lambda empty: _write_stand_in(empty, sizes))
        name, real = FILES, False
    else:
        folder, name, real = chosen, name_data(FOLDER), True
    read = partial(read_bird, pixels=sizes.pixels)
    train, valid, test = (ImageFiles(_label_files(folder, part, sizes), read) for part in PARTS)
    return Data(train, valid, test, Source(name, real=real, samples=len(train), where=str(folder)))


def draw_bird(part: str, number: int, classes: int, pixels: int) -> NDArray[np.uint8]:
    """Draw image `number` of a part: stripes in its class's colours and direction, over hills, with noise.

    Its class is `number` modulo `classes`.
    """
    kind = np.random.default_rng((VERSION, number % classes))
    colours = kind.uniform(0, 255, (2, 3)).astype(np.float32)
    angle, cycles = kind.uniform(0, np.pi), kind.uniform(4, 20)
    own = np.random.default_rng((VERSION, PARTS.index(part), number))
    along = np.linspace(0, 2 * np.pi * cycles * own.uniform(0.8, 1.25), pixels, dtype=np.float32)
    waves = along[:, None] * np.float32(np.cos(angle)) + along * np.float32(np.sin(angle))
    stripes = 0.5 + 0.5 * np.sin(waves + np.float32(own.uniform(0, 2 * np.pi)))
    share = 0.6 * stripes + 0.4 * draw_field(own, pixels, pixels, 6)
    picture = colours[0] + share[:, :, None] * (colours[1] - colours[0])
    picture += NOISE * own.standard_normal((pixels, pixels, 1), dtype=np.float32)
    whole: NDArray[np.uint8] = np.clip(picture, 0, 255).astype(np.uint8)
    return whole


def _draw_part(part: str, sizes: Sizes) -> DrawnImages:
    distinct = min(sizes.count(part), sizes.classes * MOST_IN_MEMORY)
    drawn = [draw_bird(part, k, sizes.classes, sizes.pixels) for k in range(distinct)]
    return DrawnImages(drawn, sizes.count(part), sizes.classes)


def _write_stand_in(folder: Path, sizes: Sizes) -> None:
    for part in PARTS:
        names = [
            f"{part}/class-{k % sizes.classes:04}/{k // sizes.classes + 1:05}.jpg" for k in range(sizes.count(part))
        ]

        def drawn(number: int, part: str = part) -> NDArray[np.uint8]:
            return draw_bird(part, number, sizes.classes, sizes.file_pixels)

        write_jpegs(folder, names, drawn, quality=QUALITY)


def _label_files(folder: Path, part: str, sizes: Sizes) -> list[tuple[Path, int]]:
    """Return a part's files with the numbers of their classes; those of `train` are the same share of each class.

    Classes are numbered by their sorted names; where there are more than asked for, the first are taken.
    """
    found: list[tuple[int, int, Path]] = []
    for label, name in enumerate(_list_classes(folder, sizes.classes)):
        inside = folder / part / name
        if not inside.is_dir():
            advice = f"{', '.join(PARTS)} need the same classes"
            raise ConfigError(f"there is no folder {part}/{name}", where=str(folder), next=advice)
        found += [(number, label, file) for number, file in enumerate(list_images(inside))]
    if part == "train":
        found = sorted(found)[: sizes.images]
    return [(file, label) for _, label, file in found]


def _list_classes(folder: Path, wanted: int) -> list[str]:
    train = folder / "train"
    if not train.is_dir():
        advice = f"name the folder that holds {', '.join(PARTS)}, each with a folder for each class"
        raise ConfigError("there is no folder train", where=str(folder), next=advice)
    names = sorted(inside.name for inside in train.iterdir() if inside.is_dir() and not inside.name.startswith("."))
    if len(names) < wanted:
        why = f"{wanted} are requested"
        raise ConfigError(
            f"there are {len(names)} classes", where=str(train), why=why, next=f"give classes={len(names)}"
        )
    return names[:wanted]
