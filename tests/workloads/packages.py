"""Install packages that bring workloads, as pip would."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def outside(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Install a package with the workload `their-own`."""
    (folder / "theirs.py").write_text(source)
    info = folder / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[joulelab.workloads]\ntheir-own = theirs\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
