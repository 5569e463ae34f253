from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.study.bench import make_study, place, store_trial

from joulelab.core.quantity import Quantity
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.plan_check import CostForecast, SlotCost
from joulelab.study.results import SlotTrial

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.study.folder import Study


def ran(study: Study, key: str, number: int, took_s: float | None, energy_j: float | None = None) -> None:
    end = {"outcome": "exit", "exit_code": 0, "start_ns": 1, "end_ns": 2}
    slot = place(study.get_slot_folder(key, number), {"ticks": 1}, end)
    write_json_atomic(slot / "slot.json", {"took_s": took_s})
    if energy_j is not None:
        energies = {"measured": Quantity(energy_j), "gpu": Quantity(1.0)}
        store_trial(slot, SlotTrial("", 1.0, "", energies, {}, {}))


def test_a_cell_takes_what_it_took(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", "sleep", "{n}", knobs={"n": "1,2,3"})
    cells = study.read_cells()
    one, two, three = cells
    ran(study, one, 1, 10.0, 100.0)
    ran(study, one, 2, 20.0, 300.0)
    ran(study, two, 1, 30.0)
    expected = CostForecast(study, cells)
    assert expected.get_cost(one) == SlotCost(15.0, 200.0)
    assert expected.get_cost(two) == SlotCost(30.0, None)
    assert expected.get_cost(three) == SlotCost(22.5, 200.0), "it never ran: it takes what others of its workload take"
    total = expected.sum_costs([one, two, three])
    assert (total.time_s, total.energy_j, total.slots, total.unknown) == (67.5, 400.0, 3, 0)
    assert CostForecast(study, cells, scope="gpu").get_cost(one).energy_j == 1.0


def test_slots_that_did_not_end_well_tell_nothing(tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", "true")
    (key,) = study.read_cells()
    place(study.get_slot_folder(key, 1), {"ticks": 1}, {"outcome": "exit", "exit_code": 1, "start_ns": 1, "end_ns": 2})
    write_json_atomic(study.get_slot_folder(key, 1) / "slot.json", {"took_s": 2.0})
    assert CostForecast(study, study.read_cells()).get_cost(key) == SlotCost()


def test_the_same_cell_of_another_study_tells_too(tmp_path: Path) -> None:
    before = make_study(tmp_path / "before", "sleep", "{n}", knobs={"n": "1"})
    (key,) = before.read_cells()
    ran(before, key, 1, 7.0, 70.0)
    study = make_study(tmp_path / "now", "sleep", "{n}", knobs={"n": "1,2"})
    assert CostForecast(study, study.read_cells()).get_cost(key) == SlotCost(7.0, 70.0)


@pytest.mark.parametrize("kept", [None, "no number"])
def test_where_nothing_is_known_nothing_is_told(tmp_path: Path, kept: object) -> None:
    study = make_study(tmp_path / "s", "true")
    cells = study.read_cells()
    (key,) = cells
    ran(study, key, 1, kept)  # type: ignore[arg-type]
    total = CostForecast(study, cells).sum_costs([key, key])
    assert (total.time_s, total.unknown) == (0.0, 2)
    (study.get_slot_folder(key, 1) / "slot.json").unlink()
    assert CostForecast(study, cells).get_cost(key) == SlotCost()
