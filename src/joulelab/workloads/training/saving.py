"""Save and load trained models, and write predictions; a file is there whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from joulelab.core.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.workloads.training.ranks import Ranks

NO, TEMPORARY = "no", "temporary"
FULL = "is the disk full?"
VALUE_BYTES = 10  # of a predicted value as text


def check_file(given: Mapping[str, str], key: str) -> None:
    """Refuse a file that cannot be written: that would be known only after the training. Raises ConfigError."""
    asked = given.get(key, NO)
    if asked in (NO, TEMPORARY):
        return
    path = Path(asked).expanduser()
    why = (
        "it is a folder"
        if path.is_dir()
        else "it is not a plain file"
        if path.exists() and not path.is_file()
        else None
    )
    if not os.access(path.parent, os.W_OK):
        why = f"{path.parent} cannot be written to" if path.parent.is_dir() else f"there is no folder {path.parent}"
    if why:
        raise ConfigError(f"{key} is {asked!r}", why=why, next=f"name a file, {TEMPORARY} or {NO}")


def check_room(asked: str, values: int) -> None:
    """Refuse predictions that the disk has no room for: that would be known only at the end. Raises ConfigError."""
    folder = Path(tempfile.gettempdir()) if asked == TEMPORARY else Path(asked).expanduser().absolute().parent
    needed, free = values * VALUE_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        why = f"they take about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        then = f"give predictions={NO} or a file on another disk, or set TMPDIR"
        raise ConfigError("there is no room for the predictions", where=str(folder), why=why, next=then)


def load_model(model: torch.nn.Module, asked: str) -> None:
    """Give a model what a file that `save` wrote has learned. Raises ConfigError."""
    wrong: list[str] = []
    try:
        state = torch.load(Path(asked).expanduser(), map_location="cpu", weights_only=True, mmap=True)
        shapes = [{k: tuple(v.shape) for k, v in one.items()} for one in (state, model.state_dict())]
        wrong = sorted(dict(shapes[0].items() ^ shapes[1].items()))
        model.load_state_dict(state)
    except (OSError, RuntimeError, ValueError, EOFError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        why = " ".join(str(error).split()).partition(". ")[0] or type(error).__name__
        if wrong:
            why = f"it is no {type(model).__name__} of these settings: {wrong[0]} differs or is missing"
        then = "name a file that save= wrote, of a model with the same settings"
        raise ConfigError("cannot load the model", where=asked, why=why, next=then) from error


def write_predictions(
    batches: Sequence[torch.Tensor], columns: Sequence[str], asked: str, ranks: Ranks, samples: int
) -> None:
    """Write predictions as CSV, a row for each sample with its number, as often as it was predicted. Raises StoreError.

    `samples` is how many there are over all ranks, of which each rank has every `ranks.count`-th. With several ranks
    each writes a file of its own.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="joulelab-predictions-"))
        path = Path(folder) / "predictions.csv" if asked == TEMPORARY else Path(asked).expanduser()
        if ranks.count > 1:
            path = path.with_name(f"{path.stem}-rank{ranks.rank}{path.suffix}")
        why = ""
        try:
            with open_whole(path) as file:
                file.write(f"sample,{','.join(columns)}\n".encode())
                form = ",".join(["%d", *["%.8g"] * len(columns)]) + "\n"
                numbers = itertools.cycle(range(ranks.rank, samples, ranks.count))
                for batch in batches:
                    rows = zip(batch.cpu().tolist(), numbers, strict=False)
                    file.writelines((form % (number, *row)).encode() for row, number in rows)
        except OSError as error:
            why = f"{type(error).__name__}: {error}"
        if ranks.is_any(bool(why)):
            raise StoreError("cannot write the predictions", where=asked, why=why or "another rank failed", next=FULL)


def save_model(model: torch.nn.Module, asked: str, ranks: Ranks) -> None:
    """Save what a model has learned; all ranks take part. Raises StoreError."""
    if asked == NO:
        return
    state = _gather_state(model, ranks)
    why = ranks.find_once(lambda: _try_write(state, asked))
    if why:
        raise StoreError("the model cannot be saved", where=asked, why=why, next=FULL)


def _try_write(state: dict[str, Any], asked: str) -> str:
    """Write what a model has learned; return why that failed, empty where it did not."""
    try:
        if asked == TEMPORARY:
            with tempfile.TemporaryDirectory(prefix="joulelab-model-") as folder:
                _write_state(state, Path(folder) / "model.pt")
        else:
            _write_state(state, Path(asked).expanduser())
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _gather_state(model: torch.nn.Module, ranks: Ranks) -> dict[str, Any]:
    if ranks.count == 1:
        return dict(model.state_dict())
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))


def _write_state(state: dict[str, Any], file: Path) -> None:
    with open_whole(file) as opened:
        torch.save(state, opened)


@contextlib.contextmanager
def open_whole(file: Path) -> Iterator[IO[bytes]]:
    """Open a file to write that appears under its name when it is complete and on disk."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with part.open("wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
