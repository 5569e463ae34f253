from __future__ import annotations

import pytest

from joulelab.control.client import CapRequest
from joulelab.core.errors import ConfigError
from joulelab.instruments.nvml.client import Gpu, Mig
from joulelab.study.devices import Visible, amd, nvidia, wishes
from joulelab.study.values import caps, clocks

FOUR = [Gpu(i, f"GPU-{i}{i}{i}", "H100") for i in range(4)]
MIXED = [Gpu(0, "GPU-0", "H100"), Gpu(1, "GPU-1", "T4")]


def test_without_a_variable_all_are_visible_and_counted_as_nvml_does() -> None:
    seen = nvidia(FOUR, {})
    assert seen.scopes == ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
    assert seen.first(2).environment({}) == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert seen.first(None) is seen


def test_the_first_of_the_visible_are_used() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "3, GPU-111,1,0,9,2"}
    seen = nvidia(FOUR, environ)
    assert seen.scopes == ("gpu:3", "gpu:1", "gpu:0")  # 1 is GPU-111, and 9 hides what follows
    assert seen.first(2).scopes == ("gpu:3", "gpu:1")
    assert seen.first(2).environment(environ) == {"CUDA_VISIBLE_DEVICES": "3,GPU-111"}
    with pytest.raises(ConfigError, match=r"4 GPUs are asked for.*3 GPUs are visible"):
        seen.first(4)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES is ''"):
        nvidia(FOUR, {"CUDA_VISIBLE_DEVICES": ""}).first(1)
    with pytest.raises(ConfigError, match="no GPU is visible"):
        Visible().first(1)


def test_amd_has_two_variables() -> None:
    uuids = [f"GPU-{n}" for n in "abcd"]
    assert amd(uuids, 2, {}).scopes == ("gpu:2", "gpu:3", "gpu:4", "gpu:5")
    assert amd(uuids, 0, {}).first(2).environment({}) == {"HIP_VISIBLE_DEVICES": "0,1"}
    both = {"ROCR_VISIBLE_DEVICES": "GPU-d,1,0", "HIP_VISIBLE_DEVICES": "1,0,7"}
    seen = amd(uuids, 0, both)
    assert seen.scopes == ("gpu:1", "gpu:3")
    assert seen.first(1).environment(both) == {"HIP_VISIBLE_DEVICES": "1"}
    environ = {"CUDA_VISIBLE_DEVICES": "2,2"}
    assert amd(uuids, 0, environ).scopes == ("gpu:2",)
    assert amd(uuids, 0, environ).environment(environ) == environ | {"CUDA_VISIBLE_DEVICES": "2"}


def test_caps_go_on_exactly_the_gpus_that_are_used() -> None:
    knobs = {"cap": caps("170")[0], "clock": clocks("1200")[0], "cpu_cap": caps("80%")[0]}
    assert wishes(knobs, nvidia(FOUR, {}).first(2), ["cpu:0", "cpu:1"]) == [
        CapRequest("gpu:0", 170.0, "W"),
        CapRequest("gpu:1", 170.0, "W"),
        CapRequest("gpu:0", 1.2e9, "Hz"),
        CapRequest("gpu:1", 1.2e9, "Hz"),
        CapRequest("cpu:0", 0.8, "share"),
        CapRequest("cpu:1", 0.8, "share"),
    ]


def test_caps_that_cannot_be_set_are_refused() -> None:
    cap = {"cap": caps("170")[0]}
    parts = [Gpu(0, "GPU-0", "H100", mig=(Mig(1, "MIG-1", "1g", 1, 0),))]
    for seen, said in (
        (Visible(why="no driver"), "no GPU to cap.*no driver"),
        (nvidia(parts, {"CUDA_VISIBLE_DEVICES": "MIG-1"}), "part of a GPU"),
        (nvidia(MIXED, {"CUDA_VISIBLE_DEVICES": "0"}), "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ):
        with pytest.raises(ConfigError, match=said):
            wishes(cap, seen, [])
    assert wishes(cap, nvidia(MIXED, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}), [])
    with pytest.raises(ConfigError, match="no CPU package"):
        wishes({"cpu_cap": caps("100")[0]}, Visible(), [])
