"""Answer as Slurm's programs do where a real one would have to be broken for long, or be of another site."""

from __future__ import annotations

import json

import pytest
from tests.slurm.site import AWAY, DOWN, NO_DATABASE, NONE, Site, executor

from joulelab.core.errors import ConfigError, ReadFailed, Refused, Unavailable
from joulelab.instruments.slurm.client import Answer, clean_environment
from joulelab.study.executors import SlotEnd, SlotWait
from joulelab.study.executors.slurm import SlurmExecutor
from joulelab.study.matrix import NodeType
from joulelab.study.slurm import job_queue, submitted_jobs
from joulelab.study.slurm.job_queue import JobQueue, JobState, check
from joulelab.study.slurm.job_watch import TaskState, index_jobs
from joulelab.study.slurm.submitted_jobs import SlotTask, describe_end, write_job


def test_options_of_a_node_type():
    node = NodeType(
        "gpu",
        "slurm",
        options={"partition": "a", "gpus": 4, "cpus": 76, "time": 3599.5, "exclusive": False, "options": ["--mem=0"]},
    )
    assert job_queue.list_sbatch_options(node) == [
        "--partition=a", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=76", "--gres=gpu:4", "--time=1:00:00",
        "--mem=0",
    ]  # fmt: skip
    assert job_queue.list_sbatch_options(NodeType("x", "slurm", options={"time": "1-00:00:00"}))[-2:] == [
        "--time=1-00:00:00",
        "--exclusive",
    ]


def test_an_outer_job_does_not_leak():
    outer = {
        "SLURM_CONF": "c",
        "SBATCH_QOS": "x",
        "SLURM_JOB_ID": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "PMI_RANK": "3",
        "HOME": "h",
    }
    outer["SLURM_JWT"] = "token"  # without it, some clusters refuse every request
    assert clean_environment(outer) == {"SLURM_CONF": "c", "SLURM_JWT": "token", "HOME": "h"}
    assert clean_environment({"CUDA_VISIBLE_DEVICES": "0"}) == {"CUDA_VISIBLE_DEVICES": "0"}


def test_tasks_that_wait_are_told_apart():
    rows = index_jobs([JobState("12_[1-2,5-9:2%3]", "12", "PENDING"), JobState("12_4", "15", "RUNNING")])
    assert {name for name in rows if "_" in name} == {"12_1", "12_2", "12_5", "12_7", "12_9", "12_4"}
    assert rows["15"].state == "RUNNING"


def test_an_end_is_believed_when_the_controller_agrees():
    site = Site(sacct="5|5|NODE_FAIL|0:0|n1\n", squeue="5|5|PENDING||BeginTime\n")
    watch = site.watch()
    assert watch.read_states(["5"])["5"].over is False
    site.answers["squeue"] = "5|5|COMPLETING|n1|None\n"
    assert watch.read_states(["5"])["5"].over is False
    site.t = 1000.0
    assert watch.read_states(["5"])["5"] == TaskState(JobState("5", "5", "NODE_FAIL", "0:0", "n1"), over=True)
    site.answers["squeue"] = NONE
    assert watch.read_states(["5"])["5"].over is True
    site.answers["squeue"] = AWAY
    assert watch.read_states(["5"])["5"].over is None
    assert "contact" in watch.problem


def test_a_database_that_lags_or_is_down():
    site = Site(squeue="5|5|COMPLETED|n1|None\n")
    watch = site.watch()
    assert watch.read_states(["5"])["5"].over is None
    site.t = 6.0
    assert watch.read_states(["5"])["5"].state.state == "COMPLETED"
    assert watch.read_states(["5"])["5"].over is True
    site.answers |= {"sacct": DOWN, "squeue": NONE}
    site.t = 1000.0
    assert watch.read_states(["5"])["5"].over is None
    assert "refused" in watch.problem.lower()
    # Known to nobody.
    site.answers["sacct"] = ""
    assert watch.read_states(["6"])["6"].over is None
    site.t += 61
    assert watch.read_states(["6"])["6"] == TaskState(JobState("6", "", "UNKNOWN"), over=True)
    assert describe_end(watch.read_states(["6"])["6"]) == "ended; Slurm has no record of its result"


def test_the_database_may_never_hear_of_an_end():
    site = Site(sacct="5|5|RUNNING|0:0|n1\n", squeue=NONE)
    watch = site.watch()
    # The controller is asked the tenth time, and from then on each time until the end is believed.
    overs = []
    for _ in range(12):
        site.t += 30
        overs.append(watch.read_states(["5"])["5"].over)
    assert overs == [False] * 9 + [None, None, True]
    assert site.count("squeue") == 3


def test_a_task_that_is_cancelled_while_it_waits_has_no_row():
    site = Site(
        sacct="7_[0,2]|7|PENDING|0:0|None assigned\n", squeue="7_0|7|PENDING||Resources\n7_2|7|PENDING||Resources\n"
    )
    watch = site.watch()
    assert watch.read_states(["7_0", "7_1"])["7_1"].over is None
    site.t = 6.0
    seen = watch.read_states(["7_0", "7_1"])
    assert (seen["7_1"].state.state, seen["7_1"].over, seen["7_0"].over) == ("CANCELLED", True, False)


def test_without_a_database_the_controller_tells():
    site = Site(sacct=NO_DATABASE, squeue="5|5|RUNNING|n1|None\n")
    watch = site.watch()
    assert watch.read_states(["5"])["5"].over is False
    site.answers["squeue"] = NONE
    assert watch.read_states(["5"])["5"].over is True
    assert site.count("sacct") == 1
    site.answers["sacct"] = Answer(1, "", "fatal: Could not establish a configuration source")
    watch = site.watch()
    assert watch.read_states(["5"])["5"].over is None
    assert watch.problem


def test_a_limit_on_jobs_makes_arrays_smaller(tmp_path):
    words = "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size)"
    limit = Answer(1, "", f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: {words}")
    site = Site(sbatch=[limit, Answer(0, "8;test\n", ""), limit])
    opened, slots = executor(tmp_path / "s", site)
    for slot in slots:
        opened.submit(slot)
    (news,) = opened.poll(0)
    assert isinstance(news, SlotWait)
    assert news.what == "waits to submit"
    assert "no more jobs" in news.why
    sizes = [
        next((word for word in words if word.startswith("--array")), "") for words in site.asked if words[0] == "sbatch"
    ]
    assert sizes == ["--array=0-3", "--array=0-1", "--array=0-1", ""]
    # Those that were not sent can be cancelled without Slurm.
    opened.cancel(slots[3])
    (news,) = opened.poll(0)
    assert (news.slot, news.fate, news.ending) == (slots[3], "cancelled", "it was not submitted")
    opened, slots = executor(tmp_path / "t", Site(sbatch=limit))
    opened.submit(slots[0])
    with pytest.raises(Refused, match="takes no more jobs"):
        opened.poll(0)


def test_room_of_a_node_type(tmp_path):
    site = Site(sbatch="8\n", squeue="8|8|RUNNING|n1|None\n")
    opened, slots = executor(tmp_path / "s", site, at_once=1)
    assert opened.at_once == 1
    for slot in slots[:2]:
        opened.submit(slot)
    opened.poll(0)
    assert site.count("sbatch") == 1
    site.answers |= {"sacct": "8|8|OUT_OF_MEMORY|0:125|n1\n", "squeue": NONE, "sbatch": "9\n"}
    site.t = 10.0
    (news,) = opened.poll(0)
    assert (news.fate, news.answer) == ("failed", None)
    assert news.ending == "job 8 ended as OUT_OF_MEMORY, exit code 0:125 on n1"
    opened.poll(0)
    assert site.count("sbatch") == 2


@pytest.mark.parametrize("found", [True, False])
def test_whether_it_was_submitted_is_found_out_by_name(tmp_path, found):
    unclear = Answer(1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    site = Site(sbatch=[unclear, "21\n"], squeue=AWAY)
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    (news,) = opened.poll(0)
    assert "Socket timed out" in news.why
    assert opened.poll(0) == []  # told once
    (folder,) = (file.parent for file in (tmp_path / "s").glob("jobs/*/job.json"))
    name = json.loads((folder / "job.json").read_text())["name"]
    site.answers["squeue"] = f"20|{name}\n" if found else ""
    site.t = 60.0
    opened.poll(0)
    site.answers["squeue"] = "20|20|RUNNING|n1|None\n21|21|RUNNING|n1|None\n"
    site.t = 120.0
    opened.poll(0)
    assert site.count("sbatch") == (1 if found else 2)
    assert json.loads((folder / "job.json").read_text())["job"] == ("20" if found else None)


def test_who_cancels_thrice_does_not_wait_for_a_controller_that_is_not_there(tmp_path):
    site = Site(sbatch="8\n", squeue="8|8|RUNNING|n1|None\n", scancel=AWAY)
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    opened.poll(0)
    for said in (["waits to cancel"], [], None):
        opened.cancel(slots[0])
        news = opened.poll(0)
        if said is not None:
            assert [each.what for each in news] == said
    assert isinstance(news[0], SlotEnd)
    assert news[0].ending == "job 8 was left as it is"
    opened.cancel(slots[0])
    assert opened.poll(0)[0].ending == "there is no job for it"


def test_files_that_are_not_seen_yet_are_waited_for(tmp_path):
    site = Site(sbatch="8\n", sacct="8|8|COMPLETED|0:0|n1\n")
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    assert opened.poll(0) == []
    (out,) = (folder / "out.0" for folder in (tmp_path / "s" / "jobs").iterdir() if folder.is_dir())
    out.write_text('hello\n{"is": "waits", "for": "ann"}\n')
    site.t = 5.0
    assert [each.why for each in opened.poll(0)] == ["ann"]
    with out.open("a") as file:
        file.write('{"is": "taken"}\n')
    site.t = 10.0
    (news,) = opened.poll(0)
    assert news.answer == {"is": "taken"}
    assert opened.poll(0) == []


def test_two_drivers_send_a_slot_once_and_what_was_over_before_is_sent_anew(tmp_path):
    site = Site(sbatch=["8\n", "9\n"], squeue="8_0|8|RUNNING|n1|None\n8_1|10|PENDING||Resources\n")
    first, slots = executor(tmp_path / "s", site)
    second, _ = executor(tmp_path / "s", site)
    for slot in slots[:2]:
        first.submit(slot)
        second.submit(slot)
    assert first.poll(0) == second.poll(0) == []
    assert site.count("sbatch") == 1
    # Cancelled by the first: the second hears of it. A third, which comes later, sends it anew.
    site.answers |= {"squeue": NONE, "sacct": "8_0|8|CANCELLED by 0|0:0|n1\n8_1|10|RUNNING|0:0|n1\n"}
    site.t = 30.0
    assert [(news.slot, news.fate) for news in second.poll(0)] == [(slots[0], "cancelled")]
    third, _ = executor(tmp_path / "s", site)
    for slot in slots[:2]:
        third.submit(slot)
    assert third.poll(0) == []
    assert third.poll(0) == []
    assert site.count("sbatch") == 2
    (job,) = (json.loads(file.read_text()) for file in tmp_path.glob("s/jobs/*/job.json") if '"9"' in file.read_text())
    assert (job["job"], job["over"]) == ("9", False)


def test_a_job_that_will_not_start_by_itself_is_told_once(tmp_path):
    site = Site(sbatch="8\n", squeue="8|8|PENDING||launch failed requeued held\n")
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    (news,) = opened.poll(0)
    assert (news.what, news.why) == (
        "waits in the queue",
        "job 8 does not start: launch failed requeued held; for the reason: scontrol show job 8",
    )
    site.t = 10.0
    assert opened.poll(0) == []


def test_what_slurm_has_lost_is_tried_again(tmp_path):
    site = Site(sbatch="8\n", squeue=NONE)
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    assert opened.poll(0) == []
    site.t = 100.0
    (news,) = opened.poll(0)
    assert (news.fate, news.ending) == ("again", "job 8 ended; Slurm has no record of its result")


def test_a_task_that_is_cancelled_while_it_waits_ends_soon_though_the_database_still_has_it_waiting(tmp_path):
    stale = "8_0|9|RUNNING|0:0|n1\n8_[1-3]|8|PENDING|0:0|\n"
    rest = "8_0|9|RUNNING|n1|None\n8_2|8|PENDING||Resources\n8_3|8|PENDING||Resources\n"
    site = Site(sbatch="8\n", sacct=stale, squeue=rest + "8_1|8|PENDING||Resources\n", scancel="")
    opened, slots = executor(tmp_path / "s", site)
    for slot in slots:
        opened.submit(slot)
    assert opened.poll(0) == []
    opened.cancel(slots[1])
    site.answers["squeue"] = rest
    news = []
    for site.t in (1.0, 3.0, 5.0, 7.0):
        news += opened.poll(0)
    (ended,) = news
    assert (ended.slot, ended.fate) == (slots[1], "cancelled")
    assert "CANCELLED" in ended.ending


def test_a_job_that_reaches_its_time_limit_fails_its_slot(tmp_path):
    site = Site(sbatch="8\n", squeue="8|8|RUNNING|n1|None\n", sacct="8|8|RUNNING|0:0|n1\n")
    opened, slots = executor(tmp_path / "s", site)
    opened.submit(slots[0])
    assert opened.poll(0) == []
    slots[0].mkdir(parents=True)
    (slots[0] / "claim.json").write_text('{"job": "8", "cluster": "test", "host": "n1", "boot": "x"}')
    site.answers |= {"squeue": NONE, "sacct": "8|8|TIMEOUT|0:0|n1\n"}
    news = []
    for site.t in (10.0, 100.0):
        news += opened.poll(0)
    (ended,) = news
    assert (ended.slot, ended.fate) == (slots[0], "failed")
    assert "ended as TIMEOUT" in ended.ending
    assert json.loads((slots[0] / "job.json").read_text())["state"] == "TIMEOUT"
    assert opened.is_over({"job": "8", "cluster": "test"}) is True


def test_claims_are_asked_about_once(tmp_path):
    site = Site(sacct="9|9|CANCELLED by 0|0:0|n1\n8|8|RUNNING|0:0|n2\n")
    opened, slots = executor(tmp_path / "s", site)
    assert opened.is_over({"job": "9", "cluster": "test"}) is True
    assert opened.is_over({"job": "9", "cluster": "test"}) is True
    assert opened.is_over({"job": "8", "cluster": "test"}) is False
    assert site.count("sacct") == 2
    site.answers["sacct"] = "8|8|COMPLETED|0:0|n2\n"
    opened.poll(0)
    assert opened.is_over({"job": "8", "cluster": "test"}) is True
    assert opened.is_over({"job": "x", "cluster": "test"}) is None
    with pytest.raises(ConfigError, match="no node type 'local'"):
        SlurmExecutor(site.jobs(), {}, tmp_path / "s").submit(slots[0])


def test_what_became_of_a_job_is_written_only_into_its_own_slot(tmp_path):
    seen = TaskState(JobState("8_1", "10", "TIMEOUT", "0:15", "n1", "TimeLimit"), over=True)
    write_job(tmp_path, seen)
    assert not (tmp_path / "job.json").exists()
    (tmp_path / "claim.json").write_text('{"job": "11"}')
    write_job(tmp_path, seen)
    assert not (tmp_path / "job.json").exists()
    (tmp_path / "claim.json").write_text('{"job": "10"}')
    write_job(tmp_path, seen)
    assert json.loads((tmp_path / "job.json").read_text()) == {
        "job": "8_1", "raw": "10", "state": "TIMEOUT", "exit_code": "0:15", "nodes": "n1",
        "why": "ended as TIMEOUT (TimeLimit), exit code 0:15 on n1",
    }  # fmt: skip


def test_a_folder_that_cannot_be_read_is_left_out(tmp_path):
    assert submitted_jobs.read_open_jobs(tmp_path, {}) == []
    (tmp_path / "jobs" / "x").mkdir(parents=True)
    (tmp_path / "jobs" / "x" / "job.json").write_text("{")
    assert submitted_jobs.read_open_jobs(tmp_path, {}) == []
    with submitted_jobs.lock_jobs(tmp_path):
        job = submitted_jobs.prepare_job(tmp_path, [tmp_path / "cells" / "a" / "r01"], {"node": "x"})
    assert [found.slots for found in submitted_jobs.read_open_jobs(tmp_path, {})] == [job.slots]
    assert submitted_jobs.read_open_jobs(tmp_path, {job.folder.name: job}) == []
    assert submitted_jobs.read_answer(job.out(0)) is None
    assert SlotTask(job.slots[0], job, 0).name == "None"
    with pytest.raises(Exception, match="cannot store"), submitted_jobs.lock_jobs(tmp_path / "nowhere" / "deep"):
        pass


@pytest.mark.system
def test_programs_that_are_not_there_or_hang(tmp_path):
    with pytest.raises(Unavailable, match="no program sacct"):
        JobQueue({"PATH": str(tmp_path)}).read_accounted(["1"])
    for name, text in (("sacct", "exec sleep 600"), ("squeue", "exit 3")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with pytest.raises(ReadFailed, match="did not finish"):
        JobQueue(environ, timeout_s=0.3).read_accounted(["1"])
    with pytest.raises(ReadFailed, match="squeue failed"):
        JobQueue(environ).read_queued(["1"])
    (tmp_path / "sacct").write_bytes(b"\x7fELF")
    with pytest.raises(ReadFailed, match="cannot be run"):
        JobQueue({"PATH": str(tmp_path)}).read_accounted(["1"])


def test_nothing_is_asked_where_no_node_type_is_slurms(tmp_path):
    assert check({"local": NodeType()}, {"PATH": str(tmp_path)}) == []


def test_test_only_may_have_no_answer():
    for said, error in (("Unable to contact slurm controller", ReadFailed), ("Invalid qos specification", ConfigError)):
        with pytest.raises(error, match="sbatch"):
            Site(sbatch=Answer(1, "", f"allocation failure: {said}")).jobs().test_options([], "x")
