"""Meters of one scope beside each other: which are shown, and in what words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.rows import every_row

from joulelab.analysis.joining import compare_meters
from joulelab.analysis.result import ChannelEnergy, GroupResult, Lag, PowerStatistics, Result, ScopeResult
from joulelab.core.quantity import Quantity
from joulelab.report.run_rows import list_energy_rows
from joulelab.report.run_tables import list_agreement_rows, list_joining_facts, make_agreement_table
from joulelab.report.tables import write_terminal


def reading(meter, joules, u, channel="power_w", known=True):
    energy = Quantity(joules, {f"gain:{meter}": u}, known)
    return ChannelEnergy(meter, channel, "power", energy, "datasheet" if known else "unknown", "", False, 100, 1.0)


def scope(name, best, *others, host="n1"):
    return ScopeResult(name, host, None, "", "", best, best.energy * 0.1, None, None, None, others)


def result(*scopes, lags=(), groups=(), ratios=None) -> Result:
    return Result(
        "r", None, "n1", [], "closed", "exit", 0, None, "", 0, 10**10, scopes, tuple(groups), (), {}, {}, (), (),
        lags=tuple(lags), comparisons=compare_meters(scopes), ratios=ratios or {},
    )  # fmt: skip


def lag(meter, scope, by, *, applied=True, why="", u=0.03):
    return Lag("n1", meter, scope, scope, "gpu", by - 2.0, u, 0.99, applied, why, total_s=by)


NODE = scope(
    "node.ac",
    reading("analyzer", 1000.0, 1.0),
    reading("pdu1", 1010.0, 10.0),
    reading("pdu1", 990.0, 50.0, "energy_j"),
    reading("bmc", 1100.0, 15.0),
    reading("plug", 1000.0, 1.0, known=False),
)
GPU = scope("gpu:0", reading("nvml", 100.0, 5.0), reading("redfish", 101.0, 5.0), reading("nvml", 99.0, 5.0, "x"))


def test_the_best_channel_of_each_meter_at_the_wall_and_elsewhere_only_what_differs():
    rows = list_agreement_rows(result(NODE, GPU))
    assert [(r.scope, r.meter, r.verdict) for r in rows] == [
        ("node.ac", "analyzer power_w", "best"),
        ("", "pdu1 power_w", "agree"),
        ("", "bmc power_w", "differ"),
        ("", "plug power_w", "cannot tell"),
    ]
    off = scope("gpu:0", reading("nvml", 100.0, 1.0), reading("redfish", 120.0, 1.0))
    assert [r.meter for r in list_agreement_rows(result(off))] == ["nvml power_w", "redfish power_w"]


def test_who_imports_two_meters_of_a_gpu_sees_them_compared():
    rows = list_agreement_rows(replace(result(GPU), outcome="imported"))
    assert [(r.meter, r.verdict) for r in rows] == [("nvml power_w", "best"), ("redfish power_w", "agree")]


def test_every_channel_on_request():
    rows = list_agreement_rows(result(NODE, GPU), every=True)
    assert [r.meter for r in rows if r.scope == "" and r.meter.startswith("pdu1")] == ["pdu1 power_w", "pdu1 energy_j"]
    assert "gpu:0" in [r.scope for r in rows]


def test_scopes_of_several_hosts_are_named_with_them():
    other = scope("node.ac", reading("a", 5.0, 0.1), reading("b", 5.0, 0.1), host="n2")
    assert [r.scope for r in list_agreement_rows(result(NODE, other)) if r.scope] == ["n1/node.ac", "n2/node.ac"]


@every_row(
    ("lags", "words"),
    [
        ([], "-"),
        ([lag("pdu1", "outlet:pdu1.1", 0.2), lag("pdu1", "outlet:pdu1.2", 0.3)], "+0.25 ± 0.06"),
        ([lag("pdu1", "outlet:pdu1.1", 0.2), lag("pdu1", "outlet:pdu1.2", 0.6)], "+0.4 ± 0.2"),
        ([lag("pdu1", "outlet:pdu1.1", 0.02)], "not resolved"),
        ([lag("pdu1", "node.ac", 0.2, applied=False, why="load-repeats")], "-"),
        ([lag("pdu1", "node.dc", 0.2)], "-"),
    ],
)
def test_the_lag_that_was_taken_out(lags, words):
    row = next(r for r in list_agreement_rows(result(NODE, lags=lags)) if r.meter == "pdu1 power_w")
    assert row.lag == words


def test_the_table_fits_a_terminal_and_nothing_of_nothing_is_no_share():
    none = scope("node.dc", reading("a", 0.0, 0.1), reading("b", 0.0, 0.1))
    text = write_terminal(make_agreement_table(list_agreement_rows(result(NODE, none))), 80)
    assert re.search(r"pdu1 power_w .* within 3.0  agree ", text)  # +1.0 ± 2.0 %
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    rough = scope("node.dc", reading("a", 10.0, 1.0), reading("b", 12.0, 9.0))
    assert "not resolved  agree" in write_terminal(make_agreement_table(list_agreement_rows(result(rough))), 80)


def test_rest_and_supply_in_words():
    rest = GroupResult(
        "rest of node.ac", ("gpu:0",), Quantity(40.0, {"gain:y": 2.0}, bounds={"x": 30.0}), Quantity(4.0), None
    )
    clear = GroupResult("rest of node.dc", ("gpu:0",), Quantity(40.0, {"gain:y": 2.0}), Quantity(4.0), None)
    ratios = {"supply efficiency": Quantity(0.94, {"gain:y": 0.005}), "n2: supply efficiency": Quantity(0.9, {}, False)}
    assert list_joining_facts(result(NODE, groups=[rest, clear], ratios=ratios)) == [
        ("rest", "rest of node.ac: off by up to 60 J if the load repeats in step with the sensors inside"),
        ("supply", "efficiency 94.0 ± 1.0 % (node.dc / node.ac)"),
        ("supply", "n2: efficiency 90.00 ± ? % (node.dc / node.ac)"),
    ]
    wide = [Quantity(1.09, {"gain:y": 0.02}), Quantity(0.9, {"gain:y": 0.2}), Quantity(0.3, {"edge:y": 0.17})]
    for efficiency in wide:
        found = list_joining_facts(result(NODE, ratios={"supply efficiency": efficiency}))
        assert found == [("supply", "efficiency not resolved (node.dc / node.ac)")]
    lossy = result(NODE, ratios={"supply efficiency": Quantity(0.65, {"gain:y": 0.15})})
    assert list_joining_facts(lossy) == [("supply", "efficiency 60 ± 30 % (node.dc / node.ac)")]  # like its loss


@pytest.mark.parametrize(
    ("watts", "u", "shown"), [(950.0, 180.0, None), (1250.0, 180.0, 1259.0), (950.0, 10.0, 1259.0)]
)
def test_powers_that_do_not_fit_a_rough_mean_are_left_out(watts, u, shown):
    read = PowerStatistics(1259.0, 1258.0, 1260.0, 1260.0, 1261.0, watts, None)
    node = replace(scope("node.dc", reading("bmc", watts * 10, u * 10)), mean_w=Quantity(watts, {"edge:a": u}))
    (row,) = list_energy_rows(result(replace(node, statistics=read)))
    assert row.median_w == shown
    assert row.max_w == (shown and 1261.0)
