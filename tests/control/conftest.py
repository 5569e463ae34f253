from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.control.fake import Files, world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def fakes(tmp_path: Path) -> tuple[dict[str, str], Files]:
    return world(tmp_path)


@pytest.fixture
def environ(fakes: tuple[dict[str, str], Files]) -> dict[str, str]:
    return fakes[0]


@pytest.fixture
def files(fakes: tuple[dict[str, str], Files]) -> Files:
    return fakes[1]
