from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pytest
from tests.store.make import NOBODY, START_NS, close_run, gpus, make_run, open_journal, ramp, write_rows

from joulelab.store.journal import pack_row
from joulelab.store.run_folder import RunState, read_run_state
from joulelab.store.run_reader import Run, open_run
from joulelab.store.seal import LOCK, seal_run

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path])}


def names(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "node1").iterdir() if p.is_file())


def content(run: Path | Run) -> list[tuple[str, str, bytes]]:
    opened = run if isinstance(run, Run) else open_run(run)
    found = []
    for info in opened.tables():
        for stream in info.streams:
            s = opened.series(info, stream.name)
            columns = [s.t0_ns, s.t1_ns, s.segment, *s.values.values()]
            found.append((info.meter, stream.name, b"".join(np.ascontiguousarray(c).tobytes() for c in columns)))
    return found


def test_sealing_changes_nothing_that_is_read(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(3), ramp(100, streams=3))
    write_rows(run, gpus(3), ramp(50, streams=3, start_ns=START_NS + 10**9), segment=1)
    write_rows(run, gpus(2), ramp(10), meter="rapl")
    close_run(run)
    opened = open_run(run)
    before, infos = content(opened), opened.tables()
    assert seal_run(run).sealed == ("node1/nvml.fast", "node1/rapl.fast")
    assert names(run) == [LOCK, "nvml.fast.parquet", "rapl.fast.parquet"]
    assert content(opened) == before
    assert opened.tables() == infos
    assert seal_run(opened) == seal_run(run)
    assert seal_run(run).sealed == ()
    assert content(opened) == before


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("chunk_rows", [1, 7, 64, 1000])
def test_pieces_do_not_show(runs: Path, chunk_rows: int) -> None:
    run = make_run(runs)
    write_rows(run, gpus(3), ramp(40, streams=3))
    write_rows(run, gpus(2), [], segment=1)
    write_rows(run, gpus(2), ramp(24, start_ns=START_NS + 10**9), segment=3)
    before = content(run)
    assert seal_run(run, chunk_rows=chunk_rows).sealed == ("node1/nvml.fast",)
    assert content(run) == before


def test_streams_lie_together(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(3), ramp(30, streams=3))
    seal_run(run)
    rows = duckdb.sql(f"SELECT stream, scope, segment, t0_ns FROM '{run}/node1/nvml.fast.parquet'").fetchall()
    assert rows == sorted(rows)
    assert rows[0][:3] == ("gpu0", "gpu:0", 0)


def test_a_live_run_is_left_alone(runs: Path) -> None:
    run = make_run(runs, owner=None)
    write_rows(run, gpus(), ramp(4))
    assert seal_run(run).left == ((run.name, "still recording"),)
    assert names(run) == ["nvml.fast.0.journal"]


def test_a_journal_that_is_still_written_is_left_alone(runs: Path) -> None:
    run = make_run(runs)
    close_run(run)
    write_rows(run, gpus(), ramp(4), meter="rapl")
    with open_journal(run, gpus()) as journal:
        journal.append_rows(pack_row(journal.row, *ramp(1)[0]))
        report = seal_run(run)
        assert report.sealed == ("node1/rapl.fast",)
        assert report.left == (("node1/nvml.fast", "still being written"),)
        journal.append_rows(pack_row(journal.row, *ramp(2)[1]))
    assert seal_run(run).sealed == ("node1/nvml.fast",)
    assert sum(i.rows for i in open_run(run).tables()) == 6


def test_a_later_segment_joins_the_sealed_ones(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(2), ramp(10))
    seal_run(run)
    write_rows(run, gpus(3), ramp(9, streams=3, start_ns=START_NS + 10**9), segment=1)
    before = content(run)
    assert [s[1] for s in before] == ["gpu0", "gpu1", "gpu2"]
    assert seal_run(run).sealed == ("node1/nvml.fast",)
    assert content(run) == before
    assert names(run) == [LOCK, "nvml.fast.parquet"]


def test_journals_left_by_a_killed_sealer_are_not_counted_twice(runs: Path) -> None:
    run = make_run(runs)
    path = write_rows(run, gpus(), ramp(10))
    journal, before = path.read_bytes(), content(run)
    seal_run(run)
    path.write_bytes(journal)  # Killed after the rename, before the journals went.
    (run / "node1" / ".seal-1-abcd-0").write_bytes(b"part of a file")
    assert content(run) == before
    assert seal_run(run).sealed == ()
    assert names(run) == [LOCK, "nvml.fast.parquet"]
    assert content(run) == before


def test_a_damaged_parquet_file_costs_no_journals(runs: Path) -> None:
    run = make_run(runs)
    path = write_rows(run, gpus(), ramp(10))
    broken = run / "node1" / "nvml.fast.parquet"
    broken.write_bytes(b"PAR1 not really PAR1")
    before = content(run)
    assert len(before) == 2
    opened = open_run(run)
    assert [p.path for p in opened.problems()] == [broken]
    report = seal_run(run)
    assert report.sealed == ()
    assert "damaged" in report.left[0][1]
    assert path.exists()
    assert content(run) == before


def test_a_foreign_parquet_file_is_a_problem_not_a_table(runs: Path) -> None:
    run = make_run(runs)
    duckdb.sql("SELECT 1 AS x").write_parquet(f"{run}/node1/other.table.parquet")
    opened = open_run(run)
    assert opened.tables() == []
    assert len(opened.problems()) == 1


@pytest.mark.system
def test_a_read_only_disk_is_read_without_a_seal(tiny_disk: Path) -> None:
    run = make_run(tiny_disk)
    write_rows(run, gpus(), ramp(10))
    close_run(run)
    before = content(run)
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    assert seal_run(run).left == (("node1", "Read-only file system"),)
    assert content(run) == before
    assert names(run) == ["nvml.fast.0.journal"]


def test_a_folder_of_somebody_else_is_read_without_a_seal(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rows(run, gpus(), ramp(10))
    close_run(run)
    before = content(run)
    (run / "node1").chmod(0o555)
    try:
        # Root may write anywhere: become nobody for the while, with the folders above open to all.
        with _nobody(tmp_path):
            assert seal_run(run).left == (("node1", "it belongs to another user"),)
            assert content(run) == before
    finally:
        (run / "node1").chmod(0o755)
    assert names(run) == ["nvml.fast.0.journal"]


@contextlib.contextmanager
def _nobody(folder: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    closed = [(p, p.stat().st_mode) for p in [folder, *folder.parents] if p.stat().st_mode & 0o011 != 0o011]
    for path, mode in closed:
        path.chmod(mode | 0o055)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for path, mode in closed:
            path.chmod(mode)


SEALER = """
import sys
from pathlib import Path
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run
run = Path(sys.argv[1])
opened = open_run(run)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    report = seal_run(run, chunk_rows=500)
    infos = opened.tables()
    counts = [len(opened.series(info, s.name)) for info in infos for s in info.streams]
    assert counts == [5000] * 8, counts
print(len(report.left), flush=True)
"""


@pytest.mark.system
def test_two_processes_seal_and_read_at_once(runs: Path) -> None:
    run = make_run(runs)
    for meter in ("nvml", "rapl"):
        write_rows(run, gpus(4), ramp(10_000, streams=4), meter=meter)
        write_rows(run, gpus(4), ramp(10_000, streams=4, start_ns=START_NS + 10**10), meter=meter, segment=1)
    close_run(run)
    before = content(run)
    command = [sys.executable, "-c", SEALER, str(run), "3"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    sealers = [subprocess.Popen(command, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for sealer in sealers:
        assert sealer.stdout.readline() == "ready\n"
    for sealer in sealers:
        sealer.stdin.write("go\n")
        sealer.stdin.flush()
    for sealer in sealers:
        sealer.communicate(timeout=600)
        assert sealer.returncode == 0
    seal_run(run)
    assert names(run) == [LOCK, "nvml.fast.parquet", "rapl.fast.parquet"]
    assert content(run) == before


def test_waiting_for_another_sealer(runs: Path) -> None:
    import fcntl

    run = make_run(runs)
    write_rows(run, gpus(), ramp(10))
    with (run / "node1" / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert seal_run(run).left == (("node1", "being sealed by another process"),)
        waiting = threading.Thread(target=seal_run, args=(run,), kwargs={"wait": True})
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(120)
    assert names(run) == [LOCK, "nvml.fast.parquet"]


WRITER = """
import sys
from pathlib import Path
from joulelab.store.run_folder import identify_owner
from joulelab.store.journal import pack_row
from tests.store.make import START_NS, gpus, make_run, open_journal, ramp
run = make_run(Path(sys.argv[1]), owner=identify_owner())
journal = open_journal(run, gpus())
print(run, flush=True)
for k in range(0, 6_000_000, 6):
    rows = [pack_row(journal.row, *row) for row in ramp(6, start_ns=START_NS + 1000 * k)]
    journal.append_rows(b"".join(rows[:3]))
    journal.append_rows(b"".join(rows[3:]))
    if k == 3000:
        print("going", flush=True)
sys.stdin.read()
"""


@pytest.mark.system
def test_kill_9_of_the_writer(runs: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(runs)]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([".", ENVIRONMENT["PYTHONPATH"]])}
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert writer.stdout is not None
    run = Path(writer.stdout.readline().strip())
    assert writer.stdout.readline() == "going\n"
    opened = open_run(run)
    assert opened.state is RunState.LIVE
    live = opened.tables()[0].rows
    writer.kill()
    writer.communicate()
    assert read_run_state(run) is RunState.KILLED
    (info,) = opened.tables()
    assert info.rows >= live >= 3000
    before = content(run)
    assert seal_run(run).sealed == ("node1/nvml.fast",)
    assert content(run) == before
    times = [opened.series(info, s).t0_ns for s in ("gpu0", "gpu1")]
    assert np.array_equal(np.sort(np.concatenate(times)), START_NS + 1000 * np.arange(info.rows))


KILLED_SEALER = """
import os, pathlib, signal, sys
from joulelab.store import seal as module
whole = module.read_chunks
def cut(*given):
    for number, chunk in enumerate(whole(*given)):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield chunk
module.read_chunks = cut
module.seal_run(pathlib.Path(sys.argv[1]), chunk_rows=100)
"""


@pytest.mark.system
def test_kill_9_of_the_sealer(runs: Path) -> None:
    run = make_run(runs, owner=NOBODY)
    write_rows(run, gpus(4), ramp(4_000, streams=4))
    close_run(run)
    before = content(run)
    done = subprocess.run([sys.executable, "-c", KILLED_SEALER, str(run)], env=ENVIRONMENT)
    assert done.returncode == -9
    assert list((run / "node1").glob(".seal-*"))
    assert content(run) == before
    assert seal_run(run).sealed == ("node1/nvml.fast",)
    assert names(run) == [LOCK, "nvml.fast.parquet"]
    assert content(run) == before
