"""A real server on loopback, attacked: names, methods, paths, sizes, slow and many clients, vanishing runs."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import warnings
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from tests.dashboard.conftest import started
from tests.dashboard.http_flood import KINDS, ask, open_clients, serve_dashboard
from tests.report.synthetic import make_run
from tests.waiting import until

from joulelab.core.errors import ConfigError
from joulelab.dashboard import app as app_module
from joulelab.dashboard import server as server_module
from joulelab.dashboard import slow_work as slow_work_module
from joulelab.dashboard.app import make_app
from joulelab.dashboard.security import MOST_WRONG, Doors
from joulelab.dashboard.server import in_background

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dashboard.conftest import Asked, Stores

pytestmark = pytest.mark.system

TOKEN = "a-token-for-the-tests-0123"


def raw(url: str, request: bytes, *, wait: float = 120.0) -> bytes:
    """Send bytes as they are, and return what comes back until the other side closes."""
    parts = urlsplit(url)
    answer = b""
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=wait) as connection:
        connection.sendall(request)
        while part := connection.recv(65536):
            answer += part
    return answer


def asked(url: str, target: str, *, method: str = "GET", host: str = "localhost") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    return raw(url, head.encode("latin-1"))


@pytest.mark.parametrize(
    "path",
    [
        "/runs/../../../etc/passwd",
        "/runs/..%2f..%2f..%2fetc%2fpasswd",
        "/runs/%2e%2e/%2e%2e/etc/passwd",
        "/runs/..%252f..%252fetc%252fpasswd",
        "/runs/%2fetc%2fpasswd",
        "/runs/20261101-000000-0001%00",
        "/runs/%00",
        "/runs/.",
        "/runs/..",
        "/runs/",
        "//etc/passwd",
        "/static/..%2f..%2fapp.py",
        "/static/../app.py",
        "/static/app.py",
        "/static/%2e%2e%2fserver.py",
        "/studies/..%2fsweep",
        "/studies/sweep%2fcells",
        "/api/runs/..%2f..%2fx/power",
        "/runs/%ff%fe",
        "/runs/" + "a" * 5000,
        "/../../etc/passwd",
        "/runs\\..\\..",
        "/api/",
        "/favicon.ico",
    ],
)
def test_no_path_leads_out_of_the_index(served: Asked, path: str) -> None:
    answer = asked(served.url, path)
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), answer[:200]
    for word in (b"root:", b"import ", str(served.stores.root).encode()):
        assert word not in answer


@pytest.mark.parametrize("name", ["link", "inner", "torn", "empty"])
def test_broken_runs_and_links_are_told_and_not_followed(served: Asked, name: str) -> None:
    run = served.stores.ids[name]
    for path in (
        f"/runs/{run}",
        f"/api/runs/{run}",
        f"/api/runs/{run}/power",
        f"/compare?run={run}&run={served.stores.ids['first']}",
    ):
        answer = served.get(path)
        assert answer.status_code in (404, 500), path
        assert "Traceback" not in answer.text
        assert str(served.stores.root) not in answer.text
    assert served.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "localhost, evil.example", "10.0.0.1"])
def test_other_host_headers_are_turned_away(served: Asked, host: str) -> None:
    answer = asked(served.url, "/api/runs", host=host)
    assert answer.startswith((b"HTTP/1.1 421", b"HTTP/1.1 400"))
    assert b"resnet" not in answer
    assert raw(served.url, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(
        (b"HTTP/1.1 400", b"HTTP/1.1 421")
    )
    two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(served.url, two).startswith((b"HTTP/1.1 400", b"HTTP/1.1 421"))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_nothing_can_be_changed(served: Asked, method: str) -> None:
    for path in ("/", f"/runs/{served.stores.ids['first']}", "/api/runs", "/studies/sweep"):
        assert served.client.request(method, path).status_code == 405
    assert (served.stores.runs / served.stores.ids["first"] / "run.json").exists()


def test_every_answer_has_the_headers(served: Asked) -> None:
    first = served.stores.ids["first"]
    for path in (
        "/",
        "/studies",
        f"/runs/{first}",
        "/runs/none",
        "/api/runs",
        "/api/none",
        "/static/page.css",
        "/?page=x",
    ):
        headers = served.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
        assert "no-cache" in headers["cache-control"] or path.startswith("/static/")


def test_pages_of_other_sites_may_link_and_nothing_else(served: Asked) -> None:
    site = {"sec-fetch-site": "cross-site"}
    assert served.get("/api/runs", headers=site | {"sec-fetch-mode": "no-cors"}).status_code == 403
    assert served.get("/", headers=site | {"sec-fetch-mode": "navigate"}).status_code == 200


def test_what_is_had_already_is_not_sent_again(served: Asked) -> None:
    for path in ("/studies", "/api/runs?study=*", "/static/dashboard.js", f"/runs/{served.stores.ids['first']}"):
        first = served.get(path)
        again = served.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b""), path
    head = served.client.head("/studies")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "query",
    [
        "page=x",
        "nonsense=1",
        "q=" + "x" * 500,
        "size=100000",
        "from=tomorrow",
        "sort=__init__",
        "q=%00%ff",
        "&&&=&",
        "q=%",
    ],
)
def test_odd_queries_are_answered_in_words(served: Asked, query: str) -> None:
    for path in ("/", "/api/runs"):
        assert served.get(f"{path}?{query}").status_code in (200, 400)
    assert served.get("/?q=" + "y" * 9000).status_code == 414


def test_large_heads_and_garbage_are_refused(served: Asked) -> None:
    assert raw(served.url, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000).startswith(b"HTTP/1.1 400")
    assert raw(served.url, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert served.get("/").status_code == 200


def test_fifty_at_once(served: Asked) -> None:
    ids = served.stores.ids
    paths = ["/", "/api/runs?q=resnet", f"/runs/{ids['first']}", f"/api/runs/{ids['second']}/power?buckets=50"] * 12

    async def ask() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=120) as client:
            return await asyncio.gather(*(client.get(path) for path in paths))

    assert {answer.status_code for answer in asyncio.run(ask())} == {200}


SLOW = (
    b"GET / HTTP/1.1\r\nHost: local",
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\ntoken=",
)


def test_slow_clients_hold_up_nobody_and_are_left(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_background(stores.runs, None, Doors(token=TOKEN)) as (server, _), contextlib.ExitStack() as stack:
        parts = urlsplit(server.url)

        def connect(request: bytes) -> socket.socket:
            opened = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=120)
            stack.enter_context(opened).sendall(request)
            return opened

        monkeypatch.setattr(server_module, "HEADER_S", 600.0)
        for request in SLOW * 10:
            connect(request)
        assert httpx.get(f"{server.url}login", timeout=120).status_code == 200
        monkeypatch.setattr(server_module, "HEADER_S", 0.2)
        for connection in [connect(request) for request in SLOW]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1000) == b""


def test_a_token_is_asked_for_and_taken(stores: Stores) -> None:
    with (
        in_background(stores.runs, stores.studies, Doors(token=TOKEN)) as (server, _),
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        for path in ("/", "/studies", "/runs/x", "/compare"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["location"], answer.content) == (303, "/login", b"")
        for path in ("/api/runs", "/api/runs/x/power", "/api/studies"):
            assert client.get(path).status_code == 401
        assert client.get(f"/api/runs?token={TOKEN}").status_code == 401
        assert client.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/api/runs", headers={"authorization": f"Basic {TOKEN}"}).status_code == 401
        assert client.get("/login").status_code == client.get("/static/page.css").status_code == 200
        assert client.post("/login", data={"token": "wrong"}).status_code == 403
        assert client.post("/login", content=b"token=" + b"x" * 10_000).status_code == 403
        assert client.post("/login", data={"token": TOKEN}, headers={"host": "evil.example"}).status_code == 421
        entered = client.post("/login", data={"token": TOKEN})
        cookie = entered.headers["set-cookie"]
        assert entered.status_code == 303
        assert TOKEN not in cookie
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Secure" not in cookie
        page = client.get("/")
        assert page.status_code == 200
        assert "Log out" in page.text
        assert TOKEN not in page.text
        assert client.post("/logout").status_code == 303
        assert client.get("/").status_code == 303


def test_tokens_cannot_be_guessed_quickly(stores: Stores, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        in_background(stores.runs, None, Doors(token=TOKEN)) as (server, _),
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        wrong = [client.post("/login", data={"token": f"guess-{k}"}).status_code for k in range(MOST_WRONG)]
        assert set(wrong) == {403}
        assert client.post("/login", data={"token": "guess"}).status_code == 429
        refused = client.get("/api/runs", headers={"authorization": "Bearer guess"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        assert "wait a minute" in refused.json()["error"]
        assert client.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.post("/login", data={"token": TOKEN}).status_code == 303, "whoever has the token comes in"
    with (
        in_background(stores.runs, None, Doors(token=TOKEN)) as (server, _),
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        for k in range(MOST_WRONG):  # those of programs count as well
            assert client.get("/api/runs", headers={"authorization": f"Bearer guess-{k}"}).status_code == 401
        assert client.post("/login", data={"token": "guess"}).status_code == 429
        assert client.post("/login", data={"token": TOKEN}).status_code == 303
    out, err = capfd.readouterr()
    assert TOKEN not in out + err


def test_programs_are_turned_away_in_json_and_people_in_words(stores: Stores) -> None:
    with in_background(stores.runs, None, Doors(token=TOKEN)) as (server, _):
        for path, kind in (("api/runs", "application/json"), ("runs/x", "text/plain; charset=utf-8")):
            answers = {
                421: httpx.get(f"{server.url}{path}", headers={"host": "evil.example"}, timeout=120),
                405: httpx.put(f"{server.url}{path}", timeout=120),
                414: httpx.get(f"{server.url}{path}?q={'y' * 9000}", timeout=120),
                403: httpx.get(f"{server.url}{path}", headers={"sec-fetch-site": "cross-site"}, timeout=120),
                401: httpx.get(f"{server.url}{path}", headers={"authorization": "Bearer wrong"}, timeout=120),
            }
            for status, answer in answers.items():
                assert (answer.status_code, answer.headers["content-type"]) == (status, kind)
                said = answer.json()["error"] if path.startswith("api") else answer.text.strip()
                assert re.fullmatch(r"[a-z][^\n]+", said)
                assert answer.headers["x-content-type-options"] == "nosniff"
        missing = httpx.get(f"{server.url}api/none", headers={"authorization": f"Bearer {TOKEN}"}, timeout=120)
        assert (missing.status_code, list(missing.json())) == (404, ["error"])


def test_what_nobody_expected_is_logged_and_not_told(
    served: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("inner detail of /etc/shadow")

    for module, name in ((app_module.api, "describe_run"), (app_module.lists, "write_runs_page")):
        monkeypatch.setattr(module, name, fails)
    for path in (f"/api/runs/{served.stores.ids['first']}?token=abc", "/?q=abc"):
        caplog.clear()
        answer = served.get(path)
        assert answer.status_code == 500
        assert "he answer could not be made" in answer.text
        assert "inner" not in answer.text
        assert "RuntimeError" not in answer.text
        (record,) = [each for each in caplog.records if each.name == "joulelab.dashboard"]
        assert record.getMessage() == f"GET {path.partition('?')[0]} failed"
        assert record.exc_info is not None
        assert "inner detail" in str(record.exc_info[1])
    caplog.clear()
    for path in ("/runs/none", "/?page=x", f"/api/runs/{served.stores.ids['torn']}/power"):
        assert served.get(path).status_code >= 400
    assert not caplog.records  # what is said in words is no surprise


def test_too_much_at_once_is_refused_for_a_moment(served: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_work_module, "MOST_WAITING", 0)
    run = served.stores.ids["first"]
    for path in (f"/runs/{run}", f"/api/runs/{run}"):
        answer = served.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "busy" in answer.text
    assert served.get("/").status_code == 200


def test_answers_are_packed_for_those_elsewhere(served: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    app, path = make_app(served.index, Doors("0.0.0.0", TOKEN)), f"/api/runs/{served.stores.ids['first']}/power"
    passed = iter(range(1_800_000_000, 1_900_000_000, 100))
    monkeypatch.setattr("gzip.time.time", lambda: float(next(passed)))  # the time must not be in what is packed

    async def ask(client: str, path: str, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=app, client=(client, 4242))  # type: ignore[arg-type]
        given = {"authorization": f"Bearer {TOKEN}", **{key.replace("_", "-"): text for key, text in headers.items()}}
        async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.1") as asked:
            return await asked.get(path, headers=given)

    plain = asyncio.run(ask("127.0.0.1", path, accept_encoding="gzip"))
    whole = asyncio.run(ask("10.0.0.9", path, accept_encoding="identity"))
    packed = asyncio.run(ask("10.0.0.9", path, accept_encoding="gzip"))
    assert ["content-encoding" in each.headers for each in (plain, whole, packed)] == [False, False, True]
    assert int(packed.headers["content-length"]) < len(plain.content)
    assert packed.content == plain.content == whole.content
    assert packed.headers["etag"] != whole.headers["etag"] == plain.headers["etag"]
    again = asyncio.run(ask("10.0.0.9", path, accept_encoding="gzip", if_none_match=packed.headers["etag"]))
    assert (again.status_code, again.content) == (304, b"")
    assert "content-encoding" not in again.headers
    for each in (plain, whole, packed, again):
        assert each.headers["vary"] == "cookie, accept-encoding"
    little = asyncio.run(ask("10.0.0.9", f"/api/runs/{served.stores.ids['none']}/power", accept_encoding="gzip"))
    assert "content-encoding" not in little.headers


def test_a_run_that_vanishes_while_it_is_shown(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made = make_run(runs, seconds=1.0, gpus=1, cpus=0, started=started(1))
    with (
        in_background(runs, None, Doors()) as (server, index),
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        index.settled()
        assert client.get(f"/runs/{made.name}").status_code == 200
        assert client.get(f"/api/runs/{made.name}/power").status_code == 200
        shutil.rmtree(made)
        for path in (f"/runs/{made.name}", f"/api/runs/{made.name}", f"/api/runs/{made.name}/power"):
            assert client.get(path).status_code == 404
        assert client.get("/").status_code == 200


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot be used"):
        server_module.bound("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="no such address"):
        server_module.bound("no.such.host.invalid", 0)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_flood_of_slow_clients_of_the_same_address_shuts_out_nobody(tmp_path: Path, kind: str) -> None:
    with serve_dashboard(tmp_path) as url, open_clients(url, kind, 420):
        assert ask(url, "/login") == 200
        with open_clients(url, kind, 100):
            assert ask(url, "/login") == 200


def test_a_second_request_has_a_time_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEADER_S", 0.2)
    with serve_dashboard(tmp_path) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=120) as connection:
            connection.sendall(b"HEAD /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.sendall(KINDS["half a head"])
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(4096) == b""


def test_an_answer_that_nobody_reads_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "READ_S", 0.2)
    monkeypatch.setattr(app_module, "read_asset", lambda _: bytes(16_000_000))
    with in_background(tmp_path, None, Doors()) as (server, _):
        connections = server.server.server_state.connections
        parts = urlsplit(server.url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=120) as connection:
            connection.sendall(b"GET /static/profile.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1) == b"H"
            until(lambda: not connections, "the connection is given up")


def test_tls_begins_at_1_2_and_a_stalled_handshake_is_cut_off(
    stores: Stores, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_background(stores.runs, None, Doors(token=TOKEN), certificate) as (server, _):
        with open_clients(server.url, "silent", 420):  # no handshake begins
            assert ask(server.url, "/login") == 200
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        parts = urlsplit(server.url)
        place = (parts.hostname or "", parts.port or 0)
        with socket.create_connection(place, timeout=120) as connection, pytest.raises(OSError, match=r"(?i)ssl|reset"):
            old.wrap_socket(connection)
        monkeypatch.setattr(server_module, "HEADER_S", 0.2)
        assert raw(server.url, b"\x16\x03\x01") == b"", "the beginning of a handshake, and nothing more"
        assert raw(server.url, b"GET / HTTP/1.1\r\n\r\n")[:4] != b"HTTP"
        with httpx.Client(base_url=server.url, verify=ssl.create_default_context(cafile=certificate[0])) as client:
            assert [client.get("/login", timeout=120).status_code for _ in range(3)] == [200] * 3


def test_a_key_with_a_password_is_refused_and_not_asked_for(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    words = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", certificate[1], "-out", key]
    subprocess.run(words, check=True, capture_output=True)
    with pytest.raises(ConfigError, match="cannot be used"):
        server_module.load_tls(certificate[0], key)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    cert, key = folder / "cert.pem", folder / "key.pem"
    try:
        subprocess.run([*words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key
