"""Read trees in the shapes of makers that no recording here shows: right, or refused; never another thing's power."""

from __future__ import annotations

import pytest
from tests.codes import raises_code
from tests.instruments.redfish_judge import open_tree
from tests.instruments.redfish_trees import (
    make_control_service,
    make_metrics_service,
    make_service,
    read_values,
    read_watts,
    ref,
    refs,
    refuse_choice,
)
from tests.rows import every_row

SYSTEM = "System Power Control"


def add_chassis(docs, name, **body):
    """List another chassis; its links are its own."""
    docs["/c"] = {"Members": [*docs["/c"]["Members"], ref(f"/c/{name}")]}
    return docs | {f"/c/{name}": {"Id": name} | body}


def add_system(docs, name, **body):
    docs["/s"] = {"Members": [*docs["/s"]["Members"], ref(f"/s/{name}")]}
    return docs | {f"/s/{name}": {"Id": name} | body}


# ---- read right


def test_dell():
    related = {"RelatedItem": refs("/c/1", "/s/0")}
    docs = make_control_service((SYSTEM, 242, related))
    docs = add_chassis(
        docs, "Enclosure.Internal.0-1", ChassisType="StorageEnclosure", Links={"ContainedBy": ref("/c/1")}
    )
    assert read_watts(docs) == 242
    board = {"Name": "System Board Pwr Consumption", "PhysicalContext": "SystemBoard"}
    assert read_watts(make_metrics_service(251, board)) == 251  # iDRAC 10 has no Power


def test_hpe():
    docs = make_control_service((None, 165, {}))
    docs["/c/1/p"]["PowerConsumedWatts"] = 166  # iLO 4: a second total beside a member without a name
    docs["/c"] = {"Members": refs("/c/1/")}
    docs["/c/1"]["Links"] = {"ComputerSystems": refs("/s/0/")}
    assert read_watts(docs) == 165
    docs = make_metrics_service(180)
    docs["/c/1/e"]["PowerWatts"]["DataSourceUri"] = "/c/1/p#/PowerControl/0"  # iLO 6
    assert read_watts(docs) == 180


def test_hpe_shows_the_input_of_supplies_as_their_output():
    docs = make_control_service((None, 97, {}))
    supply = {"Name": "HpeServerPowerSupply", "PowerCapacityWatts": 500}
    rows = [supply | {"MemberId": str(n), "LastPowerOutputWatts": watts} for n, watts in enumerate((51, 46))]
    docs["/c/1/p"]["PowerSupplies"] = rows
    values, notes = read_values(docs)
    assert set(values) == {"node.ac"}
    assert "an efficiency of 100%" in notes[-1].why
    rows[1]["LastPowerOutputWatts"] = 40
    assert {"psu.dc:1", "psu.dc:2"} < set(read_values(docs)[0])


def test_lenovo():
    rows = [("Server Power Control", 478, {}), ("CPU Sub-system Power", 91, {}), ("GPU Sub-system Power", 150, {})]
    docs = add_chassis(
        make_control_service(*rows), "2", ChassisType="Enclosure", Links={"ComputerSystems": refs("/s/0")}
    )
    assert read_watts(docs) == 478


@pytest.mark.parametrize("board", ["Module", "Component"])
def test_supermicro_and_dgx_with_a_gpu_board(board):
    docs = add_system(make_control_service((SYSTEM, 4100, {})), "HGX_Baseboard_0", Links={"Chassis": refs("/c/HGX")})
    docs = add_chassis(docs, "HGX", ChassisType=board, EnvironmentMetrics=ref("/c/HGX/e"))
    docs = add_chassis(docs, "GPU", ChassisType="Module", EnvironmentMetrics=ref("/c/HGX/e"))
    assert read_watts(docs | {"/c/HGX/e": {"PowerWatts": {"Reading": 2900}}}) == 4100


def test_openbmc_calls_every_board_a_rack_mount_of_the_system():
    docs = make_control_service(("Chassis Power Control", 430, {}))
    for name in ("PSU1", "Riser"):
        docs = add_chassis(docs, name, ChassisType="RackMount", Sensors=ref(f"/c/{name}/s"),
                           Links={"ComputerSystems": refs("/s/0")})  # fmt: skip
        sensor = {"Name": f"{name} Input Power", "Reading": 210, "ReadingType": "Power"}
        docs |= {f"/c/{name}/s": {"Members": refs(f"/c/{name}/s/p")}, f"/c/{name}/s/p": sensor}
    assert read_watts(docs) == 430


def test_huawei():
    assert read_watts(make_control_service((f"{SYSTEM} 1", 333, {}))) == 333
    blade = {"ChassisType": "Blade", "Links": {"ContainedBy": ref("/c/Enclosure")}}
    docs = make_control_service((f"{SYSTEM} 1", 333, {}), chassis=blade)
    docs = add_chassis(docs, "Enclosure", ChassisType="Enclosure", Power=ref("/c/Enclosure/p"))
    docs["/c/Enclosure/p"] = {"PowerControl": [{"Name": "Chassis Power Control", "PowerConsumedWatts": 2100}]}
    assert read_watts(docs) == 333


def test_the_sum_of_supplies_behind_the_metric_is_the_node():
    assert read_watts(make_metrics_service(600, {"Name": "PSU Total Input Power"})) == 600


# ---- were read wrong


@pytest.mark.parametrize("context", ["CPU", "Memory", "PowerSupply", "ASIC"])
def test_a_power_control_of_a_part_by_its_context(context):
    """Cisco and others state the context of a member without a name."""
    assert f"it measures {context}" in refuse_choice(make_control_service((None, 90, {"PhysicalContext": context})))
    assert read_watts(make_control_service((None, 90, {"PhysicalContext": "Chassis"}))) == 90


def test_a_power_control_that_is_related_to_the_enclosure():
    docs = make_control_service(("Power Control", 2100, {"RelatedItem": refs("/c/Enclosure")}))
    docs = add_chassis(docs, "Enclosure", ChassisType="Enclosure", **{"@odata.type": "#Chassis.v1_9_0.Chassis"})
    assert "it measures Chassis Enclosure" in refuse_choice(docs)
    docs["/c/Enclosure"]["Links"] = {"ComputerSystems": refs("/s/0")}  # the same node, by another name
    assert read_watts(docs) == 2100


def test_the_sum_of_gpus_behind_the_metric_of_the_node():
    assert "a part" in refuse_choice(make_metrics_service(950, {"Name": "Total GPU Power"}))


@every_row(
    "sensor",
    [
        {"Name": "HSC0 Input Power"},
        {"Name": "HSC0 Input Power", "PhysicalContext": "Chassis"},
        {"Name": "PDB_0_HSC_0_Pwr_0"},
        {"Name": "Riser 1 12V Power"},
        {"Name": "P12V AUX Power"},
        {"Name": "P3V3 Power", "PhysicalContext": "Chassis"},
        {"Name": "Drive Bay Power"},
        {"Name": "Total Power", "PhysicalSubContext": "Output"},
        {"Name": "Input Power", "ElectricalContext": "Line1"},
    ],
)
def test_the_sensor_behind_the_metric_of_the_node_is_of_a_part(sensor):
    assert "it is taken from" in refuse_choice(make_metrics_service(300, sensor))


@every_row(
    "sensor",
    [
        {"Name": "Chassis 0 TotalHSC Power 0"},
        {"Name": "Chassis_1_Power"},
        {"Name": "AC Input Power"},
        {"Name": "PowerMeter"},
        {"Name": "PS1", "PhysicalContext": "Chassis"},
        {"Name": "Total Power", "PhysicalSubContext": "Input", "ElectricalContext": "Total"},
    ],
)
def test_the_sensor_behind_the_metric_of_the_node_is_of_the_whole(sensor):
    docs = make_metrics_service(300, sensor)
    docs["/c/1/e"]["EnergykWh"] = {"Reading": 2.5, "DataSourceUri": "/c/1/s/energy"}
    docs["/c/1/s/energy"] = {"Name": "Total Energy", "ReadingType": "EnergykWh", "Reading": 2.5}
    assert read_values(docs)[0]["node.ac"] == {"power_w": 300, "energy_j": 9e6}
    docs["/c/1/s/energy"]["Name"] = "HSC0 Energy"
    assert read_values(docs)[0]["node.ac"] == {"power_w": 300}


def test_one_hot_swap_controller():
    refuse_choice(make_control_service(("HSC Power", 300, {})))
    assert read_watts(make_control_service(("Total HSC Power", 300, {}))) == 300


def test_a_total_below_the_parts_beside_it():
    docs = make_control_service(("Chassis Power Control", 500, {}), ("GPU tray", 2500, {}))
    assert "'GPU tray' beside it draws 2500 W" in refuse_choice(docs)
    docs["/c/1/p"]["PowerControl"][0]["PowerConsumedWatts"] = 2600
    assert read_watts(docs) == 2600
    docs["/c/1/p"]["PowerControl"][0]["PowerConsumedWatts"] = 500
    docs["/c/1/p"]["PowerControl"][1]["Status"] = {"State": "Disabled"}  # an old number
    assert read_watts(docs) == 500
    several = [(f"Accelerator{n} Power Control", watts, {}) for n, watts in enumerate((400, 420))]
    assert "draws 820 W" in refuse_choice(make_control_service(("Node Power Control", 500, {}), *several))
    nested = [("CPU Power", 300, {}), ("CPU and Memory Power", 400, {}), ("Fan Power", 60, {})]
    assert read_watts(make_control_service(("Node Power Control", 500, {}), *nested)) == 500
    beside = [("Rack 4 Power", 9000, {}), ("Power Limit", 800, {})]
    assert read_watts(make_control_service(("Node Power Control", 500, {}), *beside)) == 500
    docs = make_metrics_service(500, chassis={"Power": ref("/c/1/p")})
    docs["/c/1/p"] = {"PowerControl": [{"Name": "GPU tray", "PowerConsumedWatts": 2500}]}
    assert "'GPU tray' beside it draws 2500 W" in refuse_choice(docs)


def test_a_metric_that_is_taken_from_a_whole_power_resource():
    docs = make_metrics_service(180)
    docs["/c/1/e"]["PowerWatts"]["DataSourceUri"] = "/c/1/p"
    assert read_watts(docs | {"/c/1/p": {"Name": "PowerMetrics", "PowerControl": []}}) == 180


@pytest.mark.parametrize("watts", [0.35, 7, 65535])
def test_no_node_draws_this(watts):
    for docs in (make_control_service((SYSTEM, watts, {})), make_metrics_service(watts)):
        refused = refuse_choice(docs)
        assert "no node draws this" in refused
        assert refused.endswith("; use a PDU or IPMI"), "it is not advised"
    assert read_watts(make_control_service((SYSTEM, watts, {})), sensor=SYSTEM) == watts  # a person may know better
    docs = make_control_service((SYSTEM, 300, {}))
    meter, _ = open_tree(docs)
    docs["/c/1/p"]["PowerControl"][0]["PowerConsumedWatts"] = watts
    with raises_code("read-failed.out-of-range"):
        meter.read(meter.streams()[0])


def test_the_advice_names_no_power_that_would_be_refused_or_is_a_part():
    off = {"Status": {"State": "Disabled"}}
    assert refuse_choice(make_control_service((SYSTEM, 300, off))).endswith("; use a PDU or IPMI")
    tray = make_control_service((SYSTEM, 500, {}), ("GPU tray", 2500, {}))
    assert refuse_choice(tray).endswith("; use a PDU or IPMI")
    board = ("System Board Pwr Consumption", 300, {"PhysicalContext": "SystemBoard"})
    assert 'if one of them is this node, set chassis = "1", sensor = "System B' in refuse_choice(make_service([board]))
    inputs = [(f"PSU{n} input power", 400 + n, {"PhysicalContext": "PowerSupply"}) for n in (1, 2)]
    refused = refuse_choice(make_service(inputs))
    assert 'sensor = "PSU2 input power" (it measures PowerSupply)' in refused
    assert refused.endswith('; if all supplies feed this node alone, set sources = ["supplies"]; or use a PDU or IPMI')
    meter, found = open_tree(make_service(inputs), sources=("supplies",))
    streams = [plan.stream for plan in found]
    assert [(one.scope, one.sums, one.parts) for one in streams] == [("psu:1", "node.ac", 2), ("psu:2", "node.ac", 2)]
    assert [meter.read(one)[0] for one in streams] == [401, 402]


def test_a_board_that_is_linked_to_the_system_inside_the_chassis_that_shows_nothing():
    inner = {"Links": {"ContainedBy": ref("/c/Tray")}}
    tray = {"ChassisType": "RackMount", "Links": {"ComputerSystems": refs("/s/0")}}
    docs = add_chassis(make_metrics_service(60, chassis=inner), "Tray", **tray)
    assert "its chassis is inside Tray" in refuse_choice(docs)
    docs = add_chassis(make_control_service((SYSTEM, 700, {}), chassis=inner), "Tray", **tray)
    assert read_watts(docs) == 700


def test_one_of_two_chassis_without_links():
    docs = add_chassis(make_metrics_service(800), "Board")
    for chassis in ("/c/1", "/c/Board"):
        docs[chassis]["Links"] = {}
    assert "no link shows" in refuse_choice(docs)
    assert read_watts(docs, chassis="1") == 800


RECTIFIER = {"Name": "Rectifier", "PhysicalContext": "Rectifier"}


def make_rectifiers(*watts):
    """Rectifiers of HPE Cray EX: all have the same Name, side and number stand in the Id only."""
    rows = []
    for number, value in enumerate(watts):
        for side, share in (("Input", 1.0), ("Output", 0.97)):
            reading = None if value is None else value * share
            rows.append((f"Rectifier{number}{side}Power", reading, RECTIFIER | {"PhysicalSubContext": side}))
    docs = make_service(rows, systems=0, chassis={"ChassisType": "Enclosure"})
    for number in range(8):
        docs = add_chassis(docs, f"Blade{number}", ChassisType="Blade")
    return docs


def test_rectifiers_of_one_name_are_all_counted():
    meter, found = open_tree(make_rectifiers(3433, 3657, 3500, 3600))
    inputs = [plan.stream for plan in found if plan.stream.scope.startswith("psu:")]
    assert [(stream.sums, stream.parts) for stream in inputs] == [("rack", 4)] * 4
    assert sum(meter.read(stream)[0] for stream in inputs) == 14190
    assert [plan.stream.scope for plan in found if plan.stream.scope.startswith("psu.dc")] == [
        f"psu.dc:{number}" for number in range(1, 5)
    ]


def test_a_rectifier_without_a_reading_is_missing_in_the_sum():
    _, found = open_tree(make_rectifiers(3433, None, 3500, 3600))
    inputs = [plan.stream for plan in found if plan.stream.scope.startswith("psu:")]
    assert [(stream.scope, stream.parts) for stream in inputs] == [("psu:1", 4), ("psu:3", 4), ("psu:4", 4)]


def test_lines_of_a_rectifier_do_not_count_beside_it():
    docs = make_rectifiers(3000, 3100)
    line = RECTIFIER | {
        "PhysicalSubContext": "Input",
        "ElectricalContext": "Line1",
        "Reading": 1000,
        "ReadingType": "Power",
    }
    docs["/c/1/s"]["Members"].append(ref("/c/1/s/line"))
    values, _ = read_values(docs | {"/c/1/s/line": {"Id": "Rectifier0Line1InputPower"} | line})
    assert {scope: row["power_w"] for scope, row in values.items() if scope.startswith("psu:")} == {
        "psu:1": 3000,
        "psu:2": 3100,
    }


def test_a_counter_belongs_to_the_power_of_its_side():
    """HPE Cray EX: the input and the output of a node's regulator have the same Name."""
    rows = [("In", 467, {"PhysicalSubContext": "Input"}), ("Out", 450, {"PhysicalSubContext": "Output"})]
    energy = {"ReadingType": "EnergyJoules", "PhysicalSubContext": "Output"}
    rows = [(name, watts, keys | {"Name": "Node"}) for name, watts, keys in [*rows, ("OutEnergy", 4e8, energy)]]
    assert read_values(make_service(rows))[0]["node.ac"] == {"power_w": 467}
    rows.append(("InEnergy", 5e8, energy | {"Name": "Node", "PhysicalSubContext": "Input"}))
    assert read_values(make_service(rows))[0]["node.ac"] == {"power_w": 467, "energy_j": 5e8}


def make_shelf(*watts, **root):
    """A power shelf that shows its supplies by PowerSubsystem; one of None does not answer."""
    docs = make_service(systems=0, chassis={"ChassisType": "Shelf", "PowerSubsystem": ref("/c/1/ps")})
    docs["/redfish/v1"] |= root
    docs |= {"/c/1/ps": {"PowerSupplies": ref("/c/1/ps/l")}}
    docs["/c/1/ps/l"] = {"Members": refs(*(f"/psu/{n}" for n in range(1, len(watts) + 1)))}
    for number, value in enumerate(watts, 1):
        if value is not None:
            docs[f"/psu/{number}"] = {"Id": str(number), "Metrics": ref(f"/psu/{number}/m")}
            docs[f"/psu/{number}/m"] = {"InputPowerWatts": {"Reading": value}}
    return docs


def test_a_supply_of_a_shelf_that_does_not_answer():
    assert set(read_values(make_shelf(700, 690, 710))[0]) == {"psu:1", "psu:2", "psu:3"}
    with raises_code("unavailable.incomplete"):
        read_values(make_shelf(700, None, 710))


def test_a_shelf_of_disks_is_no_power_shelf():
    with raises_code("unavailable.no-power"):
        read_values(make_shelf(90, 95, StorageSystems=ref("/st")))


def test_a_card_with_a_processor_of_its_own_is_no_node():
    docs = make_metrics_service(60, chassis={"ChassisType": "Card"})
    docs["/s/0"] = {"Id": "Bluefield", "SystemType": "DPU"}
    refuse_choice(docs)


# ---- PDUs


def make_pdus(*units):
    """PDUs: (watts of the metrics, watts of the mains); None shows nothing."""
    paths = [f"/pdu/{number}" for number in range(1, len(units) + 1)]
    docs = {
        "/redfish/v1": {"RedfishVersion": "1.6.0", "PowerEquipment": ref("/pe")},
        "/pe": {"RackPDUs": ref("/pe/l")},
        "/pe/l": {"Members": refs(*paths)},
    }
    for path, (total, mains) in zip(paths, units, strict=True):
        names = [f"{path}/main/{number}" for number in range(len(mains))]
        docs[path] = {"Id": path[-1], "Metrics": ref(f"{path}/m"), "Mains": ref(f"{path}/l"), "Model": "PX"}
        docs[f"{path}/m"] = {"PowerWatts": {"Reading": total}, "EnergykWh": {"Reading": 56.5}} if total else {}
        docs[f"{path}/l"] = {"Members": refs(*names)}
        docs |= {name: {"PowerWatts": {"Reading": watts}} for name, watts in zip(names, mains, strict=True)}
    return docs


def test_a_pdu_is_a_rack():
    values, _ = read_values(make_pdus((6438, (3200, 3238))))
    assert values == {"rack": {"power_w": 6438, "energy_j": 56.5 * 3.6e6}}
    assert read_watts(make_pdus((None, (3200,))), "rack") == 3200
    for total, mains in ((6438, (3200,)), (None, (3200, 3100)), (None, ())):
        with raises_code("unavailable.no-total"):
            read_values(make_pdus((total, mains)))


def test_of_two_pdus_one_is_named():
    docs = make_pdus((6438, ()), (5100, ()))
    assert '5100 W with chassis = "2"' in refuse_choice(docs)
    assert read_watts(docs, "rack", chassis="2") == 5100


def test_beside_a_node_a_pdu_is_read_only_by_its_name():
    docs = make_control_service((SYSTEM, 700, {}))
    pdus = make_pdus((6438, ()))
    docs = docs | pdus | {"/redfish/v1": docs["/redfish/v1"] | pdus["/redfish/v1"]}
    docs["/pdu/1"]["Id"] = "A"
    assert read_watts(docs) == 700
    assert read_watts(docs, "rack", chassis="A") == 6438
