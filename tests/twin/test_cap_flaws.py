"""Caps that a GPU does not have, ignores, or does not keep: seen through NVML as pynvml reads it, and in the truth."""

from __future__ import annotations

import time

import pytest

from joulelab.twin import nodefile, profile
from joulelab.twin.model import RTX6000, Node
from joulelab.twin.truth import Truth

NODE = Node(gpus=(RTX6000, RTX6000), packages=0, spread=0.0)
FULL = {"gpu": profile.constant(1.0)}
READ = """
h = n.nvmlDeviceGetHandleByIndex(0)
def ask(function, *arguments):
    try:
        return getattr(n, function)(h, *arguments)
    except n.NVMLError as error:
        return str(error)
set_ = ask("nvmlDeviceSetPowerManagementLimit", 150000)
time.sleep(0.3)
names = ("PowerManagementLimit", "EnforcedPowerLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints")
field = n.nvmlDeviceGetFieldValues(h, [n.NVML_FI_DEV_POWER_CURRENT_LIMIT])[0].nvmlReturn
print(json.dumps({
    "set": set_, "read": [ask("nvmlDeviceGet" + name) for name in names], "field": field,
    "watts": n.nvmlDeviceGetPowerUsage(h), "reasons": n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
}))
"""


LOCK = """
h = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceSetGpuLockedClocks(h, 210, 1200)
print(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM))
"""


@pytest.mark.system
def test_a_cap_that_is_kept(make_twin) -> None:
    seen = make_twin(NODE, FULL).run(READ)
    assert (seen["set"], seen["read"][:2], seen["watts"]) == (None, [150_000, 150_000], 150_000)
    assert seen["reasons"] & 4


@pytest.mark.system
def test_caps_that_are_not_supported(make_twin) -> None:
    twin = make_twin(NODE.with_flaws(0, caps_supported=False), FULL)
    seen = twin.run(READ)
    assert [seen["set"], *seen["read"]] == ["Not Supported"] * 5
    assert seen["field"] == 3
    assert seen["watts"] == 260_000
    assert twin.run(LOCK) == 1200
    assert twin.truth.locked_mhz(0) == 1200


@pytest.mark.system
def test_caps_that_are_ignored(make_twin) -> None:
    twin = make_twin(NODE.with_flaws(0, ignore_caps=True), FULL)
    seen = twin.run(READ)
    assert (seen["set"], seen["read"][:2], seen["watts"]) == (None, [260_000, 260_000], 260_000)
    assert twin.truth.power("gpu:0", time.monotonic_ns()) == 260


@pytest.mark.system
def test_caps_that_are_shown_but_not_enforced(make_twin) -> None:
    twin = make_twin(NODE.with_flaws(0, unenforced_caps=True), FULL)
    a = time.monotonic_ns()
    seen = twin.run(READ)
    assert (seen["set"], seen["read"][:2], seen["watts"]) == (None, [150_000, 150_000], 260_000)
    assert seen["reasons"] & 4 == 0
    b = time.monotonic_ns()
    assert twin.truth.caps(0, b) == (150, 150)
    assert twin.truth.limit_w(0, b) == float("inf")
    assert twin.truth.energy("gpu:0", a, b) == pytest.approx(260 * (b - a) / 1e9)
    twin.truth.set_cap(1, 150)
    assert twin.truth.limit_w(1, time.monotonic_ns()) == 150


def test_the_flaws_are_kept_and_can_be_given_as_text(tmp_path) -> None:
    node = nodefile.change_flaws(NODE, ["caps_supported=false", "gpu:1.ignore_caps=true", "gpu:1.unenforced_caps=true"])
    with Truth.create(tmp_path / "truth", node) as truth:
        assert [truth.read_flaws(gpu) for gpu in range(2)] == [gpu.flaws for gpu in node.gpus]
        assert not truth.read_flaws(0).caps_supported
        assert truth.read_flaws(1).ignore_caps
        assert truth.read_flaws(1).unenforced_caps
