"""What runtime x rated power would have said, from what the run recorded, and how far off it is."""

from __future__ import annotations

import json
import math

import pytest
from tests.analysis.folders import Folder, counter, power, state
from tests.analysis.nodes import END, START, T, busy, node
from tests.analysis.virtual import accuracy

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.result import RatedDevice, RatedResult
from joulelab.core.quantity import Quantity
from joulelab.core.spec import Accuracy, Spec, Stream


def rated(folder):
    return analyse_run(folder.close(START, END).open()).rated


def test_gpus_count_by_the_highest_limit_that_they_take(tmp_path):
    found = rated(node(Folder(tmp_path)))
    assert [(d.scope, d.watts, d.source) for d in found.devices] == [
        ("gpu:0", 700.0, "highest power limit"),
        ("gpu:1", 700.0, "highest power limit"),
    ]
    assert found.energy_j == pytest.approx(14_000.0)
    assert found.measured.value == pytest.approx(8000.0, rel=1e-3)
    assert found.ratio.value == pytest.approx(1.75, rel=1e-3)
    assert found.ratio.expanded == pytest.approx(1.75 * 2 * 0.05 / 3**0.5, rel=0.02)  # the gain of GPUs of one model
    assert found.unknown == ("cpu:0", "cpu:1", "dram:0", "dram:1")
    assert found.families == "gpu"
    assert found.watts == 1400.0


def test_the_default_limit_is_better_known_than_the_highest(tmp_path):
    folder = node(Folder(tmp_path))
    told = {"device": "u", "asked": 300.0, "requested": 300.0, "found": 350.0}
    folder.event(1.0, "cap-set", scope="gpu:0", unit="W", default=350.0, **told)
    folder.event(1.0, "cap-set", scope="gpu:1", unit="Hz", default=1e9, **told)
    assert {d.scope: d.watts for d in rated(folder).devices} == {"gpu:0": 350.0, "gpu:1": 700.0}


def test_a_package_counts_by_the_limit_it_is_built_for(tmp_path):
    folder = Folder(tmp_path).add("rapl", counter("cpu:0"), T, busy(30.0, 100.0)[0])
    cap = Spec("cap_requested_w", "cap", "W", limits=(0.0, 250.0))
    folder.add("rapl", Stream("cpu:0.state", "state", "cpu:0", 1.0, (cap,)), [1.0, 2.0], [200.0, 200.0])
    found = rated(folder)
    assert [(d.watts, d.source) for d in found.devices] == [(250.0, "rated limit of powercap")]
    assert found.unknown == ()


@pytest.mark.parametrize("meta", [{"options": {"node": {"rated_w": 2800.0}}}, {"twin": {"name": "t", "rated_w": 2800}}])
def test_a_nodes_rating_stands_for_all_that_is_in_it(tmp_path, meta):
    found = rated(node(Folder(tmp_path, **meta), ac=1400.0))
    assert [(d.scope, d.watts) for d in found.devices] == [("node.ac", 2800.0)]
    assert found.ratio.value == pytest.approx(2.0, rel=1e-2)
    assert found.unknown == ()


@pytest.mark.parametrize("given", [None, {}, {"rated_w": "many"}, {"rated_w": 0}])
def test_a_node_without_a_rating_is_unknown_and_its_parts_count(tmp_path, given):
    found = rated(node(Folder(tmp_path, options={"node": given}), ac=1400.0))
    assert "node.ac" in found.unknown
    assert {d.scope for d in found.devices} == {"gpu:0", "gpu:1"}


def test_what_is_not_known_is_none(tmp_path):
    folder = Folder(tmp_path)
    for host in ("node1", "node2"):
        folder.add("bmc", power("node.ac"), T, busy(200.0, 600.0)[1], host=host)
    found = rated(folder)
    assert found.ratio is None
    assert found.unknown == ("node1/node.ac", "node2/node.ac")
    assert found.to_json()["rated_w"] is None


def test_parts_of_several_hosts_are_named_with_theirs(tmp_path):
    folder = Folder(tmp_path)
    for host in ("node1", "node2"):
        folder.add("rapl", counter("cpu:0"), T, busy(30.0, 100.0)[0], host=host)
        folder.add("bmc", power("node.ac"), T, busy(200.0, 600.0)[1], host=host)
    assert rated(folder).unknown == ("node1/cpu:0", "node1/node.ac", "node2/cpu:0", "node2/node.ac")


def test_estimates_are_not_compared_with_an_estimate(tmp_path):
    spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, limits=(0.0, 100.0), accuracy=accuracy(0.5), estimate=True)
    folder = Folder(tmp_path).add("estimate", Stream("cpu", "power", "cpu", 1.0, (spec,)), T, busy(5.0, 50.0)[1])
    found = rated(folder)
    assert found == RatedResult((), 10.0)


def test_limits_that_say_nothing_are_none(tmp_path):
    spec = Spec("power_w", "power", "W", "power", 0.1, 0.1, accuracy=Accuracy("assumed", 0.01))
    folder = Folder(tmp_path).add("nvml", Stream("gpu:0", "power", "gpu:0", 0.1, (spec,)), T, busy(50.0, 400.0)[1])
    folder.add("nvml", state(0, "load"), [1.0, 2.0], [0.5, 0.5])
    assert rated(folder).unknown == ("gpu:0",)


def test_nothing_cannot_be_divided_by():
    assert RatedResult((RatedDevice("node1", "gpu:0", 700.0, "told"),), 600.0, Quantity(0.0)).ratio is None


def test_json_has_all_of_it(tmp_path):
    result = analyse_run(node(Folder(tmp_path)).close(START, END).open())
    told = result.to_json()["rated"]
    assert told["rated_w"] == 1400.0
    assert told["ratio"]["value"] == pytest.approx(1.75, rel=1e-3)
    assert told["devices"][0] == {
        "host": "node1", "scope": "gpu:0", "rated_w": 700.0, "source": "highest power limit",
    }  # fmt: skip


def test_every_node_of_a_job_counts_by_its_own_rating(tmp_path):
    """Each tells it where it was recorded; of one that does not it is unknown."""
    folder = Folder(tmp_path, options={"node": {"rated_w": 2800.0}})
    for host in ("node1", "node2", "node3"):
        folder.add("bmc", power("node.ac"), T, busy(200.0, 600.0)[1], host=host)
    told = {"t": 0, "event": "rated", "scope": "node.ac"}
    lines = [json.dumps({**told, "watts": watts}) + "\n" for watts in (1400.0, "many", 0.0, math.inf)]
    (folder.path / "node2" / "events.node.jsonl").write_text("".join(lines))
    found = rated(folder)
    assert [(d.host, d.watts, d.source) for d in found.devices] == [
        ("node1", 2800.0, "rated_w of joulelab.toml"),
        ("node2", 1400.0, "rated_w of joulelab.toml"),
    ]
    assert found.unknown == ("node3/node.ac",)


@pytest.mark.parametrize(("hidden", "counted"), [([1], [0]), ([], [0, 1]), ([0, 1], [0, 1])])
def test_a_gpu_that_the_workload_was_not_shown_is_in_neither_side(tmp_path, hidden, counted):
    """Where it was shown none at all, nothing tells which it used."""
    folder = node(Folder(tmp_path))
    whole = rated(node(Folder(tmp_path / "whole")))
    folder.event(0.5, "devices", meter="nvml", gpus=[{"scope": f"gpu:{k}", "visible": k not in hidden} for k in (0, 1)])
    found = rated(folder)
    assert [d.scope for d in found.devices] == [f"gpu:{k}" for k in counted]
    assert found.unused == tuple(f"gpu:{k}" for k in (0, 1) if k not in counted)
    assert found.measured.value == pytest.approx(whole.measured.value * len(counted) / 2, rel=1e-3)
    assert found.to_json()["unused"] == list(found.unused)
