"""`joulelab plan rates`: check, fetch, list and table, as they are typed; and refusals."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from tests.plan.bad_inputs import check_refusal

from joulelab.plan.commands import COMMANDS
from joulelab.plan.rates.rates_command import command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Call

HEAD = "# kind: average\n# unit: g/kWh\n# zone: DE\n"
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
days = "mon,wed,fri"
months = "nov-feb"
[demand]
price_per_kw = 100
per = "year"
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ELECTRICITY_MAPS_TOKEN", "ELECTRICITY_MAPS_TOKEN_FILE", "ELECTRICITY_MAPS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def is_short(text: str) -> bool:
    return all(len(line) <= 80 for line in text.splitlines()) and len(text.splitlines()) <= 25


def test_its_help_is_that_of_the_group() -> None:
    assert command.help is not None
    assert command.help.splitlines()[0] == COMMANDS["rates"]


def test_a_series_is_described_with_its_gaps(call: Call, tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text(HEAD + "# issued: 2026-10-31T12:00Z\n# u_rel: 0.05\n" + ROWS)
    text = call("plan", "rates", "check", "grid.csv").stdout
    assert is_short(text)
    words = " ".join(text.split())
    assert words.startswith("grid.csv is a forecast of an average carbon intensity")
    for part in ("300.0 to 340.0 g/kWh, mean 320.0", "± 10.0 % (k = 2)", "2 gaps, 2 h 00 min together"):
        assert part in words, part
    assert "2026-11-01 03:00 UTC to 2026-11-01 04:00 UTC" in text
    data = json.loads(call("plan", "rates", "check", "grid.csv", "--json").stdout)
    assert (data["low"], data["high"], data["unit"], data["label"]["kind"]) == (300, 340, "g/kWh", "average")
    assert [g["until_utc_s"] - g["since_utc_s"] for g in data["gaps"]] == [3600, 3600]


def test_a_tariff_is_described_with_its_rules(call: Call, tmp_path: Path) -> None:
    (tmp_path / "city.toml").write_text(TARIFF)
    text = call("plan", "rates", "check", "city.toml").stdout
    assert is_short(text)
    assert "-0.01  mon,wed,fri 00:00-06:00, 22:00-24:00 in jan-feb,nov-dec" in text
    assert "0.3  all other hours" in text
    assert "100 EUR per kW of the highest power per year" in " ".join(text.split())
    data = json.loads(call("plan", "rates", "check", "city.toml", "--json").stdout)
    assert data["demand"] == {"amount": 100, "per": "year"}
    assert data["rules"][1] == {"name": "otherwise", "price": 0.3, "hours": "all other hours"}


def test_figures_rows_and_services_are_described_without_a_network(call: Call) -> None:
    assert "363 g/kWh at all times" in " ".join(call("plan", "rates", "check", "table:DE:2024").stdout.split())
    assert "0.32 EUR/kWh at all times" in call("plan", "rates", "check", "32ct").stdout
    data = json.loads(call("plan", "rates", "check", "em:DE", "--json").stdout)
    assert (data["form"], data["low"]) == ("service", None)
    assert is_short(call("plan", "rates", "list").stdout)
    zones = {row["zone"] for row in json.loads(call("plan", "rates", "list", "--json").stdout)["table"]}
    assert zones >= {"DE", "FR", "US", "WORLD"}


def test_the_table_can_be_copied_and_edited(call: Call, tmp_path: Path) -> None:
    text = call("plan", "rates", "table").stdout
    (tmp_path / "mine.toml").write_text(text.replace("g_per_kwh = 381", "g_per_kwh = 400"))
    assert "400 g/kWh" in " ".join(call("plan", "rates", "check", "table:mine.toml:DE").stdout.split())
    assert "table:mine.toml:ZONE" in call("plan", "rates", "table", "mine.toml").stdout
    rows = json.loads(call("plan", "rates", "table", "mine.toml", "--json").stdout)
    assert 400 in [row["g_per_kwh"] for row in rows]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
        monkeypatch.setenv("ELECTRICITY_MAPS_ADDRESS", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("ELECTRICITY_MAPS_TOKEN", "a-key-of-the-test")
        yield
        server.shutdown()
        thread.join()


@pytest.mark.system
@pytest.mark.usefixtures("service")
def test_a_fetched_series_is_a_file_that_every_plan_reads(call: Call, tmp_path: Path) -> None:
    words = ("plan", "rates", "fetch", "em:DE", "--since", "2025-11-01", "--until", "2025-11-01T03:00Z", "--to")
    result = call(*words, "de.csv")
    assert "mean 150.0" in result.stdout
    assert "wrote de.csv" in result.stderr
    assert "a-key-of-the-test" not in (tmp_path / "de.csv").read_text()
    data = json.loads(call("plan", "rates", "check", "de.csv", "--json").stdout)
    assert (data["mean"], data["label"]["zone"], data["label"]["covers"]) == (150.0, "DE", "lifecycle")
    check_refusal([*words, "de.csv"], "config", "the file exists")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("check grid.csv", "config", "does not state its unit"),
        ("check huge.csv", "config", "3e+300 g/kWh is not a rate"),
        ("check none.csv", "config", "cannot read the series"),
        ("check cheap", "config", "'cheap' is not a rate"),
        ("check gb", "config", "the service 'gb' was removed"),
        ("check bad.toml", "config", "bad.toml:2: unknown key 'prise'"),
        ("check both.toml", "config", "'a' and 'b' overlap: mon 08:00 in jan"),
        ("check zone.toml", "config", "the tariff has no time zone"),
        ("check table:", "config", "the table needs a zone"),
        ("table none.toml", "config", "cannot read the table"),
        ("fetch em:DE --to x.csv", "config", "needs a key"),
        ("fetch em --to x.csv", "config", "no zone is given"),
        ("fetch em:DE", "usage", "--to"),
        ("fetch em:DE --to x.csv --since soon", "usage", "is not a time"),
        ("fetch entsoe:DE --to x.csv", "config", "the service 'entsoe' was removed"),
        ("fetch 380 --to x.csv", "config", "'380' is not a service"),
    ],
)
def test_bad_input_is_refused(call: Call, tmp_path: Path, words: str, code: str, said: str) -> None:
    assert call is not None  # in its folder
    rule = '[[rules]]\nname = "{}"\nprice = 1\nhours = "08:00-12:00"\n'
    files = {
        "grid.csv": ROWS,
        "huge.csv": HEAD + ROWS.replace(",300", ",3e300"),
        "bad.toml": 'unit = "EUR/kWh"\nprise = 3\n',
        "both.toml": 'unit = "EUR/kWh"\ntime_zone = "UTC"\nprice = 1\n' + rule.format("a") + rule.format("b"),
        "zone.toml": 'unit = "EUR/kWh"\nprice = 1\n' + rule.format("a"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    check_refusal(["plan", "rates", *words.split()], code, said)
