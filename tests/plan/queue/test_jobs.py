"""Jobs from CSV, Slurm, SWF and runs; every mistake of a file is refused with its line."""

from __future__ import annotations

import datetime as dt
import gzip
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import HOST, make_run
from tests.rows import every_row

from joulelab.analysis.result import CapResult
from joulelab.core.errors import ConfigError
from joulelab.plan.measured_runs import read_measured_run
from joulelab.plan.queue.jobs import JobStream, make_run_stream, read_job_file
from joulelab.plan.queue.site import QueueTable, find_responses
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER = "id,submit,nodes,duration_s,node_w,highest_w,workload\n"
SLURM = "JobID|JobName|Submit|ElapsedRaw|NNodes|ConsumedEnergyRaw|State|\n"
SWF = """; MaxNodes: 4
; MaxProcs: 128
; Note: made up for this test
1 0 5 3600 64 -1 -1 64 7200 -1 1 3 1 7 1 1 -1 -1
2 60.5 0 100 33 -1 -1 33 -1 -1 0 3 1 -1 1 1 -1 -1
3 61 0 -1 32 -1 -1 32 100 -1 5 3 1 7 1 1 -1 -1
4 62 0 50 0 -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1
5 63 0 50 -1 -1 -1 128 100 -1 1 3 1 7 1 1 -1 -1 ; a comment
1 0 5 1800 64 -1 -1 64 7200 -1 2 3 1 7 1 1 -1 -1
"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., JobStream]:
    def read(text: str, name: str = "jobs.csv", **given: float) -> JobStream:
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
        return read_job_file(tmp_path / name, **given)  # type: ignore[arg-type]

    return read


def test_jobs_of_csv_are_ordered_by_submission_and_share_the_error_of_their_meter(
    read: Callable[..., JobStream], tmp_path: Path
) -> None:
    text = (
        f"# Synthetic.\n{HEADER}b,2026-01-05T09:00:00+01:00,2,60,5000,5500,train\n\na,1970-01-01T00:00Z,1,90.5,4000,,\n"
    )
    stream = read(text, accuracy=0.02)
    first, last = stream.jobs
    assert (first.id, first.submit_s, first.nodes, first.duration_s, first.highest_w) == ("a", 0.0, 1, 90.5, None)
    assert last.submit_s == dt.datetime(2026, 1, 5, 8, tzinfo=dt.UTC).timestamp()
    assert (last.node_w.expanded, last.where) == (pytest.approx(100.0), f"{tmp_path}/jobs.csv:3")
    assert set(first.node_w.terms) == set(last.node_w.terms)
    assert (stream.title, stream.workloads) == ("Synthetic.", ("", "train"))
    assert read(text).jobs[0].node_w.expanded is None


def test_slurm_jobs_take_the_energy_of_their_largest_step_if_they_have_none(read: Callable[..., JobStream]) -> None:
    stream = read(
        f"{SLURM}7|train|2026-01-05T10:00:00|86410|4|1728200000|COMPLETED|\n7.batch|batch||86410|1|9|COMPLETED|\n"
        "8|train|2026-01-05T10:00:01|600|2||FAILED|\n8.0|python||600|2|6000000|FAILED|\n8.1|x||600|1|3|FAILED|\n"
        "9|eval|2026-01-05T10:00:02|0|1|0|CANCELLED by 1000|\n10_1|eval|2026-01-05T10:00:03|60|1|0|RUNNING|\n"
    )
    assert [(job.id, job.nodes, job.workload) for job in stream.jobs] == [("7", 4, "train"), ("8", 2, "train")]
    assert [job.node_w.value for job in stream.jobs] == pytest.approx([5000.0, 5000.0])
    assert stream.notes[0].numbers == {"not_run": 1, "unfinished": 1}


@pytest.mark.parametrize("mark", ["", "0", "4294967294", "4294967295", "18446744073709551614"])
def test_marks_of_slurm_for_no_energy_are_not_energies(read: Callable[..., JobStream], mark: str) -> None:
    rows = f"{SLURM}1|a|0|100|2|{mark}|COMPLETED\n1.batch||0|100|1|{mark}|COMPLETED\n"
    assert read(f"{rows}1.0||0|100|2|1200000|COMPLETED\n").jobs[0].node_w.value == pytest.approx(6000.0)
    with pytest.raises(ConfigError, match="the power of job 1 is not known"):
        read(rows)


@pytest.mark.parametrize("name", ["log.swf", "log.swf.gz", "log.txt"])
def test_swf_gives_nodes_and_requested_times_and_leaves_out_what_did_not_run(
    read: Callable[..., JobStream], name: str
) -> None:
    stream = read(SWF, name, node_w=6000.0)
    assert [(j.id, j.submit_s, j.nodes, j.duration_s, j.requested_s, j.workload) for j in stream.jobs] == [
        ("1", 0.0, 2, 3600.0, 7200.0, "app7"), ("2", 60.5, 2, 100.0, None, ""), ("5", 63.0, 4, 50.0, 100.0, "app7"),
    ]  # fmt: skip
    left_out, assumed = stream.notes
    assert left_out.numbers == {"not_run": 2, "parts": 1}
    assert assumed.numbers == {"jobs": 3, "node_w": 6000.0}
    assert [job.nodes for job in read(SWF, name, node_w=6e3, processors=64).jobs] == [1, 1, 2]
    assert {job.node_w.expanded for job in stream.jobs} == {None}  # nobody measured it


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,0,1,10,5000,,", "job a is there twice (first in line 2)"),
        ("b,yesterday,1,10,5000,,", "the submit time is 'yesterday'"),
        ("b,nan,1,10,5000,,", "the submit time is 'nan'"),
        ("b,,1,10,5000,,", "the submit time is ''"),
        ("b,0,1.5,10,5000,,", "nodes is 1.5"),
        ("b,0,-1,10,5000,,", "nodes is '-1'"),
        ("b,0,1,-5,5000,,", "duration_s is '-5'"),
        ("b,0,1,inf,5000,,", "duration_s is 'inf'"),
        ("b,0,1,10,x,,", "node_w is 'x'"),
        ("b,0,1,10,0,,", "node_w is 0"),
        ("b,0,1,10,,,", "the power of job b is not known"),
        ("b,0,1,10,5000,4000,", "highest_w is 4000, below the mean of 5000 W"),
        (",0,1,10,5000,,", "the job has no id"),
        ("b,0", "the line has 2 fields (the header has 7)"),
        ("b,0,1,10,5000,,a,b", "the line has 8 fields (the header has 7)"),
        ("b,1793520000000,1,10,5000,,", "the submit time is '1793520000000'"),
        ("\x1b[31m,0,1,10,x,,", "node_w is 'x'"),
    ],
)
def test_a_wrong_line_of_csv_is_refused_with_its_number_and_advice(
    read: Callable[..., JobStream], row: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"{HEADER}a,0,1,10,5000,,\n{row}\n")
    assert f"jobs.csv:3: {words}" in str(caught.value)
    assert caught.value.next
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("6 64 0 50 32", "the line has 5 fields (SWF has 18)"),
        ("6 64 0 50 32 -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1 -1", "the line has 19 fields"),
        ("6 64 0 long 32 -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1", "duration_s is 'long'"),
        ("6 64 0 inf 32 -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1", "duration_s is 'inf'"),
        ("6 64 0 50 many -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1", "nodes is 'many'"),
        ("6 now 0 50 32 -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1", "the submit time is 'now'"),
        ("6 64 0 50 32 -1 -1 32 soon -1 1 3 1 7 1 1 -1 -1", "requested_s is 'soon'"),
        ("5 64 0 50 32 -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1", "job 5 is there twice (first in line 8)"),
    ],
)
def test_a_wrong_line_of_swf_is_refused_with_its_number(read: Callable[..., JobStream], line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(SWF + line, "log.swf", node_w=6e3)
    assert f"log.swf:10: {words}" in str(caught.value)
    assert caught.value.next


def test_dates_beside_seconds_are_refused(read: Callable[..., JobStream]) -> None:
    with pytest.raises(ConfigError, match=r"seconds in line 2, a date in line 3"):
        read(f"{HEADER}a,0,1,10,5000,,\nb,2026-11-01T08:00:00Z,1,10,5000,,\n")


def test_processors_that_count_as_nodes_are_noted(read: Callable[..., JobStream]) -> None:
    line = "6 64 0 50 32 -1 -1 32 100 -1 1 3 1 7 1 1 -1 -1"
    codes = [
        [note.code for note in read(line, "log.swf", node_w=6e3, processors=processors).notes]
        for processors in (None, 1)
    ]
    assert ["queue.processors-unknown" in each for each in codes] == [True, False]


def test_many_mistakes_are_counted(read: Callable[..., JobStream]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(HEADER + "".join(f"j{k},0,x,10,5000,,\n" for k in range(12)))
    assert str(caught.value).splitlines()[-1].endswith("2 more mistakes; correct these first")


@every_row(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"id,nodes\n", "has no column submit, duration_s"),
        (HEADER.encode(), "the file has no jobs"),
        (f"{HEADER}a,0,1,0,5000,,\n".encode(), "the file has no jobs (1 not run)"),
        (b"id\xff", "it is not UTF-8"),
        (gzip.compress(SWF.encode(), mtime=0)[:-20], "the compressed file is cut off"),
        (gzip.compress(SWF.encode(), mtime=0)[:30] + b"xxxxxxxxxxxx", "the compressed file is damaged"),
    ],
)
def test_files_without_jobs_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "jobs.csv").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_job_file(tmp_path / "jobs.csv")
    assert words in str(caught.value)
    assert caught.value.next


@pytest.mark.timeout(30)  # it would be waited for, for ever
def test_a_fifo_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "jobs.csv")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_job_file(tmp_path / "jobs.csv")
    with pytest.raises(ConfigError, match="cannot read the file of jobs"):
        read_job_file(tmp_path / "none.csv")


def test_runs_are_jobs_except_those_under_a_cap(tmp_path: Path) -> None:
    with open_run(make_run(tmp_path, name="train")) as run:
        free = read_measured_run(run)
    gpus = [scope.scope for scope in free.result.scopes if scope.scope.startswith("gpu")]
    caps = tuple(CapResult(HOST, scope, 300.0, 700.0, "W", 0, "restored") for scope in gpus)
    capped = replace(free, result=replace(free.result, caps=caps, run="other"))
    stream = make_run_stream([capped, free])
    [job] = stream.jobs
    assert (job.id, job.nodes, job.highest_w) == (free.result.run, 1, max(draw.highest_w for draw in free.draws))
    assert free.result.energy is not None
    assert job.node_w.value * job.duration_s == pytest.approx(free.result.energy.value, rel=1e-6)
    assert [note.code for note in stream.notes] == ["queue.capped-runs", "queue.not-wall"]
    responses, notes = find_responses(QueueTable(), stream, [capped, free], {})
    assert (responses[job.workload].caps_w, notes) == ((300.0, 700.0), [])
    made = make_run_stream([free], 3, 60.0).jobs
    assert [each.submit_s - made[0].submit_s for each in made] == [0.0, 60.0, 120.0]
    assert len({each.id for each in made}) == 3
    with pytest.raises(ConfigError, match="there are no jobs"):
        make_run_stream([])
