"""Plans: how meters are named, found and configured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError, JoulelabError, MeterError, MissingDependency, Unavailable
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


@every_row("text", ["", "[]", "{}", '{"host_dir": "/x", "host": "h"}', "nonsense"])
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
        ("no.such.module", MissingDependency),
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


@pytest.mark.parametrize(
    ("text", "what", "line", "kind"),
    [
        ("def open_meter(config):\n    return 1 / 0\n", "ZeroDivisionError: division by zero", 2, MeterError),
        (
            "import json\ndef open_meter(config):\n    json.loads('')\n",
            "JSONDecodeError: Expecting value",
            3,
            MeterError,
        ),
        ("x = 5\nimport no_such_package\n", "ModuleNotFoundError: No module named", 2, MissingDependency),
        ("\n\ndef open_meter(:\n", "SyntaxError: invalid syntax", 3, MeterError),
    ],
)
def test_an_exception_of_ones_own_meter_names_its_line_and_the_next_step(
    tmp_path: Path, text: str, what: str, line: int, kind: type[JoulelabError]
) -> None:
    file = tmp_path / "w.py"
    file.write_text(text)
    for wanted, name in ((MeterPlan(str(file), "w", {}), str(file)), (MeterPlan(str(file), "pdu1", {}, False), "pdu1")):
        with pytest.raises(kind) as raised:
            open_meter(plan(), wanted)
        assert raised.value.what.startswith(what)
        assert raised.value.why == f"{file}, line {line}"
        assert raised.value.next == f"correct that line; see joulelab doctor {name}"


def test_an_exception_of_a_built_in_meter_is_for_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.instruments.host.open_meter", lambda config: 1 / 0)
    with pytest.raises(MeterError, match="ZeroDivisionError") as raised:
        open_meter(plan(), MeterPlan("host", "host", {}))
    assert "joulelab doctor host" in str(raised.value.next)
