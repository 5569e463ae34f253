"""PromQL and answers of servers: pure functions over texts and JSON."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from tests.codes import raises_code
from tests.rows import every_row

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.instruments import open_meter
from joulelab.instruments.http import parse_json
from joulelab.instruments.prometheus import PrometheusMeter, queries
from joulelab.instruments.prometheus.archive import PrometheusArchive
from joulelab.instruments.prometheus.client import Sample, parse_matrix
from joulelab.instruments.prometheus.queries import add_matchers, fill_labels, list_presets, load_preset, parse_query
from joulelab.instruments.prometheus.settings import read_settings


@every_row("query", ["up", " up{job=\"a,b}\", x=~'y{1}'} ", "job:power:sum", "up {}", '{__name__="up"}'])
def test_plain_selectors_are_queries(query):
    assert parse_query({"query": query}, "x").query == query


@every_row(
    "query",
    [
        "sum(up)", "up * 2", "a and b", "a offset 5m", "a @ 1609746000", "1 + 2", "a[5m]", "a # b\n + c",
        "up{a}b{c}", 'up{a="}', "sum by (node) (psu_input_watts)",
    ],
)  # fmt: skip
def test_expressions_are_refused(query):
    """A server repeats old samples in them for five minutes: a dead meter would look like a constant power."""
    with raises_code("config.no-selector"):
        parse_query({"query": query}, "x")


def test_labels_and_matchers():
    assert fill_labels("gpu:{gpu}", {"gpu": "3"}, "x") == "gpu:3"
    with pytest.raises(ConfigError, match="did you mean 'gpu'"):
        fill_labels("gpu:{gp}", {"gpu": "3", "__name__": "x"}, "x")
    assert add_matchers("up", 'a="b"') == 'up{a="b"}'
    assert add_matchers('up{x="1"}', ' a="b", ') == 'up{x="1", a="b"}'
    assert add_matchers("up{}", 'a="b"') == 'up{a="b"}'
    assert add_matchers("up", " ") == "up"


@every_row("preset", list_presets())
def test_presets_are_whole(preset):
    for query in load_preset(preset, "x")[0]:
        if preset == "joulelab":  # the agents state it themselves
            assert query.gain == 0
            continue
        assert query.reference
        assert 0 < query.gain < 0.1
        assert query.kind in ("power", "counter") or query.name == "load"


@every_row(
    ("metric", "factor"),
    [
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),
        ("DCGM_FI_DEV_POWER_USAGE", 1.0),
        ("ipmi_dcmi_power_consumption_watts", 1.0),
        ("rPDU2DeviceStatusPower", 10.0),
        ("st4OutletEnergy", 3600.0),
        ("node_rapl_package_joules_total", 1.0),
        ("scaph_host_power_microwatts", 1e-6),
        ("scaph_host_energy_microjoules", 1e-6),
    ],
)
def test_units_of_the_presets(metric, factor):
    queries = [query for preset in list_presets() for query in load_preset(preset, "x")[0]]
    assert [query.factor for query in queries if query.query.startswith(metric)] == [pytest.approx(factor)]


GOOD = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {"metric": {"__name__": "x", "gpu": "0"}, "values": [[1700000000.25, "1.5"], [1700000015.25, "NaN"]]},
            {"metric": {"__name__": "x", "gpu": "1"}, "values": [[1700000000.25, "2e3"], [1700000015.25, "-7"]]},
        ],
    },
}


def test_a_good_answer():
    found = parse_matrix(GOOD, "p")
    first, second = found.values()
    assert [s.t_ns for s in first] == [1700000000250000000, 1700000015250000000]
    assert first[0].value == 1.5
    assert math.isnan(first[1].value)
    assert [s.value for s in second] == [2000.0, -7.0]


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_fuzzed_answers_give_right_numbers_or_typed_errors(rounds):
    """Wrong would be: a number or a time that does not stand in the answer's text as JSON reads it, or disorder."""
    rng = random.Random(11)
    text = json.dumps(GOOD).encode()
    good = bad = 0
    for _ in range(rounds):
        body = bytearray(text if rng.random() < 0.9 else rng.randbytes(rng.randrange(200)))
        for _ in range(rng.randrange(4)):
            if body:
                at = rng.randrange(len(body))
                action = rng.randrange(4)
                if action == 0:
                    body[at] = rng.randrange(256)
                elif action == 1:
                    del body[at : at + rng.randrange(1, 8)]
                elif action == 2:
                    body[at:at] = rng.choice(
                        [b"1", b'"', b"null", b"[]", b"{}", b"-", b"e9", b"Inf", b",", b"true", b"_"]
                    )
                else:
                    body = body[:at]
        try:
            answer = parse_json(bytes(body), "p")
            found = parse_matrix(answer, "p")
        except ReadFailed:
            bad += 1
            continue
        good += 1
        rows = answer["data"]["result"]
        assert len(found) == len(rows)
        for row in rows:
            samples = found[tuple(sorted(row["metric"].items()))]
            for (at, value), sample in zip(row["values"], samples, strict=True):
                assert sample.t_ns == round(at * 1000) * 1_000_000
                assert sample.value == float(value) or (math.isnan(sample.value) and not math.isfinite(float(value)))
            assert all(a.t_ns < b.t_ns for a, b in pairwise(samples))
    assert good > 1000 * rounds / 12_000
    assert bad > 1000 * rounds / 12_000


@pytest.mark.parametrize("rounds", [1_000, pytest.param(10_000, marks=pytest.mark.campaign)])
def test_fuzzed_structures_give_typed_errors(rounds):
    rng = random.Random(12)
    junk = [None, True, 3, -1.5, "x", [], {}, [[]], {"a": 1}, [1, 2], float("inf"), 1e300]

    def spoil(node):
        if rng.random() < 0.08:
            return rng.choice(junk)
        if isinstance(node, dict):
            return {k: spoil(v) for k, v in node.items() if rng.random() > 0.03}
        return [spoil(v) for v in node if rng.random() > 0.03] if isinstance(node, list) else node

    outcomes = {"good": 0, "bad": 0}
    for _ in range(rounds):
        try:
            for samples in parse_matrix(spoil(GOOD), "p").values():
                assert all(isinstance(s.value, float) and isinstance(s.t_ns, int) for s in samples)
            outcomes["good"] += 1
        except ReadFailed:
            outcomes["bad"] += 1
    assert min(outcomes.values()) > 500 * rounds / 10_000, outcomes


@every_row(
    ("entry", "words"),
    [
        ({"adress": "x"}, "did you mean 'address'"),
        ({"preset": "ipmi"}, "no address"),
        ({"address": "ftp://x", "preset": "ipmi"}, "not a server's"),
        ({"address": "http://me:pw@x", "preset": "ipmi"}, "holds a login"),
        ({"address": "x"}, "neither preset nor queries"),
        ({"address": "x", "preset": "ipmi", "queries": []}, "both preset and queries"),
        ({"address": "x", "preset": "impi"}, "did you mean 'ipmi'"),
        ({"address": "x", "queries": {}}, "queries is not a list"),
        ({"address": "x", "queries": [{"qery": "a"}]}, "did you mean 'query'"),
        ({"address": "x", "queries": [{"query": ""}]}, "not empty"),
        ({"address": "x", "queries": [{"query": "a", "unit": "kw"}]}, "unit is 'kw'"),
        ({"address": "x", "queries": [{"query": "a", "unit": "W", "kind": "counter"}]}, "a counter in W"),
        ({"address": "x", "queries": [{"query": "a", "name": "power"}]}, "end it in _w"),
        ({"address": "x", "queries": [{"query": "a"}], "match": "b='c'"}, "match goes with a preset"),
        ({"address": "x", "preset": "ipmi", "user": "me"}, "belong together"),
        ({"address": "x", "preset": "ipmi", "token": "t", "user": "me", "password": "p"}, "one of them"),
        ({"address": "x", "preset": "ipmi", "verify": 3}, "verify is 3"),
        ({"address": "x", "preset": "ipmi", "lookback_s": -1}, "above 0"),
    ],
)
def test_wrong_entries_are_refused(entry, words):
    with pytest.raises(ConfigError) as caught:
        open_meter("prometheus", entry)
    assert words in str(caught.value)


class FakeApi:
    """Give series of DCGM's energy (mJ) and power: {labels: {second: watts}}; of its load if `load` is set (%)."""

    def __init__(self, *series, load=None):
        self.series, self.load = series, load

    def fetch_raw(self, selector, since, until):
        if "UTIL" in selector:
            return {} if self.load is None else FakeApi((*self.series[0][:2], self.load)).fetch_raw("", since, until)
        scale = 1000 * 15 if "ENERGY" in selector else 1
        return {
            tuple(sorted({"gpu": "0", "UUID": "GPU-1", "instance": "n1:9400", **labels}.items())): [
                Sample(t * 10**9, t / 15 * scale * watts if scale > 1 else watts) for t in seconds
            ]
            for labels, seconds, watts in self.series
        }

    def close(self):
        pass


def fetch_gpu(*series):
    asked = read_settings({"address": "http://x", "preset": "dcgm", "label": "p"})
    return PrometheusArchive(asked, FakeApi(*series)).fetch(1_000 * 10**9, 1_150 * 10**9)


def test_series_of_one_gpu_that_pods_used_in_turn_are_one():
    idle = ({"pod": "", "namespace": "", "container": ""}, [1005, 1065, 1125], 80.0)
    first = ({"pod": "a", "namespace": "x", "container": "c"}, [1020, 1035, 1050], 400.0)
    second = ({"exported_pod": "b", "exported_namespace": "y"}, [1080, 1095, 1110], 500.0)
    (gpu,) = fetch_gpu(idle, first, second)
    assert gpu.stream.scope == "gpu:0"
    assert [t // 10**9 for t, _, _ in gpu.rows] == [*range(1005, 1126, 15)]
    assert [row[2][1] for row in gpu.rows] == [80.0, 400.0, 400.0, 400.0, 80.0, 500.0, 500.0, 500.0, 80.0]
    assert not [e for e in gpu.events if e["event"] == "problem"]


@pytest.mark.parametrize("other", [{"pod": "b"}, {"UUID": "GPU-2"}, {"instance": "n2:9400"}])
def test_series_that_are_not_one_gpu_in_turn_are_refused(other):
    """Pods that share a GPU have samples of one scrape; another GPU or node is no pod."""
    seconds = [1020, 1035] if "pod" in other else [1050, 1065]
    with raises_code("config.two-series"):
        fetch_gpu(({"pod": "a"}, [1020, 1035], 400.0), ({"pod": "a", **other}, seconds, 400.0))


def test_the_load_of_dcgm_is_a_share():
    asked = read_settings({"address": "http://x", "preset": "dcgm", "label": "p"})
    api = FakeApi(({}, [1005, 1020], 400.0), load=93.0)
    (gpu,) = PrometheusArchive(asked, api).fetch(1_000 * 10**9, 1_150 * 10**9)
    assert [c.name for c in gpu.stream.channels] == ["energy_j", "power_w", "load"]
    assert (gpu.rows[0][2][2], gpu.stream.channels[2].quantity) == (pytest.approx(0.93), "utilisation")


@pytest.mark.parametrize("model", ["NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"])
def test_the_counter_of_a_grace_hopper_is_that_of_its_module(model):
    """Its power is not read: nothing published says whether it is the GPU's or the module's."""
    (module,) = fetch_gpu(({"modelName": model}, [1005, 1020, 1035], 900.0))
    assert (module.stream.scope, [c.name for c in module.stream.channels]) == ("module:0", ["energy_j"])
    assert module.rows[1][2][0] - module.rows[0][2][0] == pytest.approx(900.0 * 15)
    assert [e["what"].split(" (")[0] for e in module.events] == ["gpu:0: DCGM_FI_DEV_POWER_USAGE is not read"]


def test_other_superchips_are_refused_and_other_gpus_beside_them_read():
    blackwell = ({"modelName": "NVIDIA GB200", "UUID": "GPU-2", "gpu": "1"}, [1005, 1020, 1035], 900.0)
    with raises_code("unavailable.superchip") as caught:
        fetch_gpu(blackwell)
    assert "NVIDIA GB200" in caught.value.why
    (gpu,) = fetch_gpu(({"modelName": "NVIDIA H100 80GB HBM3"}, [1005, 1020, 1035], 400.0), blackwell)
    assert (gpu.stream.scope, [c.name for c in gpu.stream.channels]) == ("gpu:0", ["energy_j", "power_w"])
    assert len(gpu.events) == 2


def test_own_queries_may_name_the_scope_of_a_superchip():
    query = {"query": "DCGM_FI_DEV_POWER_USAGE", "scope": "gpu:{gpu}"}
    settings = read_settings({"address": "http://x", "queries": [query], "label": "p"})
    api = FakeApi(({"modelName": "NVIDIA GB200"}, [1005, 1020], 900.0))
    (gpu,) = PrometheusArchive(settings, api).fetch(1_000 * 10**9, 1_150 * 10**9)
    assert (gpu.stream.scope, gpu.stream.channels[0].accuracy.source) == ("gpu:0", "unknown")


@every_row(
    ("keys", "value", "si"),
    [
        ({"unit": "kW"}, 1.5, 1500.0),
        ({"scale": 10.0}, -1.0, None),  # APC's mark for "not supported"
        ({}, 140737488355328.0, None),  # DCGM's marks for "no value"
        ({"unit": "mJ"}, 9223372036854775792.0, None),
        ({"unit": "mJ"}, 2e14, 2e11),
        ({}, 0.0, 0.0),
        ({"zero_is_gap": True}, 0.0, None),
        ({"unit": "degC"}, -5.0, -5.0),
        ({}, math.nan, None),
    ],
)
def test_values_that_are_no_readings(keys, value, si):
    assert parse_query({"query": "x", **keys}, "x").convert(value) == si


def test_a_live_meter_lists_the_series_of_superchips_that_it_does_not_read():
    settings = read_settings({"address": "http://x", "preset": "dcgm", "label": "p"})
    api = FakeApi(({"modelName": "NVIDIA GH200 480GB"}, [1005, 1020, 1035], 900.0))
    meter = PrometheusMeter(settings, api)
    assert [stream.scope for stream in meter.streams()] == ["module:0"]
    assert [(note.scope, note.code) for note in meter.missing()] == [("gpu:0", "meter.superchip")]


def test_a_new_exporter_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "psu.toml").write_text(
        'host = "{node}"\n[defaults]\ngain = 0.02\nreference = "its data sheet"\n'
        '[[queries]]\nquery = "psu_input_watts"\nscope = "psu:{psu}"\n[[queries]]\nquery = "psu_kwh"\nunit = "kWh"\n'
    )
    monkeypatch.setattr(queries, "PRESETS", tmp_path)
    settings = read_settings({"address": "http://x", "preset": "psu", "match": 'rack="7"', "feeds": "node.dc"})
    assert [(q.query, q.scope, q.name, q.gain) for q in settings.queries] == [
        ('psu_input_watts{rack="7"}', "psu:{psu}", "power_w", 0.02),
        ('psu_kwh{rack="7"}', "node.dc", "energy_j", 0.02),
    ]
    assert settings.find_host({"node": "n7:9100"}) == "n7"
