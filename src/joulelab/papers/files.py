"""Find the study files that come with joulelab."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import joulelab
from joulelab.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence


def folders() -> list[Path]:
    """Return where study files are: within the installed package, or beside the source tree."""
    package = Path(joulelab.__file__).resolve().parent
    return [package / "studies", package.parents[1] / "studies"]


def study_file(name: str, among: Sequence[Path] | None = None) -> Path:
    """Return the path of a study file (`gdansk.toml`). Raises StoreError where it is not installed."""
    tried = folders() if among is None else among
    for folder in tried:
        if (folder / name).is_file():
            return folder / name
    why = f"it is not in {' nor in '.join(str(folder) for folder in tried)}"
    raise StoreError(f"the study file {name} is not there", why=why, next="install joulelab again")
