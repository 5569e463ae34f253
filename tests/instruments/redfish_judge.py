"""Judge the Redfish meter by recorded trees of BMCs that nobody here made: `python -m tests.instruments.redfish_judge`.

Each tree is served in process. A row of the table is one reading: the scope, the path that the meter names, the value,
the value that a person reads in the tree; or a refusal with its message.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

from joulelab.core.errors import JoulelabError, Unavailable
from joulelab.instruments.redfish import RedfishMeter
from joulelab.instruments.redfish.plan import Wanted, plan_readings
from joulelab.instruments.redfish.walk import Walker

TREES = Path(__file__).parents[3] / "shared" / "data" / "devices" / "redfish"
EXPAND = "?$expand="


@dataclass
class Case:
    """What a person reads in a tree: values by scope and channel, or what a refusal has to list."""

    tree: str
    wanted: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    refusal: tuple[str, ...] = ()


SHELF = [(759, 711), (689, 625), (683, 621), (754, 698), (688, 642), (677, 633)]
GPUS = [
    (231.939, 230235737.738, 34.458),
    (238.856, 235395667.739, 30.001),
    (242.524, 242104179.113, 35.893),
    (241.175, 238969254.24, 33.121),
]
CPUS = [(86.718, 98574244.68800001), (90.494, 105626650.94)]
GB300 = {"node.ac": {"power_w": 1349.263802}, "board": {"total_gpu_power_w": 954.41}}
GB300 |= {f"gpu:{n}": {"power_w": watts, "energy_j": joules} for n, (watts, joules, _) in enumerate(GPUS)}
GB300 |= {f"gpu:{n}/memory": {"power_w": memory} for n, (_, _, memory) in enumerate(GPUS)}
GB300 |= {f"cpu:{n}": {"power_w": watts, "energy_j": joules} for n, (watts, joules) in enumerate(CPUS)}
LITEON = {"rack": {"power_w": 4252.0}}
LITEON |= {f"psu:{n}": {"power_w": ac} for n, (ac, _) in enumerate(SHELF, 1)}
LITEON |= {f"psu.dc:{n}": {"power_w": dc} for n, (_, dc) in enumerate(SHELF, 1)}

CASES = [
    Case("cray-EX425", refusal=("240 W", "238 W", 'chassis = "Node0"', 'chassis = "Node1"')),
    Case("cray-EX425", {"chassis": "Node0"}, {"node.ac": {"power_w": 240, "energy_j": 204271934}}),
    Case("cray-EX425", {"chassis": "Node1"}, {"node.ac": {"power_w": 238, "energy_j": 204764753}}),
    Case("cray-Gigabyte", refusal=("196 W", "100 W", "Disabled", 'sensor = "Power Consumption Monitor"')),
    Case("cray-Gigabyte", {"sensor": "Power Consumption Monitor"}, {"node.ac": {"power_w": 196}}),
    Case("cray-Gigabyte", {"sensor": "Chassis Power Control"}, refusal=("Disabled",)),
    Case("cray-Intel", {}, {"node.ac": {"power_w": 148}}),
    Case("cray-XL675d_A40", {}, {"node.ac": {"power_w": 779}}),
    Case("dmtf-public-rackmount1", {}, {"node.ac": {"power_w": 374}}),
    Case("liteon-power-shelf", {}, LITEON),
    Case("liteon-power-shelf", {"chassis": "powershelf"}, LITEON),
    Case("spy-supermicro_fixtures", {}, GB300),
]


class TreeClient:
    """Answer as the recorded service would, members of a collection included where it offers $expand."""

    label, timeout_s = "bmc", 1.0

    def __init__(self, docs):
        self.docs = {path.rstrip("/"): body for path, body in docs.items()}
        self.now_ns = 0
        self.asked = 0

    def get_json(self, path, **_):
        self.asked += 1
        place, _, expand = path.partition(EXPAND)
        body = self.docs.get(place.rstrip("/"))
        if body is None:
            raise Unavailable("not there", why=path)
        if expand and isinstance(body, dict) and isinstance(body.get("Members"), list):
            rows = [row for row in body["Members"] if isinstance(row, dict)]
            return body | {"Members": [self.docs.get(str(row.get("@odata.id")).rstrip("/"), row) for row in rows]}
        return body

    def pause(self, seconds):
        self.now_ns += round(seconds * 1e9)

    def close(self):
        pass


def load_tree(name):
    """Return the documents of a recorded tree by path."""
    return json.loads(gzip.decompress((TREES / f"{name}.json.gz").read_bytes()))


def open_tree(docs, **wanted):
    """Return the meter on a tree, and its plans. Raises JoulelabError."""
    client = TreeClient(docs)
    root = client.get_json("/redfish/v1")
    found, missing = plan_readings(Walker(client.get_json, root), Wanted({"label": "bmc"}, "bmc", 1.0, **wanted))
    return RedfishMeter(client, found, missing, now=lambda: client.now_ns, pause=client.pause), found


def read_tree(docs, **wanted):
    """Return the values by scope and channel with the path of each, and the meter. Raises JoulelabError."""
    meter, found = open_tree(docs, **wanted)
    values = {}
    for plan in found:
        row = meter.read(plan.stream)
        for spec, number, place in zip(plan.stream.channels, row, plan.fields, strict=True):
            if place is not None and not math.isnan(number):
                values.setdefault(plan.stream.scope, {})[spec.name] = (number, place.place_name)
    return values, meter


def judge_case(case):
    """Yield the rows of one case: device, asked, scope, channel, value, expected, verdict, path or message."""
    asked = " ".join(f"{key}={value}" for key, value in case.wanted.items())
    try:
        values, meter = read_tree(load_tree(case.tree), **case.wanted)
    except JoulelabError as error:
        lacks = [words for words in case.refusal if words not in str(error)]
        verdict = "refused, right" if case.refusal and not lacks else f"refused, lacks {lacks}" if lacks else "REFUSED"
        yield case.tree, asked, "", "", "", "", verdict, str(error)
        return
    if case.refusal:
        yield case.tree, asked, "", "", "", "", "NOT REFUSED", ""
    for scope in sorted({*values, *case.values} - {"node"}):  # cooling is judged by the tests
        for channel in sorted({*values.get(scope, {}), *case.values.get(scope, {})}):
            number, place = values.get(scope, {}).get(channel, (None, ""))
            expected = case.values.get(scope, {}).get(channel)
            verdict = "right" if number == expected else "not read" if number is None else "WRONG"
            yield case.tree, asked, scope, channel, number, expected, verdict, place
    for note in meter.missing():
        yield case.tree, asked, note.scope, "", "", "", "named", f"{note.what} ({note.why})"


def main():
    """Print the table; fail if a value is wrong."""
    rows = [row for case in CASES for row in judge_case(case)]
    for row in rows:
        print(" | ".join("" if cell is None else str(cell) for cell in row))
    return any(row[6].isupper() for row in rows)


if __name__ == "__main__":
    sys.exit(main())
