"""What a machine refuses of a plan, and what its slots are expected to cost."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.study.bench import make_study, place, store_trial

from joulelab.control.client import CapDevice, CapStatus
from joulelab.core.errors import ConfigError, Refused
from joulelab.core.quantity import Quantity
from joulelab.instruments.visible import VisibleGpus
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.folder import Plan
from joulelab.study.knobs import Knob
from joulelab.study.matrix import Workload, make_cells
from joulelab.study.plan_check import CostForecast, Refusals, SlotCost, check_limits, check_plan
from joulelab.study.results import SlotTrial
from joulelab.study.study_file import read_study

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.folder import Study


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of its own: commands run where joulelab is started."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    return {**{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}, **more}


def said(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return what is refused of a file; its own text is right."""
    Path("s.toml").write_text(f'meters = ["host"]\n{text}', encoding="utf-8")
    plan = read_study(Path("s.toml")).plan
    with pytest.raises(ConfigError) as refused:
        check_plan(plan, environment() if environ is None else environ)
    return str(refused.value).splitlines()


def program(path: Path, mode: int = 0o755) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)


def test_programs_that_cannot_be_started_are_told(here: Path) -> None:
    program(here / "plain", 0o644)
    program(here / "tools" / "mine")
    program(here / "tools" / "ok")
    text = """\
[knobs]
tool = ["ok", "no", "neither"]
[workloads.a]
command = "no-such-xyz"
[workloads.b]
command = "./tools/{tool}"
[workloads.c]
command = "./plain"
[workloads.d]
command = "plain"
[workloads.e]
command = "mine"
[workloads.f]
command = "./tools"
[nodes.one]
environment = { PATH = "%s/tools" }
"""
    told = said(text % here)
    where = f"(looked for in {here}); commands run in the folder where joulelab is started"
    only = "(it is only in the PATH of its node type, which applies to programs that it starts itself)"
    beside, then = "(it is not in PATH, but a file of this folder)", "write its interpreter before it"
    assert told == [
        f"s.toml:{line}"
        for line in (
            "5: workload a: there is no program 'no-such-xyz' (it is not in PATH); install it, or name its file",
            f"7: workload b: there is no program ./tools/no {where}",
            f"7: workload b: there is no program ./tools/neither {where}",
            f"9: workload c: ./plain cannot be started (it may not be executed); chmod +x ./plain, or {then}",
            f"11: workload d: there is no program 'plain' {beside}; write ./plain, or its interpreter before it",
            f"13: workload e: there is no program 'mine' {only}; write {here}/tools/mine",
            "15: workload f: ./tools cannot be started (it is not a file); name a program",
        )
    ]


@pytest.mark.system
def test_programs_are_looked_for_where_joulelab_is_started(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(here / "train.sh")
    (here / "s.toml").write_text('meters = ["host"]\n[workloads.a]\ncommand = "./train.sh"\n')
    plan = read_study(here / "s.toml").plan
    check_plan(plan, environment())
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    with pytest.raises(ConfigError, match=f"{here}/s.toml:3: workload a: there is no .* start it in {here}$"):
        check_plan(plan, environment())
    # Where a job will run, nobody knows: nothing is looked for there, and Slurm is asked first.
    (here / "s.toml").write_text('[workloads.a]\ncommand = "./no"\n[nodes.x]\nexecutor = "slurm"\n')
    with pytest.raises(ConfigError) as refused:
        check_plan(read_study(here / "s.toml").plan, environment(PATH="/nonexistent"))
    assert "./no" not in str(refused.value)


def test_a_sweep_is_told_of_its_command() -> None:
    with pytest.raises(ConfigError, match=r"^command: there is no program 'nope' "):
        check_plan(Plan(make_cells(Workload(("nope",)), [])), environment())


def test_a_kernel_that_is_not_there_is_told(here: Path) -> None:
    data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
    (here / "a.ipynb").write_text(json.dumps(data))
    told = said('[workloads.w]\nnotebook = "a.ipynb"\nkernel = "nope"\n')
    assert len(told) == 1
    assert told[0].startswith("s.toml:3: a.ipynb: there is no kernel 'nope' here; install it; ")


@pytest.mark.system
def test_a_key_that_makes_a_node_type_one_of_slurm_is_told() -> None:
    text = '[workloads.w]\ncommand = "true"\n[nodes.x]\ngpus = 2\n[nodes.y]\nuses = "cpu"\ntime = "2h"\n'
    told = said(text, environment(PATH="/nonexistent"))
    assert len(told) == 2
    assert told[0].startswith("s.toml:5: gpus makes x a node type of Slurm: ")
    assert told[0].endswith("to run it on this machine leave gpus out; how many GPUs a workload sees is the knob gpus")
    assert told[1].startswith("s.toml:8: time makes y a node type of Slurm: ")
    meant = said(f'{text}[nodes.z]\nexecutor = "slurm"\n', environment(PATH="/nonexistent"))
    assert meant[1:] == told
    assert "Slurm" in meant[0]


def test_all_that_a_machine_refuses_is_told_in_the_order_of_the_lines() -> None:
    text = """\
scope = "node.ac"
[knobs]
gpus = { values = "2:9:1", when = { node = "b" } }
[workloads.w]
command = "nope"
[workloads.v]
command = "true"
nodes = "b"
knobs = { gpus = 77 }
[nodes.a]
[nodes.b]
environment = { CUDA_VISIBLE_DEVICES = "" }
"""
    told = said(text)
    assert [re.split(r" \(|; ", line)[0] for line in told] == [
        "s.toml:2: no meter here covers 'node.ac'",
        "s.toml:4: knob gpus on b: 2, 3, 4, ... 9 GPUs are requested",
        "s.toml:6: workload w: there is no program 'nope'",
        "s.toml:10: knob gpus on b: 77 GPUs are requested",
    ]


def test_a_temperature_that_nobody_tells_is_refused_in_the_words_of_the_file() -> None:
    told = said('cool = "45C"\n[workloads.w]\ncommand = "true"\n')
    assert told == ['s.toml:2: cool: no GPU here shows its temperature; wait for a time instead: cool = "60s"']


def device(scope: str, kind: str = "power", *, model: str = "RTX", default: float | None = 260.0) -> CapDevice:
    unit, lowest, highest = ("Hz", 3e8, 2e9) if kind == "clocks" else ("W", 100.0, 260.0)
    return CapDevice(scope, scope, model, kind, unit, lowest, highest, default, None, None)


STATUS = CapStatus(
    [device("gpu:0"), device("gpu:1"), device("gpu:2", model="T4", default=None), device("gpu:0", "clocks"),
     device("cpu:0", model="")],
    [("gpu:1", "no clocks")],
)  # fmt: skip
SEEN = VisibleGpus(("gpu:0", "gpu:1"), ("0", "1"))


def refused(knobs: Mapping[str, str], seen: VisibleGpus = SEEN, file: Path | None = None) -> list[str]:
    refusals = Refusals(file)
    workload = Workload(("true",), "w")
    check_limits(make_cells(workload, [Knob.parse(n, t) for n, t in knobs.items()]), seen, STATUS, refusals)
    with pytest.raises(ConfigError) as told:
        refusals.check()
    return str(told.value).splitlines()


def test_values_out_of_range_are_told_once_for_all_devices_alike() -> None:
    assert refused({"cap": "90:260:10"}) == ["sweep: gpu:0, gpu:1 cannot be capped at 90 W (RTX takes 100 W to 260 W)"]
    assert refused({"cap": "300:400:10"}) == [
        "sweep: gpu:0, gpu:1 cannot be capped at 300 W, 310 W, 320 W, ... 400 W (RTX takes 100 W to 260 W)"
    ]
    assert refused({"cap": "100%:200%:100%"}) == [
        "sweep: gpu:0, gpu:1 cannot be capped at 520 W (RTX takes 100 W to 260 W)"
    ]
    assert refused({"cap": "50%"}, VisibleGpus(("gpu:2",), ("2",))) == [
        "sweep: gpu:2 has no default; give its cap in W"
    ]
    assert refused({"clock": "100", "cpu_cap": "300", "gpus": "1,3"}) == [
        "--gpus: 3 GPUs are requested (2 GPUs are visible)",
        "sweep: gpu:0 cannot be locked to a clock at 100 MHz (RTX takes 300 MHz to 2000 MHz)",
        "sweep: cpu:0 cannot be capped at 300 W (it takes 100 W to 260 W)",
    ]
    assert refused({"clock": "1000"}) == [
        "sweep: gpu:1 cannot be locked to a clock (gpu:1: no clocks); joulelab cap status"
    ]
    assert refused({"cap": "200"}, VisibleGpus(why="no driver")) == [
        "--cap: there is no GPU to cap (no driver); joulelab meters"
    ]


def test_of_a_study_file_they_have_their_lines(here: Path) -> None:
    file = here / "s.toml"
    file.write_text('[knobs]\ncap = 300\n[workloads.w]\ncommand = "true"\n')
    assert refused({"cap": "300"}, file=file) == [
        "s.toml:2: knob cap: gpu:0, gpu:1 cannot be capped at 300 W (RTX takes 100 W to 260 W)"
    ]
    file.write_text('[knobs]\ncap = 100\n[workloads.w]\ncommand = "true"\nknobs = { cap = 300 }\n')
    (told,) = refused({"cap": "300"}, file=file)
    assert told.startswith("s.toml:5: knob cap: gpu:0")
    file.unlink()  # it was there a moment ago
    (told,) = refused({"cap": "300"}, file=file)
    assert told.startswith("s.toml: knob cap: gpu:0")


def test_refusals_have_codes_each_and_together() -> None:
    def codes(knobs: Mapping[str, str]) -> list[str]:
        refusals = Refusals()
        check_limits(
            make_cells(Workload(("true",), "w"), [Knob.parse(n, t) for n, t in knobs.items()]), SEEN, STATUS, refusals
        )
        with pytest.raises(ConfigError) as told:
            refusals.check()
        return [told.value.code, *(mistake.code for mistake in told.value.mistakes)]

    assert codes({"cap": "300"}) == ["refused.out-of-range"]
    assert codes({"clock": "1000"}) == ["refused.not-cappable"]
    both = ["config.too-many-gpus", "refused.out-of-range", "refused.out-of-range"]
    assert codes({"clock": "100", "cpu_cap": "300", "gpus": "1,3"}) == ["config.several", *both]


def test_one_refusal_stays_what_it_is() -> None:
    refusals = Refusals()
    for _ in range(2):
        with refusals.collect_error(option="--x"):
            raise Refused("no", why="so")
    with pytest.raises(Refused, match=r"^--x: no \(so\)$"):
        refusals.check()


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
