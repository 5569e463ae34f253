"""Slurm's energy is added to the runs of slots: one question for all, by the row that fits, never failing a study."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.analysis.folders import STARTED, Folder, power
from tests.slurm.fake import PM, T0, Fake, row

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS
from joulelab.core.errors import Unavailable
from joulelab.instruments.slurm.client import Answer, SlurmClient
from joulelab.store.run_reader import open_run
from joulelab.study.accounting import attach_accounting
from joulelab.study.slots import Slot, State

T = np.arange(0, 60, 0.5)
LATER = T0 + 3600 * NS


class Asked(Fake):
    """Note what is asked."""

    def __init__(self, *sacct, **more):
        super().__init__(*sacct, **more)
        self.words = []

    def run(self, words, timeout_s):
        self.words.append(list(words))
        return super().run(words, timeout_s)

    def of(self, *some):
        return [words for words in self.words if set(some) <= set(words)]


@pytest.fixture
def slot(tmp_path):
    def made(
        job="1", name="r01", *, command=("python", "train.py"), step="", hosts=("n1",), watts=500.0, state=State.DONE
    ):
        folder = tmp_path / name
        folder.mkdir()
        begun = {**STARTED, "utc_ns": T0 + NS}
        run = Folder(folder, started=begun, host=hosts[0], command=list(command))
        for host in hosts:
            run.add("bmc", power("node.dc"), T, np.full(T.size, watts), host=host)
        if step:
            line = {"t": STARTED["mono_ns"], "event": "nodes", "step": step, "nodes": list(hosts)}
            (run.path / hosts[0] / "events.run.jsonl").write_text(json.dumps(line) + "\n")
        ended = {**STARTED, "utc_ns": T0 + 58 * NS, "mono_ns": STARTED["mono_ns"] + 57 * NS}
        run.close(5.0, 50.0, ended=ended)
        (run.path / "results.json").write_text("{}")
        return Slot(folder, state, run.path, "", {"job": job, "restart": 0})

    return made


def filled(slots, fake, now=LATER, **more):
    return attach_accounting(
        slots, {}, slurm=SlurmClient(run=fake.run), now=lambda: now + fake.t, sleep=fake.sleep, **more
    )


def facts(slot, name="slurm-1"):
    lines = (slot.run / name / "events.0.jsonl").read_text().splitlines()
    return next(e for e in map(json.loads, lines) if e["event"] == "attached")


def test_one_question_for_all_and_each_gets_its_own(slot):
    slots = [slot(str(job), f"r{job:02d}") for job in (1, 2, 3)]
    (slots[0].folder / "job.json").write_text(json.dumps({"job": "1", "state": "COMPLETED"}))
    rows = "".join(row(f"{job}{step}", 30_000 + job) for job in (1, 2, 3) for step in ("", ".batch"))
    fake = Asked(rows)
    assert filled(slots, fake) == []
    assert [words[-1] for words in fake.of("sacct", "-j")] == ["1,2,3"]
    assert len(fake.of("show", "config")) == 1
    assert len(fake.of("sacct", "-N")) == 1
    for job, one in enumerate(slots, 1):
        assert facts(one, f"slurm-{job}")["energy_j"] == 30_000 + job
        assert not (one.run / "results.json").exists()
        with open_run(one.run) as run:
            result = analyse_run(run)
        assert result.group("measured").scopes == ("node.dc",)
        assert {s.scope for s in result.scopes} == {"node.dc", "job"}
    noted = json.loads((slots[0].folder / "job.json").read_text())
    assert noted["state"] == "COMPLETED"
    assert noted["accounting"]["row"] == ".batch"
    assert not (slots[1].folder / "job.json").exists()
    assert filled(slots, Asked("")) == []  # nothing is lacking, nothing is asked


def test_what_is_accounted_agrees_with_our_meter_in_one_time_line(slot):
    one = slot()
    assert filled([one], Asked(row("1", "", "00:00", "01:02") + row("1.batch", 31_000, "00:00", "01:02"))) == []
    with open_run(one.run) as run:
        (found,) = analyse_run(run).comparisons
    assert found.verdict == "agree"
    assert found.best.energy.value == pytest.approx(500 * 62, rel=0.02)
    assert found.other.energy.value == pytest.approx(31_000, abs=1)
    assert found.over == pytest.approx((-6.0, 56.0), abs=0.1)


@pytest.mark.parametrize(
    ("rows", "more", "counts", "joules"),
    [
        # Ours on all nodes, though others ran beside it; then .extern, then the only other step, then the job's row.
        ([("", 90), (".batch", 20, 1), (".0", 50), (".1", 40)], {"step": "1"}, ".1", 40),
        ([("", 90), (".extern", 45), (".0", 50), (".1", 40, 1)], {"step": "1"}, ".extern", 45),
        ([("", 90), (".extern", 45), (".0", 50), (".1", 0)], {"step": "1"}, ".extern", 45),
        (
            [("", 90), (".batch", 20, 1), (".0", 50), (".1", 40, 1)],
            {"step": "1", "command": ["/usr/bin/srun", "a"]},
            ".0",
            50,
        ),
        ([("", 90), (".batch", 20, 1), (".0", 50), (".1", 40)], {"command": ["srun", "a"]}, "the job's row", 90),
        ([("", 90), (".batch", 20, 1), (".0", 90)], {}, "the job's row", 90),
    ],
)
def test_the_row_that_counts_on_two_nodes(slot, rows, more, counts, joules):
    one = slot(hosts=("n1", "n2"), **more)
    text = "".join(row(f"1{step}", j * 1000, nodes="n[1-2]", count=n[0] if n else 2) for step, j, *n in rows)
    assert filled([one], Asked(text)) == []
    assert (facts(one)["row"], facts(one)["energy_j"], facts(one)["nodes"]) == (counts, joules * 1000, ["n1", "n2"])


def test_the_step_that_ran_the_workload_has_the_workloads_times(slot):
    one = slot(command=["srun", "python", "train.py"])
    text = row("1", 20_000) + row("1.batch", 30_000) + row("1.0", 20_000, "00:10", "00:50")
    assert filled([one], Asked(text)) == []
    assert facts(one)["row"] == ".0"
    assert (facts(one)["start_utc_ns"], facts(one)["end_utc_ns"]) == (T0 + 10 * NS, T0 + 50 * NS)
    other = slot("2", "r02")
    assert filled([other], Asked(text.replace("1|1", "2|2").replace("1.", "2."))) == []
    assert facts(other, "slurm-2")["row"] == ".batch"


def test_what_is_not_there_yet_is_left_for_the_next_call(slot):
    slots = [slot("1"), slot("2", "r02"), slot("3", "r03"), slot("4", "r04", step="0")]
    open_ = row("1", "", end="Unknown", state="RUNNING")
    zero = row("2", 0) + row("2.batch", 0)
    ours = row("4", 9000) + row("4.batch", 9000)  # the step of ours has no row yet
    fake = Asked(open_ + zero + ours)
    (words,) = filled(slots, fake, now=T0 + 65 * NS)
    assert words == "Slurm does not have the energy of 4 jobs: 1, 2, 3, 4 yet; the next call of this command reads it"
    assert all((one.run / "results.json").exists() for one in slots)
    assert not list(slots[0].folder.parent.glob("*/*/slurm-*"))


def test_it_may_be_waited_for(slot):
    one, late = slot("1"), row("1", 0) + row("1.batch", 0)
    fake = Asked(late, late, row("1", 9000) + row("1.batch", 9000))
    assert filled([one], fake, now=T0 + 65 * NS, wait_s=10) == []
    assert facts(one)["energy_j"] == 9000
    assert len(fake.of("sacct", "-j")) == 3


def test_zero_that_stays_is_a_gap_with_its_reason(slot):
    one = slot()
    assert filled([one], Asked(row("1", 0) + row("1.batch", 0))) == []
    assert facts(one)["energy_j"] is None
    with open_run(one.run) as run:
        result = analyse_run(run)
    (note,) = [c for c in result.checks if c.name == "accounting"]
    assert "does not read its meter on n1" in note.texts["reason"]
    assert filled([one], Asked("")) == []


def test_steps_that_never_end_are_taken_with_a_doubt(slot):
    one = slot()
    assert (
        filled([one], Asked(row("1", 9000) + row("1.batch", 9000) + row("1.0", "", end="Unknown", state="RUNNING")))
        == []
    )
    with open_run(one.run) as run:
        assert any("still count as running" in e["what"] for e in run.events() if e.get("event") == "problem")


def test_the_execution_that_the_run_was_in(slot):
    one = slot()
    first = row("1", 9000, state="REQUEUED") + row("1.batch", 9000)
    second = row("1", 7000, "10:00", "11:00", index=2) + row("1.batch", 7000, "10:00", "11:00", index=2)
    assert filled([one], Asked(first + second)) == []
    assert facts(one)["energy_j"] == 9000
    other = slot(name="r02")
    (words,) = filled([other], Asked(second))
    assert "at another time only" in words
    (words,) = filled([other], Asked(row("1", "", "Unknown", "Unknown", state="PENDING")))
    assert "at another time only" in words
    (words,) = filled([other], Asked(""))
    assert "it is not in the database" in words


def test_tasks_of_an_array_are_told_apart(slot):
    one = slot("12")
    text = "".join(row(f"11_{k}{s}", 1000 * k, raw=str(10 + k), index=k) for k in (1, 2, 3) for s in ("", ".batch"))
    assert filled([one], Asked(text)) == []
    assert (facts(one, "slurm-12")["job"], facts(one, "slurm-12")["energy_j"]) == ("11_2", 2000)


def test_others_on_the_node_are_named(slot):
    one, two = slot("1"), slot("2", "r02", hosts=("n2",))
    text = "".join(row(f"{job}{s}", 9000, nodes=f"n{job}") for job in (1, 2) for s in ("", ".batch"))
    others = "1|COMPLETED|2026-11-16T00:00:00|2026-11-16T00:01:00|n1\n7|COMPLETED|2026-11-16T00:00:30|Unknown|n[1,5]\n"
    assert filled([one, two], Asked(text, others=others)) == []
    problems = {}
    for found in (one, two):
        with open_run(found.run) as run:
            problems[found.folder.name] = [e["what"] for e in run.events() if e.get("event") == "problem"]
    assert any("shared n1 with 7" in text for text in problems["r01"])
    assert not any("shared" in text for text in problems["r02"])


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        ({"config": "SLURM_CONF = x\nAcctGatherEnergyType = acct_gather_energy/none\n"}, "does not account energy"),
        ({"config": PM.replace("= none", "= jobs,usage")}, None),
    ],
)
def test_settings_of_the_cluster(slot, fake, words):
    one = slot()
    found = filled([one], Asked(row("1", 9000) + row("1.batch", 9000), **fake))
    if words:
        assert [words in text for text in found] == [True]
        assert not (one.run / "slurm-1").exists()
    else:
        with open_run(one.run) as run:
            assert any("PrivateData" in e["what"] for e in run.events() if e.get("event") == "problem")


def test_slurm_that_does_not_answer_is_told_and_fails_nothing(slot):
    one = slot()

    def down(words, timeout_s):
        return Answer(1, "", "sacct: error: slurm_persist_conn_open_without_init: failed")

    (words,) = attach_accounting([one], {}, slurm=SlurmClient(run=down))
    assert words.startswith("Slurm's energy is not added: ")
    fake = Asked(row("1", 9000) + row("1.batch", 9000))

    def half(words, timeout_s):
        return down(words, timeout_s) if "-N" in words else fake.run(words, timeout_s)

    assert attach_accounting([one], {}, slurm=SlurmClient(run=half), now=lambda: LATER) == []
    with open_run(one.run) as run:
        assert any("is not known" in e["what"] for e in run.events() if e.get("event") == "problem")


def test_slots_without_a_job_are_not_asked_for(slot):
    local = Slot((one := slot()).folder, State.DONE, one.run, "", {"pid": 1})
    live = slot("2", "r02", state=State.LIVE)
    fake = Asked("")
    assert filled([local, live, Slot(one.folder, State.FREE)], fake) == []
    assert not fake.words


def test_a_run_that_is_damaged_costs_only_itself(slot):
    bad, worse, good = slot("1"), slot("2", "r02"), slot("3", "r03")
    (bad.run / "run.json").write_text("{")
    (worse.run / "slurm-2").write_text("in the way")
    problems = filled([bad, worse, good], Asked("".join(row(f"{j}{s}", 9000) for j in (2, 3) for s in ("", ".batch"))))
    assert [p.split(":")[0] for p in problems] == [
        f"Slurm's energy is not added to {one.run.name}" for one in (bad, worse)
    ]
    assert facts(good, "slurm-3")["energy_j"] == 9000


def test_a_thousand_jobs_are_a_few_questions():
    rows = "".join(row(str(job), 9000) for job in range(1, 1001))
    asked = []

    def run(words, timeout_s):
        asked.append(words[-1])
        return Answer(0, rows, "")

    found = SlurmClient(run=run).read_rows([str(job) for job in range(1, 1001)])
    assert [len(names.split(",")) for names in asked] == [400, 400, 200]
    assert len(found) == 1000


def test_nothing_is_typed_into_a_command_line():
    with pytest.raises(Unavailable, match="is not a job"):
        SlurmClient(run=lambda *_: Answer(0, "", "")).read_rows(["1", "--version"])
