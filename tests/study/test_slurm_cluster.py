"""Run studies on a real Slurm, and do to their jobs what clusters do."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.slurm.studies import CPU, GPU, LIMITED, bench
from tests.waiting import until

from joulelab.core.errors import ConfigError
from joulelab.study.executors import SlotEnd, SlotWait
from joulelab.study.executors.slurm import check
from joulelab.study.matrix import NodeType
from joulelab.study.slots import State, read_slot
from joulelab.study.slurm.submitted_jobs import list_queued_slots

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def shared():
    with bench() as found:
        yield found


@pytest.fixture
def slurm(shared):
    """Give each test a folder of its own, and cancel the jobs that it leaves."""
    folder = Path(tempfile.mkdtemp(dir=shared.folder))
    yield replace(shared, folder=folder)
    left = [task for task, *_ in shared.jobs()]
    if left:
        shared.cluster.run("scancel", *left, check=False)
        until(lambda: not shared.jobs(), "no job is left")


def slots(study, repeats=1):
    return [
        study.get_slot_folder(key, repeat) for key in sorted(study.read_cells()) for repeat in range(1, repeats + 1)
    ]


def job_of(slot):
    return json.loads((slot / "job.json").read_text())


def claim_of(slot):
    return json.loads((slot / "claim.json").read_text())


def poll(executor, wanted):
    """Poll until so many slots have ended; return them by slot, and what was waited for."""
    ended, waits = {}, []

    def more():
        for news in executor.poll(0.2):
            if isinstance(news, SlotEnd):
                assert news.slot not in ended
                ended[news.slot] = news
            else:
                waits.append(news)
        return len(ended) >= wanted

    until(more, f"{wanted} slots end", most_s=0)
    return ended, waits


def until_runs(executor, slot):
    until(lambda: executor.poll(0.1) == [] and (slot / "out.txt").exists(), "the workload runs", most_s=0)


def sent(study):
    return sorted(folder for folder in (study.folder / "jobs").iterdir() if folder.is_dir())


def test_alike_slots_are_arrays_and_each_ends_once(slurm):
    kinds = {"gpu": GPU, "cpu": NodeType("cpu", "slurm", options={**CPU.options, "cpus": 2})}
    shown = "srun -n1 sh -c 'echo cpus $SLURM_CPUS_PER_TASK'"
    study = slurm.study("arrays", "sh", "-c", f"{shown}; exit $(({{n}} % 3))", nodes=kinds, n="3,4")
    outcome, news = slurm.drive(study)
    assert (outcome.done, outcome.failed, outcome.error) == (2, 2, None), news
    kinds = {}
    for folder in sent(study):
        job = json.loads((folder / "job.json").read_text())
        assert job["over"]
        kinds.setdefault(job["node"], []).append(len((folder / "slots.txt").read_text().splitlines()))
    assert kinds == {"gpu": [2], "cpu": [2]}
    for slot in slots(study):
        state = read_slot(slot)
        node = job_of(slot)["nodes"]
        kind = study.read_cells()[slot.parent.name].workload.node_type
        assert node == "g1" if kind == "gpu" else node in ("c1", "c2")
        assert claim_of(slot)["job"] == job_of(slot)["raw"]
        assert job_of(slot)["state"] == "COMPLETED"
        assert (slot / "out.txt").read_text() == ("cpus\n" if kind == "gpu" else "cpus 2\n")
        assert state.state in (State.DONE, State.FAILED)


def test_what_sbatch_refuses_is_said(slurm):
    for options, words in (
        ({"partition": "nope"}, "gpu: there is no partition 'nope' (there are accelerated, cpu, limited, main)"),
        ({"constraint": "h100|gpu"}, "node type gpu: no node has the feature 'h100' (there are cpu, gpu)"),
        ({"partition": "cpu", "time": 3600}, "the time 1:00:00 is more than the partition allows (MaxTime of cpu is"),
        ({"partition": "cpu", "nodes": 9}, "node type gpu: sbatch refuses the job (allocation failure"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            check({"gpu": NodeType("gpu", "slurm", options=options)}, slurm.environ)
        assert words in str(caught.value)
    assert check({"gpu": GPU, "here": NodeType()}, slurm.environ) == []
    notes = check({"cpu": NodeType("cpu", "slurm", options={"exclusive": False})}, slurm.environ)
    assert ["not exclusive" in note or "no time limit" in note for note in notes] == [True, True]
    with pytest.raises(ConfigError, match="Slurm cannot be used"):
        check({"gpu": GPU}, slurm.environ | {"PATH": "/nowhere"})
    study = slurm.study("refused", "true", nodes={"gpu": NodeType("gpu", "slurm", options={"partition": "nope"})})
    outcome, _ = slurm.drive(study)
    assert "node type gpu: sbatch refuses the job (invalid partition specified: nope" in str(outcome.error)
    assert not slots(study)[0].exists()


def test_cancelled_while_they_wait_or_run(slurm):
    study, _ = slurm.held("cancelled", n="1,2,3")
    executor = slurm.executor(study)
    for slot in slots(study):
        executor.submit(slot)
    one_runs = lambda: executor.poll(0.1) == [] and any((slot / "out.txt").exists() for slot in slots(study))  # noqa: E731
    until(one_runs, "one runs", most_s=0)
    first = next(slot for slot in slots(study) if slot.exists())
    others = [slot for slot in slots(study) if slot != first]
    executor.cancel(others[0])
    ended, _ = poll(executor, 1)
    assert ended[others[0]].fate == "cancelled"
    assert "CANCELLED" in ended[others[0]].ending
    assert not others[0].exists()
    # By somebody else, and not by us.
    slurm.cluster.run("scancel", *(task for task, *_ in slurm.jobs("-p", "accelerated")))
    ended, _ = poll(executor, 2)
    assert {news.fate for news in ended.values()} == {"cancelled"}
    assert ended[first].answer == {"is": "interrupted"} or ended[first].answer["is"] == "ended"
    assert job_of(first)["state"] == "CANCELLED"
    # Also where Slurm's signal ended the workload before its slot had noted it.
    assert read_slot(first).state is State.STALE
    executor.close()


def test_cancelled_twice_is_killed(slurm):
    study = slurm.study("killed", "sh", "-c", "trap '' TERM; while :; do sleep 0.2; done")
    (slot,) = slots(study)
    executor = slurm.executor(study)
    executor.submit(slot)
    until_runs(executor, slot)
    executor.cancel(slot)
    executor.poll(0)
    executor.cancel(slot)
    ended, _ = poll(executor, 1)
    assert ended[slot].fate == "cancelled"


@pytest.mark.campaign  # Slurm looks at limits every 30 s
def test_time_limit(slurm):
    study, _ = slurm.held("limited", {"limited": LIMITED})
    (slot,) = slots(study)
    executor = slurm.executor(study)
    executor.submit(slot)
    until_runs(executor, slot)
    slurm.cluster.run("scontrol", "update", f"JobId={claim_of(slot)['job']}", "EndTime=now+1")
    ended, _ = poll(executor, 1)
    assert ended[slot].fate == "failed"
    assert "ended as TIMEOUT" in ended[slot].ending
    assert job_of(slot)["state"] == "TIMEOUT"
    assert read_slot(slot).state is State.FAILED
    assert executor.is_over(claim_of(slot)) is True


def test_a_lost_node(slurm):
    study, _ = slurm.held("lost", {"cpu": NodeType("cpu", "slurm", options={"options": ["--no-requeue", "-wc1"]})})
    (slot,) = slots(study)
    executor = slurm.executor(study)
    executor.submit(slot)
    until_runs(executor, slot)
    assert executor.is_over(claim_of(slot)) is False
    slurm.cluster.run("scontrol", "update", "NodeName=c1", "State=DOWN", "Reason=test")
    ended, _ = poll(executor, 1)
    slurm.cluster.run("scontrol", "update", "NodeName=c1", "State=RESUME", check=False)  # it may be back
    assert ended[slot].fate == "again"
    assert "ended as NODE_FAIL" in ended[slot].ending
    assert executor.is_over(claim_of(slot)) is True
    assert executor.is_over({"job": "1"}) is None
    assert executor.is_over({"job": "1", "cluster": "elsewhere"}) is None


def test_requeued_jobs_go_on_while_daemons_restart(slurm):
    study, go = slurm.held("again", {"cpu": CPU})
    (slot,) = slots(study)
    executor = slurm.executor(study)
    executor.submit(slot)
    until_runs(executor, slot)
    job = claim_of(slot)["job"]
    waits = []
    with slurm.cluster.without_database():
        until(lambda: waits.extend(executor.poll(0.2)) or waits, "it says that Slurm does not answer", most_s=0)
        assert executor.poll(1.5) == []
    assert [(news.what, type(news)) for news in waits] == [("waits for Slurm", SlotWait)]
    slurm.cluster.run("scontrol", "requeue", job)
    until(lambda: [job, "PENDING", job] in slurm.jobs(), "it waits again")
    with slurm.cluster.without_controller():
        assert [news for news in executor.poll(1.0) if isinstance(news, SlotEnd)] == []
    # Slurm waits two minutes before it starts it again, unless it is told otherwise.
    until(lambda: slurm.cluster.works("scontrol", "update", f"JobId={job}", "StartTime=now"), "it may start")

    def runs_again():
        assert not [news for news in executor.poll(0.2) if isinstance(news, SlotEnd)]
        return slot.exists() and claim_of(slot)["restart"] == 1

    until(runs_again, "it runs again", most_s=0)
    go.touch()
    ended, _ = poll(executor, 1)
    assert ended[slot].fate == ""
    assert read_slot(slot).state is State.DONE
    assert [folder.name for folder in slot.parent.glob("r01.*")] == ["r01.interrupted-1"]
    assert len(sent(study)) == 1


def left_alone(slurm, study, pid):
    """Have another driver follow jobs of one that lives, and be told to stop: they go on."""
    tasks = sorted(task for task, *_ in slurm.jobs("-p", "accelerated"))
    shown = list_queued_slots(study.folder, slurm.environ)
    assert sorted(f"{task} {state}" for task, state, _ in slurm.jobs("-p", "accelerated")) == sorted(shown.values())
    waiting = [slot for slot, words in shown.items() if words.endswith("PENDING")]
    assert len(waiting) == 4
    another = slurm.executor(study)
    for slot in waiting:
        another.submit(slot)
    assert another.poll(0.2) == []
    for slot in waiting:
        another.cancel(slot)
    ended, _ = poll(another, 4)
    assert all(f"left to the driver that sent it, process {pid} on" in news.ending for news in ended.values())
    assert sorted(another.list_open_jobs()) == tasks
    another.close()


def test_a_job_that_ends_before_its_slot_begins(slurm):
    kind = NodeType("cpu", "slurm", options={**CPU.options, "setup": ["set -e", "false"]})
    study = slurm.study("setup", "true", nodes={"cpu": kind})
    (slot,) = slots(study)
    executor = slurm.executor(study)
    executor.submit(slot)
    ended, _ = poll(executor, 1)
    (folder,) = sent(study)
    assert f"it ended before its slot began, and {folder / 'err.0'} is empty" in ended[slot].ending
    assert (ended[slot].answer, ended[slot].fate) == (None, "")


@pytest.mark.campaign
def test_held_jobs_are_told(slurm):
    study, _ = slurm.held("stuck", {"cpu": CPU})
    (slot,) = slots(study)
    executor = slurm.executor(study)
    executor.submit(slot)
    until_runs(executor, slot)
    job = claim_of(slot)["job"]
    slurm.cluster.run("scontrol", "requeuehold", job)
    waits = []
    until(lambda: waits.extend(executor.poll(0.2)) or waits, "it says that it is held", most_s=0)
    assert [(news.what, news.why) for news in waits] == [
        (
            "waits in the queue",
            f"job {job} does not start: job requeued in held state; for the reason: scontrol show job {job}",
        )
    ]
    executor.cancel(slot)
    ended, _ = poll(executor, 1)
    assert ended[slot].fate == "cancelled"


def test_a_killed_driver_is_followed_by_one_that_finds_its_jobs(slurm):
    study, go = slurm.held("driven", n="1,2,3,4,5")
    driver = slurm.start(study)
    try:
        until(lambda: any((slot / "out.txt").exists() for slot in slots(study)), "a slot runs")
        until(lambda: len(slurm.jobs("-p", "accelerated")) == 5, "all are sent")
        left_alone(slurm, study, driver.pid)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    jobs = slurm.jobs("-p", "accelerated")
    assert len(jobs) == 5
    assert len(sent(study)) == 2  # arrays of this cluster have 4 tasks at most
    # As if it had been killed before it could write down the number of one, and while it prepared another.
    for folder in sent(study)[1:]:
        data = json.loads((folder / "job.json").read_text())
        (folder / "job.json").write_text(json.dumps({**data, "job": None}))
    never = sent(study)[0].with_name("20000101-000000-00")
    never.mkdir()
    (never / "slots.txt").write_text("cells/x/r01\n")
    (never / "job.json").write_text(
        json.dumps({"job": None, "name": "joulelab-x", "utc_ns": 1, "over": False, "node": "gpu"})
    )
    # What a driver that is gone has sent is cancelled by who follows it.
    waiting = [slot for slot in slots(study) if not slot.exists()][-1]
    another = slurm.executor(study)
    another.submit(waiting)
    assert another.poll(0.2) == []
    another.cancel(waiting)
    ended, _ = poll(another, 1)
    assert (ended[waiting].fate, "CANCELLED" in ended[waiting].ending) == ("cancelled", True)
    assert len(another.list_open_jobs()) == 4
    go.touch()
    outcome, news = slurm.drive(study)
    assert (outcome.done, outcome.error) == (5, None), news
    assert len(sent(study)) == 4  # of those only what was cancelled was sent anew
    first = {task for task, *_ in jobs}
    assert [slot for slot in slots(study) if job_of(slot)["job"] not in first] == [waiting]
    assert not list(study.folder.glob("cells/*/r01.*"))
    assert all(json.loads((folder / "job.json").read_text())["over"] for folder in sent(study))
