from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "tiny"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "joulelab-test", disk], capture_output=True)
    if made.returncode:
        pytest.skip(f"cannot mount a tiny tmpfs (needs root): {made.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)
