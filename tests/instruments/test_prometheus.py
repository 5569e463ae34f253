"""The Prometheus meter and archive against Debian's prometheus and victoria-metrics with samples that are known."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time

import pytest
from tests.codes import raises_code
from tests.instruments import timeseries

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ReadFailed
from joulelab.instruments import open_meter
from joulelab.instruments import prometheus as module
from joulelab.instruments.prometheus import settings

pytestmark = pytest.mark.system

SCRAPE_S = 15
# The store's samples: two GPUs every 15 s for 30 min, with a hole of 4 min and a reset; one dense series.
BEGIN = int(time.clock_gettime(time.CLOCK_REALTIME)) // 3600 * 3600 - 8 * 3600
HOLE = range(40, 56)
TICKS = [n for n in range(120) if n not in HOLE]
DENSE = 11_200  # more points than a server gives at once


def watts(gpu: int, n: int) -> float:
    return 300 + 100 * gpu + (n % 7) * 10


def joules(gpu: int, n: int) -> float:
    return (n - (80 if n >= 80 else 0)) * 4500.5 + gpu


def when(n: float) -> float:
    return BEGIN + n * SCRAPE_S + 0.25


def known() -> dict[str, list[tuple[float, str]]]:
    found: dict[str, list[tuple[float, str]]] = {}
    for gpu in (0, 1):
        labels = f'{{gpu="{gpu}",instance="n7:9400"}}'
        found[f"DCGM_FI_DEV_POWER_USAGE{labels}"] = [(when(n), repr(watts(gpu, n))) for n in TICKS]
        counter = [(when(n), repr(joules(gpu, n) * 1000)) for n in TICKS]
        found[f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{labels}"] = counter
    odd = {5: "NaN", 6: "+Inf", 7: "0"}
    readings = [(when(n), odd.get(n, "700.0")) for n in range(12)]
    found['ipmi_dcmi_power_consumption_watts{instance="n7:9290"}'] = readings
    found["dense_watts{}"] = [(float(BEGIN + n), repr(float(n))) for n in range(DENSE)]
    return found


def test_an_answer_above_64_mb_is_not_read_to_its_end():
    ended = threading.Event()

    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(200):  # MB
                    self.wfile.write(b"[" * 1_000_000)
                ended.set()

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {"address": f"http://127.0.0.1:{server.server_port}", "timeout_s": 60.0, "preset": "ipmi"}
        client = settings.open_client(settings.read_settings(config))
        with contextlib.closing(client), raises_code("read-failed.too-long"):
            client.list_metrics()
        server.shutdown()
    assert not ended.is_set()


@pytest.fixture(scope="module")
def prom(tmp_path_factory):
    lines = [
        f"{series} {value} {at:.3f}\n" for series, samples in known().items() for at, value in samples
    ]  # grouped by metric, as the format wants it
    with timeseries.prometheus(tmp_path_factory.mktemp("prometheus"), "".join(lines)) as address:
        yield address


@pytest.fixture(scope="module")
def victoria(tmp_path_factory):
    with timeseries.victoria(tmp_path_factory.mktemp("victoria")) as address:
        rows = [f"{s} {v} {round(at * 1000)}" for s, samples in known().items() for at, v in samples]
        timeseries.put(address, "\n".join(rows) + "\n")
        yield address


@pytest.fixture(params=["prom", "victoria"])
def server(request):
    return request.getfixturevalue(request.param), request.param


@pytest.fixture
def fetch():
    with contextlib.ExitStack() as stack:

        def ask(config, start, end):
            archive = stack.enter_context(
                contextlib.closing(module.open_archive({"label": "p", "timeout_s": 60.0} | config))
            )
            return archive.fetch(round(start * NS), round(end * NS))

        yield ask


def times(fetched):
    return [t1 / NS for _, t1, _ in fetched.rows]


def test_raw_samples_are_those_that_were_scraped(server, fetch):
    address, _ = server
    got = fetch({"address": address, "preset": "dcgm"}, BEGIN, when(119) + 1)
    assert [f.stream.scope for f in got] == ["gpu:0", "gpu:1"]
    for gpu, one in enumerate(got):
        assert [c.name for c in one.stream.channels] == ["energy_j", "power_w"]
        assert times(one) == [when(n) for n in TICKS]
        assert [row[2][1] for row in one.rows] == [watts(gpu, n) for n in TICKS]
        assert [row[2][0] for row in one.rows] == pytest.approx([joules(gpu, n) for n in TICKS])
        assert one.stream.period_s == SCRAPE_S
        # Energy up to the reset by the counter, and by the powers where they have no hole, as known.
        values = [row[2] for row in one.rows]
        assert values[39][0] - values[0][0] == pytest.approx(joules(gpu, 39) - joules(gpu, 0))
        by_power = sum((values[k][1] + values[k + 1][1]) / 2 * SCRAPE_S for k in range(39))
        assert by_power == pytest.approx(sum((watts(gpu, k) + watts(gpu, k + 1)) / 2 * SCRAPE_S for k in range(39)))


def test_the_interval_and_its_neighbours(server, fetch):
    address, _ = server
    got = fetch({"address": address, "preset": "dcgm", "match": 'gpu="1"'}, when(10) + 1, when(12) + 1)
    assert [f.stream.scope for f in got] == ["gpu:1"]
    assert times(got[0]) == [when(n) for n in (10, 11, 12, 13)]
    inside = fetch({"address": address, "preset": "dcgm", "match": 'gpu="1"'}, when(42), when(50))
    assert times(inside[0]) == [when(39), when(56)], "in the hole there is nothing, on either side one sample"


def test_more_points_than_a_server_gives_at_once(server, fetch):
    address, _ = server
    raw = fetch({"address": address, "queries": [{"query": "dense_watts"}]}, BEGIN, BEGIN + DENSE)
    assert [row[2][0] for row in raw[0].rows] == [float(n) for n in range(DENSE)]


def test_what_is_no_reading_is_left_out_and_told(server, fetch):
    address, kind = server
    got = fetch({"address": address, "preset": "ipmi"}, BEGIN, when(20))
    left = [n for n in range(12) if n not in (5, 6, 7)]
    assert times(got[0]) == [when(n) for n in left]
    assert {row[2][0] for row in got[0].rows} == {700.0}
    told = [event["what"] for event in got[0].events]
    assert len(told) == 1
    # VictoriaMetrics does not keep NaN at all.
    assert f"{3 if kind == 'prom' else 2} samples are no readings" in told[0]


def test_what_is_missing_is_told_with_what_there_is(server, fetch):
    address, _ = server
    for config, words in (
        ({"queries": [{"query": "DCGM_FI_DEV_POWR_USAGE"}]}, "near to it: DCGM_FI_DEV_POWER_USAGE"),
        ({"preset": "dcgm", "match": 'instance="n8:9400"'}, 'instance="n7:9400"'),
        ({"preset": "scaphandre"}, "near to it"),
    ):
        with raises_code("unavailable.no-series") as caught:
            fetch({"address": address} | config, BEGIN, when(20))
        assert words in str(caught.value)
    with raises_code("config.two-series"):
        fetch({"address": address, "queries": [{"query": "DCGM_FI_DEV_POWER_USAGE", "scope": "gpu"}]}, BEGIN, when(9))
    with raises_code("config.unknown-label"):
        fetch({"address": address, "queries": [{"query": "DCGM_FI_DEV_POWER_USAGE", "scope": "{gpi}"}]}, BEGIN, when(9))
    with raises_code("config.promql"):
        fetch({"address": address, "queries": [{"query": 'x{a=~"("}'}]}, BEGIN, when(9))


def test_hosts_by_label_and_units(server, fetch):
    address, _ = server
    config = {"address": address, "preset": "dcgm", "host": "{instance}", "match": 'gpu="0"'}
    assert [f.host for f in fetch(config, BEGIN, when(3))] == ["n7"]
    query = {"query": "dense_watts", "unit": "kWh", "scope": "rack", "modulus": 100.0, "scale": 0.5}
    got = fetch({"address": address, "queries": [query]}, BEGIN + 10, BEGIN + 12)[0]
    assert [row[2][0] for row in got.rows] == [n * 0.5 * 3.6e6 for n in (9, 10, 11, 12, 13)]
    spec = got.stream.channels[0]
    assert (spec.name, spec.kind, spec.unit, spec.modulus) == ("energy_j", "counter", "J", 1.8e8)
    assert spec.accuracy.source == "unknown"


def test_live_the_newest_sample_and_its_age(victoria):
    """VictoriaMetrics hides the newest 30 s from evaluated queries; raw samples are there at once."""
    now = read_utc_ns()
    put = "".join(f'live_watts{{n="{k}"}} {100 + k} {now // 1_000_000 - 1000 * k}\n' for k in range(3))
    timeseries.put(victoria, put)
    config = {"address": victoria, "label": "p", "queries": [{"query": "live_watts", "scope": "outlet:p.{n}"}]}
    config["timeout_s"] = 60.0
    with contextlib.closing(open_meter("prometheus", config)) as meter:
        streams = meter.streams()
        assert [(s.scope, s.sums, s.parts) for s in streams] == [(f"outlet:p.{k}", "node.ac", 3) for k in range(3)]
        for k, stream in enumerate(streams):
            value, age_s = meter.read(stream)
            assert value == 100 + k
            assert k <= age_s < k + 110, "no older than what is looked back for"
            assert [c.quantity for c in stream.channels] == ["power", "age"]
            assert stream.channels[0].lag_s == stream.channels[0].update_s == 1.0


def test_it_dies_and_returns(tmp_path):
    with contextlib.ExitStack() as stack:
        with timeseries.victoria(tmp_path) as address:
            timeseries.put(address, f"live_watts 250 {read_utc_ns() // 1_000_000}\n")
            config = {"address": address, "label": "p", "queries": [{"query": "live_watts"}], "timeout_s": 60.0}
            meter = stack.enter_context(contextlib.closing(open_meter("prometheus", config | {"lookback_s": 600})))
            stream = meter.streams()[0]
            assert meter.read(stream)[0] == 250
        with pytest.raises(ReadFailed, match="refused"):
            meter.read(stream)
        with timeseries.victoria(tmp_path, int(address.rpartition(":")[2])) as again:
            timeseries.put(again, f"live_watts 260 {read_utc_ns() // 1_000_000}\n")
            assert meter.read(stream)[0] == 260


def test_live_a_target_that_is_down_may_return(victoria):
    timeseries.put(victoria, f"gone_watts 1 {read_utc_ns() // 1_000_000 - 600_000}\n")
    config = {"address": victoria, "label": "p", "queries": [{"query": "gone_watts"}], "timeout_s": 60.0}
    with raises_code("read-failed.no-sample"):
        open_meter("prometheus", config)
    with contextlib.closing(open_meter("prometheus", config | {"lookback_s": 3600})) as meter:
        assert meter.read(meter.streams()[0])[1] >= 600, "old, and it says so"
    with raises_code("unavailable.no-series"):
        open_meter("prometheus", config | {"queries": [{"query": "gone_watt"}]})


class Canned:
    """Answer every query with one sample, late; or with what a test puts there."""

    def __init__(self) -> None:
        self.delay_s, self.status, self.body, self.seen = 0.0, 200, None, []
        self.released = threading.Event()
        canned = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                canned.seen.append((self.path, self.headers.get("Authorization")))
                canned.released.wait(canned.delay_s)
                at = read_utc_ns() / NS
                series = [{"metric": {"__name__": "x"}, "values": [[round(at, 3), "5"]]}]
                answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
                body = canned.body if canned.body is not None else json.dumps(answer).encode()
                with contextlib.suppress(OSError):
                    self.send_response(canned.status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def test_slow_and_odd_answers():
    with Canned() as canned:
        config = {"address": canned.address, "label": "p", "queries": [{"query": "x"}], "timeout_s": 3.0}
        canned.delay_s = 0.1
        with contextlib.closing(open_meter("prometheus", config)) as meter:
            stream = meter.streams()[0]
            assert meter.read(stream)[0] == 5
            canned.delay_s = 600.0
            with pytest.raises(ReadFailed, match="in time"):
                meter.read(stream)
            canned.delay_s = 0.0
            for body in (
                b"",
                b"<html>",
                b"[]",
                b"{}",
                b'{"status":"success","data":{"resultType":"vector","result":[]}}',
            ):
                canned.body = body
                with pytest.raises(ReadFailed):
                    meter.read(stream)
            canned.body = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
            with raises_code("read-failed.no-sample"):
                meter.read(stream)
            canned.status, canned.body = 503, b'{"status":"error","errorType":"timeout","error":"query timed out"}'
            with pytest.raises(ReadFailed, match="timed out"):
                meter.read(stream)
            canned.status, canned.body = 200, None
            assert meter.read(stream)[0] == 5


def test_one_question_serves_all_streams(victoria, monkeypatch):
    now = read_utc_ns() // 1_000_000
    timeseries.put(victoria, "".join(f'many_watts{{n="{k}"}} {k + 1} {now}\n' for k in range(20)))
    config = {
        "address": victoria,
        "label": "p",
        "queries": [{"query": "many_watts", "scope": "gpu:{n}"}],
        "period_s": 600.0,
        "timeout_s": 60.0,
    }
    with contextlib.closing(open_meter("prometheus", config)) as meter:
        asked = []
        real = meter._client.fetch_raw
        monkeypatch.setattr(meter._client, "fetch_raw", lambda *a: asked.append(a) or real(*a))
        for _ in range(3):
            assert [meter.read(s)[0] for s in meter.streams()] == [k + 1 for k in range(20)]
        assert len(asked) == 3


def test_live_a_server_with_old_samples_only(prom):
    with raises_code("read-failed.no-sample") as caught:
        open_meter("prometheus", {"address": prom, "label": "p", "preset": "ipmi", "timeout_s": 60.0})
    assert "within a day, none within 120 s" in caught.value.why


def test_servers_that_cannot_be_queried():
    config = {"label": "p", "timeout_s": 60.0, "preset": "ipmi"}
    with pytest.raises(ReadFailed, match="refused"):
        open_meter("prometheus", config | {"address": "http://127.0.0.1:1"})
    with Canned() as canned:
        canned.status, canned.body = 404, b"nothing here"
        with raises_code("unavailable.not-prometheus"):
            open_meter("prometheus", config | {"address": canned.address})


def test_credentials_go_to_the_server_and_nowhere_else():
    with Canned() as canned:
        base = {"address": canned.address, "label": "p", "queries": [{"query": "x"}]}
        for more in ({"user": "me", "password": "s3cret-word"}, {"token": "s3cret-word"}):
            with contextlib.closing(open_meter("prometheus", base | more)) as meter:
                assert "s3cret-word" not in repr(meter.streams())
            canned.status, canned.body = 401, b""
            with pytest.raises(module.MeterError) as caught:
                open_meter("prometheus", base | more)
            assert type(caught.value).__name__ == "Denied"
            assert "s3cret-word" not in str(caught.value)
            canned.status, canned.body = 200, None
        sent = [header for _, header in canned.seen]
        assert any(h and h.startswith("Basic ") for h in sent)
        assert "Bearer s3cret-word" in sent
    assert set(module.SECRETS) == {"password", "token"}
