from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.remote.child import Setters, children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def remote() -> Iterator[Callable[..., Setters]]:
    """Open the setters of a family in another process with more environment."""
    with children() as start:

        def opened(family: str, environment: dict[str, str] | None = None, *path: Path, **more: str) -> Setters:
            return Setters(start("setter", family, environment=(environment or {}) | more, path=tuple(map(str, path))))

        yield opened
