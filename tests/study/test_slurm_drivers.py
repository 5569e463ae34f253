"""Have several drivers share a study on Slurm; tell what is in the queue, and what to look at."""

from __future__ import annotations

import contextlib
import json
import subprocess

import pytest
from tests.rows import every_row
from tests.slurm.site import AWAY, NONE, Site, executor

from joulelab.core.process_identity import identify_process
from joulelab.study.executors import SlotEnd
from joulelab.study.matrix import NodeType
from joulelab.study.slurm import job_queue, submitted_jobs
from joulelab.study.slurm.job_queue import JobQueue, JobState
from joulelab.study.slurm.submitted_jobs import JobSubmitter, is_stuck, list_queued_slots

BOTH = "8_0|9|PENDING||Resources\n8_1|10|PENDING||Resources\n"


@contextlib.contextmanager
def process():
    """Give what identifies another process; it is gone after the block."""
    other = subprocess.Popen(["sleep", "100"])
    try:
        yield identify_process(other.pid)
    finally:
        other.kill()
        other.wait()


def job_files(study):
    return list(study.glob("jobs/*/job.json"))


def sent_by(study, driver):
    """Have another driver sent all jobs of a study."""
    for file in job_files(study):
        file.write_text(json.dumps({**json.loads(file.read_text()), "driver": driver}))


def follow(folder, site, driver):
    """Return an executor that follows two tasks which another driver sent."""
    first, slots = executor(folder, site)
    second, _ = executor(folder, site)
    for slot in slots[:2]:
        first.submit(slot)
        second.submit(slot)
    assert first.poll(0) == []
    sent_by(folder, driver)
    assert second.poll(0) == []
    assert site.count("sbatch") == 1
    return second, slots[:2]


@pytest.mark.system
def test_jobs_of_a_driver_that_lives_are_left_to_it(tmp_path):
    site = Site(sbatch="8\n", squeue=BOTH, scancel="")
    with process() as other:
        opened, slots = follow(tmp_path / "s", site, other)
        opened.cancel(slots[0])
        said = f"job 8_0 is left to the driver that sent it, process {other['pid']} on {other['host']}"
        assert opened.poll(0) == [SlotEnd(slots[0], None, said, "cancelled")]
        assert site.count("scancel") == 0
        assert opened.list_open_jobs() == ["8_0"]
    # Now it is gone.
    opened.cancel(slots[1])
    opened.poll(0)
    assert [words for words in site.asked if words[0] == "scancel"] == [("scancel", "8_1")]
    site.answers["squeue"] = AWAY
    assert opened.list_open_jobs() == ["8_0"]


@pytest.mark.parametrize(("ended", "fate"), [([0], "again"), ([1], "cancelled")])
@pytest.mark.system
def test_what_another_driver_cancels_as_it_ends_is_still_to_be_run(tmp_path, ended, fate):
    site = Site(sbatch="8\n", squeue=BOTH)
    with process() as other:
        opened, slots = follow(tmp_path / "s", site, other)
    (file,) = job_files(tmp_path / "s")
    file.write_text(json.dumps({**json.loads(file.read_text()), "ended": ended}))
    site.answers |= {"squeue": NONE, "sacct": "8_0|9|CANCELLED by 0|0:0|\n8_1|10|PENDING|0:0|\n"}
    site.t = 30.0
    assert [(news.slot, news.fate) for news in opened.poll(0)] == [(slots[0], fate)]


def test_a_driver_notes_what_it_cancels(tmp_path):
    site = Site(sbatch="8\n", squeue=BOTH, scancel="")
    opened, slots = executor(tmp_path / "s", site)
    for slot in slots[:2]:
        opened.submit(slot)
    opened.poll(0)
    (file,) = job_files(tmp_path / "s")
    job = json.loads(file.read_text())
    assert {key: job["driver"][key] for key in identify_process()} == identify_process()
    opened.cancel(slots[1])
    opened.poll(0)
    assert json.loads(file.read_text())["ended"] == [1]
    site.answers |= {"squeue": NONE, "sacct": "8_0|9|PENDING|0:0|\n8_1|10|CANCELLED by 0|0:0|\n"}
    site.t = 30.0
    assert [(news.slot, news.fate) for news in opened.poll(0)] == [(slots[1], "cancelled")]


def test_a_driver_in_another_container_is_seen_by_its_lock(tmp_path):
    with submitted_jobs.lock_jobs(tmp_path):
        pass
    mine, theirs = JobSubmitter(JobQueue({}), {}, tmp_path), JobSubmitter(JobQueue({}), {}, tmp_path)
    about = theirs.identify_driver()
    assert theirs.identify_driver() == about
    about["driver"]["space"] = "pid:[1]"
    job = submitted_jobs.prepare_job(tmp_path, [tmp_path / "cells" / "a" / "r01"], about)
    assert mine.describe_other_driver(job).startswith("process ")
    theirs.close()
    theirs.close()
    assert mine.describe_other_driver(job) == ""
    assert not list((tmp_path / "jobs").glob(".driver*"))
    # On another machine nobody knows; what was sent before drivers were noted is nobody's.
    job.data["driver"] |= {"boot": "x", "host": "elsewhere"}
    assert mine.describe_other_driver(job).endswith("elsewhere")
    job.data["driver"] |= {"host": identify_process()["host"]}
    assert mine.describe_other_driver(job) == ""
    del job.data["driver"]
    assert mine.describe_other_driver(job) == ""


@every_row(
    "reason",
    [
        "JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "job requeued in held state", "launch failed requeued held",
        "job_requeued_in_held_state", "job requeued in special exit state", "BadConstraints", "PartitionTimeLimit",
        "ReqNodeNotAvail, UnavailableNodes:n1", "InvalidQOS", "DependencyNeverSatisfied", "AccountNotAllowed",
        "QOSMaxWallDurationPerJobLimit",
    ],
)  # fmt: skip
def test_reasons_of_jobs_that_do_not_start_by_themselves(reason):
    assert is_stuck(JobState("8", "8", "PENDING", reason=reason))


@every_row("reason", ["", "Resources", "Priority", "BeginTime", "JobArrayTaskLimit", "AssocGrpCpuLimit", "Dependency"])
def test_reasons_of_jobs_that_wait(reason):
    assert not is_stuck(JobState("8", "8", "PENDING", reason=reason))


@every_row(
    ("err", "state", "words"),
    [
        (None, "FAILED|1:0", "job 8 ended as FAILED, exit code 1:0 on n1; there is no {folder}/err.0: see whether"),
        ("", "FAILED|1:0", "exit code 1:0 on n1; it ended before its slot began, and {folder}/err.0 is empty; look at"),
        ("", "COMPLETED|0:0", "job 8 ended as COMPLETED on n1; it ended before its slot began, and {folder}/err.0 is"),
        ("no such module", "FAILED|1:0", "exit code 1:0 on n1: no such module; see {folder}/err.0"),
        ("", "OUT_OF_MEMORY|0:125", "job 8 ended as OUT_OF_MEMORY, exit code 0:125 on n1"),
    ],
)
def test_a_job_that_told_nothing_says_where_to_look(tmp_path, err, state, words):
    site = Site(sbatch="8\n", squeue="8|8|RUNNING|n1|None\n")
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    opened.poll(0)
    (folder,) = (file.parent for file in job_files(tmp_path / "s"))
    if err is not None:
        (folder / "err.0").write_text(err)
    site.answers |= {"sacct": f"8|8|{state}|n1\n", "squeue": NONE}
    news = []
    for site.t in (10.0, 100.0):
        news += opened.poll(0)
    (ended,) = news
    assert words.format(folder=folder) in ended.ending
    assert ("setup" in ended.ending and str(folder / "script.sh") in ended.ending) == ("before its slot" in words)


def test_a_slot_that_began_and_told_nothing_says_where_its_output_is(tmp_path):
    site = Site(sbatch="8\n", sacct="8|8|FAILED|0:9|n1\n", squeue="8|8|RUNNING|n1|None\n")
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    opened.poll(0)
    (folder,) = (file.parent for file in job_files(tmp_path / "s"))
    (folder / "err.0").touch()
    slots[0].mkdir(parents=True)
    site.answers["squeue"] = NONE
    site.t = 10.0
    (ended,) = opened.poll(0)
    assert ended.ending == f"job 8 ended as FAILED, exit code 0:9 on n1; see {folder}/err.0"


@pytest.mark.system
def test_what_is_queued(tmp_path):
    rows = "8_0|9|RUNNING|n1|None\n8_1|10|PENDING||JobHeldUser\n8_2|8|CANCELLED||None\n"
    opened, slots = executor(tmp_path / "s", Site(sbatch="8\n", squeue=rows))
    for slot in slots[:3]:
        opened.submit(slot)
    opened.poll(0)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "squeue").write_text(f"#!/bin/sh\ncat <<E\n{rows}E\n")
    (programs / "squeue").chmod(0o755)
    environ = {"PATH": f"{programs}:/usr/bin:/bin"}
    found = {slots[0]: "8_0 RUNNING", slots[1]: "8_1 PENDING (JobHeldUser)"}
    assert list_queued_slots(tmp_path / "s", environ) == found
    assert list_queued_slots(tmp_path / "s", {"PATH": str(tmp_path)}) == {}
    assert list_queued_slots(tmp_path / "nowhere", environ) == {}
    for file in job_files(tmp_path / "s"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "utc_ns": None}))
    assert list_queued_slots(tmp_path / "s", environ) == {}


@pytest.mark.system
def test_the_script_hands_the_cpus_of_a_task_to_srun(tmp_path):
    text = job_queue.make_script(NodeType("x", "slurm", options={"setup": ["set -u"]}), tmp_path, "t")
    shown = text.partition("study=")[0] + "echo ${SRUN_CPUS_PER_TASK:-none} >&3\n"
    for given, wanted in (({"SLURM_CPUS_PER_TASK": "76"}, "76"), ({}, "none")):
        done = subprocess.run(["bash", "-c", shown], env=given, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == wanted
