from __future__ import annotations

import math

import pytest

from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.http import NO_ANSWER
from joulelab.instruments.redfish import RedfishMeter
from joulelab.instruments.redfish.plan import Wanted, plans
from joulelab.instruments.redfish.walk import Walker

ROOT = {"RedfishVersion": "1.6.0", "Chassis": {"@odata.id": "/c"}, "Systems": {"@odata.id": "/s"}}


def ref(path):
    return {"@odata.id": path}


def service(**more):
    """A service of one system and one chassis with EnvironmentMetrics, as plain data; resources by address."""
    return {
        "/s": {"Members": [ref("/s/1")]},
        "/s/1": {"Id": "1"},
        "/c": {"Members": [ref("/c/n")]},
        "/c/n": {"Id": "n", "Model": "M", "EnvironmentMetrics": ref("/c/n/e"), "PowerSubsystem": ref("/c/n/p")},
        "/c/n/e": {"PowerWatts": {"Reading": 1000.5}},
        "/c/n/p": {"PowerSupplies": ref("/c/n/p/l")},
    } | more


class Client:
    """Answer from plain data."""

    label, timeout_s = "bmc", 1.0

    def __init__(self, docs):
        self.docs = docs
        self.asked = []
        self.now_ns = 0

    def pause(self, seconds):
        self.now_ns += round(seconds * 1e9)

    def get_json(self, path, **_):
        self.asked.append(path)
        if path not in self.docs:
            raise Unavailable(f"no {path}", where="bmc", why="404")
        return self.docs[path]

    def close(self):
        pass


def planned(docs, **wanted):
    found, missing = plans(Walker(Client(docs).get_json, ROOT), Wanted({"label": "bmc"}, "bmc", 1.0, **wanted))
    return {plan.stream.name: plan for plan in found}, missing


def meter(docs):
    found, missing = planned(docs)
    client = Client(docs)
    return RedfishMeter(client, list(found.values()), missing, now=lambda: client.now_ns, pause=client.pause)


def psu(name, ac, dc, **more):
    excerpts = {"InputPowerWatts": {"Reading": ac}, "OutputPowerWatts": {"Reading": dc}}
    return {f"/psu/{name}": {"Id": name, "Metrics": ref(f"/psu/{name}/m")} | more, f"/psu/{name}/m": excerpts}


def test_what_a_sensor_states_is_taken():
    excerpt = {"PowerWatts": {"Reading": 1000.5, "DataSourceUri": "/s/p"}}
    sensor = {"Reading": 1000.5, "ReadingType": "Power", "SensingInterval": "PT2S", "Accuracy": 1.5}
    found, _ = planned(service(**{"/c/n/e": excerpt, "/s/p": sensor}))
    power = found["node"].stream.channels[0]
    assert (power.update_s, power.window_s) == (2.0, 2.0)
    assert (power.accuracy.source, power.accuracy.gain, power.accuracy.quantum) == ("datasheet", 0.015, 0.1)
    assert [c.name for c in found["node"].stream.channels] == ["power_w", "energy_j"]  # no time, so no age


def test_the_nodes_own_chassis_comes_first_and_two_are_a_question():
    other = {"/c/o": {"Id": "o", "EnvironmentMetrics": ref("/c/n/e")}, "/c": {"Members": [ref("/c/o"), ref("/c/n")]}}
    with pytest.raises(ConfigError, match=r'1000.5 W with chassis = "n"; 1000.5 W with chassis = "o"'):
        planned(service(**other))
    system = {"/s/1": {"Links": {"Chassis": [ref("/c/n")]}}}
    assert planned(service(**other, **system))[0]["node"].stream.model == "M"
    assert planned(service(**other), chassis="n")[0]["node"].stream.model == "M"
    with pytest.raises(Unavailable, match="no chassis"):
        planned({"/c": {"Members": []}})


def test_a_board_is_never_taken_for_the_node():
    board = {"/c/n": {"Id": "n", "ChassisType": "Zone", "EnvironmentMetrics": ref("/c/n/e")}}
    with pytest.raises(ConfigError, match=r'1000.5 W with chassis = "n", sensor = "EnvironmentMetrics"'):
        planned(service(**board))


def test_two_sources_give_two_streams_to_compare():
    chassis = {"Id": "n", "EnvironmentMetrics": ref("/c/n/e"), "Power": ref("/c/n/w")}
    power = {"PowerControl": [{"Name": "Chassis", "PowerConsumedWatts": 944}]}
    found, _ = planned(service(**{"/c/n": chassis, "/c/n/w": power}), sources=("environment", "power"))
    assert set(found) == {"node.environment", "node.power"}
    assert {plan.stream.scope for plan in found.values()} == {"node.ac"}
    assert planned(service(**{"/c/n": chassis, "/c/n/w": power}))[0].keys() == {"node"}


def test_supplies_that_do_not_add_up_are_ratings():
    rows = {"/c/n/p/l": {"Members": [ref("/psu/a"), ref("/psu/b")]}}
    found, missing = planned(service(**rows, **psu("a", 510, 480), **psu("b", 500, 470)))
    assert {"psu:1", "psu:2", "psu.dc:1", "psu.dc:2"} <= set(found)
    found, missing = planned(service(**rows, **psu("a", 1100, 480), **psu("b", 1100, 470)))
    assert "psu:1" not in found
    assert "they sum to 2200 W while the node draws 1000.5 W" in missing[0].why
    found, _ = planned(service(**rows, **psu("a", 1000, 950), **psu("b", 0, 0)))
    assert found["psu:2"].stream.parts == 2  # a supply that rests draws 0, and counts
    absent = {"Status": {"State": "Absent"}}
    found, _ = planned(service(**rows, **psu("a", 1000, 950), **psu("b", 0, 0, **absent)))
    assert found["psu:1"].stream.parts == 1
    found, missing = planned(service(**rows, **psu("a", 1200, None, PowerCapacityWatts=1000), **psu("b", None, None)))
    assert "psu:1" not in found
    assert [note.why for note in missing] == ["a: InputPowerWatts is 1200 W, capacity 1000 W"]


def test_inlet_and_fans_by_environment_metrics():
    fans = [{"Reading": 40, "SpeedRPM": 5000}, {"Reading": 50}, {"Reading": None}]
    excerpt = {"PowerWatts": {"Reading": 1000}, "TemperatureCelsius": {"Reading": 24.5}, "FanSpeedsPercent": fans}
    opened = meter(service(**{"/c/n/e": excerpt}))
    stream = opened.streams()[-1]
    assert [(c.name, c.unit) for c in stream.channels] == [
        ("temperature_c", "degC"),
        ("fan1_speed_rpm", "rpm"),
        ("fan2_speed", "1"),
    ]
    assert list(opened.read(stream)) == [24.5, 5000, 0.5]
    fans[1] = {}
    assert math.isnan(opened.read(stream)[2])  # a state that is missing costs nothing else
    opened._client.docs["/c/n/e"] = {}
    with pytest.raises(ReadFailed, match="no reading now"):
        opened.read(stream)


FANS = [{"Reading": 40, "SpeedRPM": 5000}]
BOTH = {"PowerWatts": {"Reading": 1000}, "TemperatureCelsius": {"Reading": 24.5}, "FanSpeedsPercent": FANS}


def test_one_answer_serves_all_that_stands_in_it_and_nobody_polls_as_fast_as_it_can():
    opened = meter(service(**{"/c/n/e": BOTH}))
    client, (node, cooling) = opened._client, opened.streams()
    assert (opened.read(node)[0], opened.read(cooling)[0]) == (1000, 24.5)
    assert (client.asked, client.now_ns) == (["/c/n/e"], 0)
    opened.read(node)
    assert (len(client.asked), client.now_ns) == (2, 100_000_000)
    client.now_ns += 200_000_000
    opened.read(cooling)
    assert len(client.asked) == 3, "an answer that is too old is not shared"


def test_silence_is_a_gap_and_costs_its_neighbours_nothing():
    opened = meter(service(**{"/c/n/e": BOTH}))
    client, (node, cooling) = opened._client, opened.streams()

    def silent(path, **_):
        client.asked.append(path)
        client.pause(1.0)
        raise ReadFailed(NO_ANSWER, where="bmc")

    client.get_json = silent
    for stream in (node, cooling, node):
        with pytest.raises(ReadFailed, match=NO_ANSWER):
            opened.read(stream)
    assert (len(client.asked), client.now_ns) == (1, 1_000_000_000), "they stand in the answer that did not come"
    client.now_ns += 200_000_000
    with pytest.raises(ReadFailed, match=NO_ANSWER):
        opened.read(cooling)
    assert len(client.asked) == 2


def test_a_reading_that_goes_missing_is_a_gap():
    docs = service()
    opened = meter(docs)
    (node,) = opened.streams()
    assert opened.read(node)[0] == 1000.5
    for gone in (None, 0, -5, "1000", True):
        docs["/c/n/e"] = {"PowerWatts": {"Reading": gone}}
        with pytest.raises(ReadFailed, match=r"^bmc: "):
            opened.read(node)
    docs["/c/n/e"] = {"PowerWatts": {"Reading": 900}}
    assert opened.read(node)[0] == 900


def test_what_fails_beside_the_node_costs_only_itself():
    class Failing(Client):
        def get_json(self, path, **_):
            if path == "/c/n/p":
                raise ReadFailed("it fails to answer just now", where="bmc", why="HTTP 500 for /c/n/p")
            return super().get_json(path)

    found, missing = plans(Walker(Failing(service()).get_json, ROOT), Wanted({}, "bmc", 1.0))
    assert [plan.stream.name for plan in found] == ["node"]
    assert (missing[0].scope, missing[0].why) == ("supplies", "HTTP 500 for /c/n/p")


def test_a_slow_board_without_a_node_is_searched_all_the_same(monkeypatch):
    """Where GPUs are all the power there is, no limit of time leaves them out; beside a node's power it does."""
    monkeypatch.setattr("joulelab.instruments.redfish.plan.LOOK_S", -1.0)
    board = {
        "/c": {"Members": [ref("/c/HGX_Chassis_0")]},
        "/c/HGX_Chassis_0": {"Id": "HGX_Chassis_0", "ChassisType": "Zone"},
        "/s": {"Members": [ref("/s/b")]},
        "/s/b": {"Id": "b", "Processors": ref("/s/b/p")},
        "/s/b/p": {"Members": [ref("/s/b/p/GPU_1")]},
        "/s/b/p/GPU_1": {"Id": "GPU_1", "ProcessorType": "GPU", "EnvironmentMetrics": ref("/s/b/p/GPU_1/e")},
        "/s/b/p/GPU_1/e": {"PowerWatts": {"Reading": 300.5}},
    }
    assert "gpu:0" in planned(board)[0]
    found, missing = planned(service(**{path: body for path, body in board.items() if path.startswith("/s")}))
    assert list(found) == ["node"]
    assert "too slowly" in next(m.what for m in missing if m.scope == "gpus")
