from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.rows import every_row

from joulelab.core.errors import Denied, DeviceLost, ReadFailed
from joulelab.instruments.sysfs import OpenFile, explain_read_error, read_number, read_text


def test_reads_from_the_start_each_time(tmp_path):
    path = tmp_path / "n"
    path.write_text("12\n")
    file = OpenFile(path, "x")
    assert file.read_number() == 12
    path.write_text("345\n")
    assert file.read_number() == 345
    file.close()
    file.close()
    assert file.read_number() == 345  # opened again


def test_a_replaced_file_is_opened_again(tmp_path):
    path = tmp_path / "n"
    path.write_text("1")
    file = OpenFile(path, "x")
    (tmp_path / "new").write_text("2")
    (tmp_path / "new").replace(path)
    assert file.read_number() == 2
    path.unlink()
    with pytest.raises(DeviceLost):
        file.read_number()


def test_a_missing_file_is_lost(tmp_path):
    with pytest.raises(DeviceLost, match="is gone"):
        OpenFile(tmp_path / "none", "x")


@every_row(
    ("number", "kind"),
    [
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.ENODEV, DeviceLost),
        (errno.EIO, ReadFailed),
        (None, ReadFailed),
    ],
)
def test_errors_are_typed(number, kind):
    error = explain_read_error(OSError(number, "x") if number else OSError("odd"), Path("/p"), "rapl")
    assert type(error) is kind
    assert error.why
    assert error.next


def test_small_facts(tmp_path):
    (tmp_path / "a").write_text(" 7\n")
    (tmp_path / "b").write_text("seven")
    assert read_text(tmp_path / "a") == "7"
    assert read_number(tmp_path / "a") == 7
    assert read_number(tmp_path / "b") is None
    assert read_text(tmp_path / "c") is None
    assert read_number(tmp_path / "c") is None
