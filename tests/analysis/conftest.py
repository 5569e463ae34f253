from __future__ import annotations

import pytest
from tests.analysis.folders import Folder, gpu
from tests.analysis.loads import FAST, joules, mean


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def node(folder):
    """Hold one GPU that is the whole load: a node draws twice its power and 300 W."""
    return folder.add("nvml", gpu(0), FAST, joules(FAST), mean(FAST - 0.05, 0.1))
