from __future__ import annotations

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.instruments.nvml.client import Gpu, Mig
from joulelab.instruments.visible import (
    NodeGpus,
    VisibleGpus,
    is_order_known,
    list_cuda_scopes,
    see_amd_gpus,
    see_nvidia_gpus,
)

FOUR = [Gpu(i, f"GPU-{i}{i}{i}", "H100") for i in range(4)]
BOTH_MAKERS = NodeGpus(FOUR[:2], ["GPU-a", "GPU-b"], 2)

MIGS = (Mig(0, "MIG-aa11", "1g", 7, 0), Mig(2, "MIG-ab22", "1g", 8, 0))
GPUS = [
    Gpu(0, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "A100", mig=MIGS),
    Gpu(1, "GPU-8932aaaa-0000-0000-0000-000000000000", "A100"),
    Gpu(2, "GPU-11112222-0000-0000-0000-000000000000", "A100"),
]  # fmt: skip


@every_row(
    ("value", "scopes"),
    [
        (None, ["gpu:0", "gpu:1", "gpu:2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,1", ["gpu:2", "gpu:1"]),
        (" 0 , 2 ", ["gpu:0", "gpu:2"]),
        ("0,2,-1,1", ["gpu:0", "gpu:2"]),
        ("0,9,1", ["gpu:0"]),
        ("1,1", ["gpu:1"]),
        ("GPU-11112222-0000-0000-0000-000000000000", ["gpu:2"]),
        ("GPU-8932f,GPU-1", ["gpu:0", "gpu:2"]),
        ("GPU-8932", []),  # fits two
        ("MIG-aa11", ["gpu:0/mig:0"]),
        ("MIG-ab", ["gpu:0/mig:2"]),
        ("MIG-a", []),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/8/0", ["gpu:0/mig:2"]),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/9/0", []),
    ],
)
def test_scopes_that_cuda_shows(value, scopes):
    assert list_cuda_scopes(GPUS, value) == scopes


def test_indices_are_certain_for_equal_models_or_a_declared_order():
    mixed = [*GPUS, Gpu(3, "GPU-33", "V100")]
    assert is_order_known(GPUS, "1,2", None)
    assert not is_order_known(mixed, "1,2", None)
    assert is_order_known(mixed, "1,2", "PCI_BUS_ID")
    assert is_order_known(mixed, "GPU-33", None)
    assert is_order_known(mixed, None, None)


def test_without_a_variable_all_are_visible_and_counted_as_nvml_does() -> None:
    seen = see_nvidia_gpus(FOUR, {})
    assert seen.scopes == ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
    assert seen.take_first(2).make_environment({}) == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert seen.take_first(None) is seen


def test_the_first_of_the_visible_are_used() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "3, GPU-111,1,0,9,2"}
    seen = see_nvidia_gpus(FOUR, environ)
    assert seen.scopes == ("gpu:3", "gpu:1", "gpu:0")  # 1 is GPU-111, and 9 hides what follows
    assert seen.take_first(2).scopes == ("gpu:3", "gpu:1")
    assert seen.take_first(2).make_environment(environ) == {"CUDA_VISIBLE_DEVICES": "3,GPU-111"}
    with pytest.raises(ConfigError, match=r"4 GPUs are requested.*3 GPUs are visible"):
        seen.take_first(4)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES is ''"):
        see_nvidia_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": ""}).take_first(1)
    with pytest.raises(ConfigError, match="no GPU is visible"):
        VisibleGpus().take_first(1)


def test_amd_has_two_variables() -> None:
    uuids = [f"GPU-{n}" for n in "abcd"]
    assert see_amd_gpus(uuids, 2, {}).scopes == ("gpu:2", "gpu:3", "gpu:4", "gpu:5")
    assert see_amd_gpus(uuids, 0, {}).take_first(2).make_environment({}) == {"HIP_VISIBLE_DEVICES": "0,1"}
    both = {"ROCR_VISIBLE_DEVICES": "GPU-d,1,0", "HIP_VISIBLE_DEVICES": "1,0,7"}
    seen = see_amd_gpus(uuids, 0, both)
    assert seen.scopes == ("gpu:1", "gpu:3")
    assert seen.take_first(1).make_environment(both) == {"HIP_VISIBLE_DEVICES": "1"}
    environ = {"CUDA_VISIBLE_DEVICES": "2,2"}
    assert see_amd_gpus(uuids, 0, environ).scopes == ("gpu:2",)
    assert see_amd_gpus(uuids, 0, environ).make_environment(environ) == environ | {"CUDA_VISIBLE_DEVICES": "2"}


def test_on_a_node_with_gpus_of_two_makers_the_variable_names_the_maker() -> None:
    assert BOTH_MAKERS.find_visible({"HIP_VISIBLE_DEVICES": "0"}).scopes == ("gpu:2",)
    assert BOTH_MAKERS.find_visible({"ROCR_VISIBLE_DEVICES": "1"}).scopes == ("gpu:3",)
    assert BOTH_MAKERS.find_visible({"CUDA_VISIBLE_DEVICES": "1"}).scopes == ("gpu:1",)
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}):
        with pytest.raises(ConfigError, match="NVIDIA and of AMD"):
            BOTH_MAKERS.find_visible(environ).check_caps("cap")


def test_only_some_gpus_are_shown_whatever_was_visible_before() -> None:
    before = {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0", "PATH": "/bin"}
    amd = NodeGpus((), ["GPU-a", "GPU-b", "GPU-c"])
    assert amd.show_only(["gpu:0", "gpu:2"], before) == {"HIP_VISIBLE_DEVICES": "0,2", "PATH": "/bin"}
    assert BOTH_MAKERS.show_only(["gpu:3"], before) == {"HIP_VISIBLE_DEVICES": "1", "PATH": "/bin"}
    nvidia = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PATH": "/bin"}
    assert NodeGpus(FOUR).show_only(["gpu:3"], before) == nvidia
