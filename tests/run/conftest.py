"""Fixtures of the supervisor's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.run.supervised import Bench

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
