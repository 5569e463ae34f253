"""`joulelab plan rates`: check, list, table and fetch, as they are typed."""

from __future__ import annotations

import json
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from joulelab.plan.commands import COMMANDS
from joulelab.plan.rates.rates_command import command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Call

ROWS = "time,value\n2026-11-01T00:00Z,300\n2026-11-01T01:00Z,\n2026-11-01T02:00Z,320\n2026-11-01T04:00Z,340\n"
TARIFF = """
title = "City"
unit = "ct/kWh"
time_zone = "Europe/Berlin"
price = 30
[[rules]]
name = "night"
price = -1
hours = "22:00-06:00"
[demand]
price_per_kw = 100
per = "year"
"""


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("JOULELAB_RATES", "ELECTRICITY_MAPS_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def is_narrow(text: str) -> bool:
    return all(len(line) <= 80 for line in text.splitlines() if not line.strip().startswith("->"))


def test_its_help_is_that_of_the_list() -> None:
    assert command.help is not None
    assert command.help.splitlines()[0] == COMMANDS["rates"]


def test_all_hours_of_a_rule_are_told(call: Call, tmp_path: Path) -> None:
    hours = '["06:00-07:00", "09:00-11:00", "18:00-22:00"]\ndays = "mon,wed,fri"\nmonths = "nov-feb"'
    (tmp_path / "t.toml").write_text(TARIFF.replace('"22:00-06:00"', hours))
    text = call("plan", "rates", "check", "t.toml").stdout
    assert is_narrow(text)
    assert "…" not in text
    assert "mon,wed,fri 18:00-22:00 in jan-feb,nov-dec" in " ".join(text.split())


def test_a_value_that_no_rate_has_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text("# kind: average\n# unit: g/kWh\n" + ROWS.replace(",300", ",3e300"))
    assert "3e+300 g/kWh is no rate" in call("plan", "rates", "check", "grid.csv", code=2).stderr


def test_a_series_is_described_with_its_gaps(call: Call, tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text("# kind: average\n# unit: g/kWh\n# zone: DE\n" + ROWS)
    text = call("plan", "rates", "check", "grid.csv").stdout
    assert is_narrow(text)
    assert "values      300.0 to 340.0, mean 320.0 g/kWh" in text
    assert "known       2026-11-01 00:00 UTC to 2026-11-01 05:00 UTC" in text
    assert "not known for 2 h 00 min in 2 gaps" in text
    assert "2026-11-01 03:00 UTC to 2026-11-01 04:00 UTC" in text
    assert "nobody states it" in text
    told = json.loads(call("plan", "rates", "check", "grid.csv", "--json").stdout)
    assert (told["low"], told["high"], told["unit"], told["label"]["kind"]) == (300, 340, "g/kWh", "average")
    assert [g["until_utc_s"] - g["since_utc_s"] for g in told["gaps"]] == [3600, 3600]


def test_a_mean_is_over_time(call: Call, tmp_path: Path) -> None:
    rows = "time,value\n2026-11-01T00:00Z,100\n2026-11-01T03:00Z,200\n"
    (tmp_path / "grid.csv").write_text("# kind: average\n# unit: g/kWh\n# end: 2026-11-01T04:00Z\n" + rows)
    assert "mean 125.0 g/kWh" in call("plan", "rates", "check", "grid.csv").stdout


def test_many_gaps_are_not_all_listed(call: Call, tmp_path: Path) -> None:
    rows = "".join(f"2026-11-01T{h:02}:{m:02}Z,{'' if m else 5}\n" for h in range(20) for m in (0, 30))
    (tmp_path / "grid.csv").write_text("# kind: average\n# unit: g/kWh\ntime,value\n" + rows)
    text = call("plan", "rates", "check", "grid.csv").stdout
    assert "in 20 gaps" in text
    assert "and 8 more" in text
    assert "-> joulelab plan rates check grid.csv --json" in text


def test_a_tariff_is_described_with_its_rules(call: Call, tmp_path: Path) -> None:
    (tmp_path / "city.toml").write_text(TARIFF)
    text = call("plan", "rates", "check", "city.toml").stdout
    assert is_narrow(text)
    assert "night" in text
    assert "-0.01  daily 00:00-06:00; daily 22:00-24:00" in text
    assert "0.3  all other hours" in text
    assert "100 EUR per kW of the highest power per year is apart" in text
    told = json.loads(call("plan", "rates", "check", "city.toml", "--json").stdout)
    assert told["demand"] == {"amount": 100, "per": "year"}
    assert told["rules"][1] == {"name": "otherwise", "price": 0.3, "hours": "all other hours"}


def test_figures_tables_and_services_can_be_checked_without_a_network(call: Call) -> None:
    assert "363 g/kWh, at all times" in call("plan", "rates", "check", "table:DE:2024").stdout
    assert "0.32 EUR/kWh, at all times" in call("plan", "rates", "check", "32ct").stdout
    text = call("plan", "rates", "check", "em:DE").stdout
    assert "average: of all generation" in text
    told = json.loads(call("plan", "rates", "check", "em:DE", "--json").stdout)
    assert (told["form"], told["low"]) == ("service", None)


def test_negative_prices_and_forecasts_are_said(call: Call, tmp_path: Path) -> None:
    head = "# unit: EUR/MWh\n# issued: 2026-10-31T12:00Z\n# u_rel: 0.05\n"
    (tmp_path / "spot.csv").write_text(head + ROWS.replace("300", "-3"))
    text = call("plan", "rates", "check", "spot.csv").stdout
    assert "below 0 for 1 h 00 min" in text
    assert "forecast    made 2026-10-31 12:00 UTC" in text
    assert "± 10.0 % (k = 2)" in text


def test_options_say_what_a_file_does_not_and_can_be_saved(call: Call, tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text(ROWS)
    error = call("plan", "rates", "check", "grid.csv", code=2).stderr
    assert "which unit" in error
    options = ("--kind", "marginal", "--unit", "lb/MWh", "--zone", "CAISO")
    assert "CAISO" in call("plan", "rates", "check", "grid.csv", *options).stdout
    assert not (tmp_path / "grid.toml").exists()
    call("plan", "rates", "check", "grid.csv", *options, "--save")
    assert tomllib.loads((tmp_path / "grid.toml").read_text()) == {
        "kind": "marginal",
        "unit": "lb/MWh",
        "zone": "CAISO",
    }
    assert "136.1 to 154.2" in call("plan", "rates", "check", "grid.csv").stdout
    assert "not written over" in call("plan", "rates", "check", "grid.csv", *options, "--save", code=2).stderr
    assert "nothing to save" in call("plan", "rates", "check", "grid.csv", "--save", code=2).stderr
    assert "no such file" in call("plan", "rates", "check", "none.csv", *options, code=2).stderr


def test_all_rates_are_listed(call: Call) -> None:
    text = call("plan", "rates", "list").stdout
    assert is_narrow(text)
    assert "Electricity Maps" in text
    assert "missing" in text
    assert "-> joulelab plan rates fetch em:DE --forecast" in text
    told = json.loads(call("plan", "rates", "list", "--json").stdout)
    assert {row["zone"] for row in told["table"]} >= {"DE", "FR", "US", "WORLD"}
    assert [(one["service"], bool(one["problem"])) for one in told["services"]] == [("em", True)]
    assert told["kept"] == []


def test_the_table_can_be_kept_and_edited(call: Call, tmp_path: Path) -> None:
    text = call("plan", "rates", "table").stdout
    (tmp_path / "mine.toml").write_text(text.replace("g_per_kwh = 381", "g_per_kwh = 400"))
    assert "400 g/kWh" in call("plan", "rates", "check", "table:mine.toml:DE").stdout
    assert is_narrow(call("plan", "rates", "table", "mine.toml").stdout)
    rows = json.loads(call("plan", "rates", "table", "mine.toml", "--json").stdout)
    assert 400 in [row["g_per_kwh"] for row in rows]
    assert "a.toml" in call("plan", "rates", "table", "a.toml", code=2).stderr


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve two hours on loopback as Electricity Maps."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hours = [("00:00", 200), ("01:00", 100)]
            items = [{"datetime": f"2025-11-01T{hour}Z", "carbonIntensity": value} for hour, value in hours]
            data = json.dumps({"zone": "DE", "data": items}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        settings = tmp_path / "rates.toml"
        settings.write_text(f'[em]\naddress = "http://127.0.0.1:{server.server_address[1]}"\n')
        monkeypatch.setenv("JOULELAB_RATES", str(settings))
        monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", "a-key-of-the-test")
        yield
        server.shutdown()
        thread.join()


@pytest.mark.system
@pytest.mark.usefixtures("service")
def test_what_is_fetched_is_kept_and_can_be_used(call: Call, tmp_path: Path) -> None:
    times = ("--since", "2025-11-01", "--until", "2025-11-01T03:00Z")
    result = call("plan", "rates", "fetch", "em:DE", *times)
    assert "mean 150.0 g/kWh" in result.stdout
    assert "tells nothing after 2025-11-01 02:00 UTC" in result.stderr
    assert len(list((tmp_path / "joulelab-rates").glob("em-DE/actual-*.json"))) == 1
    listed = call("plan", "rates", "list").stdout
    assert "em-DE/actual-20251101T000000Z" in listed
    assert is_narrow(listed)
    assert "mean 150.0 g/kWh" in call("plan", "rates", "check", "kept:em-DE").stdout
    told = json.loads(call("plan", "rates", "fetch", "em:DE", *times, "--kept", "there", "--json").stdout)
    assert len(list((tmp_path / "there").glob("*/*.json"))) == 1
    assert told["spec"] == "kept:em-DE/actual-20251101T000000Z"


def test_what_cannot_be_fetched_is_told(call: Call) -> None:
    assert "needs a key" in call("plan", "rates", "fetch", "em:DE", code=2).stderr
    assert "there is no service 'foo'" in call("plan", "rates", "fetch", "foo", code=2).stderr
    assert "is no time" in call("plan", "rates", "fetch", "em:DE", "--since", "soon", code=2).stderr


def test_a_removed_service_says_what_to_use_instead(call: Call) -> None:
    for spec in ("gb", "watttime:CAISO_NORTH", "entsoe:DE-LU"):
        for words in (("fetch", spec), ("check", spec)):
            said = call("plan", "rates", *words, code=2).stderr
            assert "was removed; use a CSV file of its values (FILE.csv), or Electricity Maps" in " ".join(said.split())
