"""Build small Redfish services as plain data, resources by address, and read them as the meter does."""

from __future__ import annotations

import pytest
from tests.instruments.redfish_judge import read_tree

from joulelab.core.errors import ConfigError

SEVERAL = "config.several-powers"
WHOLE = {"PhysicalContext": "Chassis"}


def ref(path):
    return {"@odata.id": path}


def refs(*paths):
    return [ref(path) for path in paths]


def make_service(sensors=(), systems=1, chassis=None, **more):
    """A service of one chassis that belongs to some systems, and has these sensors: (Id, watts, more keys)."""
    body = {"Id": "1", "ChassisType": "RackMount", "Sensors": ref("/c/1/s")} | (chassis or {})
    paths = [f"/s/{number}" for number in range(systems)]
    docs = {
        "/redfish/v1": {"RedfishVersion": "1.6.0", "Chassis": ref("/c"), "Systems": ref("/s")},
        "/s": {"Members": refs(*paths)},
        "/c": {"Members": refs("/c/1")},
        "/c/1": body | {"Links": {"ComputerSystems": refs(*paths)} | body.get("Links", {})},
        "/c/1/s": {"Members": refs(*(f"/c/1/s/{name}" for name, _, _ in sensors))},
    }
    docs |= {path: {"Id": path[-1]} for path in paths}
    for name, watts, keys in sensors:
        docs[f"/c/1/s/{name}"] = {"Id": name, "Name": name, "Reading": watts, "ReadingType": "Power"} | keys
    return docs | more


def make_control(*rows):
    """The link to a Power of these PowerControl members, and the resource."""
    return {"Power": ref("/c/1/p")}, {"/c/1/p": {"PowerControl": list(rows)}}


def make_control_service(*rows, **options):
    """A service of one chassis and one system with these PowerControl members: (Name, watts, more keys)."""
    chassis, power = make_control(*({"Name": name, "PowerConsumedWatts": watts} | keys for name, watts, keys in rows))
    return make_service(chassis=chassis | options.pop("chassis", {}), **power, **options)


def make_metrics_service(reading, sensor=None, chassis=None, **more):
    """A service of one chassis with EnvironmentMetrics, taken from a sensor of this Name and these keys."""
    excerpt = {"Reading": reading} | ({"DataSourceUri": "/c/1/s/p"} if sensor else {})
    rows = [("p", reading, sensor)] if sensor else []
    links = {"EnvironmentMetrics": ref("/c/1/e")} | (chassis or {})
    return make_service(rows, chassis=links, **{"/c/1/e": {"PowerWatts": excerpt}}, **more)


def read_values(docs, **wanted):
    """Return the readings by scope and channel, and the notes but for those that list the places of readings."""
    found, meter = read_tree(docs, **wanted)
    notes = [note for note in meter.missing() if note.what != "read"]
    return {scope: {name: number for name, (number, _) in row.items()} for scope, row in found.items()}, notes


def read_watts(docs, scope="node.ac", **wanted):
    """Return the power of one scope."""
    return read_values(docs, **wanted)[0][scope]["power_w"]


def refuse_choice(docs, **wanted):
    """Return the error of a tree that is not read because somebody has to choose."""
    with pytest.raises(ConfigError) as refused:
        read_values(docs, **wanted)
    assert refused.value.code == SEVERAL
    return str(refused.value)
