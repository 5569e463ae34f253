"""Caps of AMD GPUs against our stub of AMD SMI's Python package: not tried on hardware."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

STUBS = Path(__file__).parents[2] / "stubs"
GPU = ("gpu:0", "power")


@pytest.fixture
def amd(tmp_path, remote):
    def start(gpus, **more):
        describe(gpus, **more)
        return remote("amdsmi", {"AMDSMI_STUB": str(tmp_path / "stub")}, STUBS)

    def describe(gpus, **more):
        (tmp_path / "new").write_text(json.dumps({"gpus": gpus} | more))
        (tmp_path / "new").replace(tmp_path / "stub")

    start.describe = describe
    return start


@pytest.mark.parametrize("in_watts", [False, True])
def test_a_cap_is_set_in_the_unit_that_the_library_tells(amd, in_watts):
    gpus = amd([{"watts": 1, "in_watts": in_watts}, {"watts": 1, "caps_uw": [300_000_000, 550_000_000]}])
    assert [row[:2] for row in gpus.opened["setters"]] == [["gpu:0", "power"], ["gpu:1", "power"]]
    assert gpus.opened["setters"][0][2:] == ["00ff74a1-0000-1000-80ad-000000000000", "AMD Instinct MI300X OAM"]
    assert gpus(*GPU, "limits") == {"lowest": 1, "highest": 750, "default": 750, "unit": "W"}
    found = gpus(*GPU, "get")
    assert found == gpus(*GPU, "default") == {"cap_w": 750}
    gpus(*GPU, "set", gpus(*GPU, "setting", 500))
    assert gpus(*GPU, "get") == {"cap_w": 500}
    assert gpus(*GPU, "enforced") is None
    gpus(*GPU, "set", found)
    assert gpus(*GPU, "get") == found
    assert gpus("gpu:1", "power", "limits")["lowest"] == 300
    for method, argument in (("setting", 200), ("set", {"cap_w": 200})):
        answer = gpus("gpu:1", "power", method, argument)
        assert (answer["code"], "300 to 550 W" in answer["why"]) == ("refused.out-of-range", True)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (2, "Refused", "does not take it"),
        (55, "Refused", "does not take it"),
        (17, "Refused", "out of range"),
        (10, "Denied", "root"),
        (31, "DeviceLost", "dmesg"),
        (12, "ReadFailed", "said by the stub"),
    ],
)
def test_every_code_has_its_error(amd, code, error, said):
    gpus = amd([{"watts": 1, "errors": {"set_cap": code}}])
    answer = gpus(*GPU, "set", {"cap_w": 500})
    assert answer["error"] == error
    assert said in answer["text"]
    assert gpus(*GPU, "get") == {"cap_w": 750}


def test_a_gpu_without_cap_or_uuid_is_missing(amd):
    gpus = amd([{"watts": 1, "uuid": ""}, {"watts": 1, "cap_uw": 0xFFFFFFFF}, {"watts": 1, "errors": {"cap": 2}}])
    assert gpus.opened["setters"] == []
    assert [scope for scope, _ in gpus.opened["missing"]] == ["gpu:0", "gpu:1", "gpu:2"]


def test_a_gpu_that_fails_now_may_work_later(amd):
    gpus = amd([{"watts": 1, "errors": {"cap": 30}}])
    assert gpus(*GPU, "get")["error"] == "ReadFailed"
    amd.describe([{"watts": 1}])
    assert gpus(*GPU, "get") == {"cap_w": 750}


def test_a_cap_that_is_told_no_more(amd):
    gpus = amd([{"watts": 1}])
    amd.describe([{"watts": 1, "errors": {"cap": 40}}])
    for method in ("get", "limits", "default"):
        assert gpus(*GPU, method)["code"] == "read-failed.no-cap"
    amd.describe([{"watts": 1, "default_uw": 0xFFFFFFFF}])
    assert gpus(*GPU, "default") is None
    assert gpus(*GPU, "limits")["default"] is None


@pytest.mark.parametrize(("code", "error"), [(10, "Denied"), (34, "Unavailable")])
def test_a_library_that_does_not_start(amd, code, error):
    assert amd([], init=code).opened["error"] == error


def test_no_gpu(amd):
    assert amd([]).opened["code"] == "unavailable.no-gpu"
