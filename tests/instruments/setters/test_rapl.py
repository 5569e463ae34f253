"""CPU package limits, on trees of files as kernels show them and on the simulated node's."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.control.fake import fails
from tests.rows import every_row

from joulelab.core.setting import is_same_setting
from joulelab.instruments.rapl import Zone, explain_write_error, find_limits, open_setters, write_value

CPU = ("cpu:0", "power")


def zone(root, name="package-0", folder="intel-rapl:0", enabled=1, **limits):
    """Make a zone; limits are (watts, highest in watts or None), numbered as they are given."""
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text("1\n")
    if enabled is not None:
        (path / "enabled").write_text(f"{enabled}\n")
    for number, (kind, (watts, highest)) in enumerate(limits.items()):
        (path / f"constraint_{number}_name").write_text(f"{kind}\n")
        (path / f"constraint_{number}_power_limit_uw").write_text(f"{round(watts * 1e6)}\n")
        if highest is not None:
            (path / f"constraint_{number}_max_power_uw").write_text(f"{round(highest * 1e6)}\n")
    return path


def opened(root):
    found = open_setters({"JOULELAB_POWERCAP": str(root)})
    (setter,) = found.setters
    return setter


def written(path, number):
    return int((path / f"constraint_{number}_power_limit_uw").read_text()) / 1e6


def test_both_limits_come_down_and_come_back(tmp_path):
    path = zone(tmp_path, long_term=(350, 350), short_term=(420, 420))
    cpu = opened(tmp_path)
    assert (cpu.device, cpu.scope, cpu.kind, cpu.model) == ("powercap-intel-rapl:0", "cpu:0", "power", "")
    limits = cpu.limits()
    assert (limits.lowest, limits.highest, limits.default, limits.unit) == (35, 350, 350, "W")
    found = cpu.get()
    assert found == {"long_term_w": 350, "short_term_w": 420, "enabled": 1}
    asked = cpu.setting(120)
    assert asked == {"long_term_w": 120, "short_term_w": 144, "enabled": 1}
    cpu.set(asked)
    assert (written(path, 0), written(path, 1)) == (120, 144)
    assert is_same_setting(cpu.get(), asked)
    assert cpu.enforced() == 120
    # What the short-term limit was before, not what it is now, bounds the next one.
    assert cpu.setting(200) == {"long_term_w": 200, "short_term_w": 240, "enabled": 1}
    cpu.set(found)
    assert cpu.get() == found
    assert cpu.default() is None


def test_a_low_short_term_limit_is_not_raised_above_the_cap(tmp_path):
    zone(tmp_path, long_term=(100, 125), short_term=(110, None))
    cpu = opened(tmp_path)
    assert cpu.setting(80)["short_term_w"] == 96
    assert cpu.setting(105)["short_term_w"] == 110
    assert cpu.setting(120)["short_term_w"] == 120


def test_kernels_number_constraints_as_they_like(tmp_path):
    path = zone(tmp_path, peak_power=(500, None), short_term=(300, None), long_term=(200, 200))
    cpu = opened(tmp_path)
    cpu.set(cpu.setting(150))
    assert [written(path, number) for number in range(3)] == [500, 180, 150]


def test_no_short_term_and_no_enabled(tmp_path):
    zone(tmp_path, enabled=None, long_term=(200, 200))
    cpu = opened(tmp_path)
    assert cpu.setting(150) == {"long_term_w": 150}
    cpu.set(cpu.setting(150))
    assert cpu.get() == {"long_term_w": 150}
    assert cpu.enforced() == 150
    with fails("refused.unknown-limit"):
        cpu.set({"long_term_w": 100, "short_term_w": 120})


def test_limits_that_are_off_are_switched_on_and_off_again(tmp_path):
    path = zone(tmp_path, enabled=0, long_term=(200, 200), short_term=(0, None))
    cpu = opened(tmp_path)
    assert cpu.enforced() is None
    found = cpu.get()
    cpu.set(cpu.setting(150))
    assert cpu.get() == {"long_term_w": 150, "short_term_w": 0, "enabled": 1}
    cpu.set(found)
    assert (path / "enabled").read_text() == "0\n"
    assert cpu.get() == found


def test_registers_that_nobody_set(tmp_path):
    zone(tmp_path, long_term=(3409.25, 0))
    limits = opened(tmp_path).limits()
    assert (limits.highest, limits.default) == (3000, None)
    (tmp_path / "intel-rapl:0" / "constraint_0_min_power_uw").write_text("40000000\n")
    assert opened(tmp_path).limits().lowest == 40
    with fails("refused.out-of-range") as caught:
        opened(tmp_path).setting(30)
    assert "40 to 3000 W" in caught.value.why


def test_a_limit_above_the_rated_power_can_be_put_back(tmp_path):
    zone(tmp_path, long_term=(4095.875, 84), short_term=(4095.875, None))
    cpu = opened(tmp_path)
    found = cpu.get()
    cpu.set(cpu.setting(60))
    cpu.set(found)
    assert cpu.get() == found


def test_the_lower_of_two_interfaces_is_in_force(tmp_path):
    zone(tmp_path, long_term=(175, 175))
    zone(tmp_path, folder="intel-rapl-mmio:0", long_term=(45, 45))
    zone(tmp_path, name="package-1", folder="intel-rapl:1", long_term=(100, 100))
    found = open_setters({"JOULELAB_POWERCAP": str(tmp_path)})
    assert [setter.device for setter in found.setters] == ["powercap-intel-rapl:0", "powercap-intel-rapl:1"]
    assert [setter.enforced() for setter in found.setters] == [45, 100]


def test_no_package_no_limit(tmp_path):
    with fails("unavailable.no-package"):
        open_setters({"JOULELAB_POWERCAP": str(tmp_path / "none")})
    with fails("unavailable.no-package"):
        open_setters({"JOULELAB_POWERCAP": str(tmp_path)})
    zone(tmp_path)
    found = open_setters({"JOULELAB_POWERCAP": str(tmp_path)})
    assert found.setters == []
    assert found.missing[0][0] == "cpu:0"
    assert find_limits(Zone(tmp_path / "gone", "package-0")) == {}


def test_a_limit_without_a_file_is_none(tmp_path):
    path = zone(tmp_path, long_term=(200, 200), short_term=(240, None))
    (path / "constraint_1_power_limit_uw").unlink()
    assert opened(tmp_path).get() == {"long_term_w": 200, "enabled": 1}


def test_what_cannot_be_read(tmp_path):
    path = zone(tmp_path, long_term=(200, 200))
    cpu = opened(tmp_path)
    (path / "constraint_0_power_limit_uw").write_text("what\n")
    with fails("read-failed.no-number"):
        cpu.get()
    (path / "constraint_0_power_limit_uw").unlink()
    with fails("device-lost.file"):
        cpu.get()


def test_a_refused_write_is_taken_back(tmp_path):
    path = zone(tmp_path, long_term=(200, 200), short_term=(240, 240))
    cpu = opened(tmp_path)
    (path / "constraint_1_power_limit_uw").unlink()
    # A file that is read as a limit and refuses to be written: this process cannot be that killable.
    (path / "constraint_1_power_limit_uw").symlink_to("/proc/self/oom_score_adj")
    cpu_found = cpu.get()
    with fails("refused.out-of-range"):
        cpu.set({"long_term_w": 100, "short_term_w": 3e9, "enabled": 1})
    assert cpu.get() == cpu_found
    assert written(path, 0) == 200


@every_row(
    ("number", "is_opening", "code"),
    [
        (errno.EACCES, True, "denied.limit"),
        (errno.EPERM, True, "denied.limit"),
        (errno.EROFS, True, "denied.read-only"),
        (errno.EACCES, False, "refused.locked"),
        (errno.EIO, False, "refused.locked"),
        (errno.ENODATA, False, "refused.locked"),
        (errno.EINVAL, False, "refused.out-of-range"),
        (errno.ENOENT, True, "device-lost.limit"),
        (errno.ENODEV, False, "device-lost.limit"),
        (errno.ENOSPC, False, "read-failed.limit"),
        (None, False, "read-failed.limit"),
    ],
)
def test_every_failure_to_write_has_its_error(tmp_path, number, is_opening, code):
    cause = OSError("odd") if number is None else OSError(number, "x")
    found = explain_write_error(cause, tmp_path / "limit", is_opening=is_opening)
    assert found.code == code
    assert found.next


def test_writing_fails_for_real(tmp_path):
    with fails("device-lost.limit"):
        write_value(tmp_path / "none", 1)
    with fails("read-failed.limit"):
        write_value(Path("/dev/full"), 1)


@pytest.mark.system
def test_a_user_who_may_not_write_is_told_how(tmp_path, remote):
    path = zone(tmp_path, long_term=(200, 200), short_term=(240, 240))
    for file in path.iterdir():
        file.chmod(0o444)
    cpu = remote("rapl", JOULELAB_POWERCAP=str(tmp_path), WITHOUT_OVERRIDE="1")
    answer = cpu(*CPU, "set", cpu(*CPU, "setting", 150))
    assert answer["error"] == "Denied"
    assert "capd" in answer["next"]
    assert cpu(*CPU, "get") == {"long_term_w": 200, "short_term_w": 240, "enabled": 1}


@pytest.mark.system
def test_on_the_simulated_node(twin, remote):
    server = twin()
    cpu = remote("rapl", server.environment)
    assert [row[0] for row in cpu.opened["setters"]] == ["cpu:0", "cpu:1"]
    found = cpu(*CPU, "get")
    cpu(*CPU, "set", cpu(*CPU, "setting", 120))
    assert cpu(*CPU, "get") == {"long_term_w": 120, "short_term_w": 144, "enabled": 1}
    assert cpu("cpu:1", "power", "get") == found
    cpu(*CPU, "set", found)
    assert cpu(*CPU, "get") == found
