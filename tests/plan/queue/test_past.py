"""A cluster's past from a file: our columns and Slurm's, every wrong line told with its number."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest

from joulelab.core.errors import ConfigError
from joulelab.plan.queue.past import read_jobs

HEAD = "id,submit,nodes,duration_s,node_w,highest_w,workload\n"
EXAMPLE = Path(__file__).parents[3] / "examples" / "plans" / "jobs.csv"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "jobs.csv").write_text(text)
        return tmp_path / "jobs.csv"

    return write


def test_jobs_are_read_in_the_order_of_their_submission(write) -> None:
    path = write(
        "# Synthetic: made up.\n" + HEAD + "b,2026-01-05T09:00:00+01:00,2,60,5000,5500,train\n\na,0,1,90.5,4000,,\n"
    )
    found = read_jobs(path, accuracy=0.02)
    assert [job.id for job in found.jobs] == ["a", "b"]
    first, last = found.jobs
    assert (first.submit_s, first.nodes, first.duration_s, first.highest_w, first.workload) == (0.0, 1, 90.5, None, "")
    assert last.submit_s == dt.datetime(2026, 1, 5, 8, tzinfo=dt.UTC).timestamp()
    assert (last.node_w.value, last.node_w.expanded, last.where) == (5000.0, pytest.approx(100.0), f"{path}:3")
    assert set(first.node_w.terms) == set(last.node_w.terms)  # one meter, wrong alike
    assert found.zoned
    assert found.workloads == ("train",)
    assert found.notes == ("the file of jobs says: Synthetic: made up.",)
    assert not read_jobs(path).jobs[0].node_w.known


def test_what_sacct_prints_is_read(write) -> None:
    path = write(
        "JobID|JobName|Submit|Elapsed|ElapsedRaw|NNodes|ConsumedEnergy|ConsumedEnergyRaw|State|\n"
        "7|train|2026-01-05T10:00:00|1-00:00:10|86410|4|1.73G|1728200000|COMPLETED|\n"
        "7.batch|batch||1-00:00:10|86410|1|0.4G|432000000|COMPLETED|\n"
        "8|train|2026-01-05T10:00:01|00:10:00|600|2|||FAILED|\n"
        "8.0|python||00:10:00|600|2|6M|6000000|FAILED|\n"
        "8.batch|batch||00:10:00|600|1|3M|3000000|FAILED|\n"
        "9|eval|2026-01-05T10:00:02|00:00:00|0|1|0|0|CANCELLED by 1000|\n"
        "10_1|eval|2026-01-05T10:00:03|00:01:00|60|1|0|0|RUNNING|\n"
    )
    found = read_jobs(path, zone="Europe/Berlin")
    assert [(job.id, job.nodes, job.duration_s, job.workload) for job in found.jobs] == [
        ("7", 4, 86410.0, "train"), ("8", 2, 600.0, "train"),
    ]  # fmt: skip
    assert [job.node_w.value for job in found.jobs] == pytest.approx([5000.0, 5000.0])
    assert found.jobs[0].submit_s == dt.datetime(2026, 1, 5, 9, tzinfo=dt.UTC).timestamp()
    assert found.zoned
    assert found.notes == ("1 jobs that did not run were left out, 1 jobs that were not over were left out",)
    assert not read_jobs(path).zoned
    assert "times have no zone and are taken as UTC" in read_jobs(path).notes


def test_slurms_own_forms_of_time_and_energy(write) -> None:
    text = "JobID|Submit|Elapsed|NNodes|ConsumedEnergy\n1|0|1-02:03:04|1|1.5M\n2|0|03:20|1|300K\n"
    found = read_jobs(write(text)).jobs
    assert [job.duration_s for job in found] == [26 * 3600 + 184.0, 200.0]
    assert [job.node_w.value * job.duration_s for job in found] == pytest.approx([1.5e6, 3e5])


@pytest.mark.parametrize(
    "mark",
    ["", "0", "4294967294", "4294967295", "18446744073709551614", "18446744073709551615", "16.00E", "18446744.07T"],
)
def test_slurms_marks_for_no_energy_are_none(write, mark: str) -> None:
    """A job takes that of its largest step then; where steps have none either, it has none."""
    head = "JobID|Submit|ElapsedRaw|NNodes|ConsumedEnergyRaw\n"
    found = read_jobs(write(f"{head}1|0|100|2|{mark}\n1.batch||100|1|{mark}\n1.0||100|2|1.2M\n")).jobs
    assert [job.node_w.value for job in found] == pytest.approx([6000.0])
    with pytest.raises(ConfigError, match="the power of job 1 is not known"):
        read_jobs(write(f"{head}1|0|100|2|{mark}\n1.0||100|2|{mark}\n"))


def test_an_energy_that_is_none_is_refused(write) -> None:
    text = "JobID|Submit|ElapsedRaw|NNodes|ConsumedEnergyRaw\n1|0|100|2|much\n1.0||100|2|1.2M\n"
    with pytest.raises(ConfigError, match=r"jobs.csv:2: the energy is 'much'"):
        read_jobs(write(text))


def test_jobs_without_a_power_get_the_one_that_is_given(write) -> None:
    path = write("id,submit,nodes,duration_s\na,0,1,10\n")
    with pytest.raises(ConfigError, match=r"jobs.csv:2: the power of job a is not known; give node_w, or --node-w"):
        read_jobs(path)
    found = read_jobs(path, node_w=6000.0, accuracy=0.01)
    assert found.jobs[0].node_w.value == 6000.0
    assert found.jobs[0].node_w.expanded is None  # nobody measured it
    assert found.notes == ("1 jobs without a power of their own are taken to draw 6000 W per node",)


def test_everything_that_is_wrong_is_told_with_its_line(write) -> None:
    lines = [
        "a,0,1,10,5000,,", "a,0,1,10,5000,,", "b,yesterday,1,10,5000,,", "c,0,1.5,10,5000,,", "d,0,1,-5,5000,,",
        "e,0,1,10,x,,", "f,0,1,10,5000,4000,", ",0,1,10,5000,,", "g,nan,1,10,5000,,", "h,0,1,10,0,,", "i,0", "j,0",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        read_jobs(write(HEAD + "\n".join(lines)))
    told = str(caught.value).splitlines()
    assert len(told) == 11
    for line, words in zip(
        told,
        ("3: job a is there twice (first in line 2)", "4: 'yesterday' is no time", "5: nodes is 1.5",
         "6: duration_s is '-5'", "7: node_w is 'x'", "8: highest_w is 4000, below the mean of 5000 W",
         "9: a job without id", "10: 'nan' is no time", "11: node_w is 0", "12: duration_s is ''", ": and 1 more"),
        strict=True,
    ):  # fmt: skip
        assert words in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("id,nodes\n", "has no column submit, duration_s"),
        (HEAD, "there are no jobs in the file"),
        (HEAD + "a,0,1,0,5000,,\n", "1 jobs that did not run were left out"),
    ],
)
def test_files_that_are_none_are_refused(write, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_jobs(write(text))


def test_hours_that_a_zone_skips_or_has_twice_are_refused(write) -> None:
    with pytest.raises(ConfigError, match=r"jobs.csv:2: 2026-03-29 02:30 does not exist in Europe/Berlin"):
        read_jobs(write(HEAD + "a,2026-03-29T02:30:00,1,10,5000,,\n"), zone="Europe/Berlin")
    with pytest.raises(ConfigError, match="there is no time zone 'Berlin'"):
        read_jobs(write(HEAD + "a,0,1,10,5000,,\n"), zone="Berlin")


@pytest.mark.timeout(30)  # it would be waited for, for ever
def test_a_fifo_is_no_file_of_jobs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "jobs.csv")
    with pytest.raises(ConfigError, match="it is a FIFO, not a regular file"):
        read_jobs(tmp_path / "jobs.csv")


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file of jobs"):
        read_jobs(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"id\xff")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        read_jobs(tmp_path / "latin.csv")


def test_the_example_says_that_it_is_synthetic() -> None:
    found = read_jobs(EXAMPLE)
    assert len(found.jobs) > 100
    assert found.notes[0].startswith("the file of jobs says: Synthetic")
