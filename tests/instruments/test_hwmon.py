"""The kernel's hwmon tree, as trees of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.rows import every_row

from joulelab.core.errors import Denied, ReadFailed, Unavailable
from joulelab.core.scope import find_parent, find_roots
from joulelab.instruments import hwmon, sysfs

if TYPE_CHECKING:
    from pathlib import Path

GRACE = ("Module Power Socket 0", "Grace Power Socket 0", "CPU Power Socket 0", "SysIO Power Socket 0")
WATTS = (600, 200, 120, 30)


def chip(root: Path, number: int, name: str, folder: str = "", **files: Any) -> Path:
    """Make one hwmon device; `folder` is where its attributes lie."""
    place = root / f"hwmon{number}"
    (place / folder).mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    for file, content in files.items():
        (place / folder / file).write_text(f"{content}\n")
    return place / folder


def meter_files(label: str, watts: float, interval_ms: int = 50) -> dict[str, Any]:
    about = {"power1_oem_info": label, "power1_average_interval": interval_ms, "power1_is_battery": 0}
    return {"power1_average": round(watts * 1e6), **about}


def grace(root: Path, sockets: int = 1, labels: tuple[str, ...] = GRACE) -> Path:
    for socket in range(sockets):
        for k, (label, watts) in enumerate(zip(GRACE, WATTS, strict=True)):
            if label in labels:
                files = meter_files(label.replace("0", str(socket)), watts + socket)
                chip(root, 10 * socket + k, "power_meter", "device", **files)
    return root


def opened(root: Path):
    return hwmon.open_meter({"root": str(root)})


def rows(meter) -> dict[str, float]:
    return {s.scope: meter.read(s)[0] for s in meter.streams()}


def counted(meter, *more: str) -> list[str]:
    parents = {s.scope: find_parent(s.scope, s.parent) for s in meter.streams()}
    parents |= {scope: find_parent(scope, None) for scope in more}
    return find_roots(parents, parents)


def test_grace_hopper_has_a_module_that_contains_all_else(tmp_path):
    meter = opened(grace(tmp_path, sockets=2))
    assert rows(meter) == {
        "module:0": 600, "cpu:0": 200, "cpu:0/cores": 120, "cpu:0/sysio": 30,
        "module:1": 601, "cpu:1": 201, "cpu:1/cores": 121, "cpu:1/sysio": 31,
    }  # fmt: skip
    assert counted(meter) == ["module:0", "module:1"]
    assert counted(meter, "node.dc") == ["node.dc"]
    assert {(s.period_s, s.channels[0].window_s) for s in meter.streams()} == {(0.1, 0.05)}
    meter.close()
    meter.close()


def test_a_grace_superchip_has_no_module(tmp_path):
    meter = opened(grace(tmp_path, sockets=2, labels=GRACE[1:]))
    assert counted(meter) == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize("grace_w", [None, 0])
def test_rails_count_in_the_module_even_without_the_cpu_between_them(tmp_path, grace_w):
    grace(tmp_path, labels=(GRACE[0], *GRACE[2:]))
    if grace_w is not None:
        chip(tmp_path, 9, "power_meter", "device", **meter_files(GRACE[1], grace_w))
    meter = opened(tmp_path)
    assert rows(meter) == {"module:0": 600, "cpu:0/cores": 120, "cpu:0/sysio": 30}
    assert counted(meter) == ["module:0"]


@pytest.mark.parametrize("label", ["", "IO Board Power"])
def test_a_meter_beside_those_of_grace_is_not_the_node(tmp_path, label):
    chip(grace(tmp_path), 9, "power_meter", "device", **meter_files(label, 33))
    assert counted(opened(tmp_path)) == ["module:0"]


def test_one_acpi_meter_without_a_label_is_the_node(tmp_path):
    files = meter_files("Meter measures total domain", 512.5, 1000)
    place = chip(tmp_path, 0, "power_meter", "device", **files)
    (place / "measures").mkdir()
    (place / "measures" / "LNXSYBUS:00").symlink_to(tmp_path)
    meter = opened(tmp_path)
    assert rows(meter) == {"node.dc": 512.5}
    assert meter.streams()[0].period_s == 1.0
    assert counted(meter, "cpu:0", "gpu:0") == ["node.dc"]


@every_row(
    ("change", "why"),
    [
        ({"power1_is_battery": 1}, "battery"),
        ({"power1_oem_info": "Total Power socket 0"}, "its label"),
        ({"power1_oem_info": "DIMM Power"}, "its label"),
        ({"power1_oem_info": "Riser 2"}, "its label"),
        ({"measures": "PNP0A08:00"}, "a part"),
        ({"second": True}, "2 ACPI meters"),
    ],
)
def test_an_acpi_meter_that_may_be_a_part_is_refused(tmp_path, change, why):
    place = chip(tmp_path, 0, "power_meter", **meter_files("", 90))
    for name, value in change.items():
        if name == "measures":
            (place / name / str(value)).mkdir(parents=True)
        elif name == "second":
            chip(tmp_path, 1, "power_meter", **meter_files("", 30))
        else:
            (place / name).write_text(str(value))
    with pytest.raises(Unavailable, match=why):
        opened(tmp_path)


def test_amd_sockets_are_counters_and_other_sensors_are_listed_and_not_read(tmp_path):
    files = {"energy1_input": 5_000_000, "energy1_label": "Ecore000", "energy2_input": 7_000_000}
    chip(tmp_path, 0, "amd_energy", **files, energy2_label="Esocket0")
    chip(tmp_path, 1, "amdgpu", power1_average=90_000_000, power1_label="PPT")
    chip(tmp_path, 2, "coretemp", temp1_input=40_000)
    meter = opened(tmp_path)
    assert rows(meter) == {"cpu:0": 7.0}
    assert meter.streams()[0].channels[0].kind == "counter"
    assert [m.scope for m in meter.missing()] == ["amd_energy Ecore000", "amdgpu PPT"]


@pytest.mark.parametrize("content", ["0", "-3", "", "n/a"])
def test_a_sensor_without_power_is_a_gap_never_zero(tmp_path, content):
    place = chip(tmp_path, 0, "power_meter", **meter_files("", 90))
    meter = opened(tmp_path)
    (place / "power1_average").write_text(content)
    with pytest.raises(ReadFailed):
        meter.read(meter.streams()[0])
    with pytest.raises(Unavailable):
        opened(tmp_path)


def test_a_second_sensor_of_a_scope_is_not_read(tmp_path):
    for number in range(2):
        chip(tmp_path, number, "power_meter", **meter_files(GRACE[1], 90 + number))
    meter = opened(tmp_path)
    assert rows(meter) == {"cpu:0": 90}
    assert [m.why for m in meter.missing()] == ["another sensor shows cpu:0"]


def test_where_nothing_is_known_it_says_so(tmp_path, monkeypatch):
    with pytest.raises(Unavailable, match="no sensor of power or energy"):
        opened(tmp_path / "nothing")
    chip(tmp_path, 0, "power_meter", **meter_files("", 90))

    def refuse(*_: object) -> None:
        raise Denied("cannot read", why="permission denied")

    monkeypatch.setattr(sysfs, "OpenFile", refuse)
    with pytest.raises(Denied):
        opened(tmp_path)
