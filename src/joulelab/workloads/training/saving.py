"""Save a trained model, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from joulelab.core.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from joulelab.workloads.training.ranks import Ranks

NO, TEMPORARY = "no", "temporary"


def check_file(asked: str) -> None:
    """Refuse a file that cannot be written: that would be known only after the training. Raises ConfigError."""
    if asked in (NO, TEMPORARY):
        return
    path = Path(asked).expanduser()
    why = "it is a folder" if path.is_dir() else "it is no plain file" if path.exists() and not path.is_file() else None
    if not os.access(path.parent, os.W_OK):
        why = f"{path.parent} cannot be written to" if path.parent.is_dir() else f"there is no folder {path.parent}"
    if why:
        raise ConfigError(f"save is {asked!r}", why=why, next=f"name a file, {TEMPORARY} or {NO}")


def save(model: torch.nn.Module, asked: str, ranks: Ranks) -> None:
    """Save what a model has learned; all ranks take part. Raises StoreError."""
    if asked == NO:
        return
    state = _state(model, ranks)
    why = ranks.tell(lambda: _written(state, asked))
    if why:
        raise StoreError("the model cannot be saved", where=asked, why=why, next="is the disk full?")


def _written(state: dict[str, Any], asked: str) -> str:
    """Write what a model has learned; return why that failed, empty where it did not."""
    try:
        if asked == TEMPORARY:
            with tempfile.TemporaryDirectory(prefix="joulelab-model-") as folder:
                _write(state, Path(folder) / "model.pt")
        else:
            _write(state, Path(asked).expanduser())
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _state(model: torch.nn.Module, ranks: Ranks) -> dict[str, Any]:
    if ranks.count == 1:
        return dict(model.state_dict())
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))


def _write(state: dict[str, Any], file: Path) -> None:
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with part.open("wb") as opened:
            torch.save(state, opened)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
