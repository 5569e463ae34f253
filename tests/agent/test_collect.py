"""Meters that hang, fail, refuse or appear late: a scrape always answers, with what is known and no more."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from tests.dashboard.http_flood import open_clients
from tests.waiting import until

from joulelab.agent import kept_meter as kept_module
from joulelab.agent import scrape_server
from joulelab.agent.collect import Collector
from joulelab.agent.metrics import METRICS, Metrics, samples
from joulelab.agent.scrape_server import MOST_CLIENTS, ScrapeServer
from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, Unavailable
from joulelab.recorder.plan import Plan

pytestmark = pytest.mark.system

pytest.importorskip("prometheus_client", reason="pip install 'joulelab[agent]'")
FAKE = str(Path(__file__).parents[1] / "recorder" / "fake.py")
SWITCHED = str(Path(__file__).parent / "switched.py")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look twenty times a second instead of once, and leave a meter that hangs behind soon."""
    monkeypatch.setattr("joulelab.agent.collect.TICK_NS", NS // 20)
    monkeypatch.setattr("joulelab.agent.collect.CLOSE_NS", NS // 5)


def plan(*configs, **more):
    meters = [{"meter": FAKE, "name": f"m{k}", "config": c, "paced": False} for k, c in enumerate(configs)]
    return Plan(Path(), "h", 1, meters=meters, **more)


def up(collector):
    return {h.meter: h.up for h in collector.seen().health}


def test_energy_power_and_health_of_a_meter():
    began_ns, began_s = time.monotonic_ns(), time.clock_gettime(time.CLOCK_REALTIME)
    with Collector(plan({"period_s": 0.05, "devices": 2})) as collector:
        until(lambda: up(collector) == {"m0": True})
        until(lambda: all(w.energy_j > 20 for w in collector.seen().streams))
        found = samples(collector.seen())
    passed_s, now_s = (time.monotonic_ns() - began_ns) / NS, time.clock_gettime(time.CLOCK_REALTIME)
    energy = found["joulelab_energy_joules_total"]
    assert len(energy) == 2
    assert all(key[3] == "counter" and 20 < joules <= 100 * passed_s for key, joules in energy.items())
    assert set(found["joulelab_power_watts"].values()) == {100.0}
    assert found["joulelab_meter_silent_streams"] == {("m0",): 0}
    assert began_s - 1 < found["joulelab_meter_last_reading_timestamp_seconds"][("m0",)] < now_s + 1


def test_a_meter_that_hangs_holds_up_neither_a_scrape_nor_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr("joulelab.analysis.live_state.STALE_S", 1.0)
    hangs = tmp_path / "hangs"
    meters = [
        {"meter": SWITCHED, "name": "m0", "config": {"period_s": 0.05, "hangs": str(hangs)}, "paced": False},
        {"meter": FAKE, "name": "m1", "config": {"period_s": 0.05}, "paced": False},
        {"meter": FAKE, "name": "m2", "config": {"hang_open_s": 600.0}, "paced": False},
    ]
    with Collector(Plan(Path(), "h", 1, meters=meters)) as collector:
        until(lambda: {w.meter for w in collector.seen().streams if w.energy_j > 0} == {"m0", "m1"})
        hangs.touch()

        def one_of_three():  # on a busy machine the second may be late too, and is there again a moment later
            seen = collector.seen()
            return seen if {h.meter: h.up for h in seen.health} == {"m0": False, "m1": True, "m2": False} else None

        seen = samples(until(one_of_three))
        with ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0) as server:
            text = fetch(server)
        hangs.unlink()
    assert 'joulelab_meter_up{meter="m0"} 0.0' in text
    assert {key[1] for key in seen["joulelab_power_watts"]} == {"m1"}, "a reading of long ago is no power"
    assert {key[1] for key in seen["joulelab_energy_joules_total"]} == {"m0", "m1"}, "its energy stands still"


def test_failures_are_gaps_that_are_counted_and_told(tmp_path):
    told: list[str] = []
    fails = tmp_path / "fails"
    meter = {"meter": SWITCHED, "name": "m0", "config": {"period_s": 0.05, "fails": str(fails)}, "paced": False}
    with Collector(Plan(Path(), "h", 1, meters=[meter]), tell=told.append) as collector:
        until(lambda: up(collector) == {"m0": True})
        fails.touch()
        until(lambda: collector.seen().health[0].errors == 1)
        before = collector.seen().health[0].last_s
        fails.unlink()
        until(lambda: (h := collector.seen().health[0]).up and h.last_s > before + 0.1)
        assert collector.seen().health[0].errors == 1
    assert told[0] == "m0: open"
    assert len(told) == 2


def test_a_usual_meter_that_is_not_there_is_no_matter_and_one_that_is_configured_is():
    absent = {"meter": FAKE, "name": "usual", "config": {"raises": "unavailable"}}
    wanted = {**absent, "name": "wanted", "paced": False}
    denied = {"meter": FAKE, "name": "denied", "config": {"raises": "denied"}}
    with Collector(Plan(Path(), "h", 1, meters=[absent, wanted, denied])) as collector:
        until(lambda: all(k.thread.status for k in collector.kept))
        assert up(collector) == {"wanted": False, "denied": False}


def test_what_was_lost_or_was_not_there_is_opened_anew_and_keeps_its_energy(monkeypatch, tmp_path):
    monkeypatch.setattr(kept_module, "ANEW_NS", NS // 5)
    appears, fails = tmp_path / "now", tmp_path / "fails"
    late = {"meter": FAKE, "name": "late", "config": {"appears": str(appears)}}
    lost = {"meter": SWITCHED, "name": "lost", "config": {"period_s": 0.05, "fails": str(fails)}, "paced": False}

    def energy_j():
        return [w.energy_j for w in collector.seen().streams if w.meter == "lost"]

    with Collector(Plan(Path(), "h", 1, meters=[late, lost])) as collector:
        until(lambda: any(joules > 0 for joules in energy_j()))
        assert "late" not in up(collector)
        appears.touch()
        until(lambda: up(collector).get("late"))
        fails.touch()
        until(lambda: collector.kept[1].opened >= 2)
        before = energy_j()
        until(lambda: collector.kept[1].opened >= 3)
        after = energy_j()
    assert len(after) == 1
    assert after[0] >= before[0] > 0


def test_secrets_stay_out_of_the_log():
    told: list[str] = []
    hidden = Plan(Path(), "h", 1, meters=[{"meter": FAKE, "name": "m", "config": {"raises": "bug"}, "hide": ["a bug"]}])
    with Collector(hidden, tell=told.append) as collector:
        until(lambda: collector.seen() and told)
    (line,) = told
    assert line.startswith(f"m: failed: ZeroDivisionError: *** ({FAKE}, line ")
    assert line.endswith(f"); correct that line; see joulelab doctor {FAKE}")


def fetch(server, path="/metrics", **more):
    scheme, (host, port) = server.scheme, server.address
    with OPENER.open(f"{scheme}://{host}:{port}{path}", timeout=120, **more) as answer:
        return answer.read().decode()


def test_scrapes_over_http():
    with Collector(plan({})) as collector, ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0) as server:
        text = fetch(server)
        for line in text.splitlines():
            name = line.split()[2] if line.startswith("#") else line.partition("{")[0].partition(" ")[0]
            assert name in METRICS, line
        for _ in range(2 * MOST_CLIENTS):
            assert "/metrics" in fetch(server, "/")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(server, "/../etc/passwd")
        with pytest.raises(urllib.error.HTTPError, match="405"):
            fetch(server, data=b"x")
        with pytest.raises(Unavailable, match="cannot listen"):
            ScrapeServer(Metrics(collector, {}), *server.address)


@pytest.mark.parametrize("kind", ["silent", "half a head"])
def test_clients_that_say_nothing_do_not_hold_up_others(kind):
    with Collector(plan({})) as collector, ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0) as server:
        with open_clients(f"http://127.0.0.1:{server.address[1]}", kind, 5 * MOST_CLIENTS):
            assert "joulelab_build_info" in fetch(server)
        until(lambda: not len(server._server.table), "all connections are forgotten")


def test_a_client_that_sends_byte_by_byte_is_cut_off(monkeypatch):
    monkeypatch.setattr(scrape_server, "PATIENCE_S", 0.3)
    monkeypatch.setattr(scrape_server, "LOOK_S", 0.05)
    with (
        Collector(plan({})) as collector,
        ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0) as server,
        socket.create_connection(server.address, timeout=120) as slow,
    ):
        until(lambda: _is_cut_off(slow), "the client is cut off", most_s=0.01)


def _is_cut_off(client):
    try:
        client.sendall(b"x")  # each byte would begin the time limit of a read anew
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


def test_a_name_that_is_not_ours_is_refused():
    def ask(server, *hosts):
        with socket.create_connection(server.address, timeout=120) as client:
            names = "".join(f"Host: {host}\r\n" for host in hosts)
            client.sendall(f"GET /metrics HTTP/1.0\r\n{names}\r\n".encode())
            return client.makefile("rb").read()

    with (
        Collector(plan({})) as collector,
        ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0, names=["node01-mgmt"]) as server,
    ):
        for host in ("localhost:9797", "127.0.0.1", "Node01-mgmt:9797"):
            assert b"joulelab_build_info" in ask(server, host), host
        for hosts in (["evil.example"], ["evil.example:9797"], [], ["localhost", "evil.example"]):
            answer = ask(server, *hosts)
            assert b" 421 " in answer.partition(b"\r\n")[0], hosts
            assert b"joulelab_build_info" not in answer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days"]
    words += ["2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*words, "-keyout", folder / "key", "-out", folder / "cert"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return folder


def test_scrapes_over_https_and_with_certificates_of_clients(certificate):
    cert, key = certificate / "cert", certificate / "key"
    context = ssl.create_default_context(cafile=cert)

    def ask(server):
        handler = urllib.request.HTTPSHandler(context=context)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), handler)
        with opener.open(f"https://127.0.0.1:{server.address[1]}/metrics", timeout=120) as answer:
            return answer.read()

    with Collector(plan({})) as collector:
        with ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0, certificate=cert, key=key) as server:
            silent = socket.create_connection(server.address)  # begins no handshake
            assert b"joulelab_build_info" in ask(server)
            silent.close()
        tls = {"certificate": cert, "key": key, "clients": cert}
        with ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0, **tls) as server:
            with pytest.raises(OSError, match=r"(?i)certificate|reset|eof|closed"):
                ask(server)
            context.load_cert_chain(cert, key)
            assert b"joulelab_build_info" in ask(server)
        with pytest.raises(ConfigError, match="certificate"):
            ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0, certificate=key, key=cert)
