from __future__ import annotations

import pytest

from joulelab.instruments.nvml.client import Gpu, Mig
from joulelab.instruments.visible import order_known, visible

MIGS = (Mig(0, "MIG-aa11", "1g", 7, 0), Mig(2, "MIG-ab22", "1g", 8, 0))
GPUS = [
    Gpu(0, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "A100", mig=MIGS),
    Gpu(1, "GPU-8932aaaa-0000-0000-0000-000000000000", "A100"),
    Gpu(2, "GPU-11112222-0000-0000-0000-000000000000", "A100"),
]  # fmt: skip


@pytest.mark.parametrize(
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
    assert visible(GPUS, value) == scopes


def test_indices_are_certain_for_equal_models_or_a_declared_order():
    mixed = [*GPUS, Gpu(3, "GPU-33", "V100")]
    assert order_known(GPUS, "1,2", None)
    assert not order_known(mixed, "1,2", None)
    assert order_known(mixed, "1,2", "PCI_BUS_ID")
    assert order_known(mixed, "GPU-33", None)
    assert order_known(mixed, None, None)
