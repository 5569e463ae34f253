"""Mutate recorded trees of BMCs: no crash, no hang, each value is the number at its place, no source changes silently.

`python -m tests.instruments.test_redfish_mutations` counts mutations by tree and kind.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from math import isnan

import pytest
from tests.instruments.redfish_judge import CASES, TREES, TreeClient, load_tree

from joulelab.core.errors import JoulelabError, ReadFailed
from joulelab.instruments.redfish import RedfishMeter
from joulelab.instruments.redfish.plan import Wanted, plan_readings
from joulelab.instruments.redfish.walk import Walker

MUTANTS = 1500  # of each case: all take about five minutes
MOST_ASKED = 5000  # requests of one opening: more is a walk that does not end
# The only places that are all of a node or rack in each tree, by the end of their paths.
WHOLE = {
    "cray-EX425": (
        "Node0/Sensors/ChassisVoltageRegulator0InputPower",
        "Node1/Sensors/ChassisVoltageRegulator0InputPower",
    ),
    "cray-Gigabyte": ("Chassis/Self/Sensors/Power", "Chassis/Self/Power"),
    "cray-Intel": ("RackMount/Baseboard/Power",),
    "cray-XL675d_A40": ("Chassis/1/Power",),
    "dmtf-public-rackmount1": ("1U/EnvironmentMetrics", "1U/Power", "1U/Sensors/TotalPower"),
    "liteon-power-shelf": ("Sensors/power_chassis_input_power",),
    "spy-supermicro_fixtures": ("Chassis_0/EnvironmentMetrics", "Chassis_0/Sensors/Chassis_0_TotalHSC_Power_0"),
}
SCALES = {"W": 1.0, "kW": 1e3, "mW": 1e-3, "J": 1.0, "kJ": 1e3, "kW.h": 3.6e6, "W.h": 3600.0}
TYPES = {"Power": "W", "EnergyJoules": "J", "EnergykWh": "kW.h", "EnergyWh": "W.h"}
JUNK = (None, True, False, -1, 0, "x", "", [], {}, 1e308, 10**400, 1e7, "/redfish/v1/x", {"@odata.id": 5}, [None])
KINDS = ("delete", "rename", "null", "string", "unit", "state", "chassis", "junk", "document", "member", "scale")


def list_places(found):
    """Yield every (container, key) of a document."""
    for key, value in list(found.items() if isinstance(found, dict) else enumerate(found)):
        yield found, key
        if isinstance(value, dict | list):
            yield from list_places(value)


def mutate(draw, docs, groups, kind):
    """Change one document (copied first) in one way; return whether there was something to change."""
    path = draw.choice(draw.choice(groups))
    if path not in docs:
        return False
    if kind == "chassis":
        return duplicate_chassis(draw, docs)
    if kind == "document":
        del docs[path]
        return True
    docs[path] = copy.deepcopy(docs[path])
    wanted = {"unit": ("ReadingUnits", "ReadingType", "Units"), "member": ("Members", "PowerControl", "PowerSupplies")}
    places = [
        (box, key)
        for box, key in list_places(docs[path])
        if (kind not in wanted or key in wanted[kind])
        and (kind != "state" or key in ("Status", "Reading", "PowerConsumedWatts"))
        and (kind not in ("null", "string", "scale") or type(box[key]) in (int, float))
    ]
    if not places:
        return False
    box, key = draw.choice(places)
    match kind:
        case "delete":
            del box[key]
        case "rename" if isinstance(box, dict):
            box[draw.choice((f"{key}X", str(key).lower(), "Name", "Reading"))] = box.pop(key)
        case "null":
            box[key] = None
        case "string":
            box[key] = str(box[key])
        case "unit":
            box[key] = draw.choice((*SCALES, *TYPES, "VA", "%", "A", "Percent", "RPM", "Voltage", None))
        case "state" if isinstance(box, dict):
            box["Status"] = {"State": draw.choice(("Disabled", "Absent", "UnavailableOffline", "StandbyOffline"))}
        case "member" if isinstance(box[key], list) and box[key]:
            row = draw.choice(box[key])
            box[key] = [*box[key], copy.deepcopy(row)] if draw.random() < 0.5 else [r for r in box[key] if r is not row]
        case "scale":
            box[key] = float(str(box[key])) * draw.choice((1000, 0.001, 2.5, -1))
        case _:
            box[key] = copy.deepcopy(draw.choice(JUNK))
    return True


def duplicate_chassis(draw, docs):
    """List a chassis twice under another Id, with the same resources or with copies of them."""
    listed = next((path for path in docs if path.endswith("/redfish/v1/Chassis")), None)
    rows = docs[listed].get("Members") if listed is not None and isinstance(docs[listed], dict) else None
    rows = rows if isinstance(rows, list) else []
    paths = [path for row in rows if isinstance(row, dict) and str(path := row.get("@odata.id")) in docs]
    if not paths:
        return False
    old = draw.choice(paths)
    new = f"{old}Copy"
    docs[listed] = docs[listed] | {"Members": [*rows, {"@odata.id": new}]}
    if draw.random() < 0.5:
        for path in [path for path in docs if path == old or path.startswith(f"{old}/")]:
            docs[path.replace(old, new, 1)] = copy_below(docs[path], old, new)
    body = docs.get(new) or docs[old]
    docs[new] = body | {"Id": f"{body.get('Id')}Copy", "@odata.id": new} if isinstance(body, dict) else body
    return True


def copy_below(found, old, new):
    if isinstance(found, dict):
        return {key: copy_below(value, old, new) for key, value in found.items()}
    if isinstance(found, list):
        return [copy_below(value, old, new) for value in found]
    return found.replace(old, new, 1) if isinstance(found, str) and found.startswith(f"{old}/") else found


class CountingClient(TreeClient):
    """Remember what was asked; end a walk that does not."""

    def __init__(self, docs):
        self.docs, self.now_ns, self.asked, self.paths = docs, 0, 0, {}

    def get_json(self, path, **_):
        self.paths[path.split("?")[0].rstrip("/")] = None
        assert self.asked < MOST_ASKED, "the walk does not end"
        return super().get_json(path)


def open_mutant(docs, wanted):
    """Return values with their places by scope and channel, the notes, and the client. Raises JoulelabError."""
    client = CountingClient(docs)
    root = client.get_json("/redfish/v1")
    if not isinstance(root, dict):
        raise ReadFailed("no service")
    found, notes = plan_readings(Walker(client.get_json, root), Wanted({"label": "bmc"}, "bmc", 1.0, **wanted))
    meter = RedfishMeter(client, found, notes, now=lambda: client.now_ns, pause=client.pause)
    values = {}
    for plan in found:
        try:
            row = meter.read(plan.stream)
        except ReadFailed:
            continue
        for spec, number, place in zip(plan.stream.channels, row, plan.fields, strict=True):
            if place is not None and not isnan(number):
                values.setdefault(plan.stream.scope, {})[spec.name] = (number, place)
    return values, notes, client


def read_literally(client, place):
    """Return the number at a place times the scale of its unit, without the code under test."""
    current, box = client.get_json(place.path), None
    for step in place.steps:
        box = current
        if isinstance(step, tuple):
            (current,) = [row for row in current if isinstance(row, dict) and row.get(step[0]) == step[1]]
        else:
            current = current[step]
    key = place.steps[-1]
    if key == "Reading" and isinstance(box, dict) and ("ReadingType" in box or "ReadingUnits" in box):
        if "Fans" in place.steps:
            scale = 0.01 if box.get("ReadingUnits") == "Percent" else 1.0
        else:
            scale = SCALES[box.get("ReadingUnits") or TYPES[box["ReadingType"]]]
    elif "EnergykWh" in place.steps:
        scale = 3.6e6
    elif "FanSpeedsPercent" in place.steps or "SpeedPercent" in place.steps or box.get("Units") == "Percent":
        scale = place.scale  # the unit of a fan stands in its sensor; judged by the tests of cooling
        assert scale in (0.01, 1.0)
    else:
        scale = 1.0
    assert type(current) in (int, float)
    state = (
        box.get("Status", {}).get("State") if isinstance(box, dict) and isinstance(box.get("Status"), dict) else None
    )
    assert state not in ("Disabled", "Absent", "UnavailableOffline"), f"{place.place_name} is {state}"
    return current * scale


def judge_mutant(tree, base, found):
    """Fail if a value is not the number at its place, is another thing's, or has another source without a message."""
    values, notes, client = found
    places = " ".join(note.why for note in notes if note.what == "read")
    explained = {note.scope for note in notes if note.what != "read"}
    for scope, row in values.items():
        for channel, (number, place) in row.items():
            assert number == pytest.approx(read_literally(client, place), rel=1e-12), place.place_name
            resource = place.place_name.partition("#")[0]
            assert resource in places, f"no note names {resource}"
            resource = resource.replace("Copy", "")
            if channel == "power_w":
                assert 0 <= number <= 1e6
                if scope in ("node.ac", "rack"):
                    assert resource.endswith(WHOLE[tree]), f"{scope} is read from {resource}"
            before = base.get(scope, {}).get(channel)
            if before not in (None, resource) and scope in ("node.ac", "rack"):
                assert scope in explained, f"{scope} {channel} from {resource}, before from {before}; notes {notes}"


def run_campaign(mutants, seed=20):
    """Judge so many mutants of each case, the same ones each time; return the counts by case."""
    counts = {}
    cases = [case for case in CASES if case.tree in WHOLE and "Chassis Power Control" not in case.wanted.values()]
    for case in cases:
        draw, count = random.Random(seed), Counter()
        docs = {path.rstrip("/"): body for path, body in load_tree(case.tree).items()}
        try:
            values, _, client = open_mutant(docs, case.wanted)
        except JoulelabError:
            values, client = {}, CountingClient(docs)
            with pytest.raises(JoulelabError):
                plan_readings(Walker(client.get_json, docs["/redfish/v1"]), Wanted({}, "bmc", 1.0, **case.wanted))
        base = {
            s: {c: place.place_name.partition("#")[0] for c, (_, place) in row.items()} for s, row in values.items()
        }
        # Documents that hold a reading; those above them (root, chassis, systems, collections); all that was asked for.
        read = [p for row in values.values() for _, place in row.values() if (p := place.path) in docs]
        above = [path for path in client.paths if path in docs and path.count("/") <= 5 and len(docs[path]) > 1]
        asked = [path for path in client.paths if path in docs]
        groups = [group for group in (read, above, asked) if group]
        while count["mutants"] < mutants:
            mutant, kinds = dict(docs), []
            for _ in range(draw.choice((1, 1, 1, 2, 3))):
                kind = draw.choice(KINDS)
                kinds += [kind] if mutate(draw, mutant, groups, kind) else []
            if not kinds or "/redfish/v1" not in mutant:
                continue
            count["mutants"] += 1
            count.update(kinds)
            state = draw.getstate()
            try:
                found = open_mutant(mutant, case.wanted)
            except JoulelabError:
                count["refused"] += 1
                continue
            finally:
                draw.setstate(state)
            count["read"] += 1
            judge_mutant(case.tree, base, found)
        counts[" ".join([case.tree, *case.wanted.values()])] = count
    return counts


@pytest.mark.parametrize(
    "mutants", [pytest.param(20, marks=pytest.mark.system), pytest.param(MUTANTS, marks=pytest.mark.campaign)]
)
def test_a_mutated_tree_is_read_right_or_refused(mutants):
    if not TREES.is_dir():
        pytest.skip(f"no recorded trees: {TREES} is not here")
    counts = run_campaign(mutants)
    assert sum(count["read"] for count in counts.values()) > sum(count["refused"] for count in counts.values()) / 4


if __name__ == "__main__":
    for name, count in run_campaign(MUTANTS).items():
        print(name, dict(count))
