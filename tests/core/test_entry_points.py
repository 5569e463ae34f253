"""Entry points of outside packages are found in folders and archives on the path."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from joulelab.core import entry_points
from joulelab.core.entry_points import list_entry_points

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"METADATA": "Name: outside\nVersion: 1\n", "entry_points.txt": "[joulelab.tests]\none = outside:one\n"}


@pytest.mark.parametrize("is_archive", [False, True])
def test_the_entry_points_of_a_group_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_archive: bool
) -> None:
    assert list_entry_points("joulelab.tests") == ()
    place = tmp_path / "outside.zip" if is_archive else tmp_path / "packages"
    if is_archive:
        with zipfile.ZipFile(place, "w") as archive:
            for name, text in FILES.items():
                archive.writestr(f"outside-1.dist-info/{name}", text)
    else:
        (place / "outside-1.dist-info").mkdir(parents=True)
        for name, text in FILES.items():
            (place / "outside-1.dist-info" / name).write_text(text)
    monkeypatch.syspath_prepend(str(place))
    assert [(p.name, p.value) for p in list_entry_points("joulelab.tests")] == [("one", "outside:one")]
    assert list_entry_points("joulelab.other") == ()


def test_a_file_that_cannot_be_read_may_have_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside-1.dist-info" / "entry_points.txt").mkdir(parents=True)
    assert entry_points._may_have_group(str(tmp_path), b"[joulelab.tests]")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert list_entry_points("joulelab.tests") == ()
