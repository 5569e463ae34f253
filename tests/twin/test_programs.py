"""Twins take stages, samples and loaders from the programs that workloads publish; deviations are listed here."""

from __future__ import annotations

import math
import tomllib
from importlib import resources
from itertools import pairwise
from typing import Any

import pytest

from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import find_workload
from joulelab.study.program import NAMING, find_program, list_phases
from joulelab.twin import nodefile
from joulelab.twin.workload_progress import RunRequest, list_steps

PROGRAM_KEYS = ("each", "when", "samples", "copies", "batch", "device_batch")
# Stages of programs that take no time on a twin: first steps are slower, and are part of its set-up; loaders that stay
# take no time of their own; LLaVA holds nothing out and saves nothing, an LSTM is saved at once.
UNMODELLED = {
    ("bnl-h100", "resnet152-cifar10"): {"warm-up"},
    ("bnl-h100", "llava15-13b"): {"warm-up", "epoch loaders", "predict", "predict loaders", "save"},
    ("gdansk-rtx6000", "xception-birds"): {"epoch loaders", "validation loaders", "predict loaders"},
    ("horeka-green", "lstm-load"): {"warm-up", "save"},
    ("horeka-blue", "lstm-load"): {"warm-up", "save"},
    ("horeka-green", "lstm-notebook"): {"warm-up"},
    ("horeka-green", "vgg19bn-xray"): {"warm-up"},
    ("horeka-blue", "vgg19bn-xray"): {"warm-up"},
    ("horeka-green", "vgg19bn-notebook"): {"warm-up"},
}


def list_tables() -> list[tuple[str, str, dict[str, Any]]]:
    """Return the workloads of joulelab's own nodes, as their files have them."""
    folder = resources.files("joulelab.twin") / "nodes"
    tables = {name: tomllib.loads((folder / f"{name}.toml").read_text()) for name in nodefile.list_own_nodes()}
    return [(node, name, found) for node, table in tables.items() for name, found in table["workloads"].items()]


def name_stage(name: str, part: str) -> str:
    return f"{name} {part}".strip()


def test_node_files_repeat_nothing_of_a_program() -> None:
    for node, name, table in list_tables():
        assert find_program(name) is not None, name
        assert not {"parameters", "epochs"} & set(table), (node, name)
        for stage in table["stages"]:
            assert not set(PROGRAM_KEYS) & set(stage), (node, name)
            assert not any(isinstance(stage.get(key), str) for key in NAMING)


def test_stages_come_in_the_order_of_the_program_and_what_a_twin_omits_is_listed() -> None:
    omitted = {}
    for node, name, table in list_tables():
        program = find_program(name)[0]  # type: ignore[index]
        order = [(stage.name, stage.part) for stage in program.stages]
        keys = [(one.get("name", ""), one.get("part", "")) for one in table["stages"] if "each" not in one]
        assert all(order.index(one) <= order.index(other) for one, other in pairwise(keys)), (node, name)
        omitted[node, name] = {name_stage(*one) for one in order if one not in keys}
    assert {key: stages for key, stages in omitted.items() if stages} == UNMODELLED


def test_a_stage_that_the_program_does_not_have_is_refused_unless_it_is_the_nodes_own() -> None:
    text = "[workloads.lstm-load]\nstages = [{ name = 'epohc', seconds = 3 }]"
    with pytest.raises(ConfigError, match=r"lstm-load has no stage 'epohc'.*epoch, validation"):
        nodefile.parse_node(text, "t")
    own = nodefile.parse_node(text.replace("seconds", "each = 'run', seconds"), "t").workloads["lstm-load"]
    assert (own.stages[0].seconds, own.stages[0].samples) == (3, 0)


def test_loaders_that_stay_are_not_started_in_each_epoch() -> None:
    known = nodefile.find_node("horeka-green")
    model = known.workloads["vgg19bn-xray"]

    def count(**parameters: float) -> int:
        found = list_steps(known.node, model, RunRequest({"epochs": 3, **parameters}, (0,)))
        return sum(step.stage.part == "loaders" for step in found)

    assert count() == 2 * 3 + 1
    assert count(worker_starts=0) == 0


def test_batches_of_each_device_make_fewer_steps_on_more_devices() -> None:
    known = nodefile.find_node("bnl-h100")
    model = known.workloads["resnet152-cifar10"]

    def validate(gpus: int, batch: float) -> float:
        found = list_steps(known.node, model, RunRequest({"epochs": 1, "batch": batch}, tuple(range(gpus))))
        return next(step.seconds for step in found if step.stage.name == "validation" and not step.stage.part)

    assert validate(8, 512) == validate(8, 4096)
    steps = {gpus: 10_000 / (100 * gpus) for gpus in (1, 8)}
    assert validate(1, 512) / validate(8, 512) == pytest.approx(steps[1] / math.ceil(steps[8]), rel=0.05)


def test_amounts_are_those_of_the_published_data() -> None:
    from joulelab.workloads.data import load, xray

    _, numbers = find_program("vgg19bn-xray") or pytest.fail("it has none")
    for part in ("train", "valid", "test"):
        assert numbers[f"{part}_samples"] == sum(xray.KNOWN[part])
    usual = {key: int(text) for key, (text, _) in find_workload("lstm-load").PARAMETERS.items() if text.isdigit()}
    _, numbers = find_program("lstm-load") or pytest.fail("it has none")
    assert numbers["windows"] == usual["countries"] * (usual["hours"] - load.SPAN)


def test_phases_follow_the_parameters() -> None:
    program, numbers = find_program("lstm-load") or pytest.fail("it has none")
    assert list_phases(program, {**numbers, "copies": 0}) == ["set-up", "warm-up", "epoch", "validation", "save"]
    assert list_phases(program, {**numbers, "epochs": 0}) == ["set-up", "warm-up", "predict", "write", "test", "save"]
    assert "test" not in list_phases(program, {**numbers, "epochs": 0, "test": 0})
    program, numbers = find_program("llava15-13b") or pytest.fail("it has none")
    assert "predict" not in list_phases(program, numbers)
    assert find_program("train") is None
