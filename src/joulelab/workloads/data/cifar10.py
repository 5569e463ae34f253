"""Read CIFAR-10 from its published files, or make images of the same shape: uint8, 3 x 32 x 32, ten classes."""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from joulelab.core.errors import ConfigError
from joulelab.workloads.data.pictures import Pictures
from joulelab.workloads.data.source import FILES, MEMORY, Data, Source, choose_source, name_data

if TYPE_CHECKING:
    from pathlib import Path

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


def open_cifar10(asked: str, *, train: int, test: int, seed: int) -> Data:
    """Return CIFAR-10, or a stand-in of `train` and `test` images. Raises ConfigError."""
    chosen = choose_source(asked, FOLDERS, otherwise=MEMORY, named=["fashion-mnist"])
    if chosen in (FILES, MEMORY):
        if chosen == FILES:
            why = "CIFAR-10 lies in memory whole, so files would cost nothing more"
            raise ConfigError(f"data is {FILES!r}", why=why, next=f"give data={MEMORY}")
        return _synthetic(train, test, seed)
    assert not isinstance(chosen, str)
    return _folder(chosen)


def _folder(given: Path) -> Data:
    """Return the images of a folder, or of the published folder inside it."""
    for folder in (given, *(given / name for name in FOLDERS)):
        for reader, suffix in ((_binary, ".bin"), (_pickled, "")):
            if (folder / f"{TEST[0]}{suffix}").is_file():
                parts = [[folder / f"{name}{suffix}" for name in names] for names in (TRAIN, TEST)]
                (x, y), (tx, ty) = ([np.concatenate(a) for a in zip(*map(reader, p), strict=True)] for p in parts)
                each = tuple(np.bincount(labels, minlength=CLASSES).tolist() for labels in (y, ty))
                name = name_data(NAME, sums=not suffix and _has_sums(folder), counts=each == IMAGES)
                source = Source(name, real=True, samples=len(y), where=str(folder))
                return Data(_pictures(x, y, changed=True), _pictures(tx, ty), _pictures(tx, ty), source)
    then = f"unpack {' or '.join(FOLDERS)} there, or name the folder that holds it"
    raise ConfigError("there is no CIFAR-10", where=str(given), why=f"{TEST[0]}.bin is missing", next=then)


def _has_sums(folder: Path) -> bool:
    """Tell whether these are the published files for Python; of the binary ones we know no checksums."""
    sums = {name: hashlib.md5((folder / name).read_bytes(), usedforsecurity=False) for name in PUBLISHED}
    return all(found.hexdigest() == PUBLISHED[name] for name, found in sums.items())


def _binary(file: Path) -> tuple[Any, Any]:
    """Return images and labels of a file of rows: a label, then red, green and blue. Raises ConfigError."""
    raw = np.frombuffer(_bytes(file), dtype=np.uint8)
    if not raw.size or raw.size % (1 + PIXELS):
        raise _broken(file, f"{raw.size} bytes are no rows of {1 + PIXELS}")
    rows = raw.reshape(-1, 1 + PIXELS)
    return _checked(file, rows[:, 1:], rows[:, 0])


def _pickled(file: Path) -> tuple[Any, Any]:
    """Return images and labels of a pickle. Raises ConfigError."""
    try:
        data = _Arrays(io.BytesIO(_bytes(file)), encoding="bytes").load()
        return _checked(file, np.asarray(data[b"data"], dtype=np.uint8), np.asarray(data[b"labels"]))
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(file, f"{type(error).__name__}: {error}") from error


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _broken(file, error.strerror or str(error)) from error


def _checked(file: Path, pixels: Any, labels: Any) -> tuple[Any, Any]:
    if pixels.ndim != 2 or pixels.shape != (len(labels), PIXELS) or labels.min() < 0 or labels.max() >= CLASSES:
        raise _broken(file, "its images or labels have another form")
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _broken(file: Path, why: str) -> ConfigError:
    return ConfigError(
        "this is no file of CIFAR-10", where=str(file), why=why, next="unpack the published archive again"
    )


class _Arrays(pickle.Unpickler):
    """Unpickle arrays and nothing else: a pickle from elsewhere may start any program."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of arrays by its name, also by the one it had in numpy 1. Raises UnpicklingError."""
        now = NUMPY.get(module, module)
        if name in ALLOWED.get(now, ()):
            return super().find_class(now, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")


def _pictures(pixels: Any, labels: Any, *, changed: bool = False) -> Pictures:
    return Pictures(torch.from_numpy(pixels.copy()), torch.from_numpy(labels), MEAN, DEVIATION, changed=changed)


def _synthetic(train: int, test: int, seed: int) -> Data:
    """Return classes that differ by their mean colours in sixteen fields, in noise: there is something to learn."""
    generator = np.random.default_rng(seed)
    means = generator.integers(64, 192, (CLASSES, 3, 4, 4))
    parts = []
    for count, changed in ((train, True), (test, False)):
        labels = generator.integers(0, CLASSES, count)
        pixels = np.repeat(np.repeat(means[labels].astype(np.int16), 8, axis=2), 8, axis=3)
        pixels += generator.integers(-48, 48, pixels.shape, dtype=np.int16)
        parts.append(_pictures(pixels.clip(0, 255).astype(np.uint8), labels, changed=changed))
    return Data(parts[0], parts[1], parts[1], Source(MEMORY, real=False, samples=train))
