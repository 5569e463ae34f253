from __future__ import annotations

import pytest

from joulelab.control.client import CapRequest
from joulelab.core.errors import ConfigError
from joulelab.instruments.nvml.client import Gpu, Mig
from joulelab.instruments.visible import VisibleGpus, see_nvidia_gpus
from joulelab.study.knobs import read_caps, read_clocks
from joulelab.study.slot_setup import list_cap_requests

FOUR = [Gpu(i, f"GPU-{i}{i}{i}", "H100") for i in range(4)]
MIXED = [Gpu(0, "GPU-0", "H100"), Gpu(1, "GPU-1", "T4")]


def test_caps_go_on_exactly_the_gpus_that_are_used() -> None:
    knobs = {"cap": read_caps("170")[0], "clock": read_clocks("1200")[0], "cpu_cap": read_caps("80%")[0]}
    assert list_cap_requests(knobs, see_nvidia_gpus(FOUR, {}).take_first(2), ["cpu:0", "cpu:1"]) == [
        CapRequest("gpu:0", 170.0, "W"),
        CapRequest("gpu:1", 170.0, "W"),
        CapRequest("gpu:0", 1.2e9, "Hz"),
        CapRequest("gpu:1", 1.2e9, "Hz"),
        CapRequest("cpu:0", 0.8, "share"),
        CapRequest("cpu:1", 0.8, "share"),
    ]


def test_caps_that_cannot_be_set_are_refused() -> None:
    cap = {"cap": read_caps("170")[0]}
    parts = [Gpu(0, "GPU-0", "H100", mig=(Mig(1, "MIG-1", "1g", 1, 0),))]
    for seen, said in (
        (VisibleGpus(why="no driver"), "no GPU to cap.*no driver"),
        (see_nvidia_gpus(parts, {"CUDA_VISIBLE_DEVICES": "MIG-1"}), "part of a GPU"),
        (see_nvidia_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "0"}), "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ):
        with pytest.raises(ConfigError, match=said):
            list_cap_requests(cap, seen, [])
    assert list_cap_requests(
        cap, see_nvidia_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}), []
    )
    with pytest.raises(ConfigError, match="no CPU package"):
        list_cap_requests({"cpu_cap": read_caps("100")[0]}, VisibleGpus(), [])
