"""Plans: how meters are named, found and configured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulelab.core.errors import ConfigError, JoulelabError, Unavailable
from joulelab.recorder.plan import MeterPlan, Plan, open_meter

FAKE = str(Path(__file__).with_name("fake.py"))


def plan(**fields: Any) -> Plan:
    return Plan.from_json(json.dumps({"host_dir": "/x", "host": "h", "owner_pid": 1, **fields}))


def test_meters_get_names_of_their_own() -> None:
    items = [{"meter": "nvml"}, {"meter": FAKE}, {"meter": "my.own.fake"}, {"meter": "nvml", "name": "a b/c"}]
    assert [m.name for m in plan(meters=items).all_meters()] == ["nvml", "fake", "fake-2", "a-b-c"]


def test_without_a_list_the_usual_meters_are_opened() -> None:
    names = [m.name for m in plan(meters=None, also=[{"meter": FAKE}]).all_meters()]
    assert {"nvml", "rapl", "fake"} <= set(names)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"host_dir": "/x", "host": "h"}', "nonsense"])
def test_a_plan_that_cannot_be_read_says_so(text: str) -> None:
    with pytest.raises(ConfigError, match="plan cannot be read"):
        Plan.from_json(text)


def test_an_entry_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError):
        plan(meters=[{"config": {}}]).all_meters()


def test_offers_reach_meters_that_know_them_and_yield_to_the_configuration() -> None:
    p = plan(period_s=0.02, offers={"watts": 5, "unknown": 1, f"{FAKE}.devices": 3, "other.update_s": 9})
    meter: Any = open_meter(p, MeterPlan(FAKE, "fake", {"watts": 7}))
    assert meter.config == {"period_s": 0.02, "slow_period_s": 1.0, "watts": 7, "devices": 3}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no_such_meter", JoulelabError),
        ("/no/such/file.py", Unavailable),
        ("json.decoder", Unavailable),
        ("no.such.module", ImportError),
    ],
)
def test_a_meter_that_is_not_there(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        open_meter(plan(), MeterPlan(name, "x", {}))


def test_a_meter_with_a_pace_of_its_own_is_offered_none() -> None:
    p = plan(period_s=0.02, also=[{"meter": FAKE, "name": "pdu1", "paced": False, "hide": ["abcd"]}])
    (*_, wanted) = p.all_meters()
    assert (wanted.name, wanted.paced) == ("pdu1", False)
    meter: Any = open_meter(p, wanted)
    assert "period_s" not in meter.config
    assert p.hidden() == ("abcd",)
