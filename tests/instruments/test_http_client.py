from __future__ import annotations

import json
import random
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from joulelab.core.errors import ConfigError, Denied, ReadFailed, Unavailable
from joulelab.instruments.http import Auth, HttpClient, parse_json, plain_fingerprint, reach


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str]]]
    ended: threading.Event

    def do_GET(self):
        self.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        name = self.path.split("?")[0].strip("/")
        if name == "trickle":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(1000):
                self.wfile.write(b" ")
                if self.ended.wait(0.05):
                    break
            return
        if name == "cut":
            self.close_connection = True
            return
        status = int(name) if name.isdecimal() else 200
        body = {"words": b"hello", "long": b"[" + b"1," * 5000 + b"1]", "nan": b'{"a": NaN}', "deep": b"[" * 100_000}
        data = body.get(name, b'{"ok": 1}')
        self.send_response(302 if name in ("here", "there", "round") else status)
        places = {"here": "/good", "there": "http://127.0.0.2:1/good", "round": "/round"}
        if name in places:
            self.send_header("Location", places[name])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.command, self.path, json.loads(body)))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Handler.seen, Handler.ended = [], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        Handler.ended.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def client(server):
    made = HttpClient(server, timeout_s=60.0, label="bmc7")
    yield made
    made.close()
    made.close()


@pytest.mark.system
def test_asks_over_one_connection(client):
    assert client.get_json("/good", {"a": "1 2"}) == {"ok": 1}
    assert client.ask("POST", "/make", body={"b": 2}).status == 201
    (_, path, headers), (_, _, body) = Handler.seen
    assert path in ("/good?a=1+2", "/good?a=1%202")
    assert headers["accept"] == "application/json"
    assert body == {"b": 2}


@pytest.mark.system
@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("/401", Denied, "HTTP 401"),
        ("/403", Denied, "HTTP 403"),
        ("/404", Unavailable, "it has no /404"),
        ("/500", ReadFailed, "just now"),
        ("/503", ReadFailed, "HTTP 503"),
        ("/429", ReadFailed, "just now"),
        ("/418", ReadFailed, "does not take"),
        ("/words", ReadFailed, "not JSON"),
        ("/nan", ReadFailed, "not JSON"),
        ("/deep", ReadFailed, "not JSON"),
        ("/there", ReadFailed, "another server"),
        ("/round", ReadFailed, "without end"),
        ("/cut", ReadFailed, "connection broke"),
    ],
)
def test_each_failure_in_its_own_words(client, path, kind, words):
    with pytest.raises(kind, match=words) as caught:
        client.get_json(path)
    assert str(caught.value).startswith("bmc7: ")


@pytest.mark.system
def test_a_status_that_is_asked_for_is_an_answer(client):
    assert client.get_json("/422", also=(422,)) == {"ok": 1}
    assert client.get_json("/here") == {"ok": 1}


@pytest.mark.system
def test_answers_have_an_end(server):
    with HttpClient(server, limit_b=1000) as client, pytest.raises(ReadFailed, match="too long"):
        client.get_json("/long")


@pytest.mark.system
def test_the_whole_exchange_is_bounded_however_slowly_it_drips(server):
    # If every byte renewed the patience, the end of the server's patience would be told: the connection broke.
    with HttpClient(server, timeout_s=0.4) as client, pytest.raises(ReadFailed, match="no answer in time"):
        client.get_json("/trickle")


@pytest.mark.system
def test_refused_unknown_and_silent(server):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with HttpClient(place, timeout_s=0.2) as client, pytest.raises(ReadFailed, match="no answer in time"):
            client.get_json("/")
        assert "takes connections" in reach(place, 60)[0]
    with HttpClient(place) as client, pytest.raises(ReadFailed, match="connection is refused"):
        client.get_json("/")
    assert "port" in reach(place, 60)[0]
    assert reach(place, 60)[0].endswith("is off, or listens elsewhere.")
    with HttpClient("http://no-such-host.invalid") as client, pytest.raises(ReadFailed, match="is not known"):
        client.get_json("/")
    assert "does not resolve" in reach("http://no-such-host.invalid", 60)[0]
    with HttpClient(server.replace("http", "https", 1)) as client, pytest.raises(ReadFailed, match="TLS fails"):
        client.get_json("/")


@pytest.mark.system
def test_credentials_go_where_they_belong_and_nowhere_else(server):
    with HttpClient(server, auth=Auth("bearer", password="s3cret")) as bearer:
        bearer.get_json("/good")
    assert Handler.seen[-1][2]["authorization"] == "Bearer s3cret"
    with HttpClient(server, auth=Auth("basic", "reader", "s3cret")) as basic, pytest.raises(Denied) as caught:
        basic.get_json("/401")
    assert "reader" in str(caught.value)
    assert "s3cret" not in f"{caught.value} {basic.auth!r}"


def test_settings_that_do_not_fit(tmp_path):
    with pytest.raises(ConfigError, match="64 hexadecimal"):
        HttpClient("https://bmc7", fingerprint="ab:cd")
    with pytest.raises(ConfigError, match="CA file"):
        HttpClient("https://bmc7", verify=str(tmp_path / "none.pem"))
    assert plain_fingerprint("SHA256:" + ":".join(["AB"] * 32), "x") == "ab" * 32


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_no_nonsense_is_taken_for_json(rounds):
    """Wrong would be: an answer where Python's own parser, told to refuse NaN and infinities, gives another or none."""
    draw = random.Random(7)
    good = b'{"Reading": 345.5, "Name": "Power", "Members": [{"@odata.id": "/a"}], "x": null, "y": -1e3}'
    taken = 0
    for _ in range(rounds):
        data = bytearray(good if draw.random() < 0.8 else draw.randbytes(draw.randrange(60)))
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(len(data) + 1)
            data[place : place + draw.randrange(3)] = draw.choice((b"", b"9", b"NaN", b"}", b'"', draw.randbytes(2)))
        try:
            found = parse_json(bytes(data), "x")
        except ReadFailed:
            continue
        taken += 1
        assert found == json.loads(bytes(data))
        assert "NaN" not in json.dumps(found, allow_nan=True).replace('"', "") or b"NaN" in data
    assert taken > 100 * rounds / 12_000
