"""Plan and read small Redfish services: specifications, supplies, cooling, shared answers, gaps, limits of time."""

from __future__ import annotations

import math

import pytest
from tests.codes import raises_code
from tests.instruments.redfish_judge import TreeClient
from tests.instruments.redfish_trees import SEVERAL, make_control, make_metrics_service, make_service, ref, refs
from tests.rows import every_row

from joulelab.core.errors import ReadFailed
from joulelab.instruments.hooks import SOURCE_NOTE
from joulelab.instruments.http import SERVER_DOWN
from joulelab.instruments.redfish import RedfishMeter
from joulelab.instruments.redfish.plan import Wanted, plan_readings
from joulelab.instruments.redfish.walk import Walker


class RecordingClient(TreeClient):
    """Answer from plain data, and remember the requests."""

    def __init__(self, docs):
        super().__init__(docs)
        self.docs, self.paths = docs, []

    def get_json(self, path, **_):
        self.paths.append(path)
        return super().get_json(path)


def plan_docs(docs, **wanted):
    walker = Walker(RecordingClient(docs).get_json, docs["/redfish/v1"])
    found, missing = plan_readings(walker, Wanted({"label": "bmc"}, "bmc", 1.0, **wanted))
    return {plan.stream.name: plan for plan in found}, [note for note in missing if note.what != "read"]


def open_docs(docs):
    found, missing = plan_docs(docs)
    client = RecordingClient(docs)
    return RedfishMeter(client, list(found.values()), missing, now=lambda: client.now_ns, pause=client.pause), client


def test_the_statements_of_a_sensor_are_taken():
    sensor = {"Name": "Total Power", "SensingInterval": "PT2S", "Accuracy": 1.5}
    found, _ = plan_docs(make_metrics_service(1000.5, sensor))
    power = found["node"].stream.channels[0]
    assert (power.update_s, power.window_s) == (2.0, 2.0)
    assert (power.accuracy.source, power.accuracy.gain, power.accuracy.quantum) == ("datasheet", 0.015, 0.1)
    assert [c.name for c in found["node"].stream.channels] == ["power_w"], "there is no counter"
    docs = make_metrics_service(1000.5, sensor)
    docs["/c/1/e"]["EnergykWh"] = {"Reading": 2.5}
    assert [c.name for c in plan_docs(docs)[0]["node"].stream.channels] == ["power_w", "energy_j"]


def test_the_nodes_own_chassis_comes_first_and_two_are_a_question():
    docs = make_metrics_service(1000.5, chassis={"Model": "M"})
    docs |= {"/c": {"Members": refs("/c/o", "/c/1")}, "/c/o": {"Id": "o", "EnvironmentMetrics": ref("/c/1/e")}}
    assert plan_docs(docs)[0]["node"].stream.model == "M"
    docs["/c/o"]["Links"] = {"ComputerSystems": refs("/s/0")}
    with raises_code(SEVERAL) as caught:
        plan_docs(docs)
    assert caught.value.choices == (
        ('1000.5 W with chassis = "1"', {"chassis": "1"}),
        ('1000.5 W with chassis = "o"', {"chassis": "o"}),
    )
    assert plan_docs(docs, chassis="1")[0]["node"].stream.model == "M"
    with raises_code("unavailable.no-chassis"):
        plan_docs(docs | {"/c": {"Members": []}})
    with raises_code("config.no-chassis"):
        plan_docs(docs, chassis="x")


def test_every_reading_names_its_place_in_a_note_that_runs_do_not_show():
    docs = make_metrics_service(1000.5)
    _, notes = plan_readings(Walker(RecordingClient(docs).get_json, docs["/redfish/v1"]), Wanted({}, "bmc", 1.0))
    assert [(note.scope, note.why, note.code) for note in notes] == [("node.ac", "node.ac from /c/1/e", SOURCE_NOTE)]


def make_supplies(*rows):
    """A node of 1000 W with supplies in its PowerSubsystem: (Id, watts in, watts out, more keys)."""
    docs = make_metrics_service(1000, chassis={"PowerSubsystem": ref("/ps")})
    docs |= {"/ps": {"PowerSupplies": ref("/ps/l")}, "/ps/l": {"Members": refs(*(f"/psu/{row[0]}" for row in rows))}}
    for name, ac, dc, keys in rows:
        excerpts = {"InputPowerWatts": {"Reading": ac}, "OutputPowerWatts": {"Reading": dc}}
        docs |= {f"/psu/{name}": {"Id": name, "Metrics": ref(f"/psu/{name}/m")} | keys, f"/psu/{name}/m": excerpts}
    return docs


def test_supplies_that_do_not_add_up_are_ratings():
    found, _ = plan_docs(make_supplies(("a", 510, 480, {}), ("b", 500, 470, {})))
    assert {"psu:1", "psu:2", "psu.dc:1", "psu.dc:2"} <= set(found)
    found, notes = plan_docs(make_supplies(("a", 1100, 480, {}), ("b", 1100, 470, {})))
    assert "psu:1" not in found
    assert "they sum to 2200 W while the node draws 1000 W" in notes[-1].why
    found, notes = plan_docs(make_supplies(("a", 700, 650, {}), ("b", 700, 660, {})))
    assert "psu:1" not in found, "two supplies feed another node, too"
    found, _ = plan_docs(make_supplies(("a", 1000, 950, {}), ("b", 0, 0, {})))
    assert found["psu:2"].stream.parts == 2  # a supply that rests draws 0, and counts
    found, _ = plan_docs(make_supplies(("a", 1000, 950, {}), ("b", 0, 0, {"Status": {"State": "Absent"}})))
    assert found["psu:1"].stream.parts == 1
    rated = ("a", 1200, None, {"PowerCapacityWatts": 1000})
    found, notes = plan_docs(make_supplies(rated, ("b", None, None, {})))
    assert "psu:1" not in found
    assert [note.why for note in notes] == ["a: InputPowerWatts: it is 1200 W, capacity 1000 W"]


@pytest.mark.parametrize("silent", [("b", None, None, {}), ("b", 500, 470, {"Status": {"State": "Disabled"}})])
def test_a_supply_without_a_reading_is_named(silent):
    found, notes = plan_docs(make_supplies(("a", 510, 480, {}), silent))
    assert found["psu:1"].stream.parts == 2
    assert "psu:2" not in found
    lost = [note.scope for note in notes if note.what.startswith("the supply b shows no")]
    assert lost == ["psu:2", "psu.dc:2"]


def test_a_supply_that_does_not_answer_costs_the_supplies_only():
    docs = make_supplies(("a", 510, 480, {}), ("b", 500, 470, {}))
    del docs["/psu/b"]
    found, notes = plan_docs(docs)
    assert list(found) == ["node"]
    assert [(note.scope, note.code) for note in notes] == [("supplies", "unavailable.incomplete")]


BOTH = {
    "PowerWatts": {"Reading": 1000},
    "TemperatureCelsius": {"Reading": 24.5},
    "FanSpeedsPercent": [{"Reading": 40, "SpeedRPM": 5000}, {"Reading": 50}, {"Reading": None}],
}


def make_cooled():
    docs = make_metrics_service(1000)
    docs["/c/1/e"] = BOTH | {"FanSpeedsPercent": list(BOTH["FanSpeedsPercent"])}
    return docs


def test_inlet_and_fans_by_environment_metrics():
    docs = make_cooled()
    opened, _ = open_docs(docs)
    stream = opened.streams()[-1]
    assert [(c.name, c.unit) for c in stream.channels] == [
        ("temperature_c", "degC"),
        ("fan1_speed_rpm", "rpm"),
        ("fan2_speed", "1"),
    ]
    assert list(opened.read(stream)) == [24.5, 5000, 0.5]
    docs["/c/1/e"]["FanSpeedsPercent"][1] = {}
    assert math.isnan(opened.read(stream)[2])  # a state that is missing costs nothing else
    docs["/c/1/e"] = {}
    with raises_code("read-failed.no-reading"):
        opened.read(stream)


def test_one_answer_serves_all_its_streams_and_no_stream_is_asked_again_within_100_ms():
    opened, client = open_docs(make_cooled())
    node, cooling = opened.streams()
    assert (opened.read(node)[0], opened.read(cooling)[0]) == (1000, 24.5)
    assert (client.paths, client.now_ns) == (["/c/1/e"], 0)
    opened.read(node)
    assert (len(client.paths), client.now_ns) == (2, 100_000_000)
    client.now_ns += 200_000_000
    opened.read(cooling)
    assert len(client.paths) == 3, "an answer that is too old is not shared"


def test_silence_is_a_gap_and_costs_its_neighbours_nothing():
    opened, client = open_docs(make_cooled())
    node, cooling = opened.streams()

    def stay_silent(path, **_):
        client.paths.append(path)
        client.pause(1.0)
        raise ReadFailed("no answer in time", where="bmc", code=SERVER_DOWN[0])

    client.get_json = stay_silent
    for stream in (node, cooling, node):
        with raises_code(SERVER_DOWN[0]):
            opened.read(stream)
    assert (len(client.paths), client.now_ns) == (1, 1_000_000_000), "they are part of the answer that did not come"
    client.now_ns += 200_000_000
    with raises_code(SERVER_DOWN[0]):
        opened.read(cooling)
    assert len(client.paths) == 2


@every_row(
    ("gone", "reason"),
    [(None, "no-reading"), (0, "zero"), (-5, "out-of-range"), ("1000", "no-number"), (True, "no-number")],
)
def test_a_reading_that_goes_missing_is_a_gap(gone, reason):
    docs = make_metrics_service(1000.5)
    opened, _ = open_docs(docs)
    (node,) = opened.streams()
    assert opened.read(node)[0] == 1000.5
    docs["/c/1/e"] = {"PowerWatts": {"Reading": gone}}
    with raises_code(f"read-failed.{reason}") as caught:
        opened.read(node)
    assert caught.value.where == "bmc"
    docs["/c/1/e"] = {"PowerWatts": {"Reading": 900}}
    assert opened.read(node)[0] == 900


def test_a_part_that_fails_beside_the_node_costs_only_itself():
    docs = make_metrics_service(1000, chassis={"PowerSubsystem": ref("/ps")})
    client = RecordingClient(docs)

    def fail_subsystem(path):
        if path == "/ps":
            raise ReadFailed("it fails to answer just now", where="bmc", why="HTTP 500 for /ps")
        return client.get_json(path)

    found, missing = plan_readings(Walker(fail_subsystem, docs["/redfish/v1"]), Wanted({}, "bmc", 1.0))
    assert [plan.stream.name for plan in found] == ["node"]
    assert (missing[0].scope, missing[0].why) == ("supplies", "HTTP 500 for /ps")


def test_a_slow_board_without_a_node_is_searched_all_the_same(monkeypatch):
    """If GPUs are all the power there is, no limit of time leaves them out; beside a node's power it does."""
    monkeypatch.setattr("joulelab.instruments.redfish.plan.LOOK_S", -1.0)
    board = {
        "/s/0": {"Id": "b", "Processors": ref("/p")},
        "/p": {"Members": refs("/p/GPU_1")},
        "/p/GPU_1": {"Id": "GPU_1", "ProcessorType": "GPU", "EnvironmentMetrics": ref("/p/GPU_1/e")},
        "/p/GPU_1/e": {"PowerWatts": {"Reading": 300.5}},
    }
    assert "gpu:0" in plan_docs(make_service(chassis={"ChassisType": "Zone"}, **board))[0]
    chassis, power = make_control({"Name": "System Power Control", "PowerConsumedWatts": 900})
    found, missing = plan_docs(make_service(chassis=chassis, **power, **board))
    assert list(found) == ["node"]
    assert next(note.code for note in missing if note.scope == "gpus") == "read-failed.slow"
