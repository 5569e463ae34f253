"""Read recorded trees of real BMCs, and small ones of kinds that were read wrongly: right, or refused with a list."""

from __future__ import annotations

import pytest
from tests.instruments.redfish_judge import CASES, TREES, judge_case, load_tree
from tests.instruments.redfish_trees import WHOLE, make_control, make_service, read_values, ref, refuse_choice
from tests.rows import every_row

from joulelab.cli.meters import find_missing_key
from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed, Unavailable
from joulelab.instruments import redfish
from joulelab.instruments.redfish import CONFIG, check
from joulelab.instruments.redfish.plan import Wanted, plan_readings
from joulelab.instruments.redfish.walk import Walker


def need_trees():
    if not TREES.is_dir():
        pytest.skip(f"no recorded trees: {TREES} is not here")


def test_every_recorded_tree_is_judged():
    need_trees()
    assert {path.name.removesuffix(".json.gz") for path in TREES.glob("*.gz")} == {case.tree for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join([case.tree, *case.wanted.values()]))
def test_no_recorded_tree_is_read_wrongly(case):
    need_trees()
    rows = list(judge_case(case))
    assert [row for row in rows if row[6] not in ("right", "refused, right", "named")] == []


@pytest.mark.parametrize(
    ("name", "wanted", "watts"),
    [
        ("cray-EX425", {"chassis": "Enclosure", "sensor": "12V_HSS ECB"}, 10),
        ("cray-EX425", {"chassis": "Mezz0", "sensor": "0.85V S0 Power"}, 11),
        ("liteon-power-shelf", {"chassis": "powershelf", "sensor": "chassis_input_power"}, 4252),
        ("liteon-power-shelf", {"sensor": "chassis output power"}, 3928),
    ],
)
def test_a_part_is_read_where_somebody_names_it(name, wanted, watts):
    need_trees()
    assert read_values(load_tree(name), **wanted)[0]["node.ac"]["power_w"] == watts


def test_recorded_cooling_has_the_right_units_and_no_cpu_as_inlet():
    need_trees()
    cooling = read_values(load_tree("spy-supermicro_fixtures"))[0]["node"]
    assert (cooling["fan1_speed"], cooling["fan9_speed_rpm"]) == (0.4, 11843.0)
    assert not any(value < 1000 for name, value in cooling.items() if name.endswith("rpm"))
    assert read_values(load_tree("dmtf-public-rackmount1"))[0]["node"]["temperature_c"] == 25, "39 is that of a CPU"
    cooling = read_values(load_tree("cray-Gigabyte"), sensor="Power Consumption Monitor")[0].get("node", {})
    assert cooling.get("temperature_c") != 40.0, "CPU0_TEMP is called an intake"


def test_a_total_behind_many_other_sensors_is_found():
    rails = [(f"rail{number}", 10 + number / 1000, {}) for number in range(300)]
    assert read_values(make_service([*rails, ("total_power", 500, WHOLE)]))[0]["node.ac"]["power_w"] == 500


@every_row(
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
    listed = refuse_choice(make_service(sensors))
    for name, watts, keys in sensors:
        if "Status" in keys:
            assert f"{watts} W of {name!r}, not read: it is Disabled" in listed
            with pytest.raises(ConfigError, match="not read: it is Disabled"):
                read_values(make_service(sensors), sensor=name)
        else:
            assert f'{watts} W with chassis = "1", sensor = "{name}"' in listed
            assert read_values(make_service(sensors), sensor=name)[0]["node.ac"]["power_w"] == watts


def test_many_candidates_are_cut_and_counted():
    listed = refuse_choice(make_service([(f"rail{number}", 10 + number, {}) for number in range(30)]))
    assert '39 W with chassis = "1", sensor = "rail29"' in listed
    assert "and 18 smaller" in listed


def test_a_power_control_out_of_service_or_one_of_several_is_not_the_node():
    off = {"Name": "Chassis Power Control", "PowerConsumedWatts": 100, "Status": {"State": "Disabled"}}
    chassis, power = make_control(off)
    assert "100 W of 'Chassis Power Control', not read: it is Disabled" in refuse_choice(
        make_service(chassis=chassis, **power)
    )
    nodes = [{"Name": f"Node {number} Power", "PowerConsumedWatts": 200 + number} for number in (1, 2)]
    chassis, power = make_control(*nodes)
    assert '202 W with chassis = "1", sensor = "Node 2 Power"' in refuse_choice(make_service(chassis=chassis, **power))
    assert read_values(make_service(chassis=chassis, **power), sensor="Node 1 Power")[0]["node.ac"]["power_w"] == 201


def test_a_power_control_of_a_part_by_its_link_is_not_the_node():
    chassis, power = make_control({"Name": "Power Control", "PowerConsumedWatts": 90, "RelatedItem": [ref("/s/0/cpu")]})
    cpu = {"/s/0/cpu": {"@odata.type": "#Processor.v1_20_0.Processor"}}
    assert "it measures Processor" in refuse_choice(make_service(chassis=chassis, **power, **cpu))
    power["/c/1/p"]["PowerControl"][0]["RelatedItem"] = [ref("/s/0")]
    assert read_values(make_service(chassis=chassis, **power))[0]["node.ac"]["power_w"] == 90


def test_a_chassis_of_several_nodes_or_of_none_is_no_node():
    chassis, power = make_control({"Name": "Chassis Power Control", "PowerConsumedWatts": 900})
    assert read_values(make_service(chassis=chassis, **power))[0]["node.ac"]["power_w"] == 900
    for systems in (0, 4):
        listed = refuse_choice(make_service(chassis=chassis, systems=systems, **power))
        assert '900 W with chassis = "1", sensor = "Chassis Power Control"' in listed
        assert (
            read_values(make_service(chassis=chassis, systems=systems, **power), chassis="1")[0]["node.ac"]["power_w"]
            == 900
        )
    for equipment in ({"Model": "NVLink Switch Tray"}, {"Name": "PowerShelf_0"}, {"ChassisType": "PowerStrip"}):
        assert 'feeds = "rack"' in refuse_choice(make_service(chassis=chassis | equipment, **power))


def two_nodes():
    docs = make_service([("total_power", 500, WHOLE)], systems=1)
    docs |= {"/c": {"Members": [ref("/c/1"), ref("/c/2")]}, "/s": {"Members": [ref("/s/0"), ref("/s/2")]}}
    return docs | {"/c/2": {"Id": "2", "ChassisType": "Blade", "Links": {"ComputerSystems": [ref("/s/2")]}}, "/s/2": {}}


def test_one_node_of_two_is_not_taken_because_the_other_shows_nothing():
    docs = two_nodes()
    listed = refuse_choice(docs)
    assert '500 W with chassis = "1"' in listed
    assert "2 shows no power" in listed
    assert read_values(docs, chassis="1")[0]["node.ac"]["power_w"] == 500


def test_a_sensor_of_one_supply_behind_environment_metrics_is_not_the_node():
    chassis = {"EnvironmentMetrics": ref("/c/1/e")}
    more = {"/c/1/e": {"PowerWatts": {"Reading": 250, "DataSourceUri": "/c/1/s/PS1"}}}
    supply = ("PS1", 250, {"PhysicalContext": "PowerSupply"})
    listed = refuse_choice(make_service([supply], chassis=chassis, **more))
    assert '250 W with chassis = "1", sensor = "EnvironmentMetrics" (it is taken from' in listed
    whole = ("PS1", 250, {"PhysicalContext": "Chassis"})
    assert read_values(make_service([whole], chassis=chassis, **more))[0]["node.ac"]["power_w"] == 250


def test_environment_metrics_that_contradict_their_sensor_are_refused():
    more = {"/c/1/e": {"PowerWatts": {"Reading": 250, "DataSourceUri": "/c/1/s/total_power"}}}
    docs = make_service([("total_power", 900, {})], chassis={"EnvironmentMetrics": ref("/c/1/e")}, **more)
    listed = refuse_choice(docs)
    assert "it shows 250 W and its sensor 'total_power' 900 W" in listed
    assert read_values(docs, sensor="total_power")[0]["node.ac"]["power_w"] == 900


@pytest.mark.parametrize(("environment", "power"), [(250, 900), (900, 250)])
def test_environment_metrics_far_from_power_control_are_refused_and_either_can_be_chosen(environment, power):
    chassis, more = make_control({"Name": "System Power Control", "PowerConsumedWatts": power})
    chassis["EnvironmentMetrics"] = ref("/c/1/e")
    more["/c/1/e"] = {"PowerWatts": {"Reading": environment}}
    listed = refuse_choice(make_service(chassis=chassis, **more))
    for name, watts in (("EnvironmentMetrics", environment), ("System Power Control", power)):
        assert f'{watts} W with chassis = "1", sensor = "{name}"' in listed
        assert (
            read_values(make_service(chassis=chassis, **more), chassis="1", sensor=name)[0]["node.ac"]["power_w"]
            == watts
        )
    more["/c/1/e"] = {"PowerWatts": {"Reading": power * 1.9}}
    values, notes = read_values(make_service(chassis=chassis, **more))
    assert values["node.ac"]["power_w"] == power * 1.9
    assert f"shows {power} W and is not used" in notes[0].what


def test_a_total_of_a_maker_far_from_the_environment_metric_can_be_chosen_too():
    more = {"/c/1/e": {"PowerWatts": {"Reading": 90}}, "/c/1/p": {"Oem": {"Public": {"TotalPower": 700}}}}
    docs = make_service(chassis={"EnvironmentMetrics": ref("/c/1/e"), "Power": ref("/c/1/p")}, **more)
    assert '700 W with chassis = "1", sensor = "TotalPower"' in refuse_choice(docs)
    assert read_values(docs, chassis="1", sensor="TotalPower")[0]["node.ac"]["power_w"] == 700


def test_meters_add_asks_for_what_has_to_be_chosen():
    for docs, key in ((make_service([("a", 5, {}), ("b", 6, {})]), "sensor"), (two_nodes(), "chassis")):
        with pytest.raises(ConfigError) as refused:
            read_values(docs)
        assert find_missing_key(refused.value, redfish, {"address": "bmc"}) == key


def test_a_source_that_is_not_the_best_is_named_with_the_reason():
    chassis, more = make_control({"Name": "System Power Control", "PowerConsumedWatts": 300})
    _, (note,) = read_values(make_service(chassis=chassis, **more))
    assert (note.scope, note.why) == ("node.ac", "1 has no EnvironmentMetrics")
    more["/c/1/e"] = {"PowerWatts": {"Reading": None}}
    _, (note,) = read_values(make_service(chassis=chassis | {"EnvironmentMetrics": ref("/c/1/e")}, **more))
    assert "PowerWatts/Reading is null" in note.why


def test_a_total_below_its_processors_is_not_the_node():
    docs = make_service(chassis={"EnvironmentMetrics": ref("/c/1/e")}, **{"/c/1/e": {"PowerWatts": {"Reading": 300}}})
    gpu = {"ProcessorType": "GPU", "EnvironmentMetrics": ref("/s/0/p/g/e")}
    docs |= {"/s/0": {"Processors": ref("/s/0/p")}, "/s/0/p": {"Members": [ref("/s/0/p/g")]}, "/s/0/p/g": gpu}
    docs |= {"/s/0/p/g/e": {"PowerWatts": {"Reading": 320}}}
    assert {"node.ac", "gpu:0"} == set(read_values(docs)[0])
    docs["/s/0/p/g/e"] = {"PowerWatts": {"Reading": 400}}
    values, notes = read_values(docs)
    assert set(values) == {"gpu:0"}
    assert [note.why for note in notes if note.code == "meter.contradiction"] == ["its processors alone draw 400 W"]


def test_a_total_above_what_its_supplies_give_is_not_the_node():
    chassis, more = make_control({"Name": "System Power Control", "PowerConsumedWatts": 5000})
    more["/c/1/p"]["PowerSupplies"] = [{"MemberId": n, "PowerCapacityWatts": 800} for n in "12"]
    with pytest.raises(Unavailable, match="its supplies give 1600 W"):
        read_values(make_service(chassis=chassis, **more))
    more["/c/1/p"]["PowerControl"][0]["PowerConsumedWatts"] = 1500
    assert read_values(make_service(chassis=chassis, **more))[0]["node.ac"]["power_w"] == 1500


def test_a_search_that_takes_too_long_says_so_and_how_to_go_on():
    docs = make_service([(f"rail{number}", 10, {}) for number in range(100)])
    seconds = iter(range(1000))
    walker = Walker(docs.__getitem__, docs["/redfish/v1"], now=lambda: next(seconds) * 1_000_000_000)
    with pytest.raises(ReadFailed, match="60 s were over") as refused:
        plan_readings(walker, Wanted({}, "bmc", 1.0))
    assert "sources" in refused.value.next
    walker = Walker(docs.__getitem__, docs["/redfish/v1"], now=lambda: next(seconds) * 1_000_000_000)
    with pytest.raises(Unavailable, match="no power by Redfish"):
        plan_readings(walker, Wanted({}, "bmc", 1.0, sources=("supplies",)))


def test_supplies_of_full_efficiency_are_not_read():
    rows = [{"MemberId": str(n), "PowerInputWatts": 250, "PowerOutputWatts": out} for n, out in ((1, 230), (2, 250))]
    chassis, more = make_control({"Name": "System Power Control", "PowerConsumedWatts": 500})
    more["/c/1/p"]["PowerSupplies"] = rows
    values, notes = read_values(make_service(chassis=chassis, **more))
    assert set(values) == {"node.ac"}
    assert "an efficiency of 100%" in notes[-1].why
    rows[1]["PowerOutputWatts"] = 231
    assert "psu:2" in read_values(make_service(chassis=chassis, **more))[0]


def rectifiers(*watts, total=None):
    context = {"PhysicalContext": "Rectifier", "PhysicalSubContext": "Input"}
    rows = [(f"R{n}", value, context | {"Name": f"Rectifier {n}"}) for n, value in enumerate(watts)]
    rows += [("in", total, {"Name": "Chassis Input Power"})] if total else []
    return make_service(rows, systems=0, chassis={"ChassisType": "Enclosure"})


def test_rectifiers_are_parts_and_their_sum_is_the_rack():
    values, _ = read_values(rectifiers(1000, 1100, 1050, 990))
    assert values == {f"psu:{n}": {"power_w": watts} for n, watts in enumerate((1000, 1100, 1050, 990), 1)}
    assert read_values(rectifiers(1000, 1100, total=2110))[0]["rack"]["power_w"] == 2110
    assert read_values(rectifiers(1000, 0, total=1010))[0]["psu:2"]["power_w"] == 0, (
        "a supply that rests draws 0, and counts"
    )
    assert "sum to 2100 W" in refuse_choice(rectifiers(1000, 1100, total=1000))
    with pytest.raises(ConfigError):
        read_values(
            rectifiers(1000) | {"/s": {"Members": [ref("/s/0")]}, "/s/0": {}}
        )  # a service with a system is no shelf


def test_a_switch_with_supplies_is_no_power_shelf():
    context = {"PhysicalContext": "PowerSupply", "PhysicalSubContext": "Input"}
    rows = [("PSU1", 90, context), ("PSU2", 95, context)]
    refuse_choice(make_service(rows, systems=0, chassis={"ChassisType": "Enclosure"}))
    docs = make_service(rows, systems=0, chassis={"ChassisType": "Shelf"})
    assert set(read_values(docs)[0]) == {"psu:1", "psu:2"}
    docs["/redfish/v1"]["Fabrics"] = ref("/f")
    refuse_choice(docs)


def test_a_link_to_the_system_makes_a_total_certain():
    linked = {"RelatedItem": [ref("/s/0")]}
    assert read_values(make_service([("total_power", 500, linked)]))[0]["node.ac"]["power_w"] == 500
    refuse_choice(make_service([("total_drive_power", 500, linked)]))
    chassis, power = make_control({"Name": "Acme Watts X", "PowerConsumedWatts": 90})
    refuse_choice(make_service(chassis=chassis, **power))
    power["/c/1/p"]["PowerControl"][0] |= linked
    assert read_values(make_service(chassis=chassis, **power))[0]["node.ac"]["power_w"] == 90
    power["/c/1/p"]["PowerControl"][0]["Name"] = "CPU Power"
    refuse_choice(make_service(chassis=chassis, **power))


def test_the_board_of_the_system_behind_environment_metrics_is_the_node_and_a_regulator_is_not():
    def served(name):
        more = {"/c/1/e": {"PowerWatts": {"Reading": 250, "DataSourceUri": "/c/1/s/p"}}}
        sensor = ("p", 250, {"PhysicalContext": "SystemBoard", "Name": name})
        return make_service([sensor], chassis={"EnvironmentMetrics": ref("/c/1/e")}, **more)

    assert read_values(served("System Board Pwr Consumption"))[0]["node.ac"]["power_w"] == 250  # Dell
    refuse_choice(served("Vreg 0 SocPower"))


def test_an_asic_or_a_regulator_is_no_node():
    for context in ("ASIC", "VoltageRegulator", "Switch"):
        refuse_choice(make_service([("Power", 60, {"PhysicalContext": context})], systems=0))
        refuse_choice(make_service([("Total Power", 60, {"PhysicalContext": context})]))


def test_a_load_that_rises_between_two_answers_is_no_conflict():
    chassis, more = make_control({"Name": "System Power Control", "PowerConsumedWatts": 900})
    docs = make_service(chassis=chassis | {"EnvironmentMetrics": ref("/c/1/e")}, **more)
    answers = iter([250, 890])
    asked = Walker(
        lambda path: {"PowerWatts": {"Reading": next(answers)}} if path == "/c/1/e" else docs[path],
        docs["/redfish/v1"],
    )
    (node, *_), _ = plan_readings(asked, Wanted({}, "bmc", 1.0))
    assert node.stream.name == "node"


def test_a_power_control_that_fails_costs_no_environment_metric():
    docs = make_service(chassis={"EnvironmentMetrics": ref("/c/1/e"), "Power": ref("/c/1/p")})
    docs["/c/1/e"] = {"PowerWatts": {"Reading": 500}}

    def get(path):
        if path == "/c/1/p":
            raise ReadFailed("no answer")
        return docs[path]

    (node, *_), _ = plan_readings(Walker(get, docs["/redfish/v1"]), Wanted({}, "bmc", 1.0, chassis="1"))
    assert node.stream.name == "node"


def test_supplies_alone_are_no_node_unless_they_are_asked_for():
    supplies = [{"MemberId": str(number), "PowerInputWatts": 779} for number in range(4)]
    docs = make_service(chassis={"Power": ref("/c/1/p")}, **{"/c/1/p": {"PowerSupplies": supplies}})
    with pytest.raises(Unavailable, match=r"779 W, 779 W, 779 W, 779 W; sources = \[.supplies.\]"):
        read_values(docs)
    assert set(read_values(docs, sources=("supplies",))[0]) == {f"psu:{number}" for number in range(1, 5)}


def test_an_unknown_sensor_is_answered_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"there is no power sensor 'x' \(it shows 5 W with chassis = \"1\", sensor = \"a\""
    ):
        read_values(make_service([("a", 5, {})]), sensor="x")
    same = [("a", 5, {"Name": "Rail"}), ("b", 6, {"Name": "Rail"})]
    with pytest.raises(ConfigError, match="several sensors are 'Rail'"):
        read_values(make_service(same), sensor="Rail")
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
    docs = make_service(chassis={"EnvironmentMetrics": ref("/c/1/e")}, **{"/c/1/e": metrics}, **sources)
    speeds = {"fan1_speed": 0.4, "fan2_speed_rpm": 40, "fan4_speed_rpm": 4000, "fan5_speed": 0.4}
    assert read_values(docs)[0]["node"] == speeds
    thermal = {"Fans": [{"Name": "a", "Reading": 40, "ReadingUnits": "Percent"}, {"Name": "b", "Reading": 41}]}
    docs = make_service(chassis={"EnvironmentMetrics": ref("/c/1/e"), "Thermal": ref("/t")}, **{"/c/1/e": metrics})
    assert read_values(docs | {"/t": thermal})[0]["node"] == {"fan1_speed": 0.4}


def test_a_pretended_intake_is_no_inlet():
    def inlet(*rows):
        named = [{"Name": name, "PhysicalContext": "Intake", "ReadingCelsius": 40 + i} for i, name in enumerate(rows)]
        chassis = {"EnvironmentMetrics": ref("/c/1/e"), "Thermal": ref("/t")}
        more = {"/c/1/e": {"PowerWatts": {"Reading": 500}}, "/t": {"Temperatures": named}}
        return read_values(make_service(chassis=chassis, **more))[0].get("node", {}).get("temperature_c")

    assert inlet("CPU0_TEMP", "VR_TEMP", "MB_TEMP") is None
    assert inlet("CPU0_TEMP", "Inlet Temp") == 41
    assert inlet("Temp 7") == 40


def test_a_page_that_never_ends_is_refused_not_cut(monkeypatch):
    monkeypatch.setattr("joulelab.instruments.redfish.walk.MEMBERS", 3)
    pages = iter(range(1, 100))
    walker = Walker(lambda _: {"Members": [ref("/a")], "Members@odata.nextLink": f"/list/{next(pages)}"}, {})
    with pytest.raises(JoulelabError, match="more than 3 members"):
        walker.list_members(walker.open_path("/list/0"))
