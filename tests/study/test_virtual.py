"""Studies on twins in virtual time: the same folders and analysis as real ones, true to the model, always the same."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.study.virtual_study import METERS, NODE, write

from joulelab.analysis.results_file import load_result
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.store.run_folder import read_end, read_meta
from joulelab.store.run_reader import open_run
from joulelab.study.drive import list_planned_slots as planned
from joulelab.study.plan_check import check_plan
from joulelab.study.results import gather_results, load_trial, read_trial
from joulelab.study.slots import State
from joulelab.study.study_file import read_study
from joulelab.twin import executor
from joulelab.twin.nodefile import parse_node
from joulelab.twin.virtual import make_options, place_on_twins, read_truth, run_twin_study
from joulelab.twin.virtual.cells import WORDS, list_remarks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.study.folder import Study
    from joulelab.study.slots import Slot

pytestmark = pytest.mark.system  # pure, and slow


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("virtual")
    return run_twin_study(write(folder, repeats=6), str(folder / "node.toml"), folder / "out")


def test_where_numbers_come_from_does_not_make_another_twin() -> None:
    found = parse_node(NODE + METERS, "node")
    told = replace(found, title="t", calibrated=("a",), chosen=("b",), sources={"gpu.max_w": "c"})
    assert make_options("node", told) == make_options("node", found)


def test_a_whole_number_describes_the_same_twin_as_a_float() -> None:
    node = parse_node(NODE + METERS, "node.toml")
    whole = replace(
        node, node=replace(node.node, gpus=tuple(replace(g, max_cap_w=int(g.max_cap_w)) for g in node.node.gpus))
    )
    assert make_options("mine", whole) == make_options("mine", node)


def slots_of(study: Study) -> list[Slot]:
    return planned(study, list(study.read_cells()), int(study.data["repeats"]))


def energies(study: Study) -> dict[str, Any]:
    found = {}
    for slot in slots_of(study):
        trial = read_trial(slot)
        assert trial is not None, "it is stored"
        found[f"{slot.folder.parent.name}/{slot.folder.name}"] = trial.time_s, trial.energies, trial.start_utc
    return found


@pytest.mark.system
def test_every_slot_is_done_and_its_run_is_like_a_recorded_one(study: Study) -> None:
    slots = slots_of(study)
    assert [slot.state for slot in slots] == [State.DONE] * 24
    run = slots[0].run
    assert run is not None
    assert read_meta(run)["twin"]["name"] == "node"
    assert (read_end(run) or {})["exit_code"] == 0
    with open_run(run) as opened:
        assert not opened.problems()
        tables = {(t.meter, t.table): t for t in opened.tables()}
        marks = [(m.get("name"), m.get("n")) for m in opened.marks() if m["mark"] == "begin"]
    assert set(tables) == {("wall", "power"), ("nvml", "power"), ("nvml", "state")}
    assert marks == [("load", None), ("epoch", 1), ("epoch", 2)]
    assert tables["wall", "power"].streams[0].channels[0].accuracy.source == "datasheet"


@pytest.mark.system
def test_the_true_energy_lies_in_the_interval(study: Study) -> None:
    inside = []
    for slot in slots_of(study):
        energy, truth = load_trial(slot).get_energy("node.ac"), read_truth(slot.folder)
        assert energy is not None
        inside.append(abs(energy.value - truth["energy_j"]["node.ac"]) <= 2 * energy.u)
        assert truth["time_s"] == pytest.approx(load_trial(slot).time_s)
        assert 0 < energy.u < 0.01 * energy.value
    assert sum(inside) >= 0.95 * len(inside)


@pytest.mark.system
def test_caps_and_gpus_reach_the_twin(study: Study) -> None:
    by_cell = {(c.knobs["cap"].value, c.knobs["gpus"].value): k for k, c in study.read_cells().items()}
    first = {key: next(s for s in slots_of(study) if s.folder.parent.name == cell) for key, cell in by_cell.items()}
    tight, free = load_trial(first[150.0, 1]), load_trial(first[260.0, 1])
    assert tight.time_s > 1.05 * free.time_s
    run = first[150.0, 1].run
    assert run is not None
    assert [(cap.scope, cap.asked, cap.unit) for cap in load_result(run).caps] == [("gpu:0", 150.0, "W")]
    assert not tight.uncapped
    assert tight.find_idle_gpus(["gpu:0"]) == ["gpu:1"]
    assert load_trial(first[150.0, 2]).find_idle_gpus(["gpu:0", "gpu:1"]) == []
    assert tight.work == {"samples": 6000.0}
    assert set(tight.phases) == {"load", "epoch"}


@pytest.mark.system
def test_locked_clocks_and_caps_of_cpus_reach_the_twin(tmp_path: Path) -> None:
    file = write(tmp_path, repeats=1)
    knobs = "cap = [150, 260]\ngpus = [1, 2]"
    file.write_text(file.read_text().replace(knobs, "clock = [1050, 2100]\ncpu_cap = [120, 350]\ngpus = [1]"))
    saving = '[[workloads.train.stages]]\nname = "save"\nsamples = "images"\nhost_rate = 300\ncpu = 0.9\n'
    (tmp_path / "node.toml").write_text(NODE + saving + METERS)
    study = run_twin_study(file, str(tmp_path / "node.toml"), tmp_path / "out")
    cells = {k: (c.knobs["clock"].value / 1e6, c.knobs["cpu_cap"].value) for k, c in study.read_cells().items()}
    slots = {cells[slot.folder.parent.name]: slot for slot in slots_of(study)}
    took, watts = {}, {}
    for knobs_of, slot in slots.items():
        took[knobs_of], joules = load_trial(slot).time_s, read_truth(slot.folder)["energy_j"]
        watts[knobs_of] = [joules[point] / took[knobs_of] for point in ("gpu:0", "cpu:0")]
    assert took[1050, 350] > took[2100, 350] + 0.9 * 40, "epochs of 20 s take twice as long"
    assert watts[1050, 350][0] < 0.5 * watts[2100, 350][0]
    assert took[2100, 120] > took[2100, 350] + 0.5 * 10, "saving takes longer"
    assert watts[2100, 120][1] < watts[2100, 350][1]
    with open_run(slots[1050, 120].run) as opened:
        told = [(e["scope"], e["unit"], e["asked"]) for e in opened.events() if e["event"] == "cap-set"]
    assert sorted(told) == [("cpu:0", "W", 120.0), ("gpu:0", "Hz", 1.05e9)]
    file.write_text(file.read_text().replace("[120, 350]", "[20]").replace("[1050, 2100]", "[100]"))
    plan = place_on_twins(read_study(file).plan, str(tmp_path / "node.toml"))
    with pytest.raises(JoulelabError, match="clock of 100 MHz cannot be locked"):
        check_plan(plan, {})


@pytest.mark.system
def test_the_results_are_those_of_any_study(study: Study) -> None:
    results = gather_results(study)
    assert len(results.cells) == 4


@pytest.mark.system
def test_the_same_seed_gives_the_same_and_another_does_not(study: Study, tmp_path: Path) -> None:
    file = write(tmp_path, repeats=1, caps="[150]")
    node = str(tmp_path / "node.toml")
    first, again, other = (
        energies(run_twin_study(file, node, tmp_path / name, seed=seed))
        for name, seed in (("a", 7), ("b", 7), ("c", 8))
    )
    assert first == again
    assert first != other
    whole = energies(study)
    assert all(whole[slot][:2] == first[slot][:2] for slot in first)  # a slot does not depend on the others


@pytest.mark.system
def test_a_changed_parameter_changes_what_is_measured(tmp_path: Path) -> None:
    file = write(tmp_path, repeats=1, caps="[260]")
    text = (tmp_path / "node.toml").read_text()
    plain, hot = (parse_node(text, "node", changes) for changes in ({}, {"host": {"idle_w": 140.0, "max_w": 160.0}}))
    found = [energies(run_twin_study(file, each, tmp_path / name)) for each, name in ((plain, "a"), (hot, "b"))]
    watts = [sorted(e["node.ac"].value / t for t, e, _ in each.values()) for each in found]
    assert all(b > a + 10 for a, b in zip(*watts, strict=True))
    assert set(found[0]).isdisjoint(found[1])  # cells of another twin are other cells


def test_what_a_twin_does_not_have_is_refused_before_anything_runs(tmp_path: Path) -> None:
    def refusal(node: str = NODE + METERS, **study: Any) -> str:
        file = write(tmp_path, **study)
        with pytest.raises(ConfigError) as told:
            run_twin_study(file, parse_node(node, "node"), tmp_path / "out")
        return str(told.value)

    assert "no model of the workload 'train'" in refusal(NODE.replace("workloads.train", "workloads.other") + METERS)
    assert "a cap of 90 W cannot be set" in refusal(caps="[90]")
    assert "no twin has the meter 'wal'" in refusal(top='meters = ["wal"]')
    assert "no meter 'sundial'" in refusal(NODE + '[meters.x]\nfamily = "sundial"\n')
    assert "nothing is measured" in refusal(NODE)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="no node type 'gpu'"):
        place_on_twins(read_study(write(tmp_path)).plan, {"gpu": str(tmp_path / "node.toml")})


def test_a_node_type_of_a_study_file_may_be_a_twin(tmp_path: Path) -> None:
    file = write(tmp_path, repeats=1, caps="[260]")
    file.write_text(file.read_text() + '[nodes.sim]\ntwin = "node.toml"\nuses = "gpu"\n')
    plan = read_study(file).plan
    assert plan.nodes["sim"].executor == "twin"
    assert plan.nodes["sim"].options["twin"] == "node"
    file.write_text(file.read_text().replace("node.toml", "nod.toml").replace("uses", 'partition = "p"\nuses'))
    with pytest.raises(ConfigError) as told:
        read_study(file)
    assert "there is no such node file" in str(told.value)
    assert "partition is for jobs of a cluster" in str(told.value)
    file.write_text(file.read_text().replace('twin = "nod.toml"', 'executor = "twin"'))
    with pytest.raises(ConfigError, match="no twin is named"):
        read_study(file)


def _study_run(folder: Path) -> list[str]:
    return [sys.executable, "-m", "joulelab", "study", "run", "study.toml", "--twin", "node.toml", "--studies",
            str(folder / "st"), "--no-figures"]  # fmt: skip


def _workers(pid: int) -> Iterator[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    yield from map(int, listed.stdout.split())


@pytest.mark.campaign  # a kill; test_a_worker_that_dies_is_told is in make test
def test_a_killed_run_leaves_no_workers_and_goes_on_when_called_again(tmp_path: Path) -> None:
    write(tmp_path, repeats=8)
    process = subprocess.Popen(_study_run(tmp_path), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = tmp_path / "st" / "tiny-node" / "cells"
    until = time.monotonic() + 120
    while time.monotonic() < until and not list(done.glob("*/r*/2*/end.json")):
        time.sleep(0.05)
    workers = list(_workers(process.pid))
    assert workers
    process.send_signal(signal.SIGKILL)
    process.wait()
    while time.monotonic() < until and any(_lives(pid) for pid in workers):
        time.sleep(0.05)
    assert not any(_lives(pid) for pid in workers)
    before = {path: path.stat().st_mtime_ns for path in done.glob("*/r[0-9][0-9]/2*/end.json")}
    again = subprocess.run(_study_run(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert again.returncode == 0, again.stderr
    assert len(list(done.glob("*/r[0-9][0-9]/2*/end.json"))) == 32
    assert len(before) < 32
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.system
def test_a_worker_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "WORKER", "joulelab.no_such_module")
    with pytest.raises(JoulelabError, match=r"cut off 3 times.*worker died, exit code 1.*no_such_module"):
        run_twin_study(write(tmp_path, repeats=1), str(tmp_path / "node.toml"), tmp_path / "out")


@pytest.mark.system
def test_a_slot_that_fails_stops_the_study_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, repeats=1, meters=METERS.replace("current_a = 5", 'current_a = "much"'))
    monkeypatch.setattr("joulelab.study.plan_check.check_plan", lambda *_: [])  # it would be refused before
    with pytest.raises(JoulelabError, match="current_a is 'much'"):
        run_twin_study(file, str(tmp_path / "node.toml"), tmp_path / "out")
    assert (tmp_path / "out").exists()


def checked(folder: Path, node: str = NODE + METERS, more: str = "", command: str = "train") -> list[str]:
    """Return what a plan on a twin is warned of."""
    file = write(folder, caps="[150]")
    (folder / "node.toml").write_text(node)
    file.write_text(file.read_text().replace('"train"', f'"{command}"') + more)
    return check_plan(place_on_twins(read_study(file).plan, str(folder / "node.toml")), {})


def test_what_the_model_does_not_have_is_refused_and_what_has_no_effect_is_told(tmp_path: Path) -> None:
    command, knobs = "train {image} {mode}", 'image = [1, 512]\nmode = ["a", "b"]\n'
    with pytest.raises(ConfigError) as told:
        checked(tmp_path, more=knobs, command=command)
    first, second = str(told.value).splitlines()
    assert re.search(r"study\.toml:12: .*no parameter 'image'.*\[workloads\.train\].*did you mean 'images'", first)
    assert "no parameter 'mode'" in second
    declared = (NODE + METERS).replace("images = 3000", "images = 3000, image = 1, mode = 1")
    assert checked(tmp_path, declared, knobs, command) == [
        WORDS,
        "train: without effect in the twin's model: image, mode.",
    ]
    with pytest.raises(ConfigError, match=r"images is 'many' \(the twin's model takes a number"):
        checked(tmp_path, more='images = ["many"]\n', command="train {images}")
    assert checked(tmp_path) == []


def test_parameters_of_a_reference_workload_pass_with_a_note(tmp_path: Path) -> None:
    node = (NODE + METERS).replace("workloads.train", "workloads.burn").replace('"load"', '"load"\neach = "run"')
    file = write(tmp_path, caps="[150]")
    text = file.read_text().replace('command = "train"', 'reference = "burn"\nparameters = { device = "cuda" }')
    file.write_text(text)
    plan = place_on_twins(read_study(file).plan, parse_node(node, "node"))
    assert check_plan(plan, {}) == ["train: without effect in the twin's model: device."]
    assert list_remarks(plan) == ["train: without effect in the twin's model: device."]


def test_cpus_that_have_the_rates_of_a_gpu_are_told(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().partition("[knobs]")[0] + '[nodes.c]\nuses = "cpu"\n')
    node = NODE + METERS
    (note,) = check_plan(place_on_twins(read_study(file).plan, parse_node(node, "node")), {})
    assert "train on c uses no GPU" in note
    own = node.replace('name = "epoch"', 'name = "epoch"\non = "cpu"')
    assert check_plan(place_on_twins(read_study(file).plan, parse_node(own, "node")), {}) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('samples = "images"', 'samples = "imags"', r"node file node \[workloads\.train\] stage 'epoch'.*'imags'"),
        ("images = 3000", "images = 1e14", r"stage 'epoch': the run would take .*at most 1,000,000,000 s"),
        ("images = 3000", "images = -3", "images is -3"),
        ("epochs = 2", "epochs = 1e8", r"100,000,000 pieces \(at most 1,000,000"),
        ("flutter_s = 1.5", "flutter_s = 1e-7", "stage 'epoch': the run would have .* pieces"),
        ("rate = 150", "rate = 1e-3", "the meter wall would be read too often"),
        ("current_a = 5", 'current_a = "much"', r"node file node \[meters\.wall\]: current_a is 'much'"),
        ("flaws = { period_s = 0.1", "flaws = { period_s = 0", r"\[meters\.wall\]: flaws\.period_s is 0"),
        ("current_a = 5", "curent_a = 5", r"\[meters\.wall\].*did you mean 'current_a'"),
        ("ask_s = 0.1", "ask_s = 1e-6", r"\[meters\.nvml\]: ask_s is 1e-06"),
        ("[meters.nvml]", '[meters.j]\nfamily = "slurm"\noptions = { frequency_s = "x" }\n[meters.nvml]', r"meters\.j"),
        (
            "[meters.nvml]",
            '[meters.j]\nfamily = "slurm"\noptions = { frequency_s = 0 }\n[meters.nvml]',
            "frequency_s is 0",
        ),
    ],
)
def test_plan_refuses_what_run_would(tmp_path: Path, old: str, new: str, says: str) -> None:
    node = NODE + METERS
    node = node.replace("flutter = 0.05\n", "").replace("images = 3000", "images = 6000") if "rate" in old else node
    assert old in node
    with pytest.raises(ConfigError, match=says):
        checked(tmp_path, node.replace(old, new))
