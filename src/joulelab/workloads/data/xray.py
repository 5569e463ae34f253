"""Read chest X-rays: `train.csv` and `valid.csv` (image, label) beside a folder `imgs`, or draw a stand-in for them.

`split_covidx` makes such a folder of Kaggle's. Images are prepared as the study's text has it, or as its published code
has it, which knows neither logarithm nor blur. torch is imported only where images become numbers.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.images import (
    DrawnImages,
    ImageFiles,
    draw_field,
    import_pillow,
    make_once,
    read_image,
    to_tensor,
    write_jpegs,
)
from joulelab.workloads.data.source import (
    BROKEN,
    FILES,
    MEMORY,
    Data,
    Source,
    choose_source,
    explain_failure,
    get_cache_folder,
    name_data,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

PUBLISHED = "ai-hero-health"
PARTS = ("train", "valid", "test")
IMAGES = "imgs"
LABELS = ("negative", "positive")
# How many of each label the study had.
KNOWN = {"train": (13696, 2088), "valid": (76, 74), "test": (221, 196)}
# Tables of COVIDx CXR-2 on Kaggle, each beside a folder of its images; later versions have the last, too.
COVIDX_PARTS = ("train", "test", "val")
MOST_SOURCES = 16  # all their subsets are tried
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


class CovidxImage(NamedTuple):
    """Hold one image of COVIDx: its file, 1 where positive, and the collection that it comes from."""

    file: Path
    label: int
    source: str


def open_xrays(
    asked: str, preparation: Preparation, stand_in: StandIn, *, environ: Mapping[str, str] = os.environ
) -> Data:
    """Return X-rays from what `data` asks for, or their stand-in. Raises ConfigError."""
    chosen = choose_source(asked, (PUBLISHED,), environ=environ, otherwise=FILES)
    if chosen == MEMORY:
        drawn = {part: [draw_xray(part, k, preparation.pixels) for k in range(stand_in.drawn(part))] for part in PARTS}
        train, valid, test = (
            DrawnImages(drawn[part], stand_in.count(part), len(LABELS), normalise_image) for part in PARTS
        )
        return Data(train, valid, test, Source(MEMORY, real=False, samples=stand_in.samples))
    if isinstance(chosen, str):
        counts = "-".join(str(stand_in.drawn(part)) for part in PARTS)
        folder = get_cache_folder(f"synthetic-xrays-{VERSION}-{counts}-{stand_in.file_pixels}-pixels", environ)
        make_once(folder, partial(_write_stand_in, stand_in=stand_in))
        name, real = FILES, False
        few = {part: _read_table(folder, part) for part in PARTS}
        rows = {part: [few[part][k % len(few[part])] for k in range(stand_in.count(part))] for part in PARTS}
    else:
        folder, real = chosen, True
        rows = {part: _read_table(folder, part) for part in PARTS if part != "test" or _has_table(folder, part)}
        name = name_data(PUBLISHED, counts=has_study_counts(rows))
    read = {part: partial(read_xray, preparation=preparation, changed=part == "train") for part in rows}
    files = {part: ImageFiles(found, read[part]) for part, found in rows.items()}
    source = Source(name, real=real, samples=len(files["train"]), where=str(folder))
    return Data(files["train"], files["valid"], files.get("test"), source)


def read_xray(file: Path, preparation: Preparation, *, changed: bool) -> Any:
    """Return an image as the model sees it, 1 x rows x columns; `changed` at random where it is trained on."""
    width = preparation.resized if changed else preparation.pixels
    image = read_image(file, "L", at_least=(width, width) if preparation.draft else None)
    return normalise_image(prepare_image(image, preparation, changed=changed))


def prepare_image(image: Any, preparation: Preparation, *, changed: bool) -> Any:
    """Return a grey Pillow image as it is shown to the model; `changed` at random where it is trained on."""
    width = preparation.resized if changed else preparation.pixels
    if image.size != (width, width):
        image = image.resize((width, width), import_pillow().Image.Resampling.BILINEAR)
    if preparation.way == PAPER:
        image = image.point(LOGARITHM)  # of every image: what is trained and what is tested have to look alike
    return _change_at_random(image, preparation) if changed else image


def _change_at_random(image: Any, preparation: Preparation) -> Any:
    """Return an image blurred, mirrored, turned and cropped by chance, which torch's seed decides."""
    import torch
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


def normalise_image(image: Any) -> Any:
    """Return a grey Pillow image, or its pixels, as numbers about 0."""
    pixels = image if hasattr(image, "float") else to_tensor(image)
    return pixels.float().div_(255).sub_(MEAN).div_(DEVIATION)


def draw_xray(part: str, number: int, pixels: int) -> NDArray[np.uint8]:
    """Draw image `number` of a part: a smooth grey field with noise, with fine patches in it where it is positive.

    Its label is `number` modulo 2.
    """
    own = np.random.default_rng((VERSION, PARTS.index(part), number))
    field = 60 + 110 * draw_field(own, pixels, pixels, 5)
    if number % len(LABELS):
        field += 60 * (draw_field(own, pixels, pixels, 24) - 0.5)
    field += NOISE * own.standard_normal((pixels, pixels), dtype=np.float32)
    whole: NDArray[np.uint8] = np.clip(field, 0, 255).astype(np.uint8)
    return whole


def _write_stand_in(folder: Path, stand_in: StandIn) -> None:
    """Write a stand-in in the study's form."""
    for part in PARTS:
        names = [f"{part}-{number:05}.jpg" for number in range(stand_in.drawn(part))]
        write_jpegs(
            folder / IMAGES,
            names,
            lambda number, part=part: draw_xray(part, number, stand_in.file_pixels),  # type: ignore[misc]
            quality=QUALITY,
        )
        _write_table(folder, part, ((name, number % len(LABELS)) for number, name in enumerate(names)))


def _write_table(folder: Path, part: str, rows: Iterable[tuple[str, int]]) -> None:
    with open(folder / f"{part}.csv", "w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(("image", "label"))
        table.writerows((name, LABELS[label]) for name, label in rows)


def _has_table(folder: Path, part: str) -> bool:
    return (folder / f"{part}.csv").is_file()


def _read_table(folder: Path, part: str) -> list[tuple[Path, int]]:
    """Return a part's files, all of them there, with 1 where positive. Raises ConfigError."""
    table, images = folder / f"{part}.csv", folder / IMAGES
    try:
        there = {entry.name for entry in os.scandir(images)}
        with open(table, newline="", encoding="utf-8-sig") as opened:
            rows = [(row.get("image") or "", row.get("label") or "") for row in csv.DictReader(opened)]
    except BROKEN as error:
        advice = f"the folder has to hold train.csv, valid.csv and {IMAGES}"
        if (folder / "train.txt").is_file():
            advice = f"this is Kaggle's form: joulelab workload split xrays {folder} NEW_FOLDER"
        where = str(getattr(error, "filename", table))
        raise ConfigError("the X-rays cannot be read", where=where, why=explain_failure(error), next=advice) from error
    for line, (image, label) in enumerate(rows, 2):
        if label not in LABELS:
            why = f"the label is {label!r}"
            raise ConfigError("this is not an X-ray", where=f"{table}:{line}", why=why, next=f"{' or '.join(LABELS)}")
        if image not in there:
            raise ConfigError(f"there is no image {image!r}", where=f"{table}:{line}", next=f"put it into {images}")
    if not rows:
        raise ConfigError("there is no X-ray in it", where=str(table), next="its columns are image, label")
    return [(images / image, LABELS.index(label)) for image, label in rows]


def has_study_counts(rows: Mapping[str, Sequence[tuple[Path, int]]]) -> bool:
    """Return whether there are as many files of each label as in the study; we know no checksums of its files."""
    files = {
        part: [[file for file, found in found_rows if found == k] for k in (0, 1)] for part, found_rows in rows.items()
    }
    return all(tuple(len(set(same)) for same in each) == KNOWN[part] for part, each in files.items())


def split_covidx(folder: Path, to: Path, seed: int = 0) -> list[dict[str, str | int]]:
    """Make a folder in the study's form of COVIDx CXR-2 as Kaggle has it; return the counts of each part.

    The study let no collection be in both training and test data, and does not tell which ones it chose. So the
    collections of the test are those whose counts come nearest to the study's shares; validation is drawn from the
    rest, by image: those of one patient may be in both training and validation data, as the study does not tell whether
    it kept patients apart. Images are linked, not copied. Raises ConfigError.
    """
    images = [image for part in COVIDX_PARTS for image in _read_covidx_table(folder, part)]
    if twice := [name for name, count in Counter(image.file.name for image in images).items() if count > 1]:
        raise ConfigError(f"the image {twice[0]!r} is listed twice", where=str(folder), next="remove one of them")
    tested = choose_test_sources(images)
    parts = {"train": [one for one in images if one.source not in tested], "valid": list[CovidxImage]()}
    generator = np.random.default_rng(seed)
    for label, wanted in enumerate(KNOWN["valid"]):
        same = [one for one in parts["train"] if one.label == label]
        drawn = generator.permutation(len(same))[: min(wanted, max(len(same) // 10, 1))]
        parts["valid"] += [same[k] for k in sorted(drawn)]
    held_out = set(parts["valid"])
    parts["train"] = [one for one in parts["train"] if one not in held_out]
    parts["test"] = [one for one in images if one.source in tested]
    (to / IMAGES).mkdir()
    for part, found in parts.items():
        _write_table(to, part, ((one.file.name, one.label) for one in found))
        for one in found:
            (to / IMAGES / one.file.name).symlink_to(one.file.resolve())
    return [_count_part(part, found) for part, found in parts.items()]


def _count_part(part: str, images: Sequence[CovidxImage]) -> dict[str, str | int]:
    figures = {label: sum(image.label == k for image in images) for k, label in enumerate(LABELS)}
    sources = ", ".join(sorted({image.source for image in images}))
    return {"part": part, **figures, "in the study": " + ".join(map(str, KNOWN[part])), "sources": sources}


def choose_test_sources(images: Iterable[CovidxImage]) -> set[str]:
    """Return the collections whose counts come nearest to the study's share of test data; both labels on both sides.

    Raises ConfigError where no collections do.
    """
    counts: dict[str, list[int]] = {}
    for image in images:
        counts.setdefault(image.source, [0, 0])[image.label] += 1
    names, table = sorted(counts), np.array([counts[name] for name in sorted(counts)]).reshape(-1, 2)
    if len(names) > MOST_SOURCES:
        raise ConfigError(f"there are {len(names)} sources", next="the last column names the collection of an image")
    subsets = (np.arange(2 ** len(names))[:, None] >> np.arange(len(names))) & 1
    tested = subsets @ table
    is_possible = ((tested > 0) & (tested < table.sum(0))).all(1)
    if not is_possible.any():
        why = "whichever collections are taken for the test, one of both labels is missing there or in the rest"
        raise ConfigError("the X-rays cannot be divided by their sources", why=why, next="add Kaggle's whole set")
    shares = np.array(KNOWN["test"]) / np.array(list(KNOWN.values())).sum(0)  # of each label; Kaggle's set has grown
    distance = np.abs(tested - shares * table.sum(0)).sum(1)
    best = subsets[np.where(is_possible, distance, distance.max() + 1).argmin()]
    return {name for name, is_tested in zip(names, best, strict=True) if is_tested}


def _read_covidx_table(folder: Path, part: str) -> list[CovidxImage]:
    """Return the images of a table of lines `patient file label source`; a patient may be several words."""
    table = folder / f"{part}.txt"
    if part == "val" and not table.is_file():
        return []
    try:
        there = {entry.name for entry in os.scandir(folder / part)}
        lines = [line.split() for line in table.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except BROKEN as error:
        advice = "the folder has to hold train.txt, test.txt and the folders train and test, as COVIDx CXR-2 on Kaggle"
        where = str(getattr(error, "filename", table))
        raise ConfigError("the X-rays cannot be read", where=where, why=explain_failure(error), next=advice) from error
    found = []
    for number, words in enumerate(lines, 1):
        if len(words) < 4 or words[-2] not in LABELS:
            advice = f"a line is: patient file {'|'.join(LABELS)} source"
            raise ConfigError("this is not an X-ray", where=f"{table}:{number}", why=" ".join(words), next=advice)
        name, label, source = words[-3:]
        if name not in there:
            raise ConfigError(
                f"there is no image {name!r}", where=f"{table}:{number}", next=f"put it into {folder / part}"
            )
        found.append(CovidxImage(folder / part / name, LABELS.index(label), source))
    return found
