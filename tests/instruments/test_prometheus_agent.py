"""What agents show becomes streams: meters told apart, accuracies as stated, nothing that is too old, nothing twice."""

from __future__ import annotations

import pytest

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.instruments.prometheus.agents import AgentFacts, read_agents
from joulelab.instruments.prometheus.archive import PrometheusArchive
from joulelab.instruments.prometheus.client import Sample
from joulelab.instruments.prometheus.settings import read_settings

SCRAPES = range(1000, 1300, 15)


def asked(**more):
    return read_settings({"label": "p", "address": "http://m:1", "preset": "joulelab", **more})


class Server:
    """Answer with the series of one metric name each; times in s."""

    def __init__(self, **series):
        self.series = {name: dict(of) for name, of in series.items()}

    def fetch_raw(self, selector, start_ns, end_ns):
        name, _, inside = selector.partition("{")
        found = {}
        for labels, value in self.series.get(name, {}).items():
            wanted = inside.startswith('source="') and dict(labels).get("source") not in inside.split('"')
            if wanted or (inside.startswith("scope") and (dict(labels)["scope"] == "host") == ("!=" in inside[:8])):
                continue
            pairs = [(t, value(t)) for t in SCRAPES]
            found[labels] = [Sample(t * NS, v) for t, v in pairs if v is not None and start_ns <= t * NS <= end_ns]
        return found

    def close(self):
        pass


def at(scope, meter, **more):
    return tuple(sorted({"scope": scope, "meter": meter, "instance": "n1:9797", **more}.items()))


def energies(*places):
    return {at(scope, meter, source=source): lambda t: 100.0 * t for scope, meter, source in places}


def powers(*places):
    return {at(scope, meter): lambda t: 100.0 for scope, meter in places}


def fetched(server, **more):
    return PrometheusArchive(asked(**more), server).fetch(1000 * NS, 1290 * NS)


def test_two_meters_of_one_scope_are_two_streams():
    server = Server(
        joulelab_energy_joules_total=energies(("node.ac", "bmc", "integrated"), ("node.ac", "pdu", "counter")),
        joulelab_power_watts=powers(("node.ac", "bmc"), ("node.ac", "pdu")),
        joulelab_accuracy_ratio={at("node.ac", "pdu"): lambda t: 0.01},
        joulelab_load_ratio={at("host", "host"): lambda t: 0.5},
    )
    got = {f.meter: f for f in fetched(server)}
    assert {m: (f.host, f.stream.scope) for m, f in got.items()} == {
        "bmc": ("n1", "node.ac"), "pdu": ("n1", "node.ac"), "host": ("n1", "host"),
    }  # fmt: skip
    pdu, bmc = (got[m].stream.channels[0].accuracy for m in ("pdu", "bmc"))
    assert (pdu.source, pdu.gain, pdu.shared) == ("assumed", 0.01, "pdu:node.ac")
    assert (bmc.source, bmc.gain) == ("unknown", 0.0), "an accuracy that is not stated gives no interval"
    assert "counter of the device" in pdu.reference
    assert [c.name for c in got["host"].stream.channels] == ["busy"]


def test_a_stated_accuracy_of_the_entry_counts_before_that_of_the_agent():
    server = Server(
        joulelab_power_watts=powers(("node.ac", "bmc")), joulelab_accuracy_ratio={at("node.ac", "bmc"): lambda t: 0.05}
    )
    (one,) = fetched(server, gain=0.01, reference="calibrated here")
    assert (one.stream.channels[0].accuracy.source, one.stream.channels[0].accuracy.gain) == ("calibrated", 0.01)


def test_cords_are_added_up_unless_the_agent_did():
    cords = [(f"outlet:pdu.{n}", "pdu") for n in (1, 2)]
    got = fetched(Server(joulelab_power_watts=powers(*cords)))
    assert [(f.stream.sums, f.stream.parts) for f in got] == [("node.ac", 2), ("node.ac", 2)]
    got = fetched(Server(joulelab_power_watts=powers(*cords, ("node.ac", "pdu"))))
    assert {(f.stream.sums, f.stream.parts) for f in got} == {("", 0)}
    got = fetched(Server(joulelab_power_watts=powers(*cords, ("node.ac", "bmc"))))
    assert [f.stream.parts for f in got] == [2, 2, 0], "another meter's node is another reading"


@pytest.mark.parametrize(
    ("silent", "channels", "rows", "said"),
    [
        ((0, 0), ["energy_j", "power_w"], 20, []),
        # 100 s: three scrapes show what is older than a minute, and the agent's sum lacks all of it.
        ((1100, 1200), ["power_w"], 17, ["which its agent's sum lacks", "had not been read for more than 60 s"]),
        # 30 s: nothing is too old, but the sum lacks it.
        ((1100, 1130), ["power_w"], 20, ["which its agent's sum lacks"]),
    ],
)
def test_what_a_silent_meter_showed_is_left_out(silent, channels, rows, said):
    def shown(t):
        return t - 0.4 if not silent[0] <= t < silent[1] else float(silent[0])

    server = Server(
        joulelab_energy_joules_total=energies(("node.ac", "bmc", "integrated")),
        joulelab_power_watts=powers(("node.ac", "bmc")),
        joulelab_meter_last_reading_timestamp_seconds={(("instance", "n1:9797"), ("meter", "bmc")): shown},
    )
    (one,) = fetched(server)
    assert [c.name for c in one.stream.channels] == channels
    assert len(one.rows) == rows
    assert len(one.events) == len(said)
    assert all(word in event["what"] for word, event in zip(said, one.events, strict=True))
    counted = Server(**server.series | {"joulelab_energy_joules_total": energies(("node.ac", "bmc", "counter"))})
    assert fetched(counted)[0].stream.channels[0].name == "energy_j", "a device's counter goes on by itself"


def test_how_old_values_may_be_is_how_often_they_come():
    ages = {(("instance", "n1:9797"), ("meter", "bmc")): lambda t: t - (0.2 if t % 2 else 0.7)}
    server = Server(joulelab_power_watts=powers(("node.ac", "bmc")), joulelab_meter_last_reading_timestamp_seconds=ages)
    (one,) = fetched(server)
    assert one.stream.channels[0].update_s == pytest.approx(0.7)
    (given,) = fetched(server, update_s=2.0)
    assert given.stream.channels[0].update_s == 2.0


def test_other_exporters_tell_nothing_of_that():
    other = read_settings({"label": "p", "address": "http://m:1", "preset": "dcgm"})
    assert read_agents(None, other, 0, 1) == AgentFacts()


@pytest.mark.parametrize("nodes", [7, [""], [3], {"a": 1}])
def test_nodes_are_names(nodes):
    with pytest.raises(ConfigError, match="nodes is"):
        asked(nodes=nodes)


def test_what_a_node_is_rated_at_is_told_once_for_each():
    def rated(node):
        return (("instance", f"{node}:9797"), ("scope", "node.ac"))

    server = Server(
        joulelab_power_watts={
            at("node.ac", "bmc", instance=f"{node}:9797"): lambda t: 100.0 for node in ("n1", "n2", "n3")
        }
        | powers(("gpu:0", "nvml")),
        joulelab_rated_watts={
            rated("n1"): lambda t: 10_200.0 if t < 1100 else 10_300.0,
            rated("n2"): lambda t: 5000.0,
            rated("n3"): lambda t: float("nan"),
        },
    )
    told = [(f.host, e["scope"], e["watts"]) for f in fetched(server) for e in f.events if e["event"] == "rated"]
    assert told == [("n1", "node.ac", 10_300.0), ("n2", "node.ac", 5000.0)]
