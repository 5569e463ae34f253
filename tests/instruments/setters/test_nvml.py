"""Caps and clocks of NVIDIA GPUs, through pynvml and the simulated node's own libnvidia-ml."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tests.codes import raises_code
from tests.control.fake import fails
from tests.rows import every_row

from joulelab.core.setting import SetterFamily
from joulelab.instruments.nvml import client as codes
from joulelab.instruments.nvml.client import Gpu
from joulelab.instruments.nvml.setter import GpuControl, LockedClocks, PowerCap, add_gpu
from joulelab.store import safe_files
from joulelab.twin.model import A100, H100, RTX6000, Node
from joulelab.twin.truth_file import Instance

POWER, CLOCKS = ("gpu:0", "power"), ("gpu:0", "clocks")
TWO = Node(gpus=(RTX6000, H100), packages=0)


@pytest.mark.system
def test_a_cap_is_set_read_back_and_put_back(twin, remote):
    server = twin(TWO)
    gpus = remote("nvml", server.environment)
    assert [row[:2] for row in gpus.opened["setters"]] == [
        ["gpu:0", "power"], ["gpu:0", "clocks"], ["gpu:1", "power"], ["gpu:1", "clocks"],
    ]  # fmt: skip
    assert gpus.opened["setters"][0][2:] == [server.truth.uuid(0), "Quadro RTX 6000"]
    assert gpus.opened["setters"][1][2] == f"{server.truth.uuid(0)}.clocks"
    assert gpus(*POWER, "limits") == {"lowest": 100, "highest": 260, "default": 260, "unit": "W"}
    assert gpus(*POWER, "default") == {"cap_w": 260}
    found = gpus(*POWER, "get")
    asked = gpus(*POWER, "setting", 170.5)
    assert asked == {"cap_w": 170.5}
    assert gpus(*POWER, "set", asked) is None
    assert gpus(*POWER, "get") == asked
    assert gpus(*POWER, "enforced") == 170.5
    now = time.monotonic_ns()
    assert server.truth.caps(0, now) == (170.5, 170.5)
    assert server.truth.caps(1, now) == (700, 700)
    gpus(*POWER, "set", found)
    assert gpus(*POWER, "get") == found == {"cap_w": 260}


@pytest.mark.system
@pytest.mark.parametrize("value", [99, 261, 0, -5, float("inf"), float("nan")])
def test_out_of_range_is_refused_with_the_range(twin, remote, value):
    gpus = remote("nvml", twin(TWO).environment)
    for method, argument in (("setting", value), ("set", {"cap_w": value})):
        answer = gpus(*POWER, method, argument)
        assert (answer["code"], "100 to 260 W" in answer["why"]) == ("refused.out-of-range", True)
    assert gpus(*POWER, "get") == {"cap_w": 260}


@pytest.mark.system
def test_no_permission_names_the_cause(twin, remote):
    gpus = remote("nvml", twin(TWO.with_flaws(refuse_caps=True)).environment)
    answer = gpus(*POWER, "set", {"cap_w": 170})
    assert answer["error"] == "Denied"
    assert "Insufficient Permissions" in answer["why"]
    assert "capd" in answer["next"]
    assert gpus(*CLOCKS, "set", gpus(*CLOCKS, "setting", 1.2e9))["error"] == "Denied"
    assert gpus(*CLOCKS, "get") == {}  # no lock, no record of one
    assert gpus(*CLOCKS, "set", {})["error"] == "Denied"


@pytest.mark.system
def test_where_caps_are_not_supported_clocks_are_the_advice(twin, remote):
    server = twin(TWO.with_flaws(0, caps_supported=False))
    gpus = remote("nvml", server.environment)
    assert [row[:2] for row in gpus.opened["setters"]] == [["gpu:0", "clocks"], ["gpu:1", "power"], ["gpu:1", "clocks"]]
    ((scope, why),) = gpus.opened["missing"]
    assert scope == "gpu:0"
    assert "joulelab cap --clock MHZ" in why
    assert gpus(*CLOCKS, "set", gpus(*CLOCKS, "setting", 1.2e9)) is None
    assert server.truth.locked_mhz(0) == 1200


@pytest.mark.system
def test_a_cap_that_stops_being_supported_is_refused(twin, remote):
    server = twin(TWO)
    gpus = remote("nvml", server.environment)
    server.truth.change_flaws(0, caps_supported=False)
    answer = gpus(*POWER, "set", {"cap_w": 170})
    assert (answer["error"], "joulelab cap --clock MHZ" in answer["next"]) == ("Refused", True)
    assert gpus(*POWER, "enforced") is None


@pytest.mark.system
def test_a_cap_out_of_band_is_enforced_not_requested(twin, remote):
    server = twin(TWO.with_flaws(0, outside_cap_w=150))
    gpus = remote("nvml", server.environment)
    assert gpus(*POWER, "get") == {"cap_w": 260}
    assert gpus(*POWER, "enforced") == 150


@pytest.mark.system
def test_an_ignored_cap_is_seen_by_reading_back(twin, remote):
    server = twin(TWO.with_flaws(0, ignore_caps=True))
    gpus = remote("nvml", server.environment)
    assert gpus(*POWER, "set", {"cap_w": 170}) is None
    assert gpus(*POWER, "get") == {"cap_w": 260}


@pytest.mark.system
def test_a_lost_gpu_is_told_and_comes_back(twin, remote):
    server = twin(TWO)
    gpus = remote("nvml", server.environment)
    server.truth.change_flaws(0, lost_at_s=0.0)
    for method, argument in (("get", []), ("set", [{"cap_w": 170}]), ("limits", []), ("enforced", []), ("get", [])):
        assert gpus(*POWER, method, *argument)["error"] == "DeviceLost"
    assert gpus("gpu:1", "power", "set", {"cap_w": 300}) is None
    server.truth.change_flaws(0, lost_at_s=None)
    assert gpus(*POWER, "get") == {"cap_w": 260}


@pytest.mark.system
def test_a_gpu_that_fails_at_the_start_is_found_all_the_same(twin, remote):
    server = twin(TWO.with_flaws(0, lost_at_s=0.0))
    gpus = remote("nvml", server.environment)
    assert [scope for scope, _ in gpus.opened["missing"]] == ["gpu:0"]
    assert {row[0] for row in gpus.opened["setters"]} == {"gpu:1"}


@pytest.mark.system
def test_mig_instances_have_no_cap_of_their_own(twin, remote):
    server = twin(Node(gpus=(A100,), packages=0))
    server.truth.set_instances(0, [Instance(), Instance(gpu_instance=8)])
    gpus = remote("nvml", server.environment)
    assert [row[0] for row in gpus.opened["setters"]] == ["gpu:0", "gpu:0"]
    assert [scope for scope, _ in gpus.opened["missing"]] == ["gpu:0/mig:0", "gpu:0/mig:1"]
    assert "cap its GPU: gpu:0" in gpus.opened["missing"][0][1]


@pytest.mark.system
def test_no_gpu_and_no_driver(twin, remote):
    assert remote("nvml", twin(Node(gpus=())).environment).opened["code"] == "unavailable.no-gpu"
    if not Path("/proc/driver/nvidia/version").exists():
        assert remote("nvml", LD_LIBRARY_PATH="").opened["error"] == "Unavailable"


@pytest.mark.system
def test_clocks_are_locked_and_known_to_another_process(twin, remote):
    server = twin(TWO)
    gpus = remote("nvml", server.environment)
    assert gpus(*CLOCKS, "limits") == {"lowest": 210e6, "highest": 2100e6, "default": 2100e6, "unit": "Hz"}
    assert gpus(*CLOCKS, "get") == gpus(*CLOCKS, "default") == {}
    asked = gpus(*CLOCKS, "setting", 1.2e9)
    assert asked == {"lowest_hz": 210e6, "highest_hz": 1.2e9}
    gpus(*CLOCKS, "set", asked)
    assert gpus(*CLOCKS, "enforced") is None
    assert server.truth.locked_mhz(0) == 1200
    assert server.truth.locked_mhz(1) is None
    assert remote("nvml", server.environment)(*CLOCKS, "get") == asked
    gpus(*CLOCKS, "set", {})
    assert server.truth.locked_mhz(0) is None
    assert gpus(*CLOCKS, "get") == {}
    assert list((Path(server.environment["JOULELAB_STATE"]) / "clocks").iterdir()) == []
    answer = gpus(*CLOCKS, "setting", 3e9)
    assert (answer["code"], "210 to 2100 MHz" in answer["why"]) == ("refused.out-of-range", True)
    assert gpus(*CLOCKS, "set", {"lowest_hz": 1.0, "highest_hz": 1e9})["code"] == "refused.out-of-range"


@pytest.mark.system
def test_a_record_of_another_boot_or_of_nonsense(twin, remote):
    server = twin(TWO)
    gpus = remote("nvml", server.environment)
    folder = Path(server.environment["JOULELAB_STATE"]) / "clocks"
    folder.mkdir()
    record = folder / f"{server.truth.uuid(0)}.json"
    record.write_text(json.dumps({"boot": "another", "lowest_hz": 1e9, "highest_hz": 1e9}))
    assert gpus(*CLOCKS, "get") == {}
    for text in ("", "[]", "{}", '{"boot": 1'):
        record.write_text(text)
        assert gpus(*CLOCKS, "get")["code"] == "read-failed.clock-record"


@pytest.mark.system
def test_a_lock_that_is_refused_leaves_the_record_as_it_was(twin, remote):
    server = twin(TWO)
    gpus = remote("nvml", server.environment)
    first = gpus(*CLOCKS, "setting", 1.2e9)
    gpus(*CLOCKS, "set", first)
    server.truth.change_flaws(0, refuse_caps=True)
    assert gpus(*CLOCKS, "set", gpus(*CLOCKS, "setting", 9e8))["error"] == "Denied"
    assert gpus(*CLOCKS, "get") == first


@pytest.mark.system
def test_a_state_folder_that_may_not_be_used(twin, remote, tmp_path):
    server = twin(TWO)
    state = tmp_path / "state"
    (state / "clocks").mkdir(parents=True)
    environment = server.environment | {"JOULELAB_STATE": str(state), "WITHOUT_OVERRIDE": "1"}
    record = state / "clocks" / f"{server.truth.uuid(0)}.json"
    record.write_text(json.dumps({"boot": "x"}))
    gpus = remote("nvml", environment)
    (state / "clocks").chmod(0o500)
    asked = gpus(*CLOCKS, "setting", 1.2e9)
    for setting in (asked, {}):
        answer = gpus(*CLOCKS, "set", setting)
        assert answer["code"] == "refused.clock-record"
        assert str(record) in answer["why"]
        assert f"make {record.parent} writable" in answer["next"]
    assert server.truth.locked_mhz(0) is None
    (state / "clocks").chmod(0o000)
    assert gpus(*CLOCKS, "get")["code"] == "denied.clock-record"
    (state / "clocks").chmod(0o700)


class Answers:
    """A binding that answers every call with one return code, or with a value."""

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(value)
            self.value = value

    def __init__(self, **answers):
        self.binding = self
        self.answers = answers
        self.looked = 0

    def __getattr__(self, name):
        def call(*_):
            answer = self.answers.get(name, 0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def word_code(self, code):
        return f"code {code}"

    def explain_code(self, code, what):
        return codes.explain_reading(code, self.word_code(code), what)

    def find_handle(self, uuid):
        self.looked += 1
        return uuid


def control(user=1000, **answers):
    answers = {name: Answers.NVMLError(-a) if type(a) is int and a < 0 else a for name, a in answers.items()}
    nvml = Answers(**answers)
    return GpuControl(nvml, Gpu(0, "GPU-1", "some", handle="h"), user=lambda: user), nvml


@every_row(
    ("code", "user", "error", "advice"),
    [
        (codes.NO_PERMISSION, 1000, "denied.cap", "capd"),
        (codes.NO_PERMISSION, 0, "denied.cap", "CAP_SYS_ADMIN.*smi -pl"),
        (codes.NOT_SUPPORTED, 0, "refused.not-supported", "--clock"),
        (codes.FUNCTION_NOT_FOUND, 0, "refused.not-supported", "--clock"),
        (codes.INVALID_ARGUMENT, 0, "refused.out-of-range", "cap status"),
        (codes.GPU_IS_LOST, 0, "device-lost.gpu", "dmesg"),
        (999, 0, "read-failed.gpu", "doctor"),
    ],
)
def test_every_code_has_its_error(code, user, error, advice):
    limits = {"nvmlDeviceGetPowerManagementLimitConstraints": (100_000, 260_000)}
    gpu, nvml = control(user, nvmlDeviceSetPowerManagementLimit=-code, **limits)
    cap = PowerCap(gpu)
    with raises_code(error) as caught:
        cap.set({"cap_w": 170})
    assert re.search(advice, str(caught.value))
    cap.default()
    assert nvml.looked == (1 if error == "device-lost.gpu" else 0)


def test_the_record_of_a_lock_is_written_as_a_journal_is(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(safe_files.os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    victim, folder = tmp_path / "victim", tmp_path / "clocks"
    victim.write_text("precious")
    folder.mkdir()
    (folder / ".GPU-1.json.tmp").symlink_to(victim)
    gpu, _ = control(nvmlDeviceGetMaxClockInfo=1900, nvmlDeviceGetSupportedMemoryClocks=[])
    clocks = LockedClocks(gpu, folder)
    clocks.set({"lowest_hz": 210e6, "highest_hz": 1e9})
    assert clocks.get() == {"lowest_hz": 210e6, "highest_hz": 1e9}
    assert synced[0].startswith(".GPU-1.json.")
    assert synced[1:] == ["clocks"]
    clocks.set({})
    assert synced[2:] == ["clocks"]
    assert victim.read_text() == "precious"
    monkeypatch.setattr(safe_files.os, "geteuid", lambda: 0)
    folder.chmod(0o777)
    with fails("refused.clock-record") as caught:
        clocks.set({"lowest_hz": 210e6, "highest_hz": 1e9})
    assert caught.value.next.endswith(f"sudo chmod go-w {folder}")


def test_clocks_that_cannot_be_locked_advise_a_cap(tmp_path):
    clocks = {"nvmlDeviceGetMaxClockInfo": 1900, "nvmlDeviceGetSupportedMemoryClocks": []}
    gpu, _ = control(nvmlDeviceSetGpuLockedClocks=-codes.NOT_SUPPORTED, **clocks)
    with raises_code("refused.not-supported") as caught:
        LockedClocks(gpu, tmp_path).set({"lowest_hz": 1e9, "highest_hz": 1e9})
    assert "joulelab cap WATTS" in caught.value.next


@pytest.mark.parametrize("answer", [-codes.NOT_SUPPORTED, []])
def test_cards_that_do_not_list_their_clocks(tmp_path, answer):
    gpu, _ = control(nvmlDeviceGetMaxClockInfo=1900, nvmlDeviceGetSupportedMemoryClocks=answer)
    limits = LockedClocks(gpu, tmp_path).limits()
    assert (limits.lowest, limits.highest) == (210e6, 1900e6)


def test_a_gpu_that_fails_while_it_is_opened_may_work_later(tmp_path):
    _, nvml = control(nvmlDeviceGetPowerManagementLimitConstraints=-999, nvmlDeviceGetMaxClockInfo=-999)
    opened = SetterFamily()
    add_gpu(opened, nvml, Gpu(0, "GPU-1", "some", handle="h"), tmp_path)
    assert [type(setter) for setter in opened.setters] == [PowerCap, LockedClocks]
    assert opened.missing == []
