"""Read recorded trees of real BMCs, and small ones of kinds that were read wrongly: right, or refused with a list."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed, Unavailable
from joulelab.instruments.redfish import CONFIG, check, values
from joulelab.instruments.redfish.plan import Wanted, plans
from joulelab.instruments.redfish.walk import Walker

TREES = Path(__file__).parents[3] / "shared" / "data" / "devices" / "redfish"
# What a person reads in each tree (shared/data/README.md): power of the node, or words of the refusal.
READ = {
    "cray-EX425": ["Node0 (240 W)", "Node1 (238 W)", "set chassis"],
    "cray-Gigabyte": ["Power Consumption Monitor 196 W", "100 W", "Disabled", 'sensor = "Power Consumption Monitor"'],
    "cray-Intel": 148.0,
    "cray-XL675d_A40": 779.0,
    "dmtf-public-rackmount1": 374.0,
    "liteon-power-shelf": ["chassis_input_power (chassis input power) 4252 W", 'feeds = "rack"'],
    "spy-supermicro_fixtures": 1349.263802,
}


def ref(path):
    return {"@odata.id": path}


def read(docs, **wanted):
    """Return the readings by stream and channel, from a tree of documents by address."""

    def get(path):
        found = docs.get(path.split("?")[0].rstrip("/"))
        if found is None:
            raise Unavailable("not there", why=path)
        return found

    found, missing = plans(Walker(get, docs["/redfish/v1"]), Wanted({}, "bmc", 1.0, **wanted))
    rows = {
        plan.stream.name: {
            spec.name: values.value(get(field.path), field)
            for spec, field in zip(plan.stream.channels, plan.fields, strict=True)
            if field is not None
        }
        for plan in found
    }
    return rows, missing


def recorded(name):
    path = TREES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no recorded tree {name}: {TREES} is not here")
    docs = json.loads(gzip.decompress(path.read_bytes()))
    return {path.rstrip("/"): body for path, body in docs.items()}


def test_every_recorded_tree_is_named_here():
    if not TREES.is_dir():
        pytest.skip(f"no recorded trees: {TREES} is not here")
    assert {path.name.removesuffix(".json.gz") for path in TREES.glob("*.gz")} == set(READ)


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("name", READ)
def test_no_recorded_tree_is_read_wrongly(name):
    expected = READ[name]
    if isinstance(expected, float):
        assert read(recorded(name))[0]["node"]["power_w"] == expected
    else:
        with pytest.raises(JoulelabError) as refused:
            read(recorded(name))
        assert [words for words in expected if words not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("name", "wanted", "watts"),
    [
        ("cray-EX425", {"chassis": "Node0"}, 240),
        ("cray-EX425", {"chassis": "Node1"}, 238),
        ("cray-EX425", {"chassis": "Enclosure", "sensor": "12V_HSS ECB"}, 10),
        ("cray-EX425", {"chassis": "Mezz0", "sensor": "0.85V S0 Power"}, 11),
        ("cray-Gigabyte", {"sensor": "Power Consumption Monitor"}, 196),
        ("liteon-power-shelf", {"chassis": "powershelf", "sensor": "chassis_input_power"}, 4252),
        ("liteon-power-shelf", {"sensor": "chassis output power"}, 3928),
    ],
)
def test_what_a_refusal_says_to_type_works(name, wanted, watts):
    assert read(recorded(name), **wanted)[0]["node"]["power_w"] == watts


def test_recorded_cooling_has_the_right_units_and_no_cpu_as_inlet():
    cooling = read(recorded("spy-supermicro_fixtures"))[0]["cooling"]
    assert (cooling["fan1_speed"], cooling["fan9_speed_rpm"]) == (0.4, 11843.0)
    assert not any(value < 1000 for name, value in cooling.items() if name.endswith("rpm"))
    cooling = read(recorded("cray-Gigabyte"), sensor="Power Consumption Monitor")[0].get("cooling", {})
    assert cooling.get("temperature_c") != 40.0, "CPU0_TEMP is called an intake"


def service(sensors=(), systems=1, chassis=None, **more):
    """A service of one chassis that belongs to some systems, and has these sensors: (Id, watts, more keys)."""
    body = {"Id": "1", "ChassisType": "RackMount", "Sensors": ref("/c/1/s")} | (chassis or {})
    paths = [f"/s/{number}" for number in range(systems)]
    docs = {
        "/redfish/v1": {"RedfishVersion": "1.6.0", "Chassis": ref("/c"), "Systems": ref("/s")},
        "/s": {"Members": [ref(path) for path in paths]},
        "/c": {"Members": [ref("/c/1")]},
        "/c/1": body | {"Links": {"ComputerSystems": [ref(path) for path in paths]}},
        "/c/1/s": {"Members": [ref(f"/c/1/s/{name}") for name, _, _ in sensors]},
    }
    docs |= {path: {"Id": path[-1]} for path in paths}
    for name, watts, keys in sensors:
        docs[f"/c/1/s/{name}"] = {"Id": name, "Name": name, "Reading": watts, "ReadingType": "Power"} | keys
    return docs | more


def control(*rows):
    return {"Power": ref("/c/1/p")}, {"/c/1/p": {"PowerControl": list(rows)}}


WHOLE = {"PhysicalContext": "Chassis"}


def test_a_total_behind_many_other_sensors_is_found():
    rails = [(f"rail{number}", 10 + number / 1000, {}) for number in range(300)]
    assert read(service([*rails, ("total_power", 500, WHOLE)]))[0]["node"]["power_w"] == 500


@pytest.mark.parametrize(
    "sensors",
    [
        [("total_power", 500, {})],  # by its name alone
        [("ChassisVoltageRegulator0InputPower", 10, {"PhysicalContext": "VoltageRegulator"})],
        [("power_7", 500, WHOLE)],  # by its context alone
        [("total_power", 500, WHOLE), ("system_power", 400, WHOLE)],
        [("total_power", 500, WHOLE | {"Status": {"State": "Disabled"}})],
        [("total_power", 470, WHOLE | {"PhysicalSubContext": "Output"})],
        [("total_power", 160, WHOLE | {"ElectricalContext": "Line1"})],
        [("PSU1_Input_Power", 250, WHOLE), ("PSU2_Input_Power", 250, WHOLE)],
    ],
)
def test_a_sensor_that_is_not_certain_is_listed_and_can_be_chosen(sensors):
    with pytest.raises(Unavailable, match="no power of this BMC is certainly that of one node") as refused:
        read(service(sensors))
    for name, watts, _ in sensors:
        assert f"1: {name}" in str(refused.value)
        assert read(service(sensors), sensor=name)[0]["node"]["power_w"] == watts


def test_many_candidates_are_cut_and_counted():
    with pytest.raises(Unavailable, match=r"1: rail29 39 W; 1: rail28 .* and 18 smaller\); .*sensor = \"rail29\""):
        read(service([(f"rail{number}", 10 + number, {}) for number in range(30)]))


def test_a_power_control_out_of_service_or_one_of_several_is_not_the_node():
    off = {"Name": "Chassis Power Control", "PowerConsumedWatts": 100, "Status": {"State": "Disabled"}}
    chassis, power = control(off)
    with pytest.raises(Unavailable, match=r"Chassis Power Control \(PowerControl, Disabled\) 100 W"):
        read(service(chassis=chassis, **power))
    nodes = [{"Name": f"Node {number} Power", "PowerConsumedWatts": 200 + number} for number in (1, 2)]
    chassis, power = control(*nodes)
    with pytest.raises(Unavailable, match="Node 2 Power"):
        read(service(chassis=chassis, **power))
    assert read(service(chassis=chassis, **power), sensor="Node 1 Power")[0]["node"]["power_w"] == 201


def test_a_chassis_of_several_nodes_or_of_none_is_no_node():
    chassis, power = control({"Name": "Chassis Power Control", "PowerConsumedWatts": 900})
    assert read(service(chassis=chassis, **power))[0]["node"]["power_w"] == 900
    for systems in (0, 4):
        with pytest.raises(Unavailable, match="certainly"):
            read(service(chassis=chassis, systems=systems, **power))
        assert read(service(chassis=chassis, systems=systems, **power), chassis="1")[0]["node"]["power_w"] == 900
    for equipment in ({"Model": "NVLink Switch Tray"}, {"Name": "PowerShelf_0"}, {"ChassisType": "PowerStrip"}):
        with pytest.raises(Unavailable, match='feeds = "rack"'):
            read(service(chassis=chassis | equipment, **power))


def test_an_environment_metric_of_one_supply_is_not_the_node():
    chassis = {"EnvironmentMetrics": ref("/c/1/e")}
    more = {"/c/1/e": {"PowerWatts": {"Reading": 250, "DataSourceUri": "/c/1/s/PS1"}}}
    supply = ("PS1", 250, {"PhysicalContext": "PowerSupply"})
    with pytest.raises(Unavailable, match=r"1: EnvironmentMetrics 250 W"):
        read(service([supply], chassis=chassis, **more))
    whole = ("PS1", 250, {"PhysicalContext": "Chassis"})
    assert read(service([whole], chassis=chassis, **more))[0]["node"]["power_w"] == 250


@pytest.mark.parametrize(("environment", "power"), [(250, 900), (900, 250)])
def test_an_environment_metric_far_from_power_control_is_refused_and_either_can_be_chosen(environment, power):
    chassis, more = control({"Name": "System Power Control", "PowerConsumedWatts": power})
    chassis["EnvironmentMetrics"] = ref("/c/1/e")
    more["/c/1/e"] = {"PowerWatts": {"Reading": environment}}
    with pytest.raises(Unavailable, match="chassis 1 differ by more than a factor of 2") as refused:
        read(service(chassis=chassis, **more))
    text = str(refused.value)
    assert f"1: EnvironmentMetrics {environment} W" in text
    assert f"1: System Power Control (PowerControl) {power} W" in text
    for name, watts in (("EnvironmentMetrics", environment), ("System Power Control", power)):
        assert 'chassis = "1"' in text
        assert f'sensor = "{name}"' in text
        assert read(service(chassis=chassis, **more), chassis="1", sensor=name)[0]["node"]["power_w"] == watts
    more["/c/1/e"] = {"PowerWatts": {"Reading": power * 1.9}}
    assert read(service(chassis=chassis, **more))[0]["node"]["power_w"] == power * 1.9


def test_a_total_of_a_maker_far_from_the_environment_metric_can_be_chosen_too():
    more = {"/c/1/e": {"PowerWatts": {"Reading": 90}}, "/c/1/p": {"Oem": {"Public": {"TotalPower": 700}}}}
    docs = service(chassis={"EnvironmentMetrics": ref("/c/1/e"), "Power": ref("/c/1/p")}, **more)
    with pytest.raises(Unavailable, match=r"TotalPower \(Power\) 700 W.*sensor = \"TotalPower\""):
        read(docs)
    assert read(docs, chassis="1", sensor="TotalPower")[0]["node"]["power_w"] == 700


def test_a_load_that_rises_between_two_answers_is_no_conflict():
    chassis, more = control({"Name": "System Power Control", "PowerConsumedWatts": 900})
    docs = service(chassis=chassis | {"EnvironmentMetrics": ref("/c/1/e")}, **more)
    answers = iter([250, 890])
    asked = Walker(
        lambda path: {"PowerWatts": {"Reading": next(answers)}} if path == "/c/1/e" else docs[path],
        docs["/redfish/v1"],
    )
    (node, *_), _ = plans(asked, Wanted({}, "bmc", 1.0))
    assert node.stream.name == "node"


def test_a_power_control_that_fails_costs_no_environment_metric():
    docs = service(chassis={"EnvironmentMetrics": ref("/c/1/e"), "Power": ref("/c/1/p")})
    docs["/c/1/e"] = {"PowerWatts": {"Reading": 500}}

    def get(path):
        if path == "/c/1/p":
            raise ReadFailed("no answer")
        return docs[path]

    (node, *_), _ = plans(Walker(get, docs["/redfish/v1"]), Wanted({}, "bmc", 1.0, chassis="1"))
    assert node.stream.name == "node"


def test_supplies_alone_are_no_node_unless_they_are_asked_for():
    supplies = [{"MemberId": str(number), "PowerInputWatts": 779} for number in range(4)]
    docs = service(chassis={"Power": ref("/c/1/p")}, **{"/c/1/p": {"PowerSupplies": supplies}})
    with pytest.raises(Unavailable, match=r"779 W, 779 W, 779 W, 779 W; sources = \[.supplies.\]"):
        read(docs)
    assert set(read(docs, sources=("supplies",))[0]) == {f"psu:{number}" for number in range(1, 5)}


def test_an_unknown_sensor_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"there is no power sensor 'x' \(it shows 1: a 5 W\)"):
        read(service([("a", 5, {})]), sensor="x")
    same = [("a", 5, {"Name": "Rail"}), ("b", 6, {"Name": "Rail"})]
    with pytest.raises(ConfigError, match="several sensors are 'Rail'"):
        read(service(same), sensor="Rail")
    assert "sensor" in CONFIG
    check({"address": "bmc", "auth": "none", "sensor": "total_power"})


def test_fan_speeds_of_unknown_unit_are_left_out():
    fans = [
        {"SpeedRPM": 40, "DataSourceUri": "/f/pwm"},
        {"SpeedRPM": 40, "DataSourceUri": "/f/rpm"},
        {"SpeedRPM": 40},
        {"SpeedRPM": 4000},
        {"Reading": 40, "SpeedRPM": 40},
    ]
    metrics = {"PowerWatts": {"Reading": 500}, "FanSpeedsPercent": fans}
    sources = {"/f/pwm": {"ReadingUnits": "%"}, "/f/rpm": {"ReadingUnits": "RPM"}}
    docs = service(chassis={"EnvironmentMetrics": ref("/c/1/e")}, **{"/c/1/e": metrics}, **sources)
    speeds = {"fan1_speed": 0.4, "fan2_speed_rpm": 40, "fan3_speed_rpm": 4000, "fan4_speed": 0.4}
    assert read(docs)[0]["cooling"] == speeds
    thermal = {"Fans": [{"Name": "a", "Reading": 40, "ReadingUnits": "Percent"}, {"Name": "b", "Reading": 41}]}
    docs = service(chassis={"EnvironmentMetrics": ref("/c/1/e"), "Thermal": ref("/t")}, **{"/c/1/e": metrics})
    assert read(docs | {"/t": thermal})[0]["cooling"] == {"fan1_speed": 0.4}


def test_a_pretended_intake_is_no_inlet():
    def inlet(*rows):
        named = [{"Name": name, "PhysicalContext": "Intake", "ReadingCelsius": 40 + i} for i, name in enumerate(rows)]
        chassis = {"EnvironmentMetrics": ref("/c/1/e"), "Thermal": ref("/t")}
        more = {"/c/1/e": {"PowerWatts": {"Reading": 500}}, "/t": {"Temperatures": named}}
        return read(service(chassis=chassis, **more))[0].get("cooling", {}).get("temperature_c")

    assert inlet("CPU0_TEMP", "VR_TEMP", "MB_TEMP") is None
    assert inlet("CPU0_TEMP", "Inlet Temp") == 41
    assert inlet("Temp 7") == 40


def test_a_page_that_never_ends_is_refused_not_cut(monkeypatch):
    monkeypatch.setattr("joulelab.instruments.redfish.walk.MEMBERS", 3)
    pages = iter(range(1, 100))
    walker = Walker(lambda _: {"Members": [ref("/a")], "Members@odata.nextLink": f"/list/{next(pages)}"}, {})
    with pytest.raises(JoulelabError, match="more than 3 members"):
        walker.members(walker.get("/list/0"))
