"""Runs of single nodes become one run: energies add up, files stay as they are, runs of other jobs are refused."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from tests.analysis.folders import UTC, Folder, counter, gpu
from tests.analysis.virtual import BASE, NS, ns
from tests.rows import every_row

from joulelab.analysis.analyse import analyse_run
from joulelab.core.errors import ConfigError, StoreError
from joulelab.core.quantity import add_quantities
from joulelab.report.run_rows import list_phase_rows
from joulelab.report.run_summary import name_ending
from joulelab.run.node_runs import join_runs
from joulelab.store.run_folder import list_runs, read_end, read_meta
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run
from joulelab.store.verification import verify_run
from joulelab.study.results import make_trial

T = np.arange(0, 20, 0.1)
ERROR_NS = 2_000_000  # of each clock


def make_node(runs, host="node1", *, boot="b", behind_s=0.0, watts=300.0, start=4.0, end=16.0, stream=None, **more):
    """Return the closed run of a node with one package, whose monotonic clock was `behind_s` earlier at zero."""
    pair = {
        "mono_ns": BASE,
        "utc_ns": UTC + round(behind_s * NS),
        "width_ns": 400,
        "kernel_error_ns": ERROR_NS,
        "boot_id": boot,
    }
    folder = Folder(runs, host=host, started=pair, labels={"node": host, host: "yes"})
    folder.add("rapl", stream or counter("cpu:0"), T, watts * T, *more.pop("columns", ()), host=host)
    last = {**pair, "mono_ns": ns(20), "utc_ns": pair["utc_ns"] + 20 * NS}
    marks = folder.path / host / "marks" / "1-1.jsonl"
    lines = [
        {"t": ns(start + 1), "mark": "begin", "id": "1", "name": "epoch", "n": 1, "labels": {}, "parent": None},
        {
            "t": ns(start + 5),
            "mark": "work",
            "from": ns(start + 1),
            "phase": "1",
            "amounts": {"samples": 10.0},
            "at": [],
        },
        {"t": ns(end - 1), "mark": "end", "id": "1"},
    ]
    marks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder.close(start, end, **{"ended": last, **more}).path


def list_files(run):
    paths = (p for p in run.rglob("*") if p.is_file())
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def analyse(path):
    with open_run(path) as run:
        return analyse_run(run)


def test_energies_add_up_and_no_file_changes(tmp_path):
    first = make_node(tmp_path / "a")
    other = make_node(tmp_path / "b", "node2", boot="c", behind_s=3.0, watts=200.0, end=14.0)
    before = [list_files(first), list_files(other)]
    run = join_runs(tmp_path / "runs", [first, other], name="both", labels={"size": "2"})
    assert [list_files(first), list_files(other)] == before
    own = list_files(run)
    for files in before:
        copied = {name: digest for name, digest in files.items() if "/" in name}
        assert copied.items() <= own.items()
    found, parts = analyse(run), [analyse(first), analyse(other)]
    total = add_quantities(part.energy for part in parts)
    assert found.energy.value == pytest.approx(300 * 12 + 200 * 10) == total.value
    assert found.energy.u == pytest.approx(total.u)
    assert {(s.host, s.energy.value) for s in found.scopes} == {(p.scopes[0].host, p.energy.value) for p in parts}
    assert found.duration_s == pytest.approx(13.0)  # from 4 s to 17 s of the first clock
    assert found.work["samples"] == 20
    assert (found.name, found.labels) == ("both", {"node": "node1", "node1": "yes", "node2": "yes", "size": "2"})
    assert (found.outcome, found.exit_code) == ("exit", 0)
    (apart,) = [c for c in found.checks if c.code == "joined-apart" and c.scope == "node2"]
    assert apart.numbers == pytest.approx({"late_s": 3.0, "early_s": 0.0})
    assert not [c for c in found.checks if c.code.startswith(("recorder-lost", "clocks", "not-recorded", "damaged"))]
    assert read_meta(run)["joined"] == [
        {"run": first.name, "host": "node1"},
        {"run": other.name, "host": "node2"},
    ]
    assert verify_run(tmp_path, str(run)).status == "whole"


def test_a_phase_takes_the_other_node_by_its_clock_and_only_while_its_command_ran(tmp_path):
    first = make_node(tmp_path / "a")
    other = make_node(tmp_path / "b", "node2", boot="c", behind_s=3.0, watts=200.0)
    found = analyse(join_runs(tmp_path / "runs", [first, other]))
    (phase,) = found.phases  # 5 s to 18 s; the first command ended at 16 s, the other began at 7 s
    assert phase.work == {"samples": 20.0}
    energy = phase.energy["measured"]
    assert energy.value == pytest.approx(300 * 11 + 200 * 11, rel=1e-6)
    (row,) = list_phase_rows(found)
    trial = make_trial(found).phases["epoch"]
    assert (row.energy, row.work) == (energy, phase.work) == (trial.energies["measured"], trial.work)
    off_s = (4 * ERROR_NS + 4 * 201) / 2 * 1e-9
    assert energy.budget()["clock"] == pytest.approx(200 * off_s * np.sqrt(2 / 3), rel=0.01)
    assert "clock" not in found.energy.budget()


def test_sealed_runs_idle_times_and_an_exit_code_are_taken_over(tmp_path):
    first = make_node(tmp_path / "a")
    with (first / "node1" / "events.run.jsonl").open("w") as file:
        file.write(json.dumps({"t": ns(1), "event": "idle", "from": ns(1), "to": ns(3)}) + "\n")
    other = make_node(tmp_path / "b", "node2", boot="c", exit_code=3, message="lost")
    assert seal_run(other).sealed
    run = join_runs(tmp_path / "runs", [first, other])
    found = analyse(run)
    assert found.exit_code == 3
    assert read_end(run)["message"] == "node2: lost"
    idle = {s.host: s.idle_w for s in found.scopes}
    assert idle["node1"].value == pytest.approx(300)
    assert idle["node2"] is None
    assert seal_run(run).sealed == ("node1/rapl.t0",)
    assert verify_run(tmp_path, str(run)).status == "whole"
    assert analyse(run).energy.value == pytest.approx(found.energy.value)


def edit_meta(run, **more):
    meta = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**meta, **more}))
    return run


def test_nodes_that_failed_or_ran_another_command_are_named(tmp_path):
    words = ["torchrun", "--node-rank", "0", "train.py"]
    first = edit_meta(make_node(tmp_path / "a"), command=words)
    alike = edit_meta(make_node(tmp_path / "b", "node2", boot="c", exit_code=3), command=[*words[:2], "1", words[3]])
    ended = {"outcome": "signal", "exit_code": None, "signal": 9}
    other = edit_meta(make_node(tmp_path / "c", "node3", boot="d", start=4.5, **ended), command=["sleep", "9"])
    lost = make_node(tmp_path / "d", "a-node", boot="e", outcome="killed")
    result = analyse(join_runs(tmp_path / "runs", [first, alike, other, edit_meta(lost, command=words)]))
    assert name_ending(result) == "exit 3 on node2"
    checks = result.checks
    ends = {(c.scope, c.texts["end"]) for c in checks if c.code == "joined-failed"}
    assert ends == {("node2", "exit 3"), ("node3", "signal 9"), ("a-node", "killed")}
    assert [(c.scope, c.texts) for c in checks if c.code == "joined-other-command"] == [
        ("node3", {"command": "sleep 9"})
    ]
    assert [c.scope for c in checks if c.code == "joined-apart"] == ["node3"]  # by 4 % of the time


def test_reasons_of_a_gap_are_those_of_its_own_node(tmp_path):
    first, other = make_node(tmp_path / "a", end=36.0), make_node(tmp_path / "b", "node2", boot="c")
    gap = {"t": ns(5), "event": "gap", "meter": "rapl", "stream": "cpu:0", "from": ns(5), "reason": "unplugged"}
    late = {"t": ns(5), "event": "meter", "meter": "rapl", "status": "unavailable", "what": "no zones"}
    for lines in ([gap], [late]):
        (other / "node2" / "events.0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        checks = analyse(join_runs(tmp_path / "runs", [first, other])).checks
        (found,) = [c for c in checks if c.code == "gaps"]
        assert (found.scope, found.texts) == ("node1/cpu:0", {"doctor": "rapl"})


def test_machines_of_one_name_are_two_nodes(tmp_path):
    first, other = make_node(tmp_path / "a"), make_node(tmp_path / "b", boot="c", watts=100.0)
    found = analyse(join_runs(tmp_path / "runs", [first, other]))
    assert {s.host: round(s.energy.value) for s in found.scopes} == {"node1": 3600, "node1-2": 1200}


def test_a_node_without_a_meter_fails_the_check(tmp_path):
    first, other = make_node(tmp_path / "a"), make_node(tmp_path / "b", "node2", boot="c")
    (other / "node2" / "rapl.t0.0.journal").unlink()
    end = json.loads((other / "end.json").read_text())
    (other / "end.json").write_text(json.dumps({**end, "files": {}, "sha256": {}}))
    found = analyse(join_runs(tmp_path / "runs", [first, other]))
    assert [c.scope for c in found.checks if c.code == "not-recorded.no-readings"] == ["node2"]


def join_one(tmp_path):
    return [make_node(tmp_path / "a")]


def join_twice(tmp_path):
    return [make_node(tmp_path / "a")] * 2


def join_one_machine(tmp_path):
    return [make_node(tmp_path / "a"), make_node(tmp_path / "b", "container")]


def join_one_gpu(tmp_path):
    zeros = (np.zeros(T.size),)
    shared = gpu(0, device="GPU-1")
    return [make_node(tmp_path / "a", stream=shared, columns=zeros),
            make_node(tmp_path / "b", "n2", boot="c", stream=shared, columns=zeros)]  # fmt: skip


def join_later(tmp_path):
    return [make_node(tmp_path / "a"), make_node(tmp_path / "b", "node2", boot="c", behind_s=12.0)]


def join_live(tmp_path):
    return [make_node(tmp_path / "a"), Folder(tmp_path / "b", live=True, host="node2").path]


def join_joined(tmp_path):
    two = [make_node(tmp_path / "a"), make_node(tmp_path / "b", "node2", boot="c")]
    return [join_runs(tmp_path / "both", two), make_node(tmp_path / "c", "node3", boot="d")]


def join_simulated(tmp_path):
    simulated = make_node(tmp_path / "b", "node2", boot="c")
    return [make_node(tmp_path / "a"), edit_meta(simulated, environment={"JOULELAB_TWIN": "2xh100"})]


@every_row(
    ("make", "code"),
    [
        (join_simulated, "partly-simulated"),
        (join_one, "one-run"),
        (join_twice, "run-twice"),
        (join_one_machine, "counted-twice"),
        (join_one_gpu, "counted-twice"),
        (join_later, "not-one-job"),
        (join_live, "not-ended"),
        (join_joined, "not-one-node"),
    ],
)
def test_runs_that_are_not_of_one_job_are_refused(tmp_path, make, code):
    with pytest.raises(ConfigError) as error:
        join_runs(tmp_path / "runs", make(tmp_path))
    assert error.value.code == f"config.{code}"
    assert not list_runs(tmp_path / "runs")


def test_a_damaged_run_is_refused_and_a_failed_copy_leaves_nothing(tmp_path, monkeypatch):
    first, other = make_node(tmp_path / "a"), make_node(tmp_path / "b", "node2", boot="c")
    journal = other / "node2" / "rapl.t0.0.journal"
    data = journal.read_bytes()
    journal.write_bytes(data[:-5] + b"\0" * 5)
    with pytest.raises(StoreError) as error:
        join_runs(tmp_path / "runs", [first, other])
    assert error.value.code == "store.damaged"
    journal.write_bytes(data)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("joulelab.run.node_runs.shutil.copytree", fail)
    with pytest.raises(StoreError) as error:
        join_runs(tmp_path / "runs", [first, other])
    assert error.value.code == "store.not-copied"
    assert not list_runs(tmp_path / "runs")
