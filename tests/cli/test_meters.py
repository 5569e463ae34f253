"""Commands that look at meters: meters and doctor."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.cli.doctor import _hide_secrets
from joulelab.core.spec import Accuracy, Spec
from joulelab.instruments import catalog

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a powercap tree with one package whose counter stands still."""
    root = tmp_path / "powercap"
    zone = root / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, value in (("name", "package-0"), ("energy_uj", "12345678"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(f"{value}\n")
    monkeypatch.setenv("JOULELAB_POWERCAP", str(root))
    return root


def test_meters_says_what_is_here_and_what_is_missing(call: Call, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("JOULELAB_POWERCAP", str(tmp_path / "nothing"))
    rows = json.loads(call("meters", "rapl", "host", "estimate", "--json").stdout)
    assert {row["meter"]: row["status"] for row in rows} == {"rapl": "unavailable", "host": "open", "estimate": "open"}
    text = " ".join(call("meters", "rapl", "host", "estimate").output.split())
    assert rows[0]["what"] in text
    assert "joulelab twin -- joulelab meters" in call("meters", "rapl").output


@pytest.mark.system
def test_meters_shows_scope_quantity_accuracy_and_period(call: Call, powercap: Path) -> None:
    text = call("meters", "rapl").output
    row = next(line for line in text.splitlines() if line.startswith("cpu:0"))
    assert "energy, J" in row
    assert "%" in row or "unknown" in row
    assert "100 ms" in row
    assert text.startswith("rapl  ")
    assert "privilege: read access to energy_uj" in text
    assert "joulelab twin" not in text
    assert max(len(line) for line in text.splitlines() if "->" not in line) <= 80
    [data] = json.loads(call("meters", "rapl", "--json").stdout)
    assert data["status"] == "open"
    assert data["channels"][0]["scope"] == "cpu:0"


def test_the_estimate_is_on_request_and_marked(call: Call) -> None:
    assert "\njoulelab run --estimate -- CMD  " in call("meters").output
    assert "-> joulelab run --estimate -- CMD" in call("meters", "--all").output
    assert "(estimate)" in call("meters", "estimate").output


@pytest.mark.system
def test_doctor_reads_a_meter(call: Call, powercap: Path) -> None:
    [data] = json.loads(call("doctor", "rapl", "--for", "50ms", "--json").stdout)
    assert data["status"] == "open"
    assert data["power"] is True
    assert data["health"]["channels"][0]["reads"] > 0
    [still] = [line for line in data["advice"] if "did not change" in line]  # a busy machine gets more advice
    assert still in " ".join(call("doctor", "rapl", "--for", "100ms").output.split())


def test_doctor_names_what_is_not_there(
    call: Call, fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULELAB_POWERCAP", str(tmp_path / "nothing"))
    [data] = json.loads(call("doctor", "rapl", "--for", "50ms", "--json", code=1).stdout)
    assert (data["status"], data["code"]) == ("unavailable", "unavailable.no-zone")
    failure = fail("doctor", "rapple")
    assert failure.kind == "config"
    assert "'rapl'" in str(failure.next)


def test_doctor_shows_how_to_grant_access(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from joulelab.core.errors import Denied

    def refuse(*_: object) -> None:
        raise Denied("RAPL is there but may not be read", why="permission denied", next="joulelab doctor rapl")

    monkeypatch.setattr("joulelab.recorder.plan.open_meter", refuse)
    [data] = json.loads(call("doctor", "rapl", "--json", code=1).stdout)
    assert (data["status"], data["code"], bool(data["fixes"])) == ("denied", "denied", True)
    assert "-> sudo " in call("doctor", "rapl", code=1).output


LOST = """
from joulelab.core.errors import ReadFailed
from joulelab.core.spec import Accuracy, Spec, Stream

CONFIG = {"works": "how many readings work"}


class Lost:
    def __init__(self, works):
        self.works = works

    def streams(self):
        return (Stream("f", "power", "node.ac", 1.0, (Spec("power_w", "power", "W", "power", 1.0, 0.0),)),)

    def read(self, stream):
        self.works -= 1
        if self.works < 0:
            raise ReadFailed("no answer", where="lost")
        return (10.0,)

    def close(self):
        pass


def open_meter(config):
    return Lost(config.get("works", 0))
"""


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure a meter of one's own that opens, and fails after some readings."""
    (tmp_path / "lost.py").write_text(LOST)
    file = tmp_path / "joulelab.toml"
    file.write_text('[meters.lost]\nmeter = "lost.py"\nworks = 0\n')
    monkeypatch.chdir(tmp_path)
    return file


@pytest.mark.system
def test_doctor_does_not_say_that_a_meter_without_a_reading_works(call: Call, lost: Path) -> None:
    text = " ".join(call("doctor", "lost", "--for", "50ms", code=1).output.split())
    assert text.startswith("lost unavailable: it opens, but each reading failed (lost: no answer)")
    assert "works:" not in text
    [data] = json.loads(call("doctor", "lost", "--for", "50ms", "--json", code=1).stdout)
    assert (data["status"], data["code"], data["why"]) == ("unavailable", "read-failed", "lost: no answer")
    assert data["findings"][0]["code"] == "meter.readings-failed"


@pytest.mark.system
def test_doctor_says_that_a_meter_works_in_part(call: Call, lost: Path) -> None:
    lost.write_text(lost.read_text().replace("works = 0", "works = 2"))
    text = " ".join(call("doctor", "lost", "--for", "100ms").output.split())
    assert re.match(r"lost works in part, \d+ % of readings failed: ", text)


def test_a_meter_of_ones_own_is_described_by_what_it_has(call: Call, lost: Path) -> None:
    text = " ".join(call("meters", "lost").output.split())
    assert f"lost {lost.parent / 'lost.py'}, from {lost}:1; privilege: none" in text


def test_a_meter_that_is_read_on_request_is_not_denied(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    row = catalog.MeterRow(
        "wattfile", "power from a file", "on request", "none", "", next="joulelab run --meter wattfile"
    )
    estimate = catalog.MeterRow("estimate", "an estimate", "on request", "none", "")
    monkeypatch.setattr(catalog, "survey_meters", lambda *_, **__: [row, estimate])
    text = call("meters", "--all").output
    assert "There is no power meter here" not in text
    assert text.index("Read on request:") < text.index("wattfile ") < text.index("Not measured:")
    assert "There is no power meter here" not in call("meters").output
    assert "joulelab run --meter wattfile  power from a file" in call("meters").output
    monkeypatch.setattr(catalog, "survey_meters", lambda *_, **__: [estimate])
    assert "There is no power meter here" in call("meters").output


def make_row(meter: str, status: Any, *scopes: str, **more: Any) -> catalog.MeterRow:
    """Describe a meter with power and a state for each scope."""
    accuracy = Accuracy("assumed", 0.05, shared="x", reference="a long reason")
    specs = Spec("power_w", "power", "W", "power", 0.1, 0.1, accuracy=accuracy), Spec("load", "utilisation", "1")
    channels = tuple(
        catalog.MeterChannel(meter, scope, None, 0.1, "", "Model", spec) for scope in scopes for spec in specs
    )
    return catalog.MeterRow(
        meter, f"about {meter} (by its bus): and more", status, "none", "", channels=channels, **more
    )


def test_the_short_list_is_what_is_measured_what_is_wrong_and_one_command_each(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        make_row("nvml", "open", *(f"gpu:{k}" for k in range(8)), "core:0"),
        make_row("rapl", "denied", what="it may not be read", next="sudo chmod a+r energy_uj"),
        make_row("pdu1", "unavailable", what="no answer", source="joulelab.toml:3", next="is it on?"),
        make_row("amdsmi", "unavailable", what="no AMD GPU", why="no library"),
        make_row("ipmi", "not configured", next="joulelab meters --add ipmi address=..."),
        make_row("estimate", "on request", next="joulelab run --estimate -- CMD"),
    ]
    monkeypatch.setattr(catalog, "survey_meters", lambda *_, **__: rows)
    assert call("meters").output.splitlines() == [
        "scope    quantity  accuracy        read  sees  meter",
        "────────────────────────────────────────────────────",
        "gpu:0-7  power     ±5 % assumed  100 ms   all  nvml",
        "Nothing here measures the whole node.",
        "",
        "rapl     it may not be read",
        "         -> sudo chmod a+r energy_uj",
        "pdu1     no answer",
        "         from joulelab.toml:3",
        "         Is it on?",
        "",
        "With one step:",
        "joulelab meters --add ipmi address=...  about ipmi",
        "joulelab run --estimate -- CMD          about estimate",
        "",
        "not here amdsmi; why:",
        "         -> joulelab meters --all",
    ]
    long = call("meters", "--all").output
    assert "gpu:0-7, core:0: load" in long
    assert "a long reason" in long
    assert "no AMD GPU (no library)" in long
    monkeypatch.setattr(
        catalog, "survey_meters", lambda *_, **__: [make_row("cray", "open", "node.dc", "cpu"), rows[-1]]
    )
    short = call("meters").output
    assert "whole node" not in short
    assert "estimate" not in short


def test_nothing_is_wider_than_80_columns(call: Call) -> None:
    for words in (["meters"], ["meters", "--all"]):
        lines = call(*words).output.splitlines()
        assert max(len(line) for line in lines if "-> " not in line) <= 80
    assert len(call("meters").output.splitlines()) <= 30


def test_a_meter_with_profiles_lists_them(fail: Fail) -> None:
    failure = fail("meters", "--add", "modbus")
    assert failure.code == "config.missing-key"
    for name in ("sdm630", "janitza", "xerus"):
        assert f"profile={name}" in failure.stderr
    assert "profile=sdm630" in fail("meters", "--add", "modbus", "address=10.0.0.1").stderr
    assert "profile=sdm72" not in fail("meters", "--add", "modbus", "profile=sdm630").stderr


def test_doctor_fails_where_no_power_meter_works(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"health": None, "advice": [], "found": [], "fixes": [], "what": "", "why": "", "next": ""}
    reports = {
        "host": {"meter": "host", "status": "open", "power": False} | report,
        "nvml": {"meter": "nvml", "status": "unavailable", "power": False} | report,
    }
    monkeypatch.setattr("joulelab.instruments.list_defaults", lambda: list(reports))
    monkeypatch.setattr("joulelab.cli.doctor.examine_meter", lambda name, _: reports[name])
    assert "-> joulelab twin -- joulelab doctor" in call("doctor", code=1).output
    assert len(json.loads(call("doctor", "--json", code=1).stdout)) == 2
    call("doctor", "host")
    reports["nvml"] |= {"status": "open", "power": True}
    call("doctor")


def test_no_secret_is_in_the_errors_of_readings() -> None:
    opener: Any = SimpleNamespace(hide_secrets=lambda v: v.replace("hunter2", "***") if isinstance(v, str) else v)
    health = {"errors": {"refused hunter2": 3}, "channels": ({"last": None, "scope": "node.ac"},)}
    assert _hide_secrets(health, opener) == {
        "errors": {"refused ***": 3},
        "channels": [{"last": None, "scope": "node.ac"}],
    }
