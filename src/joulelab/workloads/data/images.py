"""Share what folders of images need: draw synthetic ones, write them once as JPEG files, read an image as a tensor.

A stand-in is written with `make_once(get_cache_folder(NAME), make)`, where `make(folder)` calls `write_jpegs`; the name
has to say everything that the images depend on (count, size, version), for a folder that is there is used as it is.
A Dataset reads with `to_tensor(read_image(file, "RGB", at_least=(299, 299)))`: uint8, channels first. Other transforms
(resize, rotate, crop) go between the two, on the Pillow image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

ENDINGS = (".jpg", ".jpeg", ".png")


class ImageFiles:
    """Be a torch Dataset of labelled files; `read` makes numbers of a file, and can be sent to a loader's process."""

    def __init__(self, labelled: Sequence[tuple[Path, int]], read: Callable[[Path], Any]) -> None:
        self.labelled, self._read = labelled, read

    def __len__(self) -> int:
        return len(self.labelled)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        file, label = self.labelled[index]
        return self._read(file), label


class DrawnImages:
    """Be a torch Dataset of images that were drawn beforehand and come again and again: reading them costs nothing.

    The class of image k is k modulo `classes`; `prepare` makes numbers of its pixels.
    """

    def __init__(
        self,
        drawn: Sequence[NDArray[np.uint8]],
        count: int,
        classes: int,
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        import torch

        self._pixels = torch.stack([to_tensor(image) for image in drawn])
        self._count, self._classes, self._prepare = count, classes, prepare

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        number = index % len(self._pixels)
        pixels = self._pixels[number]
        return self._prepare(pixels) if self._prepare else pixels, number % self._classes


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `make` if it is not there; it appears whole, or not at all.

    Any number of processes may ask at once: one makes it, the others wait. Raises ConfigError where it cannot be
    written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder) as alone:
            if alone:
                _remove_left_over(folder)
            if not folder.is_dir():
                _fill(folder, make)
    except OSError as error:
        advice = "free some space, set XDG_CACHE_HOME to a folder that can be written, or use data=synthetic-memory"
        raise ConfigError("cannot write synthetic files", where=str(folder), why=str(error), next=advice) from error
    return folder


def write_jpegs(
    folder: Path, names: Sequence[str], draw: Callable[[int], NDArray[np.uint8]], *, quality: int = 90
) -> None:
    """Write image k, `draw(k)`, as the file `names[k]`, which may lie in folders of its own; several at a time.

    `draw` gives rows x columns (grey) or rows x columns x 3, and is called from threads in any order: it takes its
    random numbers from k.
    """
    from concurrent.futures import ThreadPoolExecutor

    image_class = import_pillow().Image

    def write(number: int) -> None:
        image_class.fromarray(draw(number)).save(folder / names[number], "JPEG", quality=quality)

    for parent in sorted({(folder / name).parent for name in names}):
        parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for done in [threads.submit(write, number) for number in range(len(names))]:
            done.result()


def draw_field(random: np.random.Generator, rows: int, columns: int, grain: int) -> NDArray[np.float32]:
    """Return a smooth random field between 0 and 1 whose hills are about rows / `grain` pixels wide."""
    images = import_pillow().Image
    coarse = random.random((grain, grain), dtype=np.float32)
    field = images.fromarray(coarse).resize((columns, rows), images.Resampling.BICUBIC)
    return np.clip(np.asarray(field, dtype=np.float32), 0.0, 1.0)


def list_images(folder: Path) -> list[Path]:
    """Return the images of one folder, sorted by name. Raises ConfigError where there is none."""
    found = sorted(f for f in folder.iterdir() if f.suffix.lower() in ENDINGS and not f.name.startswith("."))
    if not found:
        raise ConfigError("there is no image", where=str(folder), next=f"images end in {', '.join(ENDINGS)}")
    return found


def read_image(file: Path, mode: str, at_least: tuple[int, int] | None = None) -> Any:
    """Return a decoded Pillow image in `mode` (`L` or `RGB`). Raises ConfigError naming the file.

    Where a JPEG file is far larger than `at_least` (columns, rows), it is decoded at a half, a quarter or an eighth
    of its size, never below: a third of the cost for X-rays that are to become small.
    """
    library = import_pillow()
    try:
        with library.Image.open(file) as image:
            image.draft(mode, at_least)
            return image.convert(mode)
    except FileNotFoundError as error:
        raise ConfigError("there is no such image", where=str(file), next="put it back") from error
    except (OSError, SyntaxError, ValueError, library.Image.DecompressionBombError) as error:
        advice = "put a whole image there, or remove it"
        raise ConfigError("cannot read the image", where=str(file), why=str(error), next=advice) from error


def to_tensor(image: Any) -> Any:
    """Return a Pillow image as a uint8 tensor: channels x rows x columns."""
    import torch

    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def import_pillow() -> Any:
    """Return Pillow's package with its Image module. Raises MissingDependency."""
    try:
        import PIL.Image
    except ImportError as error:
        advice = "pip install 'joulelab[torch]'"
        raise MissingDependency("images cannot be read", why="Pillow is not installed", next=advice) from error
    return PIL


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Let one process of those that share the disk in; give whether the disk has locks at all."""
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # then each makes its own, and the first to rename wins
            yield False
        else:
            yield True


def _fill(folder: Path, make: Callable[[Path], None]) -> None:
    part = Path(tempfile.mkdtemp(prefix=_part_prefix(folder), dir=folder.parent))
    try:
        make(part)
        part.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster, and has made the same
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove_left_over(folder: Path) -> None:
    """Remove what killed processes of this host have left; those of other hosts may still be writing."""
    for part in folder.parent.glob(f"{_part_prefix(folder)}*"):
        shutil.rmtree(part, ignore_errors=True)


def _part_prefix(folder: Path) -> str:
    return f".{folder.name}.part-{socket.gethostname()}-"
