"""Hold small pictures of ten classes in memory, whole: CIFAR-10 from its published files, Fashion-MNIST, a stand-in.

Fashion-MNIST is a real set that Debian has (package dataset-fashion-mnist): 60,000 + 10,000 pictures of clothes. It
stands where CIFAR-10 cannot be had, under its own name: 28 x 28 grey pixels are framed to 32 x 32, and repeated for
each colour.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import interpolate, pad
from torch.utils.data import Dataset

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.source import FILES, MEMORY, Data, Source, choose_source, name_data

if TYPE_CHECKING:
    from collections.abc import Sequence

PAD = 4  # pixels by which a picture is moved at most
# The files for Python first: they are the ones whose checksums are known.
NAME, FOLDERS = "cifar-10", ("cifar-10-batches-py", "cifar-10-batches-bin")
CLASSES, PIXELS, SIZE = 10, 3072, 32
IMAGES = ([5000] * CLASSES, [1000] * CLASSES)  # of each class, to train on and to test
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TRAIN, TEST = [f"data_batch_{n}" for n in range(1, 6)], ["test_batch"]
# MD5 of the files for Python, by which they are told from others of the same form.
PUBLISHED = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
NUMPY = {"numpy.core.multiarray": "numpy._core.multiarray"}
# What arrays consist of; the codec is how pickles of Python 3 in the form of Python 2 write bytes.
ALLOWED = {
    "_codecs": ("encode",),
    "numpy": ("ndarray", "dtype"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
}
FASHION, FASHION_FOLDER = "fashion-mnist", Path("/usr/share/datasets/fashion-mnist")
FASHION_MEAN, FASHION_DEVIATION = (0.2860,) * 3, (0.3530,) * 3
FASHION_IMAGES, FASHION_LABELS = 0x803, 0x801  # the first word of a file of three dimensions, or of one


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Give pictures (channels x rows x columns, normalised) and labels.

    They can be moved and mirrored, or enlarged, when they are asked for: `with_changes`.
    """

    def __init__(
        self,
        pixels: torch.Tensor,
        labels: torch.Tensor,
        mean: Sequence[float],
        deviation: Sequence[float],
    ) -> None:
        self._pixels, self._labels, self.changed, self.size = pixels, labels, False, 0
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


def open_pictures(asked: str, *, train: int, test: int, seed: int) -> Data:
    """Return CIFAR-10, or at most `train` and `test` pictures of Fashion-MNIST or a stand-in. Raises ConfigError."""
    chosen = choose_source(asked, FOLDERS, otherwise=MEMORY, named=[FASHION])
    if chosen == FILES:
        why = "CIFAR-10 lies in memory whole, so files would cost nothing more"
        raise ConfigError(f"data is {FILES!r}", why=why, next=f"give data={MEMORY}")
    if chosen == FASHION:
        return read_fashion_mnist(train=train, test=test)
    return _draw_stand_in(train, test, seed) if isinstance(chosen, str) else _read_cifar10(chosen)


def _read_cifar10(given: Path) -> Data:
    """Return the images of a folder, or of the published folder inside it."""
    for folder in (given, *(given / name for name in FOLDERS)):
        for reader, suffix in ((_read_binary, ".bin"), (_read_pickle, "")):
            if (folder / f"{TEST[0]}{suffix}").is_file():
                parts = [[folder / f"{name}{suffix}" for name in names] for names in (TRAIN, TEST)]
                (x, y), (tx, ty) = ([np.concatenate(a) for a in zip(*map(reader, p), strict=True)] for p in parts)
                each = tuple(np.bincount(labels, minlength=CLASSES).tolist() for labels in (y, ty))
                name = name_data(NAME, sums=not suffix and _has_sums(folder), counts=each == IMAGES)
                source = Source(name, real=True, samples=len(y), where=str(folder))
                return Data(_make_pictures(x, y), _make_pictures(tx, ty), _make_pictures(tx, ty), source)
    then = f"unpack {' or '.join(FOLDERS)} there, or name the folder that holds it"
    raise ConfigError("there is no CIFAR-10", where=str(given), why=f"{TEST[0]}.bin is missing", next=then)


def _has_sums(folder: Path) -> bool:
    """Tell whether these are the published files for Python; of the binary ones we know no checksums."""
    sums = {name: hashlib.md5((folder / name).read_bytes(), usedforsecurity=False) for name in PUBLISHED}
    return all(found.hexdigest() == PUBLISHED[name] for name, found in sums.items())


def _read_binary(file: Path) -> tuple[Any, Any]:
    """Return images and labels of a file of rows: a label, then red, green and blue. Raises ConfigError."""
    raw = np.frombuffer(_read_bytes(file), dtype=np.uint8)
    if not raw.size or raw.size % (1 + PIXELS):
        raise _refuse_file(file, f"{raw.size} bytes are no rows of {1 + PIXELS}")
    rows = raw.reshape(-1, 1 + PIXELS)
    return _check_form(file, rows[:, 1:], rows[:, 0])


def _read_pickle(file: Path) -> tuple[Any, Any]:
    """Return images and labels of a pickle. Raises ConfigError."""
    try:
        data = _ArrayUnpickler(io.BytesIO(_read_bytes(file)), encoding="bytes").load()
        return _check_form(file, np.asarray(data[b"data"], dtype=np.uint8), np.asarray(data[b"labels"]))
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refuse_file(file, f"{type(error).__name__}: {error}") from error


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _refuse_file(file, error.strerror or str(error)) from error


def _check_form(file: Path, pixels: Any, labels: Any) -> tuple[Any, Any]:
    if pixels.ndim != 2 or pixels.shape != (len(labels), PIXELS) or labels.min() < 0 or labels.max() >= CLASSES:
        raise _refuse_file(file, "its images or labels have another form")
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _refuse_file(file: Path, why: str) -> ConfigError:
    return ConfigError(
        "this is not a file of CIFAR-10", where=str(file), why=why, next="unpack the published archive again"
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickle arrays and nothing else: a pickle from elsewhere may start any program."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of arrays by its name, also by the one it had in numpy 1. Raises UnpicklingError."""
        now = NUMPY.get(module, module)
        if name in ALLOWED.get(now, ()):
            return super().find_class(now, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")


def _make_pictures(pixels: Any, labels: Any) -> Pictures:
    return Pictures(torch.from_numpy(pixels.copy()), torch.from_numpy(labels), MEAN, DEVIATION)


def _draw_stand_in(train: int, test: int, seed: int) -> Data:
    """Return classes that differ by their mean colours in sixteen fields, in noise: there is something to learn."""
    generator = np.random.default_rng(seed)
    means = generator.integers(64, 192, (CLASSES, 3, 4, 4))
    parts = []
    for count in (train, test):
        labels = generator.integers(0, CLASSES, count)
        pixels = np.repeat(np.repeat(means[labels].astype(np.int16), 8, axis=2), 8, axis=3)
        pixels += generator.integers(-48, 48, pixels.shape, dtype=np.int16)
        parts.append(_make_pictures(pixels.clip(0, 255).astype(np.uint8), labels))
    return Data(parts[0], parts[1], parts[1], Source(MEMORY, real=False, samples=train))


def read_fashion_mnist(folder: Path = FASHION_FOLDER, *, train: int = 0, test: int = 0) -> Data:
    """Return Fashion-MNIST, or the first pictures of it. Raises ConfigError where it is not installed."""
    parts = []
    for name, most in (("train", train), ("t10k", test)):
        pixels = _read_words(folder / f"{name}-images-idx3-ubyte.gz", FASHION_IMAGES)[: most or None]
        labels = _read_words(folder / f"{name}-labels-idx1-ubyte.gz", FASHION_LABELS)[: most or None]
        framed = torch.from_numpy(np.pad(pixels, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, axis=1))
        parts.append(Pictures(framed, torch.from_numpy(labels.astype(np.int64)), FASHION_MEAN, FASHION_DEVIATION))
    return Data(parts[0], parts[1], parts[1], Source(FASHION, real=True, samples=len(parts[0]), where=str(folder)))


def _read_words(file: Path, magic: int) -> Any:
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
        raise ConfigError("this is not a file of Fashion-MNIST", where=str(file), why="its header is of another form")
    return np.frombuffer(raw, dtype=np.uint8, offset=words.nbytes).reshape([int(n) for n in words[1:]])
