from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace

import pytest
from tests.rows import every_row

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.instruments.http import parse_json
from joulelab.instruments.redfish import values
from joulelab.instruments.redfish.kinds import is_part, names_total
from joulelab.instruments.redfish.plan import Wanted, plan_readings
from joulelab.instruments.redfish.sources import find_controls, is_rating
from joulelab.instruments.redfish.values import Field
from joulelab.instruments.redfish.walk import Resource, Walker, find_link
from joulelab.twin.model import H100, Node
from joulelab.twin.servers import redfish
from joulelab.twin.servers._redfish_trees import VENDORS, RedfishReadings, build_tree
from joulelab.twin.truth import Truth

LENOVO = {
    "PowerControl": [
        {"MemberId": "0", "Name": "CPU Sub-system Power", "PowerConsumedWatts": 91},
        {"MemberId": "1", "Name": "Memory Sub-system Power", "PowerConsumedWatts": 22},
        {"MemberId": "2", "Name": "Server Power Control", "PowerConsumedWatts": 4478},
    ],
    "PowerSupplies": [{"MemberId": "0", "PowerInputWatts": 1100.5}, {"MemberId": "1", "PowerInputWatts": 0}],
    "Oem": {"Public": {"TotalPower": 4470}},
}
SENSORS = {
    "Members": [
        {"@odata.id": "/s/p", "Reading": 4478.25, "ReadingTime": "2026-03-01T10:00:00.250Z", "ReadingType": "Power"},
        {"@odata.id": "/s/e", "Reading": 1166.667, "ReadingTime": "2026-03-01T10:00:00.250Z"},
    ]
}
WATTS = Field("/s", ("Members", ("@odata.id", "/s/p"), "Reading"), zero=False, limits=(0, values.HIGHEST_W))


def power(*rows, **more):
    return {"PowerControl": [{"Name": name, "PowerConsumedWatts": watts} for name, watts in rows]} | more


def find_whole(doc):
    """Return the place of the one certain total of a Power resource. Raises Unavailable."""
    found = [field for _, field, doubt in find_controls(Resource("/p", doc)) if not doubt]
    found = [field for field in found if values.has_value(doc, field)]
    if len(found) != 1:
        raise Unavailable("no power of the whole server")
    return found[0]


@every_row(
    ("doc", "watts"),
    [
        (LENOVO, 4478),
        (power(("", 300)), 300),
        (power((None, 300)), 300),
        (power(("System Power Control", 300), ("PCIe", 40)), 300),
        (power(("Power Control", 40), ("Total", 300)), 300),
        (power(("", 0), PowerConsumedWatts=280), 280),
        (power(("x", None), Oem={"ts_fujitsu": {"ChassisPowerConsumption": {"CurrentPowerConsumptionW": 250}}}), 250),
        ({"PowerControl": [], "Oem": {"Public": {"TotalPower": 240}}}, 240),
        (power(("CPU Sub-system Power", 90), Oem={"Public": {"TotalPower": 230}}), 230),
    ],
)
def test_the_whole_server_is_chosen_and_parts_are_never_summed(doc, watts):
    assert values.read_value(doc, find_whole(doc)) == watts


@every_row(
    "doc",
    [
        {},
        [],
        None,
        power(("CPU Sub-system Power", 90), ("Memory", 9)),
        power(("", 0)),
        power(("", "300")),
        power(("a", 90), ("b", 300)),
    ],
)
def test_where_no_member_is_the_whole_there_is_none(doc):
    with pytest.raises(Unavailable, match="no power of the whole server"):
        find_whole(doc)


@every_row("reading", [None, "300", True, -1, 0, 1e9, 10**400, [], {}])
def test_what_is_no_reading_is_refused(reading):
    doc = {"Members": [{"@odata.id": "/s/p", "Reading": reading}]}
    with pytest.raises(ReadFailed):
        values.read_value(doc, WATTS)
    assert not values.has_value(doc, WATTS)


def test_a_number_that_is_infinite_in_si_is_refused():
    with pytest.raises(ReadFailed):
        values.read_value({"Reading": 1e308}, Field("/e", ("Reading",), 3.6e6))


def test_members_are_found_by_name_wherever_they_stand():
    steps = find_whole(LENOVO).steps
    turned = LENOVO | {"PowerControl": LENOVO["PowerControl"][::-1]}
    assert values.find_item(turned, steps) == 4478
    with pytest.raises(ReadFailed, match="lacks"):
        values.find_item(LENOVO | {"PowerControl": LENOVO["PowerControl"] * 2}, steps)  # which of the two?
    rows = LENOVO["PowerSupplies"]
    assert values.find_member_step(rows, rows[1]) == ("MemberId", "1")
    assert values.find_member_step([{}, bare := {}], bare) == 1


def test_durations_steps_and_shares():
    assert [values.parse_duration_s(t) for t in ("PT1S", "PT0.25S", "PT1M", "P1DT1H", "PT", "1 s", None, "PT0S")] == [
        1.0, 0.25, 60.0, 90000.0, None, None, None, None,
    ]  # fmt: skip
    assert values.guess_step(1166.667, 3.6e6) == pytest.approx(3600)
    assert values.guess_step(325675, 3.6e6) == 3.6e6
    assert values.guess_step(7200, 1.0) == 3600
    assert values.guess_step(12345, 1.0) == 1
    assert values.guess_step(0.125, 1.0) == pytest.approx(0.001)
    assert [values.parse_percent(p) for p in (2, 0, -1, True, "2", 80)] == [0.02, None, None, None, None, None]


PARTS_AND_RATINGS = (
    """
System Power Threshold|System Power Headroom|Server Power Budget|Server Rated Power|System Reactive Power
Total Apparent Power|Total Power Yesterday|Total Drive Power|Total NIC Power|System IO Power|Line 1 Input Power
Chassis Input Power A|Bay 1 Input Power|Rack Total Power|System Power Limit|Total Power 2
""".strip()
    .replace("\n", "|")
    .split("|")
)


def test_what_sensors_measure():
    def kind(reading_type, unit):
        return values.find_scale({"ReadingType": reading_type, "ReadingUnits": unit})

    assert kind("Power", "W") == ("power", 1.0)
    assert kind("Power", "kW") == ("power", 1000.0)
    assert kind("Power", "VA") is None
    assert kind("EnergykWh", "kW.h") == ("energy", 3.6e6)
    assert kind("EnergyJoules", "") == ("energy", 1.0)
    assert kind("EnergyJoules", "BTU") is None
    assert kind(None, "W") == ("power", 1.0)
    assert kind("Humidity", "%") is None
    assert values.find_scale(None) is None
    totals = {"total_power": True, "Input Power": True, "cpu0_power": False, "PSU1_Input_Power": False}
    assert {name: names_total(name) for name in totals} == totals
    for name in ("TotalPower", "Chassis_0_Total_Power_0", "System Power Consumption", "Power reading for the Chassis"):
        assert names_total(name), name
    for name in PARTS_AND_RATINGS:
        assert not names_total(name), name


@pytest.mark.parametrize(
    "members",
    [
        [{"Name": "HDD Power", "PowerConsumedWatts": 30}],
        [{"Name": "Rack Power", "PowerConsumedWatts": 3000}],
        [{"Name": "Node A", "PowerConsumedWatts": 300}, {"Name": "Node B", "PowerConsumedWatts": None}],
        [{"Name": "Node", "PowerConsumedWatts": 300}, {"Name": "Node", "PowerConsumedWatts": 0}],
    ],
)
def test_a_control_that_may_be_a_part_is_not_the_whole(members):
    with pytest.raises(Unavailable):
        find_whole({"PowerControl": members})


def test_ratings_are_no_readings():
    assert is_rating(900, 750)
    assert not is_rating(830, 750)
    assert not is_rating(900, None)


def test_walking_ends_whatever_the_service_links():
    asked = []

    def get(path):
        asked.append(path)
        return {"Members": [{"@odata.id": "/a"}, {"@odata.id": 5}, None], "Members@odata.nextLink": "/list?page=2"}

    walker = Walker(get, {})
    assert [one.path for one in walker.list_members(walker.open_path("/list"))] == ["/a"]
    assert asked == ["/list", "/list?page=2", "/a"]
    assert find_link({"a": {"@odata.id": "/x#/y"}}, "a") is None
    assert find_link({"a": [1]}, "a", "b") is None
    assert is_part(Resource("/c", {"Id": "1", "ChassisType": "Component"}))
    assert not is_part(Resource("/c", {"Id": "HGX_GPU_SXM_1", "ChassisType": "RackMount"}))
    with pytest.raises(ReadFailed) as caught:
        Walker(lambda _: [], {}).get_body("/x")
    assert caught.value.code == "read-failed.no-resource"


TOKENS = (
    b"null",
    b"true",
    b'"12"',
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"{}",
    b"[]",
    b"12.5",
    b"CPU",
    b"\xff",
    b"Name",
    b"",
)


def mutated(draw: random.Random, body: bytes) -> bytes:
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(80))
    data = bytearray(body)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[place] = draw.randrange(256)
            case 1:
                del data[place : place + draw.randrange(1, 30)]
            case 2:
                data[place : place + draw.randrange(8)] = draw.choice(TOKENS)
            case _:
                end = place + draw.randrange(40)
                data[place:place] = data[place:end]
        data = data or bytearray(b" ")
    return bytes(data)


def literally(doc, *keys):
    """Walk without the code under test."""
    for key in keys:
        doc = doc[key]
    return doc


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_malformed_power_never_gives_a_wrong_number(rounds):
    """Wrong: not a number that stands in the answer as the consumption of one member, or as a known total; or that of
    a member whose name says CPU or memory; or negative, zero, infinite, above a megawatt."""
    draw, good, taken = random.Random(3), json.dumps(LENOVO).encode(), 0
    for _ in range(rounds):
        try:
            doc = parse_json(mutated(draw, good), "bmc")
            field = find_whole(doc)
            steps, number = field.steps, values.read_value(doc, field)
        except MeterError:
            continue
        taken += 1
        assert math.isfinite(number)
        assert 0 < number <= 1e6
        if steps[0] == "PowerControl":
            allowed = [
                row.get("PowerConsumedWatts")
                for row in literally(doc, "PowerControl")
                if isinstance(row, dict) and not {"CPU", "Memory"} & set(str(row.get("Name")).split())
            ]
        else:
            allowed = [doc.get("PowerConsumedWatts"), (doc.get("Oem") or {}).get("Public", {}).get("TotalPower")]
        assert number in [a for a in allowed if type(a) in (int, float)]
    assert taken > 500 * rounds / 12_000  # the rest was refused


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_malformed_sensors_never_give_a_wrong_number(rounds):
    """Wrong: not the number that stands in the answer as the reading of the one member with this address."""
    draw, good, taken = random.Random(4), json.dumps(SENSORS).encode(), 0
    energy = Field("/s", ("Members", ("@odata.id", "/s/e"), "Reading"), 3.6e6)
    for _ in range(rounds):
        for field, path in ((WATTS, "/s/p"), (energy, "/s/e")):
            body = mutated(draw, good)
            try:
                doc = parse_json(body, "bmc")
                number = values.read_value(doc, field)
            except MeterError:
                continue
            taken += 1
            members = [m for m in literally(doc, "Members") if isinstance(m, dict) and m.get("@odata.id") == path]
            assert [type(m["Reading"]) in (int, float) for m in members] == [True]
            assert number == members[0]["Reading"] * field.scale
            assert 0 <= number < math.inf
    assert taken > 1000 * rounds / 12_000


JUNK = (None, True, -1, 0, "x", "", [], {}, 1e308, "/redfish/v1/x", {"@odata.id": 5}, [None], 10**400, 7.5)


def places(found):
    """Yield every (container, key) of a document."""
    for key, value in list(found.items() if isinstance(found, dict) else enumerate(found)):
        yield found, key
        if isinstance(value, dict | list):
            yield from places(value)


@pytest.mark.parametrize("rounds", [40, pytest.param(400, marks=pytest.mark.campaign)])
def test_a_service_whose_resources_are_broken_is_opened_right_or_refused(tmp_path, rounds):
    """Wrong: an error that is not ours, or a node power that is neither the true one nor what was put there."""
    draw, opened = random.Random(5), 0
    with Truth.create(tmp_path / "truth", Node(gpus=(H100,)), start_ns=monotonic_ns() - 100 * NS) as truth:
        watts = RedfishReadings(truth, redfish.FLAWS).read_watts("node.ac")
        services = {}
        for vendor in VENDORS:
            served = build_tree(vendor, RedfishReadings(truth, replace(redfish.FLAWS, vendor=vendor)))
            services[vendor] = json.dumps({path: body() for path, body in served.items()})
    for _ in range(rounds):
        docs = json.loads(services[draw.choice(VENDORS)])
        for _ in range(draw.randrange(1, 6)):
            spots = [spot for spot in places(docs[draw.choice(list(docs))]) if spot[1] != "Name"]
            container, key = draw.choice(spots)
            container[key] = copy.deepcopy(draw.choice(JUNK))

        def get(path, docs=docs):
            if path not in docs:
                raise Unavailable("not there", where="bmc", why="404")
            return docs[path]

        try:
            found, _ = plan_readings(Walker(get, docs["/redfish/v1"]), Wanted({}, "bmc", 1.0))
        except (MeterError, ConfigError):
            continue
        opened += 1
        for plan in found:
            if plan.stream.scope == "node.ac" and plan.fields[0] is not None:
                assert values.read_value(get(plan.fields[0].path), plan.fields[0]) in (watts, 7.5)
    assert opened > 100 * rounds / 400
