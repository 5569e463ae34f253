from __future__ import annotations

import types

import pytest

from joulelab import instruments as meters
from joulelab.instruments import catalog
from joulelab.twin.model import Node


def test_every_meter_has_a_row_that_says_what_it_gives_or_what_to_do():
    rows = {row.meter: row for row in catalog.survey_meters()}
    assert list(rows) == meters.list_meters()
    for row in rows.values():
        assert row.summary
        assert row.privilege
        assert row.tried
        if row.status == "open":
            assert row.channels
        else:
            assert row.next
    assert rows["estimate"].status == "on request"
    assert rows["host"].status == "open"
    assert {c.accuracy for c in rows["host"].channels} == {""}


@pytest.mark.system
def test_an_estimate_is_opened_when_asked_for():
    assert {r.meter: r.status for r in catalog.survey_meters(estimate=True)}["estimate"] == "open"
    (row,) = catalog.survey_meters(names=["estimate"])
    assert row.channels[0].accuracy == "±80 % (assumed)"
    assert row.channels[0].spec.estimate


def test_names_that_are_wrong_and_configurations_that_are_wrong_are_rows_too():
    (row,) = catalog.survey_meters(names=["nvlm"])
    assert (row.status, "nvml" in row.next) == ("failed", True)
    (row,) = catalog.survey_meters({"host": {"perod": 1}}, names=["host"])
    assert (row.status, row.what) == ("failed", "unknown key 'perod'")
    (row,) = catalog.survey_meters({"rapl": {"root": "/nowhere"}}, names=["rapl"])
    assert (row.status, row.channels) == ("unavailable", ())


@pytest.mark.system
def test_channels_of_a_simulated_tree(twin):
    server = twin(Node(gpus=(), packages=1))
    (row,) = catalog.survey_meters({"rapl": {"root": server.environment["JOULELAB_POWERCAP"]}}, names=["rapl"])
    assert [(c.scope, c.spec.quantity, c.period_s) for c in row.channels] == [
        ("cpu:0", "energy", 0.1),
        ("cpu:0", "cap", 1.0),
        ("core:0", "energy", 0.1),
        ("dram:0", "energy", 0.1),
    ]
    assert row.channels[0].accuracy == "±5 % (assumed)"


@pytest.mark.parametrize(("name", "option"), [("wattfile", "--meter wattfile"), ("estimate", "--estimate")])
def test_a_meter_on_request_is_opened_by_its_name(monkeypatch, name, option):
    module = types.SimpleNamespace(SUMMARY="s", PRIVILEGE="none", TRIED="", DEFAULT=False, CONFIG={})
    monkeypatch.setattr(meters, "find_meter", lambda _: module)
    (row,) = catalog.survey_meters(names=[name], named=False)
    assert (row.status, row.next) == ("on request", f"joulelab run {option} -- CMD")
