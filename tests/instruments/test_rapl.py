from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codes import raises_code
from tests.waiting import until

from joulelab.core import scope
from joulelab.core.clock import monotonic_ns
from joulelab.instruments import rapl
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers.powercap import PowercapFlaws

if TYPE_CHECKING:
    from pathlib import Path

RANGE_UJ = 262_143_328_850
XEON = {
    "intel-rapl:0": ("package-0", 1_000_000),
    "intel-rapl:0:0": ("core", 400_000),
    "intel-rapl:0:1": ("dram", 200_000),
    "intel-rapl:1": ("package-1", 2_000_000),
    "intel-rapl:1:0": ("dram", 100_000),
}


def tree(root: Path, zones: dict[str, tuple[str, int]]) -> Path:
    """Make a powercap class directory: zones beside each other."""
    root.mkdir(exist_ok=True)
    for directory, (name, energy_uj) in zones.items():
        zone = root / directory
        zone.mkdir()
        (zone / "name").write_text(name + "\n")
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
        (zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return root


class VirtualTime:
    """Let time pass only in pauses; a counter may step meanwhile."""

    def __init__(self, step=lambda now_ns: None) -> None:
        self.now_ns = 0
        self._step = step

    def now(self) -> int:
        return self.now_ns

    def pause(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self._step(self.now_ns)


def opened(root: Path, time: VirtualTime | None = None, **config):
    time = time or VirtualTime()
    return rapl.open_meter({"root": str(root)} | config, now=time.now, pause=time.pause)


def scopes(meter) -> dict[str, str | None]:
    return {s.scope: s.parent for s in meter.streams()}


def rows(meter) -> dict[str, float]:
    return {s.name: meter.read(s)[0] for s in meter.streams()}


def test_reads_each_zone_in_joules(tmp_path):
    meter = opened(tree(tmp_path, XEON), period_s=0.5)
    assert scopes(meter) == {"cpu:0": None, "core:0": "cpu:0", "dram:0": None, "cpu:1": None, "dram:1": None}
    assert rows(meter) == {"cpu:0": 1.0, "core:0": 0.4, "dram:0": 0.2, "cpu:1": 2.0, "dram:1": 0.1}
    assert {s.period_s for s in meter.streams()} == {0.5}
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1500000\n")
    assert rows(meter)["cpu:0"] == 1.5
    meter.close()
    meter.close()


def test_the_counter_wraps_one_register_unit_after_its_largest_value(tmp_path):
    meter = opened(tree(tmp_path, XEON))
    modulus = meter.streams()[0].channels[0].modulus
    unit = RANGE_UJ / (2**32 - 1)
    assert modulus * 1e6 == pytest.approx(2**32 * unit, abs=0.01)
    # The register went from its last value to 3: four units more.
    before, after = (2**32 - 1) * unit / 1e6, 3 * unit / 1e6
    assert (after - before) % modulus == pytest.approx(4 * unit / 1e6, abs=1e-9)


def test_psys_contains_packages_and_memory(tmp_path):
    meter = opened(tree(tmp_path, XEON | {"intel-rapl:2": ("psys", 9), "intel-rapl:3": ("psys", 9)}))
    parents = scopes(meter)
    assert (parents["cpu:0"], parents["dram:1"], parents["core:0"], parents["psys"]) == ("psys", "psys", "cpu:0", None)
    assert scope.find_roots(parents, parents) == ["psys"]
    assert "second psys" in meter.missing()[0].what


def test_what_two_interfaces_show_counts_once(tmp_path):
    both = XEON | {"intel-rapl-mmio:0": ("package-0", 1_000_500), "intel-rapl-mmio:0:0": ("dram", 3)}
    meter = opened(tree(tmp_path, both))
    assert set(scopes(meter)) == {"cpu:0", "core:0", "dram:0", "cpu:1", "dram:1"}
    assert {s.device for s in meter.streams()} == set(XEON)


def test_mmio_alone_is_read(tmp_path):
    meter = opened(tree(tmp_path, {"intel-rapl-mmio:0": ("package-0", 5)}))
    assert scopes(meter) == {"cpu:0": None}


def test_dies_with_counters_of_their_own_are_scopes_of_their_own(tmp_path):
    dies = {
        "intel-rapl:0": ("package-0-die-0", 1_000_000),
        "intel-rapl:0:0": ("dram", 10),
        "intel-rapl:1": ("package-0-die-1", 7_000_000),
        "intel-rapl:1:0": ("core", 11),
    }
    parents = scopes(opened(tree(tmp_path, dies)))
    assert parents == {"cpu:0/die:0": None, "dram:0/die:0": None, "cpu:0/die:1": None, "core:0/die:1": "cpu:0/die:1"}
    assert scope.find_roots(parents, parents) == ["cpu:0/die:0", "cpu:0/die:1", "dram:0/die:0"]


def test_dies_that_mirror_their_package_count_once(tmp_path):
    dies = {
        "intel-rapl:0": ("package-0-die-0", 68_000_000),
        "intel-rapl:0:0": ("core", 10),
        "intel-rapl:1": ("package-0-die-1", 68_000_000),
        "intel-rapl:1:0": ("core", 12),
        "intel-rapl:2": ("package-1", 68_000_000),
    }
    meter = opened(tree(tmp_path, dies))
    assert scopes(meter) == {"cpu:0": None, "core:0": "cpu:0", "cpu:1": None}
    assert [m.scope for m in meter.missing()] == ["intel-rapl:1", "intel-rapl:1:0"]


def test_a_machine_without_zones_says_why(tmp_path):
    with raises_code("unavailable.no-zone") as error:
        opened(tmp_path / "none")
    assert "does not exist" in error.value.why
    assert error.value.next.endswith("sudo modprobe intel_rapl_msr")
    with raises_code("unavailable.no-zone"):
        opened(tmp_path)


@pytest.mark.system
def test_refused_counters_come_with_the_command_to_type(tmp_path, remote):
    tree(tmp_path, XEON)
    for path in tmp_path.glob("*/energy_uj"):
        path.chmod(0o000)
    answer = remote("rapl", {"root": str(tmp_path)}, without_override=True).opened
    assert answer["error"] == "Denied"
    assert f"sudo chmod a+r {tmp_path}/intel-rapl*/energy_uj" in answer["next"]
    assert "joulelab doctor rapl" in answer["next"]
    assert "CVE-2020-8694" in answer["why"]


@pytest.mark.system
def test_zones_that_are_refused_singly_are_told(tmp_path, remote):
    tree(tmp_path, XEON)
    for path in tmp_path.glob("intel-rapl:1*/energy_uj"):
        path.chmod(0o000)
    meter = remote("rapl", {"root": str(tmp_path)}, without_override=True)
    assert set(meter.streams) == {"cpu:0", "core:0", "dram:0"}
    assert [m["scope"] for m in meter.opened["missing"]] == ["package-1", "dram"]
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert meter.read("cpu:0")["error"] == "DeviceLost"


def test_zones_that_hold_no_number_are_unavailable(tmp_path):
    tree(tmp_path, {"intel-rapl:0": ("package-0", 1)})
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("\n")
    with raises_code("unavailable.unreadable-zones"):
        opened(tmp_path)


def test_a_file_that_vanishes_is_lost_and_may_come_back(tmp_path):
    meter = opened(tree(tmp_path, XEON))
    cpu = meter.streams()[0]
    path = tmp_path / "intel-rapl:0" / "energy_uj"
    path.unlink()
    with raises_code("device-lost.file"):
        meter.read(cpu)
    path.write_text("3000000\n")
    assert meter.read(cpu) == (3.0,)
    path.write_text("garbage")
    with raises_code("read-failed.no-number"):
        meter.read(cpu)


def test_the_step_is_watched(tmp_path):
    tree(tmp_path, {"intel-rapl:0": ("package-0", 1), "intel-rapl:1": ("package-1", 1)})
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    time = VirtualTime(lambda now_ns: counter.write_text(f"{10**6 + now_ns // 5_000_000}\n"))  # every 5 ms
    moving, still = (s.channels[0].update_s for s in opened(tmp_path, time).streams())
    assert moving == 0.005
    assert still == 0.03


@pytest.mark.parametrize(
    ("cpuinfo", "kind", "source"),
    [
        ("vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t: fpu vme\n", "package-0", "assumed"),
        ("vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t: fpu sgx\n", "package-0", "unknown"),
        ("vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t: fpu vme\n", "psys", "unknown"),
        ("vendor_id\t: AuthenticAMD\nmodel name\t: EPYC\nflags\t: fpu\n", "core", "unknown"),
    ],
)
def test_accuracy_depends_on_the_processor(tmp_path, cpuinfo, kind, source):
    (tmp_path / "cpuinfo").write_text(cpuinfo + "\nvendor_id: other\n\n")
    facts = rapl.read_cpu_facts(tmp_path / "cpuinfo")
    found = rapl.describe_accuracy(rapl.Zone(tmp_path, kind), facts)
    assert found.source == source
    assert found.reference
    assert facts.model in found.shared


def test_every_fix_is_a_command_for_this_tree():
    commands = [command for _, command in rapl.list_fixes("/sys/class/powercap", "/usr/bin/python3.11")]
    assert any("chmod a+r /sys/class/powercap/intel-rapl*/energy_uj" in c for c in commands)
    assert any("udev" in c for c in commands)
    assert any("setcap cap_dac_read_search=ep /usr/bin/python3.11" in c for c in commands)


def test_the_cap_of_a_package_is_read_where_it_has_one(tmp_path):
    tree(tmp_path, XEON)
    limit = tmp_path / "intel-rapl:0" / "constraint_1_power_limit_uw"
    limit.write_text("120000000\n")
    (tmp_path / "intel-rapl:0" / "constraint_1_name").write_text("long_term\n")
    meter = opened(tmp_path)
    (stream,) = [s for s in meter.streams() if s.table == "state"]
    assert (stream.scope, [c.name for c in stream.channels]) == ("cpu:0", ["cap_requested_w"])
    assert meter.read(stream) == (120.0,)
    limit.write_text("80000000\n")
    assert meter.read(stream) == (80.0,)
    meter.close()


def test_a_register_that_wraps_between_two_readings_counts_on(tmp_path):
    meter = opened(tree(tmp_path, {"intel-rapl:0": ("package-0", RANGE_UJ - 2_000_000)}))
    (stream,) = meter.streams()
    first = meter.read(stream)[0]
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("3000000\n")
    moved = (meter.read(stream)[0] - first) % stream.channels[0].modulus
    assert moved == pytest.approx(5.0, abs=1e-3)


@pytest.mark.system
def test_follows_the_simulated_node_through_a_wrap(twin, remote):
    base_uj = RANGE_UJ - 20_000_000
    flaws = PowercapFlaws(base_uj=base_uj)
    server = twin(Node(gpus=(), psys=True), profiles={"cpu": profile.constant(0.5)}, powercap=flaws)
    meter = remote("rapl", {"root": server.environment["JOULELAB_POWERCAP"]})
    assert {s.scope: s.parent for s in meter.streams.values()}["cpu:1"] == "psys"
    modulus = meter.streams["cpu:0"].channels[0].modulus

    def true_j() -> float:
        return server.truth.energy("cpu:0", server.truth.start_ns, monotonic_ns())

    def counted_j() -> float:
        counted = (meter.read("cpu:0")[0] - base_uj / 1e6) % modulus
        assert counted <= true_j() + 0.001, "it never shows more than has flowed"
        return counted

    wanted = until(lambda: true_j() > 20.0 and true_j(), "the wrap")
    assert until(lambda: counted_j() >= wanted, "the counter shows what had flowed")
    assert meter.read("cpu:0")[0] < base_uj / 1e6, "it wrapped"


def test_modulus_of_ranges_that_kernels_show():
    assert [rapl.compute_modulus_j(shown) for shown in (None, 0, -1)] == [None, None, None]
    # The default Intel unit, 1/2^14 J, which the kernel rounds to 61.035 uJ.
    assert rapl.compute_modulus_j(262_143_328_850) == (262_143_328_850 + 262_143_328_850 / (2**32 - 1)) / 1e6
    assert round(rapl.compute_modulus_j(65_532_610_987) * 1e6 - 65_532_610_987) == 15


@given(st.integers(1, 2**60))
def test_modulus_is_beyond_the_largest_value(largest_uj):
    assert rapl.compute_modulus_j(largest_uj) * 1e6 > largest_uj


def test_zones_need_a_name_and_those_of_newer_kernels_keep_theirs(tmp_path):
    (tmp_path / "intel-rapl:1").mkdir()  # no name: not a zone
    (tmp_path / "dtpm").mkdir()
    (tmp_path / "intel-rapl").mkdir()
    assert rapl.find_zones(tmp_path) == rapl.find_zones(tmp_path / "none") == []
    for directory, name in {"intel-rapl:0": "package-3", "intel-rapl:0:0": "uncore", "intel-rapl:0:1": "novel"}.items():
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "name").write_text(name)
    found = [(*zone.part, zone.modulus_j) for zone in rapl.find_zones(tmp_path)]
    assert found == [("package", 3, None, None), ("uncore", 3, None, None), ("novel", 3, None, None)]
