"""Read Fashion-MNIST, a real set that Debian has (package dataset-fashion-mnist): 60,000 + 10,000 pictures of clothes.

It stands for small pictures in ten classes where CIFAR-10 cannot be had, under its own name: 28 x 28 grey pixels are
framed to 32 x 32 and repeated for each colour.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.pictures import Pictures
from joulelab.workloads.data.source import Data, Source

NAME = "fashion-mnist"
FOLDER = Path("/usr/share/datasets/fashion-mnist")
MEAN, DEVIATION = (0.2860,), (0.3530,)
IMAGES, LABELS = 0x803, 0x801  # the first word of a file of three dimensions, or of one


def open_fashion_mnist(folder: Path = FOLDER, *, train: int = 0, test: int = 0) -> Data:
    """Return Fashion-MNIST, or the first pictures of it. Raises ConfigError where it is not installed."""
    parts = [
        _pictures(folder, "train", train, changed=True),
        _pictures(folder, "t10k", test, changed=False),
    ]
    return Data(parts[0], parts[1], parts[1], Source(NAME, real=True, samples=len(parts[0]), where=str(folder)))


def _pictures(folder: Path, part: str, most: int, *, changed: bool) -> Pictures:
    pixels = _read(folder / f"{part}-images-idx3-ubyte.gz", IMAGES)
    labels = _read(folder / f"{part}-labels-idx1-ubyte.gz", LABELS)
    pixels, labels = pixels[: most or None], labels[: most or None]
    framed = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, axis=1)
    return Pictures(
        torch.from_numpy(framed), torch.from_numpy(labels.astype(np.int64)), MEAN * 3, DEVIATION * 3, changed=changed
    )


def _read(file: Path, magic: int) -> Any:
    """Return the bytes of a file in the shape that its head tells. Raises ConfigError."""
    try:
        raw = gzip.decompress(file.read_bytes())
    except FileNotFoundError as error:
        then = "apt-get install dataset-fashion-mnist"
        raise ConfigError("Fashion-MNIST is not installed", where=str(file), why="no such file", next=then) from error
    except (OSError, EOFError) as error:
        raise ConfigError("Fashion-MNIST cannot be read", where=str(file), why=str(error)) from error
    words = np.frombuffer(raw[: 4 * (1 + magic % 256)], dtype=">u4")
    if words[0] != magic or len(raw) != words.nbytes + int(np.prod(words[1:])):
        raise ConfigError("this is no file of Fashion-MNIST", where=str(file), why="its head tells another form")
    return np.frombuffer(raw, dtype=np.uint8, offset=words.nbytes).reshape([int(n) for n in words[1:]])
