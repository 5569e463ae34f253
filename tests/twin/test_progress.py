"""How long stages take, and what they ask of the devices: GPUs, caps, batches, the CPUs instead."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from joulelab.core.errors import ConfigError
from joulelab.twin.model import RTX6000, Node
from joulelab.twin.timeline import Course
from joulelab.twin.workload_progress import (
    RunRequest,
    Stage,
    WorkloadModel,
    check_names,
    list_steps,
    list_used_names,
    slow_gpus,
)

NODE = Node(gpus=(RTX6000,) * 4, spread=0.0)
EPOCH = Stage(name="epoch", each="epoch", samples="images", rate=100.0, busy=1.0, intensity=1.0)


def model(*stages: Stage, **parameters: float) -> WorkloadModel:
    return WorkloadModel(stages=stages, parameters={"epochs": 2, "images": 1000} | parameters)


def seconds(stage: Stage, ask: RunRequest, **parameters: float) -> float:
    return list_steps(NODE, model(replace(stage, each="run"), **parameters), ask)[0].seconds


def test_stages_come_in_order_those_of_an_epoch_again_and_again() -> None:
    before, after, gap = Stage(name="set-up", seconds=3), Stage(name="save", seconds=1), Stage(each="epoch", seconds=2)
    made = list_steps(NODE, model(before, EPOCH, gap, after), RunRequest({}, (0,)))
    assert [(step.stage.name, step.epoch, step.seconds) for step in made] == [
        ("set-up", None, 3), ("epoch", 1, 10), ("", 1, 2), ("epoch", 2, 10), ("", 2, 2), ("save", None, 1),
    ]  # fmt: skip
    assert [step.samples for step in made] == [0, 1000, 0, 1000, 0, 0]
    assert len(list_steps(NODE, model(before, EPOCH, gap, after), RunRequest({"epochs": 5}, (0,)))) == 12
    assert list_steps(NODE, model(before, after), RunRequest({})) != []  # there need not be an epoch


def test_only_what_the_devices_share_is_faster_on_more_of_them() -> None:
    stage = replace(EPOCH, seconds=4.0, host_rate=500.0, batch=300.0, step_s=0.5)
    fixed = 4.0 + 1000 / 500 + 4 * 0.5  # four steps of up to 300 samples
    for count in (1, 2, 4):
        assert seconds(stage, RunRequest({}, tuple(range(count)))) == pytest.approx(fixed + 10 / count)
    assert seconds(replace(stage, copies=3.0), RunRequest({}, (0,))) == pytest.approx(4 + 6 + 10 * 0.5 + 30)


@pytest.mark.parametrize(("cap_w", "slower"), [(260.0, 1.0), (200.0, 1 + 0.035 * (1.3**4 - 1))])
def test_only_that_is_slower_under_a_cap(cap_w: float, slower: float) -> None:
    stage = replace(EPOCH, seconds=4.0)
    assert seconds(stage, RunRequest({}, (0,), {0: cap_w})) == pytest.approx(4 + 10 * slower)


def test_the_slowest_holds_up_the_others_and_a_cap_that_is_not_reached_nobody() -> None:
    one = slow_gpus(NODE, 1.0, 1.0, RunRequest({}, (0,), {0: 130.0}))
    assert slow_gpus(NODE, 1.0, 1.0, RunRequest({}, (0, 1, 2), {1: 130.0, 2: 200.0})) == one
    assert slow_gpus(NODE, 1.0, 1.0, RunRequest({}, (0, 1), {2: 130.0})) == 1.0  # the cap of another
    assert slow_gpus(NODE, 0.3, 1.0, RunRequest({}, (0,), {0: 130.0})) == 1.0  # 18 + 0.3 * 242 W
    spread = Node(gpus=(RTX6000,) * 4, spread=0.2)
    hungry = max(range(4), key=spread.draw_factor)
    assert spread.draw_factor(hungry) > 1.02
    # Its own default cap holds it down already: nothing is slower by that.
    assert slow_gpus(spread, 1.0, 1.0, RunRequest({}, (hungry,))) == 1.0


def test_small_batches_occupy_less_of_the_chip() -> None:
    stage = replace(EPOCH, each="run", intensity=0.8, batch="batch", half_batch=16.0)
    made = [list_steps(NODE, model(stage, batch=b), RunRequest({}, (0, 1)))[0].occupied for b in (32, 96, 1e9)]
    assert made == pytest.approx([0.4, 0.6, 0.8])


def test_on_the_cpus_no_gpu_is_busy() -> None:
    fast, slow = replace(EPOCH, on="gpu"), replace(EPOCH, on="cpu", rate=10.0)
    (gpu,) = list_steps(NODE, model(fast, slow, epochs=1), RunRequest({}, (0,)))
    (cpu,) = list_steps(NODE, model(fast, slow, epochs=1), RunRequest({}))
    assert (gpu.seconds, gpu.busy, gpu.occupied) == (10, 1, 1)
    assert (cpu.seconds, cpu.busy, cpu.occupied) == (100, 0, 0)


def test_a_stage_may_depend_on_a_parameter() -> None:
    here, there = Stage(name="a", seconds=1, when="memory"), Stage(name="b", seconds=1, when="!memory")
    for memory, name in ((1, "a"), (0, "b")):
        assert [step.stage.name for step in list_steps(NODE, model(here, there), RunRequest({"memory": memory}))] == [
            name
        ]


def test_a_model_knows_what_it_depends_on() -> None:
    found = model(replace(EPOCH, batch="batch"), Stage(when="!memory", seconds=1.0), workers=4)
    assert list_used_names(found) == {"epochs", "images", "batch", "memory"}
    assert list_used_names(model(Stage(seconds=3.0))) == set()  # nothing comes in epochs
    check_names(found, ["workers", "memory"], "job")
    with pytest.raises(ConfigError, match=r"job.*no parameter 'image'.*did you mean 'images'"):
        check_names(found, ["workers", "image"], "job")


def test_a_run_that_is_too_long_or_too_fine_is_refused() -> None:
    for images in (-1.0, float("inf"), float("nan"), 1e16):
        with pytest.raises(ConfigError, match=f"images is {re.escape(format(images, 'g'))}, not from 0 to"):
            list_steps(NODE, model(EPOCH), RunRequest({"images": images}, (0,)))
    with pytest.raises(ConfigError, match=r"stage 'epoch': the run would take 10,000,000,000 s"):
        list_steps(NODE, model(EPOCH), RunRequest({"images": 1e12}, (0,)))
    with pytest.raises(ConfigError, match=r"100,000,000 pieces \(at most 1,000,000"):
        list_steps(NODE, model(EPOCH), RunRequest({"epochs": 1e8}, (0,)))
    tiny = replace(EPOCH, batch=5e-324, step_s=1.0)
    with pytest.raises(ConfigError, match="would take inf s"):
        list_steps(NODE, model(tiny), RunRequest({}, (0,)))
    with pytest.raises(ConfigError, match="stage 'epoch': the run would have"):
        Course(NODE, model(replace(EPOCH, flutter=0.1, flutter_s=1e-300)), RunRequest({}, (0,)), 1)
    assert (
        len(Course(NODE, model(replace(EPOCH, flutter=0.1, flutter_s=1e-3)), RunRequest({}, (0,)), 1).begins) > 10_000
    )


def test_what_is_wrong_is_explained() -> None:
    with pytest.raises(ConfigError, match="has no number 'imags'") as raised:
        list_steps(NODE, model(replace(EPOCH, samples="imags")), RunRequest({}))
    assert (raised.value.where, raised.value.next) == ("stage 'epoch'", "parameters: epochs, images")
    for wrong in ({"seconds": -1.0}, {"busy": 1.2}, {"cpu": 2.0}, {"flutter_s": 0.0}):
        with pytest.raises(ConfigError):
            Stage(name="x", **wrong)
