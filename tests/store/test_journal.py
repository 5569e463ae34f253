from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.codes import raises_code
from tests.rows import every_row
from tests.store.make import Row, close_run, fields, gpus, make_run, open_journal, ramp, write_rows

from joulelab.core.errors import WriteFailed
from joulelab.core.spec import Spec
from joulelab.store.journal import (
    PREFIX,
    JournalWriter,
    make_journal_path,
    make_row_struct,
    pack_header,
    pack_row,
    read_header,
)
from joulelab.store.run_reader import open_run
from joulelab.store.safe_files import is_being_written
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path

times = st.integers(min_value=1, max_value=2**62)
rows = st.lists(
    st.tuples(st.integers(0, 1), times, st.integers(0, 10**9), st.lists(st.floats(width=64), min_size=2, max_size=2)),
    max_size=40,
)


@pytest.mark.system  # pure, and slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows)
@example([(0, 1, 0, [0.0, math.nan]), (0, 2, 0, [-0.0, math.inf]), (1, 2**62, 0, [math.nan, math.nan])])
def test_rows_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, drawn: list[Row]) -> None:
    written = [(i, t0, t0 + took, values) for i, t0, took, values in drawn]
    run = make_run(tmp_path_factory.mktemp("runs"))
    write_rows(run, gpus(), written)
    from_journal = _read(run)
    close_run(run)
    assert seal_run(run).sealed == ("node1/nvml.fast",)
    assert from_journal == _read(run) == _expected(written)


def _read(run: Path) -> list[list[tuple[int, int, bytes]]]:
    opened = open_run(run)
    (info,) = opened.tables()
    found = []
    for stream in info.streams:
        s = opened.series(info, stream.name)
        packed = [struct.pack("<dd", e, p) for e, p in zip(s.values["energy"], s.values["power"], strict=True)]
        found.append(list(zip(s.t0_ns.tolist(), s.t1_ns.tolist(), map(_plain, packed), strict=True)))
    return found


def _expected(written: list[Row]) -> list[list[tuple[int, int, bytes]]]:
    mine = [[(t0, t1, _plain(struct.pack("<dd", *v))) for i, t0, t1, v in written if i == k] for k in range(2)]
    return [sorted(rows, key=lambda row: row[0]) for rows in mine]


def _plain(packed: bytes) -> bytes:
    # One NaN is like another, and DuckDB before 1.3 writes -0.0 as 0.0.
    return struct.pack("<dd", *(math.nan if math.isnan(v) else v + 0.0 for v in struct.unpack("<dd", packed)))


@pytest.mark.system  # pure, and slow
def test_torn_at_every_byte(runs: Path) -> None:
    run = make_run(runs)
    path = write_rows(run, gpus(), ramp(6))
    whole = path.read_bytes()
    start = read_header(path).data_offset
    size = make_row_struct(2).size
    assert (len(whole) - start) == 6 * size
    opened = open_run(run)
    for length in [*range(16), *range(16, start, 97), *range(start - 3, len(whole) + 1)]:
        path.write_bytes(whole[:length])
        tables = opened.tables()
        if length < start:
            assert tables == []
            assert [p.path for p in opened.problems()] == [path]
            continue
        count, torn = divmod(length - start, size)
        (info,) = tables
        assert info.rows == count
        assert sum(len(opened.series(info, s)) for s in ("gpu0", "gpu1")) == count
        assert bool(opened.problems()) == bool(torn)


def test_rows_start_at_a_multiple_of_eight() -> None:
    for count in range(1, 9):
        assert len(pack_header(fields(), gpus(count))) % 8 == 0


def test_header_round_trip(runs: Path) -> None:
    path = write_rows(make_run(runs), gpus(3), [], segment=7)
    header = read_header(path)
    assert header.streams == tuple(gpus(3))
    assert (header.meter, header.table, header.segment, header.host) == ("nvml", "fast", 7, "node1")
    assert header.columns == ("energy", "power")
    assert pack_header(fields(7), header.streams) == path.read_bytes()


@every_row(
    "content",
    [b"", b"JLJ1", b"XXXX\x02\0\0\0{}", PREFIX.pack(b"JLJ1", 2**31), PREFIX.pack(b"JLJ1", 2) + b"[]",
     PREFIX.pack(b"JLJ1", 12) + b'{"schema":1}', PREFIX.pack(b"JLJ1", 4) + b"\0\0\0\0"],
)  # fmt: skip
def test_damaged_header_is_a_store_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.b.0.journal"
    path.write_bytes(content)
    with raises_code("store.bad-journal"):
        read_header(path)


def test_newer_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.b.0.journal"
    path.write_bytes(PREFIX.pack(b"JLJ1", 12) + b'{"schema":9}')
    with raises_code("newer-schema"):
        read_header(path)


def test_a_journal_is_never_overwritten(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(), ramp(2))
    with raises_code("write-failed") as caught:
        open_journal(run, gpus())
    assert isinstance(caught.value, WriteFailed)
    assert caught.value.errno == errno.EEXIST


def test_part_of_a_row_is_refused(runs: Path) -> None:
    with open_journal(make_run(runs), gpus()) as journal, raises_code("store.torn-rows"):
        journal.append_rows(b"\0" * 39)


def test_the_writer_holds_the_journal(runs: Path) -> None:
    journal = open_journal(make_run(runs), gpus())
    assert is_being_written(journal.path)
    journal.close()
    journal.close()
    assert not is_being_written(journal.path)
    assert not is_being_written(journal.path.with_name("gone"))


@every_row("name", ["", "a.b", "../a", "a/b", "-a"])
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with raises_code("store.bad-name"):
        make_journal_path(tmp_path, name, "fast", 0)


def test_streams_of_one_table_agree() -> None:
    clash = [Spec("Power", "power", "W"), Spec("power", "power", "W")]
    other = [gpus(1)[0], gpus(2, [Spec("x", "x", "")])[1]]
    for streams, code in (
        ([], "store.no-streams"),
        ([gpus(1)[0], gpus(1)[0]], "store.name-clash"),
        (gpus(1, clash), "store.name-clash"),
        (gpus(1, [Spec("run", "x", "")]), "store.name-clash"),
        (other, "store.channels-differ"),
    ):
        with raises_code(code):
            pack_header(fields(), streams)


def _fill(journal: JournalWriter) -> tuple[int, WriteFailed]:
    """Append batches of seven rows until the disk is full; return rows in the file, and the error."""
    batch = b"".join(pack_row(journal.row, *row) for row in ramp(7))
    try:
        for _ in range(10_000):
            journal.append_rows(batch)
    except WriteFailed as error:
        return journal.rows, error
    pytest.fail("the disk did not fill")


def _check_full(journal: JournalWriter, codes: set[int], more_room: object) -> None:
    rows, error = _fill(journal)
    assert error.errno in codes
    assert 0 <= error.rows_written < 7
    start = read_header(journal.path).data_offset
    assert journal.path.stat().st_size == start + rows * journal.row.size, "cut back to the last whole row"
    assert callable(more_room)
    more_room()
    journal.append_rows(pack_row(journal.row, 1, 1, 2, [3.0, 4.0]))
    journal.sync()
    assert journal.rows == rows + 1
    assert journal.path.read_bytes().endswith(pack_row(journal.row, 1, 1, 2, [3.0, 4.0]))


def test_file_size_limit_like_a_full_disk(runs: Path) -> None:
    run = make_run(runs)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_journal(run, gpus()) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_001, old[1]))
        try:
            _check_full(journal, {errno.EFBIG}, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, old))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_no_room_for_the_header_leaves_no_file(runs: Path) -> None:
    run = make_run(runs)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        with raises_code("write-failed.no-space"):
            open_journal(run, gpus())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert list(run.glob("*/*.journal")) == []
    write_rows(run, gpus(), ramp(2))


@pytest.mark.system
def test_full_disk(tiny_disk: Path) -> None:
    run = make_run(tiny_disk)
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"x" * 8192)
    with open_journal(run, gpus()) as journal:
        _check_full(journal, {errno.ENOSPC}, ballast.unlink)
    opened = open_run(run)
    (info,) = opened.tables()
    assert info.rows == journal.rows
    assert opened.problems() == []


@pytest.mark.system
def test_seal_on_a_full_disk_changes_nothing(tiny_disk: Path) -> None:
    run = make_run(tiny_disk)
    path = write_rows(run, gpus(), ramp(200))
    close_run(run)
    ballast = tiny_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    report = seal_run(run)
    assert report.sealed == ()
    assert report.left
    assert path.exists()
    assert [p.name for p in (run / "node1").iterdir() if p.name.startswith(".seal-")] == []
    ballast.unlink()
    assert seal_run(run).sealed
    assert not path.exists()


@pytest.mark.system
def test_journal_needs_neither_numpy_nor_duckdb() -> None:
    code = (
        "import sys, joulelab.store.journal, joulelab.store.run_folder; print({'numpy', 'duckdb'} & set(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "set()"
