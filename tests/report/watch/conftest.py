"""A run that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import epochs, make_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return make_run(tmp_path, state="live", seconds=20.0, marks=epochs(4, 20.0), name="training", core=True)
