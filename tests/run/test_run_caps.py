"""The GPUs that a run caps, and what it is told of its caps while it goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.rows import every_row

from joulelab.control.client import CapDevice, CapStatus
from joulelab.core.errors import ConfigError, Unavailable
from joulelab.instruments.nvml.client import Gpu
from joulelab.instruments.visible import NodeGpus
from joulelab.run.run_caps import RunCaps, choose_gpus

UUIDS = [f"GPU-{n}" for n in "abcd"]
AMD = NodeGpus((), UUIDS)
BOTH_MAKERS = NodeGpus([Gpu(0, "GPU-a", "H100"), Gpu(1, "GPU-b", "H100")], UUIDS[2:], 2)
NVIDIA = NodeGpus([Gpu(i, uuid, "H100") for i, uuid in enumerate(UUIDS)])
MIXED = NodeGpus([Gpu(0, "GPU-a", "H100"), Gpu(1, "GPU-b", "T4")])


def make_status(*numbers: int) -> CapStatus:
    rest = ("model", "power", "W", 100.0, 300.0, 300.0, 300.0, 300.0)
    devices = [CapDevice(f"gpu:{i}", UUIDS[i], *rest) for i in numbers]
    return CapStatus(devices, [(f"gpu:{i}", "no cap") for i in range(4) if i not in numbers])


@every_row(
    ("node", "environ", "scopes"),
    [
        (AMD, {}, ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]),
        (AMD, {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0"}, ["gpu:2"]),
        (AMD, {"ROCR_VISIBLE_DEVICES": "GPU-d,1"}, ["gpu:3", "gpu:1"]),
        (BOTH_MAKERS, {"HIP_VISIBLE_DEVICES": "0"}, ["gpu:2"]),
        (BOTH_MAKERS, {"CUDA_VISIBLE_DEVICES": "0"}, ["gpu:0"]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "2,GPU-a"}, ["gpu:2", "gpu:0"]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0"}, ["gpu:2"]),
    ],
)
def test_exactly_the_gpus_that_the_workload_sees_are_capped(
    node: NodeGpus, environ: dict[str, str], scopes: list[str]
) -> None:
    assert choose_gpus(make_status(0, 1, 2, 3), environ, read_gpus=lambda: node) == scopes


def test_a_visible_gpu_without_a_cap_hides_no_other() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert choose_gpus(make_status(1, 2, 3), environ, read_gpus=lambda: NVIDIA) == ["gpu:1"]
    with pytest.raises(Unavailable, match="gpu:0: no cap"):
        choose_gpus(make_status(2, 3), environ, read_gpus=lambda: NVIDIA)


def test_gpus_that_may_not_be_those_of_the_workload_are_not_capped() -> None:
    for node, environ, said in (
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, "sees no GPU.*CUDA_VISIBLE_DEVICES is ''"),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (BOTH_MAKERS, {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}, "NVIDIA and of AMD"),
    ):
        with pytest.raises(ConfigError, match=said):
            choose_gpus(make_status(0, 1, 2, 3), environ, read_gpus=partial(lambda one: one, node))


class Told:
    """Take what a recording is told."""

    def __init__(self) -> None:
        self.problems: list[str] = ["the disk is full"]
        self.events: list[str] = []

    def event(self, event: str, **_: Any) -> None:
        self.events.append(event)


def test_a_keeper_that_came_back_is_no_problem_any_more_but_stays_an_event() -> None:
    told = Told()
    capping = RunCaps((), {}, told)  # type: ignore[arg-type]
    for event in (
        {"event": "keeper-died", "why": "SIGKILL"},
        {"event": "caps-problem", "problem": "the caps are not set again yet: capd is gone"},
        {"event": "caps-released", "problem": "the keeper got SIGTERM"},
    ):
        capping._note(event)
    assert told.problems[1:] == ["the caps are not set again yet: capd is gone", "the keeper got SIGTERM"]
    capping._note({"event": "keeper-started"})
    assert told.problems == ["the disk is full", "the keeper got SIGTERM"]
    assert told.events == ["keeper-died", "caps-problem", "caps-released", "keeper-started"]
