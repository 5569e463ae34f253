"""Results of a study: trials, cells, work found in outputs, power now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import make_run
from tests.rows import every_row
from tests.study.bench import make_study, place, store_trial

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.result import Check
from joulelab.analysis.results_file import load_result
from joulelab.analysis.study_cells import Note, name_meter_device
from joulelab.core.errors import ConfigError, StoreError
from joulelab.core.quantity import Quantity
from joulelab.core.spec import Spec, Stream
from joulelab.report.study_csv import write_records
from joulelab.report.study_summary import summarise_study
from joulelab.store.journal import HeaderFields, JournalWriter, make_journal_path, pack_row
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.folder import Plan, join_study
from joulelab.study.matrix import NodeType, PlannedCell, Workload
from joulelab.study.results import (
    MEASURED,
    PhaseTrial,
    SlotTrial,
    WorkPattern,
    _list_rated_scopes,
    find_work,
    gather_results,
    load_trial,
    make_trial,
    read_power_now,
)
from joulelab.study.slots import State, read_slot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.study.folder import Study


END = {"outcome": "exit", "exit_code": 0, "start_ns": 10, "end_ns": 20}


def add(
    study: Study, key: str, repeat: int, gpus: tuple[float, float], time_s: float, kind: str = "r", **more: Any
) -> Path:
    """Make a slot that is done, with a trial as its process would have kept it."""
    slot = place(study.get_slot_folder(key, repeat, kind), {"ticks": 1}, END)
    run = read_slot(slot).run
    assert run is not None
    energies = {f"gpu:{n}": Quantity(value, {"gain:nvml": value * 0.01}) for n, value in enumerate(gpus)}
    energies["measured"] = energies["gpu"] = energies["gpu:0"] + energies["gpu:1"]
    found = SlotTrial(run.name, time_s, "2026-01-01T00:00:00+00:00", energies, {"steps": 5.0}, {"measured": "nvml"})
    store_trial(slot, replace(found, **more))
    write_json_atomic(
        slot / "slot.json", {"gpus": ["gpu:1"], "took_s": 9.0, "cooled": {"reason": "limit", "to_c": 50.0}}
    )
    return slot


def test_slots_become_cells(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", "true", "{n}", knobs={"n": "10,9,x"})
    by_n = {cell.knobs["n"].text: key for key, cell in study.read_cells().items()}
    add(study, by_n["10"], 1, (30.0, 10.0), 2.0)
    add(study, by_n["10"], 2, (0.0, 50.0), 3.0)
    add(study, by_n["10"], 1, (7.0, 7.0), 1.0, "w")
    place(study.get_slot_folder(by_n["9"], 1), {"ticks": 1}, END | {"exit_code": 3})
    results = gather_results(study, planned=[by_n["x"]])
    assert [cell.knobs["n"] for cell in results.cells] == [9, 10, "x"]
    assert [len(cell.trials) for cell in results.cells] == [0, 2, 0]
    first, second = results.cells[1].trials
    assert (first.energy, first.time_s, first.work, first.meter) == (
        Quantity(40.0, {"gain:nvml": 0.4}),
        2.0,
        {"steps": 5.0},
        "nvml",
    )
    assert [first.idle_energy_share, second.idle_energy_share] == [0.75, 0.0]
    assert [(row["slot"], row["state"]) for row in results.rows] == [
        ("r01", "failed"), ("r01", "done"), ("r02", "done"), ("w01", "done"),
    ]  # fmt: skip
    table = write_records(results.rows).splitlines()
    assert len(table) == 5
    assert table[1].split(",")[1:5] == ["9", "r01", "failed", "exit code 3"]
    assert [len(cell.trials) for cell in gather_results(study).cells] == [0, 2]


def test_another_scope_can_count(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    add(study, next(iter(study.read_cells())), 1, (30.0, 10.0), 2.0)
    (cell,) = gather_results(study, scope="gpu:1").cells
    assert cell.trials[0].energy == Quantity(10.0, {"gain:nvml": 0.1})
    with pytest.raises(ConfigError, match=r"no run has 'node.ac'.*gpu, gpu:0, gpu:1, measured"):
        gather_results(study, scope="node.ac")


@pytest.mark.parametrize("text", ["damaged", '{"schema": 1, "id": 5, "command": 5, "labels": 5}'])
def test_a_run_that_cannot_be_worked_out_hides_no_other(tmp_path: Path, text: str) -> None:
    study = make_study(tmp_path / "s")
    key = next(iter(study.read_cells()))
    add(study, key, 1, (30.0, 10.0), 2.0)
    broken = add(study, key, 2, (30.0, 10.0), 2.0)
    run = read_slot(broken).run
    assert run is not None
    (run / "results.json").unlink()
    (run / "run.json").write_text(text)
    results = gather_results(study)
    assert len(results.cells[0].trials) == 1
    (note,) = results.notes
    assert (note.code, note.texts["slot"], note.texts["cell"]) == ("slot-not-analysed", "r02", "(no knob)")
    with pytest.raises(StoreError):
        load_trial(read_slot(broken))


def test_facts_come_with_the_trial(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    facts = {"data": "cifar-10", "accuracy": 0.9, "quality": "accuracy"}
    add(study, next(iter(study.read_cells())), 1, (30.0, 10.0), 2.0, facts=facts)
    results = gather_results(study)
    assert results.cells[0].trials[0].facts == facts
    assert (results.rows[0]["data"], results.rows[0]["fact_accuracy"]) == ("cifar-10", 0.9)


def test_the_trial_of_an_older_version_counts_only_where_the_readings_were_left_out(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    slot = place(study.get_slot_folder(next(iter(study.read_cells())), 1), {"ticks": 1}, END)
    run = read_slot(slot).run
    assert run is not None
    old = {
        "schema": 3, "run": run.name, "time_s": 2.0, "start_utc": "", "work": {"steps": 5.0}, "doubts": [],
        "energies": {"measured": {"value": 9.0, "terms": {"gain:m": 1.0, "unseen:m": 3.0}, "known": True}},
        "meters": {}, "estimate": False, "uncapped": [], "caps": {}, "busiest": None, "phases": {},
    }  # fmt: skip
    write_json_atomic(slot / "trial.json", old)
    assert load_trial(read_slot(slot)).get_energy() == Quantity(9.0, {"gain:m": 1.0}, bounds={"m": 3.0})
    assert load_result(run).energy is None
    doubts = {"doubts": ["idle GPUs: gpu:1: idle all the time", "gaps: x"], "uncapped": ["gpu:0: 201 W above the cap"]}
    write_json_atomic(slot / "trial.json", old | doubts)
    stored = load_trial(read_slot(slot))
    assert [str(check) for check in stored.doubts] == doubts["doubts"], "these versions stored sentences only"
    assert [check.name for check in stored.doubts] == ["idle GPUs", "gaps"]
    assert [str(check) for check in stored.uncapped] == ["cap: gpu:0: 201 W above the cap"]
    write_json_atomic(slot / "trial.json", old)
    assert load_trial(read_slot(slot)).get_energy() is not None, (
        "also after somebody looked at the run without its readings"
    )
    write_json_atomic(slot / "trial.json", old | {"run": "another"})
    assert load_trial(read_slot(slot)).energies == {}
    write_json_atomic(slot / "trial.json", old)
    (run / "h" / "nvml.power.parquet").write_bytes(b"")
    assert load_trial(read_slot(slot)).energies == {}, "there are readings: they count"


def test_a_stored_result_counts_until_the_run_changes(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    slot = add(study, next(iter(study.read_cells())), 1, (30.0, 10.0), 2.0)
    assert read_slot(slot).state is State.DONE
    kept = load_trial(read_slot(slot))
    assert kept.get_energy("gpu:0") == Quantity(30.0, {"gain:nvml": 0.3})
    assert kept.get_idle_share(kept.find_idle_gpus([])) is None
    run = read_slot(slot).run
    assert run is not None
    (run / "h" / "events.0.jsonl").write_text("")
    assert load_trial(read_slot(slot)).energies == {}  # analysed again, from a run without any meter


def test_a_gpu_is_idle_by_its_load_and_by_visibility_only_where_it_tells_none(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    slot = add(study, next(iter(study.read_cells())), 1, (30.0, 10.0), 2.0)
    kept = load_trial(read_slot(slot))
    assert load_trial(read_slot(slot)) == kept

    def share(used: list[str], **loads: float) -> float | None:
        found = {name.replace("_", ":"): load for name, load in loads.items()}
        loaded = replace(kept, busiest=found)
        return loaded.get_idle_share(loaded.find_idle_gpus(used))

    assert share(["gpu:0", "gpu:1"], gpu_0=0.9, gpu_1=0.005) == 0.25  # visible, and did nothing
    assert share(["gpu:0"], gpu_0=0.9, gpu_1=0.9) == 0.0  # hidden, and somebody else's
    assert share(["gpu:0", "gpu:1"], gpu_0=0.0, gpu_1=0.0) == 1.0
    assert share([], gpu_0=0.9, gpu_1=0.0) == 0.25
    assert share(["gpu:0"], gpu_0=0.9) == 0.25
    assert share(["gpu:0"]) == 0.25
    assert share([], gpu_0=0.9) is None
    assert replace(kept, energies={}).get_idle_share(["gpu:0"]) is None


def test_doubts_and_caps_that_were_not_in_force_come_with_the_trial(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    uncapped = Check("cap-not-enforced", "failed", "gpu:0", {"mean_w": 201.0, "cap_w": 100.0})
    doubts = {"doubts": (uncapped, Check("gaps", "warning", "gpu:0", {"lost_share": 0.05})), "uncapped": (uncapped,)}
    add(study, next(iter(study.read_cells())), 1, (30.0, 10.0), 2.0, **doubts)
    results = gather_results(study)
    assert results.cells[0].uncapped
    assert results.cells[0].trials[0].doubts == doubts["doubts"]
    assert results.rows[0]["doubts"] == doubts["doubts"]
    shown = summarise_study(study)[0].rows[0]["doubts"]
    assert shown.split("; ") == [
        "cap not enforced: gpu:0: used 201 W on average, more than its cap of 100 W",
        "gaps: gpu:0: no readings in 5.0 % of the time",
    ]


def caps_of(study: Study) -> dict[str, str]:
    return {cell.knobs["cap"].text: key for key, cell in study.read_cells().items()}


def test_percent_and_watts_of_one_study_are_lines_of_their_own(tmp_path: Path) -> None:
    make_study(tmp_path / "s", knobs={"cap": "60%"})
    study = make_study(tmp_path / "s", knobs={"cap": "150"})
    keys = caps_of(study)
    add(study, keys["60%"], 1, (30.0, 10.0), 2.0)
    add(study, keys["150"], 1, (30.0, 10.0), 2.0)
    results = gather_results(study)
    assert [c.knobs for c in results.cells] == [{"cap": 0.6, "cap_of": "default"}, {"cap": 150.0}]
    assert len(summarise_cells(results.cells).lines) == 2


def test_slots_without_the_wanted_work_are_noted(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    key = next(iter(study.read_cells()))
    add(study, key, 1, (30.0, 10.0), 2.0)
    results = gather_results(study, work=[WorkPattern.parse(r"tokens: (\d+)")])
    assert results.notes == [Note("work-missing", {"slots": 1}, {"name": "tokens", "names": (f"cells/{key}/r01",)})]


def of_file(folder: Path, workloads: Sequence[Workload]) -> tuple[Study, dict[str, PlannedCell]]:
    cells = {cell.key: cell for cell in (PlannedCell(workload, {}) for workload in workloads)}
    nodes = {w.node_type: NodeType(w.node_type) for w in workloads}
    study = join_study(folder, "s", Plan(list(cells.values()), nodes=nodes, file=folder / "s.toml"), 1)
    study.add_cells(cells.values())
    return study, cells


def test_workloads_and_node_types_tell_cells_apart(tmp_path: Path) -> None:
    made = [Workload(("a",), name, node) for name in ("train", "predict") for node in ("gpu", "cpu-mix")]
    study, cells = of_file(tmp_path / "s", made)
    gone = PlannedCell(Workload(("a",), "dropped", "gpu"), {})
    study.add_cells([gone])
    for key in (*cells, gone.key):
        add(study, key, 1, (30.0, 10.0), 2.0)
    results = gather_results(study, cells=cells)
    assert [tuple(cell.knobs.values()) for cell in results.cells] == [
        ("train", "gpu"), ("train", "cpu-mix"), ("predict", "gpu"), ("predict", "cpu-mix"),
    ]  # fmt: skip
    assert {(row["workload"], row["node"]) for row in results.rows} == {(w.name, w.node_type) for w in made}
    assert len(gather_results(study).cells) == 5, "without a file all that is there counts"


def test_phases_that_count_are_cells_of_their_own(tmp_path: Path) -> None:
    study, cells = of_file(tmp_path / "s", [Workload(("a",), "w", "gpu", ("train", "predict"))])
    (key,) = cells
    energies = {"measured": Quantity(30.0, {"gain:nvml": 0.3}), "gpu:1": Quantity(9.0)}
    train = PhaseTrial(energies, 1.5, {"samples": 100.0})
    add(study, key, 1, (30.0, 10.0), 2.0, phases={"train": train, "predict": PhaseTrial({}, 0.5)})
    add(study, key, 2, (30.0, 10.0), 2.0, phases={"train": train})
    add(study, key, 1, (1.0, 1.0), 2.0, "w", phases={})
    results = gather_results(study, cells=cells)
    assert [(cell.key, cell.knobs) for cell in results.cells] == [
        (f"{key}:train", {"phase": "train"}), (f"{key}:predict", {"phase": "predict"}),
    ]  # fmt: skip
    first, second = results.cells
    assert [(t.energy, t.time_s, t.work) for t in first.trials] == [(energies["measured"], 1.5, {"samples": 100.0})] * 2
    assert [(t.energy, t.time_s) for t in second.trials] == [(None, 0.5)]
    assert results.notes == [Note("phase-missing", {"slots": 1}, {"name": "predict", "names": (f"cells/{key}/r02",)})]
    (cell, _) = gather_results(study, scope="gpu:1", cells=cells).cells
    assert cell.trials[0].energy == Quantity(9.0)


def test_phases_of_a_name_are_taken_together_and_kept(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s")
    (key,) = study.read_cells()
    phase = PhaseTrial({"measured": Quantity(3.0, {"gain:x": 0.1})}, 1.0, {"steps": 2.0})
    slot = add(study, key, 1, (1.0, 1.0), 2.0, phases={"epoch": phase}, busiest={})
    assert load_trial(read_slot(slot)).phases == {"epoch": phase}


def test_idle_devices_are_reported_with_their_energy(tmp_path: Path) -> None:
    study, cells = of_file(tmp_path / "s", [Workload(("a",), "w", "cpu-mix")])
    (key,) = cells
    slot = add(study, key, 1, (30.0, 10.0), 2.0)
    write_json_atomic(slot / "slot.json", {"gpus": ["gpu:0", "gpu:1"], "idle_gpus": []})
    (cell,) = gather_results(study, cells=cells).cells
    assert cell.trials[0].idle_energy is None, "what it saw and nobody read may have been used or not"
    assert cell.trials[0].idle_energy_share is None
    write_json_atomic(slot / "slot.json", {"gpus": [], "idle_gpus": ["gpu:0", "gpu:1"], "node_type": "cpu-mix"})
    (cell,) = gather_results(study, cells=cells).cells
    assert cell.trials[0].idle == ("gpu:0", "gpu:1")
    assert cell.trials[0].used == ()
    assert cell.trials[0].idle_energy is not None
    assert cell.trials[0].idle_energy.value == 40.0
    assert cell.trials[0].idle_energy_share == 1.0
    (row,) = gather_results(study, cells=cells).rows
    assert (row["idle"], row["used"], row["idle_energy_j"]) == ("gpu:0 gpu:1", "", 40.0)


def test_idle_devices_are_reported_of_phases_where_all_are_idle(tmp_path: Path) -> None:
    study, cells = of_file(tmp_path / "s", [Workload(("a",), "w", "cpu-mix", ("train",))])
    (key,) = cells
    train = PhaseTrial({"measured": Quantity(30.0), "gpu": Quantity(12.0)}, 1.5)
    slot = add(study, key, 1, (30.0, 10.0), 2.0, phases={"train": train})
    write_json_atomic(slot / "slot.json", {"gpus": [], "idle_gpus": ["gpu:0", "gpu:1"]})
    (cell,) = gather_results(study, cells=cells).cells
    assert (cell.trials[0].idle_energy, cell.trials[0].idle_energy_share) == (Quantity(12.0), 1.0)


def test_a_pattern_may_be_for_one_workload_only(tmp_path: Path) -> None:
    study, cells = of_file(tmp_path / "s", [Workload(("a",), "v", "gpu"), Workload(("a",), "w", "gpu")])
    for key in cells:
        (add(study, key, 1, (1.0, 1.0), 2.0) / "out.txt").write_text("tokens: 7\n")
    pattern = WorkPattern.parse(r"tokens: (\d+)", workload="w", where="workloads.w")
    assert WorkPattern.from_json(pattern.to_json()) == pattern
    found = {
        cell.knobs["workload"]: cell.trials[0].work for cell in gather_results(study, cells=cells, work=[pattern]).cells
    }
    assert found == {"v": {"steps": 5.0}, "w": {"steps": 5.0, "tokens": 7.0}}


def rated_trial(**more: Any) -> SlotTrial:
    energies = {
        "gpu:0": Quantity(900.0),
        "gpu:1": Quantity(100.0),
        "gpu": Quantity(1000.0),
        "node.ac": Quantity(3000.0),
    }
    given = {"run": "r", "time_s": 10.0, "start_utc": "", "energies": energies, "work": {}, "meters": {}}
    return SlotTrial(**{**given, "rated": {"gpu:0": 260.0, "gpu:1": 250.0, "node.ac": 1500.0}, **more})


def test_rated_power_is_compared_with_what_the_same_devices_used() -> None:
    found = rated_trial()
    assert _list_rated_scopes(found, found.energies, ()) == {"gpu": {"gpu": 510.0}, "node.ac": {"node.ac": 1500.0}}
    assert _list_rated_scopes(found, found.energies, ["gpu:1"]) == {
        "gpu": {"gpu:0": 260.0},
        "node.ac": {"node.ac": 1500.0},
    }
    assert _list_rated_scopes(found, found.energies, ["gpu:0", "gpu:1"]) == {"node.ac": {"node.ac": 1500.0}}
    hidden = rated_trial(rated={"gpu:0": 260.0})  # the run itself knows that the other was not shown
    assert _list_rated_scopes(hidden, found.energies, ()) == {"gpu": {"gpu:0": 260.0}}
    phase = {"gpu": Quantity(500.0), "measured": Quantity(500.0)}
    assert _list_rated_scopes(found, phase, ()) == {"gpu": {"gpu": 510.0}}
    assert _list_rated_scopes(found, phase, ["gpu:1"]) == {}, "of a phase no single GPU's energy is known"


@every_row(
    ("pattern", "name"),
    [
        (r"tokens: (\d+)", "tokens"),
        (r"(\d+) samples done", "samples"),
        (r"done (?P<images>\d+)", "images"),
        (r"\bgenerated_tokens=(\d+)", "generated_tokens"),
        (r"(?i)Steps:\s+([\d.]+)", "Steps"),
        (r"(?:a|b)?[xyz]*(\d+)", "a"),
        (r"^(\d+)$", "work"),
    ],
)
def test_work_is_named_by_its_group_or_first_word(pattern: str, name: str) -> None:
    found = WorkPattern.parse(pattern)
    assert found.name == name
    assert WorkPattern.from_json(found.to_json()) == found


@pytest.mark.parametrize(("pattern", "said"), [("(", "regular"), ("tokens", "no group"), (r"(\d)(\d)", "2 groups")])
def test_a_pattern_that_names_no_number_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WorkPattern.parse(pattern)


def test_the_last_match_is_the_total_and_all_can_be_added(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_bytes(b"tokens: 5\r\xfftokens: 1,007\ntokens: x\n")
    (tmp_path / "err.txt").write_text("steps 3\ntokens: 9\n")
    assert WorkPattern.parse(r"tokens: ([\d,]+)").find_amount(tmp_path) == 1007
    assert WorkPattern.parse(r"tokens: ([\d,]+)", add=True).find_amount(tmp_path) == 5 + 1007 + 9
    assert WorkPattern.parse(r"steps (\d+)").find_amount(tmp_path) == 3
    assert WorkPattern.parse(r"^tokens: (\w)$").find_amount(tmp_path) == 9
    patterns = [WorkPattern.parse(p) for p in (r"steps (\d+)", r"epochs (\d+)")]
    assert find_work(patterns, tmp_path) == ({"steps": 3.0}, ["epochs"])


def test_no_output_is_no_work(tmp_path: Path) -> None:
    (tmp_path / "out.txt").touch()
    assert WorkPattern.parse(r"tokens: (\d+)").find_amount(tmp_path) is None
    assert WorkPattern.parse(r"tokens: (\d+)", add=True).find_amount(tmp_path) is None


S = 1_000_000_000
POWER = Spec("power_w", "power", "W", "power")
COUNTER = Spec("energy_j", "energy", "J", "counter")


def write(folder: Path, table: str, streams: list[Stream], rows: list[tuple[int, int, float]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header: HeaderFields = {"meter": "m", "table": table, "segment": 0, "host": folder.name, "boot_id": "b"}
    with JournalWriter(make_journal_path(folder, "m", table, 0), header, streams) as journal:
        for index, t_ns, value in rows:
            journal.append_rows(pack_row(journal.row, index, t_ns, t_ns, [value]))


def stream(scope: str, spec: Spec, **more: str) -> Stream:
    return Stream(scope, "t", scope, 0.1, (spec,), **more)  # type: ignore[arg-type]


def test_powers_are_averaged_and_counters_subtracted(tmp_path: Path) -> None:
    gpus = [stream("gpu:0", POWER), stream("gpu:1", POWER)]
    write(tmp_path / "n1", "gpu", gpus, [(0, 1 * S, 900.0), (0, 8 * S, 100.0), (0, 9 * S, 200.0), (1, 9 * S, 50.0)])
    write(tmp_path / "n1", "cpu", [stream("cpu:0", COUNTER)], [(0, n * S // 4, 10.0 * n) for n in range(24, 41)])
    assert read_power_now(tmp_path) == pytest.approx(150 + 50 + 40)


def test_nothing_counts_twice_and_every_host_counts(tmp_path: Path) -> None:
    inside, node = stream("gpu:0", POWER), stream("node.dc", POWER)
    for host in ("n1", "n2"):
        write(tmp_path / host, "t", [inside, node], [(0, S, 100.0), (1, S, 300.0)])
    assert read_power_now(tmp_path) == 600.0


@pytest.mark.parametrize(
    "spec", [COUNTER, Spec("temperature_c", "temperature", "degC"), Spec("p", "power", "W", "power", estimate=True)]
)
def test_what_tells_no_power_counts_for_nothing(tmp_path: Path, spec: Spec) -> None:
    write(tmp_path / "n1", "t", [stream("gpu:0", spec)], [(0, S, 5.0)])
    assert read_power_now(tmp_path) is None


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "n1", "a", [stream("gpu:0", POWER)], [(0, S, 5.0), (0, 2 * S, float("nan"))])
    (tmp_path / "n1" / "m.b.0.journal").write_bytes(b"torn")
    write(tmp_path / "n1", "job", [stream("job", POWER)], [(0, S, 5000.0)])
    with (tmp_path / "n1" / "m.a.0.journal").open("ab") as file:
        file.write(b"half a row")
    assert read_power_now(tmp_path) == 5.0
    assert read_power_now(tmp_path / "none") is None


def test_only_a_uuid_names_a_device_on_every_host(tmp_path: Path) -> None:
    uuid = "GPU-6f3ac1d2-0b7e-5c11-9a52-0123456789ab"
    assert name_meter_device("nvml", "energy_j", uuid, "n1") == name_meter_device("nvml", "energy_j", uuid, "n2")
    for device in ("intel-rapl:0", "pm_counters", "0123456789", ""):
        names = {name_meter_device("rapl", "energy_j", device, host) for host in ("n1", "n2")}
        assert len(names) == 2, device
    # A run of two hosts names the devices of both, though their scopes have one name.
    one = load_result(make_run(tmp_path, gpus=0))
    (scope,) = one.scopes
    (group,) = [group for group in one.groups if group.name == MEASURED]
    both = replace(
        one,
        scopes=(scope, replace(scope, host="n2")),
        groups=(replace(group, scopes=("cpu:0", "cpu:0"), hosts=(one.host, "n2")),),
    )
    assert make_trial(both).meters[MEASURED] == f"rapl energy_j intel-rapl:0@n2; {make_trial(one).meters['cpu:0']}"
